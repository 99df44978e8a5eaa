"""Fits in noisy steps, of `discreet fit`: of a regression, of a model of the user, and of a twin."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._convert import check_whole
from discreet.interfaces.cli._methods import say_unweighed, synth_words
from discreet.interfaces.cli._of_records import OfRecords
from discreet.interfaces.cli._report import draw_picture

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray
    from matplotlib.figure import Figure


class InSteps(OfRecords):
    """A fit in noisy steps, by `DPSVI` with the default guide or the user's."""

    spread = (
        "The draws in posterior.npz are those of the fitted guide: their spread does not include the noise of the private fit, "
        "which can be several times as large at small ε."
    )
    hidden = (
        "The gradients of {whose} can add up to {signal} C for each of them (C is the clipping norm), and the noise that is "
        "left in the mean of all steps is {noise:.2g} C."
    )
    in_shards = True
    waiting = "Compiling the fit, which takes up to a minute. Steps follow."
    whole: Any = None  # The model of the whole table, if it is one

    def plan_for(self, num_records: int, delta: float) -> "dp.PrivacyPlan":
        asked = self.asked
        defaults = self.chosen.defaults(self.schema)
        return options.plan_of(
            num_records=num_records,
            epsilon=asked.epsilon,
            delta=delta,
            num_steps=defaults.num_steps if asked.steps is None else asked.steps,
            clipping_norm=defaults.clipping_norm
            if asked.clip is None
            else options.clipping_of(asked.clip),
            sampling=asked.sampler(num_records, defaults.rate_for(num_records)),
            relation=asked.relation,
        )

    @property
    def stated_delta(self) -> float:
        return self.plan.target_delta

    @property
    def learning_rate(self) -> float:
        """The step size of Adam."""
        given = self.asked.learning_rate
        return self.chosen.defaults(self.schema).learning_rate if given is None else given

    @property
    def cost(self) -> tuple[float, float]:
        return self.plan.epsilon(self.stated_delta), self.stated_delta

    @property
    def plan_facts(self) -> dict[str, float]:
        plan = self.plan
        return {
            "num_steps": plan.num_steps,
            "rate": plan.rate,
            "clipping_norm": plan.clipping.start,
        }

    def plan_words(self, noun: str) -> str:
        plan = self.plan
        adapts = ", which then adapts" if plan.clipping.adapts else ""
        return (
            f"{plan.num_steps:,} steps; {plan.sampling.in_words(plan.num_records, noun)}; clipping norm "
            f"{plan.clipping.start:g}{adapts}; noise {plan.noise_multiplier:.4g}"
        )

    def to_see(self) -> tuple[int | None, float]:
        """The number of parameters, and the noise that is left in the mean of all steps, in units of C.

        All gradients together are at most N C long, which leaves N C / P for each of P parameters.
        C cancels out.
        """
        plan = self.plan
        return self.num_parameters, plan.noise_multiplier / (plan.rate * math.sqrt(plan.num_steps))

    @property
    def left_out(self) -> str:
        if not self.drops:
            return ""
        counted = self.result.counted
        share = counted._replace(value=1 - counted.value)
        return f"{share} of the {self.plan.num_records:,} {self._persons} had such a cell, or no finite loss."

    def set_up(self) -> Callable[..., Any]:
        import numpyro

        guide = None if self.own is None else self.own.guide
        dpsvi = dp.inference.DPSVI(
            self.function,
            dp.models.guide_for(self.whole or self.function) if guide is None else guide,
            numpyro.optim.Adam(self.learning_rate),
            plan=self.plan,
            placeholder=None if self.whole is None else self.whole.placeholder,
        )
        arguments = self.arguments()

        def fit(key: "PRNGKeyArray", **how: Any) -> Any:
            return dpsvi.run(
                key,
                *arguments,
                progress_bar=self.asked.progress_bar,
                checkpoint=self.checkpoint,
                max_rows=self.schema.max_rows,
                mesh=self.members.mesh,
                **how,
            )

        return fit

    def plot(self) -> list[Path]:
        return draw_picture(self.asked.out / "fit.png", self.picture)

    def picture(self) -> "Figure":
        """Draw the trade-off curve and the private losses."""
        figure = dp.plots.new_figure(9, 4)
        left, right = figure.subplots(1, 2)
        dp.plots.draw_trade_off(left, self.plan.profile())
        dp.plots.draw_losses(right, self.result.losses)
        return figure


class TwinInSteps(InSteps):
    """A fit in steps of a model of the whole table, from which `discreet synth` draws."""

    spread = (
        "Twins are drawn from the fitted guide, which does not include the noise of the private fit: analyses of several twins "
        "understate their uncertainty at small ε."
    )
    leaves_out = False

    def check_weight(self) -> None:
        say_unweighed(self.schema)

    def read(self) -> None:
        """Read the level of each cell."""
        data = self.asked.data
        schema = self.schema
        self.whole = self.chosen.build(schema)
        self.function = self.whole.model
        check_whole(data, self.made, self.odd_cells)
        table = dp.tables.read_table(data, schema, out_of_bounds=self.odd_cells)
        if schema.person is not None and schema.max_rows == 1:
            table = table.filter(
                dp.tables.keep_one_row_a_person(table.column(schema.person), key=self.order)
            )
        levels = self.whole.encode(table, out_of_bounds=self.odd_cells, key=self.order)
        names = tuple(column.name for column in schema.columns)
        self.records = dp.tables.Records(x=levels, y=None, feature_names=names)

    def doubts(self) -> tuple[str, str] | None:
        doubts = super().doubts()
        if self.whole.components == 1:
            doubts = (
                "Likely not usable: the columns of a twin with one component are independent, so no column predicts another.",
                "Use --components 2 or more.",
            )
        if doubts is None or self.schema.max_rows == 1:
            return doubts
        # 1,675 persons with up to 5 rows at ε = 1: three components pass, but predict nothing (AUC
        # 0.50); counts do (0.76).
        counts = " With --by marginals a twin is fitted to noisy counts of rows, which keep relations of columns."
        return doubts[0], doubts[1] + counts

    def write_results(self) -> list[Path]:
        result = dataclasses.replace(self.result, statement=self.statement)
        return dp.synthetic.write_fitted(self.asked.out, result, self.whole)

    def next_step(self) -> str:
        return synth_words(self.asked.out)
