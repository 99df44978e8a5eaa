"""The contract of gradient engines, and the state of records from batch to batch, as primitives.

Clip and sum cannot express what an engine does, since it never forms the records' gradients; so
`CLIPPED_SUM` is trusted, and tests check the engines. In both primitives a user's program gets only
the primitive's operands: it is traced here for one record, so that it cannot combine two.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet._jax import (
    ClosedJaxpr,
    jaxpr_as_fun,
    known_number,
    marker,
    open_program,
    types_of,
)
from discreet.privacy import gradients
from discreet.privacy.gradients import (
    BookKeepingEngine,
    Channels,
    ClippedSum,
    GradientEngine,
    ReferenceEngine,
)
from discreet.privacy.mechanisms._kinds import (
    GAUSSIAN,
    Mechanism,
)
from discreet.privacy.mechanisms._noise import (
    add_noise,
)
from discreet.privacy.mechanisms._shards import Shards, in_turns
from discreet.privacy.sampling import (
    Batch,
)


def _run(
    *operands: Any,
    implementation: ClosedJaxpr,
    layout: OperandCounts,
    shards: Shards | None,
    **parameters: Any,
) -> list[Array]:
    """The implementation; over devices, that of each device's part of the table, summed or concatenated."""
    del parameters  # for the verifier
    if shards is None:
        return jaxpr_as_fun(implementation)(*operands)
    return shards.on_each(
        jaxpr_as_fun(implementation), operands, layout.spread, summed=layout.summed
    )


CLIPPED_SUM = marker("clipped_sum", _run, refuse=None)
UPDATE_ROWS = marker("update_rows", _run, refuse=None)


class OperandCounts(NamedTuple):
    """The number of operands of each kind of `CLIPPED_SUM` or `UPDATE_ROWS`, in order, after keys, row numbers and mask."""

    counts: tuple[int, ...]
    spread: int  # The number of trailing operands with a row for each record
    summed: bool  # True if the results of several devices are summed, False if concatenated

    def parts(self, operands: Sequence[Any]) -> list[list[Any]]:
        """The operands by kind."""
        ends = itertools.accumulate(self.counts)
        return [
            list(operands[end - count : end]) for count, end in zip(self.counts, ends, strict=True)
        ]


class RandomLoss(Protocol):
    """A record's loss, and the random bits that it requests."""

    @property
    def requests(self) -> Sequence[jax.ShapeDtypeStruct]:
        """Shape and dtype of each of a record's requests."""
        ...

    def make(self, key: PRNGKeyArray, num_rows: int) -> tuple[list[Array], Bool[Array, ""]]:
        """The independent, identically distributed bits of `num_rows` rows, and True if they are valid."""
        ...

    def loss(
        self, parameters: Any, record: Any, key: PRNGKeyArray, bits: Sequence[Array]
    ) -> Float[Array, ""]:
        """The loss of one record, with its own bits and key."""
        ...


