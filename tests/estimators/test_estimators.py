"""The estimators: what they derive from the data, their refusals, and their texts."""

from __future__ import annotations

import importlib.util
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import discreet as dp
from discreet.methods import choose
from discreet.privacy.clipping import AdaptiveClipping
from discreet.tabular.estimators import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    _private,
)
from discreet.tabular.estimators._private import mean_over_draws
from discreet.tabular.estimators._rows import BoundScaling
from discreet.tabular.models import defaults_for, logistic_regression

RNG = np.random.default_rng(0)
AGE = RNG.uniform(20, 80, size=(200, 1))
TABLE = np.concatenate([AGE, np.clip(RNG.normal(size=(200, 1)), -3, 3)], axis=1)
BOUNDS = ([17, -3], [90, 3])
LINE = AGE[:, 0] / 2 + TABLE[:, 1]
SICK = (AGE[:, 0] > 50).astype(int)
COUNTS = RNG.poisson(np.exp(AGE[:, 0] / 40)).astype(float)


@pytest.fixture
def seen(no_noise: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[np.ndarray, np.ndarray]]:
    """The records that reached a fit."""
    records = []
    stand_in = _private.fit_in_steps

    def spy(
        key: Any, settings: Any, plan: Any, x: np.ndarray, y: np.ndarray, **options: Any
    ) -> Any:
        records.append((x, y))
        return stand_in(key, settings, plan, x, y)

    monkeypatch.setattr(_private, "fit_in_steps", spy)
    line = choose.fit_moments

    def spy_of_line(key: Any, x: np.ndarray, y: np.ndarray, plan: Any, **options: Any) -> Any:
        records.append((x, y))
        return line(key, x, y, plan)

    monkeypatch.setattr(choose, "fit_moments", spy_of_line)
    return records


# --- what reaches a fit ---------------------------------------------------------------------


def test_a_record_reaches_the_fit_within_public_bounds_and_unmoved_by_others(
    seen: list[Any],
) -> None:
    model = LinearRegression(bounds=BOUNDS, target_bounds=(0, 50))
    model.fit(TABLE, LINE)
    odd, far = TABLE.copy(), LINE.copy()
    odd[0], far[0] = [1e300, -1e300], 1e300
    model.fit(odd, far)
    (x, y), (odd_x, odd_y) = seen
    assert np.abs(odd_x).max() <= 1
    assert np.abs(odd_y).max() <= 1
    assert odd_x[0].tolist() == [1, -1]
    assert odd_y[0] == 1
    np.testing.assert_array_equal(x[1:], odd_x[1:])
    np.testing.assert_array_equal(y[1:], odd_y[1:])


def test_zero_stays_zero_within_bounds_and_weights_come_back_in_the_features_units() -> None:
    scaling = BoundScaling.of(([0, 17, -2], [1, 90, 8]), 3, None)
    x = np.array([[0.0, 17.0, 0.0], [1.0, 90.0, 8.0], [0.5, 53.5, -2.0]])
    np.testing.assert_allclose(
        scaling.scale(x), [[0, -1, 0], [1, 1, 1], [0.5, 0, -0.25]], atol=1e-7
    )
    weights, intercept = RNG.normal(size=(5, 2, 3)), RNG.normal(size=(5, 2))
    coef, start = scaling.unscale(weights, intercept)
    np.testing.assert_allclose(
        np.einsum("dkf,nf->ndk", weights, scaling.scale(x)) + intercept,
        np.einsum("dkf,nf->ndk", coef, x) + start,
        rtol=1e-5,
        atol=1e-5,
    )


def test_rows_to_predict_for_are_clipped_as_records_were(no_noise: None) -> None:
    model = LinearRegression(bounds=BOUNDS, target_bounds=(0, 50)).fit(TABLE, LINE)
    np.testing.assert_array_equal(model.predict([[500.0, -99.0]]), model.predict([[90.0, -3.0]]))


def test_coefficients_are_those_of_the_table(no_noise: None) -> None:
    line = LinearRegression(bounds=BOUNDS, target_bounds=(0, 50)).fit(TABLE, LINE)
    np.testing.assert_allclose(line.coef_, [0.5, 1.0], atol=0.05)
    assert line.score(TABLE, LINE) > 0.99
    log_line = PoissonRegression(bounds=(17, 90)).fit(AGE, np.rint(100 * np.exp(AGE[:, 0] / 40)))
    np.testing.assert_allclose(log_line.coef_, [1 / 40], atol=0.003)
    assert log_line.score(AGE, np.rint(100 * np.exp(AGE[:, 0] / 40))) > 0.9
    scattered = NegativeBinomialRegression(bounds=(17, 90)).fit(AGE, COUNTS)
    assert scattered.concentration_draws_.shape == (1000,)


