"""Logistic regressions by private Newton beside other private fits: log loss, intervals and time on the same rows.

python -m benchmarks.posteriors

Tables: UCI Adult and Abalone, which are looked for in $DISCREET_DATA, `fair` of statsmodels, and a
simulated one, whose truth is known. *Hold* is the share of 90 % intervals that hold the exact
posterior mean, by Newton's method without privacy and under the prior of `fit_newton`; of the
simulated table also the share that holds the truth. Where a method has no intervals there is none.

"one-shot" is the idea of Kulkarni, Jälkö, Koskela, Kaski and Honkela (ICML 2021): second moments
with noise, and a quadratic approximation of the likelihood at 0. "gradient descent" is full-batch
DP-SGD with the best of four learning rates and two clipping norms, chosen on the test rows at no
cost: a peer's advantage. So is "Opacus", mini-batches of DP-SGD with the best of four rates.

*Error* is the root mean square distance of the coefficients from the exact posterior mean, in exact
posterior standard deviations.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from scipy.special import expit

import discreet as dp
from benchmarks._command import main
from benchmarks._harness import Figure, Outcome, Scale, Timing, quartiles
from benchmarks._peers import AbsentError, load
from discreet.methods.inference import UseWarning
from discreet.methods.newton import NewtonPlan, fit_newton
from discreet.privacy.accounting import calibrate_noise_multiplier
from discreet.privacy.mechanisms import GAUSSIAN
from discreet.tabular.models import defaults_for, logistic_regression
from discreet.tabular.tables import are_levels, encode, read_table, schema_from_toml

EPSILONS = (1.0,)
DELTA = 1e-6
ROOT = Path(__file__).resolve().parents[1]
_STEPS = 100  # of gradient descent


class Table(NamedTuple):
    """Rows in [-1, 1] to fit and to score, and the truth where it is known."""

    name: str
    x: np.ndarray
    y: np.ndarray
    new_x: np.ndarray
    new_y: np.ndarray
    levels: np.ndarray
    truth: np.ndarray | None = None


class Fit(NamedTuple):
    """Draws of intercept and weights to predict with; mean and standard deviations, for intervals."""

    predictive: np.ndarray
    mean: np.ndarray
    stddev: np.ndarray | None = None


# --- tables -----------------------------------------------------------------------------------


def _halves(name: str, x: np.ndarray, y: np.ndarray, **more: Any) -> Table:
    """The first 80 % train, in an order of a fixed seed."""
    order = np.random.default_rng(0).permutation(len(x))
    x, y, cut = x[order].astype(np.float32), y[order].astype(np.float32), int(0.8 * len(x))
    levels = np.all(np.isin(x, (0, 1)), axis=0)
    return Table(name, x[:cut], y[:cut], x[cut:], y[cut:], levels, **more)


def simulated(scale: Scale) -> Table:
    """A right model: correlated columns, weights of half the prior's size."""
    number, columns = scale.size(12_500, 400), scale.size(20, 2)
    rng = np.random.default_rng(1)
    common = rng.standard_normal((number, 1))
    x = np.clip((0.5 * common + rng.standard_normal((number, columns))) / 3.5, -1, 1)
    truth = np.append(-0.5, rng.normal(0, 1.25, columns))
    return _halves(
        "simulated", x, rng.random(number) < expit(truth[0] + x @ truth[1:]), truth=truth
    )


def _file(name: str) -> Path:
    folders = [
        Path(os.environ.get("DISCREET_DATA", ".")),
        *(parent / "shared" / "data" for parent in ROOT.parents),
    ]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        raise AbsentError(f"{name} is not here: set DISCREET_DATA to its folder")
    return found


def abalone(scale: Scale) -> Table:
    """Eight standardised features, cut at four standard deviations."""
    del scale
    content = np.genfromtxt(_file("abalone.csv.gz"), delimiter=",", names=True)
    names = [name for name in content.dtype.names or () if name != "old"]
    x = np.clip(np.stack([content[name] for name in names], axis=1), -4, 4) / 4
    return _halves("abalone", x, content["old"])


def adult(scale: Scale) -> Table:
    """By the schema of the examples, with its own test rows."""
    del scale
    import pyarrow.compute
    import pyarrow.csv

    schema = schema_from_toml(ROOT / "examples" / "adult.schema.toml")
    missing = pyarrow.csv.ConvertOptions(null_values=["?"], strings_can_be_null=True)
    whole = pyarrow.csv.read_csv(_file("adult.csv.gz"), convert_options=missing)
    parts = []
    for split in ("train", "test"):
        rows = whole.filter(pyarrow.compute.field("split") == split)
        parts.append(encode(read_table(rows, schema), schema))
    train, test = parts
    return Table("adult", train.x, train.y, test.x, test.y, are_levels(schema))


