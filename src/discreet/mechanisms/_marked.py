"""What is public, for any JAX program: one JAX primitive each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet import gradients, random
from discreet._jax import marker, one_process
from discreet.gradients import check_positive
from discreet.sampling import PoissonSampling, check_capacity, fixed_size_rows, poisson_rows

REMEDY = "Without noise nothing is private: use noise_multiplier * clipping_norm of a PrivacyPlan."


class NoNoiseError(ValueError):
    """The noise of a mechanism is known to be zero while tracing, so that its release would hide nothing."""


def check_noise(what: str, size: Any) -> None:
    """Refuse noise of a size, known while tracing, that hides nothing.

    Raises:
        NoNoiseError: it is zero.
        ValueError: it is negative or not finite.
    """
    if jnp.ndim(size) == 0 and not isinstance(size, Tracer) and float(size) == 0:
        raise NoNoiseError(f"{what} is 0. {REMEDY}")
    check_positive(what, size, REMEDY)


def check_leaves(mechanism: str, leaves: list[Any]) -> list[Array]:
    if not leaves:
        raise ValueError(f"{mechanism}: the tree holds no array, so there is nothing to release.")
    for leaf in leaves:
        dtype = jnp.asarray(leaf).dtype
        if dtype not in (jnp.float32, jnp.float64):
            raise TypeError(
                f"{mechanism}: a leaf has dtype {dtype}. Noise is added in float32 or float64, since "
                "coarser numbers would round it away; convert the leaf with .astype(jnp.float32)."
            )
    return [jnp.asarray(leaf) for leaf in leaves]


def _add(leaves: list[Array], make_noise: Callable[[int, Any], Float[Array, " dim"]]) -> list[Array]:
    """The leaves with noise added: one draw for all coordinates, in the order of the leaves.

    Each leaf is added to its own part of the draw; they are never copied into one vector.
    """
    one_process("The noise of a mechanism")
    noise = make_noise(sum(leaf.size for leaf in leaves), jnp.result_type(*leaves))
    noised, start = [], 0
    for leaf in leaves:
        own = noise[start : start + leaf.size].reshape(leaf.shape)
        noised.append((leaf + own).astype(leaf.dtype))
        start += leaf.size
    return noised


def add_gaussian(key: PRNGKeyArray, *operands: Array, stddev: float | None) -> list[Array]:
    """Leaves with Gaussian noise; a standard deviation that is being traced comes last among the operands."""
    *leaves, scale = (*operands, stddev) if stddev is not None else operands
    scale = _usable(scale) if stddev is None else scale
    key = random.check_key(key)
    return _add(leaves, lambda dim, dtype: scale * random.normal(key, (dim,), dtype))


def _usable(scale: Any) -> Any:
    """A scale that is known only when the program runs: NaN, which no sum outlives, where it is too small to hide one."""
    size = jnp.abs(scale)
    return jnp.where((size >= 1e-20) & (size <= 1e20), scale, jnp.nan)


def _laplace(key: PRNGKeyArray, *operands: Array, scale: float | None) -> list[Array]:
    *leaves, width = (*operands, scale) if scale is not None else operands
    width = _usable(width) if scale is None else width
    key = random.check_key(key)

    def noise(dim, dtype):
        squares = jnp.square(random.normal(key, (4, dim), dtype))
        return width * 0.5 * (squares[0] + squares[1] - squares[2] - squares[3])

    return _add(leaves, noise)


def _clip(*operands: Array, norm: float | None) -> list[Array]:
    *rows, bound = (*operands, norm) if norm is not None else operands
    return gradients.clip_records(rows, bound)


def _sum(*operands: Array) -> list[Array]:
    *rows, mask = operands
    return gradients.sum_records(rows, mask)


def _poisson(key: PRNGKeyArray, *rows: Array, rate: float, capacity: int, slack: float) -> list[Array]:
    del slack  # the verifier reads it
    batch, mask = poisson_rows(random.check_key(key), list(rows), rate, capacity)
    return [*batch, mask]


def _open_poisson(key: PRNGKeyArray, *operands: Array, capacity: int) -> list[Array]:
    del key, operands, capacity
    raise ValueError(
        "poisson_subsample: the rate is traced, and the tables that a batch is drawn with are made from its value before the "
        "program runs. Pass a Python number; of a certificate with a symbol for a rate, run certificate.at(...)."
    )


def _open_batch(key: PRNGKeyArray, *operands: Array, capacity: int) -> list[Array]:
    """What a batch looks like whose rate is left open."""
    del key
    return [*(jnp.zeros((capacity, *x.shape[1:]), x.dtype) for x in operands[:-1]), jnp.zeros(capacity, bool)]


def _fixed_size(key: PRNGKeyArray, *rows: Array, batch_size: int) -> list[Array]:
    return fixed_size_rows(random.check_key(key), list(rows), batch_size)


_NO_NOISE = (
    "one event stands for one draw of noise, so a mechanism cannot be mapped or differentiated. Map or differentiate what "
    "leads to the sum, and call the mechanism once, on the result."
)
_NO_DRAW = "one event stands for one draw of a batch. Draw it outside of what is mapped or differentiated."
GAUSSIAN = marker("gaussian_mechanism", add_gaussian, refuse=_NO_NOISE)
LAPLACE = marker("laplace_mechanism", _laplace, refuse=_NO_NOISE)
CLIP = marker("clip_records", _clip, refuse=None)
SUM = marker("sum_records", _sum, refuse=None)
POISSON = marker("poisson_subsample", _poisson, refuse=_NO_DRAW)
OPEN_POISSON = marker("poisson_subsample", _open_poisson, refuse=_NO_DRAW, shapes=_open_batch)
FIXED_SIZE = marker("subsample_without_replacement", _fixed_size, refuse=_NO_DRAW)


def in_parts(counts: Sequence[int], operands: Sequence[Any]) -> list[list[Any]]:
    """The operands of a primitive, so many of each kind."""
    ends = list(itertools.accumulate(counts))
    return [list(operands[end - count : end]) for count, end in zip(counts, ends, strict=True)]


def known_number(value: Any) -> tuple[float | None, list[Any]]:
    """A number, as the parameter of a primitive if it is known, else as one more of its operands."""
    return (None, [value]) if isinstance(value, Tracer) else (float(value), [])


def _check_key(key: Any) -> None:
    jax.eval_shape(random.check_key, key)


def clip_records(tree: Any, norm: float | Float[Array, ""]) -> Any:
    """Scale each record's slice of a tree so that its joint L2 norm is at most `norm`.

    Guarantee: for every record, finite or not, sqrt(sum over leaves of |slice|^2) <= `norm` after rounding to float32. A
    record with a NaN or an infinity, or whose squared norm overflows, becomes exactly zero. A record already within the
    norm keeps its value. Low-precision leaves come back as float32.

    Args:
        tree: arrays whose leading axis is the records.
        norm: the bound; positive and finite, a Python number or a scalar array.

    Returns:
        A tree of the same structure and shapes.

    Raises:
        ValueError: a norm known while tracing is not positive and finite, or the tree is empty.
        TypeError: a leaf is complex.

    Reference:
        Abadi et al., Deep learning with differential privacy, CCS 2016, Algorithm 1.

    >>> import jax.numpy as jnp, discreet as dp
    >>> rows = jnp.array([[3.0, 4.0], [0.3, 0.4], [jnp.nan, 0.0]])
    >>> [round(float(x), 4) for x in jnp.linalg.norm(dp.clip_records(rows, 1.0), axis=1)]
    [1.0, 0.5, 0.0]
    """
    # All that may be refused is refused here; the shapes alone are looked at.
    jax.eval_shape(lambda x: gradients.clip_records(x, norm), tree)
    known, operands = known_number(norm)
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, CLIP.bind(*leaves, *operands, norm=known))


def sum_records(tree: Any, mask: Bool[Array, "record"]) -> Any:
    """Sum over the leading axis the rows that `mask` keeps; the others count as exactly zero.

    Guarantee: a dropped row has no influence, whatever it holds (NaN included): it is selected away, not multiplied by
    zero.

    Args:
        tree: arrays whose leading axis is the records.
        mask: which rows are real.

    Returns:
        A tree of the same structure without the leading axis.

    >>> import jax.numpy as jnp, discreet as dp
    >>> float(dp.sum_records(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False])))
    3.0
    """
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, SUM.bind(*leaves, mask)) if leaves else tree


def gaussian_mechanism(key: PRNGKeyArray, tree: Any, stddev: float | Float[Array, ""]) -> Any:
    """Add independent Gaussian noise to every coordinate of a tree of arrays.

    Guarantee: if one record changes the tree by at most C in joint L2 norm and
    stddev = noise_multiplier * C, the release is a `GaussianDpEvent(noise_multiplier)`, up
    to floating-point rounding of the sum. The noise has no cut tail (`discreet.random.normal`).

    Args:
        key: a scalar key, for this call alone. Keys of `discreet.random.key` are secure.
        tree: float32 or float64 arrays; the value to release.
        stddev: standard deviation of the noise, in the units of `tree`; positive and finite. Where it is known only when the
            program runs, and then below 1e-20 or above 1e20, the release is NaN.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: `stddev`, where known while tracing, is not positive and finite.
        TypeError: a leaf is not float32 or float64.

    Reference:
        Dwork and Roth, The algorithmic foundations of differential privacy, 2014, A.1.

    >>> import jax.numpy as jnp, discreet as dp
    >>> dp.gaussian_mechanism(dp.random.key(), {"sum": jnp.zeros(3)}, 2.0)["sum"].shape
    (3,)
    """
    return _release(GAUSSIAN, key, tree, stddev=stddev)


def laplace_mechanism(key: PRNGKeyArray, tree: Any, scale: float | Float[Array, ""]) -> Any:
    """Add independent Laplace noise to every coordinate of a tree of arrays.

    Guarantee: if one record changes the tree by at most D in joint **L1** norm and
    scale = noise_multiplier * D, the release is a `LaplaceDpEvent(noise_multiplier)`. A bound
    in L2 does not do: for d coordinates it understates epsilon by up to sqrt(d).

    A Laplace variable is drawn as the difference of two exponential ones, each half the sum
    of two squared Gaussians, so that its tails are as long as theirs: beyond 40 scales.

    Args:
        key: a scalar key, for this call alone.
        tree: float32 or float64 arrays; the value to release.
        scale: scale b of the density exp(-|x| / b) / 2b, in the units of `tree`.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: `scale`, where known while tracing, is not positive and finite.
        TypeError: a leaf is not float32 or float64.

    Reference:
        Dwork et al., Calibrating noise to sensitivity, TCC 2006.
    """
    return _release(LAPLACE, key, tree, scale=scale)


def _release(mechanism: Any, key: PRNGKeyArray, tree: Any, **size: Any) -> Any:
    """The tree with a mechanism's noise, whose size goes by the name of its parameter."""
    ((name, value),) = size.items()
    check_noise(f"{mechanism.name}: {name}", value)
    _check_key(key)
    leaves, structure = jax.tree.flatten(tree)
    one_process(mechanism.name, leaves)
    leaves = check_leaves(mechanism.name, leaves)
    known, operands = known_number(value)
    return jax.tree.unflatten(structure, mechanism.bind(key, *leaves, *operands, **{name: known}))


