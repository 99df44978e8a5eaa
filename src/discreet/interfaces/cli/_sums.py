"""Fits to a few noisy sums over all records, of `discreet fit`, whose intervals include all noise."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._of_records import OfRecords
from discreet.interfaces.cli._options import LINEAR, NEGATIVE_BINOMIAL
from discreet.interfaces.cli._steps import InSteps
from discreet.interfaces.cli._terminal import say_error

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray


CONCENTRATION = (
    "A count of mean m has the variance m + m² / concentration. The concentration lies between {low:.2g} and {high:.2g} (90 %, "
    "by a noisy histogram); from 45 on the counts are as good as Poisson's."
)
TO_PREDICT = (
    " Means and intervals are of the same draws. To predict, use to_predict, which is nearer to 0 where the noise hides a "
    "coefficient."
)
PRIOR_OF_LINE = (
    "The prior of the intercept and of each weight is Normal(0, 1), for features and a target that are scaled to "
    "[-1, 1]."
)
SCALED = "Features are scaled to [-1, 1] by their bounds."
SCALED_LINE = (
    "Features and target are scaled to [-1, 1] by their bounds. sigma has no interval: one would hold only for "
    "normal residuals with the same spread everywhere. Where they have long tails, sigma is smaller than their standard "
    "deviation."
)


class InSums(OfRecords):
    """A fit to a few noisy sums over all records, whose intervals include all noise."""

    intervals = True
    spread = "The draws in posterior.npz include the noise of the private fit."
    hidden = "The sums of {whose} can show {signal} for each of them, and the noise on each sum is {noise:.2g}."
    waiting = "Measuring noisy sums. It takes some seconds."

    @property
    def cost(self) -> tuple[float, float]:
        return self.plan.epsilon(), self.plan.delta

    def terms(self, num_records: int, delta: float) -> dict[str, Any]:
        """What plans of all methods take."""
        return {
            "epsilon": self.asked.epsilon,
            "delta": delta,
            "num_records": num_records,
            "relation": options.relation_of(self.asked.relation),
        }

    def plan_words(self, noun: str) -> str:
        return f"{self.plan.num_releases} noisy sums, to which a {noun} adds at most 1"

    def to_see(self) -> tuple[int | None, float]:
        return self.num_parameters, self.plan.noise_to_exceed

    @property
    def left_out(self) -> str:
        if not self.drops:
            return ""
        return f"{self.result.dropped} of the {self.plan.num_records:,} {self._persons} had such a cell."

    @property
    def how(self) -> dict[str, Any]:
        """What fits of many releases take."""
        return {
            "checkpoint": self.checkpoint,
            "progress_bar": self.asked.progress_bar,
            "mesh": self.members.mesh,
        }

    @abstractmethod
    def fit(self, key: "PRNGKeyArray", **how: Any) -> Any:
        """Fit the records."""

    def set_up(self) -> Callable[..., Any]:
        return self.fit


@dataclasses.dataclass
class BySums(InSums):
    """A fit of a regression: of a line by `fit_moments`, of others by `fit_newton`."""

    weighs = True

    @property
    def regression(self) -> "dp.models.NamedRegression":
        """What the model's name says."""
        return dp.models.REGRESSIONS[str(self.asked.model)]

    def __post_init__(self) -> None:
        self.hints = f"{TO_PREDICT} {SCALED_LINE if self.asked.model == LINEAR else SCALED}"
        if self.asked.model == LINEAR:
            self.spread = f"{InSums.spread} {PRIOR_OF_LINE}"

    def plan_for(self, num_records: int, delta: float) -> "dp.choose.PlanOfSums":
        return self.regression.plan(
            self.schema,
            num_features=len(self.records.feature_names),
            **self.terms(num_records, delta),
        )

    def estimates(self) -> tuple[dict[str, float], str]:
        if self.asked.model != NEGATIVE_BINOMIAL:
            return {}, ""
        low, high = self.result.dispersion_range
        return {"concentration": self.result.dispersion}, CONCENTRATION.format(low=low, high=high)

    def fit(self, key: "PRNGKeyArray", **how: Any) -> Any:
        import numpy as np

        x, y, *masks = self.records.arrays
        # A row that the schema drops is NaN throughout.
        mask = masks[0] if masks else ~np.isnan(y) if self.drops else None
        return dp.choose.fit_sums(
            key,
            x,
            y,
            self.plan,
            mask=mask,
            weights=self.records.weights,
            levels=dp.tables.are_levels(self.schema),
            names=self.records.feature_names,
            **self.how,
            **how,
        )


class OwnNewton(InSums):
    """A fit of the user's model to a few noisy gradients, by `DPNewton`, unless the model has a guide or is refused by it."""

    def why_not_weighed(self) -> str:
        return "a model of your own takes one of each record, and none with preprocess"

    def method_for(self, num_records: int) -> OfRecords:
        if self.asked.by is not None:
            return self
        if self.own is not None and self.own.guide is not None:
            return InSteps(**vars(self))
        try:
            dp.newton.names_of_latents(self.function, self.arguments(), num_records=num_records)
        except dp.inference.NoPointError as error:
            say_error(f"Fitted in steps: {error}")
            return InSteps(**vars(self))
        return self

    def plan_for(self, num_records: int, delta: float) -> "dp.newton.ModelPlan":
        if self.own is not None and self.own.guide is not None:
            raise ValueError(
                f"--by newton takes no guide, and {self.asked.model} has one: fit it in steps by --by svi, or remove the guide"
            )
        return dp.newton.ModelPlan.calibrate(**self.terms(num_records, delta))

    def check_weight(self) -> None:
        import numpy as np

        self.weighs = np.ndim(self.records.weights) == 1
        super().check_weight()

    def fit(self, key: "PRNGKeyArray", **how: Any) -> "dp.newton.DPNewtonResult":
        import numpy as np

        weights = self.records.weights
        return dp.DPNewton(self.function, plan=self.plan).run(
            key,
            *self.arguments(),
            max_rows=self.schema.max_rows,
            # A row that the schema drops is NaN throughout, and counts as nothing.
            weights=None if weights is None else np.nan_to_num(weights),
            **self.how,
            **how,
        )
