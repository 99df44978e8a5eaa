"""Of a long table the first releases are of a pilot sample: each record is in it by a secret coin of its own."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet.methods.newton import NewtonPlan, _fit, _plan, _sums, fit_invented, fit_newton
from discreet.methods.newton._saved import SavedReleases
from discreet.methods.newton._sums import Parts, Program
from discreet.privacy.random import _claims

Z90 = 1.6449
TRUTH = np.array([0.3, 2.0, -1.0, 0.0, 1.0])


def table(seed: int, records: int = 30_000) -> tuple[np.ndarray, np.ndarray]:
    """Features, the first of which numbers the records, and targets of 0 and 1."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (records, len(TRUTH) - 1))
    x[:, 0] = np.linspace(-1, 1, records)
    y = rng.random(records) < 1 / (1 + np.exp(-TRUTH[0] - x @ TRUTH[1:]))
    return x, y.astype(float)


def plan_for(x: np.ndarray, epsilon: float = 2.0) -> NewtonPlan:
    return NewtonPlan.calibrate(
        epsilon=epsilon, delta=1e-6, family="binary", num_features=x.shape[1], num_records=len(x)
    )


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of 30,000 records are long, and in parts."""
    monkeypatch.setattr(_plan, "_LONG", 0)
    monkeypatch.setattr(_plan, "_LARGE", 2**12)
    monkeypatch.setattr(_plan, "_CLEAR", 0.0)
    monkeypatch.setattr(_plan, "_QUIET", 0.0)
    monkeypatch.setattr(_sums, "_LITTLE", 0)
    monkeypatch.setattr(_sums, "PART", 20)


@pytest.mark.parametrize(
    ("records", "features", "epsilon", "classes", "share"),
    [
        (32_561, 90, 1.0, 2, 1.0),  # short
        (2_000_000, 50, 1.0, 2, 29 / 256),
        (2_000_000, 50, 1.0, 5, 1.0),  # more latents: the noise hides more
        (2_000_000, 50, 0.3, 2, 1.0),
        (2_000_000, 8, 0.1, 2, 1.0),  # the curvature is clear, and the gradients are not
        (10_000_000, 8, 1.0, 2, 4 / 256),
        (2**26, 8, 1.0, 2, 1 / 256),
    ],
)
def test_the_pilot_sample_follows_public_numbers(
    records: int, features: int, epsilon: float, classes: int, share: float
) -> None:
    family = "binary" if classes == 2 else "classes"
    shape = {"num_features": features, "num_records": records, "num_classes": classes}
    plan = NewtonPlan.calibrate(epsilon=epsilon, delta=1e-8, family=family, **shape)
    assert plan.pilot == share
    assert plan.num_pilot == (0 if share == 1 else 11)
    assert epsilon * 0.999 < plan.epsilon() <= epsilon
    whole = sum(count * (plan.noise_multiplier / noise) ** 2 for *_, noise, count in plan.releases)
    assert whole == pytest.approx(1)
    gradients = [x.count for x in plan.releases if x.rows == f"residual of {family}"]
    assert gradients == ([15] if share == 1 else [4, 11])
    for change in ({"weighted": True}, {"max_rows": 2}):
        assert dataclasses.replace(plan, **change).pilot == 1.0
    text = plan.state(reproducible=False).to_json()
    assert ("of a sample, in which each record was with probability" in text) == (share < 1)


@pytest.mark.usefixtures("short")
def test_intervals_hold_after_a_pilot_sample_and_are_hardly_wider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 12 seeded tables; not scaled by the share, or with the pilot's gradients in the posterior, less hold."""
    held, wider, away = [], [], []
    for seed in range(12):
        x, y = table(seed)
        plan = plan_for(x)
        assert plan.pilot == 35 / 256
        found = fit_newton(dp.random.key(seed), x, y, plan)
        with monkeypatch.context() as patch:
            patch.setattr(NewtonPlan, "pilot", 1.0)
            whole = fit_newton(dp.random.key(seed), x, y, plan_for(x))
        spread, least = (np.sqrt(np.diag(fit.covariance)) for fit in (found, whole))
        held.append(np.abs(found.mean - TRUTH) < Z90 * spread)
        wider.append(spread / least)
        away.append((found.mean - whole.mean) / least)
        assert found.converged
    assert 0.85 <= np.mean(held) <= 0.99, np.mean(held)
    assert 1.0 < np.median(wider) < 1.25, np.median(wider)
    assert np.sqrt(np.mean(np.square(away))) < 0.6, np.sqrt(np.mean(np.square(away)))