def test_a_mean_over_draws_is_that_of_all_whatever_the_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, coef, intercept = (
        RNG.normal(size=(7, 3)),
        RNG.normal(size=(11, 4, 3)),
        RNG.normal(size=(11, 4)),
    )
    expected = softmax(np.einsum("nf,dkf->ndk", rows, coef) + intercept, axis=2).mean(axis=1)
    for at_once in (1, 3, 7):
        monkeypatch.setattr("discreet.tabular.estimators._private._ELEMENTS", at_once * 44)
        found = mean_over_draws(lambda part: softmax(part, axis=2), rows, coef, intercept)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_probabilities_are_means_over_the_draws_in_the_order_of_sorted_classes(
    no_noise: None,
) -> None:
    model = LogisticRegression(bounds=BOUNDS, classes=("well", "sick")).fit(
        TABLE, np.where(SICK, "sick", "well")
    )
    assert model.classes_.tolist() == ["sick", "well"]
    coef, intercept = model._predictive
    well = expit(TABLE @ coef[:, 0].T + intercept[:, 0]).mean(axis=1)
    np.testing.assert_allclose(
        model.predict_proba(TABLE), np.stack([1 - well, well], axis=1), atol=1e-12
    )
    assert model.score(TABLE, np.where(SICK, "sick", "well")) > 0.9
    assert model.coef_.shape == (1, 2)
    third = np.where(AGE[:, 0] > 70, 7, SICK)
    several = LogisticRegression(bounds=BOUNDS, classes=(0, 1, 5, 7)).fit(TABLE, third)
    assert several.coef_.shape == (4, 2)
    assert several.score(TABLE, third) > 0.9
    assert several.predict_proba(TABLE)[:, 2].max() < 1e-3  # nobody has class 5


