import datetime

import numpy as np
import pyarrow
import pytest

from discreet.tabular.models import Levels
from discreet.tabular.tables import Column, DataError, Kind, Missing, Schema

SCHEMA = Schema(
    columns=(
        Column(name="weight", kind=Kind.REAL, bounds=(-2.0, 6.0), missing=Missing.INDICATOR),
        Column(name="visits", kind=Kind.COUNT, bounds=(3, 1_000)),
        Column(name="children", kind=Kind.COUNT, bounds=(0, 4)),
        Column(name="smoker", kind=Kind.BINARY, categories=("0", "1")),
        Column(
            name="region",
            kind=Kind.CATEGORICAL,
            categories=("north", "south", "east"),
            missing=Missing.INDICATOR,
        ),
    )
)


def table_of(**changes):
    cells = {
        "weight": [-2.0, 6.0, None, 0.5],
        "visits": [3, 1_000, 4, 77],
        "children": [0, 4, 2, 1],
        "smoker": [0, 1, 1, 0],
        "region": ["north", "east", None, "south"],
    }
    return {**cells, **changes}


def test_levels_by_hand() -> None:
    levels = Levels(SCHEMA, slices=8)
    assert levels.sizes == (9, 8, 5, 2, 4)
    records = levels.encode(table_of())
    assert records.dtype == np.int32
    np.testing.assert_array_equal(records[:, 0], [0, 7, 8, 2])
    assert records[0, 1] == 0
    assert records[1, 1] == 7
    np.testing.assert_array_equal(records[:, 2:], [[0, 0, 0], [4, 1, 2], [2, 1, 3], [1, 0, 1]])


@pytest.mark.parametrize("values", [2, 7, 8, 9, 40, 1_000, 100_000])
@pytest.mark.parametrize("slices", [2, 8, 32])
def test_slices_of_a_count_grow_and_hold_each_value_once(values, slices) -> None:
    column = Column(name="n", kind=Kind.COUNT, bounds=(5, 4 + values))
    widths = np.diff(Levels(Schema(columns=(column,)), slices).edges(column))
    assert len(widths) == min(values, slices)
    assert widths.sum() == values
    assert widths[0] == 1
    assert (widths >= 1).all()
    assert (np.diff(widths) >= -1).all()  # growing, but for rounding


@pytest.mark.parametrize(
    "bounds", [(0.0, 1.0), (0.1, 0.7), (-2.0, 6.0), (1e6, 1e6 + 1), (-1e-300, 1e300), (17.0, 90.0)]
)
@pytest.mark.parametrize("slices", [2, 3, 32, 1000])
def test_a_number_is_in_the_slice_that_its_edges_say(bounds, slices) -> None:
    """Also at an edge and one step of a float beside it, where the rounding of a product would say otherwise."""
    levels = Levels(Schema(columns=(Column(name="x", kind=Kind.REAL, bounds=bounds),)), slices)
    edges = levels.edges(levels.schema.columns[0])
    near = [
        edges,
        np.nextafter(edges, -np.inf),
        np.nextafter(edges, np.inf),
        *np.random.default_rng(0).uniform(*bounds, 99),
    ]
    numbers = np.clip(np.hstack(near), *bounds)
    expected = np.minimum(np.searchsorted(edges, numbers, side="right") - 1, slices - 1)
    np.testing.assert_array_equal(levels.encode({"x": numbers})[:, 0], expected)


@pytest.mark.parametrize("make", [dict, pyarrow.table], ids=["dict", "arrow"])
def test_back_and_forth(make) -> None:
    levels = Levels(SCHEMA, slices=8)
    records = levels.encode(make(table_of()))
    repeated = np.repeat(records, 500, axis=0)
    table = levels.decode(repeated, np.random.default_rng(0))
    np.testing.assert_array_equal(levels.encode(table), repeated)
    assert [str(field.type) for field in table.schema] == [
        "double",
        "int64",
        "int64",
        "string",
        "string",
    ]
    assert table["weight"].null_count == table["region"].null_count == 500
    # Each count of a slice comes up, and nothing else.
    low, high = levels.edges(SCHEMA.columns[1])[records[3, 1] :][:2]
    assert set(table["visits"].to_pylist()[1_500:]) == set(range(int(low), int(high)))


@pytest.mark.parametrize(
    ("bounds", "decimals"), [((17, 90), 1), ((0, 200_000), -2), ((0.0, 1e-3), 6)]
)
def test_numbers_without_a_step_have_few_decimals_and_keep_their_slice(bounds, decimals) -> None:
    levels = Levels(Schema(columns=(Column(name="x", kind=Kind.REAL, bounds=bounds),)))
    records = np.repeat(np.arange(levels.sizes[0], dtype=np.int32)[:, None], 300, axis=0)
    table = levels.decode(records, np.random.default_rng(0))
    numbers = table["x"].to_numpy()
    np.testing.assert_array_equal(numbers, np.round(numbers, decimals))
    np.testing.assert_array_equal(levels.encode(table), records)


