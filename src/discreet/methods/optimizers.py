"""Optimizers for private gradients that optax lacks: ADADP, which finds its own learning rate."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from discreet._validate import positive


class AdadpState(NamedTuple):
    """The state of `adadp`.

    Attributes:
        step: Gradients seen. After an even number the parameters stand at the end of a pair of
            steps, after an odd one in the middle.
        learning_rate: Learning rate of the present pair.
        start: The parameters where the present pair began.
        full_step: The end of one whole step from there.
    """

    step: Int[Array, ""]
    learning_rate: Float[Array, ""]
    start: Any
    full_step: Any


def adadp(
    learning_rate: float,
    *,
    tolerance: float = 1.0,
    min_factor: float = 0.9,
    max_factor: float = 1.1,
    stability_check: bool = True,
) -> optax.GradientTransformation:
    """ADADP: gradient descent whose learning rate follows the error that two half steps show in a whole one.

    Steps come in pairs. From x, the first gradient makes a whole step to y and half a step to z;
    the second gradient, taken at z, makes the other half step, to w. With err = ||(y - w) / max(1,
    |y|)||, coordinate by coordinate and over all arrays together, the learning rate of the next
    pair is multiplied by sqrt(tolerance / err), cut to [min_factor, max_factor]. Where err is above
    the tolerance the pair is taken back, to x.

    It reads gradients and its own state only: from released gradients it costs no privacy, and
    `DPSVI.run(require_proof=True)` proves a fit with it. `DPSVI` takes it as `optim`; for
    `numpyro.infer.SVI`, use `numpyro.optim.optax_to_numpyro`. The gradients that `DPSVI` hands over
    are sums over all records, so learning rates are as small as for `optax.sgd`.

    Edge cases: err = 0 multiplies by max_factor, an infinite err by min_factor. A gradient that is
    not a number makes parameters that are none, and they stay so: a release without noise must
    show. In the middle of a pair the parameters are z: give a run an even number of steps.

    Args:
        learning_rate: The first pair's; above 0.
        tolerance: Tolerance of err; above 0.
        min_factor: Least factor between two pairs' learning rates; above 0, at most 1.
        max_factor: Largest such factor; at least 1.
        stability_check: Reject pairs whose err is above the tolerance.

    Returns:
        A gradient transformation whose `update` needs the parameters; its state is an `AdadpState`.

    Raises:
        ValueError: A number out of range; parameters that were left out of `update`.

    Reference:
        Koskela, Honkela, "Learning rate adaptation for federated and differentially private
        learning", AISTATS 2020.

    >>> import jax.numpy as jnp, optax, discreet as dp
    >>> optimizer, x = dp.optimizers.adadp(0.01), jnp.array([3.0])
    >>> state = optimizer.init(x)
    >>> for _ in range(100):
    ...     updates, state = optimizer.update(2 * x, state, x)
    ...     x = optax.apply_updates(x, updates)
    >>> bool(abs(x[0]) < 0.01), bool(state.learning_rate > 0.1)
    (True, True)
    """
    positive(
        "adadp: learning_rate", learning_rate, hint="0.01 is a common start; it need not be right."
    )
    positive("adadp: tolerance", tolerance, hint="The paper has 1.0.")
    positive("adadp: min_factor", min_factor, hint="The paper has 0.9.")
    positive("adadp: max_factor", max_factor, hint="The paper has 1.1.")
    if not min_factor <= 1 <= max_factor:
        raise ValueError(
            f"adadp: min_factor is {min_factor!r} and max_factor {max_factor!r}; the learning rate can stay as it is only "
            "where 1 lies between them. Pass for example 0.9 and 1.1."
        )

    def init(params: Any) -> AdadpState:
        return AdadpState(
            jnp.zeros((), jnp.int32),
            jnp.asarray(learning_rate, jnp.float32),
            _arrays(params),
            _arrays(params),
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, AdadpState]:
        if params is None:
            raise ValueError(
                "adadp: update needs the parameters; call update(gradients, state, params)."
            )
        rate = state.learning_rate
        first = state.step % 2 == 0
        start = _choose(first, params, state.start)
        full_step = _choose(first, _moved(params, updates, -rate), state.full_step)
        # What follows counts after the second half step only.
        error = _error(full_step, _moved(params, updates, -rate / 2))
        factor = jnp.clip(jnp.sqrt(tolerance / error), min_factor, max_factor)
        back = ~first & (error > tolerance) & stability_check
        half_step = jax.tree.map(lambda g: (-rate / 2 * g).astype(g.dtype), updates)
        way_back = jax.tree.map(jnp.subtract, start, params)
        state = AdadpState(state.step + 1, jnp.where(first, rate, rate * factor), start, full_step)
        return _choose(back, way_back, half_step), state

    return optax.GradientTransformation(init, update)


def _error(full_step: Any, half_steps: Any) -> Float[Array, ""]:
    """||(y - w) / max(1, |y|)|| over all arrays."""

    def squares(y: Array, w: Array) -> Array:
        return jnp.sum(((y - w) / jnp.maximum(1.0, jnp.abs(y))).astype(jnp.float32) ** 2)

    return jnp.sqrt(
        sum(jax.tree.leaves(jax.tree.map(squares, full_step, half_steps)), jnp.float32(0))
    )


def _moved(params: Any, gradient: Any, factor: Array) -> Any:
    return jax.tree.map(lambda x, g: (x + factor * g).astype(jnp.result_type(x)), params, gradient)


def _choose(condition: Array, then: Any, otherwise: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), then, otherwise)


def _arrays(params: Any) -> Any:
    return jax.tree.map(jnp.asarray, params)
