"""`discreet schema init --private-bounds --private-categories`: what nobody knows, bought from the table."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import discreet as dp
from discreet._validate import near
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._run import RELEASED, keep_compiled_programs, row_order, say_spent
from discreet.interfaces.cli._statement import warn
from discreet.interfaces.cli._terminal import (
    PLAN_IS_SPENT,
    check_file,
    folder_for_results,
    say_lines,
    settings,
    spent,
    write_file,
)

if TYPE_CHECKING:
    from discreet.tabular.private_schema import PrivateSchema

HEAD = """\
# Bounds and categories of the columns in private_from_data were released from the table, with noise, and not taken from it.
# A few numbers may lie outside, and are moved to the nearer bound (out_of_bounds = "clip"); rare texts count as "other", or, in a
# target of two categories, as missing (fits leave such rows out). The release is spent, beside whatever is done with this schema.
# Where you state what is publicly known instead, take the column's name out of that list."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is to be bought, and what is publicly known; `blank` columns are left to be filled in."""

    numbers: Sequence[str]
    texts: Sequence[str]
    known: "dp.tables.Schema | None"
    person: str | None
    max_rows: int = 1
    target: str | None = None
    csv: "dp.tables.CsvFormat"
    blank: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Purchase:
    """The options of a purchase."""

    table: Path
    out: Path
    overwrite: bool
    wanted: Wanted
    epsilon: float
    delta: float | None
    num_records: int | None
    relation: options.RelationName | None
    ledger: Path | None
    seed: int | None

    @property
    def statement_file(self) -> Path:
        """The statement's place beside the schema."""
        return self.out.with_suffix(".statement.json")


def wanted_of_options(
    table: Path,
    csv: "dp.tables.CsvFormat",
    bounds: str | None,
    target: str | None,
    person: str | None,
    only: Sequence[str],
    *,
    numbers: bool,
    texts: bool,
) -> Wanted:
    """What the options ask for: these columns, or all that --bounds does not describe."""
    known = None if bounds is None else dp.tables.schema_from_bounds(bounds)
    names = [name for name in dp.tables.column_names(table, csv) if name]
    person, max_rows = options.person_and_rows(person)
    identifier = None if person == dp.tables.EACH_ROW else person
    if identifier is not None and identifier not in names:
        raise ValueError(_absent(identifier, "--person", names))
    others = {*(column.name for column in (known.columns if known else ())), identifier}
    chosen = _columns(only, names, others, dp.tables.column_kinds(table))
    return Wanted(
        numbers=chosen if numbers else (),
        texts=chosen if texts else (),
        known=known,
        person=person,
        max_rows=max_rows,
        target=target,
        csv=csv,
        blank=only or [name for name in names if name not in others],
    )


def buy(asked: Purchase) -> "tuple[PrivateSchema, list[Path]]":
    """Release the counts, and write the statement and, if anything was found, the schema; the result, and the files."""
    check_file(asked.statement_file, overwrite=asked.overwrite, makes_folder=True)
    wanted = asked.wanted
    kinds = dp.tables.column_kinds(asked.table)
    plan = dp.private_schema.PrivateSchemaPlan.calibrate(
        tuple(wanted.numbers),
        categories=wanted.texts,
        epsilon=asked.epsilon,
        delta=options.delta_of(asked.delta, asked.num_records, asked.ledger),
        known=wanted.known.columns if wanted.known else (),
        person=None if wanted.person == dp.tables.EACH_ROW else wanted.person,
        csv=wanted.csv,
        relation=options.relation_of(asked.relation),
    )
    warn(
        options.of_person(plan.as_read(kinds), wanted.person),
        asked.seed,
        asked.ledger,
        asked.table,
        by_bounds=True,
    )
    keep_compiled_programs(settings.compilation_cache)
    with folder_for_results(asked.out.parent, room=2**20):
        found = dp.private_schema.private_schema(
            dp.random.key(asked.seed),
            asked.table,
            plan,
            ledger=None if asked.ledger is None else dp.Ledger(asked.ledger),
            person_key=row_order(asked.seed),
            non_private_seed=asked.seed is not None,
        )
        spent(f"no statement was written, so {PLAN_IS_SPENT}", RELEASED)
        found = dataclasses.replace(found, statement=_complete(found, asked))
        write_file(asked.statement_file, found.statement.to_json())
        spent(f"the statement is in {asked.statement_file}", RELEASED)
        if all(column.reason for column in found.found.values()):
            return found, [asked.statement_file]
        write_file(asked.out, _text(found, asked, kinds))
    return found, [asked.out, asked.statement_file]


