"""The tutorial on DPVI and one posterior sample: logistic regression on the breast cancer table, at four epsilons.

    python examples/paper/tutorial.py [--quick] [--out docs/papers]

How the exact negative ELBO falls step by step, and what is reached; what the tutorial's own noise
really costs; private Newton.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import _dpvi_2017
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from _dpvi_2017 import NEWTON
from _experiment import STYLES, Rows, experiment, new_figure
from scipy.special import expit
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import discreet as dp

DPVI, OPS, NON_PRIVATE, TUTORIAL = (
    "DPVI",
    "one posterior sample",
    "not private",
    "the tutorial's noise",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices; the tutorial's where it says any."""

    epsilons: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)
    delta: float = 1e-3
    rate: float = 0.05
    num_steps: int = 500
    norm: float = 1.0
    learning_rate: float = 0.01
    tutorial_norm: float = 5.0
    log_likelihood_low: float = -3.0
    newton_bound: float = 4.0  # public, of the standardised features
    sampler_steps: int = 1000
    runs: int = 10
    elbo_every: int = 10
    elbo_draws: int = 64
    non_private_steps: int = 2000
    seed: int = 4


QUICK = Settings(epsilons=(0.1, 10.0), sampler_steps=200, runs=2, non_private_steps=1000)


def table() -> Any:
    """Intercept and the first four standardised columns; 70 % to learn from."""
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit_transform(x)[:, :4]
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1).astype(np.float32)
    x, x_test, y, y_test = train_test_split(x, y.astype(np.float32), test_size=0.3, random_state=42)
    return x, y, x_test, y_test


def run(settings: Settings) -> Rows:
    """All fits. Curves hold the exact negative ELBO of a record along each fit, mean over the runs: the table is public."""
    data = table()
    exact = _dpvi_2017.non_private_accuracy(
        data, num_steps=settings.non_private_steps, rate=settings.learning_rate
    )
    rows: Rows = [_row(NON_PRIVATE, None, {}, np.array([exact]))]
    for epsilon in settings.epsilons:
        rows.append(_dpvi(data, epsilon, settings))
    for epsilon in settings.epsilons:
        rows.append(_ops(data, epsilon, settings))
    for epsilon in settings.epsilons:
        rows.append(_newton(data, epsilon, settings))
    return rows + [_tutorial(len(data[0]), epsilon, settings) for epsilon in settings.epsilons]


def _row(method: str, epsilon: float | None, facts: dict[str, Any], values: Any) -> dict[str, Any]:
    spread = {"mean": None, "stderr": None}
    if values is not None:
        spread = (
            _dpvi_2017.summary(values)
            if len(values) > 1
            else {"mean": float(values[0]), "stderr": None}
        )
    none = {"delta": None, "noise_multiplier": None, "epsilon_of_all_steps": None}
    return {
        "method": method,
        "epsilon": epsilon,
        **none,
        **facts,
        **spread,
    }


def _dpvi(data: Any, epsilon: float, settings: Settings) -> dict[str, Any]:
    x, y, x_test, y_test = data
    plan = dp.PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=settings.delta,
        num_records=len(x),
        num_steps=settings.num_steps,
        sampling=dp.PoissonSampling(settings.rate),
        clipping_norm=settings.norm,
    )
    dpsvi = dp.DPSVI(
        _dpvi_2017.logistic,
        _dpvi_2017.mean_field,
        numpyro.optim.Adam(settings.learning_rate),
        plan=plan,
        loss_share=0.0,
    )
    accuracies, curves, kept = [], [], slice(0, None, settings.elbo_every)
    steps: list[int] = []
    for seed in _dpvi_2017.seeds(settings.seed, settings.runs):
        result = dpsvi.run(dp.random.key(seed), x, y, progress_bar=False)
        accuracies.append(_dpvi_2017.accuracy(_dpvi_2017.probit(result.params, x_test), y_test))
        curves.append(negative_elbos(result.trace.iterates[kept], x, y, settings.elbo_draws))
        steps = result.trace.steps[kept].tolist()
    facts = {"delta": settings.delta, "noise_multiplier": plan.noise_multiplier}
    facts["epsilon_of_all_steps"] = float(plan.epsilon(settings.delta))
    row = _row(DPVI, epsilon, facts, np.array(accuracies))
    return {
        **row,
        "steps": steps,
        "negative_elbo": np.mean(curves, axis=0, dtype=np.float64).round(4).tolist(),
    }


def negative_elbos(iterates: np.ndarray, x: np.ndarray, y: np.ndarray, draws: int) -> np.ndarray:
    """Negative ELBO in nats a record at each iterate (means, then logarithms of scales). **Not private**: the table is public."""
    standard = jax.random.normal(jax.random.key(0), (draws, x.shape[1]))

    @jax.jit
    @jax.vmap
    def one(psi):
        loc, scale = psi[: x.shape[1]], jnp.exp(psi[x.shape[1] :])
        logits = (loc + scale * standard) @ x.T
        likelihood = jnp.mean(jnp.sum(y * logits - jax.nn.softplus(logits), axis=1))
        divergence = 0.5 * jnp.sum(scale**2 + loc**2 - 1 - 2 * jnp.log(scale))
        return (divergence - likelihood) / len(x)

    return np.asarray(one(jnp.asarray(iterates)))


