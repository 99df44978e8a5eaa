"""`discreet fit`: a table, a model and a budget to a posterior and a statement."""

import dataclasses
from contextlib import ExitStack
from pathlib import Path

import discreet as dp
from discreet._validate import integer, positive
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._choose import check_method, class_for
from discreet.interfaces.cli._convert import how_converted
from discreet.interfaces.cli._formula import ByFormula, check_formula
from discreet.interfaces.cli._of_records import OfRecords
from discreet.interfaces.cli._options import choose_model
from discreet.interfaces.cli._report import COUNTS
from discreet.interfaces.cli._run import check_folder, joined, remember
from discreet.interfaces.cli._terminal import on_terminal, refusing, settings, with_options_of
from discreet.interfaces.cli._twin import Counts, fit_again

MOST_DRAWS = 10_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of `fit`."""

    data: options.Data
    model: options.Model = ""
    formula: options.Formula = None
    family: options.Family = "gaussian"
    constants: options.Constants = None
    epsilon: options.Epsilon = None
    target: options.Target = None
    bounds: options.Bounds = None
    person: options.Person = None
    weight: options.Weight = None
    schema: options.SchemaFile = None
    delta: options.Delta = None
    num_records: options.NumRecords = None
    by: options.By = None
    components: options.Components = None
    steps: options.FitSteps = None
    rate: options.Rate = None
    batch_size: options.BatchSize = None
    sampling: options.Sampling = "poisson"
    relation: options.RelationOption = None
    clip: options.Clip = None
    learning_rate: options.LearningRate = None
    draws: options.DrawCount = None
    ledger: options.LedgerFile = None
    checkpoint: options.CheckpointFolder = None
    out_of_bounds: options.OutOfBoundsRule = options.OutOfBoundsName.REFUSE
    raw: options.Raw = False
    model_args: options.ModelArgs = None
    seed: options.Seed = None
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
        of_steps = (self.steps, self.rate, self.batch_size, self.clip, self.learning_rate)
        return any(x is not None for x in of_steps) or self.sampling != "poisson"

    @property
    def is_in_steps(self) -> bool:
        """True if the fit is to be in steps; a twin from counts has no checkpoint."""
        twin = self.model == options.TWIN and self.checkpoint is not None
        return self.in_steps or self.by == options.MethodName.SVI or twin

    @property
    def is_own(self) -> bool:
        """True if the model is the user's NumPyro model."""
        return self.model.partition(":")[0].endswith(".py")

    def sampler(self, num_records: int, rate: float) -> "dp.sampling.Sampling":
        """The sampler; `rate` is the default one."""
        given = self.rate
        if given is None and self.batch_size is None and self.sampling == "poisson":
            given = rate
        return options.sampling_of(
            self.sampling, rate=given, batch_size=self.batch_size, num_records=num_records
        )

    @property
    def progress_bar(self) -> bool:
        """True if a person watches."""
        return not self.as_json and on_terminal()


@refusing
@with_options_of(Asked)
def fit(asked: Asked) -> None:
    """Fit a model to a table under (ε, δ)-differential privacy.

    `discreet fit --data survey.csv --model logistic --target smoker --bounds
    "age=17:90,smoker=no|yes" --epsilon 1`

    `discreet fit --data visits.parquet --model poisson --target visits --schema schema.toml
    --epsilon 0.5 --delta 1e-6`

    `discreet fit --data survey.csv --model mine.py:model --schema schema.toml --epsilon 2 --steps
    3000 --rate 0.05`

    As in brms and Bambi, by a formula (`pip install 'discreet[formula]'`):

    `discreet fit --data survey.csv --formula "smoker ~ age * region" --family bernoulli --schema
    schema.toml --epsilon 1`

    For synthetic twins of the whole table, which `discreet synth` then draws:

    `discreet fit --data survey.csv --model twin --schema schema.toml --epsilon 1`

    Bounds and categories are public input: take them from the questionnaire, never from the data.
    Quote `|`, `<` and `>` in the shell. `discreet plan` shows beforehand, on invented tables, what
    a fit at several ε is good for.

    Writes statement.json, statement.txt, report.html, posterior.npz, summary.json and, with
    matplotlib, fit.png. `discreet synth` needs model.json as well, which a model of your own gets;
    a twin gets its own files instead of posterior and summary. Each further fit of the same data
    spends again: the ε of all fits add up.
    """
    with joined(
        asked.distributed, asked.coordinator, asked.num_processes, asked.process_id
    ) as members:
        with members.together():
            check_options(asked)
            if asked.data.suffix == Path(COUNTS).suffix or (asked.data / COUNTS).is_file():
                fit_again(asked)
                return
            method = method_for(asked, members)
        with ExitStack() as stack:
            with members.together():
                if members.first and not asked.dry_run:
                    stack.enter_context(dp.storage.exclusive(asked.checkpoint))
            method.share()
            with members.together():
                method = method.prepare()
                if asked.dry_run:
                    method.say_dry_run()
                    return
                # Last, since a folder left over from an earlier fit would hide what is wrong with
                # this one.
                if members.first:
                    check_folder(asked.out, asked.checkpoint, overwrite=asked.overwrite)
                method.check_use()
                if asked.checkpoint is not None:
                    if asked.distributed:
                        settings.continue_with = "the same command, in all processes"
                    if members.first:
                        remember(asked.checkpoint)
            with method.folder():
                method.run()
                method.write()
            if members.first:
                method.say()
    method.leave()


