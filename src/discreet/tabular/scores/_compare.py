"""The comparison of several fits on held-out records: one Gaussian release of sums of differences of their log densities.

Let l be the log densities of one record's target under K fits, less their mean over the fits, times
sqrt(2) / B for a public bound B, and u the same, cut to the length 1: of two fits this clips their
difference to [-B, B]. A record adds 1 / 2, whether it was cut (1 / 2 or 0), u, and the products u
u' / 2, of which those of different fits are stored once, times sqrt(2). Whatever the number of
fits, that is a vector of norm at most sqrt(1/4 + 1/4 + 1 + 1/4). So differences cost less noise
than scores of each fit, and more fits add none. The products tell how much differences vary over
records: the sampling error.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from discreet._jax import one_release
from discreet._validate import (
    LEVEL,
    finite_or_none,
    integer,
    notebook_html,
    probability,
    real,
    unmasked,
)
from discreet.methods.newton import DPNewtonResult
from discreet.methods.predict import log_density_of
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.query import Wording
from discreet.privacy.released import Released
from discreet.privacy.report import RECORD, Statement, Unit, headline, listed
from discreet.tabular.scores._metrics import EXCESS, Estimate
from discreet.tabular.scores._plan import ONE, SumsPlan
from discreet.tabular.scores._terms import in_batches, noisy_sums, rows_of_persons

_MOST_FITS = 20
_WORST = -1e9
"""The log density that stands for one that is no number, or infinite."""
_SMALL = 0.25
"""Mean of the squared differences from the fits' mean, in nats, up to which stacking weights follow from two moments."""
_MOST_CLIPPED = 0.05
"""Share of the rows that were clipped, up to which their moments are those of the differences."""
_REDRAWS = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonPlan(SumsPlan):
    """The privacy plan for the comparison of fits on held-out records. Public; made by `calibrate`.

    Attributes:
        num_fits: Number of fits, 2 to 20.
        max_difference: B, the bound on a record's difference of two log densities, in nats, 1e-6 to
            1e6; larger ones count as that. Of more fits the differences from their mean are
            shortened together.
        noise_multiplier: Standard deviation of the noise on the sums, divided by `sensitivity`.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
        max_rows: Rows of a record: 1, or those that are used of each person at most.

    Raises:
        ValueError: A number out of range.
    """

    num_fits: int
    max_difference: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        integer(
            "num_fits", self.num_fits, 2, _MOST_FITS, hint="Compare a few fits, each with a name."
        )
        # Within these, no square of a difference overflows.
        real(
            "max_difference",
            self.max_difference,
            1e-6,
            1e6,
            hint="1 nat is a density 2.7 times as large.",
        )

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        num_fits: int,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        **options: Any,
    ) -> ComparisonPlan:
        """Find the least noise with which the comparison costs (epsilon, delta).

        Args:
            epsilon: Target, above 0.
            delta: Target, well below one over the number of records.
            num_fits: As above, as are the next and `options`.
            relation: The neighbouring relation.
            options: Further attributes.

        Raises:
            ValueError: An argument is out of range.
        """
        return cls._calibrated(epsilon, delta, num_fits=num_fits, relation=relation, **options)

    @property
    def width(self) -> int:
        """Number of sums."""
        return 2 + self.num_fits + self.num_fits * (self.num_fits + 1) // 2

    @property
    def longest_row(self) -> float:
        """As in `SumsPlan`: of records, those that were cut, differences and products."""
        return math.sqrt(0.25 + 0.25 + 1 + 0.25)

    def wording(self, unit: Unit) -> Wording:
        """What the statement of one release by this plan says, for a unit of privacy."""
        return Wording(
            method="private comparison of fits",
            mechanism=(
                f"The log densities of each held-out row under {self.num_fits} fits, less their mean, were added, and so were "
                "their products; rows were counted, and those whose differences were shortened. Differences of two fits count as "
                f"at most {self.max_difference:g} nats. One {unit.noun}'s sums have a Euclidean norm of at most "
                f"{self.sensitivity:.6g}. Gaussian noise of standard deviation {self.noise:.6g} was added to each of the "
                f"{self.width} sums."
            ),
            plan={
                "fits": self.num_fits,
                "sums": self.width,
                "contribution_bound": self.sensitivity,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviation": self.noise,
                "max_rows": self.max_rows,
                "max_difference": self.max_difference,
            },
            released=[
                f"{self.width} noisy sums over the held-out {unit.noun}s, and what is computed from them"
            ],
            public=["The plan: the bound and the noise", "The fits that were compared"],
            not_covered=[
                "Log densities that depend in their last bits on the other rows of a batch, or on their place in it.",
                "People who are also in the tables that were fitted: what the fits and the comparison cost adds up for them, and "
                "the comparison prefers fits with too many latents.",
            ],
            notes=[
                "Each row's log density is taken to depend on that row and the released fit alone. Two rows were evaluated again "
                "by themselves, but this is not proved."
            ],
        )


