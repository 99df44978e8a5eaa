"""Every bad input is refused before a release, with an error that names what is wrong and says what to do."""

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO
from numpyro.infer.autoguide import AutoNormal

from discreet import mechanisms, random
from discreet.accounting import Relation
from discreet.inference import DPSVI, _dpsvi
from discreet.plan import PrivacyPlan
from discreet.sampling import FixedSizeSampling, FullBatch, PoissonSampling

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


def guide_of_w():
    loc = numpyro.param("loc", 0.0)
    return numpyro.sample("w", dist.Normal(loc, 0.1))


def guide(x, y, scale=1.0):
    guide_of_w()


@pytest.fixture(autouse=True, name="refused")
def _refused(monkeypatch):
    """A context in which every way to a release fails the test, and an error with the given words is expected."""

    def released(*_args, **_kwargs):
        pytest.fail("something was released before the refusal")

    @contextmanager
    def expect(error, *words):
        with monkeypatch.context() as patch:
            patch.setattr(mechanisms, "release", released)
            patch.setattr(mechanisms, "gaussian_mechanism", released)
            patch.setattr(_dpsvi, "run_steps", released)
            patch.setattr(_dpsvi, "_update", released)
            with pytest.raises(error) as caught:
                yield
        for word in words:
            assert word in str(caught.value)

    return expect


def run(program, its_guide=None, *records, the_plan=None, key=KEY, **options):
    its_guide = AutoNormal(program) if its_guide is None else its_guide
    dpsvi = DPSVI(program, its_guide, optax.adam(0.1), plan=the_plan or plan(), **options)
    return dpsvi.run(key, *(records or (X, Y)), progress_bar=False)


# --- models --------------------------------------------------------------------------------


def no_plate(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w * x, 1).to_event(1), obs=y)


def outside(x, y):
    model(x, y)
    numpyro.sample("total", dist.Normal(0, 10), obs=jnp.sum(y))


def factor_outside(x, y):
    model(x, y)
    numpyro.factor("penalty", -jnp.sum(y**2))


def discrete_global(x, y):
    k = numpyro.sample("k", dist.Poisson(2.0))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(k * x, 1), obs=y)


def discrete_local(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        k = numpyro.sample("k", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(w * k, 1), obs=y)


def local(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(w + z, 1), obs=y)


def local_guide_with_parameters(x, y):
    guide_of_w()
    locs = numpyro.param("locs", jnp.zeros(x.shape[0]))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("z", dist.Normal(locs, 1))


def parameters_in_model(x, y):
    offsets = numpyro.param("offsets", jnp.zeros(x.shape[0]))
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x + offsets, 1), obs=y)


def local_outside_plate(x, y):
    z = numpyro.sample("z", dist.Normal(0, 1).expand([x.shape[0]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(z, 1), obs=y)


def mutable(x, y):
    state = numpyro.primitives.mutable("running_mean", {"mean": jnp.zeros(())})
    w = numpyro.sample("w", dist.Normal(0, 1))
    state["mean"] = 0.9 * state["mean"] + 0.1 * jnp.mean(x)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * (x - state["mean"]), 1), obs=y)


