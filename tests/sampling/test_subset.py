"""Subsets: exactly uniform, by enumeration; first occurrences, against a plain loop; shortage, against a Markov chain."""

import collections
import functools
import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from discreet._jax import can_make_one_kernel
from discreet.privacy.sampling import _draws as _subset
from discreet.privacy.sampling._draws import (
    draws_needed,
    shortage_bound,
    uniform_subset,
    valid_words,
)

WAYS = {"chosen": uniform_subset, "at once": _subset._at_once, "one by one": _subset._one_by_one}


@functools.partial(jax.jit, static_argnames=("num_records", "capacity", "way"))
def subset(words, size, num_records, capacity, way="chosen"):
    return WAYS[way](words, size, num_records=num_records, capacity=capacity)


def reference(words, size, num_records):
    limit = 2**32 // num_records * num_records
    seen = []
    for word in words.tolist():
        if word < limit and word % num_records not in seen:
            seen.append(word % num_records)
    return seen[:size]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("num_records", [1, 7, 500, 4097, 10**6, 10**8, 2**31 - 1])
def test_agrees_with_a_plain_loop(num_records, way):
    """64 draws: a table of one slot for each record up to 4,096, slots that records share beyond."""
    generator = np.random.default_rng(num_records)
    limit = 2**32 // num_records * num_records
    pool = generator.integers(0, 2**32, 60, dtype=np.uint32)
    for trial in range(60):
        kind = trial % 3
        if kind == 0:
            words = generator.integers(0, 2**32, 64, dtype=np.uint32)
        elif kind == 1:
            words = generator.choice(pool, 64)
        else:
            words = np.clip(limit + generator.integers(-20, 20, 64), 0, 2**32 - 1).astype(np.uint32)
        size = int(generator.integers(0, 41))
        indices, found = subset(words, np.int32(size), num_records, 40, way)
        expected = reference(words, size, num_records)
        assert found == len(expected)
        assert np.asarray(indices).tolist() == expected + [0] * (40 - len(expected))


def test_both_ways_agree_on_long_sequences():
    words = np.random.default_rng(3).integers(0, 2**32, 3_000, dtype=np.uint32)
    for num_records, size in ((2_000, 1_500), (2_000, 2_100), (10**7, 2_500)):
        ways = [
            subset(words, np.int32(size), num_records, 2_500, way)
            for way in ("at once", "one by one")
        ]
        assert ways[0][1] == ways[1][1] > 1_400
        np.testing.assert_array_equal(*(indices for indices, _ in ways))


def test_under_vmap_the_results_are_those_of_a_loop():
    """A batch of sequences cannot be gone through in one kernel: its way is the other one."""
    words = np.random.default_rng(4).integers(0, 2**32, (5, 64), dtype=np.uint32)
    sizes = np.arange(5, dtype=np.int32) * 10
    draw = functools.partial(uniform_subset, num_records=500, capacity=40)
    together = jax.jit(jax.vmap(draw))(words, sizes)
    for row, size, indices, found in zip(words, sizes, *together, strict=True):
        alone = draw(row, size)
        assert found == alone[1]
        np.testing.assert_array_equal(indices, alone[0])


def test_on_a_cpu_the_draws_are_gone_through_in_one_kernel():
    """A new jaxlib that fails here must be tried out (one_kernel in _jax.py says with what risk) and entered there."""
    if jax.default_backend() != "cpu":
        pytest.skip("a CPU's way")
    assert can_make_one_kernel()
    compiled = subset.lower(np.zeros(64, np.uint32), np.int32(40), 500, 40).compile().as_text()
    assert "xla_cpu_small_call" in compiled
    assert "scatter" not in compiled


@pytest.mark.parametrize("way", ["at once", "one by one"])
def test_records_that_share_a_slot_are_told_apart(monkeypatch, way):
    """All draws fall on one slot on every pass: the slowest case still ends, and with the right answer."""
    monkeypatch.setattr(_subset, "_ODD_START", np.uint32(0))
    monkeypatch.setattr(_subset, "_ODD_STEP", np.uint32(0))
    words = np.random.default_rng(1).integers(0, 30, 64).astype(np.uint32)
    indices, found = WAYS[way](jnp.asarray(words), jnp.int32(30), num_records=10**6, capacity=30)
    expected = reference(words, 30, 10**6)
    assert np.asarray(indices)[: int(found)].tolist() == expected


def enumerate_subsets(draw, num_records, size):
    """Count each subset over all sequences of four row numbers that hold enough records."""
    sequences = np.array(list(itertools.product(range(num_records), repeat=4)), np.uint32)
    indices, found = jax.vmap(draw)(sequences)
    enough = np.asarray(found) == size
    return collections.Counter(frozenset(row.tolist()) for row in np.asarray(indices)[enough])


def test_every_subset_comes_from_equally_many_sequences():
    for size, subsets in ((1, 5), (2, 10), (3, 10)):
        counts = enumerate_subsets(
            lambda w, k=size: uniform_subset(w, k, num_records=5, capacity=k), 5, size
        )
        assert len(counts) == subsets
        assert len(set(counts.values())) == 1


def test_the_enumeration_rejects_an_order_that_looks_at_the_records():
    """The wrong version keeps the smallest distinct records, not the first ones."""

    def smallest(words):
        rows = jnp.sort((words % 5).astype("int32"))
        first = jnp.concatenate([jnp.array([True]), rows[1:] != rows[:-1]])
        rows = jnp.sort(jnp.where(first, rows, 99))
        return rows[:2], jnp.minimum(first.sum(), 2)

    assert len(set(enumerate_subsets(smallest, 5, 2).values())) > 1


def exact_shortage(size, num_records, draws):
    """P(fewer than ``size`` distinct records in ``draws`` words), by the chain of the number of distinct records."""
    state = np.zeros(size + 1)
    state[0] = 1.0
    new = valid_words(num_records) / 2**32 * (1 - np.arange(size + 1) / num_records)
    new[size] = 0.0
    for _ in range(draws):
        moved = state * new
        state = state - moved
        state[1:] += moved[:-1]
    return state[:size].sum()


@pytest.mark.parametrize(
    ("size", "num_records"), [(1, 3), (5, 10), (32, 500), (100, 500), (40, 2_000_000_000)]
)
def test_shortage_bound_is_above_the_exact_probability_and_near_it(size, num_records):
    bound = shortage_bound(np.array([size]), np.ones(1), num_records)
    for failure in (1e-3, 1e-6, 1e-12):
        draws, stated = draws_needed(np.array([size]), np.ones(1), num_records, failure)
        assert stated <= failure
        assert exact_shortage(size, num_records, draws) <= stated
        assert draws <= size + 1 or exact_shortage(size, num_records, draws - 1) > failure / 1e4
        for fewer in range(size, draws, 5):
            assert exact_shortage(size, num_records, fewer) <= bound(fewer)


def test_words_that_give_a_row():
    assert valid_words(2**20) == 2**32
    assert valid_words(3) == 2**32 - 1
    assert valid_words(2**31 - 1) == 2**32 - 2
    assert 2**31 < valid_words(1_500_000_000) == 3_000_000_000
