"""Programs that run in turn, their times, and the figures made from them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_REST = 0.01  # seconds between programs, for the threads of the one before to fall asleep


@dataclass(frozen=True)
class Scale:
    """The time limits of a run.

    Attributes:
        name: as in the results.
        rounds: how often the contenders take turns.
        effort: share of the full number of steps a round.
        tiny: small tables too, for the tests, of which a batch holds every record, so that little
            is compiled: the programs are run, their times mean nothing.
    """

    name: str
    rounds: int
    effort: float
    tiny: bool = False

    def steps(self, full: int) -> int:
        """Steps a round, from those of a full run."""
        return max(1, round(full * self.effort))

    def size(self, full: int, tiny: int) -> int:
        """A size of the problem: only the tests shrink it."""
        return tiny if self.tiny else full


FULL = Scale("full", rounds=7, effort=1.0)
QUICK = Scale("quick", rounds=3, effort=0.2)
TINY = Scale("tiny", rounds=1, effort=0.0, tiny=True)


@dataclass(frozen=True)
class Program:
    """One contender.

    Attributes:
        name: how it is called in the results.
        run: does `steps` steps and returns when they are done.
        steps: how many steps one call of `run` makes.
        note: what a reader must know of it, in one sentence.
    """

    name: str
    run: Callable[[], Any]
    steps: int
    note: str = ""


@dataclass(frozen=True)
class Timing:
    """Seconds a step of one program, one number a round."""

    name: str
    seconds: list[float]
    steps: int
    note: str = ""

    @property
    def median(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        """The fastest round: what is left when nothing else runs on the machine."""
        return min(self.seconds)


@dataclass(frozen=True)
class Figure:
    """One number of the results, with the bound that it is to keep, if there is one.

    Attributes:
        name: what it is, in words.
        value: the number.
        unit: "" for a ratio.
        bound: for example ("<=", 1.7).
        low: lower quartile over the rounds.
        high: upper quartile over the rounds.
        of_fastest: for a ratio of times, the ratio of the fastest rounds.
        reason: what the distance from the floor is made of, as measured.
        peer: what it is compared with, in its unit or in seconds; None where it has no peer.
        ours: ours, likewise.
        floor: the least that `value` could be on this machine; None where nothing was computed.
    """

    name: str
    value: float
    unit: str = ""
    bound: tuple[str, float] | None = None
    low: float | None = None
    high: float | None = None
    of_fastest: float | None = None
    reason: str = ""
    peer: float | None = None
    ours: float | None = None
    floor: float | None = None

    @property
    def met(self) -> bool | None:
        """True if the bound is kept; None without one."""
        if self.bound is None:
            return None
        sign, limit = self.bound
        return self.value <= limit if sign == "<=" else self.value >= limit


@dataclass
class Outcome:
    """The results of one workload.

    Attributes:
        name: the module's name.
        title: one line.
        timings: of every program.
        figures: the results.
        facts: public facts that a reader or a test checks: sizes, counts, floors.
        skipped: contenders that could not run, and why.
    """

    name: str
    title: str
    timings: list[Timing] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def timing(self, name: str) -> Timing:
        """The timing of one program.

        Raises:
            KeyError: no program of that name was measured.
        """
        for timing in self.timings:
            if timing.name == name:
                return timing
        raise KeyError(
            f"{self.name} measured {[timing.name for timing in self.timings]}, not {name!r}."
        )

    def compare(
        self,
        name: str,
        over: str,
        under: str,
        bound: tuple[str, float] | None = None,
        reason: str = "",
        floor: float | None = None,
    ) -> None:
        """Add the figure `over` / `under`, where both were measured."""
        measured = {timing.name for timing in self.timings}
        if {over, under} <= measured:
            figure = ratio(name, self.timing(over), self.timing(under), bound)
            self.figures.append(replace(figure, reason=reason, floor=floor))

    def together(self, names: Sequence[str], under: str) -> float:
        """The time of programs one after the other, over that of another."""
        rounds = zip(*(self.timing(name).seconds for name in names), strict=True)
        return ratio("", Timing("", [sum(x) for x in rounds], 1), self.timing(under)).value


def alternate(programs: Sequence[Program], rounds: int) -> list[Timing]:
    """Run every program once unmeasured, then all of them in turn, `rounds` times.

    Each round starts with another program, so that none always runs after the same one.
    """
    for program in programs:
        program.run()
    seconds: dict[str, list[float]] = {program.name: [] for program in programs}
    for turn in range(rounds):
        first = turn % len(programs)
        for program in [*programs[first:], *programs[:first]]:
            time.sleep(_REST)
            started = time.perf_counter()
            program.run()
            seconds[program.name].append((time.perf_counter() - started) / program.steps)
    return [
        Timing(program.name, seconds[program.name], program.steps, program.note)
        for program in programs
    ]


def ratio(name: str, over: Timing, under: Timing, bound: tuple[str, float] | None = None) -> Figure:
    """Median of the ratios within each round: what slows the machine for a while slows both.

    Raises:
        ValueError: the two were not measured in the same rounds.
    """
    if len(over.seconds) != len(under.seconds):
        raise ValueError(
            f"{over.name} and {under.name} were not measured in turn: their rounds differ in number."
        )
    paired = [a / b for a, b in zip(over.seconds, under.seconds, strict=True)]
    low, middle, high = quartiles(paired)
    # Of "theirs / ours" the peer is the first.
    peer, ours = (over, under) if bound is not None and bound[0] == ">=" else (under, over)
    return Figure(
        name,
        middle,
        bound=bound,
        low=low,
        high=high,
        of_fastest=over.fastest / under.fastest,
        peer=peer.median,
        ours=ours.median,
    )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; of one value, that value three times."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