@pytest.mark.usefixtures("short")
def test_a_pilot_sample_has_each_record_once_or_not_by_a_coin_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Parts] = []
    begin = Parts.__init__

    def kept(self: Parts, *args: Any, **options: Any) -> None:
        made.append(self)
        begin(self, *args, **options)

    monkeypatch.setattr(Parts, "__init__", kept)
    x, y = table(0, 20_000)
    plan = plan_for(x)
    for _ in range(2):
        fit_newton(dp.random.key(), x, y, plan)
    found = []
    for parts in made[1::2]:
        assert parts.turns == made[0].turns
        read = [parts.read(number) for number in range(parts.count)]
        found.append(np.concatenate([own[mask][:, 0, 0] for own, *_, mask in read]))
    for sample in found:
        assert np.isin(sample, x[:, 0]).all()
        assert (np.diff(sample) > 0).all()
        # Six standard deviations.
        assert abs(len(sample) - plan.pilot * len(x)) < 6 * np.sqrt(plan.pilot * len(x))
    both = np.isin(found[0], found[1]).mean()
    assert abs(both - plan.pilot) < 6 * np.sqrt(plan.pilot / len(found[0]))


def test_coins_are_uniform_and_follow_the_key() -> None:
    plan = plan_for(table(0)[0])

    def coins(seed: int, count: int) -> np.ndarray:
        return SavedReleases(None, dp.random.key(seed), plan).coins(count)

    count = 2**18 + 1_000
    first = coins(0, count)
    assert first.shape == (count,)
    assert first.dtype == np.uint8
    np.testing.assert_array_equal(first, coins(0, count))
    each = np.bincount(first, minlength=256)
    assert np.abs(each - count / 256).max() < 6 * np.sqrt(count / 256)
    for other in (coins(1, count), np.roll(first, 1), np.roll(first, 2**18)):
        assert np.mean(first == other) == pytest.approx(1 / 256, rel=0.2)


@pytest.mark.usefixtures("short")
def test_a_fit_with_a_pilot_sample_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash behind the fifth release: the sample is drawn again, and is the same one."""
    x, y = table(0, 20_000)
    key = dp.random.key()
    whole = fit_newton(key, x, y, plan_for(x), checkpoint=tmp_path / "whole")
    monkeypatch.setattr(_claims, "_used", {})
    make = Program.__call__
    left = iter(range(5))

    def dying(self: Program, *args: Any) -> np.ndarray:
        found = make(self, *args)
        if next(left, None) is None:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Program, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            fit_newton(key, x, y, plan_for(x), checkpoint=tmp_path / "fit")
    found = fit_newton(dp.random.key(), x, y, plan_for(x), checkpoint=tmp_path / "fit")
    for name in ("mean", "covariance", "predictive"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    # What is done is read, and no sample is drawn.
    monkeypatch.setattr(SavedReleases, "coins", None)
    again = fit_newton(dp.random.key(), x, y, plan_for(x), checkpoint=tmp_path / "fit")
    np.testing.assert_array_equal(again.mean, whole.mean)


@pytest.mark.usefixtures("short")
def test_an_invented_table_has_a_pilot_sample_too() -> None:
    x, y = table(0)
    found = fit_invented(x, y, plan_for(x), seed=0)
    spread = np.sqrt(np.diag(found.covariance))
    assert (np.abs(found.mean - TRUTH) < 3.5 * spread).all()
    assert _fit.NUM_GRADIENTS - found.plan.num_pilot == 4


@pytest.mark.usefixtures("short")
def test_sums_of_a_pilot_sample_and_their_noise_are_those_of_all_records() -> None:
    """With the noise as it was released, the fit believed a curvature that is mostly noise."""
    plan = plan_for(table(0)[0])
    fit = object.__new__(_fit._Newton)
    fit.plan = plan
    asked: list[tuple[float, bool]] = []

    def release(kind: str, rows: str, noise: float, public: Any, *, pilot: bool) -> np.ndarray:
        asked.append((noise, pilot))
        return np.ones(3)

    fit.records = release  # pyright: ignore[reportAttributeAccessIssue]
    found, sigma = fit._of_pilot("total", "squares", 0.01, fit)  # pyright: ignore[reportArgumentType]
    assert asked == [(plan.noise(0.01), True)]
    np.testing.assert_allclose(found, 256 / 35)
    np.testing.assert_allclose(sigma, plan.noise(0.01) * 256 / 35)
