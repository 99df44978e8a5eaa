"""`discreet convert`: a table to encoded records, for tables larger than memory."""

from pathlib import Path
from typing import Annotated

import typer

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._terminal import (
    refusing,
    say,
    say_json,
)

Table = Annotated[
    Path, typer.Argument(metavar="TABLE", help="The table, a file with column names.")
]


@refusing
def convert(
    table: Table,
    schema: Annotated[Path, typer.Option(help="The schema, a TOML file.")],
    out: Annotated[Path, typer.Option(help="Folder for the records.")],
    shards: Annotated[
        int,
        typer.Option(
            help="Cut the records into so many files, for several devices or machines: a multiple of the devices."
        ),
    ] = 1,
    target: options.Target = None,
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier conversion.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a table against its schema and write it as encoded records, in pieces.

    `discreet convert survey.csv --schema schema.toml --out survey.records`

    `discreet fit --data survey.records --model logistic --epsilon 1`

    For tables that are larger than memory or fitted often. The folder is as sensitive as the table:
    only its owner can read it, and you should delete it when you no longer need it. If a cell is
    refused, nothing is written. No budget is spent.
    """
    described = dp.tables.schema_from_toml(schema, target=target)
    if out.exists() and not overwrite:
        raise ValueError(
            f"{out} already exists: choose another --out, or replace it with --overwrite"
        )
    records = dp.tables.convert(
        table, described, out, out_of_bounds=out_of_bounds, shards=shards, progress_bar=not as_json
    )
    if as_json:
        facts = {
            "num_records": records.num_records,
            "feature_names": records.feature_names,
            "files": [out],
        }
        say_json("convert", facts)
    else:
        say(
            f"Wrote {records.num_records:,} records with {len(records.feature_names)} features to {out}. It is as "
            "sensitive as the table: delete it when you no longer need it."
        )


def how_converted(data: Path, out_of_bounds: str) -> "dp.tables.Conversion | None":
    """The conversion settings of a fit's data; None if they were not converted."""
    made = dp.tables.conversion_of(data)
    if made is None:
        return None
    if out_of_bounds not in ("refuse", made.out_of_bounds):
        raise ValueError(
            f"{data} was converted with --out-of-bounds {made.out_of_bounds}: omit the option, or convert the table again"
        )
    return made


def check_whole(
    data: Path, made: "dp.tables.Conversion | None", out_of_bounds: str, what: str = "--model twin"
) -> None:
    """Refuse what cannot be read as a whole table."""
    if made is not None:
        raise ValueError(
            f"{data} is a converted table, for models that predict a column: {what} needs the table itself"
        )
    if out_of_bounds == "missing":
        raise ValueError(
            f"--out-of-bounds missing does not work with {what}: choose refuse or clip, list the texts "
            'that stand for a missing cell as missing_values in the schema, or write out_of_bounds = "missing" for a column in it'
        )
