"""A step of private inference in three primitives: a batch is drawn, its gradients are clipped and summed, noise is added.

The verifier takes a gradient engine for what `GradientEngine` promises, instead of following its arithmetic; tests hold
the engines to that. In a primitive the engine cannot be given anything but what its mark names: the loss is a program of
one record, so that it cannot see two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet._jax import ClosedJaxpr, marker, open_program, run_jaxpr
from discreet.gradients import (
    BookKeepingEngine,
    Channels,
    ClippedSum,
    Clipping,
    GradientEngine,
    LossChannel,
    ReferenceEngine,
)
from discreet.mechanisms._marked import add_gaussian, check_leaves, check_noise, in_parts, known_number
from discreet.sampling import Batch, FixedSizeSampling, FullBatch, PoissonDrawing, PoissonSampling


def _draw(key: PRNGKeyArray, *tables: Array, sampling: Any, structure: Any, num_records: int) -> list:
    return list(sampling.draw(key, jax.tree.unflatten(structure, tables), num_records=num_records))


def _run(*operands: Any, implementation: ClosedJaxpr, **parameters: Any) -> list[Array]:
    del parameters  # the verifier reads them
    return run_jaxpr(implementation, *operands)


DRAW = marker("draw_batch", _draw, refuse=None)
CLIPPED_SUM = marker("clipped_sum", _run, refuse=None)
RELEASE = marker("release", add_gaussian, refuse=None)


def draw_batch(sampling: Any, key: PRNGKeyArray, tables: Any, num_records: int) -> Batch:
    """`sampling.draw`, with a mark.

    Args:
        sampling: the sampler, or what its `drawing` returns.
        key: for this draw alone.
        tables: what `sampling.prepare(num_records)` returned.
        num_records: rows of the table.
    """
    sampling = drawing_of(sampling, num_records)
    leaves, structure = jax.tree.flatten(tables)
    return Batch(*DRAW.bind(key, *leaves, sampling=sampling, structure=structure, num_records=num_records))


def drawing_of(sampling: Any, num_records: int) -> Any:
    """How a sampler draws, as a static part of a program: samplers of one kind that differ in their tables share it."""
    return sampling.drawing(num_records) if type(sampling) is PoissonSampling else sampling


def law_of(sampling: Any, structure: Any, tables: Sequence[Any], num_records: int) -> tuple[Any, ...] | None:
    """What a draw draws: ("poisson", rate, slack) or ("fixed", batch size); None for others' samplers.

    The law of a Poisson draw is that of its tables: these must be, word for word, those of a rate.

    Args:
        sampling: as `DRAW` has it.
        structure: likewise.
        tables: the values of its tables; None for one that is not known before the program runs.
        num_records: likewise.
    """
    if type(sampling) is PoissonDrawing:
        known = None if any(x is None for x in tables) else jax.tree.unflatten(structure, tables)
        drawn = None if known is None else sampling.sampling(known, num_records)
        return None if drawn is None else ("poisson", drawn.rate, drawn.slack_per_step(num_records))
    if type(sampling) is FullBatch:
        return "poisson", 1.0, 0.0
    if type(sampling) is FixedSizeSampling:
        return "fixed", sampling.batch_size
    return None


class Layout(NamedTuple):
    """How many operands of each kind `CLIPPED_SUM` has, in this order, after two keys, row numbers and mask.

    Attributes:
        norm: the clipping norm, where it is traced: 0 or 1.
        public: what the loss holds, center and bound of the loss channel.
        parameters: leaves to differentiate in.
        table: arrays of records.
    """

    norm: int
    public: int
    parameters: int
    table: int

    def parts(self, operands: Sequence[Any]) -> list[list[Any]]:
        """The operands by kind."""
        return in_parts(self, operands)


class RecordLoss(Protocol):
    """A record's loss, and the random bits that it asks for."""

    @property
    def requests(self) -> Sequence[jax.ShapeDtypeStruct]:
        """What a record asks for: shape and dtype of each request."""
        ...

    def make(self, key: PRNGKeyArray, num_rows: int) -> tuple[list[Array], Bool[Array, ""]]:
        """The bits of `num_rows` rows, independent and alike, and whether they are right."""
        ...

    def loss(self, parameters: Any, record: Any, key: PRNGKeyArray, bits: Sequence[Array]) -> Float[Array, ""]:
        """The loss of one record, with bits and a key of its own."""
        ...


