"""Estimates: figures that follow from noisy counts, agree with one another, and have intervals.

*Model.* Let c_i be the counts of column i over its k_i levels, T_ij those of a pair, N the number
of records. The released counts are these plus independent noise of known standard
deviation; 1'c_i = N, and the margins of T_ij are c_i and c_j.

*Least squares.* Without the interaction of T_ij, a pair measures c_i with variance k_j s_ij^2 a
level, and N only once. So the best linear unbiased estimate is in closed form: c_i has precision
p_i = 1/s_i^2 + sum_j 1/(k_j s_ij^2) in every direction that keeps its total, N has variance V = 1 /
sum_tables 1/(cells s^2), and both are independent. A linear figure a'c_i thus has variance |a -
mean(a)|^2 / p_i + mean(a)^2 V.

*Sums.* With z a column's values mapped to [-1, 1], its sums of z and of 1 - z^2 are released, too,
with independent noise. So the number of values b, S = sum of z and G = sum of (1 - z^2) are jointly
normal. Where each slice is one value, S and G are also linear figures of the counts, and both
estimates are combined by their precisions. Where slices are wider, the counts do not say where in
them the values lie, and S and G stand alone. The mean is S / b. The sum of (z - m)^2 is (1 + m^2) b
- G - 2 m S for any m: the variance is that over b, at the mean. Sums by category are added up to
those of the column, and those of a category share in what other sums say of the total, again by
precision.

*Fine counts.* Parts of slices are counted with noise of variance s^2 each. What they say of a whole
slice is little beside the slice's own count, and left aside: part p of slice b has the estimate c_b
/ P + (y_bp - mean of y_b), P being the number of parts, and both terms are independent. So a figure
of parts has the variance of its means over slices, as a figure of slices, and s^2 times the squared
distance from these means. Those by category are added up for the column, by precision if there are
several.

*Groups.* Row l of the pair of a column with k levels and one with L, (interaction + N_l / k + (c -
mean(c)) / L), is the count of the column within that category. Its parts are independent, so it has
precision 1 / (s^2 (1 - 1/L) + 1 / (p L^2)) in directions that keep its total, which is N_l: all
figures of a column hold for a group.

*Intervals* are of this estimate, which is a linear figure of the noise (`_tails`). A ratio t = a / b
has Fieller's interval, all t for which a - t b = 0 is not rejected; with Gaussian noise both are
exact. A quantile is in
slice or part b if the shares below b and below b + 1 say so: those for which neither is rejected;
its place within is unknown, so the interval ends with slices or parts. The estimate is where the
nearest monotone shares pass the quantile's. For the standard deviation see
`ColumnEstimate.deviation`.

What the schema calls impossible is not used: no table is refused for rows that have it, and
intervals are of the table as it is.

*Counts and shares* are the projection of the estimate onto tables without negative counts whose
totals and margins agree: each column onto the simplex of N, then each pair onto the tables with its
columns' counts. Quantiles follow from the estimate before it is projected: what noise adds to empty
slices stays there and what it takes is cut, so the projection draws them to those of the bounds.
Intervals are cut to what is possible, and widened to the figure where it is outside, both of which
leave their coverage no lower. A mean or standard deviation that is impossible becomes the middle of
what is left of its interval.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import isotonic_regression

from discreet.tabular.marginals._figures import ColumnFigures, Figure, PairFigures
from discreet.tabular.marginals._programs import PARTS
from discreet.tabular.marginals._projection import on_simplex, with_margins
from discreet.tabular.marginals._result import Marginals
from discreet.tabular.marginals._tails import z_of
from discreet.tabular.tables import Column, Kind, to_steps

_GRID = 65
_SHARE_OF_MEAN = 0.1
"""Share of a standard deviation's error that is for the mean, of whose error it depends by the square alone."""
_SHARE_OF_SLICES = 0.1
"""Share of a quantile's error that is for the edges of slices together."""
_SHARE_OF_OWN_SLICE = 0.3
"""Share that is for its slice, where that has parts; the rest is for its part."""
_MOST_STEPS = 2**20
_TINY = 1e-300
_SUREST = 1 - 2.0**-40
"""Probabilities nearer to 1 count as this one: floats hold few beyond, and Laplace's tail none."""


