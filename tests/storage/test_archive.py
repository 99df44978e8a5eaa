"""Values come back from a file to the bit; whatever else is in one is refused, and nothing is run."""

import dataclasses
import datetime
import enum
import io
import json
import pickle
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from discreet.storage import read_archive, replacing, write_archive, write_file


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    colour: Colour

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is below 0")


KINDS = (Colour, Point)
CONTENT = {
    "numbers": (1, 0.1, float("inf"), -float("inf"), 2**70, True, None),
    "lists": [[], (), {}, ["a", ("b",)]],
    "days": (datetime.date(1, 1, 1), datetime.date(1987, 6, 5)),
    "names": {
        "a/b": np.arange(3),
        "../ü\n": np.float32([[1.5, np.nan]]),
        "": np.zeros((0, 2), bool),
    },
    "single": np.array(7, np.int8),
    "turned": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "half": np.array([0.1, -2], ml_dtypes.bfloat16),
    "point": Point(0.5, Colour.RED),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "file", "test", 2, CONTENT, KINDS)


def read(path: Path, what: str = "test", version: int = 2):
    return read_archive(path, what, version, KINDS)


def assert_same(one, other) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


def test_what_was_written_is_read(path: Path) -> None:
    assert_same(read(path), CONTENT)
    with np.load(path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["turned"], CONTENT["turned"])


def test_the_same_content_gives_the_same_file(path: Path) -> None:
    again = write_archive(path.with_name("again"), "test", 2, CONTENT, KINDS)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        object(),
        {1: 2},
        [lambda: None],
        np.array([object()]),
        np.array(["text"]),
        {"p": dataclasses},
        1j,
        {1, 2},
    ],
)
def test_other_things_are_not_written(tmp_path: Path, content) -> None:
    with pytest.raises(TypeError, match=r"cannot hold|holds numbers only"):
        write_archive(tmp_path / "file", "test", 1, content, KINDS)
    assert list(tmp_path.iterdir()) == []


def test_a_cut_file_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in (0, 1, 30, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="or only a part of one"):
            read(path)


def test_a_changed_byte_is_refused_or_changes_nothing(path: Path) -> None:
    """Dates and the like are not part of the content; everything else is under a checksum."""
    whole, refused = path.read_bytes(), 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        try:
            found = read(path)
        except ValueError:
            refused += 1
        else:
            assert_same(found, CONTENT)
    assert refused > len(whole) // 14


def test_something_else_or_something_newer_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds a test, not a letter"):
        read(path, what="letter")
    with pytest.raises(ValueError, match="written by a newer discreet"):
        read(path, version=1)
    with pytest.raises(ValueError, match="cannot be read"):
        read(tmp_path / "absent")
    with pytest.raises(ValueError, match="cannot be read"):
        read(tmp_path)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="is no test"):
        read(tmp_path / "text")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="is damaged or no test"):
        read(tmp_path / "other.npz")


class Bomb:
    """Says so when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a file ran code",))


def npy(array) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, array)
    return content.getvalue()


def planted(path: Path, content, compression=zipfile.ZIP_STORED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(
            "index.json", json.dumps({"what": "test", "version": 1, "content": content})
        )
        for name, member in members.items():
            archive.writestr(name, member)
    return path


HUGE = (
    npy(np.zeros(0)).replace(b"(0,)", b"(9999999999,)").replace(b" " * 12 + b"\n", b" " * 3 + b"\n")
)


@pytest.mark.parametrize(
    ("content", "members"),
    [
        ({"array": ["a", "object"]}, {"a": npy(np.array([Bomb()]))}),
        ({"array": ["a", "float64"]}, {"a": npy(np.array([Bomb()]))}),
        ({"array": ["a", "float64"]}, {"a": pickle.dumps(Bomb())}),
        ({"array": ["a", "float64"]}, {"a": HUGE}),
        ({"array": ["a", "float32"]}, {"a": npy(np.zeros(3))}),
        ({"array": ["a", "float64"]}, {"a": npy(np.zeros(3))[:-1]}),
        ([{"array": ["a", "float64"]}] * 2, {"a": npy(np.zeros(3))}),
        ([], {"a": npy(np.zeros(3))}),
        ({"array": ["absent", "float64"]}, {}),
        ({"array": 3}, {}),
        ({"object": ["Path", {}]}, {}),
        ({"object": ["Point", {"x": -1.0, "colour": {"enum": ["Colour", "RED"]}}]}, {}),
        ({"object": ["Point", {"y": 1}]}, {}),
        ({"enum": ["Colour", "__class__"]}, {}),
        ({"number": "1e400"}, {}),
        ({"eval": "1"}, {}),
        ({"dict": {}, "tuple": []}, {}),
        ({"dict": []}, {}),
    ],
)
def test_whatever_a_stranger_wrote_is_refused(tmp_path: Path, content, members) -> None:
    with pytest.raises(ValueError, match="damaged or no test"):
        read(planted(tmp_path / "file", content, **members))


def test_what_would_grow_is_refused(tmp_path: Path) -> None:
    content = {"array": ["a", "float64"]}
    with pytest.raises(ValueError, match="damaged or no test"):
        read(planted(tmp_path / "file", content, zipfile.ZIP_DEFLATED, a=npy(np.zeros(100_000))))
    deep: list = []
    for _ in range(600):
        deep = [deep]
    text = json.dumps(deep).replace("[]", "[" * 100_000 + "]" * 100_000)
    with zipfile.ZipFile(tmp_path / "deep", "w") as archive:
        archive.writestr("index.json", '{"what": "test", "version": 1, "content": ' + text + "}")
    with pytest.raises(ValueError, match="damaged or no test"):
        read(tmp_path / "deep")


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_file(tmp_path / "new" / "file", "before")

    def stopped() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_text() == "before"
    assert list(path.parent.iterdir()) == [path]
