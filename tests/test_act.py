"""What every method does in the same order: refuse, prove, claim the key, debit, run, state."""

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta

import discreet as dp
from discreet.act import Act
from discreet.moments import MomentsPlan, fit_moments
from discreet.newton import NewtonPlan, fit_newton
from discreet.query import padded
from discreet.report import RECORD, Unit
from discreet.scores import ScorePlan, SelectionPlan
from discreet.tables import schema_from_bounds

N = 1_000
X = np.linspace(0, 1, N, dtype=np.float32)
TERMS: dict[str, Any] = {"delta": 1e-6, "num_records": N}
SCORE = ScorePlan.calibrate(epsilon=0.5, delta=1e-7)


def model(x: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("n", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1), obs=x)


def plan(**changes: Any) -> dp.PrivacyPlan:
    return dp.PrivacyPlan.calibrate(
        **{"epsilon": 1.0, **TERMS, "num_steps": 5, "sampling": dp.FullBatch(), "clipping_norm": 1.0, **changes}
    )


STANDARDISATION = dp.standardise.Standardisation.calibrate(epsilon=0.2, num_columns=1, **TERMS)


def scored(key: Any, ledger: Any) -> Any:
    return dp.scores.private_metrics(key, lambda rows: rows, X, X > 0.5, plan=SCORE, ledger=ledger)


def candidate(key: Any, ledger: Any) -> tuple[float, None]:
    return scored(key, ledger).accuracy.value, None


def by_steps(key: Any, ledger: Any) -> Any:
    dpsvi = dp.DPSVI(model, AutoDelta(model), numpyro.optim.Adam(0.01), plan=plan())
    return dpsvi.run(key, X, ledger=ledger, progress_bar=False)


def by_langevin(key: Any, ledger: Any) -> Any:
    chain = dp.DPSGLD(model, plan=plan(), step_size=(1e-4, 10.0, 0.55))
    return chain.run(key, X, ledger=ledger, progress_bar=False)


def one_sample(key: Any, ledger: Any) -> Any:
    terms: dict[str, Any] = {"epsilon": 1.0, "log_likelihood_bound": 2.0, "relation": dp.Relation.ADD_OR_REMOVE_ONE}
    ops = dp.OnePosteriorSample(model, **terms, num_warmup=10, num_samples=10)
    return ops.run(key, X, ledger=ledger, progress_bar=False)


def by_moments(key: Any, ledger: Any) -> Any:
    terms = MomentsPlan.calibrate(epsilon=1.0, num_features=1, **TERMS)
    return fit_moments(key, X[:, None], 0.5 * X, terms, ledger=ledger)


def by_newton(key: Any, ledger: Any) -> Any:
    terms = NewtonPlan.calibrate(epsilon=1.0, family="binary", num_features=1, **TERMS)
    return fit_newton(key, X[:, None], X > 0.5, terms, ledger=ledger)


def of_a_model(key: Any, ledger: Any) -> Any:
    terms = dp.newton.ModelPlan.calibrate(epsilon=1.0, **TERMS)
    return dp.DPNewton(model, plan=terms).run(key, X, ledger=ledger, progress_bar=False)


def counted(key: Any, ledger: Any) -> Any:
    schema, tables = schema_from_bounds("x=0:1,y=0:1"), [("x",), ("y",)]
    terms = dp.marginals.MarginalsPlan.calibrate(schema, epsilon=1.0, delta=1e-6, tables=tables, choices=1)
    return dp.marginals.private_marginals(key, {"x": X, "y": X}, terms, ledger=ledger)


def standardised(key: Any, ledger: Any) -> Any:
    return dp.standardise.private_standardisation(key, X[:, None], low=0, high=1, plan=STANDARDISATION, ledger=ledger)


def selected(key: Any, ledger: Any) -> Any:
    terms = SelectionPlan(costs=(SCORE,), delta=1e-6, mean_runs=1.5)
    return dp.scores.select(key, [candidate], terms, ledger=ledger)


Method = Callable[[Any, Any], Any]
METHODS = (
    by_steps,
    by_langevin,
    one_sample,
    by_moments,
    by_newton,
    of_a_model,
    counted,
    scored,
    selected,
    standardised,
)


@pytest.fixture
def ledger(tmp_path: Path) -> dp.Ledger:
    return dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=5.0, delta=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::discreet.inference.UseWarning")
