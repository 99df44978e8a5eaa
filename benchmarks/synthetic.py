"""Synthetic twins of UCI Adult beside each other: same schema, slices, split and measures for each contender.

python -m benchmarks.synthetic [--quick] [--only counts,mixture,records,mst,smartnoise-mst,smartnoise-aim]

The measures are accuracy and AUC of a logistic regression trained on a
twin and tested on real rows, and total variation to the training rows. Each contender fits every
epsilon several times; a figure is the mean, its quartiles are over the fits, and each fit is
measured on two twins. Processor time is that of counting and fitting, of all cores, with what was
compiled before in JAX's cache.

`mst` is the mechanism of McKenna, Miklau and Sheldon (J. Privacy and Confidentiality 11(3), 2021)
written over the estimation of `mbi`, their package: all columns are counted, a tree of pairs is
chosen by exponential mechanisms, and the pairs are counted. Of its zero-concentrated budget a third
goes to each. It gets discreet's levels and decoding. Its noise is numpy's.

`mixture` is the estimator of the same kind in `mbi`, with as many components, fitted to counts of
the same plan as ours.

The `smartnoise` contenders are programs of smartnoise-synth, which needs an environment of its own,
since it asks for mbi < 2. They get discreet's levels, so that nothing is spent on bounds, and know
the exact number of records. Their rows are drawn independently of one another: as smartnoise-synth
calls it, mbi 1.1 draws the children of one parent in one order, which makes them depend on each
other (correlation 0.996 where the model says 0).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpyro
import pyarrow

import discreet as dp
from benchmarks import _results
from benchmarks._command import parser
from benchmarks._harness import FULL, QUICK, Figure, Outcome, Scale, Timing, quartiles
from benchmarks._peers import AbsentError, load
from discreet.tabular.marginals import MarginalsPlan, fit_twins, private_marginals
from discreet.tabular.models import Levels, MixtureOfProducts, guide_for
from discreet.tabular.synthetic import marginal_distances
from discreet.tabular.tables import (
    Column,
    Kind,
    Schema,
    encode,
    read_table,
    schema_from_bounds,
    schema_from_toml,
)

DELTA, TWINS, SLICES = 1e-5, 2, 32
ASKED = {
    0.3: {"accuracy": 0.838, "AUC": 0.885, "TV, one column": 0.012, "TV, two columns": 0.045},
    1.0: {"accuracy": 0.845, "AUC": 0.893, "TV, one column": 0.008, "TV, two columns": 0.030},
    3.0: {"accuracy": 0.847, "AUC": 0.897, "TV, one column": 0.007, "TV, two columns": 0.026},
}
"""Bounds for twins from counts, and 15 s of processor time."""
MOST_SECONDS = 15.0
ABSENT = {
    "AIM on mbi": "its program is not in the package, and that of the repository does not run on mbi 2.0.0",
}
SMARTNOISE = (
    "in an environment of its own with discreet, pip install smartnoise-synth==1.0.8 (without PyTorch: --no-deps, with 'mbi<2' "
    "'smartnoise-sql<2' 'opendp<0.15' 'pandas<3' antlr4-python3-runtime==4.9.3 deprecated disjoint-set faker graphviz networkx "
    "sqlalchemy)"
)

Twins = list[pyarrow.Table]
Contender = Callable[[pyarrow.Table, Schema, float, Scale], Callable[[], Twins]]


def counts(
    train: pyarrow.Table, schema: Schema, epsilon: float, scale: Scale
) -> Callable[[], Twins]:
    """The default of `discreet fit --model twin`: a mixture of products fitted to noisy counts."""
    plan = MarginalsPlan.calibrate(schema, epsilon=epsilon, delta=DELTA, slices=SLICES)
    steps = {} if scale.effort == 1 else {"num_steps": scale.size(scale.steps(1_500), 200)}
    model, result = fit_twins(private_marginals(dp.random.key(), train, plan), **steps)
    return lambda: dp.synthetic.synthesize(dp.random.key(), result, model, num_twins=TWINS)


def mixture(
    train: pyarrow.Table, schema: Schema, epsilon: float, scale: Scale
) -> Callable[[], Twins]:
    """The mixture of products of `mbi`, fitted to the counts that `counts` fits."""
    mbi, extensions, optax = load("mbi"), load("mbi.extensions"), load("optax")
    plan = MarginalsPlan.calibrate(schema, epsilon=epsilon, delta=DELTA, slices=SLICES)
    released = private_marginals(dp.random.key(), train, plan)
    measured = [
        _measured(mbi, released.table(*table).ravel(), table, plan.stddev(table))
        for table in plan.tables
    ]
    domain = mbi.Domain([column.name for column in schema.columns], plan.levels.sizes)
    estimator = extensions.MixtureOfProductsEstimator(optimizer=optax.adam(0.05), num_components=64)
    fitted = estimator.estimate(
        domain, measured, released.num_records, iters=scale.size(scale.steps(1_500), 200)
    )
    rng = np.random.default_rng()

    def draw() -> Twins:
        rows = [fitted.synthetic_data().data for _ in range(TWINS)]
        columns = [np.stack([np.asarray(own[name]) for name in domain], axis=1) for own in rows]
        return [plan.levels.decode(own.astype(np.int32), rng) for own in columns]

    return draw


def records(
    train: pyarrow.Table, schema: Schema, epsilon: float, scale: Scale
) -> Callable[[], Twins]:
    """`--by svi`: the same kind of model fitted to the records, with the command line's settings."""
    model = MixtureOfProducts(schema, components=16, slices=SLICES)
    plan = dp.PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        num_records=len(train),
        num_steps=scale.steps(300),
        sampling=dp.PoissonSampling(min(1.0, 1_000 / len(train))),
        clipping_norm=round(model.gradient_bound / 3.6, 1),
    )
    optimizer = numpyro.optim.Adam(0.05)
    dpsvi = dp.DPSVI(
        model.model, guide_for(model), optimizer, plan=plan, placeholder=model.placeholder
    )
    result = dpsvi.run(dp.random.key(), model.encode(train), progress_bar=False)
    return lambda: dp.synthetic.synthesize(dp.random.key(), result, model, num_twins=TWINS)


