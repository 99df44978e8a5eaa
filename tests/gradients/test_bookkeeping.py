"""The book-keeping engine on hand-made cases: what it drops, what it keeps apart, what it holds in memory."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from discreet.privacy.gradients import BookKeepingEngine, Channels, ReferenceEngine
from discreet.privacy.gradients._bookkeeping import _Book

ROWS = 6
CHANNELS = Channels(0.1, 0.1, center=1.0, bound=3.0)


def encoder(p, r):
    """A bit of everything: a lookup, a convolution, a loop, tied weights, a direct leaf, a branch."""
    x = r["x"] + p["table"][r["token"]]
    x = x + lax.conv_general_dilated(x.T[None], p["kernel"], (1,), "SAME")[0].T
    x = lax.scan(lambda h, row: (jnp.tanh(h @ p["w"] + row), h), jnp.zeros(4), x)[1] + x
    x = lax.cond(r["token"][0] > 1, lambda x: x @ p["w"], lambda x: x * p["scale"], x)
    return 0.5 * jnp.mean((x @ p["table"].T - r["y"]) ** 2)


def problem(seed: int = 0, rows: int = ROWS) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape) / 2, jnp.float32)

    p = {"table": normal(5, 4), "kernel": normal(4, 4, 3), "w": normal(4, 4), "scale": normal(4)}
    token = jnp.asarray(rng.integers(0, 5, (rows, 3)), jnp.int32)
    return p, {"x": normal(rows, 3, 4), "y": 4 * normal(rows), "token": token}


@pytest.fixture(scope="module")
def run(measure):
    """The engine on the encoder, compiled once, as a function of everything else."""

    def call(p, records, mask, norm):
        return BookKeepingEngine()(encoder, p, records, mask, norm, CHANNELS)

    return measure.quick_jit(call)


def assert_equal(left: Any, right: Any) -> None:
    """Bit for bit."""
    jax.tree.map(np.testing.assert_array_equal, left, right)


def assert_close(left: Any, right: Any, atol: float) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=atol), left, right)


# Rows are kept apart.


def test_a_batch_is_the_sum_of_its_rows(measure, run):
    p, records = problem()
    whole = run(p, records, jnp.ones(ROWS, bool), 0.5)
    rows = measure.quick_jit(
        lambda r: measure.alone(BookKeepingEngine(), encoder, p, r, 0.5, CHANNELS)
    )(records)
    assert_close(tuple(whole[:3]), jax.tree.map(lambda x: np.asarray(x).sum(axis=0), rows), 1e-5)


def test_the_order_of_rows_does_not_matter(run):
    p, records = problem()
    order = np.random.default_rng(1).permutation(ROWS)
    everybody = jnp.ones(ROWS, bool)
    permuted = run(p, jax.tree.map(lambda x: x[order], records), everybody, 0.5)
    assert_close(permuted, run(p, records, everybody, 0.5), 1e-5)


@pytest.mark.parametrize("filling", [np.nan, np.inf, 3e38])
def test_what_padding_rows_hold_changes_nothing(run, filling):
    p, records = problem()
    mask = jnp.arange(ROWS) < 4
    other = {
        "x": records["x"].at[4:].set(filling),
        "y": records["y"].at[4:].set(filling),
        "token": records["token"].at[4:].set(10**9),
    }
    assert_equal(run(p, other, mask, 0.5), run(p, records, mask, 0.5))


def test_nobody_adds_nothing(run):
    p, records = problem()
    result = run(p, jax.tree.map(lambda x: x * 0, records), jnp.zeros(ROWS, bool), 0.5)
    assert_equal(tuple(result[:3]), (jax.tree.map(jnp.zeros_like, p), jnp.zeros(()), jnp.zeros(2)))


# Rows that are not finite.


@pytest.mark.parametrize("place", [0, 3, ROWS - 1])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 1e30])
def test_a_row_that_is_not_finite_is_as_if_absent(run, place, broken):
    p, records = problem()
    with_it = {**records, "x": records["x"].at[place, 1, 2].set(broken)}
    got = run(p, with_it, jnp.ones(ROWS, bool), 0.5)
    assert_equal(got, run(p, records, jnp.arange(ROWS) != place, 0.5))


NOT_FINITE = {
    "the loss only": lambda p, r: (
        jnp.sum(jnp.tanh(r["x"] @ p["w"])) + lax.stop_gradient(jnp.log(r["flag"]))
    ),
    "the gradient only": lambda p, r: jnp.sqrt(jnp.sum(jnp.square(r["flag"] * (r["x"] @ p["w"])))),
    "a branch not taken": lambda p, r: jnp.sum(
        jnp.where(r["flag"] > 0, jnp.log(r["flag"] * (r["x"] @ p["w"]) ** 2), 1.0)
    ),
    "the activation of an unused output": lambda p, r: (
        jnp.sum(((r["x"] / r["flag"]) @ p["w"])[:1] * 0.0) + jnp.sum(p["w"])
    ),
    "a gradient that overflows": lambda p, r: jnp.sum(
        ((r["x"] * jnp.where(r["flag"] > 0, 1.0, 1e30)) @ p["w"]) * 1e20
    ),
    "a norm that overflows": lambda p, r: jnp.sum(
        (r["x"] * jnp.where(r["flag"] > 0, 1.0, 1e30)) @ p["w"]
    ),
    "a direct leaf": lambda p, r: (
        jnp.sum(jnp.sqrt(jnp.abs(p["scale"] * r["flag"]))) + jnp.sum(r["x"] @ p["w"])
    ),
    "a direct leaf's loss": lambda p, r: (
        jnp.sum(r["x"] @ p["w"]) - jnp.log(r["flag"]) * p["scale"][0]
    ),
}


@pytest.mark.parametrize("case", list(NOT_FINITE))
def test_whatever_is_not_finite_the_row_adds_nothing(measure, case):
    """Row 1 has a flag of zero. It adds nothing where the reference says so, and changes no other row's bits."""
    rng = np.random.default_rng(0)
    p = {"w": jnp.asarray(rng.normal(size=(4, 3)), jnp.float32), "scale": jnp.ones(4)}
    records = {
        "x": jnp.asarray(rng.normal(size=(3, 2, 4)), jnp.float32),
        "flag": jnp.asarray([1.0, 0.0, 2.0]),
    }

    @measure.quick_jit
    def both(mask):
        args = NOT_FINITE[case], p, records, mask, 0.5, CHANNELS
        return BookKeepingEngine()(*args), ReferenceEngine()(*args)

    got, want = both(jnp.ones(3, bool))
    without, reference_without = both(jnp.array([True, False, True]))
    assert_equal(want, reference_without)
    assert_equal(got, without)
    assert_close(got, want, 1e-6)