def test_of_two_threads_with_one_key_one_is_debited_and_released(
    method: Method, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six of eight methods debited before they claimed the key: the second thread paid, and got nothing."""
    begin, both = Act.begin, threading.Barrier(2)

    def together(self: Act) -> None:
        if self._ledger is not None and self._ledger.path == ledger.path:
            both.wait(60)
        begin(self)

    def run(_: int) -> Any:
        try:
            return method(key, dp.Ledger(ledger.path))
        except ValueError as error:
            return str(error)

    # The runs of a selection have ledgers of their own, without a path.
    monkeypatch.setattr(dp.scores._Run, "path", None, raising=False)
    monkeypatch.setattr(Act, "begin", together)
    key = dp.random.key()
    with ThreadPoolExecutor(2) as pool:
        found = sorted(pool.map(run, range(2)), key=lambda x: isinstance(x, str))
    assert "This key has drawn this noise before" in found[1]
    statement = found[0].statement
    assert len(ledger.debits) == 1
    assert statement.receipt.hash == ledger.entries[-1]["hash"]
    assert str(ledger.debits[0].event) == statement.figures.event
    # Used, it is refused before the records are looked at; so is a plan that the ledger does not hold.
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with pytest.raises(ValueError, match="This key has drawn this noise before"):
        method(key, None)
    ledger.set_cap(epsilon=ledger.spent, delta=1e-4)
    with pytest.raises(dp.SpentError):
        method(dp.random.key(), ledger)


def test_programs_that_are_more_than_the_plan_are_refused() -> None:
    key = dp.random.key()
    act = Act(SCORE, key, SCORE.state(reproducible=False))
    program = SCORE.query.certificate(key, np.zeros(SCORE.width), *padded(np.zeros((1, SCORE.width))))
    act.prove(program)
    assert program.fingerprint in act.statement.notes[-1]
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        act.prove(program, times=[2])
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        act.prove(program, program)
    # A replaced record may move a sum by less than twice what an added one does, so its event may be a cheaper one.
    other = dataclasses.replace(SCORE, relation=dp.Relation.REPLACE_ONE)
    with pytest.raises(dp.PrivacyError, match="The plan speaks of"):
        Act.on(other, key).prove(program)
    cheaper = dataclasses.replace(SCORE, noise_multiplier=1.01 * SCORE.noise_multiplier)
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        Act.on(cheaper, key).prove(program)


def test_a_statement_of_another_plan_is_refused_and_an_act_begins_once() -> None:
    dearer = ScorePlan.calibrate(epsilon=1.0, delta=1e-7)
    with pytest.raises(ValueError, match="what is debited must be stated"):
        Act(dearer, dp.random.key(), SCORE.state(reproducible=False))
    # Of a plan without slack that of its programs was not compared.
    for slack in (-1.0, float("nan"), 1.0):
        with pytest.raises(ValueError, match="slack"):
            Act(SimpleNamespace(**vars(SCORE), event=SCORE.event, slack=slack), None, SCORE.state(reproducible=False))
    with pytest.raises(AttributeError, match="slack"):
        Act(SimpleNamespace(**vars(SCORE), event=SCORE.event), None, SCORE.state(reproducible=False))
    act = Act.on(SCORE, dp.random.key())
    act.begin()
    with pytest.raises(ValueError, match="begins once"):
        act.begin()


def test_a_state_that_forgets_what_it_is_told_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise from a seed was stated as private and debited, a person's rows as a record's."""
    true = ScorePlan.state
    monkeypatch.setattr(ScorePlan, "state", lambda self, **told: true(self, reproducible=False))
    for key, unit in (dp.random.key(0), RECORD), (dp.random.key(), Unit("id")):
        with pytest.raises(ValueError, match="must pass reproducible and unit on"):
            Act.on(SCORE, key, unit=unit)
    assert Act.on(SCORE, dp.random.key(), unit=RECORD).statement.is_private


def test_what_continues_is_the_run_that_took_the_key() -> None:
    """Two fits died with one key in their checkpoints, before either had claimed it: the second one to go on is refused."""
    key = dp.random.key()
    dp.random.claim(key, run_id="one", again=True)
    dp.random.claim(key, run_id="one", again=True)
    with pytest.raises(ValueError, match="has drawn this noise before"):
        dp.random.claim(key, run_id="two", again=True)


def test_what_is_not_private_is_charged_to_no_ledger(ledger: dp.Ledger) -> None:
    for statement, words in (
        (SCORE.state(reproducible=True), "can be repeated"),
        (SCORE.state(reproducible=False).with_violations("Bounds were taken from the data."), "Bounds were taken"),
    ):
        with pytest.raises(ValueError, match=words):
            Act(SCORE, dp.random.key(), statement, ledger=ledger)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::discreet.inference.UseWarning")
def test_settings_of_jax_that_find_faults_stop_no_method(method: Method, ledger: dp.Ledger) -> None:
    """Where a release failed by them after the debit, the budget was lost."""
    with jax.numpy_dtype_promotion("strict"), jax.transfer_guard("disallow"):
        method(dp.random.key(), ledger)
    assert len(ledger.debits) == 1
