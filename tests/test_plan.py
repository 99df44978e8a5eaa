"""The plan: its event follows from its facts, calibration leaves one of them open, and bad facts are refused."""

import dataclasses
import inspect
import math
from pathlib import Path

import pytest
from dp_accounting import dp_event

from discreet.methods.moments import MomentsPlan
from discreet.methods.newton import ModelPlan, NewtonPlan
from discreet.privacy.accounting import Relation, composed, profile
from discreet.privacy.clipping import AdaptiveClipping
from discreet.privacy.mechanisms import FLOAT_GAUSSIAN, GAUSSIAN
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import FixedSizeSampling, FullBatch, PoissonSampling
from discreet.tabular.marginals import MarginalsPlan
from discreet.tabular.scores import ScorePlan

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
FACTS = {
    "sampling": PoissonSampling(rate=0.01),
    "clipping_norm": 2.0,
    "noise_multiplier": 1.0,
    "num_steps": 1000,
    "num_records": 50_000,
}


def test_event_is_derived_from_what_runs():
    gaussian = dp_event.GaussianDpEvent(1.0)
    plan = PrivacyPlan(**FACTS)
    assert plan.event() == dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(0.01, gaussian), 1000
    )
    plan = PrivacyPlan(
        **FACTS | {"sampling": FixedSizeSampling(batch_size=500), "relation": REPLACE}
    )
    assert plan.event() == dp_event.SelfComposedDpEvent(
        dp_event.SampledWithoutReplacementDpEvent(50_000, 500, gaussian), 1000
    )
    assert plan.rate == 0.01
    plan = PrivacyPlan(**FACTS | {"sampling": FullBatch()})
    assert plan.event() == dp_event.SelfComposedDpEvent(gaussian, 1000)


@dataclasses.dataclass(frozen=True)
class Far:
    """A release that is known to be far from its event."""

    slack: float
    relation: Relation = ADD

    def event(self):
        return dp_event.GaussianDpEvent(50.0)


CALIBRATION = {"epsilon": 2.0, "delta": 1e-4}


def test_epsilon_is_that_of_the_event_with_the_samplers_slack():
    plan = PrivacyPlan(**FACTS)
    assert plan.slack == 1000 * (FACTS["sampling"].slack_per_step(50_000) + GAUSSIAN.slack)
    assert plan.epsilon(1e-5) == profile(plan.event(), ADD, slack=plan.slack).epsilon(1e-5)
    assert plan.epsilon(delta=1e-5) == pytest.approx(1.828, abs=1e-3)
    assert plan.delta(epsilon=plan.epsilon(1e-5)) <= 1e-5
    assert plan.profile() is plan.profile()


def test_the_page_of_lacking_options_says_which_plan_leaves_room_for_others(
    repository: Path,
) -> None:
    """Others do not take `shared_with`, and no page said so."""
    plans = (
        PrivacyPlan,
        MarginalsPlan,
        ModelPlan,
        MomentsPlan,
        NewtonPlan,
        ScorePlan,
    )
    takes = [
        plan.__name__
        for plan in plans
        if "shared_with" in inspect.signature(plan.calibrate).parameters
    ]
    assert takes == ["PrivacyPlan"]
    page = (repository / "docs" / "other-methods.md").read_text(encoding="utf-8")
    assert "`shared_with=` of `calibrate`: only `PrivacyPlan`" in page


def test_plans_that_share_an_epsilon_add_up_with_their_slack():
    """The planted faults: the slack of others was left out, or what others cost."""
    others, plan = [Far(0.25e-6), Far(0.5e-6)], PrivacyPlan(**FACTS)
    assert composed(plan, *others).slack == pytest.approx(plan.slack + 0.75e-6, rel=1e-9)
    assert composed(plan, *others).delta(6.0) > 1.5e-6 > plan.delta(6.0)
    for given, least in ({"num_steps": 1000}, 0.999), ({"noise_multiplier": 1.0}, 0.99):
        facts = {**FACTS, **CALIBRATION, "num_steps": None, "noise_multiplier": None, **given}
        calibrated = PrivacyPlan.calibrate(**facts, shared_with=others)
        target = CALIBRATION["epsilon"]
        assert (
            least * target <= composed(*others, calibrated).epsilon(CALIBRATION["delta"]) <= target
        )
        assert isinstance(calibrated.event(), dp_event.SelfComposedDpEvent)
        with pytest.raises(ValueError, match="another relation"):
            PrivacyPlan.calibrate(**facts, shared_with=[Far(0.0, REPLACE)])
    for plans in [], [plan, dataclasses.replace(plan, relation=REPLACE)]:
        with pytest.raises(ValueError, match="under one relation"):
            composed(*plans)


