import datetime
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from discreet.tabular.tables import (
    Column,
    DataError,
    Kind,
    Missing,
    Schema,
    _convert,
    _read,
    _shards,
    convert,
    decode,
    encode,
    open_records,
    read_table,
)

DAY = datetime.date.fromisoformat
COLUMNS = (
    Column(name="age", kind=Kind.REAL, bounds=(0, 64), missing=Missing.INDICATOR),
    Column(name="visits", kind=Kind.COUNT, bounds=(0, 50)),
    Column(
        name="region",
        kind=Kind.CATEGORICAL,
        categories=("north", "south", "east"),
        missing=Missing.INDICATOR,
    ),
    Column(name="pain", kind=Kind.ORDERED, categories=("none", "some", "much")),
    Column(
        name="born",
        kind=Kind.DATE,
        bounds=(DAY("1900-01-01"), DAY("2000-12-31")),
        missing=Missing.INDICATOR,
    ),
    Column(name="smoker", kind=Kind.BINARY, categories=("no", "yes")),
)
SCHEMA = Schema(columns=COLUMNS, target="smoker")


def people(rows: int, seed: int = 0) -> pyarrow.Table:
    """An invented table of the schema; ages are quarters, which float32 holds."""
    rng = np.random.default_rng(seed)

    def some_missing(values) -> list:
        return [
            None if gone else value
            for value, gone in zip(values, rng.random(rows) < 0.1, strict=True)
        ]

    columns = {
        "age": some_missing((rng.integers(0, 257, rows) / 4).tolist()),
        "visits": rng.integers(0, 51, rows),
        "region": some_missing(rng.choice(["north", "south", "east"], rows).tolist()),
        "pain": rng.choice(["none", "some", "much"], rows),
        "born": some_missing(
            [DAY("1900-01-01") + datetime.timedelta(int(d)) for d in rng.integers(0, 36_889, rows)]
        ),
        "smoker": rng.choice(["no", "yes"], rows),
        "id": rng.integers(0, (rows + 1) // 2, rows),
    }
    return pyarrow.table(columns)


def as_csv(table: pyarrow.Table, path) -> None:
    table.to_pandas().to_csv(path, index=False)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few rows, so that a small table has many."""
    monkeypatch.setattr(_read, "PIECE_BYTES", 700)
    monkeypatch.setattr(_read, "PIECE_ROWS", 37)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "name", ["t.csv", "t.csv.gz", "t.parquet", "t.arrow", "t.feather", "pyarrow", "pandas"]
)
def test_every_source_in_pieces_gives_the_same_records(tmp_path, name) -> None:
    table = people(500)
    path = tmp_path / name
    if ".csv" in name:
        as_csv(table, path)
    elif name == "t.parquet":
        pyarrow.parquet.write_table(table, path)
    elif name == "t.arrow":
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=60)
    elif name == "t.feather":
        pyarrow.feather.write_feather(table, path)
    source = {"pyarrow": table, "pandas": table.to_pandas()}.get(name, path)
    wanted = encode(read_table(table, SCHEMA), SCHEMA)
    records = convert(source, SCHEMA, tmp_path / "out")
    np.testing.assert_array_equal(records.x, wanted.x)
    np.testing.assert_array_equal(records.y, wanted.y)
    assert records.feature_names == wanted.feature_names
    np.testing.assert_array_equal(encode(read_table(source, SCHEMA), SCHEMA).x, wanted.x)


def test_a_decoded_table_is_the_encoded_one() -> None:
    table = read_table(people(300), SCHEMA)
    records = encode(table, SCHEMA)
    decoded = decode(records.x, SCHEMA, records.y)
    assert decoded.column_names == [column.name for column in COLUMNS]
    assert decoded.to_pylist() == table.to_pylist()
    assert [str(field.type) for field in decoded.schema] == [
        "double",
        "int64",
        "string",
        "string",
        "date32[day]",
        "string",
    ]


@pytest.mark.parametrize("target", ["age", "visits", "region", "pain", "born"])
def test_targets_of_every_kind_come_back(target) -> None:
    columns = tuple(Column(**{**vars(column), "missing": Missing.REFUSE}) for column in COLUMNS)
    schema = Schema(columns=columns, target=target)
    table = pyarrow.Table.from_pylist(
        [row for row in people(200).to_pylist() if None not in row.values()]
    )
    records = encode(read_table(table, schema), schema)
    rows = decode(records.x, schema, records.y).to_pylist()
    assert rows == table.drop_columns("id").to_pylist()


def test_draws_of_a_model_decode_to_the_nearest_table() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0, 3, (200, 10))
    table = decode(x, SCHEMA, rng.normal(0, 3, 200))
    # Encoding refuses what the schema does not allow.
    assert encode(read_table(table, SCHEMA), SCHEMA).num_records == 200
    row = decode(
        np.array([[9.0, 0, -0.04, 0.2, 0.3, 0.1, 0.4, 0.1, 0, 0.9]]), SCHEMA, [0.6]
    ).to_pylist()[0]
    assert row["age"] == 64
    assert (row["visits"], row["region"], row["pain"], row["born"], row["smoker"]) == (
        24,
        "south",
        "some",
        None,
        "yes",
    )


@pytest.mark.parametrize(
    ("x", "y", "needle"),
    [
        (np.zeros((2, 3)), [0, 1], "x has the shape .2, 3.: the schema's records have 10 features"),
        (np.zeros((2, 10)), None, "has a target"),
        (np.zeros((2, 10)), [0], "y has the shape"),
        (np.full((2, 10), np.nan), [0, 1], "not finite"),
    ],
)
def test_arrays_that_are_no_records_are_refused(x, y, needle) -> None:
    with pytest.raises(ValueError, match=needle):
        decode(x, SCHEMA, y)


def test_converted_records_are_a_view_of_a_file_for_its_owner(tmp_path) -> None:
    path = tmp_path / "out"
    records = convert(people(50), SCHEMA, path)
    assert not records.x.flags.owndata
    assert not records.x.flags.writeable
    assert path.stat().st_mode & 0o077 == 0
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    # Any reader of numbers reads it.
    np.testing.assert_array_equal(np.fromfile(path / "x-00", "<f4").reshape(50, -1), records.x)
    again = open_records(path)
    np.testing.assert_array_equal(again.y, records.y)
    assert (again.target_centre, again.target_scale) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("max_rows", "target"), [(1, "smoker"), (1, None), (3, "smoker"), (3, None)]
)
def test_converting_keeps_the_rows_of_a_person(tmp_path, small_pieces, max_rows, target) -> None:
    schema = Schema(columns=COLUMNS, target=target, person="id", max_rows=max_rows)
    path = tmp_path / "t.csv"
    as_csv(people(500), path)
    key = bytes(32)
    wanted = encode(read_table(path, schema), schema, key=key)
    records = convert(path, schema, tmp_path / "out", key=key)
    assert len(records.arrays) == len(wanted.arrays) == 1 + (target is not None) + (max_rows > 1)
    for found, expected in zip(records.arrays, wanted.arrays, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    assert not records.x.flags.owndata
    assert records.num_records == len(set(people(500).column("id").to_pylist()))
    assert not any(b'"id"' in file.read_bytes() for file in (tmp_path / "out").glob("*-00"))


@pytest.mark.usefixtures("small_pieces")
def test_all_faults_of_all_pieces_are_told_at_once_and_nothing_is_written(tmp_path) -> None:
    rows = people(300).to_pandas().astype(object)
    rows.loc[3, "age"] = "secretcell"
    rows.loc[120, "visits"] = 2.53125
    rows.loc[200, "pain"] = "secretcell"
    rows.loc[250, "born"] = "1900-02-30"
    rows.loc[299, "visits"] = 7777
    rows.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError) as caught:
        convert(tmp_path / "t.csv", SCHEMA, tmp_path / "out")
    message = str(caught.value)
    for told in (
        "'age' holds something that is not a number",
        "'born' holds something that is not a date",
        "'pain' has values outside its public categories",
        "'visits' has values outside its public bounds 0 to 50",
        "'visits' has values that are not whole",
    ):
        assert told in message
    for secret in ("secretcell", "2.53125", "7777", "02-30", "120", "299"):
        assert secret not in message
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("small_pieces")
def test_odd_cells_may_count_as_missing(tmp_path) -> None:
    """Every kind of odd cell, and only where the column has a rule for missing ones."""
    columns = tuple(Column(**{**vars(column), "missing": Missing.INDICATOR}) for column in COLUMNS)
    schema = Schema(columns=columns)
    table = people(300)
    rows = table.to_pandas().astype(object)
    odd = {
        "age": "-1",
        "visits": 2.5,
        "region": "west",
        "pain": "a lot",
        "born": "2000-02-30",
        "smoker": "often",
    }
    for row, (name, cell) in enumerate(odd.items()):
        rows.loc[50 * row, name] = cell
    rows.loc[60, "age"] = "unknown"
    rows.to_csv(tmp_path / "t.csv", index=False)
    records = encode(
        read_table(tmp_path / "t.csv", schema, out_of_bounds="missing"),
        schema,
        out_of_bounds="missing",
    )
    decoded = decode(records.x, schema).to_pylist()
    for index, (row, wanted) in enumerate(
        zip(decoded, table.drop_columns("id").to_pylist(), strict=True)
    ):
        gone = list(odd)[index // 50] if index % 50 == 0 else "age" if index == 60 else None
        assert row == (wanted | {gone: None} if gone else wanted)
    with pytest.raises(
        DataError, match=r"'smoker'.* has missing cells, or cells that count as missing"
    ):
        convert(tmp_path / "t.csv", SCHEMA, tmp_path / "out", out_of_bounds="missing")


@pytest.mark.usefixtures("small_pieces")
def test_line_ends_within_quotes_end_no_row(tmp_path) -> None:
    """Wherever the pieces are cut: half of the cells of a column that is not read hold line ends, commas and quotes."""
    schema = Schema(columns=(Column(name="n", kind=Kind.COUNT, bounds=(0, 1000)),))
    notes = ["plain", 'a "word", two\nlines\n9,9', "\n\n", 'ends in a quote"']
    table = pyarrow.table({"note": [notes[i % 4] for i in range(1000)], "n": range(1000)})
    as_csv(table, tmp_path / "t.csv")
    np.testing.assert_array_equal(
        read_table(tmp_path / "t.csv", schema).column("n").to_numpy(), np.arange(1000)
    )


def test_a_person_must_be_a_text_or_a_whole_number() -> None:
    """NaN would make one person of all rows that are nobody's."""
    schema = Schema(columns=COLUMNS, person="id")
    table = people(20)
    with pytest.raises(DataError, match="NaN would be one person"):
        read_table(table.set_column(6, "id", table.column("id").cast(pyarrow.float64())), schema)


def test_what_is_no_table_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="a list is no table"):
        read_table([1, 2], SCHEMA)
    mixed = people(3).to_pandas().astype(object)
    mixed.loc[0, "pain"] = 3
    with pytest.raises(DataError, match="column of mixed types"):
        read_table(mixed, SCHEMA)
    with pytest.raises(
        DataError, match="'age' has the type list<item: int64>, which does not become double"
    ):
        read_table(
            pyarrow.table(
                {**dict(zip(people(1).column_names, people(1).columns, strict=True)), "age": [[1]]}
            ),
            SCHEMA,
        )
    with pytest.raises(DataError, match="the table has no column age"):
        read_table(people(3).drop_columns("age"), SCHEMA)
    with pytest.raises(DataError, match="give the table with its records"):
        read_table(people(3).slice(0, 0), SCHEMA)


