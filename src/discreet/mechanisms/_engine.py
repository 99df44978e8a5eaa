"""A step of private inference in three primitives: a batch is drawn, its gradients are clipped and summed, noise is added.

The verifier takes a gradient engine for what `GradientEngine` promises, instead of following its arithmetic; tests hold
the engines to that. In a primitive the engine cannot be given anything but what its mark names: the loss is a program of
one record, so that it cannot see two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from discreet._jax import ClosedJaxpr, marker, run_jaxpr
from discreet.gradients import (
    BookKeepingEngine,
    Channels,
    ClippedSum,
    Clipping,
    GradientEngine,
    LossChannel,
    ReferenceEngine,
    check_positive,
)
from discreet.mechanisms._marked import REMEDY, add_gaussian, check_leaves, known_number
from discreet.sampling import Batch, FixedSizeSampling, FullBatch, PoissonSampling, Sampling

KeyedLoss = Callable[[Any, list[Array], PRNGKeyArray, list[Array]], Float[Array, ""]]
"""`loss(parameters, record, key, bits) -> scalar`: of one record, with a key and random bits of its own."""


def _draw(key: PRNGKeyArray, *tables: Array, sampling: Sampling, structure: Any, num_records: int, law: Any) -> list:
    del law  # the verifier reads it
    return list(sampling.draw(key, jax.tree.unflatten(structure, tables), num_records=num_records))


def _run(*operands: Any, implementation: ClosedJaxpr, **parameters: Any) -> list[Array]:
    del parameters  # the verifier reads them
    return run_jaxpr(implementation, *operands)


DRAW = marker("draw_batch", _draw, refuse=None)
CLIPPED_SUM = marker("clipped_sum", _run, refuse=None)
RELEASE = marker("release", add_gaussian, refuse=None)


def draw_batch(sampling: Sampling, key: PRNGKeyArray, tables: Any, num_records: int) -> Batch:
    """`sampling.draw`, with a mark.

    Args:
        sampling: the sampler.
        key: for this draw alone.
        tables: what `sampling.prepare(num_records)` returned.
        num_records: rows of the table.
    """
    leaves, structure = jax.tree.flatten(tables)
    law = _law(sampling, num_records)
    return Batch(*DRAW.bind(key, *leaves, sampling=sampling, structure=structure, num_records=num_records, law=law))


def _law(sampling: Sampling, num_records: int) -> tuple[Any, ...] | None:
    """What a sampler of ours draws: ("poisson", rate, slack) or ("fixed", batch size); None for others' samplers."""
    kind = type(sampling)
    if isinstance(sampling, PoissonSampling) and kind is PoissonSampling:
        return "poisson", sampling.rate, sampling.slack_per_step(num_records)
    if kind is FullBatch:
        return "poisson", 1.0, 0.0
    if isinstance(sampling, FixedSizeSampling) and kind is FixedSizeSampling:
        return "fixed", sampling.batch_size
    return None


class Layout(NamedTuple):
    """How many operands of each kind `CLIPPED_SUM` has, in this order, after record key, row numbers and mask.

    Attributes:
        norm: the clipping norm, where it is traced: 0 or 1.
        public: what the loss holds, center and bound of the loss channel.
        parameters: leaves to differentiate in.
        bits: random bits, a row for each of the batch.
        table: arrays of records.
    """

    norm: int
    public: int
    parameters: int
    bits: int
    table: int

    def parts(self, operands: Sequence[Any]) -> list[list[Any]]:
        """The operands by kind."""
        rest, parts = list(operands), []
        for count in self:
            parts.append(rest[:count])
            rest = rest[count:]
        return parts


def clipped_sum(
    engine: GradientEngine,
    loss: KeyedLoss,
    parameters: Any,
    table: Sequence[Array],
    batch: Batch,
    bits: Sequence[Array],
    key: PRNGKeyArray,
    clipping: Clipping,
    channels: Channels,
) -> ClippedSum:
    """The clipped sum of a batch's gradients, with a mark.

    Guarantee: the engine's. The loss sees one record; what it takes from elsewhere counts as public.

    Args:
        engine: a gradient engine.
        loss: of one record; traced here.
        parameters: tree of floating arrays.
        table: record arrays, of which the engine takes the batch's rows and no others.
        batch: row numbers and mask; those that the mask keeps are different.
        bits: random bits, with a leading axis of the batch's rows.
        key: from which each record derives its own, by its row number.
        clipping: as in `GradientEngine`.
        channels: likewise.
    """
    leaves, structure = jax.tree.flatten(parameters)
    row = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in table]
    own_bits = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in bits]
    program = jax.make_jaxpr(loss)(parameters, row, key, own_bits)
    norm, traced_norm = known_number(clipping.norm)
    public = [*program.consts, jnp.asarray(channels.loss.center), jnp.asarray(channels.loss.bound)]
    layout = Layout(len(traced_norm), len(public), len(leaves), len(bits), len(table))

    def implementation(key: PRNGKeyArray, indices: Array, mask: Array, *operands: Array) -> list[Array]:
        norms, held, leaves, bits, table = layout.parts(operands)
        *consts, center, bound = held

        def record_loss(u: Any, place: tuple[Array, list[Array]]) -> Float[Array, ""]:
            index, bits = place
            record = [x.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False) for x in table]
            own_key = jax.random.fold_in(key, index)
            return run_jaxpr(ClosedJaxpr(program.jaxpr, consts), *jax.tree.leaves(u), *record, own_key, *bits)[0]

        total = engine(
            record_loss,
            jax.tree.unflatten(structure, leaves),
            (indices, bits),
            mask,
            dataclasses.replace(clipping, norm=norms[0]) if norms else clipping,
            dataclasses.replace(channels, loss=LossChannel(channels.loss.share, center, bound)),
        )
        return [*jax.tree.leaves(total.gradient), total.loss, total.count]

    operands = [key, *batch, *traced_norm, *public, *leaves, *bits, *table]
    *gradient, loss_sum, count = CLIPPED_SUM.bind(
        *operands,
        implementation=jax.make_jaxpr(implementation)(*operands),
        loss=program.jaxpr,
        layout=layout,
        norm=norm,
        shares=(channels.loss.share, channels.count.share),
        trusted=type(engine) in (BookKeepingEngine, ReferenceEngine),
    )
    bound = channels.joint_bound(clipping.norm)
    return ClippedSum(jax.tree.unflatten(structure, gradient), loss_sum, count, bound)


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


def release(key: PRNGKeyArray, total: ClippedSum, noise_multiplier: float) -> Release:
    """Release a clipped sum, gradient, loss and count together, as one Gaussian mechanism.

    Guarantee: one `GaussianDpEvent(noise_multiplier)`: the noise is scaled to the joint L2
    bound that `total` carries.

    Args:
        key: a scalar key, for this release alone.
        total: what a gradient engine returned.
        noise_multiplier: noise standard deviation divided by the joint bound.
    """
    stddev = noise_multiplier * total.l2_bound
    check_positive("release: stddev", stddev, REMEDY)
    leaves, structure = jax.tree.flatten((total.gradient, total.loss, total.count))
    leaves = check_leaves("release", leaves)
    known, operands = known_number(stddev)
    return Release(*jax.tree.unflatten(structure, RELEASE.bind(key, *leaves, *operands, stddev=known)))
