"""NUTS chains that stand in for exact draws, and diagnostics of them.

The guarantee of `_ops` is that of exact draws. A chain approaches them, and nothing but its last
state is released: the states before it, step sizes and acceptance rates are functions of the data.
So are the diagnostics, which are not private.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.handlers as handlers
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.distributions import ImproperUniform, constraints
from numpyro.infer import MCMC, NUTS

from discreet._jax import double
from discreet._numpyro import one_model
from discreet.methods.inference._tempering import TemperedPosterior

_FALSE_ALARM = 0.05


class Chains(NamedTuple):
    """Raw states of all chains: none of it is private."""

    # for each of the point guide's parameters an array (chain, draw, ...), unconstrained
    states: dict[str, Float[np.ndarray, "chain draw ..."]]
    # which transitions left the region where the integrator can be trusted
    divergent: Bool[np.ndarray, "chain draw"]


class _QuietNUTS(NUTS):
    """NUTS whose progress bar keeps step sizes and acceptance rates, which are functions of the data, to itself."""

    def get_diagnostics_str(self, state: Any) -> str:
        """Nothing."""
        del state
        return ""


def run_chains(
    posterior: TemperedPosterior,
    shapes: Mapping[str, Any],
    leaves: Sequence[Array],
    key: PRNGKeyArray,
    *,
    num_chains: int,
    num_warmup: int,
    num_samples: int,
    progress_bar: bool,
) -> Chains:
    """Run independent chains, each from its own random start in (-2, 2)^dim."""
    density_of = jax.jit(posterior.log_density)
    as_asked = jax.config.values["jax_enable_x64"]

    def target(leaves: Sequence[Array]) -> None:
        psi: dict[str, Array] = {
            name: jnp.asarray(numpyro.sample(name, _flat(x.shape)), x.dtype)
            for name, x in shapes.items()
        }
        # The model's own sites are none of the sampler's business, and it is computed as elsewhere.
        with handlers.block(), jax.enable_x64(as_asked):
            density = density_of(psi, leaves)
        numpyro.factor("log density", density)

    mcmc = MCMC(
        _QuietNUTS(target),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=progress_bar,
        # The table as an argument of the compiled program, not as a constant within it.
        jit_model_args=True,
    )
    with one_model, double():
        mcmc.run(key, list(leaves), extra_fields=("diverging",))
        states = {name: np.asarray(x) for name, x in mcmc.get_samples(group_by_chain=True).items()}
        return Chains(states, np.asarray(mcmc.get_extra_fields(group_by_chain=True)["diverging"]))


def _flat(shape: tuple[int, ...]) -> ImproperUniform:
    support = constraints.independent(constraints.real, len(shape)) if shape else constraints.real
    return ImproperUniform(support, (), shape)


@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """Convergence diagnostics of the chains. Functions of the data: **not private**, and not charged.

    None of it is a proof. Chains that all missed a part of the posterior agree with one another.

    Attributes:
        split_r_hat: For each unconstrained parameter, split R-hat of each coordinate; near 1 is
            good, above 1.01 is not.
        effective_sample_size: Likewise, of all chains together.
        divergences: Transitions after warm-up that NUTS calls divergent; any is a warning.
        distance: The largest Kolmogorov distance, over coordinates, between a chain and the others
            or between the first and the second halves: an estimate, from finitely many draws, of a
            lower bound on the total variation between them. It is not a bound on the total
            variation between the released draw and the posterior.
        distance_by_chance: Upper limit of `distance` in 95 % of cases where all draws follow one
            law (from the effective sample sizes): nothing smaller can be seen with chains of this
            length.
    """

    split_r_hat: dict[str, Float[np.ndarray, "..."]]
    effective_sample_size: dict[str, Float[np.ndarray, "..."]]
    divergences: int
    distance: float
    distance_by_chance: float

    def __str__(self) -> str:
        worst = max(float(np.max(x, initial=-np.inf)) for x in self.split_r_hat.values())
        fewest = min(float(np.min(x, initial=np.inf)) for x in self.effective_sample_size.values())
        return (
            f"NOT PRIVATE. Largest split R-hat {worst:.4f}; smallest effective sample size {fewest:,.0f}; {self.divergences} "
            f"divergent transitions; largest distance between chains or halves {self.distance:.3g} (by chance up to "
            f"{self.distance_by_chance:.2g}), an estimate and no bound."
        )


def diagnose(chains: Chains) -> Diagnostics:
    """Diagnostics of the chains; a coordinate that never moved has an infinite R-hat and an effective sample size of 1."""
    r_hat = {}
    size = {}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, x in chains.states.items():
            wide = x.astype(np.float64)
            r_hat[name] = np.nan_to_num(split_gelman_rubin(wide), nan=np.inf, posinf=np.inf)
            size[name] = np.maximum(np.nan_to_num(effective_sample_size(wide), nan=1.0), 1.0)
    flat = np.concatenate([x.reshape(*x.shape[:2], -1) for x in chains.states.values()], axis=2)
    sizes = np.concatenate([np.atleast_1d(x).reshape(-1) for x in size.values()])
    distance, by_chance = _distance(flat, sizes)
    return Diagnostics(r_hat, size, int(chains.divergent.sum()), distance, by_chance)


def _distance(
    flat: Float[np.ndarray, "chain draw dim"], sizes: Float[np.ndarray, " dim"]
) -> tuple[float, float]:
    """The largest Kolmogorov distance over all comparisons, and Bonferroni's bound on it by chance."""
    from scipy.stats import ks_2samp

    num_chains, num_draws, dim = flat.shape
    half = num_draws // 2
    # Samples of n and m differ by d with probability 2 exp(-2 d^2 nm / (n + m)) at most, here as a
    # share of the whole.
    share = min((num_chains - 1) / num_chains**2, 1 / 4)
    log_level = np.log(_FALSE_ALARM / (2 * (num_chains + 1) * dim))
    largest = 0.0
    for i in range(dim):
        x = flat[:, :, i]
        pairs = [(x[c], np.delete(x, c, axis=0).reshape(-1)) for c in range(num_chains)]
        pairs.append((x[:, :half].reshape(-1), x[:, half:].reshape(-1)))
        largest = max(
            largest, *(float(np.asarray(ks_2samp(a, b, method="asymp"))[0]) for a, b in pairs)
        )
    fewest = min(float(sizes.min()), num_chains * num_draws)
    return largest, min(float(np.sqrt(-log_level / (2 * share * fewest))), 1.0)
