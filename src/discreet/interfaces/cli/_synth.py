"""`discreet synth`: synthetic twins from a fit."""

import dataclasses
import enum
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._own_model import FILE as OWN, read_own_fit
from discreet.interfaces.cli._report import COUNTS, twins_words
from discreet.interfaces.cli._statement import price_words
from discreet.interfaces.cli._terminal import (
    folder_for_results,
    refusing,
    say,
    say_error,
    say_files,
    say_json,
    with_options_of,
    write_file,
    write_json,
)

FORMAT = "discreet synthetic twins, version 1"


ABOUT = "twins.json"


TEXT = "twins.txt"


SCHEMA = "twins.schema.toml"


MOST_TWINS = 1_000


MOST_ROWS = 10_000_000_000


TWIN = re.compile(r"twin-\d+\.(csv|parquet)")


COMBINE = (
    "Analyse each twin separately, as if it were the table. With m twins, let b be the variance of their estimates and v the "
    "mean of the variances from the analyses: the combined estimate is the mean of the estimates, with variance "
    "T = (1 + 1/m) b - v, but at least v times rows of a twin over records of the table (discreet.synthetic.combine). Never "
    "pool the rows of several twins, and never use one twin as if it were the table: both make intervals too narrow."
)


DO_NOT_COMBINE = (
    "The rows of a twin come from several posterior draws. They resemble new rows, and intervals from several such twins cannot "
    "be combined: for that, draw twins without --rows-per-draw."
)


ROWS_ARE_NOBODY = (
    "Rows drawn from a model that was fitted under differential privacy: no row belongs to a person, and identifiers of "
    "persons, if any, are invented. The twins lack whatever the model lacks, such as fine dependence between columns."
)


class FormatName(enum.StrEnum):
    """The file format of a twin."""

    CSV = "csv"
    PARQUET = "parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of `synth`."""

    fitted: Annotated[
        Path,
        typer.Argument(
            metavar="FIT",
            help="The folder that discreet fit wrote, with --model twin or your own.",
            show_default=False,
        ),
    ]
    model: Annotated[
        str | None,
        typer.Option(help="If you fitted a model of your own: that model again, FILE.py:FUNCTION."),
    ] = None
    twins: Annotated[
        int,
        typer.Option(
            help="Number of twins, a file each: 5 for predictions, 20 or more for intervals."
        ),
    ] = 1
    rows: Annotated[
        int | None,
        typer.Option(
            help="Rows of each twin. Default: the public number of records of the fitted table."
        ),
    ] = None
    rows_per_draw: Annotated[
        int | None,
        typer.Option(
            "--rows-per-draw",
            "--m",
            min=1,
            help="Rows from one posterior draw; 1 is a draw for each row. Default: all rows of a twin, which combining twins "
            "needs.",
        ),
    ] = None
    file_format: Annotated[
        FormatName, typer.Option("--format", help="File format of the twins.")
    ] = FormatName.CSV
    seed: Annotated[
        int | None,
        typer.Option(help="Draw the same twins again. This is safe: nothing here reads the table."),
    ] = None
    out: Annotated[Path, typer.Option(help="Folder for the twins.")] = Path("discreet-twins")
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the twins that are in the folder.")
    ] = False
    as_json: options.AsJson = False


@refusing
@with_options_of(Asked)
def synth(asked: Asked) -> None:
    """Draw synthetic twins of a table that was fitted.

    `discreet synth discreet-fit --twins 5 --out twins`

    `discreet synth discreet-fit --twins 20 --rows 100000 --format parquet --out twins`

    `discreet synth discreet-fit --model mine.py:model --m 1 --out twins`

    Reads only the fit's folder, so any number of twins costs nothing beyond the fit's ε.

    Writes twin-1.csv and so on, their schema (twins.schema.toml), and the statement with
    instructions for analysing several twins (twins.json and twins.txt).
    """
    _check(asked)
    own = (asked.fitted / OWN).is_file()
    if asked.model is not None and not own:
        raise ValueError(f"{asked.fitted} contains no fit of a model of your own: omit --model")
    fit = read_own_fit(asked.fitted, asked.model) if own else dp.synthetic.read_fitted(asked.fitted)
    if (own or fit.num_draws > 1) and asked.rows_per_draw is None and asked.twins > fit.num_draws:
        raise ValueError(
            f"--twins is {asked.twins}, and the fit wrote {fit.num_draws} posterior draws: ask for fewer twins, or fit with "
            "more --draws"
        )
    statement = fit.statement
    if not statement.is_private:
        say_error(
            "NOT PRIVATE: the fit is not private, as its statement says, so the twins are not either."
        )
    about, files = _draw(asked, fit, own)
    if asked.as_json:
        say_json("synth", {**about, "files": files})
        return
    number = f"{asked.twins} twin{'s' if asked.twins > 1 else ''}"
    say(
        f"Wrote {number} ({_size_of(about)}, {len(about['columns'])} columns). No extra privacy cost beyond the fit's "
        f"{price_words(statement)}."
    )
    say_files(files)


