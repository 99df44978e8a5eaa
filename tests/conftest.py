"""Fixtures and options that all tests share: where the tables are, compiled programs, and which tests are quick.

Most tests take milliseconds, and a few hundred compile a fit for seconds: those carry nine tenths
of the time. `tests/costs.tsv` holds the processor time of every test that takes more than
`QUICK_SECONDS`. `make test` (`--quick`) leaves them out, except those marked `essential`: an honest
fit and a planted fault for each method, the rules of the verifier, refusals. `make test-all` runs
everything; with `--rest` what `make test` does not, and with `--record-costs` it writes the file
anew. A test that the file does not name counts as quick. A fixture that tests share is counted in
full for each of them: without the first of them, the next one pays for it.
"""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

REPOSITORY = Path(__file__).resolve().parents[1]
COSTS = Path(__file__).with_name("costs.tsv")
QUICK_SECONDS = 0.25
_STARTED = pytest.StashKey[float]()
_measured: dict[str, float] = {}
# seconds that a fixture of more than one test took, the last time that it was made
_shared: dict[Any, float] = {}
_made_now: set[Any] = set()  # those made since the present test began


# Tests run on all cores at once: threads that multiply for one would wait for each other. NumPy is
# there by now; SciPy, and the processes that tests start, read the variable.
threadpool_limits(1, user_api="blas")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Traces are large and live long: looking through them for garbage at Python's own rate takes a
# twentieth of the tests' time.
gc.set_threshold(20_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"leave out tests of more than {QUICK_SECONDS:g} s (costs.tsv)",
    )
    parser.addoption("--rest", action="store_true", help="leave out what --quick runs")
    parser.addoption(
        "--record-costs", action="store_true", help="write tests/costs.tsv from this run"
    )


def recorded_costs() -> dict[str, float]:
    """Seconds of processor time by test, as `tests/costs.tsv` has them."""
    lines = COSTS.read_text(encoding="utf-8").splitlines() if COSTS.is_file() else []
    return {name: float(seconds) for seconds, name in (line.split("\t", 1) for line in lines)}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    quick, rest = config.getoption("--quick"), config.getoption("--rest")
    if not quick and not rest:
        return
    costs = recorded_costs()
    slow = {
        item
        for item in items
        if item.nodeid in costs and item.get_closest_marker("essential") is None
    }
    config.hook.pytest_deselected(items=[item for item in items if (item in slow) == quick])
    items[:] = [item for item in items if (item in slow) != quick]


def processor_time() -> float:
    """Seconds of processor time of this process and of the children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_STARTED] = processor_time()
    _made_now.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    started = processor_time()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _shared[fixturedef] = processor_time() - started
            _made_now.add(fixturedef)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "teardown":
        used = {found[-1] for found in item._fixtureinfo.name2fixturedefs.values()}
        own = (
            processor_time() - item.stash[_STARTED] - sum(_shared[fixture] for fixture in _made_now)
        )
        seconds = own + sum(_shared.get(fixture, 0.0) for fixture in used)
        report.user_properties.append(("processor seconds", seconds))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _measured[report.nodeid] = dict(report.user_properties).get("processor seconds", 0.0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--record-costs") and not hasattr(session.config, "workerinput"):
        costly = sorted(
            (name, seconds) for name, seconds in _measured.items() if seconds >= QUICK_SECONDS
        )
        COSTS.write_text(
            "".join(f"{seconds:.2f}\t{name}\n" for name, seconds in costly), encoding="utf-8"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Share compiled programs between workers and child processes, in a folder that is deleted after the run.

    A folder of its own for each run, which nobody else may open: what lies there is run as it is.
    JAX names a program after all that it consists of and all options it was compiled with, so what
    a test compiles is what it would have compiled. It does not lock the folder; a file that is
    being written while another worker reads it is compiled again (pyproject.toml).
    """
    # of the process that started this one, or the caller's own
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
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

    Tables are never committed. They are looked for in $DISCREET_DATA, then in ../shared/data beside
    the repository.
    """

    def find(name: str) -> Path:
        named = os.environ.get("DISCREET_DATA")
        folders = [Path(named)] if named else [REPOSITORY.parent / "shared" / "data"]
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
        pytest.skip(f"{name} is not in {folders[0]}: set DISCREET_DATA to a folder that holds it")

    return find


@pytest.fixture(autouse=True, scope="module")
def room_for_programs() -> Iterator[None]:
    """Let go of compiled programs before their memory maps reach Linux's limit of 65,530, at which the compiler crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > 40_000:
        import jax

        jax.clear_caches()
        gc.collect()
