"""Every bad argument, option or batch is refused before a release, with an error that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import RenyiELBO, Trace_ELBO

from discreet import random
from discreet.methods.inference import DPSVI, take_apart
from discreet.privacy.accounting import Relation
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import FixedSizeSampling, FullBatch, PoissonSampling

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS = 20
X = np.linspace(-1, 1, ROWS, dtype=np.float32)
Y = np.sin(3 * X)
KEY = random.key(1)


def plan(sampling=None, *, relation=Relation.ADD_OR_REMOVE_ONE, num_records=ROWS, num_steps=2):
    return PrivacyPlan(
        sampling=sampling or PoissonSampling(0.5),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=num_steps,
        num_records=num_records,
        relation=relation,
    )


def model(x, y, scale=1.0):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, scale), obs=y)


def guide(x, y, scale=1.0):
    loc = numpyro.param("loc", 0.0)
    numpyro.sample("w", dist.Normal(loc, 0.1))


def run(*records, the_plan=None, key=KEY, **options):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=the_plan or plan(), **options)
    return dpsvi.run(key, *(records or (X, Y)), progress_bar=False)


# --- arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "error", "words"),
    [
        ((X, Y[:-1]), ValueError, ("different lengths", "[19, 20]", "keyword arguments to DPSVI")),
        ((X[:0], Y[:0]), ValueError, ("length 0", "no record")),
        ((np.zeros((ROWS, 0), np.float32), Y), ValueError, ("no columns", "Select its columns")),
        ((1.0, 2), ValueError, ("No argument is an array", "leading axis")),
        ((X, np.ones((), np.float32)), ValueError, ("scalar array", "keyword argument to DPSVI")),
        ((X, Y, float("nan")), ValueError, ("static argument is nan", "finite")),
        ((X, np.array(["a"] * ROWS)), TypeError, ("dtype <U1", "Encode")),
        ((X, list(Y)), (TypeError, ValueError), ()),
        ((X, jax.random.split(jax.random.key(0), ROWS)), TypeError, ("PRNG keys",)),
    ],
    ids=[
        "lengths",
        "no rows",
        "no columns",
        "no array",
        "scalar",
        "nan",
        "strings",
        "list",
        "keys",
    ],
)
def test_records_that_are_none(refused, records, error, words):
    with refused(error, *words):
        run(*records)


def test_columns_of_a_data_frame_are_records_and_words_are_not(refused):
    """README's recipe with the columns of a table as one has them was refused."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": np.asarray(X), "y": np.asarray(Y), "word": ["a"] * ROWS})
    found = take_apart((table["x"], table[["x", "y"]]), {})
    np.testing.assert_array_equal(found.leaves[0], X)
    np.testing.assert_array_equal(found.leaves[1], np.column_stack([X, Y]))
    with refused(TypeError, "dtype object", "Encode"):
        take_apart((table["word"],), {})


def test_numbers_with_their_first_byte_first_are_records() -> None:
    """Files of astronomers and of NetCDF hold such; JAX's refusal named no remedy."""
    found = take_apart((np.asarray(X).astype(">f4"), np.arange(ROWS, dtype=">i2")), {})
    np.testing.assert_array_equal(found.leaves[0], X)
    np.testing.assert_array_equal(found.leaves[1], np.arange(ROWS))


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), np.array([1.0, np.nan]), jnp.array(jnp.inf)]
)
def test_a_public_argument_that_is_not_finite(refused, value):
    with refused(ValueError, "'scale'", "NaN or an infinity"):
        run(scale=value)


def test_initial_values_of_no_site(refused):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan())
    with refused(ValueError, "'location'", "not a param site"):
        dpsvi.run(KEY, X, Y, init_params={"location": 1.0}, progress_bar=False)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_a_delta_that_is_none(refused, delta):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan())
    with refused(ValueError, "delta"):
        dpsvi.run(KEY, X, Y, delta=delta, progress_bar=False)


# --- options -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [RenyiELBO(0.5), Trace_ELBO(multi_sample_guide=True)])
def test_an_elbo_without_per_record_gradients(refused, loss):
    with refused(ValueError, type(loss).__name__, "Use Trace_ELBO or TraceMeanField_ELBO"):
        DPSVI(model, guide, optax.adam(0.1), loss, plan=plan())


def test_an_optimizer_with_two_sets_of_parameters(refused):
    with refused(ValueError, "optax.lookahead", "Pass the optimizer within it"):
        DPSVI(model, guide, optax.lookahead(optax.adam(0.1), 5, 0.5), plan=plan())


def test_an_optimizer_that_evaluates_the_loss(refused):
    with refused(ValueError, "Minimize", "numpyro.optim.Adam"):
        DPSVI(model, guide, numpyro.optim.Minimize(), plan=plan())


@pytest.mark.parametrize(
    ("option", "error", "words"),
    [
        ({"optim": "adam"}, TypeError, ("str", "numpyro.optim.Adam")),
        ({"plan": {"epsilon": 1.0}}, TypeError, ("dict", "PrivacyPlan.calibrate")),
        ({"perturb": "gradients"}, ValueError, ("'gradients'", "'latents'")),
        ({"loss_share": 1.0}, ValueError, ("loss_share", "below 1")),
        ({"loss_share": float("nan")}, ValueError, ("loss_share",)),
        ({"loss_bound": 0.0}, ValueError, ("loss_bound", "positive")),
        ({"loss_bound": float("nan")}, ValueError, ("loss_bound", "finite")),
        ({"loss_bound": 1e-40}, ValueError, ("loss_bound", "1e-30")),
        ({"microbatch_size": 0}, ValueError, ("microbatch_size", "at least 1")),
    ],
    ids=str,
)
def test_an_option_out_of_range(refused, option, error, words):
    with refused(error, *words):
        DPSVI(model, guide, **{"optim": optax.adam(0.1), "plan": plan(), **option})


# --- plan and data -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "words"),
    [(FixedSizeSampling(5), ("4 rows", "accounting")), (FullBatch(), ("4 records", "Calibrate"))],
)
def test_a_batch_of_another_size(refused, sampling, words):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan(sampling, relation=Relation.REPLACE_ONE))
    state = dpsvi.init(KEY, X, Y)
    with refused(ValueError, *words):
        dpsvi.update(state, X[:4], Y[:4])


def test_a_mask_that_is_none(refused):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan())
    state = dpsvi.init(KEY, X, Y)
    for mask in (jnp.ones(3, bool), jnp.ones(ROWS)):
        with refused(ValueError, "mask", "Boolean", str(ROWS)):
            dpsvi.update(state, X, Y, mask=mask)


def test_verbs_before_init(refused):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan())
    with refused(ValueError, "Call init before"):
        dpsvi.update(None, X, Y)


def test_an_exact_loss_only_by_its_name(refused):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan())
    state = dpsvi.init(KEY, X, Y)
    with refused(ValueError, "non_private=True"):
        dpsvi.evaluate(state, X, Y)
    assert np.isfinite(dpsvi.evaluate(state, X, Y, non_private=True))
