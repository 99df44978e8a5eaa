"""`discreet plan`: a dry run on invented tables before any data are read, and the file that it writes for `fit`."""

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet.cli import _options as options
from discreet.cli._options import FAMILIES, LINEAR, MULTINOMIAL, TWIN, choose_model
from discreet.cli._report import write_picture
from discreet.cli._run import keep_compiled_programs
from discreet.cli._terminal import (
    check_file,
    refusing,
    say,
    say_error,
    say_files,
    say_json,
    say_lines,
    settings,
    write_file,
)

HEAD = "# Proposed by `discreet plan` after a dry run on invented tables. No data were read. Use it with discreet fit --plan."


KINDS: dict[str, type] = {
    "epsilon": float,
    "delta": float,
    "steps": int,
    "rate": float,
    "clip": float,
    "learning_rate": float,
    "components": int,
    "target": str,
    "bounds": str,
    "schema": str,
}
"""Options that a plan file may set, by the names of `fit`'s options."""
OPTIONS = tuple(KINDS)[:6]
"""Required options of a plan file; the others, on the model and its columns, are optional."""


@dataclasses.dataclass(frozen=True)
class PlanFile:
    """A plan file: values of `fit`'s options, and for which model and number of records it was made, if it says so."""

    values: dict[str, Any]
    model: str | None = None
    num_records: int | None = None


def plan_text(rehearsal: "dp.planning.DryRun", model: str, **about: Any) -> str:
    """The content of a plan file; `about` as in `KINDS`, the schema as seen from the file's folder."""
    plan, setting = rehearsal.plan, rehearsal.proposed.setting
    numbers = (setting.num_steps, setting.rate, setting.clipping_norm, setting.learning_rate)
    values = dict(zip(OPTIONS, (rehearsal.epsilon, plan.target_delta, *numbers), strict=True)) | about
    lines = [HEAD, *(f"{name} = {_toml(value)}" for name, value in values.items() if value is not None)]
    lines += ["", "[rehearsed]", f"model = {_toml(model)}", f"num_records = {plan.num_records}"]
    lines += [f"verdict = {_toml(rehearsal.verdict)}"]
    for kind in ("private", "non_private"):
        lines += ["", f"[rehearsed.{kind}]"]
        lines += [f"{_toml(name)} = {float(rehearsal.proposed.mean(name, kind))!r}" for name in rehearsal.measures]
    return "\n".join(lines) + "\n"


