"""A proposed plan as a TOML file: written by `discreet plan`, read by `discreet fit`."""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from discreet.cli._terminal import say_error

if TYPE_CHECKING:
    from discreet.rehearsal import Rehearsal

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
    """

    epsilon: float | None
    delta: float | None
    steps: int | None
    rate: float | None
    clip: str | None
    learning_rate: float | None


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


OPTIONS = PlanValues._fields


def plan_text(rehearsal: "Rehearsal", model: str) -> str:
    """The content of a plan file."""
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
    lines += ["", "[rehearsed]", f"model = {_text(model)}", f"num_records = {plan.num_records}"]
    lines += [f"verdict = {_text(str(rehearsal.verdict))}"]
    for kind in ("private", "non_private"):
        lines += ["", f"[rehearsed.{kind}]"]
        lines += [f"{_text(name)} = {float(rehearsal.proposed.mean(name, kind))!r}" for name in rehearsal.measures]
    return "\n".join(lines) + "\n"


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
    missing, unknown = sorted(set(OPTIONS) - set(content)), sorted(set(content) - set(OPTIONS))
    if missing or unknown:
        said = [f"lacks {', '.join(missing)}"] if missing else []
        said += [f"has unknown keys {', '.join(unknown)}"] if unknown else []
        raise ValueError(f"--plan: {path} {' and '.join(said)}: write it by discreet plan --out")
    for name in OPTIONS:
        value, whole = content[name], name == "steps"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"--plan: {name} in {path} is {value!r}: give {kind}")
    facts = rehearsed if isinstance(rehearsed, dict) else {}
    model, count = facts.get("model"), facts.get("num_records")
    return PlanFile(
        PlanValues(**{**content, "clip": str(content["clip"])}),
        model=model if isinstance(model, str) else None,
        num_records=count if isinstance(count, int) else None,
    )


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
    taken = {name: value for name, value in given._asdict().items() if value is not None}
    if drawn_otherwise:
        taken["rate"] = given.rate
    if replaced := sorted(taken):
        say_error(
            f"Of {path}, {', '.join(replaced)} {'is' if len(replaced) == 1 else 'are'} replaced by options: what it expects was "
            "rehearsed without them."
        )
    if planned.model is not None and planned.model != model:
        say_error(f"{path} was rehearsed for the model {planned.model}, not {model}: expect something else of it.")
    return dataclasses.replace(planned, values=planned.values._replace(**taken))


def say_other_size(path: Path, planned: PlanFile, num_records: int) -> None:
    """Say so if the table is of another size than was rehearsed."""
    if planned.num_records is not None and not 0.8 <= num_records / planned.num_records <= 1.25:
        say_error(
            f"{path} was rehearsed for {planned.num_records:,} records, and there are {num_records:,}: the noise is solved for "
            "anew, but another plan may suit better."
        )


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
