"""What a proof ends in: the event, its price, what it rests on, and the program that it is about."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from dp_accounting import DpEvent

from discreet._jax import ClosedJaxpr, Jaxpr, Literal, run_jaxpr
from discreet.accounting import PrivacyProfile, Relation, profile
from discreet.verify._trail import Trail


@dataclasses.dataclass(frozen=True, eq=False)
class Certificate:
    """A proof that a program is private, and the program. Made by `certify`.

    Guarantee: under `relation` and `assumptions`, one call of the certificate is the composition that `event` names, within
    total variation `slack`; so what it returns is (epsilon, delta) differentially private as `epsilon` and `delta` say.

    Attributes:
        event: what the program does to the data.
        slack: total variation between the samplers as run and as accounted for.
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
    relation: Relation
    outputs: Mapping[str, str]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
    fingerprint: str
    versions: Mapping[str, str]
    trail: Trail = dataclasses.field(repr=False)
    _program: ClosedJaxpr = dataclasses.field(repr=False)
    _in_tree: Any = dataclasses.field(repr=False)
    _out_tree: Any = dataclasses.field(repr=False)

    def profile(self) -> PrivacyProfile:
        """The privacy profile of one call."""
        return self._profile

    @functools.cached_property
    def _profile(self) -> PrivacyProfile:
        return profile(self.event, self.relation, slack=min(1.0, self.slack))

    def epsilon(self, delta: float) -> float:
        """Epsilon at `delta` of one call: an upper bound; infinity where unattainable."""
        return self.profile().epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """Delta at `epsilon` of one call: an upper bound."""
        return float(self.profile().delta(epsilon))

    def __call__(self, *args: Any) -> Any:
        """Run the very program that was certified.

        Args:
            args: as at certification: the same structure, shapes and dtypes; keys that were used for nothing else.

        Raises:
            TypeError: the arguments are of another kind, so that this program is not theirs.
        """
        leaves, tree = jax.tree.flatten(args)
        if tree != self._in_tree:
            raise TypeError(
                f"The certificate is for arguments of structure {self._in_tree}, these have {tree}. Certify again for these."
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
        lines += [f"  output {name}: {status}" for name, status in self.outputs.items()]
        lines += [f"  note: {x}" for x in self.notes]
        lines += [f"  assuming: {x}" for x in self.assumptions]
        lines.append(f"  program {self.fingerprint[:16]}, " + ", ".join(f"{k} {v}" for k, v in self.versions.items()))
        return "\n".join(lines)


def fingerprint(program: ClosedJaxpr) -> str:
    """SHA-256 of a program: its jaxpr as text, and its constants."""
    # Not `str`, which is coloured in a terminal.
    digest = hashlib.sha256(program.jaxpr.pretty_print(use_color=False).encode())
    for value in all_constants(program):
        digest.update(constant_bytes(value))
    return digest.hexdigest()


def all_constants(program: ClosedJaxpr) -> list[Any]:
    """The arrays that a program holds, those of the programs within it among them."""
    found = list(program.consts)
    pending = [program.jaxpr]
    while pending:
        for equation in pending.pop().eqns:
            found += [x.val for x in equation.invars if isinstance(x, Literal) and np.ndim(x.val) > 0]
            for parameter in equation.params.values():
                for item in parameter if isinstance(parameter, tuple | list) else (parameter,):
                    if isinstance(item, ClosedJaxpr):
                        found += item.consts
                    inner = getattr(item, "jaxpr", item)
                    if isinstance(inner, Jaxpr):
                        pending.append(inner)
    return found


def constant_bytes(value: Any) -> bytes:
    """The content of a captured constant. Of a key only the kind: what it holds is secret."""
    if str(value.dtype).startswith("key<"):
        return str(value.dtype).encode()
    return np.asarray(value).tobytes()


def versions() -> dict[str, str]:
    """What the proof was made with."""
    return {"discreet": version("discreet"), "jax": jax.__version__, "python": platform.python_version()}
