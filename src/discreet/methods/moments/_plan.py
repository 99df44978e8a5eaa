"""What a linear regression from noisy moments costs: the releases, their kinds and their shares of the budget."""

from __future__ import annotations

import dataclasses
import math

from discreet._dp_accounting import ComposedDpEvent, DpEvent
from discreet._validate import integer
from discreet.methods.newton import NUM_BINS
from discreet.privacy.accounting import Relation
from discreet.privacy.mechanisms import GAUSSIAN
from discreet.privacy.query import PlanOfRecords, Wording
from discreet.privacy.report import Unit, counted, public_size

METHOD = "noisy moments"
KINDS = "products", "products", "lengths", *["gradient"] * 6
SHARES = 0.2, 0.23, 0.07, *[0.5 / 6] * 6
"""Kinds of the releases, and the share of the squared inverse noise of each."""
PRODUCTS = KINDS.index("lengths")
WEIGHTS = 0.01
"""The share of the means of survey weights, where there are any; the others have theirs of the rest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentsPlan(PlanOfRecords):
    """The privacy plan for the noisy moments of a linear regression. Public.

    Attributes:
        num_features: Number of features.
        num_records: Public number of records.
        noise_multiplier: Noise standard deviation over the bound 1 of one record, of the releases
            together: release i has this divided by the square root of its share.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
        weighted: True if records have survey weights.
        drops: True if a mask leaves records out; their number is then released with noise.
    """

    num_features: int
    weighted: bool = False
    drops: bool = False

    def __post_init__(self) -> None:
        integer("num_features", self.num_features)
        super().__post_init__()

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float | None = None,
        num_features: int,
        num_records: int,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        weighted: bool = False,
        drops: bool = False,
    ) -> MomentsPlan:
        """Find the least noise with which the releases together cost (epsilon, delta).

        Args:
            epsilon: Target, above 0.
            delta: Target. None: `accounting.suggest`'s for so many records.
            num_features: As above.
            num_records: As above.
            relation: As above.
            weighted: As above.
            drops: As above.

        Raises:
            ValueError: An argument is out of range.
        """
        shape = {"num_features": num_features, "num_records": num_records, "relation": relation}
        return cls._calibrated(epsilon, delta, weighted=weighted, drops=drops, **shape)

    @property
    def measures_weights(self) -> bool:
        """True if means of weights are released; a record that is left out has the weight 0."""
        return self.weighted or self.drops

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the releases; the means of survey weights, which are measured first, are the last."""
        return (*KINDS, *["weights"] * self.measures_weights)

    @property
    def stddevs(self) -> tuple[float, ...]:
        """Standard deviation of the noise on each sum, of each release."""
        shares = (*(self._rest * share for share in SHARES), *[WEIGHTS] * self.measures_weights)
        return tuple(self.noise_multiplier / math.sqrt(share) for share in shares)

    @property
    def noise_to_exceed(self) -> float:
        """The noise of the last products, which each parameter's share of the records must exceed to be seen.

        The sums of products of P - 1 features and a constant have eigenvalues of N / P on average
        at most.
        """
        return self.stddevs[1]

    @property
    def of_gradients(self) -> float:
        """Standard deviation of the noise of all gradients together, over the bound at which they are clipped."""
        return self.noise_multiplier / math.sqrt(self._rest * sum(SHARES[PRODUCTS + 1 :]))

    @property
    def _rest(self) -> float:
        return 1 - WEIGHTS * self.measures_weights

    @property
    def num_releases(self) -> int:
        """Number of releases."""
        return len(self.kinds)

    def event(self) -> DpEvent:
        """The event of the releases, under either relation."""
        return ComposedDpEvent([GAUSSIAN.event(stddev) for stddev in self.stddevs])

    def wording(self, unit: Unit) -> Wording:
        """What the statement of a fit by this plan says, for a unit of privacy."""
        noun = unit.noun
        stddevs = self.stddevs
        noises = ", ".join(f"{stddev:.6g}" for stddev in stddevs)
        values = (self.num_features + 2) ** 2
        gradients = len(KINDS) - PRODUCTS - 1
        weights = ", 3 sums of weights" * self.measures_weights
        weighted = self.weighted
        return Wording(
            method=METHOD,
            mechanism=(
                f"The products of all pairs of a {noun}'s numbers (features, a constant and the target) were given a weight such "
                f"that their Euclidean norm is at most 1, and summed over the {noun}s, {PRODUCTS} times. Then the {noun}s were "
                "counted by the length of the gradient of the squared error, and these gradients, clipped to length 1, were "
                f"summed {gradients} times. "
                + f"Products and gradients of a {noun} count as often as its survey weight says, over the largest that one may "
                "have. "
                * weighted
                + f"The number of {noun}s that count and the sums of their weights and of the squares were released, too. "
                * self.measures_weights
                + "Between the releases the numbers were transformed by what the earlier ones had shown. "
                f"Gaussian noise of standard deviation {noises} was added to every sum."
            ),
            plan={
                "num_records": self.num_records,
                "num_features": self.num_features,
                **({"weighted": True} if weighted else {}),
                **({"drops": True} if self.drops else {}),
                "contribution_bound": 1.0,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviations": list(stddevs),
            },
            released=[
                f"{PRODUCTS} × {values:,} noisy sums of products, {NUM_BINS} counts{weights} and "
                f"{gradients} × {self.num_features + 1:,} sums of gradients, and what is computed from them"
            ],
            public=[
                public_size(noun, self.num_records, self.relation),
                "The plan: the noise and the number of sums",
            ],
            about=f"A linear regression on {counted(self.num_features, 'feature')}, {self.num_records:,} {noun}s; its "
            "coefficients were released.",
        )
