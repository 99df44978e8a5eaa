"""Figures of UCI Adult under differential privacy, beside diffprivlib, OpenDP and SmartNoise: the same questions at one epsilon.

python -m benchmarks.figures [--quick]

Each workload is a list of questions. discreet answers all by one `dp.describe`. The others answer
each by a call of its own, with an equal share of the budget: diffprivlib a share of epsilon
(Laplace noise), OpenDP (Polars) a share of epsilon (Laplace noise) or of the zero-concentrated
budget that implies (epsilon, delta) (Gaussian noise), and SmartNoise SQL, which has no quantiles, a
share of epsilon as it counts its cost. OpenDP's values are centred between the bounds, the better
way. diffprivlib takes the exact number of values for public, and of groups as well, so that its
groups cost their budget once.

Two more have no rivals: how often the intervals of all figures hold, of records and of persons with
three rows, in groups, too; and the share of the values outside of private bounds.

A figure is the root mean square error over the draws of a question's answer against the table's
own, over that of a rival. A half-width is half of the length of our 95 % intervals; that of the
Laplace mechanism is the 95 % quantile of its errors.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

import discreet as dp
from benchmarks import _results
from benchmarks._command import main
from benchmarks._harness import Figure, Outcome, Scale, Timing
from benchmarks._peers import AbsentError, load
from benchmarks.synthetic import concentrated
from discreet.tabular.private_schema import PrivateSchemaPlan, private_schema
from discreet.tabular.tables import Column, Kind, Schema, read_table

EPSILON, DELTA, LEVEL, DRAWS = 1.0, 1e-6, 0.95, 300
ROWS = 3
"""Rows of each invented person: neighbours in the file, all of which are used."""
DRAWS_OF_RIVALS = {
    "diffprivlib": 10.0,
    "OpenDP, Laplace": 1 / 3,
    "OpenDP, Gaussian": 1 / 3,
    "SmartNoise": 1 / 10,
}
"""So many times ours, divided by the number of questions for the quick one: three are slow."""
NARROW = {"age": (17.0, 90.0), "hours_per_week": (1.0, 99.0), "education_num": (1.0, 16.0)}
LOOSE = {"fnlwgt": (0.0, 1e7), "capital_gain": (0.0, 1e5)}
BOUNDS = NARROW | LOOSE
FAMILIES = {
    "Divorced": "formerly",
    "Married-AF-spouse": "married",
    "Married-civ-spouse": "married",
    "Married-spouse-absent": "married",
    "Never-married": "never",
    "Separated": "formerly",
    "Widowed": "formerly",
}
LEVELS = {
    "sex": ("Female", "Male"),
    "race": ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"),
    "income": ("<=50K", ">50K"),
    "family": ("formerly", "married", "never"),
}
SCHEMA = Schema(
    columns=(
        *(Column(name=name, kind=Kind.COUNT, bounds=bounds) for name, bounds in NARROW.items()),
        *(Column(name=name, kind=Kind.REAL, bounds=bounds) for name, bounds in LOOSE.items()),
        *(
            Column(
                name=name,
                kind=Kind.BINARY if len(labels) == 2 else Kind.CATEGORICAL,
                categories=labels,
            )
            for name, labels in LEVELS.items()
        ),
    )
)

Question = tuple[str, ...]
"""A kind of figure and its columns, such as ("mean", "age") or ("mean by", "age", "sex")."""
Answers = dict[Question, np.ndarray]

WORKLOADS: Mapping[str, tuple[Question, ...]] = {
    "one mean": (("mean", "age"),),
    "three means": tuple(("mean", name) for name in NARROW),
    "group means": (("mean by", "age", "race"),),
    "three levels": (("mean by", "age", "family"),),
    "loose quantiles": tuple(("quantile", "fnlwgt", share) for share in ("0.25", "0.5", "0.75")),
    "ten questions": (
        ("count",),
        ("mean", "age"),
        ("mean", "hours_per_week"),
        ("deviation", "age"),
        ("quantile", "age", "0.5"),
        ("quantile", "age", "0.9"),
        ("shares", "sex"),
        ("shares", "race"),
        ("mean by", "hours_per_week", "sex"),
        ("mean by", "age", "income"),
    ),
}
ASKED = {"one mean": 1.5, "three means": 3.0, "group means": 2.0, "three levels": 2.0}
"""Largest ratio of our error to a rival's: to diffprivlib's for means, to both of OpenDP's for groups."""
OF_GROUPS = ("group means", "three levels")
WIDTHS = {"one mean": 2.5, "three means": 5.0}


