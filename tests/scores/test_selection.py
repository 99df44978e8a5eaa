"""Selection: its price, the law of the number of runs, and what a run may do."""

import contextlib
import copy
import dataclasses
import functools
import json
import math
import pickle
import sys
import types
import warnings
from typing import Any

import jax
import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from scipy import stats

import discreet as dp
from discreet.methods.audit import judge
from discreet.methods.newton import NewtonPlan, fit_newton
from discreet.privacy.accounting import (
    FINE_ORDERS,
    RenyiBound,
    event_from_dict,
    event_to_dict,
    profile,
)
from discreet.privacy.accounting._renyi import _selected
from discreet.tabular.scores import ScorePlan, SelectionPlan, _selection, private_metrics, select

BOTH = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE
PLAN = ScorePlan.calibrate(epsilon=0.5, delta=1e-5)

SHAPES = 0.0, 0.5, 1.0, math.inf


def same(rows: Any) -> Any:
    return rows


@pytest.mark.parametrize("shape", SHAPES)
def test_the_price_of_20_fits_is_that_of_another_implementation(shape: float) -> None:
    """dp_accounting's, by one of the paper's authors, at the same orders: the Gaussian case to nine digits."""
    from dp_accounting.rdp import RdpAccountant

    orders = [*FINE_ORDERS[FINE_ORDERS < 200]]
    event = RepeatAndSelectDpEvent(GaussianDpEvent(4.0), 20.0, shape)
    theirs = RdpAccountant(orders).compose(event).get_epsilon(1e-5)
    assert profile(event, BOTH[0]).epsilon(1e-5) == pytest.approx(theirs, rel=1e-9)
    # As the two theorems give it, by hand.
    divergences = FINE_ORDERS / 32
    if shape == math.inf:
        return
    gamma = dp.accounting.repetitions(20.0, shape)
    least = np.min((1 - 1 / FINE_ORDERS) * divergences + np.log(1 / gamma) / FINE_ORDERS)
    selected = divergences + (1 + shape) * least + np.log(20) / (FINE_ORDERS - 1)
    by_hand = np.min(
        selected + np.log1p(-1 / FINE_ORDERS) - np.log(1e-5 * FINE_ORDERS) / (FINE_ORDERS - 1)
    )
    assert profile(event, BOTH[0]).epsilon(1e-5) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("shape", [0.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("cut", [1e-4, 0.05])
def test_a_tail_that_is_cut_counts_in_the_bound_of_a_selection(shape: float, cut: float) -> None:
    """A run gives 0 on one table; on the other 1, the better one, with a probability that is cut from its divergences."""
    mean, orders = 20.0, FINE_ORDERS
    gamma = dp.accounting.repetitions(mean, shape)
    if shape == math.inf:
        never, all_zero = math.exp(-mean), math.exp(-mean * cut)
    else:
        none = 1 - (1 - gamma) * (1 - cut)
        never = 0.0
        all_zero = (
            math.log(none) / math.log(gamma)
            if shape == 0
            else (none**-shape - 1) / (gamma**-shape - 1)
        )
    zero, beside = 1 - never, all_zero - never
    truth = np.logaddexp(
        orders * math.log(zero) + (1 - orders) * math.log(beside),
        math.log(never) if never else -math.inf,
    ) / (orders - 1)
    left = np.full(len(orders), -math.log1p(-cut))
    assert np.all(_selected(orders, RenyiBound(left, cut), mean, shape) >= truth)
    assert np.any(_selected(orders, RenyiBound(left, 0.0), mean, shape) < truth), (
        "the cut has no influence"
    )


def test_fits_in_steps_compose_with_their_score_and_replacing_costs_twice_the_shift() -> None:
    from dp_accounting.rdp import RdpAccountant

    step = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
    event = RepeatAndSelectDpEvent(
        ComposedDpEvent([SelfComposedDpEvent(step, 500), GaussianDpEvent(10.0)]), 20.0, 1.0
    )
    assert profile(event, BOTH[0]).epsilon(1e-5) == pytest.approx(
        RdpAccountant().compose(event).get_epsilon(1e-5), rel=1e-3
    )
    # dp_accounting takes noise over the distance of neighbours there; here it is over the norm of
    # one record.
    one, half = (RepeatAndSelectDpEvent(GaussianDpEvent(noise), 20.0, 0.0) for noise in (4.0, 2.0))
    assert profile(one, BOTH[1]).epsilon(1e-5) == pytest.approx(
        profile(half, BOTH[0]).epsilon(1e-5)
    )
    both = ComposedDpEvent([one, GaussianDpEvent(5.0)])
    alone = (
        profile(one, BOTH[0]).epsilon(1e-5),
        profile(GaussianDpEvent(5.0), BOTH[0]).epsilon(1e-5),
    )
    assert max(alone) < profile(both, BOTH[0]).epsilon(1e-5) < 1.1 * sum(alone)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_price_bounds_the_exact_privacy_loss_and_one_run_does_not(shape: float) -> None:
    """The best of K Gaussians N(mu, 1), by its density, and the planted fault of a budget that is counted once."""
    plan = SelectionPlan(
        costs=(dataclasses.replace(PLAN, noise_multiplier=2.0),),
        delta=1e-5,
        mean_runs=20,
        shape=shape,
    )
    law = [(n, p) for n, p in plan._law() if p > 1e-13]
    number, chance = np.array([n for n, _ in law], float), np.array([float(p) for _, p in law])
    x = np.linspace(-6, 9, 1501)

    def density(mean: float) -> np.ndarray:
        below = np.exp(np.clip(stats.norm.logcdf(x - mean), -700, 0))
        return sum(
            p * n * below ** (n - 1) for n, p in zip(number, chance, strict=True) if n
        ) * stats.norm.pdf(x - mean)

    for here, there in ((density(0.5), density(0.0)), (density(0.0), density(0.5))):
        epsilon = plan.epsilon(1e-5)
        assert np.trapezoid(np.maximum(here - np.exp(epsilon) * there, 0), x) < 1e-5
    once = profile(GaussianDpEvent(2.0), BOTH[0]).epsilon(1e-5)
    assert np.trapezoid(np.maximum(density(0.5) - np.exp(once) * density(0.0), 0), x) > 3e-5


@pytest.mark.parametrize(
    ("shape", "mean"),
    [(0.0, 20.0), (0.5, 7.0), (1.0, 4.0), (3.0, 4.0), (100.0, 1000.0), (math.inf, 3.0)],
)
def test_the_number_of_runs_has_its_law(shape: float, mean: float) -> None:
    plan = SelectionPlan(costs=(PLAN,), delta=1e-4, mean_runs=mean, shape=shape)
    law = {number: float(chance) for number, chance in plan._law()}
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert sum(number * chance for number, chance in law.items()) == pytest.approx(mean, rel=1e-9)
    assert (0 in law) == (shape == math.inf)
    if shape == 1:
        assert law[3] == pytest.approx(0.25 * 0.75**2)
    drawn = [plan.draw(dp.random.key(seed)) for seed in range(300)]
    spread = math.sqrt(sum(number**2 * chance for number, chance in law.items()) - mean**2)
    assert abs(np.mean(drawn) - mean) < 4 * spread / math.sqrt(300)


def gaussian_run(value: float, plan: ScorePlan | None = None) -> Any:
    """A run whose score is its whole release: value plus noise of standard deviation 1."""

    def run(key: Any, ledger: Any) -> tuple[float, float]:
        ledger.debit(ONE if plan is None else plan, delta=1e-5, method="a number")
        noise = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel()).normal()
        return value + noise, value + noise

    return run


ONE = dataclasses.replace(PLAN, noise_multiplier=1.0)
RUNS = SelectionPlan(costs=(ONE,), delta=1e-5, mean_runs=2, shape=1.0)


@pytest.mark.exhaustive
def test_an_audit_finds_a_budget_that_was_counted_once() -> None:
    """300 selections with a record and without: the rates of a threshold are beyond one run's trade-off, and within the plan's.

    In a simulation 40 of 40 such audits found it.
    """
    loud = dataclasses.replace(ONE, noise_multiplier=0.5)
    plan = SelectionPlan(costs=(loud,), delta=1e-5, mean_runs=20, shape=math.inf)
    sides = []
    for value in (2.0, 0.0):
        seeds = range(int(1000 * value), int(1000 * value) + 300)
        run = gaussian_run(value, loud)
        picked = [
            select(dp.random.key(seed), [run], plan, non_private_seed=True).score for seed in seeds
        ]
        sides.append({"best": np.array(picked)})
    rates = judge(*sides, delta=1e-5, confidence=0.99)
    one = profile(plan.one_run(), plan.relation)
    assert rates.true_positive_rate > one.true_positive_rate(rates.false_positive_rate)
    whole = profile(plan.event(), plan.relation, slack=plan.slack)
    assert rates.true_positive_rate <= whole.true_positive_rate(rates.false_positive_rate)


def test_the_ledger_is_debited_for_all_runs_before_the_first(tmp_path: Any) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="selection", epsilon=8.0, delta=1e-4)
    debits = []

    def run(key: Any, book: Any) -> tuple[float, None]:
        debits.append(len(ledger.debits))
        return gaussian_run(0.0)(key, book)[0], None

    assert "How many runs" in str(
        select(dp.random.key(), [run, run], RUNS, ledger=ledger).statement
    )
    assert set(debits) == {1}
    assert RUNS.epsilon() > 1.2 * profile(RUNS.one_run(), RUNS.relation).epsilon(1e-5)


