"""Parameters left open: the event is a function of them, and says at numbers what a proof with numbers says."""

import math
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import assume, given, settings, strategies as st

import discreet as dp
from discreet import mechanisms
from discreet.privacy.accounting import profile
from discreet.privacy.verify._claims import covers, formula_lines
from discreet.privacy.verify._symbols import event_at, numbers_of

from .programs import KEY, M, N, W, X, Y, clipped_sum, gradients, noisy

sigma, C, D, lr, q = map(dp.symbol, ("sigma", "C", "D", "lr", "q"))
S, T = dp.symbol("S", integer=True), dp.symbol("T", integer=True)


def certify(step, *symbols, **options):
    """For steps of (w, xs, ys, mask, key, *symbols)."""
    return dp.certify(step, W, X, Y, M, KEY, *symbols, records=(1, 2), mask=3, **options)


def descent(w, xs, ys, mask, key, lr, sigma, C):
    total = jax.tree.map(lambda x: lr * x, clipped_sum(w, xs, ys, mask, C))
    return jax.tree.map(jnp.subtract, w, noisy(key, total, lr * sigma * C))


def absolute(w, xs, ys, mask, key, sigma, C):
    return noisy(key, clipped_sum(w, xs, ys, mask, C), sigma)


def apart(w, xs, ys, mask, key, sigma, C, D):
    found = gradients(w, xs, ys)
    sums = [
        dp.sum_records(dp.clip_records(found[k], norm), mask) for k, norm in (("a", C), ("b", D))
    ]
    return noisy(key, sums, sigma)


def twice(w, xs, ys, mask, key, sigma, C):
    first, second = jax.random.split(key)
    total = clipped_sum(w, xs, ys, mask, C)
    return noisy(first, total, sigma), dp.laplace_mechanism(second, total, 3 * sigma)


def by_a_norm_within(w, xs, ys, mask, key, sigma, C):
    norm = jnp.sqrt(C * C)
    return noisy(key, clipped_sum(w, xs, ys, mask, norm), -sigma / jnp.square(norm))


def sampled(w, xs, ys, mask, key, q, sigma, C):
    draw, noise = jax.random.split(key)
    (xs, ys, kept), real = dp.poisson_subsample(draw, (xs, ys, mask), q)
    return noisy(noise, clipped_sum(w, xs, ys, kept & real, C), sigma * C)


def scanned(w, xs, ys, mask, key, q, sigma, C):
    def turn(w, key):
        return jax.tree.map(
            lambda a, b: a - 0.1 * b, w, sampled(w, xs, ys, mask, key, q, sigma, C)
        ), None

    return jax.lax.scan(turn, w, jax.random.split(key, 7))[0]


def trained(w, xs, ys, mask, key, q, sigma, C, T):
    def turn(i, state):
        w, key = state
        own, key = jax.random.split(key)
        return jax.tree.map(
            lambda a, b: a - 0.1 / q * b, w, sampled(w, xs, ys, mask, own, q, sigma, C)
        ), key

    return jax.lax.fori_loop(0, T, turn, (w, key))[0]


def folded(w, xs, ys, mask, key, sigma, C, T):
    def turn(i, w):
        own = jax.random.fold_in(key, i)
        released = dp.laplace_mechanism(own, clipped_sum(w, xs, ys, mask, C), sigma)
        return jax.tree.map(lambda a, b: a - 0.1 * b, w, released)

    return jax.lax.fori_loop(0, T, turn, w)


def folded_later(w, xs, ys, mask, key, sigma, C, T):
    return jax.lax.fori_loop(
        0,
        T,
        lambda i, w: noisy(jax.random.fold_in(key, i + 1), clipped_sum(w, xs, ys, mask, C), sigma),
        w,
    )


def within(w, xs, ys, mask, key, sigma, S, T):
    """Loops in a loop, and in a scan."""

    def release(key, total):
        def turn(j, total):
            return total + noisy(
                jax.random.fold_in(key, j), clipped_sum(w, xs, ys, mask, 1.0)["b"], sigma
            )

        return jax.lax.fori_loop(0, S, turn, total)

    first, second = jax.random.split(key)
    total = jax.lax.fori_loop(
        0, T, lambda i, t: release(jax.random.fold_in(first, i), t), jnp.zeros(())
    )
    return jax.lax.scan(lambda t, own: (release(own, t), None), total, jax.random.split(second, 4))[
        0
    ]


