"""Fits of invented tables, with every number of a plan as an input of one compiled program."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpyro.optim import Adam

from discreet.clipping import FixedClipping, contribution_bound
from discreet.gradients import BookKeepingEngine, Channels
from discreet.inference import Trace
from discreet.models import MixtureOfProducts
from discreet.planning._invent import Setting

# --- the sum of the clipped gradients of the mixture of products, in closed form ----------


_LATENTS = frozenset({"component", "base", "deviations"})


def is_bare(u: Any) -> bool:
    """True if records depend on one draw of the mixture's latents only, as `clipped_sum` requires."""
    latents = u["latent"]
    return not u["param"] and set(latents) == _LATENTS and all(x.shape[0] == 1 for x in latents.values())


def clipped_sum(
    sizes: tuple[int, ...],
    u: Any,
    records: Int[Array, "record column"],
    mask: Bool[Array, " record"],
    norm: Float[Array, ""] | float,
) -> Any:
    """The gradient engine's result for the mixture, in closed form: four matrix products, in a twentieth of its time.

    With x a record's levels as zeros and ones, p_k the levels' probabilities in component k, w those of the components and
    r those given the record, the log density has the gradients r_k (x - p_k) in the deviations of k, their sum over k in
    base, and r - w in component. The length of the first is sum_k r_k^2 (|x|^2 - 2 x.p_k + |p_k|^2).

    Only for invented records: rounding is not looked after, as it is where a bound must hold.
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


_KEPT = 200
_MOST_ROWS = 16_384
"""Larger batches are stood for by so many rows, each of which then counts more than once."""
_LOSS_SHARE = 0.02
"""The private loss's share in `DPSVI` and the command line."""
UNCLIPPED = 1e6


class Numbers(NamedTuple):
    """The inputs of the compiled program."""

    stddev: float  # standard deviation of the noise on the clipped sum
    norm: float
    learning_rate: float
    rate: float
    expected: float  # rows of the table that stand for a batch, on average
    scatter: float  # standard deviation of their number
    weight: float  # records that each of them stands for
    num_steps: int


