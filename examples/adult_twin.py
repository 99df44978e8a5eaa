"""Synthetic twins of UCI Adult from noisy counts, and how far they serve in the place of the table.

    python examples/adult_twin.py ../shared/data/adult.csv.gz --epsilon 1

The schema below is all that the twins' model knows of the table before it is counted: bounds and
categories that anybody can look up. A logistic regression of the income is trained on each twin and
tested on the real test rows, and shares of columns and of pairs are compared. The figures are of
real records and not private; Adult is public. Ends by asserting what the twins must reach.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import _tables
import numpy as np
import pyarrow

import discreet as dp
from discreet.tabular.marginals import MarginalsPlan, MarginalsResult, fit_twins, private_marginals
from discreet.tabular.synthetic import marginal_distances
from discreet.tabular.tables import Column, Kind, Missing, Schema, encode, read_table

COUNTRIES = (
    "Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany Greece Guatemala Haiti "
    "Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico Nicaragua "
    "Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand Trinadad&Tobago "
    "United-States Vietnam Yugoslavia"
)
DELTA = 1e-5


@dataclasses.dataclass(frozen=True)
class Settings:
    """The number of draws, and the required figures of twins at epsilon 1."""

    twins: int
    rows: int
    accuracy: float
    auc: float
    one_way: float
    two_way: float
    steps: int | None = None


FULL = Settings(5, 1_000_000, accuracy=0.84, auc=0.888, one_way=0.010, two_way=0.033)
QUICK = Settings(2, 100_000, accuracy=0.82, auc=0.87, one_way=0.02, two_way=0.05, steps=300)


def schema() -> Schema:
    """The columns of Adult but two: fnlwgt weighs the survey, education is education_num in words."""
    texts = {name: text.replace(" ?", "") for name, text in _tables.ADULT_CATEGORIES.items()}
    missing = {name for name in texts if texts[name] != _tables.ADULT_CATEGORIES[name]} | {
        "native_country"
    }
    categories = {**texts, "native_country": COUNTRIES, "income": "<=50K >50K"}
    numbers = [
        Column(name=name, kind=Kind.COUNT, bounds=(low, high))
        for name, (low, high, _) in _tables.ADULT_NUMBERS.items()
    ]
    others = [
        Column(
            name=name,
            kind=Kind.BINARY if len(text.split()) == 2 else Kind.CATEGORICAL,
            categories=tuple(text.split()),
            missing=Missing.INDICATOR if name in missing else Missing.REFUSE,
        )
        for name, text in categories.items()
    ]
    return Schema(
        columns=(*numbers, *others), target="income", each_row=True, missing_values=("?",)
    )


def read(path: Path, public: Schema) -> tuple[pyarrow.Table, pyarrow.Table]:
    """Training and test rows."""
    split = Column(name="split", kind=Kind.BINARY, categories=("train", "test"))
    table = read_table(path, dataclasses.replace(public, columns=(*public.columns, split)))
    is_test = table["split"].to_numpy() == "test"
    return table.filter(~is_test), table.filter(is_test)


def fit(
    train: pyarrow.Table, public: Schema, epsilon: float, steps: int | None
) -> tuple[dp.models.MixtureOfProducts, MarginalsResult]:
    """Count, which is the only part that reads records and is private, and fit a mixture to the noisy counts."""
    plan = MarginalsPlan.calibrate(public, epsilon=epsilon, delta=DELTA)
    return fit_twins(
        private_marginals(dp.random.key(), train, plan),
        **({} if steps is None else {"num_steps": steps}),
    )


def scores(
    train: pyarrow.Table, test: pyarrow.Table, public: Schema, most_rows: int = 100_000
) -> tuple[float, float]:
    """Accuracy and AUC of a logistic regression of the target that is trained on one table and tested on another."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    known, new = (
        encode(read_table(table[:most_rows], public), public, out_of_bounds="clip")
        for table in (train, test)
    )
    fitted = LogisticRegression(max_iter=2_000).fit(known.x, known.y)
    auc = roc_auc_score(new.y, fitted.predict_proba(new.x)[:, 1])
    return float(fitted.score(new.x, new.y)), float(auc)


def main() -> None:
    """Fit, draw, try, assert."""
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
        "--quick", action="store_true", help="a short fit and two twins: half a minute"
    )
    parser.add_argument(
        "--epsilon", type=float, default=1.0, help="only at 1 and more is the utility asserted"
    )
    arguments = parser.parse_args()
    settings, public = QUICK if arguments.quick else FULL, schema()
    train, test = read(arguments.table or _tables.find("adult.csv.gz"), public)
    print(
        f"Adult: {len(train)} training records, {len(public.columns)} columns, {len(test)} test records"
    )

    # Processor time of all cores: what else runs on the machine does not count.
    started = time.process_time()
    model, result = fit(train, public, arguments.epsilon, settings.steps)
    print(
        f"  {result.statement.epsilon:.4g} = epsilon at delta = {DELTA:g}, counted and fitted in "
        f"{time.process_time() - started:.0f} s of processor time"
    )
    twins = dp.synthetic.synthesize(dp.random.key(), result, model, num_twins=settings.twins)
    accuracy, auc = np.mean([scores(twin, test, public) for twin in twins], axis=0)
    print(f"  trained on a twin (mean of {len(twins)}): accuracy {accuracy:.4f}, AUC {auc:.4f}")
    distances = [marginal_distances(twin, train, public, non_private=True) for twin in twins]
    one_way, two_way = (
        np.mean([d.mean_one_way for d in distances]),
        np.mean([d.mean_two_way for d in distances]),
    )
    print(
        f"  mean distance to the training rows: one column {one_way:.4f}, two columns {two_way:.4f}"
    )

    started = time.process_time()
    (long,) = dp.synthetic.synthesize(
        dp.random.key(), result, model, num_twins=1, num_records=settings.rows
    )
    seconds = time.process_time() - started
    print(f"  a twin of {len(long):,} rows: {seconds:.1f} s of processor time")
    assert result.statement.epsilon <= arguments.epsilon
    assert seconds < 30, seconds
    if arguments.epsilon >= 1:
        assert accuracy >= settings.accuracy, accuracy
        assert auc >= settings.auc, auc
        assert one_way <= settings.one_way, one_way
        assert two_way <= settings.two_way, two_way


if __name__ == "__main__":
    main()
