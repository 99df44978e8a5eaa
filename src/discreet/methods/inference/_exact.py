"""Exact draws of a tempered posterior by rejection, on a public grid, with the envelope of `_envelope`.

The latents are u = location + scale * v with v = SPACING * z and integers |z| <= MOST: a grid that
depends on no record, a millionth of the prior's standard deviation apart and 16 of them wide. The
target is exp(T) on it,

    T(v) = -|v|^2 / 2 + power * sum_i clip(shift_i + phi(a_i . v + b_i), low, high),

with the rounding and the exact sum of `_tempering`. The numbers a_i, b_i and shift_i of a record
come from the model, computed once, alike beside any other records; nothing of the model is computed
after that. So whatever the model's program did to them, the epsilon of `_tempering` holds for T as
computed, and the envelope is of the same numbers: not of a program in float32.

A trial draws a shell k with probability p_k, an integer vector z from the shell's law q_k, and a
standard exponential number e. It accepts z if z is in shell k, and

    e > c + log p_k + log q_k(z) - T(z).

The shells are apart from each other, so an accepted z has probability proportional to exp(T(z)):
p_k, q_k and c cancel. This needs that the right side is nowhere negative, which is what the
envelope proves, and that q_k(z) > 0 throughout. Trials go on until one accepts; there is no last
one, so nothing is ever released that was not accepted.

What is exact, and what is rounded. Shells, and the blocks of a `Staircase`, are chosen by comparing
integers of 62 random bits with integers, so p_k and q_k are rational numbers that are known. T is
the machine's own. What is left are logarithms in float64, three sums, and e: with T's own roundings
they change the ratio of two tables' probabilities of one z by 2^-30 nats and by 2^-25 of what a
record moves at most, for `MOST_EXACT` records, and epsilon includes 2^-22 of both. The bits are
ChaCha20's. The envelope bounds T in exact arithmetic; what is added to it is 128 times what an
error analysis of float64 gives, and a trial that contradicts the bound nevertheless stops
everything: an exception would tell of the records.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt64
from numpyro.distributions import BernoulliLogits, ExpandedDistribution, Independent, Normal

from discreet._jax import ClosedJaxpr, Literal, double, inner_programs
from discreet._numpyro import one_model
from discreet._validate import RefusedError
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._envelope import (
    Bounded,
    LogSigmoid,
    Parabola,
    Shell,
    envelope,
    expected_trials,
)
from discreet.methods.inference._point_guide import parameter_of
from discreet.methods.inference._points import Latents
from discreet.methods.inference._tempering import Tempering, exact_sum, in_turns, out_of_turns

SPACING = 2.0**-20
"""Of the grid, in standard deviations of the prior."""
MOST = 2**24
MOST_LATENTS = 12
MOST_EXACT = 2**24
"""Records, so that the roundings of the acceptance fit into epsilon."""
_TRIALS = 2048
_AT_ONCE = 256
_MADE_UP = 200
_WHOLE = 2**62
_FINE = 128
_FARTHEST = MOST * SPACING


class Staircase:
    """A law on all integers that matter, like a Gaussian around 0 with a given scale: uniform on blocks of 2^k integers.

    128 narrow blocks on each side, an eighth of the scale wide at most, then blocks each as wide as
    all before it.
    """

    def __init__(self, scale: float) -> None:
        wide = min(scale, 4.0 * MOST)
        width = 2 ** max(0, math.floor(math.log2(max(wide, 8.0) / 8)))
        right = [width * i for i in range(1, _FINE + 1)]
        while right[-1] < 4 * MOST:
            right.append(2 * right[-1])
        edges = np.array([-x for x in reversed(right)] + [0, *right], np.int64)
        self.starts = edges[:-1]
        self.widths = np.diff(edges)
        # The nearest that a number of the block can be to a center that is off by less than 1.
        nearest = np.maximum(np.minimum(np.abs(edges[:-1]), np.abs(edges[1:])) - 1.0, 0.0)
        density = np.exp(-((nearest / wide) ** 2) / 2)
        shares = self.widths * density / np.sum(self.widths * density)
        # Rounded up, and the block in the middle has what is left.
        parts = [1 + int(x * (_WHOLE - 2**40)) for x in shares]
        parts[len(right)] += _WHOLE - sum(parts)
        self.ends = np.cumsum(np.array(parts, np.uint64), dtype=np.uint64)
        self.log_mass = (
            np.log(np.array(parts, np.float64)) - np.log(float(_WHOLE)) - np.log(self.widths)
        )
        log_normal = -((nearest / scale) ** 2) / 2 - math.log(scale * math.sqrt(2 * math.pi))
        self.log_excess = float(np.max(log_normal - self.log_mass))

    def draw(
        self, choice: UInt64[np.ndarray, " n"], place: UInt64[np.ndarray, " n"]
    ) -> tuple[Any, Any]:
        """Integers, and the logarithms of their probabilities, from two random words of 64 bits each."""
        block = np.searchsorted(self.ends, choice >> np.uint64(2), side="right")
        inside = (place & (self.widths[block] - 1).astype(np.uint64)).astype(np.int64)
        return self.starts[block] + inside, self.log_mass[block]


class Proposals:
    """The laws p_k and q_k, and c."""

    def __init__(self, shells: Sequence[Shell], margins: Sequence[float]) -> None:
        self.shells = list(shells)
        self.dim = len(shells[0].center)
        self.stairs = [
            [Staircase(x.spread * x.factor[j, j] / SPACING) for j in range(self.dim)]
            for x in shells
        ]
        bounds = (
            np.array([x.log_bound for x in shells])
            + np.array(margins)
            - self.dim * math.log(SPACING)
        )
        bounds += np.array([sum(stair.log_excess for stair in row) for row in self.stairs])
        shares = np.exp(bounds - bounds.max())
        parts = [1 + int(x * (_WHOLE - 2**40)) for x in shares / shares.sum()]
        parts[int(np.argmax(shares))] += _WHOLE - sum(parts)
        self.ends = np.cumsum(np.array(parts, np.uint64), dtype=np.uint64)
        self.log_share = np.log(np.array(parts, np.float64)) - math.log(_WHOLE)
        self.log_bound = float(np.max(bounds - self.log_share))
        self.inverses = [np.linalg.inv(x.factor) for x in shells]

    def draw(self, words: UInt64[np.ndarray, "trial word"]) -> tuple[Any, Any]:
        """Integer vectors, and c + log p_k + log q_k of them; infinity for those outside of the shell or the grid."""
        chosen = np.searchsorted(self.ends, words[:, 0] >> np.uint64(2), side="right")
        z = np.zeros((len(words), self.dim), np.int64)
        log_law = np.full(len(words), np.inf)
        for k in np.unique(chosen):
            rows = np.flatnonzero(chosen == k)
            z[rows], log_q = self._from(int(k), words[rows, 1:])
            keeps = self._is_in(int(k), z[rows]) & (np.abs(z[rows]) <= MOST).all(1)
            log_law[rows] = np.where(keeps, self.log_bound + self.log_share[k] + log_q, np.inf)
        return z, log_law

    def _from(self, k: int, words: UInt64[np.ndarray, "trial word"]) -> tuple[Any, Any]:
        """Each coordinate around where the Gaussian of the shell has it, given those before it."""
        shell = self.shells[k]
        z = np.zeros((len(words), self.dim), np.int64)
        standard = np.zeros((len(words), self.dim))
        log_q = np.zeros(len(words))
        for j in range(self.dim):
            around = (shell.center[j] + standard[:, :j] @ shell.factor[j, :j]) / SPACING
            base = np.floor(np.clip(around, -2.0 * MOST, 2.0 * MOST)).astype(np.int64)
            step, log_mass = self.stairs[k][j].draw(words[:, 2 * j], words[:, 2 * j + 1])
            z[:, j] = base + step
            standard[:, j] = (z[:, j] - around) * SPACING / shell.factor[j, j]
            log_q += log_mass
        return z, log_q

    def _is_in(self, k: int, z: Int[np.ndarray, "trial latent"]) -> Any:
        """Whether integer vectors are in a shell: for each vector computed alike, whichever others are there."""
        shell = self.shells[k]
        v = [z[:, j] * SPACING for j in range(self.dim)]
        radius = _length(v)
        within = radius <= shell.ball
        if shell.inner:
            moved = [x - center for x, center in zip(v, shell.center, strict=True)]
            radius = _length(
                [sum(a * x for a, x in zip(row, moved, strict=True)) for row in self.inverses[k]]
            )
        return within & (shell.least < radius) & (radius <= shell.most)


def _length(parts: Sequence[Any]) -> Any:
    return np.sqrt(sum(x * x for x in parts))


def exponential(words: Callable[[int], UInt64[np.ndarray, " n"]]) -> Float[np.ndarray, " n"]:
    """Standard exponential numbers -log u whose tail has no end: where the first 32 bits of u are 0, further ones follow.

    Args:
        words: Fresh random words, for 0, 1, 2, ...
    """
    word = words(0)
    value = np.zeros(len(word))
    pending = np.ones(len(word), bool)
    stage = 0
    while True:
        empty = word < 2**32
        fresh = np.where(empty, 32 * math.log(2), -np.log((word + 0.5) * 2.0**-64))
        value += np.where(pending, fresh, 0.0)
        pending &= empty
        if not pending.any():
            return value
        stage += 1
        word = words(stage)


class Numbers(NamedTuple):
    """Records as the density sees them, in turns: log-likelihoods shift + phi(weights . v + offsets), phi of `_envelope`."""

    weights: Any
    offsets: Any
    shift: Any


@dataclasses.dataclass(frozen=True)
class ExactSampler:
    """A model whose posterior can be drawn from exactly: normal priors, one linear predictor and one observation a record.

    Attributes:
        latents: Its latents.
        location: Means of their priors.
        scale: Standard deviations of their priors.
        family: How the observation depends on the predictor.
    """

    latents: Latents
    location: Float[np.ndarray, " latent"]
    scale: Float[np.ndarray, " latent"]
    family: type

    @classmethod
    def of(cls, objective: Objective, psi: Any, tempering: Tempering) -> ExactSampler:
        """Take a model apart; none of it sees a record's values.

        Raises:
            RefusedError: Its posterior cannot be drawn from exactly here.
        """
        structure = objective.structure
        latents = Latents.of(objective, psi)
        if tempering.centered:
            raise _refused(
                "it is clipped by lipschitz and radius; pass log_likelihood_bound instead"
            )
        if latents.size > MOST_LATENTS:
            raise _refused(
                f"it has {latents.size} latent numbers, and rejection is hopeless above {MOST_LATENTS}"
            )
        if (
            structure.factors
            or structure.summed
            or structure.local_latents
            or len(structure.observed) != 1
        ):
            raise _refused("it has factors, latents of records, or not exactly one observed site")
        location, scale = _normal_priors(latents)
        one = [np.asarray(x) for x in objective.placeholder]
        site = _observed(latents, jnp.zeros(latents.size), [x[0] for x in one])
        if np.size(site["value"]) != 1 or not _is_plain(site):
            raise _refused(
                "a record has several observations, or its likelihood is masked or scaled"
            )
        family = type(_bare(site["fn"]))
        if family not in (BernoulliLogits, Normal):
            raise _refused(
                f"its observations are {family.__name__}, neither Bernoulli with logits nor Normal"
            )
        found = cls(latents, location, scale, family)
        program = jax.make_jaxpr(found._predictor)(jnp.zeros(latents.size), [x[0] for x in one])
        degrees = _degrees(program, [1] + [0] * len(one))
        if degrees[0] is None or degrees[1] != 0:
            raise _refused(
                "the predictor is not linear in the latents, or the scale of observations is not fixed"
            )
        return found

    def _predictor(self, vector: Array, record: Sequence[Array]) -> tuple[Array, Array, Array]:
        """The linear predictor of one record, the scale of its observation, and the observation."""
        site = _observed(self.latents, vector, record)
        fn = _bare(site["fn"])
        value = jnp.sum(jnp.asarray(site["value"], jnp.result_type(float)))
        if self.family is Normal:
            return jnp.sum(fn.loc), jnp.sum(jnp.broadcast_to(fn.scale, jnp.shape(fn.loc))), value
        return jnp.sum(fn.logits), jnp.ones(()), value

    def numbers(self, leaves: Sequence[Array], tempering: Tempering) -> Numbers:
        """What is known of each record from here on, computed once and alike whatever the others are."""
        as_asked = jax.config.values["jax_enable_x64"]

        def one(*record: Array) -> tuple[Any, Any, Any, Any]:
            with jax.enable_x64(as_asked):
                location = jnp.asarray(self.location, jnp.result_type(float))
                # Forward, where what a branch did not choose does not become NaN.
                slope, rest = jax.jacfwd(self._with_rest, has_aux=True)(location, record)
                return slope, *rest

        def turn(rows: Sequence[Array]) -> Numbers:
            found = jax.vmap(one)(*rows)
            slope, predictor, sigma, value = (x.astype(jnp.float64) for x in found)
            if self.family is Normal:
                # Their signs do not matter.
                shift = -jnp.log(sigma * math.sqrt(2 * math.pi))
                return Numbers(
                    slope * self.scale / sigma[:, None], (predictor - value) / sigma, shift
                )
            sign = 2 * value - 1
            return Numbers(
                slope * self.scale * sign[:, None], predictor * sign, jnp.zeros_like(predictor)
            )

        with one_model, double():
            turns = in_turns(leaves, tempering.relation)
            return jax.jit(lambda rows: jax.lax.map(turn, rows))(turns)

    def bounded(
        self, numbers: Numbers, tempering: Tempering, size: int
    ) -> tuple[Bounded, Callable[[float], float]]:
        """What the envelope is of, and what must be added to a bound of it on a ball to bound T there.

        A record that is not finite, or so extreme that float64 loses it, counts as the upper bound,
        above whatever T has.
        """
        weights, offsets, shift = (out_of_turns(np.asarray(x), size) for x in numbers)
        curve: Any = Parabola() if self.family is Normal else LogSigmoid()
        floor = tempering.low - shift
        steep = 1 + np.sqrt(2 * np.abs(floor)) if self.family is Normal else np.ones_like(floor)
        unit = _UNIT * (len(self.scale) + 8) * steep
        rest = unit * (1 + np.abs(offsets))
        lengths = unit * np.sum(np.abs(weights), axis=1)
        # False for NaN.
        usable = (floor < 0) & (rest + lengths * _FARTHEST < tempering.high - tempering.low)
        rows = Bounded(curve, weights[usable], offsets[usable], floor[usable], tempering.power)
        grid = tempering.grid
        power = tempering.power
        constant = (
            float(np.sum(shift[usable])) + np.sum(~usable) * tempering.high - size * grid.middle
        )
        values = float(np.sum(np.abs(shift[usable]))) + size * (
            abs(tempering.low) + abs(tempering.high)
        )
        fixed = float(np.sum(rest[usable]))
        growing = float(np.sum(lengths[usable]))

        def added(radius: float) -> float:
            """The constants that T has and the bound has not, and 128 times what float64 may do to both within the radius."""
            records = fixed + radius * growing + _UNIT * values
            return power * (constant + records + size * grid.spacing) + 1e-6

        return rows, added

    def _with_rest(
        self, vector: Array, record: Sequence[Array]
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        found = self._predictor(vector, record)
        return found[0], found

    def expected_trials(self, num_records: int, tempering: Tempering) -> float:
        """Trials of a draw for as many artificial records, whose features have length 1; of public numbers alone."""
        made_up = np.random.default_rng(0)
        size = min(num_records, _MADE_UP)
        rows = made_up.normal(size=(size, len(self.scale)))
        weights = rows / np.linalg.norm(rows, axis=1, keepdims=True) * self.scale
        example = [np.asarray(x)[0] for x in self.latents.objective.placeholder]
        _, sigma, _ = self._predictor(jnp.zeros(len(self.scale)), example)
        curve: Any = Parabola() if self.family is Normal else LogSigmoid()
        offsets = made_up.normal(size=size) if self.family is Normal else np.zeros(size)
        shift = -math.log(float(sigma) * math.sqrt(2 * math.pi)) if self.family is Normal else 0.0
        floor = np.full(size, min(tempering.low - shift, -1e-6))
        power = tempering.power * num_records / size
        bounded = Bounded(curve, weights / float(sigma), offsets, floor, power)
        return expected_trials(bounded, _FARTHEST * math.sqrt(len(self.scale)))

    def draw(
        self, tempering: Tempering, leaves: Sequence[Array], key: PRNGKeyArray, num_draws: int
    ) -> dict[str, np.ndarray]:
        """Unconstrained parameters of that many exact draws, by as many trials as it takes."""
        with np.errstate(all="ignore"):
            return self._draw(tempering, leaves, key, num_draws)

    def _draw(
        self, tempering: Tempering, leaves: Sequence[Array], key: PRNGKeyArray, num_draws: int
    ) -> dict[str, np.ndarray]:
        size = len(leaves[0])
        numbers = self.numbers(leaves, tempering)
        rows, added = self.bounded(numbers, tempering, size)
        shells = envelope(rows, _FARTHEST * math.sqrt(rows.dim))
        proposals = Proposals(shells, [added(shell.ball) for shell in shells])
        found = np.zeros((0, rows.dim))
        turn = 0
        while len(found) < num_draws:
            bits = functools.partial(_words, jax.random.fold_in(key, turn))
            words = bits(0, 2 * rows.dim + 2)
            z, log_law = proposals.draw(words[:, :-1])
            v = z * SPACING
            short = np.full(_TRIALS, np.inf)
            inside = np.flatnonzero(np.isfinite(log_law))
            for start in range(0, len(inside), _AT_ONCE):
                some = inside[start : start + _AT_ONCE]
                with double():
                    log_density = log_densities(
                        v[np.resize(some, _AT_ONCE)], numbers, self.family, tempering, size
                    )
                short[some] = log_law[some] - np.asarray(log_density)[: len(some)]
            if np.any(short < 0):
                raise RuntimeError(
                    "A log density is above its proved envelope: this is an error of discreet, or of this machine's arithmetic. "
                    "Nothing is released. Please report the model."
                )
            late = exponential(
                lambda stage, words=words, bits=bits: (
                    words[:, -1] if stage == 0 else bits(stage, 1)[:, 0]
                )
            )
            found = np.concatenate([found, v[late > short]])
            turn += 1
        u = self.location + self.scale * found[:num_draws]
        return _by_name(self.latents, u.astype(np.float64 if self.latents.wide else np.float32))


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def log_densities(
    vectors: Array, numbers: Numbers, family: type, tempering: Tempering, size: int
) -> Array:
    """T at points in units of the prior, in float64; a record whose number is NaN counts as the lower bound.

    Args:
        vectors: Points, in the rows.
        numbers: Of the records.
        family: Of the observations.
        tempering: The bounds and the power.
        size: The number of records.
    """

    def one(v: Array) -> Array:
        def turn(records: Numbers) -> Array:
            t = jnp.sum(records.weights * v, axis=1) + records.offsets
            x = records.shift + (-(t**2) / 2 if family is Normal else -jax.nn.softplus(-t))
            return jnp.where(
                jnp.isnan(x), tempering.low, jnp.clip(x, tempering.low, tempering.high)
            )

        total: Any = exact_sum(out_of_turns(jax.lax.map(turn, numbers), size), tempering.grid)
        return tempering.power * total - jnp.sum(v**2) / 2

    return jax.lax.map(one, vectors)


_UNIT = 2.0**-45
"""128 units of float64's rounding."""


