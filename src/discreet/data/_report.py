"""What is wrong with a table's cells, gathered over all columns."""

import dataclasses
import enum

from discreet.schema import DataError


class OutOfBounds(enum.StrEnum):
    """What becomes of a cell that the schema does not allow.

    REFUSE: the table is refused. CLIP: a number or date is moved to the nearer bound; anything else is refused. MISSING: the cell
    counts as missing, also one that is no number, no date or no category of the schema, and the column's rule for missing cells
    holds.
    """

    REFUSE = "refuse"
    CLIP = "clip"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True)
class Report:
    """Which columns break which rules. Knows no value, no row and no count, so that it cannot tell them.

    Attributes:
        rule: What becomes of cells that the schema does not allow.
        faults: What is wrong, as sentences without a full stop. In several threads at once.
    """

    rule: OutOfBounds
    faults: set[str] = dataclasses.field(default_factory=set)

    def refuse(self) -> None:
        """Raise if anything is wrong.

        Raises:
            DataError: All that is wrong, column by column.
        """
        if self.faults:
            raise DataError(". Also, ".join(sorted(self.faults)))
