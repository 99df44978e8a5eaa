"""The measurements as JSON, and as text made from the JSON alone."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks._harness import Figure, Outcome, Scale, Timing
from benchmarks._peers import versions

ROOT = Path(__file__).resolve().parents[1]
_MARK = re.compile(r"(<!-- begin: (?P<what>[^>]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def new() -> dict[str, Any]:
    """Results without a measurement."""
    return {"workloads": {}}


def add(results: dict[str, Any], measure: Callable[[Scale], list[Outcome]], scale: Scale) -> None:
    """Run a workload and put what it gives into the results, in place of what stood there."""
    load, started = os.getloadavg()[0], time.perf_counter()
    outcomes = measure(scale)
    context = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "scale": scale.name,
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "seconds_in_all": round(time.perf_counter() - started, 1),
        "machine": _machine(),
        "versions": versions(),
    }
    for outcome in outcomes:
        results["workloads"][outcome.name] = {
            "title": outcome.title,
            "figures": [_figure(figure) for figure in outcome.figures],
            "timings": [_timing(timing) for timing in outcome.timings],
            "facts": outcome.facts,
            "skipped": outcome.skipped,
            "measured": context,
        }


def _figure(figure: Figure) -> dict[str, Any]:
    return {**dataclasses.asdict(figure), "met": figure.met}


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "name": timing.name,
        "median_us": timing.median * 1e6,
        "fastest_us": timing.fastest * 1e6,
        "rounds_us": [seconds * 1e6 for seconds in timing.seconds],
        "steps_a_round": timing.steps,
        "note": timing.note,
    }


def _commit() -> str:
    try:
        ask = ["git", "-C", str(ROOT)]
        name = subprocess.run(
            [*ask, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            [*ask, "status", "--porcelain", "src"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def _machine() -> dict[str, Any]:
    processor, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        named = re.search(r"model name\s*: (.*)", cpuinfo.read_text(encoding="utf-8"))
        processor = named.group(1).strip() if named else processor
    if jax.default_backend() != "cpu":
        processor = f"{processor} and one {jax.devices()[0].device_kind}"
    return {"processor": processor, "cores": os.cpu_count(), "system": platform.platform()}


# --- text, from the JSON alone -------------------------------------------------------------


def as_markdown(results: dict[str, Any]) -> str:
    """All of it: the bounds first, then each workload."""
    parts = ["# Benchmarks", _preface(results)]
    if any(
        figure["bound"]
        for workload in results["workloads"].values()
        for figure in workload["figures"]
    ):
        parts += ["## Figures with a bound", bounds_table(results)]
    for name, workload in results["workloads"].items():
        parts += [
            f"## {name}: {workload['title']}",
            figures_table(workload),
            timings_table(workload),
        ]
        parts += [f"Skipped, {peer}: {reason}." for peer, reason in workload["skipped"].items()]
        parts.append(_measured(workload))
    return "\n\n".join(part for part in parts if part) + "\n"


def _preface(results: dict[str, Any]) -> str:
    return (
        "Made by `python -m benchmarks`; do not edit. Every ratio is that of two programs which ran in turn in one "
        "process: the median of the ratios within each round, its quartiles, and the ratio of the fastest rounds."
    )


def _measured(workload: dict[str, Any]) -> str:
    m = workload["measured"]
    packages = ", ".join(f"{name} {number}" for name, number in m["versions"].items())
    return (
        f"Measured {m['date']} at commit {m['commit']} ({m['scale']}), {m['machine']['cores']} cores of "
        f"{m['machine']['processor']}, load {m['load_before']} before and {m['load_after']} after; {packages}."
    )


def bounds_table(results: dict[str, Any]) -> str:
    """Every figure that has a bound: peer, floor, ours, and what the distance is made of."""
    names = "workload", "figure", "bound", "floor", "measured", "quartiles", "of the fastest"
    rows = [
        f"| {' | '.join(names)} | peer | ours | | the distance is |",
        "| --- " * (len(names) + 4) + "|",
    ]
    for name, workload in results["workloads"].items():
        for figure in workload["figures"]:
            if figure["bound"]:
                sign, limit = figure["bound"]
                bound = f"{'≤' if sign == '<=' else '≥'} {number(limit)}{_unit(figure)}"
                floor = _or_nothing(figure.get("floor"), number)
                seconds = [
                    _or_nothing(figure.get(side), lambda x: duration(1e6 * x))
                    for side in ("peer", "ours")
                ]
                verdict = "met" if figure["met"] else "**missed**"
                cells = [name, figure["name"], bound, floor, _cells(figure), *seconds, verdict]
                rows.append(f"| {' | '.join([*cells, figure.get('reason', '')])} |")
    return "\n".join(rows)


def _or_nothing(value: float | None, said: Callable[[float], str]) -> str:
    return "" if value is None else said(value)


def figures_table(workload: dict[str, Any]) -> str:
    """A workload's figures."""
    if not workload["figures"]:
        return ""
    rows = ["| figure | measured | quartiles | of the fastest |", "| --- " * 4 + "|"]
    rows += [f"| {figure['name']} | {_cells(figure)} |" for figure in workload["figures"]]
    return "\n".join(rows)


