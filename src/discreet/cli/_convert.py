"""`discreet convert`: a table to a file of encoded records, which a fit reads as far as it draws them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli import _options as options
from discreet.cli._terminal import refusing, say, say_error, say_json

if TYPE_CHECKING:
    from discreet.tables import Conversion, Schema

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


def target_of(made: "Conversion", target: str | None) -> "Schema":
    """The schema of converted records, if its target is the one asked for.

    Raises:
        ValueError: It is not.
    """
    if target not in (None, made.schema.target):
        raise ValueError(
            f"the records were converted with {made.schema.target or 'no column'} as the target: leave --target out, or convert "
            f"the table again with --target {target}"
        )
    return made.schema
