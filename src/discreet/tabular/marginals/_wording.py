"""What the statement of a release of counts and sums says of its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from discreet.privacy.accounting import neighbours
from discreet.privacy.mechanisms import GAUSSIAN, LAPLACE
from discreet.privacy.query import Wording
from discreet.privacy.report import Unit, counted
from discreet.tabular.marginals._programs import PARTS

if TYPE_CHECKING:
    from discreet.tabular.marginals._plan import MarginalsPlan

METHOD = "noisy counts"


def wording_of(plan: MarginalsPlan, unit: Unit) -> Wording:
    """What the statement of one release by this plan says, for its unit of privacy."""
    how = neighbours(plan.relation).how
    noun = unit.noun
    most = plan.max_rows
    kept = (
        ""
        if most == 1
        else f"Of each person at most {most} rows were used, chosen by a secret order. "
    )
    what = "counts and sums" if plan.sums else "counts"
    return Wording(
        exact=plan.laplace,
        method=METHOD,
        mechanism=(
            f"{kept}Each value was replaced by its level, a category or a slice of the public bounds, and the "
            f"{plan.counted} in each cell of the cross tables were counted. {_how_fine(plan) if plan.fine else ''}"
            f"{_how_summed(plan) if plan.sums else ''}"
            f"{_how_persons(plan) if plan.persons else ''}One {noun} {how} the table "
            f"moves the weighted {what} together by at most {plan.moved:.6g} in "
            f"{'L1 norm, the sum of all changes' if plan.laplace else 'Euclidean norm'}. "
            f"{_noise_words(plan)} {plan.size:.6g} was "
            f"added to each of these. Only noisy {what} left the data."
        ),
        plan={
            "tables": len(plan.weights) + len(plan.fine),
            "cells": plan.num_counts,
            "slices": plan.slices,
            "contribution_bound": plan.sensitivity,
            "noise_multiplier": plan.noise_multiplier,
            "noise_scale" if plan.laplace else "noise_standard_deviation": plan.size,
            "tables_by_weight": _by_weight((*plan.weights, *plan.fine_weights)),
        }
        | ({"max_rows": most, "counts_of_persons": sum(plan.person_cells)} if most > 1 else {})
        | (
            {"sums": 2 * sum(plan.sum_cells), "sums_by_weight": _by_weight(plan.sum_weights)}
            if plan.sums
            else {}
        ),
        released=[f"{_in_words(plan)}, and what is computed from them"],
        public=[
            "the plan: the cross tables, the sums, their weights and the noise",
            "the columns and their levels",
            *(
                [f"the largest number of rows of a person that were used, {most}"]
                if most > 1
                else []
            ),
        ],
        notes=[
            *([plan.schema.weight_words()] if plan.schema.weight is not None else []),
            *([plan.schema.bought.in_words()] if plan.schema.bought is not None else []),
        ],
    )


def _in_words(plan: MarginalsPlan) -> str:
    """Describe the released values."""
    sums = f", and {2 * sum(plan.sum_cells):,} sums of numbers and of squares" if plan.sums else ""
    once = f", and {sum(plan.person_cells):,} counts of persons" if plan.persons else ""
    return (
        f"counts of the {plan.num_counts:,} cells of {len(plan.all_columns):,} cross tables"
        f"{sums}{once}, with {_noise_words(plan)} {plan.size:.6g} divided by the weight of the table or sum "
        f"(noise multiplier {plan.noise_multiplier:.6g})"
    )


def _noise_words(plan: MarginalsPlan) -> str:
    return (LAPLACE if plan.laplace else GAUSSIAN).words


def _how_fine(plan: MarginalsPlan) -> str:
    return f"Each slice of {counted(len(plan.divided), 'column')} was also counted in {PARTS} parts, in all or by category. "


def _how_summed(plan: MarginalsPlan) -> str:
    return (
        f"Numbers were mapped from their bounds to z in [-1, 1]; z and 1 - z² of {counted(len(plan.summed), 'column')} were "
        "summed, in all or by category. "
    )


def _how_persons(plan: MarginalsPlan) -> str:
    columns = [" × ".join(table) for table in plan.persons if table]
    by = f", and in each category of {', '.join(columns)} where they have a row" if columns else ""
    return (
        f"Persons were counted, too, each once: those of whom all rows were used, the others{by}. "
    )


def _by_weight(weights: Sequence[int]) -> dict[str, int]:
    return {str(weight): weights.count(weight) for weight in sorted({*weights})}
