"""Cases of networks and matrices within a record: convolutions, windows, sorting, factorisations."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .cases import each, enter
from .operands import ROWS, D, N

IMAGES = ("NHWC", "HWIO", "NHWC")
ONE = ("add",)
"""They take long to compile, and their rules ask for no relation."""
LINES = ("raw", "clipped", "placed", "masked")


def image(x):
    """An image of one record: 6 x 6 numbers in two channels."""
    line = jnp.tile(x, 2)
    return (line[:, None] * line)[..., None] * jnp.array([1.0, -0.5])


def kernels(size, *channels):
    return np.sin(np.arange(size * size * np.prod(channels), dtype=np.float32)).reshape(
        size, size, *channels
    )


def _convolutions() -> None:
    def layer(strides=(1, 1), padding="SAME", groups=1, **options):
        def apply(k, x, batch=1):
            many = jnp.stack([x * (i + 1) for i in range(batch)])
            return lax.conv_general_dilated(
                many,
                k,
                strides,
                padding,
                dimension_numbers=IMAGES,
                feature_group_count=groups,
                **options,
            )

        return apply

    cases = [
        (layer(), kernels(3, 2, 4)),
        (layer((2, 2), "VALID"), kernels(3, 2, 2)),
        (layer(groups=2), kernels(3, 1, 4)),
        (layer(padding=((1, 1), (0, 2)), lhs_dilation=(2, 2)), kernels(2, 2, 1)),
        (layer(rhs_dilation=(2, 2)), kernels(2, 2, 3)),
    ]
    name = "conv_general_dilated"
    for number, (apply, k) in enumerate(cases):
        batch = 1 + number % 2

        def loss(k, x, apply=apply, batch=batch):
            return jnp.sum(jnp.sin(apply(k, image(x), batch)))

        each(
            name,
            lambda x, k=k, loss=loss: jax.vmap(jax.grad(loss, (0, 1)), (None, 0))(k, x),
            ("finite", "placed"),
            worlds=ONE,
        )
        # Each record has a kernel of its own, and meets public images, or its own.
        each(
            name,
            lambda x, k=k, a=apply, b=batch: jax.vmap(lambda r: a(k * r[0], image(jnp.ones(D)), b))(
                x
            ),
            ("clipped",),
            worlds=ONE,
        )
        each(
            name,
            lambda x, k=k, a=apply, b=batch: jax.vmap(lambda r: a(k * r[0], image(r), b))(x),
            ("clipped",),
            worlds=ONE,
        )
    grouped = layer(batch_group_count=2)
    each(
        name,
        lambda x: jax.vmap(lambda r: grouped(kernels(3, 2, 4), image(r), 2))(x),
        LINES,
        worlds=ONE,
    )
    each(
        name,
        lambda x: jax.vmap(lambda r: grouped(kernels(3, 2, 4) * r[0], image(r), 2))(x),
        LINES,
        worlds=ONE,
    )
    each(
        name,
        lambda x: jax.vmap(lambda r: grouped(kernels(3, 2, 4) * r[0], image(jnp.ones(D)), 2))(x),
        LINES,
        worlds=ONE,
    )
    # Records as channels, in the place of pixels, and mixed by kernels: not to be taken for rows.
    each(
        name,
        lambda x: layer()(kernels(3, N, 2), jnp.broadcast_to(x.T[:, None, :], (D, 3, N))),
        LINES,
        worlds=ONE,
    )
    each(
        name,
        lambda x: layer()(kernels(3, D, 2), jnp.broadcast_to(x[:, None], (N, 3, D))),
        LINES,
        worlds=ONE,
    )
    each(
        name,
        lambda x: layer()(jnp.broadcast_to(x.T, (3, D, N))[..., None], jnp.ones((3, 3, N))),
        LINES,
        worlds=ONE,
    )
    each(
        name,
        lambda x: layer(groups=2)(kernels(3, N // 2, 4), jnp.ones((3, 3, 1)) * x[:, 0]),
        LINES,
        worlds=ONE,
    )
    each(
        name,
        lambda x: layer(groups=N)(kernels(3, 1, 2 * N), jnp.ones((3, 3, 1)) * x[:, 0]),
        LINES,
        worlds=ONE,
    )
    folded = (
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "squeeze",
        "rev",
        "neg",
        "convert_element_type",
    )
    for name in folded:
        each(name, _unfolded, LINES)


def _unfolded(x):
    """Records and values as one axis, moved, and two again."""
    flat = x.reshape(1, -1)
    moved = [
        flat.T,
        lax.rev(flat, (0,)),
        -flat,
        flat.astype(jnp.float16),
        lax.squeeze(flat, (0,)),
        flat[None],
    ]
    wrong = [lax.rev(flat, (1,)), flat.reshape(D, N), jnp.tile(flat, (2, 1)).reshape(-1)]
    return [y.reshape(N, D) for y in moved], [y.reshape(-1, N, D)[0] for y in wrong]


def _windows() -> None:
    window = ((1, 2), (1, 1), "SAME")
    other = ((2, 1), (1, 1), "SAME")
    both = (window, other)
    for name, start, function in (
        ("max", -jnp.inf, lax.max),
        ("min", jnp.inf, lax.min),
        ("sum", 0.0, lax.add),
    ):
        each(
            f"reduce_window_{name}",
            lambda x, i=start, f=function: [lax.reduce_window(x, i, f, *w) for w in both],
            ROWS,
        )
    each(
        "reduce_window_sum",
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 1), (2, 1), "VALID"),
        ROWS,
    )
    each(
        "reduce_window_sum",
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 1), (1, 1), [(1, 1), (0, 0)]),
        ROWS,
    )

    def largest(w, x):
        return jnp.sum(jnp.sin(lax.reduce_window(w * x, -jnp.inf, lax.max, (2,), (1,), "SAME")))

    line = np.array([0.5, -1.0, 2.0], np.float32)
    each("select_and_scatter_add", lambda x: jax.vmap(jax.grad(largest), (None, 0))(line, x), ROWS)
    each(
        "select_and_scatter_add",
        jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *other).sum()),
        ROWS,
    )
    each(
        "select_and_gather_add",
        lambda x: jax.vmap(lambda r: jax.jvp(lambda w: largest(w, r), (line,), (line,)))(x),
        ROWS,
    )
    each(
        "sort",
        lambda x: [lax.sort(x, dimension=1), lax.sort(x, dimension=0), jnp.argsort(x, 1)],
        ROWS,
    )
    enter("sort", lambda x, y: lax.sort((x, y), dimension=1), "raw", "clipped")
    enter("sort", lambda x, y: lax.sort((x, y), dimension=1), "raw", "places")
    enter("sort", lambda x, y: lax.sort((x, y), dimension=0), "places", "raw")
    each("top_k", lambda x: [lax.top_k(x, 2), lax.top_k(x.T, 2), lax.top_k(x[:, 0], 2)], ROWS)
    put = lax.dynamic_update_slice
    enter(
        "dynamic_update_slice",
        lambda x, y: [put(x, y[:, :2], (0, 1)), put(x, y[:2], (1, 0))],
        "raw",
        "placed",
    )
    enter(
        "dynamic_update_slice",
        lambda x, y, i: [put(x, y[:, :1], (0, i[1])), put(y, x, (i[1], 0))],
        "raw",
        "places",
        "numbers",
    )
    enter("dynamic_update_slice", lambda x, k: put(x, x[:, :2], (0, k[0, 0])), "clipped", "few")


def _matrices() -> None:
    def square(x):
        return jnp.einsum("ri,rj->rij", x, x) + jnp.eye(D)

    def one(x):
        return x.T @ x + jnp.eye(D)

    kinds = ("clipped", "limited", "placed")
    each(
        "cholesky", lambda x: [lax.linalg.cholesky(f(x)) for f in (square, one)], kinds, worlds=ONE
    )
    each("lu", lambda x: [lax.linalg.lu(f(x)) for f in (square, one)], kinds, worlds=ONE)
    each("qr", lambda x: [lax.linalg.qr(f(x)) for f in (square, one)], kinds, worlds=ONE)
    each("eigh", lambda x: [lax.linalg.eigh(f(x)) for f in (square, one)], kinds, worlds=ONE)
    each("svd", lambda x: [lax.linalg.svd(f(x)) for f in (square, one)], kinds, worlds=ONE)
    each(
        "fft",
        lambda x: [jnp.fft.fft(x, axis=1).real, jnp.fft.fft(x, axis=0).real],
        kinds,
        worlds=ONE,
    )
    each(
        "triangular_solve",
        lambda x: jax.vmap(lambda r: jax.scipy.linalg.solve_triangular(square(x[:1])[0], r))(x),
        kinds,
        worlds=ONE,
    )
    lower = np.tril(np.ones((D, D), np.float32))
    each(
        "triangular_solve",
        lambda x: jax.vmap(lambda r: jax.scipy.linalg.solve_triangular(lower, r, lower=True))(x),
        kinds,
        worlds=ONE,
    )
    each(
        "triangular_solve",
        lambda x: lax.linalg.triangular_solve(lower, x, left_side=False, lower=True),
        kinds,
        worlds=ONE,
    )
    each(
        "triangular_solve",
        lambda x: lax.linalg.triangular_solve(
            np.tril(np.ones((N, N), np.float32)), x, left_side=True
        ),
        kinds,
        worlds=ONE,
    )
    each(
        "triangular_solve",
        lambda x: lax.linalg.triangular_solve(square(x), square(-x), left_side=True),
        kinds,
        worlds=ONE,
    )
    each(
        "custom_linear_solve",
        lambda x: [jnp.linalg.solve(square(x), x[..., None]), jnp.linalg.solve(one(x), x.T)],
        kinds,
        worlds=ONE,
    )


_convolutions()
_windows()
_matrices()
