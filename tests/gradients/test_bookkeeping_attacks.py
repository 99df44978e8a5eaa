"""One record against the clipping norm: whatever it holds, what it adds is no longer than the bound.

A norm taken from activations and cotangents, sum_st <a_s, a_t> <b_s, b_t>, loses all its digits
where positions cancel: a record that knows this looks short and adds a long row. Each test here
plays such a record against a layer whose activations and cotangents it can choose freely, and
measures what comes out in float64.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from discreet.privacy.gradients import BookKeepingEngine, Channels, ClippedSum, row_weights

# Rounding to float32 of a row that is exactly as long as it may be, and no more.
SLACK = 1 + 1e-5
TOKENS = 3
EXTREMES = [
    0.0,
    1e-45,
    1e-38,
    1e-30,
    1e-23,
    1e-12,
    1.0,
    1e12,
    1e18,
    1e19,
    1e25,
    3e38,
    math.inf,
    math.nan,
]

# Layers: the loss is linear in the parameters, which are zero, so it stays finite whatever the
# gradient. They are arguments of what is compiled: as constants, products with them are a fault of
# XLA's (`_jax.compiled`). A record holds activations a (positions, inputs), cotangents b
# (positions, outputs) and tokens (positions,).


def dense(p, r):
    return jnp.sum((r["a"] @ p["w"]) * r["b"])


def transposed(p, r):
    return jnp.sum((p["w"].T @ r["a"].T) * r["b"].T)


def tied(p, r):
    """Two uses of one leaf that cancel each other, each of one position when there are two."""
    half = len(r["a"]) // 2
    return dense(p, jax.tree.map(lambda x: x[:half], r)) + transposed(
        p, jax.tree.map(lambda x: x[half:], r)
    )


def sliced(p, r):
    """Overlapping slices of one leaf that cancel each other."""
    out = r["b"].shape[1] - 1
    first, second = (
        jnp.sum((r["a"] @ p["w"][:, :out]) * r["b"][:, :out]),
        (r["a"] @ p["w"][:, 1:]) * r["b"][:, 1:],
    )
    return first - jnp.sum(second)


def looped(p, r):
    def step(total, row):
        a, b = row
        return total + (a @ p["w"]) @ b, None

    return lax.scan(step, 0.0, (r["a"], r["b"]))[0]


def branched(p, r):
    return lax.cond(r["token"][0] > 0, dense, transposed, p, r)


def checkpointed(p, r):
    return jax.checkpoint(jax.jit(dense))(p, r)


def convolved(p, r):
    """A window of one, so that the kernel's gradient is that of a dense layer; strides and padding beside it."""
    out = lax.conv_general_dilated(r["a"].T[None], p["w"].T[:, :, None], (1,), "VALID")
    return jnp.sum(out[0].T * r["b"])


def convolved_wide(p, r):
    kernel = p["wide"]
    out = lax.conv_general_dilated(r["a"].T[None], kernel, (1,), "SAME", rhs_dilation=(2,))
    return jnp.sum(out[0].T * r["b"])


def biased(p, r):
    return jnp.sum((p["b"] + 0.0 * r["a"][:, :1]) * r["b"])


def scaled(p, r):
    return jnp.sum(p["b"] * r["b"] * r["a"][:, :1])


def looked_up(p, r):
    return jnp.sum(p["table"][r["token"]] * r["b"])


def looked_up_and_tied(p, r):
    """A table that is read and that multiplies."""
    return looked_up(p, r) + jnp.sum((r["a"][:, :TOKENS] @ p["table"]) * -r["b"])


def dense_and_bias(p, r):
    return dense(p, r) + biased(p, r)


def heads(p, r):
    return jnp.sum(jnp.einsum("li,hio->lho", r["a"], p["heads"]) * r["b"][:, None])


def batched(p, r):
    a, b = jnp.stack([r["a"], -r["a"]]), jnp.stack([r["b"], r["b"]])
    return jnp.sum(lax.dot_general(a, p["heads"], (((2,), (1,)), ((0,), (0,)))) * b)


def halves(p, r):
    """A layer in bfloat16, weights cast on the way in."""
    out = r["a"].astype(jnp.bfloat16) @ p["w"].astype(jnp.bfloat16)
    return jnp.sum(out.astype(jnp.float32) * r["b"])


def half_leaf(p, r):
    return jnp.sum((r["a"].astype(jnp.bfloat16) @ p["half"]).astype(jnp.float32) * r["b"])


