"""What every room's tests share: where the tables are, and the programs that one of them has compiled."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


# Traces are large and live long: looking through them for garbage at Python's own rate takes a twentieth of the tests' time.
gc.set_threshold(20_000, 20, 20)


def pytest_configure(config: pytest.Config) -> None:
    """What one worker or child process has compiled, the others take from a folder that ends with the run.

    A folder of its own for each run, which nobody else may open: what lies there is run as it is. JAX names a program after all
    that it consists of and all options it was compiled with, so what a test compiles is what it would have compiled. It does not
    lock the folder; a file that is being written while another worker reads it is compiled again (pyproject.toml).
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # of the process that started this one, or the caller's own
        return
    folder = tempfile.mkdtemp(prefix="discreet-tests-")
    settings = {
        "jax_compilation_cache_dir": folder,
        # Most programs of the tests are small: together they take longer than the large ones.
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        os.environ[name.upper()] = str(value)
        if "jax" in sys.modules:  # a room's conftest.py has imported it by now
            sys.modules["jax"].config.update(name, value)

    def forget() -> None:
        for name in settings:
            del os.environ[name.upper()]
        shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(forget)


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """Compile with few optimisations, where a test compiles for seconds and computes for milliseconds.

    What XLA makes of a program's operations stays as it is; LLVM does less with the machine code.
    """
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The repository's root folder."""
    return REPOSITORY


@pytest.fixture(scope="session")
def table():
    """A function from a file name to the path of that public table; skips the test where the table is absent.

    Tables are never committed. They are looked for in $DISCREET_DATA, then in ../shared/data beside the repository.
    """

    def find(name: str) -> Path:
        named = os.environ.get("DISCREET_DATA")
        folders = [Path(named)] if named else [REPOSITORY.parent / "shared" / "data"]
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
        pytest.skip(f"{name} is not in {folders[0]}: set DISCREET_DATA to a folder that holds it")

    return find
