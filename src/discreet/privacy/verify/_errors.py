"""Refusals: why a program has no proof, along which of its lines, and what usually helps.

Every obstacle to a proof becomes a `PrivacyError`. Some errors are raised at the fault (a key used
twice); others are deferred, since a value without a bound may never be returned: such a value
carries the `Reason` of the equation where the last bound was lost, and an `Origin` that leads back
to the record, until an output needs the bound. So an error names the first cause and not its last
consequence. Nothing here decides whether there is a proof.
"""

from __future__ import annotations

import dataclasses
import enum
import linecache
import os
import re
from typing import Any

from discreet._validate import RefusedError


@enum.unique
class Why(enum.Enum):
    """The kinds of failure; the value of each is what usually helps. `Why.ROWS("...")` is a reason of that kind."""

    CLIP = (
        "bound each record's contribution with dp.clip_records, then sum with dp.sum_records and add noise with "
        "dp.gaussian_mechanism."
    )
    NOISE = (
        "add noise with dp.gaussian_mechanism before the value is returned. Draws of jax.random.normal, as in "
        "optax.contrib.differentially_private_aggregate, end at 5.4 standard deviations and do not count as noise."
    )
    ROWS = "compute each record's contribution from that record alone (jax.vmap over the records), clip it, then sum."
    NAN = "replace such values with jnp.where before clipping, or use dp.clip_records, which makes such records zero."
    MASK = (
        "select rows with dp.sum_records(rows, mask) or jnp.where(mask, rows, 0), after clipping; where the table was "
        "padded before a sample was drawn, sample its mask as well and use both."
    )
    KEY = "split the key with jax.random.split, use each part once, and return none that was used."
    CONTROL = "let control flow depend on public or released values only; inside jax.vmap a cond becomes a select, row by row."
    ROW = (
        "return no value of a single record: sum over the records with dp.clip_records and dp.sum_records, and add noise with "
        "dp.gaussian_mechanism."
    )
    LINEAR = (
        "before the noise only add, or multiply by public numbers: divide by the expected number of records, which is "
        "public, and not by a count of them. Do everything else with the output of dp.gaussian_mechanism."
    )
    WHOLE_NUMBERS = "convert to float32 before multiplying or summing: integers wrap around."
    TURNS = (
        "draw, clip, sum and release within one iteration of the loop; carry over only public or released values, or a sum "
        "that only grows by additions."
    )
    CHOICE = "select each row by its own element of the mask, and anything else by public values."
    UNKNOWN = (
        "write it with operations that the checker supports, on each record alone, or apply it to the output of "
        "dp.gaussian_mechanism."
    )
    CALLBACK = (
        "remove the callback or print; return public values, and print them outside of the program."
    )
    DEVICES = (
        "within shard_map add each device's own clipped sum with jax.lax.psum, then add noise from a key that all devices share. "
        "Or write the step for the whole table, and let jax.jit spread it over devices."
    )
    BOOK = "write it with JAX's own functions, or compute it outside of the step and pass the result, which counts as public."
    POSITION = (
        "treat all rows of a sample alike: the row of a record reveals who else is in the sample."
    )
    SAMPLER = (
        "draw with a sampler of discreet.sampling; test the law of a sampler of your own, and add it to "
        "discreet.sampling.SAMPLERS."
    )
    MECHANISM = (
        "use dp.gaussian_mechanism or dp.laplace_mechanism; test the noise of a mechanism of your own, and add it to "
        "discreet.mechanisms.MECHANISMS."
    )
    RATE = "make the rate a Python number, or a dp.symbol whose value is passed to Certificate.at."
    PRECISION = (
        "sum in float32 and keep large numbers out of it until the noise is added: rounding can move the sum by more "
        "than any bound."
    )
    RELEASE = "install a release of JAX that discreet was tested on."
    NOISE_SCALE = (
        "let the noise be a known multiple of the clipping norm: stddev = noise_multiplier * clipping_norm, as "
        "Python numbers or from one traced norm."
    )

    def __call__(self, text: str) -> Reason:
        """A reason of this kind."""
        return Reason(self, text)

    def refusal(self, text: str, *chain: str, output: str = "") -> PrivacyError:
        """An error of this kind, with the lines of the program concerned."""
        return PrivacyError(text, self.value, output=output, chain=chain)


