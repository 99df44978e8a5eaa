"""The delta of a fit that is given none leaves a ledger room for a sum by epsilon."""

from pathlib import Path
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import discreet as dp
from discreet.methods import choose
from discreet.methods.newton import ModelPlan

N = 3_000


def book_of(folder: Path) -> dp.Ledger:
    return dp.Ledger.create(folder / "book.ledger", dataset="people", epsilon=3.0, delta=1e-5)


def model(y: Any) -> None:
    rate: Any = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def test_fits_are_charged_their_own_epsilon(tmp_path: Path) -> None:
    """With the cap's own delta, ε = 1 was charged as 1.3 in Python, and as 1 by the command line."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, N)
    ill = rng.random(N) < x
    schema = dp.tables.schema_from_bounds("x=0:1,ill=no|yes")
    table = {"x": x, "ill": np.where(ill, "yes", "no")}
    book = book_of(tmp_path)
    dp.regress("ill ~ x", table, schema, family="bernoulli", epsilon=1.0, ledger=book)
    assert book.spent <= 1.001
    dp.estimators.LogisticRegression(bounds=([0.0], [1.0]), epsilon=1.0).fit(
        x[:, None], ill, ledger=book
    )
    assert book.spent <= 2.002


def test_so_is_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def calibrate(**terms: Any) -> None:
        found.append(terms["delta"])
        raise ValueError("seen")

    monkeypatch.setattr(ModelPlan, "calibrate", calibrate)
    for ledger in (None, book_of(tmp_path)):
        with pytest.raises(ValueError, match="seen"):
            choose.fit(model, np.ones(N), epsilon=1.0, ledger=ledger)
    assert found == [1e-5, 1e-6]
