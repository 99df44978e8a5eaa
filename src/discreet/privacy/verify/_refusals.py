"""What no proof covers, refused before the walk: side effects, and calls that cannot be inspected.

A callback, a print or an infeed lets data leave the program beside its outputs, so a bound on the
outputs would prove nothing. A primitive that is not JAX's, or an exported program, may hold records
as constants or combine them in any way. Both are found by looking at every equation of the jaxpr
and of the programs within it.
"""

from __future__ import annotations

from collections.abc import Set

import jax
import jax.export

from discreet._jax import (
    Jaxpr,
    Primitive,
    inner_programs,
    inside,
    is_opaque,
    is_over_devices,
    jax_primitives,
    shard_map_p,
    source_line,
)
from discreet.privacy.verify._errors import Why
from discreet.privacy.verify._registry import KEY_RULES, RULES


def refuse_opaque(
    jaxpr: Jaxpr, known: Set[Primitive] | None = None, *, on_devices: bool = False
) -> None:
    """Refuse a program that has side effects (callback, print, I/O), or calls whose content cannot be inspected.

    Such a call may contain records. `known`: All primitives that are JAX's or have a rule; None:
    they are looked up. `on_devices`: Within `shard_map`, whose rule covers communication between
    devices.
    """
    known = jax_primitives() | RULES.keys() | KEY_RULES.keys() if known is None else known
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if is_over_devices(equation) and not on_devices:
            raise Why.DEVICES.refusal(
                f"{name} at {source_line(equation)} combines values of several devices outside of shard_map, and no rule "
                "bounds the influence of one record on them.",
                source_line(equation),
            )
        outside = ("callback", "debug_print", "ffi_call", "infeed", "outfeed")
        if (equation.effects and not is_over_devices(equation)) or any(
            word in name for word in outside
        ):
            raise Why.CALLBACK.refusal(
                f"the operation {name} at {source_line(equation)} has side effects (callback, print, I/O) while the program "
                "runs: no proof covers them.",
                source_line(equation),
            )
        exported = any(isinstance(x, jax.export.Exported) for x in equation.params.values())
        if equation.primitive not in known or exported or is_opaque(equation):
            what = "an exported program" if exported else "not a primitive of JAX"
            raise Why.BOOK.refusal(
                f"{name} at {source_line(equation)} is {what}: its computation and constants cannot be inspected.",
                source_line(equation),
            )
        with inside(equation):
            for inner in inner_programs(equation):
                sharded = on_devices or equation.primitive is shard_map_p
                refuse_opaque(inner.jaxpr, known, on_devices=sharded)
