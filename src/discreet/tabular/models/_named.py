"""The regressions by the names that dry runs and the command line have for them: target, family, model and plan."""

from __future__ import annotations

from typing import Any, NamedTuple

from discreet.methods.choose import LINE, PlanOfSums, plan_of
from discreet.tabular.models._regression import (
    Model,
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)
from discreet.tabular.tables import Kind, Schema


class NamedRegression(NamedTuple):
    """A regression of a schema's target."""

    kind: Kind  # Of the target
    family: str  # As `choose.plan_of` takes it
    likelihood: str  # As `predict.likelihood_of` takes it
    model: Any  # Of (x, y, mask); of classes, what makes it from their number

    def num_classes(self, schema: Schema) -> int:
        """Number of classes of the target; 2 in other families."""
        target = schema.target_column
        return 2 if self.family != "classes" or target is None else len(target.categories)

    def model_for(self, schema: Schema) -> Model:
        """The NumPyro model of the target."""
        return self.model(self.num_classes(schema)) if self.family == "classes" else self.model

    def plan(self, schema: Schema, **terms: Any) -> PlanOfSums:
        """The plan of its fit to noisy sums; `terms` are the other arguments of `choose.plan_of`."""
        return plan_of(
            self.family,
            num_classes=self.num_classes(schema),
            max_rows=schema.max_rows,
            weighted=schema.weight is not None,
            drops=schema.drops_records,
            **terms,
        )


REGRESSIONS = {
    "logistic": NamedRegression(Kind.BINARY, "binary", "bernoulli", logistic_regression),
    "multinomial": NamedRegression(
        Kind.CATEGORICAL, "classes", "categorical", multinomial_regression
    ),
    "linear": NamedRegression(Kind.REAL, LINE, "gaussian", linear_regression),
    "poisson": NamedRegression(Kind.COUNT, "counts", "poisson", poisson_regression),
    "negative-binomial": NamedRegression(
        Kind.COUNT, "counts", "negative_binomial", negative_binomial_regression
    ),
}