@pytest.mark.parametrize(("mechanism", "slack"), [(GAUSSIAN, 2.0**-136), (FLOAT_GAUSSIAN, 0.0)])
def test_noise_is_charged_its_distance_from_the_event(mechanism, slack):
    plan = PrivacyPlan(**FACTS | {"sampling": FullBatch(), "mechanism": mechanism})
    assert plan.slack == 1000 * slack


def test_frozen_hashable_and_replaceable():
    plan = PrivacyPlan(**FACTS)
    assert hash(plan) == hash(PrivacyPlan(**FACTS))
    assert plan == PrivacyPlan(**FACTS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.num_steps = 1
    assert plan.epsilon(1e-5) > 0
    assert dataclasses.replace(plan, num_steps=2000).epsilon(1e-5) > plan.epsilon(1e-5)
    assert plan.target_delta is None
    with pytest.raises(TypeError):
        PrivacyPlan(*FACTS.values())


def open_facts(**facts):
    common = {
        "sampling": PoissonSampling(rate=0.0184),
        "clipping_norm": 1.0,
        "num_records": 32_561,
        "delta": 1e-6,
    }
    return common | facts


def test_calibrate_noise():
    plan = PrivacyPlan.calibrate(**open_facts(epsilon=1.0, num_steps=2000))
    assert 0.999 <= plan.epsilon(1e-6) <= 1.0
    assert plan.target_delta == 1e-6
    assert plan.num_steps == 2000
    fixed = PrivacyPlan.calibrate(
        **open_facts(
            epsilon=1.0,
            num_steps=2000,
            sampling=FixedSizeSampling(batch_size=600),
            relation=REPLACE,
        )
    )
    assert 0.999 <= fixed.epsilon(1e-6) <= 1.0
    assert fixed.noise_multiplier > 2 * plan.noise_multiplier


def test_calibrate_steps_and_price():
    plan = PrivacyPlan.calibrate(**open_facts(epsilon=1.0, noise_multiplier=3.0))
    assert (
        plan.epsilon(1e-6)
        <= 1.0
        < dataclasses.replace(plan, num_steps=plan.num_steps + 1).epsilon(1e-6)
    )
    priced = PrivacyPlan.calibrate(**open_facts(noise_multiplier=3.0, num_steps=plan.num_steps))
    assert priced == plan


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"epsilon": 1.0},
        {"epsilon": 1.0, "num_steps": 10, "noise_multiplier": 1.0},
    ],
)
def test_exactly_one_fact_is_left_open(facts):
    with pytest.raises(ValueError, match="solves for one of"):
        PrivacyPlan.calibrate(**open_facts(**facts))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"delta": 1.0}, "below 1"),
        ({"delta": 0.0}, "above 0"),
        ({"delta": math.nan}, "above 0 and below 1"),
        ({"epsilon": 0.0}, "above 0"),
        ({"epsilon": -1.0}, "above 0"),
        ({"epsilon": math.inf}, "finite"),
        ({"num_steps": 0}, "at least 1"),
        ({"delta": 1e-18}, "no noise multiplier"),
        ({"delta": 1e-24}, "infeasible"),
        ({"delta": 1e-12, "epsilon": 1e-7}, "Raise epsilon or delta, or take"),
        ({"delta": 0.9999, "epsilon": 5.0, "num_steps": 1}, "any noise multiplier"),
    ],
)
def test_infeasible_calibration_is_refused(facts, message):
    with pytest.raises(ValueError, match=message):
        PrivacyPlan.calibrate(**open_facts(**{"epsilon": 1.0, "num_steps": 100} | facts))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"clipping_norm": 0.0}, "clipping_norm"),
        ({"clipping_norm": -1.0}, "clipping_norm"),
        ({"clipping_norm": math.nan}, "clipping_norm"),
        ({"clipping_norm": math.inf}, "clipping_norm"),
        ({"clipping_norm": 1e20}, "neither vanish nor overflow"),
        ({"clipping_norm": 1e-20}, "neither vanish nor overflow"),
        ({"clipping_norm": 1e-39}, "32-bit"),
        ({"clipping_norm": 1e39}, "32-bit"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.inf}, "noise_multiplier"),
        ({"noise_multiplier": "1"}, "noise_multiplier"),
        ({"noise_multiplier": 2e6}, "Raise epsilon or delta, or take"),
        ({"noise_multiplier": 1e5, "clipping_norm": 1e13}, "32-bit"),
        ({"noise_multiplier": 1e-5, "clipping_norm": 1e-14}, "32-bit"),
        ({"noise_multiplier": 1e5, "clipping_norm": AdaptiveClipping(initial=1e9)}, "32-bit"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 2.5}, "num_steps"),
        ({"num_steps": True}, "num_steps"),
        ({"num_records": 0}, "num_records"),
        ({"num_records": 10.0}, "num_records"),
        ({"target_delta": 1.0}, "delta"),
        ({"sampling": FixedSizeSampling(batch_size=10)}, "one record added or removed"),
        ({"sampling": FixedSizeSampling(batch_size=50_001), "relation": REPLACE}, "50001"),
    ],
)
def test_bad_facts_are_refused(facts, message):
    with pytest.raises(ValueError, match=message):
        PrivacyPlan(**FACTS | facts)


