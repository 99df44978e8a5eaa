"""Classes of new rows from a fitted posterior, and how good such predictions are. Post-processing: no record is read."""

from discreet.predict._logistic import linear_predictor, probit_probabilities
from discreet.predict._metrics import ClassificationMetrics, classification_metrics
from discreet.predict._probabilities import class_probabilities, plug_in_probabilities

__all__ = [
    "ClassificationMetrics",
    "class_probabilities",
    "classification_metrics",
    "linear_predictor",
    "plug_in_probabilities",
    "probit_probabilities",
]
