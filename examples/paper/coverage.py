"""The coverage of private intervals: with and without the noise of the fit in the posterior.

    python examples/paper/coverage.py [--quick]

Parameters are drawn from the prior and data from the model, so an exact posterior's 90 % intervals
hold the parameters in 90 % of all repeats. A mean-field fit without privacy comes close. A private
fit ends beside it, and knows it only if it is told: docs/noise-aware.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from _experiment import STYLES, Rows, experiment, new_figure
from numpyro.infer import init_to_median
from numpyro.infer.autoguide import AutoNormal

import discreet as dp

DIM = 4
LEVELS = (0.5, 0.8, 0.9, 0.95)
LAST, AVERAGED, TRACE, REGRESSION = (
    "last iterate",
    "averaged",
    "noise-aware, trace",
    "noise-aware, regression",
)
METHODS = (LAST, AVERAGED, TRACE, REGRESSION)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices, for all models alike; epsilon 0 stands for a fit without privacy."""

    models: tuple[str, ...] = ("logistic", "linear", "beta-Bernoulli")
    epsilons: tuple[float, ...] = (0.1, 0.3, 1.0, 0.0)
    delta: float = 1e-5
    num_records: int = 8_000
    rate: float = 0.1
    num_steps: int = 1_000
    learning_rate: float = 0.1
    tail: float = 0.3
    fits: int = 40
    draws: int = 1_000
    seed: int = 0


# --- models, and data from them -----------------------------------------------------------


def logistic(x, y):
    """Bayesian logistic regression."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def linear(x, y):
    """Bayesian linear regression, noise known."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([DIM]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def beta_bernoulli(y):
    """Coins, all thrown by each record."""
    w = numpyro.sample("w", dist.Beta(2.0, 2.0).expand([DIM]).to_event(1))
    with numpyro.plate("data", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(w).to_event(1), obs=y)


def features(rng: np.random.Generator, num_records: int) -> np.ndarray:
    """Corners of a cube, of length 1: no gradient of the logistic regression is longer than C = 1."""
    return rng.choice([-1.0, 1.0], size=(num_records, DIM)) / np.sqrt(DIM)