def test_a_run_that_could_repeat_an_earlier_one_is_refused() -> None:
    """A checkpoint gives each later run the result of the first: so many runs as there are candidates, whatever was drawn."""

    def continues(key: Any, ledger: Any) -> tuple[float, None]:
        ledger.debit(ONE, delta=1e-5, method="a fit", run_id="of its checkpoint")
        return 0.0, None

    with pytest.raises(RuntimeError, match="takes no checkpoint"):
        select(dp.random.key(), [continues], RUNS)


def test_a_run_that_spends_more_than_was_paid_is_refused() -> None:
    def twice(key: Any, ledger: Any) -> tuple[float, None]:
        for _ in range(2):
            gaussian_run(0.0)(key, ledger)
        return 0.0, None

    def dearer(key: Any, ledger: Any) -> tuple[float, None]:
        del key
        ledger.check(dataclasses.replace(ONE, noise_multiplier=0.99), delta=1e-5)
        return 0.0, None

    for run in (twice, dearer):
        with pytest.raises(
            RuntimeError, match=r"more than the costs.*budget of the selection is spent"
        ):
            select(dp.random.key(), [run], RUNS)
    with pytest.raises(RuntimeError, match="debited nothing"):
        select(dp.random.key(), [lambda key, ledger: (0.0, None)], RUNS)
    with pytest.raises(RuntimeError, match="protects one record"):
        select(dp.random.key(), [gaussian_run(0.0)], RUNS, person="id")