def poisson_subsample(
    key: PRNGKeyArray, records: Any, rate: float, capacity: int | None = None
) -> tuple[Any, Bool[Array, "capacity"]]:
    """Draw a batch that holds each record independently with probability `rate`.

    Guarantee: the batch is a Poisson sample but for a total-variation distance that `PoissonSampling.slack_per_step` gives
    and a certificate adds to its delta. It is never cut short. Rows without a record are exactly zero. Which row a
    record gets means nothing.

    Args:
        key: a scalar key, for this draw alone. It must stay secret.
        records: tree of arrays whose leading axis is the records; with padding, its own mask among them.
        rate: probability q in (0, 1] that a record enters the batch; a Python number. `certify` also reads programs whose
            rate is traced; they cannot run.
        capacity: rows of the batch; at least `PoissonSampling(rate).capacity(num_records)`, which it is where left out.

    Returns:
        The batch, a tree like `records` with `capacity` rows, and its mask: which of them hold a record.

    Raises:
        ValueError: the rate is no probability above 0, or `capacity` could be exceeded.
        TypeError: the key is no typed key.

    Reference:
        Balle, Barthe, Gaboardi. Privacy amplification by subsampling. NeurIPS 2018.

    >>> import jax.numpy as jnp, discreet as dp
    >>> rows = jnp.arange(1.0, 101.0)
    >>> batch, mask = dp.poisson_subsample(dp.random.key(1), rows, 0.1, 100)
    >>> bool(jnp.all((batch > 0) == mask))
    True
    """
    _check_key(key)
    leaves, structure = _rows("poisson_subsample", records)
    num_records = leaves[0].shape[0]
    if isinstance(rate, Tracer):
        *batch, mask = OPEN_POISSON.bind(key, *leaves, rate, capacity=int(capacity or num_records))
        return jax.tree.unflatten(structure, batch), mask
    capacity = PoissonSampling(rate).capacity(num_records) if capacity is None else capacity
    slack = check_capacity(rate, num_records, capacity)
    *batch, mask = POISSON.bind(key, *leaves, rate=float(rate), capacity=int(capacity), slack=slack)
    return jax.tree.unflatten(structure, batch), mask


