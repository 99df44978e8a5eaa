"""Regressions with scikit-learn's interface: `fit`, `predict`, `predict_proba`, `score`, in pipelines and cross-validation.

Each fit is private Newton, `fit_moments` for a line, or `DPSVI` where steps are asked for, with a
plan and a statement of its own; docs/estimators.md says what cross-validation spends.
`PrivateRegression` has the parameters, the validation and the fit; a subclass says how its target
is encoded, which model is fitted and what is known afterwards. Two rules keep the guarantee:
whatever scikit-learn would take from the data (ranges of features, the target's range or classes)
is a public parameter here, so that a record reaches the model by its own row alone; and no error
message quotes a cell (`no_values`).

Files, in reading order: `_rows` (what a fit may read), `_private` (the base), `_regressions`.
"""

from discreet._garbage import uncollected

with uncollected(stay=True):
    from discreet.tabular.estimators._private import PrivateRegression as PrivateRegression
    from discreet.tabular.estimators._regressions import (
        LinearRegression as LinearRegression,
        LogisticRegression as LogisticRegression,
        NegativeBinomialRegression as NegativeBinomialRegression,
        PoissonRegression as PoissonRegression,
    )
    from discreet.tabular.estimators._rows import rows_of_groups as rows_of_groups