def _ops(data: Any, epsilon: float, settings: Settings) -> dict[str, Any]:
    x, y, x_test, y_test = data
    # A 0/1 observation has no log-likelihood above 0, so half of [-B, B] is enough.
    sample = dp.OnePosteriorSample(
        _dpvi_2017.logistic,
        epsilon=epsilon,
        log_likelihood_bound=(settings.log_likelihood_low, 0.0),
        # Each draw stands for a repetition: whoever releases one alone spends its part.
        num_draws=settings.runs,
        num_warmup=settings.sampler_steps,
        num_samples=settings.sampler_steps,
        num_chains=max(2, settings.runs),
    )
    draws = sample.run(dp.random.key(settings.seed), x, y, progress_bar=False).draws["w"]
    values = np.array([_dpvi_2017.accuracy(expit(x_test @ w), y_test) for w in draws])
    facts = {"delta": 0.0, "epsilon_of_all_steps": sample.epsilon / sample.num_draws}
    return _row(OPS, epsilon, facts, values)


def _newton(data: Any, epsilon: float, settings: Settings) -> dict[str, Any]:
    x, y, x_test, y_test = data
    # Without the intercept: private Newton has its own.
    bounded, bounded_test = (
        np.clip(rows[:, 1:] / settings.newton_bound, -1, 1) for rows in (x, x_test)
    )
    reached, spent = _dpvi_2017.newton_accuracies(
        (bounded, y, bounded_test, y_test),
        epsilon,
        _dpvi_2017.seeds(settings.seed, settings.runs),
        relation=dp.Relation.ADD_OR_REMOVE_ONE,
        delta=settings.delta,
    )
    return _row(NEWTON, epsilon, {"delta": settings.delta, "epsilon_of_all_steps": spent}, reached)


def _tutorial(num_records: int, epsilon: float, settings: Settings) -> dict[str, Any]:
    """The tutorial's noise, had its clipping worked (which bounds means and scales one by one): what its steps cost together."""
    noise = float(np.sqrt(2 * np.log(1.25 / settings.delta)) / epsilon)
    together = float(np.sqrt(2))  # the length of two gradients of length C
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(settings.rate),
        clipping_norm=together * settings.tutorial_norm,
        noise_multiplier=noise / together,
        num_steps=settings.num_steps,
        num_records=num_records,
    )
    facts = {"delta": settings.delta, "noise_multiplier": plan.noise_multiplier}
    accounts = dp.accounting.compare_accountants(plan, settings.delta).rows
    # With so little noise as at epsilon = 10 the PLD's grid ends before delta is reached; Rényi
    # divergences still bound it.
    facts["epsilon_of_all_steps"] = float(min(row.epsilon for row in accounts if row.upper_bound))
    return _row(TUTORIAL, epsilon, facts, None)


def draw(rows: Rows) -> Any:
    """The negative ELBO against steps, and the accuracy against epsilon."""
    figure, (left, right) = new_figure(2)
    fits = [row for row in rows if row["method"] == DPVI]
    for style, row in zip(STYLES, fits, strict=False):
        curve = row["negative_elbo"]
        left.plot(row["steps"], curve, label=f"ε = {row['epsilon']:g}", markevery=10, **style)
    left.set(xlabel="step", ylabel="negative ELBO, nats a record", title="DPVI")
    left.legend(fontsize="x-small")
    for style, method in zip(STYLES, (DPVI, OPS, NEWTON), strict=False):
        chosen = [row for row in rows if row["method"] == method]
        _dpvi_2017.curve(right, chosen, "epsilon", method, style)
    right.axhline(
        rows[0]["mean"], color="#000000", linewidth=0.7, linestyle=(0, (1, 3)), label="not private"
    )
    right.set(xscale="log", xlabel="ε", ylabel="test accuracy, breast cancer")
    right.legend(fontsize="x-small")
    return figure


def check(rows: Rows, quick: bool) -> None:
    """Nearly the non-private accuracy at epsilon 10, and the slower the smaller epsilon."""
    exact = rows[0]["mean"]
    assert abs(exact - 0.906) < 0.02, exact
    fits = [row for row in rows if row["method"] == DPVI]
    assert fits[-1]["mean"] > exact - 0.03, fits[-1]
    ends = [np.mean(row["negative_elbo"][-10:]) for row in fits]
    starts = fits[-1]["negative_elbo"][0]
    assert ends[-1] < 0.7 * starts, "the fit with the least noise has learnt"
    assert all(before > after for before, after in itertools.pairwise(ends)), ends
    for row in rows:
        if row["method"] in (OPS, NEWTON):
            assert row["epsilon_of_all_steps"] <= row["epsilon"], row
    newton = [row for row in rows if row["method"] == NEWTON]
    assert newton[-1]["mean"] > exact - 0.03, newton[-1]
    del quick


if __name__ == "__main__":
    experiment(__file__, __doc__, full=Settings(), quick=QUICK, run=run, draw=draw, check=check)