@pytest.mark.exhaustive
def test_fits_are_selected_by_their_private_scores(quick_compilation: None) -> None:
    """With the run's own ledger in fit and score; one of the steps is so large that it must lose."""
    import numpyro
    from numpyro.infer.autoguide import AutoNormal

    from discreet.methods.predict import class_probabilities
    from discreet.tabular.models import logistic_regression

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4000, 2)).astype(np.float32)
    y = (rng.random(4000) < 1 / (1 + np.exp(-3 * x[:, 0]))).astype(np.float32)
    fitted = dp.PrivacyPlan.calibrate(
        epsilon=1.0,
        delta=1e-6,
        num_records=2000,
        num_steps=30,
        sampling=dp.FullBatch(),
        clipping_norm=1.0,
    )
    held = ScorePlan.calibrate(epsilon=1.0, delta=1e-6)

    def candidate(rate: float) -> Any:
        dpsvi = dp.DPSVI(
            logistic_regression,
            AutoNormal(logistic_regression),
            numpyro.optim.Adam(rate),
            plan=fitted,
        )

        def run(key: Any, ledger: Any) -> tuple[float, Any]:
            keys = jax.random.split(key, 3)
            result = dpsvi.run(keys[0], x[:2000], y[:2000], ledger=ledger, progress_bar=False)
            draws = result.posterior(keys[1], 50)
            found = private_metrics(
                keys[2],
                lambda rows: class_probabilities(logistic_regression, draws, rows, None),
                x[2000:],
                y[2000:].astype(int),
                plan=held,
                ledger=ledger,
            )
            assert "paid for by the selection" in str(found.statement)
            assert "paid for by the selection" in str(result.statement)
            return found.log_likelihood.value, result

        return run

    plan = SelectionPlan(costs=(fitted, held), delta=1e-5, mean_runs=3, shape=1.0)
    best = select(dp.random.key(), [candidate(0.1)], plan)
    assert best.score > -0.69
    assert best.result.params["weights_auto_loc"][0] > 0
    assert plan.epsilon() < 3 * 2