def of_one_sample(w, xs, ys, mask, key, sigma, T):
    draw, loop = jax.random.split(key)
    (x, y, kept), real = dp.poisson_subsample(draw, (xs, ys, mask), 0.25)

    def turn(i, out):
        total = clipped_sum({"a": w["a"], "b": out}, x, y, kept & real, 1.0)["b"]
        return out + noisy(jax.random.fold_in(loop, i), total, sigma)

    return jax.lax.fori_loop(0, T, turn, jnp.zeros(()))


def branches(w, xs, ys, mask, key, sigma, C, D):
    total = clipped_sum(w, xs, ys, mask, C)
    return jax.lax.cond(
        D > 1.0, lambda: noisy(key, total, sigma), lambda: noisy(key, total, 2.0 * D)
    )


def nothing(w, xs, ys, mask, key, sigma):
    return w["a"] * sigma


PROGRAMS = [
    (descent, (lr, sigma, C)),
    (absolute, (sigma, C)),
    (absolute, (sigma * C, C)),
    (absolute, (C * sympy.sqrt(2 * sympy.log(1 + 1 / D)) / sigma, C)),
    (apart, (sigma, C, D)),
    (apart, (sigma, C, C)),
    (twice, (sigma, C)),
    (by_a_norm_within, (sigma, C)),
    (sampled, (q, sigma, C)),
    (scanned, (q, sigma, C)),
    (trained, (q, sigma, C, T)),
    (folded, (sigma, C, T)),
    (folded, (sigma, C, 2 * T)),
    (folded_later, (sigma, C, T)),
    (within, (sigma, S, T)),
    (of_one_sample, (sigma, T)),
    (branches, (sigma, C, D)),
    (nothing, (sigma,)),
]
RELATIONS = [dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE]


@pytest.fixture(scope="module")
def certificates():
    kept = {}

    def certificate(number, relation):
        if (number, relation) not in kept:
            step, symbols = PROGRAMS[number]
            kept[number, relation] = certify(step, *symbols, relation=relation)
        return kept[number, relation]

    return certificate


values_of_symbols = st.fixed_dictionaries(
    {
        "sigma": st.floats(0.05, 50.0),
        "C": st.floats(1e-3, 1e3),
        "D": st.floats(1e-3, 1e3).filter(lambda x: abs(x - 1) > 0.01),
        "lr": st.floats(1e-4, 10.0),
        "q": st.sampled_from([0.01, 0.1, 0.25, 0.7, 1.0]),
        "S": st.integers(1, 20),
        "T": st.integers(1, 50),
    }
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, len(PROGRAMS) - 1), st.sampled_from(RELATIONS), values_of_symbols)
def test_at_numbers_the_formula_is_the_proof(certificates, number, relation, values):
    step, symbols = PROGRAMS[number]
    certificate = certificates(number, relation)
    own = {str(s): values[str(s)] for x in symbols for s in x.free_symbols}
    given = [x.subs({s: own[str(s)] for s in x.free_symbols}) for x in symbols]
    given = [int(x) if y.is_integer else float(x) for x, y in zip(given, symbols, strict=True)]
    # Numbers that the step holds: what certify made of programs before there were symbols.
    held = certify(lambda *x: step(*x, *given), relation=relation)
    formula = event_at(certificate.event, own)
    # The certificate assumes noise multipliers of at most 2**16: beyond, rounding counts.
    assume(all(x <= 2**16 for x in numbers_of(formula)))
    assert covers(formula, held.event, held.slack, relation)
    if step is not branches:
        assert covers(held.event, formula, held.slack, relation)
    found = certificate.at(**own)
    assert found.event == held.event
    assert found.slack == held.slack
    assert not found.symbols


