"""Draws for ArviZ: named axes, the statement beside them, and nothing of the records."""

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet.methods.inference import _noise_aware
from discreet.privacy.report import make_statement

# one release, whose price is quickly found
PLAN = dp.PrivacyPlan(
    sampling=dp.FullBatch(), clipping_norm=1.0, noise_multiplier=5.0, num_steps=1, num_records=100
)
SAMPLES = {"weights": np.arange(12.0).reshape(4, 3), "scale": np.ones(4)}
WRONG = [
    ({}, {}, "no draws"),
    ({"a": np.ones(3), "b": np.ones(4)}, {}, "numbers of draws"),
    ({"a": np.float32(1)}, {}, "numbers of draws"),
    ({"draw": np.ones(3)}, {}, "another name"),
    (SAMPLES, {"dims": {"weight": ["feature"]}}, "dims names weight"),
    (SAMPLES, {"dims": {"weights": []}}, "name each axis"),
    (SAMPLES, {"feature_names": ["a", "b"]}, "no latent has a last axis"),
]


@pytest.fixture(scope="module")
def statement():
    return make_statement(PLAN, delta=1e-5, steps_completed=1, reproducible=False)


def test_axes_have_names_and_the_statement_goes_along(statement) -> None:
    pytest.importorskip("arviz")
    data = dp.inference_data.to_arviz(
        SAMPLES,
        statement=statement,
        feature_names=["age", "region=north", "smoker"],
        note="as drawn",
    )
    posterior = data["posterior"]
    assert posterior["weights"].dims == ("chain", "draw", "feature")
    assert posterior["scale"].shape == (1, 4)
    np.testing.assert_array_equal(
        posterior["weights"].sel(feature="region=north").values, [[1.0, 4.0, 7.0, 10.0]]
    )
    assert posterior["scale"].dims == ("chain", "draw")
    for attributes in (data.attrs, posterior.attrs):
        assert (attributes["epsilon"], attributes["delta"]) == (statement.epsilon, 1e-5)
        assert attributes["relation"] == "ADD_OR_REMOVE_ONE"
        assert attributes["private"] == "yes"
        assert attributes["statement"] == statement.to_json()
        assert attributes["note"] == "as drawn"


def test_a_summary_compares_two_chains() -> None:
    """Of one, az.summary has no R-hat, and logs that chains are missing."""
    az = pytest.importorskip("arviz")
    drawn = np.random.default_rng(0).normal(size=(1000, 3))
    data = dp.inference_data.to_arviz({"weights": drawn}, statement=None)
    np.testing.assert_array_equal(data["posterior"]["weights"].values.reshape(1000, 3), drawn)
    assert np.isfinite(np.asarray(az.summary(data)["r_hat"], float)).all()


def test_there_is_nothing_but_the_posterior(statement) -> None:
    pytest.importorskip("arviz")
    data: Any = dp.inference_data.to_arviz(SAMPLES, statement=statement)
    groups: list[str] = list(data.groups() if callable(data.groups) else data.groups)
    assert {str(name).strip("/") for name in groups} - {""} == {"posterior"}


def test_own_names_of_axes_and_prior_draws() -> None:
    pytest.importorskip("arviz")
    data = dp.inference_data.to_arviz(
        SAMPLES | {"matrix": np.zeros((4, 2, 3))},
        statement=None,
        feature_names=["a", "b", "c"],
        dims={"weights": ["place"]},
        coords={"place": [10, 20, 30]},
    )
    assert data["posterior"]["weights"].sel(place=20).values.tolist() == [[1.0, 4.0, 7.0, 10.0]]
    assert data["posterior"]["matrix"].dims == ("chain", "draw", "matrix_dim_0", "feature")
    assert "epsilon" not in data.attrs


def test_a_broken_guarantee_is_said(statement) -> None:
    pytest.importorskip("arviz")
    broken = dataclasses.replace(
        statement.with_violations("bounds from the data"), reproducible=True
    )
    said = dp.inference_data.to_arviz(SAMPLES, statement=broken).attrs["private"]
    assert said == "no: bounds from the data; the random bits can be repeated"
    infinite = dataclasses.replace(
        statement, figures=dataclasses.replace(statement.figures, epsilon=float("inf"))
    )
    assert (
        "no finite epsilon"
        in dp.inference_data.to_arviz(SAMPLES, statement=infinite).attrs["private"]
    )


def test_without_arviz_the_remedy_is_said(statement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match=r"pip install 'discreet\[arviz\]'"):
        dp.inference_data.to_arviz(SAMPLES, statement=statement)


@pytest.mark.parametrize(("samples", "options", "words"), WRONG)
def test_wrong_input_is_refused(samples, options, words) -> None:
    with pytest.raises(ValueError, match=words):
        dp.inference_data.to_arviz(samples, statement=None, **options)


def test_draws_of_a_fit_in_steps_allow_for_its_noise(
    statement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the one function; tests/test_released.py has the other results."""
    from discreet import inference
    from discreet.methods.inference import _result

    calls = []
    monkeypatch.setattr(
        _noise_aware, "to_arviz", lambda samples, **options: calls.append((samples, options))
    )
    monkeypatch.setattr(
        _noise_aware.NoiseAware, "posterior", lambda self, key, number: ("aware", number)
    )
    trace = _result.Trace(np.arange(2), np.zeros((2, 1)))
    common = {
        "losses": np.zeros(2),
        "trace": trace,
        "statement": statement,
        "plan": PLAN,
        "steps_completed": 2,
    }
    fit = inference.DPSVIResult(
        params={},
        last_params={},
        clipping_norms=np.ones(2),
        shares=np.zeros((2, 2)),
        _objective=object(),
        **common,
    )
    options = {
        "method": "trace",
        "start": 0.5,
        "corrected": np.ones(1),
        "mean": np.zeros(1),
        "stddev": np.ones(1),
    }
    aware = _noise_aware.NoiseAware(**options, _objective=None, _unravel=None, _draws=None)
    monkeypatch.setitem(_noise_aware.METHODS, "trace", lambda *given: aware)
    fit.to_arviz(None, 7, feature_names=["a"])
    fit.noise_aware("trace").to_arviz(None, 8)
    assert [samples for samples, _ in calls] == [("aware", 7), ("aware", 8)]
    assert all(options["statement"] is statement for _, options in calls)
    assert "allowed for" in calls[0][1]["note"]
    assert calls[0][1]["feature_names"] == ["a"]
    chain = {"draws": SAMPLES, "draw_steps": np.arange(4), "step_sizes": np.ones(2), **common}
    with pytest.raises(ValueError, match="finite numbers"):
        inference.DPSGLDResult(**chain, diverged_at=1).to_arviz()
