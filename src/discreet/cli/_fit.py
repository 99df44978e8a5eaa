"""`discreet fit`: a table, a model and a budget to a posterior and a statement."""

import dataclasses
import functools
import hashlib
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from discreet.cli import _options as options
from discreet.cli._options import TWIN, choose_model
from discreet.cli._plan import PlanValues, say_other_size, with_plan
from discreet.cli._report import COUNTS, print_statement, write_page, write_statement
from discreet.cli._run import count_and_write, fit_and_write, is_own_statement, kept_secret, remember
from discreet.cli._tables import how_converted
from discreet.cli._terminal import folder_for_results, refusing, say, say_error, say_json, say_lines, spent

if TYPE_CHECKING:
    from discreet.cli._own_model import Prepared
    from discreet.marginals import Marginals, MarginalsResult
    from discreet.models import MixtureOfProducts
    from discreet.report import Statement
    from discreet.tables import Conversion, Records, Schema

EXPECTED_BATCH = 500
MOST_DRAWS = 10_000_000
ERRORS_TELL = "Whether an error occurs is not covered by ε."
ODD_CELLS = {
    "refuse": "A cell outside its bounds or categories would have stopped the fit with an error naming the column. "
    + ERRORS_TELL,
    "clip": "Numbers outside their bounds were moved to the nearest bound. Any other cell that the schema does not allow would "
    f"have stopped the fit with an error naming the column. {ERRORS_TELL}",
    "missing": "Cells that the schema does not allow were treated as missing. A missing cell in a column without a rule for it "
    f"would have stopped the fit with an error naming the column. {ERRORS_TELL}",
}


