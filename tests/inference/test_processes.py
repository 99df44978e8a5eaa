"""Several processes would each make a release: refused without mesh=. With it, `over_processes.py` in two of them."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow
import pytest
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam
from tests.inference import over_processes
from tests.methods import METHODS

import discreet as dp
from discreet import audit, estimators
from discreet._validate import probability
from discreet.interfaces.compat import d3p
from discreet.methods.inference._langevin import step_sizes
from discreet.methods.inference._processes import _in_words
from discreet.methods.inference._records import take_apart
from discreet.tabular.tables import open_records, schema_from_bounds

Y = np.zeros((40, 2), np.float32)
SAMPLING = dp.PoissonSampling(0.25)
FACTS = {
    "sampling": SAMPLING,
    "clipping_norm": 1.0,
    "noise_multiplier": 2.0,
    "num_steps": 4,
    "num_records": len(Y),
}
PLAN = dp.PrivacyPlan(**FACTS)


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def d3p_model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("batch", len(Y), y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def make():
    return dp.DPSVI(model, AutoNormal(model), Adam(0.01), plan=PLAN)


ENTRIES = {
    **{method.__name__: method for method in METHODS},
    "DPSVI.init": lambda key: make().init(key, Y),
    "gaussian_mechanism": lambda key: dp.gaussian_mechanism(key, jnp.zeros(3), 1.0),
    "gaussian_mechanism, compiled": lambda key: jax.jit(
        lambda k: dp.gaussian_mechanism(k, jnp.zeros(3), 1.0)
    )(key),
    "laplace_mechanism": lambda key: dp.laplace_mechanism(key, jnp.zeros(3), 1.0),
    "compat.d3p": lambda key: through_d3p(key),
    "exponential_mechanism": lambda key: dp.exponential_mechanism(key, jnp.zeros(3), 1.0),
    "certify": lambda key: dp.certify(own_release, key, Y, records=(1,))(key, Y),
    "DPSVI.certify": lambda key: make().certify(Y),
    "describe": lambda key: dp.describe(TABLE, SCHEMA, epsilon=1.0, delta=1e-6, rng_key=key),
    "LinearRegression": lambda key: estimators.LinearRegression(
        epsilon=1.0, delta=1e-6, bounds=(-1, 1), target_bounds=(-1, 1)
    ).fit(Y, Y[:, 0]),
    "LogisticRegression": lambda key: estimators.LogisticRegression(
        epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=(0, 1)
    ).fit(Y, Y[:, 0]),
    "audit_fit": lambda key: audit.worst_case(PLAN).audit(runs=20),
}
SCHEMA = schema_from_bounds("age=0:9,smoker=no|yes")
TABLE = pyarrow.table({"age": [1.0, 2.0], "smoker": ["no", "yes"]})


def own_release(key, y):
    return dp.gaussian_mechanism(
        key, dp.sum_records(dp.clip_records(y, 1.0), jnp.ones(len(y), bool)), 2.0
    )


def through_d3p(key):
    _, get_batch = d3p.minibatch.subsample_batchify_data((Y,), 10)
    loss = numpyro.infer.Trace_ELBO()
    return d3p.svi.DPSVI(
        d3p_model, AutoNormal(d3p_model), Adam(0.01), loss, 1.0, 2.0, batches=get_batch
    ).init(key, Y[:10])


def refusals(key):
    """List the ways to a release that are not refused although there are several processes."""
    through = []
    for name, release in ENTRIES.items():
        try:
            release(key)
        except ValueError as error:
            if "jax.distributed" in str(error):
                continue
        through.append(name)
    return through


@pytest.mark.parametrize("entry", ENTRIES)
def test_several_processes_are_refused(monkeypatch, entry):
    key = dp.random.key()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"2\. Each of them would draw its own noise"):
        ENTRIES[entry](key)


def test_a_step_of_ones_own_loop_is_refused(monkeypatch):
    dpsvi = make()
    state = dpsvi.init(dp.random.key(), Y[:10])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="Nothing was spent"):
        dpsvi.update(state, Y[:10])


def test_nothing_is_debited(monkeypatch, tmp_path):
    ledger = dp.Ledger.create(tmp_path / "ledger", dataset="d", epsilon=100.0, delta=1e-3)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"jax\.distributed"):
        make().run(dp.random.key(), Y, progress_bar=False, ledger=ledger)
    assert not ledger.debits


def run_children(code, environments):
    """The outputs of children that run at once."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for own in environments
    ]
    return [(child.communicate(timeout=600)[0], child.returncode) for child in children]