def test_wrong_kinds_are_refused():
    with pytest.raises(TypeError, match="not a sampler"):
        PrivacyPlan(**FACTS | {"sampling": 0.01})
    with pytest.raises(TypeError, match="relation"):
        PrivacyPlan(**FACTS | {"relation": "add"})


def test_explanation():
    plan = PrivacyPlan.calibrate(**open_facts(epsilon=1.0, num_steps=2000))
    text = plan.explain()
    for phrase in (
        "2,000 steps",
        "q = 0.0184",
        "delta = 1e-06",
        "if it wrongly says yes in 0.1 %",
        "if it wrongly says yes in 10 %",
        "held true with 1 % before",
        "held true with 50 % before",
        "mu-Gaussian",
        "Public, that is known without the data",
    ):
        assert phrase in text
    assert "Warning" not in text
    assert "Warning" in plan.explain(delta=1e-3)
    # By hand, delta is the suggested one.
    assert "delta = 2e-06" in PrivacyPlan(**FACTS).explain()
    assert (
        "reads every record"
        in PrivacyPlan(**FACTS | {"sampling": FullBatch(), "noise_multiplier": 99.0}).explain()
    )
    with pytest.raises(ValueError, match="delta"):
        plan.explain(delta=2.0)


def test_numbers_of_numpy_make_the_same_plan():
    import numpy as np

    facts = {"clipping_norm": 1.0, "noise_multiplier": 2.0, "num_steps": 10, "num_records": 100}
    kinds = {
        "clipping_norm": np.float32,
        "noise_multiplier": np.float64,
        "num_steps": np.int64,
        "num_records": np.int32,
    }
    plain = PrivacyPlan(sampling=PoissonSampling(0.1), **facts)
    assert plain == PrivacyPlan(
        sampling=PoissonSampling(0.1), **{k: kinds[k](v) for k, v in facts.items()}
    )


def test_a_plan_shows_its_relation_in_words() -> None:
    plan = PrivacyPlan(
        sampling=PoissonSampling(0.1),
        clipping_norm=1.0,
        noise_multiplier=4.0,
        num_steps=4,
        num_records=50,
    )
    assert "relation='one record added or removed'" in repr(plan)
    assert "relation='one record replaced'" in repr(
        dataclasses.replace(plan, relation=Relation.REPLACE_ONE)
    )
