import dataclasses
import json
import math

import pytest
from dp_accounting import GaussianDpEvent

from discreet.privacy.accounting import BoundedRangeDpEvent, Relation, profile
from discreet.privacy.clipping import AdaptiveClipping
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import Unit, make_release_statement, make_statement
from discreet.privacy.sampling import FixedSizeSampling, FullBatch, PoissonSampling

POISSON = PrivacyPlan(
    sampling=PoissonSampling(rate=0.02),
    clipping_norm=2.0,
    noise_multiplier=1.5,
    num_steps=200,
    num_records=10_000,
)
FIXED = PrivacyPlan(
    sampling=FixedSizeSampling(batch_size=200),
    clipping_norm=1.0,
    noise_multiplier=3.0,
    num_steps=50,
    num_records=10_000,
    relation=Relation.REPLACE_ONE,
)
FULL = PrivacyPlan(
    sampling=FullBatch(), clipping_norm=1.0, noise_multiplier=20.0, num_steps=10, num_records=500
)


def statement_of(plan=POISSON, **changes):
    return make_statement(
        plan, **{"steps_completed": plan.num_steps, "reproducible": False} | changes
    )


def with_figures(statement, **figures):
    return dataclasses.replace(statement, figures=dataclasses.replace(statement.figures, **figures))


def test_no_statement_says_that_sums_are_inexact() -> None:
    """Each said so once its sums were exact."""
    for plan in (POISSON, FIXED, FULL):
        text = " ".join(str(statement_of(plan)).split())
        assert "Sums were rounded to a grid" in text
        assert "32 bits" not in text
        assert "floating-point sums" not in text


def test_numbers_are_those_of_the_plan() -> None:
    statement = statement_of(delta=1e-5)
    assert statement.epsilon == POISSON.epsilon(1e-5)
    assert statement.delta == 1e-5
    assert statement.figures.delta_chosen == "asked for"
    assert {point.delta: point.epsilon for point in statement.figures.profile}[
        1e-6
    ] == POISSON.epsilon(1e-6)
    assert statement.plan["noise_multiplier"] == 1.5
    # 1.5 C for a C of 2, and the share of the counts.
    assert statement.plan["noise_standard_deviation"] == pytest.approx(3.0 / math.sqrt(0.981))
    assert statement.plan["sampling"] == {"kind": "PoissonSampling", "rate": 0.02}
    assert statement.relation == "ADD_OR_REMOVE_ONE"
    assert statement.is_private


def test_the_slack_of_samplers_and_noise_is_in_epsilon() -> None:
    """At a common delta no float shows it: where a statement left it out, no test failed."""
    assert math.isfinite(profile(FULL.event(), FULL.relation).epsilon(FULL.slack / 2))
    assert statement_of(FULL, delta=FULL.slack / 2).epsilon == math.inf


def test_a_shorter_run_pays_the_whole_horizon_and_a_longer_one_pays_more() -> None:
    whole = statement_of(delta=1e-5)
    short = statement_of(delta=1e-5, steps_completed=3)
    long = statement_of(delta=1e-5, steps_completed=400)
    assert short.epsilon == whole.epsilon
    assert "3 of 200 releases were made" in str(short)
    assert "fixed beforehand" in " ".join(str(short).split())
    assert long.horizon == 400
    assert long.epsilon == dataclasses.replace(POISSON, num_steps=400).epsilon(1e-5) > whole.epsilon


def test_default_delta_is_said_to_be_one() -> None:
    statement = statement_of()
    assert statement.delta == 1e-5
    assert "default" in statement.figures.delta_chosen
    calibrated = PrivacyPlan.calibrate(
        epsilon=1.0,
        delta=3e-6,
        num_records=10_000,
        num_steps=100,
        sampling=PoissonSampling(rate=0.02),
        clipping_norm=1.0,
    )
    planned = statement_of(calibrated)
    assert planned.delta == 3e-6
    assert planned.figures.delta_chosen == "the plan's target"
    assert 0.999 <= planned.epsilon <= 1.0


@pytest.mark.parametrize("plan", [POISSON, FIXED, FULL], ids=["poisson", "fixed", "full"])
def test_json_is_strict_and_complete(plan) -> None:
    statement = statement_of(plan)
    content = json.loads(statement.to_json(), parse_constant=pytest.fail)
    assert content == statement.to_dict()
    empty = "violations notes cautions data_warnings epsilon_warnings warnings use use_reason about receipt made_on"
    empty += " contact person"
    assert {name for name, value in content.items() if value in (None, "", [], {})} <= set(
        empty.split()
    )
    for part in (statement, statement.figures, statement.unit):
        assert {field.name for field in dataclasses.fields(part)} - {"figures"} <= set(content)
    assert content["is_private"] is True
    assert all("not known" not in version for version in content["versions"].values())


def test_an_infinite_epsilon_is_null_with_a_reason() -> None:
    statement = with_figures(statement_of(), epsilon=math.inf)
    content = json.loads(statement.to_json(), parse_constant=pytest.fail)
    assert content["epsilon"] is None
    assert "infinite" in content["epsilon_reason"]
    assert content["is_private"] is False
    assert "NO GUARANTEE" in str(statement)