def _words(key: PRNGKeyArray, stage: int, count: int) -> UInt64[np.ndarray, "trial word"]:
    bits = jax.random.bits(jax.random.fold_in(key, stage), (_TRIALS, 2 * count), jnp.uint32)
    return np.ascontiguousarray(np.asarray(bits)).view(np.uint64)


def _by_name(latents: Latents, vectors: Float[np.ndarray, "draw latent"]) -> dict[str, np.ndarray]:
    found = {}
    start = 0
    for name, shape in latents.sites:
        end = start + math.prod(shape)
        found[parameter_of(name)] = vectors[:, start:end].reshape(len(vectors), *shape)
        start = end
    return found


def _refused(why: str) -> RefusedError:
    return RefusedError(
        f"This posterior cannot be drawn from exactly: {why}. exact=True needs normal priors with fixed means and scales, and "
        "one Bernoulli (logits=) or Normal (fixed scale) observation a record, whose predictor is linear in the latents. Leave "
        "exact out for Markov chains."
    )


def _bare(fn: Any) -> Any:
    while isinstance(fn, ExpandedDistribution | Independent):
        fn = fn.base_dist
    return fn


def _is_plain(site: Any) -> bool:
    """Whether a site is neither masked nor scaled."""
    return (
        type(_bare(site["fn"])).__name__ != "MaskedDistribution"
        and np.size(site["scale"]) == 1
        and site["scale"] == 1
    )


