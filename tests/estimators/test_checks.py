"""scikit-learn's own checks of estimators; what they cannot have is what docs/estimators.md lists, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator
from tests.estimators.conftest import MAX_WEIGHT

from discreet.tabular.estimators import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)
from discreet.tabular.estimators._regressions import FROM_DATA

# All tables of the checks lie within these bounds; one public figure for their sizes means one
# plan.
SETTINGS: dict[str, Any] = {
    "bounds": (-4, 4),
    "epsilon": 20.0,
    "num_records": 100,
    "max_weight": MAX_WEIGHT,
    "num_draws": 100,
    "random_state": 0,
}
# These steps at epsilon = 20 show through the noise of tables of 20 to 300 records; they have no
# weights.
IN_STEPS: dict[str, Any] = {"num_steps": 200, "learning_rate": 0.05}
OF_WEIGHTS = (
    "check_sample_weights_pandas_series",
    "check_sample_weights_not_an_array",
    "check_sample_weights_list",
    "check_sample_weights_shape",
    "check_sample_weights_not_overwritten",
    "check_sample_weight_equivalence_on_dense_data",
)


class RoundedCounts(PoissonRegression):
    """Takes the checks' real targets for counts."""

    def _target(self, y: np.ndarray) -> np.ndarray:
        return super()._target(np.rint(y))


ESTIMATORS = {
    "linear": LinearRegression(target_bounds=(-10, 10), **SETTINGS),
    "logistic": LogisticRegression(classes=(0, 1, 2, 3), **SETTINGS),
    "poisson": PoissonRegression(**SETTINGS),
    "negative binomial": NegativeBinomialRegression(**SETTINGS),
    # What the exceptions are about, given way to: nothing is left to except.
    "counts, rounded": RoundedCounts(**SETTINGS),
    "logistic, classes from data": LogisticRegression(classes=FROM_DATA, **SETTINGS),
}


def exceptions(repository: Path, estimator: Any) -> dict[str, str]:
    """The table in docs/estimators.md: check -> reason."""
    if getattr(estimator, "classes", None) == FROM_DATA:
        return {}
    text = (repository / "docs" / "estimators.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+`) \| (`check_.+`) \| (.+) \|$", text, re.MULTILINE)
    mine = [
        (checks, reason)
        for names, checks, reason in rows
        if f"`{type(estimator).__name__}`" in names
    ]
    return {check: reason for checks, reason in mine for check in re.findall(r"check_\w+", checks)}


def results(estimator: Any, listed: dict[str, str]) -> list[tuple[str, str]]:
    """Each check's name and outcome."""
    done = check_estimator(estimator, expected_failed_checks=listed, on_fail=None, on_skip=None)
    assert len(done) > 40
    reasons = [f"{r['check_name']}: {r['exception']!r}" for r in done if r["status"] == "failed"]
    assert not reasons, "\n".join(reasons)
    return [(r["check_name"], r["status"]) for r in done]


def compare(outcomes: list[tuple[str, str]], listed: dict[str, str]) -> None:
    """All that is listed fails, in each of its variants."""
    assert {name for name, status in outcomes if status == "xfail"} >= set(listed), (
        "a listed check is gone or passes"
    )
    idle = {name for name, status in outcomes if status != "xfail"} & set(listed)
    assert not idle, f"listed as exceptions, but they pass: {idle}"


# of the stand-in, on separable classes
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("default")  # the checks warn of what they do themselves
@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_scikit_learns_checks(repository: Path, name: str) -> None:
    listed = exceptions(repository, ESTIMATORS[name])
    compare(results(ESTIMATORS[name], listed), listed)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("name", ["linear", "logistic", "counts, rounded"])
def test_scikit_learns_checks_on_private_fits(repository: Path, name: str) -> None:
    estimator = clone(ESTIMATORS[name])
    if name != "linear":
        estimator.set_params(**IN_STEPS)
    listed = exceptions(repository, estimator)
    if name != "linear":
        listed |= dict.fromkeys(OF_WEIGHTS, "a fit in steps has no weights")
    if name == "logistic":
        listed |= {"check_classifiers_one_label_sample_weights": "a fit in steps has no weights"}
    compare(results(estimator, listed), listed)


def test_a_listed_check_that_passes_is_found(repository: Path) -> None:
    listed = exceptions(repository, ESTIMATORS["logistic"])
    failing = [(name, "xfail") for name in listed]
    assert failing
    compare([*failing, ("check_dict_unchanged", "passed")], listed)
    for outcomes in (
        [*failing, (failing[0][0], "passed")],
        failing[1:],
        [(name, "skipped") for name in listed],
    ):
        with pytest.raises(AssertionError):
            compare(outcomes, listed)