def timings_table(workload: dict[str, Any]) -> str:
    """A workload's programs."""
    if not workload["timings"]:
        return ""
    rows = ["| program | median | fastest | note |", "| --- | ---: | ---: | --- |"]
    for timing in workload["timings"]:
        median, fastest = duration(timing["median_us"]), duration(timing["fastest_us"])
        rows.append(f"| {timing['name']} | {median} | {fastest} | {timing['note']} |")
    return "\n".join(rows)


def floors_table(results: dict[str, Any]) -> str:
    """The least work of each step, and its time at this machine's best rates."""
    rates = {
        figure["name"]: figure["value"] for figure in results["workloads"]["machine"]["figures"]
    }
    noise = results["workloads"]["noise"]
    normal = (
        next(t["fastest_us"] for t in noise["timings"] if t["name"] == "JAX, threefry")
        / noise["facts"]["noise_bits"]
    )
    rows = [
        "| workload | Mflop | at best | MB moved | at best | Mbit of noise | at threefry's rate | measured |",
        "| --- " + "| ---: " * 7 + "|",
    ]
    for name, workload in results["workloads"].items():
        floor = workload["facts"].get("floor")
        if floor is None:
            continue
        flops_us = floor["flops"] / rates["product, square"] / 1e3
        # Parameters and moments of these sizes stay in cache from one step to the next.
        bytes_us = floor["bytes"] / rates["triad, size of the VAE"] / 1e3
        step = next(
            t["fastest_us"] for t in workload["timings"] if t["name"] == "discreet, Poisson"
        )
        cells = (
            number(floor["flops"] / 1e6),
            duration(flops_us),
            number(floor["bytes"] / 1e6),
            duration(bytes_us),
            number(floor["noise_bits"] / 1e6),
            duration(floor["noise_bits"] * normal),
            duration(step),
        )
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cells(figure: dict[str, Any]) -> str:
    quartile = (
        f"{number(figure['low'])} to {number(figure['high'])}" if figure["low"] is not None else ""
    )
    fastest = number(figure["of_fastest"]) if figure["of_fastest"] is not None else ""
    return f"{number(figure['value'])}{_unit(figure)} | {quartile} | {fastest}"


def _unit(figure: dict[str, Any]) -> str:
    return f" {figure['unit']}" if figure["unit"] else ""