@dataclasses.dataclass(frozen=True, eq=False)
class Fitter:
    """Fits a table under a setting; compiled once for each size of batch."""

    objective: Any  # The objective of a `DPSVI` with this model and guide
    start: dict[str, Any]  # Its initial parameters, unconstrained
    num_records: int  # Public number of records; the invented table may have fewer
    twin: MixtureOfProducts | None = None  # The mixture, where that is the model

    def fit(
        self, rows: Sequence[np.ndarray], setting: Setting, noise_multiplier: float, key: PRNGKeyArray
    ) -> dict[str, Any]:
        """The parameters that `DPSVI.run` would report: the mean over the tail of the trace that does not drift."""
        return self.fit_and_rest(rows, setting, noise_multiplier, key)[0]

    def fit_and_rest(
        self, rows: Sequence[np.ndarray], setting: Setting, noise_multiplier: float, key: PRNGKeyArray
    ) -> tuple[dict[str, Any], bool | None]:
        """The same, and whether the fit converged, as `discreet fit` judges it; None where there are too few steps to tell."""
        room, numbers = self._numbers(len(rows[0]), setting, noise_multiplier)
        # The stretch may begin near the end, and goes on at the beginning.
        table = [np.concatenate([x, x[:room]]) for x in rows]
        blocks = np.asarray(self._run(room, table, numbers, key))[: min(_KEPT, setting.num_steps)]
        leaves, tree = jax.tree.flatten(self.start)
        trace = Trace(np.arange(len(blocks)), blocks)
        parts = np.split(trace.average(), np.cumsum([x.size for x in leaves])[:-1])
        found = jax.tree.unflatten(tree, [part.reshape(x.shape) for part, x in zip(parts, leaves, strict=True)])
        return found, self._rested(blocks)

    def _rested(self, blocks: np.ndarray) -> bool | None:
        if len(blocks) * 0.9 < 20:
            return None
        if not np.isfinite(blocks).all():
            return False
        return Trace(np.arange(len(blocks)), blocks).converged_from is not None

    def fit_without_noise(
        self, rows: Sequence[np.ndarray], num_steps: int, rate: float, learning_rate: float, key: PRNGKeyArray
    ) -> dict[str, Any]:
        """The same without clipping and noise."""
        return self.fit(rows, Setting(num_steps, rate, UNCLIPPED, learning_rate), 0.0, key)

    def _numbers(self, rows: int, setting: Setting, noise_multiplier: float) -> tuple[int, Numbers]:
        rate, most = setting.rate, min(rows, _MOST_ROWS)
        expected = rate * self.num_records
        scatter = math.sqrt(expected * (1 - rate))
        room = math.ceil(expected + 6 * scatter)
        weight = 1.0
        if room > most:
            # A batch of so many records is always about as large.
            room, scatter = min(most, max(1, round(expected))), 0.0
            weight, expected = expected / room, float(room)
        stddev = noise_multiplier * contribution_bound(FixedClipping(setting.clipping_norm), _LOSS_SHARE)
        return room, Numbers(
            stddev, setting.clipping_norm, setting.learning_rate, rate, expected, scatter, weight, setting.num_steps
        )

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def _run(
        self, room: int, table: list[Array], numbers: Numbers, key: PRNGKeyArray
    ) -> Float[Array, "block parameter"]:
        optim = Adam(numbers.learning_rate)
        flat, _ = ravel_pytree(self.start)
        blocks = jnp.minimum(_KEPT, numbers.num_steps)

        def body(step: Int[Array, ""], carry: Any) -> Any:
            state, sums, counts = carry
            state = self._step(optim, state, room, table, numbers, jax.random.fold_in(key, step))
            block = step * blocks // numbers.num_steps
            flat, _ = ravel_pytree(optim.get_params(state))
            return state, sums.at[block].add(flat), counts.at[block].add(1.0)

        carry = optim.init(self.start), jnp.zeros((_KEPT, flat.size)), jnp.zeros(_KEPT)
        _, sums, counts = jax.lax.fori_loop(0, numbers.num_steps, body, carry)
        return sums / jnp.maximum(counts, 1.0)[:, None]

    def _step(self, optim: Any, state: Any, room: int, table: list[Array], numbers: Numbers, key: PRNGKeyArray) -> Any:
        guide_key, place_key, size_key, noise_key, record_key = jax.random.split(key, 5)
        (u, free), pull = jax.vjp(lambda psi: self.objective.link(psi, guide_key), optim.get_params(state))
        size = jnp.round(numbers.expected + numbers.scatter * jax.random.normal(size_key))
        first = jax.random.randint(place_key, (), 0, table[0].shape[0] - room)
        batch = [jax.lax.dynamic_slice_in_dim(x, first, room) for x in table]
        total = self.clipped_sum(u, batch, jnp.arange(room) < size, numbers.norm, record_key)
        flat, unravel = ravel_pytree(total)
        noise = numbers.stddev * self._noisy(u) * jax.random.normal(noise_key, flat.shape)
        (gradient,) = pull((unravel((numbers.weight * flat + noise) / numbers.rate), jnp.ones_like(free)))
        # Where a transform saturates, its Jacobian is not finite; as DPSVI, stay there.
        gradient = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0.0), gradient)
        return optim.update(gradient, state)

    def _noisy(self, u: Any) -> Float[np.ndarray, " coordinate"]:
        """1 for each coordinate of `u` that `DPSVI` releases, 0 for those that no record's gradient reaches."""
        sizes = [x.size for x in jax.tree.leaves(u)]
        reached = [True] * len(sizes) if self.twin is not None else self.objective.reached(u)
        return np.repeat(np.asarray(reached, np.float32), sizes)

    def clipped_sum(self, u: Any, rows: Sequence[Array], mask: Array, norm: Any, key: PRNGKeyArray) -> Any:
        """The sum of the clipped gradients of the rows that the mask keeps, as the engine that `DPSVI` uses has it."""
        if self.twin is not None and self.twin.schema.max_rows == 1 and is_bare(u):
            return clipped_sum(self.twin.levels.sizes, u, rows[0], mask, norm)
        objective, count = self.objective, rows[0].shape[0]
        keys = jax.random.split(key, count) if objective.uses_key else None

        def loss(u: Any, record: Any) -> Float[Array, ""]:
            leaves, own = record
            return objective.record_loss(u, leaves, key if own is None else own)

        total = BookKeepingEngine(len(mask))(loss, u, (list(rows), keys), mask, norm, Channels())
        return jax.tree.map(lambda x: x.astype(jnp.float32), total.gradient)

    @functools.partial(jax.jit, static_argnums=0)
    def lengths(self, rows: list[Array], key: PRNGKeyArray) -> Float[Array, " record"]:
        """L2 norms of the rows' gradients at the start, each with a guide draw of its own."""

        def one(row: list[Array], key: PRNGKeyArray) -> Float[Array, ""]:
            draw, local = jax.random.split(key)
            u, _ = self.objective.link(self.start, draw)
            gradient, _ = ravel_pytree(jax.grad(self.objective.record_loss)(u, row, local))
            return jnp.linalg.norm(gradient)

        return jax.lax.map(lambda pair: one(*pair), (rows, jax.random.split(key, rows[0].shape[0])), batch_size=16)

    def signal_to_noise(self, rows: Sequence[np.ndarray], setting: Setting, noise_multiplier: float) -> float:
        """At the start: length of the clipped gradient of all records, over that of the noise left after all steps' mean."""
        _, numbers = self._numbers(len(rows[0]), setting, noise_multiplier)
        few = [x[:_MOST_ROWS] for x in rows]
        length, size = self._length(few, numbers.norm, jax.random.key(0))
        signal = float(length) * setting.rate * self.num_records / len(few[0])
        return signal / (numbers.stddev * math.sqrt(float(size) / setting.num_steps))

    @functools.partial(jax.jit, static_argnums=0)
    def _length(self, rows: list[Array], norm: Any, key: PRNGKeyArray) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The norm of the clipped gradient of all rows at the start, and the number of its coordinates."""
        guide_key, record_key = jax.random.split(key)
        u, _ = self.objective.link(self.start, guide_key)
        flat, _ = ravel_pytree(self.clipped_sum(u, rows, jnp.ones(len(rows[0]), bool), norm, record_key))
        return jnp.linalg.norm(flat), jnp.sum(self._noisy(u))