def clipped_sum(
    engine: GradientEngine,
    record: RecordLoss,
    parameters: Any,
    table: Sequence[Array],
    batch: Batch,
    keys: tuple[PRNGKeyArray, PRNGKeyArray],
    clipping: Clipping,
    channels: Channels,
) -> tuple[ClippedSum, Bool[Array, ""]]:
    """The clipped sum of a batch's gradients, with a mark.

    Guarantee: the engine's. The loss sees one record; what it takes from elsewhere counts as public. The random bits are made
    in here and seen by nobody else: they belong to places in the batch, which a record that is left out would move.

    Args:
        engine: a gradient engine.
        record: the loss; traced here.
        parameters: tree of floating arrays.
        table: record arrays, of which the engine takes the batch's rows and no others.
        batch: row numbers and mask; those that the mask keeps are different.
        keys: for the bits; and the one from which each record derives its own, by its row number.
        clipping: as in `GradientEngine`.
        channels: likewise.

    Returns:
        The sum, and whether the bits were right.
    """
    leaves, structure = jax.tree.flatten(parameters)
    row = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in table]
    program = jax.make_jaxpr(record.loss)(parameters, row, keys[1], list(record.requests))
    norm, traced_norm = known_number(clipping.norm)
    public = [*program.consts, jnp.asarray(channels.loss.center), jnp.asarray(channels.loss.bound)]
    layout = Layout(len(traced_norm), len(public), len(leaves), len(table))

    def implementation(local: Any, own: Any, indices: Array, mask: Array, *operands: Array) -> list[Array]:
        norms, held, leaves, table = layout.parts(operands)
        *consts, center, bound = held

        def loss(u: Any, place: tuple[Array, list[Array]]) -> Float[Array, ""]:
            index, bits = place
            values = [x.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False) for x in table]
            closed, key = ClosedJaxpr(program.jaxpr, consts), jax.random.fold_in(own, index)
            return run_jaxpr(closed, *jax.tree.leaves(u), *values, key, *bits)[0]

        bits, right = record.make(local, len(indices))
        here = dataclasses.replace(clipping, norm=norms[0]) if norms else clipping
        beside = dataclasses.replace(channels, loss=LossChannel(channels.loss.share, center, bound))
        total = engine(loss, jax.tree.unflatten(structure, leaves), (indices, bits), mask, here, beside)
        return [*jax.tree.leaves(total.gradient), total.loss, total.count, right]

    operands = [*keys, *batch, *traced_norm, *public, *leaves, *table]
    closed = jax.make_jaxpr(implementation)(*operands)
    if any(isinstance(x, Tracer) for x in closed.consts):
        raise TypeError("An engine or a source of bits uses traced values from outside; pass them as what they are.")
    *gradient, loss, count, right = CLIPPED_SUM.bind(
        *operands,
        implementation=closed,
        loss=open_program(program),
        layout=layout,
        norm=norm,
        shares=(channels.loss.share, channels.count.share),
        trusted=type(engine) in (BookKeepingEngine, ReferenceEngine),
    )
    bound = channels.joint_bound(clipping.norm)
    return ClippedSum(jax.tree.unflatten(structure, gradient), loss, count, bound), right


class Release(NamedTuple):
    """A clipped sum after the Gaussian mechanism: it may leave the data.

    Attributes:
        gradient: tree like the parameters: the noised sum of the clipped gradients.
        loss: scalar: the noised sum of the weighted, clipped losses.
        count: scalar: the noised, weighted count of gradients within C, less half of all.
    """

    gradient: Any
    loss: Float[Array, ""]
    count: Float[Array, ""]


def release(key: PRNGKeyArray, total: ClippedSum, noise_multiplier: float | Float[Array, ""]) -> Release:
    """Release a clipped sum, gradient, loss and count together, as one Gaussian mechanism.

    Guarantee: one `GaussianDpEvent(noise_multiplier)`: the noise is scaled to the joint L2
    bound that `total` carries.

    Args:
        key: a scalar key, for this release alone.
        total: what a gradient engine returned.
        noise_multiplier: noise standard deviation divided by the joint bound; it may be traced.
    """
    stddev = noise_multiplier * total.l2_bound
    check_noise("release: stddev", stddev)
    leaves, structure = jax.tree.flatten((total.gradient, total.loss, total.count))
    leaves = check_leaves("release", leaves)
    known, operands = known_number(stddev)
    return Release(*jax.tree.unflatten(structure, RELEASE.bind(key, *leaves, *operands, stddev=known)))
