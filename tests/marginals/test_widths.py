"""Half-widths of intervals, known before anything is spent, and the ε for one that is asked for."""

import numpy as np
import pyarrow
import pyarrow.compute
import pytest
from tests.marginals.invented import exact, noisy

import discreet as dp
from discreet.tabular.marginals import (
    Description,
    _widths as widths_module,
    description_plan,
    epsilon_for_widths,
    half_widths,
)
from discreet.tabular.tables import Column, Kind, Missing, Schema

ROWS = 5_000
RNG = np.random.default_rng(0)
TABLE = pyarrow.table(
    {
        "middle": RNG.normal(50, 10, ROWS).clip(0, 100),
        "end": np.full(ROWS, 90.0),
        "dose": RNG.integers(0, 10, ROWS) / 2,
        "visits": pyarrow.array(RNG.poisson(3, ROWS).clip(0, 9), mask=np.arange(ROWS) % 2 == 0),
        "region": np.repeat(["a", "b"], [4_000, 1_000]),
        "smoker": np.repeat(["no", "yes", "no", "yes"], [3_000, 1_000, 700, 300]),
    }
)
SCHEMA = Schema(
    columns=(
        Column(name="middle", kind=Kind.REAL, bounds=(0.0, 100.0)),
        Column(name="end", kind=Kind.REAL, bounds=(0.0, 100.0)),
        Column(name="dose", kind=Kind.REAL, bounds=(0.0, 4.5), step=0.5),
        Column(name="visits", kind=Kind.COUNT, bounds=(0, 9), missing=Missing.INDICATOR),
        Column(name="region", kind=Kind.BINARY, categories=("a", "b")),
        Column(name="smoker", kind=Kind.BINARY, categories=("no", "yes")),
    )
)


def seen(plan, by=(), draws: int = 40) -> dict[str, np.ndarray]:
    """Half-widths of the intervals of descriptions of the table, or of its smallest group; of categories the widest share."""
    released, rng = exact(plan, TABLE), np.random.default_rng(1)
    found: dict[str, list[float]] = {}
    for _ in range(draws):
        described = Description.of(noisy(released, rng, plan.drawn / plan.noise), by=by)
        columns = described.groups[-1].columns if by else described.columns
        for name, x in columns.items():
            figure = x.shares if x.mean is None else x.mean
            found.setdefault(name, []).append(np.max(figure.high - figure.low) / 2)
    return {name: np.array(x) for name, x in found.items()}


@pytest.mark.parametrize("by", [(), ("region",)])
def test_half_widths_are_reached_and_hardly_ever_exceeded(by) -> None:
    plan = description_plan(SCHEMA, epsilon=0.5, delta=1e-6, by=by)
    rows = 1_000 if by else ROWS
    means = {
        name: pyarrow.compute.mean(TABLE[name]).as_py()
        for name in ("middle", "end", "dose", "visits")
    }
    promised = half_widths(plan, rows, by=by, means=means)
    # half of the cells are missing
    promised["visits"] = half_widths(plan, rows // 2, by=by, means=means)["visits"]
    for name, found in seen(plan, by).items():
        assert np.mean(found <= promised[name]) > 0.9, name
        assert np.mean(found) / promised[name] > 0.75, name


def test_without_a_guess_the_mean_may_lie_anywhere() -> None:
    plan = description_plan(SCHEMA, epsilon=0.5, delta=1e-6)
    anywhere = half_widths(plan, ROWS)
    assert anywhere["middle"] == half_widths(plan, ROWS, means={"middle": 100.0})["middle"]
    assert (
        1.1 < anywhere["middle"] / half_widths(plan, ROWS, means={"middle": 50.0})["middle"] < 1.42
    )
    assert half_widths(plan, 1) == {
        "middle": 50,
        "end": 50,
        "dose": 2.25,
        "visits": 4.5,
        "region": 0.5,
        "smoker": 0.5,
    }


@pytest.mark.parametrize(
    "options", [{}, {"by": [("region", "smoker")]}, {"pairs": "all", "level": 0.99}]
)
def test_the_least_epsilon_is_found(options: dict) -> None:
    """What is a percent below it is not enough; persons with two rows need more."""
    wanted = {"middle": 2.0, "visits": 0.5}
    epsilon = epsilon_for_widths(SCHEMA, wanted, num_records=1_000, delta=1e-6, **options)
    described = {name: options[name] for name in ("by", "pairs") if name in options}
    asked = {name: options[name] for name in ("by", "level") if name in options}
    enough = []
    for share in (0.99, 1.0):
        plan = description_plan(SCHEMA, epsilon=share * epsilon, delta=1e-6, **described)
        found = half_widths(plan, 1_000, **asked)
        enough.append(all(found[name] <= width for name, width in wanted.items()))
    assert enough == [False, True]
    several = Schema(columns=SCHEMA.columns, person="id", max_rows=2)
    assert (
        epsilon_for_widths(several, wanted, num_records=1_000, delta=1e-6, **options)
        > 1.5 * epsilon
    )


def test_intervals_of_a_real_release_are_as_narrow_as_asked() -> None:
    epsilon = epsilon_for_widths(
        SCHEMA, {"middle": 1.0}, num_records=ROWS, delta=1e-6, means={"middle": 50}
    )
    found = dp.describe(TABLE, SCHEMA, epsilon=epsilon, delta=1e-6).columns["middle"].mean
    assert 0.85 < (found.high - found.low) / 2 <= 1.0


@pytest.mark.parametrize(
    ("widths", "options", "said"),
    [
        ({}, {}, "no column"),
        ({"height": 1.0}, {}, "widths names height"),
        ({"middle": 0.0}, {}, "the width of middle is 0.0"),
        ({"middle": 1e-9}, {}, "above 100, which protects nobody"),
        ({"middle": 1.0}, {"means": {"region": 1.0}}, "means names region"),
        ({"middle": 1.0}, {"means": {"middle": 101.0}}, "the guess of the mean of middle is 101.0"),
        ({"middle": 1.0}, {"by": "dose"}, "by has dose"),
        ({"region": 0.1}, {"by": "region"}, "widths names region"),
        ({"middle": 1.0}, {"level": 2}, "level is 2"),
        ({"middle": 1.0}, {"num_records": 0}, "num_records is 0"),
    ],
)
def test_wrong_widths_are_refused(widths: dict, options: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        epsilon_for_widths(SCHEMA, widths, **{"num_records": 1_000, "delta": 1e-6} | options)


def test_a_law_without_the_number_of_records_is_seen(monkeypatch) -> None:
    """Its noise moves the mean of values at the end of their bounds as much as that of the sum does."""
    law = widths_module._law
    monkeypatch.setattr(
        widths_module, "_law", lambda x, mean: law(x, None if mean is None else 50.0)
    )
    plan = description_plan(SCHEMA, epsilon=0.5, delta=1e-6)
    found = seen(plan, draws=10)["end"]
    assert np.mean(found) > 0.6 * half_widths(plan, ROWS, means={"end": 90.0})["end"]
