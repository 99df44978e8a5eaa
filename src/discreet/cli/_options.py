"""Options that several commands take, and what they mean in the library."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli._model import MODELS

if TYPE_CHECKING:
    from discreet.accounting import Relation
    from discreet.clipping import AdaptiveClipping
    from discreet.plan import PrivacyPlan
    from discreet.sampling import FixedSizeSampling, FullBatch, PoissonSampling


class SamplingName(enum.StrEnum):
    """How a batch is drawn."""

    POISSON = "poisson"
    FIXED = "fixed"
    FULL = "full"


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


def _complete_clip(incomplete: str) -> list[str]:
    return ["adaptive"] if incomplete and "adaptive".startswith(incomplete) else []


# The compiled loop counts steps in 32 bits.
MOST_STEPS = 2**31 - 1

Epsilon = Annotated[float | None, typer.Option(help="The ε to keep to.")]
Delta = Annotated[
    float | None,
    typer.Option(help="The δ to keep to. Left out: a tenth of 1 / number of records, and 1e-5 at most."),
]
Sampling = Annotated[
    SamplingName,
    typer.Option(
        help="poisson: each record enters a batch by its own coin. fixed: batches of one size. full: all records."
    ),
]
Rate = Annotated[float | None, typer.Option(help="Probability that a record enters a batch (poisson).")]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", "--batch", help="Records in a batch; with poisson, the expected number.")
]
RelationOption = Annotated[
    RelationName | None,
    typer.Option(
        "--relation", help="What neighbouring tables are. Left out: replace-one with fixed, else add-or-remove-one."
    ),
]
Steps = Annotated[int | None, typer.Option(max=MOST_STEPS, help="Number of steps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text; no progress is shown.")]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Seed = Annotated[
    int | None,
    typer.Option("--non-private-seed", "--seed", help="Makes the run repeatable and NOT PRIVATE; for tests."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the results of an earlier fit.")]

# Of fit alone; here so that its signature stays readable.
Data = Annotated[
    Path,
    typer.Option(
        help="The table: a .csv, .csv.gz, .parquet, .arrow or .feather file with column names; or records by discreet convert."
    ),
]
Model = Annotated[
    str,
    typer.Option(
        autocompletion=_complete_model,
        help="logistic, multinomial, linear, poisson or negative-binomial; twin, for twins of the table; or FILE.py:FUNCTION "
        "with a NumPyro model of your own: of (x, y), of (x) where the schema has no target, or of (columns). A model whose "
        "first parameter is called columns gets a dict from the names of the columns to arrays, the target's among them.",
    ),
]
Target = Annotated[str | None, typer.Option(help="Name of the column to explain.")]
Bounds = Annotated[
    str | None,
    typer.Option(help="Public bounds and categories: age=17:90,sex=Female|Male. Only columns named here are used."),
]
SchemaFile = Annotated[
    Path | None, typer.Option("--schema", help="A TOML file with the same and more; see docs/tables.md.")
]
OutOfBoundsRule = Annotated[
    OutOfBoundsName,
    typer.Option(
        help="A cell that the schema does not allow: refuse the table, clip a number, or count the cell as missing."
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="For a model of your own: numbers in their own units, one column of x for each column of the schema, NaN where a "
        "cell is missing. Left out: numbers scaled to -1 to 1, one column for each category, and for missing cells.",
    ),
]
NonPrivateBounds = Annotated[
    bool,
    typer.Option("--non-private-bounds", help="Take missing bounds from the data. Breaks the guarantee, and says so."),
]
FitSteps = Annotated[
    int | None, typer.Option("--steps", max=MOST_STEPS, help="Number of steps. Left out: 1000; for twin, 300.")
]
Components = Annotated[
    int | None, typer.Option(help="Components of the mixture (twin only): groups of alike records. Left out: 16.")
]
Clip = Annotated[
    str | None,
    typer.Option(
        "--clip",
        "--clipping-norm",
        autocompletion=_complete_clip,
        help="Clipping norm C of a record's gradient: a number, or 'adaptive' to follow a private quantile of the gradients. "
        "Left out: 1; for twin, a quarter of the longest gradient that a record can have.",
    ),
]
LearningRate = Annotated[
    float | None, typer.Option(help="Step size of the Adam optimizer. Left out: 0.02; for twin, 0.05.")
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        help="A file that `discreet plan` wrote: ε, δ, steps, rate, clipping norm, learning rate; and what it was told of the "
        "model and the columns.",
    ),
]
NumRecords = Annotated[
    int | None,
    typer.Option(help="A public figure for the number of records. Left out: the exact number, which is then public."),
]
Draws = Annotated[int, typer.Option(help="Posterior draws to write.")]
LedgerFile = Annotated[
    Path | None,
    typer.Option("--ledger", help="The table's ledger, debited before the first release (`discreet ledger`)."),
]
CheckpointFolder = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        help="Folder from which `discreet resume` goes on to the same bits after a crash. It holds the key: keep it secret.",
    ),
]


def sampling_of(
    name: SamplingName, *, rate: float | None, batch_size: int | None, num_records: int
) -> "PoissonSampling | FixedSizeSampling | FullBatch":
    """The sampler that the options describe.

    Raises:
        ValueError: Options that contradict each other, or too few.
    """
    from discreet.sampling import FixedSizeSampling, FullBatch, PoissonSampling

    if name is SamplingName.FULL:
        if rate is not None or batch_size is not None:
            raise ValueError(
                "full batches hold all records: leave --rate and --batch-size out, or choose another --sampling"
            )
        return FullBatch()
    if name is SamplingName.FIXED:
        if batch_size is None or rate is not None:
            raise ValueError("fixed-size batches are described by their size: give --batch-size and no --rate")
        return FixedSizeSampling(batch_size=batch_size)
    if (rate is None) == (batch_size is None):
        raise ValueError("Poisson batches need one of --rate (a probability) and --batch-size (the expected size)")
    if rate is None:
        assert batch_size is not None
        if not 0 < batch_size <= num_records:
            raise ValueError(
                f"--batch-size is {batch_size}: give a size from 1 to the number of records, {num_records}"
            )
        rate = batch_size / num_records
    return PoissonSampling(rate=rate)


def relation_of(name: RelationName | None, sampling: "PoissonSampling | FixedSizeSampling | FullBatch") -> "Relation":
    """The relation asked for, or the one under which the sampler has sound accounting."""
    from discreet.accounting import Relation
    from discreet.sampling import FixedSizeSampling

    if name is None:
        fixed = isinstance(sampling, FixedSizeSampling)
        name = RelationName.REPLACE_ONE if fixed else RelationName.ADD_OR_REMOVE_ONE
    return Relation[name.name]


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
    sampling: "PoissonSampling | FixedSizeSampling | FullBatch",
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