def test_pandas_and_numpy_tables() -> None:
    pandas = pytest.importorskip("pandas")
    levels = Levels(SCHEMA)
    expected = levels.encode(table_of())
    np.testing.assert_array_equal(levels.encode(pandas.DataFrame(table_of())), expected)
    arrays = {name: np.array(cells) for name, cells in table_of().items()}
    np.testing.assert_array_equal(levels.encode(arrays), expected)
    # As files are read: numbers as floats, 0 and 1 as texts.
    read = table_of(
        visits=np.array([3.0, 1_000.0, 4.0, 77.0]), smoker=["0", "1.0", "true", "False"]
    )
    np.testing.assert_array_equal(levels.encode(read), expected)


def test_a_record_has_the_levels_that_it_has_alone() -> None:
    levels = Levels(SCHEMA)
    together = levels.encode(table_of())
    for i in range(4):
        alone = levels.encode({name: cells[i : i + 1] for name, cells in table_of().items()})
        np.testing.assert_array_equal(alone[0], together[i])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"weight": [1.0, 987_654.0, 0.0, 0.0]},
            "column 'weight' has values outside its public bounds",
        ),
        ({"weight": [1.0, np.inf, 0.0, 0.0]}, "column 'weight' has values outside"),
        ({"visits": [3, None, 4, 5]}, "column 'visits' has missing cells"),
        ({"visits": [3.0, 987.654, 4.0, 5.0]}, "column 'visits' has values that are not whole"),
        (
            {"visits": ["3", "secret", "4", "5"]},
            "column 'visits' holds something that is not a number",
        ),
        ({"smoker": [0, 1, 2, 0]}, "column 'smoker' has values outside its public categories"),
        ({"region": ["north", "secret", None, "south"]}, "column 'region' has values outside"),
        (
            {"region": ["north", 987_654, None, "south"]},
            "column 'region' has cells of different types",
        ),
        ({"region": ["north"]}, "different lengths"),
        ({name: [] for name in table_of()}, "no rows"),
    ],
)
def test_a_bad_cell_is_refused_and_not_shown(changes, words) -> None:
    with pytest.raises(DataError, match=words) as caught:
        Levels(SCHEMA).encode(table_of(**changes))
    for cell in ("987", "secret"):
        assert cell not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_clipping_moves_to_the_nearer_bound() -> None:
    records = Levels(SCHEMA).encode(
        table_of(weight=[-9.0, 99.0, np.inf, -np.inf], visits=[0, 5_000, 3, 3]),
        out_of_bounds="clip",
    )
    np.testing.assert_array_equal(records[:, 0], [0, 31, 31, 0])
    np.testing.assert_array_equal(records[:2, 1], [0, 31])


def test_wrong_options_are_refused() -> None:
    for slices in (1, 0, 2.5, True):
        with pytest.raises(ValueError, match="slices"):
            Levels(SCHEMA, slices)
    with pytest.raises(ValueError, match="out_of_bounds"):
        Levels(SCHEMA).encode(table_of(), out_of_bounds="drop")
    with pytest.raises(DataError, match="no column region"):
        Levels(SCHEMA).encode(
            {name: cells for name, cells in table_of().items() if name != "region"}
        )


DAY = datetime.date(2020, 1, 1)
VISITS = Schema(
    columns=(
        Column(
            name="day",
            kind=Kind.DATE,
            bounds=(DAY, datetime.date(2020, 12, 31)),
            missing=Missing.INDICATOR,
        ),
        Column(name="pain", kind=Kind.ORDERED, categories=("none", "some", "much")),
    ),
    person="name",
)


def visits(**changes):
    days = [DAY, datetime.date(2020, 12, 31), None, datetime.date(2020, 7, 1)]
    return {
        "day": days,
        "pain": ["none", "much", "some", "some"],
        "name": ["a", "b", "c", "d"],
        **changes,
    }


def test_dates_and_ordered_categories() -> None:
    levels = Levels(VISITS, slices=12)
    records = levels.encode(visits())
    # 366 days in 12 slices of 30 or 31; July 1st is the 183rd day, the last of the sixth.
    np.testing.assert_array_equal(records, [[0, 0], [11, 2], [12, 1], [5, 1]])
    table = levels.decode(np.repeat(records, 200, axis=0), np.random.default_rng(0))
    assert str(table["day"].type) == "date32[day]"
    assert table["day"].null_count == 200
    first = table["day"].to_pylist()[:200]
    assert min(first) == DAY
    assert max(first) < datetime.date(2020, 2, 2)
    texts = visits(day=["2020-01-01", "2020-12-31", None, "2020-07-01"])
    np.testing.assert_array_equal(levels.encode(texts), records)


@pytest.mark.parametrize("names", [["a", "b", "c", "a"], ["a", "b", "c", None]])
def test_a_person_with_several_rows_is_refused(names) -> None:
    with pytest.raises(DataError, match="protects one row per person"):
        Levels(VISITS).encode(visits(name=names))
    with pytest.raises(DataError, match="no column name"):
        Levels(VISITS).encode({name: cells for name, cells in visits().items() if name != "name"})
