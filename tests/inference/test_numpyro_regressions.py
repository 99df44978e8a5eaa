"""NumPyro's regression examples, written as there, give under DPSVI what SVI gives when nothing is clipped."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import init_to_median
from numpyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal

pytestmark = pytest.mark.usefixtures("quick_compilation")

rng = np.random.default_rng(2022)
ROWS = 240
FEATURES = rng.normal(size=(ROWS, 3)).astype(np.float32)
COEFFICIENTS = np.array([1.0, -0.5, 0.25], np.float32)
LABELS = (rng.random(ROWS) < 1 / (1 + np.exp(-FEATURES @ COEFFICIENTS))).astype(np.float32)
TARGETS = (FEATURES @ COEFFICIENTS + 0.3 + 0.5 * rng.normal(size=ROWS)).astype(np.float32)
COUNTS = rng.poisson(np.exp(0.5 + 0.5 * FEATURES @ COEFFICIENTS)).astype(np.int32)
GROUPS = rng.integers(0, 6, ROWS).astype(np.int32)
GROUP_TARGETS = (
    rng.normal(size=6)[GROUPS] - 0.7 * FEATURES[:, 0] + 0.4 * rng.normal(size=ROWS)
).astype(np.float32)
AT_BATS = rng.integers(20, 60, 40).astype(np.int32)
HITS = rng.binomial(AT_BATS, 0.27).astype(np.int32)


def covtype(data, labels):
    dim = data.shape[1]
    coefs = numpyro.sample("coefs", dist.Normal(jnp.zeros(dim), jnp.ones(dim)))
    logits = jnp.dot(data, coefs)
    with numpyro.plate("N", len(data)):
        return numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=labels)


def linear_regression(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([x.shape[-1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("data", x.shape[0]):
        mean = numpyro.deterministic("mean", intercept + x @ slopes)
        numpyro.sample("obs", dist.Normal(mean, sigma), obs=y)


def poisson_regression(x, counts=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    with numpyro.plate("features", x.shape[1]):
        slopes = numpyro.sample("slopes", dist.Laplace(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("counts", dist.Poisson(jnp.exp(intercept + x @ slopes)), obs=counts)


def random_effects(group, floor, log_radon=None, num_groups=6):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", num_groups):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
    noise = numpyro.sample("noise", dist.HalfCauchy(1.0))
    with numpyro.plate("data", len(group)):
        numpyro.sample("obs", dist.Normal(effect[group] + slope * floor, noise), obs=log_radon)


def horseshoe(X, Y):
    D_X = X.shape[1]
    lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(D_X)))
    tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(1)))
    unscaled_betas = numpyro.sample("unscaled_betas", dist.Normal(0.0, jnp.ones(D_X)))
    scaled_betas = numpyro.deterministic("betas", tau * lambdas * unscaled_betas)
    mean_function = jnp.dot(X, scaled_betas)
    prec_obs = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
    sigma_obs = 1.0 / jnp.sqrt(prec_obs)
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample("Y", dist.Normal(mean_function, sigma_obs), obs=Y)


def baseball_fully_pooled(at_bats, hits=None):
    phi = numpyro.sample("phi", dist.Uniform(0, 1))
    num_players = at_bats.shape[0]
    with numpyro.plate("num_players", num_players):
        return numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


EXAMPLES = {
    "logistic": (covtype, (FEATURES, LABELS)),
    "linear": (linear_regression, (FEATURES, TARGETS)),
    "poisson": (poisson_regression, (FEATURES, COUNTS)),
    "hierarchical": (random_effects, (GROUPS, FEATURES[:, 0], GROUP_TARGETS)),
    "horseshoe": (horseshoe, (FEATURES, TARGETS)),
    "binomial": (baseball_fully_pooled, (AT_BATS, HITS)),
}

PARAMS = [
    pytest.param(x, marks=[] if x == "logistic" else pytest.mark.exhaustive) for x in EXAMPLES
]


@pytest.fixture(name="pair", scope="module", params=PARAMS)
def _pair(request, twins):
    model, records = EXAMPLES[request.param]
    guide = AutoNormal(model, init_loc_fn=init_to_median)
    return twins(
        lambda: (model, guide), *records, step_size=0.05 if request.param == "horseshoe" else 0.02
    )


def test_a_step_without_clipping_and_noise_is_numpyros_step(pair):
    pair.first_step().check()


# Their steps are NumPyro's, all of them; where many steps lead is tried on two.
_STEP_ONLY = {"linear", "poisson", "binomial", "hierarchical", "horseshoe"}


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name in _STEP_ONLY))
        for name in EXAMPLES
    ],
    indirect=True,
)
def test_the_optimum_is_numpyros(pair):
    fits = pair.fit()
    fits.check_elbo(nats=0.5)
    if pair.model is horseshoe:
        # The product of its factors is what the data know; along the rest its ELBO is flat.
        product = jnp.exp(fits.params["tau_auto_loc"] + fits.params["lambdas_auto_loc"])
        expected = jnp.exp(
            fits.numpyro_params["tau_auto_loc"] + fits.numpyro_params["lambdas_auto_loc"]
        )
        np.testing.assert_allclose(
            product * fits.params["unscaled_betas_auto_loc"],
            expected * fits.numpyro_params["unscaled_betas_auto_loc"],
            atol=0.05,
        )
    else:
        fits.check_normal(locations=0.3, scales=0.2)


@pytest.mark.exhaustive
def test_correlated_posteriors_agree_too(twins):
    pair = twins(
        lambda: (linear_regression, AutoMultivariateNormal(linear_regression)), FEATURES, TARGETS
    )
    pair.first_step().check()


def test_a_maximum_a_posteriori_fit_is_numpyros(twins):
    fits = twins(lambda: (linear_regression, AutoDelta(linear_regression)), FEATURES, TARGETS).fit(
        particles=1
    )
    for site, ours in fits.params.items():
        np.testing.assert_allclose(ours, fits.numpyro_params[site], atol=2e-3, err_msg=site)
