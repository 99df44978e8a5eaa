"""Poisson batches: independent coin flips, whatever the layout; a cost that follows the batch."""

import dataclasses
import functools
import time

import jax
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation as Relation, PoissonSampledDpEvent
from jax import lax, numpy as jnp
from scipy import stats

import discreet as dp
import discreet.privacy.random
from discreet.privacy.sampling import Batch, FixedSizeSampling, FullBatch, PoissonSampling, Sampling
from discreet.privacy.sampling._poisson import _coins, _draw_sizes

FALSE_ALARM = 1e-6  # of each χ² test below; seeds are fixed, so it is met once and for all


@functools.partial(jax.jit, static_argnames=("sampling", "num_records", "count"))
def inclusions(key, tables, sampling, num_records, count):
    """bool[count, num_records]: which records are in which of ``count`` batches."""

    def member(key):
        batch = sampling.draw(key, tables, num_records=num_records)
        rows = jnp.where(batch.mask, batch.indices, num_records)
        return jnp.zeros(num_records, bool).at[rows].set(True, mode="drop")

    return jax.vmap(member)(jax.random.split(key, count))


def draw_inclusions(sampling, num_records, count, seed=0):
    key = discreet.random.key(seed)
    return np.asarray(inclusions(key, sampling.prepare(num_records), sampling, num_records, count))


def inclusion_p_value(included, rate):
    """Each record's number of batches is binomial."""
    draws, num_records = included.shape
    squares = (included.sum(0) - draws * rate) ** 2 / (draws * rate * (1 - rate))
    return stats.chi2.sf(squares.sum(), num_records)


def independence_p_value(included, rate):
    """Centred inclusions of two different records are uncorrelated."""
    draws, num_records = included.shape
    centred = (included - rate) / np.sqrt(rate * (1 - rate))
    products = (centred.T @ centred)[np.triu_indices(num_records, 1)] / np.sqrt(draws)
    return stats.chi2.sf((products**2).sum(), products.size)


def size_p_value(sizes, num_records, rate):
    """The number of records is binomial; sizes are pooled so that each cell expects ten batches or more."""
    low, high = stats.binom.ppf([10 / sizes.size, 1 - 10 / sizes.size], num_records, rate).astype(
        int
    )
    edges = np.arange(low, high)
    masses = np.diff(np.concatenate([[0.0], stats.binom.cdf(edges, num_records, rate), [1.0]]))
    counts = np.bincount(np.searchsorted(edges, sizes), minlength=masses.size)
    return stats.chisquare(counts, masses * sizes.size).pvalue


# A subset of drawn size; the same with few records; each record asked.
LAYOUTS = [(500, 32 / 500, 6_000), (200, 0.02, 20_000), (40, 0.3, 20_000)]


@pytest.mark.parametrize(("num_records", "rate", "count"), LAYOUTS)
def test_law_of_the_batch(num_records, rate, count):
    included = draw_inclusions(PoissonSampling(rate), num_records, count)
    assert inclusion_p_value(included, rate) > FALSE_ALARM
    assert independence_p_value(included, rate) > FALSE_ALARM
    assert size_p_value(included.sum(1), num_records, rate) > FALSE_ALARM


