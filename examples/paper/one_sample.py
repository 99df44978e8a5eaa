"""One posterior sample as a table grows: it is consistent, and asymptotically normal (Wang, Fienberg and Smola, 2015).

    python examples/paper/one_sample.py [--quick] [--out docs/papers]

Logistic regression on made-up tables with known weights, each released once by an exact draw. Of N
records that count with the power p, the draw is N^-1/2 from the truth: by I^-1 / N as the best
estimate is, and by I^-1 / (p N) as the posterior is wide.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import _dpvi_2017
import numpy as np
from _experiment import STYLES, Rows, experiment, new_figure
from scipy.special import expit
from scipy.stats import kstest

import discreet as dp

TRUTH = np.array([0.5, -1.0])


@dataclasses.dataclass(frozen=True)
class Settings:
    """Public choices."""

    # For each epsilon the sizes of the tables; an exact draw takes the longer the larger epsilon N.
    sizes: tuple[tuple[float, tuple[int, ...]], ...] = (
        (1.0, (100, 800, 6400)),
        (10.0, (100, 400, 1600)),
    )
    # No log-likelihood is as low at the truth, so clipping makes no bias.
    log_likelihood_low: float = -10.0
    runs: int = 60
    seed: int = 5


QUICK = Settings(sizes=((10.0, (100, 1600)),), runs=15)


def run(settings: Settings) -> Rows:
    """A draw from each of many tables of each size; errors against the law that they should have."""
    return [_row(epsilon, size, settings) for epsilon, sizes in settings.sizes for size in sizes]


def _row(epsilon: float, size: int, settings: Settings) -> dict[str, Any]:
    sample = dp.OnePosteriorSample(
        _dpvi_2017.logistic,
        epsilon=epsilon,
        log_likelihood_bound=(settings.log_likelihood_low, 0.0),
        exact=True,
    )
    rng = np.random.default_rng([settings.seed, size])
    draws = []
    for seed in _dpvi_2017.seeds(settings.seed + size, settings.runs):
        x, y = table(rng, size)
        draws.append(sample.run(dp.random.key(seed), x, y).draws["w"][0])
    errors = np.array(draws, np.float64) - TRUTH
    power = sample.plan.tempering.power
    # Independent and standard normal in the limit.
    standard = errors @ np.linalg.cholesky(information()) * np.sqrt(size / (1 + 1 / power))
    return {
        "epsilon": epsilon,
        "num_records": size,
        "power": power,
        "root_mean_square_error": float(np.sqrt(np.mean(errors**2))),
        "mean_square_of_standardised": float(np.mean(standard**2)),
        "distance_from_normal": float(np.asarray(kstest(standard.ravel(), "norm"))[0]),
        "standardised": np.sort(standard.ravel()).round(3).tolist(),
    }


def table(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """An intercept and a feature between -1 and 1, and labels by the true weights."""
    x = np.stack([np.ones(size), rng.uniform(-1, 1, size)], axis=1)
    y = rng.random(size) < expit(x @ TRUTH)
    return x.astype(np.float32), y.astype(np.float32)


def information() -> np.ndarray:
    """Fisher information of one record at the truth, over the features' law."""
    grid = (np.arange(20_000) + 0.5) / 10_000 - 1
    x = np.stack([np.ones_like(grid), grid], axis=1)
    p = expit(x @ TRUTH)
    return (x.T * p * (1 - p)) @ x / len(grid)


def draw(rows: Rows) -> Any:
    """The error against N, and the quantiles of the largest tables' standardised errors."""
    figure, (left, right) = new_figure(2)
    for style, epsilon in zip(STYLES, dict.fromkeys(row["epsilon"] for row in rows), strict=False):
        chosen = [row for row in rows if row["epsilon"] == epsilon]
        sizes = [row["num_records"] for row in chosen]
        left.plot(
            sizes,
            [row["root_mean_square_error"] for row in chosen],
            label=f"ε = {epsilon:g}",
            **style,
        )
        limit = np.sqrt(
            np.trace(np.linalg.inv(information()))
            / 2
            * (1 + 1 / chosen[0]["power"])
            / np.array(sizes)
        )
        left.plot(sizes, limit, color=style["color"], linewidth=0.7, linestyle=(0, (1, 3)))
        found = np.array(chosen[-1]["standardised"])
        right.plot(
            found,
            (np.arange(len(found)) + 0.5) / len(found),
            label=f"ε = {epsilon:g}",
            **style | {"marker": ""},
        )
    grid = np.linspace(-3, 3, 121)
    from scipy.stats import norm

    right.plot(
        grid, norm.cdf(grid), color="#000000", linewidth=0.7, linestyle=(0, (1, 3)), label="normal"
    )
    left.set(
        xscale="log", yscale="log", xlabel="records", ylabel="root mean square error of a weight"
    )
    right.set(xlabel="standardised error, largest tables", ylabel="share below")
    left.legend(fontsize="x-small")
    right.legend(fontsize="x-small")
    return figure


def check(rows: Rows, quick: bool) -> None:
    """The error falls to that of the limit, whose law it has where N is large; seeds are fixed, so this holds always or never."""
    for epsilon in {row["epsilon"] for row in rows}:
        chosen = [row for row in rows if row["epsilon"] == epsilon]
        first = chosen[0]
        last = chosen[-1]
        # The prior holds small tables near 0; a limit of four standard errors of a mean of squares.
        count = len(last["standardised"])
        assert abs(last["mean_square_of_standardised"] - 1) < 4 * np.sqrt(2 / count), last
        assert last["distance_from_normal"] < 2.2 / np.sqrt(count), last
        fall = last["root_mean_square_error"] / first["root_mean_square_error"]
        assert fall < 2 * np.sqrt(first["num_records"] / last["num_records"]), (first, last)
    del quick


if __name__ == "__main__":
    experiment(__file__, __doc__, full=Settings(), quick=QUICK, run=run, draw=draw, check=check)
