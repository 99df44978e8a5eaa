"""The figures that a check compares: shares and means of the target, in all and within levels of another column.

Each is a ratio of two sums that are linear in the noisy counts and sums of a release. So what is
compared is linear, too: a / b against t is a - t b, for the ratio t that replicates have on average.

*Of the target alone*: the share of each level (levels of numbers are merged, as are rare
categories), and of numbers the mean and the mean square of the distance from it, by the released
sums where there are some. *Within another column*: the mean, or the shares, in each category, and
in five parts of a column of numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from discreet.tabular.marginals import Marginals, MarginalsPlan
from discreet.tabular.tables import Column, Kind

_PARTS = 5
"""Parts of a column of numbers, each with as many records as the levels allow."""
_MOST_SHARES = 8
"""Levels of the target whose shares are figures; the others are merged."""
_RARE = 0.002
"""Share of the records of levels of the target that are left out of means: noise in many empty cells would hide the others."""


class Tables(NamedTuple):
    """Noisy counts of the target's levels by those of each other column, and sums: of a release, or of a replicate.

    Attributes:
        alone: Counts of the target's levels; zeros where it was not counted alone.
        pairs: For each other column that was counted with the target, counts by its levels.
        sums: For each released sum of the target, in all or by a column's levels, of z and of 1 -
            z^2.
    """

    alone: Float[np.ndarray, " level"]
    pairs: dict[str, Float[np.ndarray, "level other"]]
    sums: dict[tuple[str, ...], Float[np.ndarray, "2 other"]]


@dataclasses.dataclass(frozen=True)
class Counted:
    """What a plan counts of a target. Public.

    Attributes:
        plan: The plan of the counts.
        target: The target.
    """

    plan: MarginalsPlan
    target: Column

    @functools.cached_property
    def has_alone(self) -> bool:
        """True if the target was counted alone."""
        return (self.target.name,) in self.plan.tables

    @functools.cached_property
    def others(self) -> list[str]:
        """Columns that were counted with the target."""
        pairs = [
            table for table in self.plan.tables if len(table) == 2 and self.target.name in table
        ]
        return [name for table in pairs for name in table if name != self.target.name]

    @functools.cached_property
    def sums(self) -> list[tuple[str, ...]]:
        """Released sums of the target."""
        return [own for own in self.plan.sums if own[0] == self.target.name]

    @functools.cached_property
    def size(self) -> int:
        """Number of the target's levels."""
        return self.size_of(self.target.name)

    @functools.cached_property
    def middles(self) -> Float[np.ndarray, " level"] | None:
        """The middle of each level of the target, mapped from its bounds to [-1, 1]; NaN of missing cells. None: categories."""
        if self.target.bounds is None:
            return None
        edges = self.plan.levels.edges(self.target)
        low, high = self.target.limits
        middles = (edges[:-1] + edges[1:] - (self.target.kind is not Kind.REAL)) / 2
        z = (2 * middles - low - high) / (high - low)
        return np.append(z, np.full(self.size - len(z), np.nan))

    def size_of(self, name: str) -> int:
        """Number of a column's levels."""
        return self.plan.levels.sizes[self.place(name)]

    def place(self, name: str) -> int:
        """Position of a column."""
        return [column.name for column in self.plan.schema.columns].index(name)

    def released(self, found: Marginals) -> Tables:
        """The tables of a release."""
        own = self.target.name
        alone = found.table(own) if self.has_alone else np.zeros(self.size)
        pairs = {name: found.table(own, name) for name in self.others}
        return Tables(alone, pairs, {x: found.sums_of(self.plan.sums.index(x)) for x in self.sums})

    def replicate(
        self,
        levels: Int[np.ndarray, "record column"],
        z: Float[np.ndarray, " record"] | None,
        times: float,
        rng: np.random.Generator,
    ) -> Tables:
        """Count records as a release does, with its noise.

        Args:
            levels: Of each record.
            z: Value of the target of each, mapped from its bounds to [-1, 1]; NaN where missing.
                None: it has no bounds.
            times: By which counts are multiplied.
            rng: Draws the noise.
        """
        level = levels[:, self.place(self.target.name)]

        def noisy(exact: np.ndarray, stddev: float) -> np.ndarray:
            scaled = rng.laplace if self.plan.laplace else rng.normal
            size = math.sqrt(0.5) if self.plan.laplace else 1.0
            return times * exact + stddev * scaled(0.0, size, exact.shape)

        alone = np.zeros(self.size)
        if self.has_alone:
            alone = noisy(
                np.bincount(level, minlength=self.size), self.plan.stddev((self.target.name,))
            )
        pairs = {}
        for name in self.others:
            across = self.size_of(name)
            cells = np.bincount(
                level * across + levels[:, self.place(name)], minlength=self.size * across
            )
            pairs[name] = noisy(
                cells.reshape(self.size, across), self.plan.stddev((self.target.name, name))
            )
        sums = {}
        for own in self.sums:
            assert z is not None
            known = np.isfinite(z)
            value = z[known]
            by = levels[known, self.place(own[1])] if own[1:] else np.zeros(len(value), int)
            across = self.size_of(own[1]) if own[1:] else 1
            exact = [
                np.bincount(by, weights=part, minlength=across) for part in (value, 1 - value**2)
            ]
            weight = self.plan.sum_weights[self.plan.sums.index(own)]
            sums[own] = noisy(np.stack(exact), self.plan.noise / weight)
        return Tables(alone, pairs, sums)


