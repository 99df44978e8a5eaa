"""Options that several commands take, what they mean in the library, and which model a name means."""

import dataclasses
import enum
import importlib.util
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from discreet.accounting import Relation
    from discreet.clipping import AdaptiveClipping
    from discreet.models import MixtureOfProducts
    from discreet.plan import PrivacyPlan
    from discreet.sampling import Sampling as Sampler
    from discreet.tables import Conversion, Kind, Schema


T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a fit takes where its options are left out.

    Attributes:
        steps: Number of steps.
        batch: Expected number of records in a batch.
        learning_rate: Step size of Adam.
        clip: Clipping norm; None: from the model's own bound on a record's gradient.
    """

    steps: int = 1_000
    batch: int = 500
    learning_rate: float = 0.02
    clip: str | None = "1.0"


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """A model and what it expects: a function of (x, y) or (x), or a model of whole tables.

    Attributes:
        name: As given.
        function: The NumPyro model; None for a model of whole tables, which `of_table` makes.
        target_kind: The kind that its target must have; None for whatever the schema says.
        own: Whether it is the user's.
        of_columns: Whether it takes a dict from names to columns, as a user's model may.
        of_classes: From the number of the target's categories to the NumPyro model, in the place of `function`.
        of_table: From the schema to a model of all its columns, from which twins are drawn.
        defaults: Of the fit's options.
    """

    name: str
    function: Callable[..., object] | None
    target_kind: "Kind | None"
    own: bool
    of_classes: Callable[[int], Callable[..., object]] | None = None
    of_table: "Callable[[Schema], MixtureOfProducts] | None" = None
    defaults: Defaults = Defaults()
    of_columns: bool = False

    @property
    def needs_target(self) -> bool:
        """Whether it explains a column by the others."""
        return not self.own and self.of_table is None

    def function_for(self, schema: "Schema") -> Callable[..., object]:
        """The NumPyro model of records that are described so; for a model that is not of whole tables."""
        if self.of_classes is not None:
            assert schema.target_column is not None
            return self.of_classes(len(schema.target_column.categories))
        assert self.function is not None
        return self.function


MODELS = {
    "logistic": "for a target with two values",
    "multinomial": "for one with several categories",
    "linear": "for a number",
    "poisson": "for a count",
    "negative-binomial": "for counts that scatter more",
    "twin": "for all columns, of which discreet synth draws twins",
}
TEXT_MODEL = (
    ". A text file with a distribution for each column, as twinify reads it, is no model here: --model twin learns each "
    "column's shape, and --schema has what is publicly known of the columns"
)
MULTINOMIAL, TWIN = "multinomial", "twin"
COLUMNS = "columns"
"""The name of a first parameter that takes a dict from names to columns."""
COMPONENTS = 16


def choose_model(name: str, *, components: int | None = None) -> ChosenModel:
    """A built-in model by name, or `FILE.py:FUNCTION`. Runs the file.

    Args:
        name: As on the command line.
        components: Number of components of a mixture; None: 16.

    Raises:
        ValueError: An unknown name, a file that is absent or fails, a function that is not in it, or components of a model
            that has none.
    """
    from discreet.models import (
        linear_regression,
        logistic_regression,
        multinomial_regression,
        negative_binomial_regression,
        poisson_regression,
    )
    from discreet.tables import Kind

    if name == TWIN:
        return _twin(COMPONENTS if components is None else components)
    if components is not None:
        raise ValueError(f"--components is for --model {TWIN}: the model {name} has none, leave it out")
    built_in = {
        "logistic": (logistic_regression, Kind.BINARY),
        "linear": (linear_regression, Kind.REAL),
        "poisson": (poisson_regression, Kind.COUNT),
        "negative-binomial": (negative_binomial_regression, Kind.COUNT),
    }
    if name == MULTINOMIAL:
        return ChosenModel(name, None, Kind.CATEGORICAL, own=False, of_classes=multinomial_regression)
    if name in built_in:
        function, kind = built_in[name]
        return ChosenModel(name, function, kind, own=False)
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ValueError(
            f"the model {name!r} is not known: choose {', '.join(MODELS)}, or FILE.py:FUNCTION of your own"
            + (TEXT_MODEL if name.endswith(".txt") else "")
        )
    path = Path(file)
    module = run_file(path, "model file")
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"{path} has no function {attribute}: name the model function after the colon")
    return ChosenModel(name, function, None, own=True, of_columns=_first_parameter(function) == COLUMNS)


def _first_parameter(function: Callable[..., object]) -> str | None:
    """The name of a function's first parameter; None if it has none that can be read."""
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None


