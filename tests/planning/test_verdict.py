import math

import pytest

from discreet.planning import Row, Setting, TableScores
from discreet.planning._dry_run import CurvePoint, in_words, judge, kept
from discreet.report import NOT_USABLE, PREDICTION


def table(strength: float, private: float, non_private: float = -0.3, blind: float = -0.7) -> TableScores:
    return TableScores(strength, *({"log density": x} for x in (private, non_private, blind)), width=20.0)


def row(*tables: TableScores) -> Row:
    return Row(Setting(100, 0.1, 1.0, 0.05), 5.0, 0.25, tables)


@pytest.mark.parametrize(
    ("strong", "weak", "verdict"),
    [
        (-0.31, -0.33, PREDICTION),
        (-0.4, -0.6, PREDICTION),
        (-0.6, -0.6, NOT_USABLE),
        (-0.9, -0.9, NOT_USABLE),
        (-math.inf, -0.3, NOT_USABLE),
    ],
)
def test_the_verdict_goes_by_the_share_that_is_kept(strong: float, weak: float, verdict: str) -> None:
    assert judge((table(0.5, strong), table(0.1, weak))) is verdict


def test_kept_is_a_share_of_what_there_was_to_learn() -> None:
    assert kept((table(0.5, -0.4), table(0.1, -0.5))) == pytest.approx(0.625)
    assert math.isnan(kept((table(0.5, -0.4, non_private=-0.8),)))


def test_a_verdict_is_said_with_its_reason_numbers_and_remedies() -> None:
    hopeless, good = row(table(0.5, -0.69)), row(table(0.5, -0.31))
    curve = [CurvePoint(x, t.tables) for x, t in ((1.0, hopeless), (3.0, hopeless), (10.0, good))]
    said = in_words(NOT_USABLE, hopeless, curve, 1.0, 40)
    for part in (
        "learns 3 %, and even of a strong signal the noise hides more than half",
        "20 standard deviations of the posterior",
        "0.25 times as long",
        "ε = 10, with which it learns",
        "with about 10 times as many, ε = 1",
        "40",
    ):
        assert part in said
    none = in_words(NOT_USABLE, hopeless, curve[:2], 1.0, 40)
    assert "more records" in none
    assert "ε up to 3 does not suffice" in none
    assert "What helps" not in in_words(PREDICTION, good, curve, 1.0, 40)
    unlearnable = row(table(0.5, -0.9, non_private=-0.8))
    assert "Even without noise" in in_words(NOT_USABLE, unlearnable, curve, 1.0, 40)
