"""Regressions with scikit-learn's interface: `fit`, `predict`, `predict_proba`, `score`, in pipelines and cross-validation.

Each fit is a `DPSVI` run with a plan and a statement of its own. What scikit-learn would take from the data is public input
here: bounds of the features, the target's bounds or classes. docs/estimators.md says what cross-validation spends.
"""

from discreet._extras import require

require("sklearn", extra="tables", what="discreet.estimators")

from discreet.estimators._estimators import (  # noqa: E402
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)

__all__ = [
    "LinearRegression",
    "LogisticRegression",
    "NegativeBinomialRegression",
    "PoissonRegression",
]