def say_bought(found: "PrivateSchema", asked: Purchase, files: list[Path]) -> None:
    """Print what was found, and what it cost."""
    longest = max(map(len, found.found))
    for name, column in found.found.items():
        said = " | ".join(column.categories) or f"nothing found: {column.reason}"
        if column.bounds is not None:
            said = f"{column.bounds[0]:.10g} to {column.bounds[1]:.10g}"
            if column.hidden > found.plan.share:
                said += f" (the noise may hide {column.hidden:.1%} of the values beyond each)"
        say_lines(f"{name:{longest}}  {said}{', with missing cells' if column.missing else ''}")
    unknown = [name for name, column in found.found.items() if column.reason]
    describe = f" Describe {dp.report.listed(unknown)} in it, or delete them." if unknown else ""
    if asked.out in files:
        outside = (
            f" At most about {found.plan.share:.0%} of the values should lie outside of these bounds; they are moved to the "
            "nearer one."
        )
        say_lines(f"Wrote {asked.out}.{outside if found.plan.columns else ''}{describe}")
    else:
        say_lines(
            f"No schema was written: no column has bounds or categories. The noise on each count has standard deviation "
            f"{found.plan.stddev:.4g}; fewer columns, or a larger ε, lower it."
        )
    if found.plan.categories:
        say_lines(f"A text is shown if its noisy count is above {found.plan.threshold:.4g}.")
    say_spent(found.statement, asked.ledger, files)


def _columns(
    only: Sequence[str],
    names: Sequence[str],
    others: Collection[str | None],
    kinds: "dict[str, dp.tables.Kind]",
) -> list[str]:
    """The columns whose bounds are bought: those that are named, or all that may hold numbers."""
    for name in only:
        if name not in names:
            raise ValueError(_absent(name, "--column", names))
        if name in others:
            raise ValueError(
                f"--column names {name!r}, which --bounds or --person names, too: leave it out of one"
            )
    without = (dp.tables.Kind.DATE, dp.tables.Kind.BINARY)
    chosen = only or [
        name for name in names if name not in others and kinds.get(name) not in without
    ]
    if not chosen:
        raise ValueError("no column is left whose bounds are not known: there is nothing to buy")
    return list(chosen)


def _absent(name: str, option: str, names: Sequence[str]) -> str:
    return f"{option}: the table has no column {name!r}: {near(name, names) or 'correct the name'}"


def _complete(found: "PrivateSchema", asked: Purchase) -> "dp.Statement":
    about = found.statement.about.replace(
        ", for a schema", f" of “{asked.table.name}”, for a schema"
    )
    statement = dataclasses.replace(found.statement, about=about)
    if asked.wanted.person == dp.tables.EACH_ROW:
        statement = statement.with_public(dp.report.EACH_ROW_A_PERSON)
    return dataclasses.replace(statement, made_on=str(found.made_on))


def _text(found: "PrivateSchema", asked: Purchase, kinds: "dict[str, dp.tables.Kind]") -> str:
    """The schema file: with columns left blank that are neither known nor were found."""
    wanted = asked.wanted
    schema = options.of_person(
        found.schema(asked.statement_file.name, wanted.target), wanted.person
    )
    described = {column.name: column for column in schema.columns}
    order = dp.tables.column_names(asked.table, wanted.csv)
    in_order = sorted(
        schema.columns,
        key=lambda column: order.index(column.name) if column.name in order else len(order),
    )
    schema = dataclasses.replace(schema, columns=tuple(in_order), max_rows=wanted.max_rows)
    why = {name: column.reason for name, column in found.found.items()}
    blank = [name for name in (*wanted.blank, *why) if name not in described]
    blanks = dp.tables.blank_columns(list(dict.fromkeys(blank)), kinds, why)
    return f"{HEAD}\n{dp.tables.schema_to_toml(schema, hints=True, more=blanks)}{dp.tables.decimal_hint(schema.csv)}"