def difference_terms(
    plan: ComparisonPlan, densities: Float[np.ndarray, "row fit"]
) -> Int[np.ndarray, "row sum"]:
    """The contribution of each row, in units of 1 / ONE; see the head of this file. What is no number is the worst."""
    known = np.nan_to_num(densities, nan=_WORST, neginf=_WORST, posinf=-_WORST)
    known = np.clip(known, _WORST, -_WORST)
    apart = (known - known.mean(axis=1, keepdims=True)) * (math.sqrt(2) / plan.max_difference)
    length = np.linalg.norm(apart, axis=1, keepdims=True)
    apart = apart / np.maximum(length, 1.0)
    one, other = np.triu_indices(plan.num_fits)
    products = apart[:, one] * apart[:, other] * np.where(one == other, 1.0, math.sqrt(2))
    terms = np.concatenate(
        [np.full_like(length, 0.5), 0.5 * (length > 1), apart, products / 2], axis=1
    )
    return np.rint(terms * ONE).astype(np.int64)


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(Released, what="private comparison of fits"):
    """A private comparison of fits: a release. Whatever is computed from it costs nothing more. Made by `compare`.

    Attributes:
        names: Names of the fits.
        plan: The plan of the comparison.
        sums: The noisy sums.
        statement: The privacy statement.
        level: Level of the intervals.
    """

    names: tuple[str, ...]
    plan: ComparisonPlan
    sums: Float[np.ndarray, " sum"]
    statement: Statement
    level: float = LEVEL

    @property
    def num_rows(self) -> float:
        """Number of held-out rows, with noise, and 1 at least."""
        return max(2 * float(self.sums[0]), 1.0)

    @property
    def clipped(self) -> float:
        """Share of the rows whose differences were clipped, with noise."""
        return float(np.clip(2 * self.sums[1] / self.num_rows, 0.0, 1.0))

    @property
    def _totals(self) -> Float[np.ndarray, " fit"]:
        """Sums of the differences from the fits' mean, in nats."""
        return self.sums[2 : 2 + len(self.names)] * self.plan.max_difference / math.sqrt(2)

    @property
    def _products(self) -> Float[np.ndarray, "fit fit"]:
        """Sums of their products."""
        one, other = np.triu_indices(len(self.names))
        found = np.zeros((len(self.names), len(self.names)))
        found[one, other] = self.sums[2 + len(self.names) :] * np.where(
            one == other, 2.0, math.sqrt(2)
        )
        return (found + np.triu(found, 1).T) * self.plan.max_difference**2 / 2

    def difference(self, better: str, than: str) -> Estimate:
        """By how much the expected log density of the held-out rows is larger under one fit than under another one.

        Args:
            better: Name of the first fit.
            than: Name of the other one.

        Returns:
            The sum over the rows, in nats: `interval` is for these rows, `population_interval` for
                as many rows of the
            population. Both are of clipped differences.
        """
        one, other = (self._place(name) for name in (better, than))
        z = NormalDist().inv_cdf((1 + self.level) / 2)
        noise = EXCESS * self.plan.noise * self.plan.max_difference
        totals = self._totals
        value = float(totals[one] - totals[other])
        products = self._products
        squares = float(products[one, one] + products[other, other] - 2 * products[one, other])
        # The squares may be larger than they seem by their noise; the mean nearer to 0, and the
        # rows more, by theirs.
        unsure = 2 * noise * self.plan.max_difference
        least = max(abs(value) - z * noise, 0.0) ** 2 / (
            self.num_rows + 2 * z * EXCESS * self.plan.noise
        )
        spread = max(squares - least, 0.0) + unsure
        sampling = z * math.sqrt(self.plan.max_rows * spread)
        return Estimate(value, z * noise, sampling, (-math.inf, math.inf), self.level)

    def _place(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"There is no fit {name!r}: choose among {', '.join(self.names)}.")
        return self.names.index(name)

    @property
    def ranking(self) -> tuple[str, ...]:
        """Names, the best first, as far as the noise shows."""
        return tuple(self.names[place] for place in np.argsort(-self._totals, kind="stable"))

    @functools.cached_property
    def weights(self) -> dict[str, tuple[float, float, float]]:
        """Stacking weights, each with a range: what redraws of noise and sampling give in 90 of 100 cases.

        The weights w with the largest mean of log(sum of w exp(l)), which is w'm + (sum of w
        diag(M) - w'Mw) / 2 up to third powers of differences, for their means m and products M. NaN
        where differences are too large for that, or clipped.

        Reference:
            Yao, Vehtari, Simpson and Gelman, Using stacking to average Bayesian predictive
            distributions, Bayesian Analysis 2018.
        """
        size = len(self.names)
        rows = self.num_rows
        products = self._products
        hidden = rows < 3 * 2 * self.plan.noise
        if hidden or self.clipped > _MOST_CLIPPED or np.trace(products) > _SMALL * rows:
            return dict.fromkeys(self.names, (math.nan, math.nan, math.nan))
        rng = np.random.default_rng(0)
        values, vectors = np.linalg.eigh(products)
        root = vectors * np.sqrt(np.maximum(values, 0) * self.plan.max_rows)
        drawn = []
        for _ in range(_REDRAWS):
            noise = EXCESS * self.plan.noise * rng.normal(size=len(self.sums))
            again = dataclasses.replace(self, sums=self.sums + noise)
            drawn.append(
                _stacked(
                    (again._totals + root @ rng.normal(size=size)) / rows, again._products / rows
                )
            )
        ends = np.quantile(drawn, [(1 - self.level) / 2, (1 + self.level) / 2], axis=0)
        found = _stacked(self._totals / rows, products / rows)
        low, high = np.minimum(ends[0], found), np.maximum(ends[1], found)
        return {
            name: (float(x), float(a), float(b))
            for name, x, a, b in zip(self.names, found, low, high, strict=True)
        }

    @property
    def verdict(self) -> str:
        """Which fit is better, in words: if the first of the ranking is, the intervals of all differences together say so."""
        first, *others = self.ranking
        pairs = len(self.names) * len(others) // 2
        strict = dataclasses.replace(self, level=1 - (1 - self.level) / pairs)
        beaten = [
            name for name in others if strict.difference(first, name).population_interval[0] > 0
        ]
        if not beaten:
            return "Noise and sampling hide which fit is better"
        found = f"{first!r} is better than {listed([repr(name) for name in beaten], most=20)}"
        left = [repr(name) for name in others if name not in beaten]
        return (
            f"{found}; noise and sampling hide whether than {listed(left, most=20)}"
            if left
            else found
        )

    def table(self) -> list[dict[str, Any]]:
        """The rows of `print`, the best fit first; differences are from the first name, which the noise did not choose."""
        rows = []
        for rank, name in enumerate(self.ranking):
            found = self.difference(name, self.names[0])
            own = name == self.names[0]
            value, interval = (0.0, (0.0, 0.0)) if own else (found.value, found.population_interval)
            weight, low, high = self.weights[name]
            row = {"fit": name, "rank": rank, "elpd_diff": value, "interval": interval}
            rows.append(row | {"weight": weight, "weight_range": (low, high)})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, with the statement."""
        shares = {"rows": self.num_rows, "clipped": self.clipped}
        return {
            **finite_or_none({"fits": self.table(), **shares}),
            "statement": self.statement.to_dict(),
        }

    def __str__(self) -> str:
        """The table, what the differences are of, and the price."""
        rows = self.table()
        width = max(len(row["fit"]) for row in rows)
        level = f"{100 * self.level:g} % interval"
        lines = [f"{'':{width}}  rank  {'elpd diff':>9}  {level:>20}  {'weight':>12}"]
        for row in rows:
            low, high = row["interval"]
            ends = "" if row["fit"] == self.names[0] else f"{low:.1f} to {high:.1f}"
            # The likeliest weight may be 1 where each is possible.
            least, most = row["weight_range"]
            weight = f"{least:.2f} to {most:.2f}" if math.isfinite(least) else "-"
            lines.append(
                f"{row['fit']:{width}}  {row['rank']:>4}  {row['elpd_diff']:>9.1f}  {ends:>20}  {weight:>12}".rstrip()
            )
        lines.append(f"{self.verdict}.")
        lines.append(
            f"Sums over about {self.num_rows:,.0f} rows, in nats, against '{self.names[0]}', with noise and sampling; about "
            f"{100 * self.clipped:.2g} % of the rows have differences above {self.plan.max_difference:g}, shortened to that"
            f"{', all of a row alike' if len(rows) > 2 else ''}."
        )
        return "\n".join([*lines, headline(self.statement)])

    def __repr__(self) -> str:
        """Short, without figures."""
        return f"Comparison({', '.join(self.names)}, {self.statement.brief})"

    def _repr_html_(self) -> str:
        return notebook_html(
            f"Comparison: {self.statement.brief}", str(self), wrong=not self.statement.is_private
        )


def _stacked(mean: np.ndarray, products: np.ndarray) -> np.ndarray:
    """The weights that `Comparison.weights` describes."""
    from scipy.optimize import minimize

    size = len(mean)
    values, vectors = np.linalg.eigh(products)
    curved = (vectors * np.maximum(values, 0)) @ vectors.T
    gains = mean + np.diag(curved) / 2
    scale = 1 / max(np.ptp(gains), np.trace(curved), 1e-12)
    found = minimize(
        lambda w: scale * (w @ curved @ w / 2 - w @ gains),
        np.full(size, 1 / size),
        jac=lambda w: scale * (curved @ w - gains),
        bounds=[(0.0, 1.0)] * size,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(size)},
        method="SLSQP",
    ).x
    return np.maximum(found, 0) / np.maximum(found, 0).sum()


@one_release
def compare(
    fits: Mapping[str, Any],
    *held_out: Any,
    epsilon: float | None = None,
    delta: float | None = None,
    plan: ComparisonPlan | None = None,
    groups: Any = None,
    person: str = "groups",
    level: float = LEVEL,
    ledger: Ledger | None = None,
    rng_key: PRNGKeyArray | None = None,
    non_private_seed: bool = False,
    **options: Any,
) -> Comparison:
    """Compare fits by their log densities of held-out records, with noise.

    Guarantee: what is returned is one `plan.event()` under the plan's relation, for one record, or
    with `groups` for one person, if each row's log density depends on that row and the fit alone.
    The program is proved to be that before it runs. The records must not be those that were fitted:
    the costs would add up, and the comparison would prefer the fit with the most latents.

    Args:
        fits: By name, two or more: results of regressions, by a formula or not, or lines; (result,
            model) of an own model; or functions from the held-out arrays to a log density of each
            row, such as `lambda x, y: fit.log_density(x[:, :2], y)`. Differences are from the
            first.
        held_out: Arrays of held-out rows, rows along the leading axis: features and targets as for
            the fits. Of results by a formula a table.
        epsilon: The epsilon of the release.
        delta: Likewise, well below one over the number of records.
        plan: Instead of both.
        groups: The person of each row. A record is then a person, of whom at most `max_rows` rows
            are used.
        person: Name of the column that `groups` comes from, for the statement.
        level: Level of the intervals.
        ledger: The table's budget, debited before the release.
        rng_key: `discreet.random.key()`, for this release alone; None: a new one.
        non_private_seed: Allow a key made from a seed, with which nothing is private.
        options: Options of `ComparisonPlan.calibrate`: relation, max_difference, max_rows.

    Returns:
        A table as ArviZ's `compare` makes it: rank, difference with interval, stacking weight.

    Raises:
        ValueError, TypeError: Wrong input; nothing was spent. Whether an error occurs is not
            covered by epsilon.
        SpentError: The ledger does not hold it.
        PrivacyError: The program could not be proved.

    >>> import numpy as np, discreet as dp
    >>> y = np.random.default_rng(0).normal(0.3, 1, 4_000)
    >>> fits = {"at 0": lambda y: -y**2 / 2, "at 0.3": lambda y: -(y - 0.3)**2 / 2}
    >>> dp.compare(fits, y, epsilon=1.0, delta=1e-6).ranking
    ('at 0.3', 'at 0')
    """
    key = random.secret_key(
        random.key() if rng_key is None else rng_key, "compare", non_private_seed
    )
    probability("level", level, hint="0.9 is the default.")
    names, asked = _asked(fits)
    plan = _plan(plan, epsilon, delta, len(names), options)
    densities = _densities(asked, held_out)
    if groups is None:
        groups, person = _persons(asked, held_out, person)
    terms = difference_terms(plan, densities)
    persons = rows_of_persons(plan.max_rows, groups, len(terms))
    unit = RECORD if groups is None else Unit(person, plan.max_rows)
    act = Act.on(plan, key, random.Purpose.COMPARISON, ledger=ledger, unit=unit)
    sums = noisy_sums(plan, act, terms, persons)
    return Comparison(names, plan, sums, act.statement, level)


_Asked = tuple[Callable[..., Any], Any]


def _asked(fits: Any) -> tuple[tuple[str, ...], list[_Asked]]:
    """The names, and for each the function from arrays to log densities; or from a table, and its schema."""
    if (
        not isinstance(fits, Mapping)
        or len(fits) < 2
        or not all(isinstance(name, str) for name in fits)
    ):
        raise TypeError(
            "fits are compared by their names: pass a dictionary of two or more texts, as {'small': fit_a, 'large': fit_b}."
        )
    asked = []
    for name, fit in fits.items():
        if isinstance(fit, tuple) and len(fit) == 2 and hasattr(fit[0], "draws"):
            result, model = fit
            asked.append((log_density_of(model, result.draws), None))
        elif callable(found := getattr(fit, "log_density", fit)) and not isinstance(
            fit, DPNewtonResult
        ):
            asked.append((found, getattr(fit, "schema", None)))
        else:
            raise TypeError(
                f"{name!r} is {type(fit).__name__}, which has no log density: pass the result of a regression or a line, "
                "(result, model) of dp.fit of a model of your own, or a function from the held-out arrays to log densities."
            )
    return tuple(fits), asked


def _plan(
    plan: ComparisonPlan | None,
    epsilon: float | None,
    delta: float | None,
    num_fits: int,
    options: dict[str, Any],
) -> ComparisonPlan:
    if plan is None:
        if epsilon is None or delta is None:
            raise ValueError("compare spends a budget: give epsilon= and delta=, or plan=.")
        return ComparisonPlan.calibrate(epsilon=epsilon, delta=delta, num_fits=num_fits, **options)
    if options or epsilon is not None or delta is not None:
        raise ValueError("compare got plan= and what a plan says, too: give one of them.")
    if plan.num_fits != num_fits:
        raise ValueError(f"The plan is for {plan.num_fits} fits, and there are {num_fits}.")
    return plan


def _densities(asked: list[_Asked], held_out: tuple[Any, ...]) -> Float[np.ndarray, "row fit"]:
    tables = [x for x in held_out if isinstance(x, Mapping) or hasattr(x, "__arrow_c_stream__")]
    if tables or any(schema is not None for _, schema in asked):
        return _of_table(asked, held_out)
    arrays = [unmasked("A held-out array", array) for array in held_out]
    lengths = {array.shape[0] if array.ndim else None for array in arrays}
    if len(lengths) != 1 or None in lengths:
        raise ValueError(
            "The held-out arrays have different lengths, or there are none: pass arrays with rows along the leading axis, as "
            "features and targets."
        )
    shape = (len(arrays[0]),)

    def of(density: Callable[..., Any]) -> np.ndarray:
        def at(places: np.ndarray) -> np.ndarray:
            return np.asarray(density(*(array[places] for array in arrays)), np.float64)

        return in_batches(at, shape, "log density")

    return np.stack([of(density) for density, _ in asked], axis=1)


def _persons(asked: list[_Asked], held_out: tuple[Any, ...], person: str) -> tuple[Any, str]:
    """The person of each row, as the schemas of results by a formula name them; None: each row is a record."""
    from discreet.tabular.tables import OutOfBounds, Report, typed

    named = {
        schema.person: schema
        for _, schema in asked
        if schema is not None and schema.person is not None
    }
    if not named:
        return None, person
    if len(named) > 1:
        raise ValueError(
            f"The fits name persons by several columns, {', '.join(named)}: pass groups= and person=."
        )
    ((name, schema),) = named.items()
    return typed(held_out[0], schema, Report(OutOfBounds.REFUSE), only_person=True)[
        name
    ].to_pylist(), name


def _of_table(asked: list[_Asked], held_out: tuple[Any, ...]) -> Float[np.ndarray, "row fit"]:
    """Of results by a formula, which take their columns from a table."""
    if len(held_out) != 1 or any(schema is None for _, schema in asked):
        raise ValueError(
            "Results by a formula are compared with each other, on one table: pass the held-out table alone."
        )

    from discreet.tabular.tables import read_table  # which imports pyarrow

    def of(density: Callable[..., Any], schema: Any) -> np.ndarray:
        table = read_table(held_out[0], schema)
        return in_batches(
            lambda places: density(table.take(places)), (table.num_rows,), "log density"
        )

    return np.stack([of(density, schema) for density, schema in asked], axis=1)
