"""Faults for an audit to find: the real step with one line broken, and a plan with which the fault shows.

Used by the tests and by `full_size.py`, never by the library. Each fault replaces one function of
the real code for as long as a `pytest.MonkeyPatch` holds. `Fault.plan` says what is claimed all the
while, so the claim is false.

Power: of 2n runs of each table n judge the test. Where it gives no false alarm at all, the bound on
their rate is 5.3 / n (99 % confidence), and the lower bound on ε about log(n TPR / 5.3). Where
noise is left, as with half of it, the figures stand beside the plan. Seeds are fixed; the margins
make the tests survive another.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import discreet as dp
from discreet import mechanisms
from discreet.methods.audit import Verdict, worst_case
from discreet.methods.inference import _dpsvi as setup_file
from discreet.methods.inference._step_keys import StepKeys

DELTA = 1e-3


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault and the audit that must find it.

    Attributes:
        name: in words.
        plant: breaks the code.
        plan: what is claimed.
        runs: fits of each table.
        because: what gives it away.
        others: records beside the canary.
        delta: where the lower bound is held against the claim.
    """

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    plan: dp.PrivacyPlan
    runs: int
    because: str
    others: int = 7
    delta: float = DELTA

    def audit(self, **options) -> Verdict:
        """The audit of whatever the code is now."""
        return worst_case(self.plan, others=self.others).audit(
            delta=self.delta,
            runs=self.runs,
            progress_bar=False,
            target=f"DPSVI with {self.name}",
            **options,
        )


def plan(
    sampling, noise_multiplier, num_steps=1, relation=dp.Relation.ADD_OR_REMOVE_ONE, num_records=8
):
    return dp.PrivacyPlan(
        sampling=sampling,
        clipping_norm=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        num_records=num_records,
        relation=relation,
        target_delta=DELTA,
    )


def no_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        mechanisms,
        "release",
        lambda key, total, *_: mechanisms.Release(*jax.tree.map(jnp.float32, total[:3])),
    )


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    true_release = mechanisms.release
    patch.setattr(
        mechanisms,
        "release",
        lambda key, total, noise, *of: true_release(key, total, noise / 2, *of),
    )


def same_noise_each_step(patch: pytest.MonkeyPatch) -> None:
    at = StepKeys.at
    patch.setattr(StepKeys, "at", lambda keys, step: at(keys, step)._replace(noise=keys.noise))


def same_batch_each_step(patch: pytest.MonkeyPatch) -> None:
    at = StepKeys.at
    patch.setattr(
        StepKeys, "at", lambda keys, step: at(keys, step)._replace(sampling=keys.sampling)
    )


def _replace_engine(patch: pytest.MonkeyPatch, wrong_sum: Callable) -> None:
    """Put a wrong sum around the engine that `DPSVI` makes for itself."""
    engine_of = setup_file.BookKeepingEngine

    def wrapped(*settings, **options):
        return functools.partial(wrong_sum, engine_of(*settings, **options))

    patch.setattr(setup_file, "BookKeepingEngine", wrapped)


def clip_skipped(patch: pytest.MonkeyPatch) -> None:
    def wrong_sum(engine, loss, u, records, mask, norm, *rest, **options):
        total = engine(loss, u, records, mask, 1e9 * norm, *rest, **options)
        return total._replace(l2_bound=total.l2_bound / 1e9)

    _replace_engine(patch, wrong_sum)


def mean_by_realised_size(patch: pytest.MonkeyPatch) -> None:
    def wrong_sum(engine, loss, u, records, mask, *rest, **options):
        total = engine(loss, u, records, mask, *rest, **options)
        # What a mean over the batch comes to, back on the scale of a sum over one of expected size.
        factor = MEAN.rate * MEAN.num_records / jnp.maximum(mask.sum(), 1)
        return total._replace(
            gradient=jax.tree.map(lambda x: factor * x.astype(jnp.float32), total.gradient)
        )

    _replace_engine(patch, wrong_sum)


def padding_not_masked(patch: pytest.MonkeyPatch) -> None:
    def wrong_sum(engine, loss, u, records, mask, *rest, **options):
        return engine(loss, u, records, jnp.ones_like(mask), *rest, **options)

    _replace_engine(patch, wrong_sum)


# Poisson batches of 50 of 1,000 records, on a table of two: the guarantee is for every table.
MEAN = plan(dp.PoissonSampling(0.05), 1.0, num_records=1000)

FAULTS = (
    Fault(
        "no noise",
        no_noise,
        plan(dp.FullBatch(), 2.0, relation=dp.Relation.REPLACE_ONE),
        1000,
        "the sum is C or -C, always: TPR 1 at FPR 0, so ε is at least log(500 / 5.3) = 4.5",
    ),
    Fault(
        # At δ = 0.05 the claim is 1.57, and μ = 2 leads to a lower bound of 3.31 ± 0.20 with 8,000
        # runs (20 simulations): 8.9 standard deviations. At δ = 1e-3, where the claim is 3.14, it
        # is 3.72 ± 0.27: two, for tails are rare.
        "half the noise",
        half_the_noise,
        plan(dp.FullBatch(), 2.0, relation=dp.Relation.REPLACE_ONE),
        8000,
        "it is 2-Gaussian private where 1 is claimed",
        delta=0.05,
    ),
    Fault(
        "clip skipped",
        clip_skipped,
        plan(dp.FullBatch(), 2.0, relation=dp.Relation.REPLACE_ONE),
        1000,
        "the canary's gradient is a million times C",
    ),
    Fault(
        "mean by realised size",
        mean_by_realised_size,
        MEAN,
        2000,
        "a batch of the canary alone counts 50 times: TPR 0.05 at FPR 0",
        others=1,
    ),
    Fault(
        "same noise each step",
        same_noise_each_step,
        plan(dp.PoissonSampling(0.5), 4.0, num_steps=2, num_records=1000),
        300,
        "two steps differ by C where one has the canary: TPR 1/2 at FPR 0",
    ),
    Fault(
        "padding not masked",
        padding_not_masked,
        plan(dp.PoissonSampling(0.1), 1.0, num_records=1000),
        1000,
        "empty slots hold record 0, and 7 of 8 are empty: the canary counts seven times, drawn or not",
    ),
)
FURTHER_FAULTS = (
    Fault(
        # The sum of 16 releases is 16 C ± 8 C with the canary in all batches: TPR 0.1 at a FPR of
        # 0.001.
        "same batch each step",
        same_batch_each_step,
        plan(dp.PoissonSampling(0.1), 1.0, num_steps=16, num_records=1000),
        8000,
        "the canary is in all batches or in none",
    ),
)
