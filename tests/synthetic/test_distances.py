import numpy as np
import pytest

from discreet.tabular.synthetic import marginal_distances
from discreet.tabular.tables import schema_from_bounds

SCHEMA = schema_from_bounds("age=0:10,smoker=no|yes,region=a|b|c")


def table_of(age, smoker, region):
    return {"age": np.array(age, float), "smoker": np.array(smoker), "region": np.array(region)}


def test_figures_by_hand() -> None:
    real = table_of([1, 1, 9, 9], ["no", "no", "yes", "yes"], ["a", "a", "b", "b"])
    # Same columns one by one but for the region; smoking no longer goes with age.
    twin = table_of([1, 9, 1, 9], ["no", "no", "yes", "yes"], ["a", "a", "b", "c"])
    distances = marginal_distances(twin, real, SCHEMA, slices=2, non_private=True)
    assert distances.one_way == {"age": 0.0, "smoker": 0.0, "region": 0.25}
    assert distances.two_way == {
        ("age", "smoker"): 0.5,
        ("age", "region"): 0.75,
        ("smoker", "region"): 0.25,
    }
    assert distances.mean_one_way == pytest.approx(0.25 / 3)
    assert distances.mean_two_way == pytest.approx(0.5)
    assert "not private" in str(distances)


def test_a_table_is_at_no_distance_from_itself() -> None:
    rng = np.random.default_rng(0)
    # More rows than are counted at once.
    table = table_of(
        rng.uniform(0, 10, 70_000),
        rng.choice(["no", "yes"], 70_000),
        rng.choice(["a", "b", "c"], 70_000),
    )
    distances = marginal_distances(table, table, SCHEMA, non_private=True)
    assert distances.mean_one_way == distances.mean_two_way == 0.0


def test_the_table_must_be_named_non_private() -> None:
    table = table_of([1], ["no"], ["a"])
    for flag in ({}, {"non_private": False}, {"non_private": 1}):
        with pytest.raises(ValueError, match="non_private=True"):
            marginal_distances(table, table, SCHEMA, **flag)
