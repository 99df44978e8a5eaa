"""How good class probabilities are on rows whose classes are known. Figures of these rows: not private."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike


@dataclasses.dataclass(frozen=True)
class ClassificationMetrics:
    """Figures on the rows that were passed; **not private** for them. Made by `classification_metrics`.

    Attributes:
        accuracy: share of rows whose most probable class is right.
        auc: area under the ROC curve, for more than two classes the mean over one against the rest; NaN where the rows do
            not hold every class.
        log_loss: mean negative log probability of the right class, in nats.
        calibration_error: expected calibration error: |share of rights - mean probability| in each bin of probability,
            weighted by the share of rows in it.
        predicted: mean probability in each bin that holds rows: of class 1, or of the most probable class where there are
            more than two.
        observed: share of rows in that bin that are of class 1 (where the most probable class is right).
        counts: rows in that bin.
    """

    accuracy: float
    auc: float
    log_loss: float
    calibration_error: float
    predicted: Float[np.ndarray, " bin"]
    observed: Float[np.ndarray, " bin"]
    counts: Int[np.ndarray, " bin"]

    def __str__(self) -> str:
        return (
            f"accuracy {self.accuracy:.4f}, AUC {self.auc:.4f}, log loss {self.log_loss:.4f} nats, expected calibration error "
            f"{self.calibration_error:.4f} ({int(self.counts.sum()):,} rows, not private)"
        )

    def plot(self, axes: Any = None) -> Any:
        """Draw the reliability curve, readable in grey; the size of a point goes with the rows in its bin.

        Args:
            axes: matplotlib axes; None: new ones.

        Returns:
            The axes.
        """
        if axes is None:
            from matplotlib import pyplot

            _, axes = pyplot.subplots(figsize=(4, 4), layout="constrained")
        axes.plot([0, 1], [0, 1], linestyle="--", color="0.6", label="calibrated")
        axes.plot(self.predicted, self.observed, color="black", label="observed")
        axes.scatter(self.predicted, self.observed, s=10 + 150 * self.counts / self.counts.sum(), color="0.2", zorder=3)
        axes.set(xlabel="mean predicted probability", ylabel="share observed", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        axes.legend(frameon=False)
        return axes


def classification_metrics(
    y: ArrayLike, probabilities: ArrayLike, *, num_bins: int = 10, non_private: bool = False
) -> ClassificationMetrics:
    """Accuracy, AUC, log loss and calibration of class probabilities, by scikit-learn.

    Args:
        y: the rows' classes, whole numbers from 0.
        probabilities: (row, class) as of `class_probabilities`, or (row,) of class 1.
        num_bins: equally wide bins of probability for the calibration.
        non_private: must be True, to say that the rows are public or that the figures will not be shown: they are
            computed from the rows without noise.

    Returns:
        The figures.

    Raises:
        ValueError: `non_private` was not set, or shapes, classes or probabilities that do not fit.

    Example:
        >>> print(classification_metrics([0, 0, 1, 1], [0.1, 0.6, 0.8, 0.9], non_private=True))
        accuracy 0.7500, AUC 1.0000, log loss 0.3375 nats, expected calibration error 0.2500 (4 rows, not private)
    """
    if not non_private:
        raise ValueError(
            "classification_metrics computes exact figures of the rows it is given, without noise, so showing them leaks what "
            "is in these rows. Pass non_private=True if the rows are public or the figures stay with you."
        )
    classes, table = _checked(y, probabilities)
    from sklearn.calibration import calibration_curve
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

    num_classes, best = table.shape[1], table.argmax(axis=1)
    binary = num_classes == 2
    auc = math.nan
    if len(np.unique(classes)) == num_classes:
        auc = float(roc_auc_score(classes, table[:, 1] if binary else table, multi_class="ovr"))
    score, right = (table[:, 1], classes) if binary else (table.max(axis=1), (best == classes).astype(int))
    score = np.clip(score, 0.0, 1.0)
    observed, predicted = calibration_curve(right, score, n_bins=num_bins, pos_label=1)
    # The bins of calibration_curve, which drops those without rows.
    inner = np.linspace(0.0, 1.0, num_bins + 1)[1:-1]
    counts = np.bincount(np.searchsorted(inner, score), minlength=num_bins)
    counts = counts[counts > 0]
    return ClassificationMetrics(
        accuracy=float(accuracy_score(classes, best)),
        auc=auc,
        log_loss=float(log_loss(classes, table, labels=np.arange(num_classes))),
        calibration_error=float(np.sum(counts * np.abs(observed - predicted)) / len(classes)),
        predicted=predicted,
        observed=observed,
        counts=counts,
    )


def _checked(y: ArrayLike, probabilities: ArrayLike) -> tuple[Int[np.ndarray, " row"], Float[np.ndarray, "row class"]]:
    """Classes and a (row, class) table that sums to one."""
    given, table = np.asarray(y), np.asarray(probabilities, np.float64)
    if table.ndim == 1:
        table = np.stack([1 - table, table], axis=1)
    if given.ndim != 1 or table.ndim != 2 or len(given) != len(table) or len(given) == 0 or table.shape[1] < 2:
        raise ValueError(
            f"y has shape {given.shape} and probabilities {np.shape(probabilities)}; pass one class a row and (row, class) "
            "probabilities, or (row,) of class 1, for at least one row."
        )
    if not ((table >= 0) & (table <= 1 + 1e-6)).all() or np.abs(table.sum(axis=1) - 1).max() > 1e-4:
        raise ValueError("probabilities holds numbers outside [0, 1], or rows that do not sum to 1.")
    classes = given.astype(np.int64)
    if (classes != given).any() or classes.min() < 0 or classes.max() >= table.shape[1]:
        raise ValueError(
            f"y holds values that are no class from 0 to {table.shape[1] - 1}; encode classes as whole numbers."
        )
    return classes, table / table.sum(axis=1, keepdims=True)
