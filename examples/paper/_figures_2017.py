"""Figures 1 to 3 of UAI 2017, on a table of any name: logistic regression, its accountants, its settings, and its successor.

Figure 1 compares methods and accountants, Figures 2 and 3 vary q and the clipping norm. Private
Newton has neither steps nor a clipping norm to choose: its line, by epsilon alone, is the same in
all three.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import _dpvi_2017
import numpy as np
from _dpvi_2017 import ADVANCED, ALIGNED, DPVI, MOMENTS, NEWTON, NON_PRIVATE, PLD, RULES, SGLD
from _experiment import STYLES, Rows, new_figure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Public choices. Clipping norms are the paper's: on gradients scaled by 1 / q, so discreet's C is q times as large."""

    sigmas: tuple[float, ...]  # Figure 1
    rate: float
    num_steps: int
    norm: float
    grid_sigmas: tuple[float, ...]
    grid_steps: int = 2000
    rates: tuple[float, ...]  # Figure 2, at `rates_norm`
    rates_norm: float
    norms: tuple[float, ...]  # Figure 3, at `norms_rate`
    norms_rate: float
    learning_rate: float = 0.1
    langevin_multipliers: tuple[float, ...]  # noise over C
    langevin_steps: int
    langevin_norm: float = 1.0
    langevin_step_size: float
    newton_epsilons: tuple[float, ...]
    newton_bound: float  # public, of the features' absolute values
    has_intercept: bool  # whether the first feature is one: private Newton has its own
    rules: tuple[str, ...] = (DPVI, ALIGNED)
    runs: int = 10
    seed: int
    non_private_steps: int
    non_private_rate: float


def run(data: Any, settings: Settings) -> Rows:
    """All fits to the table: training features and labels, test features and labels."""
    exact = _dpvi_2017.non_private_accuracy(
        data, num_steps=settings.non_private_steps, rate=settings.non_private_rate
    )
    rows: Rows = []
    for sigma in settings.sigmas:
        for method in settings.rules:
            rows.append(
                _fitted(
                    1,
                    method,
                    data,
                    settings,
                    sigma,
                    settings.rate,
                    settings.norm,
                    settings.num_steps,
                )
            )
    for multiplier in settings.langevin_multipliers:
        rows.append(_chain(data, settings, multiplier))
    for epsilon in settings.newton_epsilons:
        rows.append(_newton(data, settings, epsilon))
    for sigma in settings.grid_sigmas:
        for rate in settings.rates:
            rows.append(
                _fitted(
                    2, DPVI, data, settings, sigma, rate, settings.rates_norm, settings.grid_steps
                )
            )
        for norm in settings.norms:
            rows.append(
                _fitted(
                    3, DPVI, data, settings, sigma, settings.norms_rate, norm, settings.grid_steps
                )
            )
    none = dict.fromkeys(rows[0])
    return [*rows, {**none, "figure": 1, "method": NON_PRIVATE, "mean": exact}]


def _seeds(settings: Settings) -> list[int]:
    return _dpvi_2017.seeds(settings.seed, settings.runs)


def _fitted(
    figure: int,
    method: str,
    data: Any,
    settings: Settings,
    sigma: float,
    rate: float,
    norm: float,
    num_steps: int,
) -> dict[str, Any]:
    plan = _dpvi_2017.plan_of(
        sigma, rate=rate, num_steps=num_steps, clipping_norm=norm * rate, num_records=len(data[0])
    )
    values = _dpvi_2017.private_accuracies(
        data, plan, _seeds(settings), rule=RULES[method], rate=settings.learning_rate
    )
    return {
        "figure": figure,
        "method": method,
        "q": rate,
        "paper_norm": norm,
        "sigma": sigma,
        **_dpvi_2017.epsilons(plan),
        "epsilon_2015": None,
        **_dpvi_2017.summary(values),
    }


def _chain(data: Any, settings: Settings, multiplier: float) -> dict[str, Any]:
    plan = _dpvi_2017.plan_of(
        multiplier / 2,
        rate=settings.rate,
        num_steps=settings.langevin_steps,
        clipping_norm=settings.langevin_norm,
        num_records=len(data[0]),
    )
    return _dpvi_2017.langevin_row(
        data, plan, settings.langevin_step_size, _seeds(settings), figure=1, method=SGLD
    )


