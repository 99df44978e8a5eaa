"""What the neighbouring relation means: each factor is checked against sums over neighbouring tables."""

import itertools
import math

import numpy as np
import pytest

from discreet.privacy.accounting import Relation, neighbours

ADD = Relation.ADD_OR_REMOVE_ONE
REPLACE = Relation.REPLACE_ONE


def pairs_of_rows(relation, rows):
    """The rows by which neighbouring tables differ: one that is there or not, or one in place of another."""
    absent = np.zeros_like(rows[0])
    return ((a, absent) for a in rows) if relation is ADD else itertools.permutations(rows, 2)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("norm", [1, 2, np.inf])
def test_distance_is_the_most_that_sums_of_bounded_rows_move(relation, norm):
    """Rows of norm at most 1, the two ends of a line among them: the bound holds, and is reached."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 3))
    rows = np.vstack(
        [rows / np.linalg.norm(rows, norm, axis=1, keepdims=True), np.eye(3), -np.eye(3)]
    )
    most = max(np.linalg.norm(a - b, norm) for a, b in pairs_of_rows(relation, rows))
    assert most == pytest.approx(neighbours(relation).distance)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_of_cells_is_the_most_that_counts_move(relation):
    most = max(np.linalg.norm(a - b) for a, b in pairs_of_rows(relation, np.eye(4)))
    assert most == pytest.approx(neighbours(relation).of_cells)


def test_a_size_is_checked_only_where_it_is_public():
    neighbours(ADD).check_size(9, 10)
    neighbours(REPLACE).check_size(10, 10)
    with pytest.raises(
        ValueError, match="x has 9 records, but the plan says num_records=10, a public number"
    ):
        neighbours(REPLACE).check_size(9, 10, "x has")


@pytest.mark.parametrize(
    ("relation", "error"),
    [
        (Relation.REPLACE_SPECIAL, ValueError),
        ("REPLACE_ONE", TypeError),
        (None, TypeError),
        ([REPLACE], TypeError),
    ],
)
def test_what_is_not_accounted_for_is_refused(relation, error):
    """A comparison by hand would take each of these for one that adds or removes a record, at half the price."""
    with pytest.raises(error, match=r"pass Relation.ADD_OR_REMOVE_ONE or Relation.REPLACE_ONE"):
        neighbours(relation)


def test_the_two_are_named_apart():
    words = [
        (near.name("person"), near.act("person"), near.question("person"))
        for near in map(neighbours, (ADD, REPLACE))
    ]
    assert words[0][:2] == ("one person added or removed", "adding or leaving out one person")
    assert words[1][:2] == ("one person replaced", "replacing one person by another")
    assert words[0][2] != words[1][2]
    assert math.isclose(neighbours(REPLACE).of_cells ** 2, neighbours(REPLACE).distance)
