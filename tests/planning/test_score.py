import numpy as np
import pytest

from discreet.models import MixtureOfProducts
from discreet.planning._invent import marginal_errors, prediction_scores
from discreet.tables import schema_from_bounds


def test_regressions_are_scored_by_what_suits_the_target() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=1_000)
    scores = prediction_scores(truth + rng.normal(size=1_000), truth)
    # R² is 1/2; it scatters by 0.025, so that one seed in 10^4 is outside.
    assert scores == {"R²": pytest.approx(0.5, abs=0.1)}
    assert prediction_scores(np.ones(4), np.full(4, 0.5)) == {}
    assert prediction_scores(np.arange(3.0), np.full(3, np.nan)) == {}


def test_marginals_of_a_mixture_are_those_of_its_rows() -> None:
    twin = MixtureOfProducts(schema_from_bounds("a=x|y|z,b=no|yes,c=0:1"), components=3, slices=4)
    rng = np.random.default_rng(0)
    shapes = {"component": (3,), "base": (9,), "deviations": (3, 9)}
    truth, other = ({name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(2))
    assert marginal_errors(twin, truth, truth) == pytest.approx(
        {"distance of columns": 0.0, "distance of pairs": 0.0}, abs=1e-12
    )
    apart = marginal_errors(twin, other, truth)

    def shares(latents):
        records = twin.encode(twin.draw(latents, 100_000, np.random.default_rng(1)))
        table = np.zeros((3, 2, 4))
        np.add.at(table, tuple(records.T), 1e-5)
        return table

    difference = shares(truth) - shares(other)
    one = [np.abs(difference.sum(axis=others)).sum() / 2 for others in ((1, 2), (0, 2), (0, 1))]
    two = [np.abs(difference.sum(axis=other)).sum() / 2 for other in (0, 1, 2)]
    # The shares of 100,000 rows scatter by 0.002 at most; five times that is seen once in a million.
    assert apart["distance of columns"] == pytest.approx(np.mean(one), abs=0.01)
    assert apart["distance of pairs"] == pytest.approx(np.mean(two), abs=0.01)
