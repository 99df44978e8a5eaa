"""A table in parts has the sums of the whole one, to the bit, wherever its parts lie and whoever sums them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet.newton import NewtonPlan, _sums, fit_newton
from discreet.newton._sums import TURN, Parts

pytestmark = pytest.mark.filterwarnings("ignore::discreet.inference.UseWarning")
N = 3_000
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (N, 2, 3)).astype(np.float32)
Y = RNG.integers(0, 2, (N, 2)).astype(float)
PRESENT = np.column_stack([np.ones(N, bool), RNG.random(N) < 0.5])


@pytest.mark.parametrize("size", [0, 1, 119, 120, 121, 2_999])
def test_parts_hold_each_record_once(size: int) -> None:
    """In the first places of each turn, the last of which are nobody's."""
    parts = Parts([X[:size], Y[:size]], widths=(8, 2), most_turns=4)
    found = [parts.read(number) for number in range(parts.count)]
    masks = [mask for *_, mask in found]
    assert sum(mask.sum() for mask in masks) == size
    assert all(len(mask) == TURN * parts.turns for mask in masks)
    np.testing.assert_array_equal(np.concatenate([x[mask][..., :3] for x, _, mask in found]), X[:size])
    assert not any(x[..., 3:].any() or x[~mask].any() for x, _, mask in found)
    assert not any(mask.reshape(-1, TURN)[:, -_sums.SPARE :].any() for mask in masks)
    assert [(shape, str(array.dtype)) for shape, array in zip(((2, 8), (2,)), (X, Y), strict=True)] == list(
        parts.layout
    )


@pytest.mark.parametrize(("family", "persons"), [("classes", False), ("counts", True)])
def test_a_table_in_parts_gives_the_same_bits(
    family: str, persons: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory and from a file, which is read again for each release and never as a whole."""
    whole = fitted(family, persons)
    monkeypatch.setattr(_sums, "MOST_TURNS", 4)
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
    assert kept[0]._kept.keys() == set(range(-1, 7))
    assert kept[-1]._kept.keys() == {-1}


def test_an_error_in_a_part_ends_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: parts that wait are not begun."""
    begun: list[int] = []

    def add(device: Any, arrays: Any) -> Any:
        del device, arrays
        begun.append(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Parts([np.zeros((200_000, 1))], most_turns=4).summed(add, 1)
    assert len(begun) < 10


def fitted(family: str, persons: bool, **how: Any) -> Any:
    rows = slice(None) if persons else 0
    shape = {"family": family, "num_features": 3, "num_records": N, "max_rows": 2 if persons else 1}
    plan = NewtonPlan.calibrate(epsilon=1.0, delta=1e-6, **shape | ({"num_classes": 3} if family == "classes" else {}))
    x, y = how.pop("x", X)[:, rows], Y[:, rows]
    how |= {"mask": PRESENT, "person": "id"} if persons else {}
    return fit_newton(dp.random.key(5), x, y, plan, **how)