def prior_reads_records(x, y):
    w = numpyro.sample("w", dist.Normal(jnp.mean(y), 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)


def wrong_size(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", 99, x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)


def no_made_up_record(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        # Zero and one are both impossible here, so no placeholder that we make up has a finite loss.
        numpyro.factor("y", -w * jnp.log(y - 1.0))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (no_plate, ("No plate", 'numpyro.plate("data"')),
        (outside, ("'total'", "'people'", "Move it into the plate")),
        (factor_outside, ("'penalty'", "Move it into the plate")),
        (discrete_global, ("global latent site 'k'", "MixtureSameFamily")),
        (discrete_local, ("per-record latent site 'k'", "MixtureSameFamily")),
        (local, ("AutoNormal", "'z'", "encoder")),
        (parameters_in_model, ("'offsets'", "shared weights")),
        (local_outside_plate, ("'z'", "Move it into the plate")),
        (mutable, ("'running_mean'", "layer or group normalisation")),
        (prior_reads_records, ("prior", "keyword arguments to DPSVI")),
        (wrong_size, ("'people'", "99", f"num_records={ROWS}", "agree")),
        (no_made_up_record, ("AutoNormal", "placeholder record", "placeholder=...")),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_model_that_cannot_be_private(refused, program, words):
    with refused(ValueError, *words):
        run(program)


def test_a_placeholder_whose_loss_is_not_finite(refused):
    with refused(ValueError, "placeholder record", "not finite", "placeholder=...", "init_params"):
        run(no_made_up_record, guide)


def test_a_placeholder_mends_that():
    rows = 2.0 + np.abs(Y)
    run(no_made_up_record, guide, X, rows, placeholder=(np.zeros(1, np.float32), np.full(1, 2.5, np.float32)))


# --- guides --------------------------------------------------------------------------------


def guide_misses(x, y):
    numpyro.param("loc", 0.0)


def guide_with_stranger(x, y):
    guide_of_w()
    numpyro.sample("stranger", dist.Normal(0, 1))


def guide_not_reparametrised(x, y):
    rate = numpyro.param("rate", 1.0, constraint=dist.constraints.positive)
    numpyro.sample("w", dist.Poisson(rate))


def guide_reads_records(x, y):
    loc = numpyro.param("loc", 0.0)
    numpyro.sample("w", dist.Normal(loc + jnp.mean(y), 0.1))


def guide_observes(x, y):
    guide_of_w()
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(0, 1), obs=y)


def guide_with_other_plate(x, y):
    guide_of_w()
    with numpyro.plate("persons", x.shape[0]):
        numpyro.sample("z", dist.Normal(numpyro.param("slope", 0.0) * y, 1))


def guide_without_parameters(x, y):
    numpyro.sample("w", dist.Normal(0, 1))


@pytest.mark.parametrize(
    ("program", "its_guide", "words"),
    [
        (model, guide_misses, ("'w'", "Add one of that name", "AutoGuide")),
        (model, guide_with_stranger, ("'stranger'", "is_auxiliary")),
        (model, guide_not_reparametrised, ("'w'", "reparametrised", "Normal")),
        (model, guide_reads_records, ("guide's distribution", "records", "keyword arguments to DPSVI")),
        (model, guide_observes, ("'y'", "belong into the model")),
        (model, guide_without_parameters, ("param site", "nothing to fit")),
        (local, local_guide_with_parameters, ("'locs'", "shared weights")),
        (local, guide_with_other_plate, ("'persons'", "Use the model's name")),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_guide_that_cannot_be_private(refused, program, its_guide, words):
    with refused(ValueError, *words):
        run(program, its_guide)


# --- arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "error", "words"),
    [
        ((X, Y[:-1]), ValueError, ("different lengths", "[19, 20]", "keyword arguments to DPSVI")),
        ((X[:0], Y[:0]), ValueError, ("length 0", "no record")),
        ((1.0, 2), ValueError, ("No argument is an array", "leading axis")),
        ((X, np.ones((), np.float32)), ValueError, ("scalar array", "keyword argument to DPSVI")),
        ((X, Y, float("nan")), ValueError, ("static argument is nan", "finite")),
        ((X, np.array(["a"] * ROWS)), TypeError, ("dtype <U1", "Encode")),
        ((X, list(Y)), (TypeError, ValueError), ()),
        ((X, jax.random.split(jax.random.key(0), ROWS)), TypeError, ("PRNG keys",)),
    ],
    ids=["lengths", "no rows", "no array", "scalar", "nan", "strings", "list", "keys"],
)
def test_records_that_are_none(refused, records, error, words):
    with refused(error, *words):
        run(model, guide, *records)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.array([1.0, np.nan]), jnp.array(jnp.inf)])
def test_a_public_argument_that_is_not_finite(refused, value):
    with refused(ValueError, "'scale'", "NaN or an infinity"):
        run(model, guide, scale=value)


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (X, TypeError, ("rng_key", "discreet.random.key()")),
        (jax.random.PRNGKey(0), TypeError, ("rng_key", "uint32", "discreet.random.key()")),
        (0, TypeError, ("rng_key",)),
        (jax.random.split(KEY, 2), (TypeError, ValueError), ("rng_key",)),
    ],
    ids=["array", "legacy", "int", "several"],
)
def test_a_key_that_is_none(refused, key, error, words):
    with refused(error, *words):
        run(model, guide, key=key)