class LeastSquares:
    """The estimate of all counts, with what its variance is made of; see the head of this file."""

    def __init__(self, released: Marginals) -> None:
        plan = released.plan
        self.released = released
        levels = plan.levels
        sizes = dict(
            zip((column.name for column in plan.schema.columns), levels.sizes, strict=True)
        )
        used = [table for table in plan.tables if len(table) < 3]
        if not any(used):
            raise ValueError(
                "only three-way tables were counted: a description needs those of columns or of pairs"
            )
        self.noise = {table: plan.drawn / plan.weights[plan.place(table)] for table in used}
        self.pairs = [table for table in used if len(table) == 2]
        weighed = [(released.table(*table), self.noise[table] ** -2) for table in used]
        precision = sum(weight / counts.size for counts, weight in weighed)
        self.total = float(
            sum(counts.sum() * weight / counts.size for counts, weight in weighed) / precision
        )
        self.variance = float(1 / precision)
        self.columns: dict[str, ColumnEstimate] = {}
        self.sums = sums_of(released)
        self.within = _within(released)
        for column in plan.schema.columns:
            size = sizes[column.name]
            precision = 0.0
            weighted = np.zeros(sizes[column.name])
            for table in used:
                if column.name in table:
                    counts = released.table(
                        column.name, *(name for name in table if name != column.name)
                    )
                    across = counts.reshape(size, -1)
                    weight = self.noise[table] ** -2 / across.shape[1]
                    precision = precision + weight
                    weighted = weighted + weight * across.sum(axis=1)
            if precision:
                counts = weighted / precision
                counts += (self.total - counts.sum()) / size
                edges = None if column.bounds is None else levels.edges(column)
                labels = tuple(levels.labels(column))
                sums = self.sums.get((column.name,))
                within = self.within.get((column.name,))
                self.columns[column.name] = ColumnEstimate(
                    column,
                    labels,
                    edges,
                    counts,
                    precision,
                    self.variance,
                    plan.laplace,
                    sums,
                    within=within,
                )

    def pair(
        self, one: str, other: str, total: float, z: float, rows: np.ndarray, columns: np.ndarray
    ) -> PairFigures:
        """A two-way table that agrees with the counts of its columns."""
        noisy = self.released.table(one, other)
        first = self.columns[one]
        second = self.columns[other]
        a, b = noisy.shape
        # Interaction, effects of rows and of columns, mean: four independent parts.
        centred = noisy - noisy.mean(axis=1, keepdims=True) - noisy.mean(axis=0) + noisy.mean()
        counts = centred + first.counts[:, None] / b + second.counts / a - self.total / (a * b)
        within = self.noise[(one, other)] ** 2 * (1 - 1 / a) * (1 - 1 / b)
        within += (1 - 1 / a) / (first.precision * b**2) + (1 - 1 / b) / (second.precision * a**2)
        variance = within + self.variance / (a * b) ** 2
        spread = z * math.sqrt(variance)
        value = with_margins(counts, rows, columns)
        share = fieller(counts, self.total, variance, self.variance / (a * b), self.variance, z)
        return PairFigures(
            interval(value, counts - spread, counts + spread, 0.0, math.inf),
            interval(value / total, *share, 0.0, 1.0),
        )

    def group(self, name: str, by: str, level: int) -> ColumnEstimate:
        """The counts of a column within one level of another; see the head of this file."""
        noisy = self.released.table(name, by)
        own = self.columns[name]
        other = self.columns[by]
        size, groups = noisy.shape
        interaction = noisy[:, level] - noisy.mean(axis=1)
        interaction -= interaction.mean()
        counts = (
            interaction + (own.counts - own.counts.mean()) / groups + other.counts[level] / size
        )
        table = next(table for table in self.pairs if {*table} == {name, by})
        variance = self.noise[table] ** 2 * (1 - 1 / groups) + 1 / (own.precision * groups**2)
        sums = self.sums.get((name, by))
        within = self.within.get((name, by))
        return dataclasses.replace(
            own,
            counts=counts,
            precision=1 / variance,
            variance=float(other.spread[0]),
            sums=None if sums is None else _Sums(sums.values[:, level], sums.variance),
            within=None if within is None else within._replace(values=within.values[..., level]),
        )


