"""Sums over the rows of a batch, to which one record adds at most its own row, also after rounding.

A Poisson batch has a random number of rows, and compiled programs have fixed shapes: a batch is
padded to a capacity that it seldom exceeds, with the real rows first and a mask, and processed in
chunks by one compiled program, until the rows end.

What one record adds is bounded for the sum *as computed*. In floating point that is not so by
itself: a record that comes first moves the running sum, and with it the rounding of later terms;
artificial tables move a float32 sum by 98 C. So:

- Rows do not meet. A row is computed alike in each place of a chunk, whatever the others hold. A
  chunk has a multiple of `LANES` rows, for of other numbers XLA computes the last rows by other
  instructions. Of any number it does so with the last vector of a loop: there a * b + c * d may be
  rounded first on the other side, and a loss may hang on that rounding. So the last `SPARE` rows of
  a chunk are never a batch's. And the number of rows of a chunk does not follow that of the table:
  one record more would make another program, which rounds all rows otherwise. That is tested, not
  proved.
- Sums are in float64, where n rows in m chunks of b move by roundings of at most 2 n (b + m) 2^-53
  C altogether. n is fixed by the plan, or the noise would follow the table's size: a batch for
  which that is too few is refused.
- Or, for large models, sums within blocks of a chunk are in float32, and the blocks are added in
  float64. Then the rows must be in a secret, uniformly random order. A batch without its row j is
  the batch in which the last row has taken place j: as likely as any other order. So two blocks
  differ, by the record and by four times what adding b rows can lose (`lost_within`), however large
  the batch. Blocks are cut in a branch whose operands rows are, and so written before: XLA would
  compute rows in blocks, too, and those at the end of each by other instructions.
- Where the plan has few chunks, each of these sums is rounded to float32 once it has been added,
  which takes half the memory (`lost_between`).
- Each device sums the rows that it has. A record more is one more on one device, and moves no other
  one to another device (`mechanisms._shards`): amplification by sampling takes the sums of a batch
  without it for equal, and so they are. Uniformly random orders that one such order leaves on parts
  of a batch are independent. So what is said above holds on that one device.

`rounding_of_sums` is the share of C that either adds. Rows may hold NaN or infinity, and 0 * NaN is
NaN: in the place of a row that is not finite a finite one is computed, and counts as zero.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from discreet._jax import double


def floats_of_a_vector(flags: str) -> int:
    """The float32s of a vector in loops that XLA makes for a CPU, by its flags: of 256 bits or fewer unless they ask for more.

    So it is with AVX-512 (seen), too; with vectors of 128 bits, as ARM has, the last 4 rows are
    computed otherwise.
    """
    widths = re.findall(r"--xla_cpu_prefer_vector_width=(\d+)", flags)
    return max(8, int(widths[-1]) // 32) if widths else 8


SPARE = floats_of_a_vector(os.environ.get("XLA_FLAGS", ""))
"""The number of rows at the end of a chunk that stay empty."""
LANES = max(16, 2 * SPARE)
"""The number of rows of a chunk is a multiple of this."""
ChunkSum = Callable[[Any, Bool[Array, "row"]], tuple[Any, Bool[Array, "row"]]]
"""`(rows, mask) -> float64 tree, finite`: the sum over the rows that the mask keeps, right if all
rows are finite, those that it drops among them; and which rows are."""


def finite_alone(
    values: Callable[[Any], list[Array]], rows: Any, together: Bool[Array, "row"]
) -> Bool[Array, "row"]:
    """The mask of finite rows, evaluated one by one with `values` if some are not finite `together`.

    XLA may make one convolution of all rows', and hide the others' by zeros, so that one that is
    not finite shows in all.
    """

    def one_by_one() -> Bool[Array, "row"]:
        alone = jax.lax.map(
            lambda row: jnp.array([jnp.all(jnp.isfinite(x)) for x in values(row)]).all(), rows
        )
        return jnp.where(jnp.all(alone), together, alone)

    return jax.lax.cond(jnp.all(together), lambda: together, one_by_one)


def whole_lanes(rows: int, most: int = 2**30) -> int:
    """The least multiple of `LANES` with room for `rows` and `SPARE`, but for the largest that is no more than `most`."""
    return LANES * max(1, min(-(-(rows + SPARE) // LANES), most // LANES))


def is_spare(rows: int) -> Bool[np.ndarray, "row"]:
    """The mask of the last `SPARE` rows of a chunk."""
    return np.arange(rows) >= rows - SPARE


def sum_by_chunks(
    chunk_sum: ChunkSum,
    records: Any,
    mask: Bool[Array, "record"],
    chunk: int,
    *,
    thin: bool = False,
    finish: Sequence[Callable[[Any], Any]] = (),
) -> Any:
    """The sum over all rows that the mask keeps, in float64. One copy of `chunk_sum` is compiled, and nothing is selected away.

    Where a row is not finite, and in place of padding, a row that is finite stands and counts as
    zero; the chunk is then summed again. True rows of the mask come first; `chunk` is a multiple of
    `LANES`. The running sum is kept as float32 if `thin`. With `finish`, `chunk_sum` returns a
    number and what this one of the functions makes the sum of, in a branch: what it takes is
    written before.
    """
    size = mask.shape[0]
    filled = chunk - SPARE
    lanes = jnp.arange(chunk, dtype=jnp.int32)
    # Rows that count come first, so the last of them says how many there are.
    rows = jnp.max(jnp.where(mask, jnp.arange(1, size + 1, dtype=jnp.int32), 0))

    def kept(index: Array) -> Bool[Array, "row"]:
        positions = index * filled + lanes
        return mask[jnp.minimum(positions, size - 1)] & (positions < size) & (lanes < filled)

    def added(total: Any, more: Any) -> Any:
        with double():
            return jax.tree.map(
                lambda x, y: (x.astype(jnp.float64) + y).astype(x.dtype), total, more
            )

    # Under `vmap` in a loop, not as a selection: that would be no branch.
    @jax.custom_batching.sequential_vmap
    def branch(good: Array, total: Any, more: Any) -> Any:
        ways = [lambda total, made, way=way: added(total, way(made)) for way in finish]
        return jax.lax.cond(
            good, lambda x, y: jax.lax.switch(y[0], ways, x, y[1]), lambda x, _: x, total, more
        )

    def attempt(
        carry: tuple[Array, Bool[Array, "row"], Any],
    ) -> tuple[Array, Bool[Array, "row"], Any]:
        index, standing, total = carry
        substitute = jnp.argmax(standing).astype(jnp.int32)
        positions = jnp.minimum(index * filled + jnp.where(standing, lanes, substitute), size - 1)
        more, finite = chunk_sum(jax.tree.map(lambda x: x[positions], records), standing)
        good = jnp.all(finite)
        # A row that fails as a substitute, through rounding elsewhere in the batch, leaves as well:
        # this comes to an end.
        fails = jnp.any(~standing & ~finite) & (lanes == substitute)
        left = standing & finite & ~fails
        if finish:
            total = branch(good, total, more)
        else:
            with double():
                total = jax.tree.map(lambda x, y: jnp.where(good, y, x), total, added(total, more))
        done = good | ~jnp.any(left)
        return index + done.astype(jnp.int32), jnp.where(done, kept(index + 1), left), total

    one = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((chunk, *x.shape[1:]), x.dtype), (records, mask)
    )
    shapes = jax.eval_shape(
        lambda *rows: finish[0](chunk_sum(*rows)[0][1]) if finish else chunk_sum(*rows)[0], *one
    )
    with double():
        zero = jax.tree.map(
            lambda x: jnp.zeros(x.shape, jnp.float32 if thin else jnp.float64), shapes
        )
    start = jnp.zeros((), jnp.int32), kept(jnp.int32(0)), zero
    needed = (rows + filled - 1) // filled
    total = jax.lax.while_loop(lambda carry: carry[0] < needed, attempt, start)[2]
    with double():
        return jax.tree.map(lambda x: x.astype(jnp.float64), total)


LEAST_LOST = 2.0**-14
"""At least this share of C is charged for sums in float64, so that one bound holds for all tables that a plan may meet."""
DEVICES = 16
"""The same bound holds for sums over so many devices, which lose as much each, and a little in adding up: 2 `DEVICES` times."""
MOST_LOST_BETWEEN = 2.0**-9
"""At most this share of C is for keeping the running sum as float32; else it is kept as float64."""


def lost_within(rows: int) -> float:
    """The share of C by which a float32 sum of so many products, one a row, may be off, whatever the order of additions.

    The order may differ from coordinate to coordinate. In a tree of additions the product of row i
    goes through d_i roundings, its own included. So a coordinate is off by at most the sum of d_i
    |r_i| v, v = 2^-24 / (1 - b 2^-24) for b rows, and its square, by Cauchy and Schwarz, by at most
    Q v^2 times the sum of r_i^2, Q that of d_i^2. Summed over the coordinates the latter is within
    b C^2. Q is largest if rows are added one after the other: d = b, b, b - 1, ..., 2. For any
    other tree has two pairs of rows that are added to one another first. If one row of the pair at
    depth e moves to join a row of the pair at the largest depth d, Q grows by d^2 - e^2 + 4 d - 2 e
    + 3. Then b Q is below (b + 2)^4 / 3.
    """
    return (rows + 2) ** 2 / math.sqrt(3.0) * 2.0**-24 / (1.0 - rows * 2.0**-24)


def lost_between(rows: int, chunk: int) -> float:
    """The share of C by which two float32 running sums over `rows` rows may differ by rounding alone.

    Each of m sums is off by at most 2^-24 of its norm. For n rows, f in each chunk but the last
    one, the norms are within f C, 2 f C, ..., (m - 1) f C and n C. Since (m - 1) f < n, they add up
    to less than n (m / 2 + 1) C, in each of the two tables. Over devices it is no more: each rounds
    the sum of its own rows, as often as it has chunks, one of them perhaps not full.
    """
    return (rows / (chunk - SPARE) + 3) * rows * 2.0**-24 * (1.0 + 2.0**-10)


def rounding_of_sums(
    capacity: int,
    planned: int,
    chunk: int,
    *,
    blocks: int = 0,
    thin: bool = False,
    positions: int = 1,
    parts: float = 1.0,
) -> float:
    """The share of C by which one additional record can move `sum_by_chunks` beyond its own row.

    It depends on the plan alone: if it depended on the batch, so would the noise, whose size would
    reveal an additional record.

    Args:
        capacity: The most rows of a batch.
        planned: Rows that the bound has to hold for.
        chunk: Rows of a chunk.
        blocks: Blocks of a chunk, all of one length, within which sums are in float32, over rows in
            uniformly random order, one product to each; 0: all sums are in float64.
        thin: As in `sum_by_chunks`.
        positions: Products that a row adds to a coordinate, summed in float64.
        parts: L2 norm of these products, at most this many times C.

    Raises:
        ValueError: The bound does not hold for so many rows as the capacity.
    """
    filled = chunk - SPARE  # the others are rows of zeros, which adding does not round

    def lost(rows: int) -> float:
        # Each product is rounded twice, once with its factor, and each sum once.
        doubles = (
            4.0 * DEVICES * rows * (filled * positions + -(-rows // filled) + 4) * parts * 2.0**-53
        )
        return max(LEAST_LOST, doubles) + (lost_between(rows, chunk) if thin else 0.0)

    charged = lost(planned)
    if lost(capacity) > charged:
        raise ValueError(
            f"A batch may have {capacity} rows, many more than expected from the plan's number of records, so the rounding of "
            "their sum may exceed the noise's allowance. Plan with a number of records that is about right: a public guess."
        )
    within = 4.0 * lost_within(min(filled, chunk // blocks)) if blocks else 0.0
    # As a float32 has it: the same number in a program and in its proof.
    return float(np.nextafter(np.float32(1.0 + charged + within), np.float32(2.0**30))) - 1.0