def test_events_as_functions():
    assert certify(descent, lr, sigma, C).event == GaussianDpEvent(sigma)
    assert certify(absolute, sigma, C).event == GaussianDpEvent(sigma / C)
    assert certify(apart, sigma, C, D).event == GaussianDpEvent(
        1 / sympy.sqrt(C**2 / sigma**2 + D**2 / sigma**2)
    )
    step = PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
    assert certify(sampled, q, sigma, C).event == step
    assert certify(trained, q, sigma, C, T).event == SelfComposedDpEvent(step, T)
    assert certify(sampled, q, sigma, C, times=T).event == SelfComposedDpEvent(step, T)
    assert certify(scanned, q, sigma, C).event == SelfComposedDpEvent(step, 7)
    assert certify(scanned, q, sigma, C, times=T).event == SelfComposedDpEvent(step, 7 * T)
    assert certify(nothing, sigma).event == NoOpDpEvent()
    counts = [SelfComposedDpEvent(GaussianDpEvent(sigma), n) for n in (S * T, 4 * S)]
    assert certify(within, sigma, S, T).event == ComposedDpEvent(counts)
    assert certify(of_one_sample, sigma, T).event == PoissonSampledDpEvent(
        0.25, GaussianDpEvent(sigma / sympy.sqrt(T))
    )


def test_what_cancels_is_gone():
    certificate = certify(descent, lr, 1.5 * D / D, C)
    assert certificate.event == GaussianDpEvent(1.5)
    assert certificate.symbols == ()
    assert certificate.epsilon(1e-5) == pytest.approx(
        certify(lambda *x: descent(*x, 0.1, 1.5, 2.0)).epsilon(1e-5)
    )
    assert certify(absolute, C, C).event == GaussianDpEvent(1.0)
    assert certify(absolute, C, D).event == GaussianDpEvent(C / D)
    assert certify(absolute, dp.symbol("D"), D).event == GaussianDpEvent(1.0)
    assert certify(descent, lr, sigma, C).symbols == ("sigma",)


def leaks():
    def unnoised(w, xs, ys, mask, key, C):
        return clipped_sum(w, xs, ys, mask, C)["a"] * C

    def unclipped(w, xs, ys, mask, key, C):
        return noisy(key, dp.sum_records(xs * C, mask), C)

    def noise_of_records(w, xs, ys, mask, key, C):
        return noisy(key, clipped_sum(w, xs, ys, mask, C), C * jnp.max(jnp.abs(xs)))

    def norm_of_records(w, xs, ys, mask, key, C):
        return noisy(key, clipped_sum(w, xs, ys, mask, C * jnp.max(jnp.abs(xs))), C)

    def rate_of_records(w, xs, ys, mask, key, q):
        return sampled(w, xs, ys, mask, key, q * jnp.mean(mask), 2.0, 1.0)

    def mixed_with_a_number(w, xs, ys, mask, key, C):
        return noisy(key, clipped_sum(w, xs, ys, mask, C), C + w["b"])

    def rounded(w, xs, ys, mask, key, C):
        return noisy(
            key, clipped_sum(w, xs, ys, mask, C), C.astype(jnp.bfloat16).astype(jnp.float32)
        )

    def cut(w, xs, ys, mask, key, C):
        return noisy(key, clipped_sum(w, xs, ys, mask, C), jnp.minimum(C, 1.0))

    def carried(w, xs, ys, mask, key, C):
        def turn(C, key):
            return 0.5 * C, noisy(key, clipped_sum(w, xs, ys, mask, 1.0), C)

        return jax.lax.scan(turn, C, jax.random.split(key, 3))

    def twice_the_key(w, xs, ys, mask, key, C):
        total = clipped_sum(w, xs, ys, mask, C)
        return noisy(key, total, C), noisy(key, total, C)

    def rate_of_a_released_number(w, xs, ys, mask, key, q):
        first, second = jax.random.split(key)
        released = noisy(first, clipped_sum(w, xs, ys, mask, 1.0), 1.0)["b"]
        return sampled(w, xs, ys, mask, second, q * jnp.abs(released), 2.0, 1.0)

    return [value for name, value in locals().items() if callable(value)]


@pytest.mark.parametrize("step", leaks(), ids=lambda f: f.__name__)
def test_symbols_open_no_leak(step):
    with pytest.raises(dp.PrivacyError):
        certify(step, q)


