"""Results that no fit gave, made up of what a page can meet."""

from types import SimpleNamespace
from typing import Any

import numpy as np

import discreet as dp
from discreet.inference import Trace
from discreet.report import make_statement

HOSTILE = """</script><script>alert(1)</script><img src=x onerror="alert('2')">"&amp;{{ 7 * 7 }}\u2028"""
PLAN = dp.PrivacyPlan(
    sampling=dp.PoissonSampling(rate=0.1), clipping_norm=1.0, noise_multiplier=4.0, num_steps=200, num_records=4_000
)


def statement_of(plan: dp.PrivacyPlan = PLAN, **changes: Any) -> dp.Statement:
    """What a whole run of the plan states."""
    return make_statement(plan, **{"steps_completed": plan.num_steps, "reproducible": False, **changes})


def result_of(statement: dp.Statement | None = None, *, plan: dp.PrivacyPlan = PLAN, dim: int = 9) -> Any:
    """A fit that came to rest."""
    rng, steps = np.random.default_rng(0), plan.num_steps
    time = np.arange(steps)[:, None]
    walk = np.exp(-time / 10) * np.arange(dim) + rng.normal(0, 0.05, (steps, dim))
    return SimpleNamespace(
        statement=statement_of(plan) if statement is None else statement,
        plan=plan,
        params={HOSTILE: np.zeros(dim)},
        losses=500 - 300 * (1 - np.exp(-time[:, 0] / 20)) + rng.normal(0, 80, steps),
        clipping_norms=np.linspace(0.1, 2, steps),
        trace=Trace(np.arange(1, steps + 1), walk.astype(np.float32)),
        steps_completed=steps,
    )


def draws_of(dim: int = 5) -> dict[str, np.ndarray]:
    """Draws of a scalar and of a vector."""
    rng = np.random.default_rng(1)
    return {"intercept": rng.normal(1, 1, 400), HOSTILE: rng.normal(0, 2, (400, dim))}