def mst(train: pyarrow.Table, schema: Schema, epsilon: float, scale: Scale) -> Callable[[], Twins]:
    """A tree of pairs by `mbi`."""
    mbi, estimation = load("mbi"), load("mbi.estimation")
    model, rng = MixtureOfProducts(schema, slices=SLICES), np.random.default_rng()
    cells, sizes = np.asarray(model.levels.encode(train)), model.levels.sizes
    budget = concentrated(epsilon, DELTA) / 3
    columns = range(len(sizes))
    stddev = math.sqrt(len(sizes) / (2 * budget))  # a record is in one cell of each column
    noisy = [
        np.bincount(cells[:, i], minlength=sizes[i]) + stddev * rng.standard_normal(sizes[i])
        for i in columns
    ]
    # Levels that the noise hides become one, and are drawn alike within it.
    kept = [np.flatnonzero(x >= 3 * stddev) for x in noisy]
    hidden = [np.setdiff1d(np.arange(size), own) for size, own in zip(sizes, kept, strict=True)]
    small, merged, ones = np.empty_like(cells), [], []
    for i in columns:
        place = np.full(sizes[i], len(kept[i]))
        place[kept[i]] = np.arange(len(kept[i]))
        small[:, i] = place[cells[:, i]]
        rest = [] if not len(hidden[i]) else [noisy[i][hidden[i]].sum() / math.sqrt(len(hidden[i]))]
        merged.append(len(kept[i]) + len(rest))
        weights = np.ones(merged[i])
        if rest:
            weights[-1] = 1 / math.sqrt(len(hidden[i]))
        ones.append(_measured(mbi, np.append(noisy[i][kept[i]], rest), (str(i),), stddev, weights))
    domain = mbi.Domain([str(i) for i in columns], merged)
    totals = np.array([x.sum() for x in noisy])
    # the sums' noise grows so
    total = max(1.0, float(totals @ (1 / np.array(sizes)) / (1 / np.array(sizes)).sum()))
    shares = [
        np.maximum(
            np.append(noisy[i][kept[i]], [noisy[i][hidden[i]].sum()] * (merged[i] > len(kept[i]))),
            0,
        )
        for i in columns
    ]
    shares = [x / x.sum() for x in shares]

    def table(i: int, j: int) -> np.ndarray:
        return np.bincount(small[:, i] * merged[j] + small[:, j], minlength=merged[i] * merged[j])

    pairs = list(itertools.combinations(columns, 2))
    scores = np.array(
        [
            np.abs(table(i, j) - total * np.outer(shares[i], shares[j]).ravel()).sum()
            for i, j in pairs
        ]
    )
    chosen, part = [], list(columns)
    each = math.sqrt(8 * budget / (len(sizes) - 1))
    while len(chosen) < len(sizes) - 1:
        apart = [k for k, (i, j) in enumerate(pairs) if part[i] != part[j]]
        best = apart[int(np.argmax(each / 2 * scores[apart] + rng.gumbel(size=len(apart))))]
        chosen.append(pairs[best])
        one, other = (part[i] for i in pairs[best])
        part = [one if x == other else x for x in part]
    stddev = math.sqrt(len(chosen) / (2 * budget))
    twos = [
        _measured(
            mbi,
            table(i, j) + stddev * rng.standard_normal(merged[i] * merged[j]),
            (str(i), str(j)),
            stddev,
        )
        for i, j in chosen
    ]
    fitted = estimation.MirrorDescent().estimate(domain, [*ones, *twos], iters=scale.steps(2_000))

    def draw() -> Twins:
        drawn = []
        for _ in range(TWINS):
            made = fitted.synthetic_data()
            rows = np.stack([np.asarray(made.data[str(i)]) for i in columns], axis=1)
            for i in columns:
                places = rows[:, i]
                outside = rng.choice(hidden[i], len(rows)) if len(hidden[i]) else places
                rows[:, i] = np.where(places < len(kept[i]), np.append(kept[i], 0)[places], outside)
            drawn.append(model.levels.decode(rows, rng))
        return drawn

    return draw


