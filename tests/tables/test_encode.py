import dataclasses

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow
import pytest

from discreet.tabular.tables import (
    Column,
    DataError,
    Kind,
    Missing,
    OutOfBounds,
    Schema,
    convert,
    encode,
)


def schema_of(*columns: Column, target: str | None = None) -> Schema:
    return Schema(columns=columns, target=target)


AGE = Column(name="age", kind=Kind.REAL, bounds=(20, 60))
VISITS = Column(name="visits", kind=Kind.COUNT, bounds=(0, 10))
REGION = Column(name="region", kind=Kind.CATEGORICAL, categories=("north", "south"))
FLAG = Column(name="flag", kind=Kind.BINARY, categories=("0", "1"))


def test_each_kind() -> None:
    table = pyarrow.table(
        {
            "age": [20.0, 40.0, 60.0],
            "visits": [0.0, 5.0, 10.0],
            "region": ["south", "north", "south"],
            "flag": ["1", "0", "1.0"],
        }
    )
    records = encode(table, schema_of(AGE, VISITS, REGION, FLAG))
    np.testing.assert_array_equal(records.x, [[-1, -1, 0, 1, 1], [0, 0, 1, 0, 0], [1, 1, 0, 1, 1]])
    assert records.feature_names == ("age", "visits", "region=north", "region=south", "flag=1")
    assert records.y is None
    assert records.x.dtype == np.float32


def test_targets() -> None:
    table = pyarrow.table(
        {
            "age": [20.0, 50.0],
            "visits": [3.0, 4.0],
            "flag": ["false", "true"],
            "region": ["south", "north"],
        }
    )
    real = encode(table, schema_of(AGE, FLAG, target="age"))
    np.testing.assert_array_equal(real.y, [-1, 0.5])
    np.testing.assert_array_equal(real.y * real.target_scale + real.target_centre, [20, 50])
    np.testing.assert_array_equal(encode(table, schema_of(AGE, VISITS, target="visits")).y, [3, 4])
    np.testing.assert_array_equal(encode(table, schema_of(AGE, FLAG, target="flag")).y, [0, 1])
    np.testing.assert_array_equal(encode(table, schema_of(AGE, REGION, target="region")).y, [1, 0])


def test_a_dropped_row_is_a_record_that_contributes_nothing(tmp_path) -> None:
    """Records are NaN throughout, of which gradients are zero; their number is the table's, whatever the cells."""
    wage = Column(name="wage", kind=Kind.REAL, bounds=(0, 10), missing=Missing.DROP)
    described = schema_of(AGE, REGION, wage, target="wage")
    table = pyarrow.table(
        {"age": [20.0, 60.0, 40.0], "region": ["north"] * 3, "wage": [5.0, None, 10.0]}
    )
    for raw in (False, True):
        records = encode(table, described, raw=raw)
        assert np.isnan(records.x[1]).all()
        assert np.isnan(records.y).tolist() == [False, True, False]
        assert np.isfinite(records.x[[0, 2]]).all()
    out = encode(
        table.set_column(2, "wage", [[5.0, 99.0, 10.0]]), described, out_of_bounds="missing"
    )
    np.testing.assert_array_equal(out.y, [0, np.nan, 1])
    stored = convert(table, described, tmp_path / "records")
    np.testing.assert_array_equal(stored.x, encode(table, described).x)
    refusing = dataclasses.replace(
        described, columns=(AGE, REGION, dataclasses.replace(wage, missing="refuse"))
    )
    with pytest.raises(DataError, match='missing = "drop"'):
        encode(table, refusing)
    with pytest.raises(DataError, match="'wage': 'dorp' is not a valid Missing"):
        dataclasses.replace(wage, missing="dorp")