def clipped_sum(
    engine: GradientEngine,
    record: RandomLoss,
    parameters: Any,
    table: Sequence[Array],
    batch: Batch,
    keys: tuple[PRNGKeyArray, PRNGKeyArray],
    norm: float | Float[Array, ""],
    channels: Channels,
    shards: Shards | None = None,
    where: Sequence[Array] = (),
) -> tuple[ClippedSum, Bool[Array, ""]]:
    """Compute the clipped sum of a batch's gradients, as a marker, and True if the bits were valid.

    Guarantee: the engine's. The loss depends on one record; its other inputs count as public. The
    random bits are generated here and used nowhere else: they belong to places in the batch, which
    leaving a record out would move.

    Args:
        engine: A gradient engine, which defines `norm` and `channels`.
        record: The loss; traced here.
        parameters: Tree of floating arrays.
        table: Record arrays, of which the engine uses the batch's rows only.
        batch: Row numbers and mask; the unmasked ones are distinct.
        keys: The key of the bits; and the one from which each record derives its own, by its row
            number.
        norm: The clipping norm.
        channels: The channels of loss and count.
        shards: The layout of the table on several devices; None: on one.
        where: The result of `Shards.where`.
    """
    leaves, structure = jax.tree.flatten(parameters)
    row = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in table]
    program = jax.make_jaxpr(record.loss)(
        types_of(parameters), row, types_of(keys[1]), list(record.requests)
    )
    known_norm, traced_norm = known_number(norm)
    public = [*program.consts, jnp.asarray(channels.center), jnp.asarray(channels.bound)]
    # The norm if traced; records' places if drawn; values that the loss closes over, center and
    # bound of its channel; parameters to differentiate; records.
    counts = len(traced_norm), len(where), len(public), len(leaves), len(table)
    layout = OperandCounts(counts, len(table), summed=True)

    def implementation(
        local: Any, own: Any, indices: Array, mask: Array, *operands: Array, first: Any = None
    ) -> list[Array]:
        norms, where, held, leaves, table = layout.parts(operands)
        *consts, center, bound = held

        def loss(u: Any, place: tuple[Array, Array | None, list[Array]]) -> Float[Array, ""]:
            index, row, bits = place
            row = index if row is None else row
            values = [
                x.at[row].get(mode="promise_in_bounds", wrap_negative_indices=False) for x in table
            ]
            closed = ClosedJaxpr(program.jaxpr, consts)
            key = jax.random.fold_in(own, index)
            return jaxpr_as_fun(closed)(*jax.tree.leaves(u), *values, key, *bits)[0]

        bits, right = record.make(local, len(indices))
        rows = None
        if shards is not None:
            places, rows, mask = shards.rows_here(first, indices, mask, where)
            indices = indices[places]
            bits = [x[places] for x in bits]
        beside = dataclasses.replace(channels, center=center, bound=bound)
        total = engine(
            loss,
            jax.tree.unflatten(structure, leaves),
            (indices, rows, bits),
            mask,
            norms[0] if norms else norm,
            beside,
        )
        roundings.append(total.rounding)
        return [*jax.tree.leaves(total.gradient), total.loss, total.count, right]

    operands = [*keys, *batch, *traced_norm, *where, *public, *leaves, *table]
    roundings: list[float] = []
    closed = _traced(implementation, operands, layout, shards)
    rounding = roundings[-1] * (1 if shards is None else max(1.0, shards.count / gradients.DEVICES))
    if any(isinstance(x, Tracer) for x in closed.consts):
        raise TypeError(
            "An engine or a source of bits closes over traced values; pass them as arguments."
        )
    *gradient, loss, count, right = CLIPPED_SUM.bind(
        *operands,
        implementation=closed,
        loss=open_program(program.jaxpr),
        layout=layout,
        norm=known_norm,
        shares=(channels.loss_share, channels.count_share),
        rounding=rounding,
        shards=shards,
        trusted=type(engine) in (BookKeepingEngine, ReferenceEngine)
        and type(shards) in (type(None), Shards),
    )
    sums = jax.tree.unflatten(structure, gradient)
    return ClippedSum(
        sums, loss, count, channels.joint_bound(norm) * (1.0 + rounding), rounding
    ), right


def _traced(
    implementation: Callable[..., Any],
    operands: list[Any],
    layout: OperandCounts,
    shards: Shards | None,
) -> ClosedJaxpr:
    """The program for `_run`: of all operands, or of a device's first row and its part of them."""
    if shards is None:
        return jax.make_jaxpr(implementation)(*operands)
    seen = shards.local_shapes(operands, layout.spread)
    return jax.make_jaxpr(lambda first, *x: implementation(*x, first=first))(jnp.int32(0), *seen)


class Release(NamedTuple):
    """A clipped sum with a mechanism's noise, which may be published."""

    gradient: Any  # Tree like the parameters: the noised sum of the clipped gradients
    loss: Float[Array, ""]  # Scalar: the noised sum of the weighted, clipped losses
    # The noised, weighted counts of gradients within C, and of clipped ones
    count: Float[Array, "two"]