def loops():
    def turn_of(w, xs, ys, mask):
        def turn(i, state):
            total, key = state
            own, key = jax.random.split(key)
            return total + noisy(own, clipped_sum(w, xs, ys, mask, 1.0), 2.0)["b"], key

        return turn

    def counting(start, step, test, end=lambda n: n):
        def program(w, xs, ys, mask, key, T):
            turn = turn_of(w, xs, ys, mask)

            def body(state):
                i, n, total, key = state
                return i + step, end(n), *turn(i, (total, key))

            return jax.lax.while_loop(
                lambda s: test(s[0], s[1]), body, (start, T, jnp.zeros(()), key)
            )[2]

        return program

    def the_same_key(w, xs, ys, mask, key, T):
        turn = turn_of(w, xs, ys, mask)
        return jax.lax.fori_loop(0, T, lambda i, t: turn(i, (t, key))[0], jnp.zeros(()))

    def a_sample_for_the_next_turn(w, xs, ys, mask, key, T):
        def turn(i, state):
            before, total, key = state
            draw, noise, key = jax.random.split(key, 3)
            (x, y, kept), real = dp.poisson_subsample(draw, (xs, ys, mask), 0.1)
            now = clipped_sum(w, x, y, kept & real, 1.0)["b"]
            return now, total + noisy(noise, before, 2.0), key

        return jax.lax.fori_loop(0, T, turn, (jnp.zeros(()), jnp.zeros(()), key))[1]

    def a_sample_out_of_the_loop(w, xs, ys, mask, key, T):
        last, loop = jax.random.split(key)

        def turn(i, state):
            _, key = state
            draw, key = jax.random.split(key)
            (x, y, kept), real = dp.poisson_subsample(draw, (xs, ys, mask), 0.1)
            return clipped_sum(w, x, y, kept & real, 1.0)["b"], key

        return noisy(last, jax.lax.fori_loop(0, T, turn, (jnp.zeros(()), loop))[0], 2.0)

    def a_sum_that_grows(w, xs, ys, mask, key, T):
        def turn(i, state):
            total, out, key = state
            own, key = jax.random.split(key)
            total = total + clipped_sum(w, xs, ys, mask, 1.0)["b"]
            return total, out + noisy(own, total, 2.0), key

        return jax.lax.fori_loop(0, T, turn, (jnp.zeros(()), jnp.zeros(()), key))[1]

    def noise_that_fades(w, xs, ys, mask, key, T):
        def turn(i, state):
            out, size, key = state
            own, key = jax.random.split(key)
            return out + noisy(own, clipped_sum(w, xs, ys, mask, 1.0), size)["b"], 0.5 * size, key

        return jax.lax.fori_loop(0, T, turn, (jnp.zeros(()), 2.0, key))[0]

    def as_many_turns_as_records(w, xs, ys, mask, key, T):
        turn = turn_of(w, xs, ys, mask)
        return jax.lax.fori_loop(0, T + jnp.sum(mask), turn, (jnp.zeros(()), key))[0]

    def one(w, xs, ys, mask, key):
        return noisy(key, clipped_sum(w, xs, ys, mask, 1.0), 2.0)["b"]

    def the_same_keys_in_two_loops(w, xs, ys, mask, key, T):
        def loop():
            return jax.lax.fori_loop(
                0,
                T,
                lambda i, t: t + one(w, xs, ys, mask, jax.random.fold_in(key, i)),
                jnp.zeros(()),
            )

        return loop() + loop()

    def the_counter_of_the_turn_before(w, xs, ys, mask, key, T):
        def turn(i, state):
            total, before = state
            return total + sum(
                one(w, xs, ys, mask, jax.random.fold_in(key, n)) for n in (i, before)
            ), i

        return jax.lax.fori_loop(0, T, turn, (jnp.zeros(()), -1))[0]

    def the_counter_after_the_loop(w, xs, ys, mask, key, T):
        last = jax.lax.fori_loop(0, T, lambda i, _: i, 0)
        return [one(w, xs, ys, mask, jax.random.fold_in(key, n)) for n in (0, last)]

    found = {name: value for name, value in locals().items() if callable(value)}
    del found["one"]
    del found["turn_of"], found["counting"]
    return found | {
        "from below": counting(-5, 1, lambda i, n: i < n),
        "by fewer": counting(0, 0, lambda i, n: i < n),
        "to the end itself": counting(0, 1, lambda i, n: i <= n),
        "to twice the end": counting(0, 1, lambda i, n: i < 2 * n),
        "the other way": counting(0, 1, lambda i, n: n < i),
        "an end that moves": counting(0, 1, lambda i, n: i < n, lambda n: n + 1),
    }


