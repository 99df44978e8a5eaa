"""The rest of the primitives that have rules: those that move, join and add up elements, hold programs, or take keys."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import discreet as dp
from discreet._jax import hi_primitives, primitives as p

from .cases import CASES, each, enter, triples
from .operands import FLOATS, NUMBERS, ROWS, SUMS, TRUTHS, WHOLE, Case, D, N

MOVED = (*FLOATS, *NUMBERS, *TRUTHS, *WHOLE)
GOOD = ("clipped", "masked", "limited", "raw masked", "placed", "sum")


def _moving() -> None:
    each(
        "reshape",
        lambda x: [x.reshape(*s, *x.shape[1:]) for s in ((2, 4), (1, N), (N, 1))],
        (*ROWS, *NUMBERS, *TRUTHS),
    )
    each("reshape", lambda x: [x.reshape(-1), x.reshape(1, *x.shape)], MOVED)
    each("reshape", lambda x: x.reshape(4, 2, D).reshape(2, 4, D).reshape(N, D), ROWS)
    each(
        "reshape", lambda x: [lax.reshape(x, (D, N), (1, 0)), lax.reshape(x, (N, D), (1, 0))], ROWS
    )
    each(
        "squeeze",
        lambda x: lax.squeeze(lax.expand_dims(x, (0, x.ndim + 1)), (0, x.ndim + 1)),
        MOVED,
    )
    each("squeeze", lambda x: lax.squeeze(x[:1], (0,)), ROWS)
    each(
        "transpose",
        lambda x: [jnp.transpose(x), jnp.transpose(x.reshape(2, 4, -1), (1, 2, 0))],
        (*ROWS, *TRUTHS),
    )
    each(
        "broadcast_in_dim",
        lambda x: [lax.broadcast_in_dim(x, (2, *x.shape, 2), range(1, x.ndim + 1))],
        MOVED,
    )
    each("broadcast_in_dim", lambda x: [lax.broadcast_in_dim(x, (N, D), (0, 1))], NUMBERS)
    each("slice", lambda x: [x[:, 1:3], x[2:6], x[::2], x[:, ::2]], (*ROWS, *TRUTHS[:2]))
    each("slice", lambda x: x[1:], SUMS)
    each("dynamic_slice", lambda x: lax.dynamic_slice_in_dim(x, 1, 2, axis=x.ndim - 1), FLOATS)
    enter("dynamic_slice", lambda x, s, i: _sliced(x, s, i), "raw", "sum", "numbers")
    enter("dynamic_slice", lambda x, i: lax.dynamic_slice_in_dim(x, i[0, 0], 1), "line", "few")
    each("rev", lambda x: [lax.rev(x, (x.ndim - 1,)), lax.rev(x, (0,))], (*ROWS, *SUMS))
    for filler in (0.0, 2.0, np.nan):
        each(
            "pad",
            lambda x, f=filler: lax.pad(x, f, [(0, 0, 0)] * (x.ndim - 1) + [(1, -1, 1)]),
            (*ROWS, *SUMS),
        )
        each(
            "pad", lambda x, f=filler: lax.pad(x, f, [(1, 0, 0)] + [(0, 0, 0)] * (x.ndim - 1)), ROWS
        )
    for axis in (0, 1):
        triples(
            "concatenate",
            lambda *x, a=axis: lax.concatenate(x, a),
            [
                *[(x, y) for x in GOOD[:5] for y in (*GOOD[:5], "places")],
                ("clipped", "other"),
                ("clipped", "other", "masked"),
                ("places", "limited or NaN"),
                ("raw", "raw"),
            ],
        )
    enter(
        "concatenate",
        lambda *x: [lax.concatenate(y, 0) for y in ((*x,), x[:2], x[1:])],
        "sum",
        "other sum",
        "line",
    )
    enter("concatenate", lambda *x: lax.concatenate(x, 0), "sum", "small")
    each(
        "concatenate",
        lambda x: [jnp.concatenate([x[:3], -x[3:]]), jnp.concatenate([x[1:3], x[3:6], x[6:]])],
        ROWS,
    )
    each(
        "concatenate",
        lambda x: [jnp.concatenate([x[3:], x[:3]]), jnp.concatenate([x[:3], x[2:]])],
        ROWS,
    )
    enter("concatenate", lambda *x: lax.concatenate(x, 0), "sum", "unknown")
    stacks = [(x, y) for x in GOOD[:5] for y in (*GOOD[:5], "places")]
    for axis in (0, 1, 2):
        triples(
            "stack", lambda *x, a=axis: jnp.stack(x, a), [*stacks, ("clipped", "other", "masked")]
        )
    enter("stack", lambda *x: [jnp.stack(x), jnp.stack(x[:2], 1)], "sum", "other sum", "line")
    each("unstack", lambda x: [jnp.unstack(x, axis=x.ndim - 1), jnp.unstack(x)], (*ROWS, *SUMS))
    each(
        "tile",
        lambda x: [
            jnp.tile(x, (1,) * (x.ndim - 1) + (2,)),
            jnp.tile(x, (2,) + (1,) * (x.ndim - 1)),
        ],
        (*ROWS, *SUMS),
    )
    each("optimization_barrier", lax.optimization_barrier, (*FLOATS, *NUMBERS, *TRUTHS, *WHOLE))
    enter(
        "optimization_barrier",
        lambda *xs: [lax.optimization_barrier(xs), lax.optimization_barrier(xs[::-1])],
        *("clipped", "sum", "line", "other", "other sum", "scalar", "placed", "few"),
    )
    each(
        "split",
        lambda x: [lax.split(x, (1, D - 1), x.ndim - 1), lax.split(x, (x.shape[0] - 1, 1), 0)],
        (*ROWS, *SUMS),
    )
    cases = (
        "clipped",
        "other",
        "masked",
        "limited",
        "limited or NaN",
        "raw",
        "zero",
        "one",
        "places",
        "placed",
    )
    which = [
        ("guard", "zero", "limited or NaN"),
        ("whole guard", "zero", "raw"),
        ("truth", "placed", "placed"),
    ]
    which += [(t, x, y) for t in ("truth", "near") for x in cases for y in cases]
    which += [
        ("near", x, y)
        for x in ("finite", "zero", "factor", "one")
        for y in ("finite", "zero", "factor", "one")
    ]
    which += [
        ("guard", "one", "limited or NaN"),
        ("whole guard", "one", "limited"),
        ("guard", "zero", "raw"),
    ]
    which += [("mask of places", x, y) for x in cases for y in cases if (x, y) != ("zero", "one")]
    which += [("truth", "sum", "zero"), ("near", "sum", "sum")]
    triples("select_n", _chosen, which)


def _sliced(x, s, i):
    start = i[1]
    return [
        lax.dynamic_slice(x, (0, start), (N, 2)),
        lax.dynamic_slice(x, (start, 0), (1, D)),
        lax.dynamic_slice(s, (start,), (1,)),
        lax.dynamic_slice(x, (jnp.int32(2), 0), (4, D)),
    ]


def _chosen(which, no, yes):
    return lax.select_n(which.astype(bool), no.astype(jnp.float32), yes.astype(jnp.float32))


def _adding() -> None:
    axes = ((1,), (0,), (0, 1))
    each("reduce_sum", lambda x: [jnp.sum(x, a) for a in axes], (*ROWS, *NUMBERS, *TRUTHS, *WHOLE))
    each(
        "reduce_sum",
        lambda x: [x.reshape(2, 4, -1).sum(a) for a in (0, 1, (0, 1), 2)],
        (*ROWS, "few"),
    )
    each("reduce_sum", lambda x: jnp.sum(x), SUMS)
    each("reduce_sum", lambda x: [lax.abs(x).sum(0), lax.abs(x).sum(), lax.exp(x).sum(0)], ROWS)
    each(
        "reduce_sum",
        lambda t: [t.astype(jnp.float32).sum(0), (1.0 - t).sum(0), jnp.where(t, 0.0, 1.0).sum(0)],
        TRUTHS,
    )
    enter(
        "reduce_sum",
        lambda t, x: [jnp.where(t, 0.0, x).sum(0), jnp.where(~t, x, 0.0).sum(0)],
        "kept",
        "clipped",
    )
    each(
        "psum",
        lambda x: jax.vmap(lambda r: lax.psum(r, "records"), axis_name="records", out_axes=None)(x),
        ROWS,
    )
    each(
        "psum",
        lambda x: jax.vmap(lambda r: r - lax.pmean(r, "records"), axis_name="records")(x),
        ROWS,
    )
    each(
        "div", lambda x: [jax.nn.softmax(x, 1), lax.exp(x) / lax.exp(x).sum(1, keepdims=True)], ROWS
    )
    for name in ("reduce_max", "reduce_min", "reduce_prod"):
        function = getattr(lax, name)
        each(name, lambda x, f=function: [f(x, (1,)), f(x, (0,))], (*ROWS, *NUMBERS, *WHOLE))
        each(name, lambda x, f=function: f(x, (0,)), SUMS)
    for name in ("reduce_and", "reduce_or", "reduce_xor"):
        function = getattr(lax, name)
        each(name, lambda x, f=function: [f(x, (1,)), f(x, (0,))], (*TRUTHS, *WHOLE))
    each("reduce_and", lambda x: jnp.all(jnp.isfinite(x), 1), ROWS)
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        function = getattr(lax, name)
        each(name, lambda x, f=function: [f(x, axis=1), f(x, axis=0, reverse=True)], ROWS)
    for name in ("argmax", "argmin"):
        function = getattr(lax, name)
        each(name, lambda x, f=function: [f(x, 1, jnp.int32), f(x, 0, jnp.int32)], ROWS)
    _products()


def _products() -> None:
    over = (((0,), (0,)), ((), ()))
    beside = (((1,), (1,)), ((0,), (0,)))
    own = ("clipped", "other", "masked", "limited", "raw", "raw masked", "placed")
    triples(
        "dot_general",
        lambda x, y: lax.dot_general(x, y, over),
        [(x, y) for x in own for y in (*own, "places")],
    )
    triples(
        "dot_general",
        lambda x, y: lax.dot_general(x, y, beside),
        [(x, y) for x in own for y in (*own, "places")],
    )
    whole = (((0, 1), (0, 1)), ((), ()))
    triples(
        "dot_general",
        lambda x, y: lax.dot_general(x, y, whole),
        [(x, y) for x in own for y in (*own, "places")],
    )
    enter(
        "dot_general",
        lambda *x: [jnp.einsum("rd,rd->r", x[0], x[1]), jnp.einsum("rd,re->rde", *x)],
        "clipped",
        "masked",
    )
    matrix = np.linspace(-1, 1, 2 * D, dtype=np.float32).reshape(D, 2)
    each("dot_general", lambda x: [x @ matrix, matrix.T @ x.T, x @ jnp.ones((D, 2))], ROWS)
    each("dot_general", lambda x: [x @ matrix, x @ jnp.full((D,), 0.5)], SUMS)
    enter("dot_general", lambda x, f: jnp.einsum("rd,r->d", x, f[:, 0]), "finite", "factor")
    enter(
        "dot_general",
        lambda x, t: jnp.einsum("rd,r->d", x, t[:, 0].astype(jnp.float32)),
        "clipped",
        "truth",
    )
    enter("dot_general", lambda x, y: [x @ y.T, x.T @ y[::-1]], "clipped", "other")
    enter("dot_general", lambda s, t: jnp.outer(s, t), "sum", "line")


def _in_l1(truth, *rows):
    return [dp.sum_records(dp.clip_records(x, 2.0, order=1), truth[:, 0]) for x in rows]


def _clipping() -> None:
    kinds = ("raw", "raw masked", "finite", "limited", "placed")
    each("clip_records", lambda x: dp.clip_records(x, 2.0), kinds)
    enter("clip_records", lambda *x: dp.clip_records(x, 2.0), *kinds)
    each("clip_records", lambda x: dp.clip_records(x, 2.0, order=1), kinds)
    enter("clip_records", lambda *x: dp.clip_records(x, 2.0, order=1), *kinds)
    each("clip_records", lambda x: dp.clip_records(x[None], 1.0, order=1), (*SUMS, "raw"))
    enter("sum_records", lambda t, *xs: _in_l1(t, *xs), "truth", *kinds)
    enter("add", lambda t, x: sum(_in_l1(t, x[:, :1], x[:, :1])) + 1.0, "truth", "raw")
    enter("add", lambda t, x, y: _in_l1(t, x)[0] + jnp.ones((2, D)), "truth", "raw", "finite")
    enter("clip_records", lambda x, c: dp.clip_records(x, jnp.abs(c)), "raw masked", "scalar")
    enter("clip_records", lambda x, y: dp.clip_records((x, y), 1.0), "raw", "places")
    each("clip_records", lambda x: dp.clip_records(x[None], 1.0), (*SUMS, "raw"))
    each("clip_records", lambda x: dp.clip_records(x.T, 1.0), ROWS)
    enter(
        "sum_records",
        lambda t, *xs: [dp.sum_records(x, t[:, 0]) for x in xs],
        "truth",
        *ROWS,
        "places",
        *NUMBERS,
    )
    enter(
        "sum_records",
        lambda t, g, x: dp.sum_records(x, t[:, 0] & g[:, 0]),
        "truth",
        "whole guard",
        "raw",
    )
    enter("sum_records", lambda *xs: [dp.sum_records(x, np.arange(N) < 5) for x in xs], *ROWS)
    enter(
        "sum_records",
        lambda t, s: dp.sum_records(jnp.broadcast_to(s, (N, D)), t[:, 0]),
        "truth",
        "sum",
    )
    for weights in ("clipped", "limited or NaN", "raw", "raw masked", "placed"):
        enter("sum_weighted", lambda t, x, w: _weighted(x, w, t[:, 0]), "truth", "few", weights)
        enter("sum_weighted", lambda x, w: _weighted(x, w, np.arange(N) < 5), "few", weights)
    enter(
        "sum_weighted",
        lambda t, *xs: [_weighted(xs[0], x, t[:, 0]) for x in xs[1:]],
        "truth",
        "whole",
        "masked",
        "line",
    )
    enter(
        "sum_weighted",
        lambda t, n, w: _weighted(jnp.broadcast_to(n, (N, D)), w, t[:, 0]),
        "truth",
        "numbers",
        "other",
    )
    enter(
        "sum_weighted",
        lambda t, n: _weighted(jnp.broadcast_to(n, (N, D)), n, t[:, 0]),
        "truth",
        "numbers",
    )
    enter(
        "sum_weighted",
        lambda t, x, s: _weighted(x, jnp.broadcast_to(s, (N, D)), t[:, 0]),
        "truth",
        "few",
        "sum",
    )
    tables = (3, 3, 3), ((0,), (1, 2)), (1, 2)
    kept = lambda x: dp.mechanisms.count_cells(x[0] + 1, x[1][:, 0], *tables)  # noqa: E731
    enter("count_cells", lambda t, *xs: [kept((x, t)) for x in xs], "truth", *WHOLE)
    enter(
        "count_cells",
        lambda *xs: [dp.mechanisms.count_cells(x, np.arange(N) < 5, *tables) for x in xs],
        *WHOLE,
    )
    enter(
        "count_cells", lambda t, n: kept((jnp.broadcast_to(n - 1, (N, D)), t)), "truth", "numbers"
    )
    whole = dp.mechanisms.count_cells
    enter("count_cells", lambda t, x: whole(x, t[:, 0], *tables, jnp.arange(12)), "truth", "few")
    enter(
        "count_cells",
        lambda t, s, x: whole(x, t[:, 0], *tables, jnp.full(12, s[0].astype(int))),
        "truth",
        "sum",
        "few",
    )
    enter(
        "count_cells",
        lambda t, s: whole(jnp.broadcast_to(s.astype(int), (N, D)), t[:, 0], *tables),
        "truth",
        "sum",
    )


def _weighted(rows, weights, mask):
    """Weights that are within the bound for rows of more than 1, too."""
    weights = jnp.broadcast_to(weights, (N, D)) / jnp.sqrt(
        jnp.sum(jnp.square(rows * 1.0), axis=1, keepdims=True) + 1e-9
    )
    return dp.mechanisms.sum_weighted(rows[:, None], weights[:, None].astype(jnp.float32), mask)


def _programs() -> None:
    enter("jit", lambda *xs: jax.jit(lambda *ys: [2.0 * y for y in ys])(*xs), *ROWS, *SUMS)
    enter("remat2", lambda *xs: jax.checkpoint(lambda *ys: [-y for y in ys])(*xs), *ROWS, *SUMS)
    negated = jax.make_jaxpr(lambda x: -x)(jax.ShapeDtypeStruct((N, D), np.float32))
    call = p.closed_call_p.get_bind_params({"call_jaxpr": negated})
    each(p.closed_call_p.name, lambda x: p.closed_call_p.bind(x, **call), ROWS)
    if hi_primitives():
        each("call_hi_primitive", lambda x: jnp.searchsorted(jnp.arange(-1.0, 1.0, 0.25), x), ROWS)
        each(
            "call_hi_primitive",
            lambda x: [jax.vmap(jnp.searchsorted)(x, x), jnp.searchsorted(x[:, 0], x)],
            ROWS,
        )
    each("custom_jvp_call", jax.nn.relu, (*ROWS, *SUMS))
    custom = jax.custom_vjp(lambda x: 0.5 * x)
    custom.defvjp(lambda x: (0.5 * x, None), lambda _, g: (g,))
    each("custom_vjp_call", custom, (*ROWS, *SUMS))

    def branches(s, *xs):
        return [
            lax.cond(s > 0, lambda x: (x, x, x), lambda x: (2.0 * x, 0.0 * x, jnp.zeros_like(x)), x)
            for x in xs
        ]

    enter("cond", branches, "scalar", *ROWS, *SUMS)
    enter(
        "cond", lambda s, x, y: lax.cond(s > 0, lambda: x, lambda: y), "scalar", "clipped", "other"
    )
    enter("cond", lambda s, x, y: lax.cond(s > 0, lambda: x, lambda: y), "scalar", "sum", "line")

    def until(x):
        return lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1]), -c[2]), (0, x, x)
        )

    each("while", until, (*ROWS, *SUMS))
    enter(
        "while",
        lambda s, x: lax.while_loop(lambda c: c[0] < s, lambda c: (c[0] + 1, c[1] * 0.5), (0.0, x)),
        "scalar",
        "sum",
    )
    each("scan", lambda x: lax.scan(lambda c, row: (c + row, 2.0 * row), jnp.zeros(D), x), ROWS)
    each(
        "scan",
        lambda x: lax.scan(
            lambda c, row: (c - 0.5 * row, c), jnp.ones(D), x.reshape(2, 4, D).sum(1)
        ),
        ROWS,
    )
    each(
        "scan", lambda x: lax.scan(lambda c, _: (jnp.tanh(c), c), x, None, length=3), (*ROWS, *SUMS)
    )
    each("scan", lambda x: lax.scan(lambda c, col: (c + col, c * col), x[:, 0], x.T), ROWS)
    each("scan", lambda x: lax.scan(lambda c, i: (c + i * x[0], x), x, jnp.arange(3.0)), ROWS)
    each("scan", lambda x: lax.scan(lambda c, row: (c + 1.0, c * row), 0.0, x), ROWS)
    each("scan", lambda x: lax.scan(lambda c, row: (row, c), jnp.zeros(D), x), ROWS)
    each(
        "scan",
        lambda x: lax.scan(lambda c, row: (c, dp.clip_records(row[None], 1.0)[0]), 0.0, x),
        ROWS,
    )
    each("scan", lambda x: lax.scan(lambda c, _: (c, x), 0.0, None, length=2), SUMS)
    each("scan", lambda x: lax.scan(lambda c, _: (c + x, None), jnp.zeros(D), None, length=4), SUMS)
    each("scan", lambda x: lax.scan(lambda c, _: (0.5 * c + x, None), x, None, length=4), SUMS)
    enter(
        "scan",
        lambda x, y: lax.scan(
            lambda c, _: ((0.5 * c[0] + x, c[1] + y), None), (x, y), None, length=4
        ),
        *("sum", "other sum"),
    )


def _indices() -> None:
    columns = np.array([2, 0, 2, 1])
    each(
        "gather",
        lambda x: [x[:, columns], x[columns], x[:, np.array([[0, 1], [5, -1]])]],
        (*ROWS, *TRUTHS[:1]),
    )
    each("gather", lambda x: x[columns], SUMS)
    picked = np.array([5, 0, 3, -1])
    each(
        "gather",
        lambda x: [x[picked], x[picked].sum(0), x[picked[:, None]], x[picked + 1]],
        (*ROWS, *TRUTHS),
    )
    enter(
        "gather", lambda x, k: jnp.take_along_axis(x, jnp.abs(k) % D, axis=1), "raw masked", "few"
    )
    enter("gather", lambda x, k: jnp.take_along_axis(x, jnp.abs(k) % D, axis=1), "places", "few")
    enter("gather", lambda w, k: [w[k], w[k[:, 0]], w[k[0]]], "line", "few")
    enter("gather", lambda x, k: jax.vmap(lambda r, i: r[i])(x, k), "clipped", "few")
    enter("gather", lambda x, k: x[k[:, 0]], "clipped", "few")
    enter("gather", lambda x, k: x[k], "clipped", "numbers")
    enter("gather", lambda x, k: [x[k], x[k[:2]]], "sum", "numbers")
    for numbers in np.array([[1, 1, 0], [2, 0, 1], [0, 7, 1], [-1, 2, 0]]):
        each(
            "gather", lambda x, k=numbers: [jnp.take(x, k), jnp.take(x, k, mode="clip"), x[k]], SUMS
        )
    for name, how in (("scatter", "set"), ("scatter-add", "add"), ("scatter-mul", "multiply"), ("scatter-min", "min"),
                      ("scatter-max", "max")):  # fmt: skip

        def put(x, k, u, how=how):
            return jax.vmap(lambda r, i, v: getattr(r.at[i], how)(v))(x, k, u)

        enter(name, put, "raw", "few", "other")
        enter(name, put, "places", "few", "placed")
        enter(name, lambda x, k, how=how: put(jnp.zeros((N, 5)), k, x, how), "masked", "few")
        enter(
            name,
            lambda x, k, how=how: getattr(jnp.zeros((5, D)).at[k[:, 0]], how)(x),
            "masked",
            "few",
        )
        enter(name, lambda x, how=how: getattr(x.at[:, columns], how)(1.0), "clipped")
        enter(name, lambda x, how=how: getattr(x.at[columns[:2]], how)(1.0), "clipped")
        enter(
            name,
            lambda x, w, how=how: jax.vmap(lambda r: getattr(w.at[2], how)(r[0]))(x),
            "placed",
            "line",
        )
        enter(
            name,
            lambda x, w, how=how: jax.vmap(lambda v: getattr(x.at[1], how)(v))(w),
            "masked",
            "table of numbers",
        )

    # Histograms: of one place a record, of several, of a record that is not there, and where a
    # record takes no part.
    enter("scatter-add", lambda x, k: jnp.zeros(5).at[k].add(x), "masked", "few")
    enter(
        "scatter-add",
        lambda x, k: jnp.zeros(5).at[k[:, 0]].add(x[:, 0], mode="clip"),
        "masked",
        "few",
    )
    enter(
        "scatter-add",
        lambda k: [jnp.zeros(5).at[k[:, 0]].add(1.0), jnp.zeros(5, int).at[k[:, 0]].add(1)],
        "few",
    )
    enter("scatter-add", lambda k: jax.ops.segment_sum(jnp.ones(N), k[:, 0], 5), "few")
    for place in (-3, -1, 0, 4, 5, 7):  # of a record that is not there: in a bin, or in none
        for mode in ("drop", "clip"):

            def sent(m, k, place=place, mode=mode):
                where = jnp.where(m[:, 0], k[:, 0], place)
                return jnp.zeros(5).at[where].add(1.0, mode=mode), jnp.zeros(5).at[~where].add(
                    m[:, 1], mode=mode
                )

            enter("scatter-add", sent, "truth", "few")
    enter("scatter-add", lambda x: jnp.zeros((3, D)).at[np.arange(N) % 3].add(x), "clipped")
    enter("scatter-add", lambda w, k: jnp.zeros(5).at[k].add(w), "places", "few")
    for mode in ("promise_in_bounds", "drop"):
        enter(
            "scatter-add",
            lambda x, k, m=mode: (
                jnp.zeros((3, 3)).at[k[:, 0] % 3, k[:, 1] % 3].add(x[:, 0], mode=m)
            ),
            "masked",
            "few",
        )
    different = np.array([[0, 1, 2], [2, 1, 0]])
    enter(
        "eq",
        lambda k: [jax.nn.one_hot(k[:, 0], 4), jax.nn.one_hot(k, 3), jax.nn.one_hot(k, 3).sum(0)],
        "few",
    )
    enter(
        "eq",
        lambda k: [(k[:, :1] == np.array([[1, 1, 2]])) * 1.0, (k[:, :1, None] == different) * 1.0],
        "few",
    )
    enter("dot_general", lambda x, k: jax.nn.one_hot(k[:, 0], 4).T @ x, "masked", "few")


def _keys() -> None:
    def moves(key):
        keys = jax.random.split(key, (2, 3))
        flat = keys.reshape(6)
        lines = [
            keys.T,
            keys[:1, 1:3],
            flat[::2],
            keys.reshape(3, 2),
            jnp.concatenate([flat[:2], flat[4:]]),
        ]
        more = [jnp.squeeze(keys[:1], 0), lax.dynamic_slice(flat, (3,), (1,)), p.copy_p.bind(flat)]
        return [*lines, *more, jnp.broadcast_to(flat[0], (1,)), *jnp.unstack(keys, axis=1)]

    shared = Case(moves, (), keyed=True, worlds=("add",))
    for name in [
        "slice",
        "transpose",
        "reshape",
        "concatenate",
        "squeeze",
        "dynamic_slice",
        "copy",
        "broadcast_in_dim",
        "unstack",
    ]:
        CASES.setdefault(name, []).append(shared)
    enter("random_split", lambda k: jax.random.split(k, 4), keyed=True, worlds=("add",))
    enter(
        "random_fold_in",
        lambda k: [jax.random.fold_in(k, 1), jax.random.fold_in(k, 2)],
        keyed=True,
        worlds=("add",),
    )
    enter(
        "random_fold_in",
        lambda k, x: jax.random.fold_in(k, x[0, 0]),
        "few",
        keyed=True,
        worlds=("add",),
    )
    enter("random_bits", lambda k: jax.random.bits(k, (3,)), keyed=True, worlds=("add",))
    enter(
        "random_bits",
        lambda k, x: jax.random.bits(jax.random.fold_in(k, x[0, 0]), (3,)),
        "few",
        keyed=True,
        worlds=("add",),
    )
    enter(
        "random_gamma",
        lambda k, x: jax.random.gamma(k, jnp.abs(x) + 0.1),
        "clipped",
        keyed=True,
        worlds=("add",),
    )
    enter(
        "random_gamma",
        lambda k, x: jax.random.gamma(k, jnp.abs(x) + 0.1),
        "sum",
        keyed=True,
        worlds=("add",),
    )
    enter("random_gamma", lambda k: jax.random.gamma(k, 2.0, (3,)), keyed=True, worlds=("add",))
    enter("random_seed", lambda x: [jax.random.key(x[0, 0]), jax.random.key(3)], "few")
    enter(
        "random_wrap",
        lambda x: jax.random.wrap_key_data(x[0, :2].astype(jnp.uint32), impl="threefry2x32"),
        "few",
    )
    enter(
        "random_wrap",
        lambda: jax.random.wrap_key_data(np.array([1, 2], np.uint32), impl="threefry2x32"),
    )
    enter("random_unwrap", lambda k: jax.random.key_data(k), keyed=True, worlds=("add",))
    enter(
        "random_unwrap",
        lambda k, x: jax.random.key_data(jax.random.fold_in(k, x[0, 0])),
        "few",
        keyed=True,
        worlds=("add",),
    )
    sums = ("sum", "other sum", "small", "line")
    enter("noise", lambda k, *x: dp.gaussian_mechanism(k, x, 2.0), *sums, keyed=True)
    enter("noise", lambda k, *x: dp.gaussian_mechanism(k, x, 2.0), "sum", "other sum", keyed=True)
    enter("noise", lambda k, x: dp.gaussian_mechanism(k, x, 2.0), "masked", keyed=True)
    enter("noise", lambda k, x: dp.gaussian_mechanism(k, x, 2.0), "unknown", keyed=True)
    enter(
        "noise",
        lambda k, x, s: dp.gaussian_mechanism(k, x * s, 3.0 * s),
        "sum",
        "scalar",
        keyed=True,
    )
    enter("noise", lambda k, *x: dp.laplace_mechanism(k, x, 2.0), *sums, keyed=True)
    enter("noise", lambda k, x: dp.laplace_mechanism(k, x[0], 2.0), "sum", keyed=True)
    in_l1 = lambda k, t, *xs: dp.laplace_mechanism(k, _in_l1(t, *xs), 2.0)  # noqa: E731
    enter("noise", in_l1, "truth", "raw", keyed=True)
    enter("noise", in_l1, "truth", "raw", "raw masked", keyed=True)
    chosen = lambda k, x: dp.exponential_mechanism(k, x, 0.5)  # noqa: E731
    for own in (*sums, "unknown"):
        enter("choose", chosen, own, keyed=True, worlds=("add", "replace"))
    enter(
        "choose",
        lambda k, t, x: chosen(k, dp.sum_records(x, t[:, 0])),
        "truth",
        "limited",
        keyed=True,
    )
    for name, single in {
        "abs": jnp.abs,
        "neg": lax.neg,
        "max": lambda x: lax.max(x, 0.5),
        "min": lambda x: lax.min(x, 0.5),
        "clamp": lambda x: lax.clamp(-9.0, x, 9.0),
        "stop_gradient": p.stop_gradient_p.bind,
    }.items():
        enter(name, lambda t, x, f=single: f(dp.sum_records(x, t[:, 0])), "truth", "limited")
    batch = ("clipped", "raw masked", "placed", "few")
    tables = ("add", "replace")
    enter(
        "draw", lambda k, *x: dp.poisson_subsample(k, x, 0.5, N), *batch, keyed=True, worlds=tables
    )
    enter("draw", lambda k, *x: dp.subsample_without_replacement(k, x, 4), *batch, keyed=True,
          worlds=("replace",))  # fmt: skip


_moving()
_adding()
_clipping()
_programs()
_indices()
_keys()
