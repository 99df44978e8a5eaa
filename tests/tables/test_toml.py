import dataclasses
import datetime
import tomllib

import hypothesis
import hypothesis.strategies as st
import pytest

from discreet.tabular.tables import (
    Column,
    DataError,
    Kind,
    Missing,
    OutOfBounds,
    Schema,
    schema_from_bounds,
    schema_from_dict,
    schema_from_toml,
    schema_template,
    schema_to_toml,
)

BORN = Column(
    name="born", kind=Kind.DATE, bounds=(datetime.date(1900, 1, 1), datetime.date(2000, 12, 31))
)
PAIN = Column(
    name="pain", kind=Kind.ORDERED, categories=("none", "some", "much"), missing=Missing.INDICATOR
)
AGE = Column(name="age", kind=Kind.REAL, bounds=(17, 90), unit="years")


def read(text: str) -> Schema:
    return schema_from_dict(tomllib.loads(text))


def test_the_further_kinds_units_and_the_person() -> None:
    schema = read(
        'person = "patient"\n[columns.born]\nkind = "date"\nbounds = [1900-01-01, 2000-12-31]\n'
        '[columns.pain]\nkind = "ordered"\ncategories = ["none", "some", "much"]\nmissing = "indicator"\n'
        '[columns.age]\nkind = "real"\nbounds = [17, 90]\nunit = "years"\n'
    )
    assert schema == Schema(columns=(BORN, PAIN, AGE), person="patient")
    assert schema.describe() == (
        "born (date): 1900-01-01 to 2000-12-31",
        "pain (ordered): none < some < much",
        "age (real): 17 to 90 years",
    )
    assert schema_from_bounds("born=1900-01-01:2000-12-31").columns == (BORN,)


def test_a_target_in_other_capitals_is_asked_about() -> None:
    with pytest.raises(
        DataError, match=r"'Vote' is not described: did you mean vote\? If not, give its bounds"
    ):
        schema_from_bounds("vote=0:9,age=0:9", target="Vote")


def test_limits_of_dates_are_days() -> None:
    assert BORN.limits == (-25567.0, 11322.0)
    with pytest.raises(ValueError, match="has categories and no bounds"):
        _ = PAIN.limits


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)


@hypothesis.given(
    name=names,
    texts=st.lists(names, min_size=2, max_size=4, unique=True),
    unit=names,
    low=st.floats(-1e300, 1e300),
    max_rows=st.integers(1, 9),
)
@hypothesis.settings(deadline=None, max_examples=100)
def test_a_written_schema_is_read_back(
    name: str, texts: list[str], unit: str, low: float, max_rows: int
) -> None:
    """Whatever the names and categories hold: quotes, dots, line ends, control characters."""
    hypothesis.assume(name not in ("born", "pain", "n"))
    schema = Schema(
        columns=(
            Column(name=name, kind=Kind.CATEGORICAL, categories=tuple(texts)),
            Column(name="n", kind=Kind.REAL, bounds=(low, 1e301), unit=unit),
            dataclasses.replace(BORN, missing=Missing.INDICATOR, out_of_bounds=OutOfBounds.MISSING),
            PAIN,
        ),
        target=name,
        person=f"{name} of whom",
        max_rows=max_rows,
        missing_values=("?? ?",),
    )
    assert read(schema_to_toml(schema)) == schema


def test_a_template_needs_filling_in(tmp_path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(schema_template(["age", 'a "quoted" name']), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"column 'age' .*: kind is not filled in: choose one of real, count"
    ) as caught:
        schema_from_toml(path)
    assert (
        'person is not filled in: name the column that identifies persons, or write person = "each row"'
        in str(caught.value)
    )
    filled = path.read_text().replace('{kind = ""}', '{kind = "real", bounds = [0, 1]}')
    filled = filled.replace('person = ""', 'person = "each row"')
    assert read(filled).each_row
    assert [column.name for column in read(filled).columns] == ["age", 'a "quoted" name']


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ('person = "age"', "would single out people"),
        ('person = "id"\nrows_per_person = 3', "unknown keys rows_per_person"),
        ('person = {column = "id", rows = 3}', "the schema's person has unknown keys rows"),
        ("person = {max_rows = 3}", "person names no column"),
        (
            'person = {column = "id", max_rows = 0}',
            "max_rows is 0; it must be an integer of at least 1",
        ),
        ('person = {column = "id", max_rows = 2.5}', "max_rows is 2.5; it must be an integer"),
        ('non_private_from_data = ["height"]', "unknown keys non_private_from_data"),
        ('missing_values = ["?", "b"]', "category 'b', which also stands for a missing cell"),
    ],
)
def test_contradictions_in_a_file_are_refused(text: str, needle: str) -> None:
    columns = '[columns.age]\nkind = "real"\nbounds = [0, 1]\n[columns.c]\nkind = "categorical"\ncategories = ["a", "b"]\n'
    with pytest.raises(DataError, match=needle):
        read(f"{text}\n{columns}")


