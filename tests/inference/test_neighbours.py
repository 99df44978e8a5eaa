"""An optimal attacker on worst-case neighbours gains what the profile allows, and more when the step is wrong.

One record of the table always contributes the whole clipped norm, the others nothing (their loss is
NaN or zero), so every step is a fresh draw of the accounted mechanism at its worst. The attacker
knows everything but whether that record is there, recovers each release from the published iterates
and losses, and adds up log-likelihood ratios over horizons of HORIZON steps.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta
from scipy import stats

import discreet.privacy.random
from discreet import mechanisms
from discreet.methods.inference import DPSVI, _dpsvi as setup_file
from discreet.privacy.accounting import Relation
from discreet.privacy.clipping import COUNT_SHARE
from discreet.privacy.gradients import ReferenceEngine
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import FixedSizeSampling, FullBatch, PoissonSampling

HORIZON = 8
TRIALS = 4000
STEPS = HORIZON * TRIALS
NUM_RECORDS = 12
PRIOR_STDDEV = 1e4
LEARNING_RATE = 1.0
LOSS_SHARE = 0.3
REST = 1 - LOSS_SHARE - COUNT_SHARE  # what is left to the gradient
# One-sided Clopper-Pearson level of every comparison; seeds are fixed.
LEVEL = 1e-5
FALSE_POSITIVE_RATES = np.array([0.01, 0.05, 0.2, 0.5])


def model(slope):
    theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR_STDDEV))
    with numpyro.plate("data", slope.shape[0]):
        numpyro.factor("pull", slope * theta)


def plan(sampling, relation, steps, noise_multiplier=1.5):
    return PrivacyPlan(
        sampling=sampling,
        clipping_norm=0.5,
        noise_multiplier=noise_multiplier,
        num_steps=steps,
        num_records=NUM_RECORDS,
        relation=relation,
    )


def recover(slopes, long_plan, seed, require_proof=True):
    """Fit, and read every release (gradient and loss coordinate) off what `run` returned."""
    guide = AutoDelta(model)
    dpsvi = DPSVI(
        model, guide, numpyro.optim.SGD(LEARNING_RATE), plan=long_plan, loss_share=LOSS_SHARE
    )
    result = dpsvi.run(
        discreet.random.key(seed),
        jnp.asarray(slopes, jnp.float32),
        progress_bar=False,
        require_proof=require_proof,
        init_params={"theta_auto_loc": 50.0},
    )
    after = np.asarray(result.trace.iterates[:, 0], np.float64)
    before = np.concatenate([[50.0], after[:-1]])
    rate, norm = long_plan.rate, long_plan.clipping_norm
    gradient = rate * ((before - after) / LEARNING_RATE - before / PRIOR_STDDEV**2)
    weight = norm * np.sqrt(LOSS_SHARE / REST)
    free = -stats.norm.logpdf(before, scale=PRIOR_STDDEV)
    loss = rate * (np.asarray(result.losses, np.float64) - free) * weight
    # What the record of slope STRONG adds in every step that takes it.
    contribution = np.stack([np.full(STEPS, -norm), -weight * np.sign(before)])
    return np.stack([gradient, loss]), contribution, norm / np.sqrt(REST)


def scores(released, base, shift, stddev, probability):
    """Log-likelihood ratios, summed over horizons: base + shift with a probability, against base."""
    exponent = ((released - base) * shift).sum(axis=0) / stddev**2 - (shift**2).sum(axis=0) / (
        2 * stddev**2
    )
    never = np.log1p(-probability) if probability < 1 else -np.inf
    return np.logaddexp(never, np.log(probability) + exponent).reshape(TRIALS, HORIZON).sum(axis=1)


def attack(long_plan, case, require_proof=True):
    """The attacker's empirical true-positive rates at FALSE_POSITIVE_RATES, and their lower bounds."""
    results = []
    for slopes, seed in ((case.without_record, 11), (case.with_record, 12)):
        released, contribution, bound = recover(slopes, long_plan, seed, require_proof)
        base, shift = case.base * contribution, case.shift * contribution
        results.append(
            scores(released, base, shift, long_plan.noise_multiplier * bound, long_plan.rate)
        )
    absent, present = results
    caught = np.array(
        [np.sum(present > np.quantile(absent, 1 - rate)) for rate in FALSE_POSITIVE_RATES]
    )
    return caught / TRIALS, stats.beta.ppf(LEVEL, caught, TRIALS - caught + 1)


def allowed(long_plan):
    """Return the true-positive rates that the profile allows, at false-positive rates enlarged by their own uncertainty."""
    short = dataclasses.replace(long_plan, num_steps=HORIZON)
    upper = stats.beta.ppf(
        1 - LEVEL, FALSE_POSITIVE_RATES * TRIALS + 1, TRIALS * (1 - FALSE_POSITIVE_RATES)
    )
    return np.asarray([short.profile().true_positive_rate(rate) for rate in upper])


