"""The privacy plan of a private Newton fit of a NumPyro model: stages, and their shares of the budget. Public numbers alone."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Self

from discreet.methods.newton._lengths import TAIL, TOGETHER
from discreet.methods.newton._model import MOST_CURVED, NUM_BINS
from discreet.methods.newton._plan import PlannedRelease, SharedBudget
from discreet.privacy.accounting import Relation
from discreet.privacy.query import Wording
from discreet.privacy.report import Unit, counted, public_size

METHOD = "private Newton of a model"


class Stage(NamedTuple):
    """One stage: a map, a bound, the curvature, and gradients. All are shares of the whole budget."""

    directions: float
    lengths: float
    moments: float
    curvature: float
    gradients: tuple[float, ...]


def _stage(
    share: float,
    directions: float,
    lengths: float,
    moments: float,
    count: int,
    curvature: float = 0.0,
) -> Stage:
    # The later half of the gradients, near the estimate, has twice the share. Each noise takes a
    # proof of its own.
    growing = [1.0] * (count // 2) + [2.0] * (count - count // 2)
    rest = share * (1 - directions - lengths - moments - curvature)
    gradients = tuple(rest * part / sum(growing) for part in growing)
    return Stage(share * directions, share * lengths, share * moments, share * curvature, gradients)


STAGES = (
    _stage(0.06, 0.16, 0.03, 0.21, 10),
    _stage(0.10, 0.16, 0.03, 0.21, 10),
    _stage(0.18, 0.16, 0.03, 0.21, 10),
    _stage(0.66, 0.0, 0.05, 0.10, 20, curvature=0.10),  # with the map of the one before
)
NUM_GRADIENTS = sum(len(stage.gradients) for stage in STAGES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPlan(SharedBudget):
    """The privacy plan of `DPNewton`, for any model. Public.

    All releases are Gaussian: a release with the share s of the budget has noise of the standard
    deviation noise_multiplier / sqrt(s), in units of the bound on one record, so that they are
    together one release with noise_multiplier.

    Attributes:
        num_records: Public number of records.
        noise_multiplier: Noise standard deviation over the bound of one record, of all releases
            together.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
    """

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float | None = None,
        num_records: int,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    ) -> Self:
        """Find the least noise with which all releases together cost (epsilon, delta).

        Args:
            epsilon: Target, above 0.
            delta: Target. None: `accounting.suggest`'s for so many records.
            num_records: As above.
            relation: As above.

        Raises:
            ValueError: An argument is out of range.

        >>> plan = ModelPlan.calibrate(epsilon=1.0, delta=1e-6, num_records=10_000)
        >>> round(plan.epsilon(), 3)
        1.0
        """
        return cls._calibrated(epsilon, delta, num_records=num_records, relation=relation)

    @property
    def gradient_share(self) -> float:
        """The share of the last stage's gradients together."""
        return sum(STAGES[-1].gradients)

    @property
    def hidden(self) -> float:
        """Number of records whose long gradients the noise may hide, at the end."""
        return TOGETHER * self.noise(STAGES[-1].lengths) * TAIL**0.5

    @property
    def share_noise(self) -> float:
        """Standard deviation of the noise of a share of the records, by the last histogram."""
        return self.noise(STAGES[-1].lengths) / self.num_records

    @property
    def rest_noise(self) -> float:
        """That of the share of all records outside of one bin."""
        return self.share_noise * NUM_BINS**0.5

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """All releases, in their order."""
        found = []
        for stage in STAGES:
            shares = {
                kind: getattr(stage, kind)
                for kind in ("directions", "lengths", "moments", "curvature")
            }
            found += [
                PlannedRelease(kind, kind, self.noise(share))
                for kind, share in shares.items()
                if share
            ]
            found += [
                PlannedRelease("gradients", "gradients", self.noise(share))
                for share in stage.gradients
            ]
        return tuple(found)

    def wording(
        self,
        unit: Unit,
        *,
        num_touched: int,
        num_latents: int,
        fitted: str,
        weighted: bool = False,
    ) -> Wording:
        """What the statement of a fit by this plan says.

        Args:
            unit: The unit of privacy.
            num_touched: Coordinates of the latents that records touch.
            num_latents: Coordinates of all latents.
            fitted: The model, in a word.
            weighted: True if records have survey weights.
        """
        noun = unit.noun
        derivatives = "their derivatives" if num_touched <= MOST_CURVED else "such products again"
        matrices = sum(1 + bool(stage.directions) + bool(stage.curvature) for stage in STAGES)
        numbers = NUM_GRADIENTS * num_touched + matrices * num_touched**2
        return Wording(
            method=METHOD,
            mechanism=(
                f"Sums over the {noun}s were released one after another, in {len(STAGES)} stages: of products of the directions "
                f"of gradients, of counts of their lengths, of products of clipped gradients, of {derivatives}, and "
                f"{NUM_GRADIENTS} times of clipped gradients. What one {noun} adds to each has a Euclidean norm of at most 1. "
                f"Gaussian noise of standard deviation {self.noise_multiplier:.6g}, divided by the square root of the release's "
                "share of the budget, was added to each."
            ),
            plan={
                "num_records": self.num_records,
                "num_latents": num_latents,
                "contribution_bound": 1.0,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviations": [release.noise for release in self.releases],
            },
            released=[
                f"{numbers:,} noisy numbers, noisy counts of lengths, and what is computed from them"
            ],
            public=[
                public_size(noun, self.num_records, self.relation),
                "The model, its prior and where the fit starts; the plan: the noise and its shares",
            ],
            about=(
                f"{fitted} with {counted(num_latents, 'latent')}, {self.num_records:,} {noun}s"
                f"{' with survey weights' * weighted}; draws of its posterior were released."
            ),
        )