def fair(scale: Scale) -> Table:
    """Affairs, of 6,366 women; whether there was any."""
    del scale
    frame = load("statsmodels.datasets", "pip install '.[peers]'").fair.load_pandas().data
    x = np.asarray(frame.drop(columns="affairs"), np.float64)
    # The questionnaire's answers.
    low, high = np.array([1, 17.5, 0.5, 0, 1, 9, 1, 1.0]), np.array([5, 42, 23, 5.5, 4, 20, 6, 6.0])
    return _halves("fair", 2 * (x - low) / (high - low) - 1, np.asarray(frame["affairs"]) > 0)


# --- contenders -------------------------------------------------------------------------------


def exact(table: Table) -> Fit:
    """Newton's method without privacy, under the prior of `fit_newton`; the curvature at the mode gives the covariance."""
    x = np.column_stack([np.ones(len(table.x)), table.x]).astype(np.float64)
    spread = np.where(table.levels, 1.0, np.maximum(table.x.std(axis=0, dtype=np.float64), 0.01))
    centred = np.eye(x.shape[1])
    centred[0] = x.mean(axis=0)
    prior = (centred.T * np.append(5.0, 2.5 / spread) ** -2.0) @ centred
    theta = np.zeros(x.shape[1])
    for _ in range(30):
        p = expit(x @ theta)
        curvature = (x.T * (p * (1 - p))) @ x + prior
        theta = theta + np.linalg.solve(curvature, x.T @ (table.y - p) - prior @ theta)
    return Fit(theta[None], theta, np.sqrt(np.diag(np.linalg.inv(curvature))))


def newton(table: Table, epsilon: float, scale: Scale) -> Fit:
    """The default of `discreet fit`."""
    del scale
    number, width = table.x.shape
    plan = NewtonPlan.calibrate(
        epsilon=epsilon, delta=DELTA, family="binary", num_features=width, num_records=number
    )
    result = fit_newton(dp.random.key(), table.x, table.y, plan, levels=table.levels)
    return Fit(result.predictive, result.mean, np.sqrt(np.diag(result.covariance)))


def dpsvi(table: Table, epsilon: float, scale: Scale) -> Fit:
    """`DPSVI` with the settings of `--by svi`."""
    settings = defaults_for(logistic_regression)
    settings = dataclasses.replace(settings, num_steps=scale.steps(settings.num_steps))
    plan = settings.plan(epsilon=epsilon, delta=DELTA, num_records=len(table.x))
    result = settings.dpsvi(plan).run(dp.random.key(), table.x, table.y, progress_bar=False)
    return _of_draws(result.posterior(dp.random.key(), 1_000))


def _of_draws(found: Any) -> Fit:
    draws = np.column_stack([np.asarray(found["intercept"]), np.asarray(found["weights"])]).astype(
        np.float64
    )
    return Fit(draws, draws.mean(axis=0), draws.std(axis=0))


def svi(table: Table, epsilon: float, scale: Scale) -> Fit:
    """NumPyro's own, of all rows in each step: no privacy."""
    del epsilon
    guide = AutoNormal(logistic_regression)
    found = SVI(logistic_regression, guide, numpyro.optim.Adam(0.02), Trace_ELBO()).run(
        jax.random.key(0),
        scale.steps(2_000),
        jnp.asarray(table.x),
        jnp.asarray(table.y),
        progress_bar=False,
    )
    return _of_draws(guide.sample_posterior(jax.random.key(1), found.params, sample_shape=(1_000,)))


def _multiplier(epsilon: float) -> float:
    """Noise multiplier of one Gaussian release; of T releases it is sqrt(T) as much."""
    return calibrate_noise_multiplier(
        GAUSSIAN.event, epsilon=epsilon, delta=DELTA, relation=dp.Relation.ADD_OR_REMOVE_ONE
    )