def _draw(asked: Asked, fit: Any, own: bool) -> tuple[dict[str, Any], list[Path]]:
    """Draw the twins of a fit, of a model of the user's `own` or not, into files; what is said of them, and the files."""
    from tqdm.auto import tqdm

    out = asked.out
    statement = fit.statement
    count = asked.rows or statement.plan.get("num_records") or getattr(fit, "num_records", 0)
    # A twin's rows are nobody's, so whose they are is no column of it; but where persons have
    # several, it has invented ones.
    schema = fit.model.schema.of_twins()
    of_persons = not own and fit.model.schema.max_rows > 1
    schema = schema if of_persons else schema.without_person()
    dp.synthetic.check_format(schema, asked.file_format)
    how = COMBINE if asked.rows_per_draw is None else DO_NOT_COMBINE
    how = dp.marginals.NO_SPREAD if fit.num_draws == 1 and not own else how
    how = " ".join(filter(None, [how, getattr(fit, "not_counted", "")]))
    with folder_for_results(out):
        # Earlier twins go before the new ones come: there may be more of them, or of another
        # format.
        for path in [out / ABOUT, out / TEXT, out / SCHEMA, *_twins_in(out)]:
            path.unlink(missing_ok=True)
        total = None if of_persons else asked.twins * count
        hidden = asked.as_json or None
        with tqdm(
            total=total, unit=" rows", unit_scale=True, delay=2, disable=hidden, leave=False
        ) as bar:
            files = dp.synthetic.write_twins(
                dp.random.key(asked.seed),
                fit,
                fit.model,
                schema,
                out,
                num_twins=asked.twins,
                num_records=count,
                rows_per_draw=asked.rows_per_draw,
                file_format=asked.file_format,
                on_rows=bar.update,
            )
        about = {
            "format": FORMAT,
            "twins": [file.name for file in files],
            "sha256": {file.name: digest_of(file) for file in files},
            "persons" if of_persons else "rows": count,
            "columns": [column.name for column in fit.model.schema.columns],
            "model": fit.about,
            "rows_per_draw": asked.rows_per_draw,
            "seed": asked.seed,
            "what_they_are": ROWS_ARE_NOBODY,
            "how_to_combine": how,
            "statement": statement.to_dict(),
        }
        files.append(write_file(out / SCHEMA, dp.tables.schema_to_toml(schema)))
        files.append(write_file(out / TEXT, text_about(about, statement)))
        # Last: where it is, the twins are whole.
        files.append(write_json(out / ABOUT, about))
    return about, files


def digest_of(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _check(asked: Asked) -> None:
    out = asked.out
    if (asked.fitted / COUNTS).is_file() and not (asked.fitted / "twin.model").is_file():
        raise ValueError(
            f"{asked.fitted} has noisy counts, to which no twins were fitted: run {twins_words(asked.fitted)}, which spends "
            "nothing, then discreet synth twin"
        )
    if not 1 <= asked.twins <= MOST_TWINS:
        raise ValueError(f"--twins is {asked.twins}: give a number from 1 to {MOST_TWINS}")
    if asked.rows is not None and not 1 <= asked.rows <= MOST_ROWS:
        raise ValueError(f"--rows is {asked.rows}: give a number from 1 to {MOST_ROWS}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file: give a folder for the twins")
    if not asked.overwrite and (_twins_in(out) or (out / ABOUT).exists()):
        raise ValueError(
            f"{out} already contains twins: choose another --out, or replace them with --overwrite"
        )


def _twins_in(folder: Path) -> list[Path]:
    return (
        [path for path in folder.iterdir() if TWIN.fullmatch(path.name)] if folder.is_dir() else []
    )


def _size_of(about: Mapping[str, Any]) -> str:
    return f"{about['rows']:,} rows" if "rows" in about else f"{about['persons']:,} persons"


def text_about(about: Mapping[str, Any], statement: "dp.Statement") -> str:
    """The text for whoever finds the folder."""
    parts = [
        f"Synthetic twins: {', '.join(about['twins'])}, of {_size_of(about)} each. {SCHEMA} describes their columns.",
        f"WHAT THEY ARE\n{about['what_they_are']}",
        f"HOW TO DRAW CONCLUSIONS FROM THEM\n{about['how_to_combine']}",
        "WHAT THEY COST\nNothing beyond the fit that they were drawn from, whose statement follows.",
        str(statement),
    ]
    return "\n\n".join(parts) + "\n"
