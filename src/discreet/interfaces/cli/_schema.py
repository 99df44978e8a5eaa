"""`discreet schema`: write, check and show the description of a table."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._convert import Table
from discreet.interfaces.cli._private_schema import (
    Purchase,
    buy,
    say_bought,
    wanted_of_options,
)
from discreet.interfaces.cli._terminal import (
    Command,
    Commands,
    check_file,
    refusing,
    say,
    say_json,
    say_lines,
    say_text,
    write_file,
)

schema = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Describe a table: what is publicly known about its columns.",
)


@schema.command(cls=Command)
@refusing
def init(
    table: Table,
    out: Annotated[Path, typer.Option(help="Where to write the schema.")] = Path("schema.toml"),
    bounds: options.Bounds = None,
    target: options.Target = None,
    person: Annotated[
        str | None,
        typer.Option(
            help="Name of the column that identifies persons, with bounds also the most rows of a person to use, as in "
            "patient:5; or 'each row' if no person has two."
        ),
    ] = None,
    private_bounds: options.PrivateBounds = False,
    private_categories: options.PrivateCategories = False,
    column: options.BoughtColumns = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    num_records: options.DescribedRecords = None,
    relation: options.RelationOption = None,
    ledger: options.LedgerFile = None,
    seed: options.Seed = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a schema template from the column names.

    `discreet schema init survey.csv --out survey.toml`

    `discreet schema init survey.csv --private-bounds --epsilon 0.1 --ledger survey.ledger`

    With --bounds the file has these bounds and categories, and can be given to --schema as it is. A
    comment names the other kind that a column may have: bounds do not tell counts from numbers.

    Reads no cell: the template is the same for every table with this header. From the header come
    also the encoding and what stands between cells; from the types of a Parquet or Arrow file the
    kinds of columns.

    With --private-bounds and --private-categories the file has bounds and categories that follow
    from one release of noisy counts of the cells. Its private_from_data says what that cost; so do
    the statements of what is done with it. The statement is written beside it. Of a column, texts
    become categories if they are more than the numbers.
    """
    terms = {
        "epsilon": epsilon,
        "delta": delta,
        "num_records": num_records,
        "relation": relation,
    }
    asked_for = "--private-categories" if private_categories else ""
    if private_bounds:
        asked_for = "--private-bounds"
    _check_terms(asked_for, {**terms, "ledger": ledger, "column": column, "seed": seed})
    check_file(out, overwrite=overwrite, makes_folder=True)
    csv = dp.tables.sniff_csv(table)
    if not asked_for:
        _write_template(table, csv, out, bounds, target, person, as_json)
        return
    wanted = wanted_of_options(
        table,
        csv,
        bounds,
        target,
        person,
        column or (),
        numbers=private_bounds,
        texts=private_categories,
    )
    _make_purchase(
        Purchase(
            table=table,
            out=out,
            overwrite=overwrite,
            wanted=wanted,
            ledger=ledger,
            seed=seed,
            **terms,
        ),
        as_json,
    )


def _check_terms(asked_for: str, spends: dict[str, object]) -> None:
    """Refuse terms of a purchase without one, and a purchase without its price."""
    given = [name for name, value in spends.items() if value is not None]
    if given and not asked_for:
        raise ValueError(
            f"--{given[0].replace('_', '-')} is for --private-bounds: a template reads no cell, and spends nothing"
        )
    if asked_for and spends["epsilon"] is None:
        raise ValueError(
            f"{asked_for} spends a part of the privacy budget: say how much, as in --epsilon 0.1"
        )


