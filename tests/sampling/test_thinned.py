"""Poisson batches at a rate that changes with the step: each step's law is that of its own rate, whatever the layout."""

import dataclasses
from fractions import Fraction

import jax
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation as Relation, PoissonSampledDpEvent
from jax import numpy as jnp

import discreet as dp
from discreet.privacy.sampling import PoissonSampling

from .test_poisson import FALSE_ALARM, inclusion_p_value, independence_p_value, size_p_value

# A subset of drawn size; one coin per record; all records. Of each, a rate below the largest and
# the largest itself.
LAYOUTS = [(500, (0.064, 0.02), 4_000), (40, (0.3, 0.1), 10_000), (40, (1.0, 0.25), 10_000)]


def drawn(sampling, num_records, step, count, seed=0):
    """The batches of one step: row numbers, masks, and bool[count, num_records]: which records are in which."""
    drawing, tables = sampling.drawing(num_records), sampling.prepare(num_records)

    @jax.jit
    def draw(keys, step):
        return jax.vmap(lambda key: drawing.draw(key, drawing.at(tables, step)))(keys)

    batch = draw(jax.random.split(dp.random.key(seed), count), jnp.int32(step))
    indices, mask = np.asarray(batch.indices), np.asarray(batch.mask)
    included = np.zeros((count, num_records), bool)
    included[np.nonzero(mask)[0], indices[mask]] = True
    assert np.all(included.sum(1) == mask.sum(1))  # no record twice
    return indices, mask, included


@pytest.mark.parametrize(("num_records", "rates", "count"), LAYOUTS)
def test_each_step_has_the_law_of_its_own_rate(num_records, rates, count):
    """Seeds are fixed. Batches at the other step's rate fail, as does half of a batch in turn."""
    sampling = PoissonSampling(max(rates)).thinned(rates)
    for step, rate in enumerate(rates):
        indices, mask, included = drawn(sampling, num_records, step, count)
        assert indices.shape[1] == PoissonSampling(max(rates)).capacity(num_records)
        assert not indices[~mask].any()
        assert np.all(np.diff(mask.astype(int), axis=1) <= 0)  # those in the batch stand first
        if rate == 1:
            assert included.all()
            continue
        assert inclusion_p_value(included, rate) > FALSE_ALARM
        assert independence_p_value(included, rate) > FALSE_ALARM
        assert size_p_value(included.sum(1), num_records, rate) > FALSE_ALARM
        assert inclusion_p_value(included, rates[1 - step] - 1e-9) < FALSE_ALARM


def test_beyond_the_last_step_the_law_is_that_of_the_last():
    sampling = PoissonSampling(0.3).thinned((0.3, 0.1))
    _, _, included = drawn(sampling, 40, 7, 10_000)
    assert inclusion_p_value(included, 0.1) > FALSE_ALARM
    assert sampling.at(7) == sampling.at(1) != sampling.at(0) == sampling.at(-1)


def test_the_order_of_a_batch_stays_random():
    """400 batches of some 8 out of 400 records: how often a record stands before a later one."""
    sampling = PoissonSampling(0.04).thinned((0.02,))
    assert sampling.shuffled(400)
    indices, mask, _ = drawn(sampling, 400, 0, 400, seed=3)
    rises = [np.diff(row[kept]) > 0 for row, kept in zip(indices, mask, strict=True)]
    assert abs(np.concatenate(rises).mean() - 0.5) < 0.05


def test_a_coin_is_the_exact_quotient_of_two_rates():
    """0.3 / 0.7 in float64 is off by 2^-54, which 10^4 records and 10^3 steps turn into 10^-9."""
    sampling = PoissonSampling(0.7).thinned((0.3, 0.7, 5e-324))
    for rate, words in zip(sampling.rates, sampling.coins().tolist(), strict=True):
        coin = Fraction(
            sum(word << shift for word, shift in zip(words, (64, 32, 0), strict=True)), 2**96
        )
        below = Fraction(rate) - Fraction(0.7) * coin
        assert 0 <= below <= Fraction(1, 2**96)
        assert 10 * float(below) <= sampling.slack_per_step(10) - PoissonSampling(
            0.7
        ).slack_per_step(10)


@pytest.mark.parametrize("num_records", [1, 40, 10**6])
def test_slack_covers_batches_and_coins_of_neighbours(num_records):
    for largest in (0.001, 0.5, 1.0):
        own = PoissonSampling(largest).slack_per_step(num_records)
        assert own + (num_records + 1) * 2.0**-96 <= PoissonSampling(largest).thinned(
            (largest / 2,)
        ).slack_per_step(num_records)


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE])
def test_event(relation):
    mechanism = GaussianDpEvent(2.0)
    sampling = PoissonSampling(0.1).thinned((0.05, 0.02))
    facts = {"num_records": 500, "relation": relation}
    assert sampling.at(1).step_event(mechanism, **facts) == PoissonSampledDpEvent(0.02, mechanism)
    # that of any step
    assert sampling.step_event(mechanism, **facts) == PoissonSampledDpEvent(0.05, mechanism)
    assert sampling.rate_for(500) == 0.05
    assert "between 0.02 and 0.05" in sampling.in_words(500)


@pytest.mark.parametrize("rate", [0.0, -0.1, 0.3, float("nan")])
def test_rates_beyond_the_room_of_a_batch(rate):
    with pytest.raises(
        ValueError, match=r"step 1, is .* at most sampling's rate, 0.2.* the largest rate"
    ):
        PoissonSampling(0.2).thinned((0.1, rate))


@pytest.mark.parametrize("sampling", [dp.FixedSizeSampling(20), dp.FullBatch()], ids=str)
def test_other_samplers_have_one_rate(sampling):
    with pytest.raises(ValueError, match=r"one rate for all steps.*PoissonSampling\(rate=0.1\)"):
        sampling.thinned((0.1, 0.05))


def test_the_law_follows_from_the_tables():
    sampling = PoissonSampling(0.064).thinned((0.064, 0.02))
    drawing = sampling.drawing(500)
    tables = drawing.at(sampling.prepare(500), None)
    assert drawing.law(tables) == sampling
    other = PoissonSampling(0.064).thinned((0.064, 0.021)).prepare(500)
    smaller = PoissonSampling(0.06).prepare(500)
    for name, table in (
        ("coins", other["coins"]),
        ("rates", other["rates"]),
        ("whole", smaller),
        ("coins", None),
    ):
        assert drawing.law({**tables, name: table}) is None, name
    larger = np.array([0.064, 0.065]).view(np.uint32).reshape(-1, 2)
    assert drawing.law({**tables, "rates": larger}) is None
    assert drawing.law(sampling.prepare(500)) is None  # without the number of the step
    for wrong in ({"num_records": 499}, {"num_records": 501}, {"capacity": drawing.capacity - 1}):
        assert dataclasses.replace(drawing, **wrong).law(tables) is None, wrong
    whole = PoissonSampling(0.064).drawing(501)
    assert dataclasses.replace(drawing, whole=whole).law(tables) is None
