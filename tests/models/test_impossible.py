"""Values of two columns that the schema calls impossible together: read, written, refused where wrong, and never drawn."""

import datetime

import numpy as np
import pyarrow
import pytest

from discreet.tabular.models import MixtureOfProducts
from discreet.tabular.tables import (
    Column,
    DataError,
    Kind,
    Missing,
    Schema,
    impossible_rows,
    schema_from_dict,
    schema_from_toml,
    schema_to_toml,
)

COLUMNS = (
    Column(name="age", kind=Kind.COUNT, bounds=(0, 99)),
    Column(
        name="born", kind=Kind.DATE, bounds=(datetime.date(1900, 1, 1), datetime.date(2020, 1, 1))
    ),
    Column(name="weight", kind=Kind.REAL, bounds=(0, 150), missing=Missing.INDICATOR),
    Column(
        name="married",
        kind=Kind.CATEGORICAL,
        categories=("no", "yes", "widowed"),
        missing=Missing.INDICATOR,
    ),
    Column(name="sex", kind=Kind.BINARY, categories=("f", "m")),
)
EARLY = datetime.date(1900, 1, 1), datetime.date(1950, 6, 1)
IMPOSSIBLE = (
    (("age", (0, 14)), ("married", ("yes", "widowed"))),
    (("born", EARLY), ("age", (0, 70))),
    (("weight", (0.0, 20.0)), ("sex", ("m",))),
)
SCHEMA = Schema(columns=COLUMNS, impossible=IMPOSSIBLE)


def seen(table: pyarrow.Table) -> int:
    """Rows that break a rule, counted without the code that is tested."""
    rows = table.to_pylist()
    early = sum(row["born"] <= EARLY[1] and row["age"] <= 70 for row in rows)
    light = sum(
        row["weight"] is not None and row["weight"] <= 20 and row["sex"] == "m" for row in rows
    )
    return (
        early
        + light
        + sum(row["age"] <= 14 and row["married"] in ("yes", "widowed") for row in rows)
    )


@pytest.mark.parametrize("fault", [False, True])
def test_no_twin_has_them_and_other_rows_keep_their_law(fault, monkeypatch) -> None:
    if fault:
        monkeypatch.setattr(
            "discreet.tabular.models._tables.impossible_rows",
            lambda table, _: np.zeros(len(table), bool),
        )
    model, rng = MixtureOfProducts(SCHEMA, components=2, slices=8), np.random.default_rng(0)
    total = sum(model.levels.sizes)
    latents = {
        "component": np.zeros(2),
        "base": np.zeros(total),
        "deviations": rng.normal(0, 0.3, (2, total)),
    }
    twin = model.draw(latents, 4000, rng)
    assert len(twin) == 4000
    assert (seen(twin) == 0) != fault
    if not fault:
        free = MixtureOfProducts(Schema(columns=COLUMNS), components=2, slices=8).draw(
            latents, 8000, rng
        )
        assert impossible_rows(free, SCHEMA).sum() > 1000
        kept = free.filter(~impossible_rows(free, SCHEMA))
        assert seen(kept) == 0
        for name in ("age", "weight"):
            drawn, wanted = (np.nan_to_num(x[name].to_numpy().astype(float)) for x in (twin, kept))
            # False alarm below 1e-4: two means of independent rows.
            assert abs(drawn.mean() - wanted.mean()) < 4 * np.hypot(
                drawn.std() / 63, wanted.std() / 63
            )


def test_what_cannot_be_drawn() -> None:
    two = (COLUMNS[0], Column(name="years", kind=Kind.REAL, bounds=(0, 80)))
    never = MixtureOfProducts(
        Schema(columns=two, impossible=((("age", (0, 99)), ("years", (0, 80))),)), components=1
    )
    total = sum(never.levels.sizes)
    latents = {
        "component": np.zeros(1),
        "base": np.zeros(total),
        "deviations": np.zeros((1, total)),
    }
    with pytest.raises(ValueError, match="nearly all rows"):
        never.draw(latents, 5, np.random.default_rng(0))


def test_they_are_written_and_read(tmp_path) -> None:
    text = schema_to_toml(SCHEMA)
    assert "impossible = [{age = [0, 14], married = [" in text
    (tmp_path / "schema.toml").write_text(text)
    assert schema_from_toml(tmp_path / "schema.toml") == SCHEMA
    one = {"columns": {name: {"kind": "binary", "categories": ["f", "m"]} for name in ("a", "b")}}
    assert schema_from_dict(one | {"impossible": [{"a": "f", "b": "m"}]}).impossible == (
        (("a", ("f",)), ("b", ("m",))),
    )


@pytest.mark.parametrize(
    ("wrong", "needle"),
    [
        ([{"a": "f"}], "two described columns"),
        ([{"a": "f", "c": "m"}], "two described columns"),
        ([{"a": "f", "b": "x"}], "not among f"),
        ([{"a": "f", "b": []}], "not among"),
        ([{"a": "f", "n": [3, 2]}], "not among 0 to 9"),
        ([{"a": "f", "n": [0, 10]}], "the least and the largest"),
        ([{"a": "f", "n": 3}], "the least and the largest"),
        ("a", "list of pairs"),
    ],
)
def test_wrong_ones_are_refused(wrong, needle) -> None:
    columns = {name: {"kind": "binary", "categories": ["f", "m"]} for name in ("a", "b")}
    columns["n"] = {"kind": "count", "bounds": [0, 9]}
    with pytest.raises(DataError, match=needle):
        schema_from_dict({"columns": columns, "impossible": wrong})


def test_levels_that_are_impossible_together_are_those_of_which_all_is() -> None:
    levels = MixtureOfProducts(SCHEMA, slices=100).levels
    found = levels.impossible
    for sides, pair in zip(found, IMPOSSIBLE, strict=True):
        for side, (name, values) in zip(sides, pair, strict=True):
            labels = levels.labels(next(column for column in COLUMNS if column.name == name))
            own = side[levels.places[name]]
            assert side.sum() == own.sum()
            if name == "age":
                assert own.nonzero()[0].tolist() == [*range(71 if EARLY in pair[0] else 15)]
            elif name in ("married", "sex"):
                assert [label for label, x in zip(labels, own, strict=False) if x] == list(values)
            elif name == "weight":
                # Slices of 1.5: that from 19.5 on has 21.
                assert own.sum() == 13
            else:
                days = (EARLY[1] - EARLY[0]).days
                edges = levels.edges(COLUMNS[1])
                assert 0 <= days + 1 - (edges[own.sum()] - edges[0]) < edges[1] - edges[0]
