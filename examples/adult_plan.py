"""Compare a dry run's prediction for UCI Adult with the private fit.

    python examples/adult_plan.py ../shared/data/adult.csv.gz

The dry run fits invented tables: it knows the schema and the number of records, and no record. Then
Adult is fitted privately at the same epsilon, on the same schema. Ends by asserting that the fit is
as close to the non-private one as was promised.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import _tables
import adult_twin
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import discreet as dp
from discreet.methods.newton import fit_newton
from discreet.tabular.planning import dry_run
from discreet.tabular.tables import are_levels, encode

# AUC lost to privacy may be this much more than was promised, and the noise so many times as large.
SLACK, TIMES = 0.02, 2.0


def main() -> None:
    """Dry run, fit, compare, assert."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table",
        nargs="?",
        type=Path,
        help="adult.csv.gz (looked for in $DISCREET_DATA if left out)",
    )
    parser.add_argument("--epsilon", type=float, default=1.0)
    arguments = parser.parse_args()
    public = adult_twin.schema()
    started = time.perf_counter()
    found = dry_run(
        "logistic", public, num_records=32_561, epsilon=arguments.epsilon, progress_bar=False
    )
    print(f"{found}\n(in {time.perf_counter() - started:.0f} s)\n")
    tables = adult_twin.read(arguments.table or _tables.find("adult.csv.gz"), public)
    train, test = (encode(table, public) for table in tables)
    assert train.y is not None
    assert test.y is not None
    result = fit_newton(dp.random.key(), train.x, train.y, found.plan, levels=are_levels(public))
    draws = result.to_predict
    logits = draws["intercept"][:, None] + draws["weights"] @ test.x.T
    reached = roc_auc_score(test.y, np.mean(1 / (1 + np.exp(-logits)), axis=0))
    unprotected = LogisticRegression(max_iter=2_000).fit(train.x, train.y)
    exact = roc_auc_score(test.y, unprotected.predict_proba(test.x)[:, 1])
    lost, promised = exact - reached, found.asked.best - found.asked.score
    print(f"Adult at epsilon = {arguments.epsilon:g}, test rows (not private):")
    print(
        f"  AUC {reached:.4f}, without privacy {exact:.4f}; lost {lost:.4f}, promised {promised:.4f}"
    )
    print(f"  noise over sampling {result.ratio:.2f}, promised {found.asked.ratio:.2f}")
    print(f"  {result.statement.use}, promised {found.asked.use}")
    assert lost <= promised + SLACK, (lost, promised)
    assert result.ratio <= TIMES * found.asked.ratio, (result.ratio, found.asked.ratio)


if __name__ == "__main__":
    main()
