"""What one posterior sample gives back: draws, and the statement of what they cost."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from discreet import random
from discreet.inference._chains import Diagnostics
from discreet.inference_data import to_arviz
from discreet.report import Statement


@dataclasses.dataclass(frozen=True)
class OPSResult:
    """The outcome of `OnePosteriorSample.run`. The draws are covered by `statement`; it holds no key.

    Attributes:
        draws: for each latent its values, constrained, with the draws along the leading axis.
        statement: what was spent and what it protects: a pure epsilon, of exact draws.
        non_private_diagnostics: what the chains say about themselves. **Not private**: it is charged nowhere, shown nowhere,
            and not pickled (then it is None). Whether to publish the draws must not depend on it.
    """

    draws: dict[str, Any]
    statement: Statement
    non_private_diagnostics: Diagnostics | None = dataclasses.field(repr=False, compare=False)

    @property
    def num_draws(self) -> int:
        """How many draws were released."""
        return len(next(iter(self.draws.values())))

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """Some of the released draws, without repetition, in random order; post-processing, free of budget.

        Args:
            key: any JAX key.
            num_samples: at most `num_draws`.

        Returns:
            As `draws`, for NumPyro's `Predictive`.

        Raises:
            ValueError: more than were released, or fewer than 1.
        """
        if not 1 <= num_samples <= self.num_draws:
            raise ValueError(
                f"num_samples is {num_samples}, but {self.num_draws} draw(s) were released, and there is no fitted guide to draw "
                "more from: each further draw of the posterior costs as much epsilon as the first. Run OnePosteriorSample with "
                "a larger num_draws, or fit by DPSVI, whose posterior draws are free."
            )
        secret = random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
        chosen = jax.random.permutation(secret, self.num_draws)[:num_samples]
        return {name: jnp.asarray(value)[chosen] for name, value in self.draws.items()}

    def to_arviz(self, **names: Any) -> Any:
        """All released draws for ArviZ, in their order, with the statement; nothing of the diagnostics.

        Args:
            names: feature_names, coords and dims of `discreet.inference_data.to_arviz`.

        Returns:
            As `discreet.inference_data.to_arviz`.
        """
        return to_arviz(self.draws, statement=self.statement, **names)

    def delta_granting(self, total_variation: float) -> float:
        """The delta that has to be added if each draw's law is within `total_variation` of the posterior's.

        The guarantee is for exact draws. Who grants that the chains are this close, for every table, has (epsilon, delta)
        with delta = (1 + e^epsilon) * num_draws * total_variation, epsilon being that of all draws: once the distance from
        what ran to the exact draws of this table, and once, times e^epsilon, back from those of the neighbouring one.

        Args:
            total_variation: between 0 and 1. It cannot be read off the chains: diagnostics see some hundredths at best.

        Returns:
            delta, at most 1.

        Raises:
            ValueError: total_variation is no number between 0 and 1.
        """
        if not 0.0 <= total_variation <= 1.0:
            raise ValueError(f"total_variation is {total_variation}; it is a distance between 0 and 1, such as 1e-8.")
        slack = min(1.0, self.num_draws * total_variation)
        return min(1.0, (1 + math.exp(min(self.statement.epsilon, 700.0))) * slack * (1 + 1e-12))

    def __repr__(self) -> str:
        """What it is, not its arrays."""
        return f"OPSResult({self.num_draws} draw(s) of {', '.join(self.draws)}, epsilon={self.statement.epsilon:.4g}, delta=0)"

    def __getstate__(self) -> dict[str, Any]:
        """Without the diagnostics, which are not private."""
        return {
            **self.__dict__,
            "draws": {n: np.asarray(x) for n, x in self.draws.items()},
            "non_private_diagnostics": None,
        }
