"""Options that several commands take, what they mean in the library, and which model a name means."""

import dataclasses
import enum
import functools
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet._validate import near
from discreet.interfaces.cli._own_model import OwnModel, choose as choose_own
from discreet.interfaces.cli._terminal import say_error


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """A model and what it expects."""

    name: str
    # From the schema to the NumPyro model of (x, y), or to a model of the whole table; unused for
    # the user's
    build: "Callable[[dp.tables.Schema], Any]"
    # The required kind of its target; None for the schema's
    target_kind: "dp.tables.Kind | None" = None
    own: OwnModel | None = None

    def defaults(self, schema: "dp.tables.Schema") -> "dp.models.Defaults":
        """The settings of a fit that is given none."""
        return (
            dp.models.Defaults(None)
            if self.own is not None
            else dp.models.defaults_for(self.build(schema))
        )

    @property
    def needs_target(self) -> bool:
        """True if it explains a column by the others."""
        return self.own is None and self.name != TWIN


LINEAR = "linear"
MULTINOMIAL = "multinomial"
NEGATIVE_BINOMIAL = "negative-binomial"
TWIN = "twin"
# The names of `dp.models.REGRESSIONS`, and what each is for.
REGRESSIONS = {
    "logistic": "for a target with two values",
    MULTINOMIAL: "for one with several categories",
    LINEAR: "for a number",
    "poisson": "for a count",
    NEGATIVE_BINOMIAL: "for counts that scatter more",
}
MODELS = {
    **REGRESSIONS,
    TWIN: "for all columns, of which discreet synth draws twins",
}
COMPONENTS = 16


def choose_model(
    name: str, *, components: int | None = None, words: str | None = None, **arguments: Any
) -> ChosenModel:
    """A built-in model by name, or the user's: `FILE.py:FUNCTION`. Runs the file.

    For a factory, `words` is what --model-args says and `arguments` are other options that it may
    read.
    """
    if components is not None and not 1 <= components <= MOST_COMPONENTS:
        raise ValueError(
            f"--components is {components}: give a number from 1 to {MOST_COMPONENTS}, 16 say"
        )
    count = COMPONENTS if components is None else components
    if components is not None and name != TWIN:
        raise ValueError(
            f"--components is for --model {TWIN}: the model {name} has none, leave it out"
        )
    if name == TWIN:
        return ChosenModel(
            name, lambda schema: dp.models.MixtureOfProducts(schema, components=count)
        )
    if name in REGRESSIONS:
        regression = dp.models.REGRESSIONS[name]
        return ChosenModel(name, regression.model_for, regression.kind)
    if not name.rpartition(":")[0].endswith(".py") and not name.endswith(".py"):
        meant = near(name, MODELS)
        raise ValueError(
            f"the model {name!r} is not known{f', {meant}' if meant else ':'} choose {', '.join(MODELS)}, "
            "or FILE.py:FUNCTION of your own"
        )
    own = choose_own(name, words=tuple(shlex.split(words or "")), arguments=arguments)
    return ChosenModel(name, lambda schema: None, own=own)


MOST_COMPONENTS = 1_000