def parameter_values(inputs: int, outputs: int) -> dict[str, Any]:
    return {
        "w": jnp.zeros((inputs, outputs)),
        "wide": jnp.zeros((outputs, inputs, 3)),
        "b": jnp.zeros(outputs),
        "table": jnp.zeros((TOKENS, outputs)),
        "heads": jnp.zeros((2, inputs, outputs)),
        "half": jnp.zeros((inputs, outputs), jnp.bfloat16),
    }


USES = {
    dense: "w",
    transposed: "w",
    tied: "w",
    sliced: "w",
    looped: "w",
    branched: "w",
    checkpointed: "w",
    convolved: "w",
    convolved_wide: "wide",
    biased: "b",
    scaled: "b",
    looked_up: "table",
    looked_up_and_tied: "table",
    dense_and_bias: "w b",
    heads: "heads",
    batched: "heads",
    halves: "w",
    half_leaf: "half",
}


def parameters_of(layer: Any, inputs: int, outputs: int) -> dict[str, Any]:
    return {
        name: value
        for name, value in parameter_values(inputs, outputs).items()
        if name in USES[layer].split()
    }


def attacks(
    rng: np.random.Generator, rows: int, positions: int, inputs: int, outputs: int
) -> dict[str, Any]:
    """Rows whose positions cancel, at scales from 1e-12 to 1e12, and rows of extreme numbers."""
    tokens = np.where(
        rng.random((rows, 1)) < 0.5, 0, rng.integers(-1, TOKENS + 1, (rows, positions))
    )
    a = np.repeat(rng.standard_normal((rows, 1, inputs)), positions, axis=1)
    b = np.repeat(rng.standard_normal((rows, 1, outputs)), positions, axis=1)
    # Constant rows cancel between overlapping slices too, one-hot rows between a table's two uses.
    b = np.where(rng.random((rows, 1, 1)) < 0.3, b[:, :, :1], b)
    one_hot = (tokens[:, :, None] == np.arange(TOKENS)) * 1.0
    a[:, :, :TOKENS] = np.where(rng.random((rows, 1, 1)) < 0.3, one_hot, a[:, :, :TOKENS])
    signs = np.where(np.arange(positions) % 2, -1.0, 1.0)
    b *= rng.permuted(np.tile(signs, (rows, 1)), axis=1)[:, :, None]
    # Almost: what is left over is between nothing and everything.
    left = 10.0 ** rng.uniform(-9, 0, rows) * (rng.random(rows) < 0.8)
    which = rng.integers(0, positions, rows)
    b[np.arange(rows), which] *= 1 - left[:, None]
    jitter = 10.0 ** rng.uniform(-9, 0, rows) * (rng.random(rows) < 0.5)
    a *= 1 + jitter[:, None, None] * rng.standard_normal(a.shape)
    scale = 10.0 ** rng.uniform(-3, 8, rows)
    tilt = 10.0 ** rng.uniform(-4, 4, rows) * np.where(
        rng.random(rows) < 0.3, 10.0 ** rng.uniform(-25, 25, rows), 1
    )
    spread = 10.0 ** (rng.uniform(0, 6, (rows, positions)) * (rng.random((rows, 1)) < 0.2))
    a *= (np.sqrt(scale) * tilt)[:, None, None] * spread[:, :, None]
    b *= (np.sqrt(scale) / tilt)[:, None, None] / spread[:, :, None]
    wild = rng.random(rows) < 0.15
    a[wild] = rng.choice(EXTREMES, a[wild].shape)
    b[wild & (rng.random(rows) < 0.5)] = 1e18
    with np.errstate(over="ignore"):
        a, b = a.astype(np.float32), b.astype(np.float32)
    return {"a": jnp.asarray(a), "b": jnp.asarray(b), "token": jnp.asarray(tokens, jnp.int32)}


def longest(
    measure: Any, engine: Any, layer: Any, sizes: tuple[int, int, int], rows: int, norm: float
):
    """The longest contribution of a row, in units of the joint bound: each row alone in its batch."""
    records = attacks(np.random.default_rng(sum(sizes)), rows, *sizes)
    p = parameters_of(layer, *sizes[1:])
    both = Channels(0.05, 0.05, center=0.0, bound=1.0)
    run = jax.jit(lambda p, r, C: measure.alone(engine, layer, p, r, C, both))
    norms = measure.row_norms(run(p, records, jnp.float32(norm)))
    assert np.all(np.isfinite(norms))
    return norms.max() / both.joint_bound(float(np.float32(norm)))


# positions, inputs, outputs: few positions make a Gram matrix the cheaper way, many make it the
# dearer one.
SIZES = [(2, 6, 7), (4, 24, 16), (64, 4, 3)]


