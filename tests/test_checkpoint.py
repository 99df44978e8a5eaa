"""A fit that dies goes on to the same bits, is debited once, and goes on as nothing else: in steps, and by private Newton."""

import dataclasses
import errno
import functools
import os
import random as chance
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal
from tests.methods import same

import discreet as dp
from discreet._validate import RefusedError
from discreet.methods.inference import DPSVI, SavedFit, _loop, _saved
from discreet.methods.inference._checkpoint import Checkpoint
from discreet.methods.inference._saved import FILE
from discreet.methods.newton import NewtonPlan, fit_newton
from discreet.methods.newton._releases import Public
from discreet.methods.newton._saved import SavedReleases
from discreet.methods.newton._sums import Program
from discreet.privacy.act import Act
from discreet.privacy.random import _claims
from discreet.privacy.verify import _programs
from discreet.storage import exclusive

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore::discreet.methods.inference.UseWarning"),
]
Z = np.random.default_rng(0).normal(1.0, 1.0, (200, 3)).astype(np.float32)
N = 600
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, 2)).astype(np.float32)
Y = RNG.random(N) < 1 / (1 + np.exp(-X @ [2.0, -1.0]))
TERMS: dict[str, Any] = {"delta": 1e-6, "num_records": N}


def model(y: Any, width: float = 1.0) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, width).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def plan(**changes: Any) -> dp.PrivacyPlan:
    facts = {
        "num_steps": 600,
        "num_records": len(Z),
        "noise_multiplier": 20.0,
        "clipping_norm": dp.AdaptiveClipping(),
    }
    return dp.PrivacyPlan(**{**facts, "sampling": dp.PoissonSampling(0.2), **changes})


@functools.cache
def make(rate: float = 0.05, noise: float = 20.0, **options: Any) -> DPSVI:
    changing = plan(noise_multiplier=noise, rate_schedule=lambda t: 0.2 / (1 + t % 2))
    return DPSVI(model, AutoNormal(model), optax.adam(rate), plan=changing, **options)


def steps(
    key: Any,
    x: Any = Z,
    rate: float = 0.05,
    noise: float = 20.0,
    width: float = 1.0,
    **options: Any,
) -> Any:
    return make(rate, noise, width=width).run(key, x, progress_bar=False, **options)


def line(x: Any, y: Any, width: float = 2.0) -> None:
    slope = numpyro.sample("slope", dist.Normal(0, width).expand([2]).to_event(1))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


def regression(key: Any, x: Any = X, epsilon: float = 1.0, **options: Any) -> Any:
    plan = NewtonPlan.calibrate(epsilon=epsilon, family="binary", num_features=2, **TERMS)
    return fit_newton(key, x, Y, plan, **options)


def of_a_model(
    key: Any, x: Any = X, epsilon: float = 1.0, width: float = 2.0, init: Any = None, **options: Any
) -> Any:
    plan = dp.newton.ModelPlan.calibrate(epsilon=epsilon, **TERMS)
    newton = dp.DPNewton(line, plan=plan, init=init, width=width)
    return newton.run(key, x, Y.astype(np.int32), progress_bar=False, **options)


def steps_of_a_chain(key: Any, x: Any = Z, **options: Any) -> Any:
    chain = dp.DPSGLD(model, plan=plan(clipping_norm=1.0), step_size=(1e-4, 10.0, 0.55))
    return chain.run(key, x, progress_bar=False, **options)


FITS: dict[str, Callable[..., Any]] = {
    "steps": steps,
    "steps with gradients": functools.partial(steps, keep_gradients=True),
    "steps of a chain": steps_of_a_chain,
    "regression": regression,
    "model": of_a_model,
}


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


def crash_in_steps(patch: pytest.MonkeyPatch, call: int) -> None:
    """Die just after the checkpoint of that number, with all that the process knew."""
    keep, calls = Checkpoint.keep, iter(range(10**6))

    def dying(self: Any, *args: Any, **options: Any) -> None:
        keep(self, *args, **options)
        if next(calls) == call:
            raise Crash

    patch.setattr(Checkpoint, "due", True)
    patch.setattr(Checkpoint, "keep", dying)


