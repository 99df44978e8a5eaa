"""The attacker of test_neighbours.py against adaptive clipping: the path of C gives the released counts away too.

Everything is read in units of each step's C, in which every step is a fresh draw of the same
accounted mechanism: a record whose gradient is too long adds 1 to the gradient, its clipped loss,
and minus half a weight to the count.
"""

import dataclasses
from typing import Any, NamedTuple

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
from discreet.privacy.clipping import AdaptiveClipping
from discreet.privacy.gradients import ReferenceEngine
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import FullBatch, PoissonSampling

HORIZON = 8
TRIALS = 4000
STEPS = HORIZON * TRIALS
NUM_RECORDS = 12
PRIOR_STDDEV = 1e4
START = 50.0
STRONG = 1e12
LOSS_SHARE, COUNT_SHARE = 0.2, 0.5
REST = 1 - LOSS_SHARE - COUNT_SHARE
# C moves slowly, so that it stays within its bounds for all the horizons.
RULE = AdaptiveClipping(quantile=0.9999, initial=0.5, learning_rate=1e-3, count_share=COUNT_SHARE)
# One-sided Clopper-Pearson level of every comparison; seeds are fixed.
LEVEL = 1e-5
FALSE_POSITIVE_RATES = np.array([0.01, 0.05, 0.2, 0.5])


def model(slope):
    theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR_STDDEV))
    with numpyro.plate("data", slope.shape[0]):
        numpyro.factor("pull", slope * theta)


class Case(NamedTuple):
    """Two neighbours, and whether the record that is in question is too long to be within C, there and here."""

    sampling: Any
    relation: Relation
    with_record: list[float]
    without_record: list[float]
    closeness: float


ABSENT = [np.nan] * (NUM_RECORDS - 1)
CASES = {
    "Poisson": Case(
        PoissonSampling(0.3), Relation.ADD_OR_REMOVE_ONE, [*ABSENT, STRONG], ABSENT, 0.6
    ),
    # A record without a gradient is within C, so that a replacement moves both counts by a whole
    # weight.
    "full batch, replace": Case(
        FullBatch(), Relation.REPLACE_ONE, [*ABSENT, STRONG], [*ABSENT, 0.0], 0.0
    ),
}


def plan_of(case):
    return PrivacyPlan(
        sampling=case.sampling,
        clipping_norm=RULE,
        noise_multiplier=1.5,
        # The path shows a step's count in the next step's C.
        num_steps=STEPS + 1,
        num_records=NUM_RECORDS,
        relation=case.relation,
    )


def recover(slopes, plan, seed, require_proof=True):
    """Fit, and read every release off what `run` returned, in units of C: gradient, loss and counts; and theta's sign."""
    dpsvi = DPSVI(model, AutoDelta(model), numpyro.optim.SGD(1.0), plan=plan, loss_share=LOSS_SHARE)
    result = dpsvi.run(
        discreet.random.key(seed),
        jnp.asarray(slopes, jnp.float32),
        progress_bar=False,
        require_proof=require_proof,
        init_params={"theta_auto_loc": START},
    )
    norms = np.asarray(result.clipping_norms, np.float64)
    assert RULE.limits[0] < norms.min() <= norms.max() < RULE.limits[1]
    after = np.asarray(result.trace.iterates[:STEPS, 0], np.float64)
    before = np.concatenate([[START], after[:-1]])
    gradient = plan.rate * (before - after - before / PRIOR_STDDEV**2) / norms[:-1]
    free = -stats.norm.logpdf(before, scale=PRIOR_STDDEV)
    loss = (
        plan.rate
        * (np.asarray(result.losses[:STEPS], np.float64) - free)
        * np.sqrt(LOSS_SHARE / REST)
    )
    # The path of C shows the count of clipped gradients, too.
    clipped, counted = np.asarray(result.shares[:STEPS], np.float64).T
    moved = np.log(norms[1:] / norms[:-1]) / RULE.learning_rate + 1 - RULE.quantile
    np.testing.assert_allclose(moved, clipped, atol=1e-3)
    weight = plan.rate * NUM_RECORDS * np.sqrt(COUNT_SHARE / REST)
    return np.stack([gradient, loss, (counted - clipped) * weight, clipped * weight]), np.sign(
        before
    )


def contribution(slope, sign):
    """The attacked record's contribution to every step that uses it."""
    count = np.sqrt(COUNT_SHARE / REST)
    if np.isnan(slope):
        rows = [0.0 * sign, 0.0 * sign, 0.0 * sign, 0.0 * sign]
    elif slope == 0.0:
        rows = [0.0 * sign, 0.0 * sign, count + 0.0 * sign, 0.0 * sign]
    else:
        rows = [
            -1.0 + 0.0 * sign,
            -np.sqrt(LOSS_SHARE / REST) * sign,
            0.0 * sign,
            count + 0.0 * sign,
        ]
    return np.stack(rows)