def test_a_dropped_row_of_several_is_no_row_of_its_person(tmp_path) -> None:
    wage = Column(name="wage", kind=Kind.REAL, bounds=(0, 10), missing=Missing.DROP)
    described = Schema(columns=(AGE, wage), target="wage", person="id", max_rows=2)
    cells = {"age": [20.0, 60.0, 40.0], "wage": [5.0, None, None], "id": ["a", "a", "b"]}
    records = encode(pyarrow.table(cells), described)
    assert records.mask.tolist() == [[True, False], [False, False]]
    np.testing.assert_array_equal(records.x[..., 0], [[-1, 0], [0, 0]])
    stored = convert(pyarrow.table(cells), described, tmp_path / "records")
    for one, other in zip(stored.arrays, records.arrays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_columns_of_other_types_are_read_as_their_kind() -> None:
    """Integers and Booleans, as a pyarrow table of one's own has them."""
    table = pyarrow.table(
        {"age": [20, 40, None], "visits": [0, 5, 10], "flag": [True, False, True]}
    )
    age = Column(name="age", kind=Kind.REAL, bounds=(20, 60), missing=Missing.INDICATOR)
    records = encode(table, schema_of(age, VISITS, FLAG, target="flag"))
    np.testing.assert_array_equal(records.x, [[-1, 0, -1], [0, 0, 0], [0, 1, 1]])
    np.testing.assert_array_equal(records.y, [1, 0, 1])
    np.testing.assert_array_equal(
        encode(table, schema_of(age, VISITS, target="visits")).y, [0, 5, 10]
    )
    wide = Column(name="age", kind=Kind.REAL, bounds=(0, 2.0**60))
    exact = encode(pyarrow.table({"age": [0, 2**53]}), schema_of(wide)).x
    np.testing.assert_array_equal(exact, [[-1], [2.0**-6 - 1]])
    with pytest.raises(DataError, match=r"'age' has integers beyond 2\^53"):
        encode(pyarrow.table({"age": [0, 2**53 + 1]}), schema_of(wide))


def test_missing_cells_are_refused_or_indicated() -> None:
    cells = {"age": [None, 60.0, float("nan")], "region": ["south", None, "north"]}
    with pytest.raises(DataError, match=r"'age' \(and likewise 'region'\) has missing cells"):
        encode(pyarrow.table(cells), schema_of(AGE, REGION))
    indicated = [
        Column(name="age", kind=Kind.REAL, bounds=(20, 60), missing=Missing.INDICATOR),
        Column(
            name="region",
            kind=Kind.CATEGORICAL,
            categories=("north", "south"),
            missing=Missing.INDICATOR,
        ),
    ]
    records = encode(pyarrow.table(cells), schema_of(*indicated))
    np.testing.assert_array_equal(records.x, [[0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 1, 1, 0, 0]])
    assert records.feature_names[1] == "age is missing"
    with pytest.raises(DataError, match="is the target"):
        encode(pyarrow.table(cells), schema_of(*indicated, target="age"))


def test_a_column_has_a_rule_of_its_own_for_what_it_does_not_allow() -> None:
    """Unwanted answers of the target drop their rows, and a misspelt category elsewhere is refused all the same."""
    vote = Column(
        name="vote",
        kind=Kind.BINARY,
        categories=("N", "Y"),
        missing=Missing.DROP,
        out_of_bounds=OutOfBounds.MISSING,
    )
    described = schema_of(AGE, REGION, vote, target="vote")
    cells = {
        "age": [20.0, 40.0, 60.0],
        "region": [REGION.categories[0]] * 3,
        "vote": ["N", "A", "Y"],
    }
    records = encode(pyarrow.table(cells), described)
    assert np.isnan(records.y).tolist() == [False, True, False]
    with pytest.raises(
        DataError, match="'region' has values outside its public categories"
    ) as caught:
        encode(pyarrow.table(cells | {"region": ["secretcell"] * 3}), described)
    assert "secretcell" not in str(caught.value)
    assert 'write out_of_bounds = "missing" and missing = "indicator"' in str(caught.value)
    clipped = dataclasses.replace(AGE, out_of_bounds="clip")
    low, high = AGE.limits
    np.testing.assert_array_equal(
        encode(pyarrow.table({"age": [low - 1, high + 1]}), schema_of(clipped)).x, [[-1], [1]]
    )
    for wrong, why in (
        ({"out_of_bounds": "missing"}, "its missing cells are refused"),
        ({"out_of_bounds": "drop"}, "not a valid"),
    ):
        with pytest.raises(DataError, match=why):
            dataclasses.replace(AGE, **wrong)
    with pytest.raises(DataError, match="for numbers and dates"):
        dataclasses.replace(vote, out_of_bounds="clip")


def test_out_of_bounds_is_refused_or_clipped() -> None:
    table = pyarrow.table({"age": [20.0, 61.0, float("inf")]})
    with pytest.raises(
        DataError, match="'age' has values outside its public bounds 20 to 60"
    ) as caught:
        encode(table, schema_of(AGE))
    assert "61" not in str(caught.value)
    np.testing.assert_array_equal(
        encode(table, schema_of(AGE), out_of_bounds="clip").x, [[-1], [1], [1]]
    )


def test_errors_name_the_column_and_the_rule_but_no_cell() -> None:
    for table, column, rule in [
        ({"region": ["north", "secretcell"]}, REGION, "public categories north, south"),
        ({"visits": [1.0, 2.53125]}, VISITS, "not whole"),
        ({"flag": ["0", "secretcell"]}, FLAG, "public categories 0, 1"),
    ]:
        with pytest.raises(DataError, match=rule) as caught:
            encode(pyarrow.table(table), schema_of(column))
        assert column.name in str(caught.value)
        assert "secretcell" not in str(caught.value)
        assert "2.53125" not in str(caught.value)


def test_no_rows() -> None:
    with pytest.raises(DataError, match="no rows"):
        encode(pyarrow.table({"age": pyarrow.array([], pyarrow.float64())}), schema_of(AGE))


def test_repr_shows_no_cells() -> None:
    assert (
        repr(encode(pyarrow.table({"age": [33.0]}), schema_of(AGE)))
        == "Records(1 records, 1 features)"
    )


@hypothesis.given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=8),
)
@hypothesis.settings(deadline=None, max_examples=50)
def test_numbers_stay_within_one(low: float, width: float, shares: list[float]) -> None:
    """Each entry is at most 1 in size whatever the bounds, and a row's numbers do not depend on the other rows."""
    column = Column(name="a", kind=Kind.REAL, bounds=(low, low + width))
    cells = [min(low + share * width, low + width) for share in shares]
    x = encode(pyarrow.table({"a": cells}), schema_of(column)).x
    assert np.abs(x).max() <= 1
    for index, cell in enumerate(cells):
        alone = encode(pyarrow.table({"a": [cell]}), schema_of(column)).x
        np.testing.assert_array_equal(alone[0], x[index])
