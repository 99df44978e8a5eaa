"""Attacks with numbers that wrap, overflow, vanish or are none."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import discreet as dp

from .dishonest import (
    Attacks,
    Z,
    clipped,
    guarded,
    marked,
    noise,
    norms,
    nothing_worse_than_certified,
    total,
)
from .programs import N, X

attack = Attacks()


@attack("negative integers become huge unsigned ones")
def to_unsigned(w, x, y, m, k):
    whole = jnp.where(jnp.isfinite(x), jnp.clip(x, -1, 1), 0.0).astype(jnp.int32)
    return noise(k, total(whole.astype(jnp.uint32).astype(jnp.float32), m), 2.0)


@attack("a product of numbers overflows and is scaled back")
def overflow_of_rows(w, x, y, m, k):
    big = jnp.clip(guarded(x), -1e30, 1e30)
    return noise(k, total(big * big * 1e-30 * 1e-30, m), 2.0)


@attack("rows are scaled to infinity and back")
def overflow_of_clipped(w, x, y, m, k):
    return noise(k, total(marked(x, 1e3) * 1e37 * 1e-37, m), 1e3)


@attack("a sum is scaled to infinity and back")
def overflow_of_sum(w, x, y, m, k):
    return noise(k, total(marked(x), m) * 1e38 * 1e-38)


@attack("a sum vanishes below a threshold and is scaled back")
def underflow_of_sum(w, x, y, m, k):
    return noise(k, total(marked(x, 1e-3), m) * 1e-37 * 1e-1 * 1e19 * 1e19, 1e-3)


@attack("a product with rows of too large norm")
def overflow_of_dot(w, x, y, m, k):
    big = jnp.clip(guarded(x), -1e30, 1e30)
    one = jnp.einsum("nd,nd->n", big, big) * 1e-30 * 1e-30
    return noise(k, total(one, m), 3.0)


@attack("a row times a public matrix overflows")
def overflow_by_matrix(w, x, y, m, k):
    big = marked(x, 1e20) @ jnp.full((3, 2), 1e20) * 1e-20 * 1e-20
    return noise(k, total(big, m), 3.0)


@attack("a count as a whole number wraps around in a product")
def count_wraps(w, x, y, m, k):
    count = jnp.sum(m.astype(jnp.int32))
    wrapped = lax.dot_general(
        count[None], jnp.array([[300_000_000]], jnp.int32), (((0,), (0,)), ((), ()))
    )
    return noise(k, wrapped.astype(jnp.float32) / 3e8)


@attack("a sum of large integers wraps around beside a leaf that does not")
def second_leaf_wraps(w, x, y, m, k):
    whole = jnp.clip(guarded(x), -1e9, 1e9).astype(jnp.int32)
    s = dp.sum_records({"a": marked(x), "b": whole}, m)
    return noise(k, s["b"].astype(jnp.float32) / 1e9, 2.0)


@attack("a noise scale that vanishes and is scaled back")
def noise_vanishes(w, x, y, m, k):
    s = w
    return dp.gaussian_mechanism(k, total(marked(x), m) * s, s * 1e-30 * 1e-30 * 1e30 * 1e30)


@attack("integers are divided towards zero, not down")
def division_of_constants(w, x, y, m, k):
    half = lax.div(jnp.int32(-3), jnp.int32(2)).astype(jnp.float32)
    return noise(k, total(marked(x) / half, m), 0.5)


@attack("a constant that is no number becomes a whole one")
def nan_constant(w, x, y, m, k):
    zero = lax.convert_element_type(jnp.sqrt(-jnp.ones(())), jnp.int32).astype(jnp.float32)
    return noise(k, total(marked(x) / zero, m))


@attack("half precision overflows")
def half(w, x, y, m, k):
    return noise(
        k, total(jnp.clip(guarded(x), -1e6, 1e6).astype(jnp.float16).astype(jnp.float32), m), 1e7
    )


@attack("integers overflow in half precision", records=jnp.ones((N, 3), jnp.uint16))
def half_of_whole(w, x, y, m, k):
    return noise(k, total(clipped(x.astype(jnp.float16).astype(jnp.float32)), m))


@attack("bfloat16 becomes float16, and infinite")
def brain_to_half(w, x, y, m, k):
    low = jnp.clip(guarded(x), -1e6, 1e6).astype(jnp.bfloat16)
    return noise(k, total(low.astype(jnp.float16).astype(jnp.float32), m), 1e7)


@attack("eight bits round coarsely", 0.95)
def eight_bits(w, x, y, m, k):
    return noise(k, total(marked(x, 1.0).astype(jnp.float8_e5m2).astype(jnp.float32), m))


@attack("NaN becomes a whole number")
def nan_to_whole(w, x, y, m, k):
    return noise(k, total(jnp.clip(x, -1, 1).astype(jnp.int32).astype(jnp.float32), m), 2.0)


@attack("the bits of a row are another number")
def bitcast(w, x, y, m, k):
    bits = lax.bitcast_convert_type(marked(x), jnp.int32)
    return noise(k, total(bits.astype(jnp.float32), m))


@attack("the least whole number has no absolute value")
def least_whole(w, x, y, m, k):
    low = jnp.clip(guarded(x), -128, 127).astype(jnp.int8)
    return noise(k, total((-low - 1).astype(jnp.float32), m), 1.0)


@attack("powers of clipped rows, scaled", Z / 100.0)
def powers(w, x, y, m, k):
    return noise(k, total((marked(x) * 10.0) ** 2, m))


@attack("a logarithm of clipped rows")
def logs(w, x, y, m, k):
    return noise(k, total(jnp.log(marked(x)), m), 10.0)


@attack("rows scaled by 0 and divided by 0")
def zero_over_zero(w, x, y, m, k):
    return noise(k, total(marked(x) * 0.0 / 0.0, m))


@attack("a sum scaled by 0 and divided by 0")
def zero_sum(w, x, y, m, k):
    return noise(k, total(marked(x), m) * 0.0 / 0.0)


@attack("a sum rounded to integers")
def rounded(w, x, y, m, k):
    return noise(k, jnp.round(total(marked(x, 1e-3), m)), 1e-3)


@attack("a sum as truth value")
def truth_of_sum(w, x, y, m, k):
    return noise(k, (total(marked(x, 1e-3), m) > 0.5).astype(jnp.float32), 1e-3)


@attack(
    "a coarse number that passed through half precision is not the one that was looked at",
    records=X.astype(jnp.bfloat16),
)
def through_half(w, x, y, m, k):
    here = x.astype(jnp.float16).astype(jnp.float32)
    g = jnp.where(jnp.isfinite(x.astype(jnp.float32)), here, 0.0)
    return noise(k, total(clipped(g), m))


@attack("eight bits of another kind", records=X.astype(jnp.float8_e5m2))
def through_eight(w, x, y, m, k):
    here = x.astype(jnp.float8_e4m3fn).astype(jnp.float32)
    g = jnp.where(jnp.isfinite(x.astype(jnp.float32)), here, 0.0)
    return noise(k, total(clipped(g), m))


@attack("a norm in half precision clips numbers in full", records=X.astype(jnp.bfloat16))
def norm_of_other(w, x, y, m, k):
    here = guarded(x.astype(jnp.float16).astype(jnp.float32))
    return noise(k, total(x.astype(jnp.float32) * jnp.minimum(1.0, 1.0 / norms(here))[:, None], m))


@attack("NaN is hidden by a comparison with itself, infinity is not")
def only_nan(w, x, y, m, k):
    return noise(k, total(clipped(jnp.where(x == x, x, 0.0)), m))


@attack("infinity becomes a number, NaN does not")
def only_infinity(w, x, y, m, k):
    return noise(k, total(clipped(jnp.clip(x, -9.0, 9.0)), m))


@attack("the guard is inverted")
def inverted_guard(w, x, y, m, k):
    return noise(k, total(clipped(jnp.where(jnp.isfinite(x), 0.0, x)), m))


@attack("the guard of another array")
def guard_of_other(w, x, y, m, k):
    return noise(k, total(clipped(jnp.where(jnp.isfinite(y)[:, None], x, 0.0)), m))


@attack("the guard looks at the row before it is divided")
def divided_after_guard(w, x, y, m, k):
    g = guarded(x)
    return noise(k, total(clipped(g / (g - 0.5)), m))


@attack("one finite element guards a row")
def any_finite(w, x, y, m, k):
    return noise(k, total(clipped(jnp.where(jnp.any(jnp.isfinite(x), 1)[:, None], x, 0.0)), m))


@attack("finite or kept")
def finite_or_kept(w, x, y, m, k):
    return noise(k, total(clipped(jnp.where(jnp.isfinite(x) | m[:, None], x, 0.0)), m))


@attack("filled with NaN where the mask drops")
def filled_with_nan(w, x, y, m, k):
    return noise(k, jnp.sum(jnp.where(m[:, None], marked(x), jnp.nan), 0))


@attack("the sine of an imaginary number has no bound")
def imaginary_sine(w, x, y, m, k):
    sine = jnp.abs(jnp.sin(jnp.sqrt(x.astype(jnp.complex64))))
    return noise(k, total(jnp.where(jnp.isfinite(sine), sine, 0.0), m), 3.0**0.5)


@attack("an imaginary factor is taken for zero")
def imaginary_factor(w, x, y, m, k):
    rows = jnp.where(m[:, None], jnp.clip(guarded(x), -1, 1), 0.0).astype(jnp.complex64)
    return noise(k, jnp.abs(rows.sum(0) * jnp.complex64(100j)))


@attack("four bits wrap around", Z / 15.0)
def four_bits(w, x, y, m, k):
    return noise(k, (-m.astype(jnp.uint4)).astype(jnp.float32).sum())


@attack("four bits wrap around in a difference", Z / 7.0)
def four_bits_subtracted(w, x, y, m, k):
    return noise(
        k, ((m & (y > 0)).astype(jnp.uint4) - m.astype(jnp.uint4)).astype(jnp.float32).sum(), 2.0
    )


@attack("four bits round coarsely", Z * 2.5 / 3.0)
def four_bit_floats(w, x, y, m, k):
    coarse = jnp.clip(guarded(x), -2.6, 2.6).astype(jnp.float4_e2m1fn).astype(jnp.float32)
    return noise(k, total(coarse, m), 2.5 * 3.0**0.5)


def one_but_not_a_constant_of_xla():
    return lax.iota(jnp.float32, 3) * 0.0 + 1.0


@attack("a difference of rounded numbers, zero in NumPy, need not be zero in XLA")
def rounded_difference(w, x, y, m, k):
    a = 1.0 + one_but_not_a_constant_of_xla() * 2.0**-12
    return noise(k, total(marked(x), m) * (a * a - (1 + 2.0**-11)) * 1e12)


@attack("a product that vanishes need not vanish in another order")
def vanishing_product(w, x, y, m, k):
    zero = one_but_not_a_constant_of_xla() * 1e-20 * 1e-30 * 1e30
    return noise(k, total(marked(x), m) * zero * 1e20)


@attack("a product that overflows need not do so in another order")
def overflowing_product(w, x, y, m, k):
    zero = 1.0 / (one_but_not_a_constant_of_xla() * 1e30 * 1e30 * 1e-30)
    return noise(k, total(marked(x), m) * zero * 1e30)


@attack("half precision may be computed in full")
def half_precision_constant(w, x, y, m, k):
    big = one_but_not_a_constant_of_xla().astype(jnp.float16) * 60000.0
    return noise(k, total(marked(x), m) * (1.0 / (big * 2.0)).astype(jnp.float32) * 1e12)


@attack("the logarithm of a number that rounding made 1")
def logarithm_of_one(w, x, y, m, k):
    three = one_but_not_a_constant_of_xla() * 3.0
    return noise(k, total(marked(x), m) * jnp.log(jnp.exp(jnp.log(three)) / three) * 1e12)


@attack("roundings of so many factors are no rounding any more")
def many_factors(w, x, y, m, k):
    less = one_but_not_a_constant_of_xla() * (1 - 6e-8)
    return noise(k, total(marked(x), m) * lax.integer_pow(less, 2**30) * 1e20)


@attack("one traced number makes it infinite, another brings it back")
def two_traced_numbers(w, x, y, m, k):
    a, b = jnp.exp(w), jnp.exp(-w)
    return dp.gaussian_mechanism(k, total(marked(x), m) * a * b, Z * (a * b))


@attack("a traced number makes it infinite, a known one brings it back")
def traced_and_known(w, x, y, m, k):
    a = jnp.exp(w)
    return dp.gaussian_mechanism(k, total(marked(x), m) * a * 1e-20, Z * (a * 1e-20))


@attack("a traced number makes it vanish, a known one brings it back")
def traced_and_huge(w, x, y, m, k):
    a = jnp.exp(w)
    return dp.gaussian_mechanism(k, total(marked(x), m) * a * 1e20, Z * (a * 1e20))


@attack("a traced bound that is no number, where no record is")
def clamped_by_nan(w, x, y, m, k):
    return noise(
        k, jnp.where(m[:, None], clipped(lax.clamp(w, guarded(x), jnp.float32(1.0))), 0.0).sum(0)
    )


@attack("rows divided by a traced number that may be zero, where no record is")
def divided_by_a_traced_zero(w, x, y, m, k):
    return noise(k, jnp.where(m[:, None], clipped(guarded(x) / w), 0.0).sum(0))


@attack("a row's many numbers are added up in bfloat16, each time rounded")
def coarse_row_sum(w, x, y, m, k):
    rows = jnp.broadcast_to(jnp.clip(guarded(x), -1.5, 1.5)[:, :, None], (N, 3, 100)).astype(
        jnp.bfloat16
    )
    return noise(k, total(lax.reduce_sum(rows, (1, 2)).astype(jnp.float32), m), 450.0)


@attack("a traced floor of the norm that is no number, where no record is")
def floor_of_nan(w, x, y, m, k):
    n = jnp.sqrt(jnp.sum(jnp.square(guarded(x)), 1) + 1e-6)
    return noise(k, total(guarded(x) * (1.0 / jnp.maximum(n, w))[:, None], m))


@attack("limits of which one is no number, and hides how large the others are")
def limited_by_nan(w, x, y, m, k):
    above = jnp.array([300.0, jnp.nan, 300.0])
    rows = jnp.minimum(jnp.maximum(x, -0.5), above)
    return noise(k, total(guarded(rows), m))


@attack("a floor of which one number is none")
def floored_by_nan(w, x, y, m, k):
    below = jnp.array([-300.0, jnp.nan, -300.0])
    rows = jnp.maximum(jnp.minimum(x, 0.5), below)
    return noise(k, total(guarded(rows), m))


@attack("a traced norm that another number makes infinite, and does not bring back")
def norm_by_way_of_infinity(w, x, y, m, k):
    c, d = jnp.exp(w), jnp.exp(2 * w)
    return dp.gaussian_mechanism(k, total(marked(x, c * d / d), m), Z * c)


@attack("a traced norm, and noise whose product is taken in another order")
def product_in_another_order(w, x, y, m, k):
    c, d, e = jnp.exp(w), jnp.exp(2 * w), jnp.exp(-3 * w)
    return dp.gaussian_mechanism(k, total(marked(x, (c * d) * e), m), Z * (c * (d * e)))


@attack("noise that loses its digits below 1e-38")
def noise_by_way_of_few_digits(w, x, y, m, k):
    c = jnp.exp(w)
    return dp.gaussian_mechanism(k, total(marked(x, c), m), Z * (c * 1e-25 * 1e25))


@attack("noise that loses its digits in a square")
def noise_by_way_of_a_square(w, x, y, m, k):
    c = jnp.exp(w)
    return dp.gaussian_mechanism(k, total(marked(x, c), m), 1e3 * jnp.sqrt(c * c))


@attack("noise of a schedule, by way of a traced number", records=X)
def schedule_by_way_of_few_digits(w, x, y, m, k):
    c, s = jnp.exp(w), total(marked(x), m)

    def turn(total, inputs):
        i, stddev = inputs
        return total + dp.gaussian_mechanism(jax.random.fold_in(k, i), s, stddev * c / c), None

    return lax.scan(turn, jnp.zeros(3), (jnp.arange(3), jnp.array([1.0, 2.0, 3.0])))[0]


@pytest.mark.parametrize(("step", "truth", "records"), attack)
def test_nothing_worse_than_certified(step, truth, records):
    nothing_worse_than_certified(step, truth, records)