def test_a_row_that_is_not_finite_among_many_numbers(measure):
    """If masking rows is expensive, it happens only if a row is not finite; it must change no other row."""
    rng = np.random.default_rng(0)
    p = {
        k: jnp.asarray(rng.normal(size=shape) / 16, jnp.float32)
        for k, shape in WIDE[wide_dense].items()
    }
    records = jnp.asarray(rng.normal(size=(128, 256)), jnp.float32)

    @jax.jit
    def run(records, mask):
        return BookKeepingEngine()(wide_dense, p, records, mask, 0.001, CHANNELS)

    mask = jnp.arange(128) != 70
    without = run(records, mask)
    for broken in (np.nan, np.inf, 1e30):
        with_it = records.at[70, 3].set(broken)
        assert_equal(run(with_it, jnp.ones(128, bool)), run(with_it, mask))
        assert_close(tuple(run(with_it, mask)[:3]), tuple(without[:3]), 1e-7)


def test_a_pixel_that_no_kernel_sees_may_hold_anything(measure):
    """The row counts, for its gradient is finite; and counts for no more than the pixels that are seen."""
    rng = np.random.default_rng(0)
    kernel = jnp.asarray(rng.normal(size=(3, 2, 1)), jnp.float32)
    images = jnp.asarray(rng.normal(size=(4, 1, 2, 5)), jnp.float32)

    def loss(p, image):
        return jnp.sum(jnp.square(lax.conv_general_dilated(image, p, (2,), ((0, -1),))))

    @measure.quick_jit
    def run(images):
        return BookKeepingEngine()(loss, kernel, images, jnp.ones(4, bool), 1.0, CHANNELS)

    assert_close(
        run(images.at[1, 0, 0, 1].set(np.nan).at[2, 0, 1, 4].set(np.inf)), run(images), 1e-6
    )


def test_scales_that_square_out_of_range_cancel(measure):
    """Activations of 1e12 against cotangents of 1e-12: nothing about the gradient is extreme."""
    scales = jnp.asarray([1.0, 1e-12, 1e12])
    rng = np.random.default_rng(0)
    p = {"w": jnp.asarray(rng.normal(size=(8, 8)), jnp.float32)}
    x = jnp.asarray(rng.normal(size=(3, 2, 8)), jnp.float32)

    def loss(p, r):
        x, scale = r
        return jnp.sum(((scale * x) @ p["w"]) * (x / scale))

    both = Channels()
    args = loss, p, (x, scales), jnp.ones(3, bool), 1.0, both
    got, want = measure.quick_jit(lambda: (BookKeepingEngine()(*args), ReferenceEngine()(*args)))()
    assert_close(got, want, 1e-5)


# What is held in memory.


def wide_dense(p, r):
    return jnp.mean(jnp.square(jnp.tanh(r @ p["w"] + p["b"]) @ p["v"]))


