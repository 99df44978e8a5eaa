"""`discreet schema`, `convert`, `synth` and `utility`: what describes, converts, draws and judges tables."""

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
from discreet.cli._terminal import (
    Commands,
    folder_for_results,
    refusing,
    say,
    say_error,
    say_json,
    say_lines,
    say_text,
    write_file,
)

if TYPE_CHECKING:
    from discreet.report import Statement
    from discreet.synthetic import Fitted
    from discreet.tables import Conversion, Schema


schema = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Describe a table: what is publicly known of its columns."
)

Table = Annotated[Path, typer.Argument(metavar="TABLE", help="The table, a file with column names.")]
SchemaOut = Annotated[Path, typer.Option(help="Where to write the schema.")]
FromData = Annotated[
    bool,
    typer.Option(
        "--non-private-from-data", help="Take bounds and categories from the cells. Breaks the guarantee, and says so."
    ),
]


@schema.command()
@refusing
def init(
    table: Table,
    out: SchemaOut = Path("schema.toml"),
    target: options.Target = None,
    person: Annotated[str | None, typer.Option(help="Name of the column that says whose a row is.")] = None,
    non_private_from_data: FromData = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a schema to fill in, from the names of the columns alone.

    `discreet schema init survey.csv --out survey.toml`

    No cell is read: the template is the same for every table with this header.
    """
    from discreet.tables import column_names, infer_columns_non_private, schema_template, schema_to_toml

    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already: choose another --out, or replace it by --overwrite")
    if not non_private_from_data:
        if target is not None or person is not None:
            raise ValueError(
                "--target and --person go with --non-private-from-data: write them into the template instead"
            )
        names = list(column_names(table))
        write_file(out, schema_template(names))
        if as_json:
            say_json("schema init", {"columns": names, "inferred": [], "files": [str(out)]})
        else:
            say(f"{out} has the names of the columns: fill in what is publicly known of each.")
        return
    names = [name for name in column_names(table) if name != person]
    described = infer_columns_non_private(table, None, target=target, columns=names)
    described = dataclasses.replace(described, person=person)
    write_file(out, f"{NON_PRIVATE_HEAD}\n{schema_to_toml(described)}")
    if as_json:
        say_json("schema init", {"columns": names, "inferred": list(described.inferred), "files": [str(out)]})
    say_error(
        f"NOT PRIVATE: all bounds and categories in {out} are cells of the table: the smallest and the largest value of a column "
        "are single persons', and so may a category be. No ε holds for a fit that uses them, and its statement says so, as long "
        "as the file lists their columns as taken from the data."
    )


NON_PRIVATE_HEAD = """\
# NOT PRIVATE: the bounds and categories below were taken from the cells of the table. Do not publish this file; no ε holds
# for a fit that uses it, and the fit's statement says so. Where you have replaced a column's by what is publicly known
# without the table, take its name out of this list:"""


@schema.command()
@refusing
def check(
    file: Annotated[Path, typer.Argument(metavar="SCHEMA", help="The schema, a TOML file.")],
    data: Annotated[
        Path | None, typer.Option(help="A table whose header must have the columns; no cell is read.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Say what a schema describes, or what is wrong with it.

    `discreet schema check schema.toml --data survey.csv`
    """
    from discreet.tables import DataError, column_names, schema_from_toml

    described = schema_from_toml(file)
    needed = [column.name for column in described.columns] + ([described.person] if described.person else [])
    if data is not None:
        absent = [name for name in needed if name not in column_names(data)]
        if absent:
            raise DataError(
                f"{data} has no column {', '.join(absent)}: correct the name, or leave it out of the schema"
            )
    if as_json:
        columns = [column.name for column in described.columns]
        facts = {"columns": columns, "target": described.target, "person": described.person}
        said = dict(zip(columns, described.describe(), strict=True))
        say_json("schema check", {**facts, "described": said, "inferred": list(described.inferred)})
    else:
        say_lines("\n".join(described.describe()))
        say(f"A record is {'a row' if described.person is None else PERSON.format(described.person)}.")
    if described.inferred:
        say_error(
            f"NOT PRIVATE: {', '.join(described.inferred)} as taken from the data. No ε holds for a fit that uses them."
        )


PERSON = "a person: of the rows with the same '{}' one is kept, by a secret order"


RecordsOut = Annotated[Path, typer.Option(help="Where to write the records, a name that ends with .arrow.")]


@refusing
def convert(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="The table, a file with column names.")],
    schema: Annotated[Path, typer.Option(help="The schema, a TOML file.")],
    out: RecordsOut,
    target: options.Target = None,
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a table against its schema and write it as encoded records, piece by piece.

    `discreet convert survey.csv --schema schema.toml --out survey.records.arrow`

    `discreet fit --data survey.records.arrow --model logistic --epsilon 1`

    For tables larger than memory, and for those that are fitted often. The file is as private as the table: its owner alone may
    read it, and it is yours to delete. If a cell is refused, nothing is written. No budget is spent.
    """
    from discreet import tables

    described = tables.schema_from_toml(schema, target=target)
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already: choose another --out, or replace it by --overwrite")
    records = tables.convert(table, described, out, out_of_bounds=out_of_bounds, progress_bar=not as_json)
    if as_json:
        facts = {"num_records": records.num_records, "feature_names": list(records.feature_names), "files": [str(out)]}
        say_json("convert", {**facts, "inferred": list(described.inferred)})
    else:
        say(
            f"{out} holds {records.num_records:,} records of {len(records.feature_names)} features. It is as private as the "
            "table: delete it when you no longer need it."
        )
    if described.inferred:
        say_error(
            f"NOT PRIVATE: {', '.join(described.inferred)} as taken from the data. No ε holds for a fit that uses them."
        )


def how_converted(data: Path, *, non_private_bounds: bool, out_of_bounds: str) -> "Conversion | None":
    """How the data of a fit were converted; None if they were not.

    Raises:
        ValueError: Options that ask for what the conversion has settled otherwise.
    """
    from discreet.tables import conversion_of

    made = conversion_of(data)
    if made is None:
        return None
    if non_private_bounds:
        raise ValueError(
            f"{data} holds converted records, whose bounds are settled: leave --non-private-bounds out, or give the table itself"
        )
    if out_of_bounds not in ("refuse", made.out_of_bounds):
        raise ValueError(
            f"{data} was converted with --out-of-bounds {made.out_of_bounds}: leave the option out, or convert the table again"
        )
    return made


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