def persons_of(released: Marginals, by: tuple[str, ...], z: float) -> list[Figure]:
    """The number of persons in each category of a column, or of all (); none if they were not counted so.

    Of all it is two figures: the number of persons, and of those of whom rows were left out.
    """
    plan = released.plan
    if by not in plan.persons:
        return []
    counts = released.persons_of(*by)
    spreads = np.full(len(counts), z * plan.drawn / plan.person_weights[plan.persons.index(by)])
    if not by:
        counts = np.array([counts.sum(), counts[1]])
        spreads[0] *= math.sqrt(2)
    # Noise may leave more persons of whom rows were left out than persons.
    value = counts if by else np.minimum(counts, counts[0])
    figures = interval(value, counts - spreads, counts + spreads, 0.0, math.inf)
    return [Figure(*map(float, figure)) for figure in zip(*figures, strict=True)]


class _Sums(NamedTuple):
    """Sums of z and of 1 - z^2: estimates, for each category if there are any, and their variance."""

    values: Float[np.ndarray, "2 *category"]
    variance: float


def sums_of(released: Marginals) -> dict[tuple[str, ...], _Sums]:
    """The estimates of all sums that were released, and of each summed column as a whole."""
    plan = released.plan
    noisy = {own: released.sums_of(place) for place, own in enumerate(plan.sums)}
    variances = {
        own: (plan.drawn / weight) ** 2
        for own, weight in zip(plan.sums, plan.sum_weights, strict=True)
    }
    found = {}
    for column in plan.summed:
        each = [own for own in plan.sums if own[0] == column.name]
        precisions = np.array([1 / (variances[own] * noisy[own].shape[1]) for own in each])
        variance = 1 / precisions.sum()
        total = variance * sum(
            precision * noisy[own].sum(1) for own, precision in zip(each, precisions, strict=True)
        )
        for own in each:
            cells = noisy[own].shape[1]
            values = noisy[own] + ((total - noisy[own].sum(1)) / cells)[:, None]
            found[own] = _Sums(values, variances[own] * (1 - 1 / cells) + variance / cells**2)
        found[(column.name,)] = _Sums(total, variance)
    return found


class _Within(NamedTuple):
    """How parts of slices differ from the mean of their slice, in each category if there are any, and the noise's variance."""

    values: Float[np.ndarray, "level part *category"]
    variance: float
    edges: Float[np.ndarray, " part+1"]


def _within(released: Marginals) -> dict[tuple[str, ...], _Within]:
    """The estimates of all fine counts that were released, and of each divided column as a whole."""
    plan = released.plan
    found = {}
    for column in plan.divided:
        edges = plan.levels.part_edges(column, PARTS)
        weighted = np.zeros((len(plan.levels.labels(column)), PARTS))
        precision = 0.0
        for place, own in enumerate(plan.fine):
            if own[0] == column.name:
                counts = released.fine_of(place)
                values = counts - counts.mean(axis=1, keepdims=True)
                variance = (plan.drawn / plan.fine_weights[place]) ** 2
                found[own] = _Within(values, variance, edges)
                weight = 1 / (variance * values.shape[2])
                weighted = weighted + weight * values.sum(axis=2)
                precision += weight
        found[(column.name,)] = _Within(weighted / precision, 1 / precision, edges)
    return found


