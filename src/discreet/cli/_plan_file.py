"""A proposed plan as a TOML file: written by `discreet plan`, read by `discreet fit`."""

import dataclasses
import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from discreet.cli._terminal import say_error

if TYPE_CHECKING:
    from discreet.planning import DryRun

HEAD = "# Proposed by `discreet plan`: a dry run on invented tables. No data were read. For the option --plan of `discreet fit`."


class PlanValues(NamedTuple):
    """What a plan file sets, by the names of `fit`'s options; None: left open.

    Attributes:
        epsilon: The ε to keep to.
        delta: The δ.
        steps: Number of steps.
        rate: Probability that a record enters a batch.
        clip: What --clip says.
        learning_rate: Step size of Adam.
        components: Of the mixture, for a twin.
        target: Column to explain, where an option named it.
        bounds: What --bounds said.
        schema: The schema's file.
    """

    epsilon: float | None
    delta: float | None
    steps: int | None
    rate: float | None
    clip: str | None
    learning_rate: float | None
    components: int | None = None
    target: str | None = None
    bounds: str | None = None
    schema: Path | None = None


@dataclasses.dataclass(frozen=True)
class PlanFile:
    """A plan file.

    Attributes:
        values: What it sets.
        model: What was rehearsed; None if the file does not say.
        num_records: Number of records rehearsed for; None likewise.
    """

    values: PlanValues
    model: str | None = None
    num_records: int | None = None


OPTIONS = PlanValues._fields[:6]
"""What each plan file has."""
ABOUT = PlanValues._fields[6:]
"""What it may have besides: of the model and its columns."""


def plan_text(
    rehearsal: "DryRun",
    model: str,
    *,
    components: int | None = None,
    target: str | None = None,
    bounds: str | None = None,
    schema: str | None = None,
) -> str:
    """The content of a plan file; its options as for `PlanValues`, the schema as seen from the file's folder."""
    plan, setting = rehearsal.plan, rehearsal.proposed.setting
    values = (
        rehearsal.epsilon,
        plan.target_delta,
        setting.num_steps,
        setting.rate,
        setting.clipping_norm,
        setting.learning_rate,
    )
    lines = [HEAD, *(f"{name} = {value!r}" for name, value in zip(OPTIONS, values, strict=True))]
    about = dict(zip(ABOUT, (components, target, bounds, schema), strict=True))
    lines += [f"{name} = {_toml(value)}" for name, value in about.items() if value is not None]
    lines += ["", "[rehearsed]", f"model = {_toml(model)}", f"num_records = {plan.num_records}"]
    lines += [f"verdict = {_toml(str(rehearsal.verdict))}"]
    for kind in ("private", "non_private"):
        lines += ["", f"[rehearsed.{kind}]"]
        lines += [f"{_toml(name)} = {float(rehearsal.proposed.mean(name, kind))!r}" for name in rehearsal.measures]
    return "\n".join(lines) + "\n"


def seen_from(folder: Path, file: Path | None) -> str | None:
    """The path of a file from a folder, with slashes; both may then be moved together."""
    return None if file is None else Path(os.path.relpath(file, folder)).as_posix()


def read_plan(path: Path) -> PlanFile:
    """Read a plan file.

    Raises:
        ValueError: It cannot be read, is no TOML, or is no plan.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--plan: {path} cannot be read ({error.strerror}): check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--plan: {path} is no TOML file ({error}): write it by discreet plan --out") from None
    rehearsed = content.pop("rehearsed", {})
    missing, unknown = sorted(set(OPTIONS) - set(content)), sorted(set(content) - set(OPTIONS) - set(ABOUT))
    if missing or unknown:
        said = [f"lacks {', '.join(missing)}"] if missing else []
        said += [f"has unknown keys {', '.join(unknown)}"] if unknown else []
        raise ValueError(f"--plan: {path} {' and '.join(said)}: write it by discreet plan --out")
    for name, kind in zip(OPTIONS, (float, float, int, float, float, float), strict=True):
        _check_kind(path, name, content[name], kind)
    for name, kind in zip(ABOUT, (int, str, str, str), strict=True):
        if name in content:
            _check_kind(path, name, content[name], kind)
    facts = rehearsed if isinstance(rehearsed, dict) else {}
    model, count = facts.get("model"), facts.get("num_records")
    schema = path.parent / content["schema"] if "schema" in content else None
    return PlanFile(
        PlanValues(**{**content, "clip": str(content["clip"]), "schema": schema}),
        model=model if isinstance(model, str) else None,
        num_records=count if isinstance(count, int) else None,
    )


_KINDS = {int: "a whole number", float: "a number", str: "a text"}


def _check_kind(path: Path, name: str, value: object, kind: type) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise ValueError(f"--plan: {name} in {path} is {value!r}: give {_KINDS[kind]}")


def with_plan(path: Path, model: str, given: PlanValues, *, drawn_otherwise: bool) -> PlanFile:
    """A plan file, with the options given beside it in its place; says on standard error what differs.

    The noise is solved for by `fit` in any case, so that ε holds whatever replaces what.

    Args:
        path: The file.
        model: What is to be fitted.
        given: The options beside it.
        drawn_otherwise: Whether other options say how batches are drawn, so that the file's rate does not.
    """
    planned = read_plan(path)
    if planned.model is not None and planned.model != model:
        say_error(f"{path} was rehearsed for the model {planned.model}, not {model}: expect something else of it.")
        planned = dataclasses.replace(planned, values=planned.values._replace(components=None))
    taken = {name: value for name, value in given._asdict().items() if value is not None}
    if drawn_otherwise:
        taken["rate"] = given.rate
    if replaced := sorted(name for name in taken if _differs(taken[name], getattr(planned.values, name))):
        say_error(
            f"Of {path}, {', '.join(replaced)} {'is' if len(replaced) == 1 else 'are'} replaced by options: what it expects was "
            "rehearsed without them."
        )
    if given.schema is not None or given.bounds is not None:
        # Either says all that the other would.
        taken = {"schema": None, "bounds": None, **taken}
    return dataclasses.replace(planned, values=planned.values._replace(**taken))


def _differs(given: object, planned: object) -> bool:
    """Whether an option says something else than the file, rather than the same, or what the file leaves open."""
    if isinstance(given, Path) and isinstance(planned, Path):
        return given.resolve() != planned.resolve()
    return planned is not None and given != planned


def say_other_size(path: Path, planned: PlanFile, num_records: int) -> None:
    """Say so if the table is of another size than was rehearsed."""
    if planned.num_records is not None and not 0.8 <= num_records / planned.num_records <= 1.25:
        say_error(
            f"{path} was rehearsed for {planned.num_records:,} records, and there are {num_records:,}: the noise is solved for "
            "anew, but another plan may suit better."
        )


def _toml(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)
