"""Comparison of fits: what a record adds, what it costs, whether differences and their intervals hold."""

from __future__ import annotations

import dataclasses
import importlib
import math
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import discreet as dp
from discreet.privacy.query import Query
from discreet.tabular.scores import ComparisonPlan

BOTH = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
compare_module = importlib.import_module("discreet.tabular.scores._compare")
FITS = {
    "at 0": lambda y: -(y**2) / 2,
    "at 0.3": lambda y: -((y - 0.3) ** 2) / 2,
    "at 3": lambda y: -((y - 3) ** 2) / 2,
}
TWO = {name: FITS[name] for name in ("at 0", "at 0.3")}
TERMS = {"epsilon": 1.0, "delta": 1e-6}


def rows_of(size: int = 4_000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.3, 1, size)


def compared(fits: Any, *arrays: Any, seed: int = 0, **options: Any) -> Any:
    options = TERMS | options
    return dp.compare(fits, *arrays, rng_key=dp.random.key(seed), non_private_seed=True, **options)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise, to see what would be released; a proof of that fails, so there is none."""

    def program(self: Query, key: Any, *arguments: Any) -> Any:
        del key, arguments

        def sums(key: Any, *arguments: Any) -> Any:
            del key
            with jax.enable_x64(True):
                return self.total(*arguments)

        sums.fingerprint, sums.event, sums.slack, sums.notes = "", self.noise.event(), 0.0, ()
        sums.relation = self.relation
        return sums

    monkeypatch.setattr(Query, "certificate", program)


@pytest.mark.parametrize("num_fits", [2, 5, 20])
def test_a_record_adds_at_most_its_bound_whatever_the_number_of_fits(num_fits: int) -> None:
    """Before any clipping in the program. The worst attains the bound; without the products it would be exceeded."""
    plan = ComparisonPlan(num_fits=num_fits, noise_multiplier=1.0, delta=1e-6, max_difference=0.5)
    rng = np.random.default_rng(0)
    wild = rng.normal(0, 10.0 ** rng.integers(-3, 9, (500, 1)), (500, num_fits))
    odd = np.full((3, num_fits), -math.inf)
    odd[1, 0] = math.nan
    odd[2, 0] = math.inf
    terms = compare_module.difference_terms(plan, np.concatenate([wild, odd]))
    assert terms.shape == (503, plan.width)
    norms = np.linalg.norm(terms / compare_module.ONE, axis=1)
    assert norms.max() <= plan.sensitivity
    assert norms.max() >= plan.sensitivity * (1 - 1e-4)
    assert np.sum(terms[:, 1] > 0) > 100


def test_differences_are_clipped_to_the_bound(exact: None) -> None:
    """A record that differs by 1,000 nats adds as much as one that differs by 1, and is counted as clipped."""
    fits = {"a": lambda y: 0 * y, "b": lambda y: y}
    found = compared(fits, np.array([1000.0, 0.25, -0.5, 1.0]), max_difference=1.0)
    assert found.difference("b", "a").value == pytest.approx(1 + 0.25 - 0.5 + 1, abs=1e-5)
    assert found.clipped == pytest.approx(0.25)
    assert found.num_rows == pytest.approx(4)


def test_without_noise_the_table_is_the_exact_one(exact: None) -> None:
    y = rows_of()
    found = compared(FITS, y, max_difference=20.0)
    densities = np.stack([fit(y) for fit in FITS.values()], axis=1)
    assert found.ranking == ("at 0.3", "at 0", "at 3")
    for place, name in enumerate(FITS):
        own = densities[:, place] - densities[:, 0]
        estimate = found.difference(name, "at 0")
        assert estimate.value == pytest.approx(own.sum(), abs=0.01 * len(y) ** 0.5)
        if place == 2:  # where the noise that the interval allows for is little beside sampling
            assert 1 < estimate.sampling / (1.645 * own.std() * math.sqrt(len(y))) < 1.1
    assert math.isnan(found.weights["at 0"][0])  # the third fit is too far for two moments


def test_stacking_weights_are_those_of_the_densities(exact: None) -> None:
    """Two fits that are each right for a half: by two moments as by the densities themselves."""
    from scipy.optimize import minimize_scalar

    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(0, 1, 2500), rng.normal(0.5, 1, 1500)])
    fits = {"a": lambda y: -(y**2) / 2, "b": lambda y: -((y - 0.5) ** 2) / 2}
    a, b = (np.exp(fit(y)) for fit in fits.values())
    best = minimize_scalar(
        lambda w: -np.mean(np.log(w * a + (1 - w) * b)), bounds=(0, 1), method="bounded"
    ).x
    weight, low, high = compared(fits, y, max_difference=4.0).weights["a"]
    assert weight == pytest.approx(best, abs=0.03)
    assert low < best < high


@pytest.mark.parametrize("relation", BOTH)
def test_neighbours_move_the_sums_no_further_than_the_bound(
    exact: None, relation: dp.Relation
) -> None:
    y = rows_of(2_000)
    whole = compared(FITS, y, relation=relation).sums
    worst = np.append(y[1:], 1e6) if relation is dp.Relation.REPLACE_ONE else np.append(y, 1e6)
    moved = np.linalg.norm(compared(FITS, worst, relation=relation).sums - whole)
    times = 2 if relation is dp.Relation.REPLACE_ONE else 1
    assert (
        moved
        <= times * ComparisonPlan.calibrate(num_fits=3, relation=relation, **TERMS).sensitivity
    )
    again = np.random.default_rng(1).permutation(len(y))
    np.testing.assert_array_equal(compared(FITS, y[again], relation=relation).sums, whole)


@pytest.mark.parametrize("relation", BOTH)
def test_a_comparison_is_proved_stated_and_debited(relation: dp.Relation, tmp_path: Any) -> None:
    ledger = dp.Ledger.create(
        tmp_path / "book.ledger", dataset="people", epsilon=2.0, delta=1e-5, relation=relation
    )
    found = dp.compare(TWO, rows_of(), **TERMS, relation=relation, ledger=ledger)
    assert found.statement.epsilon <= 1.0
    assert found.statement.is_private
    assert [entry["kind"] for entry in ledger.entries[1:]] == ["debit"]
    assert "Proved before it ran" in " ".join(found.statement.notes)
    assert any("fitted" in words for words in found.statement.not_covered)
    assert found.ranking[0] == "at 0.3"
    found.save(tmp_path / "found")
    assert str(type(found).load(tmp_path / "found")) == str(found)
    assert found.to_dict()["fits"][0]["fit"] == "at 0.3"


def test_a_plan_with_less_noise_than_it_says_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a sum that forgets to clip, and one of which the bound leaves out the products."""
    from discreet.tabular.scores._plan import BoundedSums

    monkeypatch.setattr(
        BoundedSums, "__call__", lambda self, others, records, mask: others + records.sum(axis=0)
    )
    with pytest.raises(dp.PrivacyError):
        dp.compare(TWO, rows_of(), epsilon=0.9, delta=1e-6)