def descent(table: Table, epsilon: float, scale: Scale) -> Fit:
    """Full-batch gradient descent with clipping and noise, tuned."""
    steps, rng = max(2, scale.steps(_STEPS)), np.random.default_rng()
    noise = _multiplier(epsilon) * math.sqrt(steps)
    x = np.column_stack([np.ones(len(table.x)), table.x])
    lengths = np.linalg.norm(x, axis=1)
    best: tuple[float, np.ndarray] | None = None
    for clip in (0.5 * np.median(lengths), np.median(lengths)):
        for rate in (0.5, 2.0, 8.0, 32.0):
            theta, sums = np.zeros(x.shape[1]), np.zeros(x.shape[1])
            for step in range(steps):
                residual = table.y - expit(x @ theta)
                factor = np.minimum(1, clip / np.maximum(np.abs(residual) * lengths, 1e-9))
                gradient = x.T @ (residual * factor) + noise * clip * rng.standard_normal(
                    len(theta)
                )
                theta = theta + rate / clip * gradient / len(x)
                if step >= steps // 2:
                    sums += theta
            theta = sums / (steps - steps // 2)
            loss = log_loss(table, theta[None])
            if best is None or loss < best[0]:
                best = loss, theta
    assert best is not None
    return Fit(best[1][None], best[1])


def one_shot(table: Table, epsilon: float, scale: Scale) -> Fit:
    """Noisy moments, once, and log(1 + exp(t)) taken for log 2 + t / 2 + t^2 / 8."""
    del scale
    x = np.column_stack([np.ones(len(table.x)), table.x]).astype(np.float64)
    size, rng = x.shape[1], np.random.default_rng()
    # Rows have at most this length, by the bounds of their columns.
    bound = math.sqrt(size)
    noise = _multiplier(epsilon) * math.sqrt(2)
    raw = noise * bound**2 * rng.standard_normal((size, size))
    second = x.T @ x + np.triu(raw) + np.triu(raw, 1).T
    first = x.T @ (table.y - 0.5) + noise * bound / 2 * rng.standard_normal(size)
    values, vectors = np.linalg.eigh(second / 4)
    data = (vectors * np.maximum(values, 0)) @ vectors.T
    covariance = np.linalg.inv(data + np.eye(size) / 2.5**2)
    mean = covariance @ first
    whole = covariance + covariance @ covariance * (noise * bound / 2) ** 2
    draws = rng.multivariate_normal(mean, whole, 500)
    return Fit(draws, mean, np.sqrt(np.diag(whole)))


def diffprivlib(table: Table, epsilon: float, scale: Scale) -> Fit:
    """Objective perturbation: pure epsilon, an estimate without intervals."""
    del scale
    models = load("diffprivlib.models")
    bound = math.sqrt(table.x.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = models.LogisticRegression(
            epsilon=epsilon, data_norm=bound, C=0.01, max_iter=1_000
        ).fit(table.x, table.y)
    theta = np.append(fitted.intercept_, fitted.coef_[0])
    return Fit(theta[None], theta)


def opacus(table: Table, epsilon: float, scale: Scale) -> Fit:
    """DP-SGD by Opacus in batches of 1,000 on average, 20 epochs; the best of four rates, of which one is timed."""
    torch = load("torch")
    private = load("opacus")
    x = torch.tensor(table.x, dtype=torch.float32)
    y = torch.tensor(table.y, dtype=torch.float32)
    rows = torch.utils.data.TensorDataset(x, y)
    best: tuple[float, np.ndarray] | None = None
    for rate in (0.5, 2.0, 8.0, 32.0):
        network = torch.nn.Linear(x.shape[1], 1)
        torch.nn.init.zeros_(network.weight)
        torch.nn.init.zeros_(network.bias)
        network, optimizer, loader = private.PrivacyEngine().make_private_with_epsilon(
            module=network,
            optimizer=torch.optim.SGD(network.parameters(), lr=rate),
            data_loader=torch.utils.data.DataLoader(rows, batch_size=min(1_000, len(y))),
            target_epsilon=epsilon,
            target_delta=DELTA,
            epochs=max(1, scale.steps(20)),
            max_grad_norm=0.5,
        )
        for _ in range(max(1, scale.steps(20))):
            for features, target in loader:
                optimizer.zero_grad()
                if len(target):
                    found = network(features)[:, 0]
                    torch.nn.functional.binary_cross_entropy_with_logits(found, target).backward()
                    optimizer.step()
        weight, bias = (p.detach().numpy().reshape(-1) for p in network.parameters())
        theta = np.concatenate([bias, weight]).astype(np.float64)
        loss = log_loss(table, theta[None])
        if best is None or loss < best[0]:
            best = loss, theta
    assert best is not None
    return Fit(best[1][None], best[1])


Contender = Callable[[Table, float, Scale], Fit]
CONTENDERS: dict[str, Contender] = {
    "discreet, Newton": newton,
    "discreet, DPSVI": dpsvi,
    "gradient descent, tuned": descent,
    "Opacus, tuned": opacus,
    "one-shot": one_shot,
    "diffprivlib, C = 0.01": diffprivlib,
}


# --- measures ---------------------------------------------------------------------------------


def log_loss(table: Table, draws: np.ndarray) -> float:
    """Mean negative log probability of the new rows."""
    p = np.mean(expit(draws[:, :1] + draws[:, 1:] @ table.new_x.T), axis=0)
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return float(-np.mean(np.where(table.new_y > 0.5, np.log(p), np.log(1 - p))))


def held(fit: Fit, centre: np.ndarray) -> float:
    """Share of 90 % intervals around the fit's mean that hold a value."""
    assert fit.stddev is not None
    return float(np.mean(np.abs(fit.mean - centre) < 1.645 * fit.stddev))


def error(fit: Fit, true: Fit) -> float:
    """Root mean square distance from the exact mean, in exact standard deviations."""
    assert true.stddev is not None
    return float(np.sqrt(np.mean(np.square((fit.mean - true.mean) / true.stddev))))


def measure(scale: Scale) -> list[Outcome]:
    """One outcome a table; tables that are not here are left out."""
    outcomes = []
    for build in (simulated,) if scale.tiny else (abalone, adult, simulated, fair):
        try:
            outcomes.append(_measured(build(scale), scale))
        except AbsentError as reason:
            absent = Outcome(f"posteriors-{build.__name__}", "not measured")
            absent.skipped[build.__name__] = str(reason)
            outcomes.append(absent)
    return outcomes


def _measured(table: Table, scale: Scale) -> Outcome:
    number, width = table.x.shape
    outcome = Outcome(
        f"posteriors-{table.name}", f"logistic regression of {number:,} rows and {width} columns"
    )
    true = exact(table)
    outcome.figures.append(Figure("without privacy: log loss", log_loss(table, true.predictive)))
    if table.truth is not None:
        outcome.figures.append(Figure("without privacy: truth held", held(true, table.truth)))
    _fits(outcome, "NumPyro's SVI, not private", svi, table, true, math.inf, scale)
    for name, fit in CONTENDERS.items():
        try:
            for epsilon in EPSILONS:
                _fits(outcome, f"{name}, ε = {epsilon:g}", fit, table, true, epsilon, scale)
        except AbsentError as reason:
            outcome.skipped[name] = str(reason)
        except Exception as reason:  # a peer's own error is no reason to lose the others
            outcome.skipped[name] = f"{type(reason).__name__}: {reason}".splitlines()[0]
    return outcome


def _fits(
    outcome: Outcome,
    name: str,
    fit: Contender,
    table: Table,
    true: Fit,
    epsilon: float,
    scale: Scale,
) -> None:
    """Fit a few times, in processor time: the first compiles, and proves its programs."""
    found, seconds = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UseWarning)
        for _ in range(1 + max(1, scale.rounds // 3)):
            started = time.process_time()
            found.append(fit(table, epsilon, scale))
            seconds.append(time.process_time() - started)
    measures: dict[str, Callable[[Fit], float]] = {
        "log loss": lambda x: log_loss(table, x.predictive),
        "error": lambda x: error(x, true),
    }
    if found[0].stddev is not None:
        measures["exact mean held"] = functools.partial(held, centre=true.mean)
        if table.truth is not None:
            measures["truth held"] = functools.partial(held, centre=table.truth)
    for what, of in measures.items():
        low, middle, high = quartiles([of(x) for x in found])
        outcome.figures.append(Figure(f"{name}: {what}", middle, low=low, high=high))
    outcome.timings.append(Timing(name, seconds[1:], 1, f"the first {seconds[0]:.2g} s"))


_SHOWN = 1.0  # ε
_TUNED = {
    "gradient descent, tuned": 8,
    "Opacus, tuned": 4,
}  # fits, of which a user would pay for one


def plot(workloads: dict[str, Any], path: Path) -> None:
    """Draw error against processor time at ε = 1, a panel for each table, as SVG or PNG by the file's ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"svg.hashsalt": "discreet", "svg.fonttype": "none", "font.size": 10}):
        figure, panels = plt.subplots(
            1,
            len(workloads),
            figsize=(3.2 * len(workloads), 3.4),
            layout="constrained",
            squeeze=False,
        )
        for axes, (name, workload) in zip(panels[0], workloads.items(), strict=True):
            errors = {one["name"]: one["value"] for one in workload["figures"]}
            seconds = {one["name"]: one["median_us"] / 1e6 for one in workload["timings"]}
            for place, contender in enumerate(CONTENDERS):
                found = f"{contender}, ε = {_SHOWN:g}"
                if found in seconds:
                    time = seconds[found] / _TUNED.get(contender, 1)
                    marker = "s" if contender.startswith("discreet") else "o"
                    y = errors[f"{found}: error"]
                    axes.plot(time, y, marker, color=f"C{place}", label=contender)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(name.removeprefix("posteriors-"), fontsize=10)
            axes.grid(visible=True, which="major", alpha=0.3)
        panels[0][0].set_ylabel("error, in posterior standard deviations")
        figure.supxlabel("seconds of the processor, once compiled", fontsize=10)
        lines, names = panels[0][0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside upper center", ncols=3, frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


if __name__ == "__main__":
    main(measure, __doc__)
