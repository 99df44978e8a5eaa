"""The settings that a rehearsal tries, and the noise that each needs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

from discreet.plan import PrivacyPlan
from discreet.sampling import PoissonSampling

BATCHES = (500, 2_000)
STEPS = (300, 1_000)
LEARNING_RATES = (0.02, 0.05, 0.1)
SHARES_OF_NORM = (2.0, 1.0, 0.3)
_FEW_RECORDS = 1_000
_RATES_OF_FEW = (0.2, 1.0)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a plan and an optimizer leave open, once epsilon is fixed.

    Attributes:
        num_steps: Number of releases.
        rate: Probability that a record enters a batch.
        clipping_norm: L2 bound on one record's gradient.
        learning_rate: Step size of Adam.
    """

    num_steps: int
    rate: float
    clipping_norm: float
    learning_rate: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """Which settings a rehearsal tries: all combinations.

    Attributes:
        steps: Numbers of steps.
        rates: Sampling rates, in (0, 1]. None: those of batches of about 500 and 2,000 records; 0.2 and 1 for small tables.
        clipping_norms: Bounds on a record's gradient. None: the 0.9 quantile of gradients of invented records at the start,
            twice and 0.3 times that.
        learning_rates: Step sizes of Adam.

    Raises:
        ValueError: A list that is empty, or a number out of range.
    """

    steps: tuple[int, ...] = STEPS
    rates: tuple[float, ...] | None = None
    clipping_norms: tuple[float, ...] | None = None
    learning_rates: tuple[float, ...] = LEARNING_RATES

    def __post_init__(self) -> None:
        _check("steps", self.steps, most=10_000_000, whole=True)
        _check("learning_rates", self.learning_rates, most=math.inf)
        _check("rates", (1.0,) if self.rates is None else self.rates, most=1.0)
        _check("clipping_norms", (1.0,) if self.clipping_norms is None else self.clipping_norms, most=1e30)

    def rates_for(self, num_records: int) -> tuple[float, ...]:
        """The sampling rates for a table of so many records.

        >>> Grid().rates_for(100_000), Grid().rates_for(500)
        ((0.005, 0.02), (0.2, 1.0))
        """
        if self.rates is not None:
            return self.rates
        if num_records <= _FEW_RECORDS:
            return _RATES_OF_FEW
        return tuple(sorted({float(f"{min(1.0, size / num_records):.3g}") for size in BATCHES}))

    def norms_from(self, typical: float) -> tuple[float, ...]:
        """The clipping norms, for gradients that are mostly shorter than `typical` at the start."""
        if self.clipping_norms is not None:
            return self.clipping_norms
        return tuple(float(f"{share * typical:.2g}") for share in SHARES_OF_NORM)

    def settings(self, num_records: int, typical: float) -> list[Setting]:
        """All combinations."""
        axes = self.steps, self.rates_for(num_records), self.norms_from(typical), self.learning_rates
        return [Setting(*values) for values in itertools.product(*axes)]


@functools.lru_cache(maxsize=1024)
def noise_for(epsilon: float, delta: float, num_records: int, num_steps: int, rate: float) -> float:
    """The least noise multiplier that keeps to epsilon; exact, and remembered, since settings share it."""
    plan = PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=delta,
        num_records=num_records,
        num_steps=num_steps,
        sampling=PoissonSampling(rate=rate),
        clipping_norm=1.0,
    )
    return plan.noise_multiplier


def plan_for(setting: Setting, noise_multiplier: float, delta: float, num_records: int) -> PrivacyPlan:
    """The plan of a setting."""
    return PrivacyPlan(
        sampling=PoissonSampling(rate=setting.rate),
        clipping_norm=setting.clipping_norm,
        noise_multiplier=noise_multiplier,
        num_steps=setting.num_steps,
        num_records=num_records,
        target_delta=delta,
    )


def _check(name: str, values: tuple[float, ...], *, most: float, whole: bool = False) -> None:
    if not values:
        raise ValueError(f"Grid: {name} is empty: give at least one value to try")
    for value in values:
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not usable or not 0 < value <= most or (whole and value != int(value)):
            kind = "a whole number" if whole else "a finite number"
            limit = "" if math.isinf(most) else f" and at most {most:,g}"
            raise ValueError(f"Grid: {name} holds {value!r}: give {kind} above 0{limit}")
