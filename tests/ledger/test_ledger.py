"""The ledger: nothing spent twice, nothing paid back, nothing changed unnoticed, and a cap that holds for adapted plans."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from dp_accounting import dp_event

import discreet as dp
from discreet.privacy.accounting import (
    ORDERS,
    PrivacyFilter,
    cost_of,
    event_from_dict,
    event_to_dict,
    profile,
    pure_event,
    renyi_bound,
    upper,
)

ADD, REPLACE = dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE


def plan(epsilon=0.5, delta=1e-6, relation=ADD):
    return dp.PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=delta,
        num_records=1000,
        num_steps=10,
        sampling=dp.PoissonSampling(0.1),
        clipping_norm=1.0,
        relation=relation,
    )


class Planned:
    """A pure event, for which nothing is cheaper than adding up."""

    relation, slack = ADD, 0.0

    def __init__(self, epsilon):
        self.epsilon = epsilon

    def event(self):
        return pure_event(self.epsilon)


@pytest.fixture
def ledger(tmp_path):
    return dp.Ledger.create(tmp_path / "survey.ledger", dataset="survey", epsilon=2.0, delta=1e-5)


# --- the file ---------------------------------------------------------------------------------


def test_debits_add_up_and_outlive_the_object(ledger):
    receipt = ledger.debit(plan(), delta=1e-6, method="DPSVI")
    again = dp.Ledger(ledger.path)
    assert again.spent == receipt.spent
    assert 0.4 < receipt.spent <= 0.5
    second = again.debit(plan(0.25), delta=1e-6, method="DPSGLD")
    assert receipt.spent < second.spent <= 0.75
    assert [debit.method for debit in ledger.debits] == ["DPSVI", "DPSGLD"]
    assert ledger.debits[0].event == plan().event()
    assert ledger.verify(receipt.hash[:16]) == 3
    text = str(ledger)
    assert "'survey'" in text
    assert upper(second.spent) in text


def test_fits_of_another_unit_than_the_ledgers_are_refused(tmp_path, ledger):
    people = dp.Ledger.create(
        tmp_path / "p.ledger", dataset="survey", epsilon=2.0, delta=1e-5, unit="one person"
    )
    assert people.unit == "one person"
    units = ["one person", "one person with up to 5 rows"]
    for unit in units:
        assert f"for {unit}." in str(people.debit(Planned(0.1), delta=0.0, method="OPS", unit=unit))
    assert [debit.unit for debit in people.debits] == units
    name, other = "Name the column that identifies persons", "Open another ledger for it"
    for book, unit, remedy in ((people, "one record", name), (ledger, "one person", other)):
        before = book.path.read_bytes()
        with pytest.raises(ValueError, match=f"is about {book.unit}, and this fit protects {unit}"):
            book.debit(Planned(0.1), delta=0.0, method="OPS", unit=unit)
        with pytest.raises(ValueError, match=remedy):
            book.check(Planned(0.1), delta=0.0, unit=unit)
        assert book.path.read_bytes() == before


def test_the_cap_holds(ledger):
    for _ in range(4):
        ledger.debit(Planned(0.49), delta=0.0, method="OPS")
    before = ledger.path.read_bytes()
    with pytest.raises(dp.SpentError, match="Nothing was debited"):
        ledger.debit(Planned(0.49), delta=0.0, method="OPS")
    assert ledger.path.read_bytes() == before
    ledger.debit(Planned(0.03), delta=0.0, method="OPS")
    assert 1.98 < ledger.spent <= 2.0


def test_a_refusal_says_what_still_fits(tmp_path):
    book = dp.Ledger.create(tmp_path / "book", dataset="people", epsilon=2.0, delta=1e-5)

    def debit(epsilon):
        plan = dp.newton.ModelPlan.calibrate(epsilon=epsilon, delta=1e-6, num_records=10_000)
        book.debit(plan, delta=1e-6, method="private Newton of a model")

    debit(1.0)
    debit(0.5)
    with pytest.raises(dp.SpentError, match="is left for one more release") as refused:
        debit(1.9)
    fits = float(re.search(r"About ε = ([0-9.]+) is left", str(refused.value))[1])
    with pytest.raises(dp.SpentError):
        debit(1.02 * fits)
    debit(0.999 * fits)


def _edit(lines):
    changed = json.loads(lines[1])
    changed["event"]["event"]["event"]["noise_multiplier"] *= 10
    return [lines[0], json.dumps(changed, sort_keys=True, separators=(",", ":")), *lines[2:]]


CHANGES = {
    "more noise than there was": _edit,
    "a debit is gone": lambda lines: [lines[0], *lines[2:]],
    "two debits change places": lambda lines: [lines[0], lines[2], lines[1]],
    "a higher cap": lambda lines: [lines[0].replace("2.0", "9.0"), *lines[1:]],
    "another beginning": lambda lines: lines[1:],
    "no JSON": lambda lines: [lines[0], "{", *lines[2:]],
    "no object": lambda lines: [lines[0], "3", *lines[2:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_line_is_noticed_and_nothing_is_debited(ledger, change):
    for _ in range(2):
        ledger.debit(plan(), delta=1e-6, method="DPSVI")
    lines = ledger.path.read_text().splitlines()
    changed = CHANGES[change](lines)
    assert changed != lines
    ledger.path.write_text("\n".join(changed) + "\n")
    with pytest.raises(dp.LedgerError, match="Restore"):
        dp.Ledger(ledger.path)
    with pytest.raises(dp.LedgerError, match="Restore"):
        ledger.debit(plan(), delta=1e-6, method="DPSVI")


@pytest.mark.essential
def test_a_cut_end_is_noticed_by_whoever_has_a_statement(ledger):
    receipts = [ledger.debit(plan(), delta=1e-6, method="DPSVI") for _ in range(2)]
    ledger.path.write_text(
        "".join(line + "\n" for line in ledger.path.read_text().splitlines()[:2])
    )
    assert ledger.verify(receipts[0].hash) == 2
    with pytest.raises(dp.LedgerError, match="missing at its end"):
        ledger.verify(receipts[1].hash)


@pytest.mark.essential
def test_a_line_that_was_being_written_counts_for_nothing(ledger):
    ledger.debit(plan(), delta=1e-6, method="DPSVI")
    whole = ledger.path.read_bytes()
    with ledger.path.open("ab") as file:
        file.write(b'{"kind":"deb')
    assert len(ledger.debits) == 1
    ledger.debit(plan(), delta=1e-6, method="DPSVI")
    assert ledger.path.read_bytes().startswith(whole)
    assert len(dp.Ledger(ledger.path).debits) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be opened"),
        (b"", "not a ledger"),
        (b"{}\n", "was changed"),
        (b"\x00\xff\n", "not an entry"),
    ],
)
def test_what_is_no_ledger_is_refused(tmp_path, content, message):
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(dp.LedgerError, match=message):
        dp.Ledger(path)


def test_a_ledger_is_begun_once(ledger):
    with pytest.raises(dp.LedgerError, match="already exists"):
        dp.Ledger.create(ledger.path, dataset="survey", epsilon=9.0, delta=1e-5)


@pytest.mark.parametrize(
    "cap",
    [{"epsilon": 0}, {"epsilon": float("inf")}, {"delta": 0.0}, {"delta": 1.0}, {"dataset": " "}],
)
def test_a_cap_that_is_none_is_refused_and_leaves_no_file(tmp_path, cap):
    with pytest.raises(ValueError, match=r"must be|no name"):
        dp.Ledger.create(
            tmp_path / "x", **{"dataset": "survey", "epsilon": 1.0, "delta": 1e-5, **cap}
        )
    assert not (tmp_path / "x").exists()


@pytest.mark.essential
def test_a_cap_is_raised_only_by_saying_so(ledger):
    ledger.set_cap(epsilon=1.0, delta=1e-5)
    with pytest.raises(dp.SpentError):
        ledger.debit(plan(1.1), delta=1e-6, method="DPSVI")
    with pytest.raises(ValueError, match="raised=True"):
        ledger.set_cap(epsilon=3.0, delta=1e-5)
    ledger.set_cap(epsilon=3.0, delta=1e-5, raised=True)
    ledger.debit(plan(1.1), delta=1e-6, method="DPSVI")


def test_relations_are_not_added(ledger):
    with pytest.raises(ValueError, match="cannot be added"):
        ledger.check(plan(relation=REPLACE), delta=1e-6)


# --- processes --------------------------------------------------------------------------------


_SPENDERS = """
import multiprocessing, os, sys
import discreet as dp
from discreet.privacy.accounting import Relation, pure_event

