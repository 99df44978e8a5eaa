"""What every method does in the same order: refuse, prove, claim the key, debit, run, state; and which options it has."""

import dataclasses
import importlib.util
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta
from numpyro.optim import Adam
from tests.methods import (
    ADD,
    METHODS,
    REPLACE,
    Method,
    N,
    X,
    by_langevin,
    by_moments,
    by_newton,
    by_steps,
    calibrated,
    counted,
    model,
    of_a_model,
    one_sample,
    plan,
    ranked,
    same,
    score_plan,
    scored,
)

import discreet as dp
from discreet import act, query
from discreet.methods.moments import MomentsPlan
from discreet.methods.newton import NewtonPlan, _model, _releases, _sums
from discreet.privacy.accounting import profile
from discreet.privacy.act import Act
from discreet.privacy.mechanisms import GAUSSIAN
from discreet.privacy.query import GaussianPlan, padded
from discreet.privacy.report import RECORD, Unit
from discreet.privacy.verify import Certificate, check_expected
from discreet.tabular.private_schema import PrivateSchemaPlan
from discreet.tabular.scores import ScorePlan
from discreet.tabular.tables import schema_from_bounds

SCORE = score_plan()
pytestmark = pytest.mark.filterwarnings("ignore::discreet.methods.inference.UseWarning")


@pytest.fixture
def ledger(tmp_path: Path) -> dp.Ledger:
    return dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=5.0, delta=1e-4)


@pytest.mark.parametrize(
    "method",
    [pytest.param(x, marks=[pytest.mark.essential] * (x is scored)) for x in METHODS],
)
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
            return method(key, ledger=dp.Ledger(ledger.path))
        except ValueError as error:
            return str(error)

    monkeypatch.setattr(Act, "begin", together)
    key = dp.random.key()
    with ThreadPoolExecutor(2) as pool:
        found = sorted(pool.map(run, range(2)), key=lambda x: isinstance(x, str))
    assert "This key has drawn this noise before" in found[1]
    statement = found[0].statement
    (debit,) = ledger.debits
    assert statement.receipt.hash == ledger.entries[-1]["hash"]
    assert str(debit.event) == statement.figures.event
    assert debit.delta == statement.delta
    assert debit.event == found[0].plan.event()
    assert ledger.entries[-1]["slack"] == found[0].plan.slack
    spent = profile(debit.event, ADD, slack=found[0].plan.slack)
    assert statement.epsilon == spent.epsilon(statement.delta)
    assert f"Debited as entry {statement.receipt.number}" in str(statement)
    assert ("Proved before it ran" in str(statement)) == (method is not one_sample)
    # Used, it is refused before the records are looked at; so is a plan that the ledger does not
    # hold.
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with pytest.raises(ValueError, match="This key has drawn this noise before"):
        method(key)
    ledger.set_cap(epsilon=ledger.spent, delta=1e-4)
    key = dp.random.key()
    with pytest.raises(dp.SpentError):
        method(key, ledger=ledger)
    dp.random.check_unused(key)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (dp.PrivacyPlan, {"num_steps": 5, "sampling": dp.FullBatch()}),
        (MomentsPlan, {"num_features": 1}),
        (NewtonPlan, {"family": "binary", "num_features": 1}),
        (dp.newton.ModelPlan, {}),
        (ScorePlan, {"num_records": None}),
    ],
)
def test_a_plan_costs_what_was_asked_and_no_more(
    kind: Any, shape: dict[str, Any], relation: dp.Relation
) -> None:
    shape = {"num_records": N} | shape
    asked = {name: value for name, value in shape.items() if value is not None}
    made = kind.calibrate(epsilon=0.5, delta=1e-6, relation=relation, **asked)
    cost = profile(made.event(), relation, slack=made.slack).epsilon(1e-6)
    assert 0.499 < cost <= 0.5


class BegunError(Exception):
    """All refusals are over, and nothing has run."""