@pytest.mark.parametrize("name", loops())
def test_loops_that_are_counted_wrongly(name):
    with pytest.raises(dp.PrivacyError):
        certify(loops()[name], T)


def test_a_price_in_closed_form():
    epsilon = sympy.Symbol("epsilon", nonnegative=True)
    for relation in RELATIONS:
        certificate = certify(absolute, sigma, C, times=T, relation=relation)
        delta = certificate.delta_expression(epsilon)
        assert {str(s) for s in delta.free_symbols} == {"sigma", "C", "T", "epsilon"}
        assert certificate.delta_expression() == delta
        for numbers in ({"sigma": 8.0, "C": 2.0, "T": 30}, {"sigma": 0.9, "C": 0.5, "T": 1}):
            found = certificate.at(**numbers)
            function = sympy.lambdify(
                [epsilon],
                delta.subs({s: numbers[str(s)] for s in (sigma, C, T)}),
                modules=["scipy", "numpy"],
            )
            for x in (0.0, 0.3, 1.0, 4.0, 9.0):
                far = found.slack * (1 + np.exp(x))
                assert found.delta(x) == pytest.approx(function(x) + far, rel=1e-6, abs=1e-15)
                assert found.delta(x) >= function(x) * (1 - 1e-9)
            at_delta = found.epsilon(1e-5)
            assert function(at_delta) == pytest.approx(1e-5, rel=1e-4)


def test_a_laplace_price_in_closed_form():
    def step(xs, mask, key, b):
        return dp.laplace_mechanism(key, dp.sum_records(dp.clip_records(xs, 1.0), mask), b)

    for relation in RELATIONS:
        certificate = dp.certify(
            step, X[:, :1], M, KEY, sigma, records=0, mask=1, relation=relation
        )
        for x in (0.1, 2.0):
            exact = float(certificate.delta_expression(x).subs(sigma, 2.5))
            found = certificate.delta(x, sigma=2.5)
            assert exact - 1e-9 <= found <= exact * (1 + 1e-3) + 1e-5
        assert ", exactly" in str(certificate)


def test_what_has_no_closed_form_says_so():
    assert certify(nothing, sigma).delta_expression() == 0
    certificate = certify(sampled, q, sigma, C, times=T)
    with pytest.raises(ValueError, match="No closed form"):
        certificate.delta_expression()
    assert "certificate.epsilon(delta, T=..., q=..., sigma=...)" in str(certificate)
    mixed = certify(twice, sigma, C)
    assert formula_lines(mixed.event, mixed.relation) == []
    assert ", exactly" not in str(mixed)
    replaced = certify(sampled, q, sigma, C, relation=dp.Relation.REPLACE_ONE)
    assert ", exactly" not in str(replaced)


def test_the_formula_for_samples_is_the_price():
    """The expectations that a certificate prints, by 400,000 draws; the standard error is below 3e-4."""
    certificate = certify(sampled, q, sigma, C, times=T)
    text = str(certificate)
    assert "sum of T independent log(q*exp((2*x - 1)/(2*sigma**2)) - q + 1)" in text
    numbers = {"q": 0.3, "sigma": 1.5, "T": 6}
    rate, z, turns = 0.3, 1.5, 6
    rng = np.random.default_rng(7)

    def losses(chance):
        x = z * rng.standard_normal((400_000, turns)) + (rng.random((400_000, turns)) < chance)
        return np.log(rate * np.exp((2 * x - 1) / (2 * z**2)) - rate + 1).sum(axis=1)

    found = certificate.at(**numbers).profile()
    L, M = losses(rate), losses(0.0)
    for epsilon in (0.0, 0.5, 1.5):
        both = [
            np.maximum(0, 1 - np.exp(epsilon - L)).mean(),
            np.maximum(0, 1 - np.exp(epsilon + M)).mean(),
        ]
        assert found.delta(epsilon) == pytest.approx(max(both), abs=1.5e-3)