class Planned:
    relation, slack = Relation.ADD_OR_REMOVE_ONE, 0.0
    def event(self): return pure_event(0.0999)

def spend(path, barrier):
    ledger, done = dp.Ledger(path), 0
    barrier.wait()
    for _ in range(3):
        try:
            ledger.debit(Planned(), delta=0.0, method="OPS")
            done += 1
        except dp.SpentError:
            pass
    os._exit(done)

context = multiprocessing.get_context("fork")
barrier = context.Barrier(8)
processes = [context.Process(target=spend, args=(sys.argv[1], barrier)) for _ in range(8)]
for process in processes: process.start()
for process in processes: process.join()
print(*(process.exitcode for process in processes))
"""


def test_eight_processes_spend_no_more_than_there_is(ledger):
    """The cap of 2 allows 20 of 24 debits of 0.1. The processes are forked where JAX has no threads."""
    command = [sys.executable, "-c", _SPENDERS, ledger.path]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300
    ).stdout.split()
    assert len(done) == 8
    assert sum(map(int, done)) == len(ledger.debits) == 20
    assert ledger.spent <= 2.0


_DEBITS = """
import sys, discreet as dp
from discreet.privacy.accounting import Relation
from dp_accounting import dp_event
class Plan:
    relation, slack = Relation.ADD_OR_REMOVE_ONE, 0.0
    def event(self): return dp_event.GaussianDpEvent(1e3)