def subsample_without_replacement(key: PRNGKeyArray, records: Any, batch_size: int) -> Any:
    """Draw a batch of exactly `batch_size` different records, every such set equally likely.

    Guarantee: exactly uniform given uniform random words. Sound accounting exists under `REPLACE_ONE` only.

    Args:
        key: a scalar key, for this draw alone. It must stay secret.
        records: tree of arrays whose leading axis is the records.
        batch_size: records of the batch, a Python number, at most the number of records.

    Returns:
        The batch, a tree like `records` with `batch_size` rows.

    Raises:
        ValueError: `batch_size` is below 1 or above the number of records.
        TypeError: the key is no typed key.

    >>> import jax.numpy as jnp, discreet as dp
    >>> sorted(map(int, dp.subsample_without_replacement(dp.random.key(1), jnp.arange(3), 3)))
    [0, 1, 2]
    """
    _check_key(key)
    leaves, structure = _rows("subsample_without_replacement", records)
    return jax.tree.unflatten(structure, FIXED_SIZE.bind(key, *leaves, batch_size=int(batch_size)))


def _rows(who: str, records: Any) -> tuple[list[Array], Any]:
    leaves, structure = jax.tree.flatten(records)
    leaves = [jnp.asarray(x) for x in leaves]
    if not leaves or any(x.ndim == 0 for x in leaves) or len({x.shape[0] for x in leaves}) != 1:
        shapes = [x.shape for x in leaves]
        raise ValueError(
            f"{who}: the records have shapes {shapes}; every array needs one row per record, as many as the others. Pass "
            "arrays whose leading axis is the records."
        )
    return leaves, structure
