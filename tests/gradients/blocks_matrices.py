"""Blocks that multiply by a leaf: dense layers of every form, attention, convolutions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .blocks import block, normal

# Dense layers.


@block
def dense(rng, length, width):
    out = int(rng.integers(1, 6))
    p = {"w": normal(rng, width, out), "b": normal(rng, out)}
    return p, lambda p, x, record: jnp.tanh(x @ p["w"] + p["b"])


@block
def dense_weight_on_the_left(rng, length, width):
    p = {"w": normal(rng, width + 1, width), "b": normal(rng, width + 1)}
    return p, lambda p, x, record: jnp.tanh(p["w"] @ x.T - p["b"][:, None]).T


@block
def dense_weight_transposed(rng, length, width):
    p = {"w": normal(rng, 2, width)}
    return p, lambda p, x, record: jnp.tanh(x @ p["w"].T)


@block
def dense_out_of_a_flat_leaf(rng, length, width):
    p = {"flat": normal(rng, width * 2 + 2)}
    return p, lambda p, x, record: jnp.tanh(
        x @ p["flat"][: width * 2].reshape(width, 2) + p["flat"][width * 2 :]
    )


@block
def dense_tied_twice(rng, length, width):
    p = {"w": normal(rng, width, width), "b": normal(rng, width)}
    return p, lambda p, x, record: jnp.tanh(jnp.tanh(x @ p["w"] + p["b"]) @ p["w"] + p["b"])


@block
def dense_tied_to_its_transpose(rng, length, width):
    p = {"w": normal(rng, width, 2)}
    return p, lambda p, x, record: jnp.tanh(x @ p["w"]) @ p["w"].T


@block
def dense_over_all_positions(rng, length, width):
    p = {"w": normal(rng, length, width, 3, scale=0.3)}
    return (
        p,
        lambda p, x, record: jnp.tanh(jnp.tensordot(x, p["w"], axes=2))[None] * jnp.ones((2, 1)),
    )


@block
def dense_a_weight_per_position(rng, length, width):
    p = {"w": normal(rng, length, width, 2)}
    return p, lambda p, x, record: jnp.tanh(jnp.einsum("ld,lde->le", x, p["w"]))


@block
def dense_a_weight_per_head(rng, length, width):
    p = {"w": normal(rng, 2, width, 2)}
    return p, lambda p, x, record: jnp.tanh(jnp.einsum("ld,hde->lhe", x, p["w"])).reshape(length, 4)


@block
def heads_with_batched_weights(rng, length, width):
    p = {"w": normal(rng, 2, width, 2)}

    def apply(p, x, record):
        heads = jnp.stack([x, jnp.sin(x)])
        out = lax.dot_general(heads, p["w"], (((2,), (1,)), ((0,), (0,))))
        return jnp.tanh(out).transpose(1, 0, 2).reshape(length, 4)

    return p, apply


@block
def outer_product(rng, length, width):
    p = {"w": normal(rng, 2)}
    return p, lambda p, x, record: jnp.tanh(jnp.einsum("ld,e->led", x, p["w"])).reshape(
        length, 2 * width
    )


@block
def dense_on_a_constant(rng, length, width):
    """The layer's input is the same for every record; its cotangent is not."""
    p = {"w": normal(rng, length, width)}
    return p, lambda p, x, record: x * jnp.tanh(jnp.eye(length) @ p["w"])


@block
def dense_behind_a_mask(rng, length, width):
    p = {"w": normal(rng, width, width)}
    return p, lambda p, x, record: jnp.tanh(x @ (p["w"] * jnp.tril(jnp.ones((width, width)))))


@block
def dense_from_two_leaves(rng, length, width):
    p = {"left": normal(rng, width, 2), "right": normal(rng, width, 1)}
    return p, lambda p, x, record: jnp.tanh(x @ jnp.concatenate([p["left"], p["right"]], axis=1))


@block
def dense_reversed_padded_and_set(rng, length, width):
    p = {"w": normal(rng, width, 3)}

    def apply(p, x, record):
        w = jnp.pad(p["w"][:, ::-1], ((0, 0), (1, 0)))
        return jnp.tanh(x @ w.at[0, 1].set(0.5))

    return p, apply


@block
def dense_some_of_it_stopped(rng, length, width):
    p = {"w": normal(rng, width, width)}
    return p, lambda p, x, record: jnp.tanh(x @ p["w"]) @ lax.stop_gradient(p["w"])


