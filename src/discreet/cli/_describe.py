"""`discreet describe`: a table to private counts, shares, means, quantiles and two-way tables."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet._validate import probability
from discreet.cli import _options as options
from discreet.cli._fit import check_options, check_whole, complete_statement, suggest_delta, warn_of_no_privacy
from discreet.cli._options import TWIN, choose_model
from discreet.cli._report import write_picture
from discreet.cli._run import count_and_write
from discreet.cli._tables import Table, how_converted
from discreet.cli._terminal import refusing, say_files, say_json, say_lines, say_text, write_file

if TYPE_CHECKING:
    from discreet.marginals import Marginals
    from discreet.tables import Schema

JSON, TEXT, PICTURE = "description.json", "description.txt", "description.png"


@refusing
def describe(
    table: Table,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.", rich_help_panel="Budget")],
    schema: options.SchemaFile = None,
    bounds: options.Bounds = None,
    delta: options.DescribedDelta = None,
    num_records: options.DescribedRecords = None,
    pair: options.Pairs = None,
    all_pairs: options.AllPairs = False,
    level: options.Level = 0.95,
    slices: options.Slices = 64,
    relation: options.RelationOption = None,
    ledger: options.LedgerFile = None,
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE,
    seed: options.Seed = None,
    out: options.Out = Path("discreet-description"),
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Describe a table privately: how many, which share, which mean.

    `discreet describe survey.csv --schema schema.toml --epsilon 0.5`

    `discreet describe survey.csv --bounds "age=17:90,smoker=no|yes" --epsilon 0.5 --delta 1e-6 --pair age,smoker`

    One noisy release of the counts of each column's categories, or slices of a number, spends ε. From it follow, at no further
    cost, the number of records, shares, means, standard deviations, quantiles and the two-way tables that you ask for. They
    agree with one another, and each has an interval that covers the noise and the slices. Bounds and categories are public
    input: never take them from the data.

    Writes statement.json, statement.txt, description.json, description.txt, report.html and, with matplotlib,
    description.png. The table may be larger than memory.
    """
    from discreet.accounting import Relation, upper
    from discreet.marginals import Description, description_plan

    check_options(out, overwrite=overwrite)
    probability("--level", level, hint="0.95 is a common choice.")
    if pair and all_pairs:
        raise ValueError("--pair and --all-pairs: give only one")
    made = how_converted(table, non_private_bounds=False, out_of_bounds=out_of_bounds)
    check_whole(table, made, out_of_bounds, "discreet describe")
    described = options.schema_of(table, choose_model(TWIN), None, bounds, schema, False, made)
    warn_of_no_privacy(described, seed, ledger)
    plan = description_plan(
        described,
        epsilon=epsilon,
        delta=suggest_delta(num_records) if delta is None else delta,
        pairs="all" if all_pairs else [_pair(text, described) for text in pair or ()],
        relation=Relation.ADD_OR_REMOVE_ONE if relation is None else Relation[relation.name],
        slices=slices,
    )
    found: list[Description] = []

    def write(released: "Marginals") -> list[Path]:
        found.append(Description.of(released, level=level))
        files = [write_file(out / JSON, found[0].to_json()), write_file(out / TEXT, str(found[0]))]
        try:
            return [*files, write_picture(out / PICTURE, found[0].plot())]
        except ImportError:  # no matplotlib
            return files

    complete = functools.partial(
        complete_statement, schema=described, out_of_bounds=out_of_bounds, counted=True, own=None
    )
    statement, files = count_and_write(
        out, table, plan, complete=complete, then=write, ledger=ledger, out_of_bounds=out_of_bounds, seed=seed
    )
    if as_json:
        say_json("describe", {**found[0].to_dict(), "files": [str(file) for file in files]})
        return
    say_text(str(found[0]))
    say_lines(f"Spent: ε = {upper(statement.epsilon)} at δ = {upper(statement.delta)}.")
    say_files(files)


def _pair(text: str, schema: "Schema") -> tuple[str, str]:
    """Two columns with a comma between them, which may be in their names, too."""
    names, parts = [column.name for column in schema.columns], text.split(",")
    both = [(",".join(parts[:i]).strip(), ",".join(parts[i:]).strip()) for i in range(1, len(parts))]
    for one, other in both:
        if one in names and other in names and one != other:
            return one, other
    raise ValueError(
        f"--pair is {text!r}: give two columns, as in --pair {','.join((names * 2)[:2])}; the schema has {', '.join(names)}"
    )
