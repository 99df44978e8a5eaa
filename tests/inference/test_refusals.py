"""Every model or guide that cannot be private is refused before a release, naming the site and the remedy."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

from discreet import random
from discreet.methods.inference import DPSVI
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import PoissonSampling

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS = 20
X = np.linspace(-1, 1, ROWS, dtype=np.float32)
Y = np.sin(3 * X)


def plan():
    return PrivacyPlan(
        sampling=PoissonSampling(0.5),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=2,
        num_records=ROWS,
    )


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(w * x, 1), obs=y)


def guide_of_w():
    loc = numpyro.param("loc", 0.0)
    return numpyro.sample("w", dist.Normal(loc, 0.1))


def guide(x, y):
    guide_of_w()


def run(program, its_guide=None, *records, placeholder=None):
    its_guide = AutoNormal(program) if its_guide is None else its_guide
    dpsvi = DPSVI(program, its_guide, optax.adam(0.1), plan=plan(), placeholder=placeholder)
    return dpsvi.run(random.key(1), *(records or (X, Y)), progress_bar=False)


# --- models --------------------------------------------------------------------------------


def no_plate(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(w * x, 1).to_event(1), obs=jnp.sort(y))


def no_observation(x, y):
    numpyro.sample("w", dist.Normal(0, 1))
    numpyro.factor("penalty", 0.0)


def outside(x, y):
    model(x, y)
    numpyro.sample("total", dist.Normal(0, 10), obs=jnp.sum(y))


def factor_outside(x, y):
    model(x, y)
    numpyro.factor("penalty", -(jnp.sum(y) ** 2))


def discrete_global(x, y):
    k = numpyro.sample("k", dist.Poisson(2.0))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(k * x, 1), obs=y)


def discrete_local(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("people", x.shape[0]):
        k = numpyro.sample("k", dist.Poisson(2.0))
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
        # Zero and one are both impossible here, so no placeholder that we make up has a finite
        # loss.
        numpyro.factor("y", -w * jnp.log(y - 1.0))


@pytest.mark.essential
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (no_plate, ("'y'", "no sum over them", 'numpyro.plate("data"')),
        (no_observation, ("No plate", 'numpyro.plate("data"')),
        (outside, ("'total'", "statistic of the table")),
        (factor_outside, ("'penalty'", "one term for each record")),
        (discrete_global, ("global latent site 'k'", "MixtureSameFamily")),
        (discrete_local, ("'k'", "no fixed finite support", "MixtureSameFamily")),
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
    run(
        no_made_up_record,
        guide,
        X,
        rows,
        placeholder=(np.zeros(1, np.float32), np.full(1, 2.5, np.float32)),
    )


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


@pytest.mark.essential
@pytest.mark.parametrize(
    ("program", "its_guide", "words"),
    [
        (model, guide_misses, ("'w'", "Add one of that name", "AutoGuide")),
        (model, guide_with_stranger, ("'stranger'", "is_auxiliary")),
        (model, guide_not_reparametrised, ("'w'", "reparametrised", "Normal")),
        (
            model,
            guide_reads_records,
            ("guide's distribution", "records", "keyword arguments to DPSVI"),
        ),
        (model, guide_observes, ("'y'", "belong in the model")),
        (model, guide_without_parameters, ("param site", "nothing to fit")),
        (local, local_guide_with_parameters, ("'locs'", "shared weights")),
        (local, guide_with_other_plate, ("'persons'", "Use the model's name")),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_guide_that_cannot_be_private(refused, program, its_guide, words):
    with refused(ValueError, *words):
        run(program, its_guide)