@pytest.mark.parametrize(
    "layer",
    [pytest.param(f, marks=[pytest.mark.essential] * (f in (dense, looked_up))) for f in USES],
    ids=lambda f: f.__name__,
)
def test_no_record_adds_more_than_the_bound(measure, layer):
    assert longest(measure, BookKeepingEngine(), layer, SIZES[1], 500, 1.0) <= SLACK


@pytest.mark.parametrize(
    ("layer", "sizes", "norm"),
    [
        (dense, SIZES[0], 1e-6),
        (tied, SIZES[0], 1e4),
        (convolved, SIZES[0], 0.7),
        (looked_up, SIZES[0], 1e4),
        (dense, SIZES[2], 1.0),
        (convolved_wide, SIZES[2], 1e-6),
        (looked_up, SIZES[2], 1.0),
    ],
)
def test_nor_at_other_sizes_and_norms(measure, layer, sizes, norm):
    assert longest(measure, BookKeepingEngine(), layer, sizes, 300, norm) <= SLACK


def naive(record_loss, parameters, records, mask, norm, channels):
    """A Gram matrix in float32, for `dense` alone: what the tests above must catch."""
    del record_loss
    a, b = records["a"] / jnp.sqrt(norm), records["b"] / jnp.sqrt(norm)
    squared = jnp.sum(
        jnp.einsum("nsi,nti->nst", a, a) * jnp.einsum("nso,nto->nst", b, b), axis=(1, 2)
    )
    weights = row_weights(jnp.zeros(len(mask)), squared, parameters["w"].size, mask, norm, channels)
    w = jnp.einsum(
        "n,nsi,nso->io",
        weights.factor,
        *(jnp.where(weights.keep[:, None, None], x, 0) for x in (a, b)),
    )
    return ClippedSum({"w": w * norm}, weights.loss, weights.count, 1.0)


@pytest.mark.essential
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_naive_gram_matrix_is_caught(measure, sizes):
    assert longest(measure, naive, dense, sizes, 400, 1.0) > 1.5


@pytest.mark.parametrize(
    "layer", [dense, convolved_wide, looked_up_and_tied, halves], ids=lambda f: f.__name__
)
def test_the_bound_holds_among_other_rows(measure, layer):
    """The sum is rounded in another order when there are more rows: the bound must hold for that one."""
    rows, sizes = 16, (4, 24, 16)
    records = attacks(np.random.default_rng(7), rows, *sizes)
    assert longest_among_others(measure, layer, sizes, records, [1.0]) <= SLACK


def longest_among_others(
    measure: Any, layer: Any, sizes: tuple[int, int, int], records: Any, norms: list[float]
):
    """The longest contribution when the other rows are there but masked out; all together no longer than their sum."""
    p, nothing = parameters_of(layer, *sizes[1:]), Channels()
    rows = len(records["token"])

    @jax.jit
    def run(p, records, mask, norm):
        return BookKeepingEngine()(layer, p, records, mask, norm, nothing).gradient

    longest = 0.0
    for norm in map(np.float32, norms):
        each = [measure.norm(run(p, records, jnp.arange(rows) == i, norm)) for i in range(rows)]
        together = measure.norm(run(p, records, jnp.ones(rows, bool), norm))
        longest = max(longest, max(each) / norm, together / rows / norm)
    return longest


@pytest.mark.parametrize("layer", [dense, convolved_wide, looked_up], ids=lambda f: f.__name__)
@pytest.mark.parametrize("residue", [1.0, 0.05])
def test_many_positions_that_all_round_the_same_way(measure, layer, residue):
    """One position of one, and a thousand of half a unit in its last place: a running sum loses them all.

    Where a last position takes most of the first one back, what was lost is a large part of what is
    left.
    """
    rows, sizes = 4, (1024, 4, 3)
    rng = np.random.default_rng(0)
    b = np.zeros((rows, 1024, 3)) + 2.0**-24 * rng.uniform(0.5, 1.0, (rows, 1024, 1))
    b[:, 0] = 1.0
    b[:, -1] = residue - 1.0
    a = np.zeros((rows, 1024, 4)) + (np.arange(4) < np.arange(1, rows + 1)[:, None])[:, None]
    records = {"a": jnp.asarray(a, jnp.float32), "b": jnp.asarray(b, jnp.float32)}
    records["token"] = jnp.zeros((rows, 1024), jnp.int32)
    # What a sum loses depends on the first digits of what it starts with, and so on the factor that
    # a row gets.
    norms = [0.01, 0.0115, 0.013, 0.015, 0.0172, 0.0198]
    assert longest_among_others(measure, layer, sizes, records, norms) <= SLACK


