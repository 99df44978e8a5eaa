"""The neighbours on which a plan's private step reveals the most about one record, and a fit of many such canaries at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Bool, Float
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDelta
from scipy import special, stats

from discreet._validate import choice, integer
from discreet.methods.audit._audits import Score, audit_fit
from discreet.methods.audit._verdict import Verdict
from discreet.methods.inference import DPSGLD, DPSVI, releases_of
from discreet.privacy import random
from discreet.privacy.accounting import neighbours
from discreet.privacy.plan import PrivacyPlan

# In units of C: far beyond the clipping norm, so that missing clipping shows.
_STRONG = 1e6
_FLAT = 1e4
_FAR = 1e3
_METHODS = ("DPSVI", "DPSGLD")


def pulled(pull: Any) -> None:
    """A model whose gradient for a record is that record."""
    theta = numpyro.sample("theta", dist.Normal(0.0, _FLAT).expand([pull.shape[1]]).to_event(1))
    with numpyro.plate("records", pull.shape[0]):
        numpyro.factor("pull", -(pull @ theta))


@dataclasses.dataclass(frozen=True, eq=False)
class WorstCase:
    """Two neighbouring tables and the audited fit of them; made by `worst_case`.

    Attributes:
        method: A `DPSVI` or a `DPSGLD` of a model that each record pulls in its own direction.
        with_canary: Arguments of `run`; the canary is record 0.
        without_canary: The same for the neighbour.
        scores: The likelihood ratio of the two cases, the optimal attack if the step is correct;
            empty with an adaptive clipping norm.
    """

    method: DPSVI | DPSGLD
    with_canary: tuple[Float[np.ndarray, "record dim"]]
    without_canary: tuple[Float[np.ndarray, "record dim"]]
    scores: dict[str, Score]

    def audit(self, **options: Any) -> Verdict:
        """Audit it with `audit_fit` and its options."""
        return audit_fit(
            self.method, self.with_canary, self.without_canary, scores=self.scores, **options
        )


def worst_case(
    plan: PrivacyPlan, method: str = "DPSVI", *, others: int = 7, loss_share: float = 0.0
) -> WorstCase:
    """Make neighbours that saturate a plan: the canary's gradient has norm 1e6 C, in its own direction.

    The other records have gradient zero, except with batches of fixed size: there they all pull
    against the canary, so that a record drawn in its place is as far from it as possible.

    Args:
        plan: The audited plan. Its number of steps should be small.
        method: "DPSVI" or "DPSGLD".
        others: Number of records beside the canary, under ADD_OR_REMOVE_ONE: the guarantee covers
            tables of any length, and in short ones a batch is far from its expected size. Under
            REPLACE_ONE there are `plan.num_records` records in all.
        loss_share: The private loss's share of the release, as in `DPSVI`. Above 0 the canary's
            loss exceeds its bound, too, and only learned scores are used.

    Raises:
        ValueError: An unknown method, or no record beside the canary.

    Reference:
        Nasr, Song, Thakurta, Papernot and Carlini, Adversary instantiation, IEEE S&P 2021 (gradient
        canaries).
    """
    integer("others", others, hint="The table without the canary needs a record.")
    _refuse_schedule(plan)
    _refuse_unknown_sampler(plan)
    against = plan.sampling.constant_size
    replaced = not neighbours(plan.relation).hides_membership
    rows = (plan.num_records if replaced else others + 1) - 1
    strong = np.float32(_STRONG * plan.clipping.start)
    rest = np.full((rows, 1), -strong if against else 0.0, np.float32)
    canary = np.full((1, 1), strong, np.float32)
    there = np.concatenate([canary, rest])
    gone = np.concatenate([-canary, rest]) if replaced else rest
    scores: dict[str, Score] = {}
    if not plan.clipping.adapts and loss_share == 0:
        scores["likelihood ratio"] = lambda released: log_ratio(plan, released[:, :, 0]).sum(axis=1)
    return WorstCase(_method(plan, method, 1, loss_share), (there,), (gone,), scores)


def _refuse_schedule(plan: PrivacyPlan) -> None:
    if plan.noise_schedule is not None or plan.rate_schedule is not None:
        raise ValueError(
            "The scores of an audit are for the same noise and rate in each step. Leave noise_schedule and rate_schedule out of "
            "the audited plan."
        )


def canary_fit(
    plan: PrivacyPlan, num_canaries: int, method: str = "DPSVI"
) -> Callable[[int, Bool[np.ndarray, " canary"]], Float[np.ndarray, " canary"]]:
    """Make one fit of a table of many canaries, for `audit_one_run`: each has its own direction, and a gradient norm above C.

    Args:
        plan: The audited plan, under ADD_OR_REMOVE_ONE and with a fixed clipping norm.
        num_canaries: Number of canaries, and of the fit's parameters.
        method: "DPSVI" or "DPSGLD".

    Returns:
        A function from a seed and the Boolean membership of each canary to a score for each: the
        log-likelihood ratio.

    Raises:
        ValueError: A plan for another relation, or with an adaptive clipping norm.
    """
    if not neighbours(plan.relation).hides_membership or plan.clipping.adapts:
        raise ValueError(
            "Present and absent canaries are neighbours if one record is added or removed, and their scores need a fixed "
            "clipping norm. Audit such a plan, or use worst_case."
        )
    _refuse_unknown_sampler(plan)
    _refuse_schedule(plan)
    fit = _method(plan, method, num_canaries, 0.0)
    pulls = np.eye(num_canaries, dtype=np.float32) * np.float32(_STRONG * plan.clipping.start)

    def run(seed: int, included: Bool[np.ndarray, " canary"]) -> Float[np.ndarray, " canary"]:
        # One record without a gradient, so that the table is never empty.
        table = np.concatenate([pulls[included], np.zeros((1, num_canaries), np.float32)])
        released = np.asarray(releases_of(fit, table)(random.key(seed)), np.float64)
        # Beside the gradient stand the counts, which say nothing about single canaries.
        return log_ratio(plan, released[:, :num_canaries]).sum(axis=0)

    return run


def _refuse_unknown_sampler(plan: PrivacyPlan) -> None:
    if not (plan.sampling.independent or plan.sampling.constant_size):
        raise TypeError(
            f"sampling is {plan.sampling!r}; worst cases are known where records are drawn independently or batches have a "
            "constant size, as of PoissonSampling, FixedSizeSampling and FullBatch. Audit a fit with another sampler by "
            "audit_fit, on neighbours of your own."
        )


def _method(plan: PrivacyPlan, method: str, dim: int, loss_share: float) -> DPSVI | DPSGLD:
    choice("method", method, _METHODS)
    # At the origin the canary would have no loss; far from it, a large one of a known sign.
    start = np.full(dim, _FAR * max(1.0, plan.clipping.start) if loss_share else 0.0, np.float32)
    begin = init_to_value(values={"theta": start})
    if method == "DPSVI":
        guide = AutoDelta(pulled, init_loc_fn=begin)
        return DPSVI(pulled, guide, numpyro.optim.SGD(plan.rate), plan=plan, loss_share=loss_share)
    # The largest step that still fits the release's noise.
    size = (2 * plan.rate / (plan.clipping.start * plan.noise_multiplier)) ** 2
    step_size = (size, 1.0, 0.0)
    return DPSGLD(pulled, plan=plan, step_size=step_size, init_loc_fn=begin, loss_share=loss_share)


def log_ratio(plan: PrivacyPlan, released: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Log-likelihood ratio of each noisy gradient of the worst case: with the canary against without it."""
    q = plan.rate
    norm = plan.clipping.start
    if plan.sampling.constant_size:
        full = plan.sampling.capacity(plan.num_records) * norm
        present = ((1 - q, -full), (q, 2 * norm - full))
        absent = ((1.0, -full),)
    else:
        present = ((1 - q, 0.0), (q, norm))
        absent = (
            ((1.0, 0.0),)
            if neighbours(plan.relation).hides_membership
            else ((1 - q, 0.0), (q, -norm))
        )
    # The counts have their share of the release, so the noise on the gradient is a little more.
    stddev = plan.noise_multiplier * norm / math.sqrt(1 - plan.clipping.count_share)
    top, bottom = (_log_density(mixture, released, stddev) for mixture in (present, absent))
    return top - bottom


def _log_density(mixture: Any, x: np.ndarray, stddev: float) -> np.ndarray:
    parts = [
        np.log(weight) + stats.norm.logpdf(x, mean, stddev)
        for weight, mean in mixture
        if weight > 0
    ]
    return np.asarray(special.logsumexp(parts, axis=0))
