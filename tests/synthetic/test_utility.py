"""The report tells good twins from bad ones, and says of itself that it is not private."""

import dataclasses
import json

import numpy as np
import pyarrow
import pytest

import discreet as dp
from discreet.privacy.report import make_statement
from discreet.tabular.models import Levels
from discreet.tabular.synthetic._marginals import associations
from discreet.tabular.synthetic._report import APART, ASSOCIATION, ONE_COLUMN
from discreet.tabular.synthetic._utility import told_apart
from discreet.tabular.tables import schema_from_bounds, schema_from_toml

TOML = """
target = "smoker"

[columns.age]
kind = "real"
bounds = [0, 100]
unit = "years"

[columns.visits]
kind = "count"
bounds = [0, 50]

[columns.region]
kind = "categorical"
categories = ["north", "south", "east"]
missing = "indicator"

[columns.health]
kind = "ordered"
categories = ["bad", "fair", "good"]

[columns.born]
kind = "date"
bounds = [1920-01-01, 2020-12-31]

[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "schema.toml"
    path.write_text(TOML)
    return schema_from_toml(path)


def people(seed: int, rows: int = 600, *, scrambled: bool = False) -> pyarrow.Table:
    """Older people smoke more, go to the doctor more often, and were born earlier; or the same columns, each by itself."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, rows)
    region = rng.choice(np.array(["north", "south", "east", None], object), rows)
    columns = {
        "age": age,
        "visits": rng.poisson(np.exp(age / 40)).clip(0, 50),
        "region": region,
        "health": np.array(["good", "fair", "bad"])[np.minimum(age // 34, 2).astype(int)],
        "born": np.datetime64("2020-01-01") - (365 * age).astype("timedelta64[D]"),
        "smoker": np.where(rng.random(rows) < 1 / (1 + np.exp(-(age - 50) / 8)), "yes", "no"),
    }
    if scrambled:
        columns = {name: rng.permutation(values) for name, values in columns.items()}
    return pyarrow.table(columns)


@pytest.fixture(scope="module")
def good(schema):
    return dp.synthetic.utility_report(
        [people(1), people(2)], people(0), schema, training_table=people(3), non_private=True
    )


def test_good_twins_serve_like_real_rows(good) -> None:
    accuracy, spread = good.prediction("smoker", "accuracy")
    assert accuracy == np.mean([twin.prediction["smoker"]["accuracy"] for twin in good.twins])
    assert accuracy > 0.83  # the best rule is right in about 0.88
    assert good.training.prediction["smoker"]["accuracy"] > 0.83
    assert 0 <= spread < 0.05
    assert good.guessing["smoker"]["accuracy"] < 0.6
    assert good.guessing["smoker"]["AUC"] == 0.5
    # Rows of one population: AUC has a standard deviation of 0.017 with 600 of each; false alarm
    # below 1e-4.
    assert abs(good.figure(APART)[0] - 0.5) < 0.065
    assert good.figure(ONE_COLUMN)[0] < 0.1
    assert good.figure(ASSOCIATION)[0] < 0.08


def test_twins_whose_columns_know_nothing_of_each_other_are_found_out(good, schema) -> None:
    bad = dp.synthetic.utility_report(
        [people(1, scrambled=True)], people(0), schema, non_private=True
    )
    assert bad.prediction("smoker", "accuracy")[0] < 0.7
    assert bad.figure(ASSOCIATION)[0] > 4 * good.figure(ASSOCIATION)[0]
    assert bad.figure(APART)[0] > 0.8
    assert bad.figure(ONE_COLUMN)[0] < 0.1  # column by column they are as good
    assert "±" not in str(bad)
    assert bad.training is None


def test_the_page_and_the_json_say_that_they_are_not_private(good, schema) -> None:
    page, content = str(good), json.loads(good.to_json())
    assert "NOT PRIVATE" in page.splitlines()[0]
    assert "exact figures of 600 evaluation rows and 600 training rows" in " ".join(page.split())
    assert content["is_private"] is False
    assert content["not_private"] == good.statement_line
    assert (
        content["mean"]["prediction"]["smoker"]["accuracy"]
        == good.prediction("smoker", "accuracy")[0]
    )
    assert len(content["twins"]) == 2
    assert content["twins"][0]["one_way"].keys() == {column.name for column in schema.columns}
    assert max(map(len, page.splitlines())) <= 90
    for line in ("smoker (logistic regression)", "  AUC", "Farthest column"):
        assert line in page
    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(), clipping_norm=1.0, noise_multiplier=5.0, num_steps=1, num_records=9
    )
    statement = make_statement(plan, delta=1e-5, steps_completed=1, reproducible=False)
    assert "Not private: a report" in str(statement.with_notes(good.statement_line))


def test_without_a_target_each_column_is_explained(schema) -> None:
    free = dataclasses.replace(schema, target=None)
    report = dp.synthetic.utility_report(
        [people(1)], people(0), free, non_private=True, most_rows=400
    )
    assert report.models["visits"] == "Poisson regression"
    assert report.models["born"] == "ridge regression"
    assert report.prediction("age", "R²")[0] > 0.99  # the date of birth tells
    assert report.prediction("born", "mean absolute error")[0] < 200  # days, of 36,890
    assert report.prediction("visits", "deviance explained")[0] > 0.5
    assert report.prediction("health", "accuracy")[0] > 0.8
    # The region goes with nothing, and its missing cells are not to be explained.
    assert report.prediction("region", "accuracy")[0] < 0.45
    assert report.guessing["age"]["R²"] == pytest.approx(0)
    assert report.guessing["visits"]["deviance explained"] == pytest.approx(0)


def test_twins_that_lost_a_class_are_judged_all_the_same(schema) -> None:
    twin = people(1, 40)
    never = twin.set_column(5, "smoker", [["no"] * 40]).set_column(1, "visits", [[0] * 40])
    report = dp.synthetic.utility_report([never], people(0, 300), schema, non_private=True)
    assert report.prediction("smoker", "AUC")[0] == 0.5
    visits = dataclasses.replace(schema, target="visits")
    assert (
        dp.synthetic.utility_report([never], people(0, 300), visits, non_private=True).prediction(
            "visits", "deviance explained"
        )[0]
        < 0
    )


def test_associations_by_hand() -> None:
    levels = Levels(schema_from_bounds("a=no|yes,b=no|yes,c=x|y|z"), 8)
    same = np.array([[0, 0, 0], [1, 1, 0]] * 500)
    assert associations(levels, same) == {
        ("a", "b"): pytest.approx(1, abs=1e-3),
        ("a", "c"): 0.0,
        ("b", "c"): 0.0,
    }
    rng = np.random.default_rng(0)
    independent = np.stack(
        [rng.integers(0, 2, 1_000), rng.integers(0, 2, 1_000), rng.integers(0, 3, 1_000)], axis=1
    )
    # four standard deviations of a correlation
    assert max(associations(levels, independent).values()) < 0.13
    assert np.isnan(told_apart(same[:5], same))


def test_the_picture_shows_the_shares_of_both(good, tmp_path) -> None:
    figure = good.plot(tmp_path / "marginals.png")
    assert "NOT PRIVATE" in figure.get_suptitle()
    region = next(axes for axes in figure.axes if axes.get_title(loc="left") == "region")
    real = [bar.get_height() for bar in region.patches]
    assert real == list(good.shares["region"].first)
    assert sum(real) == pytest.approx(1)
    assert region.get_xticklabels()[-1].get_text() == "missing"
    assert (tmp_path / "marginals.png").stat().st_size < 150_000


@pytest.mark.parametrize(
    ("twins", "options", "words"),
    [
        ([people(1, 9)], {}, "non_private=True"),
        ([people(1, 9)], {"non_private": 1}, "non_private=True"),
        ([], {"non_private": True}, "no twin"),
        ([people(1, 9)], {"non_private": True, "most_rows": 1}, "most_rows"),
        (
            [people(1, 9), people(1, 9).drop("age")],
            {"non_private": True},
            "twin 2: the table has no column age",
        ),
    ],
)
def test_wrong_input_is_refused(twins, options, words, schema) -> None:
    with pytest.raises(ValueError, match=words):
        dp.synthetic.utility_report(twins, people(0, 9), schema, **options)