def logistic_data(rng: np.random.Generator, n: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Parameters from the prior and data from the model; so below."""
    w, x = rng.normal(size=DIM), features(rng, n)
    return w, [x, rng.random(n) < 1 / (1 + np.exp(-x @ w))]


def linear_data(rng: np.random.Generator, n: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """See `logistic_data`."""
    w, x = rng.normal(size=DIM), features(rng, n)
    return w, [x, x @ w + rng.normal(size=n)]


def beta_bernoulli_data(rng: np.random.Generator, n: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """See `logistic_data`."""
    w = rng.beta(2.0, 2.0, size=DIM)
    return w, [rng.random((n, DIM)) < w]


# Model, data and clipping norm. No gradient of the first and the last is longer; of the linear
# regression's 1.2 % are, at the truth, and as many one way as the other.
MODELS: dict[str, tuple[Callable[..., Any], Callable[..., Any], float]] = {
    "logistic": (logistic, logistic_data, 1.0),
    "linear": (linear, linear_data, 2.5),
    "beta-Bernoulli": (beta_bernoulli, beta_bernoulli_data, 2.0),
}


# --- fits ---------------------------------------------------------------------------------


def run(settings: Settings) -> Rows:
    """Coverage of each model at each epsilon by each method."""
    return [
        row
        for model in settings.models
        for epsilon in settings.epsilons
        for row in coverage(model, epsilon, settings)
    ]


def coverage(name: str, epsilon: float, settings: Settings) -> Rows:
    """One fit for each simulated table; a row for each method."""
    model, simulate, clipping_norm = MODELS[name]
    guide = AutoNormal(model, init_loc_fn=init_to_median())
    optim = numpyro.optim.Adam(settings.learning_rate)
    dpsvi = dp.DPSVI(
        model, guide, optim, plan=plan_of(epsilon, clipping_norm, settings), loss_share=0.0
    )
    found: dict[str, list[tuple[np.ndarray, ...]]] = {method: [] for method in METHODS}
    for repeat in range(settings.fits):
        # The same tables at each epsilon.
        truth, data = simulate(np.random.default_rng([settings.seed, repeat]), settings.num_records)
        data = [x.astype(np.float32) for x in data]
        # A seed makes the experiment repeatable; for data of people it would be dp.random.key().
        key = dp.random.key(settings.seed + 1_000 * repeat + round(100 * epsilon))
        result = dpsvi.run(key, *data, progress_bar=False, keep_gradients=True)
        for method in METHODS if epsilon else (LAST, AVERAGED):
            found[method].append(judge(draws_of(method, dpsvi, result, settings), truth))
    return [row_of(name, epsilon, method, found[method]) for method in METHODS if found[method]]


def plan_of(epsilon: float, clipping_norm: float, settings: Settings) -> dp.PrivacyPlan:
    """For that epsilon; for 0 one that adds next to no noise."""
    public: dict[str, Any] = {
        "sampling": dp.PoissonSampling(settings.rate),
        "clipping_norm": clipping_norm,
        "num_steps": settings.num_steps,
        "num_records": settings.num_records,
    }
    if epsilon == 0.0:
        return dp.PrivacyPlan(noise_multiplier=1e-6, **public)
    return dp.PrivacyPlan.calibrate(epsilon=epsilon, delta=settings.delta, **public)


def draws_of(
    method: str, dpsvi: dp.DPSVI, result: dp.DPSVIResult, settings: Settings
) -> np.ndarray:
    """Posterior draws, one row each."""
    key = jax.random.key(settings.seed)
    if method == LAST:
        drawn = dpsvi.posterior(key, result.last_params, settings.draws)
    elif method == AVERAGED:
        drawn = result.posterior(key, settings.draws)
    else:
        kind = "trace" if method == TRACE else "regression"
        drawn = result.noise_aware(kind, start=settings.tail).posterior(key, settings.draws)
    return np.asarray(drawn["w"], np.float64).reshape(settings.draws, -1)


def judge(drawn: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, ...]:
    """For each parameter: the share of draws below the truth, the width of the 95 % interval, the error of the mean."""
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    return np.mean(drawn < truth, axis=0), high - low, drawn.mean(axis=0) - truth


def row_of(
    name: str, epsilon: float, method: str, found: list[tuple[np.ndarray, ...]]
) -> dict[str, Any]:
    """Coverage at each level, and what it costs in width."""
    below, widths, errors = (np.concatenate(parts) for parts in zip(*found, strict=True))
    row: dict[str, Any] = {
        "model": name,
        "epsilon": epsilon or "none",
        "method": method,
        "parameters": len(below),
    }
    # An interval with equal tails holds the truth if not too many draws are on either side.
    row |= {f"in {level:.0%}": float(np.mean(np.abs(below - 0.5) <= level / 2)) for level in LEVELS}
    return row | {
        "width of 95%": float(np.median(widths)),
        "RMSE": float(np.sqrt(np.mean(np.square(errors)))),
    }


# --- what comes of it ---------------------------------------------------------------------


def draw(rows: Rows) -> Any:
    """Coverage against nominal level, a panel for each model, at the smallest epsilon."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    least = min(row["epsilon"] for row in rows if row["epsilon"] != "none")
    figure, axes = new_figure(len(models), sharey=True, squeeze=False)
    for panel, model in zip(axes[0], models, strict=True):
        panel.plot([0.4, 1], [0.4, 1], color="#bbbbbb", linewidth=3, label="nominal")
        chosen = [row for row in rows if row["model"] == model and row["epsilon"] == least]
        chosen += [
            row | {"method": "without privacy"}
            for row in rows
            if row["model"] == model and row["epsilon"] == "none" and row["method"] == AVERAGED
        ]
        for row, style in zip(chosen, STYLES, strict=False):
            panel.plot(
                LEVELS, [row[f"in {level:.0%}"] for level in LEVELS], label=row["method"], **style
            )
        panel.set(
            title=f"{model}, ε = {least:g}", xlabel="nominal level of the interval", ylim=(0, 1.02)
        )
    axes[0][0].set_ylabel("share of intervals that hold the truth")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8
    )
    return figure


def distance(row: dict[str, Any]) -> float:
    """Mean distance of the coverage from nominal."""
    return float(np.mean([abs(row[f"in {level:.0%}"] - level) for level in LEVELS]))


def check(rows: Rows, quick: bool) -> None:
    """Noise-aware intervals come closer to nominal where there is noise to know of, and do no harm elsewhere."""
    of = {(row["model"], row["epsilon"], row["method"]): row for row in rows}
    for model, epsilon in dict.fromkeys((row["model"], row["epsilon"]) for row in rows):
        last, averaged = (distance(of[model, epsilon, method]) for method in (LAST, AVERAGED))
        if epsilon == "none":
            assert averaged < 0.06, (model, averaged)
            continue
        for method in (TRACE, REGRESSION):
            row = of[model, epsilon, method]
            reached = distance(row)
            assert reached < 0.5 * last, (model, epsilon, method, reached, last)
            assert reached < (0.15 if quick else 0.08), (model, epsilon, method, reached)
            if epsilon <= 0.3:
                assert reached < averaged, (model, epsilon, method, reached, averaged)
                assert row["in 95%"] > of[model, epsilon, AVERAGED]["in 95%"], (
                    model,
                    epsilon,
                    method,
                )


if __name__ == "__main__":
    experiment(
        __file__,
        __doc__,
        full=Settings(),
        quick=Settings(models=("logistic", "beta-Bernoulli"), epsilons=(0.1,), fits=12),
        run=run,
        draw=draw,
        check=check,
    )