def _newton(data: Any, settings: Settings, epsilon: float) -> dict[str, Any]:
    x, y, x_test, y_test = data
    first = 1 if settings.has_intercept else 0
    table = (
        x[:, first:] / settings.newton_bound,
        y,
        x_test[:, first:] / settings.newton_bound,
        y_test,
    )
    reached, spent = _dpvi_2017.newton_accuracies(
        table, epsilon, _seeds(settings), relation=_dpvi_2017.REPLACE_ONE
    )
    unknown = dict.fromkeys(("q", "paper_norm", "sigma"))
    costs = {PLD: spent, MOMENTS: None, ADVANCED: None, "epsilon_2015": None}
    return {"figure": 1, "method": NEWTON, **unknown, **costs, **_dpvi_2017.summary(reached)}


def draw(rows: Rows, table: str) -> Any:
    """Accuracy against epsilon: methods and accountants, sampling rates, clipping norms."""
    figure, (left, middle, right) = new_figure(3, sharey=True)
    exact = rows[-1]["mean"]
    _dpvi_2017.figure_1(left, of(rows, 1))
    for axes, number, key, name in ((middle, 2, "q", "q"), (right, 3, "paper_norm", "C (paper)")):
        chosen = of(rows, number)
        for style, value in zip(STYLES, sorted({row[key] for row in chosen}), strict=False):
            _dpvi_2017.curve(
                axes, of(chosen, number, **{key: value}), PLD, f"{name} = {value:g}", style
            )
        _dpvi_2017.curve(axes, of(rows, 1, method=NEWTON), PLD, NEWTON, STYLES[-1])
    for axes, title in (
        (left, "Fig. 1: methods and accountants"),
        (middle, "Fig. 2: q"),
        (right, "Fig. 3: clipping"),
    ):
        axes.axhline(
            exact, color="#000000", linewidth=0.7, linestyle=(0, (1, 3)), label="not private"
        )
        axes.set(xscale="log", xlabel="ε at δ = 0.001", title=title)
        axes.legend(fontsize="x-small")
    left.set(ylabel=f"test accuracy, {table}")
    return figure


def of(rows: Rows, figure: int, **facts: Any) -> Rows:
    """The rows of a figure with these facts."""
    return [
        row
        for row in rows
        if row["figure"] == figure and all(row[key] == value for key, value in facts.items())
    ]


def check(rows: Rows, quick: bool, *, near: float, far: float) -> None:
    """The paper's findings, within what so many runs can tell.

    Args:
        rows: All rows.
        quick: Whether they are those of a quick run.
        near: How near to the non-private accuracy DPVI must come below epsilon 0.5.
        far: By how much the smallest clipping norm of Figure 3 must spoil the fit.
    """
    exact = rows[-1]["mean"]
    dpvi = of(rows, 1, method=DPVI)
    sgld = of(rows, 1, method=SGLD)
    assert dpvi[-1]["mean"] < dpvi[0]["mean"], "more noise, less accuracy"
    for row in rows:
        # What was run cost less than the paper's accountants say, by far for advanced composition.
        if row["method"] in RULES:
            assert row[PLD] < row[MOMENTS] < row[ADVANCED], row
    # Each by the accountants of their time, as the paper compares them.
    _dpvi_2017.assert_above_langevin(dpvi, sgld, MOMENTS)
    _dpvi_2017.assert_above_langevin(dpvi, sgld, ADVANCED, tolerance=0.005)
    best = of(rows, 1, method=NEWTON)[-1]
    assert abs(best["mean"] - exact) < (0.03 if quick else 0.015), (best, exact)
    weakest = min(row["paper_norm"] for row in of(rows, 3))
    assert of(rows, 3, paper_norm=weakest)[0]["mean"] < exact - far, "too small a C biases the fit"
    if quick:
        return
    assert max(row["mean"] for row in dpvi if row[PLD] < 0.5) > exact - near, (
        "near the non-private fit"
    )
    for figure, key in ((2, "q"), (3, "paper_norm")):
        chosen = of(rows, figure)
        least, most = (end(row[key] for row in chosen) for end in (min, max))
        low, high = (
            np.mean([row["mean"] for row in of(rows, figure, **{key: value})])
            for value in (least, most)
        )
        assert high > low, (figure, low, high)