def read_plan(path: Path) -> PlanFile:
    """Read a plan file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--plan: {path} cannot be read ({error.strerror}): check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--plan: {path} is no TOML file ({error}): write it with discreet plan --out") from None
    rehearsed = content.pop("rehearsed", {})
    missing, unknown = sorted(set(OPTIONS) - set(content)), sorted(set(content) - set(KINDS))
    if missing or unknown:
        said = [f"lacks {', '.join(missing)}"] if missing else []
        said += [f"has unknown keys {', '.join(unknown)}"] if unknown else []
        raise ValueError(f"--plan: {path} {' and '.join(said)}: write it with discreet plan --out")
    words = {int: "an integer", float: "a number", str: "a string"}
    for name, value in content.items():
        kind = KINDS[name]
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise ValueError(f"--plan: {name} in {path} is {value!r}: give {words[kind]}")
    facts = rehearsed if isinstance(rehearsed, dict) else {}
    model, count = facts.get("model"), facts.get("num_records")
    content["clip"] = str(content["clip"])
    if "schema" in content:
        content["schema"] = path.parent / content["schema"]
    return PlanFile(
        content, model=model if isinstance(model, str) else None, num_records=count if isinstance(count, int) else None
    )


def with_plan(path: Path, model: str, given: Mapping[str, Any], *, drawn_otherwise: bool) -> PlanFile:
    """A plan file, with the options given beside it in its place; says on standard error what differs.

    The noise is solved for by `fit` in any case, so that ε holds whatever replaces what. With `drawn_otherwise`, other options
    say how batches are drawn, so that the file's rate does not.
    """
    planned = read_plan(path)
    values = dict(planned.values)
    if planned.model is not None and planned.model != model:
        say_error(f"{path} was made for the model {planned.model}, not {model}: its predictions do not apply.")
        values.pop("components", None)
    taken = {name: value for name, value in given.items() if value is not None}
    if drawn_otherwise:
        taken["rate"] = given["rate"]
    if replaced := sorted(name for name in taken if _differs(taken[name], values.get(name))):
        say_error(
            f"Of {path}, {', '.join(replaced)} {'is' if len(replaced) == 1 else 'are'} overridden by options: its "
            "predictions were made without them."
        )
    if taken.keys() & {"schema", "bounds"}:
        # Either says all that the other would.
        values |= {"schema": None, "bounds": None}
    return dataclasses.replace(planned, values=values | taken)


def _differs(given: object, planned: object) -> bool:
    """True if an option contradicts the plan file."""
    if isinstance(given, Path) and isinstance(planned, Path):
        return given.resolve() != planned.resolve()
    return planned is not None and given != planned


def say_other_size(path: Path, planned: PlanFile, num_records: int) -> None:
    """Say so if the table is of another size than was rehearsed."""
    if planned.num_records is not None and not 0.8 <= num_records / planned.num_records <= 1.25:
        say_error(
            f"{path} was made for {planned.num_records:,} records, and there are {num_records:,}: the noise is "
            "calibrated again, but another plan may be better."
        )


def _toml(value: float | str) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


SHOWN = 10


def _list(what: str, example: str) -> Any:
    return typer.Option(help=f"{what} to try, separated by commas: {example}.")


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
    steps: Annotated[str | None, _list("Numbers of steps", "300,1000")] = None,
    rates: Annotated[str | None, _list("Sampling rates", "0.01,0.05")] = None,
    clips: Annotated[str | None, _list("Clipping norms", "0.1,1")] = None,
    learning_rates: Annotated[str | None, _list("Learning rates", "0.02,0.1")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the invented tables; nothing here is secret.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the plan to this file, for fit --plan.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the picture to this file. Default: beside --out.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Propose settings by a dry run on invented tables. Reads no data and spends nothing.

    `discreet plan --model logistic --bounds "age=17:90,smoker=no|yes" --target smoker --num-records 3000 --epsilon 1`

    `discreet plan --model twin --schema schema.toml --num-records 3000 --epsilon 1 --out plan.toml`

    Draws tables from the model's prior within the public bounds and fits them as fit would. Regressions on noisy sums have no
    settings: for logistic and counts it prints, for several ε, how large the noise is, how many coefficients can be learned, how
    often the intervals hold the truth, what the fit may be used for, and the least ε that is enough. For other models, and with
    --steps, --rates, --clips or --learning-rates, it tries settings of a fit in steps with and without noise, and prints which
    loses least, and how much. Ctrl-C ends with the best setting so far.
    """
    picture = plot if plot is not None else out.with_suffix(".png") if out is not None else None
    check_file(out, overwrite=overwrite)
    check_file(picture, "--plot", overwrite=overwrite)
    lists = {
        "steps": _numbers("--steps", steps, int),
        "rates": _numbers("--rates", rates),
        "clipping_norms": _numbers("--clips", clips),
        "learning_rates": _numbers("--learning-rates", learning_rates),
    }
    function, about = _what(model, components, target, bounds, schema)
    in_steps = any(x is not None for x in lists.values())
    keep_compiled_programs(settings.compilation_cache)
    if model in (LINEAR, *FAMILIES) and about is not None and not in_steps and about.max_rows == 1 and not about.drops:
        if out is not None or plot is not None:
            raise ValueError(
                f"a {model} model is fitted to noisy sums, which have no settings: there is no plan to write. Leave out --out "
                "and --plot, and give fit its --epsilon; or give --steps for a fit in steps"
            )
        terms = {"num_records": num_records, "epsilon": epsilon, "delta": delta, "seed": seed}
        if model == LINEAR:
            expected = dp.planning.dry_run_of_line(about, **terms)
        else:
            expected = dp.planning.dry_run_of_newton(about, family=FAMILIES[model], progress_bar=not as_json, **terms)
        if as_json:
            say_json("plan", expected.to_dict())
        else:
            say_lines(str(expected))
        return
    grid = dataclasses.replace(
        dp.planning.default_grid(function), **{name: x for name, x in lists.items() if x is not None}
    )
    rehearsal = dp.planning.dry_run(
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
        # The schema is named as seen from the plan's folder: both may then be moved together.
        seen = None if schema is None else Path(os.path.relpath(schema, out.parent)).as_posix()
        text = plan_text(rehearsal, model, components=count, target=target, bounds=bounds, schema=seen)
        files = [write_file(out, text)]
    files += [] if picture is None else _draw(rehearsal, picture, asked=plot is not None)
    if as_json:
        say_json("plan", {**rehearsal.to_dict(), "files": files})
    else:
        _say(rehearsal, files)
    if not rehearsal.complete:
        say_error("Stopped by Ctrl-C: this is the best setting so far. Nothing was spent.")
        raise typer.Exit(130)


def _numbers(option: str, text: str | None, kind: type[float] = float) -> tuple[Any, ...] | None:
    """The numbers of a list; None if it was not given."""
    try:
        return None if text is None else tuple(kind(part) for part in text.split(","))
    except ValueError:
        kinds = "integers" if kind is int else "numbers"
        raise ValueError(f"{option} is {text!r}: give {kinds} separated by commas") from None


def _what(
    model: str, components: int | None, target: str | None, bounds: str | None, file: Path | None
) -> tuple[Any, "dp.tables.Schema | None"]:
    """The model to rehearse, and the schema that it needs beside."""
    if bounds is None and file is None:
        raise ValueError(
            "the columns are not described: give their public bounds and categories with --bounds or --schema"
        )
    chosen = choose_model(model, components=components)
    if model == MULTINOMIAL:
        raise ValueError(
            f"there is no dry run of the model {model} yet: give fit its steps, rate and clipping norm by options, or rehearse "
            "logistic for one category against the others"
        )
    described = options.schema_of(None, chosen, target, bounds, file, non_private_bounds=False)
    if chosen.own is not None:
        own = chosen.own.prepare(described)
        if own.of_columns or own.raw:
            raise ValueError(
                f"there is no dry run of {model} yet, since it takes {'a dict of columns' if own.of_columns else 'raw columns'}: "
                "give fit its steps, rate and clipping norm by options"
            )
        return own.function, described
    built = chosen.build(described)
    return (built, None) if model == TWIN else (built, described)


def _draw(rehearsal: "dp.planning.DryRun", file: Path, *, asked: bool) -> list[Path]:
    """The picture, if matplotlib is installed and the dry run came so far."""
    try:
        figure = dp.plots.new_figure(6, 4)
    except ImportError:
        if asked:
            say_error("No picture was drawn: it needs matplotlib (pip install 'discreet[plot]').")
        return []
    if not rehearsal.curve:
        return []
    rehearsal.plot(figure.subplots())
    return [write_picture(file, figure)]


def _say(rehearsal: "dp.planning.DryRun", files: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    measure = rehearsal.measures[0]
    table = Table(
        title="Settings, the proposed one first, then others about as good, then by loss: means over the tables of the search",
        title_justify="left",
    )
    headings = ("steps", "rate", "clip", "learning rate", "noise", f"{measure}", "without noise", "nats lost")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rehearsal.rows[:SHOWN]:
        setting = row.setting
        numbers = (setting.rate, setting.clipping_norm, setting.learning_rate)
        means = (row.mean(measure), row.mean(measure, "non_private"))
        cells = (f"{setting.num_steps:,}", *(f"{x:g}" for x in numbers), f"{row.noise_multiplier:.3g}")
        table.add_row(*cells, *(f"{x:.3f}" for x in means), f"{row.lost:.3g}")
    Console().print(table)
    if len(rehearsal.rows) > SHOWN:
        say(f"and {len(rehearsal.rows) - SHOWN} more; --json has all.")
    say()
    say_lines(str(rehearsal))
    if files:
        say()
        say_files(files)