def test_claims_about_open_events():
    step = PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
    certify(sampled, q, sigma, C, times=T, expect=SelfComposedDpEvent(step, T))
    certify(sampled, q, sigma, C, times=T, expect=SelfComposedDpEvent(step, 2 * T))
    certify(absolute, sigma, C, times=T, expect=GaussianDpEvent(sigma / (C * sympy.sqrt(T))))
    certify(absolute, sigma, C, expect=GaussianDpEvent(0.5 * sigma / C))
    certify(absolute, sigma, C, expect=ComposedDpEvent([GaussianDpEvent(sigma / C), step]))
    for wrong in (
        SelfComposedDpEvent(step, T - 1),
        step,
        SelfComposedDpEvent(PoissonSampledDpEvent(q / 2, GaussianDpEvent(sigma)), T),
        SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 100),
        GaussianDpEvent(sigma),
    ):
        with pytest.raises(
            dp.PrivacyError, match=r"more than was declared.*for all values of .*sigma"
        ):
            certify(sampled, q, sigma, C, times=T, expect=wrong)
    with pytest.raises(
        dp.PrivacyError,
        match=r"Gaussian noise of 2\*sigma/C times .* Gaussian noise of sigma/C times",
    ):
        certify(absolute, sigma, C, expect=GaussianDpEvent(2 * sigma / C))


def test_calls_are_counted():
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(rate=0.25),
        clipping_norm=2.0,
        noise_multiplier=1.5,
        num_steps=20,
        num_records=N,
    )
    once = certify(lambda *x: sampled(*x, 0.25, 1.5, 2.0))
    many = certify(lambda *x: sampled(*x, 0.25, 1.5, 2.0), times=20, expect=plan)
    assert many.event == plan.event()
    assert many.times == 20
    assert many.slack == 20 * once.slack > 0
    assert any("called at most 20 times" in x for x in many.assumptions)
    assert not any("called at most" in x for x in once.assumptions)
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        certify(lambda *x: sampled(*x, 0.25, 1.5, 2.0), times=21, expect=plan)
    for wrong in (0, -1, 1.5, math.inf, math.nan, True, "3", None):
        with pytest.raises(ValueError, match="whole number of times"):
            certify(descent, 0.1, 1.0, 1.0, times=wrong)
    assert certify(absolute, sigma, C, times=20 / q).at(q=0.1).times == 200
    with pytest.raises(ValueError, match="whole number of times"):
        certify(absolute, sigma, C, times=20 / q).at(q=0.03)


def test_values_have_conditions():
    certificate = certify(sampled, q, sigma, C, times=T)
    assert any("C, T, q, sigma are public, positive" in x for x in certificate.assumptions)
    for wrong in (0.0, -1.0, 1e-31, 1e31, math.inf, math.nan, True, "2", None, 1j):
        with pytest.raises(ValueError, match=r"sigma is .*; a proof covers"):
            certificate.at(sigma=wrong)
    with pytest.raises(ValueError, match=r"no symbol z: it has C, T, q, sigma"):
        certificate.at(z=1.0)
    with pytest.raises(ValueError, match="not a probability"):
        certificate.at(q=1.5)
    with pytest.raises(ValueError, match="made with integer=True"):
        certificate.at(T=2.5)
    with pytest.raises(ValueError, match="depends on q, sigma"):
        certificate.epsilon(1e-5, T=3)
    assert math.isnan(certificate.slack)
    assert (
        certificate.at(q=0.1, sigma=1.0, T=4).slack
        == certify(lambda *x: sampled(*x, 0.1, 1.0, 2.0), times=4).slack
    )
    assert certificate.at(
        q=np.float32(0.25), sigma=np.int64(1), T=np.int32(4)
    ).event == SelfComposedDpEvent(PoissonSampledDpEvent(0.25, GaussianDpEvent(1.0)), 4)

    def small(w, xs, ys, mask, key, q):
        return dp.poisson_subsample(key, (xs, ys, mask), q, 20)[1].shape[0]

    with pytest.raises(ValueError, match="capacity = 20 is too small"):
        certify(small, q).at(q=0.9)


