"""`discreet schema`: a description of a table to fill in, and whether one is right."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from discreet.cli import _options as options
from discreet.cli._commands import Commands
from discreet.cli._terminal import refusing, say, say_error, say_json, say_lines, write_file

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
