"""NumPyro's example models, written anew: each names the example that it stands for, and must be taken or refused so.

Models with discrete latents are in test_discrete.py, minibatches in test_plates.py, sizes read from
the data and latents of each record in test_refusals.py. docs/strangers.md has the table of all.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import pytest
from numpyro.infer import Trace_ELBO, TraceGraph_ELBO
from numpyro.infer.autoguide import AutoDelta
from numpyro.infer.reparam import CircularReparam, TransformReparam

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 60
rng = np.random.default_rng(11)
X = jnp.asarray(rng.normal(size=(N, 3)), jnp.float32)
Y = jnp.asarray(rng.normal(size=N), jnp.float32)
LABEL = jnp.asarray(rng.integers(0, 2, N))
COUNT = jnp.asarray(rng.poisson(2.0, N))
GROUP = jnp.asarray(rng.integers(0, 6, N))
ANGLES = jnp.asarray(rng.uniform(-3, 3, (N, 2)), jnp.float32)
PRESENT = jnp.asarray(rng.random(N) < 0.7)


def horseshoe(x, y):
    """`horseshoe_regression`: no plate."""
    lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(x.shape[1])))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    betas = numpyro.sample("unscaled_betas", dist.Normal(0.0, jnp.ones(x.shape[1])))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    mean = jnp.sum(x * (tau * lambdas * betas), axis=-1)
    numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(precision)), obs=y)


def logistic(x, y):
    """`logistic_regression`, `consensus_mc`, `stacking.logistic`: no plate."""
    coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(3), jnp.ones(3)))
    numpyro.sample("y", dist.Bernoulli(logits=x @ coefs), obs=y)


def divorce(marriage, age, divorce):
    """`bayesian_regression.model`: no plate, sites of a deterministic mean."""
    a, b, c = (numpyro.sample(n, dist.Normal(0.0, 0.5)) for n in "abc")
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    mu = numpyro.deterministic("mu", a + b * marriage + c * age)
    numpyro.sample("obs", dist.Normal(mu, sigma), obs=divorce)


def ordinal(x, grade):
    """`ordinal_regression.model2`: a latent that is observed to have a prior."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    cuts = numpyro.sample(
        "c_y",
        dist.TransformedDistribution(
            dist.Normal(0, 1).expand([2]).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    numpyro.sample("c_y_smp", dist.Normal(0, 1), obs=cuts)
    with numpyro.plate("obs", len(grade)):
        numpyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=grade)