def test_some_values_may_stay_open():
    certificate = certify(sampled, q, sigma, C, times=T).at(q=0.25)
    assert certificate.symbols == ("T", "sigma")
    priced = profile(
        SelfComposedDpEvent(PoissonSampledDpEvent(0.25, GaussianDpEvent(2.0)), 5),
        dp.Relation.ADD_OR_REMOVE_ONE,
    )
    # C cancels, and needs no value.
    assert certificate.epsilon(1e-5, sigma=2.0, T=5) == pytest.approx(
        priced.epsilon(1e-5), rel=1e-9
    )
    assert certificate.delta(1.0, sigma=2.0, T=5) == pytest.approx(
        float(priced.delta(1.0)), rel=1e-9
    )


def test_it_runs_with_the_numbers_that_it_was_given():
    certificate = certify(descent, lr, sigma, C, times=T)
    found = certificate.at(lr=0.1, sigma=1.5, C=2.0, T=3)
    ours, theirs = found(W, X, Y, M, KEY, 0.1, 1.5, 2.0), descent(W, X, Y, M, KEY, 0.1, 1.5, 2.0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)
    for wrong in (0.26, 1.0, jnp.nan):
        with pytest.raises(ValueError, match="certificate is for"):
            found(W, X, Y, M, KEY, wrong, 1.5, 2.0)
    with pytest.raises(ValueError, match="the certificate is for"):
        jax.jit(lambda rate: found(W, X, Y, M, KEY, rate, 1.5, 2.0))(0.1)
    # With what stays open there is a formula, and no proof of the numbers that the program would
    # run with.
    with pytest.raises(ValueError, match=r"certificate.at\(C=..., T=...\)"):
        certificate.at(lr=0.1, sigma=1.5)(W, X, Y, M, KEY, 0.1, 1.5, 2.0)


def test_a_rate_is_open_in_proofs_only():
    certificate = certify(sampled, q, sigma, C)
    with pytest.raises(ValueError, match=r"certificate.at\(C=..., q=..., sigma=...\)"):
        certificate(W, X, Y, M, KEY, 0.25, 1.5, 2.0)
    with pytest.raises(ValueError, match="rate is traced"):
        jax.jit(sampled)(W, X, Y, M, KEY, 0.25, 1.5, 2.0)
    released = certificate.at(q=0.25, sigma=1.5, C=2.0)(W, X, Y, M, KEY, 0.25, 1.5, 2.0)
    assert np.isfinite(released["a"]).all()


def test_beyond_the_multipliers_that_a_formula_assumes_the_proof_with_numbers_stands():
    most = mechanisms.GAUSSIAN.most_multiplier(2)
    cell = mechanisms.GAUSSIAN.cell(2, most, 3)

    def step(xs, mask, key, sigma):
        return noisy(key, dp.sum_records(dp.clip_records(xs, 1.0), mask), sigma)

    formula = dp.certify(
        step, jnp.ones((4, 2)), jnp.ones(4, bool), KEY, sigma, records=0, mask=1, times=3
    )
    assert any(f"noise multipliers are at most {most:.4g}" in x for x in formula.assumptions)
    within, beyond = formula.at(sigma=most / 2), formula.at(sigma=2 * most)
    assert within.event.event.noise_multiplier == pytest.approx(most / 2, rel=1e-12)
    assert within.notes == ()
    # Above them it costs more than the formula says, and no more than the proof does that is made
    # with numbers from the start.
    known = dp.certify(
        lambda *x: step(*x, 2 * most), jnp.ones((4, 2)), jnp.ones(4, bool), KEY, records=0, mask=1
    )
    assert beyond.event.event.noise_multiplier == pytest.approx(
        (1 + most * cell) / (0.5 / most + cell), rel=1e-9
    )
    assert beyond.event.event.noise_multiplier == known.event.noise_multiplier < 2 * most
    assert any("exceeds the limit of the grid" in x for x in beyond.notes)


