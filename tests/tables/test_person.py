import numpy as np
import pyarrow
import pytest
import scipy.stats

from discreet.tables import Column, DataError, Kind, Schema, encode, keep_one_row_a_person

AGE = Column(name="age", kind=Kind.REAL, bounds=(0, 100))
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
    # Two keys of the system agree on all of 40 people with 5 rows each with a probability below 1e-20.
    assert (kept(list(persons), None) != kept(list(persons), None)).any()


def test_one_person_more_or_less_is_one_record_more_or_less() -> None:
    """The reason for the whole: whoever comes, goes or moves, the rows kept of all others are the same."""
    rng = np.random.default_rng(1)
    persons = rng.integers(0, 30, 150).astype(str)
    ages = rng.uniform(0, 100, 150)

    def records(rows: np.ndarray) -> set[float]:
        table = pyarrow.table({"age": ages[rows], "id": persons[rows]})
        x = encode(table, SCHEMA, key=KEY).x
        return set(x[:, 0].tolist())

    everyone = records(np.arange(150))
    for person in ("0", "7", "29"):
        others = records(np.flatnonzero(persons != person))
        assert others < everyone
        assert len(everyone - others) == 1


def test_any_row_of_a_person_is_as_likely() -> None:
    """Never the first ones: the chi-square test has a false-alarm rate of 1e-6, at a fixed seed."""
    persons = [str(person) for person in range(3_000) for _ in range(4)]
    places = np.flatnonzero(kept(persons)) % 4
    assert scipy.stats.chisquare(np.bincount(places)).pvalue > 1e-6


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