STRONG = 1e6
ABSENT = [np.nan] * (NUM_RECORDS - 1)


class Case(NamedTuple):
    """Two neighbours; the releases' means are `base` and, with the rate's probability, `base + shift` contributions.

    `closeness` is what the attacker must reach of the bound, four standard deviations below what
    simulation expects.
    """

    sampling: Any
    relation: Relation
    with_record: list[float]
    without_record: list[float]
    base: float
    shift: float
    closeness: float


CASES = {
    "Poisson": Case(
        PoissonSampling(0.3), Relation.ADD_OR_REMOVE_ONE, [*ABSENT, STRONG], ABSENT, 0.0, 1.0, 0.6
    ),
    "full batch": Case(
        FullBatch(), Relation.ADD_OR_REMOVE_ONE, [*ABSENT, STRONG], ABSENT, 0.0, 1.0, 0.8
    ),
    "Poisson, replace": Case(
        PoissonSampling(0.3),
        Relation.REPLACE_ONE,
        [*ABSENT, STRONG],
        [*ABSENT, -STRONG],
        0.0,
        1.0,
        0.0,
    ),
    "full batch, replace": Case(
        FullBatch(), Relation.REPLACE_ONE, [*ABSENT, STRONG], [*ABSENT, -STRONG], -1.0, 2.0, 0.8
    ),
    # Without replacement the worst case has the others pull the other way: every batch is full of
    # them.
    "fixed size": Case(
        FixedSizeSampling(4),
        Relation.REPLACE_ONE,
        [-STRONG] * (NUM_RECORDS - 1) + [STRONG],
        [-STRONG] * NUM_RECORDS,
        -4.0,
        2.0,
        0.65,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_attacker_gains_no_more_than_the_profile_allows(name):
    case = CASES[name]
    long_plan = plan(case.sampling, case.relation, STEPS)
    power, lower = attack(long_plan, case)
    bound = allowed(long_plan)
    assert np.all(lower <= bound), (power, bound)
    # Neighbours at their worst: the attacker comes close to what is allowed, so the test has teeth.
    assert power[1] >= case.closeness * bound[1], (power, bound)


def halved_noise(monkeypatch):
    true_release = mechanisms.release
    monkeypatch.setattr(
        mechanisms,
        "release",
        lambda key, total, noise, *of: true_release(key, total, noise / 2, *of),
    )


def replace_engine(monkeypatch, wrong_sum):
    class Engine(ReferenceEngine):
        def __call__(self, *args, **kwargs):
            return wrong_sum(super().__call__, *args, **kwargs)

    monkeypatch.setattr(setup_file, "BookKeepingEngine", lambda *args, **options: Engine())


def ignored_mask(monkeypatch):
    def wrong_sum(engine, loss, u, records, mask, *rest, **options):
        return engine(loss, u, records, jnp.ones_like(mask), *rest, **options)

    replace_engine(monkeypatch, wrong_sum)


def realised_size(monkeypatch):
    def wrong_sum(engine, loss, u, records, mask, *rest, **options):
        total = engine(loss, u, records, mask, *rest, **options)
        factor = 0.3 * NUM_RECORDS / jnp.maximum(mask.sum(), 1)
        gradient, loss = jax.tree.map(
            lambda x: factor * x.astype(jnp.float32), (total.gradient, total.loss)
        )
        return total._replace(gradient=gradient, loss=loss)

    replace_engine(monkeypatch, wrong_sum)


def no_clipping(monkeypatch):
    def wrong_sum(engine, loss, u, records, mask, norm, *rest, **options):
        total = engine(loss, u, records, mask, 3 * norm, *rest, **options)
        return total._replace(l2_bound=total.l2_bound / 3)

    replace_engine(monkeypatch, wrong_sum)


# tests/audit/test_planted.py has the others in `make test`.
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(halved_noise, marks=pytest.mark.exhaustive),
        ignored_mask,
        pytest.param(realised_size, marks=pytest.mark.essential),
        pytest.param(no_clipping, marks=pytest.mark.exhaustive),
    ],
)
def test_a_wrong_step_is_caught(monkeypatch, wrong):
    wrong(monkeypatch)
    case = CASES["Poisson"]
    if wrong is ignored_mask:
        # Padding rows hold record 0: let that be the one.
        case = case._replace(with_record=[STRONG, *ABSENT])
    if wrong is realised_size:
        # The guarantee is for every table; in a small one, batches are far from their expected
        # size.
        case = case._replace(with_record=[np.nan, STRONG], without_record=[np.nan])
    long_plan = plan(case.sampling, case.relation, STEPS)
    with pytest.raises(discreet.PrivacyError):
        attack(long_plan, case)
    power, lower = attack(long_plan, case, require_proof=False)
    assert np.any(lower > allowed(long_plan)), (power, lower, allowed(long_plan))