class RelationName(enum.StrEnum):
    """The neighbouring relation."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


class OutOfBoundsName(enum.StrEnum):
    """The rule for a cell that the schema does not allow."""

    REFUSE = "refuse"
    CLIP = "clip"
    MISSING = "missing"


def _complete_model(incomplete: str) -> list[tuple[str, str]]:
    """Shell completion. If no name matches, the shell offers files."""
    return [(name, purpose) for name, purpose in MODELS.items() if name.startswith(incomplete)]


def _complete_sampler(incomplete: str) -> list[str]:
    return [x.option for x in dp.sampling.SAMPLERS if x.option.startswith(incomplete)]


def _complete_clip(incomplete: str) -> list[str]:
    return ["adaptive"] if incomplete and "adaptive".startswith(incomplete) else []


# Panels of --help, each as the options in it are declared.
_table = functools.partial(typer.Option, rich_help_panel="Table")
_budget = functools.partial(typer.Option, rich_help_panel="Budget")
_method = functools.partial(typer.Option, rich_help_panel="Method (the defaults are fine)")
_output = functools.partial(typer.Option, rich_help_panel="Output")
_processes = functools.partial(typer.Option, rich_help_panel="Several processes")
_not_private = functools.partial(typer.Option, rich_help_panel="Not private")
# The compiled loop counts steps in 32 bits.
MOST_STEPS = 2**31 - 1

Epsilon = Annotated[float | None, _budget(help="Privacy budget ε.")]
Delta = Annotated[
    float | None,
    _budget(
        help="Privacy budget δ. Default: 1 / (10 × number of records), and at most 1e-5; 1e-6 where that number is private, as "
        "in descriptions, scores and twins by marginals without --num-records."
    ),
]
PrivateBounds = Annotated[
    bool,
    _budget(
        "--private-bounds",
        help="Buy the bounds that --bounds does not state: a noisy release spends --epsilon.",
    ),
]
PrivateCategories = Annotated[
    bool,
    _budget(
        "--private-categories",
        help="Buy categories of columns that --bounds does not state, likewise: texts that enough records have. Others become "
        "'other'.",
    ),
]
BoughtColumns = Annotated[
    list[str] | None,
    _budget(
        "--column",
        help="For --private-bounds and --private-categories: a column to buy; again for each. Default: all. The fewer, the less "
        "noise.",
    ),
]
Sampling = Annotated[
    str,
    _method(
        metavar="<sampler>",
        autocompletion=_complete_sampler,
        help="poisson: each record enters a batch independently. fixed: batches of one size. full: all records.",
    ),
]
Rate = Annotated[float | None, _method(help="Probability that a record enters a batch (poisson).")]
BatchSize = Annotated[
    int | None,
    _method(
        "--batch-size", "--batch", help="Records in a batch; with poisson, the expected number."
    ),
]
RelationOption = Annotated[
    RelationName | None,
    _method(
        "--relation",
        metavar="<relation>",
        help="Which tables are neighbours: add-or-remove-one or replace-one. Default: replace-one with fixed "
        "batches, otherwise add-or-remove-one.",
    ),
]
Steps = Annotated[int | None, _method(max=MOST_STEPS, metavar="<int>", help="Number of steps.")]
AsJson = Annotated[
    bool, _output("--json", help="Print one JSON document instead of text, and no progress bar.")
]
Out = Annotated[Path, _output(help="Folder for the results.")]
Seed = Annotated[
    int | None,
    _not_private(
        "--non-private-seed", "--seed", help="Make the run reproducible and NOT PRIVATE; for tests."
    ),
]
Overwrite = Annotated[bool, _output("--overwrite", help="Replace the results of an earlier fit.")]
FitDryRun = Annotated[
    bool,
    _budget(
        "--dry-run",
        help="Print the plan, its ε, the columns, and what the ledger would charge. Spends and writes nothing.",
    ),
]
Yes = Annotated[
    bool,
    _budget(
        "--yes",
        help="Spend the budget without being asked. Fit asks (without a terminal, refuses) where δ is too large, or the noise is "
        "larger than what each parameter's share of the records can show. Other results may be unusable, too: see discreet plan.",
    ),
]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")]

# Used by fit only; here so that its signature stays readable.
Data = Annotated[
    Path,
    _table(
        help="The table, with column names: .csv, .tsv, .csv.gz, .parquet, .arrow or .feather. Several files: 'part-*.parquet' "
        "in quotes. Or records by discreet convert. For twin also the twin.counts of an earlier fit or description, or its "
        "folder: it is fitted again and spends nothing."
    ),
]
_model = _table(
    autocompletion=_complete_model,
    help=f"{', '.join(REGRESSIONS)}; twin, for synthetic twins; or FILE.py:FUNCTION, "
    "a NumPyro model of (x, y) or (x). That may also be a model_factory. If its first parameter is called columns, it "
    "gets a dict from the names of all columns to arrays instead.",
)
Model = Annotated[str, _model]
ModelToPlan = Annotated[str | None, _model]
Formula = Annotated[
    str | None,
    _table(
        help="Or a formula: 'ill ~ age * region + (1 | g)'. As in brms and Bambi, in place of --model and --target; needs "
        "discreet[formula]."
    ),
]


def _complete_family(incomplete: str) -> list[str]:
    return [name for name in dp.models.FAMILIES if name.startswith(incomplete)]


Family = Annotated[
    str,
    _table(
        "--family",
        metavar="<family>",
        autocompletion=_complete_family,
        show_default=False,
        help="Of --formula: gaussian, bernoulli and others. These are student, binomial, categorical, cumulative, "
        "poisson, negbinomial, zero_inflated_poisson, zero_inflated_negbinomial, hurdle_poisson, hurdle_negbinomial, gamma, "
        "beta, weibull and piecewise.",
    ),
]
Constants = Annotated[
    str | None,
    _table(
        "--constants",
        help="Of --formula: public values of its names that are no columns: k=30|50 for 'bs(age, knots=k)', m=50.",
    ),
]
Target = Annotated[str | None, _table(help="Column to predict.")]
Bounds = Annotated[
    str | None,
    _table(
        help="Public bounds and categories: age=17:90,sex=Female|Male. Ordered ones: "
        "pain=low<some<high; counts: visits=0..50. Only these columns are used."
    ),
]
Person = Annotated[
    str | None,
    _table(
        "--person",
        help="Column that identifies persons. Only beside --bounds. One row of a person is used; with patient:5 at most 5. "
        "'each row' if no person has two. A schema file has a person of its own.",
    ),
]
Weight = Annotated[
    str | None,
    _table(
        "--weight",
        help="Column with survey weights, described beside --bounds by 0 and the largest weight: w=0:20. A schema file has a "
        "weight of its own.",
    ),
]
SchemaFile = Annotated[
    Path | None,
    _table(
        "--schema",
        help="A TOML file with bounds, categories and more: discreet schema init writes a template.",
    ),
]
OutOfBoundsRule = Annotated[
    OutOfBoundsName,
    _table(
        help="If the schema does not allow a cell: refuse the table, clip the number, or treat the cell as missing."
    ),
]
Raw = Annotated[
    bool,
    _table(
        "--raw",
        help="For a model of your own: one column of x for each column of the schema, in its own unit, NaN if missing. "
        "Default: numbers scaled to [-1, 1], a column for each category and for missing cells.",
    ),
]
ModelArgs = Annotated[
    str | None, _table(help="For a model_factory: the words that it gets, in quotes: '--prior 2'.")
]
FitSteps = Annotated[
    int | None,
    _method(
        "--steps",
        max=MOST_STEPS,
        metavar="<int>",
        help="Number of steps. Default: 1000; for twin, 300.",
    ),
]
Components = Annotated[
    int | None,
    _method(help="Number of mixture components, for twin. Default: 16; 64 by marginals."),
]
Clip = Annotated[
    str | None,
    _method(
        "--clip",
        "--clipping-norm",
        autocompletion=_complete_clip,
        help="Clipping norm C: the most that one record's gradient counts. Default: adaptive, that is C follows a private "
        "quantile of the gradients' norms. Under a number, longer gradients are shortened, which biases the fit.",
    ),
]


class MethodName(enum.StrEnum):
    """The method of a fit."""

    MARGINALS = "marginals"
    MOMENTS = "moments"
    NEWTON = "newton"
    SVI = "svi"


By = Annotated[
    MethodName | None,
    _method(
        "--by",
        metavar="<method>",
        help="marginals, for twin: the model is fitted to noisy counts. moments, for linear: it is fitted to noisy sums of "
        "products. newton, for classes, counts and models of your own: to a few noisy gradients. svi, for all: to the records, "
        "in steps. Default: the first that the model has; svi for models of your own with a guide or latents of each record, "
        "for lines and twins of several rows per person, lines in several processes, twins of over 60 columns, or if --steps "
        "or another setting of steps is given.",
    ),
]
LearningRate = Annotated[
    float | None, _method(help="Step size of the Adam optimizer. Default: 0.02; for twin, 0.05.")
]
NumRecords = Annotated[
    int | None,
    _table(
        help="A public figure for the number of records. Default: the exact number, which becomes public; for twins by "
        "marginals, none."
    ),
]
DrawCount = Annotated[
    int | None,
    _output(
        help="Number of posterior draws to write. Default: 1000. For a twin by marginals, the number of fitted models: 1 is the "
        "most accurate; with 20 or more, each fitted again with fresh noise, intervals can be computed from several twins."
    ),
]
Dataset = Annotated[
    str,
    _output(
        "--dataset", help="Name of the table in statement and page. Default: the name of its file."
    ),
]
Contact = Annotated[
    str, _output("--contact", help="Who answers questions on the fit: a name or an address.")
]
LedgerFile = Annotated[
    Path | None,
    _budget(
        "--ledger",
        help="The table's ledger (see discreet ledger). It is charged before the first release. The default of --delta is "
        "then at most a tenth of its cap's.",
    ),
]
CheckpointFolder = Annotated[
    Path | None,
    _output(
        "--checkpoint",
        help="Folder from which discreet resume continues after Ctrl-C or a crash. It contains the key: keep it secret.",
    ),
]
Distributed = Annotated[
    bool,
    _processes(
        "--distributed",
        help="Join the processes of a cluster that JAX detects (SLURM, Open MPI, Kubernetes), or those that the next three "
        "options name. All run the same command; process 0 alone debits, writes and prints.",
    ),
]
Coordinator = Annotated[
    str | None,
    _processes(
        "--coordinator", metavar="HOST:PORT", help="Where process 0 listens; the same in all."
    ),
]
NumProcesses = Annotated[int | None, _processes("--processes", help="Number of processes.")]
ProcessId = Annotated[
    int | None, _processes("--process-id", help="Number of this process, from 0.")
]

# Used by describe only.
Pairs = Annotated[
    list[str] | None,
    _table(
        "--pair",
        metavar="<column>,<column>",
        help="A two-way table of two columns; may be given several times. Each one makes the noise of all figures larger.",
    ),
]
Groups = Annotated[
    list[str] | None,
    _table(
        "--by",
        metavar="<column>[,<column>]",
        help="Counts, means, spreads, quantiles and shares in each category of this column, or of these two; may be given "
        "several times. Each one makes the noise of all figures larger.",
    ),
]
Widths = Annotated[
    list[str] | None,
    _budget(
        "--width",
        metavar="<column>=<number>",
        help="In place of --model and --epsilon: print the least ε with which discreet describe has a mean (of categories: each "
        "share) to within this, by its interval; may be given several times.",
    ),
]
Means = Annotated[
    list[str] | None,
    _budget(
        "--mean",
        metavar="<column>=<number>",
        help="For --width: a public guess of a mean, which lowers ε. Default: it may lie anywhere within the bounds.",
    ),
]
AllPairs = Annotated[bool, _table("--all-pairs", help="Two-way tables of all pairs of columns.")]
Level = Annotated[float, _method(help="Probability with which each interval holds.")]
Slices = Annotated[
    int,
    _method(
        help="Most slices of a column of numbers. More make quantiles sharper, until noise outweighs."
    ),
]
DescribedRecords = Annotated[
    int | None,
    _budget(
        "--num-records",
        help="A public figure for the number of records, for the default of --delta.",
    ),
]


def sampling_of(
    name: str, *, rate: float | None, batch_size: int | None, num_records: int
) -> "dp.sampling.Sampling":
    """The sampler that the options describe."""
    samplers = {x.option: x for x in dp.sampling.SAMPLERS}
    if name not in samplers:
        raise ValueError(f"--sampling is {name!r}: give one of {', '.join(samplers)}")
    return samplers[name].from_options(rate=rate, batch_size=batch_size, num_records=num_records)


def clipping_of(text: str) -> "float | dp.AdaptiveClipping":
    """The clipping norm or rule of the option."""
    if text == "adaptive":
        return dp.AdaptiveClipping()
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--clip is {text!r}: give a number, for example 1.0, or adaptive"
        ) from None


def tenth_of_cap(ledger: Path) -> float:
    """A tenth of the δ of a ledger's cap: fits of it are charged their own ε, or less."""
    return float(f"{dp.Ledger(ledger).cap.delta / 10:.3g}")