def test_the_same_secret_key_for_two_fits(refused):
    key = random.key()
    run(model, guide, key=key)
    with refused(ValueError, "key", "discreet.random.key()"):
        run(model, guide, key=key)


def test_initial_values_of_no_site(refused):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan())
    with refused(ValueError, "'location'", "no param site"):
        dpsvi.run(KEY, X, Y, init_params={"location": 1.0}, progress_bar=False)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_a_delta_that_is_none(refused, delta):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan())
    with refused(ValueError, "delta"):
        dpsvi.run(KEY, X, Y, delta=delta, progress_bar=False)


# --- options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss", [RenyiELBO(0.5), TraceGraph_ELBO(), TraceEnum_ELBO(), Trace_ELBO(multi_sample_guide=True)]
)
def test_an_elbo_without_per_record_gradients(refused, loss):
    with refused(ValueError, type(loss).__name__, "Use Trace_ELBO or TraceMeanField_ELBO"):
        DPSVI(model, guide, optax.adam(0.1), loss, plan=plan())


def test_an_optimizer_that_evaluates_the_loss(refused):
    with refused(ValueError, "Minimize", "numpyro.optim.Adam"):
        DPSVI(model, guide, numpyro.optim.Minimize(), plan=plan())


@pytest.mark.parametrize(
    ("option", "error", "words"),
    [
        ({"optim": "adam"}, TypeError, ("str", "numpyro.optim.Adam")),
        ({"plan": {"epsilon": 1.0}}, TypeError, ("dict", "PrivacyPlan.calibrate")),
        ({"perturb": "gradients"}, ValueError, ("'gradients'", '"latents"')),
        ({"loss_share": 1.0}, ValueError, ("loss_share", "below 1")),
        ({"loss_share": float("nan")}, ValueError, ("loss_share",)),
        ({"loss_bound": 0.0}, ValueError, ("loss_bound", "positive")),
        ({"loss_bound": float("nan")}, ValueError, ("loss_bound", "finite")),
        ({"microbatch_size": 0}, ValueError, ("microbatch_size", "at least 1")),
    ],
    ids=str,
)
def test_an_option_out_of_range(refused, option, error, words):
    with refused(error, *words):
        DPSVI(model, guide, **{"optim": optax.adam(0.1), "plan": plan(), **option})


# --- plan and data -------------------------------------------------------------------------


def test_a_number_of_records_that_is_public_and_wrong(refused):
    the_plan = plan(FixedSizeSampling(5), relation=Relation.REPLACE_ONE, num_records=ROWS + 1)
    with refused(ValueError, f"{ROWS} records", f"num_records={ROWS + 1}", "REPLACE_ONE", "Calibrate"):
        run(model, guide, the_plan=the_plan)


def test_a_number_of_records_that_is_secret_may_differ():
    """Under ADD_OR_REMOVE_ONE no error may tell how many records there are."""
    run(model, guide, the_plan=plan(num_records=ROWS + 1))


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [(FixedSizeSampling(5), Relation.REPLACE_ONE), (FullBatch(), Relation.ADD_OR_REMOVE_ONE)],
)
def test_a_batch_of_another_size(refused, sampling, relation):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan(sampling, relation=relation))
    state = dpsvi.init(KEY, X, Y)
    with refused(ValueError, "4 rows", "accounting"):
        dpsvi.update(state, X[:4], Y[:4])


def test_a_mask_that_is_none(refused):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan())
    state = dpsvi.init(KEY, X, Y)
    for mask in (jnp.ones(3, bool), jnp.ones(ROWS)):
        with refused(ValueError, "mask", "Boolean", str(ROWS)):
            dpsvi.update(state, X, Y, mask=mask)


def test_a_step_more_than_the_plan_pays_for(refused):
    dpsvi = DPSVI(model, guide, optax.adam(0.1), plan=plan(num_steps=2))
    state = dpsvi.init(KEY, X, Y)
    for _ in range(2):
        state, _ = dpsvi.update(state, X, Y)
    with refused(ValueError, "2 steps", "Plan more steps"):
        dpsvi.update(state, X, Y)


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