@pytest.mark.parametrize(
    "layer",
    [dense, tied, convolved_wide, looked_up_and_tied, heads, half_leaf],
    ids=lambda f: f.__name__,
)
def test_honest_rows_keep_their_length(measure, layer):
    """The price of the guard: rows whose positions do not cancel are as long as they should be."""
    rng, sizes = np.random.default_rng(3), (4, 24, 16)
    draw = {"a": rng.standard_normal((50, 4, 24)), "b": rng.standard_normal((50, 4, 16))}
    records = {k: jnp.asarray(v, jnp.float32) for k, v in draw.items()}
    records["token"] = jnp.asarray(rng.integers(0, TOKENS, (50, 4)), jnp.int32)
    p = parameters_of(layer, *sizes[1:])
    exact = measure.quick_jit(jax.vmap(jax.grad(layer), (None, 0)))(p, records)
    norms = measure.row_norms(exact)
    C = float(np.median(norms))
    run = measure.quick_jit(
        lambda p, r: measure.alone(BookKeepingEngine(), layer, p, r, C, Channels())[0]
    )
    tolerance = 2e-2 if layer in (halves, half_leaf) else 2e-4
    np.testing.assert_allclose(
        measure.row_norms(run(p, records)), np.minimum(norms, C), rtol=tolerance
    )


# --- what norm and sum must agree on ----------------------------------------------------------


def _contribution(loss, p):
    """Compute one row's own contribution, as an L2 norm in units of C = 1: a function of the row, compiled once."""

    @jax.jit
    def gradient(rows):
        mask, channels = jnp.ones(1, bool), Channels()
        return BookKeepingEngine()(loss, p, rows, mask, 1.0, channels).gradient

    return lambda *row: float(
        np.linalg.norm(np.asarray(gradient(jax.tree.map(lambda x: x[None], row)), np.float64))
    )


@pytest.mark.parametrize("mode", ["fill", "clip"])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        pytest.param("uint8", 300, marks=pytest.mark.essential),
        ("int8", 300),
        ("int8", 100),
        ("uint32", 5),
        ("int32", 5),
    ],
)
def test_an_index_means_the_same_row_for_norm_and_sum(dtype, mode, size):
    """299 does not exist in uint8: compared there, it turns legal indices into none, whose norm is zero."""
    facts = np.iinfo(dtype)

    def loss(p, row):
        index, scale = row
        return scale * jnp.sum(p.at[index].get(mode=mode, wrap_negative_indices=False))

    contribution = _contribution(loss, jnp.zeros((size, 3)))
    indices = [
        i
        for i in (0, 4, 44, 100, 200, 299, -1, -300, size - 1, size, size + 7)
        if facts.min <= i <= facts.max
    ]
    for i in indices:
        for j in (i, 3):
            assert contribution(np.array([i, j], dtype), np.float32(1e5)) <= SLACK, (i, j)
    assert contribution(np.array([min(100, size - 1), 3], dtype), np.float32(1e5)) > 0.99


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_a_slice_out_of_range_is_where_it_was_read(in_a_loop):
    def loss(p, row):
        pair, scale = row
        if in_a_loop:
            return scale * jnp.sum(
                lax.map(lambda x: p[x[0]] * x[1], (pair, jnp.array([1.0, -1.0])))
            )
        return scale * (p[pair[0]] - p[pair[1]])

    contribution = _contribution(loss, jnp.zeros(5))
    for i in (-7, -5, -2, 2, 4, 9):
        for j in (0, 3):
            assert contribution(np.array([i, j], np.int32), np.float32(1e5)) <= SLACK, (i, j)


@pytest.mark.parametrize("place", [0, 250, 499])
def test_positions_that_cancel_do_not_swamp_other_records(place):
    """Two uses are two sums: one record puts L into the one and -L into the other, and what others added is rounded away."""
    rows, engine = 500, BookKeepingEngine()

    def loss(p, row):
        a, b, scale = row
        return scale * (a @ p) + scale * (b @ p)

    @jax.jit
    def total_at(p, *records):
        return engine(loss, p, records, jnp.ones(rows, bool), 1.0, Channels()).gradient

    def total(b, scale):
        return total_at(jnp.zeros(4), jnp.ones((rows, 4)), b, scale)

    b, scale = np.ones((rows, 4), np.float32), np.full(rows, 0.004, np.float32)
    without = np.asarray(total(b, scale))
    for size in (1e2, 1e4, 1.7e5, 1e6, 1e8):
        there, large = b.copy(), scale.copy()
        there[place], large[place] = -1, size
        change = np.linalg.norm(np.asarray(total(there, large)) - without)
        # Its own honest share is gone (0.016), and rounding may take a little more.
        assert change <= 0.03, size
