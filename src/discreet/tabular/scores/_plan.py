"""What scores on held-out records cost: a query of integer sums, each row of which is bounded."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Array, Bool, Float

from discreet._validate import integer, positive, real
from discreet.privacy.accounting import Relation
from discreet.privacy.mechanisms import clip_records, sum_records
from discreet.privacy.query import Gaussian, GaussianPlan, Query, Wording
from discreet.privacy.report import Unit

ONE = 2**20
"""The integer that represents a bound in the sums."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SumsPlan(GaussianPlan):
    """The plan of one release of integer sums over held-out records; `width` is their number.

    Attributes:
        max_rows: Rows of a record: 1, or those that are used of each person at most.
    """

    max_rows: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("max_rows", self.max_rows, most=2**20)

    @property
    @abc.abstractmethod
    def longest_row(self) -> float:
        """The sums of one row are at most so long, each in units of its bound."""

    @property
    def sensitivity(self) -> float:
        """C: the sums of one record are at most so long."""
        # The last factor has room for rounding, and keeps clipping from touching a record.
        return self.max_rows * self.longest_row * (1 + 2.0**-16)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each sum, in units of its bound: for counts, in rows."""
        # A little more, so that no rounding makes it less than the event says.
        return self.noise_multiplier * self.sensitivity * (1 + 1e-12)

    @property
    def query(self) -> Query:
        """The release: of the sums of all other records, the last records' contributions and the mask, in units of 1 / ONE."""
        noise = Gaussian(self.noise * ONE, self.noise_multiplier)
        return Query(BoundedSums(self.sensitivity * ONE), noise, self.relation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScorePlan(SumsPlan):
    """The privacy plan for scores on held-out records. Public; made by `calibrate`.

    Attributes:
        classes: Number of classes; 0 for a target of numbers.
        noise_multiplier: Standard deviation of the noise on the sums, divided by `sensitivity`.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
        max_rows: Rows of a record: 1, or those that are used of each person at most.
        bins: Bins of predicted probability, an even number. Their edges are sin^2(pi k / (2 bins)):
            narrow near 0 and 1.
        max_loss: Bound on the loss of a row, -log of the probability of its class, in nats; larger
            losses count as that.
        bounds: Bounds of a numeric target and its predictions; values outside are clipped.
        max_error: Bound on the error of a row; larger errors count as that. None: the width of the
            bounds.

    Raises:
        ValueError: A number out of range.
    """

    classes: int
    bins: int = 20
    max_loss: float = 5.0
    bounds: tuple[float, float] | None = None
    max_error: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes:
            integer("classes", self.classes, 2, hint="0 is for a target of numbers.")
            if integer("bins", self.bins, 2, 2**16) % 2:
                raise ValueError(
                    f"bins is {self.bins}: give an even number, so that 1/2 is the edge of a bin."
                )
            positive("max_loss", self.max_loss, hint="5 nats is a probability of 0.007.")
            return
        if self.bounds is None:
            raise ValueError(
                "target_bounds are missing: give target_bounds=(low, high), what the target may be as known without the data."
            )
        low, high = self.bounds
        if not -math.inf < low < high < math.inf:
            raise ValueError(
                f"target_bounds are ({low}, {high}); they must be finite, low below high."
            )
        largest = max(abs(low), abs(high))
        if largest > 1e150 or high - low < 2.0**-40 * largest:
            raise ValueError(
                f"target_bounds are ({low}, {high}), too large, or too near each other, for 64-bit arithmetic. Give numbers of "
                "at most 1e150, whose distance is at least 2^-40 of the larger: subtract a public number, or divide by one."
            )
        if self.max_error is not None:
            real(
                "max_error",
                self.max_error,
                0.0,
                high - low,
                hint="It is a bound on the error of a row.",
            )
            positive("max_error", self.max_error)

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        classes: int = 2,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        **options: Any,
    ) -> ScorePlan:
        """Find the least noise with which the scores cost (epsilon, delta).

        Args:
            epsilon: Target, above 0.
            delta: Target, well below one over the number of records.
            classes: As above, as are the next and `options`.
            relation: The neighbouring relation.
            options: Further attributes.

        Raises:
            ValueError: An argument is out of range.
        """
        return cls._calibrated(epsilon, delta, classes=classes, relation=relation, **options)

    @property
    def width(self) -> int:
        """Number of sums."""
        return 2 * self.bins + 1 if self.classes else 5

    @property
    def longest_row(self) -> float:
        """As in `SumsPlan`: of a one in a bin and a loss, or of five numbers of at most 1."""
        return math.sqrt(2 if self.classes else 5)

    @property
    def edges(self) -> Float[np.ndarray, " bin+1"]:
        """Edges of the bins of predicted probability."""
        edges = np.sin(np.pi * np.arange(self.bins + 1) / (2 * self.bins)) ** 2
        edges[self.bins // 2] = 0.5
        return edges

    def wording(self, unit: Unit) -> Wording:
        """What the statement of one release by this plan says, for a unit of privacy."""
        if self.classes:
            rows = (
                f"The rows in each of {self.bins} bins of predicted probability were counted by class, and their losses added, "
                f"each at most {self.max_loss:g} nats"
            )
        else:
            low, high = cast(tuple[float, float], self.bounds)
            rows = (
                f"Targets and predictions were moved into [{low:g}, {high:g}]. Errors, their squares, targets and their squares "
                f"were added, errors of at most {self.largest_error:g}"
            )
        return Wording(
            method="private scores",
            mechanism=(
                f"{rows}. In units of these bounds, one {unit.noun}'s sums have a Euclidean norm of at most "
                f"{self.sensitivity:.6g}. Gaussian noise of standard deviation {self.noise:.6g} was added to each of the "
                f"{self.width} sums."
            ),
            plan={
                "classes": self.classes,
                "sums": self.width,
                "contribution_bound": self.sensitivity,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviation": self.noise,
                "max_rows": self.max_rows,
                **(
                    {"max_loss": self.max_loss}
                    if self.classes
                    else {"max_error": self.largest_error}
                ),
            },
            released=[
                f"{self.width} noisy sums over the held-out {unit.noun}s, and what is computed from them"
            ],
            public=["The plan: the bins, the bounds and the noise", "The fit that was scored"],
            not_covered=[
                "Predictions that depend in their last bits on the other rows of a batch, or on their place in it: each such row "
                "near a border of a bin adds a move of its own.",
                "People who are also in the table that was fitted: what fit and scores cost adds up for them, and the scores are "
                "too good.",
            ],
            notes=[
                "Each row's prediction is taken to depend on that row and the released fit alone. Two rows were predicted again "
                "by themselves, but this is not proved."
            ],
        )

    @property
    def largest_error(self) -> float:
        low, high = cast(tuple[float, float], self.bounds)
        return high - low if self.max_error is None else self.max_error


class BoundedSums(NamedTuple):
    """The sums over all records, of whom each adds at most `bound` in L2."""

    bound: float

    def __call__(
        self,
        others: Float[Array, " sum"],
        records: Float[Array, "record sum"],
        mask: Bool[Array, " record"],
    ) -> Float[Array, " sum"]:
        return others + sum_records(clip_records(records, self.bound), mask)
