"""One posterior sample: a draw from a tempered posterior is private by itself, if it is exact.

The log-likelihood of one record is bounded, and the posterior tempered so that one draw is epsilon-differentially private. NUTS
chains stand in for exact draws; nothing but their last states comes out.

The bound holds for the log density as computed:

- A record's log-likelihood is computed alike whatever the other records are, and however many: rows are worked off in turns of
  one size, by one compiled program (`gradients._contract` says why).
- It is rounded to a grid, and the terms are added in float64, which is exact (`exact_sum`).
- What remains are three roundings of float64: the term of the center, the product with the power, the prior. With values within
  2^28 times a record's and within `FAR` nats they are off by 3 * 2^-53 times that. Two tables, each at a point and in its
  normalising constant, make four times as much: 2^-22 of what a record moves and 2^-22 nats at most, which epsilon includes.
  Where the prior, or the center's term, is further than `FAR` from 0, the density is 0. That depends on no record, so it is a
  prior, too: the model's, cut off at density e^-FAR.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.handlers as handlers
from dp_accounting.dp_event import DpEvent, SelfComposedDpEvent
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.distributions import ImproperUniform, constraints
from numpyro.infer import MCMC, NUTS

from discreet import random
from discreet._jax import double, in_own_settings, refuse_traced
from discreet._numpyro import one_model
from discreet._validate import integer, is_real, positive, real
from discreet.accounting import Relation, pure_event
from discreet.act import Act
from discreet.gradients import SPARE
from discreet.inference._dpsvi import explain_steps
from discreet.inference._elbo import Objective
from discreet.inference._points import objective_of_points
from discreet.inference._records import Program, Records, check_public, refuse_tables, take_apart
from discreet.inference._support import refuse_outside_support
from discreet.inference_data import to_arviz
from discreet.ledger import Ledger
from discreet.released import KEPT_NOWHERE, Released
from discreet.report import Statement, Unit, make_release_statement

# --- The tempered posterior ---

TURN = 512
"""Records whose log-likelihoods are computed at once; the last `SPARE` places are nobody's."""
MOST_RECORDS = 2**28 - 1
FAR = 2.0**26
"""Nats from 0 beyond which no log prior density is added up."""
_ROUNDING = 2.0**-22


class Grid(NamedTuple):
    """Numbers less a middle are rounded to multiples of a power of two, from the least to the most."""

    middle: float
    spacing: float
    least: int
    most: int


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def exact_sum(x: Float[Array, "record"], grid: Grid) -> Float[Array, ""]:
    """The sum of numbers on a grid, in float64: integers of at most 25 bits, which no order rounds below 2^28 of them.

    So one record moves it by no more than its own number. The derivative is that of the sum without the rounding.
    """
    with double():
        steps = jnp.round((x.astype(jnp.float64) - grid.middle) / grid.spacing)
        return jnp.sum(jnp.clip(steps, grid.least, grid.most)) * grid.spacing


def _summed(x: Array, grid: Grid) -> tuple[Array, Array]:
    return exact_sum(x, grid), x


def _to_each(grid: Grid, x: Array, gradient: Array) -> tuple[Array]:
    del grid
    return (jnp.broadcast_to(gradient.astype(x.dtype), x.shape),)


exact_sum.defvjp(_summed, _to_each)