def check_options(asked: Asked) -> None:
    """Refuse options that no method takes together, and numbers that none has."""
    if asked.formula is not None:
        check_formula(asked)
        return
    if not asked.model:
        raise ValueError(
            "--model is missing: name a model, such as logistic, or give a formula, such as --formula 'ill ~ age' "
            "--family bernoulli"
        )
    if asked.family != "gaussian":
        raise ValueError(
            f"--family {asked.family} is for --formula: leave it out, or give a formula"
        )
    if asked.constants is not None:
        raise ValueError("--constants is for --formula: leave it out, or give a formula")
    check_method(asked)
    if asked.draws is not None and not 1 <= asked.draws <= MOST_DRAWS:
        raise ValueError(f"--draws is {asked.draws}: give a number from 1 to {MOST_DRAWS}")


def method_for(asked: Asked, members: "dp.inference.Processes") -> OfRecords | Counts | ByFormula:
    """The method of a fit; refuses what can be refused before the table is read."""
    refuse_missing(asked)
    check_numbers(asked)
    if asked.formula is not None:
        return by_formula(asked, members)
    chosen = choose_model(
        asked.model,
        components=asked.components,
        words=asked.model_args,
        epsilon=asked.epsilon,
        delta=asked.delta,
    )
    made = how_converted(asked.data, asked.out_of_bounds)
    schema = options.schema_of(
        chosen,
        asked.target,
        asked.bounds,
        asked.schema,
        made,
        asked.person,
        asked.weight,
    )
    if asked.raw and chosen.own is None:
        raise ValueError(
            f"--raw is for a model of your own: {asked.model} needs scaled columns, leave --raw out"
        )
    return class_for(asked, schema)(asked, members, chosen, schema, made)


def by_formula(asked: Asked, members: "dp.inference.Processes") -> ByFormula:
    """The fit of a formula."""
    chosen = options.ChosenModel("formula", lambda schema: None)
    schema = options.schema_of(
        chosen,
        None,
        asked.bounds,
        asked.schema,
        None,
        asked.person,
        asked.weight,
        predicts=False,
    )
    made = how_converted(asked.data, asked.out_of_bounds)
    return ByFormula(asked, members, chosen, schema, made)


def refuse_missing(asked: Asked) -> None:
    """Refuse a fit that lacks options, and name all of them."""
    # A schema may name the target, and converted records have their schema with them.
    known = asked.schema is not None or asked.data.is_dir()
    missing = []
    if asked.epsilon is None:
        missing.append("--epsilon is missing: give a privacy budget")
    if asked.model in options.REGRESSIONS and asked.target is None and not known:
        missing.append("--target is missing: name the column to predict")
    if not (known or asked.bounds is not None):
        missing.append(
            "--bounds or --schema is missing: give what is publicly known about the columns"
        )
    if asked.epsilon is None or len(missing) > 1:  # `schema_of` says more about one alone
        raise ValueError("; ".join(missing))


def check_numbers(asked: Asked) -> None:
    """Refuse numbers that no table can make right, before it is read."""
    positive("epsilon", asked.epsilon, hint="1 is a common choice.")
    if asked.learning_rate is not None and not 0 < asked.learning_rate < float("inf"):
        raise ValueError(
            f"--learning-rate is {asked.learning_rate}: give a positive number, for example 0.02"
        )
    count = 10**9 if asked.num_records is None else integer("num_records", asked.num_records)
    sampler = asked.sampler(count, 1.0)
    dp.PrivacyPlan(
        sampling=sampler,
        clipping_norm=options.clipping_of(asked.clip or "adaptive"),
        noise_multiplier=1.0,
        num_steps=1 if asked.steps is None else asked.steps,
        num_records=count,
        relation=options.relation_of(asked.relation, sampler),
        target_delta=asked.delta,
    )
