"""A twin fitted to noisy counts, of `discreet fit`."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import discreet as dp
from discreet._validate import RefusedError
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._convert import check_whole
from discreet.interfaces.cli._methods import Method, say_unweighed, synth_words
from discreet.interfaces.cli._options import TWIN, MethodName, choose_model, delta_of
from discreet.interfaces.cli._report import COUNTS, facts_in, write_page, write_statement
from discreet.interfaces.cli._run import (
    RELEASED,
    budget_line,
    check_folder,
    keep_compiled_programs,
    row_order,
    say_price,
    write_first,
)
from discreet.interfaces.cli._statement import warn
from discreet.interfaces.cli._terminal import (
    PLAN_IS_SPENT,
    folder_for_results,
    on_terminal,
    say_error,
    say_json,
    say_lines,
    settings,
    spent,
)

if TYPE_CHECKING:
    from discreet.interfaces.cli._fit import Asked


class Counts(Method):
    """A twin fitted to noisy counts, which are released in one pass over the file."""

    leaves_out = False

    released: "dp.marginals.Marginals"

    def prepare(self) -> "Counts":
        asked = self.asked
        schema = self.schema
        if asked.distributed:
            raise RefusedError(
                "--distributed is for fits in steps, and noisy counts take one pass: leave it out, or add --by svi"
            )
        check_whole(asked.data, self.made, asked.out_of_bounds)
        say_unweighed(schema)
        warn(schema, asked.seed, asked.ledger, asked.data, by_bounds=asked.bounds is not None)
        assert asked.epsilon is not None
        self.plan = dp.marginals.MarginalsPlan.calibrate(
            schema,
            epsilon=asked.epsilon,
            delta=delta_of(asked.delta, asked.num_records, asked.ledger),
            relation=options.relation_of(asked.relation),
        )
        return self

    def say_dry_run(self) -> None:
        columns = [column.name for column in self.schema.columns]
        self._say_dry_run(
            {"columns": columns}, cost=f", for noisy counts of these columns: {', '.join(columns)}"
        )

    def run(self) -> None:
        asked = self.asked
        seed = asked.seed
        keep_compiled_programs(settings.compilation_cache)
        released = dp.marginals.private_marginals(
            dp.random.key(seed),
            asked.data,
            self.plan,
            ledger=self.book(),
            out_of_bounds=asked.out_of_bounds,
            person_key=row_order(seed),
            non_private_seed=seed is not None,
        )
        spent(f"no statement was written, so {PLAN_IS_SPENT}", RELEASED)
        self.statement = self.complete(released.statement).with_notes(
            *dp.marginals.not_counted(released.plan)
        )
        self.released = dataclasses.replace(released, statement=self.statement)

    def complete(self, statement: "dp.Statement") -> "dp.Statement":
        notes = [
            dp.marginals.NO_SPREAD,
            *([dp.marginals.NOBODYS] if self.schema.max_rows > 1 else []),
        ]
        return super().complete(statement).with_notes(*notes)

    def write(self) -> None:
        out = self.asked.out
        self.files = write_first(out, self.statement, None, RELEASED)
        counts = self.released.save(out / COUNTS)
        spent(
            f"the statement is in {out}, and the noisy counts are in {counts}: discreet fit --data {shlex.quote(str(counts))} "
            f"--model {TWIN} --out {shlex.quote(str(out))} continues, and spends nothing",
            RELEASED,
        )
        if on_terminal():
            say_error("Fitting the noisy counts, which spends nothing more. It takes some seconds.")
        model, result = fit_counts(self.asked, self.released)
        self.files += [counts, *dp.synthetic.write_fitted(out, result, model)]
        self.files.append(write_page(out, ledger=self.asked.ledger).file)

    def say(self) -> None:
        budget = budget_line(self.asked.ledger, self.statement.delta)
        say_twin(self.asked, "Fitted a twin to noisy counts", self.statement, self.files, budget)


def fit_counts(
    asked: "Asked", released: "dp.marginals.Marginals"
) -> "tuple[dp.models.MixtureOfProducts, dp.marginals.MarginalsResult]":
    """Fit a twin to noisy counts."""
    chosen = {"components": asked.components, "num_draws": asked.draws}
    return dp.marginals.fit_twins(
        released, **{name: value for name, value in chosen.items() if value is not None}
    )


def fit_again(asked: "Asked") -> None:
    """Fit noisy counts that were kept: in their own folder, or in another one."""
    data = asked.data / COUNTS if asked.data.is_dir() else asked.data
    out = asked.out
    if asked.distributed:
        raise RefusedError(
            f"--distributed is for fits in steps, and {data} has noisy counts: leave it out"
        )
    free = ("data", "model", "by", "components", "draws", "out", "overwrite", "as_json")
    left_out = all(
        getattr(asked, x.name) == x.default for x in dataclasses.fields(asked) if x.name not in free
    )
    if asked.model != TWIN or asked.by not in (None, MethodName.MARGINALS) or not left_out:
        raise ValueError(
            f"{data} has noisy counts, which were paid for: with --model {TWIN} give --components, --draws, --out, "
            "--overwrite and --json alone, or the table itself"
        )
    choose_model(TWIN, components=asked.components)
    released = dp.marginals.Marginals.load(data)
    files = []
    # What else the statement in the folder says may be more.
    stated = facts_in(out / "statement.json")
    wanted = json.loads(released.statement.to_json())
    same = all(stated.get(name) == wanted[name] for name in ("epsilon", "delta", "plan"))
    at_home = same and out.resolve() == data.parent.resolve()
    check_folder(out, overwrite=asked.overwrite or at_home)
    with folder_for_results(out):
        model, result = fit_counts(asked, released)
        # That of a description does not say yet what holds of twins.
        if not at_home or stated == wanted != json.loads(result.statement.to_json()):
            files = [*write_statement(out, result.statement), released.save(out / COUNTS)]
        files += dp.synthetic.write_fitted(out, result, model)
        files.append(write_page(out).file)
    nothing = "nothing more was spent. This ε was, when the counts were released."
    say_twin(asked, "Fitted the noisy counts again", result.statement, files, nothing)


def say_twin(
    asked: "Asked", what: str, statement: "dp.Statement", files: list[Path], budget: str
) -> None:
    """Print the price of a twin, and its files."""
    if asked.as_json:
        say_json("fit", {"statement": statement.to_dict(), "files": files})
        return
    say_price(what, statement, budget)
    for warning in statement.data_warnings:
        say_lines(f"Warning: {warning}", fg="yellow")
    say_lines(f"Files in {asked.out}: {', '.join(file.name for file in files)}.")
    say_lines(f"Next: {synth_words(asked.out)}")