@dataclasses.dataclass(frozen=True)
class Reason:
    """The reason why a value has no bound: `kind` determines the remedy, the text and the place are for people."""

    kind: Why
    text: str
    place: str = ""

    def at(self, place: str) -> Reason:
        """The same with its place in the program; an earlier place is kept."""
        return dataclasses.replace(self, place=self.place or place)

    def __str__(self) -> str:
        """The reason as a clause of a sentence."""
        return f"{self.text} (at {self.place})" if self.place else self.text


CALLED_AT = ", called at "
_PLACE = re.compile(r"(.+?):(\d+) \(")


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """The source of a private value: the last equation, and the operand that matters most; or an argument."""

    line: str
    what: str
    parent: Origin | None = None
    mask: bool = False  # On this path it comes from the mask alone


class NoBoundError(Exception):
    """A rule finds nothing that bounds the results of its equation: why, and the one operand that is at fault, or None."""

    def __init__(self, why: Reason, at_fault: Any = None) -> None:
        """See the class."""
        super().__init__(why)
        self.why = why
        self.at_fault = at_fault


class PrivacyError(RefusedError):
    """A program could not be proved private: which output leaks, along which lines, by which rule, and the remedy.

    Attributes:
        output: The output that leaks, as an expression of the program's result; empty if the
            program is refused as a whole.
        chain: Source lines from the record argument to the place where the proof ended: "file:line
            (function): text".
        rule: The claim that could not be proved.
        remedy: The usual remedy.
    """

    def __init__(
        self, rule: str, remedy: str, *, output: str = "", chain: tuple[str, ...] = ()
    ) -> None:
        """See Attributes."""
        self.rule = sentence(rule)
        self.remedy = remedy
        self.output = output
        passed = [_with_text(line) for place in chain for line in place.split(CALLED_AT)]
        # Name a line once, even if a gradient passes it twice. The last line stays last.
        first = {place_of(line) or line: line for line in reversed(passed[:-1])}
        kept = [line for line in dict.fromkeys(passed[:-1]) if line in first.values()]
        while (
            kept and place_of(kept[-1]) is not None and place_of(kept[-1]) == place_of(passed[-1])
        ):
            kept.pop()
        self.chain = (*kept, *passed[-1:])
        lines = [f"No proof of privacy: {f'output {output} leaks. ' if output else ''}{self.rule}"]
        lines += [f"  {'from' if i == 0 else '  ->'} {line}" for i, line in enumerate(self.chain)]
        lines.append(f"Remedy: {remedy}")
        super().__init__(from_here("\n".join(lines)))


def sentence(text: str) -> str:
    """Capitalize the first letter of a text."""
    return text[:1].upper() + text[1:]


def from_here(text: str) -> str:
    """Shorten file names in a text: relative to the working folder."""
    return text.replace(os.getcwd() + os.sep, "")


def place_of(line: str) -> tuple[str, int] | None:
    """The file and line number at the start of a line of a chain; None for an argument."""
    found = _PLACE.match(line)
    return None if found is None else (found[1], int(found[2]))


def source_of(name: str) -> list[str]:
    """The lines of a file; none where they cannot be read.

    Since Python 3.13 "<string>" is the text of `python -c`, and every function made by `exec`
    claims to come from there.
    """
    if name == "<string>":
        return []
    linecache.checkcache(name)
    return linecache.getlines(name)


def _with_text(line: str) -> str:
    place = place_of(line)
    if place is None or not line.endswith(")"):
        return line
    text = "".join(source_of(place[0])[place[1] - 1 : place[1]]).strip()
    return f"{line}: {text}" if text else line


def chain_of(origin: Origin | None) -> tuple[str, ...]:
    """The lines that a value passed, from the record argument on; after those of a function, the line of the call."""
    origins: list[Origin] = []
    while origin is not None:
        origins.append(origin)
        origin = origin.parent
    lines: list[str] = []
    caller = ""
    for origin in reversed(origins):
        if not origin.line and origin.parent is not None:
            continue  # JAX's own doing
        line, _, called_at = (origin.line or origin.what).partition(CALLED_AT)
        if caller not in ("", called_at):
            lines.append(caller)
        lines.append(line)
        caller = called_at
    lines += [caller] if caller else []
    return tuple(line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1])
