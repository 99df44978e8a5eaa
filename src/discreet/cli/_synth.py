"""`discreet synth`: twins of a table that was fitted, without the table."""

import dataclasses
import enum
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli import _options as options
from discreet.cli._terminal import folder_for_results, refusing, say, say_error, say_json, say_text, write_file

if TYPE_CHECKING:
    from discreet.report import Statement
    from discreet.synthetic import Fitted
    from discreet.tables import Schema

FORMAT = "discreet synthetic twins, version 1"
ABOUT, TEXT, SCHEMA = "twins.json", "twins.txt", "twins.schema.toml"
MOST_TWINS = 1_000
MOST_ROWS = 10_000_000_000
TWIN = re.compile(r"twin-\d+\.(csv|parquet)")
COMBINE = (
    "Analyse each twin by itself, as if it were the table. With m twins, b the variance of their estimates, and v the mean of "
    "the variances that the analyses give, the estimate is the mean of the estimates and its variance T = (1 + 1/m) b - v: "
    "discreet.synthetic.combine. Never put the rows of several twins on one pile, and do not take one twin for the table: "
    "either makes intervals too narrow."
)
ROWS_ARE_NOBODY = (
    "Rows drawn from a model that was fitted under differential privacy: no row is a person's. What the model does not hold, "
    "such as fine dependence between columns, the twins do not have."
)


class FormatName(enum.StrEnum):
    """What a twin is written as."""

    CSV = "csv"
    PARQUET = "parquet"


@refusing
def synth(
    fitted: Annotated[
        Path, typer.Argument(metavar="FIT", help="The folder that discreet fit --model twin wrote.", show_default=False)
    ],
    twins: Annotated[int, typer.Option(help="Number of twins: 5 for predictions, 20 or more for intervals.")] = 5,
    rows: Annotated[
        int | None, typer.Option(help="Rows of a twin. Left out: as many as the fitted table's public number.")
    ] = None,
    file_format: Annotated[
        FormatName, typer.Option("--format", help="What the twins are written as.")
    ] = FormatName.CSV,
    seed: Annotated[
        int | None, typer.Option(help="Draw the same twins again. It does no harm: nothing here reads the table.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the twins.")] = Path("discreet-twins"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the twins that are in the folder.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Draw synthetic twins of a table that was fitted.

    `discreet synth discreet-fit --twins 5 --out twins`

    `discreet synth discreet-fit --twins 20 --rows 100000 --format parquet --out twins`

    Reads the fit's folder and nothing else: twins cost nothing beyond the fit's ε, however many there are.

    Writes twin-1.csv and so on; twins.schema.toml, which describes them; twins.json and twins.txt, with the statement and how
    conclusions are drawn from several twins.
    """
    from discreet.accounting import upper
    from discreet.synthetic import check_format, read_fitted
    from discreet.tables import schema_to_toml

    _check(out, overwrite, twins, rows)
    fit = read_fitted(fitted)
    statement = fit.result.statement
    if not statement.is_private:
        say_error(
            "NOT PRIVATE: the fit that the twins are drawn from is not, as its statement says; so neither are they."
        )
    count = fit.result.plan.num_records if rows is None else rows
    # A twin's rows are nobody's, so whose they are is no column of it.
    schema = dataclasses.replace(fit.model.schema, person=None)
    check_format(schema, file_format)
    with folder_for_results(out):
        _remove_twins(out)
        files = _draw(fit, schema, out, twins, count, file_format, seed, progress_bar=not as_json)
        files.append(write_file(out / SCHEMA, schema_to_toml(schema)))
        about = {
            "format": FORMAT,
            "twins": [file.name for file in files[:-1]],
            "sha256": {file.name: digest_of(file) for file in files[:-1]},
            "rows": count,
            "columns": [column.name for column in fit.model.schema.columns],
            "model": {"components": fit.model.components, "slices": fit.model.slices},
            "seed": seed,
            "what_they_are": ROWS_ARE_NOBODY,
            "how_to_combine": COMBINE,
            "statement": statement.to_dict(),
        }
        files.append(write_file(out / TEXT, text_about(about, statement)))
        # Last: where it is, the twins are whole.
        files.append(write_file(out / ABOUT, json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False) + "\n"))
    if as_json:
        say_json("synth", {**about, "files": [str(file) for file in files]})
        return
    price = f"epsilon = {upper(statement.epsilon)} at delta = {statement.delta:g}"
    number = f"{twins} twin{'s' if twins > 1 else ''}"
    say(f"{number} of {count:,} rows and {len(about['columns'])} columns, at the price of the fit alone: {price}.")
    say("Files:")
    for file in files:
        say_text(f"  {file}")


def digest_of(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _check(out: Path, overwrite: bool, twins: int, rows: int | None) -> None:
    if not 1 <= twins <= MOST_TWINS:
        raise ValueError(f"--twins is {twins}: give a number from 1 to {MOST_TWINS}")
    if rows is not None and not 1 <= rows <= MOST_ROWS:
        raise ValueError(f"--rows is {rows}: give a number from 1 to {MOST_ROWS}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: name a folder for the twins")
    if not overwrite and (_twins_in(out) or (out / ABOUT).exists()):
        raise ValueError(f"{out} holds twins already: choose another --out, or replace them by --overwrite")


def _twins_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if TWIN.fullmatch(path.name)] if folder.is_dir() else []


def _remove_twins(folder: Path) -> None:
    """Earlier twins go before the new ones come: there may be more of them, or of another format."""
    for path in [folder / ABOUT, folder / TEXT, folder / SCHEMA, *_twins_in(folder)]:
        path.unlink(missing_ok=True)


def _draw(
    fit: "Fitted",
    schema: "Schema",
    out: Path,
    twins: int,
    rows: int,
    file_format: str,
    seed: int | None,
    *,
    progress_bar: bool,
) -> list[Path]:
    from tqdm import tqdm

    from discreet import random
    from discreet.synthetic import write_twins

    with tqdm(total=twins * rows, unit=" rows", unit_scale=True, delay=2, disable=not progress_bar, leave=False) as bar:
        return write_twins(
            random.key(seed),
            fit,
            fit.model,
            schema,
            out,
            num_twins=twins,
            num_records=rows,
            file_format=file_format,
            on_rows=bar.update,
        )


def text_about(about: Mapping[str, Any], statement: "Statement") -> str:
    """What whoever finds the folder should know."""
    parts = [
        f"Synthetic twins: {', '.join(about['twins'])}, of {about['rows']:,} rows each. {SCHEMA} describes their columns.",
        f"WHAT THEY ARE\n{about['what_they_are']}",
        f"HOW TO DRAW CONCLUSIONS FROM THEM\n{about['how_to_combine']}",
        "WHAT THEY COST\nNothing beyond the fit that they were drawn from, whose statement follows.",
        str(statement),
    ]
    return "\n\n".join(parts) + "\n"