@refusing
def fit(
    data: options.Data,
    model: options.Model,
    epsilon: options.Epsilon = None,
    target: options.Target = None,
    bounds: options.Bounds = None,
    schema: options.SchemaFile = None,
    delta: options.Delta = None,
    num_records: options.NumRecords = None,
    by: options.By = None,
    components: options.Components = None,
    steps: options.FitSteps = None,
    rate: options.Rate = None,
    batch_size: options.BatchSize = None,
    sampling: options.Sampling = "poisson",
    relation: options.RelationOption = None,
    clip: options.Clip = None,
    learning_rate: options.LearningRate = None,
    plan_file: options.PlanFile = None,
    draws: options.Draws = None,
    ledger: options.LedgerFile = None,
    checkpoint: options.CheckpointFolder = None,
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE,
    raw: options.Raw = False,
    model_args: options.ModelArgs = None,
    seed: options.Seed = None,
    non_private_bounds: options.NonPrivateBounds = False,
    out: options.Out = Path("discreet-fit"),
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit a model to a table under (ε, δ)-differential privacy.

    `discreet fit --data survey.csv --model logistic --target smoker --bounds "age=17:90,smoker=no|yes" --epsilon 1`

    `discreet fit --data visits.parquet --model poisson --target visits --schema schema.toml --epsilon 0.5 --delta 1e-6`

    `discreet fit --data survey.csv --model mine.py:model --schema schema.toml --epsilon 2 --steps 3000 --rate 0.05`

    For synthetic twins of the whole table, which `discreet synth` then draws:

    `discreet fit --data survey.csv --model twin --schema schema.toml --epsilon 1`

    Bounds and categories are public input: take them from the questionnaire, never from the data. Quote `|`, `<` and `>` in the
    shell. `--plan` takes the settings that `discreet plan` proposed; command-line options override them.

    Writes statement.json, statement.txt, report.html, posterior.npz, summary.json and, with matplotlib, fit.png. `discreet synth`
    needs model.json as well, which a model of your own gets; a twin gets its own files instead of posterior and summary. Each
    further fit of the same data spends again: the ε of all fits add up.
    """
    in_steps = any(x is not None for x in (steps, rate, batch_size, clip, learning_rate, plan_file, checkpoint))
    in_steps = in_steps or sampling != "poisson"
    if by == options.TwinMethod.MARGINALS and (model != TWIN or in_steps):
        raise ValueError(
            f"--by marginals is for --model {TWIN}, and takes no steps: leave out --steps, --rate, --batch-size, --sampling, "
            "--clip, --learning-rate, --plan and --checkpoint, or choose --by svi"
        )
    if data.suffix == Path(COUNTS).suffix:
        paid = (epsilon, target, bounds, schema, delta, num_records, relation, ledger, seed)
        spends = any(x is not None for x in paid) or out_of_bounds != "refuse" or non_private_bounds
        if model != TWIN or in_steps or by == options.TwinMethod.SVI or spends or raw:
            raise ValueError(
                f"{data} has noisy counts, which were paid for: with --model {TWIN} give --components, --draws, --out, "
                "--overwrite and --json alone, or the table itself"
            )
        _fit_again(data, out, components, draws, overwrite=overwrite, as_json=as_json)
        return
    planned = None
    if plan_file is not None:
        given = PlanValues(epsilon, delta, steps, rate, clip, learning_rate, components, target, bounds, schema)
        drawn = batch_size is not None or sampling != "poisson"
        planned = with_plan(plan_file, model, given, drawn_otherwise=drawn)
        epsilon, delta, steps, rate, clip, learning_rate, components, target, bounds, schema = planned.values
    if epsilon is None:
        raise ValueError("--epsilon is missing: give a privacy budget, or a --plan that contains one")
    check_options(out, checkpoint, overwrite=overwrite, draws=draws, learning_rate=learning_rate)
    chosen = choose_model(model, components=components, words=model_args, epsilon=epsilon, delta=delta)
    defaults = chosen.defaults
    made = how_converted(data, non_private_bounds=non_private_bounds, out_of_bounds=out_of_bounds)
    odd_cells = str(out_of_bounds) if made is None else made.out_of_bounds
    described = options.schema_of(data, chosen, target, bounds, schema, non_private_bounds, made)
    if raw and chosen.own is None:
        raise ValueError(f"--raw is for a model of your own: {model} needs scaled columns, leave --raw out")
    if by is None and model == TWIN and not in_steps:
        from discreet.marginals import counts_suffice

        by = options.TwinMethod.MARGINALS if counts_suffice(described) else None
    if by == options.TwinMethod.MARGINALS:
        from discreet.marginals import NO_SPREAD

        check_whole(data, made, out_of_bounds)
        warn_of_no_privacy(described, seed, ledger)
        delta = suggest_delta(num_records) if delta is None else delta
        counting = options.marginals_plan_of(described, epsilon=epsilon, delta=delta, relation=relation)
        facts = {"schema": described, "out_of_bounds": out_of_bounds, "counted": True, "own": None}
        statement, files = count_and_write(
            out,
            data,
            counting,
            complete=lambda statement: complete_statement(statement, **facts).with_notes(NO_SPREAD),
            then=functools.partial(_fit_counts, out, components, draws),
            ledger=ledger,
            out_of_bounds=out_of_bounds,
            seed=seed,
        )
        _say_twins(out, statement, files, as_json=as_json)
        return
    own = None if chosen.own is None else chosen.own.prepare(described, raw=raw)
    described = described if own is None else own.schema
    whole = chosen.build(described) if model == TWIN else None
    function = chosen.build(described) if own is None else own.function
    # The key by which rows of each person are chosen, if it is to be the same another time.
    order = None if seed is None else hashlib.sha256(str(seed).encode()).digest()
    if order is None and described.person is not None and checkpoint is not None:
        order = kept_secret(checkpoint / "persons.key")
    if own is not None and own.raw and made is not None:
        raise ValueError(f"{data} holds converted records, which are scaled: for raw columns give the table itself")
    if own is not None and not as_json:
        _say_features(own)
    records = _records(data, described, odd_cells, order, whole, made, own)
    if own is not None and own.preprocesses:
        own = dataclasses.replace(own, seen=records.feature_names)
    public_count = records.num_records if num_records is None else num_records
    if plan_file is not None and planned is not None:
        say_other_size(plan_file, planned, public_count)
    if rate is None and batch_size is None and sampling == "poisson":
        rate = default_rate(public_count, defaults.batch)
    plan = options.plan_of(
        num_records=public_count,
        epsilon=epsilon,
        delta=delta,
        num_steps=defaults.steps if steps is None else steps,
        clipping_norm=options.clipping_of(clip or defaults.clip or default_clip(whole, described.max_rows)),
        sampling=options.sampling_of(sampling, rate=rate, batch_size=batch_size, num_records=public_count),
        relation=relation,
    )
    warn_of_no_privacy(described, seed, ledger)
    if checkpoint is not None:
        remember(checkpoint)
    counted = num_records is None
    fitted = fit_and_write(
        out,
        function if whole is None else whole.model,
        plan,
        records,
        complete=functools.partial(
            complete_statement, schema=described, out_of_bounds=odd_cells, counted=counted, own=own
        ),
        learning_rate=defaults.learning_rate if learning_rate is None else learning_rate,
        seed=seed,
        draws=1_000 if draws is None else draws,
        progress_bar=not as_json,
        whole=whole,
        ledger=ledger,
        checkpoint=checkpoint,
        person=described.person,
        max_rows=described.max_rows,
        own=own,
    )
    if as_json:
        say_json("fit", {"statement": fitted.statement.to_dict(), "files": [str(file) for file in fitted.files]})
    else:
        fitted.say(records)
    fitted.leave()


def _fit_counts(out: Path, components: int | None, draws: int | None, released: "Marginals") -> list[Path]:
    """Keep the noisy counts, from which the rest can be repeated, then fit them."""
    from discreet.synthetic import write_fitted

    counts = released.save(out / COUNTS)
    spent(
        f"the statement is in {out}, and the noisy counts are in {counts}: discreet fit --data {shlex.quote(str(counts))} "
        f"--model {TWIN} --out {shlex.quote(str(out))} continues, and spends nothing",
        "The release was made",
    )
    model, result = _fitted(released, components, draws)
    return [counts, *write_fitted(out, result, model)]


def _fitted(
    released: "Marginals", components: int | None, draws: int | None
) -> tuple["MixtureOfProducts", "MarginalsResult"]:
    from discreet.marginals import fit_twins

    chosen = {"components": components, "num_draws": draws}
    return fit_twins(released, **{name: value for name, value in chosen.items() if value is not None})


def _fit_again(
    data: Path, out: Path, components: int | None, draws: int | None, *, overwrite: bool, as_json: bool
) -> None:
    """Fit noisy counts that were kept: in their own folder, or in another one."""
    from discreet.marginals import load_marginals
    from discreet.synthetic import write_fitted

    choose_model(TWIN, components=components)
    released, files = load_marginals(data), []
    at_home = out.resolve() == data.parent.resolve() and (out / "statement.json").exists()
    check_options(out, overwrite=overwrite or at_home, draws=draws)
    with folder_for_results(out):
        model, result = _fitted(released, components, draws)
        if not at_home:
            files = [*write_statement(out, result.statement), released.save(out / COUNTS)]
        files += write_fitted(out, result, model)
        files.append(write_page(out).file)
    _say_twins(out, result.statement, files, as_json=as_json)


def _say_twins(out: Path, statement: "Statement", files: list[Path], *, as_json: bool) -> None:
    if as_json:
        say_json("fit", {"statement": statement.to_dict(), "files": [str(file) for file in files]})
        return
    print_statement(statement, files)
    say()
    say_lines(f"Next: discreet synth {out} --twins 5 --out twins")


def check_options(
    out: Path,
    checkpoint: Path | None = None,
    *,
    overwrite: bool,
    draws: int | None = None,
    learning_rate: float | None = None,
) -> None:
    """Refuse what would only fail once the budget is spent."""
    earlier = out / "statement.json"
    if earlier.exists() and not overwrite and not is_own_statement(checkpoint, earlier):
        raise ValueError(
            f"{out} contains the statement of an earlier fit: choose another --out, or replace it with --overwrite"
        )
    if draws is not None and not 1 <= draws <= MOST_DRAWS:
        raise ValueError(f"--draws is {draws}: give a number from 1 to {MOST_DRAWS}")
    if learning_rate is not None and not 0 < learning_rate < float("inf"):
        raise ValueError(f"--learning-rate is {learning_rate}: give a positive number, for example 0.02")


def default_rate(num_records: int, batch: int = EXPECTED_BATCH) -> float:
    """The rate that gives batches of about `batch` records, or all of a smaller table.

    Larger batches gain little, and smaller ones save little time.

    >>> default_rate(100), default_rate(2_000), default_rate(1_000_000)
    (1.0, 0.25, 0.0005)
    """
    return min(1.0, batch / max(1, num_records))


def default_clip(model: "MixtureOfProducts | None", max_rows: int = 1) -> str:
    """The root of `max_rows`; for a whole table about a quarter of the model's public bound on a gradient.

    A quarter distorts gradients little and saves noise.
    The gradients of a person's rows point in different directions: their sum grows like the root of their number, while the
    bound grows like the number.

    >>> default_clip(None), default_clip(None, 4)
    ('1', '2')
    """
    root = math.sqrt(max_rows)
    return f"{root:.6g}" if model is None else f"{model.gradient_bound / root / 3.6:.1f}"


def _say_features(own: "Prepared") -> None:
    """Print what the model gets, before anything is spent: wrong columns fit as smoothly as right ones."""
    from discreet.tables import describe_features

    target = own.schema.target_column
    if own.preprocesses:
        say(f"preprocess of {own.own.path} makes the columns of x. It gets one row at a time, with these columns:")
    elif own.of_columns:
        say("The model gets a dict named columns. Its arrays, by name:")
    else:
        say(f"The model gets x{'' if target is None else ' and y'}. The columns of x, by position:")
    if own.schema.max_rows > 1:
        say(
            f"Arrays have an axis of {own.schema.max_rows} rows after that of persons; mask, the last argument, says which exist."
        )
    named = own.of_columns or own.preprocesses
    for place, (name, meaning) in enumerate(describe_features(own.schema, raw=own.raw)):
        say_lines(f"  {repr(name) if named else place}: {'' if named else f'{name}, '}{meaning}")
    if target is not None:
        scaled = target.kind.has_bounds and target.kind != "count" and not own.raw
        meaning = target.rule() + (", scaled to -1 to 1" if scaled else "")
        say_lines(f"  {repr(target.name) if named else 'y'}: {target.name}, {meaning}")
    if not own.raw:
        say("With --raw: one column for each column of the schema, in its own unit, NaN where a cell is missing.")
    say()


def _records(
    data: Path,
    schema: "Schema",
    out_of_bounds: str,
    order: bytes | None,
    whole: "MixtureOfProducts | None",
    made: "Conversion | None",
    own: "Prepared | None",
) -> "Records":
    from discreet.tables import Records, decode, encode, keep_one_row_a_person, open_records, read_table

    if whole is not None:
        check_whole(data, made, out_of_bounds)
    if made is not None:
        return open_records(data, schema)
    table = read_table(data, schema, out_of_bounds=out_of_bounds)
    if whole is None:
        records = encode(table, schema, out_of_bounds=out_of_bounds, key=order, raw=own is not None and own.raw)
        if own is None or not own.preprocesses:
            return records
        return own.preprocessed(decode(records.x, schema, records.y, raw=True))
    # The records of a model of the whole table: the level of each cell.
    if schema.person is not None and schema.max_rows == 1:
        table = table.filter(keep_one_row_a_person(table.column(schema.person), key=order))
    names = tuple(column.name for column in schema.columns)
    return Records(x=whole.encode(table, out_of_bounds=out_of_bounds, key=order), y=None, feature_names=names)


def check_whole(data: Path, made: "Conversion | None", out_of_bounds: str, what: str = f"--model {TWIN}") -> None:
    """Refuse what cannot be read as a whole table."""
    if made is not None:
        raise ValueError(
            f"{data} is a converted table, for models that predict a column: {what} needs the table itself"
        )
    if out_of_bounds == "missing":
        raise ValueError(
            f"--out-of-bounds missing does not work with {what}: choose refuse or clip, or list the texts "
            "that stand for a missing cell as missing_values in the schema"
        )


def suggest_delta(num_records: int | None) -> float:
    """The default δ where the number of records is not used: that of a public figure for it, or of 100,000 records."""
    from discreet.accounting import suggest

    return suggest(num_records=num_records or 100_000).delta


def warn_of_no_privacy(schema: "Schema", seed: int | None, ledger: Path | None) -> None:
    """Say loudly, before the run, what makes its result not private; a ledger cannot hold such a fit."""
    if ledger is not None and (schema.inferred or seed is not None):
        raise ValueError(
            "--ledger is for private fits, and this one would not be private (--seed, or bounds from the data): "
            "leave one of them out"
        )
    if schema.inferred:
        say_error(
            f"NOT PRIVATE: bounds or categories of {', '.join(schema.inferred)} are taken from the data. No ε holds for the "
            "results, and the statement says so."
        )
    if seed is not None:
        say_error("NOT PRIVATE: with --seed the noise can be reproduced and removed. The statement says so.")


def complete_statement(
    statement: "Statement", schema: "Schema", out_of_bounds: str, *, counted: bool, own: "Prepared | None"
) -> "Statement":
    """The statement of the fit with what the command line knows besides."""
    lines = zip(schema.columns, schema.describe(), strict=True)
    public = [line for column, line in lines if column.name not in schema.inferred]
    if public:
        statement = statement.with_public(f"Columns and their bounds or categories: {'; '.join(public)}.")
    notes = [ODD_CELLS[out_of_bounds]]
    if schema.person is not None:
        kept = "one was" if schema.max_rows == 1 else f"at most {schema.max_rows} were"
        notes.append(
            f"Each person is one record: of the rows with the same '{schema.person}' {kept} used, by a secret order that "
            "depends on nobody else's rows. The number of records is the number of persons. An identifier that is written in two "
            "ways is two persons."
        )
    if not counted:
        notes.append("The number of records is a public figure that the user gave, not the file's count.")
    if own is not None and own.preprocesses:
        notes.append(
            f"preprocess of {own.own.path.name} was called with each row by itself. That it keeps nothing from one call to the "
            "next was not checked."
        )
    statement = statement.with_notes(*notes)
    if schema.inferred:
        statement = statement.with_violations(
            f"Bounds or categories of these columns were taken from the data: "
            f"{', '.join(schema.inferred)}. They may reveal values of individual people; no ε holds for the results."
        )
    return statement