def truth(table: pyarrow.Table, question: Question) -> np.ndarray:
    """The table's own answer, not private."""
    kind, *columns = question
    if kind == "count":
        return np.array([float(len(table))])
    values = table[columns[0]].to_numpy()
    if kind == "mean":
        return np.array([values.mean()])
    if kind == "deviation":
        return np.array([values.std()])
    if kind == "quantile":
        return np.quantile(values, [float(columns[1])], method="inverted_cdf")
    if kind == "shares":
        return np.array([(values == label).mean() for label in LEVELS[columns[0]]])
    keys = table[columns[1]].to_numpy()
    return np.array([values[keys == label].mean() for label in LEVELS[columns[1]]])


class Ours:
    """One `dp.describe` of the columns that the questions name."""

    def __init__(self, table: pyarrow.Table, questions: tuple[Question, ...]) -> None:
        named = {name for _, *columns in questions for name in columns}
        self.schema = dataclasses.replace(
            SCHEMA, columns=tuple(x for x in SCHEMA.columns if x.name in named)
        )
        self.table = table
        self.by = sorted({columns[1] for kind, *columns in questions if kind == "mean by"})
        self.questions = questions

    def draw(self) -> tuple[Answers, dict[Question, tuple[np.ndarray, np.ndarray]]]:
        """Answers, and the ends of their intervals."""
        quantiles = sorted(
            {float(columns[1]) for kind, *columns in self.questions if kind == "quantile"}
        )
        found = dp.describe(
            self.table,
            self.schema,
            epsilon=EPSILON,
            delta=DELTA,
            by=self.by,
            level=LEVEL,
            quantiles=quantiles or (0.5,),
        )
        figures = {question: self._figures(found, question) for question in self.questions}
        answers = {question: np.array([x.value for x in own]) for question, own in figures.items()}
        ends = {
            question: (np.array([x.low for x in own]), np.array([x.high for x in own]))
            for question, own in figures.items()
        }
        return answers, ends

    @staticmethod
    def _figures(found: Any, question: Question) -> list[Any]:
        kind, *columns = question
        if kind == "count":
            return [found.num_records]
        if kind == "mean by":
            return [
                group.columns[columns[0]].mean for group in found.groups if group.by == columns[1]
            ]
        own = found.columns[columns[0]]
        if kind == "mean":
            return [own.mean]
        if kind == "deviation":
            return [own.sd]
        if kind == "quantile":
            return [own.quantiles[float(columns[1])]]
        return [dp.marginals.Figure(*map(float, ends)) for ends in zip(*own.shares, strict=True)]


def diffprivlib(table: pyarrow.Table, questions: tuple[Question, ...]) -> Callable[[], Answers]:
    """`diffprivlib.tools`, each question at epsilon over their number."""
    tools = load("diffprivlib.tools")
    each = EPSILON / len(questions)

    def answer(question: Question) -> np.ndarray:
        kind, *columns = question
        if kind == "count":
            return np.array([float(tools.count_nonzero(np.ones(len(table)), epsilon=each))])
        values = table[columns[0]].to_numpy()
        if kind == "shares":
            places = np.searchsorted(np.array(LEVELS[columns[0]]), values)
            size = len(LEVELS[columns[0]])
            counts, _ = tools.histogram(places, epsilon=each, bins=size, range=(-0.5, size - 0.5))
            return counts / max(1, counts.sum())
        bounds = BOUNDS[columns[0]]
        if kind == "mean":
            return np.array([tools.mean(values, epsilon=each, bounds=bounds)])
        if kind == "deviation":
            return np.array([tools.std(values, epsilon=each, bounds=bounds)])
        if kind == "quantile":
            return np.array(
                [tools.quantile(values, float(columns[1]), epsilon=each, bounds=bounds)]
            )
        keys = table[columns[1]].to_numpy()
        groups = [values[keys == label] for label in LEVELS[columns[1]]]
        return np.array([tools.mean(group, epsilon=each, bounds=bounds) for group in groups])

    return lambda: {question: answer(question) for question in questions}


