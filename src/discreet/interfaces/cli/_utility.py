"""`discreet utility`: how useful twins are, on public rows."""

from pathlib import Path
from typing import Annotated

import typer

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._terminal import (
    PICTURES,
    check_file,
    refusing,
    say_error,
    say_json,
    say_text,
)


@refusing
def utility(
    twins: Annotated[
        list[Path],
        typer.Argument(
            metavar="TWINS...", help="The twins' files: .csv, .parquet, .arrow or .feather."
        ),
    ],
    evaluation_non_private: Annotated[
        Path,
        typer.Option(
            "--evaluation-non-private",
            help="Real rows to compare with, preferably of people that no fit has seen. The report contains exact figures of "
            "them.",
        ),
    ],
    schema: Annotated[
        Path, typer.Option("--schema", help="The schema of all these tables, a TOML file.")
    ],
    training_non_private: Annotated[
        Path | None,
        typer.Option(
            "--training-non-private",
            help="Real rows to train on for comparison; not private either.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Column to predict. Default: the schema's target, or each column in turn."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the shares of each column, twins beside real rows, to this file (.png, .pdf, .svg)."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure how well synthetic twins replace a table. NOT PRIVATE for the real rows.

    `discreet utility twin-1.csv twin-2.csv --evaluation-non-private test.csv --schema schema.toml
    --plot utility.png`

    Trains a standard model of the target on each twin and tests it on the real rows, compares the
    marginals of columns and pairs and the association of columns, and trains a classifier to
    distinguish twins from real rows. No ε covers the figures.
    """
    check_file(plot, "--plot", PICTURES)
    described = dp.tables.schema_from_toml(schema, target=target)
    report = dp.synthetic.utility_report(
        twins,
        evaluation_non_private,
        described,
        training_table=training_non_private,
        non_private=True,
    )
    if plot is not None:
        report.plot(plot)
    say_error(
        f"NOT PRIVATE: the report contains exact figures of the rows in {evaluation_non_private}. Unless they are "
        "public, show it only to people who may see them."
    )
    if as_json:
        say_json("utility", report.to_dict())
    else:
        say_text(str(report).rstrip("\n"))