def test_a_selection_by_a_seed_makes_fits_and_is_repeated_to_the_same_bits() -> None:
    """Each fit was refused, as it is by a ledger of people: `non_private_seed` let no real fit run."""
    x = np.linspace(-1, 1, 2_000)
    fitted = NewtonPlan.calibrate(
        epsilon=1.0, delta=1e-7, family="binary", num_features=1, num_records=2_000
    )
    held = ScorePlan.calibrate(epsilon=0.5, delta=1e-7)

    def run(key: Any, ledger: Any) -> tuple[float, list[float]]:
        keys = jax.random.split(key)
        found = fit_newton(keys[0], x[:, None], x > 0, fitted, ledger=ledger, progress_bar=False)
        assert not found.statement.is_private

        def rule(rows: Any) -> Any:
            return 1 / (1 + np.exp(-rows))

        paid = {"plan": held, "ledger": ledger, "non_private_seed": True}
        return private_metrics(keys[1], rule, x, x > 0, **paid).accuracy.value, found.mean.tolist()

    plan = SelectionPlan(costs=(fitted, held), delta=1e-5, mean_runs=2)
    one, two = (select(dp.random.key(3), [run], plan, non_private_seed=True) for _ in range(2))
    assert (one.score, one.result) == (two.score, two.result)
    assert one.score > 0.8
    assert not one.statement.is_private

    # Whatever its runs use, the choice among them can be repeated.
    def with_a_secret_key(_: Any, ledger: Any) -> tuple[float, bool]:
        return 0.0, fit_newton(
            dp.random.key(), x[:, None], x > 0, fitted, ledger=ledger, progress_bar=False
        ).statement.is_private

    assert not select(dp.random.key(3), [with_a_secret_key], plan, non_private_seed=True).result
    # A seeded fit in a selection of a secret key is refused.
    with pytest.raises(RuntimeError, match="its random bits can be repeated"):
        select(dp.random.key(), [lambda _, ledger: run(dp.random.key(3), ledger)], plan)


def test_a_score_that_is_no_number_never_wins() -> None:
    def run(key: Any, ledger: Any) -> tuple[float, str]:
        gaussian_run(0.0)(key, ledger)
        return math.nan, "secret"

    found = select(dp.random.key(), [run], RUNS)
    assert found.result is None
    assert math.isnan(found.score)