@dataclasses.dataclass(frozen=True)
class ColumnEstimate:
    """The estimate of one column's counts; `variance` is that of the number of records."""

    column: Column
    labels: tuple[str, ...]
    edges: Float[np.ndarray, " slice+1"] | None
    counts: Float[np.ndarray, " level"]
    precision: float
    variance: float
    laplace: bool
    sums: _Sums | None = None
    within: _Within | None = None
    gain: tuple[np.ndarray, np.ndarray] | None = None
    """Of counts that were moved by the sums: their covariance before with the sums, and the inverse of the sums' variance."""

    def covariance(self, a: np.ndarray, b: np.ndarray) -> Any:
        """The covariance of the figures a'c and b'c, along the last axis."""
        means = a.mean(axis=-1), b.mean(axis=-1)
        centred = (a - means[0][..., None]) * (b - means[1][..., None])
        found = centred.sum(axis=-1) / self.precision + means[0] * means[1] * self.variance
        if self.gain is None:
            return found
        return found - np.einsum("...i,ij,...j", a @ self.gain[0], self.gain[1], b @ self.gain[0])

    @property
    def spread(self) -> tuple[Any, Any, Any]:
        """Variances of the counts, their covariances with their sum, and its variance."""
        size = len(self.counts)
        own = (1 - 1 / size) / self.precision + self.variance / size**2
        with_sum = self.variance / size
        of_sum = self.variance
        if self.gain is None:
            return own, with_sum, of_sum
        before, inverse = self.gain
        sums = before.sum(axis=0)
        own = own - np.einsum("ki,ij,kj->k", before, inverse, before)
        return own, with_sum - before @ inverse @ sums, of_sum - sums @ inverse @ sums

    @property
    def moved(self) -> ColumnEstimate:
        """The counts with what the sums say of them, if each slice is one value."""
        if self.sums is None or not self.exact:
            return self
        known = self.scaled
        size = len(self.counts)
        means = known.mean(axis=-1)
        before = (
            (known - means[:, None]) / self.precision + means[:, None] * self.variance / size
        ).T
        inverse = np.linalg.inv(known @ before + self.sums.variance * np.eye(2))
        counts = self.counts + before @ inverse @ (self.sums.values - known @ self.counts)
        return dataclasses.replace(self, counts=counts, gain=(before, inverse))

    @functools.cached_property
    def present(self) -> Float[np.ndarray, " level"]:
        """One for each level but that of missing cells."""
        there = np.ones(len(self.counts))
        there[-1] -= self.column.may_be_missing
        return there

    @functools.cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and greatest value of each slice, 0 for missing cells."""
        assert self.edges is not None
        low, high = self._ends_of(self.edges)
        rest = np.zeros(len(self.counts) - len(low))
        return np.concatenate([low, rest]), np.concatenate([high, rest])

    def _ends_of(self, edges: Float[np.ndarray, " slice+1"]) -> tuple[np.ndarray, np.ndarray]:
        low = edges[:-1].copy()
        high = edges[1:] - (self.column.kind is not Kind.REAL)
        step = self.column.step
        bounds = self.column.limits
        if step is not None and (bounds[1] - bounds[0]) / step < _MOST_STEPS:
            values = to_steps(self.column, np.arange(bounds[0], bounds[1] + step, step))
            place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(low) - 1)
            middle = (low + high) / 2  # of slices without a value
            low = middle.copy()
            high = middle.copy()
            low[place[::-1]], high[place] = values[::-1], values
        return low, high

    @functools.cached_property
    def exact(self) -> bool:
        """True if each slice is one value."""
        return bool((self.ends[0] == self.ends[1]).all())

    @functools.cached_property
    def scaled(self) -> Float[np.ndarray, "2 level"]:
        """Values of z and 1 - z^2 of each level's value, if each slice is one; 0 for missing cells."""
        low, high = self.column.limits
        z = (2 * self.ends[0] - low - high) / (high - low) * self.present
        return np.stack([z, self.present - np.square(z)])

    def figures(
        self,
        total: float,
        level: float,
        quantiles: Sequence[float],
        counts: np.ndarray | None = None,
    ) -> ColumnFigures:
        """All figures of the column; `counts` as they agree with others, None: the nearest to the estimates."""
        z = z_of(level, laplace=self.laplace)
        found = self.moved
        own, with_sum, of_sum = found.spread
        spread = z * np.sqrt(own)
        counts = on_simplex(found.counts, total) if counts is None else counts
        share = fieller(found.counts, found.counts.sum(), own, with_sum, of_sum, z)
        return ColumnFigures(
            self.column,
            self.labels,
            interval(counts, found.counts - spread, found.counts + spread, 0.0, math.inf),
            interval(counts / max(1.0, total), *share, 0.0, 1.0),
            self.edges,
            **({} if self.edges is None else found.of_numbers(level, quantiles)),
        )

    def of_numbers(self, level: float, quantiles: Sequence[float]) -> dict[str, Any]:
        """Mean, standard deviation and quantiles."""
        z = z_of(level, laplace=self.laplace)
        (low, high) = self.column.limits
        present = self.counts * self.present
        b = self.present
        # no more values than the noise hides
        if present.sum() <= z * math.sqrt(self.covariance(b, b)):
            present = self.counts * b if (self.counts * b).sum() > 0 else b
        found: dict[str, Any] = {"quantiles": {}}
        each = {share: self.quantile(share, present, level) for share in quantiles}
        # Noise may leave a larger share the lesser value; in order, the same values are no farther
        # from the true ones.
        ordered = dict(zip(sorted(each), sorted(value for value, _ in each.values()), strict=True))
        for share, (_, ends) in each.items():
            found["quantiles"][share] = Figure(
                *map(float, interval(ordered[share], *ends, low, high))
            )
        if self.sums is None:
            return found
        (number, total, gap), covariance = self.moments
        half = (high - low) / 2
        middle = (high + low) / 2
        known = number > z * math.sqrt(covariance[0, 0])
        mean = float(np.clip(total / number, -1, 1)) if known else math.nan
        off = np.array([-mean, 1, 0]) / number
        # The square of a noisy mean is larger than that of the mean by its variance, on average.
        variance = 1 - gap / number - mean**2 + off @ covariance @ off
        unsure = np.array([1 + mean**2 - variance, -2 * mean, -1]) / number
        # Noise may leave a variance near or below 0: then a part of what it hides is as good a
        # guess.
        sd = (
            math.sqrt(min(1.0, max(variance, math.sqrt(unsure @ covariance @ unsure) / 4)))
            if known
            else math.nan
        )
        ends = self.mean(z)
        deviations = self.deviation(level)
        found["mean"] = _inside(
            middle + half * mean, (middle + half * ends[0], middle + half * ends[1]), low, high
        )
        found["sd"] = _inside(half * sd, (half * deviations[0], half * deviations[1]), 0.0, half)
        return found

    @functools.cached_property
    def moments(self) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, "3 3"]]:
        """The number of values and the sums of z and of 1 - z^2, with their covariance."""
        assert self.sums is not None
        if self.gain is not None:
            known = np.stack([self.present, *self.scaled])
            return known @ self.counts, self.covariance(known[:, None], known)
        number = self.present @ self.counts
        variance = self.covariance(self.present, self.present)
        return np.array([number, *self.sums.values]), np.diag(
            [variance, self.sums.variance, self.sums.variance]
        )

    def mean(self, z: float) -> tuple[float, float]:
        """Fieller's interval of the mean of z."""
        (number, total, _), covariance = self.moments
        low, high = fieller(total, number, covariance[1, 1], covariance[0, 1], covariance[0, 0], z)
        return float(low), float(high)

    def deviation(self, level: float) -> tuple[float, float]:
        """Interval of the standard deviation of z.

        At any m, V(m), the mean of (z - m)^2, is a ratio of jointly normal figures with Fieller's
        interval, and is the variance at m = mean. A small part of the error goes to the mean, and
        the rest to V: the union of V's intervals at all m of the mean's interval holds the
        variance. It is hardly wider than that at the mean, since V(m) is least there.
        """
        miss = 1 - level
        z = z_of(1 - _SHARE_OF_MEAN * miss, laplace=self.laplace)
        first, last = np.clip(self.mean(z), -1, 1)
        m = np.linspace(first, last, _GRID)
        known, covariance = self.moments
        weights = np.stack([1 + m**2, -2 * m, np.full_like(m, -1)], axis=-1)
        variances = np.einsum("mi,ij,mj->m", weights, covariance, weights)
        z = z_of(1 - (1 - _SHARE_OF_MEAN) * miss, laplace=self.laplace)
        low, high = fieller(
            weights @ known, known[0], variances, weights @ covariance[0], covariance[0, 0], z
        )
        low, high = _cut(low.min(), high.max(), 0.0, 1.0)
        return math.sqrt(low), math.sqrt(high)

    @property
    def _parts(self) -> _Within:
        """Parts of slices; without fine counts each slice is its one part."""
        assert self.edges is not None
        return self.within or _Within(np.zeros((len(self.counts), 1)), 0.0, self.edges)

    def z_scores(self, share: float) -> Float[np.ndarray, " part+1"]:
        """By how many of its standard deviations the number of values below each part, and below the end, is above `share`."""
        values, variance, edges = self._parts
        number = values.shape[1]
        slices = (len(edges) - 1) // number
        # of slices, and of a slice's parts
        signs = (np.tri(slices, len(self.counts), -1) - share) * self.present
        own = np.eye(slices, len(self.counts))
        before = np.arange(number) / number
        figures = (signs @ self.counts)[:, None] + before * self.counts[:slices, None]
        figures += np.cumsum(values[:slices], axis=1) - values[:slices]
        variances = self.covariance(signs, signs)[:, None] + number * variance * before * (
            1 - before
        )
        variances += 2 * before * self.covariance(signs, own)[:, None]
        variances += before**2 * self.covariance(own, own)[:, None]
        scores = np.append(figures / np.sqrt(variances), math.inf)
        scores[0] = -math.inf
        return scores

    def _z(self, part: float, level: float) -> float:
        """Standard deviations of the noise that a part of the error of `level` leaves."""
        return z_of(min(1 - part * (1 - level), _SUREST), laplace=self.laplace)

    def _possible(
        self, scores: Float[np.ndarray, " edge"], part: float, level: float
    ) -> Bool[np.ndarray, " part"]:
        """Where a quantile may be, by the signs at both edges and a part of the error."""
        z = self._z(part, level)
        return (scores[:-1] <= z) & (scores[1:] >= -z)

    def quantile(
        self, share: float, present: np.ndarray, level: float
    ) -> tuple[float, tuple[float, float]]:
        """A quantile and its interval.

        It is in part b if less than `share` of the values are below b, and at least so many below b
        + 1. Both are signs of figures of the counts, each tested at one side. So it is with its
        slice, whose counts say more where noise hides parts. Noise leaves some of many empty parts
        possible, far from all values: so a small share of the error is for all edges of slices
        together, and what is beyond one that is rejected is, too.
        """
        values, _, edges = self._parts
        low, high = self._ends_of(edges)
        number = values.shape[1]
        slices = (len(edges) - 1) // number
        scores = self.z_scores(share)
        own = _SHARE_OF_OWN_SLICE * (number > 1)
        possible = self._possible(scores, 1 - own - _SHARE_OF_SLICES, level)
        at_slices = scores[::number]
        if own:
            possible &= np.repeat(self._possible(at_slices, own, level), number)
        sure = self._z(_SHARE_OF_SLICES / slices, level)
        possible[: np.flatnonzero(at_slices < -sure)[-1] * number] = False
        possible[np.flatnonzero(at_slices > sure)[0] * number :] = False
        there = np.flatnonzero(possible)
        sums = np.cumsum((present[:slices, None] / number + values[:slices]).ravel())
        sums = isotonic_regression(np.clip(sums, 0, sums[-1])).x
        at = int(np.searchsorted(sums[:-1], share * sums[-1]))
        passed = sums[at - 1] if at else 0.0
        part = (share * sums[-1] - passed) / max(sums[at] - passed, _TINY)
        value = low[at] + min(part, 1.0) * (high[at] - low[at])
        value = float(value if self.column.kind is Kind.REAL else round(value))
        if not there.size:
            return value, (float(low[at]), float(high[at]))
        return value, (float(low[there[0]]), float(high[there[-1]]))


