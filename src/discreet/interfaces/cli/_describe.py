"""`discreet describe`: a table to private figures of itself."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import discreet as dp
from discreet._validate import LEVEL, probability, require
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._convert import Table, check_whole, how_converted
from discreet.interfaces.cli._options import TWIN, choose_model, delta_of
from discreet.interfaces.cli._report import COUNTS, draw_picture, twins_words, write_page
from discreet.interfaces.cli._run import (
    RELEASED,
    ROOM,
    check_folder,
    keep_compiled_programs,
    row_order,
    say_spent,
    write_first,
)
from discreet.interfaces.cli._statement import (
    DESCRIPTION,
    about_words,
    complete_statement,
    warn,
)
from discreet.interfaces.cli._terminal import (
    PLAN_IS_SPENT,
    folder_for_results,
    refusing,
    say_error,
    say_json,
    say_lines,
    say_text,
    settings,
    spent,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@refusing
def describe(
    table: Table,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.", rich_help_panel="Budget")],
    schema: options.SchemaFile = None,
    bounds: options.Bounds = None,
    person: options.Person = None,
    delta: options.Delta = None,
    num_records: options.DescribedRecords = None,
    pair: options.Pairs = None,
    all_pairs: options.AllPairs = False,
    by: options.Groups = None,
    level: options.Level = LEVEL,
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

    `discreet describe survey.csv --bounds "age=17:90,smoker=no|yes" --epsilon 0.5 --delta 1e-6
    --pair age,smoker`

    `discreet describe survey.csv --schema schema.toml --epsilon 0.5 --by region`

    One noisy release spends ε: counts of each column's categories, or slices of a number, and sums
    of numbers and of squares. From it follow, at no further cost, the number of records, shares,
    means, standard deviations, quantiles, and the two-way tables and groups that you ask for. Each
    has an interval. Bounds and categories are public input: never take them from the data.

    Writes statement.json, statement.txt, description.json, description.txt, report.html,
    twin.counts (as --data of `discreet fit`, with --model twin, it makes twins and spends nothing)
    and, with matplotlib, description.png. The table may be larger than memory.
    """
    if table.suffix == Path(COUNTS).suffix:
        raise ValueError(
            f"{table} has noisy counts, which were paid for: their description was written beside them; "
            f"{twins_words(table.parent)} makes twins from them, and spends nothing"
        )
    check_folder(out, overwrite=overwrite)
    probability("--level", level, hint="0.9 is the default.")
    if pair and all_pairs:
        raise ValueError("--pair and --all-pairs: give only one")
    made = how_converted(table, out_of_bounds)
    check_whole(table, made, out_of_bounds, "discreet describe")
    described = options.schema_of(choose_model(TWIN), None, bounds, schema, made, person)
    warn(described, seed, ledger, table, by_bounds=bounds is not None)
    if described.weight is not None:
        say_error(described.weight_words())
    keys = keys_of(by, described)
    plan = dp.marginals.description_plan(
        described,
        epsilon=epsilon,
        delta=delta_of(delta, num_records, ledger),
        pairs="all" if all_pairs else pairs_of(pair, described),
        by=keys,
        relation=options.relation_of(relation),
        slices=slices,
        laplace=None if ledger is None else False,
    )
    for key in keys if num_records is not None else ():
        _refuse_thin(plan, key, num_records or 0)
    require("jinja2", extra="cli", what="The statement page")
    count = num_records or _SOME_RECORDS
    sure = dp.marginals.half_widths(plan, count, level=level)
    say_error(width_words(sure, described, f"a table of {count:,} records", level))
    keep_compiled_programs(settings.compilation_cache)
    book = None if ledger is None else dp.Ledger(ledger)
    with folder_for_results(out, room=ROOM):
        released = dp.marginals.private_marginals(
            dp.random.key(seed),
            table,
            plan,
            ledger=book,
            out_of_bounds=out_of_bounds,
            person_key=row_order(seed),
            non_private_seed=seed is not None,
        )
        spent(f"no statement was written, so {PLAN_IS_SPENT}", RELEASED)
        about = about_words(DESCRIPTION, plan.schema, table.name)
        statement = complete_statement(released.statement, plan.schema, out_of_bounds, about=about)
        released = dataclasses.replace(released, statement=statement)
        files = write_first(out, statement, None, RELEASED)
        found = dp.marginals.Description.of(released, by=keys, level=level)
        files += [
            write_file(out / "description.json", found.to_json()),
            write_file(out / "description.txt", str(found)),
            released.save(out / COUNTS),
        ]
        files += draw_picture(out / "description.png", found.plot)
        files.append(write_page(out, ledger=ledger).file)
    if as_json:
        say_json("describe", {**found.to_dict(), "files": files})
        return
    say_text(str(found))
    say_spent(statement, ledger, files)
    say_lines(f"Next: {twins_words(out)} makes twins from this release, and spends nothing.")


