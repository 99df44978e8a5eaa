"""Which method a fit of the command line has: of a regression as `dp.choose` answers for all interfaces."""

from typing import TYPE_CHECKING

import discreet as dp
from discreet._validate import RefusedError
from discreet.interfaces.cli._of_records import OfRecords
from discreet.interfaces.cli._options import LINEAR, REGRESSIONS, TWIN, MethodName
from discreet.interfaces.cli._steps import InSteps, TwinInSteps
from discreet.interfaces.cli._sums import BySums, OwnNewton
from discreet.interfaces.cli._twin import Counts

if TYPE_CHECKING:
    from discreet.interfaces.cli._fit import Asked

MODELS_BY = {
    MethodName.MARGINALS: (TWIN,),
    MethodName.MOMENTS: (LINEAR,),
    MethodName.NEWTON: tuple(name for name in REGRESSIONS if name != LINEAR),
}
"""The models that a method is for; svi is for all, and newton for those of your own, too."""


def check_method(asked: "Asked") -> None:
    """Refuse a method that is not for the model or the options, before the table is read."""
    models = MODELS_BY.get(asked.by) if asked.by is not None else None
    if models is None:
        return
    named = asked.model in models or (asked.by == MethodName.NEWTON and asked.is_own)
    continues = asked.by == MethodName.NEWTON
    if not named or asked.in_steps or (asked.checkpoint is not None and not continues):
        others = " and --learning-rate" if continues else ", --learning-rate and --checkpoint"
        raise ValueError(
            f"--by {asked.by} is for --model {' or '.join(models)}, and takes no steps: omit --steps, --rate, --batch-size, "
            f"--sampling, --clip{others}, or choose --by svi"
        )
    if asked.by == MethodName.MOMENTS and asked.distributed:
        raise RefusedError(
            f"--distributed is for --by svi and --by newton, and this is --by {asked.by}: choose another one, or leave it out"
        )


def class_for(asked: "Asked", schema: "dp.tables.Schema") -> type[OfRecords] | type[Counts]:
    """The method of a fit; refuses options that it lacks."""
    if asked.model == TWIN:
        counted = asked.by is not None or dp.marginals.counts_suffice(schema)
        return Counts if counted and not asked.is_in_steps else TwinInSteps
    if asked.model not in REGRESSIONS:
        return OwnNewton if asked.is_own and not asked.is_in_steps else InSteps
    chosen = dp.choose.choose(
        dp.models.REGRESSIONS[asked.model].family,
        max_rows=schema.max_rows,
        settings=["--by svi, or options of steps,"] * asked.is_in_steps,
        shared=asked.distributed,
    )
    if asked.checkpoint is not None and (reason := chosen.lacks("checkpoint")):
        raise ValueError(
            f"--checkpoint is not for this fit: {reason}; leave it out, or add --by svi"
        )
    if chosen.method != dp.choose.STEPS:
        return BySums
    if asked.by == MethodName.MOMENTS:
        raise ValueError(
            f"--by moments takes one row a person: {chosen.why}; leave it out, or write max_rows = 1 in the schema, by which one "
            "row of each person is used"
        )
    return InSteps
