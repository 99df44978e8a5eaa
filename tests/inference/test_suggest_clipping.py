import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

import discreet as dp

pytestmark = pytest.mark.usefixtures("quick_compilation")

N, DIM = 5000, 4
SHAPES = (jax.ShapeDtypeStruct((N, DIM), jnp.float32), jax.ShapeDtypeStruct((N,), jnp.float32))


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def noisy_mean(y):
    """Gradients are y - theta: their norms are known."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def point(y):
    numpyro.sample("theta", dist.Delta(numpyro.param("loc", 0.0)))


def suggest(model, *shapes, key=0, guide=None, **options):
    return dp.inference.suggest_clipping(model, guide or AutoNormal(model), *shapes, key=dp.random.key(key), **options)


def test_observations_come_from_the_prior_predictive():
    suggestion = suggest(noisy_mean, SHAPES[1], guide=point, quantile=0.5, num_made_up=4000)
    # |y| for y ~ N(0, 3^2 + 1), whatever the zeros that stand for the argument: median 0.6745 sqrt(10).
    assert suggestion.redrawn == ("y",)
    assert suggestion.norm == pytest.approx(0.6745 * np.sqrt(10), rel=0.06)
    assert dict(suggestion.quantiles)[0.9] == pytest.approx(1.645 * np.sqrt(10), rel=0.06)


def test_it_is_near_what_real_records_of_that_kind_have():
    suggestion = suggest(logistic, *SHAPES, quantile=0.5)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, DIM))
    # At parameters near 0 a gradient is about x / 2.
    assert suggestion.norm == pytest.approx(np.median(np.linalg.norm(x, axis=1)) / 2, rel=0.6)
    assert "No data were used" in str(suggestion)
    assert "guess" in str(suggestion)
    assert str(suggestion).startswith(f"clipping_norm = {suggestion.norm:g}")


def test_a_plan_takes_it_and_the_guide_still_fits():
    guide = AutoNormal(logistic)
    norm = suggest(logistic, *SHAPES, guide=guide).norm
    assert norm == float(f"{norm:.2g}")
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.1),
        clipping_norm=dp.AdaptiveClipping(initial=norm),
        noise_multiplier=1.0,
        num_steps=3,
        num_records=N,
    )
    table = np.random.default_rng(0).normal(size=(N, DIM)).astype(np.float32), np.ones(N, np.float32)
    dpsvi = dp.DPSVI(logistic, guide, numpyro.optim.Adam(1e-2), plan=plan)
    assert dpsvi.run(dp.random.key(0), *table, progress_bar=False).clipping_norms[0] == np.float32(norm)


def test_a_key_decides_and_the_number_of_records_does_not():
    suggestion = suggest(logistic, *SHAPES)
    assert suggestion == suggest(logistic, *SHAPES)
    shorter = [jax.ShapeDtypeStruct((100, *s.shape[1:]), s.dtype) for s in SHAPES]
    assert suggestion == suggest(logistic, *shorter)
    assert suggestion != suggest(logistic, *SHAPES, key=1)


def test_one_made_up_record_will_do():
    wide = suggest(logistic, np.full((1, DIM), 100.0, np.float32), np.zeros(1, np.float32))
    narrow = suggest(logistic, np.full((1, DIM), 1.0, np.float32), np.zeros(1, np.float32))
    assert wide.norm > 20 * narrow.norm


def test_made_up_records_of_ones_own_are_used_as_they_are():
    def make_up(key, rows):
        return (7.0 + 0.001 * jax.random.normal(key, (rows,)),)

    suggestion = suggest(noisy_mean, make_up=make_up, guide=point)
    assert suggestion.redrawn == ()
    assert suggestion.norm == pytest.approx(7.0, rel=0.01)


def test_factors_are_left_alone():
    def model(slope):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", slope.shape[0]):
            numpyro.factor("pull", slope * theta)

    suggestion = suggest(model, np.full(1, 3.0, np.float32))
    assert suggestion.redrawn == ()
    assert suggestion.norm == pytest.approx(3.0)


def test_an_amortised_guide_sees_the_made_up_observation():
    def model(x):
        w = numpyro.param("w", jnp.ones(()))
        with numpyro.plate("data", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Normal(w * z, 0.1), obs=x)

    def guide(x):
        v = numpyro.param("v", jnp.zeros(()))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("z", dist.Normal(v * x, 1.0))

    suggestion = suggest(model, SHAPES[1], guide=guide, quantile=0.5)
    # The gradient in v is proportional to x, so zeros instead of observations would take most of it away.
    assert suggestion.redrawn == ("x",)
    assert suggestion.norm > 20


def test_public_arguments_and_a_declared_length():
    def model(x, scale, y, N):
        w = numpyro.sample("w", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", N, x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    assert suggest(model, SHAPES[0], 2.0, SHAPES[1], N=N).norm > 0
    rows = np.zeros((1, DIM), np.float32) + 1, 2.0, np.zeros(1, np.float32)
    assert suggest(model, *rows, num_records=N, N=N).norm > 0


TABLE = np.random.default_rng(0).normal(size=(50, DIM)).astype(np.float32)


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        ((TABLE, SHAPES[1]), {}, "looks like the table"),
        ((jnp.asarray(TABLE), SHAPES[1]), {}, "50 rows"),
        (
            (),
            {"make_up": lambda key, rows: (np.resize(TABLE, (rows, DIM)), np.zeros(rows, np.float32))},
            "same records",
        ),
        ((), {"make_up": lambda key, rows: (TABLE, np.zeros(50, np.float32))}, "returned 50"),
        (SHAPES, {"make_up": lambda key, rows: SHAPES}, "not both"),
        ((SHAPES[0], jax.ShapeDtypeStruct((7,), jnp.float32)), {}, "different numbers"),
        ((SHAPES[0], jax.ShapeDtypeStruct((), jnp.float32)), {}, "leading axis"),
        (SHAPES, {"quantile": 1.0}, "quantile"),
        (SHAPES, {"num_made_up": 3}, "num_made_up"),
    ],
)
def test_what_looks_like_data_is_refused(shapes, options, words):
    with pytest.raises(ValueError, match=words):
        suggest(logistic, *shapes, **options)


def test_a_table_in_the_closure_is_refused():
    def model(y):
        theta = numpyro.sample("theta", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(theta + jnp.asarray(TABLE)[:, 0].mean(), 1.0), obs=y)

    with pytest.raises(ValueError, match="not passed as records"):
        suggest(model, jax.ShapeDtypeStruct((50,), jnp.float32))


def test_records_that_do_not_fit_the_model_are_refused():
    def make_up(key, rows):
        return (jnp.full(rows, jnp.nan) + jax.random.normal(key, (rows,)),)

    with pytest.raises(ValueError, match="not finite"):
        suggest(noisy_mean, make_up=make_up)


def test_a_table_in_a_closure_is_refused_when_nobody_said_how_long_tables_are():
    table = jnp.arange(5000.0)

    def model(x):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("x", dist.Normal(w * jnp.sum(table), 1), obs=x)

    with pytest.raises(ValueError, match="5000"):
        dp.inference.suggest_clipping(model, AutoNormal(model), jnp.zeros(1), key=dp.random.key(0))