def less_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 % less than planned; what was proved before is forgotten."""
    monkeypatch.setattr(query, "_certified", query._certified.__wrapped__)
    for place, name in (
        (query, "planned_gaussian"),
        (query, "planned_laplace"),
        (_sums, "planned_gaussian"),
    ):
        true = getattr(place, name)
        monkeypatch.setattr(
            place, name, lambda key, x, noise, *of, true=true: true(key, x, noise / 1.01, *of)
        )
    for place in _model, _releases:
        monkeypatch.setattr(place, "proved", _sums.proved.__wrapped__)


@pytest.mark.essential
@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    "method", [x for x in METHODS if x not in (by_steps, by_langevin, one_sample)]
)
def test_the_programs_are_the_plan_and_with_less_noise_they_are_refused(
    method: Method, relation: dp.Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they cost what the plan does, and not less: that would be noise for nothing.

    Fits in steps compare their whole loop with the plan; a posterior sample has no
    noise of their own.
    """
    compared: list[Any] = []

    def begin(self: Act) -> None:
        raise BegunError

    def check(event: Any, slack: float, plan: Any, *rest: Any) -> None:
        compared.append((event, plan))
        check_expected(event, slack, plan, *rest)

    monkeypatch.setattr(Act, "begin", begin)
    monkeypatch.setattr(act, "check_expected", check)
    with pytest.raises(BegunError):
        method(dp.random.key(), relation=relation)
    ((event, plan),) = compared
    proved, paid = (profile(x, relation).epsilon(1e-6) for x in (event, plan.event()))
    hint = f"proved {proved:.4g}, paid {paid:.4g}: under REPLACE_ONE counts need less noise (GaussianPlan)"
    assert 0.98 * paid < proved <= paid * (1 + 1e-6), hint
    # Where a record is replaced, its counts move less than its sums.
    if method is not counted and isinstance(plan, GaussianPlan):
        assert profile(GAUSSIAN.event(plan.noise_multiplier), relation).epsilon(
            1e-6
        ) == pytest.approx(paid, rel=2e-3)
    less_noise(monkeypatch)
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        method(dp.random.key(), relation=relation)


@pytest.mark.parametrize(
    "method", [x for x in METHODS if x not in (by_steps, by_langevin, one_sample)]
)
def test_there_are_as_many_releases_as_planned_each_with_a_key_of_its_own(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program is proved by itself: with one key for all of them no proof fails. Of fits in steps the keys are proved."""
    drawn: list[bytes] = []
    ran: list[Certificate] = []
    call = Certificate.__call__

    def noted(self: Certificate, *args: Any) -> Any:
        key, *_ = args
        drawn.append(np.asarray(jax.random.key_data(key)).tobytes())
        ran.append(self)
        return call(self, *args)

    monkeypatch.setattr(Certificate, "__call__", noted)
    found = method(dp.random.key())
    assert len(drawn) == len(set(drawn)) == found.plan.num_releases
    # A program may have less noise than the one that was paid for here.
    whole = act.ComposedDpEvent([program.event for program in ran])
    check_expected(
        whole, sum(program.slack for program in ran), found.plan, found.plan.relation, ()
    )


def test_programs_that_are_more_than_the_plan_are_refused() -> None:
    key = dp.random.key()
    act = Act(SCORE, key, SCORE.state(reproducible=False))
    program = SCORE.query.certificate(
        key, np.zeros(SCORE.width), *padded(np.zeros((1, SCORE.width)))
    )
    act.prove(program)
    assert program.fingerprint in act.statement.notes[-1]
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        act.prove(program, times=[2])
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        act.prove(program, program)
    # A replaced record may move a sum by less than twice what an added one does, so its event may
    # be a cheaper one.
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
            Act(
                SimpleNamespace(**vars(SCORE), event=SCORE.event, slack=slack),
                None,
                SCORE.state(reproducible=False),
            )
    with pytest.raises(AttributeError, match="slack"):
        Act(
            SimpleNamespace(**vars(SCORE), event=SCORE.event), None, SCORE.state(reproducible=False)
        )
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
    # These make their act by themselves, and nothing looked at their statement.
    for kind, method in (NewtonPlan, by_newton), (dp.newton.ModelPlan, of_a_model):
        state: Any = kind.state
        monkeypatch.setattr(
            kind,
            "state",
            lambda self, state=state, **told: state(self, **told | {"reproducible": False}),
        )
        with pytest.raises(ValueError, match="must pass reproducible and unit on"):
            method(dp.random.key(0))


def test_a_plan_that_names_the_unit_is_stated_for_no_other() -> None:
    """A schema bought for persons was stated for records by default, and counts of records for persons if asked to."""
    persons = calibrated_schema(person="id")
    assert persons.state(reproducible=False).unit == Unit("id")
    rows = dp.marginals.MarginalsPlan.calibrate(BOUNDED, **PRICE)
    assert rows.state(reproducible=False).unit == RECORD
    others = (calibrated_schema(), Unit("id")), (rows, Unit("id")), (SCORE, Unit("id", 2))
    for terms, unit in ((persons, RECORD), *others):
        with pytest.raises(ValueError, match="would be false"):
            Act.on(terms, dp.random.key(), unit=unit)


def calibrated_schema(**options: Any) -> PrivateSchemaPlan:
    return PrivateSchemaPlan.calibrate(("x",), **PRICE, **options)


@pytest.mark.parametrize(
    "method", [by_steps, by_langevin, one_sample, of_a_model, by_moments, by_newton]
)
def test_a_masked_array_is_refused(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its mask hides, as -999 for missing, was used: NumPy drops the mask where it converts."""
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with pytest.raises(ValueError, match="its mask would be lost"):
        method(dp.random.key(), x=np.ma.masked_array(X, X > 0.9))


def test_a_state_that_says_less_than_is_spent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event and relation are the plan's, and the plan's slack is not in it."""
    without = SCORE.state(reproducible=False)
    monkeypatch.setattr(ScorePlan, "slack", SCORE.delta / 10)
    assert Act.on(SCORE, dp.random.key()).statement.epsilon > without.epsilon
    monkeypatch.setattr(ScorePlan, "state", lambda self, **told: without)
    with pytest.raises(ValueError, match="its event and slack cost more"):
        Act.on(SCORE, dp.random.key())


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
        (
            SCORE.state(reproducible=False).with_violations("Bounds were taken from the data."),
            "Bounds were taken",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            Act(SCORE, dp.random.key(), statement, ledger=ledger)


BOUNDED = schema_from_bounds("x=0:1,y=no|yes")
TABLE = {"x": X, "y": np.where(X > 0.5, "yes", "no")}
PRICE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}


def described(key: Any, **options: Any) -> Any:
    return dp.describe(TABLE, BOUNDED, **PRICE, rng_key=key, **options)


def twinned(key: Any, **options: Any) -> Any:
    return dp.twins(TABLE, BOUNDED, **PRICE, rng_key=key, num_twins=1, **options)


def by_formula(key: Any, **options: Any) -> Any:
    return dp.regress("y ~ x", TABLE, BOUNDED, family="bernoulli", **PRICE, rng_key=key, **options)


def estimated(key: Any, **options: Any) -> Any:
    del key
    return dp.estimators.LogisticRegression(bounds=(0, 1), num_steps=5, **PRICE).fit(
        X[:, None], X > 0.5, **options
    )


WHOLE = described, twinned, by_formula, estimated
"""What calls a method, and makes more of its release before it returns."""


@pytest.mark.parametrize("method", [*METHODS, *WHOLE])
def test_settings_of_jax_that_find_faults_stop_no_method(method: Method, ledger: dp.Ledger) -> None:
    """Where a release failed by them after the debit, the budget was lost: a chain's loss is NaN where it was not released."""
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.transfer_guard("disallow"),
        jax.debug_nans(True),
        jax.debug_infs(True),
        jax.debug_key_reuse(True),
    ):
        method(dp.random.key(), ledger=ledger)
    assert len(ledger.debits) == 1