def number(value: float) -> str:
    """Three significant digits, never an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 0.001:
        return f"{value:.2g}"
    text = f"{value:#.3g}"
    return text.rstrip(".")


def duration(microseconds: float) -> str:
    """In the unit that a reader would choose."""
    if microseconds < 1e3:
        return f"{number(microseconds)} µs"
    if microseconds < 1e6:
        return f"{number(microseconds / 1e3)} ms"
    return f"{number(microseconds / 1e6)} s"


# What the page states: workload, figure or program, sentence.
STATED = (
    (
        "batch-sweep",
        "batch 128: private / not private",
        "takes {} times as long as NumPyro's at batch 128",
    ),
    (
        "logistic",
        "private / NumPyro, not private",
        "That of the logistic regression takes {} times as long",
    ),
    (
        "conv-vae",
        "private / NumPyro, not private, the quicker way",
        "that of the convolutional VAE {} times",
    ),
    ("vae-128", "Opacus, ghost / ours", "At batch 128 Opacus takes {} times as long as discreet"),
    ("vae-128", "jax_privacy, best microbatch / ours", "jax_privacy {} times"),
    ("vae-128", "reference engine / ours", "per-record gradients {} times"),
    ("compile-time", "logistic: compile", "Compiling the logistic regression takes {}"),
    ("batch-sweep", "batch 1,024: private / not private", ", {} at 1,024"),
    ("batch-sweep", "batch 4,096: private / not private", "and {} at 4,096"),
    (
        "noise",
        "ChaCha20 / threefry, normal variables",
        "Normal variables by ChaCha20 take {} times as long as by threefry",
    ),
    ("samplers", "JAX choice", "`jax.random.choice` {}"),
    ("samplers", "Poisson, ChaCha20", "A Poisson batch of a table of 60,000 takes {}"),
    ("sampler-scaling", "N = 100,000,000 / N = 10,000", "what one of 10⁴ does ({})"),
    (
        "figures-one-mean",
        "mean age: error, discreet / diffprivlib",
        "a mean alone has {} times the error of diffprivlib's",
    ),
    (
        "figures-one-mean",
        "mean age: half-width, discreet / diffprivlib",
        "{} times its 95 % half-width",
    ),
    (
        "figures-group-means",
        "mean by age race: error, discreet / OpenDP, Laplace",
        "Group means have {} times the error of OpenDP's",
    ),
    ("calibration", "discreet", "for 10,000 steps takes {}"),
    ("calibration", "dp_accounting, PLD", "by dp_accounting {}"),
)
_SAID = r"\d[\d,]*(?:\.\d+)?(?: (?:µs|ms|s)\b)?"


_PICTURES = {
    "first-answer": "![Seconds to a first answer](../benchmarks/first_answer.svg)",
    "posteriors-abalone": "![Error against processor time](../benchmarks/posteriors.svg)",
}


def pictures(results: dict[str, Any]) -> str:
    """Those of the page whose results are there."""
    there = results["workloads"]
    measured = [x for name, x in _PICTURES.items() if name in there and there[name]["timings"]]
    return "\n\n".join(measured)


def stated(results: dict[str, Any]) -> list[tuple[str, str]]:
    """The sentences of the page, with {} for the number, and the number as measured."""
    found = []
    for workload, name, sentence in STATED:
        own = results["workloads"][workload]
        figures = {x["name"]: number(x["value"]) + _unit(x) for x in own["figures"]}
        timings = {timing["name"]: duration(timing["median_us"]) for timing in own["timings"]}
        found.append((sentence, (figures | timings)[name]))
    bounded = [
        figure
        for workload in results["workloads"].values()
        for figure in workload["figures"]
        if figure["bound"]
    ]
    missed = sum(not figure["met"] for figure in bounded)
    return [*found, ("{} figures [miss their bound]", f"{missed} of {len(bounded)}")]


def fill(page: str, results: dict[str, Any]) -> str:
    """Put the results between a page's marks, `<!-- begin: WHAT -->` and `<!-- end -->`, and into its sentences (`STATED`).

    WHAT is "bounds", "floors" or "pictures"; or "figures", "timings" or "measured" and the name of a workload.

    Raises:
        KeyError: a mark or a sentence names what the results do not hold, or an unknown WHAT.
    """
    whole = {"bounds": bounds_table, "floors": floors_table, "pictures": pictures}
    single = {"figures": figures_table, "timings": timings_table, "measured": _measured}

    def table(match: re.Match[str]) -> str:
        what, _, name = match["what"].partition(" ")
        text = single[what](results["workloads"][name]) if name else whole[what](results)
        return f"{match[1]}{text}\n{match[4]}"

    page = _MARK.sub(table, page)
    for sentence, value in stated(results) if page.startswith("# Benchmarks") else []:
        before, after = (re.escape(part) for part in sentence.split("{}"))
        said = r"\d+ of \d+" if " of " in value else _SAID
        page = re.sub(f"{before}{said}{after}", sentence.format(value), page)
    return page