def test_rank_and_interval_hold() -> None:
    """40 comparisons: the better fit is first in at least 36, and 90 % intervals hold the expected difference in at least 32.

    Of right intervals fewer have a chance of 0.02. The expectation of clipped differences is by
    400,000 rows.
    """
    fits = {"small": TWO["at 0"], "large": TWO["at 0.3"]}
    large = rows_of(400_000, seed=99)
    expected = np.clip(fits["large"](large) - fits["small"](large), -1, 1).mean() * 2_000
    first = held = 0
    for seed in range(40):
        found = compared(fits, rows_of(2_000, seed), seed=seed)
        low, high = found.difference("large", "small").population_interval
        held += low <= expected <= high
        first += found.ranking[0] == "large"
    assert first >= 36
    assert held >= 32


@pytest.mark.parametrize(("size", "spread"), [(5, 3.0), (40, 3.0), (40, 0.5)])
def test_intervals_hold_of_few_rows(size: int, spread: float) -> None:
    """Of 2,000 at least 89 %: of 90 % fewer have a chance below 0.07. By the noisy number of 5 rows alone it was 85.5 %."""
    plan = ComparisonPlan(num_fits=2, noise_multiplier=0.5, delta=1e-6)
    rng = np.random.default_rng(0)
    expected = size * np.clip(rng.normal(0, spread, 400_000), -1, 1).mean()
    statement = plan.state(reproducible=True)
    held = 0
    for _ in range(2_000):
        rows = np.stack([np.zeros(size), rng.normal(0, spread, size)], axis=1)
        sums = compare_module.difference_terms(plan, rows).sum(axis=0) / compare_module.ONE
        sums = sums + plan.noise * rng.normal(size=plan.width)
        found = compare_module.Comparison(("a", "b"), plan, sums, statement)
        low, high = found.difference("b", "a").population_interval
        held += low <= expected <= high
    assert held >= 0.89 * 2_000


def test_no_weights_follow_from_clipped_moments(exact: None) -> None:
    """A bound below the differences makes all moments small: that is no reason to trust them."""
    fits = {name: FITS[name] for name in ("at 0", "at 3")}
    found = compared(fits, rows_of(), max_difference=0.3)
    assert found.clipped > 0.9
    assert all(math.isnan(weight) for weight, _, _ in found.weights.values())
    assert "all of a row alike" not in str(found)
    assert "all of a row alike" in str(compared(FITS, rows_of(), max_difference=0.3))