def _observed(latents: Latents, vector: Any, record: Sequence[Any]) -> Any:
    objective = latents.objective
    rows = [x[None] for x in record]
    values = dict(latents.split(vector))
    sites = objective.programs.trace(objective.programs.model, rows, jax.random.key(0), values)
    return sites[objective.structure.observed[0]]


def _normal_priors(latents: Latents) -> tuple[Any, Any]:
    """Means and standard deviations, which must be numbers."""
    kinds: list[bool] = []

    def look(vector: Array) -> list[Array]:
        sites = latents._sites(vector)
        found = [(shape, sites[name]) for name, shape in latents.sites]
        kinds[:] = [isinstance(_bare(site["fn"]), Normal) and _is_plain(site) for _, site in found]
        if not all(kinds):
            return []
        pairs = [(shape, _bare(site["fn"])) for shape, site in found]
        parts = [jnp.ravel(jnp.broadcast_to(fn.loc, shape)) for shape, fn in pairs]
        parts += [jnp.ravel(jnp.broadcast_to(fn.scale, shape)) for shape, fn in pairs]
        return [jnp.concatenate(parts)]

    program = jax.make_jaxpr(look)(jnp.zeros(latents.size))
    if not all(kinds):
        raise _refused("a prior is not normal")
    if any(degree != 0 for degree in _degrees(program, [1])):
        raise _refused("the prior of a latent depends on another latent")
    both = np.asarray(look(jnp.zeros(latents.size))[0], np.float64)
    return both[: latents.size], both[latents.size :]