OF_PRIVATE = 100_000
"""Records by which the default δ is chosen where their number is private, whatever it is."""


def suggest_delta(num_records: int | None, ledger: Path | None) -> float:
    """The default δ of all commands: by a public number of records (None: it is private), at most a tenth of the ledger's cap."""
    from discreet.privacy.ledger import default_delta

    size = OF_PRIVATE if num_records is None else num_records
    return default_delta(size, None if ledger is None else dp.Ledger(ledger))


def delta_of(delta: float | None, num_records: int | None, ledger: Path | None) -> float:
    """The δ that is given, or the default; where that rests on no number of records, a line says for how many it will do."""
    if delta is not None:
        return delta
    chosen = suggest_delta(num_records, ledger)
    if num_records is None and chosen == suggest_delta(None, None):
        say_error(
            f"δ = {chosen:g}, as no number of records was given. It should be well below 1 / that number: if there may be more "
            f"than {math.floor(0.1 / chosen + 0.5):,}, give --num-records (a public figure) or --delta."
        )
    return chosen


def plan_of(
    *,
    num_records: int,
    delta: float | None,
    sampling: "dp.sampling.Sampling",
    relation: RelationName | None,
    clipping_norm: "float | dp.AdaptiveClipping" = 1.0,
    **numbers: Any,
) -> "dp.PrivacyPlan":
    """The plan that the options describe, solved for the one of the `numbers` that `PrivacyPlan.calibrate` is to find."""
    return dp.PrivacyPlan.calibrate(
        delta=suggest_delta(num_records, None) if delta is None else delta,
        num_records=num_records,
        sampling=sampling,
        clipping_norm=clipping_norm,
        relation=relation_of(relation, sampling),
        **numbers,
    )


