"""d3p's batchifiers: what they hand out, and the law that they say they follow."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet.interfaces.compat.d3p as d3p
from discreet.interfaces.compat.d3p.minibatch import (
    live_sources,
    poisson_batchify_data,
    q_to_batch_size,
    source_of,
    split_batchify_data,
    subsample_batchify_data,
)
from discreet.privacy.accounting import Relation
from discreet.privacy.sampling import FixedSizeSampling, PoissonSampling

KEY = d3p.random.PRNGKey(11)


def pairs(n):
    """Two arrays whose rows can be told to belong together."""
    rows = np.arange(n)
    return rows, np.stack([rows, -rows], axis=1).astype(np.float32)


def test_fixed_size_batches_are_sets_of_whole_records():
    init, get_batch = subsample_batchify_data(pairs(105), 10)
    num_batches, state = init(KEY)
    assert num_batches == 10
    seen = []
    for i in range(12):
        rows, values = get_batch(i, state)
        assert len(set(np.asarray(rows))) == 10
        assert np.array_equal(values[:, 0], rows)
        assert np.array_equal(values[:, 1], -rows)
        seen.append(tuple(sorted(np.asarray(rows).tolist())))
    assert len(set(seen)) == 12
    again = jax.jit(lambda i: get_batch(i, state)[0])(3)
    assert np.array_equal(again, get_batch(3, state)[0]), "the same in a compiled loop"
    assert get_batch.law.sampling == FixedSizeSampling(10)
    assert get_batch.law.relation == Relation.REPLACE_ONE
    # As in d3p the state is the key, which is often given to DPSVI.init as well: batches must not
    # follow from it directly.
    assert state is KEY
    sampling = get_batch.law.sampling
    direct = sampling.draw(
        jax.random.fold_in(KEY, 3),
        jax.tree.map(jnp.asarray, sampling.prepare(105)),
        num_records=105,
    )
    assert not np.array_equal(direct.indices, get_batch(3, state)[0])


@pytest.mark.essential
def test_a_batchifier_state_made_by_hand_is_no_secret():
    _, get_batch = subsample_batchify_data(pairs(20), 5)
    get_batch(0, d3p.random.PRNGKey())
    assert not get_batch.source.seeded
    get_batch(0, KEY)
    assert get_batch.source.seeded


def test_every_record_is_as_likely():
    init, get_batch = subsample_batchify_data((np.arange(20),), q=0.25)
    _, state = init(KEY)
    draws = jax.vmap(lambda i: get_batch(i, state)[0])(jnp.arange(4000))
    counts = np.bincount(np.asarray(draws).ravel(), minlength=20)
    # Five standard deviations of a count around 1000; false alarm below 1e-5 over all records.
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(4000 * 0.25 * 0.75))


def test_masks_on_request():
    init, get_batch = subsample_batchify_data(pairs(20), 5, return_mask=True)
    (rows, _), mask = get_batch(0, init(KEY)[1])
    assert rows.shape == (5,)
    assert mask.all()
    init, get_batch = split_batchify_data(pairs(20), 5, return_mask=True)
    (rows, _), mask = get_batch(0, init(KEY)[1])
    assert rows.shape == (5,)
    assert mask.all()


@pytest.mark.parametrize("handling", ["truncate", "suppress"])
def test_poisson_batches_are_neither_truncated_nor_suppressed(handling):
    """d3p's would hold at most 3 records here, or none, and its accounting knows of neither."""
    init, get_batch = poisson_batchify_data(pairs(100), 0.3, 3, handling)
    num_batches, state = init(KEY)
    assert num_batches == 3
    (rows, values), masks = jax.vmap(lambda i: get_batch(i, state))(jnp.arange(500))
    sizes = np.asarray(masks).sum(axis=1)
    # Mean and variance of Binomial(100, 0.3), at five standard errors.
    assert abs(sizes.mean() - 30) < 5 * np.sqrt(21 / 500)
    assert abs(sizes.var() - 21) < 5 * 21 * np.sqrt(2 / 500)
    for row, value, mask in zip(
        np.asarray(rows), np.asarray(values), np.asarray(masks), strict=True
    ):
        assert len(set(row[mask])) == mask.sum()
        assert np.array_equal(value[mask][:, 0], row[mask])
    assert get_batch.law.sampling == PoissonSampling(0.3)
    assert get_batch.law.relation == Relation.ADD_OR_REMOVE_ONE
    assert get_batch.law.masked


def test_padding_is_zero_whatever_the_table_holds():
    xs = np.full((50, 2), np.nan, np.float32)
    init, get_batch = poisson_batchify_data((xs,), 0.1, 0.99)
    (batch,), mask = get_batch(0, init(KEY)[1])
    assert np.all(np.isnan(np.asarray(batch)[np.asarray(mask)]))
    assert np.all(np.asarray(batch)[~np.asarray(mask)] == 0)