@dataclasses.dataclass(frozen=True)
class Tempering:
    """The sensitivity of the log density to one record, and the power that limits its effect to epsilon.

    A record's log-likelihood, less a `center` that no record enters, is clipped to [low, high]; the sum over the records is
    multiplied by `power`. Replacing a record moves that sum by at most power * (high - low) at every point, and so, by
    averaging over the prior, its normalising constant by as much: the log density moves by at most twice that. A record that
    is added moves the log density by power * (l - c) where both l and the c that the normalising constant moves by lie in
    [low, high]: by power * (high - low) at most. With low = -B, high = B those are 4 B power and 2 B power.
    """

    low: float  # in nats
    high: float  # in nats, above `low`
    centered: bool  # whether the center is the log-likelihood of the zero record (Lipschitz version) instead of 0
    power: float  # at most 1
    relation: Relation  # the neighbouring relation

    @classmethod
    def for_epsilon(cls, epsilon: float, low: float, high: float, *, centered: bool, relation: Relation) -> Tempering:
        """The largest power whose epsilon is at most the one asked for; rounded down, since it is used in 32 bits."""
        whole = cls(float(np.float32(low)), float(np.float32(high)), centered, 1.0, relation)
        most = min(1.0, (epsilon - _ROUNDING) / (whole._moved * (1.0 + _ROUNDING)))
        return dataclasses.replace(whole, power=float(np.nextafter(np.float32(most), np.float32(0.0))))

    @property
    def grid(self) -> Grid:
        """The grid for the bounded log-likelihoods before they are summed, at most as wide as the bounds."""
        low, high = Fraction(self.low), Fraction(self.high)
        middle, spacing = (low + high) / 2, Fraction(2.0 ** (math.ceil(math.log2(self.high - self.low)) - 24))
        return Grid(
            float(middle), float(spacing), math.ceil((low - middle) / spacing), math.floor((high - middle) / spacing)
        )

    @property
    def _moved(self) -> float:
        return (2.0 if self.relation is Relation.REPLACE_ONE else 1.0) * self.power * (self.high - self.low)

    @property
    def epsilon(self) -> float:
        """Epsilon of one exact draw: the largest log ratio of the computed densities of neighbouring tables, in nats."""
        return float(np.nextafter(self._moved * (1.0 + _ROUNDING) + _ROUNDING, np.inf))


@dataclasses.dataclass(frozen=True)
class DrawsPlan:
    """The privacy plan of several exact draws of a tempered posterior. Public.

    Attributes:
        tempering: What limits the effect of a record on one draw.
        num_draws: Number of draws.
    """

    tempering: Tempering
    num_draws: int

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.tempering.relation

    @property
    def epsilon(self) -> float:
        """Pure epsilon of all draws together, if they are exact."""
        return self.num_draws * self.tempering.epsilon

    @property
    def slack(self) -> float:
        """Probability of leaving the event: 0."""
        return 0.0

    def event(self) -> DpEvent:
        """The event of all draws, derived from the bound, the power and the number of draws."""
        return SelfComposedDpEvent(pure_event(self.tempering.epsilon), self.num_draws)


