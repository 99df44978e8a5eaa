"""The model of a whole table, for synthetic twins.

It is a frozen dataclass made from the public schema, with `encode` (a table to records), `model`
and `guide` (for `DPSVI`), `placeholder` (an artificial record) and `draw` (a table from one value
of the latents). `_distributions` has the densities of its rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoNormal

from discreet._validate import integer
from discreet.tabular.models._cells import Levels
from discreet.tabular.tables import OutOfBounds, Report, Schema, impossible_rows, rows_of_persons

if TYPE_CHECKING:
    import pyarrow
from discreet.tabular.models._distributions import LevelsMixture, PersonsMixture, firsts_of

_TRIES = 200


@dataclasses.dataclass(frozen=True)
class MixtureOfProducts:
    """A mixture of product distributions: given its component, a row's cells are independent.

    Defined by the public schema alone. Each cell is one of its column's public levels (`Levels`): a
    category, a slice of the bounds, or "missing". Component k gives the levels of a column the
    probabilities softmax(base + deviations[k]), and a row belongs to it with probability
    softmax(component)[k]; the component is marginalized. `base`, common to all components, learns
    from every record, so that the marginals of single columns are accurate even if the noise hides
    the components.

    Where the schema lets a person have several rows, a record is a person: all rows of a person are
    of one component, and each component has probabilities for the number of rows. Twins are then
    persons with rows, too.

    A record's gradient is never longer than `gradient_bound`, however strange its cells: a clipping
    norm is easily chosen.

    Priors: component Normal(0, 1), base Normal(0, 3), deviations Normal(0, 1); all of them logits.

    Attributes:
        schema: The public description of the table.
        components: Number of components, 1 at least.
        slices: Most slices of a column of numbers; see `Levels`.

    Example::

        twin = MixtureOfProducts(schema)
        optim = numpyro.optim.Adam(0.05)
        dpsvi = dp.DPSVI(twin.model, twin.guide(), optim, plan=plan, placeholder=twin.placeholder)
        result = dpsvi.run(dp.random.key(), twin.encode(table))

    Reference:
        Jälkö, Lagerspetz, Haukka, Tarkoma, Honkela and Kaski, "Privacy-preserving data sharing via
        probabilistic modeling", Patterns 2(7), 2021.
    """

    schema: Schema
    components: int = 16
    slices: int = 32

    def __post_init__(self) -> None:
        integer("components", self.components, hint="16 is a common choice.")
        Levels(self.schema.without_person(), self.slices)

    @functools.cached_property
    def levels(self) -> Levels:
        """The public levels of the columns."""
        return Levels(
            self.schema.without_person() if self.schema.max_rows > 1 else self.schema, self.slices
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels of each column; where a person may have several rows, then the largest number of rows."""
        return self.levels.sizes + (self.schema.max_rows,) * (self.schema.max_rows > 1)

    @property
    def placeholder(self) -> tuple[Int[np.ndarray, "1 *row column"]]:
        """An artificial record, for `DPSVI(placeholder=...)`: the first level of each column, in all rows."""
        rows = (self.schema.max_rows,) * (self.schema.max_rows > 1)
        return (np.zeros((1, *rows, len(self.schema.columns)), np.int32),)

    def encode(
        self, table: Any, *, out_of_bounds: str = "refuse", key: bytes | None = None
    ) -> Int[np.ndarray, "record *row column"]:
        """The records that `model` takes: `Levels.encode`; for persons with several rows, -1 marks padding rows.

        Args:
            table: As in `Levels.encode`.
            out_of_bounds: As there.
            key: As in `discreet.tables.rows_of_persons`, where a person may have several rows.
        """
        levels = self.levels.encode(table, out_of_bounds=out_of_bounds)
        if self.schema.person is None or self.schema.max_rows == 1:
            return levels
        from discreet.tabular.tables import typed

        people = typed(table, self.schema, Report(OutOfBounds.REFUSE), only_person=True)
        rows = rows_of_persons(people[self.schema.person], self.schema.max_rows, key=key)
        return np.where(rows[..., None] < 0, -1, levels[rows])

    @property
    def default_settings(self) -> dict[str, Any]:
        """Where `defaults_for` differs: fewer steps, since the noise is on thousands of parameters (docs/twins.md)."""
        return {"num_steps": 300, "learning_rate": 0.05}

    @property
    def gradient_bound(self) -> float:
        """L2 bound on the gradient of any record: the square root of 4 times the number of columns, plus 2.

        In the logits of a column it is a difference of two distributions over its levels, at most
        the square root of 2 long: once for `base`, once for all the deviations together; and once
        for the components. R rows make it R times as long, and their number is one more column.
        """
        rows = self.schema.max_rows
        return math.sqrt(4 * (rows**2 * len(self.schema.columns) + (rows > 1)) + 2)

    def model(self, records: Int[Array, "record *row column"]) -> None:
        """The NumPyro model.

        Args:
            records: The level of each cell; an invalid level is ignored, and a row that begins with
                a negative one is padding.
        """
        sizes = self.sizes
        components = self.components
        component = numpyro.sample(
            "component", dist.Normal(0.0, 1.0).expand([components]).to_event(1)
        )
        base = numpyro.sample("base", dist.Normal(0.0, 3.0).expand([sum(sizes)]).to_event(1))
        deviations = numpyro.sample(
            "deviations", dist.Normal(0.0, 1.0).expand([components, sum(sizes)]).to_event(2)
        )
        kind = PersonsMixture if self.schema.max_rows > 1 else LevelsMixture
        mixture = kind(component, base + deviations, sizes)
        with numpyro.plate("data", records.shape[0]):
            numpyro.sample("records", mixture, obs=records)

    def guide(self, *, seed: int = 0, spread: float = 0.5) -> AutoNormal:
        """Independent normals with different initial values for components: equal ones would stay equal.

        They start from public random numbers of this `seed`, whose standard deviation, in logits,
        is `spread`.
        """
        total = sum(self.sizes)
        noise = np.random.default_rng(seed).standard_normal(
            (self.components, total), dtype=np.float32
        )
        start = {
            "component": np.zeros(self.components, np.float32),
            "base": np.zeros(total, np.float32),
            "deviations": spread * noise,
        }
        return AutoNormal(self.model, init_loc_fn=init_to_value(values=start), init_scale=0.05)

    def draw(
        self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator
    ) -> pyarrow.Table:
        """Draw a table of rows, or of persons where a person may have several rows, at one value of the latents.

        The latents are one draw of each, without the leading axis of `posterior`. Each cell is
        within its column's bounds or categories. Rows with impossible combinations of values (as
        declared in the schema) are drawn again. Rows of persons have the schema's person column,
        with invented identifiers.

        Raises:
            ValueError: Hardly any row is possible at these latents.
        """
        if self.schema.max_rows > 1:
            return self._persons(latents, num_records, rng)
        table = self._table(latents, num_records, rng)
        if not self.schema.impossible:
            return table
        import pyarrow

        parts = []
        left = num_records
        for _ in range(_TRIES):
            parts.append(table.filter(~impossible_rows(table, self.schema)).slice(0, left))
            left -= len(parts[-1])
            if not left:
                return pyarrow.concat_tables(parts)
            table = self._table(latents, max(2 * left, 100), rng)
        raise ValueError(
            "nearly all rows that the model draws have values that the schema calls impossible: correct the schema's impossible "
            "values, or fit a model that is closer to the table"
        )

    def _table(
        self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator
    ) -> pyarrow.Table:
        counts, logits = self._shares(latents, num_records, rng)
        order = rng.permutation(num_records)
        rows = np.stack([cells[order] for cells in self._cells(logits, counts, rng)], axis=1)
        return self.levels.decode(rows, rng)

    def _persons(
        self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator
    ) -> pyarrow.Table:
        counts, logits = self._shares(latents, num_records, rng)
        *_, number = self._cells(logits, counts, rng, first=len(self.schema.columns))
        number += 1
        # Rows in the order of components, and of persons in each.
        ends = np.cumsum(counts)
        in_each = [
            int(number[end - count : end].sum()) for end, count in zip(ends, counts, strict=True)
        ]
        cells = np.stack(
            list(self._cells(logits, in_each, rng, last=len(self.schema.columns))), axis=1
        )
        person = np.repeat(rng.permutation(num_records), number)
        order = np.argsort(person, kind="stable")
        import pyarrow

        # Identifiers differ between draws, since one twin may combine several.
        mark = rng.bytes(6).hex()
        names = pyarrow.array([f"{mark}-{i}" for i in range(1, num_records + 1)])
        table = self.levels.decode(cells[order], rng)
        return table.append_column(
            str(self.schema.person), names.take(pyarrow.array(person[order]))
        )

    def _shares(
        self, latents: Mapping[str, Any], num_records: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, " component"], Float[np.ndarray, "component level"]]:
        """Draw the number of records of each component, and compute the logits of the levels in each."""
        component, base, deviations = (
            np.asarray(latents[name], np.float64) for name in ("component", "base", "deviations")
        )
        shares = np.exp(component - component.max())
        return rng.multinomial(num_records, shares / shares.sum()), base + deviations

    def _cells(
        self,
        logits: Float[np.ndarray, "component level"],
        counts: Sequence[int] | np.ndarray,
        rng: np.random.Generator,
        first: int = 0,
        last: int | None = None,
    ) -> Iterator[Int[np.ndarray, " row"]]:
        """Draw levels, a column at a time, of so many rows of each component, one component after the other."""
        ends = np.cumsum(counts)
        total = int(np.sum(counts))
        for start, size in list(zip(firsts_of(self.sizes), self.sizes, strict=True))[first:last]:
            block = logits[:, start : start + size]
            weights = np.exp(block - block.max(axis=1, keepdims=True))
            below = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
            uniform = rng.random(total)
            found = np.empty(total, np.int32)
            for k, (end, count) in enumerate(zip(ends, counts, strict=True)):
                # Without the last edge, rounding of the sum cannot give a level that is not there.
                found[end - count : end] = np.searchsorted(
                    below[k, :-1], uniform[end - count : end], side="right"
                )
            yield found
