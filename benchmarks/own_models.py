"""Six models as statisticians write them, by `dp.fit` without settings, beside NumPyro's NUTS without privacy on the same rows.

python -m benchmarks.own_models

Each table is drawn from the model at a truth of its own. For each model and ε:

- *error*: distance of the private mean from NUTS's, in NUTS's standard deviations: the median over
  all tables and coordinates that the truth has.
- *hold*: share of the 90 % intervals that hold the truth; beside it those of NUTS, and the share
  that holds NUTS's mean.
- *width*: of the intervals, relative to NUTS's, the median.

Arguments: names of models; --tables 12, --epsilon 1 0.3, --records 10000, --seed 0.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS, init_to_value
from tests.newton.own_models import INIT, MODELS, drawn

import discreet as dp

WARM_UPS = 300
DRAWS = 700


class Summary(NamedTuple):
    """Means, standard deviations and ends of 90 % intervals of all coordinates, (coordinate,)."""

    mean: np.ndarray
    stddev: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, draws: Any, names: Any) -> Summary:
        """That of the latents with these names."""
        flat = np.concatenate([np.reshape(draws[x], (len(draws[x]), -1)) for x in names], axis=1)
        low, high = np.quantile(flat, [0.05, 0.95], axis=0)
        return cls(flat.mean(axis=0), flat.std(axis=0), low, high)

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Which intervals hold these."""
        return (self.low <= values) & (values <= self.high)


class Exact:
    """NUTS, compiled once for all tables of a model."""

    def __init__(self, name: str) -> None:
        # From the components' places, as the private fit.
        kernel = NUTS(MODELS[name], init_strategy=init_to_value(values=INIT.get(name, {})))
        how: dict[str, Any] = {"jit_model_args": True, "progress_bar": False}
        self.chain = MCMC(kernel, num_warmup=WARM_UPS, num_samples=DRAWS, **how)

    def __call__(self, data: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
        """Draws of the latents."""
        self.chain.run(
            jax.random.key(0), *(np.asarray(x, np.dtype(x.dtype.kind + "4")) for x in data)
        )
        return {name: np.asarray(x) for name, x in self.chain.get_samples().items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--tables", type=int, default=12)
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 0.3])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(
        f"{'model':14} {'ε':>5} {'error':>6} {'hold':>5} (NUTS) (NUTS's mean) {'width':>6}  "
        "verdicts; most missed",
        flush=True,
    )
    for name in asked.models:
        for line in lines(name, asked):
            print(line, flush=True)


def lines(name: str, asked: Any) -> list[str]:
    """Those of a model, one for each ε."""
    exact = Exact(name)
    found: dict[float, list[tuple[Summary, Summary, np.ndarray]]] = {x: [] for x in asked.epsilon}
    uses: dict[float, list[str]] = {x: [] for x in asked.epsilon}
    seconds: dict[float, float] = dict.fromkeys(asked.epsilon, 0.0)
    labels: list[str] = []
    for number in range(asked.tables):
        data, truth = drawn(name, np.random.default_rng([asked.seed, number]), asked.records)
        values = np.concatenate([np.ravel(x) for x in truth.values()])
        labels = [
            f"{x}{list(i) or ''}" for x, of in truth.items() for i in np.ndindex(np.shape(of))
        ]
        without = Summary.of(exact(data), truth)
        for epsilon in asked.epsilon:
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                how: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-6, "init": INIT.get(name)}
                result: Any = dp.fit(MODELS[name], *data, progress_bar=False, **how)
            seconds[epsilon] += time.process_time() - start
            found[epsilon].append((Summary.of(result.draws, truth), without, values))
            uses[epsilon].append(result.statement.use)
    said = []
    for epsilon, fits in found.items():
        errors = [abs(own.mean - nuts.mean) / nuts.stddev for own, nuts, _ in fits]
        held = np.array([own.holds(values) for own, _, values in fits])
        widths = [(own.high - own.low) / (nuts.high - nuts.low) for own, nuts, _ in fits]
        missed = sorted(zip((~held).sum(axis=0), labels, strict=True), reverse=True)[:3]
        verdicts = ", ".join(
            f"{use} {uses[epsilon].count(use)}" for use in sorted({*uses[epsilon]})
        )
        said.append(
            f"{name:14} {epsilon:5g} {np.median(errors):6.2f} {held.mean():5.2f} "
            f"{np.mean([nuts.holds(values) for _, nuts, values in fits]):6.2f} "
            f"{np.mean([own.holds(nuts.mean) for own, nuts, _ in fits]):13.2f} "
            f"{np.median(widths):8.2f}  {verdicts}; {', '.join(f'{x} {count}' for count, x in missed)}"
            f"; {seconds[epsilon] / len(fits):.1f} s"
        )
    return said


if __name__ == "__main__":
    main()
