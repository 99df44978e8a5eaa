"""The public description of a table."""

import dataclasses

from discreet.schema._column import DEFAULT_MISSING_VALUES, Column
from discreet.schema._errors import DataError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns to use, in order, which of them is explained by the others, and whose a row is.

    Columns of the file that the schema does not name are not read. Everything here is public.

    A plan protects a record. Where a person may have several rows, name the column that says whose a row is: one row of each
    person is then kept, so that a record is a person. Which one is decided by that person's own rows and a secret key; see
    `discreet.data.keep_one_row_a_person`.

    Attributes:
        columns: The columns.
        target: Name of the column to explain; None if there is none.
        missing_values: Texts that stand for a missing cell in a CSV file.
        inferred: Names of columns whose bounds or categories were taken from the data. Not empty: no guarantee holds.
        person: Name of the column that says whose a row is; never a feature. None: each row is another person's.
        rows_per_person: How many rows of a person are kept. Only 1: a plan for records does not protect a person who has
            several.

    Raises:
        DataError: No columns, a name twice, a target that is not among them, a person column that is, a category that also
            stands for a missing cell, or more than one row a person.
    """

    columns: tuple[Column, ...]
    target: str | None = None
    missing_values: tuple[str, ...] = DEFAULT_MISSING_VALUES
    inferred: tuple[str, ...] = ()
    person: str | None = None
    rows_per_person: int = 1

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names:
            raise DataError("the schema names no columns: describe each column to use, with its bounds or categories")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(f"the schema describes {', '.join(twice)} twice: describe each column once")
        if self.target is not None and self.target not in names:
            raise DataError(
                f"the target '{self.target}' is not described: give its bounds or categories like any other column's"
            )
        if self.target is not None and len(names) == 1:
            raise DataError("the schema describes only the target: describe at least one column that explains it")
        for column in self.columns:
            both = sorted(set(column.categories) & set(self.missing_values))
            if both:
                raise DataError(
                    f"column '{column.name}' has the category '{both[0]}', which also stands for a missing cell: give the "
                    "schema its own missing_values without it, or take it out of the categories"
                )
        unknown = sorted(set(self.inferred) - set(names))
        if unknown:
            raise DataError(f"the schema says that {', '.join(unknown)} was inferred, but does not describe it")
        self._check_person(names)

    def _check_person(self, names: list[str]) -> None:
        if self.person in names:
            raise DataError(
                f"the column '{self.person}' says whose a row is, so that it would single out people as a feature: take it "
                "out of the described columns"
            )
        if self.rows_per_person == 1:
            return
        if self.person is None:
            raise DataError("rows_per_person needs to know whose a row is: name that column, person = ...")
        raise DataError(
            f"rows_per_person is {self.rows_per_person}: a plan protects one record, and a person with several records is "
            "protected several times less than it says. Only 1 is supported: leave it out, or bring the table to one row a "
            "person (with a column for each visit, say) by a rule that does not look at other people's rows"
        )

    @property
    def features(self) -> tuple[Column, ...]:
        """All columns but the target."""
        return tuple(column for column in self.columns if column.name != self.target)

    @property
    def target_column(self) -> Column | None:
        """The column to explain."""
        return next((column for column in self.columns if column.name == self.target), None)

    def describe(self) -> tuple[str, ...]:
        """One line a column, for the list of public facts in a statement."""
        return tuple(
            f"{column.name} ({column.kind}{', the target' if column.name == self.target else ''}): {column.rule()}"
            for column in self.columns
        )
