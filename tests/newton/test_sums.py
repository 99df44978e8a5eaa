"""A table in parts has the sums of the whole one, to the bit, wherever its parts lie and whoever sums them."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import discreet as dp
from discreet.methods.newton import NewtonPlan, _sums, fit_newton
from discreet.methods.newton._sums import Parts
from discreet.privacy.query import TURN

pytestmark = pytest.mark.filterwarnings("ignore::discreet.methods.inference.UseWarning")
N = 3_000
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, 2, 3)).astype(np.float32)
Y = RNG.integers(0, 2, (N, 2)).astype(float)
PRESENT = np.column_stack([np.ones(N, bool), RNG.random(N) < 0.5])


@pytest.mark.parametrize("size", [0, 1, 119, 120, 121, 2_999])
def test_parts_hold_each_record_once(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first places of each turn, the last of which are nobody's."""
    monkeypatch.setattr(_sums, "PART", 4)
    parts = Parts([X[:size], Y[:size]], (((2, 8), "float32"), ((2,), "float64")), apart=True)
    found = [parts.read(number) for number in range(parts.count)]
    masks = [mask for *_, mask in found]
    assert sum(mask.sum() for mask in masks) == size
    assert all(len(mask) == TURN * parts.turns for mask in masks)
    np.testing.assert_array_equal(
        np.concatenate([x[mask][..., :3] for x, _, mask in found]), X[:size]
    )
    assert not any(x[..., 3:].any() or x[~mask].any() for x, _, mask in found)
    assert not any(mask.reshape(-1, TURN)[:, -_sums.SPARE :].any() for mask in masks)


@pytest.mark.parametrize(("family", "persons"), [("classes", False), ("counts", True)])
def test_a_table_in_parts_gives_the_same_bits(
    family: str, persons: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory and from a file, which is never read as a whole; with mapped rows that are kept, or made for each release."""
    whole = fitted(family, persons)
    monkeypatch.setattr(_sums, "PART", 4)
    monkeypatch.setattr(_sums, "_LITTLE", 0)
    kept = []
    part = Parts.part
    monkeypatch.setattr(Parts, "part", lambda self, number: kept.append(self) or part(self, number))
    found = fitted(family, persons)
    assert kept[0].count == 7
    np.save(tmp_path / "x.npy", X)
    mapped = fitted(family, persons, x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    for name in ("mean", "covariance", "predictive"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
        np.testing.assert_array_equal(getattr(mapped, name), getattr(whole, name))
    for parts in (kept[0], kept[-1]):
        assert parts._kept.keys() == {-1}
        assert parts._prepared.keys() == set(range(7))
    monkeypatch.setattr(_sums, "_MOST_KEPT", 0)
    np.testing.assert_array_equal(fitted(family, persons).mean, whole.mean)
    assert not kept[-1]._prepared


def test_an_error_in_a_part_ends_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: parts that wait are not begun."""
    monkeypatch.setattr(_sums, "PART", 4)
    begun: list[int] = []

    def add(arrays: Any) -> Any:
        del arrays
        begun.append(1)
        if len(begun) == 1:
            raise KeyboardInterrupt
        time.sleep(0.05)
        return np.zeros(1)

    with pytest.raises(KeyboardInterrupt):
        Parts([np.zeros((200_000, 1))], apart=True).summed(add, 1)
    assert len(begun) < 10


def test_what_has_no_room_fails_before_it_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=3.0, delta=1e-4)
    monkeypatch.setattr(_sums, "PART", 4)
    monkeypatch.setattr(_sums, "_LITTLE", 0)
    put = jax.device_put
    calls = iter(range(9))

    def full(*args: Any) -> Any:
        if next(calls) == 3:
            raise MemoryError
        return put(*args)

    monkeypatch.setattr(jax, "device_put", full)
    with pytest.raises(MemoryError):
        fitted("binary", False, key=dp.random.key(), ledger=ledger)
    assert not ledger.debits


def test_mapped_rows_that_have_no_room_fail_before_they_are_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=3.0, delta=1e-4)
    monkeypatch.setattr(_sums, "PART", 4)
    monkeypatch.setattr(_sums, "_LITTLE", 0)
    made = jax.numpy.zeros
    sizes = []

    def full(size: int, dtype: Any) -> Any:
        sizes.append(size)
        if len(sizes) == 1:
            raise MemoryError
        return made(size, dtype)

    monkeypatch.setattr(_sums, "jnp", SimpleNamespace(zeros=full))
    with pytest.raises(MemoryError):
        fitted("binary", False, key=dp.random.key(), ledger=ledger)
    assert not ledger.debits
    sizes[1:] = []
    fitted("binary", False, key=dp.random.key(), ledger=ledger)
    # Of seven parts six: five numbers of 16 bits, a length, a target, a weight and the mask.
    assert sizes[1:] == [6 * 4 * TURN * (5 * 2 + 3 * 8 + 1) // 8]
    assert ledger.debits


def test_it_fits_within_a_mesh_on_another_device_and_after_the_main_thread() -> None:
    """Parts are where JAX would put them; and a thread that lives longer than the program's first one may begin no others."""
    code = """
import threading, jax, numpy as np, discreet as dp
from discreet.methods.newton import NewtonPlan, _sums, fit_newton
_sums.PART, _sums._LITTLE = 4, 0
x = np.random.default_rng(0).uniform(-1, 1, (3_000, 2))
plan = NewtonPlan.calibrate(epsilon=1.0, delta=1e-6, family="binary", num_features=2, num_records=3_000)
fit = lambda: fit_newton(dp.random.key(3), x, x[:, 0] > 0, plan).mean.tobytes().hex()
with jax.set_mesh(jax.make_mesh((2,), ("d",))):
    print(fit(), flush=True)
with jax.default_device(jax.devices()[1]):
    print(fit(), flush=True)
threading.Thread(target=lambda: (threading.main_thread().join(), print(fit(), flush=True))).start()
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=True,
    )
    found = ran.stdout.split()
    assert len(found) == 3
    assert len(set(found)) == 1


def fitted(family: str, persons: bool, key: Any = None, **how: Any) -> Any:
    rows = slice(None) if persons else 0
    shape = {"family": family, "num_features": 3, "num_records": N, "max_rows": 2 if persons else 1}
    plan = NewtonPlan.calibrate(
        epsilon=1.0, delta=1e-6, **shape | ({"num_classes": 3} if family == "classes" else {})
    )
    x, y = how.pop("x", X)[:, rows], Y[:, rows]
    how |= {"mask": PRESENT, "person": "id"} if persons else {}
    return fit_newton(dp.random.key(5) if key is None else key, x, y, plan, **how)