def test_the_verdict_says_what_noise_and_sampling_leave_open() -> None:
    """Over 200 comparisons of fits that are equally good, a better one is found in at most 10 %.

    More than 38 have a chance below 1 in 10,000. And a weight is shown as its range: the likeliest
    one was shown as 1.00 where each was possible.
    """
    fits = {"at 0.2": lambda y: -((y - 0.2) ** 2) / 2, "at 0.4": lambda y: -((y - 0.4) ** 2) / 2}
    rng = np.random.default_rng(0)
    plan = ComparisonPlan.calibrate(num_fits=2, **TERMS)
    statement = plan.state(reproducible=True)
    better = 0
    for seed in range(200):
        rows = np.stack([fit(rows_of(1_000, seed)) for fit in fits.values()], axis=1)
        sums = compare_module.difference_terms(plan, rows).sum(axis=0) / compare_module.ONE
        sums = sums + plan.noise * rng.normal(size=plan.width)
        better += (
            "hide" not in compare_module.Comparison(tuple(fits), plan, sums, statement).verdict
        )
    assert better <= 38
    found = compared(fits, rows_of(200))
    assert found.verdict == "Noise and sampling hide which fit is better"
    assert "0.00 to 1.00" in str(found)
    assert " 1.00  " not in str(found)
    close = FITS | {"at 0.301": lambda y: -((y - 0.301) ** 2) / 2}
    said = compared(close, rows_of()).verdict
    assert said.partition(" is better than ")[2].startswith("'at 0' and 'at 3'; ")
    assert " hide whether than 'at 0.3" in said


def own(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


@dataclasses.dataclass
class Drawn:
    draws: dict[str, np.ndarray]


def test_own_models_are_compared_with_their_model() -> None:
    x = np.linspace(-1, 1, 2_000).astype(np.float32)
    y = (x + np.random.default_rng(0).normal(size=2_000)).astype(np.float32)
    fits = {"0": (Drawn({"w": np.zeros(20)}), own), "1": (Drawn({"w": np.ones(20)}), own)}
    found = compared(fits, x, y)
    exact = ((y**2 - (y - x) ** 2) / 2).sum()
    assert found.difference("1", "0").value == pytest.approx(exact, abs=5 * found.plan.noise + 40)
    with pytest.raises(TypeError, match="no log density"):
        compared({"0": fits["0"][0], "1": fits["1"]}, x, y)
    with pytest.raises(TypeError, match="no log density"):
        compared(fits | {"0": (object(), own)}, x, y)
    with pytest.raises(ValueError, match="no known outcome"):
        compared(fits, x)


@pytest.mark.parametrize(
    ("fits", "arrays", "options", "message"),
    [
        ({"a": FITS["at 0"]}, [rows_of(9)], {}, "two or more"),
        ([FITS["at 0"]] * 2, [rows_of(9)], {}, "by their names"),
        (TWO, [rows_of(9), rows_of(8)], {}, "different lengths"),
        (TWO, [], {}, "different lengths"),
        (TWO, [np.ma.masked_array(rows_of(9), True)], {}, "its mask would be lost"),
        ({1: FITS["at 0"], "1": FITS["at 0.3"]}, [rows_of(9)], {}, "two or more texts"),
        (TWO, [rows_of(9)], {"max_difference": 0}, "max_difference"),
        (
            TWO,
            [rows_of(9)],
            {"max_difference": 1e-300},
            "1e-06",
        ),  # differences overflowed, and a row moved sums by 2^63
        (TWO, [rows_of(9)], {"max_difference": 1e200}, "1e-06"),
        (TWO, [rows_of(9)], {"delta": None}, "spends a budget"),
        (TWO, [rows_of(9)], {"max_rows": 3}, "groups"),
        (TWO | {"b": lambda y: y - y.mean()}, [rows_of(9)], {}, "changes with the rows beside it"),
        (TWO | {"b": lambda y: y[:, None]}, [rows_of(9)], {}, "log density has the shape"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_spent(
    fits: Any, arrays: Any, options: Any, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        compared(fits, *arrays, **options)


def test_a_person_adds_at_most_so_many_rows(exact: None) -> None:
    y = np.full(60, 5.0)
    ids = ["a"] * 50 + [f"p{place}" for place in range(10)]
    found = compared(TWO, y, groups=ids, max_rows=3)
    assert found.num_rows == pytest.approx(13)
    assert "one person with up to 3 rows" in str(found.statement.unit)