def test_a_program_that_looks_at_types_is_found_out():
    def step(w, xs, ys, mask, key, sigma):
        return noisy(
            key,
            clipped_sum(w, xs, ys, mask, 1.0),
            sigma * (0.5 if isinstance(sigma, float) else 1.0),
        )

    with pytest.raises(dp.PrivacyError, match="program differs"):
        certify(step, sigma).at(sigma=2.0)


def test_a_traced_rate_is_no_symbol():
    with pytest.raises(dp.PrivacyError, match="sampling rate is not known"):
        certify(sampled, 0.1, 1.5, 2.0)
    with pytest.raises(ValueError, match="rate is traced"):
        jax.jit(lambda rate: dp.poisson_subsample(KEY, X, rate))(0.1)
    with pytest.raises(TypeError, match="under vmap"):
        jax.vmap(lambda rate: dp.poisson_subsample(KEY, X, rate))(jnp.ones(2))


def test_what_is_no_symbol_of_ours():
    with pytest.raises(ValueError, match="not declared positive"):
        certify(absolute, sympy.Symbol("sigma"), C)
    with pytest.raises(ValueError, match="not declared positive"):
        certify(absolute, sigma, C, times=sympy.Symbol("T"))
    for wrong in ("", "a b", "2", None, sigma):
        with pytest.raises(ValueError, match="is not a Python identifier"):
            dp.symbol(wrong)
    with pytest.raises(ValueError, match="records need a leading axis"):
        dp.certify(lambda *x: x[0], W, X, sigma, M, KEY, records=(1, 2), mask=3)


def test_shapes_and_lengths_are_no_symbols():
    def step(w, xs, ys, mask, key, T):
        return jax.lax.scan(lambda c, _: (c, None), w, length=T)[0]

    with pytest.raises(TypeError) as caught:
        certify(step, T)
    assert "times=dp.symbol" in "".join(caught.value.__notes__)


def test_the_page_prints_what_it_says(repository: Path):
    page = (repository / "docs/proofs.md").read_text(encoding="utf-8")
    names: dict = {}
    notebook = (repository / "docs/notebooks/proofs.py").read_text(encoding="utf-8")
    exec(compile(notebook, "docs/notebooks/proofs.py", "exec"), names)
    certificate = names["proof"]
    assert any(
        str(certificate).startswith(printed)
        for printed in re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    )
    found = certificate.at(q=0.01, sigma=1.5, T=500)
    assert found.event == SelfComposedDpEvent(
        PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), 500
    )


def test_the_figures_of_the_page(repository: Path):
    n, b, k, delta, each = 48_000, 2000, 1000, 1e-5, 0.2
    share = (delta / 2) * n / (b * k)
    theirs = 4 * b / n * each * math.sqrt(2 * k * math.log(2 / delta))
    z = math.sqrt(2 * math.log(1.25 / share)) / each
    # Under REPLACE_ONE the sensitivity is 2C, and a noise multiplier is relative to C.
    step = SampledWithoutReplacementDpEvent(n, b, GaussianDpEvent(2 * z))
    ours = profile(SelfComposedDpEvent(step, k), dp.Relation.REPLACE_ONE).epsilon(delta)
    page = (repository / "docs/verified-mnist.md").read_text(encoding="utf-8")
    assert f"its formula gives ε = {theirs:.2f}" in page
    assert f"and {ours:.3f}." in page


def test_proofs_without_symbols_need_no_sympy():
    code = """
import sys
sys.modules["sympy"] = None
import jax.numpy as jnp, discreet as dp

def step(key, xs, mask, C):
    first, second = __import__("jax").random.split(key)
    (xs, kept), real = dp.poisson_subsample(first, (xs, mask), 0.5)
    return dp.gaussian_mechanism(second, dp.sum_records(dp.clip_records(xs, C), kept & real), stddev=6.0 * C)

certificate = dp.certify(step, dp.random.key(), jnp.ones((20, 3)), jnp.ones(20, bool), 2.0, records=1, mask=2, times=3)
print(certificate)
try:
    dp.symbol("sigma")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "count=3" in done.stdout
    assert "discreet[symbolic]" in done.stdout
