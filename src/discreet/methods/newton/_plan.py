"""The privacy plan of a private Newton fit: how the budget is shared among its releases. Public numbers alone."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import NamedTuple, Self

from discreet._dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from discreet._validate import choice, integer
from discreet.methods.newton._counts import NUM_BINS
from discreet.privacy.accounting import Relation
from discreet.privacy.mechanisms import GAUSSIAN
from discreet.privacy.query import PlanOfRecords, Wording
from discreet.privacy.report import Unit, counted, public_size

METHOD = "private Newton"
BINARY = "binary"
COUNTS = "counts"
CLASSES = "classes"
NUM_GRADIENTS = 15
NUM_PILOT = 11
"""Of a long table so many of them, the first ones, are of a pilot sample; the posterior is of the others."""
SQUARES = 0.05
DIRECTIONS = 0.20
HISTOGRAM = 0.03
SIZES = 0.01
RESIDUALS = 0.01
CURVATURES = 0.08, 0.10
PILOT = 0.12
"""Shares of the squared inverse noise; the gradients have the rest, each the same. Those of a pilot sample have `PILOT`."""
COINS = 256
"""The share of a pilot sample is a multiple of one in so many."""
_LONG = 2**24  # numbers in features: fewer take less than a second
_LARGE = 2**17  # records of a pilot sample
_CLEAR = 120.0
"""A pilot sample has so many records times the noise multiplier and latents ** 1.5: the noise of the curvature's spectrum is
then within a third of its mean."""
_QUIET = 1000.0
"""With so many records, times the square of the noise multiplier and latents, there is about a third of sampling's noise."""

PRIOR = {BINARY: (2.5, 5.0), COUNTS: (1.0, 3.0), CLASSES: (2.5, 5.0)}
"""Standard deviations of a weight, for a column of standard deviation 1, and of the intercept at the features' mean."""