def opendp(
    table: pyarrow.Table, questions: tuple[Question, ...], *, laplace: bool
) -> Callable[[], Answers]:
    """OpenDP's Polars interface, each question at an equal share of epsilon or of the zero-concentrated budget."""
    remedy = "pip install 'opendp[polars]'"
    library = load("opendp.prelude", remedy)
    polars = load("polars", remedy)
    library.enable_features("contrib")
    # It refuses categories, whose order is that of the records.
    texts = [polars.col(name).cast(polars.String) for name in LEVELS]
    frame = polars.from_arrow(table).with_columns(texts).lazy()
    margin = library.polars.Margin
    # The keys of groups are public, as ours are.
    groups = [
        margin(by=[name], max_length=10**6, max_groups=len(levels), invariant="keys")
        for name, levels in LEVELS.items()
    ]
    budget = {"epsilon": EPSILON} if laplace else {"rho": concentrated(EPSILON, DELTA)}
    context = library.Context.compositor(
        data=frame,
        privacy_unit=library.unit_of(contributions=1),
        privacy_loss=library.loss_of(**budget),
        split_evenly_over=len(questions),
        margins=[margin(max_length=10**6), *groups],
    )

    def prepared(query: Any) -> Callable[[], Any]:
        """What the context would run for a query: its noise is sought once, which takes seconds."""
        measurement = query.resolve()
        return lambda: measurement(frame).collect()

    def in_order(found: Any, key: str, figure: str) -> np.ndarray:
        by_key = dict(zip(found[key], found[figure], strict=True))
        return np.array([float(by_key[label]) for label in LEVELS[key]])

    def answer(question: Question) -> Callable[[Answers], np.ndarray]:
        kind, *columns = question
        query = context.query()
        if kind == "count":
            number = prepared(query.select(library.len()))
            return lambda _: number().to_numpy()[0].astype(float)
        if kind == "shares":
            counts = prepared(query.group_by(columns[0]).agg(library.len()))

            def shares(_: Answers) -> np.ndarray:
                found = in_order(counts(), columns[0], "len")
                return found / found.sum()

            return shares
        low, high = BOUNDS[columns[0]]
        if kind == "quantile":
            values = polars.col(columns[0]).cast(float).fill_nan(low).fill_null(low)
            candidates = np.linspace(low, high, min(int(high - low), _MOST_CANDIDATES) + 1).tolist()
            quantile = prepared(query.select(values.dp.quantile(float(columns[1]), candidates)))
            return lambda _: quantile().to_numpy()[0]
        middle = (low + high) / 2
        half = (high - low) / 2
        centred = polars.col(columns[0]).cast(float).fill_nan(middle).fill_null(middle) - middle
        if kind == "mean":
            mean = prepared(query.select(centred.dp.mean((-half, half))))
            return lambda _: middle + mean().to_numpy()[0]
        if kind == "deviation":
            squares = prepared(query.select((centred * centred).dp.mean((0.0, half * half))))
            return lambda known: np.sqrt(
                np.maximum(0, squares().to_numpy()[0] - (known["mean", columns[0]] - middle) ** 2)
            )
        means = prepared(
            query.group_by(columns[1]).agg(centred.dp.mean((-half, half)).alias("mean"))
        )
        return lambda _: middle + in_order(means(), columns[1], "mean")

    each = {question: answer(question) for question in questions}

    def draw() -> Answers:
        answers: Answers = {}
        for question in questions:
            answers[question] = each[question](answers)
        return answers

    return draw