CELL = "the cell 17.5"


def told(raises):
    """The text of an error that other processes get."""
    try:
        raises()
    except Exception as error:
        return _in_words(error)


def from_disk():
    raise OSError(errno.ENOSPC, "full", CELL)


@pytest.mark.parametrize(
    ("raises", "words"),
    [
        (lambda: probability("delta", 7.0), "delta is 7.0; it must be"),
        (lambda: schema_from_bounds("age"), "DataError: "),
        (from_disk, f"OSError: {os.strerror(errno.ENOSPC)}"),
    ],
)
def test_other_processes_get_the_text_of_refusals(raises, words):
    assert told(raises).startswith(words)
    assert CELL not in told(raises)


@pytest.mark.parametrize(
    ("raises", "kind"),
    [
        (lambda: float(CELL), "ValueError"),
        (lambda: take_apart([1.0], {}), "ValueError"),  # ours, but no RefusedError
        (
            lambda: step_sizes(lambda t: float(CELL), 3),
            "TypeError",
        ),  # ours, and repeats what the user's function said
        (lambda: jnp.zeros(3).reshape(CELL), "TypeError"),
        (lambda: {}[CELL], "KeyError"),
    ],
)
def test_of_other_errors_they_get_the_kind_alone(raises, kind):
    assert told(raises) == kind


# --- Several processes on one machine, as a program would start them ---


