"""`discreet plan`: a dry run on invented tables, before any data are read."""

from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._options import TWIN, choose_model, suggest_delta
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
)


@refusing
def plan(
    model: options.Model,
    num_records: Annotated[
        int, typer.Option(help="Public number of records of the table, or of persons if the schema names them.")
    ],
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.")],
    target: options.Target = None,
    bounds: options.Bounds = None,
    schema: options.SchemaFile = None,
    delta: options.Delta = None,
    components: options.Components = None,
    share: Annotated[
        float | None,
        typer.Option(
            help="For logistic: a public guess of the share of the target's second category, if it is rare. Default: mostly "
            "from a fifth to four fifths."
        ),
    ] = None,
    kept: Annotated[
        float | None,
        typer.Option(help='If the schema has missing = "drop": a public guess of the share of records that are kept.'),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the invented tables; nothing here is secret.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the picture to this file.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show what a fit is good for at several ε, by a dry run on invented tables. Reads no data and spends nothing.

    `discreet plan --model logistic --bounds "age=17:90,smoker=no|yes" --target smoker --num-records 3000 --epsilon 1`

    `discreet plan --model mine.py:model --schema schema.toml --num-records 3000 --epsilon 1 --plot plan.png`

    Draws tables within the public bounds and fits them as `discreet fit` would. For several ε it prints how large the noise is,
    how many coefficients can be learned, how often the intervals hold the truth, how well the fit predicts beside the truth, what
    it may be used for, and the least ε that is enough. Ctrl-C ends with the ε so far.
    """
    check_file(plot, "--plot", overwrite=overwrite)
    if bounds is None and schema is None:
        raise ValueError(
            "the columns are not described: give their public bounds and categories with --bounds or --schema"
        )
    chosen = choose_model(model, components=components)
    described = options.schema_of(None, chosen, target, bounds, schema, non_private_bounds=False)
    fitted, about, guide = _what(chosen, described)
    keep_compiled_programs(settings.compilation_cache)
    # A fit to noisy counts releases the number of records, so its default δ does not follow from it.
    counts = chosen.name == TWIN and dp.marginals.counts_suffice(described)
    found = dp.planning.dry_run(
        fitted,
        about,
        num_records=num_records,
        epsilon=epsilon,
        delta=suggest_delta(None if counts else num_records, None) if delta is None else delta,
        guide=guide,
        share=share,
        kept=kept,
        seed=seed,
        progress_bar=not as_json,
    )
    files = [] if plot is None else draw_picture(plot, lambda: found.plot().figure)
    if plot is not None and not files:
        say_error("No picture was drawn: it needs matplotlib (pip install 'discreet[plot]').")
    if as_json:
        say_json("plan", {**found.to_dict(), "files": files})
    else:
        say_lines(str(found))
        if files:
            say()
            say_files(files)
    if not found.complete:
        say_error("Stopped by Ctrl-C. Nothing was spent.")
        raise typer.Exit(130)


def _what(chosen: options.ChosenModel, schema: "dp.tables.Schema") -> tuple[Any, "dp.tables.Schema | None", Any]:
    """What `dry_run` fits, the schema that it needs beside, and a guide of one's own."""
    if chosen.own is None:
        return (chosen.build(schema), None, None) if chosen.name == TWIN else (chosen.name, schema, None)
    own = chosen.own.prepare(schema)
    if own.of_columns or own.raw:
        takes = "a dict of columns" if own.of_columns else "raw columns"
        raise ValueError(f"there is no dry run of {chosen.name} yet, since it takes {takes}")
    return own.function, schema, own.guide
