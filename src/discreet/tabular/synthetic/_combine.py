"""One conclusion from the same analysis of several twins, by the rule for synthetic data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from discreet._validate import LEVEL


@dataclasses.dataclass(frozen=True)
class Combined:
    """The combined estimate from m twins; made by `combine`. Arrays have the shape of one twin's estimate.

    Attributes:
        estimate: Mean of the twins' estimates.
        standard_error: Standard error of the estimate of the population's value, in its unit.
        degrees_of_freedom: Degrees of freedom of the interval's t distribution.
        interval: Its ends, stacked along the leading axis.
        between: Variance of the estimates between twins, b.
        within: Mean of the twins' own variances, v.
        floored: True where T was below size_ratio * v, which is used instead.
        level: Coverage of the interval.
        names: Names of the quantities along the estimate's only axis; empty where none were given.
    """

    estimate: Float[np.ndarray, "*quantity"]
    standard_error: Float[np.ndarray, "*quantity"]
    degrees_of_freedom: Float[np.ndarray, "*quantity"]
    interval: Float[np.ndarray, "2 *quantity"]
    between: Float[np.ndarray, "*quantity"]
    within: Float[np.ndarray, "*quantity"]
    floored: np.ndarray
    level: float
    names: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Combined:
        """Select one of the named quantities.

        Raises:
            KeyError: No quantity has this name.
        """
        if name not in self.names:
            raise KeyError(
                f"{name!r} is not among the quantities: {', '.join(self.names) or 'they have no names'}"
            )
        place = self.names.index(name)
        arrays = {f: getattr(self, f)[..., place] for f in _ARRAYS}
        return Combined(**arrays, level=self.level)

    def __str__(self) -> str:
        if self.names:
            width = max(map(len, self.names))
            return "\n".join(f"{name:{width}}  {self[name]}" for name in self.names)
        low, high = self.interval
        return (
            f"{np.round(self.estimate, 6)}, standard error {np.round(self.standard_error, 6)}, {self.level:.0%} interval "
            f"{np.round(low, 6)} to {np.round(high, 6)}"
        )


_ARRAYS = tuple(
    field.name for field in dataclasses.fields(Combined) if field.name not in ("level", "names")
)


def combine(
    estimates: ArrayLike | Sequence[Mapping[str, float]],
    variances: ArrayLike | Sequence[Mapping[str, float]],
    *,
    level: float = LEVEL,
    size_ratio: float = 1.0,
    names: Sequence[str] | None = None,
) -> Combined:
    """Combine the estimates of m twins, each drawn from a posterior draw of its own.

    With b the variance of the estimates between twins and v the mean of the variances that the
    twins' own analyses give, the variance of the mean estimate is

        T = (1 + 1/m) b - v,    with (m - 1) (1 - v / ((1 + 1/m) b))² degrees of freedom.

    This is not Rubin's rule for imputed tables, v + (1 + 1/m) b: there the records are real, and v
    is their sampling variance. A twin's rows are drawn too, so b already contains v, once too
    often. Nor may the twins be pooled and analysed as if they were data: the error would then
    shrink with every row you draw.

    The intervals are as good as the posterior. Variational posteriors are narrow, and after a
    private fit they do not include its noise: draw the twins from `result.noise_aware()`
    (docs/noise-aware.md). T estimates at least the sampling variance of the table itself, about
    size_ratio * v. If it is less, as happens if twins are few or shorter than the table, size_ratio
    * v is taken, with m - 1 degrees of freedom: near zero T has hardly any, and intervals would be
    endless.

    Args:
        estimates: One of each twin along the leading axis, m of them, at least 2: numbers, arrays
            of any shape (all coefficients of a regression, say, each of which is combined by
            itself), or a dict from name to number for each twin.
        variances: Squared standard errors of these, as the analysis of a twin by itself gives them;
            same shape, same names.
        level: Coverage of the interval.
        size_ratio: Rows of a twin divided by records of the table.
        names: Names of the quantities, if the estimates are vectors; those of dicts are their keys.

    Raises:
        ValueError: Fewer than two twins, other shapes, a name that one twin's analysis lacks, a
            negative variance or one that is not finite, or a level that is none.

    Reference:
        Raghunathan, Reiter and Rubin, "Multiple imputation for statistical disclosure limitation",
        J. Official Statistics 19(1), 2003; Reiter, J. Official Statistics 18(4), 2002, for negative
        T; Räisä, Jälkö, Kaski and Honkela, "Noise-aware statistical inference with differentially
        private synthetic data", AISTATS 2023, for twins under privacy.

    >>> combined = combine([1.0, 1.2, 0.9, 1.1], [0.001, 0.001, 0.001, 0.001])
    >>> round(float(combined.estimate), 3), round(float(combined.standard_error), 3)
    (1.05, 0.141)
    >>> errors = [{"age": 0.01, "sex": 0.04}] * 3
    >>> print(combine([{"age": 1.0, "sex": 0.0}, {"age": 1.4, "sex": 2.0}, {"age": 1.2, "sex": 1.0}], errors)["sex"])
    1.0, standard error 1.137248, 90% interval -2.46746 to 4.46746
    """
    estimates, variances, names = _arrays(estimates, variances, names)
    if estimates.shape != variances.shape or estimates.ndim == 0:
        raise ValueError(
            f"estimates have shape {estimates.shape} and variances {variances.shape}; pass one of each for every twin, along "
            "the leading axis."
        )
    m = len(estimates)
    if m < 2:
        raise ValueError(
            f"There are estimates of {m} twin; at least two are needed, and preferably 20."
        )
    if not (
        np.isfinite(estimates).all() and np.isfinite(variances).all() and (variances >= 0).all()
    ):
        raise ValueError(
            "An estimate or variance is not finite, or a variance is negative: check that twin's analysis."
        )
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is a probability between 0 and 1, such as 0.95.")
    if not size_ratio > 0:
        raise ValueError(
            f"size_ratio is {size_ratio}; it is the rows of a twin divided by the records of the table."
        )
    estimate = estimates.mean(axis=0)
    between = estimates.var(axis=0, ddof=1)
    within = variances.mean(axis=0)
    spread = (1 + 1 / m) * between
    total = spread - within
    floored = (total <= 0) | (total < size_ratio * within)
    share = np.divide(total, spread, out=np.ones_like(total), where=~floored)
    degrees_of_freedom = (m - 1) * share**2
    standard_error = np.sqrt(np.where(floored, size_ratio * within, total))
    reach = stats.t.ppf((1 + level) / 2, degrees_of_freedom) * standard_error
    interval = np.stack([estimate - reach, estimate + reach])
    return Combined(
        estimate,
        standard_error,
        degrees_of_freedom,
        interval,
        between,
        within,
        floored,
        level,
        tuple(names),
    )


def _arrays(
    estimates: Any, variances: Any, names: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Both as arrays with the twins along the leading axis, and the names along the last."""
    twins = [*estimates, *variances] if np.ndim(estimates) == np.ndim(variances) == 1 else []
    if twins and all(isinstance(twin, Mapping) for twin in twins):
        if names is None:
            names = tuple(twins[0])
        absent = {str(name) for twin in twins for name in {*names} - {*twin}}
        other = {str(name) for twin in twins for name in {*twin} - {*names}}
        if absent or other:
            raise ValueError(
                f"The twins' analyses are not of the same quantities: not all have {', '.join(sorted(absent) + sorted(other))}. "
                "A twin in which a category does not occur gives no coefficient for it: encode the categories by the schema's "
                "list, or omit the quantity in all twins."
            )
        estimates, variances = (
            [[twin[name] for name in names] for twin in part] for part in (estimates, variances)
        )
    estimates = np.asarray(estimates, np.float64)
    variances = np.asarray(variances, np.float64)
    if names is not None and (
        estimates.ndim != 2 or estimates.shape[1] != len(names) or len(set(names)) < len(names)
    ):
        raise ValueError(
            f"There are {len(names)} names, and estimates of shape {estimates.shape}: give each quantity of a (twin, quantity) "
            "array a name of its own."
        )
    return estimates, variances, tuple(names or ())
