"""Private means and standard deviations of columns, to standardise records: one release, with a plan of its own."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet._jax import one_release
from discreet._validate import integer, unmasked
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.mechanisms import clip_records, sum_records
from discreet.privacy.query import GRID_OF_PRODUCTS, Gaussian, PlanOfRecords, Query, Wording
from discreet.privacy.released import Released
from discreet.privacy.report import Statement, Unit, counted, public_size

# The least standard deviation, as a share of a column's half range.
_LEAST_SPREAD = 1e-3
# so much longer is the clipping norm than the longest row: clipping rounds none
_ROOM = 1.0 + 2.0**-14


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standardisation(PlanOfRecords):
    """The privacy plan of one joint release of the mean and the mean square of some columns. Public.

    Attributes:
        num_columns: Number of columns, d.
        num_records: Public number of records, which the sums are divided by.
        noise_multiplier: Noise standard deviation divided by sqrt(d) (1 + 2^-14), the L2 bound on
            one record's contribution.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.

    Raises:
        ValueError: A number out of range.

    >>> Standardisation(num_columns=4, num_records=1_000, noise_multiplier=30.0, delta=1e-6).event()
    GaussianDpEvent(noise_multiplier=30.0)
    """

    num_columns: int

    def __post_init__(self) -> None:
        integer("num_columns", self.num_columns)
        super().__post_init__()

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        num_columns: int,
        num_records: int,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    ) -> Standardisation:
        """Find the least noise with which the release alone costs (epsilon, delta).

        Args:
            epsilon: Epsilon of this release alone, a small part of the total:
                `PrivacyPlan.calibrate(shared_with=[...])` gives the fit the rest.
            delta: Delta of this release, and best that of the fit.
            num_columns: As above.
            num_records: As above.
            relation: As above.

        Raises:
            ValueError: An argument is out of range.
        """
        shape = {"num_columns": num_columns, "num_records": num_records, "relation": relation}
        return cls._calibrated(epsilon, delta, **shape)

    @property
    def sensitivity(self) -> float:
        """The L2 bound on one record's contribution: sqrt(d) (1 + 2^-14). A replaced one moves the sums by twice that."""
        return _ROOM * math.sqrt(self.num_columns)

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on each of the 2 d sums."""
        return self.noise_multiplier * self.sensitivity

    def wording(self, unit: Unit) -> Wording:
        """What the statement of the release says, for a unit of privacy."""
        noun = unit.noun
        columns = counted(self.num_columns, "column")
        return Wording(
            method="standardisation",
            mechanism=(
                f"Each cell was moved into its column's public bounds and mapped to z in [-1, 1]. The sums over the {noun}s of z "
                f"and of 1 - z², to which one {noun} adds a Euclidean norm of at most {self.sensitivity:.6g}, got Gaussian noise "
                f"of standard deviation {self.stddev:.6g} each."
            ),
            plan={
                "num_records": self.num_records,
                "num_columns": self.num_columns,
                "contribution_bound": self.sensitivity,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviation": self.stddev,
            },
            released=[f"Noisy means and mean squares of {columns}, and what is computed from them"],
            public=[
                public_size(noun, self.num_records, self.relation),
                "The bounds of the columns, and the noise",
            ],
            about=f"Means and spreads of {columns}, {self.num_records:,} {noun}s.",
        )


@dataclasses.dataclass(frozen=True)
class Scaling(Released, what="private standardisation"):
    """Noisy means and standard deviations of columns, from one release; `scaling(x)` standardises with them.

    Attributes:
        centre: Noisy means, in the columns' units.
        scale: Noisy standard deviations, likewise, never below what the noise lets one see.
        plan: The plan of the release.
        statement: The privacy statement of the release. A fit to the standardised columns has its
            own: the costs add up.
    """

    centre: Float[np.ndarray, " column"]
    scale: Float[np.ndarray, " column"]
    plan: Standardisation
    statement: Statement

    def __call__(self, x: npt.ArrayLike) -> Float[np.ndarray, "record column"]:
        """Each record standardised by itself, with released numbers: (x - centre) / scale, as float32."""
        return ((np.asarray(x) - self.centre) / self.scale).astype(np.float32)


def contributions(
    x: Float[Array, "record column"], low: Float[Array, " column"], high: Float[Array, " column"]
) -> dict[str, Float[Array, "record column"]]:
    """The contribution of each record to the release: its cells z, mapped from their bounds to [-1, 1], and 1 - z^2.

    Guarantee: the L2 norm of a record's slice is at most sqrt(columns), since z^2 + (1 - z^2)^2 <=
    1: the second moments cost nothing beyond the first. Two records lie at most 2 sqrt(columns)
    apart. Both are attained where |z| = 1. A record is computed alike whatever the number of
    records: a difference, a product and a rounding to the grid, which no compiler contracts, and
    from there on, in 64 bits, nothing is rounded.

    Args:
        x: Records. Cells outside the bounds are moved to the nearer one.
        low: Public lower bounds.
        high: Public upper bounds.
    """
    steps = jnp.clip(
        jnp.round((x - low) * (2 * GRID_OF_PRODUCTS / (high - low))), 0, 2 * GRID_OF_PRODUCTS
    )
    z = (steps - GRID_OF_PRODUCTS) / GRID_OF_PRODUCTS
    return {"cells": z, "gaps": 1 - jnp.square(z)}


def sums_of(
    x: Float[Array, "record column"],
    low: Float[Array, " column"],
    high: Float[Array, " column"],
    mask: Bool[Array, " record"],
) -> dict[str, Float[Array, " column"]]:
    """The exact sums of `contributions`. Rows that the mask drops, and records with a NaN, add nothing."""
    x, low, high = (value.astype(float) for value in (x, low, high))
    rows = clip_records(contributions(x, low, high), _ROOM * math.sqrt(x.shape[1]))
    return sum_records(rows, mask)


@one_release
def private_standardisation(
    rng_key: PRNGKeyArray,
    x: npt.ArrayLike,
    *,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    plan: Standardisation,
    ledger: Ledger | None = None,
    person: str | None = None,
    non_private_seed: bool = False,
) -> Scaling:
    """Release means and spreads of columns.

    Guarantee: what is returned is `plan.event()` under the plan's relation, but for its `slack`.
    The program is proved to be that before it runs. Sums are exact, since cells are rounded to a
    grid. A fit to the standardised columns is another release: what both cost is in the ledger, or
    in `accounting.composed`.

    A spread that the noise hides is taken for the least that one could see: about twice the noise's
    standard deviation in the variance, and a thousandth of half the range at least. So the result
    is finite and positive whatever the noise.

    Args:
        rng_key: `discreet.random.key()`. The fit may have the same: their noises are unrelated.
        x: Records by columns, in their own units.
        low: Public lower bound of each column, or one for all.
        high: Public upper bound, likewise.
        plan: For so many columns.
        ledger: The table's budget, debited before the release, as the fit is before its own.
            Without it nobody keeps count of what is released here, however often.
        person: Name of the column that identifies persons, if x has one row of each person; the
            ledger's entry then says so.
        non_private_seed: Allow a key made from a seed, with which nothing is private. The statement
            of a fit does not know.

    Returns:
        Centre and scale of each column; post-processing of the release.

    Raises:
        ValueError, TypeError: Wrong input, before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: The program could not be proved.

    Reference:
        Dwork and Roth, The algorithmic foundations of differential privacy, 2014, A.1.

    >>> import numpy as np, discreet as dp
    >>> ages = np.random.default_rng(0).normal(45, 12, (10_000, 1))
    >>> terms = {"delta": 1e-6, "num_records": 10_000}
    >>> first = dp.standardise.Standardisation.calibrate(epsilon=0.2, num_columns=1, **terms)
    >>> plan = dp.PrivacyPlan.calibrate(
    ...     epsilon=1.0, shared_with=[first], num_steps=500, sampling=dp.PoissonSampling(0.05), **terms)
    >>> scaling = dp.standardise.private_standardisation(dp.random.key(), ages, low=0, high=100, plan=first)
    >>> bool(40 < scaling.centre[0] < 50 and 6 < scaling.scale[0] < 18)
    True
    >>> bool(0.999 < dp.accounting.composed(first, plan).epsilon(1e-6) <= 1)
    True
    """
    key = random.secret_key(rng_key, "private_standardisation", non_private_seed)
    cells, lows, highs = _checked(x, low, high, plan)
    act = Act.on(plan, key, random.Purpose.STANDARDISATION, ledger=ledger, unit=Unit(person))

    query = Query(
        sums_of,
        Gaussian(plan.stddev, plan.stddev / plan.sensitivity),
        plan.relation,
        records=(1, 4),
    )
    # Read where they lie, also in a memory map: the program is done before this returns.
    rows = jax.device_put(cells, may_alias=True)
    # The program's fingerprint follows the number of records.
    sums = query.answer(act, rows, lows, highs, np.ones(len(cells), bool), named=False)
    centre, spread = _moments(sums, plan.num_records, plan.stddev)
    half = (highs.astype(np.float64) - lows) / 2
    return Scaling(lows + half * (1 + centre), half * spread, plan, act.statement)


def _moments(
    sums: dict[str, np.ndarray], num_records: int, stddev: float
) -> tuple[Float[np.ndarray, " column"], Float[np.ndarray, " column"]]:
    """Means and standard deviations on the scale of [-1, 1], from noisy sums. Post-processing."""
    noise = stddev / num_records
    mean = np.clip(sums["cells"] / num_records, -1, 1)
    # A noisy mean's square is too large by the noise's variance on average.
    variance = 1 - sums["gaps"] / num_records - np.square(mean) + noise**2
    visible = np.maximum(2 * noise * np.sqrt(1 + 4 * np.square(mean)), _LEAST_SPREAD**2)
    return mean, np.sqrt(np.clip(variance, np.minimum(visible, 1), 1))


def _checked(
    x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, plan: Standardisation
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records and bounds as float32; bounds that are no bounds are refused."""
    cells = unmasked("x", x)
    if (
        cells.ndim != 2
        or cells.shape[1] != plan.num_columns
        or not len(cells)
        or cells.dtype.kind not in "iuf"
    ):
        raise ValueError(
            f"private_standardisation: x has shape {cells.shape} and dtype {cells.dtype}; pass numbers, records by "
            f"{plan.num_columns} columns, as in the plan."
        )
    plan.check_size(len(cells))
    try:
        lows, highs = (
            np.broadcast_to(np.asarray(b, np.float32), cells.shape[1:]).copy() for b in (low, high)
        )
    except ValueError:
        raise ValueError(
            f"private_standardisation: the bounds do not fit {cells.shape[1]} columns; pass one number, or one for each."
        ) from None
    if not (np.isfinite(lows).all() and np.isfinite(highs).all() and (lows < highs).all()):
        raise ValueError(
            "private_standardisation: each lower bound must be finite and below its upper one, also in 32-bit arithmetic. They "
            "are public: take them from the questionnaire, never from the data."
        )
    with np.errstate(over="ignore"):
        return cells.astype(np.float32, copy=False), lows, highs
