"""Neighbours on which the private step tells as much of one record as it ever may."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Bool, Float
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoDelta
from scipy import special, stats

from discreet import random
from discreet.accounting import Relation
from discreet.audit._fits import audit_fit
from discreet.audit._scores import Score
from discreet.audit._verdict import Verdict
from discreet.inference import DPSGLD, DPSVI, releases_of
from discreet.plan import PrivacyPlan
from discreet.sampling import FixedSizeSampling

# Of C: far beyond the clipping norm, as a record without clipping would be seen to be.
_STRONG = 1e6
_FLAT = 1e4
_FAR = 1e3
_METHODS = ("DPSVI", "DPSGLD")


def pulled(pull: Any) -> None:
    """A model in which a record's gradient is the record itself: each pulls the parameter, and nothing else does."""
    theta = numpyro.sample("theta", dist.Normal(0.0, _FLAT).expand([pull.shape[1]]).to_event(1))
    with numpyro.plate("records", pull.shape[0]):
        numpyro.factor("pull", -(pull @ theta))


@dataclasses.dataclass(frozen=True, eq=False)
class WorstCase:
    """Two neighbouring tables, and the fit of them that is audited; made by `worst_case`.

    Attributes:
        method: a `DPSVI` or a `DPSGLD` of a model that each record pulls in its own direction.
        with_canary: arguments of `run`; the canary is record 0.
        without_canary: the same for the neighbour.
        scores: the likelihood ratio of the two cases, which no attacker beats if the step is what it says; empty with a
            clipping norm that moves.
    """

    method: DPSVI | DPSGLD
    with_canary: tuple[Float[np.ndarray, "record dim"]]
    without_canary: tuple[Float[np.ndarray, "record dim"]]
    scores: dict[str, Score]

    def audit(self, **options: Any) -> Verdict:
        """`audit_fit` of it, with the same options."""
        return audit_fit(self.method, self.with_canary, self.without_canary, scores=self.scores, **options)


def worst_case(plan: PrivacyPlan, method: str = "DPSVI", *, others: int = 7, loss_share: float = 0.0) -> WorstCase:
    """Neighbours that saturate a plan: the canary's gradient is a million times C, in a direction where it meets nothing.

    The other records have no gradient, but for batches of fixed size, where all of them pull against the canary and each batch is
    full of them: what is drawn in its place is then as far from it as can be.

    Args:
        plan: what is audited. Its number of steps should be small.
        method: "DPSVI" or "DPSGLD".
        others: records beside the canary, under ADD_OR_REMOVE_ONE: tables of any length are protected, and in short ones a batch
            is far from its expected size. Under REPLACE_ONE there are `plan.num_records` records in all.
        loss_share: share of the release that the private loss has, as in `DPSVI`. Above 0 the canary's loss is beyond its bound,
            too; the scores are then the learned ones alone.

    Raises:
        ValueError: an unknown method, or no record beside the canary.

    Reference:
        Nasr, Song, Thakurta, Papernot and Carlini, Adversary instantiation, IEEE S&P 2021 (gradient canaries).
    """
    if others < 1:
        raise ValueError(f"others is {others}; without the canary the table needs a record: at least 1.")
    against = isinstance(plan.sampling, FixedSizeSampling)
    replaced = plan.relation is Relation.REPLACE_ONE
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


def canary_fit(
    plan: PrivacyPlan, num_canaries: int, method: str = "DPSVI"
) -> Callable[[int, Bool[np.ndarray, " canary"]], Float[np.ndarray, " canary"]]:
    """One fit of a table of many canaries, for `audit_one_run`: each has a direction of its own, and a gradient beyond C.

    Args:
        plan: what is audited, under ADD_OR_REMOVE_ONE and with a fixed clipping norm.
        num_canaries: as many as the fit has parameters.
        method: "DPSVI" or "DPSGLD".

    Returns:
        A function from a seed, and which canaries are records, to a score for each: the log-likelihood ratio.

    Raises:
        ValueError: a plan for another relation, or whose clipping norm moves.
    """
    if plan.relation is not Relation.ADD_OR_REMOVE_ONE or plan.clipping.adapts:
        raise ValueError(
            "Canaries that are there or not are neighbours under ADD_OR_REMOVE_ONE, and their scores are computed from a fixed "
            "clipping norm. Audit such a plan, or use worst_case."
        )
    fit = _method(plan, method, num_canaries, 0.0)
    pulls = np.eye(num_canaries, dtype=np.float32) * np.float32(_STRONG * plan.clipping.start)

    def run(seed: int, included: Bool[np.ndarray, " canary"]) -> Float[np.ndarray, " canary"]:
        # One record without a gradient, so that there is a table where no coin shows heads.
        table = np.concatenate([pulls[included], np.zeros((1, num_canaries), np.float32)])
        released = np.asarray(releases_of(fit, table)(random.key(seed)), np.float64)
        return log_ratio(plan, released).sum(axis=0)

    return run


def _method(plan: PrivacyPlan, method: str, dim: int, loss_share: float) -> DPSVI | DPSGLD:
    if method not in _METHODS:
        raise ValueError(f'method is {method!r}; worst cases are made for "DPSVI" and "DPSGLD".')
    # At the origin the canary would have no loss; far from it, a large one of a known sign.
    start = np.full(dim, _FAR * max(1.0, plan.clipping.start) if loss_share else 0.0, np.float32)
    begin = init_to_value(values={"theta": start})
    if method == "DPSVI":
        guide = AutoDelta(pulled, init_loc_fn=begin)
        return DPSVI(pulled, guide, numpyro.optim.SGD(plan.rate), plan=plan, loss_share=loss_share)
    # As long a step as the release's noise is free for.
    size = (2 * plan.rate / (plan.clipping.start * plan.noise_multiplier)) ** 2
    step_size = (size, 1.0, 0.0)
    return DPSGLD(pulled, plan=plan, step_size=step_size, init_loc_fn=begin, loss_share=loss_share)


def log_ratio(plan: PrivacyPlan, released: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Log-likelihood ratio of each noisy sum of the worst case: with the canary against without it."""
    q, norm = plan.rate, plan.clipping.start
    if isinstance(plan.sampling, FixedSizeSampling):
        full = plan.sampling.batch_size * norm
        present, absent = ((1 - q, -full), (q, 2 * norm - full)), ((1.0, -full),)
    elif plan.relation is Relation.REPLACE_ONE:
        present, absent = ((1 - q, 0.0), (q, norm)), ((1 - q, 0.0), (q, -norm))
    else:
        present, absent = ((1 - q, 0.0), (q, norm)), ((1.0, 0.0),)
    stddev = plan.noise_multiplier * norm
    top, bottom = (_log_density(mixture, released, stddev) for mixture in (present, absent))
    return top - bottom


def _log_density(mixture: Any, x: np.ndarray, stddev: float) -> np.ndarray:
    parts = [np.log(weight) + stats.norm.logpdf(x, mean, stddev) for weight, mean in mixture if weight > 0]
    return np.asarray(special.logsumexp(parts, axis=0))