_MOST_CANDIDATES = 10_000
SMARTNOISE = "in an environment of its own, pip install smartnoise-sql, which asks for opendp<0.15,"


def smartnoise(table: pyarrow.Table, questions: tuple[Question, ...]) -> Callable[[], Answers]:
    """SmartNoise SQL, each question at epsilon and delta over their number."""
    library = load("snsql", SMARTNOISE)
    frame = table.select([*BOUNDS, *LEVELS]).to_pandas().astype(dict.fromkeys(LEVELS, str))
    columns: dict[str, Any] = {
        name: {"type": "float", "lower": low, "upper": high} for name, (low, high) in BOUNDS.items()
    }
    columns |= {name: {"type": "string", "cardinality": len(x)} for name, x in LEVELS.items()}
    rows = {"row_privacy": True, "rows": len(table), "censor_dims": False}
    metadata = {"": {"t": {"t": {**rows, **columns}}}}

    @functools.cache
    def reader(query: str) -> Any:
        share = {"epsilon": EPSILON / len(questions), "delta": DELTA / len(questions)}
        asked = library.from_df(frame, privacy=library.Privacy(**share), metadata=metadata)
        # Its epsilon is for each sum and count of a query.
        share["epsilon"] *= share["epsilon"] / asked.get_privacy_cost(query)[0]
        return library.from_df(frame, privacy=library.Privacy(**share), metadata=metadata)

    def ask(query: str) -> list[Any]:
        return reader(query).execute(query)[1:]

    def answer(question: Question) -> np.ndarray:
        kind, *names = question
        if kind in ("mean by", "shares"):
            key = names[-1]
            figure = "COUNT(*)" if kind == "shares" else f"AVG({names[0]})"
            found = dict(ask(f"SELECT {key}, {figure} AS x FROM t.t GROUP BY {key}"))
            values = np.array([float(found[label]) for label in LEVELS[key]])
            return values / values.sum() if kind == "shares" else values
        figures = {"count": "COUNT(*)", "mean": "AVG({})", "deviation": "STDDEV({})"}
        [[value]] = ask(f"SELECT {figures[kind].format(*names)} AS x FROM t.t")
        return np.array([float(value)])

    return lambda: {q: answer(q) for q in questions if q[0] != "quantile"}


RIVALS = {
    "diffprivlib": diffprivlib,
    "OpenDP, Laplace": functools.partial(opendp, laplace=True),
    "OpenDP, Gaussian": functools.partial(opendp, laplace=False),
    "SmartNoise": smartnoise,
}


def measure(scale: Scale) -> list[Outcome]:
    """One outcome for each list of questions, for the intervals of all figures, and for private bounds."""
    table = _table(scale)
    found = [_one(name, questions, table, scale) for name, questions in WORKLOADS.items()]
    return [*found, intervals(table, scale), private_bounds(table, scale)]