# --- Folders of shards ---


def devices(number):
    """As much of a mesh as is looked at."""
    return SimpleNamespace(devices=np.empty(number, object))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("max_rows", "target"), [(1, "smoker"), (3, "smoker"), (3, None)])
@pytest.mark.parametrize("shards", [2, 16, 300])
def test_shards_hold_the_table_and_zeros_behind_it(tmp_path, max_rows, target, shards) -> None:
    """With 250 persons some shards are empty; each person is in one, in order, and the devices' parts are adjacent."""
    schema = Schema(columns=COLUMNS, target=target, person="id", max_rows=max_rows)
    table, key = people(500), bytes(32)
    wanted = encode(read_table(table, schema), schema, key=key)
    records = convert(table, schema, tmp_path / "out", shards=shards, key=key)
    assert records.feature_names == wanted.feature_names
    again, whole = (
        open_records(tmp_path / "out", schema, mesh=devices(shards)),
        open_records(tmp_path / "out", schema),
    )
    assert records.num_records == again.num_records == wanted.num_records == sum(again.x.lengths)
    # What differs from record to record says where each one is.
    lengths, order = again.x.lengths, order_of(whole.arrays, wanted.arrays)
    assert sorted(order) != list(order)
    shard = np.repeat(np.arange(shards), lengths)
    assert all(np.all(np.diff(order[shard == number]) > 0) for number in range(shards))
    for found, expected, sharded in zip(whole.arrays, wanted.arrays, again.arrays, strict=True):
        expected = expected[order]
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype == sharded.dtype
        assert not found.flags.writeable
        assert sharded.shape == expected.shape
        for parts in {1, max(1, shards // 4), shards}:
            rows = np.concatenate([sharded.part(number, parts) for number in range(parts)])
            assert len(rows) == parts * sharded.rows_of_part(parts)
            shards_of = rows.reshape(shards, len(rows) // shards, *rows.shape[1:])
            filled = np.arange(shards_of.shape[1]) < np.asarray(lengths)[:, None]
            np.testing.assert_array_equal(shards_of[filled], expected)
            assert not shards_of[~filled].any()
    assert all(
        file.stat().st_mode & 0o077 == 0
        for file in (tmp_path / "out", *(tmp_path / "out").iterdir())
    )
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def order_of(found, wanted):
    """The number of each found record among those that were wanted, the next one where several are alike."""
    places: dict[bytes, list[int]] = {}
    for number in reversed(range(len(wanted[0]))):
        places.setdefault(b"".join(x[number].tobytes() for x in wanted), []).append(number)
    return np.array(
        [places[b"".join(x[i].tobytes() for x in found)].pop() for i in range(len(found[0]))]
    )


def test_one_record_more_is_one_more_in_one_shard(tmp_path, monkeypatch) -> None:
    """With the same random bits no other record moves."""
    x, shards = np.arange(3_000, dtype=np.float32).reshape(-1, 10), []
    stream = np.random.default_rng(0).bytes(4 * len(x))
    monkeypatch.setattr(_shards.os, "urandom", lambda size: stream[:size])
    for number in (300, 299):
        (tmp_path / str(number)).mkdir()
        _shards.write_shards(tmp_path / str(number), {"x": x[:number]}, 4)
        files = [
            np.fromfile(tmp_path / str(number) / f"x-{shard:02d}", np.float32) for shard in range(4)
        ]
        shards.append([file.reshape(-1, 10) for file in files])
    more = [len(many) - len(few) for many, few in zip(*shards, strict=True)]
    assert sorted(more) == [0, 0, 0, 1]
    for many, few in zip(*shards, strict=True):
        np.testing.assert_array_equal(many[: len(few)], few)


def test_large_shards_are_mapped_one_behind_another(tmp_path, monkeypatch) -> None:
    """Those of a device, although they differ in length. Nothing is copied."""
    x, y = (
        np.arange(3_000_000, dtype=np.float32).reshape(-1, 10),
        np.arange(300_000, dtype=np.float32),
    )
    schema = Schema(columns=(*COLUMNS[:1], *COLUMNS[1:]), target="smoker")
    layout = _convert.Layout(schema)
    assert len(layout.feature_names) == 10
    (tmp_path / "out").mkdir()
    report = _convert.Report(_convert.OutOfBounds.REFUSE)
    lengths = _shards.write_shards(tmp_path / "out", {"x": x, "y": y}, 16)
    _shards.write_index(
        tmp_path / "out", {"x": x, "y": y}, _convert._facts(layout, report), lengths
    )
    monkeypatch.setattr(np, "fromfile", None)
    sharded = open_records(tmp_path / "out", mesh=devices(2))
    last, lengths = sharded.x.part(1, 2), sharded.x.lengths
    assert len(last) % (8 * 1024) == 0
    assert 8 * 18_750 <= len(last) < 300_000
    shards = last.reshape(8, -1, 10)
    assert all(
        np.all(np.diff(rows[:n, 0]) > 0) and not rows[n:].any()
        for rows, n in zip(shards, lengths[8:], strict=True)
    )
    assert last.ctypes.data % 64 == 0
    records = open_records(tmp_path / "out")
    np.testing.assert_array_equal(records.x[np.argsort(records.x[:, 0])], x)
    np.testing.assert_array_equal(records.x[:, 0], 10 * records.y)
    assert max(lengths) - min(lengths) > 20  # of standard deviation 133


def test_a_person_with_rows_in_two_shards_counts_once(tmp_path) -> None:
    """Two conversions count twice whoever is in both, and their shards cannot be combined."""
    schema = Schema(columns=COLUMNS, target="smoker", person="id")
    table, key = people(400), bytes(32)
    whole = convert(table, schema, tmp_path / "whole", shards=2, key=key)
    assert whole.num_records == len(set(table.column("id").to_pylist()))
    halves = [
        convert(
            table.slice(200 * i, 200), schema, tmp_path / f"half{i}", shards=2, key=key
        ).num_records
        for i in (0, 1)
    ]
    assert sum(halves) > whole.num_records
    shutil.copy(tmp_path / "half1" / "x-00", tmp_path / "half0" / "x-01")
    shutil.copy(tmp_path / "half1" / "x-00", tmp_path / "half0" / "x-00")
    with pytest.raises(DataError, match=r"another length|another conversion"):
        open_records(tmp_path / "half0")
    index = json.loads((tmp_path / "half0" / "discreet.json").read_text())
    index["index"]["num_records"] = sum(halves)
    (tmp_path / "half0" / "discreet.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="number of records is read from it"):
        open_records(tmp_path / "half0")


def spoil(folder, how) -> None:
    """Do something to a folder of shards."""
    file = folder / "x-01"
    content = file.read_bytes()
    if how == "a byte":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "cut":
        file.write_bytes(content[:-4])
    elif how == "longer":
        file.write_bytes(content + bytes(40))
    elif how == "absent":
        file.unlink()
    elif how == "exchanged":
        size = len(content)
        file.write_bytes(((folder / "x-00").read_bytes() + content)[:size])
    elif how == "index cut":
        (folder / "discreet.json").write_bytes((folder / "discreet.json").read_bytes()[:-40])
    else:
        index = json.loads((folder / "discreet.json").read_text())
        index["index"][how] += 1
        (folder / "discreet.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("how", "needle"),
    [
        ("a byte", "x-01 is not the file that the index names"),
        ("exchanged", "x-01 is not the file that the index names"),
        ("cut", "x-01 has another length"),
        ("longer", "x-01 has another length"),
        ("absent", r"x-01 cannot be read \(No such file or directory\)"),
        ("index cut", "is damaged, was changed"),
        ("num_records", "is damaged, was changed"),
        ("rows", "is damaged, was changed"),
    ],
)
def test_what_is_not_the_table_any_more_is_refused(tmp_path, how, needle) -> None:
    """At once; with a mesh as soon as the device's part is taken, also where it was right before."""
    convert(people(200), SCHEMA, tmp_path / "out", shards=4)
    sharded = open_records(tmp_path / "out", mesh=devices(4))
    spoil(tmp_path / "out", how)
    with pytest.raises(DataError, match=needle):
        open_records(tmp_path / "out")
    if "index" in how or how in ("num_records", "rows"):
        return
    sharded.x.part(0, 4)
    with pytest.raises(DataError, match=needle):
        sharded.x.part(1, 4)


def test_a_shard_that_changes_after_it_was_compared_is_compared_again(tmp_path) -> None:
    written = convert(people(200), SCHEMA, tmp_path / "out", shards=4)
    opened = open_records(tmp_path / "out", mesh=devices(4))
    opened.x.part(1, 4)
    spoil(tmp_path / "out", "a byte")
    for records in (written, opened):
        with pytest.raises(DataError, match="not the file that the index names"):
            records.x.part(1, 4)


def test_what_is_no_folder_of_shards_is_refused(tmp_path) -> None:
    convert(people(200), SCHEMA, tmp_path / "out", shards=6)
    with pytest.raises(
        ValueError, match=r"6 shards.* among 4 devices. Convert the table again with shards=8"
    ):
        open_records(tmp_path / "out", mesh=devices(4))
    with pytest.raises(TypeError, match="mesh is a int"):
        open_records(tmp_path / "out", mesh=4)
    other = Schema(columns=COLUMNS[::-1], target="smoker")
    with pytest.raises(DataError, match="converted with another schema"):
        open_records(tmp_path / "out", other)
    with pytest.raises(ValueError, match="shards is 0; it must be an integer from 1"):
        convert(people(3), SCHEMA, tmp_path / "new", shards=0)
    (tmp_path / "mine").mkdir()
    pyarrow.feather.write_feather(people(3), tmp_path / "file.arrow")
    for name in ("mine", "file.arrow", "none"):
        with pytest.raises(DataError, match="does not hold records"):
            open_records(tmp_path / name)
    (tmp_path / "out" / "thesis.txt").write_text("")
    for name in ("mine", "out", "file.arrow"):
        with pytest.raises(DataError, match="not a folder of converted records and nothing else"):
            convert(people(3), SCHEMA, tmp_path / name, shards=2)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("where", ["while it is read", "while shards are written", "at the index"])
def test_a_conversion_to_shards_that_is_stopped_leaves_what_was_there(
    tmp_path, monkeypatch, before, where
) -> None:
    out = tmp_path / "out"
    if before:
        convert(people(50), SCHEMA, out, shards=2)
    there = {file.name: file.read_bytes() for file in out.iterdir()} if before else None

    def stopped(*args, **options):
        raise KeyboardInterrupt

    steps = {
        "while it is read": (_convert, "_append"),
        "while shards are written": (_shards, "file_of"),
        "at the index": (_shards, "_digest_of"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*steps[where], stopped)
        with pytest.raises(KeyboardInterrupt):
            convert(people(500), SCHEMA, out, shards=4)
    assert [file.name for file in tmp_path.iterdir()] == (["out"] if before else [])
    if before:
        assert {file.name: file.read_bytes() for file in out.iterdir()} == there
        assert convert(people(500), SCHEMA, out, shards=4).num_records == 500
        assert len(list(out.iterdir())) == 9
