"""`discreet utility`: how far twins serve, by rows that are named as non-private."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli import _options as options
from discreet.cli._terminal import refusing, say_error, say_json, say_text

Twins = Annotated[
    list[Path], typer.Argument(metavar="TWINS...", help="The twins' files: .csv, .parquet, .arrow or .feather.")
]
Evaluation = Annotated[
    Path,
    typer.Option(
        "--evaluation-non-private",
        help="Real rows to compare with, best of people whom no fit has seen. The report has exact figures of them.",
    ),
]
Training = Annotated[
    Path | None,
    typer.Option(
        "--training-non-private", help="Real rows to train on for comparison, under the same condition: not private."
    ),
]
Described = Annotated[Path, typer.Option("--schema", help="The schema of all these tables, a TOML file.")]
Target = Annotated[
    str | None, typer.Option(help="Column to predict. Left out: the schema's target, else each in turn.")
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Where to draw the shares of each column, twins beside real rows (.png, .pdf, .svg)."),
]


@refusing
def utility(
    twins: Twins,
    evaluation_non_private: Evaluation,
    schema: Described,
    training_non_private: Training = None,
    target: Target = None,
    plot: Plot = None,
    as_json: options.AsJson = False,
) -> None:
    """Say how far synthetic twins serve in the place of a table. NOT PRIVATE for the real rows that are given.

    `discreet utility twin-1.csv twin-2.csv --evaluation-non-private test.csv --schema schema.toml --plot marginals.png`

    Trains a standard model of the target on each twin and tests it on the real rows; compares the shares of columns and of pairs,
    and how closely columns go together; and lets a classifier tell twins from real rows. No ε covers the figures.
    """
    from discreet.synthetic import utility_report
    from discreet.tables import schema_from_toml

    if plot is not None:
        _check_plot(plot)
    described = schema_from_toml(schema, target=target)
    report = utility_report(
        twins, evaluation_non_private, described, training_table=training_non_private, non_private=True
    )
    if plot is not None:
        report.plot(plot)
    say_error(
        f"NOT PRIVATE: the report has exact figures of the rows in {evaluation_non_private}. Unless they are public, keep it "
        "from those who may not see them."
    )
    if as_json:
        say_json("utility", report.to_dict())
    else:
        say_text(str(report).rstrip("\n"))


def _check_plot(path: Path) -> None:
    """Refuse what would only fail after minutes of work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("--plot is drawn by matplotlib: install it with pip install 'discreet[plot]'") from None
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--plot is {path}: give it the ending .png, .pdf or .svg")
    if not path.parent.is_dir():
        raise ValueError(f"--plot is {path}, but there is no folder {path.parent}: make it, or choose another")