MOST_COMPONENTS = 1_000


def _twin(components: int) -> ChosenModel:
    from discreet.models import MixtureOfProducts

    if not 1 <= components <= MOST_COMPONENTS:
        raise ValueError(f"--components is {components}: give a number from 1 to {MOST_COMPONENTS}, 16 say")

    def of_table(schema: "Schema") -> "MixtureOfProducts":
        return MixtureOfProducts(schema, components=components)

    # Fewer and larger steps than a regression's: the noise is on thousands of parameters (docs/twins.md).
    defaults = Defaults(steps=300, batch=1_000, learning_rate=0.05, clip=None)
    return ChosenModel(TWIN, None, None, own=False, of_table=of_table, defaults=defaults)


def run_file(path: Path, what: str) -> ModuleType:
    """Run a Python file of the user's.

    Args:
        path: Where it is.
        what: What it is, for the error.

    Raises:
        ValueError: It is absent or fails.
    """
    if not path.is_file():
        raise ValueError(f"the {what} {path} does not exist: check the path")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # No data have been read: the message is about the user's code and may be shown.
        raise ValueError(f"the {what} {path} fails on import {failure(error)}") from error
    return module


def failure(error: BaseException) -> str:
    """Where the user's code failed, and with what, as the end of a sentence."""
    from discreet._jax import users_file

    own = [x for x in traceback.extract_tb(error.__traceback__) if users_file(x.filename)]
    place = f"at {own[-1].filename}:{own[-1].lineno} ({own[-1].name}) " if own else ""
    return f"{place}with {type(error).__name__}: {str(error).rstrip('.')}".replace(f"{Path.cwd()}/", "")


def returned_by(
    program: str,
    function: Callable[[], object],
    kind: type[T],
    remedy: str,
    *,
    passing: tuple[type[Exception], ...] = (),
) -> T:
    """What the user's function returns.

    Args:
        program: What the user called it.
        function: The function.
        kind: What it is to return.
        remedy: What to do where it returns something else.
        passing: Errors that are an answer, too.

    Raises:
        ValueError: It fails, or returns something else.
    """
    try:
        found = function()
    except passing:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"{program} fails {failure(error)}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{program} returned an object of type {type(found).__name__}: {remedy}")
    return found


