"""`discreet describe`, `score` and `predict`: a table to private figures of itself, or of a fit on it, or to predictions."""

import csv
import dataclasses
import functools
import io
import json
import math
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import discreet as dp
from discreet._validate import LEVEL, probability, require
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._options import REGRESSIONS, TWIN, choose_model, delta_of
from discreet.interfaces.cli._report import COUNTS, draw_picture, facts_in, write_page
from discreet.interfaces.cli._run import (
    RELEASED,
    ROOM,
    check_folder,
    keep_compiled_programs,
    row_order,
    say_spent,
    write_first,
)
from discreet.interfaces.cli._statement import (
    DESCRIPTION,
    about_words,
    complete_statement,
    warn,
)
from discreet.interfaces.cli._tables import Table, check_whole, how_converted
from discreet.interfaces.cli._terminal import (
    PLAN_IS_SPENT,
    check_file,
    folder_for_results,
    refusing,
    say,
    say_error,
    say_json,
    say_text,
    settings,
    spent,
    write_file,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np


@refusing
def describe(
    table: Table,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.", rich_help_panel="Budget")],
    schema: options.SchemaFile = None,
    bounds: options.Bounds = None,
    person: options.Person = None,
    delta: options.Delta = None,
    num_records: options.DescribedRecords = None,
    pair: options.Pairs = None,
    all_pairs: options.AllPairs = False,
    by: options.Groups = None,
    level: options.Level = LEVEL,
    slices: options.Slices = 64,
    relation: options.RelationOption = None,
    ledger: options.LedgerFile = None,
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE,
    seed: options.Seed = None,
    out: options.Out = Path("discreet-description"),
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Describe a table privately: how many, which share, which mean.

    `discreet describe survey.csv --schema schema.toml --epsilon 0.5`

    `discreet describe survey.csv --bounds "age=17:90,smoker=no|yes" --epsilon 0.5 --delta 1e-6
    --pair age,smoker`

    `discreet describe survey.csv --schema schema.toml --epsilon 0.5 --by region`

    One noisy release spends ε: counts of each column's categories, or slices of a number, and sums
    of numbers and of squares. From it follow, at no further cost, the number of records, shares,
    means, standard deviations, quantiles, and the two-way tables and groups that you ask for. Each
    has an interval. Bounds and categories are public input: never take them from the data.

    Writes statement.json, statement.txt, description.json, description.txt, report.html,
    twin.counts (as --data of `discreet fit`, with --model twin, it makes twins and spends nothing)
    and, with matplotlib, description.png. The table may be larger than memory.
    """
    check_folder(out, overwrite=overwrite)
    probability("--level", level, hint="0.9 is the default.")
    if pair and all_pairs:
        raise ValueError("--pair and --all-pairs: give only one")
    made = how_converted(table, non_private_bounds=False, out_of_bounds=out_of_bounds)
    check_whole(table, made, out_of_bounds, "discreet describe")
    described = options.schema_of(
        table, choose_model(TWIN), None, bounds, schema, False, made, person
    )
    warn(described, seed, ledger, table, by_bounds=bounds is not None)
    if described.weight is not None:
        say_error(described.weight_words())
    keys = keys_of(by, described)
    plan = dp.marginals.description_plan(
        described,
        epsilon=epsilon,
        delta=delta_of(delta, num_records, ledger),
        pairs="all" if all_pairs else pairs_of(pair, described),
        by=keys,
        relation=options.relation_of(relation),
        slices=slices,
        laplace=None if ledger is None else False,
    )
    for key in keys if num_records is not None else ():
        _refuse_thin(plan, key, num_records or 0)
    require("jinja2", extra="cli", what="The statement page")
    count = num_records or _SOME_RECORDS
    sure = dp.marginals.half_widths(plan, count, level=level)
    say_error(width_words(sure, described, f"a table of {count:,} records", level))
    keep_compiled_programs(settings.compilation_cache)
    book = None if ledger is None else dp.Ledger(ledger)
    with folder_for_results(out, room=ROOM):
        released = dp.marginals.private_marginals(
            dp.random.key(seed),
            table,
            plan,
            ledger=book,
            out_of_bounds=out_of_bounds,
            person_key=row_order(seed),
            non_private_seed=seed is not None,
        )
        spent(f"no statement was written, so {PLAN_IS_SPENT}", RELEASED)
        about = about_words(DESCRIPTION, plan.schema, table.name)
        statement = complete_statement(released.statement, plan.schema, out_of_bounds, about=about)
        released = dataclasses.replace(released, statement=statement)
        files = write_first(out, statement, None, RELEASED)
        found = dp.marginals.Description.of(released, by=keys, level=level)
        files += [
            write_file(out / "description.json", found.to_json()),
            write_file(out / "description.txt", str(found)),
            released.save(out / COUNTS),
        ]
        files += draw_picture(out / "description.png", found.plot)
        files.append(write_page(out, ledger=ledger).file)
    if as_json:
        say_json("describe", {**found.to_dict(), "files": files})
        return
    say_text(str(found))
    say_spent(statement, ledger, files)


def _refuse_thin(
    plan: "dp.marginals.MarginalsPlan", key: str | tuple[str, str], num_records: int
) -> None:
    """Refuse groups of which the noise hides even those of average size."""
    names = (key,) if isinstance(key, str) else key
    sizes = {
        column.name: len(plan.levels.labels(column))
        for column in plan.schema.columns
        if column.name in names
    }
    groups = math.prod(sizes.values())
    # Persons may have up to so many rows; and there may be no other columns, whose figures noise
    # could hide.
    each = max(1, num_records * plan.max_rows // groups)
    found = dp.marginals.half_widths(plan, each, by=[key])
    if found and found == dp.marginals.half_widths(plan, 1, by=[key]):
        raise ValueError(
            f"--by {','.join(names)} makes {groups} groups, of {each:,} {plan.counted} on average, and the noise hides so few: "
            "give a larger --epsilon, or columns of fewer categories"
        )


def width_words(
    half_widths: "Mapping[str, float]", schema: "dp.tables.Schema", whose: str, level: float
) -> str:
    """Half-widths of the intervals of means and shares; of many columns the first ones."""

    def of(name: str, width: float) -> str:
        column = described[name]
        if column.bounds is None:
            return f"shares of {name} ± {100 * width:.2g} %"
        unit = "days" if column.kind is dp.tables.Kind.DATE else column.unit
        missing = " if no cell is missing" if column.may_be_missing else ""
        return f"mean of {name} ± {width:.3g}{unit and f' {unit}'}{missing}"

    described = {column.name: column for column in schema.columns}
    found = [of(*each) for each in half_widths.items()]
    more = [f"{len(found) - _SHOWN} columns more"] if len(found) > _SHOWN else []
    words = ", ".join([*found[:_SHOWN], *more])
    return f"For {whose}, intervals of {100 * level:.10g} % will be at most: {words}."


def keys_of(by: "Sequence[str] | None", schema: "dp.tables.Schema") -> list[str | tuple[str, str]]:
    """The columns and pairs of columns of --by."""
    names = [column.name for column in schema.columns]
    return [
        text if text in names or "," not in text else _pair("--by", text, names)
        for text in by or ()
    ]


def pairs_of(pairs: "Sequence[str] | None", schema: "dp.tables.Schema") -> list[tuple[str, str]]:
    """The columns of each --pair."""
    return [
        _pair("--pair", text, [column.name for column in schema.columns]) for text in pairs or ()
    ]


def _pair(option: str, text: str, names: "Sequence[str]") -> tuple[str, str]:
    """Two columns with a comma between them, which may be in their names, too."""
    parts = text.split(",")
    for i in range(1, len(parts)):
        one = ",".join(parts[:i]).strip()
        other = ",".join(parts[i:]).strip()
        if one in names and other in names and one != other:
            return one, other
    example = ",".join([*names, *names][:2])
    raise ValueError(
        f"{option} is {text!r}: give two columns, as in {option} {example}; the schema has {', '.join(names)}"
    )


_SOME_RECORDS = 10_000
"""Records for which widths are told where their number is not public."""
_SHOWN = 10
Fit = Annotated[
    Path,
    typer.Argument(metavar="FIT", help="The folder that discreet fit wrote.", show_default=False),
]
_ELEMENTS = 2**22
_LARGEST_LOG = 20.0


@refusing
def score(
    fitted: Fit,
    data: options.Data,
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.", rich_help_panel="Budget")],
    delta: options.Delta = None,
    num_records: options.DescribedRecords = None,
    level: options.Level = LEVEL,
    relation: options.RelationOption = None,
    ledger: options.LedgerFile = None,
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE,
    seed: options.Seed = None,
    out: options.Out = Path("discreet-scores"),
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Score a fit privately on a held-out table.

    `discreet score discreet-fit --data held-out.csv --epsilon 0.5 --delta 1e-6`

    One noisy release spends ε. From it follow accuracy, AUC, log-likelihood, a calibration table
    and the ROC curve; for a target of numbers the errors and R2. Each figure has an interval for
    the rows of the table, and one for the population. The table has the columns of the fit's
    schema, and should hold other people than the fit's table.

    Writes statement.json, statement.txt and scores.json. A fit of a model of your own is scored in
    Python (`discreet.scores.private_metrics`).
    """
    import numpy as np

    check_folder(out, overwrite=overwrite)
    probability("--level", level, hint="0.9 is the default.")
    model, schema, target, draws = _fit_of(fitted)
    warn(schema, seed, ledger)
    unweighed = [schema.weight_words()] if schema.weight is not None else []
    for words in unweighed:
        say_error(words)
    schema = schema.without_weight()
    table = dp.tables.read_table(data, schema, out_of_bounds=out_of_bounds)
    records = dp.tables.encode(table, schema, out_of_bounds=out_of_bounds)
    y = records.y
    assert y is not None
    _check_size(draws, records.x, fitted)
    # Dropped rows are NaN.
    used = ~np.isnan(y) if records.mask is None else records.mask
    x = records.x[used]
    y = y[used]
    how: dict[str, Any] = {"relation": options.relation_of(relation)}
    if schema.person is not None:
        groups = range(len(x)) if records.mask is None else np.nonzero(records.mask)[0]
        how |= {"groups": groups, "person": schema.person, "max_rows": schema.max_rows}
    if target.kind.has_bounds:
        y = y * records.target_scale + records.target_centre
        how["target_bounds"] = target.limits
    else:
        y = y.astype(int)
        how["classes"] = len(target.categories)
    predict = functools.partial(_predict, model, draws, records.target_scale, records.target_centre)
    with folder_for_results(out):
        found = dp.scores.private_metrics(
            dp.random.key(seed),
            predict,
            x,
            y,
            epsilon=epsilon,
            delta=delta_of(delta, num_records, ledger),
            level=level,
            ledger=None if ledger is None else dp.Ledger(ledger),
            non_private_seed=seed is not None,
            **how,
        )
        spent(f"no statement was written, so {PLAN_IS_SPENT}", RELEASED)
        statement = complete_statement(found.statement, schema, out_of_bounds, drops=True)
        about = f"Scores of the fit in “{fitted.name}” on the records of “{data.name}”."
        statement = dataclasses.replace(statement.with_notes(*unweighed), about=about)
        content = {**found.to_dict(), "statement": statement.to_dict()}
        if not as_json:
            say_text(str(found))  # Before files are written, since it is paid for
        files = write_first(out, statement, None, RELEASED)
        files.append(write_json(out / "scores.json", content))
    if as_json:
        say_json("score", {**content, "files": files})
        return
    say_spent(statement, ledger, files)


@refusing
def predict(
    fitted: Fit,
    data: options.Data,
    out: Annotated[Path, typer.Option(help="The file of the predictions, .csv.")] = Path(
        "predictions.csv"
    ),
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE,
    overwrite: options.OverwriteFile = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict the target of new records by a fit. Spends nothing.

    `discreet predict discreet-fit --data new.csv --out predictions.csv`

    Writes a row for each row of the table, in its order: probabilities of categories, or the
    expected number in the target's unit; empty where the schema drops the row. The table needs the
    features alone, as the fit's schema describes them. **The fit's statement does not protect the
    new records**: a row of the file says what the cells of that record say.
    """
    import numpy as np

    check_file(out, endings=(".csv",), overwrite=overwrite)
    model, schema, target, draws = _fit_of(fitted)
    table = dp.tables.read_table(data, schema.only_features(), out_of_bounds=out_of_bounds)
    records = dp.tables.encode_features(table, schema, out_of_bounds=out_of_bounds)
    x = records.x
    _check_size(draws, x, fitted)
    found = _predict(model, draws, records.target_scale, records.target_centre, x).reshape(
        len(x), -1
    )
    names = (
        [target.name]
        if target.kind.has_bounds
        else [f"{target.name}={x}" for x in target.categories]
    )
    names = names[-found.shape[1] :]  # Of two categories the second
    content = io.StringIO()
    rows = [["" if np.isnan(value) else f"{value:.9g}" for value in row] for row in found]
    csv.writer(content, lineterminator="\n").writerows([names, *rows])
    write_file(out, content.getvalue())
    if facts_in(fitted / "statement.json").get("is_private") is False:
        say_error(
            "NOT PRIVATE: the fit is not private, as its statement says, so the predictions are not either."
        )
    if as_json:
        say_json("predict", {"rows": len(rows), "columns": names, "files": [out]})
    else:
        say(
            f"Wrote {len(rows):,} predictions to {out}. A row says what the cells of that record say: the fit's statement does "
            "not protect these records."
        )


def _check_size(draws: "dict[str, np.ndarray]", x: "np.ndarray", fitted: Path) -> None:
    if draws["weights"].shape[1:] != (x.shape[-1], *draws["intercept"].shape[1:]):
        raise ValueError(
            f"the posterior in {fitted} is not that of the schema in its summary.json: fit again"
        )


def _fit_of(
    folder: Path,
) -> "tuple[str, dp.tables.Schema, dp.tables.Column, dict[str, np.ndarray]]":
    """The model's name, the schema, its target and the posterior draws of a fit; ValueError where it is not scored here."""
    import numpy as np

    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        with np.load(folder / "posterior.npz", allow_pickle=False) as archive:
            draws = {
                name: np.asarray(archive[name], np.float64) for name in ("weights", "intercept")
            }
        if summary.get("to_predict") is not None:  # what predicts better than the mean of the draws
            best = np.asarray(summary["to_predict"], np.float64)
            draws = {"weights": best[None, 1:], "intercept": best[:1]}
        model = summary["model"]
        _mean_of(model)
        text = str(summary["schema"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        raise ValueError(
            f"{folder} does not have a fit that can be scored, or predict: give the folder of a discreet fit with a built-in "
            f"model that predicts a column ({', '.join(REGRESSIONS)})"
        ) from None
    schema = dp.tables.schema_from_dict(tomllib.loads(text))
    assert schema.target_column is not None
    return model, schema, schema.target_column, draws


def _mean_of(model: str) -> "Callable[[np.ndarray], np.ndarray]":
    """From linear predictors to probabilities of the classes, or means; KeyError for a model that is not scored."""
    import numpy as np
    from scipy.special import expit, softmax

    def count(line: "np.ndarray") -> "np.ndarray":
        return np.exp(np.minimum(line, _LARGEST_LOG))

    return {
        "logistic": expit,
        "multinomial": lambda line: softmax(line, axis=-1),
        "linear": lambda line: line,
        "poisson": count,
        "negative-binomial": count,
    }[model]


def _predict(
    model: str, draws: "dict[str, np.ndarray]", scale: float, centre: float, x: "np.ndarray"
) -> "np.ndarray":
    """Probabilities of the classes, or means in the target's own unit, averaged over the draws."""
    import numpy as np

    weights = draws["weights"]
    intercept = draws["intercept"]
    rows = np.asarray(x, np.float64)
    if model == "linear":
        return (
            _lines(rows, weights.mean(axis=0)[None], intercept.mean()[None])[:, 0] * scale + centre
        )
    mean = _mean_of(model)
    at_once = max(1, _ELEMENTS // math.prod(intercept.shape))
    found = []
    for start in range(0, len(rows), at_once):
        line = _lines(rows[start : start + at_once], weights, intercept)
        found.append(mean(line).mean(axis=1))
    return np.concatenate(found)


def _lines(rows: "np.ndarray", weights: "np.ndarray", intercept: "np.ndarray") -> "np.ndarray":
    """Linear predictors, a row for each record, by sums column by column.

    A matrix product rounds a row otherwise where other rows stand beside it, and a score counts
    bins of predictions: one record more could move other records to the next bin.
    """
    import numpy as np

    line = np.repeat(intercept[None], len(rows), axis=0)
    for column in range(rows.shape[1]):
        line += rows[:, column].reshape(-1, *[1] * intercept.ndim) * weights[:, column]
    return line
