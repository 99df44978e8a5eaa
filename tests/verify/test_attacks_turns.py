"""Loops whose turns differ: noise by a schedule, rows taken by their numbers, branches. What each costs, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from jax import lax

import discreet as dp

from .attacks import Z, drawn, into, total
from .programs import RATE, C, certify, noisy

ATTACKS = []
attack = into(ATTACKS)
SIZES = np.array([3.0, 2.0, 4.0, 5.0], np.float32)
"""Noise multipliers of four turns."""
EACH = float(np.sum(SIZES.astype(float) ** -2))
START = jnp.zeros(3)


def keys(key, count=4):
    return jax.random.split(key, count)


def over_sizes(xs, mask, key, sizes=SIZES, **options):
    def turn(w, inputs):
        size, key = inputs
        return w + noisy(key, total(xs * w, mask), size * C), None

    return lax.scan(turn, START, (jnp.asarray(sizes), keys(key, len(sizes))), **options)[0]


def by_schedule(w, xs, ys, mask, key):
    return over_sizes(xs, mask, key)


def backwards(w, xs, ys, mask, key):
    return over_sizes(xs, mask, key, reverse=True)


def by_number(w, xs, ys, mask, key):
    def turn(i, w):
        return w + noisy(jax.random.fold_in(key, i), total(xs * w, mask), jnp.asarray(SIZES)[i] * C)

    return lax.fori_loop(0, 4, turn, START)


def by_formula(w, xs, ys, mask, key):
    """3, 1.5, 1, 0.75: written with the number of the turn."""

    def turn(i, w):
        return w + noisy(
            jax.random.fold_in(key, i), total(xs * w, mask), 3.0 * C / (i.astype(jnp.float32) + 1.0)
        )

    return lax.fori_loop(0, 4, turn, START)


def backwards_and_counted(w, xs, ys, mask, key):
    """From the last of the sizes, and from one: 5, 8, 6, 12."""

    def turn(carry, inputs):
        i, w = carry
        size, key = inputs
        return (i + 1, w + noisy(key, total(xs * w, mask), size * C * i.astype(jnp.float32))), None

    return lax.scan(turn, (1, START), (jnp.asarray(SIZES), keys(key)), reverse=True)[0][1]


def clipped_by_schedule(w, xs, ys, mask, key):
    """The bound moves, the noise does not."""

    def turn(w, inputs):
        norm, key = inputs
        return w + noisy(key, total(xs * w, mask, norm), 6.0), None

    return lax.scan(turn, START, (jnp.asarray(SIZES), keys(key)))[0]


def the_same_of_a_part(w, xs, ys, mask, key):
    """Each record is in one turn, and so pays for the least noise of all."""

    def turn(w, inputs):
        size, key, *part = inputs
        return w + noisy(key, total(*part), size * C), None

    return lax.scan(
        turn, START, (jnp.asarray(SIZES), keys(key), xs.reshape(4, 6, 3), mask.reshape(4, 6))
    )[0]


def in_a_loop_within(w, xs, ys, mask, key):
    """Twice in each turn."""

    def turn(w, inputs):
        size, key = inputs

        def within(w, key):
            return w + noisy(key, total(xs * w, mask), size * C), None

        return lax.scan(within, w, keys(key, 2))[0], None

    return lax.scan(turn, START, (jnp.asarray(SIZES), keys(key)))[0]


def microbatch(rows, mask, i, size=6):
    return lax.dynamic_slice_in_dim(rows, i * size, size), lax.dynamic_slice_in_dim(
        mask, i * size, size
    )


def microbatches(w, xs, ys, mask, key):
    return noisy(
        key, lax.fori_loop(0, 4, lambda i, s: s + total(*microbatch(xs, mask, i)), START), Z * C
    )


def microbatches_from_the_last(w, xs, ys, mask, key):
    return noisy(
        key, lax.fori_loop(0, 4, lambda i, s: s + total(*microbatch(xs, mask, 3 - i)), START), Z * C
    )


def microbatches_of_some(w, xs, ys, mask, key):
    """The others are in no turn."""
    return noisy(
        key, lax.fori_loop(0, 3, lambda i, s: s + total(*microbatch(xs, mask, i, 7)), START), Z * C
    )


def blocks_by_number(w, xs, ys, mask, key):
    x, m = xs.reshape(4, 6, 3), mask.reshape(4, 6)
    return noisy(key, lax.fori_loop(0, 4, lambda i, s: s + total(x[i], m[i]), START), Z * C)


def each_microbatch_is_released(w, xs, ys, mask, key):
    def turn(i, w):
        return w + noisy(jax.random.fold_in(key, i), total(*microbatch(xs * w, mask, i)), Z * C)

    return lax.fori_loop(0, 4, turn, START)


def two_windows(w, xs, ys, mask, key):
    """A record is in two turns."""

    def turn(i, s):
        return s + total(*microbatch(xs, mask, i)) + total(*microbatch(xs, mask, 3 - i))

    return noisy(key, lax.fori_loop(0, 4, turn, START), Z * C)


def branches_of_one_table(w, xs, ys, mask, key):
    a, b, c = keys(key, 3)
    first = noisy(a, total(xs, mask), Z * C)
    one = lambda: noisy(b, total(xs * first, mask), Z * C)  # noqa: E731
    return first, lax.cond(
        first.sum() > 0, one, lambda: noisy(c, total(xs + first, mask), 2 * Z * C)
    )


def leaves_of_a_branch(w, xs, ys, mask, key):
    """Clipped rows of two branches are unrelated, even where the branches use different leaves."""
    a, b, c, d = keys(key, 4)

    def branch(rows, first, second, one, other):
        s = dp.sum_records(dp.clip_records(rows, C), mask)
        return noisy(first, s[0], one * Z * C), noisy(second, s[1], other * Z * C)

    return lax.cond(
        w["b"] > 0, lambda: branch((xs, ys), a, b, 1, 2), lambda: branch((xs + 1, ys), c, d, 2, 1)
    )


ONE = 1 / Z**2


@pytest.mark.parametrize(
    ("step", "precision"),
    [
        (by_schedule, EACH),
        (backwards, EACH),
        (by_number, EACH),
        (backwards_and_counted, 1 / 25 + 1 / 64 + 1 / 36 + 1 / 144),
        (by_formula, (1 + 4 + 9 + 16) / 9),
        (clipped_by_schedule, float(np.sum(SIZES.astype(float) ** 2)) / 36),
        (the_same_of_a_part, 0.25),
        (in_a_loop_within, 2 * EACH),
        (microbatches, ONE),
        (microbatches_from_the_last, ONE),
        (microbatches_of_some, ONE),
        (blocks_by_number, ONE),
        (each_microbatch_is_released, ONE),
        (two_windows, 4 * ONE),
        (branches_of_one_table, 2 * ONE),
        (leaves_of_a_branch, ONE),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_turns_are_counted(step, precision):
    """Precision: one over the square of the noise multiplier that all releases have together, which is the truth."""
    claim = GaussianDpEvent(precision**-0.5)
    certify(step, expect=claim)
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        certify(step, expect=GaussianDpEvent(1.005 * claim.noise_multiplier))


def sample(key, xs, mask, rate=RATE):
    (rows, kept), real = dp.poisson_subsample(key, (xs, mask), rate, 24)
    return rows, kept & real


def of_samples(w, xs, ys, mask, key):
    def turn(w, inputs):
        size, (a, b) = inputs
        return w + noisy(b, total(*sample(a, xs * w, mask)), size * C), None

    return lax.scan(turn, START, (jnp.asarray(SIZES), keys(key, 8).reshape(4, 2)))[0]


def test_a_schedule_over_samples_is_a_composition():
    event = certify(of_samples).event
    assert [x.sampling_probability for x in event.events] == [RATE] * 4
    assert [x.event.noise_multiplier for x in event.events] == pytest.approx(SIZES, rel=1e-5)


def test_turns_alike_are_counted_together():
    """A long schedule of few values costs few events."""

    def step(w, xs, ys, mask, key):
        return over_sizes(xs, mask, key, np.repeat(SIZES, 50))

    event = certify(step).event
    assert [(x.event.noise_multiplier, x.count) for x in event.events] == [
        (pytest.approx(s), 50) for s in SIZES
    ]


def of_a_sample(w, xs, ys, mask, key):
    a, b = keys(key, 2)
    rows, real = sample(a, xs, mask)
    return noisy(
        b, lax.fori_loop(0, 4, lambda i, s: s + total(*microbatch(rows, real, i)), START), Z * C
    )


def of_a_sample_by_a_function(w, xs, ys, mask, key):
    """It says where the rows begin, and a number besides."""
    begin = jax.jit(lambda i: (i * 6, 7))

    def turn(i, rows, real):
        first, _ = begin(i)
        return total(
            lax.dynamic_slice_in_dim(rows, first, 6), lax.dynamic_slice_in_dim(real, first, 6)
        )

    return sample_and(turn)(w, xs, ys, mask, key)


def branches_of_one_sample(w, xs, ys, mask, key):
    a, b, c, d = keys(key, 4)
    rows, real = drawn(xs, mask, a)
    s = dp.sum_records(rows, real)
    first = noisy(b, s, Z * C)
    one = lambda: noisy(c, dp.sum_records(dp.clip_records(rows + 1, C), real), Z * C)  # noqa: E731
    return first, lax.cond(
        first.sum() > 0,
        one,
        lambda: noisy(d, dp.sum_records(dp.clip_records(rows, C), real), 2 * Z * C),
    )


def leaves_in_turns(w, xs, ys, mask, key):
    """Now the one leaf shows more, now the other: what is clipped in another turn is another vector."""
    a, b = keys(key, 2)
    (x, y, m), real = dp.poisson_subsample(a, (xs, ys, mask), RATE, 24)

    def turn(w, inputs):
        one, other, (a, b) = inputs
        s = dp.sum_records(dp.clip_records((x * w, y), C), m & real)
        return w + noisy(a, s[0], one * C) + noisy(b, s[1], other * C), None

    sizes = jnp.array([1.0, 4.0]), jnp.array([4.0, 1.0])
    return lax.scan(turn, START, (*sizes, keys(b, 4).reshape(2, 2)))[0]


def leaves_of_one_clipping(w, xs, ys, mask, key):
    """Clipped before the loop: shares of one vector in all turns."""
    a, b = keys(key, 2)
    (x, y, m), real = dp.poisson_subsample(a, (xs, ys, mask), RATE, 24)
    s = dp.sum_records(dp.clip_records((x, y), C), m & real)

    def turn(w, inputs):
        one, other, (a, b) = inputs
        return w + noisy(a, s[0], one * C) + noisy(b, s[1], other * C), None

    sizes = jnp.array([1.0, 4.0]), jnp.array([4.0, 1.0])
    return lax.scan(turn, START, (*sizes, keys(b, 4).reshape(2, 2)))[0]


def branches_by_a_leaf_each(w, xs, ys, mask, key):
    """One release shows the one leaf, and both branches the other."""
    a, b, c, d = keys(key, 4)
    (x, y, m), real = dp.poisson_subsample(a, (xs, ys, mask), RATE, 24)
    s = dp.sum_records(dp.clip_records((x, y), C), m & real)
    first = noisy(b, s[0], Z * C)
    return first, lax.cond(
        first.sum() > 0, lambda: noisy(c, s[1], Z * C), lambda: noisy(d, s[1], 2 * Z * C)
    )


@pytest.mark.parametrize(
    ("step", "precision"),
    [
        (of_a_sample, ONE),
        (of_a_sample_by_a_function, ONE),
        (branches_of_one_sample, 2 * ONE),
        (branches_by_a_leaf_each, ONE),
        (leaves_in_turns, 2.0),
        (leaves_of_one_clipping, 1 + 1 / 16),
    ],
)
def test_of_a_sample(step, precision):
    event = certify(step).event
    assert isinstance(event, PoissonSampledDpEvent)
    assert event.event.noise_multiplier == pytest.approx(precision**-0.5, rel=1e-4)


@attack("no noise in the third turn")
def no_noise_at_times(w, xs, ys, mask, key):
    return over_sizes(xs, mask, key, np.array([2.0, 3.0, 0.0, 5.0], np.float32))


@attack("the schedule depends on records")
def private_schedule(w, xs, ys, mask, key):
    return over_sizes(xs, mask, key, jnp.abs(xs[:4, 0]) + 1)


@attack("the schedule is a release, which may be anything")
def released_schedule(w, xs, ys, mask, key):
    a, b = keys(key, 2)
    return over_sizes(
        xs, mask, b, jnp.abs(noisy(a, total(jnp.tile(xs, 2)[:, :4], mask), Z * C)) + 1
    )


@attack("the bound is that of this turn, the noise that of the one before")
def late_noise(w, xs, ys, mask, key):
    def turn(carry, inputs):
        w, before = carry
        norm, key = inputs
        return (w + noisy(key, total(xs * w, mask, norm), Z * before), norm), None

    return lax.scan(turn, (START, jnp.float32(1.0)), (jnp.asarray(SIZES), keys(key)))[0]


@attack("the sum is that of the turn before, scaled by its number")
def late_sum(w, xs, ys, mask, key):
    def turn(carry, inputs):
        w, before = carry
        norm, key = inputs
        return (w + noisy(key, before, Z * norm), total(xs * w, mask, norm)), None

    return lax.scan(turn, (START, START), (jnp.asarray(SIZES), keys(key)))[0]


@attack("rows of all turns are released after the loop, in units of a number of one turn")
def scaled_by_a_turn(w, xs, ys, mask, key):
    def turn(s, size):
        return s + total(xs, mask, size), size

    s, sizes = lax.scan(turn, START, jnp.asarray(SIZES))
    return noisy(key, s, Z * sizes[0] * 4)


@attack("windows that overlap")
def overlap(w, xs, ys, mask, key):
    return noisy(
        key, lax.fori_loop(0, 4, lambda i, s: s + total(*microbatch(xs, mask, i, 7)), START), Z * C
    )


@attack("the last window is moved into the table, and overlaps")
def moved_into_the_table(w, xs, ys, mask, key):
    take = lambda x, i: lax.dynamic_slice_in_dim(x, i * 7, 6)  # noqa: E731
    return noisy(
        key, lax.fori_loop(0, 4, lambda i, s: s + total(take(xs, i), take(mask, i)), START), Z * C
    )


@attack("one window, in all turns")
def the_same_window(w, xs, ys, mask, key):
    return noisy(
        key, lax.fori_loop(0, 4, lambda i, s: s + total(*microbatch(xs, mask, 0 * i)), START), Z * C
    )


@attack("the mask of other records")
def mask_of_another_window(w, xs, ys, mask, key):
    def turn(i, s):
        return s + total(microbatch(xs, mask, i)[0], microbatch(xs, mask, 3 - i)[1])

    return noisy(key, lax.fori_loop(0, 4, turn, START), Z * C)


@attack("rows of two windows meet")
def windows_that_meet(w, xs, ys, mask, key):
    def turn(i, s):
        (x, m), (y, _) = microbatch(xs, mask, i), microbatch(xs, mask, 3 - i)
        return s + total(x * y, m)

    return noisy(key, lax.fori_loop(0, 4, turn, START), Z * C)


@attack("rows of windows, one upon the other, are not in the table's order")
def stacked_windows(w, xs, ys, mask, key):
    def turn(i, _):
        return i + 1, lax.dynamic_slice_in_dim(xs, (3 - i) * 6, 6)

    rows = lax.scan(turn, 0, length=4)[1].reshape(24, 3)
    return noisy(key, total(rows * xs, mask), Z * C)


def weighed(i, rows, real):
    return total(*microbatch(rows, real, i)) * jnp.array([1.0, 2.0, 3.0, 4.0])[i] / 4.0


def sample_and(turn):
    def step(w, xs, ys, mask, key):
        a, b = keys(key, 2)
        rows, real = sample(a, xs, mask)
        return noisy(b, lax.fori_loop(0, 4, lambda i, s: s + turn(i, rows, real), START), Z * C)

    return step


@attack("of a sample, some rows are in no window: who is in one depends on the others")
def some_of_a_sample(w, xs, ys, mask, key):
    return sample_and(lambda i, rows, real: total(*microbatch(rows, real, i, 5)))(
        w, xs, ys, mask, key
    )


@attack("windows of a sample weigh by their number")
def weighed_in_a_sample(w, xs, ys, mask, key):
    return sample_and(weighed)(w, xs, ys, mask, key)


@attack("the number of the window goes into its rows")
def number_in_the_rows(w, xs, ys, mask, key):
    def turn(i, rows, real):
        x, m = microbatch(rows, real, i)
        return total(x + i.astype(jnp.float32), m)

    return sample_and(turn)(w, xs, ys, mask, key)


@attack("the number of the window says which column counts")
def column_by_number(w, xs, ys, mask, key):
    def turn(i, rows, real):
        x, m = microbatch(rows, real, i)
        column = lax.dynamic_slice_in_dim(x, jnp.minimum(i, 2), 1, axis=1)
        return total(jnp.tile(column, (1, 3)), m)

    return sample_and(turn)(w, xs, ys, mask, key)


@attack("rows and columns are cut at once, by the same number")
def rows_and_columns(w, xs, ys, mask, key):
    def turn(i, rows, real):
        x = lax.dynamic_slice(rows, (i * 6, jnp.minimum(i, 2)), (6, 1))
        return total(jnp.tile(x, (1, 3)), microbatch(rows, real, i)[1])

    return sample_and(turn)(w, xs, ys, mask, key)


@attack("one function takes the rows of a turn and a public number of it")
def one_function_for_both(w, xs, ys, mask, key):
    take = jax.jit(lambda x, i: lax.dynamic_slice_in_dim(x, i * 6, 6))
    weights = jnp.arange(1.0, 73.0).reshape(24, 3)

    def turn(i, rows, real):
        return total(take(rows, i) * take(weights, i)[0, 0], take(real, i))

    return sample_and(turn)(w, xs, ys, mask, key)


@attack("a key of each turn makes the rows of a sample noisy")
def noise_by_window(w, xs, ys, mask, key):
    a, b, c = keys(key, 3)
    rows, real = sample(a, xs, mask)

    def turn(i, s):
        x, m = microbatch(rows, real, i)
        return s + total(x + jax.random.normal(jax.random.fold_in(c, i), (3,)), m)

    return noisy(b, lax.fori_loop(0, 4, turn, START), Z * C)


@attack("the parameters move between windows of a sample")
def parameters_move(w, xs, ys, mask, key):
    a, b = keys(key, 2)
    rows, real = sample(a, xs, mask)

    def turn(i, carry):
        s, w = carry
        x, m = microbatch(rows, real, i)
        return s + total(x * w, m), w * 0.5

    return noisy(b, lax.fori_loop(0, 4, turn, (START, START + 1))[0], Z * C)


@attack("a sum over all windows decides how the next are treated")
def windows_by_what_came_before(w, xs, ys, mask, key):
    def turn(i, s):
        x, m = microbatch(xs, mask, i)
        return s + total(x + s, m)

    return noisy(key, lax.fori_loop(0, 4, turn, START), Z * C)


@attack("an inner loop takes the outer turn's rows of each of its own")
def windows_inside_out(w, xs, ys, mask, key):
    """A record of each window meets those of others in one row of the sum: removing one moves it by 2 C."""
    rows = (
        jnp.where(mask[:, None], dp.clip_records(xs, 1e3), 0).reshape(4, 6, 3),
        mask.reshape(4, 6),
    )

    def outer(i, s):
        taken, kept = lax.scan(lambda _, part: (None, microbatch(*part, i, 3)), None, rows)[1]
        return (
            s
            + dp.sum_records(dp.clip_records(taken.sum(0), C), kept.any(0))
            + total(xs, mask, 1e-3)
        )

    return noisy(key, lax.fori_loop(0, 2, outer, START), Z * C)


@attack("rows of a sample change from turn to turn")
def carried_rows(w, xs, ys, mask, key):
    draw, noise = keys(key, 2)
    rows, real = sample(draw, xs, mask)

    def turn(i, carry):
        return carry[0] + total(*microbatch(carry[1], real, i)), -carry[1]

    return noisy(noise, lax.fori_loop(0, 4, turn, (START, rows))[0], Z * C)


@attack("the mask of a sample changes from turn to turn")
def carried_mask(w, xs, ys, mask, key):
    draw, noise = keys(key, 2)
    rows, real = sample(draw, xs, mask)

    def turn(i, carry):
        return carry[0] + total(*microbatch(rows, carry[1], i)), ~carry[1] & real

    return noisy(noise, lax.fori_loop(0, 4, turn, (START, real))[0], Z * C)


@attack("some turns see the mask of a sample, others none")
def masks_of_turns(w, xs, ys, mask, key):
    draw, noise = keys(key, 2)
    rows, real = sample(draw, xs, mask)
    masks = real[None] & jnp.array([True, False, True, False])[:, None]

    def turn(carry, kept):
        return (carry[0] + 1, carry[1] + total(*microbatch(rows, kept, carry[0]))), None

    return noisy(noise, lax.scan(turn, (0, START), masks)[0][1], Z * C)


@attack("of each turn's rows of a sample others are taken")
def windows_of_windows(w, xs, ys, mask, key):
    draw, noise = keys(key, 2)
    rows, real = sample(draw, xs, mask)

    def turn(i, s):
        return s + total(*microbatch(*microbatch(rows, real, i, 12), i, 6))

    return noisy(noise, lax.fori_loop(0, 2, turn, START), Z * C)


@attack("of each turn's rows of a sample others are taken, in a scan along them")
def windows_of_turns(w, xs, ys, mask, key):
    draw, noise = keys(key, 2)
    rows, real = sample(draw, xs, mask)

    def turn(carry, part):
        return (carry[0] + 1, carry[1] + total(*microbatch(*part, carry[0], 6))), None

    return noisy(
        noise,
        lax.scan(turn, (0, START), (rows.reshape(2, 12, 3), real.reshape(2, 12)))[0][1],
        Z * C,
    )


def by_size_of(magnified):
    def step(w, xs, ys, mask, key):
        def turn(i, w):
            # XLA divides by a constant otherwise than NumPy, in the last bit.
            size = magnified((i.astype(jnp.float32) + 3000007.0) / 3000001.0) * jnp.float32(1e-6)
            return w + noisy(jax.random.fold_in(key, i), total(xs * w, mask), size * C)

        return lax.fori_loop(0, 4, turn, START)

    return step


def squared(x):
    for _ in range(22):
        x = x * x
    return x


attack("a rounding is magnified by a power: half the noise in the second turn")(
    by_size_of(lambda x: x ** jnp.float32(6e6))
)
attack("a rounding is magnified by squares")(by_size_of(squared))


@attack("a power of a schedule's number magnifies what it was rounded by before it had a name")
def powers_of_a_turn(w, xs, ys, mask, key):
    def turn(w, inputs):
        number, key = inputs
        size = lax.integer_pow(number, 64)
        for _ in range(5):
            size = size * size
        return w + noisy(key, total(xs * w, mask), size * C * Z), None

    return lax.scan(turn, START, (jnp.array([1.001, 1.002], jnp.float32), keys(key, 2)))[0]


def nearly_one():
    """Numbers whose product is below 1, and whose product in float32, as XLA makes one constant of them, above."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        first = rng.uniform(0.5, 2, 7).astype(np.float32)
        last = np.float32(1 / np.prod(first.astype(float)))
        while np.prod([*first.astype(float), float(last)]) > 1:
            last = np.nextafter(last, np.float32(0))
        if np.prod(np.append(first, last), dtype=np.float32) > 1:
            return [float(x) for x in [*first, last]]
    raise AssertionError


@attack("a product of constants is a little above 1 as computed, a million times")
def rows_that_grow(w, xs, ys, mask, key):
    def turn(rows, _):
        for x in nearly_one():
            rows = rows * jnp.float32(x)
        return rows, None

    return noisy(
        key,
        dp.sum_records(lax.scan(turn, dp.clip_records(xs, C), length=1_000_000)[0], mask),
        Z * C,
    )


@pytest.mark.parametrize("step", ATTACKS)
def test_is_refused(step):
    with pytest.raises(dp.PrivacyError):
        certify(step)