def wide_sequence(p, r):
    x = r.reshape(4, 64)
    return jnp.mean(jnp.square(jnp.tanh(x @ p["w"]) @ p["w"].T))


def wide_convolution(p, r):
    image = r.reshape(1, 16, 4, 4)
    return jnp.mean(jnp.square(lax.conv_general_dilated(image, p["w"], (2, 2), "SAME")))


def wide_table(p, r):
    return jnp.mean(jnp.square(p["w"][(r[:3] > 0).astype(int) * 3].sum(axis=0)))


def wide_loop(p, r):
    return jnp.mean(
        lax.scan(
            lambda h, row: (jnp.tanh(h @ p["w"] + row), None), jnp.zeros(64), r.reshape(4, 64)
        )[0]
    )


WIDE = {
    wide_dense: {"w": (256, 300), "b": (300,), "v": (300, 200)},
    wide_sequence: {"w": (64, 300)},
    wide_convolution: {"w": (256, 16, 3, 3)},
    wide_table: {"w": (500, 100)},
    wide_loop: {"w": (64, 64)},
}


def holds_a_gradient_per_row(measure, engine, loss) -> bool:
    rows = 32
    rng = np.random.default_rng(0)
    p = {
        k: jnp.asarray(rng.normal(size=shape) / 16, jnp.float32) for k, shape in WIDE[loss].items()
    }
    records = jnp.asarray(rng.normal(size=(rows, 256)), jnp.float32)
    args = p, records, jnp.ones(rows, bool)
    compiled = (
        jax.jit(lambda p, r, mask: engine(loss, p, r, mask, 1.0, CHANNELS)).lower(*args).compile()
    )
    smallest = rows * min(x.size for x in p.values() if x.ndim > 1)
    too_large = max(measure.array_sizes(compiled)) >= smallest
    # Two gradients may be there, the sum and one in the making, and some activations; not one for
    # each row.
    too_much = measure.temporary_bytes(compiled) >= 4 * smallest
    return too_large or too_much


@pytest.mark.parametrize("loss", list(WIDE), ids=lambda f: f.__name__)
def test_no_gradient_per_row_is_held(measure, loss):
    assert not holds_a_gradient_per_row(measure, BookKeepingEngine(32), loss)


@pytest.mark.parametrize("loss", list(WIDE), ids=lambda f: f.__name__)
def test_the_reference_holds_one(measure, loss):
    """So the check can fail."""
    assert holds_a_gradient_per_row(measure, ReferenceEngine(32), loss)


def test_one_forward_and_one_backward():
    """Book-keeping does each layer's work once: the layers' outputs, their cotangents, and the weighted sum."""
    p, x = {"w": jnp.ones((64, 32)), "v": jnp.ones((32, 48))}, jnp.ones((32, 64))

    def loss(p, r):
        return jnp.sum(jnp.square(jnp.tanh(r @ p["w"]) @ p["v"]))

    def step(p, x):
        # in chunks of 32, 8 to spare
        return BookKeepingEngine(24)(loss, p, x, jnp.ones(32, bool), 1.0, CHANNELS).gradient

    flops = jax.jit(step).lower(p, x).compile().cost_analysis()["flops"]
    plain = (
        jax.jit(jax.grad(lambda p, x: jax.vmap(loss, (None, 0))(p, x).sum())).lower(p, x).compile()
    )
    assert flops <= 1.25 * plain.cost_analysis()["flops"]


def test_leaves_are_booked_or_direct():
    p = {"booked": jnp.ones((200, 300)), "direct": jnp.ones((200, 300))}

    def loss(p, r):
        return jnp.sum(r @ p["booked"]) + jnp.sum(r @ jnp.sin(p["direct"]))

    book = _Book(loss, p, jnp.ones(200))
    assert (list(book.groups), book.direct) == ([0], [1])


# How it is called.


def test_it_runs_inside_other_programs(run):
    """In a compiled loop, with a clipping norm that changes, as the step calls it."""
    p, records = problem()
    norms = jnp.asarray([0.1, 1.0, 10.0])

    def body(total, norm):
        result = BookKeepingEngine()(encoder, p, records, jnp.arange(ROWS) < 5, norm, CHANNELS)
        return jax.tree.map(lambda x, y: x + y.astype(jnp.float32), total, tuple(result[:3])), None

    start = jax.tree.map(jnp.zeros_like, (p, jnp.zeros(()), jnp.zeros(2)))
    looped, _ = jax.jit(lambda: lax.scan(body, start, norms))()
    apart = [tuple(run(p, records, jnp.arange(ROWS) < 5, norm)[:3]) for norm in norms]
    assert_close(looped, jax.tree.map(lambda *x: sum(map(np.asarray, x)), *apart), 1e-5)


