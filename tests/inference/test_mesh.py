"""`mesh=`: what is refused before anything is spent; and `over_devices.py`, run in a process that has four devices."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.sharding import Mesh
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

import discreet as dp
from discreet.privacy.mechanisms import Shards

Y = np.ones((40, 2), np.float32)
DEVICE = np.array(jax.devices()[:1])
ONE = Mesh(DEVICE, ("records",))


def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


@pytest.mark.parametrize(
    ("mesh", "error", "words"),
    [
        (4, TypeError, "mesh is a int. Pass a mesh of one axis"),
        (jax.devices(), TypeError, "mesh is a list"),
        (
            Mesh(DEVICE[None], ("records", "model")),
            ValueError,
            "axes records, model, and records are spread along one",
        ),
    ],
)
def test_what_is_no_mesh_of_one_axis_is_refused(mesh, error, words):
    with pytest.raises(error, match=words):
        Shards.of(mesh, 40)


def test_a_mesh_that_leaves_a_process_out_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="no device of process 1"):
        Shards.of(ONE, 40)


def test_options_that_know_no_mesh_say_so(refused):
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.2),
        clipping_norm=1.0,
        noise_multiplier=2.0,
        num_steps=4,
        num_records=len(Y),
    )
    dpsvi = dp.DPSVI(model, AutoNormal(model), Adam(0.01), plan=plan)
    with refused(TypeError, "mesh= is no option here"):
        dpsvi.init(dp.random.key(), Y, mesh=ONE)
    with refused(TypeError, "mesh is a str"):
        dpsvi.run(dp.random.key(), Y, mesh="records")


def test_files_larger_than_memory_stay_where_they_are(tmp_path):
    """No device copies its part of a mapped table, unless it has rows without a record."""
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (4096, 16))
    rows[:] = np.arange(16)
    rows = np.load(tmp_path / "x.npy", mmap_mode="r")
    (placed,) = Shards.of(ONE, 4096).place([rows])
    np.testing.assert_array_equal(placed, rows)
    if rows.ctypes.data % 64 == 0 and jax.default_backend() == "cpu":
        assert placed.addressable_data(0).unsafe_buffer_pointer() == rows.ctypes.data


@pytest.mark.parametrize(
    "tests",
    [
        pytest.param("step", marks=pytest.mark.essential),
        "noise or planted or turn",
        "not step and not noise and not planted and not turn",
    ],
)
def test_over_four_devices(tests):
    """Equal to one device, planted faults; fits, their proof, one debit, and going on after a crash."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-k",
            tests,
            str(Path(__file__).with_name("over_devices.py")),
        ],
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "JAX_PLATFORMS": "cpu",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