@pytest.mark.parametrize(
    ("mean", "shape"),
    [(1.0, 0.0), (math.nan, 1.0), (1e9, 1.0), (5.0, -0.5), (5.0, math.nan), (20.0, 1e-7)],
)
def test_odd_laws_are_refused(mean: float, shape: float) -> None:
    with pytest.raises(ValueError, match="number of runs"):
        SelectionPlan(costs=(ONE,), delta=1e-5, mean_runs=mean, shape=shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_event_of_a_selection_is_read_back_from_a_file(shape: float) -> None:
    event = SelectionPlan(costs=(ONE, PLAN), delta=1e-5, mean_runs=20, shape=shape).event()
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event), allow_nan=False))) == event
    with pytest.raises(ValueError, match="shape"):
        event_from_dict({**event_to_dict(event), "shape": "many"})


def test_a_budget_of_a_run_is_not_copied_and_ends_with_the_run() -> None:
    kept = []

    def run(key: Any, ledger: Any) -> tuple[float, None]:
        kept.append(ledger)
        assert copy.copy(ledger) is copy.deepcopy(ledger) is ledger
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match="second budget"):
                pickle.dumps(ledger, protocol)
        return gaussian_run(0.0)(key, ledger)[0], None

    def late(key: Any, ledger: Any) -> tuple[float, None]:
        del key
        kept.append(ledger)
        raise ArithmeticError

    select(dp.random.key(), [run], RUNS)
    with pytest.raises(RuntimeError, match=r"ArithmeticError.*budget of the selection is spent"):
        select(dp.random.key(), [late], RUNS)
    for ledger in (kept[0], kept[-1]):
        with pytest.raises(dp.SpentError, match="is over"):
            ledger.debit(ONE, delta=1e-5, method="a number")


def test_a_budget_of_a_run_does_not_reach_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = _selection._Run(RUNS, RUNS.state(reproducible=False))
    monkeypatch.setattr(_selection.os, "getpid", lambda: -1)
    with pytest.raises(dp.SpentError, match="another process"):
        ledger.debit(ONE, delta=1e-5, method="a number")


@pytest.mark.parametrize("steps", [1, 100])
def test_a_budget_of_a_run_covers_the_cut_tails_of_its_releases(steps: int) -> None:
    """100 steps have smaller divergences than the run's one, and 1.8e-21 of cut tails where the price has 8.6e-22."""

    def sampled(rate: float, noise: float, steps: int) -> Any:
        event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
        return types.SimpleNamespace(
            event=lambda: event, one_run=lambda: event, relation=RUNS.relation, slack=0.0
        )

    ledger = _selection._Run(RUNS, RUNS.state(reproducible=False))
    ledger._plan, ledger._slack = sampled(0.5, 1.0, 1), 1.0
    with (
        contextlib.nullcontext()
        if steps == 1
        else pytest.raises(dp.SpentError, match="more than the costs")
    ):
        ledger.check(sampled(0.01, 4.0, steps), delta=1e-5)


def test_the_statement_of_the_best_run_says_what_the_selection_costs() -> None:
    def run(key: Any, ledger: Any) -> tuple[float, Any]:
        plan = dataclasses.replace(ONE, noise_multiplier=2.0)
        found = private_metrics(
            key, same, np.linspace(0, 1, 50), np.arange(50) % 2, plan=plan, ledger=ledger
        )
        return found.rows.value, found.statement

    best = select(dp.random.key(), [run], RUNS)
    said = " ".join(str(best.result).split())
    whole = best.statement
    assert best.result.figures == whole.figures
    headline = said.split("What was protected")[0]
    assert f"ε = {dp.accounting.upper(whole.epsilon)} at δ = 1e-05" in headline
    assert "What this run did" in said
    assert best.result.is_private
    assert not any("price of one run" in x for x in best.result.not_covered)
    assert "best of a secret number" in said
    assert f"ε = {dp.accounting.upper(best.statement.epsilon)} at δ = 1e-05" in said