class PlannedRelease(NamedTuple):
    """Releases by one program, with noise of one size."""

    kind: str  # of program
    rows: str  # what it sums
    noise: float  # standard deviation, in units of the bound on one record
    count: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedBudget(PlanOfRecords):
    """The plan of Gaussian releases that share one budget. Public.

    A release with the share s has noise of the standard deviation noise_multiplier / sqrt(s), in
    units of the bound on one record, so that all are together one release with noise_multiplier.

    Attributes:
        num_records: Public number of records.
        noise_multiplier: Noise standard deviation over the bound of one record, of all releases
            together.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
    """

    def noise(self, share: float) -> float:
        """Standard deviation of the noise of a release with a share, in units of the bound on one record."""
        return self.noise_multiplier / share**0.5

    @property
    def noise_to_exceed(self) -> float:
        """The noise of the gradients together, which each parameter's share of the records must exceed to be seen."""
        return self.noise(self.gradient_share)

    @property
    @abstractmethod
    def gradient_share(self) -> float:
        """The share of the gradients together, of the last stage if there are several."""

    @property
    @abstractmethod
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases."""

    @property
    def num_releases(self) -> int:
        """Their number."""
        return sum(release.count for release in self.releases)

    def event(self) -> DpEvent:
        """The event of the releases, under either relation."""
        return ComposedDpEvent(
            [
                SelfComposedDpEvent(GAUSSIAN.event(release.noise), release.count)
                for release in self.releases
            ]
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewtonPlan(SharedBudget):
    """The privacy plan of a private Newton fit of a regression. Public.

    Attributes:
        family: "binary" for a target of 0 and 1, "counts" for one of whole numbers, "classes" for
            one of 0 to num_classes - 1.
        num_features: Number of features, without the constant.
        max_rows: Public; the most rows of a record. Above 1 a record is a person, whose rows need
            not be independent.
        num_classes: Public number of classes; 2 in the other families.
        weighted: True if rows have survey weights.
        drops: True if the mask leaves records of one row out; their number is then released with
            noise.
    """

    family: str
    num_features: int
    max_rows: int = 1
    num_classes: int = 2
    weighted: bool = False
    drops: bool = False

    def __post_init__(self) -> None:
        choice("family", self.family, (BINARY, COUNTS, CLASSES))
        integer("num_features", self.num_features)
        integer("max_rows", self.max_rows)
        integer("num_classes", self.num_classes, least=2)
        if self.family != CLASSES and self.num_classes > 2:
            raise ValueError(f'num_classes is {self.num_classes}, which is for family="classes".')
        super().__post_init__()

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float | None = None,
        family: str,
        num_features: int,
        num_records: int,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        max_rows: int = 1,
        num_classes: int = 2,
        weighted: bool = False,
        drops: bool = False,
    ) -> Self:
        """Find the least noise with which all releases together cost (epsilon, delta).

        Args:
            epsilon: Target, above 0.
            delta: Target. None: `accounting.suggest`'s for so many records.
            family: As above.
            num_features: As above.
            num_records: As above.
            relation: As above.
            max_rows: As above.
            num_classes: As above.
            weighted: As above.
            drops: As above.

        Raises:
            ValueError: An argument is out of range.

        >>> plan = NewtonPlan.calibrate(epsilon=1.0, delta=1e-6, family="binary", num_features=5, num_records=10_000)
        >>> round(plan.epsilon(), 3)
        1.0
        """
        return cls._calibrated(
            epsilon,
            delta,
            family=family,
            num_features=num_features,
            num_records=num_records,
            relation=relation,
            max_rows=max_rows,
            num_classes=num_classes,
            weighted=weighted,
            drops=drops,
        )

    @property
    def outputs(self) -> int:
        """Numbers of a predictor: those of classes sum to zero."""
        return self.num_classes - 1

    @property
    def measures_spread(self) -> bool:
        """True if the variance of the records' gradients is released: the model's holds for one 0/1 target each, not beyond."""
        return self.family == COUNTS or self.max_rows > 1 or self.weighted

    @property
    def sizes(self) -> str:
        """Kind of blocks that tell of numbers of rows and survey weights; empty if all are 1."""
        return "weights" if self.weighted else "sizes" if self.max_rows > 1 or self.drops else ""

    @property
    def pilot(self) -> float:
        """Share of the records that are the pilot sample of a long table; 1.0: all are.

        The map, the curvature and the first gradients bring the fit near the optimum. A sample does
        that as well, in a part of the time, if neither the noise nor the draw hides the curvature,
        and the last gradients, which have a part of the budget, have little noise. Counts, persons
        and survey weights, whose noise is larger, have none.

        Each record is in it by a coin of its own, so it adds to these releases what it adds to
        others, or nothing: epsilon is the same, and is not made smaller by that draw.
        """
        latents = (self.num_features + 1) * self.outputs
        noise = self.noise_multiplier
        share = max(_CLEAR * noise * latents**1.5, _LARGE) / self.num_records
        is_long = self.num_records * (self.num_features + 1) >= _LONG and not self.measures_spread
        is_clear = share <= 1 / 4 and self.num_records >= _QUIET * noise**2 * latents
        return math.ceil(COINS * share) / COINS if is_long and is_clear else 1.0

    @property
    def num_pilot(self) -> int:
        """Number of the gradients of the pilot sample."""
        return NUM_PILOT * (self.pilot < 1)

    @property
    def gradient_share(self) -> float:
        """The share of all gradients together that the posterior is of."""
        others = (
            HISTOGRAM * (self.family == COUNTS)
            + SIZES * bool(self.sizes)
            + RESIDUALS * self.measures_spread
            + PILOT * (self.pilot < 1)
        )
        return 1 - SQUARES - DIRECTIONS - sum(CURVATURES) - others

    @property
    def noise_to_exceed(self) -> float:
        """As there; a curvature is 1/4 at most, so N records show N / 4P of each of P coordinates."""
        return 4 * super().noise_to_exceed

    @property
    def histogram(self) -> tuple[str, str]:
        """Kind of program and of blocks of the counts' histogram."""
        return ("total", "bins") if self.sizes else ("histogram", "")

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases."""
        gradient = "total", f"residual of {self.family}"
        last = NUM_GRADIENTS - self.num_pilot
        found = [
            PlannedRelease("total", "squares", self.noise(SQUARES)),
            PlannedRelease("products", "directions", self.noise(DIRECTIONS)),
            *(
                PlannedRelease("products", f"curvature of {self.family}", self.noise(share))
                for share in CURVATURES
            ),
            PlannedRelease(*gradient, self.noise(self.gradient_share / last), last),
        ]
        if self.num_pilot:
            noise = self.noise(PILOT / self.num_pilot)
            found.append(PlannedRelease(*gradient, noise, self.num_pilot))
        if self.family == COUNTS:
            found.append(PlannedRelease(*self.histogram, self.noise(HISTOGRAM)))
        if self.sizes:
            found.append(PlannedRelease("total", self.sizes, self.noise(SIZES)))
        if self.measures_spread:
            found.append(
                PlannedRelease("products", f"residual of {self.family}", self.noise(RESIDUALS))
            )
        return tuple(found)

    def wording(self, unit: Unit) -> Wording:
        """What the statement of a fit by this plan says, for a unit of privacy."""
        noun = unit.noun
        size = self.num_features + 1
        counts = self.family == COUNTS
        persons = self.max_rows > 1
        spread = self.measures_spread
        what = "A Poisson" if counts else "A logistic" if self.family == BINARY else "A multinomial"
        latents = size * self.outputs
        pilot = ""
        if self.pilot < 1:
            pilot = (
                f" The first two, both products with the curvature and {self.num_pilot} gradients are of a sample, in which each "
                f"{noun} was with probability {self.pilot:.4g}; that nobody knows who was in it is not counted."
            )
        weight, intercept = PRIOR[self.family]
        weighted = self.weighted
        sized = bool(self.sizes)
        numbers = (
            size + size**2 + (2 + spread) * latents**2 + NUM_GRADIENTS * latents + NUM_BINS * counts
        )
        numbers += 4 if weighted else 2 * sized
        fitted = f"{what} regression on {counted(self.num_features, 'feature')}, {self.num_records:,} {noun}s"
        others = (
            "of products of gradients, " * spread
            + "of counts in bins, " * counts
            + "of numbers of rows, " * sized
            + "of survey weights, " * weighted
        )
        return Wording(
            method=METHOD,
            mechanism=(
                f"Sums over the {noun}s were released one after another: of squared features, of products of features, twice of "
                f"products weighted by the curvature of the model, {others}and {NUM_GRADIENTS} gradients.{pilot} What one "
                f"{noun} adds "
                f"to each{', with all rows,' * persons} has a Euclidean norm of at most 1, since rows far from the others "
                f"have a small weight{', and counts far from their mean are cut' * counts}. Gaussian noise of standard deviation "
                f"{self.noise_multiplier:.6g}, divided by the square root of the release's share of the budget, was added to "
                "each."
            ),
            plan={
                "family": self.family,
                "num_records": self.num_records,
                "num_features": self.num_features,
                **({"max_rows": self.max_rows} if persons else {}),
                **({"num_classes": self.num_classes} if self.family == CLASSES else {}),
                **({"weighted": True} if weighted else {}),
                **({"drops": True} if self.drops else {}),
                **({"pilot_sample": self.pilot} if pilot else {}),
                "contribution_bound": 1.0,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviations": [release.noise for release in self.releases],
            },
            released=[f"{numbers:,} noisy numbers, and what is computed from them"],
            public=[
                public_size(noun, self.num_records, self.relation),
                "The plan: the family, the noise and its shares",
                f"The prior: a weight is Normal(0, ({weight:g} / s)²), where s is the feature's standard deviation (1 for a 0/1 "
                "level; where the noise hides it, a small one), and the intercept, at the features' mean, Normal(0, "
                f"{intercept:g}²)",
            ],
            about=f"{fitted}; its coefficients were released.",
        )
