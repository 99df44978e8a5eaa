"""Exact draws of a posterior: the envelope is above it, the draws follow it, and what has no such envelope is refused."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.lax import stop_gradient
from scipy.stats import chi2, kstest

from discreet import random
from discreet._jax import double
from discreet.methods.inference import OnePosteriorSample, _exact, _ops
from discreet.methods.inference._elbo import Objective
from discreet.methods.inference._envelope import Bounded, LogSigmoid, Majorant, Parabola, envelope
from discreet.methods.inference._exact import (
    MOST,
    SPACING,
    ExactSampler,
    Proposals,
    Staircase,
    exponential,
)
from discreet.methods.inference._point_guide import parameter_of
from discreet.methods.inference._records import take_apart
from discreet.methods.inference._tempering import TemperedPosterior, in_turns
from discreet.privacy.accounting import Relation
from discreet.tabular.models import logistic_regression

pytestmark = pytest.mark.usefixtures("quick_compilation")


def mean(x: Any) -> None:
    m = numpyro.sample("m", dist.Normal(1.0, 2.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(m, 0.5), obs=x)


def logistic(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def labelled(size: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size + dim)
    x = rng.normal(size=(size, dim)).astype(np.float32)
    return x, (rng.random(size) < 1 / (1 + np.exp(-2.0 * x[:, 0]))).astype(np.float32)


def sampler_of(ops: OnePosteriorSample, *args: Any) -> tuple[ExactSampler, Objective, Any]:
    records = take_apart(args, {})
    objective, psi = ops._objective(random.key(3), records)
    return ExactSampler.of(objective, psi, ops.plan.tempering), objective, list(records.leaves)


def draws_of(ops: OnePosteriorSample, seed: int, count: int, *args: Any) -> np.ndarray:
    sampler, _, leaves = sampler_of(ops, *args)
    (values,) = sampler.draw(ops.plan.tempering, leaves, random.key(seed), count).values()
    return values


# --- the envelope ------------------------------------------------------------------------------


def case(number: int) -> Bounded:
    """Posteriors of very different strength, with clipping on one side and on both, and outliers."""
    rng = np.random.default_rng(number)
    dim = 1 + number % 4
    size = (3, 40, 400)[number % 3]
    weights = rng.normal(size=(size, dim)) * (0.2, 1.0, 5.0)[number // 3 % 3]
    weights[0] *= 30.0
    curve: Any = Parabola() if number % 2 else LogSigmoid()
    floor = -rng.uniform(0.01, 6.0, size)
    return Bounded(
        curve, weights, rng.normal(size=size) * 2, floor, (0.01, 0.2, 1.0)[number // 2 % 3]
    )


def density(bounded: Bounded, v: np.ndarray) -> np.ndarray:
    t = v @ bounded.weights.T + bounded.offsets
    return -np.sum(v**2, 1) / 2 + bounded.power * np.sum(
        np.maximum(bounded.curve.value(t), bounded.floor), 1
    )


@pytest.mark.parametrize("number", range(18))
def test_the_density_is_nowhere_above_its_envelope(number: int) -> None:
    """At points of all shells, along the directions in which clipping is worst, too; and the bound is not idle."""
    bounded = case(number)
    farthest = 16 * math.sqrt(bounded.dim)
    shells = envelope(bounded, farthest)
    rng = np.random.default_rng(number)
    nearest = math.inf
    points = 0
    for shell in shells:
        directions = np.concatenate(
            [rng.normal(size=(400, bounded.dim)), bounded.weights, -bounded.weights]
        )
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        radius = rng.uniform(max(shell.least, 0.0), shell.most, (len(directions), 1))
        v = (
            shell.center + radius * directions @ shell.factor.T
            if shell.inner
            else radius * directions
        )
        v = v[np.linalg.norm(v, axis=1) <= shell.ball]
        moved = np.linalg.solve(shell.factor, (v - shell.center).T) / shell.spread
        volume = np.sum(np.log(np.diag(shell.factor) * shell.spread * math.sqrt(2 * math.pi)))
        above = shell.log_bound - np.sum(moved**2, 0) / 2 - volume - density(bounded, v)
        assert np.all(above >= -1e-9), shell
        nearest = min(nearest, float(np.min(above, initial=math.inf)))
        points += len(v)
    assert points > 1_000
    # In the easiest case it touches.
    assert number or nearest < 1e-3


@pytest.mark.parametrize("number", range(18))
def test_the_majorant_is_concave_and_above_the_density(number: int) -> None:
    bounded = case(number)
    rng = np.random.default_rng(number)
    for radius in (0.5, 4.0, 30.0):
        majorant = Majorant(bounded, radius, np.zeros(bounded.dim))
        directions = rng.normal(size=(2, 200, bounded.dim))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        first, second = directions * radius * rng.uniform(0, 1, (2, 200, 1))
        ends = np.array([majorant.around(v)[0] for v in (*first, *second)])
        middle = np.array([majorant.around(v)[0] for v in (first + second) / 2])
        assert np.all(ends >= density(bounded, np.concatenate([first, second])) - 1e-9)
        assert np.all(middle >= (ends[:200] + ends[200:]) / 2 - 1e-9)


# --- what proposes, and what accepts -----------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 5.0, 900.0, 3e6])
def test_a_staircase_has_the_masses_that_it_says(scale: float) -> None:
    """Every integer has one, they add up to 1, and a Gaussian is below as stated. False alarm of the counts: 1e-5."""
    stairs = Staircase(scale)
    assert int(stairs.ends[-1]) == 2**62
    assert stairs.starts[0] <= -3 * MOST
    assert stairs.starts[-1] + stairs.widths[-1] > 3 * MOST
    assert np.all(stairs.starts[1:] == stairs.starts[:-1] + stairs.widths[:-1])
    assert np.sum(stairs.widths * np.exp(stairs.log_mass)) == pytest.approx(1.0, abs=1e-12)
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**64, (2, 50_000), np.uint64)
    values, log_mass = stairs.draw(*words)
    block = np.searchsorted(stairs.starts, values, side="right") - 1
    np.testing.assert_array_equal(stairs.log_mass[block], log_mass)
    expected = np.exp(stairs.log_mass) * stairs.widths * len(values)
    often = expected > 20
    counts = np.bincount(block, minlength=len(expected))
    statistic = np.sum((counts - expected)[often] ** 2 / expected[often])
    assert statistic < chi2(np.sum(often)).ppf(1 - 1e-5)
    for apart in (0.0, 0.37, 0.999):
        near = np.arange(-2000, 2001)
        block = np.searchsorted(stairs.starts, near, side="right") - 1
        normal = -(((near - apart) / scale) ** 2) / 2 - math.log(scale * math.sqrt(2 * math.pi))
        assert np.all(normal <= stairs.log_mass[block] + stairs.log_excess)
    assert stairs.log_excess < (0.1 if scale > 20 else 5.0)


def test_exponential_numbers_have_a_tail_without_end() -> None:
    given = np.array([[0, 1, 2**63, 2**64 - 1], [7, 2**63, 0, 0], [2**63, 0, 0, 0]], np.uint64)
    values = exponential(lambda stage: given[stage])
    log2 = math.log(2)
    assert values[0] == pytest.approx(65 * log2)
    assert values[1] == pytest.approx(33 * log2)
    assert values[2] == pytest.approx(log2)
    assert values[3] == 0.0


def test_every_point_is_in_one_shell() -> None:
    bounded = dataclasses.replace(case(4), power=0.05)
    shells = envelope(bounded, 16 * math.sqrt(bounded.dim))
    proposals = Proposals(shells, [0.0] * len(shells))
    rng = np.random.default_rng(0)
    z = (rng.normal(size=(4_000, bounded.dim)) * rng.uniform(0, 6, (4_000, 1)) / SPACING).astype(
        np.int64
    )
    z = z[np.abs(z).max(1) <= MOST]
    homes = sum(proposals._is_in(k, z).astype(int) for k in range(len(proposals.shells)))
    assert np.all(homes == 1)


# --- the draws ---------------------------------------------------------------------------------


@pytest.mark.essential
def test_draws_of_a_mean_follow_the_clipped_posterior() -> None:
    """By quadrature; half the records are clipped somewhere that matters. False alarm: 1e-4, and the seed is fixed."""
    x = np.concatenate([np.full(12, 0.4), np.full(8, 2.6)]).astype(np.float32)
    ops = OnePosteriorSample(mean, log_likelihood_bound=(-6.0, 0.0), epsilon=2.0)
    grid = np.linspace(-9.0, 11.0, 200_001)

    def law(low: float) -> np.ndarray:
        each = np.maximum(
            -(((x[:, None] - grid) / 0.5) ** 2) / 2 - math.log(0.5 * math.sqrt(2 * math.pi)), low
        )
        found = np.exp(-(((grid - 1) / 2) ** 2) / 2 + ops.plan.tempering.power * each.sum(0))
        return np.cumsum(found) / found.sum()

    draws = draws_of(ops, 7, 1_000, x)
    assert kstest(draws, lambda v: np.interp(v, grid, law(-6.0))).pvalue > 1e-4
    # Without clipping it would be another law, and the test sees it.
    assert kstest(draws, lambda v: np.interp(v, grid, law(-1e9))).pvalue < 1e-9


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE])
def test_draws_of_two_weights_follow_the_posterior(relation: Relation) -> None:
    """By quadrature, along three directions. False alarm: 1e-4 together, and the seed is fixed."""
    x, y = labelled(60, 2)
    power = 1.0 if relation is Relation.REPLACE_ONE else 0.5
    ops = OnePosteriorSample(
        logistic, log_likelihood_bound=(-1.5, 0.0), epsilon=power, relation=relation
    )
    axis = np.linspace(-6.0, 6.0, 401)
    points = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    sign = 2 * y - 1
    each = np.maximum(-np.logaddexp(0, -sign * (points @ x.T)), -1.5)
    log = -np.sum(points**2, 1) / 2 + ops.plan.tempering.power * each.sum(1)
    mass = np.exp(log - log.max())
    draws = draws_of(ops, 11, 1_000, x, y)
    for direction in ([1.0, 0.0], [0.0, 1.0], [0.6, -0.8]):
        along = points @ np.array(direction)
        order = np.argsort(along)
        below = (np.cumsum(mass[order]) - mass[order] / 2) / mass.sum()
        assert (
            kstest(draws @ direction, lambda v: np.interp(v, along[order], below)).pvalue > 1e-4 / 3  # noqa: B023
        )


@pytest.mark.parametrize("factor", [0.5, 0.9])
def test_an_envelope_that_is_too_low_is_found(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """Too low by this factor of the density; a right one lets 20,000 trials pass."""
    x, y = labelled(50, 1)
    ops = OnePosteriorSample(logistic, log_likelihood_bound=(-6.0, 0.0), epsilon=0.5)
    assert draws_of(ops, 1, 15_000, x, y).shape == (15_000, 1)
    honest = _exact.envelope

    def low(*args: Any) -> Any:
        found = honest(*args)
        tight = [
            factor * math.exp(-stair.log_excess)
            for stair in [Staircase(found[0].spread * found[0].factor[0, 0] / SPACING)]
        ]
        return [shell._replace(log_bound=shell.log_bound + math.log(tight[0])) for shell in found]

    monkeypatch.setattr(_exact, "envelope", low)
    with pytest.raises(RuntimeError, match="above its proved envelope"):
        draws_of(ops, 1, 15_000, x, y)


def coarse(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Make the grid one of half standard deviations, up to 4 of them; its points in two dimensions."""
    monkeypatch.setattr(_exact, "SPACING", 0.5)
    monkeypatch.setattr(_exact, "MOST", 8)
    monkeypatch.setattr(_exact, "_FARTHEST", 4.0)
    axis = np.arange(-8, 9)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)


