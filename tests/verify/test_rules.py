"""Every rule, by itself: what it says of its results is so, and said any stronger it would not be."""

import pytest

from discreet._jax import programs_in
from discreet.privacy.verify import _registry

from . import cases_networks, cases_structure  # noqa: F401  they enter their cases
from .cases import CASES
from .claims import Book
from .operands import Case, held_against_numbers, trials

LOOSE = {
    # What a number is compared with, and which of its row is the largest, hardly depends on the
    # place added to the row.
    **{
        name: {"place"}
        for name in ("is_finite", "eq", "ne", "eq_to", "reduce_and", "argmax", "argmin")
    },
    # Nothing is said of their sizes, and they are tried on tame numbers.
    **{
        name: {"finite"}
        for name in (
            "cholesky",
            "lu",
            "qr",
            "eigh",
            "svd",
            "triangular_solve",
            "custom_linear_solve",
        )
    },
    **{name: {"finite"} for name in ("conv_general_dilated", "random_gamma", "scatter", "fft")},
}
"""Claims that these numbers do not come to the edge of."""
ELSEWHERE = {"clipped_sum", "update_rows", "shard_map", "pvary", "reshard"}
"""Of private inference, which nobody else calls: tests/inference/test_proof.py, test_local.py. Of devices: test_devices.py."""
WORLDS = ("add", "replace", "sample")

pytestmark = pytest.mark.usefixtures("quick_compilation")


def primitives_with_rules():
    tables = (_registry.RULES, _registry.STRUCTURED, _registry.INLINED, _registry.KEY_RULES)
    return {primitive.name for table in tables for primitive in table}


def test_every_rule_has_its_cases():
    """A rule without a test of what it says cannot land."""
    assert primitives_with_rules() == set(CASES) | ELSEWHERE


@pytest.mark.parametrize("world", [*WORLDS, "fixed sample"])
def test_operands_are_what_is_said(world):
    """They are the same for all rules, whose results alone are looked at with each."""
    for here, seen, _ in trials(Case(lambda key: key, (), keyed=True), world, 40, seed=1):
        book = Book(here, seen)
        assert not [(item.value, complaint) for item in seen for complaint in book.about(item)]


# One convolution takes as long as all others together.
@pytest.mark.essential
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name == "conv_general_dilated"))
        for name in CASES
    ],
)
def test_what_a_rule_says_is_so(name):
    """Seeds are fixed; a claim that may be made half as large, or made where it is not, is given the lie to."""
    used = {e.primitive.name for case in CASES[name] for e in _equations(case.program)}
    assert name in used
    faults, untested = held_against_numbers(CASES[name], name, 2, WORLDS)
    assert not faults
    assert untested <= LOOSE.get(name, set())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_what_a_rule_says_is_so_of_many(name):
    assert not held_against_numbers(CASES[name], name, 40, (*WORLDS, "fixed sample"), seed=1)[0]


def _equations(closed):
    for program in programs_in(closed):
        yield from program.jaxpr.eqns
