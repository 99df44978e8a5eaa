"""A statement comes back from its JSON as it was; what is none is refused."""

import dataclasses
import json
import math

import pytest

import discreet as dp
from discreet.privacy.report import Receipt, Statement, Unit, make_statement, statement_from_dict

PLAN = dp.PrivacyPlan(
    sampling=dp.FullBatch(),
    clipping_norm=1.0,
    noise_multiplier=30.0,
    num_steps=4,
    num_records=50,
    target_delta=1e-5,
)


def stated() -> Statement:
    receipt = Receipt("a.ledger", "a", 1, "00ff", 0.5, 1.0, 1e-5, "one person")
    statement = make_statement(
        PLAN, unit=Unit("id", 2), steps_completed=4, reproducible=False
    ).with_notes('"<ü>"')
    return dataclasses.replace(statement, receipt=receipt, made_on="2026-11-27")


def test_there_and_back() -> None:
    statement = stated()
    back = statement_from_dict(json.loads(statement.to_json()))
    assert back == statement
    assert back.to_json() == statement.to_json()
    endless = dataclasses.replace(
        statement,
        figures=dataclasses.replace(statement.figures, epsilon=math.inf, gaussian_mu=math.inf),
    )
    assert statement_from_dict(json.loads(endless.to_json())) == endless
    broken = statement.with_violations("x")
    assert not statement_from_dict(broken.to_dict()).is_private


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "recipe"}, "not a discreet privacy statement"),
        ({"format": "discreet privacy statement, version 9"}, "version 9"),
        ({"is_private": False}, "contradicts itself"),
        ({"reproducible": True}, "contradicts itself"),
        ({"epsilon": "1"}, "wrong kind"),
        ({"epsilon": -1.0}, "wrong kind"),
        ({"epsilon": float("nan")}, "wrong kind"),
        ({"epsilon": True}, "wrong kind"),
        ({"delta": None}, "wrong kind"),
        ({"delta": 2.0}, "wrong kind"),
        ({"notes": "text"}, "wrong kind"),
        ({"notes": [1]}, "wrong kind"),
        ({"profile": [{"delta": 0.1}]}, "wrong kind"),
        ({"attack_power": [[0.1, 0.2]]}, "wrong kind"),
        ({"horizon": 1.5}, "wrong kind"),
        ({"method": "\ud800"}, "wrong kind"),
        ({"delta": 5e-324}, "wrong kind"),
        ({"relation": "NONE"}, "wrong kind"),
        ({"person": None}, "wrong kind"),
        ({"receipt": {"number": 1}}, "wrong kind"),
        ({"plan": []}, "wrong kind"),
    ],
)
def test_what_is_no_statement_is_refused(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        statement_from_dict({**stated().to_dict(), **change})


@pytest.mark.parametrize("content", [None, [], "text", {}])
def test_other_json_is_refused(content) -> None:
    with pytest.raises(ValueError, match="not a discreet privacy statement"):
        statement_from_dict(content)


def test_what_is_lacking_is_named() -> None:
    content = stated().to_dict()
    del content["max_rows"]
    with pytest.raises(ValueError, match="lacks max_rows"):
        statement_from_dict(content)