KINDS: list[tuple[list[float], float]] = [
    ([1.0, 0.5], 1.0),
    ([-2.0, 3.0], 0.0),
    ([1e30, 1.0], 1.0),
    ([-1e30, 1.0], 1.0),
    ([math.nan, 1.0], 1.0),
    ([0.0, 0.0], 1.0),
]


def table(kinds: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    x = np.array([KINDS[kind][0] for kind in kinds], np.float32)
    return x, np.array([KINDS[kind][1] for kind in kinds], np.float32)


@pytest.mark.parametrize("bound", [(-2.0, 0.0), (-1.5, 0.75), 3.0])
@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE])
def test_all_neighbours_laws_on_a_coarse_grid_are_within_epsilon(
    relation: Relation, bound: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Normalised over the whole grid, for every pair of small tables, with extreme records; and epsilon is not idle."""
    points = coarse(monkeypatch)
    ops = OnePosteriorSample(logistic, log_likelihood_bound=bound, epsilon=0.7, relation=relation)
    sampler, _, leaves = sampler_of(ops, *table(range(len(KINDS))))
    tempering = ops.plan.tempering
    each = [_exact.out_of_turns(x, len(KINDS)) for x in sampler.numbers(leaves, tempering)]
    laws = {}
    for size in (2, 3):
        for kinds in itertools.product(range(len(KINDS)), repeat=size):
            with double():
                numbers = _exact.Numbers(*in_turns([x[np.array(kinds)] for x in each], relation))
                log = np.asarray(
                    _exact.log_densities(points * 0.5, numbers, sampler.family, tempering, size)
                )
            laws[kinds] = log - np.logaddexp.reduce(log)
    worst = 0.0
    for kinds, law in laws.items():
        if len(kinds) == 2:
            continue
        for place, other in itertools.product(range(3), range(len(KINDS))):
            near = (*kinds[:place], other, *kinds[place + 1 :])
            if relation is Relation.ADD_OR_REMOVE_ONE:
                near = (*kinds[:place], *kinds[place + 1 :])
            worst = max(worst, float(np.max(np.abs(law - laws[near]))))
    assert 0.25 * ops.epsilon < worst <= ops.epsilon <= 0.7


@pytest.mark.parametrize("kinds", [(0, 1, 2), (0, 1, 1, 0, 3, 4, 5, 5)])
def test_draws_on_a_coarse_grid_have_the_law_that_epsilon_is_of(
    kinds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts of all points. False alarm: 1e-5, and the seed is fixed."""
    points = coarse(monkeypatch)
    ops = OnePosteriorSample(logistic, log_likelihood_bound=(-4.0, 0.0), epsilon=4.0)
    sampler, _, leaves = sampler_of(ops, *table(kinds))
    tempering = ops.plan.tempering
    with double():
        numbers = sampler.numbers(leaves, tempering)
        log = np.asarray(
            _exact.log_densities(points * 0.5, numbers, sampler.family, tempering, len(kinds))
        )
    expected = 20_000 * np.exp(log - np.logaddexp.reduce(log))
    z = np.round(draws_of(ops, 5, 20_000, *table(kinds)) / 0.5).astype(int)
    counts = np.bincount((z[:, 0] + 8) * 17 + z[:, 1] + 8, minlength=len(points))
    often = expected > 10
    seen = np.append(counts[often], counts[~often].sum())
    awaited = np.append(expected[often], expected[~often].sum())
    assert np.sum((seen - awaited) ** 2 / awaited) < chi2(len(seen) - 1).ppf(1 - 1e-5)


def test_no_random_word_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of proposals, and of two words for acceptance, over several turns. False alarm: two of 40,000 are equal, 1e-10."""
    used: list[np.ndarray] = []
    propose = Proposals.draw
    monkeypatch.setattr(
        Proposals, "draw", lambda self, words: (used.append(words.ravel()), propose(self, words))[1]
    )

    def accept(words: Any) -> Any:
        used.extend([words(0), words(1)])
        return exponential(words)

    monkeypatch.setattr(_exact, "exponential", accept)
    ops = OnePosteriorSample(logistic, log_likelihood_bound=(-4.0, 0.0), epsilon=1.0)
    draws_of(ops, 1, 4_000, *labelled(20, 1))
    words = np.concatenate(used)
    assert len(used) >= 6
    assert len(np.unique(words)) == len(words)


def lossy(x: Any, y: Any) -> None:
    """In float32 the predictor is off by thirds of itself, and its slope is another one."""
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=(x * w + 1e7 * w) - 1e7 * w), obs=y)


def test_what_a_model_loses_in_float32_does_not_break_the_envelope() -> None:
    """The density of the draws is of the numbers that the envelope is of, not of the model's program."""
    size = 2_000
    ops = OnePosteriorSample(lossy, log_likelihood_bound=(-4.0, 0.0), epsilon=1.0)
    draws = draws_of(ops, 3, 300, np.full(size, 0.45, np.float32), np.ones(size, np.float32))
    assert np.all(np.isfinite(draws))


@pytest.mark.parametrize("model", [logistic_regression, logistic])
@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE])
def test_the_density_is_the_models(model: Any, relation: Relation) -> None:
    """But for a constant, and float32; and a record's part does not hang on the records beside it."""
    x, y = labelled(700, 3)
    x[5] = np.nan
    ops = OnePosteriorSample(
        model, log_likelihood_bound=(-2.0, 0.0), epsilon=1.0, relation=relation
    )
    sampler, objective, leaves = sampler_of(ops, x, y)
    posterior = TemperedPosterior(objective, ops.plan.tempering)
    v = np.random.default_rng(1).normal(size=(5, len(sampler.scale)))
    u = (sampler.location + sampler.scale * v).astype(np.float32)
    numbers = sampler.numbers(leaves, ops.plan.tempering)
    with double():
        found = np.asarray(
            _exact.log_densities(v, numbers, sampler.family, ops.plan.tempering, len(x))
        )
    rows = [
        {parameter_of(n): z for n, z in sampler.latents.split(jnp.asarray(row)).items()}
        for row in u
    ]
    expected = np.array([float(posterior.log_density(row, leaves)) for row in rows])
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-4, atol=1e-3)
    more = [jnp.concatenate([z, z[:1]]) for z in leaves]
    again = sampler.numbers(more, ops.plan.tempering)
    for one, other in zip(numbers, again, strict=True):
        np.testing.assert_array_equal(
            _exact.out_of_turns(one, len(x)), _exact.out_of_turns(other, len(x) + 1)[:-1]
        )


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("size", [1e4, 1e8, 1e11])
def test_extreme_records_have_an_envelope_all_the_same(number: int, size: float) -> None:
    """An error of linear algebra would tell of them; and the density is not above it where it is steep."""
    bounded = case(number)
    weights = np.array(bounded.weights)
    weights[:2] = size * np.ones_like(weights[:2])
    bounded = dataclasses.replace(bounded, weights=weights)
    shells = envelope(bounded, 16 * math.sqrt(bounded.dim))
    proposals = Proposals(shells, [1e-6] * len(shells))
    assert math.isfinite(proposals.log_bound)
    words = np.random.default_rng(number).integers(
        0, 2**64, (4_000, 2 * bounded.dim + 1), np.uint64
    )
    z, log_law = proposals.draw(words)
    inside = np.isfinite(log_law)
    assert np.all(log_law[inside] >= density(bounded, z[inside] * SPACING))