@pytest.mark.essential
@pytest.mark.parametrize(("num_records", "rate", "count"), LAYOUTS)
def test_the_tests_of_the_law_reject_wrong_laws(num_records, rate, count):
    generator = np.random.default_rng(0)
    more = generator.random((count, num_records)) < rate * 1.05
    assert inclusion_p_value(more, rate) < FALSE_ALARM
    assert size_p_value(more.sum(1), num_records, rate) < FALSE_ALARM

    included = generator.random((count, num_records)) < rate
    typical = int(stats.binom.ppf(0.95, num_records, rate))
    # the overflow dropped, by position
    truncated = included & (np.cumsum(included, axis=1) <= typical)
    assert size_p_value(truncated.sum(1), num_records, rate) < FALSE_ALARM

    # one coin for two records
    in_twos = np.repeat(generator.random((count, num_records // 2)) < rate, 2, axis=1)
    assert independence_p_value(in_twos, rate) < FALSE_ALARM


def test_all_layouts_are_covered():
    draws = [_draw_sizes(num_records, rate).draws for num_records, rate, _ in LAYOUTS]
    assert draws[0] is not None
    assert draws[1] is not None
    assert draws[2] is None


SHAPES = [
    (1, 0.5, 100),
    (1, 1.0, 5),
    (7, 1.0, 5),
    (3, 5e-324, 50),
    (10**8, 1e-10, 200),
    (32_561, 0.0184, 50),
    (10**5, 0.2, 3),
    (10**8, 1e-4, 4),
    (2**31 - 1, 1e-8, 100),
]


@pytest.mark.parametrize(("num_records", "rate", "count"), SHAPES)
def test_batches_are_well_formed(num_records, rate, count):
    """Distinct rows in range, the mask a prefix, zeros behind, the size near its mean (8 standard errors)."""
    sampling = PoissonSampling(rate)
    tables = sampling.prepare(num_records)
    draw = jax.jit(jax.vmap(lambda key: sampling.draw(key, tables, num_records=num_records)))
    batch = draw(jax.random.split(jax.random.key(5), count))
    assert isinstance(batch, Batch)
    indices, mask = np.asarray(batch.indices), np.asarray(batch.mask)
    assert indices.dtype == np.int32
    assert mask.dtype == bool
    assert indices.shape == mask.shape == (count, sampling.capacity(num_records))
    sizes = mask.sum(1)
    for row, keep, size in zip(indices, mask, sizes, strict=True):
        assert keep[:size].all()
        assert np.unique(row[:size]).size == size
        assert not row[size:].any()
        assert ((row >= 0) & (row < num_records)).all()
    deviation = np.sqrt(num_records * rate * (1 - rate) / count)
    assert abs(sizes.mean() - sampling.expected_batch_size(num_records)) <= 8 * deviation + 1e-6


def test_rows_are_spread_over_a_large_table():
    """20 equal ranges of 10^8 records (χ², false-alarm rate 1e-6): the records share slots on the way."""
    sampling = PoissonSampling(1e-5)
    tables = sampling.prepare(10**8)
    batch = jax.jit(jax.vmap(lambda key: sampling.draw(key, tables, num_records=10**8)))(
        jax.random.split(jax.random.key(2), 100)
    )
    rows = np.asarray(batch.indices)[np.asarray(batch.mask)]
    assert stats.chisquare(np.bincount(rows // (10**8 // 20), minlength=20)).pvalue > FALSE_ALARM


def test_coins_that_tie_on_32_bits_look_at_64_more():
    rate = 0.3
    count = 100_000
    tie = np.full(count, int(rate * 2**32), np.uint32)
    coin = PoissonSampling(rate).prepare(10)["coin"]
    included = np.asarray(_coins(jax.random.key(0), tie, coin))
    remainder = rate * 2**32 % 1
    assert stats.binomtest(int(included.sum()), count, remainder).pvalue > FALSE_ALARM
    assert _coins(jax.random.key(0), tie - 1, coin).all()
    assert not _coins(jax.random.key(0), tie + 1, coin).any()


@pytest.mark.parametrize(
    ("num_records", "rate"), [(500, 0.064), (40, 0.3), (10**6, 1e-3), (10**8, 1e-4), (10**6, 0.5)]
)
def test_public_numbers(num_records, rate):
    sampling = PoissonSampling(rate)
    assert sampling.rate_for(num_records) == rate
    assert 0 <= sampling.slack_per_step(num_records) < 2.0**-78
    typical, capacity = sampling.typical_size(num_records), sampling.capacity(num_records)
    assert stats.binom.sf(typical, num_records, rate) <= 0.07
    assert num_records * rate <= typical <= capacity <= num_records
    assert isinstance(sampling, Sampling)
    assert hash(sampling) == hash(PoissonSampling(np.float64(rate)))


@pytest.mark.parametrize(
    ("num_records", "rate"), [(1, 0.5), (2, 1e-9), (3, 0.3), (40, 0.1), (500, 0.064), (10**6, 0.4)]
)
def test_slack_holds_for_neighbours_too(num_records, rate):
    stated = PoissonSampling(rate).slack_per_step(num_records)
    for count in (num_records - 1, num_records, num_records + 1):
        assert count == 0 or _draw_sizes(count, rate).slack <= stated


def test_prepared_tables_are_public_numbers_only():
    assert set(PoissonSampling(1e-3).prepare(10**6)) == {"rate", "thresholds", "smallest"}
    assert set(PoissonSampling(0.5).prepare(100)) == {"rate", "coin"}
    assert set(PoissonSampling(1.0).prepare(100)) == {"rate"}
    assert PoissonSampling(1.0).slack_per_step(100) == 0.0


def microseconds_per_draw(runs, key):
    """The fastest of several short loops, taken in turn so that a busy machine disturbs all alike."""
    best = [np.inf] * len(runs)
    for _ in range(12):
        for position, (run, steps) in enumerate(runs):
            start = time.perf_counter()
            run(key).block_until_ready()
            best[position] = min(best[position], (time.perf_counter() - start) / steps * 1e6)
    return best


def test_cost_follows_the_batch_and_not_the_table():
    """A thousand expected records from 10^8 cost as much as from 10^4 (measured 1.3 times: fewer sharing slots)."""

    def loop(num_records, steps=100):
        sampling = PoissonSampling(1000 / num_records)
        tables = sampling.prepare(num_records)

        def step(total, number):
            batch = sampling.draw(jax.random.fold_in(key, number), tables, num_records=num_records)
            return total + batch.indices[0] + batch.mask.sum(), None

        run = jax.jit(lambda key: lax.scan(step, jnp.int32(0), jnp.arange(steps))[0])
        return run, steps

    key = jax.random.key(0)
    runs = [loop(10**4), loop(10**8)]
    for run, _ in runs:
        run(key).block_until_ready()
    small, large = microseconds_per_draw(runs, key)
    if large > 1.5 * small:
        small, large = microseconds_per_draw(runs, key)
    assert large <= 1.5 * small


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
def test_event(relation):
    mechanism = GaussianDpEvent(2.0)
    event = PoissonSampling(0.01).step_event(mechanism, num_records=500, relation=relation)
    assert event == PoissonSampledDpEvent(0.01, mechanism)
    assert PoissonSampling(1).step_event(mechanism, num_records=500, relation=relation) == mechanism


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, float("nan"), float("inf")])
def test_rates_that_are_no_probabilities(rate):
    with pytest.raises(ValueError, match=r"not a probability in \(0, 1\].*pass rate=B / N"):
        PoissonSampling(rate)


@pytest.mark.parametrize("rate", [True, "0.1", None, 0.1j, np.array([0.1])])
def test_rates_that_are_no_numbers(rate):
    with pytest.raises(TypeError, match=r"must be a real number.*PoissonSampling\(rate=0\.01\)"):
        PoissonSampling(rate)


def test_other_refusals():
    sampling = PoissonSampling(0.1)
    for count in (0, -1, 2**31):
        with pytest.raises(ValueError, match=r"num_records = .* outside .*pass the number of rows"):
            sampling.check(count, Relation.REPLACE_ONE)
    for count in (True, 10.0, "10"):
        with pytest.raises(TypeError, match="num_records must be an integer"):
            sampling.capacity(count)
    with pytest.raises(
        ValueError, match=r"not accounted for.*ADD_OR_REMOVE_ONE or Relation\.REPLACE_ONE"
    ):
        sampling.check(10, Relation.REPLACE_SPECIAL)
    with pytest.raises(TypeError, match="must be a dp_accounting DpEvent"):
        sampling.step_event(0.5, num_records=10, relation=Relation.REPLACE_ONE)


@pytest.mark.parametrize(("num_records", "rate"), [(100, 1.0), (100, 0.5), (10_000, 1e-3)])
def test_the_law_follows_from_the_tables(num_records, rate):
    """A compiled program knows the shapes of a draw; which rate it is drawn at, its tables say, and all of them must agree."""
    sampling = PoissonSampling(rate)
    drawing, tables = sampling.drawing(num_records), sampling.prepare(num_records)
    assert drawing.law(tables) == sampling
    assert dataclasses.replace(drawing, capacity=drawing.capacity + 1).law(tables) == sampling
    short = dataclasses.replace(drawing, capacity=drawing.capacity - 1)
    assert short.law(tables) is None, "a batch could be cut short"
    for name, table in tables.items():
        assert drawing.law({**tables, name: None}) is None, "a table that is not known"
        other = table.copy().reshape(-1)
        other[0] += np.asarray(1, table.dtype)
        found = drawing.law({**tables, name: other.reshape(table.shape)})
        assert found is None or found == sampling, name
    assert (
        drawing.law({**tables, "rate": PoissonSampling(rate / 2).prepare(num_records)["rate"]})
        is None
    )


@pytest.mark.parametrize(
    "sampling",
    [
        PoissonSampling(0.02),
        PoissonSampling(0.45),
        FixedSizeSampling(20),
        FixedSizeSampling(30),
        FullBatch(),
    ],
    ids=str,
)
def test_batches_that_are_said_to_be_shuffled_are(sampling):
    """Sums of large models in float32 rest on it. 400 batches of 40 records: how often a record stands before a later one."""
    size = 40 if not isinstance(sampling, PoissonSampling) else 400
    draw = jax.jit(
        jax.vmap(lambda key: sampling.draw(key, sampling.prepare(size), num_records=size))
    )
    indices, mask = map(np.asarray, draw(jax.random.split(dp.random.key(3), 400)))
    rises = [np.diff(row[kept]) > 0 for row, kept in zip(indices, mask, strict=True)]
    share = np.concatenate(rises).mean()
    assert abs(share - 0.5) < 0.05 if sampling.shuffled(size) else share == 1.0


def test_a_table_much_shorter_than_planned_is_refused():
    plan = dp.PrivacyPlan(
        sampling=PoissonSampling(0.02), noise_multiplier=1.0, num_steps=1, num_records=1250
    )
    plan.check_size(900)
    with pytest.raises(ValueError, match="about right"):
        plan.check_size(20)
