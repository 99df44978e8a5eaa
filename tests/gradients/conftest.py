"""Helpers of the gradient tests: the definition in float64, one row's own contribution, and the arrays of a program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.privacy.gradients import Channels, ClippedSum


class Measure:
    """Compare and measure engines. All norms are computed in float64."""

    @staticmethod
    def quick_jit(function: Callable[..., Any]) -> Callable[..., Any]:
        """`jit` with the slow parts of the compiler switched off, where these tests spend their time otherwise."""
        options: dict[str, Any] = {"xla_backend_optimization_level": 0}
        if jax.__version_info__ < (0, 11):  # later releases have no other way
            options["xla_cpu_use_fusion_emitters"] = False
        return jax.jit(function, compiler_options=options)

    @staticmethod
    def norm(*trees: Any) -> float:
        """Joint L2 norm of all that the trees hold."""
        leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(trees)]
        return math.sqrt(sum(float(np.square(x).sum()) for x in leaves))

    @staticmethod
    def alone(
        engine: Any, record_loss: Any, parameters: Any, records: Any, norm: Any, channels: Channels
    ):
        """Compute each row's own contribution: the engine on batches of that one row. Leaves gain a leading row axis."""

        def row(record: Any) -> tuple[Any, ...]:
            batch = jax.tree.map(lambda x: x[None], record)
            return tuple(
                engine(record_loss, parameters, batch, jnp.ones(1, bool), norm, channels)[:3]
            )

        return jax.lax.map(row, records)

    @staticmethod
    def row_norms(contributions: Any) -> np.ndarray:
        """The joint norm of each row's contribution."""
        leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(contributions)]
        return np.sqrt(sum(np.square(x).reshape(len(x), -1).sum(axis=1) for x in leaves))

    @staticmethod
    def assert_same(got: ClippedSum, want: ClippedSum, scales: Any, tolerance: float) -> None:
        """Same tree and shapes, in float64; same sums, up to rounding.

        Args:
            got: what an engine returned.
            want: what it should have.
            scales: for each leaf the sum of the rows' norms of its clipped gradients.
            tolerance: relative to the leaf's scale; a millionth of all leaves' scale is always
                allowed.
        """
        assert jax.tree.structure(got.gradient) == jax.tree.structure(want.gradient)
        named = jax.tree_util.tree_leaves_with_path(want.gradient)
        joint = float(np.sum(jax.tree.leaves(scales)))
        for (path, right), left, scale in zip(
            named, jax.tree.leaves(got.gradient), jax.tree.leaves(scales), strict=True
        ):
            name = jax.tree_util.keystr(path)
            assert (left.shape, left.dtype) == (right.shape, np.float64), name
            off = Measure.norm(np.asarray(left, np.float64) - np.asarray(right, np.float64))
            allowed = tolerance * scale + 2e-6 * joint
            assert off <= allowed, f"leaf {name} is off by {off:.3g}, more than {allowed:.3g}"
        np.testing.assert_allclose(got.loss, want.loss, rtol=tolerance, atol=1e-5 * joint)
        np.testing.assert_allclose(got.count, want.count, rtol=1e-5, atol=1e-9)
        # with the rounding of sums
        assert float(got.l2_bound) == pytest.approx(float(want.l2_bound), rel=2e-4)

    @staticmethod
    def array_sizes(compiled: Any) -> list[int]:
        """Numbers of elements of all arrays named in a compiled program's text."""
        shapes = re.findall(r"\b(?:pred|bf16|[fsu]\d+)\[([\d,]+)\]", compiled.as_text())
        return [math.prod(int(n) for n in shape.split(",")) for shape in shapes]

    @staticmethod
    def temporary_bytes(compiled: Any) -> int:
        """Return the bytes that a compiled program allocates beside its inputs and outputs."""
        return compiled.memory_analysis().temp_size_in_bytes


@pytest.fixture(scope="session")
def measure() -> type[Measure]:
    return Measure
