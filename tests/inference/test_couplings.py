"""Models in which records meet: what a sum over records is not, is refused before anything is spent."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoBNAFNormal, AutoNormal

import discreet as dp

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 64
PLAN = dp.PrivacyPlan(
    sampling=dp.PoissonSampling(0.25),
    clipping_norm=1.0,
    noise_multiplier=1.0,
    num_steps=3,
    num_records=N,
)
X = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
G = (np.arange(N) % 2).astype(np.int32)
Y = X.sum(1)


def regression(turn_x, turn_y):
    def model(x, y):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(turn_x(x) @ w, 1.0), obs=turn_y(y))

    return model


def initialised(model, *records, guide=None, **options):
    guide = AutoNormal(model) if guide is None else guide
    dpsvi = dp.DPSVI(model, guide, numpyro.optim.Adam(1e-2), plan=PLAN, **options)
    return dpsvi.init(dp.random.key(), *records)


def same(x):
    return x


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(lambda x: jnp.roll(x, 1, axis=0), marks=pytest.mark.essential),
        lambda x: jnp.roll(x, 2, axis=0),
        lambda x: jnp.roll(x, 3, axis=0),
        lambda x: jnp.roll(x, 30, axis=0),
        lambda x: jnp.roll(x, len(x) // 2, axis=0),
        lambda x: x[::-1],
        lambda x: jnp.sort(x, axis=0),
        lambda x: jnp.cumsum(x, axis=0),
    ],
    ids=[
        "shifted",
        "shifted-by-two",
        "shifted-by-three",
        "by-a-month",
        "by-half",
        "reversed",
        "sorted",
        "running-sum",
    ],
)
@pytest.mark.parametrize("which", ["x", "y"])
def test_rows_that_are_moved_against_one_another_are_refused(turn, which):
    model = regression(turn, same) if which == "x" else regression(same, turn)
    with pytest.raises(ValueError, match="couples records"):
        initialised(model, X, Y)


def test_rows_of_integers_that_are_moved_are_refused():
    def model(g, y):
        p = numpyro.sample("p", dist.Beta(jnp.ones(2), 1).to_event(1))
        with numpyro.plate("data", len(g)):
            numpyro.sample("y", dist.Bernoulli(p[jnp.roll(g, 1)]), obs=y)

    with pytest.raises(ValueError, match="couples records"):
        initialised(model, G, G)


def test_weights_that_start_at_zero_hide_no_shift():
    def guide(x, y):
        loc = numpyro.param("loc", jnp.zeros(2))
        numpyro.sample("w", dist.Delta(loc).to_event(1))

    initialised(regression(same, same), X, Y, guide=guide)
    with pytest.raises(ValueError, match="couples records"):
        initialised(regression(same, lambda y: jnp.roll(y, 1)), X, Y, guide=guide)


@pytest.mark.parametrize(
    ("turn", "refused"),
    [(same, False), (lambda x: x - x.mean(0), True), (lambda x: jnp.roll(x, 1, axis=0), True)],
    ids=["alone", "normalised", "shifted"],
)
@pytest.mark.parametrize("weigh", [False, True])
def test_records_with_latents_of_their_own_are_looked_at_too(turn, refused, weigh):
    def model(x):
        w = numpyro.sample("w", dist.Normal(jnp.ones(2), 1).to_event(1))
        with numpyro.plate("data", len(x)):
            z = numpyro.sample("z", dist.Normal(0, 1))
            numpyro.sample("x", dist.Normal(z[:, None] * w, 1).to_event(1), obs=x)
            if weigh:
                # A mean over the records, in no row's mixed difference with another.
                numpyro.factor("mean", w[0] * x[:, 0].mean() / len(x))

    def guide(x):
        loc, slope = numpyro.param("loc", jnp.ones(2)), numpyro.param("slope", jnp.zeros(2))
        numpyro.sample("w", dist.Normal(loc, 0.1).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("z", dist.Normal(turn(x) @ slope, 1))

    if refused or weigh:
        with pytest.raises(ValueError, match="couples records"):
            initialised(model, X, guide=guide)
    else:
        initialised(model, X, guide=guide)


@pytest.mark.parametrize(
    ("turn", "refused"),
    [
        (same, False),
        (lambda z: jnp.roll(z, 1), True),
        (lambda z: jnp.roll(z, 30), True),
        (lambda z: z[::-1], True),
        (lambda z: 0.5 * (z + z.mean()), True),
    ],
    ids=["alone", "shifted", "by-a-month", "reversed", "mean"],
)
def test_latents_in_an_auto_normal_are_looked_at_too(turn, refused):
    """The guide has the size of the one row that it was set up on, so the model is looked at without it."""

    def model(y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Normal(w, 1))
            numpyro.sample("y", dist.Normal(turn(z), 1), obs=y)

    dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), plan=PLAN)
    if refused:
        with pytest.raises(ValueError, match="The model couples records"):
            dpsvi.certify(Y)
    else:
        dpsvi.certify(Y)


def test_a_chaotic_model_is_not_refused_for_how_its_rounding_was_compiled():
    """The quickly compiled check rounds k * (a + b) differently for all rows than for one; that alone is no coupling."""

    def chaotic(turn):
        def model(x, y):
            w, b = numpyro.sample("w", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0, 1))
            with numpyro.plate("data", len(y)):
                numpyro.sample("y", dist.Normal(jnp.sin(1e5 * (turn(x)[:, 0] * w + b)), 1), obs=y)

        return model

    initialised(chaotic(same), X, Y)
    with pytest.raises(ValueError, match="couples records"):
        initialised(chaotic(lambda x: jnp.roll(x, 1, axis=0)), X, Y)


def test_rows_that_move_together_are_the_same_model():
    initialised(regression(lambda x: x[::-1], lambda y: y[::-1]), X, Y)


def test_the_masks_of_a_flow_are_not_taken_for_a_table():
    model = regression(same, same)
    initialised(model, X[:60], Y[:60], guide=AutoBNAFNormal(model))


def test_summed_latents_that_meet_only_where_they_differ_are_refused():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.zeros(2), 1).to_event(1))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(mu[z], 1), obs=y)
            numpyro.factor("neighbours", -1.0 * (z != jnp.roll(z, 1)))

    with pytest.raises(ValueError, match="couples records"):
        initialised(model, Y, guide=AutoNormal(numpyro.handlers.block(model, hide=["z"])))


@pytest.mark.parametrize(
    "table",
    [
        X.reshape(-1),
        X.T.reshape(-1),
        X.reshape(8, 8, 2),
        X.reshape(4, -1),
        X[:32],
        X[1:],
        Y[:-1],
        Y[:40],
        Y.reshape(8, 8),
    ],
    ids=[
        "flat",
        "flat-by-columns",
        "blocks",
        "wide-blocks",
        "half",
        "all-but-one",
        "column",
        "part",
        "column-in-blocks",
    ],
)
def test_a_table_in_the_closure_is_refused_in_other_shapes_too(table):
    table = jnp.asarray(table)

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w + w[0] * jnp.sin(table).mean(), 1.0), obs=y)

    with pytest.raises(ValueError, match="not passed as records"):
        initialised(model, X, Y)


@pytest.mark.parametrize("shape", [(5, 2), (20, 20), (3, 7), (2, 2), (20, 3)])
def test_other_arrays_in_the_closure_are_not(shape):
    table = jnp.ones(shape)

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w + w[0] * jnp.sin(table).mean(), 1.0), obs=y)

    initialised(model, X, Y)


def test_an_array_that_looks_like_a_part_can_be_declared_public():
    def model(x, y, knots):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(x @ w + w[0] * jnp.sin(knots).mean(), 1.0), obs=y)

    initialised(model, X, Y, knots=jnp.asarray(X[:32]))


@pytest.mark.essential
def test_a_scale_of_the_observation_alone_is_refused_where_a_latent_is_summed_out():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(jnp.zeros(2), 1).to_event(1))
        with numpyro.plate("data", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            with numpyro.handlers.scale(scale=0.5):
                numpyro.sample("y", dist.Normal(mu[z], 1), obs=y)

    with pytest.raises(ValueError, match="same number"):
        initialised(model, Y, guide=AutoNormal(numpyro.handlers.block(model, hide=["z"])))
