"""`discreet plan`: a dry run on invented tables, before any data are read."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet._validate import LEVEL
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._describe import keys_of, pairs_of, width_words
from discreet.interfaces.cli._options import TWIN, choose_model, delta_of, suggest_delta
from discreet.interfaces.cli._report import draw_picture
from discreet.interfaces.cli._run import keep_compiled_programs
from discreet.interfaces.cli._terminal import (
    check_file,
    refusing,
    say,
    say_error,
    say_files,
    say_json,
    say_lines,
    settings,
    with_options_of,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of `plan`."""

    num_records: Annotated[
        int,
        typer.Option(
            help="Public number of records of the table, or of persons if the schema names them."
        ),
    ]
    model: options.ModelToPlan = None
    epsilon: options.Epsilon = None
    width: options.Widths = None
    mean: options.Means = None
    by: options.Groups = None
    pair: options.Pairs = None
    level: options.Level = LEVEL
    relation: options.RelationOption = None
    target: options.Target = None
    bounds: options.Bounds = None
    schema: options.SchemaFile = None
    delta: options.Delta = None
    share: Annotated[
        float | None,
        typer.Option(
            help="For logistic: a public guess of the share of the target's second category, if it is rare. Default: mostly "
            "from a fifth to four fifths."
        ),
    ] = None
    kept: Annotated[
        float | None,
        typer.Option(
            help='If the schema has missing = "drop": a public guess of the share of records that are kept.'
        ),
    ] = None
    seed: Annotated[
        int, typer.Option(help="Seed of the invented tables; nothing here is secret.")
    ] = 0
    plot: Annotated[Path | None, typer.Option(help="Draw the picture to this file.")] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there.")
    ] = False
    as_json: options.AsJson = False

    def described(self, chosen: options.ChosenModel) -> "dp.tables.Schema":
        """The public description of the table, as the model needs it."""
        return options.schema_of(chosen, self.target, self.bounds, self.schema)


@refusing
@with_options_of(Asked)
def plan(asked: Asked) -> None:
    """Show what a fit is good for at several ε, or the ε that a description needs. Reads no data and spends nothing.

    `discreet plan --model logistic --bounds "age=17:90,smoker=no|yes" --target smoker --num-records
    3000 --epsilon 1`

    `discreet plan --model mine.py:model --schema schema.toml --num-records 3000 --epsilon 1 --plot
    plan.png`

    `discreet plan --width age=0.5 --schema schema.toml --num-records 3000`

    A fit: draws tables within the public bounds and fits them as `discreet fit` would. For several
    ε it prints how large the noise is, how many coefficients can be learned, how often the
    intervals hold the truth, how well the fit predicts beside the truth, what it may be used for,
    and the least ε that is enough. Ctrl-C ends with the ε so far.

    A description (--width): from public numbers alone, the least ε with which the interval of a
    mean or share is narrow enough. With --by that is of groups, and --num-records those of the
    smallest one.
    """
    if asked.width:
        _plan_description(asked)
    else:
        _plan_fit(asked)


def _plan_fit(asked: Asked) -> None:
    """Print what fits are good for."""
    of_figures = ("mean", "by", "pair", "relation")
    if given := [f"--{name}" for name in of_figures if getattr(asked, name)]:
        raise ValueError(f"{', '.join(given)}: for a description, give --width, too")
    if asked.model is None or asked.epsilon is None:
        raise ValueError("give --model and --epsilon for a fit, or --width for a description")
    plot = asked.plot
    check_file(plot, "--plot", overwrite=asked.overwrite)
    if asked.bounds is None and asked.schema is None:
        raise ValueError(
            "the columns are not described: give their public bounds and categories with --bounds or --schema"
        )
    chosen = choose_model(asked.model)
    if chosen.name == TWIN:
        raise ValueError(
            f"there is no dry run of a {TWIN}: find the ε by which its counts are exact enough, as by --width age=0.5"
        )
    described = asked.described(chosen)
    fitted, about, guide = _what(chosen, described)
    keep_compiled_programs(settings.compilation_cache)
    found = dp.planning.dry_run(
        fitted,
        about,
        num_records=asked.num_records,
        epsilon=asked.epsilon,
        delta=suggest_delta(asked.num_records, None) if asked.delta is None else asked.delta,
        guide=guide,
        share=asked.share,
        kept=asked.kept,
        seed=asked.seed,
        progress_bar=not asked.as_json,
    )
    files = [] if plot is None else draw_picture(plot, found.plot)
    if plot is not None and not files:
        say_error("No picture was drawn: it needs matplotlib (pip install 'discreet[plot]').")
    if asked.as_json:
        say_json("plan", {**found.to_dict(), "files": files})
    else:
        say_lines(str(found))
        if files:
            say()
            say_files(files)
    if not found.complete:
        say_error("Stopped by Ctrl-C. Nothing was spent.")
        raise typer.Exit(130)


def _plan_description(asked: Asked) -> None:
    """Find and print the ε of a description."""
    of_fits = ("model", "epsilon", "share", "kept", "plot")
    if given := [f"--{name}" for name in of_fits if getattr(asked, name) is not None]:
        raise ValueError(f"--width finds the ε of discreet describe: leave {', '.join(given)} out")
    schema = asked.described(choose_model(TWIN))
    means = _numbers("--mean", asked.mean or ())
    keys = keys_of(asked.by, schema)
    level = asked.level
    relation = asked.relation
    num_records = asked.num_records
    # δ follows from all records, and a group has a part of them.
    delta = delta_of(asked.delta, None if keys else num_records, None)
    counted: dict[str, Any] = {"delta": delta, "by": keys, "pairs": pairs_of(asked.pair, schema)}
    counted["relation"] = options.relation_of(relation)
    how: dict[str, Any] = {"level": level, "means": means}
    epsilon = dp.marginals.epsilon_for_widths(
        schema, _numbers("--width", asked.width or ()), num_records=num_records, **how, **counted
    )
    planned = dp.marginals.description_plan(schema, epsilon=epsilon, **counted)
    found = dp.marginals.half_widths(planned, num_records, by=keys, **how)
    if asked.as_json:
        facts = {
            "epsilon": epsilon,
            "delta": delta,
            "num_records": num_records,
            "by": keys,
            "relation": counted["relation"].name,
            "half_widths": found,
            **how,
        }
        say_json("widths", facts)
        return
    whose = "each group" if keys else "a table"
    how_to = f"--epsilon {epsilon:g} --delta {delta:g}"
    if relation is not None:
        how_to += f" --relation {relation.value}"
    say(f"ε = {epsilon:g} at δ = {delta:g} is enough for discreet describe ({how_to}).")
    say(width_words(found, schema, f"{whose} of {num_records:,} records", level))


def _numbers(option: str, texts: Sequence[str]) -> dict[str, float]:
    """Numbers by name of a column, as in age=0.5."""
    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise ValueError(
                f"{option} is {text!r}: give a column and a number, as in {option} age=0.5"
            ) from None
    return found


def _what(
    chosen: options.ChosenModel, schema: "dp.tables.Schema"
) -> tuple[Any, "dp.tables.Schema | None", Any]:
    """What `dry_run` fits, the schema that it needs beside, and a guide of one's own."""
    if chosen.own is None:
        return chosen.name, schema, None
    own = chosen.own.prepare(schema)
    if own.of_columns or own.raw:
        takes = "a dict of columns" if own.of_columns else "raw columns"
        raise ValueError(f"there is no dry run of {chosen.name} yet, since it takes {takes}")
    return own.function, schema, own.guide
