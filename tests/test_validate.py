"""Each check takes what it says, as Python's own type, and refuses everything else."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from discreet import _validate

NO_NUMBERS = [
    True,
    False,
    np.True_,
    None,
    "1",
    "",
    [1],
    np.array([1.0]),
    1j,
    Decimal(1),
    math.nan,
    np.float32("nan"),
]

CASES: list[tuple[Callable[[Any], Any], list[Any], list[Any]]] = [
    (
        lambda x: _validate.positive("a", x),
        [1, 1e-300, np.float32(2), np.int64(3)],
        [0, -1, math.inf, -math.inf],
    ),
    (
        lambda x: _validate.probability("a", x),
        [0.5, 1e-12, np.float64(0.1)],
        [0, 1, -0.1, 1.5, math.inf],
    ),
    (lambda x: _validate.fraction("a", x), [0, 0.5], [1, -1e-9, math.inf]),
    (lambda x: _validate.real("a", x, 2, 3), [2, 3.0], [1.9, 3.1, math.inf]),
    (lambda x: _validate.real("a", x, 2, math.inf), [2, math.inf], [1.9, -math.inf]),
    (lambda x: _validate.integer("a", x), [1, np.int32(7)], [0, -1, 1.0, np.float64(2), math.inf]),
    (lambda x: _validate.integer("a", x, 0, 4), [0, 4], [-1, 5]),
]


@pytest.mark.parametrize(("check", "good", "bad"), CASES)
def test_numbers(check: Callable[[Any], Any], good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert check(value) == value
        assert type(check(value)) in (int, float)
    for value in [*bad, *NO_NUMBERS]:
        with pytest.raises(ValueError, match=r"^a is .*; it must be "):
            check(value)


def test_words() -> None:
    assert _validate.choice("kind", "b", ("a", "b")) == "b"
    for value in ("c", "", None, 1, ["a"]):
        with pytest.raises(ValueError, match="one of 'a', 'b'"):
            _validate.choice("kind", value, ("a", "b"))


def test_the_error_says_name_value_rule_and_hint() -> None:
    with pytest.raises(
        ValueError, match=r"^delta is 1\.5; it must be a number above 0 and below 1\. Try 1e-6\.$"
    ):
        _validate.probability("delta", 1.5, hint="Try 1e-6.")


def test_no_error_quotes_a_key_or_records() -> None:
    """Arguments in a wrong order: a key in the place of a number stood in the error with all its words."""
    import jax
    import pandas

    import discreet as dp
    from discreet.tabular.estimators import LogisticRegression

    key, cells = dp.random.key(), np.full((3, 2), 7654321.0)
    words = np.asarray(jax.random.key_data(key)).tolist()
    table, labels = pandas.DataFrame(cells), np.full(3, 7654321)
    checks: list[Callable[[Any], Any]] = [
        *(check for check, _, _ in CASES),
        lambda x: _validate.choice("a", x, ("b", "c")),
        dp.PoissonSampling,
        dp.FixedSizeSampling,
        lambda x: LogisticRegression(classes=x, bounds=(0, 1)).fit(np.zeros((3, 1)), [0, 1, 0]),
    ]
    for check in checks:
        for value in (key, cells, table, labels):
            with pytest.raises((ValueError, TypeError)) as error:
                check(value)
            assert not [x for x in (*words, 7654321) if str(x) in str(error.value)]


def test_what_a_notebook_shows_says_what_print_says(tmp_path) -> None:
    """Folded text without a script; a name of a column or data set cannot become a tag."""
    import html

    import jax.numpy as jnp

    import discreet as dp
    from discreet.privacy.report import make_statement
    from discreet.tabular.tables import Column, Kind, Schema

    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(),
        clipping_norm=1.0,
        noise_multiplier=5.0,
        num_steps=2,
        num_records=900,
    )
    schema = Schema(
        columns=(Column(name="<script>alert(1)</script>", kind=Kind.REAL, bounds=(0, 1)),)
    )
    ledger = dp.Ledger.create(tmp_path / "l.ledger", dataset="<img src=x>", epsilon=1.0, delta=1e-5)
    statement = make_statement(plan, steps_completed=2, reproducible=False)
    certificate = dp.certify(
        lambda key, x, mask: dp.gaussian_mechanism(
            key, dp.sum_records(dp.clip_records(x, 1.0), mask), 4.0
        ),
        dp.random.key(),
        jnp.ones((3, 2)),
        jnp.ones(3, bool),
        records=1,
        mask=2,
    )
    scores = dp.scores.PrivateMetrics(
        dp.scores.ScorePlan(classes=2, noise_multiplier=1.0, delta=1e-5), np.ones(41), statement
    )
    texts = [
        (scores, str(scores)),
        (plan, plan.explain()),
        (schema, schema.describe()[0]),
        (ledger, str(ledger).partition("\n")[2]),
    ]
    for shown, text in [
        *texts,
        (statement, str(statement)),
        (certificate, str(certificate).partition("\n")[2]),
    ]:
        found = shown._repr_html_()
        assert "<script" not in found
        assert "<img" not in found
        assert html.escape(text.splitlines()[0]) in found
    assert "Left: about 1 or more." in ledger._repr_html_().partition("</summary>")[0]
    assert "color" not in statement._repr_html_()
    wrong = make_statement(plan, steps_completed=2, reproducible=True)
    assert "NOT PRIVATE" in wrong._repr_html_().partition("</summary>")[0]
    assert "color" in wrong._repr_html_()


@pytest.mark.parametrize(
    "value",
    [
        ["seven"],
        np.array(["seven"], object),
        np.array([b"seven"]),
        [7j],
        [10**400],
        np.array(["2026-07-07"], "datetime64[D]"),
        np.zeros(1, [("seven", float)]),
        np.ma.masked_array([7.0], [True]),
    ],
)
def test_an_error_about_what_is_no_number_quotes_no_cell(value: Any) -> None:
    """NumPy's did, in fits of arrays; and dates and complex numbers were taken for numbers."""
    with pytest.raises(_validate.RefusedError, match=r"^y (holds|is) ") as caught:
        _validate.floats("y", value)
    assert "seven" not in str(caught.value)
    assert _validate.floats("y", [None, True])[1] == 1
