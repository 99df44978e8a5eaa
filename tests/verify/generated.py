"""Programs made at random from the operations that the rules speak of, and neighbouring tables to try them on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import discreet as dp

N, D = 12, 3


def rows_of(mask, x):
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def _guard(x):
    return jnp.where(jnp.isfinite(x), x, 0.0)


def _norm(x):
    return jnp.sqrt(jnp.sum(jnp.square(x), axis=tuple(range(1, x.ndim)), keepdims=True))


def _per_row(function):
    """Operations on rows need a leading axis of rows."""
    return lambda r, x, y, m: function(r, x, y, m) if x.ndim and x.shape[0] == N else x


def _axis(r, x):
    return int(r.integers(x.ndim))


def _scan_sum(x, transform):
    return jax.lax.scan(lambda c, row: (transform(c + row), None), jnp.zeros(x.shape[1:]), x)[0]


def _reshaped(r, x, y, m):
    size = x.size
    options = [(3, 4, *x.shape[1:])] if x.ndim and x.shape[0] == N else []
    options += [(x.shape[0] * x.shape[1], *x.shape[2:])] if x.ndim > 1 else []
    options += [(size,), (1, *x.shape), (*x.shape, 1)]
    return x.reshape(options[r.integers(len(options))])


def _product(r, x, y, m):
    if x.ndim and y.ndim and x.shape[0] == y.shape[0] and x.size * y.size < 2000:
        return jnp.tensordot(x, y, axes=(0, 0))
    return x * 2.0


def _same(function):
    return lambda r, x, y, m: function(x, y if x.shape == y.shape else x)


OPERATIONS = {
    "clip": _per_row(lambda r, x, y, m: dp.clip_records(x, float(r.choice([0.5, 1.0, 2.0])))),
    "clip two": _per_row(
        lambda r, x, y, m: dp.clip_records((x, y), 1.0)[0] if y.ndim and y.shape[0] == N else x
    ),
    "clip one row": lambda r, x, y, m: dp.clip_records(x[None], 1.0)[0],
    "sum": _per_row(lambda r, x, y, m: dp.sum_records(x, m)),
    "mask": _per_row(lambda r, x, y, m: jnp.where(rows_of(m, x), x, 0.0)),
    "mask other": _per_row(lambda r, x, y, m: jnp.where(rows_of(m, x), 0.0, x)),
    "mask one": _per_row(lambda r, x, y, m: jnp.where(rows_of(m, x), x, 1.0)),
    "mask product": _per_row(lambda r, x, y, m: x * rows_of(m, x).astype(jnp.float32)),
    "norm min": _per_row(lambda r, x, y, m: x * jnp.minimum(1.0, 1.0 / _norm(x))),
    "norm max": _per_row(lambda r, x, y, m: x / jnp.maximum(1.0, _norm(x) / 0.5)),
    "norm where": _per_row(lambda r, x, y, m: jnp.where(_norm(x) > 1.0, x / _norm(x), x)),
    "norm of other": _per_row(
        lambda r, x, y, m: x * jnp.minimum(1.0, 1.0 / _norm(y)) if y.shape == x.shape else x
    ),
    "norm eps": _per_row(lambda r, x, y, m: x / (_norm(x) + 0.1)),
    "norm rsqrt": _per_row(
        lambda r, x, y, m: x * jnp.minimum(1.0, jax.lax.rsqrt(1e-6 + jnp.square(_norm(x))))
    ),
    "norm factor twice": _per_row(lambda r, x, y, m: x * 3.0 * jnp.minimum(1.0, 1.0 / _norm(x))),
    "guard": lambda r, x, y, m: _guard(x),
    "guard rows": _per_row(lambda r, x, y, m: jnp.where(jnp.isfinite(_norm(x)), x, 0.0)),
    "guard turned": lambda r, x, y, m: jnp.where(jnp.isfinite(x).T, x.T, 0.0) if x.ndim > 1 else x,
    "guard out of place": lambda r, x, y, m: (
        jnp.where(jnp.isfinite(x)[..., ::-1], x, 0.0) if x.ndim else x
    ),
    "guard by copy": lambda r, x, y, m: jnp.where(jnp.isfinite(x), jnp.clip(x, -0.5, 0.5), 0.0),
    "guard by all": _per_row(
        lambda r, x, y, m: jnp.where(
            jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim)), keepdims=True), x, 0.0
        )
    ),
    "limit": lambda r, x, y, m: jnp.clip(x, -0.5, 0.5),
    "limit odd": lambda r, x, y, m: jnp.minimum(jnp.maximum(x, 0.3), 0.7),
    "below": lambda r, x, y, m: jnp.minimum(x, 0.3),
    "tanh": lambda r, x, y, m: jnp.tanh(x),
    "abs": lambda r, x, y, m: jnp.abs(x),
    "relu": lambda r, x, y, m: jax.nn.relu(x),
    "square": lambda r, x, y, m: jnp.square(x),
    "exp": lambda r, x, y, m: jnp.exp(x),
    "logistic": lambda r, x, y, m: jax.nn.sigmoid(x),
    "cos": lambda r, x, y, m: jnp.cos(x),
    "sign": lambda r, x, y, m: jnp.sign(x),
    "half": lambda r, x, y, m: x * 0.5,
    "thrice": lambda r, x, y, m: x * -3.0,
    "divided": lambda r, x, y, m: x / 4.0,
    "shifted": lambda r, x, y, m: x + 1.0,
    "inverse": lambda r, x, y, m: 1.0 / x,
    "weights": _per_row(lambda r, x, y, m: x * rows_of(jnp.arange(N) / N, x)),
    "add": _same(jnp.add),
    "subtract": _same(jnp.subtract),
    "multiply": _same(jnp.multiply),
    "divide": _same(jnp.divide),
    "maximum": _same(jnp.maximum),
    "choose": _same(lambda x, y: jnp.where(x > 0, x, y)),
    "sum axis": lambda r, x, y, m: jnp.sum(x, axis=_axis(r, x)) if x.ndim else x,
    "mean axis": lambda r, x, y, m: jnp.mean(x, axis=_axis(r, x)) if x.ndim else x,
    "max axis": lambda r, x, y, m: jnp.max(x, axis=_axis(r, x)) if x.ndim else x,
    "cumsum": lambda r, x, y, m: jnp.cumsum(x, axis=_axis(r, x)) if x.ndim else x,
    "sort": lambda r, x, y, m: jnp.sort(x, axis=_axis(r, x)) if x.ndim else x,
    "reverse": lambda r, x, y, m: jnp.flip(x, axis=_axis(r, x)) if x.ndim else x,
    "roll": lambda r, x, y, m: jnp.roll(x, 1, axis=_axis(r, x)) if x.ndim else x,
    "reshape": _reshaped,
    "transpose": lambda r, x, y, m: jnp.transpose(x, r.permutation(x.ndim)),
    "broadcast": lambda r, x, y, m: jnp.broadcast_to(x, (2, *x.shape)) if x.size < 500 else x,
    "spread": lambda r, x, y, m: (
        jnp.broadcast_to(x[..., None], (*x.shape, 2)) if x.size < 500 else x
    ),
    "slice": lambda r, x, y, m: (
        jax.lax.slice_in_dim(x, 0, max(1, x.shape[-1] - 1), axis=-1) if x.ndim else x
    ),
    "first": lambda r, x, y, m: x[0] if x.ndim and x.shape[0] else x,
    "concatenate": lambda r, x, y, m: (
        jnp.concatenate([x, x], axis=_axis(r, x)) if x.ndim and x.size < 500 else x
    ),
    "beside": _per_row(
        lambda r, x, y, m: (
            jnp.concatenate([x, y], -1) if x.ndim == y.ndim == 2 and y.shape[0] == N else x
        )
    ),
    "pad": lambda r, x, y, m: jnp.pad(x, [(0, 1)] + [(0, 0)] * (x.ndim - 1)) if x.ndim else x,
    "matrix": lambda r, x, y, m: x @ jnp.ones((x.shape[-1], 2)) * 0.5 if x.ndim else x,
    "records product": _product,
    "mask dot": _per_row(lambda r, x, y, m: jnp.tensordot(m.astype(jnp.float32), x, axes=(0, 0))),
    "factor dot": _per_row(
        lambda r, x, y, m: jnp.tensordot(
            jnp.minimum(1.0, 1.0 / _norm(x)).reshape(-1), x, axes=(0, 0)
        )
    ),
    "running": lambda r, x, y, m: _scan_sum(x, lambda c: c) if x.ndim else x,
    "running half": lambda r, x, y, m: _scan_sum(x, lambda c: 0.5 * c) if x.ndim else x,
    "running tanh": lambda r, x, y, m: _scan_sum(x, jnp.tanh) if x.ndim else x,
    "running double": lambda r, x, y, m: _scan_sum(x, lambda c: 2.0 * c) if x.ndim else x,
    "halves": _per_row(
        lambda r, x, y, m: dp.sum_records(x[:6], m[:6]) + dp.sum_records(x[6:], m[6:])
    ),
    "halves that overlap": _per_row(
        lambda r, x, y, m: dp.sum_records(x[:8], m[:8]) - dp.sum_records(x[4:], m[4:])
    ),
    "halves clipped": _per_row(
        lambda r, x, y, m: (
            dp.sum_records(dp.clip_records(x[:6], 1.0), m[:6])
            + dp.sum_records(dp.clip_records(x[6:], 2.0), m[6:])
        )
    ),
    "coarse": lambda r, x, y, m: x.astype(jnp.bfloat16).astype(jnp.float32),
    "whole": lambda r, x, y, m: (
        jnp.clip(_guard(x), -100, 100).astype(jnp.int32).astype(jnp.float32)
    ),
    "count": lambda r, x, y, m: jnp.sum(x > 0, axis=0).astype(jnp.float32) if x.ndim else x,
    "all": _per_row(
        lambda r, x, y, m: jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))).astype(
            jnp.float32
        )
    ),
}
LIKELY = [
    "clip",
    "sum",
    "mask",
    "sum axis",
    "guard",
    "limit",
    "norm min",
    "reshape",
    "running",
    "half",
    "add",
    "beside",
]


def program(seed):
    """A function of (rows, mask), made of one to eight operations; always the same for a seed."""
    r = np.random.default_rng(seed)
    names = [
        str(r.choice(LIKELY)) if r.random() < 0.5 else str(r.choice(list(OPERATIONS)))
        for _ in range(r.integers(1, 9))
    ]
    if r.random() < 0.6:
        # Most chains of any operations end unbounded: many are given the end that a private program
        # has.
        bounding = [
            "clip",
            "norm min",
            "norm max",
            "norm where",
            "norm eps",
            "limit",
            "tanh",
            "logistic",
            "mask product",
        ]
        names += [
            str(r.choice(bounding)),
            *([str(r.choice(list(OPERATIONS)))] if r.random() < 0.3 else []),
        ]
        names += [
            str(
                r.choice(
                    [
                        "sum",
                        "sum",
                        "mask dot",
                        "factor dot",
                        "running",
                        "halves",
                        "halves that overlap",
                    ]
                )
            )
        ]
    seeds = r.integers(1 << 30, size=len(names))
    picks = r.random((len(names), 2))

    def run(rows, mask):
        values = [rows, jnp.sin(3.0 * rows)]
        for name, seed, (a, b) in zip(names, seeds, picks, strict=True):
            recent = values[-3:]
            x, y = recent[-1 if a < 0.7 else int(a * len(recent))], recent[int(b * len(recent))]
            found = OPERATIONS[name](np.random.default_rng(seed), x, y, mask)
            values.append(found if found.size < 5000 else x)
        return values[-1].astype(jnp.float32)

    run.names = names
    return run


EXTREMES = (0.0, 1e-20, 1e4, -1e4, 3e38, -3e38, np.nan, np.inf, -np.inf)


def row(r):
    """One record, of any size, not always a number."""
    found = r.normal(size=D) * 10.0 ** r.integers(-2, 4)
    if r.random() < 0.4:
        found[r.integers(D)] = r.choice(EXTREMES)
    return found.astype(np.float32)


def table(r):
    """Rows and a mask, with rubbish where the mask is False."""
    return np.stack([row(r) for _ in range(N)]), r.random(N) < 0.7


@functools.cache
def jitted(seed):
    return jax.jit(program(seed))


BORDERS = (0, 2, 4, 7, 10, N)


def releases(seed):
    """A function of (rows, mask) to two or three sums that are released one by one; always the same for a seed.

    They share what makes their bounds interfere: leaves of the same joint clips, and slices with
    borders from a short list.
    """
    r = np.random.default_rng(seed)
    orders = [tuple(r.permutation(D)[: r.choice([1, D, D, D, D])]) for _ in range(r.integers(2, 4))]
    norms = r.choice([1.0, 2.0], size=len(orders)) if r.random() < 0.2 else np.ones(len(orders))
    masked = r.random() < 0.9
    kinds = ["slices", "overlap", "whole", "picks", "strided"] if r.random() < 0.25 else ["slices"]
    usual = r.permutation(len(orders))
    sums = []
    for _ in range(r.integers(2, 4)):
        edges = sorted(int(b) for b in r.choice(BORDERS, size=r.choice([3, 3, 4]), replace=False))
        clips = np.resize(usual, 3) if r.random() < 0.9 else r.integers(len(orders), size=3)
        leaves = r.integers(D, size=3 if r.random() < 0.1 else 1)
        weights = r.choice([1.0, -2.0], size=3) if r.random() < 0.1 else np.ones(1)
        pieces = [
            (clips[i], leaves[i % leaves.size], weights[i % weights.size])
            for i in range(len(edges) - 1)
        ]
        sums.append((str(r.choice(kinds)), edges, pieces))

    def run(rows, mask):
        columns = [rows[:, i : i + 1] for i in range(D)]
        clips = []
        for order, norm in zip(orders, norms, strict=True):
            found = dp.clip_records([columns[i] for i in order], float(norm))
            clips.append(
                [jnp.where(mask[:, None], leaf, 0.0) if masked else leaf for leaf in found]
            )
        outputs = []
        for kind, edges, pieces in sums:
            total = jnp.zeros(1)
            for number, (clip, leaf, weight) in enumerate(pieces):
                value = clips[clip][leaf % len(clips[clip])]
                first, end = edges[number], edges[number + 1]
                if kind == "overlap":
                    value = value[max(0, first - 1) : end]
                elif kind == "slices":
                    value = value[first:end]
                elif kind == "picks":
                    value = value[np.arange(first, end)]
                elif kind == "strided":
                    value = value[number :: len(pieces)]
                total = total + weight * value.sum(0)
            outputs.append(total)
        return tuple(outputs)

    run.names = sums
    return run


# --- loops ------------------------------------------------------------------------------------


def _table(values):
    return lambda i: jnp.asarray(np.asarray(values))[i]


STARTS = {
    "in order": lambda r, turns, size: lambda i: i * size,
    "from behind": lambda r, turns, size: lambda i: (turns - 1 - i) * size,
    "from below": lambda r, turns, size: lambda i: i * size - N,
    "shuffled": lambda r, turns, size: _table(r.permutation(turns) * size),
    "listed": lambda r, turns, size: _table(r.integers(0, N, size=turns)),
    "behind the end": lambda r, turns, size: lambda i: i * size + 1,
    "too close": lambda r, turns, size: lambda i: i * max(1, size - 1),
    "one twice": lambda r, turns, size: lambda i: jnp.minimum(i, turns - 2) * size,
    "one of two": lambda r, turns, size: lambda i: jnp.where(i > 0, i * size, (turns - 1) * size),
    "always": lambda r, turns, size: lambda i: 0 * i,
    "squares": lambda r, turns, size: lambda i: i * i,
    "in 8 bits": lambda r, turns, size: (
        lambda i: (i.astype(jnp.int8) * jnp.int8(size)).astype(jnp.int32)
    ),
    "around 8 bits": lambda r, turns, size: (
        lambda i: (i.astype(jnp.uint8) * jnp.uint8(64 * size % 256)).astype(jnp.int32)
    ),
}
STDDEVS = {
    "one": lambda r, turns: lambda i: 1.0,
    "listed": lambda r, turns: _table(
        r.choice([0.5, 1.0, 2.0, 4.0], size=turns).astype(np.float32)
    ),
    "from behind": lambda r, turns: lambda i: jnp.arange(1.0, turns + 1.0)[-1 - i],
    "behind the end": lambda r, turns: lambda i: jnp.arange(1.0, turns + 1.0)[i + 1],
    "growing": lambda r, turns: lambda i: 1.0 + 0.5 * i.astype(jnp.float32),
    "fading": lambda r, turns: lambda i: jnp.exp(-0.5 * i.astype(jnp.float32)),
    "a power": lambda r, turns: lambda i: 0.75 ** i.astype(jnp.float32),
    "one of two": lambda r, turns: lambda i: jnp.where(i % 2 == 0, 1.0, 3.0),
    "by comparison": lambda r, turns: lambda i: jnp.where(i < 1, 0.5, 2.0),
    "around 8 bits": lambda r, turns: (
        lambda i: (i.astype(jnp.uint8) + jnp.uint8(254)).astype(jnp.float32) + 1.0
    ),
}


def _times(factor):
    return lambda i, x: factor(i) * x


FACTORS = {
    "none": lambda r, turns: lambda i, x: x,
    "two": lambda r, turns: lambda i, x: 2.0 * x,
    "listed": lambda r, turns: _times(
        _table(r.choice([0.5, -1.0, 2.0], size=turns).astype(np.float32))
    ),
    "growing": lambda r, turns: lambda i, x: (i.astype(jnp.float32) + 1.0) * x,
    "turned over": lambda r, turns: lambda i, x: jnp.where(i % 2 == 0, x, -x),
    "first alone": lambda r, turns: lambda i, x: jnp.where(i < 1, x, 0.0),
}
SUMS = {
    "marked": lambda r: lambda x, m: dp.sum_records(x, m),
    "chosen": lambda r: lambda x, m: jnp.where(rows_of(m, x), x, 0.0).sum(0),
    "product": lambda r: lambda x, m: jnp.einsum("n,nd->d", m.astype(jnp.float32), x),
    "all": lambda r: lambda x, m: x.sum(0),
    "groups": lambda r: (
        lambda x, m: jax.ops.segment_sum(
            jnp.where(rows_of(m, x), x, 0.0), (x[:, 0] > 0).astype(int), 2
        )[0]
    ),
    "coarse": lambda r: lambda x, m: dp.sum_records(x.astype(jnp.bfloat16).astype(jnp.float32), m),
    "signs": lambda r: (
        lambda x, m: dp.sum_records(jnp.sign(x).astype(jnp.int8).astype(jnp.float32), m)
    ),
    "positions": lambda r: lambda x, m: dp.sum_records(x * (jnp.arange(len(x)) / N)[:, None], m),
}
_USUAL = {"in order", "one", "none", "marked"}


def _any(r, options, *sizes):
    usual = [x for x in options if x in _USUAL]
    return options[str(r.choice(usual if r.random() < 0.45 else list(options)))](r, *sizes)


def loops(seed, quiet=False):
    """A function of (rows, mask, key, release) with releases in a loop: windows, schedules, branches, carried sums.

    `release(key, value, stddev)` stands for the mechanism, and all that it returns is returned.
    `quiet`: only what is carried out of the loop is released.
    """
    r = np.random.default_rng(seed)
    turns = int(r.choice([2, 3, 4, 6, 12]))
    # Most programs of many parts have no proof: half of them are plain but for one thing.
    plain = r.random() < 0.6
    quiet |= r.random() < 0.2
    size = N // turns if plain else int(r.choice([N // turns, N // turns, 1, 2]))
    scanned, inner, branches = (r.random() < share and not plain for share in (0.3, 0.15, 0.3))
    carry = (
        "sum"
        if quiet
        else "none"
        if plain
        else str(r.choice(["none", "sum", "last", "faded", "larger"]))
    )
    whole, clipped_within = r.random() < (0.1 if plain else 0.25), r.random() < 0.2
    odd = int(r.integers(3 if quiet else 4))

    def of(place, options, usual, *sizes):
        if not plain:
            return _any(r, options, *sizes)
        return options[str(r.choice(list(options))) if place == odd else usual](r, *sizes)

    pieces = [
        (
            int(r.integers(3)),
            of(0, STARTS, "in order", turns, size),
            of(1, SUMS, "marked"),
            of(2, FACTORS, "none", turns),
        )
        for _ in range(1 if plain else r.choice([1, 1, 2, 3]))
    ]
    stddevs = [of(3, STDDEVS, "one", turns) for _ in range(len(pieces) + 1)]
    together = str(r.choice(["apart", "added", "beside"]))
    picks, of_rows = r.random(turns) < 0.5, r.random() < 0.5

    def leaves(x):
        first = dp.clip_records(x, 1.0)
        second, third = dp.clip_records((x[:, ::-1], jnp.sin(x)), 1.0)
        return first, second, third

    def run(rows, mask, key, release):
        key, end = jax.random.split(key)

        def turn(i, total, key, part):
            keys = jax.random.split(key, 8)
            sums = []
            for leaf, start, add, factor in pieces:
                if part is not None:
                    x, m = part
                    x = leaves(x)[leaf] if clipped_within else x[leaf]
                elif whole:
                    x, m = (leaves(rows) if clipped_within else outside)[leaf], mask
                else:
                    source = rows if clipped_within else outside[leaf]
                    x, m = (jax.lax.dynamic_slice_in_dim(y, start(i), size) for y in (source, mask))
                    x = leaves(x)[leaf] if clipped_within else x
                sums.append(add(factor(i, x), m) if of_rows else factor(i, add(x, m)))
            if together != "apart":
                sums = [
                    functools.reduce(jnp.add, sums)
                    if together == "added"
                    else jnp.concatenate(sums)
                ]
            if carry == "sum":
                total = total + sums[0]
            elif carry == "faded":
                total = 0.5 * total + sums[0]
            elif carry == "larger":
                total = jnp.maximum(total, sums[0])
            if carry != "none":
                sums[0] = total
            if carry == "last":
                total = sums[0] * 0 + (factor(i, add(x, m)) if together != "beside" else total * 0)
            found = [
                release(k, x, s(i))
                for k, x, s in zip(keys[1:], [] if quiet else sums, stddevs, strict=False)
            ]
            return total, found

        def branched(i, total, key, part):
            if not branches:
                return turn(i, total, key, part)
            key, other = jax.random.split(key)
            total, found = turn(i, total, key, part)
            extra = jax.lax.cond(
                jnp.asarray(picks)[i],
                lambda k: release(k, dp.sum_records(outside[0], mask), stddevs[-1](i)),
                lambda k: release(k, 2.0 * dp.sum_records(outside[1], mask), 2.0),
                other,
            )
            return total, [*found, extra]

        outside = leaves(rows)
        width = D * len(pieces) if together == "beside" else D

        def body(total, xs):
            i, key, part = xs
            if inner:
                return jax.lax.scan(
                    lambda c, k: branched(i, c, k, part), total, jax.random.split(key, 2)
                )
            return branched(i, total, key, part)

        part = None
        if scanned:
            shape = (turns, N // turns)
            source = (
                rows.reshape(*shape, D)
                if clipped_within
                else [x.reshape(*shape, D) for x in outside]
            )
            part = source, mask.reshape(shape)
        total, found = jax.lax.scan(
            body, jnp.zeros(width), (jnp.arange(turns), jax.random.split(key, turns), part)
        )
        return [*found, release(end, total, 1.0)]

    run.names = turns, size, plain, quiet, scanned, inner, branches, carry, whole
    return run


# --- corners of loops ----------------------------------------------------------------------------


CORNERS = ("rows left out", "not cut off", "of two branches", "turned over", "taken again")
TURNED = (
    lambda total, x: total[::-1] + x,
    lambda total, x: x - total,
    lambda total, x: -total + x,
    lambda total, x: total + x,
)


def corners(seed):
    """As `loops`, for shapes that it rarely makes, `CORNERS` in turn: each program has one, and nothing else that is odd."""
    r, corner = np.random.default_rng(seed), CORNERS[seed % len(CORNERS)]
    turns = int(r.choice([2, 2, 3, 4]))
    size = N // turns - int(corner == "rows left out" and r.random() < 0.7)
    begin = int(r.choice([-2, -1, 0, 1, 2])) if corner == "not cut off" else 0
    counted = corner in ("rows left out", "turned over")
    start = STARTS[
        str(r.choice(["in order", "from behind", "in order" if counted else "shuffled"]))
    ](r, turns, size)
    add = SUMS[str(r.choice(["marked", "chosen", "product"]))](r)
    turned = TURNED[r.integers(len(TURNED))] if corner == "turned over" else jnp.add
    picks, weights = r.permutation(turns) % 2 == 0, r.permutation([0.5, 1.0, 2.0])[:2]
    again, quiet = int(r.choice([2, 3, 5])), r.random() < 0.5

    def run(rows, mask, key, release):
        clipped, (key, end) = dp.clip_records(rows, 1.0), jax.random.split(key)

        def window(i):
            x, m = (
                jax.lax.dynamic_slice_in_dim(x, begin + start(i), size) for x in (clipped, mask)
            )
            return add(x, m)

        if counted:
            # A counter that only cuts: with `xs`, no turns of a sample are alike.
            total = jax.lax.fori_loop(
                0, turns, lambda i, total: turned(total, window(i)), jnp.zeros(D)
            )
            return [release(end, total, 1.0)]

        def turn(total, xs):
            i, key = xs
            if corner == "of two branches":
                branches = [lambda k, w=w: release(k, w * window(i), 1.0) for w in weights]
                return total, jax.lax.cond(jnp.asarray(picks)[i], *branches, key)
            if corner == "taken again":

                def inside(total, key):
                    x = window(i)
                    return total + x, [] if quiet else release(key, x, 1.0)

                return jax.lax.scan(inside, total, jax.random.split(key, again))
            x = window(i)
            return total + x, [] if quiet else release(key, x, 1.0)

        total, found = jax.lax.scan(
            turn, jnp.zeros(D), (jnp.arange(turns), jax.random.split(key, turns))
        )
        return [found, release(end, total, 1.0)] if quiet else [found]

    run.names = corner, turns, size, begin, quiet
    return run
