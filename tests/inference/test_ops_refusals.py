"""Refusals of `OnePosteriorSample`, before anything is drawn."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from discreet import random
from discreet.methods.inference import OnePosteriorSample, _ops
from discreet.methods.inference._chains import Chains
from discreet.privacy.accounting import Relation

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.linspace(-1.0, 1.0, 20, dtype=np.float32)


def location(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Normal(0, 2))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(theta, 1.0), obs=x)


def dropout(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Normal(0, 2))
    with numpyro.plate("data", x.shape[0]):
        kept = jax.random.bernoulli(numpyro.prng_key(), 0.5, x.shape)
        numpyro.sample("x", dist.Normal(theta * kept, 1.0), obs=x)


@pytest.fixture
def no_chains(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Chains that stand still at zero instead of NUTS; the list holds the keys that they were given."""
    keys: list[Any] = []

    def stand_still(posterior: Any, shapes: Any, leaves: Any, key: Any, **options: Any) -> Chains:
        keys.append(key)
        size = options["num_chains"], options["num_samples"]
        return Chains(
            {n: np.zeros((*size, *x.shape), np.float32) for n, x in shapes.items()},
            np.zeros(size, bool),
        )

    monkeypatch.setattr(_ops, "run_chains", stand_still)
    return keys


@pytest.mark.essential
def test_a_random_log_likelihood_is_refused(no_chains: list[Any]) -> None:
    """tests/test_act.py has what is refused by each method."""
    with pytest.raises(ValueError, match="log-likelihood is random"):
        OnePosteriorSample(dropout, log_likelihood_bound=3.0, epsilon=1.0).run(
            random.key(), X, progress_bar=False
        )
    assert not no_chains


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either log_likelihood_bound"),
        ({"lipschitz": 1.0}, "either log_likelihood_bound"),
        (
            {"log_likelihood_bound": 1.0, "lipschitz": 1.0, "radius": 1.0},
            "either log_likelihood_bound",
        ),
        ({"log_likelihood_bound": 0.0}, "log_likelihood_bound is 0.0"),
        ({"log_likelihood_bound": -1.0}, "log_likelihood_bound is -1.0"),
        ({"log_likelihood_bound": math.nan}, "log_likelihood_bound is nan"),
        ({"log_likelihood_bound": (1.0, -1.0)}, "pair holds two finite numbers"),
        ({"log_likelihood_bound": (-math.inf, 0.0)}, "pair holds two finite numbers"),
        ({"log_likelihood_bound": (1e8, 1e8 + 1)}, "as 32-bit numbers"),
        ({"log_likelihood_bound": 1.0, "num_draws": 1001}, "no pure epsilon"),
        ({"lipschitz": 1.0, "radius": -2.0}, "radius is -2.0"),
        (
            {"lipschitz": 1.0, "radius": 1.0, "relation": Relation.ADD_OR_REMOVE_ONE},
            "one record replaced only",
        ),
        ({"log_likelihood_bound": 1.0, "epsilon": 0.0}, "epsilon is 0.0"),
        ({"log_likelihood_bound": 1.0, "epsilon": math.inf}, "epsilon is inf"),
        ({"log_likelihood_bound": 1.0, "epsilon": None}, "epsilon is None"),
        ({"log_likelihood_bound": 1.0, "num_draws": 0}, "num_draws is 0"),
        ({"log_likelihood_bound": 1.0, "num_chains": 1}, "num_chains is 1"),
        ({"log_likelihood_bound": 1.0, "scale": np.array([math.nan])}, "'scale' holds a NaN"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OnePosteriorSample(location, **{"epsilon": 1.0, **options})


def test_the_randomness_of_chains_is_a_secret_key_and_not_a_short_one(no_chains: list[Any]) -> None:
    ops = OnePosteriorSample(location, log_likelihood_bound=3.0, epsilon=1.0, num_draws=2)
    assert ops.run(random.key(), X, progress_bar=False).draws["theta"].tolist() == [0.0, 0.0]
    (key,) = no_chains
    assert not random.is_reproducible(key)


@pytest.mark.usefixtures("no_chains")
def test_a_hidden_number_of_records() -> None:
    hidden = OnePosteriorSample(
        location,
        log_likelihood_bound=3.0,
        epsilon=1.0,
        relation=Relation.ADD_OR_REMOVE_ONE,
        num_records=21,
    )
    statement = hidden.run(random.key(), X, progress_bar=False).statement
    # A bound of 3 nats has twice the power here, and neither 20 nor 21 is told.
    assert statement.plan["power"] == pytest.approx(1 / 6, rel=1e-6)
    assert not {"20", "21"} & set(str(statement).replace(".", " ").replace(",", " ").split())
