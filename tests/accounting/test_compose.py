"""Composition against convolution without FFT, quadrature of two steps, and dp_accounting's bounds on random plans."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import ndtr
from scipy.stats import norm

from discreet.privacy.accounting import Relation, _compose, profile
from discreet.privacy.accounting._compose import Cells, Sum, compose
from discreet.privacy.accounting._pairs import GaussianPair, PoissonPair

EXTENDED = np.finfo(np.longdouble).nmant == 63
"""Without 80-bit floats the bound on rounding is wider: as safe, less tight."""
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def poisson(rate, noise_multiplier, steps=1):
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise_multiplier))
    return dp_event.SelfComposedDpEvent(step, steps)


def convolved(probs, count):
    """The law of a sum by repeated squaring with plain sums of products: positive terms, so every entry keeps its digits."""
    result, square = np.ones(1), probs
    while count:
        if count % 2:
            result = np.convolve(result, square)
        square, count = np.convolve(square, square), count // 2
    return result


def laws():
    rng = np.random.default_rng(20261120)
    centred = norm.pdf(np.linspace(-5, 5, 41))
    spiked = np.full(60, 1e-9)
    spiked[20] = 1.0
    tail = np.exp(-np.arange(50.0))
    return {
        "gaussian": centred,
        "spiked": spiked,
        "tail": tail,
        "random": rng.random(33),
        "coin": np.array([1.0, 1.0]),
    }


def stretch_of(parts, spacing, begin, points):
    """A sum of parts, each given by its first grid point, its law and its count."""
    cells = [
        Cells(first, (first + np.arange(len(probs))) * spacing, probs, 0.0)
        for first, probs, _ in parts
    ]
    losses = np.arange(max(begin, 0), begin + points) * spacing
    return Sum(cells, [count for _, _, count in parts], spacing, begin, points, losses)


@pytest.mark.parametrize("kind", list(laws()))
@pytest.mark.parametrize("count", [1, 2, 50, 300])
@pytest.mark.parametrize("tilt", [0.0, 3.0])
@pytest.mark.parametrize("extended", [False, True])
def test_rounding_stays_within_its_bound(kind, count, tilt, extended):
    probs = laws()[kind]
    probs = probs / probs.sum()
    spacing, first = 0.02, -len(probs) // 3
    exact = convolved(probs, count)
    begin = count * first
    stretch = stretch_of([(first, probs, count)], spacing, begin, 2 * len(exact))
    moments, factors = stretch.tilted(tilt)
    deltas, error = stretch.deltas(tilt, moments, factors, extended=extended)
    losses = (begin + np.arange(len(exact))) * spacing
    start = max(begin, 0)
    for index in range(start, begin + len(exact), max(1, len(exact) // 40)):
        above = losses > (index + 0.5) * spacing
        true = math.fsum(exact[above] * -np.expm1(index * spacing - losses[above]))
        bound = deltas[index - start]
        scale = factors[index - start]
        assert min(true, 1.0) <= bound
        assert bound <= true * (1 + 1e-8) + 2 * error * scale + 1e-300
    # The bound is worth something.
    assert error < 1e-11 * (1 + count)


def test_two_kinds_of_steps_are_convolved():
    first, second = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.1, 0.3])
    exact = np.convolve(convolved(first, 7), convolved(second, 4))
    stretch = stretch_of([(-1, first, 7), (0, second, 4)], 0.1, -7, 64)
    deltas, _ = stretch.deltas(0.0, *stretch.tilted(0.0))
    losses = (-7 + np.arange(len(exact))) * 0.1
    for index in (0, 3, 8):
        above = losses > (index + 0.5) * 0.1
        true = float(np.sum(exact[above] * -np.expm1(index * 0.1 - losses[above])))
        assert true <= deltas[index] <= true * (1 + 1e-8) + 1e-11


@pytest.mark.parametrize("tilt", [0.0, 3.0])
def test_a_step_may_be_of_one_kind_or_of_another_by_a_public_coin(tilt):
    first, second = np.array([0.2, 0.5, 0.3]), np.array([0.6, 0.1, 0.3])
    chances = [0.1, 0.5, 0.9] * 40
    exact = convolved(first, 3)
    for chance in chances:
        exact = np.convolve(exact, (1 - chance) * first + chance * second)
    stretch = stretch_of([(-1, first, 3), (-1, second, 0)], 0.1, -123, 400)
    stretch = dataclasses.replace(stretch, between={1: chances})
    deltas, error = stretch.deltas(tilt, *(tilted := stretch.tilted(tilt)))
    losses = (-123 + np.arange(len(exact))) * 0.1
    for index in range(0, 120, 7):
        above = losses > (index + 0.5) * 0.1
        true = math.fsum(exact[above] * -np.expm1(index * 0.1 - losses[above]))
        assert true <= deltas[index] <= true * (1 + 1e-8) + 2 * error * tilted[1][index]
    assert error < 1e-10


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    "rates",
    [
        np.geomspace(2e-3, 0.1, 80),
        np.append(np.linspace(1e-4, 2e-4, 60), 0.2),  # one that is far from all others
    ],
)
def test_many_rates_cost_what_each_does_by_itself(rates, relation, monkeypatch):
    """Within 0.05 %, by coins between fewer rates; and no less."""
    event = dp_event.ComposedDpEvent(
        [poisson(rate, 0.8, 1 + i % 3) for i, rate in enumerate(rates)]
    )
    few = profile(event, relation, tolerance=2e-4)
    monkeypatch.setattr(_compose, "_MOST_RATES", len(rates))
    each = profile(event, relation, tolerance=2e-4)
    for delta in (1e-3, 1e-6, 1e-9):
        least = each.epsilon(delta)
        assert least * (1 - 3e-5) <= few.epsilon(delta) <= 1.001 * least


def one_step(direction, rate, shift, epsilon):
    """Hockey-stick divergence of one Poisson step at any real epsilon, in closed form."""
    sign = 1 if direction == "remove" else -1
    odds = np.exp(sign * epsilon) - (1 - rate)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        z = np.log(odds / rate) / shift + shift / 2
        if direction == "remove":
            value = (1 - rate) * ndtr(-z) + rate * ndtr(shift - z) - np.exp(epsilon) * ndtr(-z)
            return np.where(odds > 0, value, -np.expm1(epsilon))
        value = ndtr(z) - np.exp(epsilon) * ((1 - rate) * ndtr(z) + rate * ndtr(z - shift))
        return np.where(odds > 0, value, 0.0)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.01, 0.7), (0.3, 2.0)),
        ((0.5, 1.0), (0.5, 1.0)),
        ((2e-3, 0.4), (0.05, 5.0)),
        ((0.9, 0.3), (1e-3, 1.0)),
    ],
)
def test_two_steps_against_quadrature(direction, first, second):
    # delta of two steps is the mean of the second step's delta at epsilon less the first step's
    # loss.
    added = direction == "add"
    curve = compose(
        [
            [
                (PoissonPair(GaussianPair(1 / sigma), rate, added), 1)
                for rate, sigma in (first, second)
            ]
        ]
    )
    rate, shift = first[0], 1 / first[1]
    points, weights = np.polynomial.legendre.leggauss(20)
    edges = np.linspace(-11, 11 + shift, 10_001)
    x = (edges[1:] + edges[:-1])[:, None] / 2 + (np.diff(edges)[:, None] / 2) * points
    weights = (np.diff(edges)[:, None] / 2) * weights
    loss = np.log1p(rate * np.expm1(shift * x - shift**2 / 2))
    if direction == "remove":
        density = (1 - rate) * norm.pdf(x) + rate * norm.pdf(x - shift)
    else:
        density, loss = norm.pdf(x), -loss
    for epsilon in curve.knots[[0, 10, len(curve.knots) // 50, len(curve.knots) // 5]]:
        exact = float(
            np.sum(
                weights * density * one_step(direction, second[0], 1 / second[1], epsilon - loss)
            )
        )
        ours = float(curve.delta(np.array([epsilon]))[0])
        assert ours >= exact * (1 - 1e-11)
        assert ours <= exact * (1 + 1e-3) + 1e-16


@pytest.mark.parametrize(("rate", "sigma"), [(1e-4, 2.0), (3e-4, 1.1), (0.02, 0.4)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9, 1e-12])
def test_one_step_is_tight_down_to_tiny_deltas(rate, sigma, delta):
    spent = profile(poisson(rate, sigma), ADD).epsilon(delta)
    exact = max(float(one_step(d, rate, 1 / sigma, np.float64(spent))) for d in ("remove", "add"))
    assert exact <= delta * (1 + 1e-9)
    assert spent == 0 or exact >= delta * (1 - 3e-3) or not EXTENDED


def test_rare_large_losses_stay_tight_at_small_deltas():
    # Few records in a batch: the composed loss is heavy-tailed, and a tilt chosen by Chernoff's
    # bound alone would wrap around the transform: 3.88 and 1.92 instead.
    assert 3.530 < profile(poisson(1e-4, 0.55316, 10**4), ADD).epsilon(1e-10) < 3.537
    assert (
        1.52
        < profile(poisson(1e-4, 0.7328, 10**6), ADD).epsilon(1e-10)
        < (1.55 if EXTENDED else 1.7)
    )


@pytest.mark.parametrize("seed", range(24))
def test_random_plans_lie_between_the_bounds_of_dp_accounting(seed):
    rng = np.random.default_rng([20261120, seed])
    relation = (ADD, REPLACE)[seed % 2]
    while True:
        steps, rate = int(10 ** rng.uniform(0, 3)), min(1.0, 10 ** rng.uniform(-3, 0.1))
        sigma, delta = 10 ** rng.uniform(-0.4, 1.2), 10 ** rng.uniform(-8, -1.5)
        ours = profile(poisson(rate, sigma, steps), relation).epsilon(delta)
        if 0.1 < ours < 20:
            break
    low, high = (
        privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            neighboring_relation=relation,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=ours / 2000 / (1 + math.sqrt(steps) / 30),
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    )
    assert low <= ours <= high * (1 + 2e-4)