@handlers.reparam(config={"phi_loc": CircularReparam(), "psi_loc": CircularReparam()})
def sine_mixture(angles):
    """`ssbvm_mixture`: a reparametrisation that writes a factor, and a discrete latent of each record."""
    weights = numpyro.sample("mix_weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("mixture", 2):
        phi_loc = numpyro.sample("phi_loc", dist.VonMises(jnp.pi, 2))
        psi_loc = numpyro.sample("psi_loc", dist.VonMises(0, 2))
        phi_conc = numpyro.sample("phi_conc", dist.Gamma(2.0, 1.0))
        psi_conc = numpyro.sample("psi_conc", dist.Gamma(2.0, 1.0))
    with numpyro.plate("obs_plate", len(angles)):
        z = numpyro.sample("mix_comp", dist.Categorical(weights), infer={"enumerate": "parallel"})
        numpyro.sample("phi", dist.VonMises(phi_loc[z], phi_conc[z]), obs=angles[:, 0])
        numpyro.sample("psi", dist.VonMises(psi_loc[z], psi_conc[z]), obs=angles[:, 1])


def admissions(dept, male, applications, admit, num_dept=6):
    """`ucbadmit.glmm` with its number of departments public: no plate of the records."""
    v = numpyro.sample("v", dist.Normal(0, jnp.ones(2)))
    sigma = numpyro.sample("sigma", dist.HalfNormal(jnp.ones(2)))
    rho = numpyro.sample("L_Rho", dist.LKJCholesky(2, concentration=2.0))
    z = numpyro.sample("z", dist.Normal(jnp.zeros((num_dept, 2)), 1))
    effects = z @ (sigma[:, None] * rho).T
    logits = v[0] + effects[dept, 0] + (v[1] + effects[dept, 1]) * male
    numpyro.sample("admit", dist.Binomial(applications, logits=logits), obs=admit)


def hierarchical(group, week, y, num_patients=6):
    """`hierarchical linear regression`, `mortality`: groups, their number public."""
    mu, sigma = (
        numpyro.sample("mu", dist.Normal(0, 10)),
        numpyro.sample("sigma", dist.HalfNormal(10)),
    )
    with numpyro.plate("groups", num_patients):
        a = numpyro.sample("a", dist.Normal(mu, sigma))
        b = numpyro.sample("b", dist.Normal(0, sigma))
    noise = numpyro.sample("noise", dist.HalfNormal(10))
    with numpyro.plate("data", len(group)):
        numpyro.sample("y", dist.Normal(a[group] + b[group] * week, noise), obs=y)


def measured_with_error(x, y, present):
    """`bayesian_imputation`: what is missing is a latent of its record, beside a mask."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        age = numpyro.sample("age", dist.Normal(0, 1))
        with handlers.mask(mask=present):
            numpyro.sample("seen", dist.Normal(age, 0.01), obs=x)
        numpyro.sample("y", dist.Normal(w * age, 1), obs=y)


def standard_error(x, error, y):
    """`bayesian_regression.model_se`: a latent of each record, without a plate."""
    a, b = (numpyro.sample(n, dist.Normal(0.0, 0.5)) for n in "ab")
    rate = numpyro.sample(
        "rate", dist.Normal(a + b * x, numpyro.sample("sigma", dist.Exponential(1.0)))
    )
    numpyro.sample("obs", dist.Normal(rate, error), obs=y)


def standard_error_in_a_plate(x, error, y):
    a, b = (numpyro.sample(n, dist.Normal(0.0, 0.5)) for n in "ab")
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("data", len(y)):
        rate = numpyro.sample("rate", dist.Normal(a + b * x, sigma))
        numpyro.sample("obs", dist.Normal(rate, error), obs=y)


def images(x, y):
    """`cvae-flax`: a code and pixels of each record, without a plate or an event axis."""
    w = numpyro.param("decoder", 0.1 * jnp.ones((2, 3)))
    z = numpyro.sample("z", dist.Normal(x[:, :2] * numpyro.param("prior", 0.5), 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=z @ w), obs=y)


def encoder(x, y):
    w = numpyro.param("encoder", 0.1 * jnp.ones((6, 2)))
    numpyro.sample("z", dist.Normal(jnp.concatenate([x, y], axis=-1) @ w, 0.5))


def topics(counts, K=2):
    """`covtype`, `hmcecs`, `tbip`: counts with a latent position of each author, minibatches with numbers."""
    x = numpyro.sample("x", dist.Normal(jnp.zeros(K), 1))
    with numpyro.plate("docs", N, subsample_size=10):
        numpyro.sample("y", dist.Poisson(jnp.exp(x.sum())), obs=counts)


def survival(x, y, censored):
    """`survival` by a factor inside the plate."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(y)):
        rate = dist.Exponential(jnp.exp(x @ w))
        numpyro.factor("y", jnp.where(censored, -rate.rate * jnp.exp(y), rate.log_prob(jnp.exp(y))))


def inflated(x, y):
    """`zero_inflated_poisson`."""
    b = numpyro.sample("b", dist.Normal(0, 0.1).expand([3]).to_event(1))
    gate = numpyro.sample("gate", dist.Beta(1, 1))
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate=jnp.exp(x @ b)), obs=y)


@handlers.reparam(config={"c": TransformReparam()})
def transformed(x, y):
    """`ordinal_regression.model4`."""
    normal = dist.TransformedDistribution(
        dist.Normal(0, 1), dist.transforms.AffineTransform(1.0, 2.0)
    )
    c = numpyro.sample("c", normal)
    with numpyro.plate("obs", len(y)):
        numpyro.sample("y", dist.Normal(c + x[:, 0], 1), obs=y)


def pooled(hits, at_bats):
    """`baseball.fully_pooled`."""
    phi = numpyro.sample("phi", dist.Uniform(0, 1))
    with numpyro.plate("players", len(hits)):
        numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


def players(hits, at_bats):
    """`baseball.partially_pooled`: a skill of each player."""
    m, kappa = (
        numpyro.sample("m", dist.Uniform(0, 1)),
        numpyro.sample("kappa", dist.Exponential(1.0)),
    )
    with numpyro.plate("players", len(hits)):
        phi = numpyro.sample("phi", dist.Beta(1 + m * kappa, 1 + (1 - m) * kappa))
        numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


def network(x, y):
    """`bnn`, `stein_bnn`: a network whose weights have a prior."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros((3, 4)), 1.0).to_event(2))
    v = numpyro.sample("v", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ w) @ v, 1.0), obs=y)


def difference(treated, y):
    """`bayesian_cuped.difference_in_means`."""
    mean, effect = (numpyro.sample(n, dist.Normal(0.0, 10.0)) for n in ("mean", "effect"))
    scale = numpyro.sample("scale", dist.HalfNormal(10.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mean + effect * treated, scale), obs=y)


def weighted(x, y, weights):
    """A survey: each record's density to the power of its weight."""
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    with numpyro.plate("data", len(y)), handlers.scale(scale=weights):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def weights_of_all(log_likelihoods):
    """`stacking.stacking`: a factor that sums over the records what a softmax of shared weights makes of each."""
    w = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.factor("stack", jnp.sum(jax.nn.logsumexp(log_likelihoods, axis=-1, b=w)))


