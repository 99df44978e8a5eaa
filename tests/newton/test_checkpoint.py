"""A private Newton fit that dies goes on to the same bits, is debited once, and goes on as nothing else."""

import dataclasses
import errno
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import discreet as dp
from discreet.inference import DPSVI, SavedFit, _saved
from discreet.newton import NewtonPlan, fit_newton
from discreet.newton._releases import Public
from discreet.newton._saved import SavedReleases
from discreet.newton._sums import Program
from discreet.random import _claims
from discreet.storage import exclusive
from discreet.verify import _certify

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore::discreet.inference.UseWarning"),
]
N = 600
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, 2)).astype(np.float32)
Y = RNG.random(N) < 1 / (1 + np.exp(-X @ [2.0, -1.0]))
TERMS: dict[str, Any] = {"delta": 1e-6, "num_records": N}


def line(x: Any, y: Any, width: float = 2.0) -> None:
    slope = numpyro.sample("slope", dist.Normal(0, width).expand([2]).to_event(1))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


def regression(key: Any, x: Any = X, epsilon: float = 1.0, **options: Any) -> Any:
    plan = NewtonPlan.calibrate(epsilon=epsilon, family="binary", num_features=2, **TERMS)
    return fit_newton(key, x, Y, plan, **options)


def of_a_model(key: Any, x: Any = X, epsilon: float = 1.0, width: float = 2.0, init: Any = None, **options: Any) -> Any:
    plan = dp.newton.ModelPlan.calibrate(epsilon=epsilon, **TERMS)
    newton = dp.DPNewton(line, plan=plan, init=init, width=width)
    return newton.run(key, x, Y.astype(np.int32), progress_bar=False, **options)


Fit = Callable[..., Any]
FITS: dict[str, Fit] = {"regression": regression, "model": of_a_model}


class Crash(BaseException):
    pass


def crash_at(patch: pytest.MonkeyPatch, number: int) -> list[Any]:
    """Die when the release of that number was drawn, and before it is kept; returns what was drawn until then."""
    make, drawn = Program.__call__, []

    def dying(self: Any, *args: Any, **named: Any) -> np.ndarray:
        drawn.append(make(self, *args, **named))
        if len(drawn) == number + 1:
            raise Crash
        return drawn[-1]

    patch.setattr(Program, "__call__", dying)
    return drawn


def same(found: Any, expected: Any) -> None:
    for field in dataclasses.fields(found):
        if field.name not in ("plan", "statement"):
            pair = getattr(found, field.name), getattr(expected, field.name)
            assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), *pair)), field.name
    assert found.statement.use == expected.statement.use


