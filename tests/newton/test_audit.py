"""Whole fits attacked by who knows all records but one: what all releases show of it is what the statement says, and no more."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest

import discreet as dp
from discreet.methods.audit import judge
from discreet.methods.newton import NewtonPlan, _releases, _sums, fit_newton
from discreet.methods.newton._saved import SavedReleases

pytestmark = pytest.mark.filterwarnings("ignore::discreet.methods.inference.UseWarning")
N, DELTA = 300, 1e-3
OTHERS = np.random.default_rng(0).uniform(-0.3, 0.1, (N, 2)), np.zeros(N)
CANARY = np.full((1, 2), 0.1), np.ones(1)
_sum = functools.partial(jax.jit, static_argnums=(0, 1))(_releases.sum_of)


class Attacker:
    """Knows each release's sum with the canary and without it, so the logarithm of the ratio of the two densities.

    Attributes:
        ratio: That of all releases together.
        information: Squared sum of what the canary changes, in standard deviations of the noise.
    """

    def __init__(self) -> None:
        self._tables = [self._laid(*rows) for rows in (OTHERS, CANARY)]
        self.ratio = self.information = 0.0

    @staticmethod
    def _laid(x: np.ndarray, y: np.ndarray) -> Any:
        return _sums.Parts([x[:, None], y[:, None], np.ones((len(y), 1), bool)]).read(0)

    def sees(
        self, program: Any, public: Any, found: np.ndarray, present: bool, share: float
    ) -> np.ndarray:
        """The release, with a share of its noise."""
        kind, rows = program.sums.sums[program.which]
        public = jax.tree.map(np.float64, public)
        others, own = (np.asarray(_sum(kind, rows, table, public)) for table in self._tables)
        exact = others + own if present else others
        found = exact + share * (found - exact)
        power = np.square(own).sum() / program.noise**2
        self.ratio += ((found - others) * own).sum() / program.noise**2 - power / 2
        self.information += power
        return found


@contextmanager
def attacked(patch: pytest.MonkeyPatch, present: bool, share: float) -> Iterator[Attacker]:
    attacker = Attacker()
    release = SavedReleases.release

    def seen(self: Any, program: Any, public: Any, parts: Any) -> np.ndarray:
        return attacker.sees(program, public, release(self, program, public, parts), present, share)

    with patch.context() as within:
        within.setattr(SavedReleases, "release", seen)
        yield attacker


def attacks(
    plan: NewtonPlan, runs: int, patch: pytest.MonkeyPatch, share: float = 1.0
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """The logarithms of ratios in fits with the canary and without it, and the information in each."""
    whole = [np.concatenate(pair) for pair in zip(OTHERS, CANARY, strict=True)]
    ratios: list[list[float]] = []
    information = []
    for x, y in (whole, OTHERS):
        ratios.append([])
        for seed in range(runs):
            with attacked(patch, x is not OTHERS[0], share) as attacker:
                fit_newton(dp.random.key(2 * seed + len(ratios)), x, y, plan)
            ratios[-1].append(attacker.ratio)
            information.append(attacker.information)
    present, absent = map(np.array, ratios)
    return present, absent, information


def plan_for(epsilon: float) -> NewtonPlan:
    return NewtonPlan.calibrate(
        epsilon=epsilon, delta=DELTA, family="binary", num_features=2, num_records=N
    )


def check(present: np.ndarray, absent: np.ndarray, information: list[float]) -> None:
    """With information I the ratios have the means I / 2 and -I / 2, and the variance I."""
    expected = np.mean(information)
    assert present.mean() - absent.mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / 15))
    assert 0.55 * expected < (present.var(ddof=1) + absent.var(ddof=1)) / 2 < 1.6 * expected


def test_the_releases_show_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canary attains three quarters of the bound of all releases together, and the noise is as large as it is said to be."""
    plan = plan_for(2.0)
    found = attacks(plan, 30, monkeypatch)
    check(*found)
    *_, information = found
    most = plan.noise_multiplier**-2
    assert 0.7 * most < np.mean(information)
    assert max(information) < most * (1 + 1e-9)


def test_half_of_the_noise_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError):
        check(*attacks(plan_for(2.0), 30, monkeypatch, 0.5))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("share", "found"), [(1.0, False), (1 / 3, True)])
def test_no_audit_contradicts_a_fit_but_one_with_a_third_of_the_noise(
    share: float, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses in 99 of 100 audits bound mu from below, which all releases together have as 1 over the noise multiplier."""
    plan = plan_for(2.0)
    present, absent, _ = attacks(plan, 250, monkeypatch, share)
    bound = judge({"ratio": present}, {"ratio": absent}, delta=DELTA, confidence=0.99).mu
    print(f"lower bound {bound:.3f} of mu {1 / plan.noise_multiplier:.3f}")
    assert (bound > 1 / plan.noise_multiplier) == found