TAKEN = [
    (pooled, (COUNT, COUNT + 30), {}),
    (players, (COUNT, COUNT + 30), {}),
    (network, (X, Y), {}),
    (difference, (LABEL, Y), {}),
    (weighted, (X, Y, jnp.abs(Y) + 0.5), {}),
    (weights_of_all, (X,), {}),
    (horseshoe, (X, Y), {}),
    (logistic, (X, LABEL), {}),
    (divorce, (X[:, 0], X[:, 1], Y), {}),
    (ordinal, (X, LABEL), {}),
    (sine_mixture, (ANGLES,), {}),
    (admissions, (GROUP, LABEL, COUNT + 3, COUNT), {"num_dept": 6}),
    (hierarchical, (GROUP, X[:, 0], Y), {"num_patients": 6}),
    (measured_with_error, (X[:, 0], Y, PRESENT), {}),
    (images, (X, jnp.asarray(X > 0, jnp.float32)), {"guide": encoder}),
    (topics, (COUNT,), {}),
    (survival, (X, Y, PRESENT), {}),
    (inflated, (X, COUNT), {}),
    (transformed, (X, Y), {}),
]


# Those that compile longest; test_discrete.py and test_factors.py beside this file have more of
# their kinds.
MORE = (
    *(players, weights_of_all, sine_mixture, admissions),
    *(pooled, network, horseshoe, ordinal, measured_with_error, inflated),
)


@pytest.mark.parametrize(
    ("model", "records", "options"),
    [pytest.param(*x, marks=[pytest.mark.exhaustive] * (x[0] in MORE)) for x in TAKEN],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_taken_as_it_is(stranger, model, records, options):
    """Accepted; and at one point of its latents, the records' losses and the data-free term are NumPyro's ELBO."""
    program = stranger(model, *records, **{"guide": AutoDelta(model), **options})
    losses, free = program.losses()
    if "guide" in options or program.objective.structure.summed or model is topics:
        # Drawn, or taken by NumPyro with funsor, or in batches alone.
        return
    params = program.dpsvi.get_params(program.start())
    rows = len(records[0])
    for name, axis in program.objective.structure.local_params:
        start = program.objective.transforms[name](program.objective.local_start[name])
        params[name] = jnp.repeat(jnp.expand_dims(start, axis), rows, axis)
    static = program.dpsvi.static_kwargs
    theirs = Trace_ELBO().loss(
        jax.random.key(0), params, model, AutoDelta(model), *records, **static
    )
    np.testing.assert_allclose(losses.sum() + free, theirs, rtol=1e-4)


def test_latents_of_records_without_a_plate_are_in_one(stranger):
    for model in (standard_error, standard_error_in_a_plate):
        program = stranger(model, X[:, 0], jnp.abs(Y) + 1.0, Y)
        state = program.start()
        assert program.objective.structure.local_latents == ("rate",)
        assert {name for name, _ in program.objective.structure.local_params} == {
            "rate_auto_loc",
            "rate_auto_scale",
        }
        assert "rate_auto_loc" not in program.dpsvi.get_params(state)


def walk(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    level = numpyro.sample("level", dist.GaussianRandomWalk(scale, num_steps=len(y)))
    numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def steps(y):
    """The same walk by independent steps: each record's level meets the steps of all before it."""
    step = numpyro.sample(
        "step", dist.Normal(jnp.zeros(len(y)), numpyro.sample("scale", dist.HalfNormal(1.0)))
    )
    numpyro.sample("y", dist.Normal(jnp.cumsum(step), 1.0), obs=y)


def test_a_random_walk_over_the_records_is_refused(stranger):
    assert "in principle" in stranger(walk, Y).refusal()
    assert "couples records" in stranger(steps, Y).refusal()


def test_trace_graph(stranger):
    """TraceGraph_ELBO with a reparametrised guide is Trace_ELBO."""
    one, other = (
        stranger(logistic, X, LABEL, loss=loss()).losses() for loss in (Trace_ELBO, TraceGraph_ELBO)
    )
    np.testing.assert_array_equal(one[0], other[0])


# --- refused, in principle
# --------------------------------------------------------------------------


def adjusted(before, y):
    """`bayesian_cuped.cuped_model`: a mean over the table."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(w * (before - jnp.mean(before)), 1), obs=y)


def process(x, y):
    """`gp`, `dais_demo`: one joint density."""
    length = numpyro.sample("length", dist.LogNormal(0, 1))
    k = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 0.1 * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(loc=jnp.zeros(len(x)), covariance_matrix=k), obs=y)


REFUSED = [
    (adjusted, (X[:, 0], Y), ("couples records", "mean over the records")),
    (process, (X[:, 0], Y), ("'y'", "Gaussian process", "in principle")),
]


@pytest.mark.parametrize(
    ("model", "records", "words"), REFUSED, ids=lambda x: getattr(x, "__name__", None)
)
def test_refused_in_principle(stranger, model, records, words):
    message = stranger(model, *records).refusal()
    for word in words:
        assert word in message


def test_no_argument(stranger):
    """A model that holds its table and takes none."""
    program = stranger(logistic, X, LABEL)
    program.records = ()
    assert "No argument is an array" in program.refusal()