class EndedError(Exception):
    """What no method expects."""


@pytest.mark.parametrize("method", [*METHODS, *WHOLE])
@pytest.mark.parametrize("where", ["claimed", "debited"])
def test_what_ends_behind_the_claim_is_not_released_and_debited_once(
    method: Method, where: str, ledger: dp.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another act with the key is refused."""
    debit, key = dp.Ledger.debit, dp.random.key()

    def ends(self: dp.Ledger, *of: Any, **terms: Any) -> Any:
        assert self is ledger
        assert where == "claimed" or debit(self, *of, **terms)
        raise EndedError

    monkeypatch.setattr(dp.Ledger, "debit", ends)
    with pytest.raises(EndedError) as caught:
        method(key, ledger=ledger)
    assert not hasattr(caught.value, "partial_result")
    monkeypatch.undo()
    if method is not estimated:  # which makes its own key
        with pytest.raises(ValueError, match="This key has drawn this noise before"):
            method(key, ledger=ledger)
    assert len(ledger.debits) == (where == "debited")


@pytest.mark.parametrize("method", [method for method in METHODS if method is not counted])
def test_a_person_is_named_in_the_statement_and_in_the_ledger(
    method: Method, tmp_path: Path
) -> None:
    ledger = dp.Ledger.create(
        tmp_path / "a.ledger", dataset="a", epsilon=5.0, delta=1e-4, unit="one person"
    )
    with pytest.raises(ValueError, match="one record"):
        method(dp.random.key(), ledger=ledger)
    found = method(dp.random.key(), ledger=ledger, person="id")
    assert found.statement.unit == Unit("id")
    assert [debit.unit for debit in ledger.debits] == ["one person"]


@pytest.mark.parametrize("method", METHODS)
def test_a_key_from_a_seed_is_charged_to_no_ledger_and_stated(
    method: Method, ledger: dp.Ledger
) -> None:
    allowed: dict[str, Any] = {}
    if METHODS[method].asks_for_a_seed:
        with pytest.raises(ValueError, match="made from a seed"):
            method(dp.random.key(3))
        allowed["non_private_seed"] = True
    with pytest.raises(ValueError, match="can be repeated"):
        method(dp.random.key(3), ledger=ledger, **allowed)
    assert not ledger.debits
    found = method(dp.random.key(3), **allowed)
    assert found.statement.reproducible
    assert "reproducible: not private" in str(found.statement)


def local(x: Any) -> None:
    with numpyro.plate("people", len(x)):
        own = numpyro.sample("own", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(own, 1), obs=x)


def flat(x: Any) -> None:
    mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
    with numpyro.plate("people", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1), obs=x)


def tuned(x: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0, numpyro.param("scale", 1.0)))
    with numpyro.plate("people", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1), obs=x)


def closed_over(x: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(np.mean(X), 1))
    with numpyro.plate("people", len(x)):
        numpyro.sample("x", dist.Normal(mean + jnp.asarray(X).mean(), 1), obs=x)


OF_MODELS: dict[str, Callable[..., Any]] = {
    "chain": lambda model: dp.DPSGLD(model, plan=plan(), step_size=(1e-4, 10.0, 0.55)),
    "one sample": lambda model: dp.OnePosteriorSample(model, epsilon=1.0, log_likelihood_bound=2.0),
    "Newton": lambda model: dp.DPNewton(model, plan=calibrated(dp.newton.ModelPlan)),
}


def test_a_model_with_an_improper_prior_is_refused_and_not_fitted_in_steps() -> None:
    def tuned_too(x: Any) -> None:
        numpyro.param("shift", 0.0)
        flat(x)

    def flat_record(x: Any) -> None:
        with numpyro.plate("people", len(x)):
            own = numpyro.sample("own", dist.ImproperUniform(dist.constraints.real, (), ()))
            numpyro.sample("x", dist.Normal(own, 1), obs=x)

    def flat_beside(x: Any) -> None:
        mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("people", len(x)):
            own = numpyro.sample("own", dist.Normal(mean, 1))
            numpyro.sample("x", dist.Normal(own, 1), obs=x)

    for program in (flat, tuned_too, flat_record, flat_beside):
        with pytest.raises(ValueError, match="Give it a proper prior"):
            dp.fit(program, X, epsilon=1.0)


REFUSED = (
    (local, "'own'"),
    (tuned, "param site"),
    (closed_over, "not passed as records"),
    (flat, "improper"),
)


@pytest.mark.essential
@pytest.mark.parametrize("method", OF_MODELS)
@pytest.mark.parametrize(("program", "words"), REFUSED)
def test_models_without_a_private_posterior_are_refused(
    method: str, program: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    if (method, program) != ("chain", flat):
        with pytest.raises(ValueError, match=words):
            OF_MODELS[method](program).run(dp.random.key(), X, progress_bar=False)


@pytest.mark.parametrize("key", [X, jax.random.PRNGKey(0), 0, jax.random.split(jax.random.key(0))])
@pytest.mark.parametrize("method", METHODS)
def test_a_key_that_is_none_is_refused(method: Method, key: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="rng_key"):
        method(key)


@pytest.mark.parametrize("method", METHODS)
def test_the_number_of_records_is_the_plans_or_secret(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one record is added, statements of tables of two sizes are the same, but for what is said by the releases."""
    found = [method(dp.random.key(), x=x) for x in (X, X[:-1])]
    statements = [x.statement.with_use("", "") for x in found]
    whole, less = (dataclasses.replace(x, notes=x.notes[:1], data_warnings=()) for x in statements)
    assert whole == less
    if not hasattr(found[0].plan, "num_records"):
        return
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with pytest.raises(
        ValueError, match=rf"{N - 1} records.*num_records( is |=){N}, a public number"
    ):
        method(dp.random.key(), x=X[:-1], relation=REPLACE)


@pytest.mark.parametrize("method", METHODS)
def test_under_a_trace_is_refused(method: Method) -> None:
    """The key is no tracer here, so nothing but the trace itself shows that the records are."""
    allowed = {"non_private_seed": True} if METHODS[method].asks_for_a_seed else {}
    with pytest.raises(TypeError, match=r"[Cc]all it (outside|without jit)"):
        jax.jit(lambda x: method(dp.random.key(0), x=x, **allowed).statement.epsilon)(X)


def stats(repository: Path) -> Any:
    spec = importlib.util.spec_from_file_location("stats", repository / "tools" / "stats.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_every_method_has_every_option_that_it_needs(repository: Path) -> None:
    asked = stats(repository)
    holes = {name: words for name, words in asked.holes().items() if words}
    assert not holes, (
        "add them, or say in tests/methods.py that the method lacks them, with the reason in other-methods.md"
    )
    lacking = asked.lacking()
    page = (repository / "docs" / "other-methods.md").read_text(encoding="utf-8")
    for name, entry in asked.methods().items():
        assert entry.lacks <= set(lacking[name]), f"{name} has some of {entry.lacks} by now"
        assert all(f"`{word}" in page for word in entry.lacks)


@pytest.mark.parametrize("method", METHODS)
def test_an_option_that_a_method_lacks_is_refused(
    method: Method, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models that take any keyword took `require_proof=` and `checkpoint=` for arguments of their own, without a word."""
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    asked = stats(repository)
    lacking = asked.lacking()[METHODS[method].act.__qualname__]
    options = [word for word in lacking if word in asked.OPTIONS]
    options += ["keep_gradients"] * (method is not by_steps)
    for option in options:
        if method not in (ranked, scored) or option != "max_rows":  # an option of their plan
            with pytest.raises(
                (TypeError, ValueError), match="plan=" if method in (ranked, scored) else option
            ):
                method(
                    dp.random.key(),
                    **{option: jax.make_mesh((1,), ("x",)) if option == "mesh" else 3},
                )


@pytest.mark.parametrize("option", ["ledger", "checkpoint", "require_proof", "progress_bar"])
def test_an_option_of_run_is_no_argument_of_the_model(option: str) -> None:
    """A ledger that was given to the constructor was never debited, where the model takes any keyword."""
    told: dict[str, Any] = {option: None}
    for make in (
        lambda: dp.DPSVI(model, AutoDelta(model), Adam(0.1), plan=plan(), **told),
        lambda: dp.DPSGLD(model, plan=plan(), step_size=(1e-4, 10.0, 0.55), **told),
        lambda: dp.DPNewton(model, plan=calibrated(dp.newton.ModelPlan), **told),
        lambda: dp.OnePosteriorSample(model, epsilon=1.0, log_likelihood_bound=2.0, **told),
    ):
        with pytest.raises(TypeError, match=f"{option}= is no option here"):
            make()


def test_every_method_is_entered(repository: Path) -> None:
    """What is tested of all methods was not tested of one that nobody entered."""
    texts = [path.read_text(encoding="utf-8") for path in (repository / "src").rglob("*.py")]
    own = [name for text in texts for name in re.findall(r"@one_release\n *def (\w+)", text)]
    entered = [entry.act.__name__ for entry in METHODS.values()]
    assert sorted(entered) == sorted([*own, "run", "run"]), (
        "enter each method in tests/methods.py; DPSVI and DPSGLD are the two besides"
    )


OF_SEVERAL_RELEASES = (
    by_steps,
    by_langevin,
    one_sample,
    by_moments,
    by_newton,
    of_a_model,
    counted,
)


@pytest.mark.parametrize("method", [x for x in METHODS if x not in OF_SEVERAL_RELEASES])
def test_a_sum_is_the_same_to_the_bit_in_any_order(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A float sum has last bits that depend on the records' order; a proof takes sums to be exact, and says so."""
    asked: list[Any] = []
    answer = query.Query.answer

    def noted(self: Any, act: Act, *arguments: Any, named: bool = True) -> Any:
        asked.append((self, arguments))
        return answer(self, act, *arguments, named=named)

    monkeypatch.setattr(query.Query, "answer", noted)
    rng = np.random.default_rng(0)
    method(dp.random.key(), x=np.float32(10.0 ** -rng.uniform(0, 12, N)))
    assert asked, "a method of several releases: enter it above, and test its sums where it lies"
    for found, arguments in asked:
        *_, mask = (arguments[place - 1] for place in found.records)
        with jax.enable_x64(True):
            total = jax.device_get(found.total(*arguments))
            for _ in range(10):  # a sum of floats is the same in a quarter of them
                order = rng.permutation(len(mask))
                other = list(arguments)
                for place in found.records:
                    other[place - 1] = np.asarray(arguments[place - 1])[order]
                assert same(total, jax.device_get(found.total(*other)))
