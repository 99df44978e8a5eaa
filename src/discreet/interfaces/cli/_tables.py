"""`discreet schema`, `convert`, `synth` and `utility`: what describes, converts, draws and judges tables."""

import dataclasses
import enum
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._own_model import FILE as OWN, read_own_fit
from discreet.interfaces.cli._private_schema import (
    Purchase,
    buy,
    say_bought,
    wanted_of_options,
    wanted_of_schema,
)
from discreet.interfaces.cli._statement import price_words
from discreet.interfaces.cli._terminal import (
    PICTURES,
    Command,
    Commands,
    check_file,
    folder_for_results,
    refusing,
    say,
    say_error,
    say_files,
    say_json,
    say_lines,
    say_text,
    with_options_of,
    write_file,
    write_json,
)

schema = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Describe a table: what is publicly known about its columns.",
)

Table = Annotated[
    Path, typer.Argument(metavar="TABLE", help="The table, a file with column names.")
]


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
            help="Name of the column that identifies persons, or 'each row' if no person has two."
        ),
    ] = None,
    non_private_from_data: Annotated[
        bool,
        typer.Option(
            "--non-private-from-data",
            help="Take bounds and categories from the cells. The result is NOT PRIVATE.",
        ),
    ] = False,
    private_bounds: options.PrivateBounds = False,
    private_categories: options.PrivateCategories = False,
    column: options.BoughtColumns = None,
    schema: options.SchemaToBuy = None,
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
    asked_for = "--private-bounds" if private_bounds else "--private-categories"
    if schema is not None:
        asked_for = "--schema"
    elif not (private_bounds or private_categories):
        asked_for = ""
    _check_terms(
        asked_for,
        {**terms, "ledger": ledger, "column": column, "seed": seed},
        non_private_from_data,
    )
    check_file(out, overwrite=overwrite, makes_folder=True)
    csv = dp.tables.sniff_csv(table)
    if not asked_for:
        _write_template(table, csv, out, bounds, target, person, non_private_from_data, as_json)
        return
    if schema is None:
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
    elif private_bounds or private_categories or bounds or target or person or column:
        raise ValueError(
            "--schema says what to buy, and the rest: leave other options that describe columns out"
        )
    else:
        wanted = wanted_of_schema(schema)
    files = {"table": table, "out": out, "overwrite": overwrite, "ledger": ledger}
    _make_purchase(Purchase(wanted=wanted, seed=seed, **terms, **files), as_json)


def _check_terms(asked_for: str, spends: dict[str, object], non_private_from_data: bool) -> None:
    """Refuse terms of a purchase without one, and a purchase without its price or beside cells that cost nothing."""
    given = [name for name, value in spends.items() if value is not None]
    if given and not asked_for:
        raise ValueError(
            f"--{given[0].replace('_', '-')} is for --private-bounds: a template reads no cell, and spends nothing"
        )
    if asked_for and spends["epsilon"] is None:
        raise ValueError(
            f"{asked_for} spends a part of the privacy budget: say how much, as in --epsilon 0.1"
        )
    if asked_for and non_private_from_data:
        raise ValueError(f"{asked_for} and --non-private-from-data: give only one")


def _write_template(
    table: Path,
    csv: "dp.tables.CsvFormat",
    out: Path,
    bounds: str | None,
    target: str | None,
    person: str | None,
    non_private_from_data: bool,
    as_json: bool,
) -> None:
    """Write and print a schema for which nothing is spent."""
    hint = dp.tables.decimal_hint(csv)
    numbers = (
        " It takes numbers as 1234.5; for 1234,5 remove the # in its last line." if hint else ""
    )
    inferred: tuple[str, ...] = ()
    guessed: list[str] = []
    if bounds is not None:
        if non_private_from_data:
            raise ValueError("--bounds and --non-private-from-data: give only one")
        described = options.of_person(dp.tables.schema_from_bounds(bounds, target=target), person)
        described = dataclasses.replace(described, csv=csv)
        names = [column.name for column in described.columns]
        content = dp.tables.schema_to_toml(described, hints=True) + hint
        guessed = [column.name for column in described.columns if dp.tables.other_kind(column)]
        done = f"Wrote {out} with these bounds and categories. Give it to --schema in the place of --bounds.{numbers}"
        if guessed:
            done += f" Check the kind of {dp.report.listed(guessed)}: it is a guess, and a comment names the other one."
    elif non_private_from_data:
        names = [name for name in dp.tables.column_names(table, csv) if name and name != person]
        described = dp.tables.infer_columns_non_private(table, None, target=target, columns=names)
        described = options.of_person(described, person)
        inferred = described.inferred
        content = f"{NON_PRIVATE_HEAD}\n{dp.tables.schema_to_toml(described)}"
        done = ""
    else:
        names = [name for name in dp.tables.column_names(table, csv) if name]
        kinds = dp.tables.column_kinds(table)
        content = dp.tables.schema_template(
            names, csv=csv, target=target, person=person, kinds=kinds
        )
        done = f"Wrote {out} with the column names. Fill in what is publicly known about each column.{numbers}"
    write_file(out, content)
    if as_json:
        say_json(
            "schema init",
            {"columns": names, "inferred": inferred, "guessed": guessed, "files": [out]},
        )
    elif done:
        say(done)
    if non_private_from_data:
        say_error(NOT_PRIVATE.format(out=out))


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


NOT_PRIVATE = (
    "NOT PRIVATE: all bounds and categories in {out} are cells of the table: the smallest and the largest value of a column "
    "belong to individual people, and so may a category. No ε holds for a fit that uses them, and its statement says so, as long "
    "as the file lists their columns as taken from the data."
)
NON_PRIVATE_HEAD = """\
# NOT PRIVATE: the bounds and categories below were taken from the cells of the table. Do not publish this file; no ε holds
# for a fit that uses it, and the fit's statement says so. Where you have replaced a column's by what is publicly known
# without the table, take its name out of this list:"""


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
            "inferred": described.inferred,
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
    _say_inferred(described)


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


def _say_inferred(schema: "dp.tables.Schema") -> None:
    if schema.inferred:
        names = ", ".join(schema.inferred)
        say_error(
            f"NOT PRIVATE: {names} were taken from the data. No ε holds for a fit that uses them."
        )


def unit_of(schema: "dp.tables.Schema") -> str:
    if schema.person is None:
        return "one row"
    used = "one is used" if schema.max_rows == 1 else f"{schema.max_rows} at most are used"
    return f"one person (all rows with the same '{schema.person}', of which {used})"


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
        say_json("convert", {**facts, "inferred": described.inferred})
    else:
        say(
            f"Wrote {records.num_records:,} records with {len(records.feature_names)} features to {out}. It is as "
            "sensitive as the table: delete it when you no longer need it."
        )
    _say_inferred(described)


def how_converted(
    data: Path, *, non_private_bounds: bool, out_of_bounds: str
) -> "dp.tables.Conversion | None":
    """The conversion settings of a fit's data; None if they were not converted."""
    made = dp.tables.conversion_of(data)
    if made is None:
        return None
    if non_private_bounds:
        raise ValueError(
            f"{data} contains converted records, whose bounds are fixed: omit --non-private-bounds, or give the table itself"
        )
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
        typer.Option(
            help="If you fitted a model of your own: that model again, FILE.py:FUNCTION or FILE.txt."
        ),
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
