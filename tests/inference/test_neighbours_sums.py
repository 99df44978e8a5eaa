"""Two neighbouring tables through whole fits with one sampler's coins: how far their sums are apart in each step, as computed.

The tables are made for repeated rounding (`tests/gradients/test_sums.py`). Both fits draw the same
rows, but for the one that is missing: in a batch of random order the last row takes its place, in
the table's order all that follow move up.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import discreet as dp
from discreet.methods.inference import _dpsvi as setup_file
from discreet.methods.inference._records import take_apart
from discreet.methods.inference._tempering import TURN, TemperedPosterior
from discreet.privacy.clipping import COUNT_SHARE
from discreet.privacy.gradients import SPARE, BookKeepingEngine, _bookkeeping, _rows, _sums

D, COUNT, STEPS = 4, 24_000, 3


def model(x):
    theta = numpyro.sample("theta", dist.Normal(jnp.zeros(D), 1.0).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("pull", x @ theta)


def table():
    """Long rows bring a float32 sum above 2^11, which the first of them decides: the rest is lost then, or else doubled."""
    unit = np.float32(0.98 / np.sqrt(D))
    column = np.full(COUNT, np.float32(-0.51 * 2.0**-13))
    column[: int(np.ceil(2**11 / unit))] = unit
    return np.repeat(column[:, None], D, 1)


def sums(monkeypatch, sampling):
    """For each step that has the record: both sums, and the bound on their distance."""
    found = []

    class Coupled(BookKeepingEngine):
        def __call__(self, loss, parameters, records, mask, *rest):
            own = mask & (records[0] == 0)  # records are row numbers here
            place, count, lanes = jnp.argmax(own), jnp.sum(mask), jnp.arange(len(mask))
            moved = (
                jnp.where(lanes == place, count - 1, lanes)
                if self.shuffled
                else lanes + (lanes >= place)
            )
            fewer = jax.tree.map(lambda x: x[jnp.minimum(moved, len(mask) - 1)], records)
            both = [
                super(Coupled, self).__call__(loss, parameters, *batch, *rest)
                for batch in ((records, mask), (fewer, lanes < count - 1))
            ]
            jax.debug.callback(
                lambda *numbers: found.append([np.asarray(y, np.float64) for y in numbers]),
                *(
                    jnp.concatenate([jnp.ravel(y) for y in jax.tree.leaves(x.gradient)])
                    for x in both
                ),
                jnp.asarray(both[0].l2_bound),
                jnp.any(own),
            )
            return both[0]

    monkeypatch.setattr(setup_file, "BookKeepingEngine", Coupled)
    plan = dp.PrivacyPlan(
        sampling=sampling,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=STEPS,
        num_records=COUNT,
    )
    dpsvi = dp.DPSVI(model, AutoDelta(model), numpyro.optim.SGD(1e-3), plan=plan, loss_share=0.0)
    dpsvi.run(dp.random.key(5), table(), progress_bar=False, require_proof=False)
    jax.effects_barrier()
    apart = [(float(np.linalg.norm(a - b)), float(bound)) for a, b, bound, there in found if there]
    assert apart
    # The counts, which did not differ, have their share of the bound.
    return max(distance for distance, _ in apart), apart[0][1] * (1 - COUNT_SHARE) ** 0.5


@pytest.mark.parametrize(
    ("sampling", "narrow", "most"),
    [
        (dp.PoissonSampling(0.3), True, 1.0031),
        (dp.PoissonSampling(0.3), False, 1.0001),
        (dp.FullBatch(), False, 1.0001),
    ],
    ids=["Poisson, chunks in float32", "Poisson", "full"],
)
def test_neighbours_sums_are_no_further_apart_than_the_noise_is_made_for(
    monkeypatch, sampling, narrow, most
):
    if narrow:
        monkeypatch.setattr(_bookkeeping, "_FEW", 0)
    distance, bound = sums(monkeypatch, sampling)
    assert (bound > 1.001) is narrow
    assert 0.9 < distance <= bound < most


def test_the_attack_finds_sums_whose_rounding_is_dropped(monkeypatch):
    """In float32, in one chunk: what was done before, and what a bound without its rounding would let pass."""
    for file in (_bookkeeping, _rows, _sums):
        monkeypatch.setattr(file, "double", contextlib.nullcontext)
    with pytest.warns(UserWarning, match="float64"):
        distance, bound = sums(monkeypatch, dp.FullBatch())
    assert distance > 1.01 * bound


def curved(x):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    scale = jnp.eye(5) + jnp.tril(jnp.outer(w, w))
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor(
            "rounding", jnp.sin(1e7 * dist.MultivariateNormal(w, scale_tril=scale).log_prob(x))
        )


@pytest.mark.parametrize("turns", [pytest.param(1, marks=pytest.mark.essential), 2])
def test_a_record_that_begins_another_turn_moves_no_other_term_of_a_posterior_sample(turns):
    """In the program of four chains. XLA compiles a loop of one turn otherwise: that was an epsilon of 11 at least, for 1."""
    rng = np.random.default_rng(0)
    x = np.insert(rng.normal(size=(turns * (TURN - SPARE), 5)), 0, np.nan, axis=0).astype(
        np.float32
    )
    points = jnp.asarray(rng.normal(size=(4, 5)), jnp.float32)
    relation = dp.Relation.ADD_OR_REMOVE_ONE
    ops = dp.OnePosteriorSample(curved, log_likelihood_bound=1.0, epsilon=1.0, relation=relation)
    posterior = TemperedPosterior(
        ops._objective(dp.random.key(3), take_apart((x,), {}))[0], ops.plan.tempering
    )

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def densities(w, x):
        return jax.value_and_grad(lambda w: posterior.log_density({"w_unconstrained": w}, [x]))(w)

    moved = densities(points, x)[0] - densities(points, x[1:])[0]
    np.testing.assert_allclose(moved, -ops.plan.tempering.power, rtol=1e-6)
