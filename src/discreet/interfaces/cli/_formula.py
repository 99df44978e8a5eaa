"""A fit by a formula, of `discreet fit`: a regression by `dp.regress`."""

import dataclasses
import hashlib
import shlex
from typing import TYPE_CHECKING, Any

import discreet as dp
from discreet._validate import finite_or_none
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._convert import check_whole
from discreet.interfaces.cli._methods import Method
from discreet.interfaces.cli._of_records import AGAIN, NUM_DRAWS
from discreet.interfaces.cli._report import npz, profile_of, write_page
from discreet.interfaces.cli._run import (
    budget_line,
    keep_compiled_programs,
    row_order,
    say_price,
    write_first,
)
from discreet.interfaces.cli._statement import warn
from discreet.interfaces.cli._terminal import (
    PLAN_IS_SPENT,
    say_json,
    say_lines,
    settings,
    spent,
    write_file,
    write_json,
)

if TYPE_CHECKING:
    from discreet.interfaces.cli._fit import Asked
    from discreet.tabular.formulas import Design, Regression

RESULT = "fit.discreet"
OTHERS = (
    "target",
    "by",
    "components",
    "steps",
    "rate",
    "batch_size",
    "clip",
    "learning_rate",
    "model_args",
    "raw",
    "distributed",
    "coordinator",
    "num_processes",
    "process_id",
    "draws",
)
"""Options of a fit that a formula has no use for."""


def check_formula(asked: "Asked") -> None:
    """Refuse options that do not go with a formula, before anything is read."""
    given = [name for name in OTHERS if getattr(asked, name) not in (None, False)]
    given += ["model"] * bool(asked.model) + ["sampling"] * (asked.sampling != "poisson")
    if given:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(
            f"{named} does not go with --formula, which says what is fitted: leave it out"
        )


