"""What the mixture of products takes: its tables, the settings worth trying, and the sum of its clipped gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from discreet.models import MixtureOfProducts
from discreet.rehearsal._grid import Grid
from discreet.rehearsal._invent import Template, refuse_inferred

_SHARES_OF_BOUND = (0.5, 0.25, 0.125)
_LATENTS = frozenset({"component", "base", "deviations"})


def template_of_twin(twin: MixtureOfProducts) -> Template:
    """A row of levels a record; all of them are the model's to invent."""
    refuse_inferred(twin.schema)

    def draw(rng: np.random.Generator, rows: int) -> list[np.ndarray]:
        levels = [rng.integers(size, size=rows) for size in twin.levels.sizes]
        return [np.stack(levels, axis=1).astype(np.int32)]

    return Template(draw, (None,), (False,))


def grid_of_twin(twin: MixtureOfProducts) -> Grid:
    """Fewer and larger steps than a regression's; clipping norms that are shares of the longest gradient there is."""
    norms = tuple(float(f"{share * twin.gradient_bound:.2g}") for share in _SHARES_OF_BOUND)
    return Grid(steps=(300, 600), learning_rates=(0.05, 0.1), clipping_norms=norms)


def is_bare(u: Any) -> bool:
    """Whether records meet the mixture's latents, once, and nothing else: what `clipped_sum` can do."""
    latents = u["latent"]
    return not u["param"] and set(latents) == _LATENTS and all(x.shape[0] == 1 for x in latents.values())


def clipped_sum(
    sizes: tuple[int, ...],
    u: Any,
    records: Int[Array, "record column"],
    mask: Bool[Array, " record"],
    norm: Float[Array, ""] | float,
) -> Any:
    """What the gradient engine makes of the mixture, in closed form: four products of matrices, a twentieth of its time.

    With x a record's levels as zeros and ones, p_k the levels' probabilities in component k, w those of the components and
    r those given the record, the log density has the gradients r_k (x - p_k) in the deviations of k, their sum over k in
    base, and r - w in component. The length of the first is sum_k r_k^2 (|x|^2 - 2 x.p_k + |p_k|^2).

    Only for invented records: rounding is not looked after, as it is where a bound must hold.

    Args:
        sizes: Number of levels of each column.
        u: What the records meet; `is_bare`.
        records: The level of each cell.
        mask: Which rows count.
        norm: C.

    Returns:
        The sum of the clipped gradients of -log density, a tree like `u`.
    """
    component, base, deviations = (u["latent"][name][0] for name in ("component", "base", "deviations"))
    blocks = jnp.split(base + deviations, np.cumsum(sizes)[:-1], axis=1)
    logs = jnp.concatenate([jax.nn.log_softmax(block, axis=1) for block in blocks], axis=1)
    levels, shares = jnp.exp(logs), jax.nn.softmax(component)
    x = jnp.concatenate([jax.nn.one_hot(records[:, i], size) for i, size in enumerate(sizes)], axis=1)
    r = jax.nn.softmax(x @ logs.T + jax.nn.log_softmax(component), axis=1)
    apart = jnp.sum(x, axis=1, keepdims=True) - 2 * x @ levels.T + jnp.sum(jnp.square(levels), axis=1)
    squared = jnp.sum(jnp.square(r) * apart, axis=1)
    squared += jnp.sum(jnp.square(x - r @ levels), axis=1) + jnp.sum(jnp.square(r - shares), axis=1)
    factor = jnp.where(mask, jnp.minimum(1.0, norm * jax.lax.rsqrt(squared)), 0.0)
    weights = factor[:, None] * r
    in_deviations = jnp.sum(weights, axis=0)[:, None] * levels - weights.T @ x
    in_component = jnp.sum(factor) * shares - jnp.sum(weights, axis=0)
    sums = {"component": in_component, "base": jnp.sum(in_deviations, axis=0), "deviations": in_deviations}
    return {**u, "latent": {name: sums[name][None] for name in u["latent"]}}
