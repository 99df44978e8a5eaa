"""Default settings of a fit: a plan, an optimizer and a guide, for models whose gradients are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpyro
from numpyro.infer import init_to_feasible
from numpyro.infer.autoguide import AutoNormal

from discreet.methods.inference._dpsvi import DPSVI
from discreet.privacy.accounting import Relation, suggest
from discreet.privacy.clipping import ADAPTIVE, AdaptiveClipping
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import PoissonSampling


def guide_for(model: Any) -> Callable[..., Any]:
    """The default guide of a model.

    A model of a whole table has its own. Others get independent normals (`AutoNormal`) that start
    at unconstrained latents of 0: NumPyro's starting point is random, noisy steps are too expensive
    to recover from it, and a Poisson regression that starts at a rate of e⁴ clips for a hundred
    steps.
    """
    own = getattr(model, "guide", None)
    return AutoNormal(model, init_loc_fn=init_to_feasible) if own is None else own()


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Public settings of a fit, and the plan and `DPSVI` that follow from them.

    These are the settings of every fit that is given none: of estimators, of the command line, of
    models of one's own. `defaults_for` has others for a model with `default_settings`, such as
    `MixtureOfProducts`.

    Attributes:
        model: A NumPyro model, or a whole table's, such as `MixtureOfProducts(schema)`.
        num_steps: Number of steps.
        expected_batch: Average number of records in a batch; all records if there are fewer.
        clipping_norm: Bound on a record's gradient, or the rule that finds one.
        learning_rate: Adam's learning rate.
    """

    model: Any
    num_steps: int = 1000
    expected_batch: float = 1000
    clipping_norm: float | AdaptiveClipping = ADAPTIVE
    learning_rate: float = 0.02

    def plan(
        self,
        *,
        epsilon: float,
        delta: float | None = None,
        num_records: int,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    ) -> PrivacyPlan:
        """Calibrate a plan with these settings and Poisson batches to epsilon: `PrivacyPlan.calibrate`.

        Args:
            epsilon: Target.
            delta: Target; None: a tenth of 1 / num_records, and 1e-5 at most
                (`discreet.accounting.suggest`).
            num_records: Public number of records.
            relation: The neighbouring relation.

        Raises:
            ValueError: An argument out of range, or a target that no noise meets.
        """
        delta = suggest(num_records=num_records).delta if delta is None else delta
        return PrivacyPlan.calibrate(
            epsilon=epsilon,
            delta=delta,
            num_records=num_records,
            num_steps=self.num_steps,
            sampling=PoissonSampling(rate=self.rate_for(num_records)),
            clipping_norm=self.clipping_norm,
            relation=relation,
        )

    def rate_for(self, num_records: int) -> float:
        """The rate that gives batches of about `expected_batch` records, or all of a smaller table."""
        return min(1.0, self.expected_batch / max(1, num_records))

    def guide(self) -> Callable[..., Any]:
        """The model's guide, `guide_for(model)`."""
        return guide_for(self.model)

    def optimizer(self) -> Any:
        """NumPyro's Adam with the learning rate."""
        return numpyro.optim.Adam(self.learning_rate)

    def dpsvi(self, plan: PrivacyPlan, **static_kwargs: Any) -> DPSVI:
        """Build the `DPSVI` with this guide and optimizer, and the placeholder of a whole table's model.

        Args:
            plan: From `plan`, or another.
            static_kwargs: Public keyword arguments of the model.
        """
        program = getattr(self.model, "model", self.model)
        placeholder = getattr(self.model, "placeholder", None)
        options = {"placeholder": placeholder, **static_kwargs}
        return DPSVI(program, self.guide(), self.optimizer(), plan=plan, **options)


def defaults_for(model: Any) -> Defaults:
    """Look up public defaults for a model; docs/models.md lists them.

    Args:
        model: A NumPyro model of records, such as a regression of `discreet.models` or one of your
            own; or a table's model such as `MixtureOfProducts(schema)`.

    Raises:
        TypeError: Not a model.

    >>> from discreet.tabular.models import logistic_regression
    >>> defaults = defaults_for(logistic_regression)
    >>> defaults.num_steps, defaults.expected_batch
    (1000, 1000)
    """
    if not callable(getattr(model, "model", model)):
        raise TypeError(
            f"A {type(model).__name__} is no model: pass a NumPyro model, or one of discreet.models."
        )
    return Defaults(model, **getattr(model, "default_settings", {}))
