"""Private logistic regression on UCI Abalone (ten or more rings, or fewer), beside the non-private fit.

    python examples/abalone.py ../shared/data/abalone.csv.gz

Sampling rate and number of steps as in Jälkö, Dikmen and Honkela (UAI 2017, Section 4.1).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import _logistic
import _tables

SETTINGS = _logistic.Settings(rate=0.05, num_steps=1000, clipping_norm=1.0, learning_rate=2e-2)
REQUIRED = {1.0: 0.75, 0.5: 0.75}


def main() -> None:
    """Fit, print, assert."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table",
        nargs="?",
        type=Path,
        help="abalone.csv.gz (looked for in $DISCREET_DATA if left out)",
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="private fits to average over (default: 5)"
    )
    arguments = parser.parse_args()
    data = _tables.abalone(arguments.table or _tables.find("abalone.csv.gz"))
    print(
        f"Abalone: {len(data[0])} training records, {data[0].shape[1]} columns, {len(data[2])} test records"
    )
    _logistic.non_private(data)
    for epsilon, accuracy in REQUIRED.items():
        reached = _logistic.private(data, epsilon, SETTINGS, arguments.runs)
        assert reached[0] >= accuracy, (epsilon, reached)


if __name__ == "__main__":
    main()
