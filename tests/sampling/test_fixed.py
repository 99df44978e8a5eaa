"""Fixed-size and full batches: exactly uniform sets, and no event where there is no accounting."""

import itertools

import jax
import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation as Relation,
    SampledWithoutReplacementDpEvent,
)
from jax import numpy as jnp
from scipy import stats

from discreet.privacy.sampling import (
    Batch,
    FixedSizeSampling,
    FullBatch,
    Sampling,
    _samplers as _fixed,
)

FALSE_ALARM = 1e-6


def draw_batches(sampling, num_records, count, seed=0):
    def draw(key):
        return sampling.draw(key, sampling.prepare(num_records), num_records=num_records)

    batch = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(seed), count))
    assert isinstance(batch, Batch)
    assert np.asarray(batch.mask).all()
    return np.asarray(batch.indices)


def subset_p_value(batches, num_records):
    size = batches.shape[1]
    cells = {
        subset: number
        for number, subset in enumerate(itertools.combinations(range(num_records), size))
    }
    counts = np.zeros(len(cells))
    for row in np.sort(batches, axis=1).tolist():
        counts[cells[tuple(row)]] += 1
    return stats.chisquare(counts).pvalue


@pytest.mark.parametrize(("size", "num_records"), [(2, 5), (3, 5), (3, 7)])
def test_all_sets_are_equally_likely(size, num_records):
    assert (
        subset_p_value(draw_batches(FixedSizeSampling(size), num_records, 20_000), num_records)
        > FALSE_ALARM
    )


def test_the_test_of_uniformity_rejects_words_modulo_a_count_that_does_not_divide():
    """The wrong version takes four bits modulo 5: record 0 comes up 4 times where the others come up 3 times."""
    generator = np.random.default_rng(0)
    draws = generator.integers(0, 16, (40_000, 2)) % 5
    draws = draws[draws[:, 0] != draws[:, 1]][:20_000]
    assert subset_p_value(draws, 5) < FALSE_ALARM


def test_a_draw_with_too_few_records_is_made_again_and_stays_uniform(monkeypatch):
    """Three words hold two of five records most of the time, and three of them seldom."""
    monkeypatch.setattr(_fixed, "_draws", lambda size, num_records: size)
    batches = draw_batches(FixedSizeSampling(3), 7, 20_000, seed=1)
    assert all(len(set(row)) == 3 for row in batches.tolist())
    assert subset_p_value(batches, 7) > FALSE_ALARM


@pytest.mark.parametrize(
    ("size", "num_records"),
    [(1, 1), (500, 500), (32, 500), (250, 500), (251, 500), (499, 500), (300, 2**31 - 1)],
)
def test_batches_hold_distinct_rows_in_range(size, num_records):
    for row in draw_batches(FixedSizeSampling(size), num_records, 50):
        assert np.unique(row).size == size
        assert row.min() >= 0
        assert row.max() < num_records


@pytest.mark.parametrize("size", [32, 400])
def test_each_record_is_drawn_with_the_stated_rate(size):
    """χ² over 500 records; counts sum to a constant, hence one degree of freedom less and the factor N / (N - 1)."""
    sampling, draws = FixedSizeSampling(size), 5_000
    rate = sampling.rate_for(500)
    counts = np.bincount(draw_batches(sampling, 500, draws).ravel(), minlength=500)
    squares = ((counts - draws * rate) ** 2).sum() / (draws * rate * (1 - rate)) * 499 / 500
    assert stats.chi2.sf(squares, 499) > FALSE_ALARM
    assert stats.chi2.cdf(squares, 499) > FALSE_ALARM


def test_public_numbers():
    sampling = FixedSizeSampling(np.int64(32))
    assert sampling == FixedSizeSampling(batch_size=32)
    assert isinstance(sampling, Sampling)
    assert hash(sampling) == hash(FixedSizeSampling(32))
    assert sampling.rate_for(500) == 32 / 500
    assert sampling.expected_batch_size(500) == 32.0
    assert (sampling.capacity(500), sampling.typical_size(500)) == (32, 32)
    assert sampling.slack_per_step(500) == 0.0
    assert sampling.prepare(500) == {}


def test_event_under_replacement():
    mechanism = GaussianDpEvent(2.0)
    sampling = FixedSizeSampling(32)
    event = sampling.step_event(mechanism, num_records=500, relation=Relation.REPLACE_ONE)
    assert event == SampledWithoutReplacementDpEvent(500, 32, mechanism)
    assert (
        sampling.step_event(mechanism, num_records=32, relation=Relation.REPLACE_ONE) == mechanism
    )


def test_no_event_when_records_come_and_go():
    with pytest.raises(
        ValueError,
        match=r"no sound accounting for one record added or removed.*PoissonSampling\(rate=0\.064\)",
    ):
        FixedSizeSampling(32).step_event(
            GaussianDpEvent(2.0), num_records=500, relation=Relation.ADD_OR_REMOVE_ONE
        )


def test_refusals():
    for size in (0, -3):
        with pytest.raises(ValueError, match=f"batch_size = {size} is outside"):
            FixedSizeSampling(size)
    for size in (True, 32.0, "32", None):
        with pytest.raises(TypeError, match="batch_size must be an integer"):
            FixedSizeSampling(size)
    with pytest.raises(
        ValueError,
        match=r"batch_size = 32 exceeds num_records = 31.*Lower batch_size, or use FullBatch",
    ):
        FixedSizeSampling(32).check(31, Relation.REPLACE_ONE)
    with pytest.raises(ValueError, match="exceeds num_records"):
        FixedSizeSampling(32).draw(jax.random.key(0), {}, num_records=31)


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
def test_full_batch(relation):
    sampling = FullBatch()
    assert isinstance(sampling, Sampling)
    batch = jax.jit(lambda key: sampling.draw(key, {}, num_records=9))(jax.random.key(0))
    np.testing.assert_array_equal(batch.indices, np.arange(9))
    assert batch.mask.all()
    assert batch.indices.dtype == jnp.int32
    assert sampling.step_event(
        GaussianDpEvent(2.0), num_records=9, relation=relation
    ) == GaussianDpEvent(2.0)
    assert (sampling.rate_for(9), sampling.expected_batch_size(9), sampling.slack_per_step(9)) == (
        1.0,
        9.0,
        0.0,
    )
    assert (sampling.capacity(9), sampling.typical_size(9), sampling.prepare(9)) == (9, 9, {})
    with pytest.raises(ValueError, match="num_records = 0 is outside"):
        sampling.check(0, relation)
    with pytest.raises(ValueError, match="not accounted for"):
        sampling.check(9, Relation.REPLACE_SPECIAL)