def constants_of(text: str) -> dict[str, Any]:
    """Read public values of names: numbers, texts, and lists of these."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, rule = (word.strip() for word in part.partition("="))
        if not equals or not name or not rule:
            raise ValueError(
                f"--constants has {part!r}: write NAME=NUMBER, NAME=TEXT or, for a list, NAME=30|50, separated by commas"
            )
        values = [_number_or_text(word.strip()) for word in rule.split("|")]
        found[name] = values if len(values) > 1 else values[0]
    return found


def _number_or_text(word: str) -> Any:
    for read in (int, float):
        try:
            return read(word)
        except ValueError:
            continue
    return word


class ByFormula(Method):
    """A fit by a formula."""

    design: "Design"
    table: Any
    order: bytes | None
    result: "Regression"

    def prepare(self) -> "ByFormula":
        asked = self.asked
        check_whole(asked.data, self.made, asked.out_of_bounds, what="--formula")
        assert asked.formula is not None
        assert asked.epsilon is not None
        constants = constants_of(asked.constants) if asked.constants else None
        self.design = dp.formulas.Design(asked.formula, self.schema, asked.family, constants)
        self.schema = self.design.schema
        dp.formulas.refuse_rows(self.design)
        warn(self.schema, asked.seed, asked.ledger, asked.data, by_bounds=asked.bounds is not None)
        self.table = dp.tables.read_table(asked.data, self.schema)
        count = len(self.table)
        self.order = None
        if person := self.schema.person:
            people = self.table.column(person)
            count = len(people.unique())
            self.order = row_order(asked.seed)
            if self.order is None and asked.checkpoint is not None:
                self.order = dp.storage.kept_secret(asked.checkpoint / "persons.key")
            if self.schema.max_rows == 1:
                self.table = self.table.filter(
                    dp.tables.keep_one_row_a_person(people, key=self.order)
                )
        count = count if asked.num_records is None else asked.num_records
        delta = options.delta_of(asked.delta, count, asked.ledger)
        relation = options.relation_of(asked.relation)
        self.plan = dp.formulas.plan_of(
            self.design, epsilon=asked.epsilon, delta=delta, num_records=count, relation=relation
        )
        return self

    def say_dry_run(self) -> None:
        self._say_dry_run(
            {"columns": self.design.names}, cost=f", for {len(self.design.names)} columns"
        )
        if not self.asked.as_json:
            say_lines(f"Columns: {', '.join(self.design.names)}.")

    @property
    def cost(self) -> tuple[float, float]:
        return self.plan.epsilon(), self.plan.delta

    def run(self) -> None:
        asked = self.asked
        keep_compiled_programs(settings.compilation_cache)
        self.result = dp.formulas.fitted(
            self.design,
            self.table,
            self.plan,
            is_known=asked.num_records is None,
            out_of_bounds=str(asked.out_of_bounds),
            rng_key=dp.random.key(asked.seed),
            person_key=self.order,
            ledger=self.book(),
            checkpoint=asked.checkpoint,
            progress_bar=asked.progress_bar,
        )
        spent(f"no statement was written, so {PLAN_IS_SPENT}")
        self.members.remedy = (AGAIN, dp.inference.START_AGAIN)

    def write(self) -> None:
        asked = self.asked
        out = asked.out
        import pandas

        about = self.result.statement.about
        about = f"{about} Table: “{asked.dataset or asked.data.name}”."
        self.statement = dataclasses.replace(self.complete(self.result.statement), about=about)
        self.files = write_first(out, self.statement, asked.checkpoint)
        result = dataclasses.replace(self.result, statement=self.statement)
        interval = result.interval
        rows = {
            name: {
                "mean": float(mean),
                "sd": float(result.draws[name].std()),
                "low": low,
                "high": high,
            }
            for name, mean in result.estimate.items()
            for low, high in [map(float, interval[name])]
        }
        summary = {
            "note": dp.report.use_words(self.statement),
            "formula": result.formula,
            "family": result.family,
            "schema": dp.tables.schema_to_toml(self.schema),
            "units": f"Numbers are in the units of the table's columns: {self.design.family.coefficient}.",
            "posterior": finite_or_none(rows),
            "learned": finite_or_none(dict(result.learned)),
            "course": {},
            "profile": profile_of(self.plan, self.statement),
            "statement_sha256": hashlib.sha256(self.statement.to_json().encode()).hexdigest(),
        }
        draws = {name: value[:NUM_DRAWS] for name, value in result.draws.items()}
        self.files += [
            result.save(out / RESULT),
            write_file(out / "posterior.npz", npz(draws)),
            write_file(out / "posterior.csv", pandas.DataFrame(draws).to_csv(index=False)),
            write_json(out / "summary.json", summary),
        ]
        self.files.append(write_page(out, ledger=asked.ledger).file)
        self.result = result

    def say(self) -> None:
        """The table of coefficients, its price and its use."""
        asked = self.asked
        statement = self.statement
        if asked.as_json:
            rows = {
                name: dict(
                    zip(
                        ("mean", "low", "high"),
                        (float(self.result.estimate[name]), *map(float, ends)),
                        strict=True,
                    )
                )
                for name, ends in self.result.interval.items()
            }
            facts = {"statement": statement.to_dict(), "warnings": statement.warnings}
            say_json("fit", {**facts, "coefficients": finite_or_none(rows), "files": self.files})
            return
        count = f"{self.plan.num_records:,} {statement.unit.noun}s"
        say_price(
            f"Fitted {asked.formula} ({asked.family}) to {count}",
            statement,
            budget_line(asked.ledger, statement.delta),
        )
        say_lines("\n".join(str(self.result).splitlines()[:-2]))
        usable = statement.use != dp.report.NOT_USABLE
        say_lines(f"Use: {dp.report.use_words(statement)}", fg=None if usable else "yellow")
        for warning in statement.warnings:
            say_lines(f"Warning: {warning}", fg="yellow")
        say_lines(f"Files in {asked.out}: {', '.join(file.name for file in self.files)}.")
        page = asked.out / "report.html"
        say_lines(
            f"Next: discreet explain {shlex.quote(str(self.files[0]))}, and {page} in a browser."
        )