@block
def bfloat16_matmul(rng, length, width):
    p = {"w": normal(rng, width, 3)}

    def apply(p, x, record):
        return jnp.tanh((x.astype(jnp.bfloat16) @ p["w"].astype(jnp.bfloat16)).astype(jnp.float32))

    return p, apply


@block
def bfloat16_leaf(rng, length, width):
    p = {"w": normal(rng, width, 3).astype(jnp.bfloat16), "b": normal(rng, 3).astype(jnp.bfloat16)}

    def apply(p, x, record):
        return jnp.tanh((x.astype(jnp.bfloat16) @ p["w"] + p["b"]).astype(jnp.float32))

    return p, apply


@block
def wide_accumulation(rng, length, width):
    p = {"w": normal(rng, width, 3).astype(jnp.bfloat16)}

    def apply(p, x, record):
        return jnp.tanh(
            jnp.matmul(x.astype(jnp.bfloat16), p["w"], preferred_element_type=jnp.float32)
        )

    return p, apply


# Attention and slices out of a larger leaf.


@block
def attention(rng, length, width):
    p = {"qkv": normal(rng, width, 6), "out": normal(rng, 2, width)}

    def apply(p, x, record):
        q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
        return x + jax.nn.softmax(q @ k.T) @ v @ p["out"]

    return p, apply


@block
def disjoint_slices(rng, length, width):
    p = {"w": normal(rng, width, 4)}
    return p, lambda p, x, record: jnp.tanh(x @ p["w"][:, :2]) * jnp.sin(x @ p["w"][:, 2:])


@block
def overlapping_slices(rng, length, width):
    p = {"w": normal(rng, width, 4)}
    return p, lambda p, x, record: jnp.tanh(x @ p["w"][:, :3]) * jnp.sin(x @ p["w"][:, 1:])


@block
def strided_slices(rng, length, width):
    p = {"w": normal(rng, width, 4)}
    return p, lambda p, x, record: jnp.tanh(x @ p["w"][:, ::2]) + x @ p["w"][:, 1::2]


# Convolutions.


def convolution(rng, length, width, *, grouped=False, **options):
    out = 2 * width if grouped else 3
    p = {"kernel": normal(rng, out, 1 if grouped else width, 3, scale=0.5), "b": normal(rng, out)}
    options = {"window_strides": (1,), "padding": "SAME"} | options
    if grouped:
        options["feature_group_count"] = width

    def apply(p, x, record):
        return jnp.tanh(lax.conv_general_dilated(x.T[None], p["kernel"], **options)[0].T + p["b"])

    return p, apply


@block
def convolution_strided(rng, length, width):
    return convolution(rng, length, width, window_strides=(2,), padding=((1, 2),))


@block
def convolution_dilated(rng, length, width):
    return convolution(rng, length, width, rhs_dilation=(2,))


@block
def convolution_transposed(rng, length, width):
    return convolution(rng, length, width, lhs_dilation=(2,), padding=((1, 0),))


@block
def convolution_cropped(rng, length, width):
    return convolution(rng, length, width, padding=((3, -1),))


@block
def convolution_of_each_channel(rng, length, width):
    return convolution(rng, length, width, grouped=True)


@block
def convolution_of_groups_of_images(rng, length, width):
    p = {"kernel": normal(rng, 4, width, 2, scale=0.5)}

    def apply(p, x, record):
        images = jnp.stack([x.T, jnp.cos(x.T)])
        out = lax.conv_general_dilated(images, p["kernel"], (1,), "SAME", batch_group_count=2)
        return jnp.tanh(out[0].T)

    return p, apply


@block
def convolution_of_images(rng, length, width):
    p = {"kernel": normal(rng, 2, 3, width, 2, scale=0.3)}
    valid = bool(rng.integers(2))

    def apply(p, x, record):
        image = x[None, :, None, :] * jnp.asarray([1.0, 2.0, -1.0, 0.5])[None, None, :, None]
        padding = "VALID" if valid and length > 1 else "SAME"
        out = lax.conv_general_dilated(
            image,
            p["kernel"],
            (1, 2),
            padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            rhs_dilation=(1, 1),
        )
        return jnp.tanh(out[0]).reshape(out.shape[1], -1)

    return p, apply


@block
def convolution_by_a_record(rng, length, width):
    """The parameter is the image and the record is the kernel."""
    p = {"image": normal(rng, 2, width, 5, scale=0.5)}

    def apply(p, x, record):
        return jnp.tanh(lax.conv_general_dilated(p["image"], x[:, :, None], (1,), "VALID")[0])

    return p, apply