def test_bounds_by_name(seen: list[Any]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TABLE, columns=["age", "mood"])
    model = LinearRegression(bounds={"mood": (-3, 3), "age": (17, 90)}, target_bounds=(0, 50)).fit(
        frame, LINE
    )
    LinearRegression(bounds=BOUNDS, target_bounds=(0, 50)).fit(TABLE, LINE)
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    assert model.feature_names_in_.tolist() == ["age", "mood"]
    with pytest.raises(ValueError, match="only one of them has age, pulse"):
        model.set_params(bounds={"mood": (-3, 3), "pulse": (0, 200)}).fit(frame, LINE)
    with pytest.raises(ValueError, match="pass a data frame"):
        model.fit(TABLE, LINE)


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        (LinearRegression(target_bounds=(0, 1)), LINE, "bounds are missing"),
        (LinearRegression(bounds=BOUNDS), LINE, "target_bounds are missing"),
        (LinearRegression(bounds=BOUNDS, target_bounds=(1, 1)), LINE, "low below high"),
        (LinearRegression(bounds=BOUNDS, target_bounds=3), LINE, "pair of numbers"),
        (LinearRegression(bounds=BOUNDS, target_bounds=(0, np.inf)), LINE, "finite"),
        (LinearRegression(bounds=(0, np.inf), target_bounds=(0, 1)), LINE, "bounds must be finite"),
        (LinearRegression(bounds=(1, 0), target_bounds=(0, 1)), LINE, "low below its high"),
        (
            LinearRegression(bounds=([0, 0, 0], 1), target_bounds=(0, 1)),
            LINE,
            "do not fit the 2 features",
        ),
        (LinearRegression(bounds="auto", target_bounds=(0, 1)), LINE, "do not fit"),
        (LinearRegression(bounds=BOUNDS, target_bounds=(0, 1), epsilon=0), LINE, "epsilon is 0"),
        (LinearRegression(bounds=BOUNDS, target_bounds=(0, 1), delta=2.0), LINE, "delta is 2"),
        (LogisticRegression(bounds=BOUNDS, num_steps=0), SICK, "num_steps is 0"),
        (
            LinearRegression(bounds=BOUNDS, target_bounds=(0, 1), num_draws=0),
            LINE,
            "num_draws is 0",
        ),
        (
            LinearRegression(bounds=BOUNDS, target_bounds=(0, 1), batch_size=-5),
            LINE,
            "batch_size is -5",
        ),
        (
            LinearRegression(bounds=BOUNDS, target_bounds=(0, 1), learning_rate=np.nan),
            LINE,
            "learning_rate is nan",
        ),
        (
            LinearRegression(bounds=BOUNDS, target_bounds=(0, 1), num_records=0.5),
            LINE,
            "num_records is 0.5",
        ),
        (LogisticRegression(bounds=BOUNDS, clipping_norm=-1.0), SICK, "clipping_norm is -1"),
        (
            LogisticRegression(bounds=BOUNDS, classes=(0, 1)),
            np.where(SICK, 987, 0),
            "not among classes",
        ),
        (LogisticRegression(bounds=BOUNDS, classes=(0, 0)), SICK, "two or more different"),
        (LogisticRegression(bounds=BOUNDS, classes=(0,)), SICK, "two or more different"),
        (LogisticRegression(bounds=BOUNDS, classes="01"), SICK, "two or more different"),
        (LogisticRegression(bounds=BOUNDS, classes=None), SICK, "two or more different"),
        (
            LogisticRegression(bounds=BOUNDS, classes="non_private_from_data"),
            0 * SICK,
            "one class only",
        ),
        (PoissonRegression(bounds=BOUNDS), np.where(SICK, -987, 0), "below 0"),
        (PoissonRegression(bounds=BOUNDS), np.where(SICK, 987.5, 0), "not whole"),
        (PoissonRegression(bounds=BOUNDS), np.where(SICK, np.nan, 0), "NaN"),
    ],
)
def test_refused_before_a_fit_without_a_value_of_the_data(
    seen: list[Any], model: Any, y: Any, message: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        model.fit(TABLE, y)
    assert not seen
    assert "987" not in str(caught.value)


def test_no_message_quotes_a_cell(seen: list[Any]) -> None:
    cells = TABLE.astype(object)
    cells[3, 1] = "syphilis"
    model = LogisticRegression(bounds=BOUNDS)
    with pytest.raises(ValueError, match="text that is no number") as caught:
        model.fit(cells, SICK)
    # Not in what an uncaught error prints either.
    assert caught.value.__suppress_context__
    assert "syphilis" not in str(caught.value)
    target = LINE.astype(object)
    target[0] = "syphilis"
    with pytest.raises(ValueError, match="text that is no number"):
        LinearRegression(bounds=BOUNDS, target_bounds=(0, 50)).fit(TABLE, target)
    with pytest.raises(ValueError, match="not among classes") as caught:
        model.fit(TABLE, np.where(SICK, "syphilis", "0"))
    assert "syphilis" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert not seen


# --- what is said ---------------------------------------------------------------------------


def test_the_statement_names_what_was_public(no_noise: None) -> None:
    model = LogisticRegression(bounds=BOUNDS, classes=("no", "yes")).fit(
        TABLE, np.where(SICK, "yes", "no")
    )
    said = str(model.statement_)
    for fact in (
        "[17, 90], [-3, 3]",
        "no, yes",
        "Each further fit of overlapping records spends again",
    ):
        assert fact in said
    assert model.statement_.is_private
    assert model.result_.statement is model.statement_
    assert 0.99 < model.epsilon_ <= 1.0
    assert model.delta_ == 1e-5
    assert model.result_.plan.num_records == 200
    model.set_params(
        num_records=1_000, delta=1e-7, epsilon=0.5, clipping_norm=AdaptiveClipping()
    ).fit(TABLE, np.where(SICK, "yes", "no"))
    assert "not a count" in str(model.statement_)
    assert model.result_.plan.num_records == 1_000
    assert model.result_.plan.rate == 1.0
    assert model.delta_ == 1e-7
    assert model.epsilon_ <= 0.5


def test_what_breaks_the_guarantee_is_said(no_noise: None) -> None:
    seeded = LinearRegression(bounds=BOUNDS, target_bounds=(0, 50), random_state=1).fit(TABLE, LINE)
    assert not seeded.statement_.is_private
    assert seeded.epsilon_ == np.inf
    from_data = LogisticRegression(bounds=BOUNDS, classes="non_private_from_data").fit(TABLE, SICK)
    assert not from_data.statement_.is_private
    assert from_data.epsilon_ == np.inf
    assert "taken from the data" in str(from_data.statement_)


def test_in_a_pipeline_cloned_and_pickled(no_noise: None) -> None:
    model = LogisticRegression(bounds=(-np.ones(2), np.ones(2)), epsilon=2.0)
    pipeline = make_pipeline(FunctionTransformer(lambda x: x / [100, 3]), clone(model))
    assert cross_val_score(pipeline, TABLE, SICK, cv=2).min() > 0.9
    fitted = model.fit(TABLE / [100, 3], SICK)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(
        again.predict_proba(TABLE / 100), fitted.predict_proba(TABLE / 100)
    )


# --- private fits ---------------------------------------------------------------------------


def test_the_example_of_the_page(repository: Path, quick_compilation: None) -> None:
    """Truly private, so at random."""
    text = (repository / "docs" / "estimators.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    code = found.group(1).replace("print(", "str(")
    names: dict[str, Any] = {}
    exec(code, names)
    model, x_test, y_test = names["model"], names["x_test"], names["y_test"]
    assert model.score(x_test, y_test) > 0.8
    assert model.statement_.is_private
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x_test), names["probabilities"])
    # The second fit takes the compiled program, and other noise.
    second = clone(model).fit(names["x_train"], names["y_train"])
    assert (second.coef_ != model.coef_).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("estimator", [PoissonRegression, NegativeBinomialRegression])
def test_counts_of_a_private_fit(
    estimator: type[PoissonRegression], quick_compilation: None
) -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(17, 90, size=(2_000, 1))
    y = rng.poisson(np.exp(x[:, 0] / 30 - 1))
    model = estimator(bounds=(17, 90), epsilon=3.0, random_state=0).fit(x, y)
    np.testing.assert_allclose(model.coef_, [1 / 30], atol=0.005)
    assert model.score(x, y) > 0.5


@pytest.mark.exhaustive
def test_adult_at_epsilon_1(repository: Path, table: Any) -> None:
    """As far as examples/adult.py must come; four private fits had 0.8460 and 0.8978 at least.

    A clipping norm of 1 does well by these two, but has a log loss of 0.370, whatever ε is.
    """
    spec = importlib.util.spec_from_file_location("_tables", repository / "examples" / "_tables.py")
    assert spec
    assert spec.loader
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    x, y, x_test, y_test = tables.adult(table("adult.csv.gz"))
    model = LogisticRegression(bounds=(np.r_[-np.ones(5), np.zeros(len(x[0]) - 6)], 1)).fit(
        x[:, 1:], y
    )
    probabilities = model.predict_proba(x_test[:, 1:])[:, 1]
    assert model.epsilon_ <= 1.0
    assert np.mean((probabilities > 0.5) == y_test) > 0.842
    assert roc_auc_score(y_test, probabilities) > 0.893
    assert log_loss(y_test, probabilities) < 0.34


@pytest.mark.exhaustive
def test_the_spread_around_the_line_is_not_clipped_away():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, (20_000, 3))
    y = x @ np.array([1.0, -1.0, 0.5]) + 3 + rng.normal(0, 1.0, len(x))
    options = {"bounds": (0, 10), "target_bounds": (-20, 30), "epsilon": 1.0, "random_state": 0}
    fitted = LinearRegression(**options).fit(x, y)
    assert 0.8 < fitted.sigma_draws_.mean() < 1.25
    np.testing.assert_allclose(fitted.coef_, [1.0, -1.0, 0.5], atol=0.05)


@pytest.mark.parametrize(
    "seeds", [(71,), pytest.param(tuple(range(30)), marks=pytest.mark.exhaustive)]
)
def test_no_line_is_worse_than_the_mean(seeds, table):
    """Shell weight of Abalone. With twice the share that gains the most the first fit has an R² of -1.9, the third -0.26."""
    rows = np.loadtxt(table("abalone.csv.gz"), delimiter=",", skiprows=1)
    names = np.loadtxt(table("abalone.csv.gz"), delimiter=",", max_rows=1, dtype=str).tolist()
    place = names.index("shell_weight")
    x, y = np.delete(rows, [place, names.index("old")], axis=1), rows[:, place]
    how = {"bounds": (-4, 4), "target_bounds": (-4, 4), "delta": 1e-5}
    for epsilon in (0.03, 0.1, 0.05) if len(seeds) == 1 else (0.003, 0.01, 0.03, 0.1):
        for seed in seeds:
            fitted = LinearRegression(**how, epsilon=epsilon, random_state=seed).fit(
                x[:3341], y[:3341]
            )
            assert fitted.score(x[3341:], y[3341:]) > -0.01


def test_a_fit_in_steps_has_the_settings_of_every_model(
    no_noise: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimators, `models.defaults_for` and the command line had three."""
    stand_in, used = _private.fit_in_steps, []

    def spy(key: Any, settings: Any, *rest: Any, **how: Any) -> Any:
        used.append(settings)
        return stand_in(key, settings, *rest, **how)

    monkeypatch.setattr(_private, "fit_in_steps", spy)
    default = defaults_for(logistic_regression)
    LogisticRegression(bounds=BOUNDS, num_steps=default.num_steps).fit(TABLE, SICK)
    assert used == [default]


@pytest.mark.parametrize("steps", [None, 20])
def test_a_fit_that_is_not_usable_warns(steps: int | None, quick_compilation: None) -> None:
    """scikit-learn's users see no statement."""
    for estimator, target in (
        (LogisticRegression(bounds=BOUNDS, epsilon=0.01, num_steps=steps), SICK),
        (LinearRegression(bounds=BOUNDS, target_bounds=(0, 50), epsilon=0.01), LINE),
    )[: 2 if steps is None else 1]:
        with pytest.warns(dp.inference.UseWarning, match="^Not usable: "):
            estimator.fit(TABLE, target)
