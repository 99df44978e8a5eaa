"""The error that a program without proof gets."""

from __future__ import annotations

from discreet.verify._domain import Origin


class PrivacyError(ValueError):
    """A program could not be proved private: which output leaks, along which lines, by which rule, and the remedy.

    Attributes:
        output: name of the output that leaks; empty if the program is refused as a whole.
        chain: source lines from the record argument to the place where the proof ended.
        rule: what was not shown.
        remedy: what usually helps.
    """

    def __init__(self, rule: str, remedy: str, *, output: str = "", chain: tuple[str, ...] = ()) -> None:
        """See Attributes."""
        self.rule, self.remedy, self.output, self.chain = rule, remedy, output, chain
        lines = [f"No proof of privacy: {'output ' + output + ' leaks. ' if output else ''}{rule}"]
        lines += [f"  {'from' if i == 0 else '  ->'} {line}" for i, line in enumerate(chain)]
        lines.append(f"Remedy: {remedy}")
        super().__init__("\n".join(lines))


def chain_of(origin: Origin | None) -> tuple[str, ...]:
    """The lines that a value passed, from the record argument on; a line that repeats itself once."""
    lines: list[str] = []
    while origin is not None:
        text = f"{origin.line}: {origin.what}" if origin.line else origin.what
        if not origin.line and origin.parent is not None:
            pass  # JAX's own doing
        elif not lines or lines[-1].rsplit(":", 1)[0] != text.rsplit(":", 1)[0]:
            lines.append(text)
        origin = origin.parent
    return tuple(reversed(lines))


REMEDIES = {
    "clip": "bound each record's contribution with dp.clip_records, then sum with dp.sum_records and add noise with "
    "dp.gaussian_mechanism.",
    "noise": "add noise with dp.gaussian_mechanism before the value is returned. What is drawn with jax.random.normal, as by "
    "optax.contrib.differentially_private_aggregate, ends at 5.4 standard deviations and does not count as noise.",
    "rows": "compute each record's contribution from that record alone (jax.vmap over the records), clip it, then sum.",
    "nan": "select such values away with jnp.where before clipping, or use dp.clip_records, which makes such records zero.",
    "mask": "select rows with dp.sum_records(rows, mask) or jnp.where(mask, rows, 0), after clipping; where the table was "
    "padded before a sample was drawn, draw its mask along and use both.",
    "key": "split the key with jax.random.split, use each part once, and return none that was used.",
    "control": "let control flow depend on public or released values only; inside jax.vmap a cond becomes a select, row by row.",
    "callback": "remove the callback or print; return what is public, and print it outside of the program.",
    "position": "treat all rows of a sample alike: which row a record gets says who else is in it.",
    "precision": "sum in float32: rounding in a coarser type can move the sum by more than any bound.",
    "noise scale": "let the noise be a known multiple of the clipping norm: stddev = noise_multiplier * clipping_norm, as "
    "Python numbers or from one traced norm.",
}
"""What usually helps, by the kind of failure."""


def remedy_for(why: str) -> str:
    """The remedy whose tag ("[clip] ...") the reason begins with."""
    tag = why[1 : why.index("]")] if why.startswith("[") and "]" in why else "clip"
    return REMEDIES.get(tag, REMEDIES["clip"])


def without_tag(why: str) -> str:
    """The reason for people."""
    return why[why.index("]") + 2 :] if why.startswith("[") and "]" in why else why
