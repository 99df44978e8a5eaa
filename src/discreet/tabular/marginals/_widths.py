"""How wide a description's intervals will be, and the ε for a width that one needs: from public numbers only.

The variances of `_estimates` follow from the plan alone. With them, Fieller's interval of a ratio t
= a / b with b > 0 has the half-width sqrt(z^2 b^2 Q(t) - z^4 D) / (b^2 - z^2 V), where V is the
variance of b, Q(t) that of a - t b, and D >= 0 the determinant of their covariance. Q is a
parabola, so it is largest at an end of what t may be: 0 or 1 for a share, -1 or 1 for a mean (of
the column's z), or nearer to 0 if a public guess of the mean says so. The noise leaves b above N -
z sqrt(V), as often as intervals hold. So the half-width is at most z sqrt(Q) / (N - 2 z sqrt(V)).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from discreet._validate import LEVEL, integer, positive, probability, real
from discreet.privacy.accounting import upper
from discreet.tabular.marginals._crossed import crossed, keys_of, name_of
from discreet.tabular.marginals._describe import description_plan
from discreet.tabular.marginals._estimates import ColumnEstimate, LeastSquares
from discreet.tabular.marginals._plan import MarginalsPlan
from discreet.tabular.marginals._result import Marginals
from discreet.tabular.marginals._tails import z_of
from discreet.tabular.tables import Schema

_LEAST = 0.001
_MOST = 100.0
"""No ε below or above these is proposed."""
_DIGITS = 3


class _Law(NamedTuple):
    """Standard deviations of a - t b at the worst t, in the unit of t, and of b; and half of the range of t."""

    worst: float
    number: float
    most: float


def half_widths(
    plan: MarginalsPlan,
    num_records: int,
    *,
    level: float = LEVEL,
    by: Sequence[str | Sequence[str]] | str = (),
    means: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """How far from its middle an interval's end will be at most, for each column's mean, or for the share of any category.

    Args:
        plan: The plan of a release, as of `description_plan`.
        num_records: Number of records (of rows, where a person may have several) that have a value
            in the column; with `by`, of a group.
        level: Probability with which each interval holds.
        by: As in `describe`: then the half-widths are those of groups, the widest of all keys.
        means: Public guesses of means by name of a column (days since 1970 for dates): half-widths
            hold for means as far from the middle of the bounds, or nearer. Others may lie anywhere,
            which makes half-widths up to 1.42 times as large.

    Returns:
        By name of a column: in its unit, for dates in days; for categories as a share. It is
            exceeded if noise hides more records
        than it does with probability `level`.

    Raises:
        ValueError: An argument is out of range, or `by` has a column that was not counted with
            others.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> plan = description_plan(schema_from_bounds("age=0:99,smoker=no|yes"), epsilon=1.0, delta=1e-6)
    >>> {name: round(x, 4) for name, x in half_widths(plan, 10_000).items()}
    {'age': 0.0618, 'smoker': 0.0012}
    """
    integer("num_records", num_records)
    z = _z(level, plan)
    found = {}
    for name, law in _laws(plan, by, means or {}).items():
        left = num_records - 2 * z * law.number
        found[name] = law.most if left <= 0 else min(law.most, z * law.worst / left)
    return found


def epsilon_for_widths(
    schema: Schema,
    widths: Mapping[str, float],
    *,
    num_records: int,
    delta: float,
    level: float = LEVEL,
    by: Sequence[str | Sequence[str]] | str = (),
    means: Mapping[str, float] | None = None,
    **described: Any,
) -> float:
    """The least ε, rounded up to three digits, with which `describe` has intervals that are at most so wide.

    Args:
        schema: The public description.
        widths: Half-width by name of a column: of its mean, in its unit (days for dates), or of
            each share of a category.
        num_records: As in `half_widths`: a public number.
        delta: Privacy budget, well below one over the number of records.
        level: Probability with which each interval holds.
        by: As in `describe`; then widths are those of groups.
        means: As in `half_widths`.
        described: `pairs`, `weights`, `relation`, `slices` and `quantiles` of `describe`, as they will be given.

    Raises:
        ValueError: An argument is out of range, or no ε up to 100 is enough.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> schema = schema_from_bounds("age=0:99,smoker=no|yes")
    >>> epsilon_for_widths(schema, {"age": 0.5}, num_records=10_000, delta=1e-6)
    0.153
    """
    integer("num_records", num_records)

    def planned(epsilon: float, laplace: bool | None = None) -> MarginalsPlan:
        return description_plan(
            schema, epsilon=epsilon, delta=delta, by=by, laplace=laplace, **described
        )

    laws = _laws(planned(1.0), by, means or {})
    if unknown := sorted({*widths} - {*laws}) or (not widths and ["no column"]):
        raise ValueError(
            f"widths names {', '.join(unknown)}: give half-widths of columns by name; there are figures of {', '.join(laws)}"
        )
    for name, width in widths.items():
        positive(
            f"the width of {name}",
            width,
            hint="It is in the column's unit, for categories a share.",
        )

    def guess(laplace: bool) -> float:
        """The ε for noise of this kind, but for the grid that it is drawn on, which makes it larger by a part that varies."""
        some = planned(1.0, laplace)
        z = _z(level, some)
        laws = _laws(some, by, means or {})
        larger = min(
            width * num_records / (z * (laws[name].worst + 2 * width * laws[name].number))
            for name, width in widths.items()
        )
        noise = some.noise_multiplier * larger
        return max(_LEAST, dataclasses.replace(some, noise_multiplier=noise).epsilon())

    gaussian = guess(False)
    try:
        other = guess(True)
    except ValueError:
        other = math.inf  # see `description_plan`
    found = gaussian
    if gaussian > _MOST:
        found = min(gaussian, other)
    elif planned(gaussian).laplace:
        # Laplace noise is planned with all ε from some one on: not below that, and not below `other`.
        found = max(gaussian, other)
        low = min(found, other)
        while found > low * (1 + 10.0**-_DIGITS):
            middle = low if planned(low).laplace else math.sqrt(low * found)
            low, found = (low, middle) if planned(middle).laplace else (middle, found)
    while found <= _MOST:
        epsilon = float(upper(found, _DIGITS))
        sure = half_widths(planned(epsilon), num_records, level=level, by=by, means=means)
        if all(sure[name] <= width for name, width in widths.items()):
            return epsilon
        found = epsilon * (1 + 10.0**-_DIGITS)
    raise ValueError(
        f"these widths need an ε above {_MOST:g}, which protects nobody: give larger ones, fewer columns, or bounds that are "
        "closer together"
    )


def _z(level: float, plan: MarginalsPlan) -> float:
    return z_of(probability("level", level, hint="0.9 is the default."), laplace=plan.laplace)


def _laws(
    plan: MarginalsPlan, by: Sequence[str | Sequence[str]] | str, means: Mapping[str, float]
) -> dict[str, _Law]:
    """Laws of all columns; where there are groups, the worst of their keys."""
    bounded = {
        column.name: column.limits for column in plan.schema.columns if column.bounds is not None
    }
    for name, mean in means.items():
        if name not in bounded:
            raise ValueError(
                f"means names {name}: give guesses for columns with bounds: {', '.join(bounded) or 'none'}"
            )
        real(f"the guess of the mean of {name}", mean, *bounded[name])
    counts, fine, sums, persons = plan.apart(np.zeros(len(plan.all_weights)))
    released = Marginals(plan, counts, plan.state(reproducible=True), sums, persons, fine)
    fits = [(LeastSquares(crossed(released, key)), key) for key in keys_of(by, plan.schema)]
    found = {}
    for name, own in LeastSquares(released).columns.items():
        each = (
            [fit.group(name, name_of(key), 0) for fit, key in fits if name not in key]
            if fits
            else [own]
        )
        known = [_law(x, means.get(name)) for x in each if x.edges is None or x.sums is not None]
        if known:
            found[name] = _Law(*map(max, zip(*known, strict=True)))
    return found


def _law(estimate: ColumnEstimate, mean: float | None) -> _Law:
    found = estimate.moved
    if found.edges is None:
        own, with_sum, of_sum = found.spread
        worst = np.max(np.maximum(own, own - 2 * with_sum + of_sum))
        return _Law(math.sqrt(worst), math.sqrt(of_sum), 0.5)
    _, covariance = found.moments
    low, high = found.column.limits
    half = (high - low) / 2
    farthest = 1.0 if mean is None else abs(mean - (low + high) / 2) / half
    worst = covariance[1, 1] + 2 * farthest * abs(covariance[0, 1]) + farthest**2 * covariance[0, 0]
    return _Law(half * math.sqrt(worst), math.sqrt(covariance[0, 0]), half)