def _measured(
    mbi: Any, values: np.ndarray, clique: tuple[str, ...], stddev: float, weights: Any = None
) -> Any:
    if weights is None:
        return mbi.LinearMeasurement(values, clique, stddev)
    return mbi.LinearMeasurement(values, clique, stddev, mbi.WeightedQuery(weights))


def concentrated(epsilon: float, delta: float) -> float:
    """The largest rho whose zero-concentrated privacy implies (epsilon, delta), by Canonne, Kamath and Steinke (NeurIPS 2020)."""

    def log_delta(rho: float) -> float:
        orders = np.geomspace(1.0001, 1e5, 20_000)
        exponents = (
            (orders - 1) * (orders * rho - epsilon)
            + orders * np.log1p(-1 / orders)
            - np.log(orders - 1)
        )
        return float(exponents.min()) - math.log(delta)

    low, high = 0.0, epsilon
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if log_delta(middle) > 0 else (middle, high)
    return low


def smartnoise(
    train: pyarrow.Table,
    schema: Schema,
    epsilon: float,
    scale: Scale,
    *,
    program: str,
    **settings: Any,
) -> Callable[[], Twins]:
    """A program of smartnoise-synth."""
    synthesizer = getattr(load(f"snsynth.{program.lower()}", SMARTNOISE), f"{program}Synthesizer")
    transform, levels, rng = (
        load("snsynth.transform", SMARTNOISE),
        Levels(schema, SLICES),
        np.random.default_rng(),
    )
    columns = transform.TableTransformer(
        [transform.LabelTransformer(nullable=False) for _ in levels.sizes]
    )
    # all levels
    columns.fit(
        [tuple(min(row, size - 1) for size in levels.sizes) for row in range(max(levels.sizes))]
    )
    fitted = synthesizer(epsilon, DELTA, **settings)
    with contextlib.redirect_stdout(sys.stderr):
        fitted.fit(np.asarray(levels.encode(train)), transformer=columns)
    fitted.synthesizer = SimpleNamespace(
        synthetic_data=functools.partial(fitted.synthesizer.synthetic_data, method="sample")
    )
    return lambda: [levels.decode(np.asarray(fitted.sample(), np.int32), rng) for _ in range(TWINS)]


CONTENDERS: dict[str, Contender] = {
    "counts": counts,
    "mixture": mixture,
    "records": records,
    "mst": mst,
    "smartnoise-mst": functools.partial(smartnoise, program="MST"),
    "smartnoise-aim": functools.partial(smartnoise, program="AIM", rounds=40, max_model_size=8),
}
TITLES = {
    "counts": "twins from counts",
    "mixture": "mixture of products of mbi 2 on the same counts",
    "records": "twins from the records by DPSVI",
    "mst": "MST on mbi 2",
    "smartnoise-mst": "MST of smartnoise-synth",
    "smartnoise-aim": "AIM of smartnoise-synth (at most 40 rounds, models of 8 MB)",
}
REPETITIONS = {"smartnoise-aim": 1, "mixture": 3}
"""Number of fits where five take too long."""


def measure(scale: Scale, only: Sequence[str] = tuple(CONTENDERS)) -> list[Outcome]:
    """One outcome for each contender."""
    train, test, schema = tables(scale)
    return [_one(name, train, test, schema, scale) for name in CONTENDERS if name in only]


def _one(
    name: str, train: pyarrow.Table, test: pyarrow.Table, schema: Schema, scale: Scale
) -> Outcome:
    outcome = Outcome(f"twins-{name}", f"{TITLES[name]}, Adult, δ = {DELTA:g}")
    fits: dict[float, list[dict[str, float]]] = {}
    try:
        for _, epsilon in (
            itertools.product(range(REPETITIONS.get(name, 5)), ASKED)
            if scale.effort == 1
            else [(0, 1.0)]
        ):
            started = time.process_time()
            draw = CONTENDERS[name](train, schema, epsilon, scale)
            seconds = time.process_time() - started
            fit = {**measures(draw(), train, test, schema), "processor time": seconds}
            fits.setdefault(epsilon, []).append(fit)
            print(f"{name}, epsilon = {epsilon:g}: {fit}", file=sys.stderr, flush=True)
    except AbsentError as reason:
        outcome.skipped[TITLES[name]] = str(reason)
    except KeyboardInterrupt:
        outcome.skipped["the remaining fits"] = "stopped by Ctrl-C"
    summarise(outcome, name, fits, scale)
    if name == "mst":
        outcome.skipped |= ABSENT
    return outcome


