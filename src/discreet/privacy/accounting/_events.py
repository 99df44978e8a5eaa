"""From events to curves: the dominating pairs of a `DpEvent` under a relation, refused events, and JSON.

`NOISES` has the events of added noise, with their dominating pairs, `_KINDS` all others that the
library accounts for, with their fields: what is in neither is refused by name, here and in files.
`_elementary` brings a step to its simplest form, `_pair` gives its dominating pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import attr
import numpy as np
from scipy.special import expit

from discreet._dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from discreet.privacy.accounting._compose import compose
from discreet.privacy.accounting._pairs import (
    NO_NOISE,
    NO_RELEASE,
    GaussianCurve,
    GaussianPair,
    LaplaceCurve,
    LaplacePair,
    Pair,
    PoissonPair,
)
from discreet.privacy.accounting._relation import Relation, neighbours

if TYPE_CHECKING:
    from discreet.privacy.accounting._choices import PureCurve
    from discreet.privacy.accounting._pairs import GridCurve

    Curve = GaussianCurve | LaplaceCurve | GridCurve | PureCurve
    """delta(epsilon) for epsilon >= 0: convex in e^epsilon and non-increasing. `delta` gives upper
    bounds at each epsilon >= 0; `knots` are epsilons, ascending from 0, between which the curve is
    smooth; the last has a negligible delta."""


@attr.s(frozen=True, slots=True, auto_attribs=True)
class BoundedRangeDpEvent(DpEvent):
    """One choice by the exponential mechanism, of probabilities in proportion to exp(epsilon * score / 2).

    Attributes:
        epsilon: The privacy range, if one record that is added or removed moves each score by at
            most 1: the privacy losses of all answers lie within an interval of this length. Under
            REPLACE_ONE scores move by up to 2, and it is twice as long.
    """

    epsilon: float


NOISES: dict[type[DpEvent], Callable[[float], Pair]] = {
    GaussianDpEvent: GaussianPair,
    LaplaceDpEvent: LaplacePair,
}
"""Events of noise added to a sum: a class whose one field is `noise_multiplier`, the size of the
noise over the clipping norm C, and what makes a dominating pair for sums that lie so many sizes of
the noise apart: C for a record that is added or removed, 2C for one that is replaced. The pair has
to hold in both directions, as that of symmetric noise does."""

_KINDS: dict[str, tuple[type, dict[str, str]]] = {
    "none": (NoOpDpEvent, {}),
    "randomized_response": (
        RandomizedResponseDpEvent,
        {"noise_parameter": "number", "num_buckets": "count"},
    ),
    "bounded_range": (BoundedRangeDpEvent, {"epsilon": "number"}),
    "poisson_sampled": (
        PoissonSampledDpEvent,
        {"sampling_probability": "number", "event": "event"},
    ),
    "sampled_without_replacement": (
        SampledWithoutReplacementDpEvent,
        {"source_dataset_size": "count", "sample_size": "count", "event": "event"},
    ),
    "truncated_subsampled_gaussian": (
        TruncatedSubsampledGaussianDpEvent,
        {
            "dataset_size": "count",
            "sampling_probability": "number",
            "truncated_batch_size": "count",
            "noise_multiplier": "number",
        },
    ),
    "self_composed": (SelfComposedDpEvent, {"event": "event", "count": "count"}),
    "composed": (ComposedDpEvent, {"events": "events"}),
}


def _kinds() -> dict[str, tuple[type, dict[str, str]]]:
    """The events by their names in files."""
    noises = {
        kind.__name__.removesuffix("DpEvent").lower(): (kind, {"noise_multiplier": "number"})
        for kind in NOISES
    }
    return {**noises, **_KINDS}


def event_to_dict(event: DpEvent) -> dict[str, Any]:
    """Convert an event to dictionaries, lists and numbers; ValueError for an event of another kind."""
    found = {kind: (name, fields) for name, (kind, fields) in _kinds().items()}
    if type(event) not in found:
        raise ValueError(
            f"{type(event).__name__} cannot be written to a file: only events whose worst case is known are accepted "
            f"({_listed(found)})."
        )
    name, fields = found[type(event)]
    content: dict[str, Any] = {"kind": name}
    for field, what in fields.items():
        value = getattr(event, field)
        if what == "event":
            content[field] = event_to_dict(value)
        elif what == "events":
            content[field] = [event_to_dict(part) for part in value]
        else:
            # float.hex would be exact too; JSON's shortest decimal reads back as the same number.
            content[field] = int(value) if what == "count" else float(value)
    return content


def event_from_dict(content: Any) -> DpEvent:
    """Read the event from `event_to_dict`; ValueError for anything else."""
    kinds = _kinds()
    if not isinstance(content, dict) or content.get("kind") not in kinds:
        raise ValueError(f"not an event of a supported kind: {str(content)[:80]}")
    kind, fields = kinds[content["kind"]]
    if set(content) != {"kind", *fields}:
        raise ValueError(f"an event of kind {content['kind']} has the fields {', '.join(fields)}")
    values: dict[str, Any] = {}
    for field, what in fields.items():
        value = content[field]
        if what == "event":
            values[field] = event_from_dict(value)
        elif what == "events":
            if not isinstance(value, list):
                raise ValueError("composed events are a list")
            values[field] = [event_from_dict(part) for part in value]
        elif isinstance(value, bool) or not isinstance(
            value, int if what == "count" else int | float
        ):
            raise ValueError(f"{field} of an event is {value!r}, not a {what}")
        else:
            values[field] = value
    return kind(**values)


_MOST_RANGE = 200.0
"""The largest range of a choice."""

_MOST_IN_CLOSED_FORM = 1000
"""Uses of a pure mechanism up to which the exact profile is computed as a sum; beyond, they are composed numerically."""


def curve_of(event: DpEvent, relation: Relation, *, tolerance: float) -> Curve:
    """The privacy profile of `event`: an upper bound on delta at every epsilon."""
    found = _composed(event, relation)
    if found is None:
        return NO_NOISE
    gaussian, others = found
    if not others:
        return GaussianCurve(gaussian) if gaussian > 0 else NO_RELEASE
    if gaussian == 0 and len(others) == 1:
        [(only, times)] = others.items()
        if isinstance(only, LaplaceDpEvent) and times == 1:
            return LaplaceCurve(neighbours(relation).distance / only.noise_multiplier)
        if isinstance(only, RandomizedResponseDpEvent) and times <= _MOST_IN_CLOSED_FORM:
            from discreet.privacy.accounting._choices import PureCurve

            return PureCurve(pure_epsilon(only), times)
        if isinstance(only, BoundedRangeDpEvent) and times == 1:
            from discreet.privacy.accounting._choices import selection_curve

            return selection_curve(_range_of(only, relation))
    directions: list[list[tuple[Pair, int]]] = []
    for added in (False, True):
        parts = _pairs(others, relation, added)
        if gaussian > 0:
            parts.append((GaussianPair(gaussian), 1))
        if parts not in directions:
            directions.append(parts)
    return compose(directions, tolerance=tolerance)


def direction_parts(
    event: DpEvent, relation: Relation
) -> list[tuple[float, list[tuple[Pair, int]]]]:
    """The parts of an event for each direction of the relation.

    These are the sensitivity in standard deviations of all Gaussians together (infinite if a
    release has no noise), and the other dominating pairs with their counts.
    """
    found = _composed(event, relation)
    if found is None:
        return [(math.inf, [])]
    gaussian, others = found
    # In Rényi divergences a choice of range r is no worse than a Gaussian of sensitivity r / 2: it
    # is r^2 / 8-zCDP (Cesar and Rogers, ALT 2021, from Dong, Durfee and Rogers).
    choices = [
        (_range_of(x, relation), n) for x, n in others.items() if isinstance(x, BoundedRangeDpEvent)
    ]
    gaussian = math.sqrt(gaussian**2 + sum(n * width**2 / 4 for width, n in choices))
    others = {step: n for step, n in others.items() if not isinstance(step, BoundedRangeDpEvent)}
    return [(gaussian, _pairs(others, relation, added)) for added in (False, True)]


def _pairs(others: dict[DpEvent, int], relation: Relation, added: bool) -> list[tuple[Pair, int]]:
    """Dominating pairs with their counts; `added`: of a table without the record against one with it."""
    return [(_pair(step, relation, added), count) for step, count in others.items()]


def _range_of(step: Any, relation: Relation) -> float:
    return step.epsilon * neighbours(relation).distance


def _composed(event: DpEvent, relation: Relation) -> tuple[float, dict[DpEvent, int]] | None:
    """All Gaussians as one, by its sensitivity in standard deviations, and the other steps; None where one has no noise."""
    sensitivity = neighbours(relation).distance
    steps: dict[DpEvent, int] = {}
    if _collect(event, 1, relation, steps):
        return None
    # Gaussians compose to one Gaussian, exactly.
    gaussian = sum(
        n * (sensitivity / step.noise_multiplier) ** 2
        for step, n in steps.items()
        if isinstance(step, GaussianDpEvent)
    )
    others = {step: n for step, n in steps.items() if not isinstance(step, GaussianDpEvent)}
    return math.sqrt(gaussian), others


def _collect(event: DpEvent, count: int, relation: Relation, steps: dict[DpEvent, int]) -> bool:
    """Add the elementary steps of `event`, `count` times, to `steps`. Return True if it releases something without noise."""
    if isinstance(event, NoOpDpEvent) or count == 0:
        return False
    if isinstance(event, NonPrivateDpEvent):
        return True
    if isinstance(event, SelfComposedDpEvent):
        return _collect(event.event, count * _whole(event.count), relation, steps)
    if isinstance(event, ComposedDpEvent):
        # Check every part, even after one without noise: a later one may have to be refused.
        bare = [_collect(part, count, relation, steps) for part in event.events]
        return any(bare)
    step = _elementary(event, relation)
    if step is None:
        return False
    if isinstance(step, BoundedRangeDpEvent):
        bare = _range_of(step, relation) > _MOST_RANGE
    else:
        bare = (
            step.noise_parameter if isinstance(step, RandomizedResponseDpEvent) else _noise_of(step)
        ) == 0
    if not bare:
        steps[step] = steps.get(step, 0) + count
    return bare


def pure_event(epsilon: float) -> RandomizedResponseDpEvent:
    """Make the event of an (epsilon, 0)-private mechanism: randomised response, which dominates all of them.

    Args:
        epsilon: Between 1e-9 and 500; rounded up by less than 1e-6 of itself.

    Raises:
        ValueError: An epsilon outside of that.

    Reference: Kairouz, Oh, Viswanath, ICML 2015, Theorem 3.1.
    """
    if not 1e-9 <= epsilon <= 500:
        raise ValueError(
            f"epsilon is {epsilon!r}; a pure epsilon lies between 1e-9 and 500. 1 is a common choice, and above 10 it "
            "guarantees almost nothing."
        )
    parameter = 2 * float(expit(-epsilon))
    while pure_epsilon(event := RandomizedResponseDpEvent(parameter, 2)) < epsilon:
        parameter = math.nextafter(parameter, 0.0)
    return event


def pure_epsilon(event: RandomizedResponseDpEvent) -> float:
    """The epsilon of randomised response, rounded up; 0 < noise parameter < 1."""
    p = event.noise_parameter
    buckets = event.num_buckets
    return math.log1p(buckets * (1 - p) / p) * (1 + 4 * np.finfo(np.float64).eps)


def _whole(count: object) -> int:
    number = (
        count
        if isinstance(count, int | float | np.integer) and not isinstance(count, bool)
        else math.nan
    )
    if not (float(number).is_integer() and number >= 0):
        raise ValueError(
            f"SelfComposedDpEvent has count {count!r}; a count is an integer, 0 or more."
        )
    return int(number)


def _elementary(event: DpEvent, relation: Relation) -> DpEvent | None:
    """Check one step and return it in its simplest form; None if it uses no record."""
    if type(event) in NOISES:
        _noise_of(event)
        return event
    if isinstance(event, RandomizedResponseDpEvent):
        _check_probability(event.noise_parameter, "RandomizedResponseDpEvent")
        return event if event.num_buckets > 1 and event.noise_parameter < 1 else None
    if isinstance(event, BoundedRangeDpEvent):
        if not (isinstance(event.epsilon, int | float) and event.epsilon >= 0):
            raise ValueError(
                f"BoundedRangeDpEvent has epsilon {event.epsilon!r}; it is a number, 0 or more."
            )
        return event if event.epsilon > 0 else None
    if isinstance(event, PoissonSampledDpEvent):
        _check_probability(event.sampling_probability, "PoissonSampledDpEvent")
        _check_inner(event, NOISES, event.event)
        replaced = not neighbours(relation).hides_membership and event.sampling_probability < 1
        if replaced and not isinstance(event.event, GaussianDpEvent):
            raise ValueError(
                f"{type(event.event).__name__} on a Poisson sample has no dominating pair known to this library for "
                "one record replaced. Use Relation.ADD_OR_REMOVE_ONE, or Gaussian noise."
            )
        if event.sampling_probability in (0, 1):
            return event.event if event.sampling_probability else None
        return event
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return _without_replacement(event, relation)
    if isinstance(event, TruncatedSubsampledGaussianDpEvent):
        _check_probability(event.sampling_probability, "TruncatedSubsampledGaussianDpEvent")
        return (
            event
            if event.sampling_probability and event.truncated_batch_size and event.dataset_size
            else None
        )
    raise ValueError(
        f"{type(event).__name__} cannot be accounted for here: only events whose worst-case neighbours are known are accepted. "
        f"Describe the release by one of: {_listed(kind for kind, _ in _kinds().values())}. A new mechanism's event gets its "
        "dominating pair in discreet.accounting.NOISES."
    )


def _without_replacement(
    event: SampledWithoutReplacementDpEvent, relation: Relation
) -> DpEvent | None:
    size = event.source_dataset_size
    batch = event.sample_size
    if not 0 <= batch <= size:
        raise ValueError(
            f"SampledWithoutReplacementDpEvent draws {batch} of {size} records without replacement; the batch must be between 0 "
            "and the number of records. Use a smaller batch."
        )
    if neighbours(relation).hides_membership:
        raise ValueError(
            "A fixed-size batch drawn without replacement has no sound accounting for one record added or removed: with one "
            "record more or fewer, the law of every other record's membership changes too. Use Relation.REPLACE_ONE, or "
            "Poisson sampling."
        )
    _check_inner(event, (GaussianDpEvent,), event.event)
    if batch == 0:
        return None
    return event.event if batch == size else event


def _listed(kinds: Iterable[type]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def _check_inner(event: DpEvent, allowed: Collection[type], inner: DpEvent) -> None:
    if type(inner) not in allowed:
        raise ValueError(
            f"{type(event).__name__} of a {type(inner).__name__} cannot be accounted for: the amplification by sampling is known "
            f"for {_listed(allowed)} only. Compose several releases outside the sampling, each with a batch of its own."
        )
    _noise_of(inner)


def _check_probability(value: float, where: str) -> None:
    if not 0 <= value <= 1:
        raise ValueError(
            f"{where} has sampling probability {value!r}; a probability lies between 0 and 1."
        )


def _noise_of(event: DpEvent) -> float:
    noise = getattr(getattr(event, "event", event), "noise_multiplier", None)
    if not (isinstance(noise, int | float) and math.isfinite(noise) and noise >= 0):
        raise ValueError(
            f"{type(event).__name__} has noise multiplier {noise!r}; it is the noise's standard deviation divided by the "
            "clipping norm, a finite number above 0."
        )
    return float(noise)


def _pair(step: DpEvent, relation: Relation, added: bool) -> Pair:
    """The dominating pair of one elementary step.

    Noise multipliers are stddev / C: REPLACE_ONE moves a sum by up to 2C.
    """
    if isinstance(step, RandomizedResponseDpEvent | BoundedRangeDpEvent):
        from discreet.privacy.accounting._choices import PurePair, SelectionPair

        if isinstance(step, RandomizedResponseDpEvent):
            return PurePair(pure_epsilon(step))
        return SelectionPair(_range_of(step, relation))
    if type(step) in NOISES:
        return _of_noise(step, neighbours(relation).distance)
    noise = _noise_of(step)
    if isinstance(step, PoissonSampledDpEvent):
        if neighbours(relation).hides_membership:
            return PoissonPair(_of_noise(step.event, 1.0), step.sampling_probability, added)
        from discreet.privacy.accounting._replaced import PoissonReplacePair

        return PoissonReplacePair(1 / noise, step.sampling_probability)
    if isinstance(step, SampledWithoutReplacementDpEvent):
        from discreet.privacy.accounting._replaced import WithoutReplacementPair

        return WithoutReplacementPair(
            GaussianPair(2 / noise), step.sample_size / step.source_dataset_size
        )
    if isinstance(step, TruncatedSubsampledGaussianDpEvent):
        return _truncated(step, relation, added)
    raise AssertionError(f"{step!r} was accepted by _elementary")


def _of_noise(step: Any, distance: float) -> Pair:
    """The pair of added noise, for sums that lie `distance` clipping norms apart."""
    return NOISES[type(step)](distance / _noise_of(step))


def _truncated(event: TruncatedSubsampledGaussianDpEvent, relation: Relation, added: bool) -> Pair:
    # Condition on whether the batch would overflow given that the record is in it; where it does,
    # one record in takes another's place, which is a replacement at twice the sensitivity (arXiv
    # 2508.15089, as dp_accounting has it).
    from scipy.stats import binom

    from discreet.privacy.accounting._replaced import MixturePair, PoissonReplacePair

    rate = event.sampling_probability
    size = event.dataset_size
    limit = event.truncated_batch_size
    shift = 1 / event.noise_multiplier
    untruncated = GaussianPair(shift)
    if not neighbours(relation).hides_membership:
        untruncated = PoissonReplacePair(shift, rate)
    elif rate < 1:
        untruncated = PoissonPair(untruncated, rate, added)
    overflow = float(binom.sf(limit - 1, size - 1, rate))
    if overflow == 0:
        return untruncated
    replaced_rate = min(1.0, float(binom.sf(limit, size, rate)) * limit / overflow / size)
    replaced = (
        PoissonReplacePair(2 / event.noise_multiplier, replaced_rate)
        if replaced_rate > 0
        else untruncated
    )
    return replaced if overflow == 1 else MixturePair(replaced, untruncated, overflow)