def attack(plan, case, require_proof=True):
    """The attacker's empirical true-positive rates at FALSE_POSITIVE_RATES, and their lower bounds."""
    stddev, results = plan.noise_multiplier / np.sqrt(REST), []
    there = case.with_record[-1]
    here = case.without_record[-1] if len(case.without_record) == len(case.with_record) else np.nan
    for slopes, seed in ((case.without_record, 21), (case.with_record, 22)):
        released, sign = recover(slopes, plan, seed, require_proof)
        base = contribution(here, sign)
        shift = contribution(there, sign) - base
        exponent = ((released - base) * shift).sum(axis=0) / stddev**2 - (shift**2).sum(axis=0) / (
            2 * stddev**2
        )
        never = np.log1p(-plan.rate) if plan.rate < 1 else -np.inf
        scores = np.logaddexp(never, np.log(plan.rate) + exponent)
        results.append(scores.reshape(TRIALS, HORIZON).sum(axis=1))
    absent, present = results
    caught = np.array(
        [np.sum(present > np.quantile(absent, 1 - rate)) for rate in FALSE_POSITIVE_RATES]
    )
    return caught / TRIALS, stats.beta.ppf(LEVEL, caught, TRIALS - caught + 1)


def allowed(plan):
    """Return the true-positive rates that the profile allows, at false-positive rates enlarged by their own uncertainty."""
    short = dataclasses.replace(plan, num_steps=HORIZON)
    upper = stats.beta.ppf(
        1 - LEVEL, FALSE_POSITIVE_RATES * TRIALS + 1, TRIALS * (1 - FALSE_POSITIVE_RATES)
    )
    return np.asarray([short.profile().true_positive_rate(rate) for rate in upper])


@pytest.mark.parametrize("name", CASES)
def test_the_attacker_gains_no_more_than_the_profile_allows(name):
    case = CASES[name]
    plan = plan_of(case)
    power, lower = attack(plan, case)
    bound = allowed(plan)
    assert np.all(lower <= bound), (power, bound)
    assert power[1] >= case.closeness * bound[1], (power, bound)


def count_without_noise(monkeypatch):
    true_release = mechanisms.release
    monkeypatch.setattr(
        mechanisms,
        "release",
        lambda key, total, noise, *of: true_release(key, total, noise, *of)._replace(
            count=total.count.astype(jnp.float32)
        ),
    )


def replace_engine(monkeypatch, wrong_sum):
    class Engine(ReferenceEngine):
        def __call__(self, loss, u, records, mask, norm, channels):
            return wrong_sum(super().__call__(loss, u, records, mask, norm, channels), mask)

    monkeypatch.setattr(setup_file, "BookKeepingEngine", lambda *args, **options: Engine())


def realised_size(monkeypatch):
    """The fraction of the batch's own size, instead of the expected one."""

    def wrong_sum(total, mask):
        return total._replace(
            count=total.count.astype(jnp.float32) * 0.3 * NUM_RECORDS / jnp.maximum(mask.sum(), 1)
        )

    replace_engine(monkeypatch, wrong_sum)


def count_not_in_the_bound(monkeypatch):
    """Noise for gradient and loss alone."""
    true_release, share = mechanisms.release, np.sqrt(REST / (1 - LOSS_SHARE))
    monkeypatch.setattr(
        mechanisms,
        "release",
        lambda key, total, noise, *of: true_release(key, total, noise * share, *of),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        count_without_noise,
        pytest.param(realised_size, marks=pytest.mark.exhaustive),
        count_not_in_the_bound,
    ],
)
def test_a_wrong_step_is_caught(monkeypatch, wrong):
    wrong(monkeypatch)
    case = CASES["Poisson"]
    if wrong is realised_size:
        # The guarantee is for every table; in a small one, batches are far from their expected
        # size.
        case = case._replace(with_record=[np.nan, STRONG], without_record=[np.nan])
    plan = plan_of(case)
    with pytest.raises(discreet.PrivacyError):
        attack(plan, case)
    power, lower = attack(plan, case, require_proof=False)
    assert np.any(lower > allowed(plan)), (power, lower, allowed(plan))


def test_the_count_of_a_step_is_of_its_own_c():
    """A record of known length is within C in some steps and not in others, as its path says."""
    rule = dataclasses.replace(RULE, quantile=0.5, learning_rate=0.5, initial=2.0)
    plan = dataclasses.replace(
        plan_of(CASES["full batch, replace"]),
        clipping_norm=rule,
        num_steps=300,
        noise_multiplier=1e-6,
    )
    dpsvi = DPSVI(model, AutoDelta(model), numpyro.optim.SGD(1e-9), plan=plan, loss_share=0.0)
    slopes = jnp.asarray(np.linspace(0.1, 1.2, NUM_RECORDS), jnp.float32)
    norms = dpsvi.run(discreet.random.key(5), slopes, progress_bar=False).clipping_norms.astype(
        np.float64
    )
    clipped = np.mean(np.asarray(slopes)[None] > norms[:-1, None], axis=1)
    np.testing.assert_allclose(np.log(norms[1:] / norms[:-1]), 0.5 * (clipped - 0.5), atol=1e-4)
    assert np.median(np.asarray(slopes)) == pytest.approx(norms[-1], abs=0.1)