def test_runs_protect_whom_the_selection_names() -> None:
    def run(key: Any, ledger: Any) -> tuple[float, None]:
        found = private_metrics(
            key,
            same,
            np.linspace(0, 1, 50),
            np.arange(50) % 2,
            plan=ONE,
            ledger=ledger,
            groups=range(50),
        )
        return found.rows.value, None

    several = dataclasses.replace(ONE, max_rows=5)
    with pytest.raises(
        RuntimeError,
        match="one person, and the selection is stated for one person with up to 5 rows",
    ):
        select(
            dp.random.key(),
            [run],
            dataclasses.replace(RUNS, costs=(several,)),
            person="id",
            max_rows=5,
        )


def test_a_number_of_runs_that_cannot_be_drawn_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="selection", epsilon=8.0, delta=1e-4)
    monkeypatch.setattr(SelectionPlan, "_law", lambda self: iter(()))
    with pytest.raises(AssertionError):
        select(dp.random.key(), [gaussian_run(0.0)], RUNS, ledger=ledger)
    assert not ledger.debits


def test_messages_of_runs_are_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    def run(key: Any, ledger: Any) -> tuple[float, float]:
        print("a run")
        print("a run", file=sys.stderr)
        warnings.warn("a run", stacklevel=1)
        return gaussian_run(0.0)(key, ledger)

    select(dp.random.key(), [run], RUNS)
    assert capfd.readouterr() == ("", "")


def test_a_run_that_debits_the_table_itself_is_refused(tmp_path: Any) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="selection", epsilon=20.0, delta=1e-3)

    def run(key: Any, book: Any) -> tuple[float, float]:
        gaussian_run(0.0)(key, ledger)
        return gaussian_run(0.0)(key, book)

    with pytest.raises(RuntimeError, match="own ledger was debited"):
        select(dp.random.key(), [run], RUNS, ledger=ledger)


def test_the_traceback_of_a_failed_run_does_not_hold_the_best_so_far() -> None:
    calls, ends = [], list[BaseException]()

    def run(key: Any, ledger: Any) -> tuple[float, str]:
        calls.append(0)
        if len(calls) > 1:
            raise ends[-1]
        return gaussian_run(0.0)(key, ledger)[0], "the best so far"

    plan = dataclasses.replace(RUNS, mean_runs=1000, shape=math.inf)
    for end in (ValueError("no"), KeyboardInterrupt()):
        calls.clear()
        ends.append(end)
        with pytest.raises((RuntimeError, KeyboardInterrupt)) as caught:
            select(dp.random.key(), [run], plan)
        assert len(calls) == 2
        error, frames = caught.value, []
        while error is not None:
            place, error = error.__traceback__, error.__cause__
            while place is not None:
                frames.append(place.tb_frame)
                place = place.tb_next
        inside = [frame for frame in frames if frame.f_code is select.__code__]
        assert inside
        for frame in inside:
            assert "the best so far" not in str(frame.f_locals)
            assert not frame.f_locals.get("times")


def test_a_run_may_standardise_first_and_pays_for_it_once() -> None:
    """Each release of a run is one of the plans in costs."""
    first = dp.standardise.Standardisation.calibrate(
        epsilon=0.2, delta=1e-6, num_columns=1, num_records=1000
    )
    plan = SelectionPlan(costs=(first, PLAN), delta=1e-5, mean_runs=2, shape=1.0)

    def run(key: Any, ledger: Any, again: bool = False) -> tuple[float, None]:
        x = np.linspace(0, 1, 1000)[:, None]
        for part in jax.random.split(key, 1 + again):
            dp.standardise.private_standardisation(
                part, x, low=0, high=1, plan=first, ledger=ledger, person="id"
            )
        ledger.debit(PLAN, delta=1e-6, method="a score", unit="one person")
        return 0.0, None

    select(dp.random.key(), [run], plan, person="id")
    for costs, again in ((first, PLAN), True), ((PLAN,), False):
        fewer, run_it = dataclasses.replace(plan, costs=costs), functools.partial(run, again=again)
        with pytest.raises(RuntimeError, match="more than the costs"):
            select(dp.random.key(), [run_it], fewer, person="id")