def _write_template(
    table: Path,
    csv: "dp.tables.CsvFormat",
    out: Path,
    bounds: str | None,
    target: str | None,
    person: str | None,
    as_json: bool,
) -> None:
    """Write and print a schema for which nothing is spent."""
    hint = dp.tables.decimal_hint(csv)
    numbers = (
        " It takes numbers as 1234.5; for 1234,5 remove the # in its last line." if hint else ""
    )
    guessed: list[str] = []
    if bounds is not None:
        described = options.of_person(dp.tables.schema_from_bounds(bounds, target=target), person)
        described = dataclasses.replace(described, csv=csv)
        names = [column.name for column in described.columns]
        content = dp.tables.schema_to_toml(described, hints=True) + hint
        guessed = [column.name for column in described.columns if dp.tables.other_kind(column)]
        done = f"Wrote {out} with these bounds and categories. Give it to --schema in the place of --bounds.{numbers}"
        if guessed:
            done += f" Check the kind of {dp.report.listed(guessed)}: it is a guess, and a comment names the other one."
    else:
        names = [name for name in dp.tables.column_names(table, csv) if name]
        kinds = dp.tables.column_kinds(table)
        content = dp.tables.schema_template(
            names, csv=csv, target=target, person=person, kinds=kinds
        )
        done = f"Wrote {out} with the column names. Fill in what is publicly known about each column.{numbers}"
    write_file(out, content)
    if as_json:
        say_json("schema init", {"columns": names, "guessed": guessed, "files": [out]})
    else:
        say(done)


def _make_purchase(asked: Purchase, as_json: bool) -> None:
    """Release, write and print; exit with 1 if nothing was found for a schema."""
    found, files = buy(asked)
    if as_json:
        columns = {name: column._asdict() for name, column in found.found.items()}
        say_json("schema init", {**found.to_dict(), "found": columns, "files": files})
    else:
        say_bought(found, asked, files)
    if asked.out not in files:
        raise typer.Exit(1)


NOBODY_SAID = (
    "The schema does not say whether a person may have several rows, whose ε would be that of one row each: "
    'person = "each row" says that none has, person = "id" names the column.'
)


@schema.command(cls=Command)
@refusing
def check(
    file: Annotated[Path, typer.Argument(metavar="SCHEMA", help="The schema, a TOML file.")],
    data: Annotated[
        Path | None, typer.Option(help="A table that must have these columns; no cell is read.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what a schema describes, or all that is wrong with it.

    `discreet schema check schema.toml --data survey.csv`
    """
    described = dp.tables.schema_from_toml(file)
    columns = [column.name for column in described.columns]
    if data is not None:
        needed = [*columns, described.person] if described.person else columns
        there = dp.tables.column_names(data, described.csv)
        absent = [name for name in needed if name not in there]
        if absent:
            raise dp.tables.DataError(
                f"{data} has no column {', '.join(absent)}: correct the name, or remove it from the schema"
            )
    if as_json:
        facts = {
            "columns": columns,
            "target": described.target,
            "weight": described.weight,
            "person": described.person,
            "max_rows": described.max_rows,
            "described": dict(zip(columns, described.describe(), strict=True)),
            "bought": described.bought and described.bought.to_dict(),
        }
        say_json("schema check", facts)
    else:
        say_lines("\n".join(described.describe()))
        say(f"Privacy unit: {unit_of(described)}.")
        if described.person is None and not described.each_row:
            say(NOBODY_SAID)
        if described.bought is not None:
            say(described.bought.in_words())


@schema.command(name="json")
@refusing
def json_schema(as_json: options.AsJson = False) -> None:
    """Print the JSON Schema of schema files, by which editors complete and check them.

    `discreet schema json > discreet.json`

    Taplo and Even Better TOML use it where a schema file begins with the line `#:schema
    discreet.json`.
    """
    text = Path(dp.tables.__file__).with_name("schema.json").read_text(encoding="utf-8")
    if as_json:
        say_json("schema json", {"json_schema": json.loads(text)})
    else:
        say_text(text.rstrip())


def unit_of(schema: "dp.tables.Schema") -> str:
    if schema.person is None:
        return "one row"
    used = "one is used" if schema.max_rows == 1 else f"{schema.max_rows} at most are used"
    return f"one person (all rows with the same '{schema.person}', of which {used})"