def release(
    key: PRNGKeyArray,
    total: ClippedSum,
    noise_multiplier: Any,
    mechanism: Mechanism = GAUSSIAN,
    levels: int = 3,
) -> Release:
    """Release gradient, loss and count of a clipped sum together, by one mechanism.

    Guarantee: one `mechanism.event(noise_multiplier)`, if its norm is 2: the noise is scaled to the
    joint L2 bound that `total` carries. The multiplier may be traced; `levels` are those of
    `add_noise` for it.
    """
    sums = (total.gradient, total.loss, total.count)
    stddev = noise_multiplier * total.l2_bound
    if not mechanism.on_grid:
        sums = jax.tree.map(lambda x: x.astype(jnp.float32), sums)
    noised = add_noise(
        mechanism, key, sums, stddev, "release", multiplier=noise_multiplier, levels=levels
    )
    return Release(*jax.tree.map(lambda x: x.astype(jnp.float32), noised))


RowUpdate = Callable[[Any, Sequence[Array], Sequence[Array], PRNGKeyArray], Sequence[Array]]
"""`(parameters, row of the records, row of the memory, key) -> row of the memory`."""


def update_rows(
    function: RowUpdate,
    parameters: Any,
    table: Sequence[Array],
    memory: Sequence[Array],
    batch: Batch,
    key: PRNGKeyArray,
    shards: Shards | None = None,
    where: Sequence[Array] = (),
) -> list[Array]:
    """Update the memory of a batch's rows, as a marker. All arguments are as in `clipped_sum`.

    Guarantee: row i of the result depends on row i of the records and of the memory, on draws of
    its own and on `parameters`, and on no other record. Nothing is released. With independent
    inclusion (Poisson samples, or all records) the memory costs nothing beyond what is released
    later: given all that is known of the other records, one record still enters a batch with
    probability q and adds at most the clipping norm, whatever it remembers; and the hockey-stick
    divergence of a mixture over what it may remember is at most the worst one's, which is the one
    accounted for (joint convexity). That is so while a sample is fresh: the verifier refuses to
    release from one after anything else was released. In batches of fixed size whether one record
    is drawn decides what others remember, and the argument fails.

    `function` is traced here, for one row; `parameters` are releases, or public; each record
    derives a key of its own from `key`.
    """
    leaves = jax.tree.leaves(parameters)
    row, kept = (
        [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in arrays] for arrays in (table, memory)
    )
    program = jax.make_jaxpr(function)(types_of(parameters), row, kept, types_of(key))
    public = [*program.consts, *leaves]
    counts = len(where), len(public), len(table), len(memory)
    layout = OperandCounts(counts, len(table) + len(memory), summed=False)

    def implementation(
        own: PRNGKeyArray, indices: Array, mask: Array, *operands: Array, first: Any = None
    ) -> list[Array]:
        where, held, table, memory = layout.parts(operands)
        consts = held[: len(program.consts)]
        leaves = held[len(program.consts) :]

        def one(index: Array, row: Array, memory: Sequence[Array]) -> list[Array]:
            values = [
                x.at[row].get(mode="promise_in_bounds", wrap_negative_indices=False)
                for x in (*table, *memory)
            ]
            return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, consts))(
                *leaves, *values, jax.random.fold_in(own, index)
            )

        def update(named: tuple[Array, Array], mask: Array, memory: Sequence[Array]) -> list[Array]:
            # Rows that the mask drops are written past the end, so they are discarded.
            places = jnp.where(mask, named[1], len(memory[0]))
            found = jax.vmap(one, (0, 0, None))(*named, memory)
            return [
                x.at[places].set(new, mode="drop") for x, new in zip(memory, found, strict=True)
            ]

        rows = indices
        if shards is not None:
            places, rows, mask = shards.rows_here(first, indices, mask, where)
            indices = indices[places]
        return in_turns(update, (indices, rows), mask, memory)

    operands = [key, *batch, *where, *public, *table, *memory]
    closed = _traced(implementation, operands, layout, shards)
    if any(isinstance(x, Tracer) for x in closed.consts):
        raise TypeError(
            "The update of a row uses traced values from outside; pass them as parameters."
        )
    return UPDATE_ROWS.bind(*operands, implementation=closed, layout=layout, shards=shards)