ledger = dp.Ledger(sys.argv[1])
while True:
    print(ledger.debit(Plan(), delta=1e-9, method="DPSVI").number, flush=True)
"""


def test_a_killed_writer_leaves_every_debit_that_it_had_told_of(tmp_path):
    ledger = dp.Ledger.create(tmp_path / "x", dataset="survey", epsilon=1000.0, delta=0.1)
    for pause in (0.05, 0.11, 0.23):
        process = subprocess.Popen(
            [sys.executable, "-c", _DEBITS, ledger.path], stdout=subprocess.PIPE, text=True
        )
        first = int(process.stdout.readline())
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        told = [first, *(int(line) for line in process.stdout.read().split())]
        process.stdout.close()
        process.wait()
        entries = dp.Ledger(ledger.path).verify()
        assert told[-1] + 1 <= entries <= told[-1] + 2


# --- fits -------------------------------------------------------------------------------------


def model(y):
    import numpyro
    import numpyro.distributions as dist

    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.fixture(scope="module")
def dpsvi():
    import numpyro
    from numpyro.infer.autoguide import AutoNormal

    return dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.1), plan=plan())


Y = np.zeros(1000, np.float32)


@pytest.mark.essential
def test_it_is_debited_before_the_first_release_and_not_paid_back(ledger, dpsvi, monkeypatch):
    from discreet.methods.inference._checkpoint import Checkpoint

    begin = Checkpoint.begin

    def crash(*arguments):
        assert len(ledger.debits) == 0
        begin(*arguments)
        assert len(ledger.debits) == 1
        raise MemoryError

    monkeypatch.setattr(Checkpoint, "begin", crash)
    with pytest.raises(MemoryError):
        dpsvi.run(dp.random.key(), Y, progress_bar=False, ledger=ledger)
    assert len(ledger.debits) == 1


def test_ctrl_c_while_it_is_debited_still_gives_what_was_paid_for(ledger, dpsvi, monkeypatch):
    debit = dp.Ledger.debit

    def interrupted(self, *arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        return debit(self, *arguments, **options)

    monkeypatch.setattr(dp.Ledger, "debit", interrupted)
    result = dpsvi.run(dp.random.key(), Y, progress_bar=False, ledger=ledger)
    assert len(ledger.debits) == 1
    assert 0 < result.steps_completed < 10
    assert result.statement.receipt is not None


@pytest.mark.essential
def test_a_line_and_the_fit_after_it_are_two_debits(ledger, dpsvi, monkeypatch, tmp_path):
    """The planted faults: the fit was taken for paid by what came before it, or a fit that goes on was debited again."""
    from discreet.methods.inference._checkpoint import Checkpoint

    first = dp.moments.MomentsPlan.calibrate(
        epsilon=0.3, delta=1e-6, num_features=1, num_records=1000
    )
    begin = Checkpoint.begin

    def fit(**options):
        return dpsvi.run(dp.random.key(), Y, progress_bar=False, ledger=ledger, **options)

    def crash(*arguments):
        begin(*arguments)
        raise MemoryError

    line = dp.moments.fit_moments(dp.random.key(), Y[:, None], Y, first, ledger=ledger)
    monkeypatch.setattr(Checkpoint, "begin", crash)
    with pytest.raises(MemoryError):
        fit(checkpoint=tmp_path / "saved")
    monkeypatch.setattr(Checkpoint, "begin", begin)
    fitted = fit(checkpoint=tmp_path / "saved")
    plans, statements = (first, dpsvi.plan), (line.statement, fitted.statement)
    assert [debit.event for debit in ledger.debits] == [plan.event() for plan in plans]
    assert [statement.figures.event for statement in statements] == [
        str(plan.event()) for plan in plans
    ]
    assert [statement.receipt.number for statement in statements] == [1, 2]
    assert ledger.epsilon_if_planned_together(1e-6) == dp.accounting.composed(*plans).epsilon(1e-6)


def test_one_posterior_sample_is_debited_as_a_pure_event(ledger, monkeypatch):
    from discreet.methods.inference import _ops

    ops = dp.OnePosteriorSample(model, log_likelihood_bound=5.0, epsilon=0.5, relation=ADD)
    monkeypatch.setattr(
        _ops, "run_chains", lambda *args, **options: (_ for _ in ()).throw(MemoryError)
    )
    with pytest.raises(MemoryError):
        ops.run(dp.random.key(), Y, progress_bar=False, ledger=ledger)
    assert ledger.spent == pytest.approx(0.5, rel=1e-3)


# --- what it adds up --------------------------------------------------------------------------

EVENTS = [
    dp_event.GaussianDpEvent(2.0),
    dp_event.LaplaceDpEvent(3.0),
    pure_event(0.3),
    dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 500
    ),
    dp_event.SampledWithoutReplacementDpEvent(100, 7, dp_event.GaussianDpEvent(3.0)),
    dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.5),
    dp_event.ComposedDpEvent(
        [dp_event.GaussianDpEvent(2.0), dp_event.NoOpDpEvent(), pure_event(0.1)]
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_events_come_back_as_they_were(event):
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event


@pytest.mark.parametrize(
    "content",
    [None, {}, {"kind": "x"}, {"kind": "gaussian"}, {"kind": "gaussian", "noise_multiplier": "1"}],
)
def test_what_is_no_event_is_refused(content):
    with pytest.raises(ValueError, match="event"):
        event_from_dict(content)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.05, 1.2), (0.3, 3.0)])
def test_divergences_are_those_of_quadrature(rate, noise):
    """At orders whose worst losses are not rare enough to be cut off; from both directions."""
    from scipy.integrate import quad
    from scipy.stats import norm

    def log_mixture(x):
        return np.logaddexp(
            np.log1p(-rate) + norm.logpdf(x, 0, noise), np.log(rate) + norm.logpdf(x, 1, noise)
        )

    def divergence(order, p, q):
        def density(x):
            return np.exp(order * p(x) + (1 - order) * q(x))

        reach = 12 * noise + order
        return np.log(
            quad(density, -reach, reach, epsrel=1e-11, epsabs=0, limit=400, points=[0, 1, order])[0]
        ) / (order - 1)

    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    found = renyi_bound(event, ADD).divergences
    for i in (0, 3, 6):
        order = ORDERS[i]
        plain = [lambda x: norm.logpdf(x, 0, noise), log_mixture]
        exact = max(divergence(order, *plain), divergence(order, *plain[::-1]))
        assert exact <= found[i] <= 1.001 * exact


def test_the_filter_never_promises_more_than_composition_does():
    """Its epsilon for events that were fixed in advance is an upper bound on theirs, and not a silly one."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        times = int(rng.integers(1, 30))
        step = dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(
                10 ** rng.uniform(-3, -0.5), dp_event.GaussianDpEvent(rng.uniform(0.8, 4))
            ),
            100,
        )
        relation = [ADD, REPLACE][int(rng.integers(2))]
        cap = PrivacyFilter(epsilon=10.0, delta=1e-5)
        spent = cap.spent([cost_of(step, relation, delta=1e-7)] * times)
        exact = profile(dp_event.SelfComposedDpEvent(step, times), relation=relation).epsilon(1e-5)
        assert exact < spent < 2.5 * exact + 0.5


