"""Leaves of one clipping, of which one gets Laplace noise and another Gaussian noise: a record divides its bound among them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from jax import lax

import discreet as dp
from discreet.privacy.accounting import SharedDpEvent, profile
from discreet.privacy.mechanisms import GAUSSIAN as GAUSSIAN_NOISE, LAPLACE as LAPLACE_NOISE
from discreet.privacy.verify._bounds import Group, Table
from discreet.privacy.verify._events import _Spent
from discreet.privacy.verify._record import MechanismUse

from ..accounting.test_shared import worst

N, C = 40, 2.0
LAPLACE, GAUSSIAN = 1.0, 3.0
XS, YS = jnp.ones((N, 1)), jnp.ones((N, 3))
ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
APART = ComposedDpEvent([GaussianDpEvent(GAUSSIAN), LaplaceDpEvent(LAPLACE)])


def certify(step, relation=ADD):
    args = XS, YS, jnp.ones(N, bool), dp.random.key(0)
    return dp.certify(step, *args, records=(0, 1), mask=2, relation=relation)


def sums(*leaves, mask):
    return dp.sum_records(dp.clip_records(leaves, C), mask)


def both(key, a, b):
    first, second = jax.random.split(key)
    return dp.laplace_mechanism(first, a, LAPLACE * C), dp.gaussian_mechanism(
        second, b, GAUSSIAN * C
    )


def two_leaves(xs, ys, mask, key):
    return both(key, *sums(xs, ys, mask=mask))


def gaussian_first(xs, ys, mask, key):
    first, second = jax.random.split(key)
    a, b = sums(xs, ys, mask=mask)
    noised = dp.gaussian_mechanism(first, b, GAUSSIAN * C)
    return noised, dp.laplace_mechanism(second, a, LAPLACE * C)


def a_third_leaf_with_more_noise(xs, ys, mask, key):
    first, second = jax.random.split(key)
    a, b, c = sums(xs, ys, ys**2, mask=mask)
    return *both(first, a, b), dp.gaussian_mechanism(second, c, 5 * GAUSSIAN * C)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("step", [two_leaves, gaussian_first, a_third_leaf_with_more_noise])
def test_two_leaves_cost_as_much_as_their_worst_split(step, relation):
    """Both whole bounds are 25 % more."""
    certificate = certify(step, relation)
    found = certificate.event
    assert isinstance(found, SharedDpEvent)
    assert (1 - 1e-9) * LAPLACE <= found.laplace <= LAPLACE  # with the rounding to the grid
    assert (1 - 1e-9) * GAUSSIAN <= found.gaussian <= GAUSSIAN
    certificate.check(SharedDpEvent(LAPLACE, GAUSSIAN))
    certificate.check(APART)
    epsilon = certificate.epsilon(1e-6)
    distance = 1 if relation is ADD else 2
    truth = worst(LAPLACE / distance, GAUSSIAN / distance, np.array(epsilon / 1.02))
    assert truth >= 1e-6
    assert profile(APART, relation).epsilon(1e-6) > 1.2 * epsilon
    for one in (
        LaplaceDpEvent(LAPLACE),
        GaussianDpEvent(GAUSSIAN),
        SharedDpEvent(1.1 * LAPLACE, GAUSSIAN),
    ):
        with pytest.raises(dp.PrivacyError, match="more than was declared"):
            certificate.check(one)


def the_same_leaf(xs, ys, mask, key):
    a, _ = sums(xs, ys, mask=mask)
    return both(key, a, a)


def two_clippings(xs, ys, mask, key):
    return both(key, *sums(xs, mask=mask), *sums(ys, mask=mask))


def both_leaves_in_each(xs, ys, mask, key):
    a, b = sums(xs, ys, mask=mask)
    return both(key, (a, b), (a, b))


def one_leaf_in_both(xs, ys, mask, key):
    a, b = sums(xs, ys, mask=mask)
    return both(key, a, (a, b))


def their_sum(xs, ys, mask, key):
    a, b = sums(xs, ys[:, :1], mask=mask)
    return both(key, a + b, b)


@pytest.mark.parametrize(
    "step", [the_same_leaf, two_clippings, both_leaves_in_each, one_leaf_in_both, their_sum]
)
def test_a_record_that_has_its_whole_bound_in_both_pays_for_both(step):
    certificate = certify(step)
    assert "Shared" not in repr(certificate.event)
    assert certificate.epsilon(1e-6) >= profile(APART, ADD).epsilon(1e-6) * (1 - 1e-6)
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        certificate.check(SharedDpEvent(LAPLACE, GAUSSIAN))


def without_noise(xs, ys, mask, key):
    a, b = sums(xs, ys, mask=mask)
    return dp.laplace_mechanism(key, a, LAPLACE * C), b


def of_one_key(xs, ys, mask, key):
    a, b = sums(xs, ys, mask=mask)
    return dp.laplace_mechanism(key, a, LAPLACE * C), dp.gaussian_mechanism(key, b, GAUSSIAN * C)


@pytest.mark.parametrize("step", [without_noise, of_one_key])
def test_what_hides_one_leaf_only_is_refused(step):
    with pytest.raises(dp.PrivacyError):
        certify(step)


def drawn(xs, ys, mask, key):
    return dp.poisson_subsample(key, (xs, ys, mask), 0.1)


def a_sample(xs, ys, mask, key):
    draw, key = jax.random.split(key)
    (xs, ys, mask), real = drawn(xs, ys, mask, draw)
    return two_leaves(xs, ys, mask & real, key)


def samples_in_a_loop(xs, ys, mask, key):
    return lax.map(lambda key: a_sample(xs, ys, mask, key), jax.random.split(key, 5))


def clipped_in_a_loop(xs, ys, mask, key):
    def turn(c, key):
        return c, two_leaves(c * xs, ys, mask, key)

    return lax.scan(turn, 1.0, jax.random.split(key, 5))[1]


def a_loop_over_one_sample(xs, ys, mask, key):
    draw, key = jax.random.split(key)
    (xs, ys, mask), real = drawn(xs, ys, mask, draw)
    return clipped_in_a_loop(xs, ys, mask & real, key)


def test_samples_and_loops():
    one = certify(two_leaves).event
    assert certify(a_sample).event == PoissonSampledDpEvent(0.1, one)
    assert certify(samples_in_a_loop).event == SelfComposedDpEvent(
        PoissonSampledDpEvent(0.1, one), 5
    )
    assert certify(clipped_in_a_loop).event == SelfComposedDpEvent(one, 5)
    # Several on one sample have no event of an accountant; each still shares, and nothing is lost.
    found = certify(a_loop_over_one_sample).event
    assert found == PoissonSampledDpEvent(0.1, ComposedDpEvent([one] * 5))


def released_again_in_a_loop(xs, ys, mask, key):
    """Of a sample: leaves that are clipped before the loop, and released in each of its iterations and after it."""
    draw, key, last = jax.random.split(key, 3)
    (xs, ys, mask), real = drawn(xs, ys, mask, draw)
    a, b = sums(xs, ys, mask=mask & real)
    again = lax.map(lambda key: both(key, a, b), jax.random.split(key, 5))
    return again, dp.gaussian_mechanism(last, a, GAUSSIAN * C)


def test_leaves_that_are_released_elsewhere_too_share_nothing_in_a_loop():
    """The first leaf has Gaussian noise, too: five Laplace releases, and Gaussian ones of the second leaf, five times."""
    found = certify(released_again_in_a_loop).event.event
    assert [x for x in found.events if isinstance(x, LaplaceDpEvent)] == [
        LaplaceDpEvent(LAPLACE)
    ] * 5
    (gaussian,) = [x for x in found.events if isinstance(x, GaussianDpEvent)]
    assert gaussian.noise_multiplier == pytest.approx(GAUSSIAN / 5**0.5)


def test_open_noise_is_charged_in_full():
    z = dp.symbol("z")

    def step(xs, ys, mask, key, z):
        first, second = jax.random.split(key)
        a, b = sums(xs, ys, mask=mask)
        return dp.laplace_mechanism(first, a, LAPLACE * C), dp.gaussian_mechanism(second, b, z * C)

    args = XS, YS, jnp.ones(N, bool), dp.random.key(0)
    formula = dp.certify(step, *args, z, records=(0, 1), mask=2)
    assert "Shared" not in repr(formula.event)
    assert isinstance(formula.at(z=GAUSSIAN).event, SharedDpEvent)


def test_rounding_to_the_grid_is_covered_at_every_split():
    """Of rounding far larger than the mechanisms have: whoever gives one leaf nothing still pays for the rounding of both."""
    table = Table()
    group = Group()
    first = MechanismUse(table, LAPLACE_NOISE, {(group, 0): 2.0}, size=1, rounding=0.1)
    second = MechanismUse(table, GAUSSIAN_NOISE, {(group, 1): 0.5}, size=3, rounding=0.04)
    spent = _Spent.of(first)
    spent.add(_Spent.of(second))
    found = spent.event()
    assert isinstance(found, SharedDpEvent)
    for a in np.linspace(0, 1, 21):
        loads = 2.0 * a**2 + 0.1, 0.5 * (1 - a**2) + 0.04
        assert loads[0] * found.laplace**2 + loads[1] * found.gaussian**2 <= 1 + 1e-12
    assert 1 / found.laplace**2 == pytest.approx(2.0 * 1.16)


class LessLaplace(type(LAPLACE_NOISE)):
    """A mechanism whose event has half of the noise that it is asked for."""

    def event(self, noise_multiplier):
        return LaplaceDpEvent(noise_multiplier / 2)


def test_the_noise_is_that_of_the_mechanisms_events():
    table = Table()
    group = Group()
    spent = _Spent.of(MechanismUse(table, LessLaplace(), {(group, 0): 0.25}, size=1))
    spent.add(_Spent.of(MechanismUse(table, GAUSSIAN_NOISE, {(group, 1): 0.0625}, size=3)))
    assert spent.event() == SharedDpEvent(1.0, 4.0)