@pytest.mark.parametrize("plan", [POISSON, FIXED, FULL], ids=["poisson", "fixed", "full"])
def test_text_is_wrapped_and_says_what_matters(plan) -> None:
    text = str(
        statement_of(
            plan,
            public=["The bounds of age: 17 to 90."],
            notes=["A remark."],
            released=["Weights."],
        )
    )
    assert max(map(len, text.splitlines())) <= 88
    for needle in [
        "The guarantee compares two tables",
        "one record (one row of the table)",
        "e^epsilon",
        "What it means",
        "Weights.",
        "clipped",
        "operating system",
        "include their rounding",
        "running time",
        "Several records of one person",
        "N = ",
        "The bounds of age: 17 to 90.",
        "A remark.",
        "discreet 0",
    ]:
        assert needle in text, needle


def test_a_seed_is_no_secret() -> None:
    statement = statement_of(reproducible=True)
    assert not statement.is_private
    assert "reproducible: not private" in statement.randomness
    assert "NOT PRIVATE AS RUN" in str(statement)


def test_violations_stand_first() -> None:
    broken = statement_of().with_violations("The bounds of age were taken from the data.")
    assert not broken.is_private
    assert broken.to_dict()["violations"] == ["The bounds of age were taken from the data."]
    text = str(broken)
    assert "NOT PRIVATE AS RUN" in text
    assert text.index("taken from the data") < text.index("What should have been protected")
    for promise in ("What was protected", "What it means", "that hold\n", "Only these noisy sums"):
        assert promise not in text
    assert "What was protected" in str(statement_of())


def test_batches_of_the_callers_are_an_assumption() -> None:
    text = str(statement_of(user_supplied_batches=True))
    assert "the user's own code supplied them" in " ".join(text.split())


def test_further_facts_are_added() -> None:
    statement = statement_of().with_public("The bounds.").with_notes("One.", "Two.")
    assert statement.public[-1] == "The bounds."
    assert statement.notes == ("One.", "Two.")


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_outside_its_range_is_refused(delta) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        statement_of(delta=delta)


def test_negative_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        statement_of(steps_completed=-1)


def test_the_statement_says_how_an_adaptive_norm_moves() -> None:
    plan = dataclasses.replace(
        POISSON, clipping_norm=AdaptiveClipping(quantile=0.9, initial=0.5, count_share=0.19)
    )
    statement = statement_of(plan)
    assert statement.epsilon == POISSON.epsilon(statement.delta)
    assert "started at 0.5 and followed the 0.9 quantile" in statement.mechanism
    # 1 / sqrt(1 - 0.19), and that times the noise multiplier of 1.5.
    assert "at most 1.11111 C" in statement.mechanism
    assert "standard deviation 1.66667 C" in statement.mechanism
    assert any("the rule for the clipping norm" in fact for fact in statement.public)
    facts = json.loads(statement.to_json())["plan"]
    assert facts["first_clipping_norm"] == 0.5
    assert facts["clipping"]["kind"] == "AdaptiveClipping"
    assert facts["clipping"]["quantile"] == 0.9
    assert facts["first_noise_standard_deviation"] == pytest.approx(0.5 * 1.5 / 0.9)
    assert "clipping_norm" not in facts
    assert "noise_standard_deviation" not in facts
    assert "clipping: adaptive" in str(statement)


@pytest.mark.parametrize("plan", [POISSON, FIXED])
def test_the_unit_is_a_person_where_each_is_one_record(plan) -> None:
    record, person = statement_of(plan), statement_of(plan, unit=Unit("patient"))
    assert (record.noun, person.noun) == ("record", "person")
    assert "Several records of one person" in str(record)
    text = " ".join(str(person).split())
    assert "for one person (all rows with the same 'patient', of which one is used)." in text
    assert "Several records of one person" not in text
    assert person.epsilon == record.epsilon
    assert "each person" in person.mechanism.lower()
    assert "persons (public): 10,000" in text
    assert f"The number of persons, N = {plan.num_records}" in text
    assert "records (public)" not in text
    assert "number of records" not in text.partition("Versions")[0]
    for words in ("relation_in_words", "meaning"):
        assert "one person" in getattr(person, words)
        assert "one record" not in getattr(person, words)
    several = statement_of(plan, unit=Unit("patient", 5))
    assert str(several.unit).startswith(
        "one person with up to 5 rows (all rows with the same 'patient', of which 5 at most are used"
    )
    assert (several.noun, several.unit.brief) == ("person", "one person with up to 5 rows")
    assert several.epsilon == record.epsilon
    with pytest.raises(ValueError, match="person is ''; it must be"):
        Unit("")
    with pytest.raises(ValueError, match="max_rows is 5, and person is not named"):
        Unit(None, 5)


def test_names_of_a_plan_are_no_formats() -> None:
    """A file of a stranger had a name that filled the page with 300 million spaces."""
    for name in ("{0:>300}", "{", "{0.upper}"):
        assert f"  {name}: 1" in str(dataclasses.replace(statement_of(), plan={name: 1}))


def test_batches_of_all_records_are_called_so() -> None:
    assert PoissonSampling(rate=1.0).in_words(9) == FullBatch().in_words(9) == "all records"
    assert "with probability 0.5, independently" in PoissonSampling(rate=0.5).in_words(9)


def test_a_choice_is_not_said_to_have_gaussian_noise():
    facts = {
        "method": "median",
        "mechanism": "One was chosen.",
        "plan": {},
        "num_releases": 1,
        "released": [],
        "public": [],
    }
    for event, there, absent in (
        (BoundedRangeDpEvent(1.0), "the choice made in integers", "Gaussian there"),
        (GaussianDpEvent(1.0), "Gaussian there", "the choice made in integers"),
    ):
        text = make_release_statement(
            event, Relation.ADD_OR_REMOVE_ONE, delta=1e-6, slack=1e-30, reproducible=False, **facts
        ).mechanism
        assert there in text
        assert absent not in text
