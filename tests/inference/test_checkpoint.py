"""A fit that dies goes on to the same bits, is debited once, and goes on as nothing else."""

import os
import random as chance
import shutil
import signal
import stat
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.inference import _loop, _saved
from discreet.inference._loop import Checkpoint
from discreet.inference._saved import FILE
from discreet.random import _claims

pytestmark = pytest.mark.usefixtures("quick_compilation")
Y = np.random.default_rng(0).normal(1.0, 1.0, (200, 3)).astype(np.float32)


def model(y, width=1.0):
    mean = numpyro.sample("mean", dist.Normal(0.0, width).expand([3]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def plan(**changes):
    facts = {"num_steps": 600, "num_records": len(Y), "noise_multiplier": 20.0, "clipping_norm": dp.AdaptiveClipping()}
    return dp.PrivacyPlan(**{**facts, "sampling": dp.PoissonSampling(0.2), **changes})


def make(optim=None, changes=(), **options):
    return dp.DPSVI(model, AutoNormal(model), optim or optax.adam(0.05), plan=plan(**dict(changes)), **options)


@pytest.fixture(scope="module")
def dpsvi():
    return make()


def same(a, b):
    for name in ("params", "last_params", "losses", "clipping_norms", "shares"):
        assert jax.tree.all(jax.tree.map(np.array_equal, getattr(a, name), getattr(b, name))), name
    np.testing.assert_array_equal(a.trace.steps, b.trace.steps)
    np.testing.assert_array_equal(a.trace.iterates, b.trace.iterates)
    assert a.averaged_over == b.averaged_over
    assert (a.trace.mean is None) == (b.trace.mean is None)
    if b.trace.mean is not None:
        np.testing.assert_array_equal(a.trace.mean, b.trace.mean)
    if b.trace.gradients is not None:
        np.testing.assert_array_equal(a.trace.gradients, b.trace.gradients)


class Crash(BaseException):
    pass


def crash_at(monkeypatch, call):
    """Die just after the checkpoint of that number, with all that the process knew."""
    keep, calls = Checkpoint.keep, iter(range(10**6))

    def dying(self, *args, **options):
        keep(self, *args, **options)
        if next(calls) == call:
            raise Crash

    monkeypatch.setattr(Checkpoint, "due", True)
    monkeypatch.setattr(Checkpoint, "keep", dying)


def run(dpsvi, key, folder, y=Y, **options):
    return dpsvi.run(key, y, progress_bar=False, checkpoint=folder, **options)


@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("keep_gradients", [False, True])
def test_it_goes_on_to_the_same_bits(dpsvi, tmp_path, monkeypatch, call, keep_gradients):
    options = {"keep_gradients": keep_gradients}
    whole = dpsvi.run(dp.random.key(3), Y, progress_bar=False, **options)
    with monkeypatch.context() as patch:
        crash_at(patch, call)
        with pytest.raises(Crash):
            run(dpsvi, dp.random.key(3), tmp_path, **options)
    # The key is the one in the folder.
    same(run(dpsvi, dp.random.key(4), tmp_path, **options), whole)
    # What is done is not done again.
    monkeypatch.setattr("discreet.inference._loop._one_step", None)
    same(run(dpsvi, dp.random.key(5), tmp_path, **options), whole)


def test_iterates_that_are_kept_now_and_then_are_the_same_ones(dpsvi, tmp_path, monkeypatch):
    from discreet.inference._trace import TraceRecorder

    monkeypatch.setattr(_loop, "TraceRecorder", lambda dim, steps: TraceRecorder(dim, steps, max_bytes=4 * dim * 7))
    whole = dpsvi.run(dp.random.key(3), Y, progress_bar=False)
    assert 2 < len(whole.trace.steps) < 10
    assert whole.averaged_over == 60
    with monkeypatch.context() as patch:
        crash_at(patch, 2)
        with pytest.raises(Crash):
            run(dpsvi, dp.random.key(3), tmp_path)
    same(run(dpsvi, dp.random.key(4), tmp_path), whole)


def test_a_secret_key_stays_in_its_owners_file_until_the_fit_is_done(dpsvi, tmp_path, monkeypatch):
    folder, key = tmp_path / "fit", dp.random.key()
    with monkeypatch.context() as patch:
        crash_at(patch, 1)
        with pytest.raises(Crash):
            run(dpsvi, key, folder)
    words = np.asarray(jax.random.key_data(key)).tobytes()
    # Of a process that was killed while writing.
    (folder / f".{FILE}.x1y2").write_bytes(words)
    assert sorted(path.name for path in folder.iterdir()) == [f".{FILE}.x1y2", FILE]
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert words in (folder / FILE).read_bytes()
    # The same process, and a new one.
    for forget in (False, True):
        copy = tmp_path / str(forget)
        shutil.copytree(folder, copy)
        if forget:
            monkeypatch.setattr(_claims, "_used", {})
        result = run(dpsvi, dp.random.key(), copy)
        assert result.statement.is_private
        assert result.steps_completed == 600
        (left,) = copy.iterdir()
        assert words not in left.read_bytes()
        # The key has drawn its noise.
        with pytest.raises(ValueError, match="drawn this noise before"):
            dpsvi.run(key, Y, progress_bar=False)


def shuffled():
    return Y[np.random.default_rng(1).permutation(len(Y))]


def one_record_less():
    changed = Y.copy()
    changed[17, 1] += 1e-6
    return changed


OTHERS = {
    "other data, by one number": (lambda: make(), one_record_less, "other data"),
    "other data, by their order": (lambda: make(), shuffled, "other data"),
    "another plan": (lambda: make(changes=(("noise_multiplier", 20.1),)), lambda: Y, "another plan"),
    "another learning rate": (lambda: make(optax.adam(0.051)), lambda: Y, "another model"),
    "another model": (lambda: make(width=2.0), lambda: Y, "another model"),
}


@pytest.fixture(scope="module")
def begun(dpsvi, tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 1)
        with pytest.raises(Crash):
            run(dpsvi, dp.random.key(), folder)
    return folder


@pytest.mark.parametrize("what", OTHERS)
def test_another_fit_does_not_go_on(begun, what):
    other, data, message = OTHERS[what]
    before = (begun / FILE).read_bytes()
    with pytest.raises(ValueError, match=message):
        run(other(), dp.random.key(), begun, data())
    assert (begun / FILE).read_bytes() == before


def test_sums_that_xla_rounds_otherwise_do_not_go_on(dpsvi, begun, monkeypatch):
    """With --xla_cpu_max_isa=SSE4_2 the last bits of 1,008 of 1,344 parameters differed, after the same noise."""
    before = _saved.versions()
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1 --xla_dump_to=/nowhere")
    assert _saved.versions() == before
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=SSE4_2")
    with pytest.raises(ValueError, match="other options of JAX or XLA"):
        run(dpsvi, dp.random.key(), begun)


def test_a_guide_that_draws_otherwise_does_not_go_on(dpsvi, begun):
    """The same noise on sums at other draws: parameters of two results of one checkpoint were 0.03 apart."""
    with jax.threefry_partitionable(False), pytest.raises(ValueError, match="other options of JAX or XLA"):
        run(dpsvi, dp.random.key(), begun)


def test_options_belong_to_the_fit_and_damage_is_noticed(dpsvi, begun, tmp_path):
    for options in ({"keep_gradients": True}, {"person": "id"}, {"person": "id", "max_rows": 3}):
        with pytest.raises(ValueError, match="other options"):
            run(dpsvi, dp.random.key(), begun, **options)
    damaged = tmp_path / FILE
    damaged.write_bytes((begun / FILE).read_bytes()[:-100])
    with pytest.raises(ValueError, match="checkpoint of a private fit"):
        run(dpsvi, dp.random.key(), tmp_path)


def test_what_the_ledger_refuses_leaves_no_checkpoint(dpsvi, tmp_path):
    ledger = dp.Ledger.create(tmp_path / "x.ledger", dataset="x", epsilon=1e-3, delta=1e-5)
    with pytest.raises(dp.SpentError):
        run(dpsvi, dp.random.key(), tmp_path / "fit", ledger=ledger)
    assert not (tmp_path / "fit" / FILE).exists()


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

    local = dp.DPSVI(mixture, guide, numpyro.optim.Adam(0.05), plan=plan(clipping_norm=1.0), local="private")
    whole = local.run(dp.random.key(3), Y, progress_bar=False)
    crash_at(monkeypatch, 1)
    with pytest.raises(Crash):
        run(local, dp.random.key(3), tmp_path)
    monkeypatch.undo()
    same(run(local, dp.random.key(4), tmp_path), whole)


# --- real processes ---------------------------------------------------------------------------

PROGRAM = """
import sys
import numpy as np, numpyro, numpyro.distributions as dist
from numpyro.infer.autoguide import AutoNormal
import discreet as dp
from discreet.inference import _loop
_loop._SECONDS = 0.0
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
    same(dp.load_result(out), dp.load_result(other))
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