def _refuse_thin(
    plan: "dp.marginals.MarginalsPlan", key: str | tuple[str, str], num_records: int
) -> None:
    """Refuse groups of which the noise hides even those of average size."""
    names = (key,) if isinstance(key, str) else key
    sizes = {
        column.name: len(plan.levels.labels(column))
        for column in plan.schema.columns
        if column.name in names
    }
    groups = math.prod(sizes.values())
    # Persons may have up to so many rows; and there may be no other columns, whose figures noise
    # could hide.
    each = max(1, num_records * plan.max_rows // groups)
    found = dp.marginals.half_widths(plan, each, by=[key])
    if found and found == dp.marginals.half_widths(plan, 1, by=[key]):
        raise ValueError(
            f"--by {','.join(names)} makes {groups} groups, of {each:,} {plan.counted} on average, and the noise hides so few: "
            "give a larger --epsilon, or columns of fewer categories"
        )


def width_words(
    half_widths: "Mapping[str, float]", schema: "dp.tables.Schema", whose: str, level: float
) -> str:
    """Half-widths of the intervals of means and shares; of many columns the first ones."""

    def of(name: str, width: float) -> str:
        column = described[name]
        if column.bounds is None:
            return f"shares of {name} ± {100 * width:.2g} %"
        unit = "days" if column.kind is dp.tables.Kind.DATE else column.unit
        missing = " if no cell is missing" if column.may_be_missing else ""
        return f"mean of {name} ± {width:.3g}{unit and f' {unit}'}{missing}"

    described = {column.name: column for column in schema.columns}
    found = [of(*each) for each in half_widths.items()]
    more = [f"{len(found) - _SHOWN} columns more"] if len(found) > _SHOWN else []
    words = ", ".join([*found[:_SHOWN], *more])
    return f"For {whose}, intervals of {100 * level:.10g} % will be at most: {words}."


def keys_of(by: "Sequence[str] | None", schema: "dp.tables.Schema") -> list[str | tuple[str, str]]:
    """The columns and pairs of columns of --by."""
    names = [column.name for column in schema.columns]
    return [
        text if text in names or "," not in text else _pair("--by", text, names)
        for text in by or ()
    ]


def pairs_of(pairs: "Sequence[str] | None", schema: "dp.tables.Schema") -> list[tuple[str, str]]:
    """The columns of each --pair."""
    return [
        _pair("--pair", text, [column.name for column in schema.columns]) for text in pairs or ()
    ]


def _pair(option: str, text: str, names: "Sequence[str]") -> tuple[str, str]:
    """Two columns with a comma between them, which may be in their names, too."""
    parts = text.split(",")
    for i in range(1, len(parts)):
        one = ",".join(parts[:i]).strip()
        other = ",".join(parts[i:]).strip()
        if one in names and other in names and one != other:
            return one, other
    example = ",".join([*names, *names][:2])
    raise ValueError(
        f"{option} is {text!r}: give two columns, as in {option} {example}; the schema has {', '.join(names)}"
    )


_SOME_RECORDS = 10_000
"""Records for which widths are told where their number is not public."""
_SHOWN = 10
