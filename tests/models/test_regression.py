import jax
import numpy as np
import numpyro
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from discreet.models import (
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)

WEIGHTS = np.array([0.8, -0.5, 0.0])
INTERCEPT = 0.3


def table_for(name: str):
    rng = np.random.default_rng(5)
    x = rng.uniform(-1, 1, size=(4_000, 3)).astype(np.float32)
    predictor = INTERCEPT + x @ WEIGHTS
    if name == "logistic":
        return x, (rng.random(len(x)) < 1 / (1 + np.exp(-predictor))).astype(np.float32)
    if name == "linear":
        return x, (predictor + 0.2 * rng.normal(size=len(x))).astype(np.float32)
    return x, rng.poisson(np.exp(predictor)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "model"),
    [("logistic", logistic_regression), ("linear", linear_regression), ("poisson", poisson_regression)],
)
def test_each_model_finds_the_truth(name, model) -> None:
    x, y = table_for(name)
    guide = AutoNormal(model)
    fit = SVI(model, guide, numpyro.optim.Adam(0.02), Trace_ELBO()).run(
        jax.random.key(0), 1_500, x, y, progress_bar=False
    )
    median = guide.median(fit.params)
    # Five standard errors of the loosest of the three (logistic: about 0.06).
    np.testing.assert_allclose(median["weights"], WEIGHTS, atol=0.3)
    np.testing.assert_allclose(median["intercept"], INTERCEPT, atol=0.2)


@pytest.mark.parametrize(
    "model", [logistic_regression, linear_regression, poisson_regression, negative_binomial_regression]
)
def test_the_record_plate_follows_the_table(model) -> None:
    for num_records in (2, 3):
        seeded = numpyro.handlers.seed(model, jax.random.key(0))
        trace = numpyro.handlers.trace(seeded).get_trace(np.zeros((num_records, 4), np.float32))
        assert trace["data"]["args"][0] == num_records
        assert trace["y"]["value"].shape == (num_records,)
        assert trace["weights"]["value"].shape == (4,)
        assert np.isfinite(trace["y"]["value"]).all()


def test_classes_sum_to_zero_and_their_number_is_public() -> None:
    seeded = numpyro.handlers.seed(multinomial_regression(3), jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(np.zeros((5, 4), np.float32))
    assert trace["weights"]["value"].shape == (4, 3)
    np.testing.assert_allclose(trace["weights"]["value"].sum(axis=1), 0, atol=1e-5)
    assert abs(float(trace["intercept"]["value"].sum())) < 1e-5
    assert set(np.asarray(trace["y"]["value"]).tolist()) <= {0, 1, 2}
    for wrong in (1, 2.0, True):
        with pytest.raises(ValueError, match="num_classes"):
            multinomial_regression(wrong)