def test_a_pass_through_disjoint_batches_meets_each_record_once():
    init, get_batch = split_batchify_data(pairs(100), 20)
    num_batches, state = init(KEY)
    rows = np.concatenate([get_batch(i, state)[0] for i in range(num_batches)])
    assert sorted(rows) == list(range(100))
    assert not np.array_equal(rows, np.arange(100))
    # Beyond the pass it starts again; a slice that stops at the end would repeat the last 20
    # records.
    assert np.array_equal(get_batch(num_batches, state)[0], get_batch(0, state)[0])
    other = init(d3p.random.PRNGKey(12))[1]
    assert not np.array_equal(get_batch(0, other)[0], get_batch(0, state)[0])
    law = get_batch.law
    assert law.disjoint
    assert law.relation == Relation.REPLACE_ONE
    assert [law.units(steps) for steps in (1, 5, 6, 50)] == [1, 1, 2, 10]


def test_a_pass_costs_one_step_without_amplification():
    _, get_batch = split_batchify_data(pairs(100), 20)
    facts = {"clipping_norm": 1.0, "noise_multiplier": 4.0}
    # Gaussian(4) under REPLACE_ONE: 1.99 at delta = 1e-5 (DESIGN.md); the formula of sampled
    # batches would say 0.7.
    assert get_batch.law.plan(num_steps=5, **facts).epsilon(1e-5) == pytest.approx(1.99, abs=0.01)
    assert get_batch.law.plan(num_steps=6, **facts).epsilon(1e-5) > 2.5


def test_sizes_and_rates():
    assert q_to_batch_size(0.29, 100) == 29, "0.29 * 100 is 28.999999999999996"
    assert q_to_batch_size(0.299, 100) == 29


@pytest.mark.parametrize("batchify", [subsample_batchify_data, split_batchify_data])
def test_bad_input_of_the_fixed_sizes(batchify):
    with pytest.raises(ValueError, match="batch_size or q"):
        batchify(pairs(10))
    with pytest.raises(ValueError, match="batch_size or q"):
        batchify(pairs(10), 2, q=0.1)
    with pytest.raises(ValueError, match="less than one record"):
        batchify(pairs(10), q=0.01)
    with pytest.raises(ValueError, match=r"q is 1\.5"):
        batchify(pairs(10), q=1.5)
    with pytest.raises(ValueError, match="exceeds num_records"):
        batchify(pairs(10), 11)
    with pytest.raises(ValueError, match="lengths"):
        batchify((np.zeros(3), np.zeros(4)), 2)
    with pytest.raises(ValueError, match="lengths"):
        batchify((np.zeros(0),), 2)
    with pytest.raises(ValueError, match="tuple of arrays"):
        batchify(np.zeros(3), 2)


def test_bad_input_elsewhere():
    with pytest.raises(ValueError, match="with_replacement"):
        subsample_batchify_data(pairs(10), 2, with_replacement=True)
    with pytest.raises(ValueError, match="rate"):
        poisson_batchify_data(pairs(10), 0.0, 3)
    with pytest.raises(ValueError, match="max_batch_size"):
        poisson_batchify_data(pairs(10), 0.1, -1)
    with pytest.raises(ValueError, match="handle_oversized_batch"):
        poisson_batchify_data(pairs(10), 0.1, 3, "explode")


def test_batchifiers_are_known_while_they_live():
    _, get_batch = subsample_batchify_data(pairs(77), 13)
    _, same = subsample_batchify_data(pairs(77), 13)
    assert set(live_sources(13)) == {get_batch.source, same.source}
    del get_batch, same
    gc.collect()
    assert live_sources(13) == []


def test_batches_are_known_by_their_arrays():
    init, get_batch = subsample_batchify_data(pairs(77), 13)
    _, other = subsample_batchify_data(pairs(77), 13)
    state = init(KEY)[1]
    batch = get_batch(0, state)
    assert source_of(batch) is get_batch.source
    assert source_of(batch[:1]) is get_batch.source
    assert source_of([batch[0], other(0, state)[1]]) is None, "arrays of two batchifiers"
    assert source_of([batch[0], get_batch(1, state)[1]]) is None, "arrays of two batches"
    assert source_of([batch[0] + 0, batch[1]]) is None, "changed"

    def traced(i):
        inside = get_batch(i, state)
        assert source_of(inside) is get_batch.source, "a program that is being compiled"
        return source_of([inside[0] * 2]) is None

    assert jax.jit(traced)(0)
    del get_batch, init
    gc.collect()
    assert source_of(batch) is not None, "a batch outlives its batchifier"