def summarise(
    outcome: Outcome, name: str, fits: dict[float, list[dict[str, float]]], scale: Scale
) -> None:
    """Timings and figures of a contender's fits at each epsilon, into its outcome."""
    for epsilon, found in fits.items():
        outcome.facts[f"{epsilon:g}"] = found
        note = f"processor time of a fit, of {len(found)}"
        outcome.timings.append(
            Timing(f"ε = {epsilon:g}", [fit["processor time"] for fit in found], 1, note)
        )
        for what in found[0]:
            values = [fit[what] for fit in found]
            low, _, high = quartiles(values)
            sign, asked = (
                ">=" if what in ("accuracy", "AUC") else "<=",
                {**ASKED[epsilon], "processor time": MOST_SECONDS},
            )
            bound = (sign, asked[what]) if name == "counts" and scale.effort == 1 else None
            unit = "s" if what == "processor time" else ""
            outcome.figures.append(
                Figure(f"ε = {epsilon:g}: {what}", statistics.mean(values), unit, bound, low, high)
            )


def measures(
    twins: Twins, train: pyarrow.Table, test: pyarrow.Table, schema: Schema
) -> dict[str, float]:
    """The figures of twins, as means over them."""
    accuracy, auc = np.mean([scores(twin, test, schema) for twin in twins], axis=0)
    distances = [
        marginal_distances(twin, train, schema, slices=SLICES, non_private=True) for twin in twins
    ]
    return {
        "accuracy": float(accuracy),
        "AUC": float(auc),
        "TV, one column": statistics.mean(x.mean_one_way for x in distances),
        "TV, two columns": statistics.mean(x.mean_two_way for x in distances),
    }


def scores(
    train: pyarrow.Table, test: pyarrow.Table, schema: Schema, most_rows: int = 100_000
) -> tuple[float, float]:
    """Accuracy and AUC of a logistic regression of the target that is trained on one table and tested on another."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    known, new = (
        encode(read_table(table[:most_rows], schema), schema, out_of_bounds="clip")
        for table in (train, test)
    )
    fitted = LogisticRegression(max_iter=2_000).fit(known.x, known.y)
    auc = roc_auc_score(new.y, fitted.predict_proba(new.x)[:, 1])
    return float(fitted.score(new.x, new.y)), float(auc)


def tables(scale: Scale) -> tuple[pyarrow.Table, pyarrow.Table, Schema]:
    """Training rows, test rows and the schema: Adult, or for the tests an invented table."""
    if scale.tiny:
        return *(_invented(seed) for seed in (0, 1)), schema_from_bounds(INVENTED, target="smoker")
    folders = [Path(os.environ.get("DISCREET_DATA", ".")), _results.ROOT.parent / "shared" / "data"]
    found = next((path for folder in folders if (path := folder / "adult.csv.gz").is_file()), None)
    if found is None:
        raise AbsentError("adult.csv.gz is not here: set DISCREET_DATA to the folder that holds it")
    schema = schema_from_toml(_results.ROOT / "examples" / "adult.schema.toml")
    split = Column(name="split", kind=Kind.BINARY, categories=("train", "test"))
    table = read_table(
        found,
        Schema(
            columns=(*schema.columns, split),
            target=schema.target,
            missing_values=schema.missing_values,
        ),
    )
    is_test = table["split"].to_numpy() == "test"
    return table.filter(~is_test), table.filter(is_test), schema


INVENTED = "age=0:100,region=north|south|east,smoker=no|yes"


def _invented(seed: int, rows: int = 3_000) -> pyarrow.Table:
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, rows)
    smoker = np.where(rng.random(rows) < 1 / (1 + np.exp(5 - age / 10)), "yes", "no")
    return pyarrow.table(
        {"age": age, "region": rng.choice(["north", "south", "east"], rows), "smoker": smoker}
    )


def main() -> None:
    """Measure, and print what was found."""
    made = parser(__doc__)
    made.add_argument(
        "--only",
        metavar="NAMES",
        default=",".join(CONTENDERS),
        help=f"some of {','.join(CONTENDERS)}",
    )
    options = made.parse_args()
    results = _results.new()
    _results.add(
        results,
        functools.partial(measure, only=options.only.split(",")),
        QUICK if options.quick else FULL,
    )
    print(_results.as_markdown(results))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
