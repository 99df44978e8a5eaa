"""What a proof ends in: the event, its price, what it rests on, and the program that it is about."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from dp_accounting.dp_event import DpEvent
from jax.core import Tracer

from discreet._jax import ClosedJaxpr, all_constants, run_jaxpr
from discreet.accounting import PrivacyProfile, Relation, profile
from discreet.verify._closed_form import delta_formula, formula_lines
from discreet.verify._expect import check_expected
from discreet.verify._symbols import checked_values, numbers_of, open_in
from discreet.verify._trail import Trail


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """A proof that a program is private, and the program. Made by `certify`.

    Guarantee: under `relation` and `assumptions`, all `times` calls of the certificate are the composition that `event`
    names, within total variation `slack`; so what they return together is (epsilon, delta) differentially private as `epsilon`
    and `delta` say. With symbols left open, that is so for every value for which `at` returns a certificate.

    Attributes:
        event: what the program does to the data, in all calls; its numbers may be sympy expressions.
        slack: total variation between the samplers as run and as accounted for; NaN while symbols are open in the event.
        times: how often the program may be called on the same records.
        relation: which tables are neighbours.
        outputs: for each output its status, "public" (the data have no influence) or "released".
        assumptions: what the proof rests on, in words.
        notes: what made the event worse than it could be.
        fingerprint: SHA-256 of the program, constants included.
        versions: of discreet, JAX and Python.
        trail: what was found out of each line.
    """

    event: DpEvent
    slack: float
    times: Any
    relation: Relation
    outputs: Mapping[str, str]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str
    versions: Mapping[str, str]
    _known: tuple[str, ...] = dataclasses.field(repr=False)
    _again: Callable[[Mapping[str, Any]], Certificate] = dataclasses.field(repr=False)
    _fixed: Mapping[int, float] = dataclasses.field(repr=False)
    _given: Mapping[int, np.ndarray] = dataclasses.field(repr=False)
    trail: Trail = dataclasses.field(repr=False)
    _program: ClosedJaxpr = dataclasses.field(repr=False)
    _in_tree: Any = dataclasses.field(repr=False)
    _out_tree: Any = dataclasses.field(repr=False)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols that the event depends on. One that cancels is none of them."""
        return open_in(numbers_of(self.event))

    def at(self, /, **values: Any) -> Certificate:
        """The certificate with numbers in the place of symbols: the program is traced and proved again with them.

        So every condition on a value is that of the proof: a rate above 1 is refused, and a capacity that is too small for it.

        Args:
            values: a number for each symbol; those that are left out stay open.

        Returns:
            The certificate. It is called with the same arguments as this one, those numbers among them.

        Raises:
            ValueError: no such symbol; a value that is not positive, or beyond 1e-30 to 1e30; or what the program refuses.
            PrivacyError: no proof with these numbers.
        """
        return self._again(checked_values(values, self._known))

    def profile(self) -> PrivacyProfile:
        """The privacy profile of all calls.

        Raises:
            ValueError: the event depends on symbols.
        """
        return self._profile

    @functools.cached_property
    def _profile(self) -> PrivacyProfile:
        if self.symbols:
            named = ", ".join(f"{x}=..." for x in self.symbols)
            raise ValueError(
                f"The price depends on {', '.join(self.symbols)}. Give their values: certificate.at({named})."
            )
        return profile(self.event, self.relation, slack=min(1.0, self.slack))

    def epsilon(self, delta: float, **values: Any) -> float:
        """Epsilon at `delta` of all calls, at the `values` of symbols: an upper bound; infinity where unattainable."""
        return (self.at(**values) if values else self).profile().epsilon(delta)

    def delta(self, epsilon: float, **values: Any) -> float:
        """Delta at `epsilon` of all calls, at the `values` of symbols: an upper bound."""
        return float((self.at(**values) if values else self).profile().delta(epsilon))

    def delta_expression(self, epsilon: Any = None) -> Any:
        """Delta as a sympy expression of epsilon and the symbols: the exact profile of the event, no bound on it.

        Args:
            epsilon: a number, or an expression; left out, the symbol `epsilon`.

        Raises:
            ValueError: no closed form is known, as for random samples.
        """
        found = delta_formula(self.event, self.relation, epsilon)
        if found is None:
            raise ValueError(
                f"No closed form of delta(epsilon) is known for {self.event}. certificate.epsilon(delta, ...) computes an "
                "upper bound at values of the symbols."
            )
        return found

    def check(self, claimed: Any) -> None:
        """Compare with what the program is claimed to do.

        Args:
            claimed: a DpEvent, or a PrivacyPlan.

        Raises:
            PrivacyError: the program does more, with both events and the reason.
        """
        check_expected(self.event, self.slack, claimed, self.relation, self.notes)

    def __call__(self, *args: Any) -> Any:
        """Run the very program that was certified.

        Args:
            args: as at certification: the same structure, shapes and dtypes, and in the place of symbols the numbers that
                they were given; keys that were used for nothing else.

        Raises:
            TypeError: the arguments are of another kind, so that this program is not theirs.
            ValueError: a symbol has no value, or another than the number that is passed.
        """
        if self._known:
            named = ", ".join(f"{x}=..." for x in self._known)
            raise ValueError(
                f"What is open has no value yet, and no proof with it: call certificate.at({named}) instead."
            )
        leaves, tree = jax.tree.flatten(args)
        if tree != self._in_tree:
            raise TypeError(
                f"The certificate is for arguments of structure {self._in_tree}, these have {tree}. Certify again for these."
            )
        for number, value in self._fixed.items():
            if isinstance(leaves[number], Tracer) or leaves[number] != value:
                raise ValueError(
                    f"Argument leaf {number} is {leaves[number]}; the certificate is for {value}: another program. Pass that "
                    "number, or take certificate.at with another."
                )
        leaves = [x for i, x in enumerate(leaves) if i not in self._fixed]
        for number, value in self._given.items():
            if isinstance(leaves[number], Tracer) or not np.array_equal(leaves[number], value):
                raise ValueError(
                    f"Argument leaf {number} is {leaves[number]}; the certificate knows it to be {value}. Pass that value, or "
                    "certify again with another."
                )
        for number, (leaf, kind) in enumerate(zip(leaves, self._program.in_avals, strict=True)):
            shape, dtype = np.shape(leaf), jax.dtypes.result_type(leaf) if not hasattr(leaf, "dtype") else leaf.dtype
            if tuple(shape) != tuple(kind.shape) or dtype != kind.dtype:
                raise TypeError(
                    f"Argument leaf {number} is {dtype}{list(shape)}, the certified program takes {kind.dtype}"
                    f"{list(kind.shape)}: another program. Certify again, or pad to the certified number of rows."
                )
        return jax.tree.unflatten(self._out_tree, self._run(*leaves))

    @functools.cached_property
    def _run(self) -> Callable[..., list[Any]]:
        return jax.jit(functools.partial(run_jaxpr, self._program))

    def __str__(self) -> str:
        """The certificate in some lines."""
        lines = [f"Certified under {self.relation.name}: {self.event}"]
        if self.symbols:
            named = ", ".join(f"{x}=..." for x in self.symbols)
            lines += [f"  {x}" for x in formula_lines(self.event, self.relation)]
            lines.append(f"  epsilon(delta), computed from above: certificate.epsilon(delta, {named})")
        lines += [f"  output {name}: {status}" for name, status in self.outputs.items()]
        lines += [f"  note: {x}" for x in self.notes]
        lines += [f"  assuming: {x}" for x in self.assumptions]
        lines.append(f"  program {self.fingerprint[:16]}, " + ", ".join(f"{k} {v}" for k, v in self.versions.items()))
        return "\n".join(lines)


def fingerprint(program: ClosedJaxpr, given: Sequence[Any] = ()) -> str:
    """SHA-256 of a program: its jaxpr as text, its constants, and the values it is given. The same in every process."""
    # Not `str`, which is coloured in a terminal; and functions are printed with the place where they lie in memory.
    text = re.sub(r"\b0x[0-9a-f]+", "0x", program.jaxpr.pretty_print(use_color=False))
    digest = hashlib.sha256(text.encode())
    for value in [*all_constants(program), *map(np.asarray, given)]:
        digest.update(constant_bytes(value))
    return digest.hexdigest()


def constant_bytes(value: Any) -> bytes:
    """The content of a captured constant. Of a key only the kind: what it holds is secret."""
    if str(value.dtype).startswith("key<"):
        return str(value.dtype).encode()
    return np.asarray(value).tobytes()


def versions() -> dict[str, str]:
    """What the proof was made with."""
    return {"discreet": version("discreet"), "jax": jax.__version__, "python": platform.python_version()}
