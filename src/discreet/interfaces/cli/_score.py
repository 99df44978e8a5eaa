"""`discreet score`: private figures of how well a fit predicts a held-out table."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet._validate import LEVEL, probability
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._options import delta_of
from discreet.interfaces.cli._predict import Fit, _check_size, _fit_of, _predict
from discreet.interfaces.cli._run import (
    RELEASED,
    check_folder,
    say_spent,
    write_first,
)
from discreet.interfaces.cli._statement import (
    complete_statement,
    warn,
)
from discreet.interfaces.cli._terminal import (
    PLAN_IS_SPENT,
    folder_for_results,
    refusing,
    say_error,
    say_json,
    say_text,
    spent,
    write_json,
)


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

    One noisy release spends ε. From it follow accuracy, AUC, log-likelihood and a calibration
    table; for a target of numbers the errors and R2. Each figure has an interval for
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
    columns = tuple(column for column in schema.columns if column.name != schema.weight)
    schema = dataclasses.replace(schema, columns=columns, weight=None)
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
