"""Synthetic twins of a table in one call: measure it once, fit a model to the noisy counts and sums, and draw."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxtyping import PRNGKeyArray

from discreet._jax import in_own_settings
from discreet._validate import integer
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.ledger import Ledger
from discreet.privacy.released import keeping
from discreet.privacy.report import Statement
from discreet.tabular.marginals import (
    Marginals,
    MarginalsPlan,
    fit_twins,
    private_marginals,
    release_of,
)
from discreet.tabular.synthetic._draw import Fitted, synthesize
from discreet.tabular.tables import Schema

if TYPE_CHECKING:
    import pyarrow


@dataclasses.dataclass(frozen=True)
class Twins:
    """Synthetic twins and what they were drawn from, all of it covered by `statement`; made by `twins`.

    Attributes:
        tables: The twins, with the schema's columns.
        released: The noisy counts and sums. `dp.describe(self)` describes them at no further cost.
        fit: The model fitted to them, for `write_fitted`, `write_twins` and `synthesize`.
    """

    tables: tuple[pyarrow.Table, ...]
    released: Marginals
    fit: Fitted

    @property
    def statement(self) -> Statement:
        """The privacy statement of the release."""
        return self.fit.statement

    def __repr__(self) -> str:
        """Short, without tables."""
        first = self.tables[0]
        about = f"{len(self.tables)} twins of {len(first):,} rows and {first.num_columns} columns"
        return f"Twins({about}, {self.statement.brief})"


@in_own_settings
def twins(
    table: Any,
    schema: Schema | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    num_twins: int = 5,
    num_records: int | None = None,
    num_draws: int = 1,
    relation: Relation | None = None,
    ledger: Ledger | None = None,
    out_of_bounds: str = "refuse",
    rng_key: PRNGKeyArray | None = None,
    person_key: bytes | None = None,
    non_private_seed: bool = False,
) -> Twins:
    """Draw synthetic twins of a table privately.

    Guarantee: one Gaussian release of the counts of all columns, of all pairs and, with a target of
    few categories, of all pairs with it, and of sums of numbers and of squares, is (epsilon,
    delta)-differentially private under `relation`, for one person where the schema names a person
    column. Twins follow from it, however many.

    Args:
        table: Columns by name, or a path to a file: as for `describe`. Or what was released
            already, such as the result of `describe`: its twins cost nothing more, and take no
            schema or budget. Pairs of columns that it did not count are independent in them, which
            the statement says.
        schema: The public description. Where its `max_rows` is above 1, rows of twins are nobody's.
        epsilon: Privacy budget, above 0.
        delta: Privacy budget, well below one over the number of records.
        num_twins: Number of twins.
        num_records: Rows of each; None: as many as the table has, as estimated from the noisy
            counts.
        num_draws: 1: all twins are from one fit, the closest. 20 or more, and not fewer than twins:
            each is from a refit with fresh noise, which `combine` needs for intervals.
        relation: The neighbouring relation; None: `ADD_OR_REMOVE_ONE`.
        ledger: Debited before the release.
        out_of_bounds: "refuse" or "clip".
        rng_key: A key for this call alone. None: one from the operating system.
        person_key: As in `describe`.
        non_private_seed: Permit a key made from a seed, for tests.

    Raises:
        TypeError: No schema, epsilon or delta, or a release with one of them. Nothing was released.
        ValueError: An argument is out of range. Nothing was released.
        DataError: The table is not what the schema allows. Nothing was released.
        SpentError: The ledger does not hold the budget. Nothing was released.

    Example::

        twins = dp.twins("survey.csv", schema, epsilon=1.0, delta=1e-6)
        twins.tables[0].to_pandas()
        print(dp.describe(twins))  # figures of the table itself, from the same release
    """
    integer("num_twins", num_twins, hint="5 are enough for predictions.")
    integer("num_draws", num_draws, hint="20 are enough for intervals.")
    if num_records is not None:
        integer("num_records", num_records, hint="Leave it out for as many as the table has.")
    if 1 < num_draws < num_twins:
        raise ValueError(
            f"num_draws is {num_draws} for {num_twins} twins: give 1, or a draw for each twin"
        )
    key = random.key() if rng_key is None else rng_key
    released = release_of(
        table, schema=schema, epsilon=epsilon, delta=delta, relation=relation, ledger=ledger
    )
    if released is None:
        if not isinstance(schema, Schema) or epsilon is None or delta is None:
            raise TypeError(
                "twins needs a schema, epsilon and delta. Bounds and categories are public, never taken from the data: "
                "dp.twins(table, dp.tables.schema_from_bounds('age=17:90,smoker=no|yes'), epsilon=1.0, delta=1e-6)"
            )
        relation = Relation.ADD_OR_REMOVE_ONE if relation is None else relation
        plan = MarginalsPlan.calibrate(schema, epsilon=epsilon, delta=delta, relation=relation)
        released = private_marginals(
            key,
            table,
            plan,
            ledger=ledger,
            out_of_bounds=out_of_bounds,
            person_key=person_key,
            non_private_seed=non_private_seed,
        )
    with keeping(released):
        model, result = fit_twins(released, num_draws=num_draws)
        tables = synthesize(key, result, model, num_twins=num_twins, num_records=num_records)
        return Twins(tuple(tables), released, Fitted(result, model))
