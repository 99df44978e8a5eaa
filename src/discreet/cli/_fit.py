"""`discreet fit`: a table, a model and a budget to a posterior and a statement."""

import dataclasses
import datetime
import functools
import hashlib
import json
import math
import secrets
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import discreet as dp
from discreet._validate import RefusedError, integer, positive
from discreet.cli import _options as options
from discreet.cli._options import LINEAR, TWIN, choose_model
from discreet.cli._plan import KINDS, say_other_size, with_plan
from discreet.cli._report import COUNTS, facts_in, write_page, write_statement
from discreet.cli._run import (
    budget_line,
    charge_line,
    count_and_write,
    fit_and_write,
    is_own_statement,
    joined,
    kept_secret,
    remember,
    say_price,
    tenth_of_cap,
)
from discreet.cli._tables import how_converted, unit_of
from discreet.cli._terminal import (
    folder_for_results,
    on_terminal,
    refusing,
    say,
    say_error,
    say_json,
    say_lines,
    settings,
    spent,
    with_options_of,
)

if TYPE_CHECKING:
    from discreet.cli._options import ChosenModel
    from discreet.cli._own_model import Prepared
    from discreet.cli._plan import PlanFile
    from discreet.cli._run import Fitted

# Rows to count a model's parameters with: unlike the size of most plates.
_MADE_UP = 7
DESCRIPTION = "description"
MOST_DRAWS = 10_000_000
MOST_CELLS = 2**26
"""Most features for measuring moments by default, which needs three copies of the table in 64 bits."""
NOTHING_MORE = "nothing more was spent. This ε was, when the counts were released."
ERRORS_TELL = "Whether an error occurs is not covered by ε."
ODD_CELLS = {
    "refuse": "A cell outside its bounds or categories would have stopped the fit with an error naming the column. "
    + ERRORS_TELL,
    "clip": "Numbers outside their bounds were moved to the nearest bound. Any other cell that the schema does not allow would "
    f"have stopped the fit with an error naming the column. {ERRORS_TELL}",
    "missing": "Cells that the schema does not allow were treated as missing. A missing cell in a column without a rule for it "
    f"would have stopped the fit with an error naming the column. {ERRORS_TELL}",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of `fit`; with --plan, those that it says in their place where they are left out."""

    data: options.Data
    model: options.Model
    epsilon: options.Epsilon = None
    target: options.Target = None
    bounds: options.Bounds = None
    person: options.Person = None
    schema: options.SchemaFile = None
    delta: options.Delta = None
    num_records: options.NumRecords = None
    by: options.By = None
    components: options.Components = None
    choices: options.Choices = None
    steps: options.FitSteps = None
    rate: options.Rate = None
    batch_size: options.BatchSize = None
    sampling: options.Sampling = "poisson"
    relation: options.RelationOption = None
    clip: options.Clip = None
    learning_rate: options.LearningRate = None
    plan_file: options.PlanFile = None
    draws: options.Draws = None
    ledger: options.LedgerFile = None
    checkpoint: options.CheckpointFolder = None
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE
    raw: options.Raw = False
    model_args: options.ModelArgs = None
    seed: options.Seed = None
    non_private_bounds: options.NonPrivateBounds = False
    dataset: options.Dataset = ""
    contact: options.Contact = ""
    out: options.Out = Path("discreet-fit")
    overwrite: options.Overwrite = False
    dry_run: options.FitDryRun = False
    yes: options.Yes = False
    distributed: options.Distributed = False
    coordinator: options.Coordinator = None
    num_processes: options.NumProcesses = None
    process_id: options.ProcessId = None
    as_json: options.AsJson = False

    @property
    def in_steps(self) -> bool:
        """True if an option is given that applies only to fits in steps."""
        of_steps = (
            self.steps,
            self.rate,
            self.batch_size,
            self.clip,
            self.learning_rate,
            self.plan_file,
            self.checkpoint,
        )
        return any(x is not None for x in of_steps) or self.sampling != "poisson"

    @property
    def progress_bar(self) -> bool:
        """True if a person watches."""
        return not self.as_json and on_terminal()


@refusing
@with_options_of(Asked)
def fit(asked: Asked) -> None:
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
    with joined(asked.distributed, asked.coordinator, asked.num_processes, asked.process_id) as members:
        with members.together():
            check_method(asked)
            if asked.data.suffix == Path(COUNTS).suffix:
                _fit_again(asked)
                return
            planned = None
            if asked.plan_file is not None:
                given = {name: getattr(asked, name) for name in KINDS}
                drawn = asked.batch_size is not None or asked.sampling != "poisson"
                planned = with_plan(asked.plan_file, asked.model, given, drawn_otherwise=drawn)
                asked = dataclasses.replace(asked, **planned.values)
            described_by = (asked.schema, asked.bounds, asked.non_private_bounds or None)
            options.refuse_missing(asked.model, asked.epsilon, asked.target, described_by, asked.data)
            if members.first:
                check_folder(asked.out, asked.checkpoint, overwrite=asked.overwrite)
            check_numbers(asked)
            chosen = choose_model(
                asked.model,
                components=asked.components,
                words=asked.model_args,
                epsilon=asked.epsilon,
                delta=asked.delta,
            )
            made = how_converted(
                asked.data, non_private_bounds=asked.non_private_bounds, out_of_bounds=asked.out_of_bounds
            )
            described = options.schema_of(
                asked.data,
                chosen,
                asked.target,
                asked.bounds,
                asked.schema,
                asked.non_private_bounds,
                made,
                asked.person,
            )
            if asked.raw and chosen.own is None:
                raise ValueError(
                    f"--raw is for a model of your own: {asked.model} needs scaled columns, leave --raw out"
                )
            if _by_marginals(asked, described):
                _count(asked, described, made)
                return
        with ExitStack() as stack:
            with members.together():
                if members.first and not asked.dry_run:
                    stack.enter_context(dp.storage.exclusive(asked.checkpoint))
            fitted = _fit_records(asked, members, chosen, described, made, planned)
    if fitted is not None:
        fitted.leave()


def check_method(asked: Asked) -> None:
    """Refuse options that the way of fitting does not have, and numbers that none has."""
    by, model = asked.by, asked.model
    for_model = {options.Method.MARGINALS: TWIN, options.Method.MOMENTS: LINEAR}.get(by or options.Method.SVI)
    if for_model is not None and (model != for_model or asked.in_steps):
        raise ValueError(
            f"--by {by} is for --model {for_model}, and takes no steps: omit --steps, --rate, --batch-size, "
            "--sampling, --clip, --learning-rate, --plan and --checkpoint, or choose --by svi"
        )
    if by == options.Method.MOMENTS and asked.distributed:
        raise RefusedError("--distributed is for fits in steps, and noisy moments take none: add --by svi")
    if asked.choices is not None and (model != TWIN or by == options.Method.SVI or asked.in_steps):
        raise ValueError(f"--choices is for --model {TWIN} by marginals: leave it out")
    if asked.draws is not None and not 1 <= asked.draws <= MOST_DRAWS:
        raise ValueError(f"--draws is {asked.draws}: give a number from 1 to {MOST_DRAWS}")


def _by_marginals(asked: Asked, described: "dp.tables.Schema") -> bool:
    """True if noisy counts are to be fitted; refuse tables without such a fit."""
    if asked.by is None and asked.model == TWIN and not asked.in_steps:
        if asked.choices is None and not dp.marginals.counts_suffice(described):
            return False
    elif asked.by != options.Method.MARGINALS:
        return False
    if asked.distributed:
        raise RefusedError(
            "--distributed is for fits in steps, and noisy counts take one pass: leave it out, or add --by svi"
        )
    if described.max_rows > 1:
        raise ValueError(
            f"noisy counts take one row a person, and the schema's max_rows is {described.max_rows}: --by svi, or "
            "leave max_rows out"
        )
    return True


def _fit_records(
    asked: Asked,
    members: "dp.inference.Processes",
    chosen: "ChosenModel",
    described: "dp.tables.Schema",
    made: "dp.tables.Conversion | None",
    planned: "PlanFile | None",
) -> "Fitted | None":
    """Fit the records, in steps or by noisy moments; None after a dry run."""
    # What the messages that follow depend on: processes that differ would wait for one another.
    key = "secret" if asked.seed is None else str(asked.seed)
    members.agree(key=key, schema=dp.tables.schema_to_toml(described), options=str(asked.dry_run))
    order = _order(asked, described, members)
    most_delta = _most_delta(asked, members)
    with members.together():
        table = _read(asked, chosen, described, made, order, members.mesh)
        public_count = table.records.num_records if asked.num_records is None else asked.num_records
        if most_delta is not None:
            asked = dataclasses.replace(asked, delta=min(most_delta, suggest_delta(public_count, None)))
        if asked.plan_file is not None and planned is not None:
            say_other_size(asked.plan_file, planned, public_count)
        plan = _moments_plan(asked, table, public_count) or _plan(asked, chosen, table, public_count)
        warn_of_no_privacy(table.schema, asked.seed, asked.ledger)
        warn_of_rows(table.schema, asked.data, by_bounds=asked.bounds is not None)
        if asked.dry_run:
            say_dry_run(asked, table, plan)
            return None
        check_use(table, plan, goes_on=asked.yes, may_ask=not asked.as_json and not asked.distributed)
        if asked.checkpoint is not None and asked.distributed:
            settings.continue_with = "the same command, in all processes"
        if asked.checkpoint is not None and members.first:
            remember(asked.checkpoint)
    target = table.schema.target_column
    classes = target.categories if chosen.name == options.MULTINOMIAL and target is not None else ()
    drops = table.schema.drops if table.whole is None and table.schema.max_rows == 1 else ()
    groups = dp.models.groups_of(table.schema.columns, table.records.feature_names)
    fitted = fit_and_write(
        asked.out,
        table.function,
        plan,
        table.records,
        complete=functools.partial(
            complete_statement,
            schema=table.schema,
            out_of_bounds=table.odd_cells,
            counted=asked.num_records is None,
            own=table.own,
            drops=table.whole is None,
            about=about_words(asked.model, table.schema, asked.dataset or asked.data.name, public_count),
            contact=asked.contact,
        ),
        learning_rate=chosen.defaults(table.schema).learning_rate
        if asked.learning_rate is None
        else asked.learning_rate,
        seed=asked.seed,
        draws=1_000 if asked.draws is None else asked.draws,
        progress_bar=asked.progress_bar,
        whole=table.whole,
        ledger=asked.ledger,
        checkpoint=asked.checkpoint,
        processes=members,
        person=table.schema.person,
        max_rows=table.schema.max_rows,
        own=table.own,
        about=facts_about(chosen.name, table.schema) if chosen.needs_target else None,
        drops=drops,
        groups=groups if chosen.needs_target else (),
        classes=classes,
    )
    if asked.as_json and members.first:
        say_json("fit", fitted.facts())
    elif members.first:
        unit = "persons" if table.schema.person else "records"
        counted = getattr(fitted.result, "counted", None)
        which = f"{counted} of " if drops else ""
        fitted.say(f"{asked.model} to {which}{public_count:,} {unit}", asked.ledger)
    return fitted


def about_words(model: str, schema: "dp.tables.Schema", dataset: str, count: int | None = None) -> str:
    """What is computed by a model of this name, or by `DESCRIPTION`, from which table and for whom; names in quotation marks.

    >>> schema = dp.tables.schema_from_bounds("age=20:60,visits=0:9,smoker=no|yes", target="smoker")
    >>> about_words("logistic", schema, "a.csv", 1_500)
    'A logistic regression of “smoker” (yes against no) on 2 columns of “a.csv”, 1,500 records; its coefficients were released.'
    """
    target, number = schema.target_column, len(schema.columns)
    of = ""
    if target is not None and model != TWIN:
        number -= 1
        classes = target.categories
        between = f" ({classes[1]} against {classes[0]})" if len(classes) == 2 else ""
        of = f"of “{target.name}”{between} on "
    table = f"{number} column{'s' * (number != 1)} of “{dataset}”"
    table += "" if count is None else f", {count:,} {'persons' if schema.person else 'records'}"
    if model == DESCRIPTION:
        return f"Noisy counts, shares and means of {table}."
    if model == TWIN:
        return f"A model of {table}, to draw synthetic rows from; the model was released."
    if model in options.REGRESSIONS:
        name = model.replace("-", " ").replace("poisson", "Poisson")
        return f"A {name} regression {of}{table}; its coefficients were released."
    return f"The model “{Path(model).name}” {of or 'of '}{table}; its parameters were released."


def facts_about(model: str, schema: "dp.tables.Schema") -> dict[str, str]:
    """The model and the schema of a regression, and the unit of its coefficients."""
    target = schema.target_column
    assert target is not None
    scale = {
        "logistic": f"the log odds of “{target.categories[-1]}”" if target.categories else "",
        options.MULTINOMIAL: "the log of a category's probability, up to a term that all categories share,",
        LINEAR: f"“{target.name}”, in halves of the range of its bounds,",
    }.get(model, f"the log of the mean of “{target.name}”")
    units = (
        f"A coefficient says how much {scale} changes if a number moves by half of the range of its bounds, or if a record is in "
        "the category that is named after the column."
    )
    return {"model": model, "schema": dp.tables.schema_to_toml(schema), "units": units}


def _count(asked: Asked, schema: "dp.tables.Schema", made: "dp.tables.Conversion | None") -> None:
    """Count what twins need in one release, and fit the noisy counts."""
    check_whole(asked.data, made, asked.out_of_bounds)
    warn_of_no_privacy(schema, asked.seed, asked.ledger)
    warn_of_rows(schema, asked.data, by_bounds=asked.bounds is not None)
    assert asked.epsilon is not None
    plan = dp.marginals.MarginalsPlan.calibrate(
        schema,
        tables=dp.marginals.twin_tables(schema, asked.choices or 0),
        epsilon=asked.epsilon,
        delta=suggest_delta(asked.num_records, asked.ledger) if asked.delta is None else asked.delta,
        relation=options.relation_of(asked.relation),
        choices=asked.choices or 0,
    )
    if asked.dry_run:
        columns = [column.name for column in schema.columns]
        cost = f", for noisy counts of these columns: {', '.join(columns)}"
        epsilon = plan.state(reproducible=False).epsilon
        _say_dry_run(asked, schema, plan, epsilon, plan.delta, {"columns": columns}, cost=cost)
        return
    facts = {
        "schema": schema,
        "out_of_bounds": asked.out_of_bounds,
        "counted": True,
        "own": None,
        "about": about_words(TWIN, schema, asked.dataset or asked.data.name),
        "contact": asked.contact,
    }
    statement, files = count_and_write(
        asked.out,
        asked.data,
        plan,
        complete=lambda statement: complete_statement(statement, **facts).with_notes(dp.marginals.NO_SPREAD),
        then=functools.partial(_fit_counts, asked),
        keep=asked.out / COUNTS,
        progress_bar=asked.progress_bar,
        ledger=asked.ledger,
        out_of_bounds=asked.out_of_bounds,
        seed=asked.seed,
    )
    _say_twins(asked, "Fitted a twin to noisy counts", statement, files, budget_line(asked.ledger, statement.delta))


def _fit_counts(asked: Asked, released: "dp.marginals.Marginals") -> list[Path]:
    """Keep the noisy counts, from which the rest can be repeated, then fit them."""
    out = asked.out
    counts = released.save(out / COUNTS)
    spent(
        f"the statement is in {out}, and the noisy counts are in {counts}: discreet fit --data {shlex.quote(str(counts))} "
        f"--model {TWIN} --out {shlex.quote(str(out))} continues, and spends nothing",
        "The release was made",
    )
    if on_terminal():
        say_error("Fitting the noisy counts, which spends nothing more. It takes some seconds.")
    model, result = _fitted(asked, released)
    return [counts, *dp.synthetic.write_fitted(out, result, model)]


def _fitted(
    asked: Asked, released: "dp.marginals.Marginals"
) -> tuple["dp.models.MixtureOfProducts", "dp.marginals.MarginalsResult"]:
    chosen = {"components": asked.components, "num_draws": asked.draws}
    return dp.marginals.fit_twins(released, **{name: value for name, value in chosen.items() if value is not None})


def _fit_again(asked: Asked) -> None:
    """Fit noisy counts that were kept: in their own folder, or in another one."""
    data, out = asked.data, asked.out
    if asked.distributed:
        raise RefusedError(f"--distributed is for fits in steps, and {data} has noisy counts: leave it out")
    free = ("data", "model", "by", "components", "draws", "out", "overwrite", "as_json")
    left_out = all(getattr(asked, x.name) == x.default for x in dataclasses.fields(asked) if x.name not in free)
    if asked.model != TWIN or asked.by not in (None, options.Method.MARGINALS) or not left_out:
        raise ValueError(
            f"{data} has noisy counts, which were paid for: with --model {TWIN} give --components, --draws, --out, "
            "--overwrite and --json alone, or the table itself"
        )
    choose_model(TWIN, components=asked.components)
    released, files = dp.marginals.Marginals.load(data), []
    # What else the statement in the folder says may be more.
    stated, wanted = facts_in(out / "statement.json"), json.loads(released.statement.to_json())
    same = all(stated.get(name) == wanted[name] for name in ("epsilon", "delta", "plan"))
    at_home = same and out.resolve() == data.parent.resolve()
    check_folder(out, overwrite=asked.overwrite or at_home)
    with folder_for_results(out):
        model, result = _fitted(asked, released)
        if not at_home:
            files = [*write_statement(out, result.statement), released.save(out / COUNTS)]
        files += dp.synthetic.write_fitted(out, result, model)
        files.append(write_page(out).file)
    _say_twins(asked, "Fitted the noisy counts again", result.statement, files, NOTHING_MORE)


def _say_twins(asked: Asked, what: str, statement: "dp.Statement", files: list[Path], budget: str) -> None:
    if asked.as_json:
        say_json("fit", {"statement": statement.to_dict(), "files": [str(file) for file in files]})
        return
    say_price(what, statement, budget)
    say_lines(f"Files in {asked.out}: {', '.join(file.name for file in files)}.")
    say_lines(f"Next: discreet synth {shlex.quote(str(asked.out))} --twins 5 --out twins")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """The table, model and settings of a fit in steps."""

    schema: "dp.tables.Schema"  # The public description of the table
    records: "dp.tables.Records"
    function: Any  # The NumPyro model of them
    odd_cells: str  # The treatment of cells that the schema does not allow
    whole: "dp.models.MixtureOfProducts | None"  # The model of the whole table, if it is one
    own: "Prepared | None"  # The user's model, if it is one

    @property
    def num_parameters(self) -> int | None:
        """The number of coordinates of a record's gradient; None if the user's model cannot be inspected."""
        import jax
        import numpy as np
        import numpyro

        from discreet._numpyro import trace_of

        if self.own is not None and self.own.of_columns:
            return None
        made = [np.zeros((_MADE_UP, *x.shape[1:]), x.dtype) for x in self.records.arrays if x is not None]
        seeded = numpyro.handlers.seed(self.function, jax.random.key(0))
        try:
            sites = trace_of(seeded, *made).values()
        except Exception:  # `DPSVI` says better what is wrong with it
            return None
        shared = [
            site for site in sites if not any(frame.size == _MADE_UP for frame in site.get("cond_indep_stack", ()))
        ]
        kinds = ("sample", "param")
        return sum(np.size(x["value"]) for x in shared if x["type"] in kinds and not x.get("is_observed"))


def _order(asked: Asked, schema: "dp.tables.Schema", members: "dp.inference.Processes") -> bytes | None:
    """The key by which rows of each person are chosen, if it is to be the same another time or in another process."""
    if asked.seed is not None:
        return hashlib.sha256(str(asked.seed).encode()).digest()
    if schema.person is None or (asked.checkpoint is None and members.count == 1):
        return None
    key = b""
    with members.together():
        if members.first:
            key = secrets.token_bytes(32) if asked.checkpoint is None else kept_secret(asked.checkpoint / "persons.key")
    return members.from_first(key)


def _most_delta(asked: Asked, members: "dp.inference.Processes") -> float | None:
    """The largest default δ by the ledger, which process 0 alone may have; None where no default is needed."""
    if asked.ledger is None or asked.delta is not None:
        return None
    most = b""
    with members.together():
        if members.first:
            most = repr(tenth_of_cap(asked.ledger)).encode()
    return float(members.from_first(most))


def _read(
    asked: Asked,
    chosen: "ChosenModel",
    described: "dp.tables.Schema",
    made: "dp.tables.Conversion | None",
    order: bytes | None,
    mesh: Any,
) -> Table:
    """Find the model's function and read the records."""
    odd_cells = str(asked.out_of_bounds) if made is None else made.out_of_bounds
    own = None if chosen.own is None else chosen.own.prepare(described, raw=asked.raw)
    schema = described if own is None else own.schema
    whole = chosen.build(schema) if chosen.name == TWIN else None
    function = own.function if own is not None else chosen.build(schema) if whole is None else whole.model
    if own is not None and own.raw and made is not None:
        raise ValueError(
            f"{asked.data} holds converted records, which are scaled: for raw columns give the table itself"
        )
    if own is not None and not asked.as_json:
        _say_features(own)
    how: dict[str, Any] = {"out_of_bounds": odd_cells, "key": order}
    if whole is not None:
        check_whole(asked.data, made, odd_cells)
    if made is not None:
        # A model of named columns takes them apart, which shards on several machines cannot be.
        mesh = None if own is not None and own.of_columns else mesh
        shown = on_terminal() and not settings.silent
        records = dp.tables.open_records(asked.data, schema, mesh=mesh, progress_bar=shown)
    elif whole is None:
        table = dp.tables.read_table(asked.data, schema, out_of_bounds=odd_cells)
        records = dp.tables.encode(table, schema, raw=own is not None and own.raw, **how)
        if own is not None and own.preprocesses:
            records = own.preprocessed(dp.tables.decode(records.x, schema, records.y, raw=True))
            own = dataclasses.replace(own, seen=records.feature_names)
    else:  # the level of each cell
        table = dp.tables.read_table(asked.data, schema, out_of_bounds=odd_cells)
        if schema.person is not None and schema.max_rows == 1:
            table = table.filter(dp.tables.keep_one_row_a_person(table.column(schema.person), key=order))
        names = tuple(column.name for column in schema.columns)
        records = dp.tables.Records(x=whole.encode(table, **how), y=None, feature_names=names)
    return Table(schema=schema, records=records, function=function, odd_cells=odd_cells, whole=whole, own=own)


def _plan(asked: Asked, chosen: "ChosenModel", table: Table, num_records: int) -> "dp.PrivacyPlan":
    defaults, rate = chosen.defaults(table.schema), asked.rate
    if rate is None and asked.batch_size is None and asked.sampling == "poisson":
        rate = defaults.rate_for(num_records)
    return options.plan_of(
        num_records=num_records,
        epsilon=asked.epsilon,
        delta=asked.delta,
        num_steps=defaults.num_steps if asked.steps is None else asked.steps,
        clipping_norm=defaults.clipping_norm if asked.clip is None else options.clipping_of(asked.clip),
        sampling=options.sampling_of(asked.sampling, rate=rate, batch_size=asked.batch_size, num_records=num_records),
        relation=asked.relation,
    )


def _moments_plan(asked: Asked, table: Table, num_records: int) -> "dp.moments.MomentsPlan | None":
    """The plan to measure a regression's moments; None where another way was asked for, or the table is not one for it."""
    wanted = asked.by == options.Method.MOMENTS
    usual = asked.by is None and asked.model == LINEAR and not asked.in_steps and not asked.distributed
    if not wanted and not usual:
        return None
    features = len(table.records.feature_names)
    if table.schema.max_rows > 1 and wanted:
        raise ValueError(
            f"--by moments takes one row a person, and the schema's max_rows is {table.schema.max_rows}: write "
            "max_rows = 1 in the schema, by which one row of each person is used, or fit in steps by --by svi"
        )
    if table.schema.drops and wanted:
        raise ValueError('--by moments takes every row, and the schema drops some (missing = "drop"): --by svi')
    if table.schema.max_rows > 1 or table.schema.drops or (not wanted and num_records * features > MOST_CELLS):
        return None
    assert asked.epsilon is not None
    return dp.moments.MomentsPlan.calibrate(
        epsilon=asked.epsilon,
        delta=asked.delta,
        num_features=features,
        num_records=num_records,
        relation=options.relation_of(asked.relation),
    )


def check_folder(out: Path, checkpoint: Path | None = None, *, overwrite: bool) -> None:
    """Refuse to write where an earlier fit's results are."""
    earlier = out / "statement.json"
    if earlier.exists() and not overwrite and not is_own_statement(checkpoint, earlier):
        raise ValueError(
            f"{out} contains the statement of an earlier fit: choose another --out, or replace it with --overwrite"
        )


def check_numbers(asked: Asked) -> None:
    """Refuse numbers that no table can make right, before it is read."""
    positive("epsilon", asked.epsilon, hint="1 is a common choice.")
    if asked.learning_rate is not None and not 0 < asked.learning_rate < float("inf"):
        raise ValueError(f"--learning-rate is {asked.learning_rate}: give a positive number, for example 0.02")
    count = 10**9 if asked.num_records is None else integer("num_records", asked.num_records)
    rate = 1.0 if asked.rate is None and asked.batch_size is None and asked.sampling == "poisson" else asked.rate
    sampler = options.sampling_of(asked.sampling, rate=rate, batch_size=asked.batch_size, num_records=count)
    dp.PrivacyPlan(
        sampling=sampler,
        clipping_norm=options.clipping_of(asked.clip or "adaptive"),
        noise_multiplier=1.0,
        num_steps=1 if asked.steps is None else asked.steps,
        num_records=count,
        relation=options.relation_of(asked.relation, sampler),
        target_delta=asked.delta,
    )


def check_use(table: Table, plan: "dp.PrivacyPlan | dp.moments.MomentsPlan", *, goes_on: bool, may_ask: bool) -> None:
    """Ask before a budget is spent on what is likely not usable; from public facts alone.

    All gradients together are at most N C long, which leaves N C / P for each of P parameters. Less than the noise that is left
    in the mean of all steps, and no parameter can be told from noise. C cancels out. The sums of products of P - 1 features and a
    constant likewise have eigenvalues of N / P on average at most. A mixture of one component passes, and has no relations.
    """
    by_moments = isinstance(plan, dp.moments.MomentsPlan)
    count = plan.num_features + 1 if by_moments else table.num_parameters
    noise = plan.stddevs[-1] if by_moments else plan.noise_multiplier / (plan.rate * math.sqrt(plan.num_steps))
    unrelated = table.whole is not None and table.whole.components == 1
    if goes_on or not count or (plan.num_records / count >= noise and not unrelated):
        return
    unit = "persons" if table.schema.person else "records"
    signal = f"{plan.num_records / count:.2g}"
    found = f"Likely not usable: the model has {count:,} parameters. " + (
        f"The sums of {plan.num_records:,} {unit} can show {signal} for each of them, and the noise on each sum is {noise:.2g}."
        if by_moments
        else f"The gradients of {plan.num_records:,} {unit} can add up to {signal} C for each of them (C is the clipping norm), "
        f"and the noise that is left in the mean of all steps is {noise:.2g} C."
    )
    ways = "Use fewer columns or categories, a smaller model, a larger --epsilon, or more records; discreet plan tries settings."
    if unrelated:
        found = "Likely not usable: the columns of a twin with one component are independent, so no column predicts another."
        ways = "Use --components 2 or more."
    if table.whole is not None and table.schema.max_rows > 1:
        # 1,675 persons with up to 5 rows at ε = 1: three components pass, but predict nothing (AUC 0.50); counts do (0.76).
        ways += " With max_rows = 1, a twin is fitted to noisy counts, which need fewer persons and keep relations of columns."
    if may_ask and on_terminal():
        say_error(f"{found} {ways}")
        if typer.confirm("Spend the budget all the same?", err=True):
            return
        raise ValueError("nothing was spent. " + ways)
    raise ValueError(f"{found} Nothing was spent. {ways} To go on all the same, add --yes.")


def say_dry_run(asked: Asked, table: Table, plan: "dp.PrivacyPlan | dp.moments.MomentsPlan") -> None:
    """Print what a fit to records would do and cost. Nothing is spent."""
    count, names = table.num_parameters, list(table.records.feature_names)
    noun = "record" if table.schema.person is None else "person"
    setting: dict[str, float] = {"noise_multiplier": plan.noise_multiplier}
    if isinstance(plan, dp.moments.MomentsPlan):
        delta, epsilon = plan.delta, plan.state(reproducible=False).epsilon
        noises = ", ".join(f"{stddev:.4g}" for stddev in plan.stddevs)
        words = (
            f"{len(plan.stddevs)} releases of noisy sums of products, to which a {noun} adds at most 1; noise {noises}"
        )
    else:
        assert plan.target_delta is not None
        delta, epsilon = plan.target_delta, plan.epsilon(plan.target_delta)
        setting |= {"num_steps": plan.num_steps, "rate": plan.rate, "clipping_norm": plan.clipping.start}
        words = f"{plan.num_steps:,} steps; {plan.sampling.in_words(plan.num_records, noun)}; clipping norm "
        words += f"{plan.clipping.start:g}{', which then adapts' if plan.clipping.adapts else ''}; "
        words += f"noise {plan.noise_multiplier:.4g}"
    facts = {"relation": plan.relation.name, "num_records": plan.num_records, "features": names}
    facts |= {"num_parameters": count, **setting}
    whom = f" ({dp.accounting.relation_name(plan.relation.name)}). {plan.num_records:,} of them"
    _say_dry_run(asked, table.schema, plan, epsilon, delta, facts, whom=whom)
    if asked.as_json:
        return
    say_lines(f"Plan: {words}.")
    say_lines(f"Columns: {', '.join(names)}." + ("" if count is None else f" {count:,} parameters."))
    say_lines("What the fit will be good for: discreet plan says, after a dry run on invented tables.")
    try:
        check_use(table, plan, goes_on=False, may_ask=False)
    except ValueError as found:
        say_lines(str(found))


def _say_dry_run(
    asked: Asked,
    schema: "dp.tables.Schema",
    plan: "dp.accounting.Planned",
    epsilon: float,
    delta: float,
    facts: Mapping[str, Any],
    *,
    whom: str = "",
    cost: str = "",
) -> None:
    """Print the unit, the cost and what the ledger would charge."""
    budget = charge = None
    if asked.ledger is not None:
        budget, charge = budget_line(asked.ledger, delta), charge_line(asked.ledger, plan, delta, schema)
    unit = unit_of(schema)
    if asked.as_json:
        common = {"dry_run": True, "epsilon": epsilon, "delta": delta, "unit": unit}
        say_json("fit", {**common, **facts, "budget": budget, "charge": charge})
        return
    say_lines(f"Dry run: nothing is spent, and nothing is written.\nPrivacy unit: {unit}{whom}.")
    say_lines(f"Cost: ε = {dp.accounting.upper(epsilon)} at δ = {delta:g}{cost}.")
    if asked.ledger is not None:
        say_lines(f"Before it: {budget}\n{charge}")


def _say_features(own: "Prepared") -> None:
    """Print what the model gets, before anything is spent: wrong columns fit as smoothly as right ones."""
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
    for place, (name, meaning) in enumerate(dp.tables.describe_features(own.schema, raw=own.raw)):
        say_lines(f"  {repr(name) if named else place}: {'' if named else f'{name}, '}{meaning}")
    if target is not None:
        scaled = target.kind.has_bounds and target.kind != "count" and not own.raw
        meaning = target.rule() + (", scaled to -1 to 1" if scaled else "")
        say_lines(f"  {repr(target.name) if named else 'y'}: {target.name}, {meaning}")
    if not own.raw:
        say("With --raw: one column for each column of the schema, in its own unit, NaN where a cell is missing.")
    say()


def check_whole(
    data: Path, made: "dp.tables.Conversion | None", out_of_bounds: str, what: str = f"--model {TWIN}"
) -> None:
    """Refuse what cannot be read as a whole table."""
    if made is not None:
        raise ValueError(
            f"{data} is a converted table, for models that predict a column: {what} needs the table itself"
        )
    if out_of_bounds == "missing":
        raise ValueError(
            f"--out-of-bounds missing does not work with {what}: choose refuse or clip, list the texts "
            'that stand for a missing cell as missing_values in the schema, or write out_of_bounds = "missing" for a column in it'
        )


def suggest_delta(num_records: int | None, ledger: Path | None) -> float:
    """The default δ: that of a public number of records, else of 100,000, and at most a tenth of the ledger's cap.

    A ledger adds the δ of its fits. One of the cap's own δ leaves no room for a sum by ε: ε = 1 was charged as 1.32.
    """
    usual = dp.accounting.suggest(num_records=num_records or 100_000).delta
    return usual if ledger is None else min(usual, tenth_of_cap(ledger))


def warn_of_no_privacy(schema: "dp.tables.Schema", seed: int | None, ledger: Path | None) -> None:
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


def warn_of_rows(schema: "dp.tables.Schema", data: Path, *, by_bounds: bool) -> None:
    """Say that a row is protected, where nobody said whether a person may have several."""
    if schema.person is not None or schema.each_row:
        return
    remedy = (
        'In the schema, write person = "COLUMN" to protect persons, or person = "each row" if no person has two rows.'
    )
    if by_bounds:
        remedy = (
            "Add --person COLUMN to protect persons, or --person 'each row' if no person has two rows. A schema file "
            f"(discreet schema init {shlex.quote(str(data))}) can use several rows of a person."
        )
    say_error(f"Each row is protected, not a person with several rows. {remedy}")


def complete_statement(
    statement: "dp.Statement",
    schema: "dp.tables.Schema",
    out_of_bounds: str,
    *,
    counted: bool,
    own: "Prepared | None",
    drops: bool = False,
    about: str = "",
    contact: str = "",
) -> "dp.Statement":
    """The statement of the fit with what the command line knows besides; `drops` if it leaves out rows that the schema drops."""
    lines = zip(schema.columns, schema.describe(), strict=True)
    public = [line for column, line in lines if column.name not in schema.inferred]
    if public:
        statement = statement.with_public(f"Columns and their bounds or categories: {'; '.join(public)}.")
    own_rules = []
    for column in schema.columns:
        if column.out_of_bounds is not None:
            own_rules.append(f"{column.name} ({column.out_of_bounds})")
    # The day only: a page for people says it.
    notes = [ODD_CELLS[out_of_bounds]]
    made_on = str(datetime.datetime.now(datetime.UTC).date())
    if own_rules:
        notes.append(f"The schema has its own rules for cells that it does not allow in {', '.join(own_rules)}.")
    if schema.person is not None:
        kept = "one was" if schema.max_rows == 1 else f"at most {schema.max_rows} were"
        notes.append(
            f"Each person is one record: of the rows with the same '{schema.person}' {kept} used, by a secret order that "
            "depends on nobody else's rows. An identifier that is written in two ways is two persons."
        )
    elif schema.each_row:
        statement = statement.with_public(dp.report.EACH_ROW_A_PERSON)
    else:
        notes.append(
            "The schema does not say whether a person may have several rows. If so, ε is that of one row: a person with k rows "
            "has up to k times that ε, and a larger δ."
        )
    if drops and schema.drops:
        notes.append(
            f"Rows with a missing cell in {', '.join(schema.drops)} contributed nothing, as the schema asks. They count as "
            f"{statement.noun}s, and their exact number was not published."
        )
    if not counted:
        notes.append(f"The number of {statement.noun}s is a public figure that the user gave, not the file's count.")
    if own is not None and own.preprocesses:
        notes.append(
            f"preprocess of {own.own.path.name} was called with each row by itself. That it keeps nothing from one call to the "
            "next was not checked."
        )
    statement = dataclasses.replace(statement, about=about, made_on=made_on, contact=contact).with_notes(*notes)
    if schema.inferred:
        statement = statement.with_violations(
            f"Bounds or categories of these columns were taken from the data: "
            f"{', '.join(schema.inferred)}. They may reveal values of individual people; no ε holds for the results."
        )
    return statement