def test_records_without_a_usable_number_count_as_the_upper_bound() -> None:
    """NaN, infinity, what overflows, and labels beside 0 and 1: no log density is above the envelope."""
    x, y = labelled(60, 2)
    x[:4] = [[np.nan, 0.0], [np.inf, 1.0], [3e38, -3e38], [1e12, 1e12]]
    y[4:6] = [0.5, 3.0]
    ops = OnePosteriorSample(logistic, log_likelihood_bound=(-3.0, 0.0), epsilon=0.2)
    assert draws_of(ops, 2, 500, x, y).shape == (500, 2)


def test_the_statement_says_that_draws_are_exact() -> None:
    x, y = labelled(40, 2)
    terms: dict[str, Any] = {"log_likelihood_bound": (-4.0, 0.0), "epsilon": 0.5, "num_draws": 3}
    result = OnePosteriorSample(logistic_regression, exact=True, **terms).run(random.key(), x, y)
    assert result.draws["weights"].shape == (3, 2)
    assert result.non_private_diagnostics is None
    statement = result.statement
    text = " ".join(str(statement).split())
    assert "no approximation is in ε" in text
    assert "the number of trials of rejection sampling depends on the records" in text
    assert not {"holds for exact draws", "Markov", "chain", "Last bits"} & {
        w for w in ("holds for exact draws", "Markov", "chain", "Last bits") if w in text
    }
    assert statement.epsilon <= 1.5
    assert statement.cautions == ()
    assert "num_chains" not in statement.plan
    # On the grid of the prior's standard deviations: of nothing that the records say.
    steps = np.float64(result.draws["weights"]) / (2.5 * SPACING)
    np.testing.assert_allclose(steps, np.round(steps), atol=0.26)


