"""Discrete latents of one record, summed out of its loss."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, init_to_value
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import discreet as dp
from discreet.methods.inference import with_levels

pytestmark = pytest.mark.usefixtures("quick_compilation")

N, K = 40, 3
rng = np.random.default_rng(5)
Y = jnp.asarray(rng.normal(size=N), jnp.float32)
ANSWERS = jnp.asarray(rng.integers(0, K, (N, 4)))
HISTORY = jnp.asarray(rng.integers(0, 2, (N, 5)))
ENUMERATE = {"enumerate": "parallel"}


def components():
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("components", K):
        return weights, numpyro.sample("locs", dist.Normal(0, 10))


def mixture(y):
    """`gmm`, `toy_mixture_model_discrete_enumeration`."""
    weights, locs = components()
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Categorical(weights), infer=ENUMERATE)
        numpyro.sample("y", dist.Normal(locs[z], 1.0), obs=y)


def summed_by_hand(y):
    weights, locs = components()
    with numpyro.plate("data", len(y)):
        numpyro.sample(
            "y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(locs, 1.0)), obs=y
        )


def dawid_skene(answers, raters=4):
    """`annotation.dawid_skene`: several raters of one item."""
    with numpyro.plate("rater", raters, dim=-2), numpyro.plate("class", K):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(K) + 2 * jnp.eye(K)))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("item", answers.shape[0], dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer=ENUMERATE)
        with numpyro.plate("position", answers.shape[1]):
            # One answer of each rater.
            probs = beta[jnp.arange(raters), c]
            numpyro.sample("y", dist.Categorical(probs), obs=answers)


def dawid_skene_as_written(raters, answers):
    """`annotation.dawid_skene` as it is written: the numbers of raters and classes from the data, one array not of records."""
    num_raters, num_classes = int(np.max(raters)) + 1, int(np.max(answers)) + 1
    num_items, num_answers = answers.shape
    with numpyro.plate("rater", num_raters, dim=-2), numpyro.plate("class", num_classes):
        beta = numpyro.sample(
            "beta", dist.Dirichlet(jnp.ones(num_classes) + 2 * jnp.eye(num_classes))
        )
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(num_classes)))
    with numpyro.plate("item", num_items, dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer=ENUMERATE)
        with numpyro.plate("position", num_answers):
            numpyro.sample("y", dist.Categorical(beta[raters, c, :]), obs=answers)


def mace(answers, raters=4):
    """`annotation.mace`: whether each answer is a guess is a latent, too."""
    with numpyro.plate("rater", raters):
        epsilon = numpyro.sample("epsilon", dist.Dirichlet(jnp.ones(K) * 10))
        theta = numpyro.sample("theta", dist.Beta(2, 2))
    with numpyro.plate("item", answers.shape[0], dim=-2):
        c = numpyro.sample("c", dist.DiscreteUniform(0, K - 1), infer=ENUMERATE)
        with numpyro.plate("position", answers.shape[1]):
            s = numpyro.sample("s", dist.Bernoulli(1 - theta), infer=ENUMERATE)
            probs = jnp.where(s[..., None] == 0, jnp.eye(K)[c], epsilon)
            numpyro.sample("y", dist.Categorical(probs), obs=answers)


def capture_recapture(history):
    """`capture_recapture_cjs.model_1`: whether an animal lives is a latent of each year."""
    phi = numpyro.sample("phi", dist.Uniform(0, 1))
    rho = numpyro.sample("rho", dist.Uniform(0, 1))

    def year(carry, y):
        caught, z = carry
        with numpyro.plate("animals", len(history)), handlers.mask(mask=caught):
            alive = caught * phi * z + (1 - caught)
            z = numpyro.sample("z", dist.Bernoulli(dist.util.clamp_probs(alive)), infer=ENUMERATE)
            numpyro.sample("y", dist.Bernoulli(dist.util.clamp_probs(rho * z)), obs=y)
        return (caught | y.astype(bool), z), None

    start = history[:, 0].astype(bool), jnp.ones(len(history), dtype=jnp.int32)
    scan(year, start, jnp.swapaxes(history[:, 1:], 0, 1))


def capture_recapture_by_year(history):
    """`capture_recapture_cjs.model_2`: a survival rate of each year, sampled in the loop."""
    rho = numpyro.sample("rho", dist.Uniform(0, 1))

    def year(carry, y):
        caught, z = carry
        phi = numpyro.sample("phi", dist.Uniform(0, 1))
        with numpyro.plate("animals", len(history)), handlers.mask(mask=caught):
            alive = caught * phi * z + (1 - caught)
            z = numpyro.sample("z", dist.Bernoulli(dist.util.clamp_probs(alive)), infer=ENUMERATE)
            numpyro.sample("y", dist.Bernoulli(dist.util.clamp_probs(rho * z)), obs=y)
        return (caught | y.astype(bool), z), None

    start = history[:, 0].astype(bool), jnp.ones(len(history), dtype=jnp.int32)
    scan(year, start, jnp.swapaxes(history[:, 1:], 0, 1))


def random_effects(answers, raters=4):
    """`annotation.logistic_random_effects`, `item_difficulty`: a class and a difficulty of each item."""
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("class", K):
        chi = numpyro.sample("chi", dist.LogNormal(0, 1))
    with numpyro.plate("position", raters):
        skill = numpyro.sample("skill", dist.Normal(0, 1))
    with numpyro.plate("item", answers.shape[0], dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer=ENUMERATE)
        theta = numpyro.sample("theta", dist.Normal(0, chi[c]))
        with numpyro.plate("position", raters):
            logits = jnp.eye(K)[c] * (skill + theta)[..., None]
            numpyro.sample("y", dist.Categorical(logits=logits), obs=answers)


def imputed(y):
    """`discrete_imputation`: a missing cause of each record."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("data", len(y)):
        b = numpyro.sample("b", dist.Bernoulli(p), infer=ENUMERATE)
        numpyro.sample("y", dist.Normal(a * b, 0.5), obs=y)