def mean_of(tables: list[Tables]) -> Tables:
    """The mean of tables."""
    alone = np.mean([x.alone for x in tables], axis=0)
    pairs = {name: np.mean([x.pairs[name] for x in tables], axis=0) for name in tables[0].pairs}
    return Tables(
        alone,
        pairs,
        {own: np.mean([x.sums[own] for x in tables], axis=0) for own in tables[0].sums},
    )


class Ratio(NamedTuple):
    """A figure: its name, what it is of, and for each table its numerator and denominator."""

    name: str
    of: str  # "" for all records, or the other column and its part
    kind: str  # "share", "mean" or "spread"
    over: Float[np.ndarray, "table 2"]


class Figures:
    """The figures of tables, with parts that follow from what replicates have on average, and so from releases.

    Args:
        counted: What was counted.
        typical: The mean of the replicates' tables.
    """

    def __init__(self, counted: Counted, typical: Tables) -> None:
        self._counted = counted
        target = counted.target
        self._levels = counted.plan.levels
        self._labels = self._levels.labels(target)
        self._present = np.ones(counted.size)
        self._present[-1] -= target.may_be_missing
        self._shares = self._estimate([typical])[0]
        self._shares = np.maximum(self._shares, 0) / max(self._shares.sum(), 1.0)
        self._z = None if counted.middles is None else np.nan_to_num(counted.middles)
        self._groups = {
            name: list(self._groups_of(name, typical.pairs[name])) for name in counted.others
        }
        self._kept = self._present * ((self._shares >= _RARE) | (self._z is None))
        self._middle = 0.0
        if self._z is not None:
            self._middle = float(
                (self._shares * self._present)
                @ self._z
                / max((self._shares * self._present).sum(), 1e-9)
            )

    def _estimate(self, tables: list[Tables]) -> Float[np.ndarray, "table level"]:
        """Counts of the target's levels from all its tables, by precision."""
        counted = self._counted
        precisions = []
        found = []
        if counted.has_alone:
            precisions.append(counted.plan.stddev((counted.target.name,)) ** -2)
            found.append([x.alone for x in tables])
        for name in counted.others:
            precisions.append(
                counted.plan.stddev((counted.target.name, name)) ** -2 / counted.size_of(name)
            )
            found.append([x.pairs[name].sum(axis=1) for x in tables])
        return np.average(np.array(found), axis=0, weights=precisions)

    def of(self, tables: list[Tables]) -> list[Ratio]:
        """All figures."""
        return [
            *self._alone(tables),
            *(x for name in self._counted.others for x in self._within(tables, name)),
        ]

    def shares(self, tables: list[Tables]) -> Float[np.ndarray, "table level"]:
        """Shares of the target's levels."""
        counts = self._estimate(tables)
        return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)

    def _alone(self, tables: list[Tables]) -> Iterator[Ratio]:
        counts = self._estimate(tables)
        there = counts @ self._present
        for label, merged in self._merged():
            yield Ratio(
                f"share of {label}", "", "share", np.stack([counts @ merged, there], axis=1)
            )
        if self._z is None:
            return
        sums = self._moments(tables)
        if sums is None:
            sums = counts @ (self._present * self._z), counts @ (self._present * (1 - self._z**2))
        total, gap = sums
        yield Ratio("mean", "", "mean", np.stack([total, there], axis=1))
        # The sum of the squared distances from a fixed number.
        squares = (1 + self._middle**2) * there - gap - 2 * self._middle * total
        yield Ratio("standard deviation", "", "spread", np.stack([squares, there], axis=1))

    def _moments(self, tables: list[Tables]) -> tuple[np.ndarray, np.ndarray] | None:
        """Sums of z and of 1 - z^2 of all records, from all that were released, by precision."""
        plan = self._counted.plan
        if not self._counted.sums:
            return None
        weights = [plan.sum_weights[plan.sums.index(own)] for own in self._counted.sums]
        cells = [tables[0].sums[own].shape[1] for own in self._counted.sums]
        sums = [[x.sums[own].sum(axis=1) for x in tables] for own in self._counted.sums]
        found = np.average(np.array(sums), axis=0, weights=np.square(weights) / cells)
        return found[:, 0], found[:, 1]

    def _merged(self) -> list[tuple[str, np.ndarray]]:
        """Masks of the target's levels, with their names."""
        present = np.flatnonzero(self._present)
        # By square roots, so that tails have parts of their own.
        parts = _parts(np.sqrt(self._shares[present]), _MOST_SHARES)
        if self._z is None:
            # Of two categories the second; of many the most frequent.
            order = present[np.argsort(-self._shares[present], kind="stable")][:_MOST_SHARES]
            places = [[1]] if len(present) == 2 else [[place] for place in sorted(order)]
        else:
            places = [list(present[part]) for part in parts]
        return [
            (
                _joined([self._labels[x] for x in group]),
                np.isin(np.arange(len(self._labels)), group),
            )
            for group in places
        ]

    def _groups_of(
        self, name: str, pair: Float[np.ndarray, "level other"]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """The parts of another column, by their names: categories, parts of numbers, missing cells."""
        column = self._levels.schema.columns[self._counted.place(name)]
        labels = self._levels.labels(column)
        numbers = len(labels) - column.may_be_missing if column.bounds is not None else 0
        across = np.maximum(pair.sum(axis=0), 0)
        groups = _parts(across[:numbers], _PARTS) + [
            np.array([place]) for place in range(numbers, len(labels))
        ]
        for group in groups:
            yield _joined([labels[x] for x in group]), group

    def _within(self, tables: list[Tables], name: str) -> Iterator[Ratio]:
        """The mean of the target, or the shares of its levels, in parts of another column."""
        pairs = np.array([x.pairs[name] for x in tables])
        sums = self._counted.sums
        for label, group in self._groups[name]:
            part = f"{name} = {label}"
            counts = pairs[:, :, group].sum(axis=2)
            if self._z is None:
                for label, merged in self._merged():
                    yield Ratio(
                        f"share of {label}",
                        part,
                        "share",
                        np.stack([counts @ merged, counts @ self._present], axis=1),
                    )
            elif (self._counted.target.name, name) in sums:
                found = np.array(
                    [x.sums[(self._counted.target.name, name)][0, group].sum() for x in tables]
                )
                yield Ratio("mean", part, "mean", np.stack([found, counts @ self._present], axis=1))
            else:
                values = counts @ (self._kept * self._z)
                yield Ratio("mean", part, "mean", np.stack([values, counts @ self._kept], axis=1))


def _parts(shares: np.ndarray, most: int) -> list[np.ndarray]:
    """Neighbouring levels together, in parts with about the same sum each."""
    if len(shares) <= most:
        return [np.array([place]) for place in range(len(shares))]
    below = np.cumsum(shares) - shares / 2
    part = np.minimum((below / max(shares.sum(), 1e-9) * most).astype(int), most - 1)
    return [np.flatnonzero(part == place) for place in np.unique(part)]


def _joined(labels: list[str]) -> str:
    """The name of neighbouring levels."""
    if len(labels) == 1:
        return labels[0]
    return f"{labels[0].split(' to ')[0]} to {labels[-1].split(' to ')[-1]}"


def in_units(column: Column, kind: str, value: float) -> float:
    """A figure in the unit of its column."""
    if kind == "share":
        return value
    low, high = column.limits
    half = (high - low) / 2
    return (
        half * math.sqrt(max(value, 0.0)) if kind == "spread" else (low + high) / 2 + half * value
    )