# --- what is refused, before anything is spent -------------------------------------------------


def one_weight(likelihood: Any, prior: Any = None) -> Any:
    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1) if prior is None else prior)
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", likelihood(x[:, 0], w), obs=y)

    return model


def scaled(x: Any, y: Any) -> None:
    s = numpyro.sample("s", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, jnp.exp(s)))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=w * x[:, 0] + s), obs=y)


def bernoulli(predictor: Any) -> Any:
    return one_weight(lambda x, w: dist.Bernoulli(logits=predictor(x, w)))


REFUSED = {
    "a quadratic predictor": (bernoulli(lambda x, w: x * w * w), "not linear"),
    "a bent predictor": (bernoulli(lambda x, w: jnp.maximum(x * w, 0.0)), "not linear"),
    "a choice by the latent": (bernoulli(lambda x, w: jnp.where(w > 0, x, 2 * x)), "not linear"),
    "a latent without a gradient": (bernoulli(lambda x, w: x * stop_gradient(w)), "not linear"),
    "a rounded latent": (bernoulli(lambda x, w: x * jnp.round(w)), "not linear"),
    "probabilities": (
        one_weight(lambda x, w: dist.Bernoulli(probs=1 / (1 + jnp.exp(-x * w)))),
        "BernoulliProbs",
    ),
    "a count": (one_weight(lambda x, w: dist.Poisson(jnp.exp(x * w))), "Poisson"),
    "a scale that is a latent": (one_weight(lambda x, w: dist.Normal(x, jnp.exp(w))), "not fixed"),
    "another prior": (
        one_weight(lambda x, w: dist.Normal(x * w, 1.0), dist.StudentT(5.0, 0.0, 1.0)),
        "not normal",
    ),
    "a masked likelihood": (one_weight(lambda x, w: dist.Normal(x * w, 1.0).mask(x > 0)), "masked"),
    "a hierarchy": (scaled, "depends on another latent"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_envelope_is_refused(name: str) -> None:
    model, words = REFUSED[name]
    x, y = labelled(20, 1)
    key = random.key()
    with pytest.raises(ValueError, match=words):
        OnePosteriorSample(model, log_likelihood_bound=2.0, epsilon=0.1, exact=True).run(key, x, y)
    random.check_unused(key)


def test_predictors_that_are_linear_are_found() -> None:
    x, y = labelled(20, 2)

    def model(x: Any, y: Any) -> None:
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 3).expand([4]).to_event(1))
        group = (x[:, 1] > 0).astype(int)
        with numpyro.plate("data", x.shape[0]):
            predictor = (
                jnp.where(x[:, 1] > 1, 0.5, a / 2.0) + jnp.exp(x[:, 0]) * b[group] - b[2:].sum()
            )
            numpyro.sample("y", dist.Bernoulli(logits=predictor), obs=y)

    ops = OnePosteriorSample(model, log_likelihood_bound=(-4.0, 0.0), epsilon=0.5)
    sampler, _, leaves = sampler_of(ops, x, y)
    assert sampler.scale.tolist() == [1.0, 3.0, 3.0, 3.0, 3.0]
    rows, _ = sampler.bounded(
        sampler.numbers(leaves, ops.plan.tempering), ops.plan.tempering, len(leaves[0])
    )
    sign = 2 * y[0] - 1
    group = int(x[0, 1] > 0)
    expected = np.array([0.0 if x[0, 1] > 1 else 0.5, 0.0, 0.0, -3.0, -3.0])
    expected[1 + group] = 3 * np.exp(x[0, 0])
    np.testing.assert_allclose(rows.weights[0], sign * expected, rtol=1e-5)


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE])
def test_more_records_than_the_rounding_is_charged_for_are_refused(
    relation: Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ops, "MOST_EXACT", 19)
    ops = OnePosteriorSample(
        logistic, log_likelihood_bound=2.0, epsilon=0.1, relation=relation, exact=True
    )
    with pytest.raises(ValueError, match="of 19 at most"):
        ops.run(random.key(), *labelled(20, 1))


def test_a_hopeless_number_of_trials_and_other_terms_are_refused() -> None:
    x, y = labelled(5_000, 2)
    terms: dict[str, Any] = {"epsilon": 1.0, "exact": True}
    with pytest.raises(ValueError, match="hopeless: for 5,000 artificial records"):
        OnePosteriorSample(logistic, log_likelihood_bound=(-3.0, 0.0), **terms).run(
            random.key(), x, y
        )
    with pytest.raises(ValueError, match="pass log_likelihood_bound instead"):
        OnePosteriorSample(logistic, lipschitz=1.0, radius=1.0, **terms).run(random.key(), x, y)
    wide, y = labelled(20, 13)
    with pytest.raises(ValueError, match="13 latent numbers"):
        OnePosteriorSample(logistic, log_likelihood_bound=2.0, **terms).run(random.key(), wide, y)
