"""Measure once: noisy counts of cross tables, and noisy sums; then the pairs of columns that are chosen by what is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from tqdm.auto import tqdm

from discreet._jax import one_release
from discreet.privacy import random
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.query import LAST
from discreet.privacy.verify import Certificate
from discreet.tabular.marginals._exact import Measured, pieces
from discreet.tabular.marginals._plan import FEW_ROWS, MarginalsPlan
from discreet.tabular.marginals._result import Marginals

_COUNTED = 2**40
"""Bias of a counted pair, so that it is never chosen again."""


@one_release
def private_marginals(
    rng_key: PRNGKeyArray,
    table: Any,
    plan: MarginalsPlan,
    *,
    ledger: Ledger | None = None,
    out_of_bounds: str = "refuse",
    person_key: bytes | None = None,
    non_private_seed: bool = False,
    keep: Callable[[Marginals], object] | None = None,
    progress_bar: bool = False,
) -> Marginals:
    """Count the cross tables of a plan, and sum numbers, with noise; then count the pairs that it chooses, one after another.

    Guarantee: all that is returned is one `plan.event()` under the plan's relation, for one record,
    or for one person where the schema names the person column. The program is proved to be that
    before it runs. A file is read in one pass, in pieces (in two passes, where persons are to be
    told apart), so it may be larger than memory.

    Args:
        rng_key: `discreet.random.key()`, for this release alone.
        table: A file, a pyarrow or pandas table, or a dict of arrays.
        plan: The plan of the release.
        ledger: The table's budget, debited before the release.
        out_of_bounds: "refuse", or "clip": a number outside its bounds moves to the nearer one.
        person_key: As `key` in `tables.rows_of_persons`; None for a new one.
        non_private_seed: Allow a key made from a seed, with which nothing is private.
        keep: Called with the counts of the tables, and again after each choice, where the plan has
            choices: what was released so far, to be saved in case that the rest is interrupted. The
            whole budget is spent from the first call on.
        progress_bar: Show a bar over the choices.

    Returns:
        The noisy counts, with their statement. Its plan has the chosen pairs among its tables.

    Raises:
        DataError: The table cannot be read, or has a cell that the schema does not allow.
        ValueError, TypeError: Another wrong input. All are raised before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: The program could not be proved.

    >>> import discreet as dp
    >>> from discreet.tabular.tables import schema_from_bounds
    >>> plan = MarginalsPlan.calibrate(schema_from_bounds("visits=0:9,smoker=no|yes"), epsilon=1.0, delta=1e-6)
    >>> people = {"visits": [0, 3] * 5000, "smoker": ["yes", "no"] * 5000}
    >>> found = private_marginals(dp.random.key(), people, plan)
    >>> found.table("smoker", "visits").shape, bool(9_000 < found.num_records < 11_000)
    ((2, 32), True)

    Reference:
        Dwork and Roth, The algorithmic foundations of differential privacy, 2014, A.1.
    """
    key = random.secret_key(rng_key, "private_marginals", non_private_seed)
    if plan.open < plan.choices:
        raise ValueError(
            "private_marginals: the plan's pairs were chosen already: calibrate a new plan with choices"
        )
    act = Act.on(plan, key, random.Purpose.MARGINALS, ledger=ledger)
    rows = FEW_ROWS if plan.open else max(1, LAST // plan.max_rows)
    first, *choosing = (
        plan.certificate(act.key, rows),
        *(plan.choosing(act.key, rows) if plan.open else ()),
    )
    measured = Measured(plan.candidates if plan.open else plan, rows)
    for piece in pieces(table, plan, out_of_bounds, person_key):
        measured.add(piece)
    counted, *others = measured.arguments()
    act.prove(first, *choosing, times=[1, *[plan.choices] * len(choosing)])
    act.begin()
    keys = list(jax.random.split(act.key, 1 + 2 * plan.open)) if plan.open else [act.key]
    noisy = first(keys[0], counted[: plan.num_counts], *others)
    noisy = np.concatenate([np.asarray(part, np.float64) for part in jax.tree.leaves(noisy)])
    counts, fine, sums, persons = plan.apart(noisy / plan.all_weights)
    released = Marginals(plan, counts, act.statement, sums, persons, fine)
    if not plan.open:
        return released
    chosen = _choose(
        released, (counted, others[-3 if plan.width else -2], others[-1]), choosing, keys[1:]
    )
    for found in tqdm(
        chosen, desc="Choosing pairs", total=1 + plan.open, delay=2.0, disable=not progress_bar
    ):
        released = found
        if keep is not None:
            keep(released)
    return released


def _choose(
    released: Marginals,
    held: tuple[np.ndarray, np.ndarray, np.ndarray],
    programs: Sequence[Certificate],
    keys: Sequence[PRNGKeyArray],
) -> Iterator[Marginals]:
    """Choose pairs, count them, and yield all counts before the first and after each.

    Args:
        released: The counts of the plan's tables.
        held: Exact counts of the candidates in all but a few rows, and these rows with their mask.
            Not private.
        programs: The choice, and the counts of the pair.
        keys: Two for each choice.
    """
    from discreet.tabular.marginals._twins import Refit

    yield released
    (choose, measure) = programs
    plan = released.plan
    counted, levels, mask = held
    candidates = plan.candidates
    own = len(plan.tables)
    longest = max(plan.levels.sizes)
    sizes = plan.levels.sizes
    firsts = np.cumsum((0, *candidates.cells))
    # The mean of the size of a Gaussian is sqrt(2 / pi) of its standard deviation.
    biases = np.rint(math.sqrt(2 / math.pi) * plan.noise * np.array(candidates.cells[own:])).astype(
        np.int64
    )
    refit = Refit(plan)
    for key, its_noise in zip(keys[::2], keys[1::2], strict=True):
        expected = np.rint(refit(released, candidates.columns[own:])).astype(np.int64)
        place = own + int(choose(key, counted[firsts[own] :], levels, mask, expected, biases))
        one, other = columns = candidates.columns[place]
        square = np.zeros((longest, longest), np.int64)
        corner = np.s_[: sizes[one], : sizes[other]]
        square[corner] = counted[firsts[place] : firsts[place + 1]].reshape(
            sizes[one], sizes[other]
        )
        noisy = np.asarray(
            measure(its_noise, square.ravel(), levels[..., columns], mask), np.float64
        )
        biases[place - own] = _COUNTED
        now = dataclasses.replace(
            released.plan, tables=(*released.plan.tables, candidates.tables[place])
        )
        counts = np.concatenate([released.counts, noisy.reshape(longest, longest)[corner].ravel()])
        released = dataclasses.replace(released, plan=now, counts=counts)
        yield released