@pytest.mark.parametrize(
    ("p", "loss"),
    [
        (jnp.arange(4.0), lambda p, r: (r @ p - 1.0) ** 2),
        (jnp.float32(0.3), lambda p, r: jnp.sum(p * r)),
        ([jnp.ones((4, 2)), (jnp.ones(2), {})], lambda p, r: jnp.sum(jnp.sin(r @ p[0] + p[1][0]))),
        (
            {"w": jnp.ones((4, 2), jnp.bfloat16)},
            lambda p, r: jnp.sum(r.astype(jnp.bfloat16) @ p["w"]).astype(float),
        ),
        ({"w": jnp.ones((4, 2), jnp.float16)}, lambda p, r: jnp.sum(r @ p["w"])),
        ({"w": jnp.ones(4)}, lambda p, r: 3.0 + 0.0 * jnp.sum(r)),
        ({"w": jnp.ones(4)}, lambda p, r: jnp.sum(p["w"] ** 2)),
        ({"w": jnp.ones((4, 1))}, lambda p, r: jnp.sum(r[None] @ p["w"])),
        (
            {"w": jnp.ones(4), "b": jnp.ones(())},
            lambda p, r: jnp.sum(jnp.sin(r[None] @ p["w"] + p["b"])),
        ),
        ({"w": jnp.ones((1, 4))}, lambda p, r: jnp.sum(jnp.sin(r[None] @ p["w"].T + p["w"][:, 0]))),
    ],
    ids=[
        "an array",
        "a number",
        "a list",
        "bfloat16",
        "float16",
        "no use",
        "no record",
        "one output",
        "an intercept",
        "a slice as intercept",
    ],
)
def test_parameters_of_every_form(measure, p, loss):
    r = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)), jnp.float32)
    args = loss, p, r, jnp.arange(5) < 4, 1.5, CHANNELS
    got, want = measure.quick_jit(lambda: (BookKeepingEngine()(*args), ReferenceEngine()(*args)))()
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (left.shape, left.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-3 if left.ndim else 1e-5)


@pytest.mark.parametrize(
    "options", [{"microbatch_size": 4}, {"rows": 2}, {"memory_budget": 1}], ids=str
)
def test_microbatches_change_nothing(measure, run, options):
    """Records may hold random keys, which cannot be padded like numbers."""
    p, records = problem()
    keyed = {**records, "key": jax.random.split(jax.random.key(0), ROWS)}
    sums = measure.quick_jit(
        lambda r, mask: BookKeepingEngine(**options)(encoder, p, r, mask, 0.5, CHANNELS)
    )
    for real in (0, 2, 3, ROWS):
        mask = jnp.arange(ROWS) < real
        assert_close(sums(keyed, mask), run(p, records, mask, 0.5), 1e-6)


def test_double_precision_stays_double(measure):
    with jax.enable_x64(True):
        p, records = jax.tree.map(
            lambda x: x.astype("float64") if x.dtype == "float32" else x, problem()
        )
        args = encoder, p, records, jnp.ones(ROWS, bool), 0.5, Channels()
        got, want = measure.quick_jit(
            lambda: (BookKeepingEngine()(*args), ReferenceEngine()(*args))
        )()
        assert {x.dtype for x in jax.tree.leaves(got.gradient)} == {np.dtype("float64")}
        # The margins for rounding are those of float32 either way.
        assert_close(got.gradient, want.gradient, 1e-5)


@pytest.mark.parametrize(
    "engine", [BookKeepingEngine(), ReferenceEngine()], ids=["book-keeping", "reference"]
)
@pytest.mark.parametrize(
    ("p", "loss", "error"),
    [
        ({}, lambda p, r: jnp.sum(r), ValueError),
        ({"w": jnp.ones(4, jnp.complex64)}, lambda p, r: jnp.abs(r @ p["w"]), TypeError),
        ({"w": jnp.ones((4, 2))}, lambda p, r: r @ p["w"], TypeError),
        ({"w": jnp.ones(4, jnp.int32)}, lambda p, r: jnp.sum(r * p["w"]), TypeError),
    ],
    ids=["nothing", "complex", "not a scalar", "integers"],
)
def test_what_has_no_clipped_gradient_is_refused(engine, p, loss, error):
    with pytest.raises(error):
        engine(loss, p, jnp.ones((3, 4)), jnp.ones(3, bool), 1.0, CHANNELS)


def test_equal_engines_are_equal():
    """So that a step compiled with one is found again with another."""
    assert BookKeepingEngine() == BookKeepingEngine()
    assert hash(BookKeepingEngine()) == hash(BookKeepingEngine())


def test_the_bound_is_that_of_gradient_loss_and_count(run):
    p, records = problem()
    assert float(run(p, records, jnp.ones(ROWS, bool), 0.5).l2_bound) == pytest.approx(
        0.5 / math.sqrt(0.8), rel=1e-4
    )
