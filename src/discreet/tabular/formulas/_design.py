"""The design of a formula: its columns, from the public schema alone, and the arrays that a table becomes.

A *template* is a table that has every category and evenly spread numbers within the bounds, in a
public order. formulae codes it once; knots, contrasts and levels are then fixed. The columns are
fitted in coordinates that follow from the template: 0/1 columns of categories stay, and every other
column is made orthogonal to the constant and the columns before it, under the template's even
distribution, and brought to [-1, 1]. So x and x**2, or a number and its product with a category,
hardly correlate. Draws are brought back by the same linear map, exactly.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from discreet._validate import RefusedError, near
from discreet.tabular.formulas._alike import Columns
from discreet.tabular.formulas._formula import Formula, parsed, spline_calls
from discreet.tabular.models import (
    LEAST_TIME,
    Family,
    coded_columns,
    family_named,
    refuse_second_rows,
)
from discreet.tabular.tables import Column, DataError, Kind, Missing, OutOfBounds, Report, Schema

if TYPE_CHECKING:
    import pandas

NUM_ROWS = 1024
_MISSING = "missing"
TAKEN = ("Intercept", "sigma", "nu", "shape", "precision", "zero", "concentration")
"""Names of what families have beside coefficients."""
_ALIASED = 1e-6  # of a column's length: what is left of one that others make up


@dataclasses.dataclass(frozen=True)
class Grouping:
    """Effects of the levels of a grouping factor, as of `(1 + x | g)`.

    Attributes:
        name: The factor, as "g" or "g:h".
        columns: The columns of categories whose levels are crossed.
        levels: Names of the levels.
        terms: What varies between them: "1" and names of columns of numbers.
        absorbed: For each of `terms` its place among the design's columns, whose weight is then the
            levels' mean; -1 for the intercept; None where the levels' effects have the mean 0.
    """

    name: str
    columns: tuple[str, ...]
    levels: tuple[str, ...]
    terms: tuple[str, ...]
    absorbed: tuple[int | None, ...]

    @property
    def spreads(self) -> list[str]:
        """Names of the standard deviations of `terms` between levels."""
        return [f"sd({term}|{self.name})" for term in self.terms]

    def effect(self, term: int, level: int) -> str:
        """Name of an effect."""
        return f"{self.terms[term]}|{self.name}[{self.levels[level]}]"


@dataclasses.dataclass(frozen=True)
class Rows:
    """A table as arrays; private. Columns of the design in their own units.

    Attributes:
        x: Columns of the design.
        y: The target, in its own unit; positions among categories. None where a table to predict
            for lacks it.
        beside: What the family needs beside it.
        offset: Added to the predictor.
        groups: For each grouping the position of the level.
        varying: For each grouping its `terms`, in their own units.
        present: False for rows that the schema drops.
        weights: Survey weights over the largest; None: there are none.
    """

    x: Float[np.ndarray, "row column"]
    y: Float[np.ndarray, " row"] | None
    beside: tuple[np.ndarray, ...]
    offset: Float[np.ndarray, " row"] | None
    groups: tuple[Int[np.ndarray, " row"], ...]
    varying: tuple[Float[np.ndarray, "row term"], ...]
    present: Bool[np.ndarray, " row"]
    weights: Float[np.ndarray, " row"] | None = None

    def __repr__(self) -> str:
        return f"Rows({len(self.x)})"

    def __getitem__(self, which: slice) -> Rows:
        """Some of the rows."""
        return Rows(
            x=self.x[which],
            y=None if self.y is None else self.y[which],
            beside=tuple(x[which] for x in self.beside),
            offset=None if self.offset is None else self.offset[which],
            groups=tuple(x[which] for x in self.groups),
            varying=tuple(x[which] for x in self.varying),
            present=self.present[which],
            weights=None if self.weights is None else self.weights[which],
        )


class Design:
    """The public design of a formula for a schema and a family.

    Args:
        text: The formula.
        schema: The description of the table.
        family: Name of the family.
        constants: Public values of names in the formula that are no columns.

    Raises:
        ValueError: Something that cannot be fitted; nothing was read.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> schema = schema_from_bounds("ill=no|yes,age=20:60,region=north|south|west")
    >>> Design("ill ~ age * region", schema, "bernoulli").names
    ('age', 'region[south]', 'region[west]', 'age:region[south]', 'age:region[west]')
    """

    def __init__(
        self, text: str, schema: Schema, family: str, constants: Mapping[str, Any] | None = None
    ) -> None:
        self.formula: Formula = parsed(text, constants)
        if not isinstance(schema, Schema):
            raise TypeError(
                f"schema is a {type(schema).__name__}: make one of public bounds and categories, as by "
                "dp.tables.schema_from_bounds('age=17:90,smoker=no|yes') or dp.tables.schema_from_toml('schema.toml')."
            )
        self.schema = self._of_columns(schema)
        target = self.schema.target_column
        assert target is not None
        self.target: Column = target
        self.family: Family = self._family(family)
        self._described = {column.name: column for column in self.schema.columns}
        self._evaluate_template()

    # What the schema says.

    def _of_columns(self, schema: Schema) -> Schema:
        """The schema of the formula's columns."""
        target = self.formula.target
        beside = [target.beside] if isinstance(target.beside, str) and target.beside else []
        wanted = {target.column, *beside, *self.formula.names}
        named = [column.name for column in schema.columns]
        absent = sorted(wanted - set(named))
        if absent:
            meant = near(absent[0], named)
            raise RefusedError(
                f"The formula {self.formula.text!r} has {absent[0]!r}, which the schema does not describe"
                f"{f': {meant}' if meant else '; describe it, or give its public value in constants'}."
            )
        if both := set(self.formula.constants) & set(named):
            raise RefusedError(
                f"constants has {both.pop()!r}, which is a column of the schema: give it another name."
            )
        if taken := sorted(set(TAKEN) & self.formula.names):
            raise RefusedError(
                f"The column {taken[0]!r} has the name of a number that families have beside coefficients: rename it, in the "
                "schema as well."
            )
        for column in schema.columns:
            if (
                column.name in wanted
                and column.missing is Missing.INDICATOR
                and _MISSING in column.categories
            ):
                raise DataError(
                    f"column '{column.name}' has a category {_MISSING!r} beside the level of that name for missing cells: rename "
                    "it"
                )
        kept = {*wanted, *([schema.weight] if schema.weight else [])}
        columns = tuple(column for column in schema.columns if column.name in kept)
        bought = schema.bought
        if bought is not None:
            left = tuple(name for name in bought.columns if name in kept)
            bought = dataclasses.replace(bought, columns=left) if left else None
        return dataclasses.replace(
            schema,
            columns=columns,
            target=target.column,
            weight=None if schema.weight in wanted else schema.weight,
            impossible=(),
            bought=bought,
        )

    def _family(self, name: str) -> Family:
        column = self.target
        target = self.formula.target
        if column.missing is Missing.INDICATOR:
            raise DataError(
                f"column '{column.name}' is the target: its missing cells cannot be explained, set missing = \"drop\", with "
                "which such rows contribute nothing"
            )
        if target.level is not None and name == "bernoulli":
            if target.level not in column.categories:
                raise RefusedError(
                    f"{target.column}[{target.level}] is no category of it; these are {', '.join(column.categories)}."
                )
            others = "others" if target.level != "others" else "the others"
            column = Column(name=column.name, kind=Kind.BINARY, categories=(others, target.level))
        elif target.level is not None:
            raise RefusedError(
                f"{target.column}[{target.level}] is for the family bernoulli: leave the category out."
            )
        family = family_named(name, column)
        needed = {"trials": "prop", "event": "Surv"}.get(next(iter(family.beside), ""), "")
        if needed != target.call:
            sides = {"prop": "prop(successes, trials)", "Surv": "Surv(time, event)", "": "a column"}
            raise RefusedError(
                f"The family {name} explains {sides[needed]}: write that on the left side of the formula."
            )
        if target.call == "prop" and isinstance(target.beside, str):
            trials = next(x for x in self.schema.columns if x.name == target.beside)
            if (
                trials.kind is not Kind.COUNT
                or trials.limits[0] < 1
                or trials.missing is Missing.INDICATOR
            ):
                raise DataError(
                    f"column '{trials.name}' has numbers of trials: describe it as kind count with bounds from 1, and missing "
                    'cells, if there are any, as missing = "drop"'
                )
        elif target.call == "prop" and int(target.beside) < column.limits[1]:
            raise DataError(
                f"column '{column.name}' has bounds {column.rule()}, and is said to be of {target.beside} trials: give bounds "
                "up to that number"
            )
        if target.call == "Surv":
            event = next(x for x in self.schema.columns if x.name == target.beside)
            if event.kind is not Kind.BINARY or event.may_be_missing:
                raise DataError(
                    f"column '{event.name}' says which times are events: describe it as kind binary without missing cells, the "
                    f"second category of which {'censors' if target.censors else 'is the event'}"
                )
        return family

    # The template.

    def _template(
        self,
        num_rows: int = NUM_ROWS,
        seed: int = 0,
        like: Int[np.ndarray, " place"] | None = None,
    ) -> pandas.DataFrame:
        import pandas

        rng = np.random.default_rng(seed)
        frame = {}
        for column in self.schema.columns:
            if column.bounds is None:
                cells = np.resize(np.arange(len(self._levels(column))), num_rows)
            elif column.kind is Kind.REAL or column.limits[1] - column.limits[0] >= num_rows:
                cells = np.linspace(*column.limits, num_rows)
            else:
                low, high = column.limits
                cells = np.resize(np.arange(low, high + 1), num_rows)
            frame[column.name] = self._cells(column, rng.permutation(cells))
        if like is not None:
            first = self._template(num_rows)
            places = rng.permutation(np.resize(like, num_rows))
            for column in self.schema.columns:
                if column.bounds is not None:
                    frame[column.name] = first[column.name].to_numpy()[places]
        return pandas.DataFrame(frame)

    @staticmethod
    def _levels(column: Column) -> tuple[str, ...]:
        """Categories, and one for missing cells, where the schema has an indicator for these."""
        return (
            (*column.categories, _MISSING)
            if column.missing is Missing.INDICATOR
            else column.categories
        )

    def _cells(self, column: Column, numbers: np.ndarray) -> Any:
        """A column of the frame: numbers, or categories in the schema's order."""
        if column.bounds is not None:
            return np.asarray(numbers, np.float64)
        import pandas

        return pandas.Categorical.from_codes(
            numbers.astype(np.int64), self._levels(column), ordered=True
        )

    def _evaluate_template(self) -> None:
        from formulae.environment import Environment
        from formulae.terms.terms import Intercept

        template = self._template()
        terms = self.formula.terms
        with np.errstate(all="ignore"):
            try:
                terms.eval(template, Environment([self.formula.namespace]))
            except Exception as error:  # of formulae, on public numbers alone
                raise RefusedError(
                    f"The formula {self.formula.text!r} cannot be evaluated: {error}."
                ) from None
        for call in spline_calls(terms):
            spline = call.stateful_transform
            spline._centering_matrix = Columns(spline._centering_matrix)
        self._offsets = [
            term for term in terms.common_terms if getattr(term, "kind", "") == "offset"
        ]
        for term in self._offsets:
            if isinstance(
                term.components[0].call.eval(template, term.components[0].env).x, int | float
            ):
                raise RefusedError(
                    f"{term.name} adds the same to every row, as the intercept does: take it out."
                )
        if self._offsets and self.family.num_classes is not None:
            raise RefusedError(
                f"The formula {self.formula.text!r} has an offset, which would add the same to all categories: take it out."
            )
        self._terms = [
            term
            for term in terms.common_terms
            if not isinstance(term, Intercept) and term not in self._offsets
        ]
        self._indicators = [
            name
            for name, column in self._described.items()
            if name in self.formula.names
            and column.bounds is not None
            and column.missing is Missing.INDICATOR
        ]
        self.names: tuple[str, ...] = (
            *(name for term in self._terms for name in _labels(term)),
            *(f"{name} is missing" for name in self._indicators),
        )
        x = self._common(template)
        if self._indicators:
            x[::7, len(self.names) - len(self._indicators) :] = 1
        if len(set(self.names)) < len(self.names):
            raise RefusedError(
                f"Two columns of the formula {self.formula.text!r} have one name, of {', '.join(self.names)}: rename a column of "
                "the table."
            )
        _check_finite(self.names, x)
        offset = self._offset(template)
        self.middle_offset = 0.0
        self.half_offset = 1.0
        if offset is not None:
            _check_finite(["The offset"], offset[:, None])
            self.middle_offset = float(offset.mean())
            self.half_offset = float(np.abs(offset - self.middle_offset).max()) or 1.0
        self.groupings: tuple[Grouping, ...] = tuple(self._groupings(terms.group_terms))
        self._coordinates(x)
        self._scale_varying(template)

    def _common(self, frame: pandas.DataFrame, missing: Sequence[np.ndarray] = ()) -> np.ndarray:
        """The columns of the design for a frame."""
        with np.errstate(all="ignore"):
            parts = [
                np.reshape(term.eval_new_data(frame), (len(frame), -1)) for term in self._terms
            ]
        parts += [
            missing[place][:, None] if missing else np.zeros((len(frame), 1))
            for place in range(len(self._indicators))
        ]
        return (
            np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)
            if parts
            else np.zeros((len(frame), 0))
        )

    def _groupings(self, terms: Sequence[Any]) -> list[Grouping]:
        found: dict[str, list[str]] = {}
        self._varying_terms: dict[str, list[Any]] = {}
        factors = {}
        for term in terms:
            name = term.factor.name
            factors[name] = tuple(component.name for component in term.factor.components)
            for column in factors[name]:
                if column not in self._described or self._described[column].bounds is not None:
                    raise RefusedError(
                        f"(... | {name}) needs columns of categories, whose levels are public; {column} is none: list its levels "
                        f"in the schema, in a line of bounds by {column}=1|2|3."
                    )
            if term.kind == "intercept":
                found.setdefault(name, []).insert(0, "1")
                continue
            if any(
                getattr(component, "kind", "") != "numeric" for component in term.expr.components
            ):
                raise RefusedError(
                    f"({term.expr.name} | {name}) lets categories vary between levels: write (1 | {term.expr.name}:{name})."
                )
            found.setdefault(name, []).extend(_labels(term.expr))
            self._varying_terms.setdefault(name, []).append(term.expr)
        used: set[int] = set()
        groupings = []
        for name, varying in found.items():
            columns = factors[name]
            levels = [""]
            for column in columns:
                levels = [
                    f"{start}:{x}" if start else x
                    for start in levels
                    for x in self._levels(self._described[column])
                ]
            absorbed: list[int | None] = []
            for term in varying:
                place = (
                    -1 if term == "1" else self.names.index(term) if term in self.names else None
                )
                if place == -1 and self.family.name == "cumulative":
                    place = None
                absorbed.append(None if place in used else place)
                used.update([] if place is None else [place])
            groupings.append(
                Grouping(name, columns, tuple(levels), tuple(varying), tuple(absorbed))
            )
        return groupings

    # Coordinates.

    def _coordinates(self, x: np.ndarray) -> None:
        """The map from columns in their units to those that are fitted: z = (x[:, kept] @ to) - centre."""
        absorbed = {
            place
            for grouping in self.groupings
            for place in grouping.absorbed
            if place is not None and place >= 0
        }
        self.kept = np.array(
            [place for place in range(len(self.names)) if place not in absorbed], int
        )
        x = x[:, self.kept]
        self.levels = np.array([set(np.unique(column)) <= {0.0, 1.0} for column in x.T], bool)
        size = x.shape[1]
        to = np.eye(size)
        centre = np.zeros(size)
        basis = [np.ones(len(x)), *x.T[self.levels]]
        before = list(np.flatnonzero(self.levels))
        for place in np.flatnonzero(~self.levels):
            column = x[:, place]
            parts = np.stack(basis, axis=1)
            weights = np.linalg.lstsq(parts, column, rcond=None)[0]
            rest = column - parts @ weights
            if np.abs(rest).max() <= _ALIASED * max(np.abs(column).max(), 1e-300):
                raise RefusedError(
                    f"The column {self.names[self.kept[place]]} of the formula {self.formula.text!r} follows from the others: "
                    "take it out (of bs(..., center=False), write bs(...))."
                )
            longest = np.abs(rest).max()
            to[before, place] = -weights[1:] / longest
            to[place, place] = 1 / longest
            centre[place] = weights[0] / longest
            basis.append(column)
            before.append(place)
        if (
            size
            and np.linalg.matrix_rank(np.column_stack([np.ones(len(x)), x @ to - centre])) <= size
        ):
            raise RefusedError(
                f"The columns of the formula {self.formula.text!r} follow from one another: take out what others make up."
            )
        self.to = to
        self.centre = centre

    def fitted_columns(self, x: np.ndarray) -> np.ndarray:
        """Columns of the design in the coordinates that are fitted."""
        return x[:, self.kept] @ Columns(self.to) - self.centre

    def _scale_varying(self, template: pandas.DataFrame) -> None:
        """Middle and half width of the numbers that vary between levels, by the template."""
        self.middles: list[np.ndarray] = []
        self.halves: list[np.ndarray] = []
        for grouping, varying in zip(self.groupings, self._varying(template), strict=True):
            _check_finite(grouping.terms, varying)
            low = varying.min(axis=0)
            high = varying.max(axis=0)
            constant = np.array([term == "1" for term in grouping.terms])
            # Without effects on the intercept there is nothing that would take the middle up.
            for name in np.array(grouping.terms, object)[~constant & (low == high)]:
                raise RefusedError(
                    f"{name} is the same within all bounds, so it cannot vary between levels: take it out."
                )
            kept = constant if constant.any() else ~constant
            self.middles.append(np.where(kept, 0.0, (low + high) / 2))
            self.halves.append(np.where(constant, 1.0, (high - low) / 2))

    def _varying(self, frame: pandas.DataFrame) -> list[np.ndarray]:
        found = []
        for grouping in self.groupings:
            parts = [np.ones((len(frame), 1))] if "1" in grouping.terms else []
            with np.errstate(all="ignore"):
                for term in self._varying_terms.get(grouping.name, []):
                    parts.append(np.reshape(term.eval_new_data(frame), (len(frame), -1)))
            found.append(np.concatenate(parts, axis=1).astype(np.float64))
        return found

    # Rows of a table.

    def rows(self, table: Any, *, out_of_bounds: str = "refuse", with_target: bool = True) -> Rows:
        """A table's rows; each depends on its cells and the schema alone.

        Raises:
            DataError: A cell that the schema does not allow; names the column and the rule.
        """
        schema = self.schema.without_person() if with_target else self._without_target
        found = {
            column.name: (column, numbers, missing)
            for column, numbers, missing in coded_columns(table, schema, out_of_bounds)
        }
        size = len(next(iter(found.values()))[1])
        present = np.ones(size, bool)
        import pandas

        y = None
        weights = None
        frame = {}
        absent = {}
        for name, (column, numbers, missing) in found.items():
            if column.missing is Missing.DROP:
                present &= ~missing
            if column.bounds is None:
                last = len(column.categories) if column.missing is Missing.INDICATOR else 0
                numbers = np.where(missing, last, numbers)
            else:
                numbers = np.where(missing, sum(column.limits) / 2, numbers)
                absent[name] = missing.astype(np.float64)
            if name == self.target.name:
                y = self._target_of(numbers)
            if name == schema.weight:
                weights = numbers / column.limits[1]
            frame[name] = self._cells(column, numbers)
        data = pandas.DataFrame(frame)
        beside = self._beside(data) if with_target else ()
        if self.formula.target.call == "prop" and y is not None and beside:
            above = present & (y > beside[0])
            if above.any() and out_of_bounds == "refuse":
                raise DataError(
                    f"column '{self.target.name}' has more successes than trials in some rows: correct the table, or set "
                    'out_of_bounds = "clip", with which these count as all'
                )
            y = np.minimum(y, beside[0])
        return self._rows_of(
            data, [absent[name] for name in self._indicators], y, beside, present, weights
        )

    def even_rows(
        self,
        num_rows: int = NUM_ROWS,
        seed: int = 0,
        like: Int[np.ndarray, " place"] | None = None,
    ) -> Rows:
        """Artificial rows, spread evenly over bounds and categories, without a target. Public.

        Args:
            num_rows: How many.
            seed: Seed of which cells are in one row.
            like: Places of rows of seed 0, whose numbers these rows have. None: numbers are spread.
        """
        template = self._template(num_rows, seed, like)
        size = len(template)
        return self._rows_of(template, [], None, self._beside(template), np.ones(size, bool), None)

    def _rows_of(
        self,
        data: pandas.DataFrame,
        absent: Sequence[np.ndarray],
        y: np.ndarray | None,
        beside: tuple[np.ndarray, ...],
        present: np.ndarray,
        weights: np.ndarray | None,
    ) -> Rows:
        groups = []
        for grouping in self.groupings:
            codes = np.zeros(len(data), np.int64)
            for name in grouping.columns:
                codes = codes * len(self._levels(self._described[name])) + data[
                    name
                ].cat.codes.to_numpy(np.int64)
            groups.append(codes.astype(np.int32))
        return Rows(
            x=self._common(data, absent),
            y=y,
            beside=beside,
            offset=self._offset(data),
            groups=tuple(groups),
            varying=tuple(self._varying(data)),
            present=present,
            weights=weights,
        )

    def persons(self, table: Any, key: bytes | None = None) -> Int[np.ndarray, "person row"] | None:
        """The rows of each person, and -1 where one has fewer; None: each row is a record.

        Args:
            table: As in `rows`.
            key: By which rows are chosen of a person who has more than the schema's `max_rows`.
                None: a new one.

        Raises:
            DataError: A person has two rows, and may have one; or a row has no person.
        """
        from discreet.tabular.tables import rows_of_persons, typed

        if self.schema.person is None:
            return None
        people = typed(table, self.schema, Report(OutOfBounds.REFUSE), only_person=True)[
            self.schema.person
        ]
        if self.schema.max_rows == 1:
            refuse_second_rows(people, self.schema.person)
            return None
        return rows_of_persons(people, self.schema.max_rows, key=key)

    @functools.cached_property
    def _without_target(self) -> Schema:
        columns = tuple(
            column for column in self.schema.columns if column.name in self.formula.names
        )
        return dataclasses.replace(
            self.schema,
            columns=columns,
            target=None,
            weight=None,
            bought=None,
            person=None,
        )

    def _offset(self, data: pandas.DataFrame) -> np.ndarray | None:
        if not self._offsets:
            return None
        with np.errstate(all="ignore"):
            each = [
                np.reshape(term.eval_new_data(data), len(data)).astype(np.float64)
                for term in self._offsets
            ]
        return np.asarray(sum(each))

    def _target_of(self, numbers: np.ndarray) -> np.ndarray:
        level = self.formula.target.level
        if level is not None:
            return (numbers == self.target.categories.index(level)).astype(np.float64)
        return numbers.astype(np.float64)

    def _beside(self, data: pandas.DataFrame) -> tuple[np.ndarray, ...]:
        target = self.formula.target
        if not target.call:
            return ()
        if not isinstance(target.beside, str):
            return (np.full(len(data), float(target.beside)),)
        column = data[target.beside]
        if target.call == "prop":
            return (column.to_numpy(np.float64),)
        happened = column.cat.codes.to_numpy() == (0 if target.censors else 1)
        return (happened.astype(np.float64),)

    @property
    def has_offset(self) -> bool:
        """True if the formula has an offset."""
        return bool(self._offsets)

    # The target's scale.

    @property
    def unit(self) -> tuple[float, float]:
        """Middle and half width of a "linear" target; otherwise 0 and what it is divided by."""
        if self.family.units == "linear":
            low, high = self.target.limits
            return (low + high) / 2, (high - low) / 2
        return 0.0, self.target.limits[1] if self.family.units else 1.0

    def scaled_target(self, y: np.ndarray) -> np.ndarray:
        """The target as the family's model takes it."""
        middle, width = self.unit
        y = (y - middle) / width
        return np.maximum(y, LEAST_TIME) if self.family.units in ("log", "hazard") else y


def _check_finite(names: Sequence[str], x: np.ndarray) -> None:
    for name, column in zip(names, x.T, strict=True):
        if not np.isfinite(column).all():
            raise RefusedError(
                f"{name} is not finite everywhere within the public bounds: narrow the bounds, or shift the number first, as in "
                "log(x + 1)."
            )


def _labels(term: Any) -> list[str]:
    labels = term.labels
    return [str(label) for label in ([labels] if isinstance(labels, str) else labels)]
