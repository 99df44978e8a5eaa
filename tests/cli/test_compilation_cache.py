"""The folder of compiled programs: what is in it, and above all what is not."""

import importlib.util
import os
import zlib

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from discreet._jax import reset_compilation_cache
from discreet.interfaces.cli import _run
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._steps import InSteps

RUN = CliRunner()
# A cell and its encoded values: in a file of the cache they would show as the bytes of a float32 or
# a float64.
CELLS = np.array([17.328125, 61.640625, 23.015625, 88.765625])


@pytest.fixture
def settings_of_jax():
    names = [
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    ]
    before = {name: jax.config.values[name] for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    reset_compilation_cache()


def contents(folder) -> bytes:
    """All files of the cache, as they are and unpacked."""
    found = b""
    for file in folder.rglob("*"):
        if file.is_file():
            found += file.read_bytes() + unpacked(file.read_bytes())
    return found


def unpacked(content: bytes) -> bytes:
    """JAX packs with zstandard where that is installed, else with zlib."""
    if importlib.util.find_spec("zstandard") is not None:
        return (
            importlib.import_module("zstandard")
            .ZstdDecompressor()
            .decompressobj()
            .decompress(content)
        )
    try:
        return zlib.decompress(content)
    except zlib.error:
        return b""


def patterns(column) -> list[bytes]:
    """Eight bytes of a column or more: four are met by chance."""
    pairs = np.unique(np.stack([column[:-1], column[1:]], axis=1), axis=0)
    return [np.asarray(pair, kind).tobytes() for pair in pairs for kind in (np.float32, np.float64)]


def fit(folder, table, out):
    options = "--model linear --target y --bounds x=0:100,y=0:100 --epsilon 1 --steps 20 --rate 0.5 --json"
    command = [
        "--compilation-cache",
        str(folder),
        "fit",
        "--data",
        str(table),
        "--out",
        str(out),
        *options.split(),
    ]
    return RUN.invoke(app, command)


def test_the_cache_serves_the_next_fit_and_holds_no_record(tmp_path, settings_of_jax):
    folder, table = tmp_path / "programs", tmp_path / "table.csv"
    cells = np.resize(CELLS, (200, 2))
    pd.DataFrame({"x": cells[:, 0], "y": cells[:, 1]}).to_csv(table, index=False)
    seen = []
    given = InSteps.release

    def spy(method):
        seen.append(method.records)
        return given(method)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InSteps, "release", spy)
        jax.clear_caches()
        outcome = fit(folder, table, tmp_path / "first")
    assert outcome.exit_code == 0, outcome.stderr
    files = {file.name for file in folder.rglob("*-cache")}
    assert any("chunk" in name for name in files)
    everything = contents(folder)
    assert b"HloModule" in everything or b"while" in everything
    for column in (np.ravel(seen[0].x), np.ravel(seen[0].y), CELLS[::2], CELLS[1::2]):
        assert not any(pattern in everything for pattern in patterns(column))
    jax.clear_caches()
    outcome = fit(folder, table, tmp_path / "second")
    assert outcome.exit_code == 0, outcome.stderr
    # The second fit, with another key and other initial values, needs no further program for its
    # loop.
    assert {name for name in files if "chunk" in name} == {
        file.name for file in folder.rglob("*-cache") if "chunk" in file.name
    }


def test_the_search_finds_what_a_closure_would_leave(tmp_path, settings_of_jax):
    """The wrong version: the table in the program instead of among its arguments."""
    _run.keep_compiled_programs(tmp_path)
    table = jax.numpy.asarray(np.resize(CELLS, 64), jax.numpy.float32)
    jax.jit(lambda x: jax.numpy.cumsum(table * x))(2.0)
    assert any(pattern in contents(tmp_path) for pattern in patterns(CELLS))


def test_without_the_option_nothing_changes(settings_of_jax):
    before = jax.config.values["jax_compilation_cache_dir"]
    _run.keep_compiled_programs(None)
    assert jax.config.values["jax_compilation_cache_dir"] == before


def test_help_says_what_the_folder_holds():
    outcome = RUN.invoke(app, ["--help"])
    assert "compilation-cache" in outcome.stdout


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path, mode):
    """JAX runs whatever program it finds in the cache."""
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ValueError, match="chmod 700"):
        _run.keep_compiled_programs(folder)


def test_the_folder_within_is_no_more_open(tmp_path, settings_of_jax):
    """JAX would make it by the umask, which may let a group write."""
    before = os.umask(0o002)
    try:
        folder = tmp_path / "cache"
        _run.keep_compiled_programs(folder)
        jax.jit(lambda x: x * 3.5)(1.5)
    finally:
        os.umask(before)
    (inner,) = folder.iterdir()
    assert inner.stat().st_mode & 0o777 == 0o700
    inner.chmod(0o770)
    with pytest.raises(ValueError, match="chmod 700"):
        _run.keep_compiled_programs(folder)


def test_a_folder_of_another_owner_is_refused(tmp_path, monkeypatch):
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(_run.os, "getuid", lambda: owner + 1)
    with pytest.raises(ValueError, match="folder of your own"):
        _run.keep_compiled_programs(tmp_path / "cache")


def test_programs_of_another_machine_are_not_used(tmp_path, settings_of_jax, monkeypatch):
    """A home folder may be on several machines, and JAX's names of files do not name a processor's instructions."""
    folders = []
    for machine in ("old", "new", "old"):
        monkeypatch.setattr("discreet._jax.rounds_like", lambda machine=machine: machine)
        _run.keep_compiled_programs(tmp_path)
        jax.clear_caches()
        jax.jit(lambda x: x * 2.5)(1.5)
        folders.append(jax.config.values["jax_compilation_cache_dir"])
    assert folders[0] == folders[2] != folders[1]
    assert len({file.parent for file in tmp_path.rglob("*-cache")}) == 2