# Of one variable that is linear in the latents, they make another.
_LINEAR = {
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "copy_p", "dynamic_slice", "expand_dims", "gather", "neg",
    "pad", "reduce_sum", "reshape", "rev", "slice", "squeeze", "sub", "add", "add_any", "transpose",
}  # fmt: skip
_CALLS = {"jit", "pjit", "closed_call", "core_call"}


def _degrees(program: ClosedJaxpr, inputs: Sequence[int]) -> list[int | None]:
    """For each output its degree as a polynomial of the inputs of degree 1: 0 or 1; None if it may be neither."""
    known: dict[Any, int | None] = dict(zip(program.jaxpr.invars, inputs, strict=True))

    def degree(atom: Any) -> int | None:
        return 0 if isinstance(atom, Literal) else known.get(atom, 0)

    for equation in program.jaxpr.eqns:
        name = equation.primitive.name
        of = [degree(x) for x in equation.invars]
        found: list[int | None] = [None] * len(equation.outvars)
        if all(x == 0 for x in of):
            found = [0] * len(found)
        elif None in of:
            pass
        elif name in _CALLS:
            found = _degrees(inner_programs(equation)[0], [x or 0 for x in of])
        elif name in ("mul", "dot_general"):
            found = [1 if sum(x or 0 for x in of) == 1 else None]
        elif (name in ("gather", "dynamic_slice", "div") and any(of[1:])) or (
            name == "select_n" and of[0]
        ):
            pass
        elif name in _LINEAR or name in ("div", "select_n"):
            found = [None if name == "convert_element_type" and not _is_float(equation) else 1]
        known.update(zip(equation.outvars, found, strict=True))
    return [degree(x) for x in program.jaxpr.outvars]


def _is_float(equation: Any) -> bool:
    return jnp.issubdtype(equation.params["new_dtype"], jnp.floating)
