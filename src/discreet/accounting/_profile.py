"""The privacy profile of an event: delta for every epsilon, epsilon for every delta, and the best attacker's rates."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dp_accounting import dp_event
from numpy.typing import ArrayLike, NDArray

from discreet.accounting._curves import Curve, SlackCurve, smallest_epsilon
from discreet.accounting._events import Relation, curve_of

Array = NDArray[np.floating[Any]]

_MAX_KNOTS = 4096


@dataclass(frozen=True, eq=False)
class PrivacyProfile:
    """What an event costs, at every epsilon at once. Made by `profile`.

    Guarantee: for every epsilon, the event, run within total variation `slack` of its ideal, is (epsilon, delta(epsilon))
    differentially private under `relation`; every number is an upper bound.

    Attributes:
        event: what was done to the data.
        relation: which data sets are neighbours.
        slack: total variation between what ran and the event, over all steps.
    """

    event: dp_event.DpEvent
    relation: Relation
    slack: float
    _curve: Curve = field(repr=False)

    def delta(self, epsilon: ArrayLike) -> float | Array:
        """Smallest known delta at each epsilon.

        Args:
            epsilon: a number or an array of numbers >= 0; infinity is allowed.

        Returns:
            A float for a number, an array of the same shape for an array.

        Raises:
            ValueError: an epsilon is negative or not a number.
        """
        values = np.asarray(epsilon, dtype=np.float64)
        if np.isnan(values).any() or (values < 0).any():
            raise ValueError(
                f"epsilon is {epsilon!r}; delta(epsilon) is defined for epsilon >= 0. Pass a number of 0 or more."
            )
        flat = values.reshape(-1)
        deltas = self._curve.delta(flat)
        if self.slack > 0:
            # With slack the bound rises again in epsilon; what holds at a smaller epsilon holds at a larger one.
            knots = self._knots()
            best = np.minimum.accumulate(self._curve.delta(knots))
            earlier = np.searchsorted(knots, flat, side="right") - 1
            deltas = np.minimum(deltas, best[np.maximum(earlier, 0)])
        deltas = np.clip(deltas, 0.0, 1.0).reshape(values.shape)
        return float(deltas) if values.ndim == 0 else deltas

    def epsilon(self, delta: float) -> float:
        """Smallest known epsilon at `delta`, rounded up.

        Args:
            delta: between 0 and 1.

        Returns:
            epsilon >= 0; infinity where no finite one is known (release without noise; delta below slack; delta below 1e-17).

        Raises:
            ValueError: delta is outside [0, 1] or not a number.
        """
        if not 0 <= delta <= 1:
            raise ValueError(
                f"delta is {delta!r}; it is a probability, and should be well below one over the number of records. "
                "Pass a number between 0 and 1, such as 1e-6."
            )
        return 0.0 if delta == 1 else smallest_epsilon(self._curve, float(delta))

    def curve(self) -> tuple[Array, Array]:
        """Returns ascending epsilons, from 0, and their deltas: at most 4096 points down to where delta is negligible."""
        knots = self._knots()
        return knots, np.asarray(self.delta(knots))

    def true_positive_rate(self, false_positive_rate: ArrayLike) -> float | Array:
        """Largest true-positive rate that any attacker can reach, who must tell two neighbouring data sets apart.

        The attacker may know every other record, and choose both versions of the one in question.

        Args:
            false_positive_rate: a number or an array of numbers in [0, 1].

        Returns:
            An upper bound from the profile's trade-off curve: the least over epsilon of e^eps FPR + delta and
            1 - e^-eps (1 - delta - FPR). A float for a number, an array for an array.

        Raises:
            ValueError: a rate is outside [0, 1].
        """
        rates = np.asarray(false_positive_rate, dtype=np.float64)
        if not ((rates >= 0) & (rates <= 1)).all():
            raise ValueError(f"false_positive_rate is {false_positive_rate!r}; rates lie between 0 and 1.")
        epsilons, deltas = self.curve()
        with np.errstate(over="ignore"):
            growth = np.exp(np.minimum(epsilons, 700.0))
        column = rates.reshape(-1, 1)
        best = np.minimum((growth * column + deltas).min(axis=1), (1 - (1 - deltas - column) / growth).min(axis=1))
        # Chance is always within reach, whatever rounding says.
        best = np.clip(best.reshape(rates.shape), rates, 1.0)
        return float(best) if rates.ndim == 0 else best

    def _knots(self) -> Array:
        knots = self._curve.knots()
        if len(knots) <= _MAX_KNOTS:
            return knots
        chosen = np.unique(np.linspace(0, len(knots) - 1, _MAX_KNOTS).round().astype(np.int64))
        return knots[chosen]


def profile(
    event: dp_event.DpEvent, relation: Relation, *, slack: float = 0.0, tolerance: float = 1e-5
) -> PrivacyProfile:
    """Accounts for an event.

    Gaussian events without sampling compose exactly. Sampled ones are composed numerically through their privacy loss
    distributions, rounded upward; epsilon comes out within some 1e-4 of the composed pair's own (relative), within 1e-3 in
    corners (rates near 1e-4 with an epsilon below 0.1, delta below 1e-10; on processors without 80-bit floats also 10^6 steps,
    2 % there). Noise multipliers are stddev / C under either relation: under REPLACE_ONE the accountant puts in the factor 2
    itself.

    A RandomizedResponseDpEvent stands for any mechanism that is (epsilon, 0)-private under the relation asked for (`pure_event`
    makes one); under ADD_OR_REMOVE_ONE it must not be read as answers that each record gives.

    Args:
        event: dp_accounting's description of what touches the data. Composition is for a horizon fixed beforehand.
        relation: Relation.ADD_OR_REMOVE_ONE or Relation.REPLACE_ONE.
        slack: total variation between what runs and `event`, summed over all steps; enters as (1 + e^epsilon) slack in delta.
        tolerance: relative excess of epsilon to choose the numerical grid for. Less takes longer.

    Returns:
        The profile.

    Raises:
        ValueError: an event or a pair of event and relation without sound accounting; a bad probability or noise multiplier.

    References:
        Koskela, Jaelkoe, Honkela, AISTATS 2020 and Gopi, Lee, Wutschitz, NeurIPS 2021 (numerical composition);
        Doroshenko et al., PoPETs 2022 (connect-the-dots); Zhu, Dong, Wang, AISTATS 2022 (dominating pairs).

    Example:
        >>> from dp_accounting import dp_event
        >>> step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
        >>> spent = profile(dp_event.SelfComposedDpEvent(step, 1000), Relation.ADD_OR_REMOVE_ONE)
        >>> round(spent.epsilon(1e-5), 2)
        1.83
    """
    if not 0 <= slack <= 1:
        raise ValueError(
            f"slack is {slack!r}; it is a total-variation distance, a number between 0 and 1, and far below delta to be of use."
        )
    curve = curve_of(event, relation, tolerance=tolerance)
    return PrivacyProfile(event, relation, slack, SlackCurve(curve, slack) if slack > 0 else curve)