def relation_of(
    name: RelationName | None, sampling: "dp.sampling.Sampling | None" = None
) -> "dp.Relation":
    """The neighbouring relation; by default one with sound accounting for the sampler, else adding or removing one."""
    if name is not None:
        return dp.Relation[name.name]
    return dp.Relation.ADD_OR_REMOVE_ONE if sampling is None else sampling.usual_relation()


def person_and_rows(person: str | None) -> tuple[str | None, int]:
    """The column of an option --person and the most rows of a person to use, as in 'patient:5'; else 1."""
    column, _, rows = (person or "").rpartition(":")
    return (column, int(rows)) if column and rows.isdecimal() else (person, 1)


def of_person(schema: "dp.tables.Schema", person: str | None) -> "dp.tables.Schema":
    """The schema with the person of an option: a column, also with `max_rows`, or 'each row'."""
    column, max_rows = person_and_rows(person)
    each_row = column == dp.tables.EACH_ROW
    return dataclasses.replace(
        schema, person=None if each_row else column, each_row=each_row, max_rows=max_rows
    )


def _wrong_kind(model: ChosenModel, column: "dp.tables.Column") -> str:
    """Why a model does not take a target, and the ways out."""
    fitting = [name for name, x in dp.models.REGRESSIONS.items() if x.kind is column.kind]
    ways = [f"choose --model {' or '.join(fitting)}"] if fitting else []
    if model.target_kind is dp.tables.Kind.COUNT and column.kind is dp.tables.Kind.REAL:
        ways.append("describe it as kind count, if all its values are integers from 0")
    elif model.target_kind is dp.tables.Kind.BINARY and column.categories:
        ways.append(
            'list the two categories to tell apart, and leave out rows with others by out_of_bounds = "missing" and missing = '
            f'"drop" for it {dp.tables.SCHEMA_FILE}'
        )
    else:
        ways.append(
            f"describe it as kind {model.target_kind}, if its values are such, {dp.tables.SCHEMA_FILE}"
        )
    return (
        f"the model {model.name} needs a {model.target_kind} target, but '{column.name}' is described as {column.kind}: "
        f"{', or '.join(ways)}"
    )


