"""Rows that are kept beside the records: a private memory that never leaves, and enters releases through its record alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, PRNGKeyArray

from discreet._jax import ClosedJaxpr, marker, run_jaxpr
from discreet.mechanisms._marked import in_parts
from discreet.sampling import Batch

RowUpdate = Callable[[Any, Sequence[Array], Sequence[Array], PRNGKeyArray], Sequence[Array]]
"""`(parameters, row of the records, row of the memory, key) -> row of the memory`."""


def _run(*operands: Any, implementation: ClosedJaxpr, layout: MemoryLayout) -> list[Array]:
    del layout  # the verifier reads it
    return run_jaxpr(implementation, *operands)


UPDATE_ROWS = marker("update_rows", _run, refuse=None)


class MemoryLayout(NamedTuple):
    """How many operands of each kind `UPDATE_ROWS` has, in this order, after a key, row numbers and mask."""

    public: int
    table: int
    memory: int

    def parts(self, operands: Sequence[Any]) -> list[list[Any]]:
        """The operands by kind."""
        return in_parts(self, operands)


def update_rows(
    function: RowUpdate,
    parameters: Any,
    table: Sequence[Array],
    memory: Sequence[Array],
    batch: Batch,
    key: PRNGKeyArray,
) -> list[Array]:
    """The memory after the rows of a batch are updated, with a mark.

    Guarantee: row i of the result depends on row i of the records and of the memory, on draws of its own and on `parameters`,
    and on no other record. Nothing is released. With independent inclusion (Poisson samples, or all records) the memory
    costs nothing beyond what is released later: given all that is known of the other records, one record still enters a
    batch with probability q and adds at most the clipping norm, whatever it remembers; and the hockey-stick divergence of
    a mixture over what it may remember is at most the worst one's, which is the one accounted for (joint convexity). That is so
    while a sample is fresh: the verifier refuses to release from one after anything else was released. In batches of fixed
    size whether one record is drawn decides what others remember, and the argument fails.

    Args:
        function: traced here, for one row.
        parameters: tree of arrays: releases, or public.
        table: record arrays.
        memory: arrays with the same leading axis.
        batch: row numbers and mask; those that the mask keeps are different.
        key: from it each record derives its own, by its row number.
    """
    leaves = jax.tree.leaves(parameters)
    row, kept = ([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in arrays] for arrays in (table, memory))
    program = jax.make_jaxpr(function)(parameters, row, kept, key)
    public = [*program.consts, *leaves]
    layout = MemoryLayout(len(public), len(table), len(memory))

    def implementation(own: PRNGKeyArray, indices: Array, mask: Array, *operands: Array) -> list[Array]:
        held, table, memory = layout.parts(operands)
        consts, leaves = held[: len(program.consts)], held[len(program.consts) :]

        def one(index: Array) -> list[Array]:
            values = [x.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False) for x in (*table, *memory)]
            return run_jaxpr(ClosedJaxpr(program.jaxpr, consts), *leaves, *values, jax.random.fold_in(own, index))

        # Rows that the mask drops are written past the end, that is nowhere.
        places = jnp.where(mask, indices, len(memory[0]))
        return [x.at[places].set(new, mode="drop") for x, new in zip(memory, jax.vmap(one)(indices), strict=True)]

    operands = [key, *batch, *public, *table, *memory]
    closed = jax.make_jaxpr(implementation)(*operands)
    if any(isinstance(x, Tracer) for x in closed.consts):
        raise TypeError("The update of a row uses traced values from outside; pass them as parameters.")
    return UPDATE_ROWS.bind(*operands, implementation=closed, layout=layout)