@pytest.mark.exhaustive
def test_a_mixture_is_that_of_mixture_same_family(stranger):
    expected, free = stranger(summed_by_hand, Y).losses()
    for loss in (Trace_ELBO(), TraceEnum_ELBO(), TraceGraph_ELBO()):
        program = stranger(mixture, Y, loss=loss)
        losses, its_free = program.losses()
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        np.testing.assert_allclose(its_free, free, rtol=1e-4)
    assert program.certify()


@pytest.mark.parametrize(
    ("model", "records"),
    [(mixture, Y), pytest.param(dawid_skene, ANSWERS, marks=pytest.mark.exhaustive), (imputed, Y)],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_loss_is_that_of_trace_enum_elbo(stranger, model, records):
    """NumPyro's, through funsor, at one point of the shared latents."""
    pytest.importorskip("funsor", reason="NumPyro enumerates by funsor, which is not installed")
    program = stranger(model, records, guide=AutoDelta(model), loss=TraceEnum_ELBO())
    losses, free = program.losses()
    params = program.dpsvi.get_params(program.start())
    theirs = TraceEnum_ELBO().loss(
        jax.random.key(0), params, model, delta(program, params), records
    )
    np.testing.assert_allclose(losses.sum() + free, theirs, rtol=1e-4)
    assert program.certify()


@pytest.mark.exhaustive
def test_answers_as_the_example_has_them(stranger):
    """The annotators are public and no column of the records, so DPSVI gets them by name; `with_levels` counts the classes."""
    expected, free = stranger(dawid_skene, ANSWERS).losses()
    model = with_levels(dawid_skene_as_written, answers=K)
    program = stranger(model, ANSWERS, raters=np.arange(4))
    program.records = ()
    records = dp.inference._records.take_apart((), {"answers": ANSWERS})
    state = program.dpsvi._init(dp.random.key(1), records, None)
    u, its_free = program.objective.link(
        program.dpsvi.optim.get_params(state.optim_state), jax.random.key(3)
    )
    keys = jax.random.split(jax.random.key(4), N)
    losses = jax.vmap(program.objective.record_loss, (None, 0, 0))(u, [ANSWERS], keys)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(its_free, free, rtol=1e-4)


def delta(program, params):
    """NumPyro's point guide at these parameters, which knows nothing of the sites that are summed out."""
    sites = {name.removesuffix("_auto_loc"): value for name, value in params.items()}
    trace = program.dpsvi.guide.prototype_trace

    def guide(*_args):
        for name, value in sites.items():
            event = trace[name]["fn"].event_dim
            plates = [
                numpyro.plate(f.name, f.size, dim=f.dim) for f in trace[name]["cond_indep_stack"]
            ]
            with numpyro.handlers.block(hide=[]):
                for plate in plates:
                    plate.__enter__()
                numpyro.sample(name, dist.Delta(value, event_dim=event))
                for plate in reversed(plates):
                    plate.__exit__(None, None, None)

    return guide


@pytest.mark.exhaustive
def test_the_sum_is_over_every_combination(stranger):
    """By hand: the joint density at each value of the latents of one record."""
    program = stranger(mace, ANSWERS, guide=AutoDelta(mace))
    losses, _ = program.losses()
    params = program.dpsvi.get_params(program.start())
    point = {name.removesuffix("_auto_loc"): value for name, value in params.items()}
    total = []
    for c, *s in itertools.product(range(K), *[range(2)] * 4):
        values = {**point, "c": jnp.full((1, 1), c), "s": jnp.array([s])}
        trace = handlers.trace(handlers.substitute(handlers.seed(mace, 0), data=values)).get_trace(
            ANSWERS[:1]
        )
        total.append(
            sum(jnp.sum(trace[n]["fn"].log_prob(trace[n]["value"])) for n in ("c", "s", "y"))
        )
    np.testing.assert_allclose(losses[0], -jax.nn.logsumexp(jnp.stack(total)), rtol=1e-4)


def test_latents_in_a_loop_over_a_record(stranger):
    """By hand, year by year; a masked year adds log 2, as it does in NumPyro."""
    program = stranger(capture_recapture, HISTORY, guide=AutoDelta(capture_recapture))
    losses, _ = program.losses()
    params = program.dpsvi.get_params(program.start())
    phi, rho = (
        np.clip(float(params[f"{name}_auto_loc"]), 1e-7, 1 - 1e-7) for name in ("phi", "rho")
    )
    for loss, history in zip(losses[:10], np.asarray(HISTORY), strict=False):
        total = 0.0
        for path in itertools.product((0, 1), repeat=4):
            caught, alive, density = bool(history[0]), 1, 1.0
            for z, y in zip(path, history[1:], strict=True):
                if caught:
                    p, seen = phi * alive, rho * z
                    density *= (p if z else 1 - p) * (seen if y else 1 - seen)
                caught, alive = caught or bool(y), z
            total += density
        np.testing.assert_allclose(loss, -np.log(total), rtol=1e-3, atol=1e-4)
    assert program.certify()


@pytest.mark.exhaustive
def test_shared_latents_in_the_loop(stranger):
    program = stranger(capture_recapture_by_year, HISTORY)
    losses, _ = program.losses()
    assert np.all(np.isfinite(losses))
    assert program.dpsvi.get_params(program.start())["phi_auto_loc"].shape == (4,)


def test_a_latent_of_the_record_beside_it(stranger):
    program = stranger(random_effects, ANSWERS)
    program.start()
    assert program.objective.structure.local_latents == ("theta",)
    assert {name for name, _ in program.objective.structure.local_params} == {
        "theta_auto_loc",
        "theta_auto_scale",
    }


def test_draws_given_a_record_follow_the_posterior(stranger):
    program = stranger(mixture, Y)
    state = program.start()
    u, _ = program.objective.link(
        program.dpsvi.optim.get_params(state.optim_state), jax.random.key(3)
    )
    keys = jax.random.split(jax.random.key(4), 4000)
    draws = jax.vmap(lambda key: program.objective.draw_discrete(u, [Y[0]], key))(keys)["z"]
    latents = {n: v[0] for n, v in u["latent"].items()}
    weights = dist.transforms.StickBreakingTransform()(latents["weights"])
    exact = weights * jnp.exp(dist.Normal(latents["locs"], 1.0).log_prob(Y[0]))
    exact = exact / exact.sum()
    for k in range(K):
        error = 5 * np.sqrt(exact[k] * (1 - exact[k]) / 4000) + 1e-3
        assert abs(float(jnp.mean(draws == k)) - float(exact[k])) < error


def test_a_fit_and_the_components_of_records(stranger):
    """Two components far apart: every record is given to its own."""
    y = jnp.concatenate([jnp.full(20, -8.0), jnp.full(20, 8.0)])
    start = init_to_value(
        values={"locs": jnp.array([-7.0, 7.0, 100.0]), "weights": jnp.array([0.45, 0.45, 0.1])}
    )
    program = stranger(mixture, y, guide=AutoNormal(mixture, init_loc_fn=start))
    result = program.dpsvi.run(dp.random.key(1), y, progress_bar=False)
    params = program.dpsvi.optim.get_params(program.start().optim_state) | dict(result.params)
    u, _ = program.objective.link(program.objective.unconstrain(params), jax.random.key(3))
    drawn = [
        program.objective.draw_discrete(u, [record], jax.random.key(4))["z"]
        for record in (y[0], y[-1])
    ]
    assert drawn == [0, 1]


# --- what is refused
# -------------------------------------------------------------------------------


def too_many(y):
    p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(p).expand([13]).to_event(1))
        numpyro.sample("y", dist.Normal(z.sum(-1), 1), obs=y)


def one_for_all(y):
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(w * z, 1), obs=y)


def couples(y):
    """The choices of all records meet."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(w * z.sum(), 1), obs=y)


def scaled_differently(y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(w * z, 1), obs=y)
        with handlers.scale(scale=0.5):
            numpyro.sample("again", dist.Normal(w * z, 1), obs=y)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (too_many, ("'z'", "8192", "4096")),
        (one_for_all, ("global latent site 'z'", "MixtureSameFamily")),
        (couples, ("couples records",)),
        (scaled_differently, ("handlers.scale", "same number")),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_not_summed_out(stranger, program, words):
    message = stranger(program, Y).refusal()
    for word in words:
        assert word in message


def test_a_guide_that_samples_it(stranger):
    def guide(y):
        numpyro.sample("a", dist.Normal(numpyro.param("loc", 0.0), 0.1))
        numpyro.sample("p", dist.Beta(numpyro.param("one", 2.0), 2.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("b", dist.Bernoulli(0.5))

    assert "Leave it out of the guide" in stranger(imputed, Y, guide=guide).refusal()