def schema_of(
    model: ChosenModel,
    target: str | None,
    bounds: str | None,
    file: Path | None,
    made: "dp.tables.Conversion | None" = None,
    person: str | None = None,
    weight: str | None = None,
    *,
    predicts: bool = True,
) -> "dp.tables.Schema":
    """The public description of a table, checked against what the model needs."""
    if bounds is not None and file is not None:
        raise ValueError("--bounds and --schema describe the same thing: give only one")
    if person is not None and bounds is None:
        raise ValueError(
            "--person is for --bounds: write person in the schema file, and leave the option out"
        )
    if weight is not None and bounds is None:
        raise ValueError(
            "--weight is for --bounds: write weight in the schema file, and leave the option out"
        )
    predicts = predicts and model.needs_target
    if predicts and target is None and file is None and made is None:
        raise ValueError(f"the model {model.name} predicts a column: name it with --target")
    public = None
    if file is not None:
        public = dp.tables.schema_from_toml(file, target=target)
    elif bounds is not None:
        public = dp.tables.schema_from_bounds(bounds, target=target, target_kind=model.target_kind)
        public = dataclasses.replace(of_person(public, person), weight=weight)
    elif made is not None:
        if target not in (None, made.schema.target):
            raise ValueError(
                f"the records were converted with {made.schema.target or 'no column'} as the target: leave --target "
                f"out, or convert the table again with --target {target}"
            )
        public = made.schema
    if public is None:
        raise ValueError(
            "the columns are not described: give their public bounds and categories with --bounds, or in a file with --schema "
            "(discreet schema init TABLE writes one to fill in)"
        )
    column = public.target_column
    if predicts and column is None:
        raise ValueError(
            f"the model {model.name} predicts a column: name it with --target, or as target in the schema"
        )
    if (
        column is not None
        and model.target_kind is not None
        and column.kind is not model.target_kind
    ):
        raise ValueError(_wrong_kind(model, column))
    return public