@pytest.mark.parametrize(
    ("entry", "needle"),
    [
        ('kind = "date"', "has no bounds"),
        ('kind = "date"\nbounds = [1, 2]', "must be two dates"),
        ('kind = "date"\nbounds = [2000-01-01T00:00:00, 2001-01-01]', "must be two dates"),
        ('kind = "date"\nbounds = [2000-01-01, 2000-01-01]', "the earlier one first"),
        ('kind = "real"\nbounds = [2000-01-01, 2001-01-01]', "must be two numbers"),
        ('kind = "ordered"', "0 categories"),
        ('kind = "ordered"\ncategories = ["a", "b"]\nunit = "cm"', "has a unit"),
        ('kind = "real"\nbounds = [0, 1]\nunit = 3', "unit must be a text"),
    ],
)
def test_bad_columns_of_the_further_kinds(entry: str, needle: str) -> None:
    with pytest.raises(DataError, match=needle):
        read(f"[columns.a]\n{entry}\n")


def test_python_columns_with_mixed_bounds_are_refused() -> None:
    with pytest.raises(DataError, match="give two dates"):
        Column(name="a", kind=Kind.DATE, bounds=(0, 1))
    with pytest.raises(DataError, match="give two numbers, or describe it as kind date"):
        Column(name="a", kind=Kind.REAL, bounds=BORN.bounds)


def test_columns_with_the_same_mistake_are_named_together() -> None:
    blank = '[columns.age]\nkind = ""\n[columns.born]\nkind = ""\n[columns.sex]\nkind = "binry"\n'
    with pytest.raises(DataError) as refused:
        read(blank)
    said = str(refused.value)
    found = "column 'age' (and likewise 'born'): kind is not filled in, and column 'sex': kind is 'binry': choose one of real"
    assert said.startswith(found)
    assert said.count("choose one") == 1


def test_a_template_has_a_line_for_each_column_and_the_kinds_that_types_suggest() -> None:
    kinds = {"a": Kind.REAL, "b": Kind.CATEGORICAL, "c": Kind.DATE, "d": Kind.BINARY}
    lines = (
        schema_template([*kinds, "e"], kinds=kinds, person="each row")
        .split("[columns]\n")[1]
        .splitlines()
    )
    assert lines == [
        'a = {kind = "real", bounds = []}',
        'b = {kind = "categorical", categories = []}',
        'c = {kind = "date", bounds = []}',
        'd = {kind = "binary", categories = ["false", "true"]}',
        'e = {kind = ""}',
    ]
    with pytest.raises(
        DataError, match=r"'a': bounds must be two numbers.*'b' .categorical. has 0 categories"
    ):
        read("[columns]\n" + "\n".join(lines[:4]))


def test_that_no_person_has_two_rows_is_written_and_read() -> None:
    columns = '[columns.a]\nkind = "binary"\n'
    for text, person, each_row in (
        ('person = "each row"', None, True),
        ('person = {column = "each row"}', "each row", False),
        ("", None, False),
    ):
        schema = read(f"{text}\n{columns}")
        assert (schema.person, schema.each_row) == (person, each_row)
        assert read(schema_to_toml(schema)) == schema
    with pytest.raises(DataError, match="each row is another person's"):
        Schema(columns=schema.columns, person="id", each_row=True)


def test_a_template_shows_how_many_rows_of_a_person_are_used() -> None:
    assert 'person = {column = "id", max_rows = 1}' in schema_template(["id", "age"], person="id")
