"""`discreet check`: a fit by a formula against the description of its table, at no further cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import discreet as dp
from discreet._validate import LEVEL, integer, probability
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._formula import RESULT
from discreet.interfaces.cli._report import COUNTS, write_picture
from discreet.interfaces.cli._terminal import (
    PICTURES,
    check_file,
    refusing,
    say_json,
    say_lines,
    say_text,
)

if TYPE_CHECKING:
    from discreet.tabular.formulas import Regression
    from discreet.tabular.marginals import Marginals


@refusing
def check(
    fitted: Annotated[
        Path,
        typer.Argument(
            metavar="FIT",
            help="The folder that discreet fit --formula wrote, or fit.discreet.",
            show_default=False,
        ),
    ],
    described: Annotated[
        Path,
        typer.Argument(
            metavar="DESCRIPTION",
            help="The folder that discreet describe --all-pairs wrote of the same table, or twin.counts.",
            show_default=False,
        ),
    ],
    level: options.Level = LEVEL,
    replicates: Annotated[int, typer.Option(help="Number of tables drawn from the fit.")] = 400,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the target's shares to this file.")
    ] = None,
    overwrite: options.OverwriteFile = False,
    as_json: options.AsJson = False,
) -> None:
    """Check whether a fit by a formula explains what was released of its table. Spends nothing.

    `discreet describe survey.csv --schema schema.toml --epsilon 1 --all-pairs --slices 16 --out
    described`

    `discreet fit --data survey.csv --schema schema.toml --formula "smoker ~ age" --family bernoulli
    --epsilon 1`

    `discreet check discreet-fit described --plot check.png`

    Draws tables from the fit, counts them as the description counted the real one, and adds the
    same noise. Compares the target's shares and mean with these, in all records and in parts of
    each other column, and gives one verdict. No record is read: both statements hold as they are,
    and the last line says what fit and description cost together.
    """
    check_file(plot, "--plot", PICTURES, overwrite=overwrite)
    probability("--level", level, hint="0.9 is the default.")
    integer("--replicates", replicates, 100)
    result = _fit_in(fitted)
    released = _counts_in(described)
    found = dp.check(result, released, level=level, num_replicates=replicates)
    files = [] if plot is None else [write_picture(plot, found.plot())]
    if as_json:
        say_json("check", {**found.to_dict(), "files": files})
        return
    *table, verdict, spent = str(found).splitlines()
    say_text("\n".join(table))
    say_lines(verdict, fg=None if found.fits else "yellow")
    say_lines(spent)
    for file in files:
        say_lines(f"Picture: {file}.")


def _fit_in(path: Path) -> "Regression":
    """The regression in a folder or file."""
    if path.is_dir() and not (path / RESULT).exists():
        raise ValueError(
            f"{path} has no {RESULT}: give the folder of a discreet fit with --formula. Other fits are checked in Python, by "
            "dp.check"
        )
    return dp.formulas.Regression.load(path / RESULT if path.is_dir() else path)


def _counts_in(path: Path) -> "Marginals":
    """The counts in a folder or file."""
    if path.is_dir() and not (path / COUNTS).exists():
        raise ValueError(
            f"{path} has no {COUNTS}: give the folder that discreet describe --all-pairs, or discreet fit --model twin, wrote "
            "of the same table"
        )
    return dp.marginals.Marginals.load(path / COUNTS if path.is_dir() else path)
