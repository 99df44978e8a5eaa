"""`discreet plan`: a dry run on invented tables, before any data are read."""

import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli import _options as options
from discreet.cli._fit import schema_of
from discreet.cli._model import TWIN, choose_model
from discreet.cli._plan_file import plan_text, seen_from
from discreet.cli._run import keep_compiled_programs
from discreet.cli._terminal import refusing, say, say_error, say_json, say_lines, say_text, settings, write_file

if TYPE_CHECKING:
    from discreet.planning import DryRun
    from discreet.tables import Schema

SHOWN = 10


def _list(what: str, example: str) -> Any:
    return typer.Option(help=f"{what} to try, separated by commas: {example}.")


@refusing
def plan(
    model: options.Model,
    num_records: Annotated[int, typer.Option(help="Public number of records that the table will have.")],
    epsilon: Annotated[float, typer.Option(help="The ε to keep to.")],
    target: options.Target = None,
    bounds: options.Bounds = None,
    schema: options.SchemaFile = None,
    delta: options.Delta = None,
    components: options.Components = None,
    steps: Annotated[str | None, _list("Numbers of steps", "300,1000")] = None,
    rates: Annotated[str | None, _list("Sampling rates", "0.01,0.05")] = None,
    clips: Annotated[str | None, _list("Clipping norms", "0.1,1")] = None,
    learning_rates: Annotated[str | None, _list("Learning rates", "0.02,0.1")] = None,
    seed: Annotated[int, typer.Option(help="Of the invented tables; nothing here is secret.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the plan, a file for the option --plan of fit.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw the picture. Left out: beside --out.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Choose a plan by a dry run on invented tables. Reads no data and spends nothing.

    `discreet plan --model logistic --bounds "age=17:90,smoker=no|yes" --target smoker --num-records 3000 --epsilon 1`

    `discreet plan --model twin --schema schema.toml --num-records 3000 --epsilon 1 --out plan.toml`

    Tables are drawn from the model's prior within the public bounds, and fitted with and without noise under several numbers of
    steps, sampling rates, clipping norms and learning rates. Says which setting loses least, how much that is, and whether the
    noise leaves anything to learn. Ctrl-C ends with the best so far.
    """
    from discreet.planning import default_grid, dry_run

    picture = plot if plot is not None else out.with_suffix(".png") if out is not None else None
    for file in (out, picture):
        if file is not None:
            _check_file(file, overwrite=overwrite)
    lists = _lists(steps, rates, clips, learning_rates)
    function, about = _what(model, components, target, bounds, schema)
    grid = dataclasses.replace(default_grid(function), **lists)
    keep_compiled_programs(settings.compilation_cache)
    rehearsal = dry_run(
        function,
        about,
        num_records=num_records,
        epsilon=epsilon,
        delta=delta,
        grid=grid,
        seed=seed,
        progress_bar=not as_json,
    )
    files = []
    if out is not None:
        # Said even where it was left out: what is left out may mean another number one day.
        count = function.components if model == TWIN else None
        seen = seen_from(out.parent, schema)
        text = plan_text(rehearsal, model, components=count, target=target, bounds=bounds, schema=seen)
        files = [write_file(out, text)]
    files += [] if picture is None else _draw(rehearsal, picture, asked=plot is not None)
    if as_json:
        say_json("plan", {**rehearsal.to_dict(), "files": [str(file) for file in files]})
    else:
        _say(rehearsal, files)
    if not rehearsal.complete:
        say_error("Stopped by Ctrl-C: this is the best of what was tried. Nothing was spent.")
        raise typer.Exit(130)


def _check_file(file: Path, *, overwrite: bool) -> None:
    if file.is_dir():
        raise ValueError(f"{file} is a folder: name a file")
    if file.exists() and not overwrite:
        raise ValueError(f"{file} is there already: choose another name, or replace it by --overwrite")
    if not file.parent.is_dir():
        raise ValueError(f"{file.parent} is no folder: make it, or choose another place")


def _lists(steps: str | None, rates: str | None, clips: str | None, learning_rates: str | None) -> dict[str, Any]:
    """What the options say of the grid."""
    given = {
        "steps": _numbers("--steps", steps, whole=True),
        "rates": _numbers("--rates", rates),
        "clipping_norms": _numbers("--clips", clips),
        "learning_rates": _numbers("--learning-rates", learning_rates),
    }
    return {name: values for name, values in given.items() if values is not None}


def _numbers(option: str, text: str | None, *, whole: bool = False) -> tuple[Any, ...] | None:
    """The numbers of a list; None if it was not given."""
    if text is None:
        return None
    try:
        return tuple((int if whole else float)(part) for part in text.split(","))
    except ValueError:
        kind = "whole numbers" if whole else "numbers"
        raise ValueError(f"{option} is {text!r}: give {kind} separated by commas") from None


def _what(
    model: str, components: int | None, target: str | None, bounds: str | None, file: Path | None
) -> tuple[Any, "Schema | None"]:
    """The model to rehearse, and the schema that it needs beside."""
    if bounds is None and file is None:
        raise ValueError(
            "the columns are not described: give their public bounds and categories by --bounds or --schema"
        )
    chosen = choose_model(model, components=components)
    if chosen.of_classes is not None:
        raise ValueError(
            f"there is no dry run of the model {model} yet: give fit its steps, rate and clipping norm by options, or rehearse "
            "logistic for one category against the others"
        )
    if chosen.of_columns:
        raise ValueError(
            f"there is no dry run of {model} yet, since it takes a dict of columns: give fit its steps, rate and clipping norm "
            "by options"
        )
    described = schema_of(None, chosen, target, bounds, file, non_private_bounds=False)
    if chosen.of_table is not None:
        return chosen.of_table(described), None
    return chosen.function_for(described), described


def _draw(rehearsal: "DryRun", file: Path, *, asked: bool) -> list[Path]:
    """The picture, if matplotlib is installed and the dry run came so far."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        if asked:
            say_error("No picture was drawn: it takes matplotlib (pip install matplotlib).")
        return []
    if not rehearsal.curve:
        return []
    figure = Figure(figsize=(6, 4), layout="constrained")
    rehearsal.plot(figure.subplots())
    image = io.BytesIO()
    figure.savefig(image, format=file.suffix.lstrip(".") or "png", dpi=120)
    return [write_file(file, image.getvalue())]


def _say(rehearsal: "DryRun", files: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    measure = rehearsal.measures[0]
    table = Table(
        title="Settings, the proposed one first, then by loss: means over the tables of the search",
        title_justify="left",
    )
    headings = ("steps", "rate", "clip", "learning rate", "noise", f"{measure}", "without noise", "nats lost")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rehearsal.rows[:SHOWN]:
        setting = row.setting
        table.add_row(
            f"{setting.num_steps:,}",
            f"{setting.rate:g}",
            f"{setting.clipping_norm:g}",
            f"{setting.learning_rate:g}",
            f"{row.noise_multiplier:.3g}",
            f"{row.mean(measure):.3f}",
            f"{row.mean(measure, 'non_private'):.3f}",
            f"{row.lost:.3g}",
        )
    Console().print(table)
    if len(rehearsal.rows) > SHOWN:
        say(f"and {len(rehearsal.rows) - SHOWN} more; --json has all.")
    say()
    say_lines(str(rehearsal))
    if files:
        say()
        say("Files:")
        for file in files:
            say_text(f"  {file}")
