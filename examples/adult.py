"""Private logistic regression on UCI Adult, beside the non-private fit.

    python examples/adult.py ../shared/data/adult.csv.gz

Columns are scaled and encoded by public bounds and categories only, so nothing about the table
leaks into the preparation. Ends by asserting what the private fits must reach.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import _logistic
import _tables

SETTINGS = _logistic.Settings(rate=0.0184, num_steps=2000, clipping_norm=1.0, learning_rate=1e-2)
# What a run of 2,000 steps must reach, mean over the runs: epsilon -> (accuracy, AUC).
REQUIRED = {1.0: (0.842, 0.893), 0.1: (0.832, 0.876)}


def main() -> None:
    """Fit, print, assert."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table",
        nargs="?",
        type=Path,
        help="adult.csv.gz (looked for in $DISCREET_DATA if left out)",
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="private fits to average over (default: 5)"
    )
    arguments = parser.parse_args()
    data = _tables.adult(arguments.table or _tables.find("adult.csv.gz"))
    print(
        f"Adult: {len(data[0])} training records, {data[0].shape[1]} columns, {len(data[2])} test records"
    )
    _logistic.non_private(data)
    for epsilon, (accuracy, auc) in REQUIRED.items():
        reached = _logistic.private(data, epsilon, SETTINGS, arguments.runs)
        assert reached[0] >= accuracy, (epsilon, reached)
        assert reached[1] >= auc, (epsilon, reached)


if __name__ == "__main__":
    main()
