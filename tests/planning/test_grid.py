import pytest

import discreet as dp
from discreet.planning import Grid, Setting
from discreet.planning._invent import _calibrated, plan_for


def test_all_combinations_are_tried_and_batches_suit_the_table() -> None:
    settings = Grid(steps=(10, 20), learning_rates=(0.1,)).settings(100_000, 2.0)
    assert len(settings) == 2 * 2 * 3
    assert {s.rate for s in settings} == {0.005, 0.02}
    assert {s.clipping_norm for s in settings} == {4.0, 2.0, 1.0}
    assert Grid().rates_for(1_500) == (0.333, 1.0)


def test_the_noise_is_that_of_the_plan() -> None:
    plan = plan_for(Setting(10, 0.2, 0.7, 0.05), 1.0, 1e-5, 1_000)
    assert 0.999 <= plan.epsilon(1e-5) <= 1.0
    assert plan.clipping_norm == 0.7
    assert plan.sampling == dp.PoissonSampling(rate=0.2)
    hits = _calibrated.cache_info().hits
    other = plan_for(Setting(10, 0.2, 3.0, 0.1), 1.0, 1e-5, 1_000)
    assert (other.noise_multiplier, other.clipping_norm) == (plan.noise_multiplier, 3.0)
    assert _calibrated.cache_info().hits == hits + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": ()},
        {"steps": (0,)},
        {"steps": (1.5,)},
        {"steps": (True,)},
        {"rates": (1.5,)},
        {"rates": (0.0,)},
        {"clipping_norms": (float("inf"),)},
        {"clipping_norms": (-1.0,)},
        {"learning_rates": (float("nan"),)},
        {"learning_rates": ("0.1",)},
    ],
)
def test_a_wrong_grid_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=f"^(a value of )?{next(iter(wrong))} is"):
        Grid(**wrong)