def test_deltas_that_do_not_fit_do_not_count_as_basic():
    cap = PrivacyFilter(epsilon=5.0, delta=1e-6)
    cost = cost_of(dp_event.GaussianDpEvent(10.0), ADD, delta=1e-6)
    assert cap.spent([cost]) > cost.epsilon
    assert (
        cap.spent([cost_of(dp_event.GaussianDpEvent(10.0), ADD, delta=5e-7)])
        == cost_of(dp_event.GaussianDpEvent(10.0), ADD, delta=5e-7).epsilon
    )


def test_a_slack_that_is_not_small_spends_all():
    cap = PrivacyFilter(epsilon=5.0, delta=1e-6)
    cost = cost_of(dp_event.GaussianDpEvent(10.0), ADD, delta=1e-6, slack=1e-10)
    assert cap.spent([cost]) == float("inf")


def test_the_slack_of_a_plan_leaves_several_fits_the_cheaper_way():
    cap, one = PrivacyFilter(epsilon=2.0, delta=1e-5), plan()
    cost = cost_of(one.event(), ADD, delta=1e-6, slack=1000 * one.slack)
    assert cap.spent([cost] * 4) < 0.9 * 4 * cost.epsilon


def test_without_noise_nothing_holds():
    assert np.all(np.isinf(renyi_bound(dp_event.NonPrivateDpEvent(), ADD).divergences))
    assert PrivacyFilter(5.0, 1e-6).spent(
        [cost_of(dp_event.NonPrivateDpEvent(), ADD, delta=1e-7)]
    ) == float("inf")
