"""The neighbouring relation, and what follows from it: each factor, each question and each phrase once.

`Relation` is dp_accounting's enum, so events and plans can be exchanged with it. Every factor 2 of
one record replaced is `distance` here, or a consequence of it: a replaced record takes its row out
of a sum and puts another one in, so a sum of rows of norm at most C moves by C if a record is added
or removed, and by at most 2C if one is replaced. Rows with a single 1 are nearer: two of them that
differ are sqrt(2) apart (`of_cells`).

Whoever compares a relation by hand takes one that is not listed for the other one.
`neighbours` refuses it.
"""

from __future__ import annotations

import dataclasses
import math

from discreet._dp_accounting import NeighboringRelation

Relation = NeighboringRelation
"""The neighbouring relation: ADD_OR_REMOVE_ONE, or REPLACE_ONE at a fixed number of records."""


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """What is true of all pairs of neighbouring tables.

    Attributes:
        distance: The most by which two neighbours' sums differ, in units of the largest norm of a
            row; in any norm.
        of_cells: The same in L2, for rows that have a single 1, or only zeros where the record is
            absent.
        hides_membership: Neighbours differ in who is in the table, so the number of records is no
            public number, and no check may depend on it.
        change: What happens to the one record, as a participle.
        how: The same, before a table.
    """

    distance: float
    of_cells: float
    hides_membership: bool
    change: str
    how: str

    def name(self, noun: str = "") -> str:
        """The relation in a few words, for texts, tables and headings."""
        return " ".join(filter(None, ("one", noun, self.change)))

    def act(self, noun: str) -> str:
        """The change, as the subject of a sentence."""
        return (
            f"adding or leaving out one {noun}"
            if self.hides_membership
            else f"replacing one {noun} by another"
        )

    def question(self, noun: str) -> str:
        """What the releases hardly help to decide."""
        if self.hides_membership:
            return f"one given {noun} was among the data"
        return f"one given place in the data held this {noun} or that one"

    def check_size(self, found: int, declared: int, what: str = "The arrays hold") -> None:
        """Refuse a table of another length than the plan's, where the number of records is public.

        Where neighbours differ in it, nothing is refused: the check would show it.
        """
        if not self.hides_membership and found != declared:
            raise ValueError(
                f"{what} {found} records, but the plan says num_records={declared}, a public number under its relation "
                f"({self.name('record')}). Calibrate a plan for {found} records."
            )


_NEIGHBOURS = {
    Relation.ADD_OR_REMOVE_ONE: Neighbours(
        1.0, 1.0, True, "added or removed", "added to or removed from"
    ),
    Relation.REPLACE_ONE: Neighbours(2.0, math.sqrt(2), False, "replaced", "replaced in"),
}


def neighbours(relation: Relation) -> Neighbours:
    """What a relation means.

    Raises:
        ValueError: A relation that is not accounted for here.
        TypeError: No relation at all.

    >>> neighbours(Relation.REPLACE_ONE).distance, neighbours(Relation.ADD_OR_REMOVE_ONE).name("record")
    (2.0, 'one record added or removed')
    """
    known = isinstance(relation, Relation)
    if not known or relation not in _NEIGHBOURS:
        raise (ValueError if known else TypeError)(
            f"relation is {relation!r}, which is not accounted for. Neighbouring datasets differ by one record added or "
            "removed, or by one record replaced: pass Relation.ADD_OR_REMOVE_ONE or Relation.REPLACE_ONE."
        )
    return _NEIGHBOURS[relation]
