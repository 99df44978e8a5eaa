"""How to add a family, as CONTRIBUTING.md says: exponential times, from the function to the fit."""

import re
from typing import get_args

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import discreet as dp
from discreet.interfaces.cli import _options
from discreet.tabular.models import FAMILIES, Family
from discreet.tabular.tables import Column


def exponential(column: Column) -> Family:
    assert column.limits[0] >= 0
    return Family(
        weight_scale=1.0,
        intercept_scale=3.0,
        target=lambda predictor: dist.Exponential(jnp.exp(-predictor)),
        name="exponential",
        coefficient="a coefficient is a difference of log means",
        mean=lambda predictor, latents: np.exp(predictor),
        units="log",
    )


def test_every_family_is_named_where_one_is_chosen() -> None:
    """The docstring of `regress` and the help of `--family`, which loads no model, list them by hand."""
    helped = get_args(_options.Family)[1].help
    for name in FAMILIES:
        assert re.search(rf"\b{name}\b", dp.regress.__doc__ or "")
        assert re.search(rf"\b{name}\b", helped)


def test_a_family_that_is_entered_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "exponential", exponential)
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 60, 5_000)
    wait = np.minimum(rng.exponential(np.exp(1 + 0.02 * (age - 40))), 60)
    schema = dp.tables.schema_from_bounds("age=20:60,wait=0:60")
    key = dp.random.key(0)
    result = dp.regress(
        "wait ~ age",
        {"age": age, "wait": wait},
        schema,
        family="exponential",
        epsilon=10.0,
        rng_key=key,
    )
    assert abs(result.estimate["age"] - 0.02) < 4 * result.draws["age"].std()
    assert abs(result.predict({"age": [40.0]}).estimate[0] / np.exp(1) - 1) < 0.1
    assert "a difference of log means" in str(result.statement)
