import dataclasses

import numpy as np
import pyarrow
import pytest
import scipy.stats

from discreet.tabular.tables import (
    Column,
    DataError,
    Kind,
    Schema,
    encode,
    keep_one_row_a_person,
    rows_of_persons,
)

AGE = Column(name="age", kind=Kind.REAL, bounds=(0, 100))
SICK = Column(name="sick", kind=Kind.BINARY, categories=("0", "1"))
SCHEMA = Schema(columns=(AGE,), person="id")
KEY = bytes(range(32))


def kept(persons: list, key: bytes | None = KEY) -> np.ndarray:
    return keep_one_row_a_person(pyarrow.chunked_array([persons]), key=key)


def test_each_person_keeps_one_row_and_the_same_with_the_same_key() -> None:
    rng = np.random.default_rng(0)
    persons = rng.integers(0, 40, 200).astype(str)
    keep = kept(list(persons))
    assert sorted(persons[keep]) == sorted(set(persons))
    np.testing.assert_array_equal(keep, kept(list(persons)))
    assert (keep != kept(list(persons), bytes(32))).any()
    # Two keys of the system agree on all of 40 people with 5 rows each with a probability below
    # 1e-20.
    assert (kept(list(persons), None) != kept(list(persons), None)).any()


def test_the_row_that_is_kept_is_that_of_earlier_versions() -> None:
    """A fit that goes on from a checkpoint of an earlier version must see the same records."""
    persons = np.random.default_rng(0).integers(0, 12, 60).astype(str)
    expected = [3, 10, 11, 14, 18, 23, 28, 31, 39, 40, 43, 57]
    assert np.flatnonzero(kept(list(persons))).tolist() == expected


@pytest.mark.parametrize("max_rows", [1, 3])
def test_one_person_more_or_less_is_one_record_more_or_less(max_rows: int) -> None:
    """The reason for the whole: whoever comes, goes or moves, the rows kept of all others are the same."""
    rng = np.random.default_rng(1)
    persons = rng.integers(0, 30, 150).astype(str)
    ages = rng.uniform(0, 100, 150)

    def records(rows: np.ndarray) -> set[tuple[float, ...]]:
        table = pyarrow.table({"age": ages[rows], "id": persons[rows]})
        x = encode(table, dataclasses.replace(SCHEMA, max_rows=max_rows), key=KEY).x
        return {tuple(person.ravel().tolist()) for person in x}

    everyone = records(np.arange(150))
    for person in ("0", "7", "29"):
        others = records(np.flatnonzero(persons != person))
        assert others < everyone
        assert len(everyone - others) == 1


def test_records_of_several_rows() -> None:
    """In the order of the file, with zeros where a person has fewer; of 1,000 rows as many as are allowed."""
    persons = [*"aba", *"c" * 1_000]
    ages = np.arange(len(persons)) / 20
    schema = dataclasses.replace(SCHEMA, columns=(AGE, SICK), target="sick", max_rows=3)
    table = pyarrow.table({"age": ages, "sick": ["1", "0", "1", *["1"] * 1_000], "id": persons})
    records = encode(table, schema, key=KEY)
    assert records.num_records == 3
    assert [array.shape for array in records.arrays] == [(3, 3, 1), (3, 3), (3, 3)]
    assert records.mask is not None
    assert records.y is not None
    assert records.mask.tolist() == [[True, True, False], [True, False, False], [True] * 3]
    np.testing.assert_allclose(records.x[:2, :, 0], [[-1, -0.998, 0], [-0.999, 0, 0]], atol=1e-6)
    assert records.y.tolist() == [[1, 1, 0], [0, 0, 0], [1, 1, 1]]
    assert (np.diff(records.x[2, :, 0]) > 0).all()


@pytest.mark.parametrize("max_rows", [1, 2])
def test_any_row_of_a_person_is_as_likely(max_rows: int) -> None:
    """Never the first ones: the chi-square test has a false-alarm rate of 1e-6, at a fixed seed."""
    persons = pyarrow.chunked_array([[str(person) for person in range(3_000) for _ in range(4)]])
    places = rows_of_persons(persons, max_rows, key=KEY) % 4
    assert scipy.stats.chisquare(np.bincount(places.ravel())).pvalue > 1e-6


def test_rows_that_are_nobodys_and_bad_keys_are_refused() -> None:
    with pytest.raises(DataError, match="person column has missing cells"):
        kept(["a", None])
    with pytest.raises(ValueError, match="key has 3 bytes"):
        kept(["a"], b"abc")


def test_the_person_is_no_feature() -> None:
    table = pyarrow.table({"age": [1.0, 2.0, 3.0], "id": ["a", "b", "a"]})
    records = encode(table, SCHEMA)
    assert records.feature_names == ("age",)
    assert records.num_records == 2
