"""Compare a dry run's prediction for UCI Adult with the private fit by its plan.

    python examples/adult_plan.py ../shared/data/adult.csv.gz

The plan is chosen on invented tables: it knows the schema and the number of records, and no record. Then Adult is fitted
privately with it, on the same schema. Ends by asserting that the fit is as close to the non-private one as was promised.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import _tables
import adult_twin
import jax
import numpy as np
import numpyro
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_feasible
from sklearn.linear_model import LogisticRegression

import discreet as dp
from discreet.models import logistic_regression
from discreet.planning import DryRun, Grid
from discreet.tables import encode

QUICK = Grid(steps=(300,), rates=(0.02,), clipping_norms=(0.5, 1.5), learning_rates=(0.05,))
# AUC lost to privacy may be this much more than was promised.
SLACK = 0.02


def fit(found: DryRun, train, test, runs: int) -> tuple[float, float]:
    """Mean test accuracy and AUC over private fits with the proposed plan."""
    guide = AutoNormal(logistic_regression, init_loc_fn=init_to_feasible)
    dpsvi = dp.DPSVI(logistic_regression, guide, numpyro.optim.Adam(found.learning_rate), plan=found.plan)
    scores = []
    for _ in range(runs):
        result = dpsvi.run(dp.random.key(), train.x, train.y, progress_bar=False)
        draws = result.posterior(jax.random.key(0), 500)
        logits = np.asarray(draws["intercept"])[:, None] + np.asarray(draws["weights"]) @ test.x.T
        metrics = dp.predict.classification_metrics(
            test.y, np.mean(1 / (1 + np.exp(-logits)), axis=0), non_private=True
        )
        scores.append((metrics.accuracy, metrics.auc))
    accuracy, auc = np.mean(scores, axis=0)
    return float(accuracy), float(auc)


def main() -> None:
    """Dry run, fit, compare, assert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, help="adult.csv.gz (looked for in $DISCREET_DATA if left out)")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="a small grid, and one private fit")
    arguments = parser.parse_args()
    public = adult_twin.schema()
    started = time.perf_counter()
    found = dp.planning.dry_run(
        logistic_regression,
        public,
        num_records=32_561,
        epsilon=arguments.epsilon,
        grid=QUICK if arguments.quick else None,
        strengths=(0.5,) if arguments.quick else None,
        progress_bar=False,
    )
    print(f"{found}\n(in {time.perf_counter() - started:.0f} s)\n")
    tables = adult_twin.read(arguments.table or _tables.find("adult.csv.gz"), public)
    train, test = (encode(table, public) for table in tables)
    assert train.y is not None
    assert test.y is not None
    accuracy, auc = fit(found, train, test, 1 if arguments.quick else 3)
    unprotected = LogisticRegression(max_iter=2_000).fit(train.x, train.y)
    metrics = dp.predict.classification_metrics(test.y, unprotected.predict_proba(test.x)[:, 1], non_private=True)
    print(f"Adult at epsilon = {arguments.epsilon:g}, test rows (not private):")
    for name, reached, without in (("accuracy", accuracy, metrics.accuracy), ("AUC", auc, metrics.auc)):
        promised = found.proposed.mean(name, "non_private") - found.proposed.mean(name)
        print(
            f"  {name}: {reached:.4f}, without privacy {without:.4f}; lost {without - reached:.4f}, promised {promised:.4f}"
        )
    promised = found.proposed.mean("AUC", "non_private") - found.proposed.mean("AUC")
    assert metrics.auc - auc <= promised + SLACK, (metrics.auc, auc, promised)


if __name__ == "__main__":
    main()