@dataclasses.dataclass(frozen=True, eq=False)
class TemperedPosterior:
    """The log density, up to a constant, of unconstrained latents given all records."""

    objective: Objective  # of the model and its point guide
    tempering: Tempering  # the bounds and the power

    def log_density(self, psi: Mapping[str, Array], leaves: Sequence[Array]) -> Float[Array, ""]:
        """Log prior plus power * (sum of the records' bounded log-likelihoods), in float64; computed in float32 but for sums.

        Never NaN on account of a record, and its gradient is never NaN at all, so that no record can keep the sampler out of
        a place: a leapfrog step along any field of directions leaves the target as it is, whereas a NaN stops it.
        """
        u, free = self.objective.link(psi, _unused_key())
        bounded, shared = self.bounded(jax.tree.map(_finite_gradient, u), leaves)
        with double():
            free, shared = free.astype(jnp.float64), self.tempering.power * shared
            near = (jnp.abs(free) <= FAR) & (jnp.abs(shared) <= FAR)
            return jnp.where(near, self.tempering.power * bounded + shared - free, -jnp.inf)

    def bounded(self, u: Mapping[str, Any], leaves: Sequence[Array]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """The exact sum of the bounded log-likelihoods, and the center's term, which depends on no record.

        Less constants that no density notices: for each record the middle of the bounds, and the center at the origin.
        """
        size, center, shared = leaves[0].shape[0], jnp.zeros(()), jnp.zeros(())
        if self.tempering.centered:
            zero = [jnp.zeros_like(x[:1]) for x in leaves]
            center, there = (self.log_likelihood(x, zero)[0] for x in (u, jax.tree.map(jnp.zeros_like, u)))
            shared = center - jnp.where(jnp.isfinite(there), there, 0.0)
        filled = TURN - SPARE
        # At least two turns where one record more could begin a second: XLA compiles a loop of one differently.
        count = max(-(-size // filled), 1 if self.tempering.relation is Relation.REPLACE_ONE else 2)
        # In places that are nobody's stands the last record, and its number is left out.
        places = np.minimum(np.arange(count)[:, None] * filled + np.arange(TURN), size - 1)
        turns = [x[places] for x in leaves]
        found = jax.lax.map(lambda rows: self.contributions(u, rows, center), turns)
        total: Any = exact_sum(found[:, :filled].reshape(-1)[:size], self.tempering.grid)
        with double():
            return total, size * shared.astype(jnp.float64)

    def contributions(
        self, u: Mapping[str, Any], leaves: Sequence[Array], center: float | Array
    ) -> Float[Array, "record"]:
        """Each record's log-likelihood less the center, in [low, high]; `low` where it is NaN."""
        low, high = self.tempering.low, self.tempering.high
        raw = self.log_likelihood(jax.lax.stop_gradient(u), leaves) - jax.lax.stop_gradient(center)
        inside = (raw > low) & (raw < high)
        # A record outside has no gradient. It is put aside before its own could become 0 * NaN.
        safe = [
            jnp.where(_like(inside, x), x, jnp.asarray(made_up, x.dtype))
            for x, made_up in zip(leaves, self.objective.placeholder, strict=True)
        ]
        outside = jnp.where(jnp.isnan(raw), low, jnp.clip(raw, low, high))
        value = jnp.clip(self.log_likelihood(u, safe) - center, low, high)
        return jnp.where(inside, value, outside)

    def log_likelihood(self, u: Mapping[str, Any], leaves: Sequence[Array]) -> Float[Array, "record"]:
        """Each record's own, in nats, as the model has it."""
        return -jax.vmap(lambda *record: self.objective.record_loss(u, record, _unused_key()))(*leaves)


def project_records(leaves: Sequence[Array], radius: float) -> list[Array]:
    """Each record's real numbers, all arrays together, scaled into the ball of this radius; integers stay."""
    real = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    squares = [
        jnp.sum(jnp.square(x), axis=tuple(range(1, x.ndim))) for x, is_real in zip(leaves, real, strict=True) if is_real
    ]
    norms = jnp.sqrt(sum(squares, start=jnp.zeros(leaves[0].shape[0])))
    outside = ~(norms <= radius)
    return [
        jnp.where(_like(outside, x), x * _like(radius / norms, x), x).astype(x.dtype) if is_real else x
        for x, is_real in zip(leaves, real, strict=True)
    ]


def _like(rows: Array, x: Array) -> Array:
    return rows.reshape(-1, *[1] * (x.ndim - 1))


def _unused_key() -> Array:
    # Neither the point guide nor a likelihood without local latents draws anything; this is checked before.
    return jax.random.key(0)


@jax.custom_vjp
def _finite_gradient(x: Array) -> Array:
    return x


_finite_gradient.defvjp(lambda x: (x, None), lambda _, gradient: (jnp.where(jnp.isfinite(gradient), gradient, 0.0),))


# --- Chains ---


_FALSE_ALARM = 0.05


class Chains(NamedTuple):
    """Raw states of all chains: none of it is private."""

    # for each of the point guide's parameters an array (chain, draw, ...), unconstrained
    states: dict[str, Float[np.ndarray, "chain draw ..."]]
    divergent: Bool[np.ndarray, "chain draw"]  # which transitions left the region where the integrator can be trusted


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
    nuts_options: Mapping[str, Any],
    progress_bar: bool,
) -> Chains:
    """Run independent chains, each from its own random start in (-2, 2)^dim."""
    density_of, as_asked = jax.jit(posterior.log_density), jax.config.values["jax_enable_x64"]

    def target(leaves: Sequence[Array]) -> None:
        psi: dict[str, Array] = {
            name: jnp.asarray(numpyro.sample(name, _flat(x.shape)), x.dtype) for name, x in shapes.items()
        }
        # The model's own sites are none of the sampler's business, and it is computed as elsewhere.
        with handlers.block(), jax.enable_x64(as_asked):
            density = density_of(psi, leaves)
        numpyro.factor("log density", density)

    mcmc = MCMC(
        _QuietNUTS(target, **nuts_options),
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
        split_r_hat: For each unconstrained parameter, split R-hat of each coordinate; near 1 is good, above 1.01 is not.
        effective_sample_size: Likewise, of all chains together.
        divergences: Transitions after warm-up that NUTS calls divergent; any is a warning.
        distance: The largest Kolmogorov distance, over coordinates, between a chain and the others or between the first and
            the second halves: an estimate, from finitely many draws, of a lower bound on the total variation between them.
            It is not a bound on the total variation between the released draw and the posterior.
        distance_by_chance: Upper limit of `distance` in 95 % of cases where all draws follow one law (from the
            effective sample sizes): nothing smaller can be seen with chains of this length.
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
    r_hat, size = {}, {}
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


def _distance(flat: Float[np.ndarray, "chain draw dim"], sizes: Float[np.ndarray, " dim"]) -> tuple[float, float]:
    """The largest Kolmogorov distance over all comparisons, and Bonferroni's bound on it by chance."""
    from scipy.stats import ks_2samp

    num_chains, num_draws, dim = flat.shape
    half = num_draws // 2
    # Samples of n and m differ by d with probability 2 exp(-2 d^2 nm / (n + m)) at most, here as a share of the whole.
    share = min((num_chains - 1) / num_chains**2, 1 / 4)
    log_level = np.log(_FALSE_ALARM / (2 * (num_chains + 1) * dim))
    largest = 0.0
    for i in range(dim):
        x = flat[:, :, i]
        pairs = [(x[c], np.delete(x, c, axis=0).reshape(-1)) for c in range(num_chains)]
        pairs.append((x[:, :half].reshape(-1), x[:, half:].reshape(-1)))
        largest = max(largest, *(float(np.asarray(ks_2samp(a, b, method="asymp"))[0]) for a, b in pairs))
    fewest = min(float(sizes.min()), num_chains * num_draws)
    return largest, min(float(np.sqrt(-log_level / (2 * share * fewest))), 1.0)


# --- What is stated ---


_INEXACT = (
    "The distance between the sampler and the posterior. ε holds for exact draws; these are the last states of Markov chains "
    "(NumPyro's NUTS), whose law is only near the posterior. Who grants a total variation TV between the two, for every table, "
    "has in addition δ = (1 + e^ε) × the number of draws × TV (OPSResult.delta_granting). Diagnostics of the chains cannot show "
    "a TV as small as a δ should be.",
    "The granularity of floating-point numbers: ε includes the rounding of the log density, but the chains move by "
    "rounded steps, in 64 bits, and a draw is released in 32. Which numbers can come out at all may say something about the "
    "records.",
    "The time that the chains take, which depends on the records.",
)


def state_draws(ops: OnePosteriorSample, num_records: int, reproducible: bool, unit: Unit) -> Statement:
    """The statement of all draws of a OnePosteriorSample."""
    tempering, replace = ops.plan.tempering, ops.relation is Relation.REPLACE_ONE
    public = ["the model, with all numbers written into it", f"shapes and dtypes of a single {unit.noun}'s arrays"]
    if replace:
        public.append(f"the number of {unit.noun}s, N = {num_records}")
    public += ["the bound on log-likelihoods, the power, and all settings of the sampler"]
    public += [f"the argument {name}" for name in ops.static_kwargs]
    facts: dict[str, Any] = {"log_likelihood_low": tempering.low, "log_likelihood_high": tempering.high}
    if ops.lipschitz is not None and ops.radius is not None:
        facts |= {"lipschitz": float(ops.lipschitz), "radius": float(ops.radius)}
    facts |= {
        "power": tempering.power,
        "epsilon_per_draw": tempering.epsilon,
        "num_draws": ops.num_draws,
        "num_chains": ops.num_chains,
        "num_warmup": ops.num_warmup,
        "num_samples": ops.num_samples,
    }
    if replace:
        facts["num_records"] = num_records
    return make_release_statement(
        ops.plan.event(),
        ops.relation,
        unit=unit,
        method="one posterior sample",
        mechanism=_mechanism(ops, unit.noun),
        plan=facts,
        num_releases=ops.num_draws,
        reproducible=reproducible,
        released=[f"{ops.num_draws} draw{'s' if ops.num_draws > 1 else ''} of the model's latents, and nothing else"],
        public=public,
        not_covered=_INEXACT,
        cautions=[
            "ε is for exact draws of the posterior. These are the last states of Markov chains, which are only near it."
        ],
    )


def _mechanism(ops: OnePosteriorSample, noun: str) -> str:
    tempering, replace = ops.plan.tempering, ops.relation is Relation.REPLACE_ONE
    low, high = f"{tempering.low:.6g}", f"{tempering.high:.6g}"
    if tempering.centered:
        what = (
            f"Each {noun}'s real numbers were projected onto the ball of radius {ops.radius:g}. The difference between its "
            f"log-likelihood and that of a {noun} of zeros was clipped to [{low}, {high}] nats: for a log-likelihood that is "
            f"{ops.lipschitz:g}-Lipschitz in the {noun}, which is the user's claim, this changes nothing, and where the claim is "
            "false the bound holds all the same"
        )
    else:
        what = f"Each {noun}'s log-likelihood was clipped to [{low}, {high}] nats; one that is NaN counted as {low}"
    through = ("twice: " if replace else "") + "directly and through the normalising constant"
    times = "2 × " if replace else ""
    return (
        f"{what}. The sum was multiplied by {tempering.power:.6g} and added to the exact log prior density. A {noun} moves the "
        f"log density of the result {through}, by at most {times}{tempering.power:.6g} × {tempering.high - tempering.low:.6g} = "
        f"{tempering.epsilon:.6g} together. No noise was added: what is released is one draw of that distribution"
        + (f", {ops.num_draws} times, each from a chain of its own." if ops.num_draws > 1 else ".")
    )


# --- The result ---


@dataclasses.dataclass(frozen=True)
class OPSResult(Released, what="draws of a posterior", parts=(DrawsPlan, Tempering, Relation)):
    """The outcome of `OnePosteriorSample.run`. The draws are covered by `statement`; it holds no key.

    Attributes:
        draws: For each latent its values, constrained, with the draws along the leading axis.
        plan: The plan of all draws.
        statement: The privacy statement: a pure epsilon, of exact draws.
        non_private_diagnostics: What the chains say about themselves. **Not private**: it is charged nowhere, shown nowhere,
            and not pickled (then it is None). Whether to publish the draws must not depend on it.
    """

    draws: dict[str, Any]
    plan: DrawsPlan
    statement: Statement
    non_private_diagnostics: Diagnostics | None = dataclasses.field(
        default=None, repr=False, compare=False, metadata=KEPT_NOWHERE
    )

    @property
    def num_draws(self) -> int:
        """The number of released draws."""
        return len(next(iter(self.draws.values())))

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """Some of the released draws, without repetition, in random order; post-processing, free of budget.

        Args:
            key: Any JAX key.
            num_samples: At most `num_draws`.

        Returns:
            As `draws`, for NumPyro's `Predictive`.

        Raises:
            ValueError: More than were released, or fewer than 1.
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
            total_variation: Between 0 and 1. It cannot be read off the chains: diagnostics see some hundredths at best.

        Returns:
            delta, at most 1.

        Raises:
            ValueError: total_variation is no number between 0 and 1.
        """
        real("total_variation", total_variation, 0.0, 1.0, hint="It is a distance, such as 1e-8.")
        slack = min(1.0, self.num_draws * total_variation)
        return min(1.0, (1 + math.exp(min(self.statement.epsilon, 700.0))) * slack * (1 + 1e-12))

    def __repr__(self) -> str:
        """Short repr without arrays."""
        return f"OPSResult({self.num_draws} draw(s) of {', '.join(self.draws)}, {self.statement.brief})"

    def __getstate__(self) -> dict[str, Any]:
        """Without the diagnostics, which are not private."""
        return {
            **self.__dict__,
            "draws": {n: np.asarray(x) for n, x in self.draws.items()},
            "non_private_diagnostics": None,
        }


# --- The method ---


Bound = float | tuple[float, float]
_NO_PLATE = 2**31 - 1
_RANGE = 1e-6, 1e9
# As many as accounting sums up in closed form.
_MOST_DRAWS = 1000


class OnePosteriorSample:
    """Releases draws from a posterior whose likelihood is bounded and tempered: pure epsilon, without any noise.

    Guarantee: each draw is (epsilon, 0)-private for the relation, and `num_draws` of them (num_draws * epsilon, 0), **if they are
    exact draws** of the posterior described below. They come from Markov chains, which are close to it at best;
    `OPSResult.delta_granting` says what a distance costs. No diagnostic can show a distance as small as a delta should be.

    Each record's log-likelihood is clipped to [-B, B] and their sum multiplied by min(1, epsilon / 4B); the prior is exact.
    Under REPLACE_ONE a record then moves the log density by at most power * 2B directly and by as much again through the
    normalising constant, 4B power together. Under ADD_OR_REMOVE_ONE it is 2B power, and the power min(1, epsilon / 2B). A
    record whose log-likelihood is NaN counts as -B, a constant.

    With `lipschitz` and `radius` instead of a bound: each record's real numbers, all arrays together, are projected onto the
    ball of that radius R; what is clipped, to [-L R, L R], is the difference between the record's log-likelihood and that of
    the record of zeros. Where the log-likelihood is L-Lipschitz in the record this clips nothing, and where the claim is
    false it still holds the 4 L R of the theorem. REPLACE_ONE only.

    The draw that is released is the last state of a chain of its own: after the warm-up, when nothing adapts any more, each
    transition can only bring its law nearer to the posterior, and a state picked from along the chain is further off on average.

    Args:
        model: A NumPyro model with proper priors and observations in a plate of the records' length. Latents inside that
            plate, `param` sites and discrete latents are refused.
        log_likelihood_bound: B in nats, or a pair (low, high) to clip to, which has the width high - low instead of 2B. For
            discrete observations, whose log-likelihood is never above 0, (-B, 0) costs half of B.
        epsilon: Epsilon of each draw, between 1e-5 and 500. Less is spent if power 1 already costs less.
        lipschitz: L, in nats per unit of distance between records.
        radius: R, in the records' units.
        num_draws: Number of draws released, each from a chain of its own. Their costs add up.
        relation: The neighbouring relation.
        num_warmup: Transitions of each chain that adapt the sampler.
        num_samples: Transitions of each chain after that.
        num_chains: At least 2; more are run where there are more draws.
        num_records: Public number of records, where a plate of the model declares it. None: under REPLACE_ONE the table's.
        placeholder: An artificial record, as for DPSVI.
        nuts_options: Further options of NumPyro's NUTS, such as `max_tree_depth`.
        static_kwargs: Public keyword arguments of the model.

    Raises:
        ValueError, TypeError: An argument that cannot be used.

    Reference:
        Wang, Fienberg, Smola, "Privacy for free", ICML 2015 (one posterior sample, 4B and 4LR); Dimitrakakis et al.,
        "Robust and private Bayesian inference", ALT 2014.

    Example:
        >>> import numpyro, numpyro.distributions as dist, discreet as dp
        >>> def model(y):
        ...     rate = numpyro.sample("rate", dist.Beta(1, 1))
        ...     with numpyro.plate("data", y.shape[0]):
        ...         numpyro.sample("y", dist.Bernoulli(rate), obs=y)
        >>> ops = dp.OnePosteriorSample(model, log_likelihood_bound=(-5.0, 0.0), epsilon=1.0)
        >>> round(ops.plan.tempering.power, 4), round(ops.epsilon, 4)
        (0.1, 1.0)
    """

    def __init__(
        self,
        model: Program,
        *,
        epsilon: float,
        log_likelihood_bound: Bound | None = None,
        lipschitz: float | None = None,
        radius: float | None = None,
        num_draws: int = 1,
        relation: Relation = Relation.REPLACE_ONE,
        num_warmup: int = 1000,
        num_samples: int = 1000,
        num_chains: int = 4,
        num_records: int | None = None,
        placeholder: Sequence[Any] | None = None,
        nuts_options: Mapping[str, Any] | None = None,
        **static_kwargs: Any,
    ) -> None:
        low, high = _limits(log_likelihood_bound, lipschitz, radius, relation)
        real(
            "epsilon",
            positive("epsilon", epsilon, hint="1 is a common choice."),
            1e-5,
            500.0,
            hint="Above 10 it promises little.",
        )
        self.num_draws = integer("num_draws", num_draws)
        self.num_warmup = integer("num_warmup", num_warmup)
        self.num_samples = integer("num_samples", num_samples, 10)
        self.num_chains = max(integer("num_chains", num_chains, 2), self.num_draws)
        if num_draws > _MOST_DRAWS:
            raise ValueError(
                f"num_draws is {num_draws}; of more than {_MOST_DRAWS:,} draws no pure epsilon is computed, and so many are "
                "hardly worth their price. Release fewer, or fit by DPSVI, whose posterior draws are free."
            )
        check_public(static_kwargs)
        self.model = model
        self.lipschitz, self.radius = lipschitz, radius
        self.num_records = num_records
        self.placeholder = placeholder
        self.nuts_options = dict(nuts_options or {})
        NUTS(model, **self.nuts_options)  # refuses what it does not know before anything is spent
        self.static_kwargs = static_kwargs
        tempering = Tempering.for_epsilon(epsilon, low, high, centered=lipschitz is not None, relation=relation)
        self.plan = DrawsPlan(tempering, self.num_draws)
        # What cannot be accounted for is refused here.
        self.plan.event()

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.plan.relation

    @property
    def epsilon(self) -> float:
        """Pure epsilon of all draws together, if they are exact."""
        return self.plan.epsilon

    @in_own_settings
    def run(
        self,
        rng_key: PRNGKeyArray,
        *args: Any,
        progress_bar: bool = True,
        ledger: Ledger | None = None,
        person: str | None = None,
        max_rows: int = 1,
        **kwargs: Any,
    ) -> OPSResult:
        """Run the chains on the records and release the last states of `num_draws` of them.

        All else that the chains know (starting points, steps, step sizes, the other states) stays inside, but for
        `OPSResult.non_private_diagnostics`. Ctrl-C releases nothing.

        Args:
            rng_key: `discreet.random.key()`; all that the chains draw follows from it.
            args: The model's arguments: arrays hold records along their leading axis.
            progress_bar: Show NumPyro's, without its figures on the sampler.
            ledger: The table's budget, debited before the chains run: what NumPyro compiles on the way is paid for.
            person: The column that identifies persons, if a record is a person and not a row; for the statement.
            max_rows: The most rows of a person that a record holds; for the statement.
            kwargs: As args.

        Returns:
            The draws and their statement.

        Raises:
            ValueError, TypeError: Wrong input, before any budget is spent.
        """
        refuse_traced("run")
        key = random.check_key(rng_key)
        records = take_apart(args, kwargs, programs=(self.model,))
        if self.relation is Relation.REPLACE_ONE and self.num_records not in (None, records.size):
            raise ValueError(
                f"The arrays hold {records.size} records, but num_records is {self.num_records}, a public number for one "
                "record replaced. Make them agree, or leave num_records out."
            )
        if records.size > MOST_RECORDS:
            raise ValueError(
                f"There are {records.size:,} records; sums are exact up to {MOST_RECORDS:,}. Fit by DPSVI."
            )
        refuse_tables(jax.tree.leaves(self.static_kwargs), [records.size])
        random.check_unused(key)
        with explain_steps(args):
            objective, psi = self._objective(key, records)
        unit = Unit(person, max_rows)
        statement = state_draws(self, records.size, random.is_reproducible(key), unit)
        act = Act(self.plan, key, statement, ledger=ledger)
        leaves = list(records.leaves) if self.radius is None else project_records(records.leaves, self.radius)
        refuse_outside_support(objective, psi, [(leaves, None)])
        act.begin()
        chains = run_chains(
            TemperedPosterior(objective, self.plan.tempering),
            jax.eval_shape(lambda: psi),
            leaves,
            # The chains' randomness is what hides the records, as noise is elsewhere.
            random.subkey(key, random.Purpose.NOISE),
            num_chains=self.num_chains,
            num_warmup=self.num_warmup,
            num_samples=self.num_samples,
            nuts_options=self.nuts_options,
            progress_bar=progress_bar,
        )
        last = {name: x[: self.num_draws, -1] for name, x in chains.states.items()}
        return OPSResult(_values(objective, last, self.num_draws), self.plan, act.statement, diagnose(chains))

    def _objective(self, key: PRNGKeyArray, records: Records) -> tuple[Objective, dict[str, Any]]:
        """The model taken apart, with a point guide; none of it sees a record's values."""
        # Under ADD_OR_REMOVE_ONE no check may show the number of records: then one that no plate declares stands in.
        known = records.size if self.relation is Relation.REPLACE_ONE else _NO_PLATE
        num_records = known if self.num_records is None else self.num_records
        made_of = {"model": self.model, "placeholder": self.placeholder, "static": self.static_kwargs}
        return objective_of_points(records, key, num_records=num_records, **made_of)


def _limits(
    bound: Bound | None, lipschitz: float | None, radius: float | None, relation: Relation
) -> tuple[float, float]:
    """The clipping bounds of a record's log-likelihood, in nats."""
    if relation not in (Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE):
        raise TypeError(f"relation is {relation!r}; pass Relation.REPLACE_ONE or Relation.ADD_OR_REMOVE_ONE.")
    if (bound is None) == (lipschitz is None) or (lipschitz is None) != (radius is None):
        raise ValueError(
            "OnePosteriorSample needs either log_likelihood_bound=B, or lipschitz=L together with radius=R: what one record "
            "can do must be bounded in one way."
        )
    if lipschitz is not None and radius is not None:
        if relation is not Relation.REPLACE_ONE:
            raise ValueError(
                "The Lipschitz version bounds the difference between two records' log-likelihoods, not one record's own, so "
                "it holds for one record replaced only. Use Relation.REPLACE_ONE, or log_likelihood_bound."
            )
        bound = real("lipschitz", lipschitz, *_RANGE) * real("radius", radius, *_RANGE)
    if isinstance(bound, tuple):
        # They are used in 32 bits, which far from zero may not tell them apart.
        apart = (
            float(np.float32(bound[1]) - np.float32(bound[0]))
            if len(bound) == 2 and all(map(is_real, bound))
            else math.nan
        )
        if not 1e-6 <= apart <= 1e9:
            raise ValueError(
                f"log_likelihood_bound is {bound!r}; a pair holds two finite numbers (low, high) in nats, between 1e-6 and 1e9 "
                "apart as 32-bit numbers."
            )
        return float(bound[0]), float(bound[1])
    assert bound is not None
    high = real("log_likelihood_bound" if lipschitz is None else "lipschitz * radius", bound, *_RANGE)
    return -high, high


def _values(objective: Objective, psi: Mapping[str, np.ndarray], num_draws: int) -> dict[str, np.ndarray]:
    """The latents' values, constrained, at each row of unconstrained parameters."""

    def one(row: Mapping[str, Array]) -> dict[str, Array]:
        # The point guide draws nothing.
        values = objective.draw_posterior(objective.constrain(row), jax.random.key(0), 1)
        return {name: x[0] for name, x in values.items()}

    rows = [one({name: jnp.asarray(x[i]) for name, x in psi.items()}) for i in range(num_draws)]
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
