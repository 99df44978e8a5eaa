"""Measure once: noisy counts of cross tables, and noisy sums."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from discreet._jax import one_release
from discreet.privacy import random
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.query import LAST
from discreet.tabular.marginals._exact import Measured, pieces
from discreet.tabular.marginals._plan import MarginalsPlan
from discreet.tabular.marginals._result import Marginals


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
) -> Marginals:
    """Count the cross tables of a plan, and sum numbers, with noise.

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

    Returns:
        The noisy counts, with their statement.

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
    act = Act.on(plan, key, random.Purpose.MARGINALS, ledger=ledger)
    measured = Measured(plan, max(1, LAST // plan.max_rows))
    for piece in pieces(table, plan, out_of_bounds, person_key):
        measured.add(piece)
    noisy = plan.query().answer(act, *measured.arguments())
    noisy = np.concatenate([np.asarray(part, np.float64) for part in jax.tree.leaves(noisy)])
    counts, fine, sums, persons = plan.apart(noisy / plan.all_weights)
    return Marginals(plan, counts, act.statement, sums, persons, fine)