def fieller(
    a: Any, b: Any, var_a: Any, cov: Any, var_b: Any, z: float
) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the interval of a ratio of means with noise; infinite where the denominator is not told apart from 0.

    All t with (a - t b)^2 <= z^2 (var_a - 2 t cov + t^2 var_b).
    """
    lead = b**2 - z**2 * var_b
    middle = a * b - z**2 * cov
    last = a**2 - z**2 * var_a
    known = (b > 0) & (lead > 0)
    root = np.sqrt(np.maximum(middle**2 - lead * last, 0))
    by = np.where(known, lead, 1.0)
    return np.where(known, (middle - root) / by, -math.inf), np.where(
        known, (middle + root) / by, math.inf
    )


def _cut(low: Any, high: Any, least: float, most: float) -> tuple[Any, Any]:
    """The part of an interval that is possible."""
    # An estimate outside leaves little of an interval inside, or none: what is short would pass for
    # certainty, so half stays.
    half = (high - low) / 2
    low = np.minimum(low, most - half)
    high = np.maximum(high, least + half)
    return np.clip(low, least, most), np.clip(high, least, most)


def interval(value: Any, low: Any, high: Any, least: float, most: float) -> Figure:
    """Cut to what is possible, and widened to the estimate."""
    low, high = _cut(low, high, least, most)
    value = np.clip(value, least, most)
    return Figure(value, np.minimum(low, value), np.maximum(high, value))


def _inside(value: float, ends: tuple[float, float], least: float, most: float) -> Figure:
    """Cut to what is possible; an estimate outside of that is its middle."""
    low, high = (float(end) for end in _cut(*ends, least, most))
    return Figure(float(value) if low < value < high else (low + high) / 2, low, high)