@pytest.fixture
def ledger(tmp_path: Path) -> dp.Ledger:
    return dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=3.0, delta=1e-4)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("regression", 0.0),
        pytest.param("regression", 0.5, marks=pytest.mark.essential),
        ("regression", 1.0),
        ("model", 0.0),
        ("model", 0.5),
        ("model", 1.0),
    ],
)
def test_it_goes_on_to_the_same_bits(
    name: str, share: float, tmp_path: Path, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash in the first, a middle, and the last release, which had been drawn already."""
    fit = FITS[name]
    key = dp.random.key()
    whole = fit(key, checkpoint=tmp_path / "whole")
    last = whole.plan.num_releases - 1
    monkeypatch.setattr(_claims, "_used", {})
    with monkeypatch.context() as patch:
        first = crash_at(patch, int(share * last))
        with pytest.raises(Crash):
            fit(key, checkpoint=tmp_path / "fit", ledger=ledger)
    assert len(first) == int(share * last) + 1
    assert len(ledger.debits) == 1
    with monkeypatch.context() as patch:
        second = crash_at(patch, 10**6)
        # The key is the one in the folder.
        found = fit(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger)
    assert len(second) == last + 2 - len(first)
    assert np.array_equal(first[-1], second[0])
    same(found, whole)
    assert found.statement.is_private
    assert found.statement.receipt.number == 1
    # What is done is not done again, nor paid for.
    for part in ("__call__", "compile"):
        monkeypatch.setattr(Program, part, lambda *_, **__: pytest.fail("made again"))
    same(fit(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger), whole)
    assert len(ledger.debits) == 1


def test_a_seed_stays_a_seed_and_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    whole = regression(dp.random.key(3))
    for key in (dp.random.key(3), dp.random.key()):
        found = regression(key, checkpoint=tmp_path)
        same(found, whole)
        assert found.statement.reproducible


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dp.Ledger]]:
    """Fits that died in their fifth release."""
    found = {}
    for name, fit in FITS.items():
        folder = tmp_path_factory.mktemp(name)
        ledger = dp.Ledger.create(folder / "a.ledger", dataset="a", epsilon=3.0, delta=1e-4)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, 4)
            with pytest.raises(Crash):
                fit(dp.random.key(), checkpoint=folder / "fit", ledger=ledger)
        found[name] = folder / "fit", ledger
    return found


@pytest.mark.parametrize("name", FITS)
def test_the_file_is_its_owners_and_holds_no_row(name: str, begun: Any) -> None:
    file = begun[name][0] / _saved.FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = file.read_bytes()
    for kind in (np.float32, np.float64):
        assert not any(row.tobytes() in content for row in X.astype(kind))
        # Nor a column, of which four rows would be seen.
        assert not any(column[i : i + 4].tobytes() in content for column in X.astype(kind).T for i in range(0, N, 4))


def one_number_moved() -> np.ndarray:
    changed = X.copy()
    changed[17, 1] += 1e-6
    return changed


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "data": ("regression", {"x": one_number_moved()}, "other data"),
    "rows in another order": ("regression", {"x": X[::-1]}, "other data"),
    "plan": ("regression", {"epsilon": 0.9}, "another plan"),
    "levels": ("regression", {"levels": np.array([True, False])}, "other options"),
    "person": ("regression", {"person": "id"}, "other options"),
    "data of a model": ("model", {"x": one_number_moved()}, "other data"),
    "plan of a model": ("model", {"epsilon": 0.9}, "another plan"),
    "start": ("model", {"init": {"slope": [1.0, 1.0]}}, "other options"),
    "prior": ("model", {"width": 2.5}, "another model"),
}


@pytest.mark.parametrize("what", [pytest.param("data", marks=pytest.mark.essential), *sorted(OTHERS.keys() - {"data"})])
def test_another_fit_does_not_go_on(what: str, begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change, message = OTHERS[what]
    fit = FITS[name]
    folder, ledger = begun[name]
    before = (folder / _saved.FILE).read_bytes()
    monkeypatch.setattr(Program, "__call__", None)
    with pytest.raises(ValueError, match=message):
        fit(dp.random.key(), checkpoint=folder, ledger=ledger, **change)
    assert (folder / _saved.FILE).read_bytes() == before
    assert len(ledger.debits) == 1


def test_another_release_or_method_does_not_go_on(begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_saved, "versions", lambda: "discreet 0.0.1")
    with pytest.raises(ValueError, match="another library version"):
        regression(dp.random.key(), checkpoint=begun["regression"][0])
    with pytest.raises(ValueError, match="another plan"):
        of_a_model(dp.random.key(), checkpoint=begun["regression"][0])


@pytest.mark.parametrize("name", FITS)
def test_a_gpu_is_asked_for_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of threads sums differ in their last bits: rows would be on the grid's next step, with the same noise."""

    def stopped(program: Any, *, repeats: bool, quickly: bool) -> None:
        del program, quickly
        assert repeats
        raise Crash

    _certify._compiled.cache_clear()
    monkeypatch.setattr(_certify, "compiled", stopped)
    with pytest.raises(Crash):
        FITS[name](dp.random.key())


@pytest.mark.essential
def test_a_copy_that_rounds_otherwise_draws_other_noise(begun: Any) -> None:
    """With one noise, two releases at points a last bit apart would show by their difference which rows moved by a step."""
    keys: list[np.ndarray] = []
    nothing: Any = None

    def made(key: Any, *_: Any) -> np.ndarray:
        keys.append(np.asarray(jax.random.key_data(key)))
        return np.zeros(1)

    def release(theta: np.ndarray) -> None:
        saved = SavedReleases(begun["regression"][0], dp.random.key(), plan)
        # Four releases are in the file.
        for _ in range(4):
            saved.release(nothing, None, nothing)
        with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
            patch.setattr(SavedFit, "_put", lambda *_, **__: None)
            program: Any = made
            saved.release(program, Public(np.eye(3), theta), nothing)

    plan = NewtonPlan.calibrate(epsilon=1.0, family="binary", num_features=2, **TERMS)
    theta = np.array([0.3, 0.2, 0.1])
    release(theta)
    release(theta.copy())
    release(np.nextafter(theta, 1))
    assert np.array_equal(keys[0], keys[1])
    assert not np.array_equal(keys[0], keys[2])


def test_a_full_disk_loses_nothing(tmp_path: Path, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    key = dp.random.key()
    whole = regression(key, checkpoint=tmp_path / "whole")
    monkeypatch.setattr(_claims, "_used", {})
    put, calls = SavedFit._put, iter(range(99))

    def full(self: Any, *args: Any, **named: Any) -> None:
        if next(calls) == 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(SavedFit, "_put", full)
        with pytest.raises(OSError, match="No space") as error:
            regression(key, checkpoint=tmp_path / "fit", ledger=ledger)
    assert f"The plan is spent. The same call continues from {tmp_path / 'fit'}" in error.value.__notes__[0]
    same(regression(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger), whole)
    assert len(ledger.debits) == 1


def test_ctrl_c_in_the_debit_leaves_the_checkpoint(
    tmp_path: Path, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    debit = dp.Ledger.debit

    def interrupted(self: Any, *args: Any, **named: Any) -> None:
        debit(self, *args, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dp.Ledger, "debit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            regression(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger)
    assert regression(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger).statement.receipt.number == 1
    assert len(ledger.debits) == 1


def test_without_a_checkpoint_it_says_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    crash_at(monkeypatch, 3)
    with pytest.raises(Crash) as error:
        regression(dp.random.key())
    assert error.value.__notes__ == [
        "The plan is spent. Its releases are lost: with checkpoint=, the same call would continue."
    ]


def test_a_key_has_other_noise_for_other_methods(tmp_path: Path) -> None:
    key = dp.random.key()
    _claims.claim(key)
    regression(key)
    with pytest.raises(ValueError, match="has drawn this noise before"):
        regression(key, checkpoint=tmp_path)


def test_what_is_refused_leaves_no_checkpoint(
    tmp_path: Path, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise dp.SpentError("Another process was faster")

    with monkeypatch.context() as patch:
        patch.setattr(dp.Ledger, "debit", late)
        with pytest.raises(dp.SpentError):
            regression(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger)
    assert not (tmp_path / "fit").exists()
    ledger.set_cap(epsilon=0.1, delta=1e-4)
    with pytest.raises(dp.SpentError):
        regression(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger)
    assert not (tmp_path / "fit").exists()
    refusal = pytest.raises(ValueError, match="is in use: another process or thread")
    with exclusive(tmp_path / "fit"), ThreadPoolExecutor(1) as pool, refusal:
        pool.submit(regression, dp.random.key(), checkpoint=tmp_path / "fit").result()


def test_the_best_method_gets_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tuned(x: Any) -> None:
        mean = numpyro.param("mean", 0.0)
        with numpyro.plate("people", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1), obs=x)

    def given(*_: Any, **named: Any) -> Path:
        return named["checkpoint"]

    for model, method in ((line, dp.DPNewton), (tuned, DPSVI)):
        with monkeypatch.context() as patch:
            patch.setattr(method, "run", given)
            table = (X, Y.astype(np.int32)) if model is line else (X[:, 0],)
            found: Any = dp.fit(model, *table, epsilon=1.0, delta=1e-6, checkpoint=tmp_path)
        assert found == tmp_path
    assert list(tmp_path.iterdir()) == []