def several(part, folder, count=2, **environment):
    """Run parts of `over_processes.py` in processes with four devices in all: their findings, outputs, and exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = f"""
        import os, sys
        sys.argv = ["", "{port}", os.environ["WHO"], {str(folder)!r}, {part!r}, "{count}"]
        import over_processes
        over_processes.main()
    """
    devices = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // count}"}
    ended = run_children(
        code, [{"WHO": str(number), **devices, **environment} for number in range(count)]
    )
    files = [folder / f"{part}-{number}.json" for number in range(count)]
    found = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    return found, [out for out, _ in ended], [status for _, status in ended]


def both(part, folder, **environment):
    """The same of two processes."""
    (first, second), outputs, statuses = several(part, folder, **environment)
    return first, second, outputs, statuses


@pytest.fixture(scope="module")
def began(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    over_processes.write_shards(folder)
    return folder, *both("same_on_all+refusals+interrupted+dies", folder)


def test_two_processes_make_the_fit_of_one_device(began):
    """With every option of a mesh the same code runs; here latents of the records' own, and DPSGLD."""
    folder, first, second, outputs, _ = began
    assert "in shards" in first, outputs
    for name, fit in over_processes.FITS.items():
        one = fit().run(dp.random.key(3), over_processes.X, progress_bar=False)
        iterates, losses, statement = first[name]
        np.testing.assert_allclose(iterates, one.trace.iterates, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(losses, one.losses, rtol=1e-4, atol=1e-3)
        assert second[name] == first[name]
        assert "4 devices (cpu) of 2 processes" in " ".join(statement.split())
    one = over_processes.make(num_records=40).run(
        dp.random.key(3), over_processes.X[:40], progress_bar=False
    )
    np.testing.assert_allclose(first["rows of its own"], one.trace.iterates, rtol=1e-4, atol=1e-5)
    # Records in shards are in the order of these.
    rows = open_records(folder / "shards").x
    one = over_processes.make(num_records=40).run(dp.random.key(3), rows, progress_bar=False)
    np.testing.assert_allclose(first["in shards"], one.trace.iterates, rtol=1e-4, atol=1e-5)
    assert first["in shards"] == second["in shards"]
    # Secret keys of their own: one release, one debit, one statement.
    assert first["secret"] == second["secret"]
    assert "Debited as entry 1" in first["secret"][1]
    assert len(dp.Ledger(folder / "ledger").debits) == 1


@pytest.fixture(scope="module")
def shared_newton(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newton")
    return folder, *both("newton", folder)


def test_private_newton_of_two_processes_is_that_of_one(shared_newton):
    """Of a regression to the bit, since sums are exact; of a model, whose rows a larger program computes, but for rounding."""
    _, first, second, outputs, _ = shared_newton
    assert "model" in first, outputs
    for name, fit in over_processes.NEWTON.items():
        assert first[name] == second[name]
        own = fit(dp.random.key(3), over_processes.X)
        tolerance = 0 if name == "regression" else 1e-3
        for one, found in zip(own, first[name], strict=True):
            np.testing.assert_allclose(found, one, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plan", "Process 1 has another plan"),
        ("data", "Process 1 has other records"),
        ("mesh", "mesh has no device of process"),
        ("names", "names must be 3 texts"),
        ("budget", "SpentError"),
    ],
)
def test_private_newton_refuses_in_both_before_anything_is_spent(shared_newton, name, words):
    _, first, second, *_ = shared_newton
    assert any(words in found[name] for found in (first, second))
    assert all(found[name] for found in (first, second))


def test_private_newton_goes_on_in_both_after_one_was_killed(shared_newton):
    folder, first, second, outputs, statuses = shared_newton
    assert statuses[1] == -signal.SIGKILL
    assert "resumed" not in first | second
    assert "Start all processes again" in outputs[0]
    assert len(dp.Ledger(folder / "fourth").debits) == 1
    first, second, outputs, _ = both("newton_goes_on", folder)
    assert "never stopped" in first, outputs
    assert first["resumed"] == second["resumed"]
    assert "Debited as entry 1" in first["resumed"][1]
    assert first["resumed"][0] == first["never stopped"]
    assert len(dp.Ledger(folder / "fourth").debits) == 1


@pytest.mark.exhaustive
def test_four_processes_make_the_fit_of_one_device(tmp_path):
    """One of them has no record, another one a NaN."""
    found, outputs, statuses = several("few_on_all", tmp_path, 4)
    assert statuses == [0] * 4, outputs
    first = found[0]
    assert found == [first] * 4
    few = over_processes.make(num_records=9)
    one = few.run(dp.random.key(3), over_processes.X[:9], progress_bar=False, keep_gradients=True)
    iterates, gradients = first["seed"]
    np.testing.assert_allclose(iterates, one.trace.iterates, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradients, one.trace.gradients, rtol=1e-4, atol=1e-4)
    assert first["certificate"] == repr(
        few.certify(over_processes.X[:9], keep_gradients=True).event
    )
    statement = " ".join(first["secret"][1].split())
    assert "4 devices (cpu) of 4 processes" in statement
    assert "Proved before it ran" in statement
    assert "Debited as entry 1" in statement
    assert len(dp.Ledger(tmp_path / "ledger").debits) == 1


REFUSED = {
    "plan": "Process 1 has another plan",
    "seed": "Process 1 has another seed",
    "secret and seed": "Process 1 has another seed",
    "data": "Process 1 has other records",
    "in shards elsewhere": "Process 1 has other",
    "rows": "Process 1 has other options, another mesh or other shapes",
    "options": "Process 1 has other options",
    "model": "Process 1 has another model",
    "mesh": "Process 1 has other options, another mesh",
    "part of a mesh": "mesh has no device of process",
    "checkpoint": "Process 1 is given checkpoint=",
    "versions": "Process 1 has other versions",
    "key per process": "Processes 0 and 1 have computed other parameters from the same sums",
}


def test_what_differs_is_refused_by_both_before_anything_is_spent(began):
    folder, first, second, outputs, _ = began
    assert "versions" in first, outputs
    for name, words in REFUSED.items():
        assert words in first[name], name
        assert words in second[name], name
    assert first["without a mesh"] == second["without a mesh"] == []
    assert "RefusedError: Process 1 refused: delta is 7.0" in first["an argument"]
    assert "RefusedError: delta is 7.0" in second["an argument"]
    assert "Process 1 refused: DataError" in first["shard"]
    assert "x-03 is not the file that the index names" in second["shard"]
    assert "SpentError" in first["budget"]
    assert "Process 0 refused: SpentError" in second["budget"]
    assert not dp.Ledger(folder / "second").debits


def test_ctrl_c_in_one_stops_both_after_the_same_step(began):
    _, first, second, outputs, _ = began
    assert "stopped" in first, outputs
    assert first["stopped"] == second["stopped"]
    assert 0 < first["stopped"][0] < 100_000


def test_sigterm_in_one_stops_both_after_the_same_step_and_the_checkpoint_is_written(began):
    _, first, second, outputs, _ = began
    assert "terminated" in second, outputs
    assert first["terminated"] == second["terminated"] == first["kept"]
    assert 0 < first["terminated"][0] < 100_000


def test_a_killed_fit_goes_on_to_the_same_bits_and_an_error_ends_both(began):
    """Without a second debit, and on the same devices only; then an error of one that the other cannot know of."""
    folder, first, _, outputs, statuses = began
    assert first["dies"], outputs
    assert statuses == [75, -signal.SIGKILL], outputs
    assert "Start all processes again with the same command" in outputs[0]
    first, second, outputs, statuses = both("goes_on+fails", folder, FAILS="raises,a step,1")
    assert "never stopped" in first, outputs
    assert first["resumed"] == second["resumed"]
    assert first["resumed"][0] == first["never stopped"]
    assert len(dp.Ledger(folder / "third").debits) == 1
    assert "other options or devices" in first["another mesh"]
    assert "holds a fit with" in second["other data"]
    assert statuses == [70, 70], outputs
    assert "KeyError: 'planted'" in outputs[1]
    assert time.time() - second["a step"] < 40.0  # not the 300 seconds of a barrier


ENDS = [
    ("raises", "before the run", 1, 70),
    ("raises", "hash of the records", 0, 75),
    ("raises", "a checkpoint", 0, 70),
    ("raises", "the result", 1, 70),
    ("raises", "after the run", 0, 70),
    *(
        ("dies", stage, turn % 2, None)
        for turn, stage in enumerate([*over_processes.STAGES, "before the run"])
    ),
]


@pytest.mark.parametrize(
    ("what", "stage", "victim", "code"),
    [
        pytest.param(*case, marks=[pytest.mark.exhaustive] * (number > 0))
        for number, case in enumerate(ENDS)
    ],
)
def test_what_ends_one_process_ends_all_within_40_seconds(tmp_path, what, stage, victim, code):
    """By an exit code that says so; without process 0, where JAX's service is, JAX itself may end the others by SIGABRT."""
    *found, outputs, statuses = both("fails", tmp_path, FAILS=f"{what},{stage},{victim}")
    ended = time.time() - found[victim].get(stage, found[victim]["began"])
    assert ended < 40.0, outputs
    assert "planted" in outputs[victim] or what == "dies"
    assert statuses[victim] == (code or -signal.SIGKILL), outputs
    assert statuses[1 - victim] in (70, 75, -signal.SIGABRT), outputs


@pytest.mark.exhaustive
def test_what_fails_before_anything_is_spent_is_told_to_all(tmp_path):
    first, second, outputs, statuses = both("refuses", tmp_path)
    assert statuses == [0, 0], outputs
    for stage in over_processes.FORESEEN:
        # whose message may quote a record
        assert first[stage] == "RefusedError: Process 1 refused: KeyError"
        assert second[stage] == "KeyError: 'planted'"


@pytest.mark.exhaustive
def test_others_wait_for_a_process_that_sleeps_at_any_stage(tmp_path):
    first, second, outputs, statuses = both("sleeps", tmp_path)
    assert statuses == [0, 0], outputs
    assert set(first) | set(second) >= set(over_processes.STAGES)
    assert first["slept"] == second["slept"] == first["rested"]


@pytest.mark.exhaustive
def test_after_twenty_kills_of_any_process_the_bits_are_those_of_a_fit_never_stopped(tmp_path):
    seed = int.from_bytes(os.urandom(4))
    chance, kills = np.random.default_rng(seed), 0
    while kills < 20:
        since = "start" if kills % 4 == 0 else "step"
        kill = (
            f"{chance.integers(2)},{since},{chance.uniform(0, 8 if since == 'start' else 0.6):.3f}"
        )
        *_, outputs, statuses = both("killed", tmp_path, KILL=kill)
        if statuses == [0, 0]:
            break  # done before all kills
        assert -signal.SIGKILL in statuses, (seed, outputs)
        assert set(statuses) <= {-signal.SIGKILL, -signal.SIGABRT, 75}, (seed, outputs)
        kills += 1
    first, second, outputs, statuses = both("killed", tmp_path, KILL="2,step,0")
    assert statuses == [0, 0], (seed, outputs)
    assert kills >= 10, seed
    assert first["resumed"] == second["resumed"]
    assert first["resumed"][0] == first["never stopped"]
    assert len(dp.Ledger(tmp_path / "third").debits) == 1


def test_an_array_over_several_devices_is_warned_of_and_fitted():
    code = """
        import warnings
        import jax, numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        from test_processes import Y, make
        import discreet as dp
        mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        spread = jax.device_put(Y, NamedSharding(mesh, P("x")))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = make().run(dp.random.key(3), spread, progress_bar=False)
        print("warned:", [str(w.message)[:60] for w in caught if "4 devices" in str(w.message)])
        one = make().run(dp.random.key(3), Y, progress_bar=False)
        for name, x in one.params.items():
            np.testing.assert_allclose(result.params[name], x, rtol=1e-5)
        print("alike")
    """
    ((out, status),) = run_children(
        code, [{"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}]
    )
    assert status == 0, out
    assert "warned: ['discreet was given an array that is sharded" in out
    assert "alike" in out
