"""Results that no fit gave, made up of what a page can meet."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np

import discreet as dp
from discreet.methods.inference import Trace
from discreet.privacy.report import make_statement

HOSTILE = (
    """</script><script>alert(1)</script><img src=x onerror="alert('2')">"&amp;{{ 7 * 7 }}\u2028"""
)
PLAN = dp.PrivacyPlan(
    sampling=dp.PoissonSampling(rate=0.1),
    clipping_norm=1.0,
    noise_multiplier=4.0,
    num_steps=200,
    num_records=4_000,
)


def statement_of(plan: dp.PrivacyPlan = PLAN, **changes: Any) -> dp.Statement:
    """The statement of a whole run of the plan."""
    return make_statement(
        plan, **{"steps_completed": plan.num_steps, "reproducible": False, **changes}
    )


def with_figures(statement: dp.Statement, **figures: Any) -> dp.Statement:
    """The statement with other figures."""
    return dataclasses.replace(statement, figures=dataclasses.replace(statement.figures, **figures))


def result_of(
    statement: dp.Statement | None = None,
    *,
    plan: dp.PrivacyPlan = PLAN,
    dim: int = 9,
    name: str = HOSTILE,
) -> Any:
    """A fit that came to rest."""
    rng, steps = np.random.default_rng(0), plan.num_steps
    time = np.arange(steps)[:, None]
    walk = np.exp(-time / 10) * np.arange(dim) + rng.normal(0, 0.05, (steps, dim))
    return SimpleNamespace(
        statement=statement_of(plan) if statement is None else statement,
        plan=plan,
        params={name: np.zeros(dim)},
        losses=500 - 300 * (1 - np.exp(-time[:, 0] / 20)) + rng.normal(0, 80, steps),
        clipping_norms=np.linspace(0.1, 2, steps),
        shares=np.full((steps, 2), [0.01, 1.0]),
        trace=Trace(np.arange(1, steps + 1), walk.astype(np.float32)),
        steps_completed=steps,
    )


def draws_of(dim: int = 5) -> dict[str, np.ndarray]:
    """Draws of a scalar and of a vector."""
    rng = np.random.default_rng(1)
    return {"intercept": rng.normal(1, 1, 400), HOSTILE: rng.normal(0, 2, (400, dim))}


def description_facts(hostile: str = HOSTILE) -> dict:
    """Facts of a `description.json`: more categories than are shown, dates with missing cells, pairs, a group."""

    def levels(number):
        return {"value": [1 / number] * number, "low": [0.0] * number, "high": [1.0] * number}

    def column(kind, labels, edges=(), **figures):
        known = {
            "kind": kind,
            "rule": hostile,
            "labels": labels,
            "edges": list(edges),
            "mean": None,
            "sd": None,
        }
        shares = levels(len(labels))
        return {**known, "quantiles": {}, "counts": shares, "shares": shares, **figures}

    def figure(value, low, high):
        return {"value": value, "low": low, "high": high}

    many = [f"c{i}" for i in range(60)]
    days = figure("1970-01-03", "1970-01-01", "1970-01-09")
    born = {"mean": days, "sd": figure(20.25, 0.0, 31.0), "quantiles": {"0.5": days}}
    less = {"mean": figure(-1500.4, -1600.0, -1400.0), "sd": figure(0.5, -0.0, 1.0)}
    return {
        "counted": "records",
        "num_persons": None,
        "persons_cut": None,
        "num_records": figure(1234.4, 1000.0, 2000.0),
        "intervals": hostile,
        "columns": {
            hostile: column("categorical", many),
            "born": column(
                "date", ["a", "b", "missing"], ["1970-01-01", "1971-01-01", "1973-01-01"], **born
            ),
            "change": column("real", ["a"], [-2000.0, 0.0], unit="kg", **less),
        },
        "pairs": [
            {
                "columns": ["born", "born"],
                "shares": {part: [[x] * 3] * 3 for part, x in figure(0.1234, 0.1, 0.2).items()},
            },
            {"columns": [hostile, hostile], "shares": levels(60)},
        ],
        "groups": [
            {
                "by": hostile,
                "label": hostile,
                "num_persons": None,
                "num_records": figure(12.0, 10.0, 20.0),
                "columns": {
                    hostile: column("categorical", many * 7),
                    "born": column(
                        "date",
                        ["a", "b", "missing"],
                        ["1970-01-01", "1971-01-01", "1973-01-01"],
                        **born,
                    ),
                },
            }
        ],
    }