class RelationName(enum.StrEnum):
    """Which tables are neighbours."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


class OutOfBoundsName(enum.StrEnum):
    """What becomes of a cell that the schema does not allow."""

    REFUSE = "refuse"
    CLIP = "clip"
    MISSING = "missing"


def _complete_model(incomplete: str) -> list[tuple[str, str]]:
    """For the shell. Where nothing goes on from what is typed, it offers files."""
    return [(name, purpose) for name, purpose in MODELS.items() if name.startswith(incomplete)]


def _complete_sampler(incomplete: str) -> list[str]:
    from discreet.sampling import SAMPLERS

    return [x.option for x in SAMPLERS if x.option.startswith(incomplete)]


def _complete_clip(incomplete: str) -> list[str]:
    return ["adaptive"] if incomplete and "adaptive".startswith(incomplete) else []


# Panels of --help.
TABLE = "Table"
BUDGET = "Budget"
METHOD = "Method (the defaults are fine)"
OUTPUT = "Output"
NOT_PRIVATE = "Not private"
# The compiled loop counts steps in 32 bits.
MOST_STEPS = 2**31 - 1

Epsilon = Annotated[float | None, typer.Option(rich_help_panel=BUDGET, help="Privacy budget ε.")]
Delta = Annotated[
    float | None,
    typer.Option(
        rich_help_panel=BUDGET, help="Privacy budget δ. Default: a tenth of 1 / number of records, and at most 1e-5."
    ),
]
Sampling = Annotated[
    str,
    typer.Option(
        rich_help_panel=METHOD,
        metavar="<sampler>",
        autocompletion=_complete_sampler,
        help="poisson: each record enters a batch independently. fixed: batches of one size. full: all records.",
    ),
]
Rate = Annotated[
    float | None, typer.Option(rich_help_panel=METHOD, help="Probability that a record enters a batch (poisson).")
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size", "--batch", rich_help_panel=METHOD, help="Records in a batch; with poisson, the expected number."
    ),
]
RelationOption = Annotated[
    RelationName | None,
    typer.Option(
        "--relation",
        rich_help_panel=METHOD,
        metavar="<relation>",
        help="Which tables are neighbours: add-or-remove-one or replace-one. Default: replace-one with fixed "
        "batches, otherwise add-or-remove-one.",
    ),
]
Steps = Annotated[
    int | None, typer.Option(rich_help_panel=METHOD, max=MOST_STEPS, metavar="<int>", help="Number of steps.")
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", rich_help_panel=OUTPUT, help="Print one JSON document instead of text, and no progress bar."
    ),
]
Out = Annotated[Path, typer.Option(rich_help_panel=OUTPUT, help="Folder for the results.")]
Seed = Annotated[
    int | None,
    typer.Option(
        "--non-private-seed",
        "--seed",
        rich_help_panel=NOT_PRIVATE,
        help="Make the run reproducible and NOT PRIVATE; for tests.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", rich_help_panel=OUTPUT, help="Replace the results of an earlier fit.")
]

# Of fit alone; here so that its signature stays readable.
Data = Annotated[
    Path,
    typer.Option(
        rich_help_panel=TABLE,
        help="The table: a .csv, .csv.gz, .parquet, .arrow or .feather file with column names, or records by discreet convert.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        rich_help_panel=TABLE,
        autocompletion=_complete_model,
        help="logistic, multinomial, linear, poisson or negative-binomial; twin, for synthetic twins of the table; or "
        "FILE.py:FUNCTION, a NumPyro model of (x, y) or (x). If its first parameter is called columns, it gets a dict from the "
        "names of all columns to arrays instead.",
    ),
]
Target = Annotated[str | None, typer.Option(rich_help_panel=TABLE, help="Column to predict.")]
Bounds = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=TABLE,
        help="Public bounds and categories: age=17:90,sex=Female|Male. Only these columns are used.",
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        rich_help_panel=TABLE,
        help="A TOML file with bounds, categories and more: discreet schema init writes a template.",
    ),
]
OutOfBoundsRule = Annotated[
    OutOfBoundsName,
    typer.Option(
        rich_help_panel=TABLE,
        help="If the schema does not allow a cell: refuse the table, clip the number, or treat the cell as missing.",
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        rich_help_panel=TABLE,
        help="For a model of your own: one column of x for each column of the schema, in its own unit, NaN if missing. "
        "Default: numbers scaled to [-1, 1], a column for each category and for missing cells.",
    ),
]
NonPrivateBounds = Annotated[
    bool,
    typer.Option(
        "--non-private-bounds",
        rich_help_panel=NOT_PRIVATE,
        help="Take missing bounds from the data. The result is NOT PRIVATE.",
    ),
]
FitSteps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        rich_help_panel=METHOD,
        max=MOST_STEPS,
        metavar="<int>",
        help="Number of steps. Default: 1000; for twin, 300.",
    ),
]
Components = Annotated[
    int | None, typer.Option(rich_help_panel=METHOD, help="Number of mixture components, for twin only. Default: 16.")
]
Clip = Annotated[
    str | None,
    typer.Option(
        "--clip",
        "--clipping-norm",
        rich_help_panel=METHOD,
        autocompletion=_complete_clip,
        help="Clipping norm C of a record's gradient: a number, or 'adaptive' to follow a private quantile of "
        "the gradient norms. "
        "Default: 1; for twin, a quarter of the largest possible norm.",
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(rich_help_panel=METHOD, help="Step size of the Adam optimizer. Default: 0.02; for twin, 0.05."),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        rich_help_panel=BUDGET,
        help="Settings that `discreet plan` wrote. Command-line options override them.",
    ),
]
NumRecords = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=TABLE,
        help="A public figure for the number of records. Default: the exact number, which becomes public.",
    ),
]
Draws = Annotated[int, typer.Option(rich_help_panel=OUTPUT, help="Number of posterior draws to write.")]
LedgerFile = Annotated[
    Path | None,
    typer.Option(
        "--ledger",
        rich_help_panel=BUDGET,
        help="The table's ledger, charged before the first release (see discreet ledger).",
    ),
]
CheckpointFolder = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        rich_help_panel=OUTPUT,
        help="Folder from which discreet resume continues after Ctrl-C or a crash. It contains the key: keep it secret.",
    ),
]


def sampling_of(name: str, *, rate: float | None, batch_size: int | None, num_records: int) -> "Sampler":
    """The sampler that the options describe.

    Raises:
        ValueError: No such sampler, or options that contradict each other, or too few.
    """
    from discreet.sampling import SAMPLERS

    samplers = {x.option: x for x in SAMPLERS}
    if name not in samplers:
        raise ValueError(f"--sampling is {name!r}: give one of {', '.join(samplers)}")
    return samplers[name].from_options(rate=rate, batch_size=batch_size, num_records=num_records)


def relation_of(name: RelationName | None, sampling: "Sampler") -> "Relation":
    """The relation asked for, or the one under which the sampler has sound accounting."""
    from discreet.accounting import Relation

    return sampling.usual_relation() if name is None else Relation[name.name]


def clipping_of(text: str) -> "float | AdaptiveClipping":
    """The clipping norm that the option says, or the rule that finds one.

    Raises:
        ValueError: Neither a number nor "adaptive".
    """
    from discreet.clipping import AdaptiveClipping

    if text == "adaptive":
        # C rises fast and falls slowly, and the models of the command line have gradients of about the columns' size.
        return AdaptiveClipping(initial=0.1)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--clip is {text!r}: give a number, for example 1.0, or adaptive") from None


def plan_of(
    *,
    num_records: int,
    epsilon: float | None = None,
    delta: float | None,
    steps: int | None = None,
    noise_multiplier: float | None = None,
    clipping_norm: "float | AdaptiveClipping" = 1.0,
    sampling: "Sampler",
    relation: RelationName | None,
) -> "PrivacyPlan":
    """The plan that the options describe, solved for the one number left open."""
    from discreet.accounting import suggest
    from discreet.plan import PrivacyPlan

    return PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=delta if delta is not None else suggest(num_records=num_records).delta,
        num_records=num_records,
        num_steps=steps,
        noise_multiplier=noise_multiplier,
        sampling=sampling,
        clipping_norm=clipping_norm,
        relation=relation_of(relation, sampling),
    )


def schema_of(
    data: Path | None,
    model: ChosenModel,
    target: str | None,
    bounds: str | None,
    file: Path | None,
    non_private_bounds: bool,
    made: "Conversion | None" = None,
) -> "Schema":
    """The public description of a table, checked against what the model needs; `data` is for `non_private_bounds` only."""
    from discreet.tables import infer_columns_non_private, schema_from_bounds, schema_from_toml

    if bounds is not None and file is not None:
        raise ValueError("--bounds and --schema describe the same thing: give only one")
    if model.needs_target and target is None and file is None and made is None:
        raise ValueError(f"the model {model.name} predicts a column: name it with --target")
    public = None
    if file is not None:
        public = schema_from_toml(file, target=target)
    elif bounds is not None:
        public = schema_from_bounds(
            bounds, target=target, target_kind=model.target_kind, target_follows=non_private_bounds
        )
    elif made is not None:
        public = _target_of(made, target)
    if non_private_bounds and data is not None:
        public = infer_columns_non_private(data, public, target=target, target_kind=model.target_kind)
    if public is None:
        raise ValueError(
            "the columns are not described: give their public bounds and categories with --bounds or --schema. (For a table "
            "that is not private, --non-private-bounds takes them from the data.)"
        )
    column = public.target_column
    if model.needs_target and column is None:
        raise ValueError(f"the model {model.name} predicts a column: name it with --target, or as target in the schema")
    if column is not None and model.target_kind is not None and column.kind is not model.target_kind:
        raise ValueError(
            f"the model {model.name} needs a {model.target_kind} target, but '{column.name}' is described as "
            f"{column.kind}: choose another model or describe it differently"
        )
    return public


def _target_of(made: "Conversion", target: str | None) -> "Schema":
    """The schema of converted records, if its target is the one asked for.

    Raises:
        ValueError: It is not.
    """
    if target not in (None, made.schema.target):
        raise ValueError(
            f"the records were converted with {made.schema.target or 'no column'} as the target: leave --target "
            "out, or convert "
            f"the table again with --target {target}"
        )
    return made.schema
