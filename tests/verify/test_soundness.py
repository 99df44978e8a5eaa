"""No neighbouring tables differ by more than a certificate says: programs made at random, tried on random neighbours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet as dp
from discreet.verify import (
    _bounds,
    _interpreter,
    _rules_elementwise,
    _rules_linear,
    _rules_markers,
    _rules_shape,
    _sums,
)
from discreet.verify._domain import Private

from .generated import D, N, program, row, table

KEY = dp.random.key(0)
STDDEV = 1.0
REPLACE, ADD = dp.Relation.REPLACE_ONE, dp.Relation.ADD_OR_REMOVE_ONE
SHAPES = jnp.zeros((N, D)), jnp.zeros(N, bool)
PROGRAMS = 200
SEARCH = 600
ROUNDING = 1e-4


def bound_of(core, relation, sampled):
    """C by the certificate: what one record may add to the result; None where there is no proof."""

    def step(rows, mask, key):
        draw, noise = jax.random.split(key)
        if sampled:
            (rows, real), drawn = dp.poisson_subsample(draw, (rows, mask), 0.5, N)
            mask = real & drawn
        return dp.gaussian_mechanism(noise, core(rows, mask), STDDEV)

    try:
        event = dp.certify(step, *SHAPES, KEY, records=0, mask=1, relation=relation).event
    except dp.PrivacyError:
        return None
    while hasattr(event, "event"):
        event = event.event
    return STDDEV / event.noise_multiplier if hasattr(event, "noise_multiplier") else 0.0


def neighbours(r, relation):
    rows, mask = table(r)
    other, kept = rows.copy(), mask.copy()
    i = r.integers(N)
    other[i] = row(r)
    if relation is ADD:
        mask[i], kept[i] = True, False
    else:
        mask[i] = kept[i] = True
    return (rows, mask), (other, kept)


def batches(r, relation):
    """Two batches that differ in one record, in any order: which row a record gets means nothing."""
    count = int(r.integers(0, N))
    rows = [row(r) for _ in range(count)]
    one, other = row(r), row(r)

    def batch(rows):
        order = r.permutation(len(rows))
        padded = np.zeros((N, D), np.float32)
        for place, i in enumerate(order):
            padded[place] = rows[i]
        return padded, np.arange(N) < len(rows)

    del other
    return batch([*rows, one]), batch(rows)


def distance(core, pair):
    a, b = (np.asarray(core(jnp.asarray(rows), jnp.asarray(mask)), np.float64) for rows, mask in pair)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.linalg.norm(np.where(equal, 0.0, a - b)))


def first_violation(relation, sampled, seeds, tries=6):
    """The first program whose bound is exceeded, and how many were proved until then."""
    proved = 0
    for seed in seeds:
        core = program(seed)
        bound = bound_of(core, relation, sampled)
        if bound is None:
            continue
        proved += 1
        r = np.random.default_rng(seed)
        for _ in range(tries):
            pair = batches(r, relation) if sampled else neighbours(r, relation)
            allowed = bound * (2.0 if relation is REPLACE and not sampled else 1.0)
            seen = distance(core, pair)
            if not seen <= allowed * (1 + ROUNDING) + 1e-4:
                return (seed, core.names, bound, seen, pair), proved
    return None, proved


@pytest.mark.parametrize("sampled", [False, True], ids=["table", "sample"])
@pytest.mark.parametrize("relation", [ADD, REPLACE], ids=["add", "replace"])
def test_generated_programs(relation, sampled):
    found, proved = first_violation(relation, sampled, range(PROGRAMS))
    assert found is None, found
    assert proved > PROGRAMS / 50


def _rounds(value):
    return lambda *args: value


def _unordered(old, new, axes):
    """Reshapes that take the first axis for the records, whatever it holds."""
    return axes if all(a < len(new) for a in axes) else None


def _loudest(parts, source):
    """The largest bound instead of all together."""
    return max(parts, key=lambda p: p[0].bound.factor if p else 0.0)


def _as_if_finite(value, size):
    return _bounds.row_terms(value.but(finite=True, terms=value.terms, linf=value.linf), size)


def _wherever(checker, equation, operands):
    """Sorting, or adding up, over the records as within a row."""
    first = next(x for x in operands if isinstance(x, Private))
    return first.but(axes=first.axes)


MUTATIONS = {
    "padding counts as zero": (_sums, "contribution_factor", lambda value, relation: (1.0, "")),
    "NaN counts as a number": (_sums, "row_terms", _as_if_finite),
    "a mask hides NaN": (_rules_elementwise, "all_finite", _rounds(True)),
    "places do not matter": (_rules_elementwise, "varies_along", _rounds(False)),
    "reshapes keep records": (_rules_shape, "through_reshape", _unordered),
    "parts are not added up": (_rules_shape, "stacked", _loudest),
    "a choice of sums is free": (_rules_shape, "expansion", _rounds(1.0)),
    "a ball has no diameter": (_rules_markers, "range_factor", _rounds(1.0)),
    "copies are free": (_rules_elementwise, "expansion", _rounds(1.0)),
    "factors are free": (_rules_elementwise, "scaled", lambda terms, factor: terms),
    "sums of a row are free": (_rules_linear, "scaled", lambda terms, factor: terms),
    "coarse numbers are exact": (_interpreter, "LOW_PRECISION", ()),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rule_made_too_small_is_caught(name, monkeypatch):
    """On the table or on a sample, within a thousand programs."""
    monkeypatch.setattr(*MUTATIONS[name])
    for relation, sampled in ((ADD, False), (ADD, True)):
        if first_violation(relation, sampled, range(SEARCH))[0] is not None:
            return
    raise AssertionError("no program shows the fault")