def intervals(table: pyarrow.Table, scale: Scale) -> Outcome:
    """How often the intervals of all figures hold the table's own, in all and in groups."""
    outcome = Outcome("figures-intervals", f"all figures of {len(table):,} rows, ε = {EPSILON:g}")
    by = ("sex", "family")
    columns = [x for x in SCHEMA.columns if x.name in {"age", "fnlwgt", "hours_per_week", *by}]
    who = pyarrow.array(np.arange(len(table)) // ROWS)
    for unit, person in (("records", None), ("persons", "who")):
        rows = 1 if person is None else ROWS
        schema = Schema(columns=tuple(columns), person=person, max_rows=rows)
        held = []
        for _ in range(scale.size(30, 3)):
            found = dp.describe(
                table.append_column("who", who),
                schema,
                epsilon=EPSILON,
                delta=DELTA,
                by=by,
                level=LEVEL,
            )
            held += [
                float(np.mean((figure.low <= right) & (right <= figure.high)))
                for figure, right in _with_truth(found, table, who.to_numpy())
            ]
        share = 100 * statistics.mean(held)
        words = f"{unit}: {100 * LEVEL:g} % intervals that hold"
        outcome.figures.append(Figure(words, share, "%", bound=(">=", 93.0)))
        outcome.figures.append(Figure(f"{words}, at most", share, "%", bound=("<=", 99.0)))
    return outcome


def _with_truth(
    found: Any, table: pyarrow.Table, who: np.ndarray
) -> Iterator[tuple[Any, np.ndarray | float]]:
    """Each figure of a description, and the table's own."""
    of_all = np.ones(len(table), bool)
    if found.num_persons is not None:
        yield found.num_persons, len(np.unique(who))
    parts = [(found.num_records, found.columns, of_all)]
    for group in found.groups:
        inside = table[group.by].to_numpy() == group.label
        parts.append((group.num_records, group.columns, inside))
        if group.num_persons is not None:
            yield group.num_persons, len(np.unique(who[inside]))
    for number, columns, rows in parts:
        yield number, rows.sum()
        for name, own in columns.items():
            values = table[name].to_numpy()[rows]
            if own.edges is None:
                yield own.shares, np.array([(values == label).mean() for label in own.labels])
                continue
            yield own.shares, np.histogram(values, own.edges)[0] / len(values)
            yield own.mean, values.mean()
            yield own.sd, values.std()
            for share, figure in own.quantiles.items():
                yield figure, np.quantile(values, share, method="inverted_cdf")


def private_bounds(table: pyarrow.Table, scale: Scale) -> Outcome:
    """The largest share of a column's values outside of bounds that were bought, all columns in one release."""
    outcome = Outcome("figures-private-bounds", f"bounds of {len(BOUNDS)} columns, ε = 0.1")
    plan = PrivateSchemaPlan.calibrate(list(BOUNDS), epsilon=0.1, delta=DELTA)
    outside: dict[str, list[float]] = {name: [] for name in BOUNDS}
    for _ in range(scale.size(20, 1)):
        found = private_schema(dp.random.key(), table.select(list(BOUNDS)), plan).found
        for name, shares in outside.items():
            values = table[name].to_numpy()
            # None, where noise hides all values.
            low, high = found[name].bounds or (math.inf, -math.inf)
            shares.append(100 * float(np.mean((values < low) | (values > high))))
    for name, shares in outside.items():
        worst = Figure(f"{name}: values outside", max(shares), "%", bound=("<=", 2.0))
        outcome.figures.append(worst)
    return outcome


def _one(name: str, questions: tuple[Question, ...], table: pyarrow.Table, scale: Scale) -> Outcome:
    outcome = Outcome(
        f"figures-{name.replace(' ', '-')}", f"{name} of {len(table):,} rows, ε = {EPSILON:g}"
    )
    draws = scale.size(scale.steps(DRAWS), 10)
    right = {question: truth(table, question) for question in questions}
    ours = Ours(table, questions)
    held: dict[Question, list[float]] = {question: [] for question in questions}
    widths: dict[Question, list[float]] = {question: [] for question in questions}
    seconds = []
    errors: dict[str, dict[Question, list[np.ndarray]]] = {
        "discreet": {question: [] for question in questions}
    }
    for _ in range(draws):
        started = time.process_time()
        answers, ends = ours.draw()
        seconds.append(time.process_time() - started)
        for question in questions:
            low, high = ends[question]
            errors["discreet"][question].append(answers[question] - right[question])
            held[question].append(
                float(((low <= right[question]) & (right[question] <= high)).mean())
            )
            widths[question].append(float(((high - low) / 2).mean()))
    outcome.timings.append(Timing("discreet", seconds[:30], 1, "processor time of all questions"))
    for rival, build in RIVALS.items():
        try:
            draw = build(table, questions)
        except AbsentError as reason:
            outcome.skipped[rival] = str(reason)
            continue
        share = DRAWS_OF_RIVALS[rival]
        times = max(1, round(draws * (share / len(questions) if share > 1 else share)))
        found = [draw() for _ in range(times)]
        errors[rival] = {q: [answers[q] - right[q] for answers in found] for q in found[0]}
    _add_figures(outcome, name, errors, held, widths)
    return outcome


def _add_figures(
    outcome: Outcome,
    name: str,
    errors: dict[str, dict[Question, list[np.ndarray]]],
    held: dict[Question, list[float]],
    widths: dict[Question, list[float]],
) -> None:
    """Our intervals, and the ratio of our errors to each rival's; a bound where the issue of figures asks for one."""
    root = {who: {q: _root_mean_square(own) for q, own in x.items()} for who, x in errors.items()}
    asked = ("OpenDP, Laplace", "OpenDP, Gaussian") if name in OF_GROUPS else ("diffprivlib",)
    nearer = dict.fromkeys(errors, 0)
    for question in held:
        words = " ".join(question)
        outcome.facts[words] = {who: x[question] for who, x in root.items() if question in x}
        others = dict(outcome.facts[words])
        own = others.pop("discreet")
        outcome.facts[words] |= {
            "held": statistics.mean(held[question]),
            "half-width": statistics.mean(widths[question]),
        }
        outcome.figures.append(Figure(f"{words}: error", own))
        if question[0] == "deviation":
            bias = abs(float(np.mean(errors["discreet"][question])))
            bias /= outcome.facts[words]["half-width"]
            outcome.figures.append(Figure(f"{words}: bias / half-width", bias, bound=("<=", 1.0)))
        for rival, error in others.items():
            nearer[rival] += own <= error
            # A quantile among whole numbers can be right in every draw.
            if error > 0:
                bound = ("<=", ASKED[name]) if rival in asked and name in ASKED else None
                outcome.figures.append(
                    Figure(f"{words}: error, discreet / {rival}", own / error, bound=bound)
                )
        if name in WIDTHS and "diffprivlib" in errors:
            sure = float(np.quantile(np.abs(errors["diffprivlib"][question]), LEVEL))
            wide = statistics.mean(widths[question]) / sure
            outcome.figures.append(
                Figure(
                    f"{words}: half-width, discreet / diffprivlib", wide, bound=("<=", WIDTHS[name])
                )
            )
    coverage = 100 * statistics.mean(x for own in held.values() for x in own)
    outcome.figures.append(Figure(f"{100 * LEVEL:g} % intervals that hold", coverage, "%"))
    for rival, count in nearer.items():
        if rival != "discreet" and len(held) > 1:
            bound = (">=", len(errors[rival]) - 1) if name == "ten questions" else None
            outcome.figures.append(
                Figure(f"questions with an error of at most that of {rival}", count, bound=bound)
            )


def _root_mean_square(errors: list[np.ndarray]) -> float:
    return math.sqrt(float(np.mean(np.square(np.stack(errors)))))


def _table(scale: Scale) -> pyarrow.Table:
    """Adult, or for the tests an invented table of the same columns."""
    if scale.tiny:
        rng = np.random.default_rng(0)
        numbers = {name: np.round(rng.uniform(*bounds, 2_000)) for name, bounds in BOUNDS.items()}
        return pyarrow.table(
            {**numbers, **{name: rng.choice(levels, 2_000) for name, levels in LEVELS.items()}}
        )
    folders = [Path(os.environ.get("DISCREET_DATA", ".")), _results.ROOT.parent / "shared" / "data"]
    found = next((path for folder in folders if (path := folder / "adult.csv.gz").is_file()), None)
    if found is None:
        raise AbsentError("adult.csv.gz is not here: set DISCREET_DATA to the folder that holds it")
    married = Column(
        name="marital_status", kind=Kind.CATEGORICAL, categories=tuple(sorted(FAMILIES))
    )
    columns = (*(x for x in SCHEMA.columns if x.name != "family"), married)
    table = read_table(found, dataclasses.replace(SCHEMA, columns=columns))
    families = [FAMILIES[status] for status in table["marital_status"].to_pylist()]
    return table.drop(["marital_status"]).append_column("family", pyarrow.array(families))


if __name__ == "__main__":
    main(measure, __doc__)