def died(name: str, number: int, key: Any, folder: Path, **options: Any) -> None:
    """Begin a fit that dies at the checkpoint or release of that number."""
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, number)
        if name.startswith("steps"):
            crash_in_steps(patch, number)
        with pytest.raises(Crash):
            FITS[name](key, checkpoint=folder, **options)


def check_same(found: Any, expected: Any) -> None:
    for field in dataclasses.fields(found):
        if field.name != "statement" and field.metadata.get("file", True):
            assert same(getattr(found, field.name), getattr(expected, field.name)), field.name
    assert found.statement.use == expected.statement.use


@pytest.fixture
def ledger(tmp_path: Path) -> dp.Ledger:
    return dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=3.0, delta=1e-4)


ESSENTIAL = ("steps", 0.5), ("regression", 0.5)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param(name, share, marks=[pytest.mark.essential] * ((name, share) in ESSENTIAL))
        for name in FITS
        for share in (0.0, 0.5, 1.0)
    ],
)
def test_it_goes_on_to_the_same_bits(
    name: str, share: float, tmp_path: Path, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash in the first, a middle, and the last release, which had been drawn already."""
    fit, key, in_steps = FITS[name], dp.random.key(), name.startswith("steps")
    whole = fit(key, checkpoint=tmp_path / "whole")
    last = 2 if in_steps else whole.plan.num_releases - 1
    monkeypatch.setattr(_claims, "_used", {})
    with monkeypatch.context() as patch:
        first = crash_at(patch, 10**6)
        died(name, int(share * last), key, tmp_path / "fit", ledger=ledger)
    assert len(ledger.debits) == 1
    with monkeypatch.context() as patch:
        second = crash_at(patch, 10**6)
        # The key is the one in the folder.
        found = fit(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger)
    if not in_steps:
        assert len(first) == int(share * last) + 1
        assert len(second) == last + 2 - len(first)
        assert np.array_equal(first[-1], second[0])
    check_same(found, whole)
    assert found.statement.is_private
    assert found.statement.receipt.number == 1
    # What is done is not done again, nor paid for.
    monkeypatch.setattr(_loop, "_one_step", None)
    for part in ("__call__", "compile"):
        monkeypatch.setattr(Program, part, lambda *_, **__: pytest.fail("made again"))
    check_same(fit(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger), whole)
    assert len(ledger.debits) == 1


@pytest.mark.parametrize("name", ["steps", "regression"])
def test_a_seed_stays_a_seed_and_a_checkpoint_changes_nothing(name: str, tmp_path: Path) -> None:
    whole = FITS[name](dp.random.key(3))
    for key in (dp.random.key(3), dp.random.key(4)):
        found = FITS[name](key, checkpoint=tmp_path)
        check_same(found, whole)
        assert found.statement.reproducible


@pytest.mark.parametrize("name", ["steps", "regression"])
def test_a_key_of_the_other_kind_is_refused_by_its_own_reason(
    name: str, begun: Any, tmp_path: Path
) -> None:
    """A secret key for a fit by a seed was refused as another model or another processor."""
    FITS[name](dp.random.key(3), checkpoint=tmp_path)
    with pytest.raises(
        RefusedError, match=r"with a key made from a seed, .* and this call gives a secret key"
    ):
        FITS[name](dp.random.key(), checkpoint=tmp_path)
    with pytest.raises(
        RefusedError,
        match=r"with a secret key \(discreet.random.key\(\)\), and this call gives a key made from",
    ):
        FITS[name](dp.random.key(3), checkpoint=begun[name][0])


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dp.Ledger]]:
    """Fits that died on their way."""
    found = {}
    for name in FITS:
        folder = tmp_path_factory.mktemp("begun")
        ledger = dp.Ledger.create(folder / "a.ledger", dataset="a", epsilon=3.0, delta=1e-4)
        died(
            name,
            1 if name.startswith("steps") else 4,
            dp.random.key(),
            folder / "fit",
            ledger=ledger,
        )
        found[name] = folder / "fit", ledger
    return found


@pytest.mark.parametrize("name", FITS)
def test_the_file_is_its_owners_and_holds_no_row(name: str, begun: Any) -> None:
    file, table = begun[name][0] / FILE, Z if name.startswith("steps") else X
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = file.read_bytes()
    for kind in (np.float32, np.float64):
        assert not any(row.tobytes() in content for row in table.astype(kind))
        # Nor a column, of which four rows would be seen.
        columns = table.astype(kind).T
        assert not any(
            column[i : i + 4].tobytes() in content
            for column in columns
            for i in range(0, len(column), 4)
        )


def one_number_moved(table: np.ndarray) -> np.ndarray:
    changed = table.copy()
    changed[17, 1] += 1e-6
    return changed


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "data of steps": ("steps", {"x": one_number_moved(Z)}, "other data"),
    "rows of steps in another order": ("steps", {"x": Z[::-1]}, "other data"),
    "plan of steps": ("steps", {"noise": 20.1}, "another plan"),
    "learning rate": ("steps", {"rate": 0.051}, "another model"),
    "prior of steps": ("steps", {"width": 2.0}, "another model"),
    "gradients": ("steps", {"keep_gradients": True}, "other options"),
    "person of steps": ("steps", {"person": "id"}, "other options"),
    "rows of a person": ("steps", {"person": "id", "max_rows": 3}, "other options"),
    "data": ("regression", {"x": one_number_moved(X)}, "other data"),
    "rows in another order": ("regression", {"x": X[::-1]}, "other data"),
    "plan": ("regression", {"epsilon": 0.9}, "another plan"),
    "levels": ("regression", {"levels": np.array([True, False])}, "other options"),
    "person": ("regression", {"person": "id"}, "other options"),
    "data of a model": ("model", {"x": one_number_moved(X)}, "other data"),
    "plan of a model": ("model", {"epsilon": 0.9}, "another plan"),
    "start": ("model", {"init": {"slope": [1.0, 1.0]}}, "other options"),
    "prior": ("model", {"width": 2.5}, "another model"),
}


@pytest.mark.parametrize(
    "what", [pytest.param("data", marks=pytest.mark.essential), *sorted(OTHERS.keys() - {"data"})]
)
def test_another_fit_does_not_go_on(what: str, begun: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change, message = OTHERS[what]
    folder, ledger = begun[name]
    before = (folder / FILE).read_bytes()
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with pytest.raises(ValueError, match=message):
        FITS[name](dp.random.key(), checkpoint=folder, ledger=ledger, **change)
    assert (folder / FILE).read_bytes() == before
    assert len(ledger.debits) == 1


@pytest.mark.parametrize("name", FITS)
def test_another_library_version_does_not_go_on(
    name: str, begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_saved, "versions", lambda: "discreet 0.0.1")
    with pytest.raises(ValueError, match="another library version"):
        FITS[name](dp.random.key(), checkpoint=begun[name][0])


def test_another_method_does_not_go_on(begun: Any) -> None:
    with pytest.raises(ValueError, match="another plan"):
        of_a_model(dp.random.key(), checkpoint=begun["regression"][0])


@pytest.mark.parametrize("name", FITS)
def test_damage_is_noticed(name: str, begun: Any, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes((begun[name][0] / FILE).read_bytes()[:-100])
    with pytest.raises(ValueError, match="checkpoint of a private fit"):
        FITS[name](dp.random.key(), checkpoint=tmp_path)


@pytest.mark.parametrize("name", FITS)
def test_what_is_refused_leaves_no_checkpoint(
    name: str, tmp_path: Path, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any, **__: Any) -> None:
        raise dp.SpentError("Another process was faster")

    fit = FITS[name]
    with monkeypatch.context() as patch:
        patch.setattr(dp.Ledger, "debit", late)
        with pytest.raises(dp.SpentError):
            fit(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger)
    assert not (tmp_path / "fit").exists()
    ledger.set_cap(epsilon=0.1, delta=1e-4)
    with pytest.raises(dp.SpentError):
        fit(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger)
    assert not (tmp_path / "fit").exists()
    refusal = pytest.raises(ValueError, match="is in use: another process or thread")
    with exclusive(tmp_path / "fit"), ThreadPoolExecutor(1) as pool, refusal:
        pool.submit(fit, dp.random.key(), checkpoint=tmp_path / "fit").result()


@pytest.mark.parametrize("name", ["regression", "model"])
def test_a_gpu_is_asked_for_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of threads sums differ in their last bits: rows would be on the grid's next step, with the same noise."""

    def stopped(program: Any, *, repeats: bool, quickly: bool) -> None:
        del program, quickly
        assert repeats
        raise Crash

    _programs.runner_for.cache_clear()
    monkeypatch.setattr(_programs, "compiled", stopped)
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


def test_a_full_disk_loses_nothing(
    tmp_path: Path, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (
        f"The plan is spent. The same call continues from {tmp_path / 'fit'}"
        in error.value.__notes__[0]
    )
    check_same(regression(dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger), whole)
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
    assert (
        regression(
            dp.random.key(), checkpoint=tmp_path / "fit", ledger=ledger
        ).statement.receipt.number
        == 1
    )
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


def test_the_best_method_gets_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that `fit` kept to itself was never debited, and no test failed."""
    asked: dict[str, Any] = {
        "checkpoint": tmp_path,
        "ledger": object(),
        "person": "id",
        "max_rows": 3,
        "progress_bar": False,
        "mesh": jax.make_mesh((1,), ("records",)),
    }

    def tuned(x: Any) -> None:
        mean = numpyro.param("mean", 0.0)
        with numpyro.plate("people", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1), obs=x)

    def given(*_: Any, **named: Any) -> dict[str, Any]:
        return named

    for model, method in ((line, dp.DPNewton), (tuned, DPSVI)):
        with monkeypatch.context() as patch:
            patch.setattr(method, "run", given)
            table = (X, Y.astype(np.int32)) if model is line else (X[:, 0],)
            weighted = {"weights": object()} if model is line else {}
            found: Any = dp.fit(model, *table, epsilon=1.0, delta=1e-6, **asked, **weighted)
        assert found == asked | weighted
    assert list(tmp_path.iterdir()) == []


def test_iterates_that_are_kept_now_and_then_are_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from discreet.methods.inference._trace import TraceRecorder

    monkeypatch.setattr(
        _loop, "TraceRecorder", lambda dim, steps: TraceRecorder(dim, steps, max_bytes=4 * dim * 7)
    )
    whole = steps(dp.random.key(3))
    assert 2 < len(whole.trace.steps) < 10
    assert whole.averaged_over == 60
    died("steps", 2, dp.random.key(3), tmp_path)
    check_same(steps(dp.random.key(4), checkpoint=tmp_path), whole)


def test_a_secret_key_stays_in_its_owners_file_until_the_fit_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, key = tmp_path / "fit", dp.random.key()
    died("steps", 1, key, folder)
    words = np.asarray(jax.random.key_data(key)).tobytes()
    # Of a process that was killed while writing.
    (folder / f".{FILE}.x1y2").write_bytes(words)
    assert sorted(path.name for path in folder.iterdir()) == [f".{FILE}.x1y2", FILE]
    assert words in (folder / FILE).read_bytes()
    # The same process, and a new one.
    for forget in (False, True):
        copy = tmp_path / str(forget)
        shutil.copytree(folder, copy)
        if forget:
            monkeypatch.setattr(_claims, "_used", {})
        result = steps(dp.random.key(), checkpoint=copy)
        assert result.statement.is_private
        assert result.steps_completed == 600
        (left,) = copy.iterdir()
        assert words not in left.read_bytes()
        # The key has drawn its noise.
        with pytest.raises(ValueError, match="drawn this noise before"):
            steps(key)


def test_sums_that_xla_rounds_otherwise_do_not_go_on(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --xla_cpu_max_isa=SSE4_2 the last bits of 1,008 of 1,344 parameters differed, after the same noise."""
    before = _saved.versions()
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_force_host_platform_device_count=1 --xla_dump_to=/nowhere"
    )
    assert _saved.versions() == before
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=SSE4_2")
    with pytest.raises(ValueError, match="other options of JAX or XLA"):
        steps(dp.random.key(), checkpoint=begun["steps"][0])


def test_a_guide_that_draws_otherwise_does_not_go_on(begun: Any) -> None:
    """The same noise on sums at other draws: parameters of two results of one checkpoint were 0.03 apart."""
    with (
        jax.threefry_partitionable(False),
        pytest.raises(ValueError, match="other options of JAX or XLA"),
    ):
        steps(dp.random.key(), checkpoint=begun["steps"][0])


@pytest.mark.exhaustive
def test_records_memories_come_back(tmp_path, monkeypatch):
    """With local="private" the file holds what records remember, and the fit goes on from there."""

    def mixture(y):
        means = numpyro.sample("means", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(means + z[..., None], 1.0).to_event(1), obs=y)

    def guide(y):
        loc = numpyro.param("loc", jnp.zeros(3))
        numpyro.sample("means", dist.Normal(loc, 0.1).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            own = numpyro.param("own", jnp.zeros(y.shape[0]), event_dim=0)
            numpyro.sample("z", dist.Normal(own, 0.5))

    local = dp.DPSVI(
        mixture, guide, numpyro.optim.Adam(0.05), plan=plan(clipping_norm=1.0), local="private"
    )
    whole = local.run(dp.random.key(3), Z, progress_bar=False)
    crash_in_steps(monkeypatch, 1)
    with pytest.raises(Crash):
        local.run(dp.random.key(3), Z, progress_bar=False, checkpoint=tmp_path)
    monkeypatch.undo()
    check_same(local.run(dp.random.key(4), Z, progress_bar=False, checkpoint=tmp_path), whole)


# --- real processes ---------------------------------------------------------------------------

PROGRAM = """
import sys
import numpy as np, numpyro, numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal
import discreet as dp
from discreet.methods.inference import _checkpoint, _loop
_checkpoint._SECONDS = 0.0
_loop._SECONDS_A_CHUNK = 0.01
def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
poisson = dp.PoissonSampling(0.1)
plan = dp.PrivacyPlan(sampling=poisson, clipping_norm=1.0, noise_multiplier=9.0, num_steps=20_000, num_records=1000)
dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.01), plan=plan, placeholder=(np.zeros(1, np.float32),))
folder, ledger, out = sys.argv[1:]
y = np.linspace(-1, 3, 1000, dtype=np.float32)
ledger = dp.Ledger(ledger) if ledger else None
print("begins", flush=True)
dpsvi.run(dp.random.key(), y, progress_bar=False, checkpoint=folder, ledger=ledger).save(out)
"""


def die_and_go_on(tmp_path, kills, seed):
    """Kill runs at random moments, go on, and compare with a run that was never stopped."""
    moments = chance.Random(seed)
    ledger = dp.Ledger.create(tmp_path / "x.ledger", dataset="x", epsilon=20.0, delta=1e-3)
    fit, out = tmp_path / "fit", tmp_path / "result.discreet"
    command = [sys.executable, "-c", PROGRAM, fit, ledger.path, out]
    # For what the whole takes, and the beginning, from which the comparison starts too.
    started = time.perf_counter()
    with subprocess.Popen(command) as process:
        while not (fit / FILE).exists():
            time.sleep(0.005)
            assert process.poll() is None
        first = time.perf_counter() - started
        shutil.copytree(fit, tmp_path / "copy")
        process.kill()
    other = tmp_path / "other.discreet"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "copy", "", other], check=True)
    whole = time.perf_counter() - started
    for _ in range(kills):
        with subprocess.Popen(command) as process:
            time.sleep(moments.uniform(0.3 * first, 1.05 * whole))
            process.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True)
    assert len(ledger.debits) == 1
    check_same(dp.load_result(out), dp.load_result(other))
    return dp.load_result(out)


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is for POSIX systems")
@pytest.mark.exhaustive
def test_killed_processes_go_on_to_the_same_bits(tmp_path):
    die_and_go_on(tmp_path, 1, seed=0)


@pytest.mark.exhaustive
@pytest.mark.skipif(os.name != "posix", reason="kill -9 is for POSIX systems")
def test_fifty_kills(tmp_path):
    """Ten runs that are killed five times each."""
    for run_number in range(10):
        folder = tmp_path / str(run_number)
        folder.mkdir()
        die_and_go_on(folder, 5, seed=run_number)
