"""What abstract values carry for the recognition: `Norm`, `Turns` and `Fold`; and `Cuts`.

Each is one claim more about a value, beside those of `_domain`, and the weakest claim is to have
none. `Norm` relates a value to the norm of a record's slices of others, as clipping computes it.
`Turns` has the values of a public number in each iteration of a loop. `Fold` says where along an
axis the records are that `vmap` merged with another axis.

The invariant: nothing but a rule of this folder makes such a claim, and every other rule drops it
(`Private.but`), so a program that computes something else in between has only lost precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from discreet._jax import JaxprEqn
from discreet.privacy.verify._bounds import Group, Part, RecordSet, Scale, group_of


@dataclasses.dataclass(frozen=True, eq=False)
class Norm:
    """The relation of a value to n, the joint L2 norm of a record's slices of some values.

    - "squares": sums of their squares; over all their elements where only the axes of the records
      are left;
    - "norm": n <= value * bound;
    - "factor": |value| * n <= bound;
    - "above": truth values; where False, n <= bound. "below": where True;
    - "largest": the largest element of a row. "below its largest": the row less that. "shares": the
      exponentials of these, of which one is 1.
    """

    kind: str  # One of these
    contents: frozenset[int]  # The values whose norm it is
    bound: Scale = dataclasses.field(default=Scale(1.0))  # See above
    size: int = 0  # Elements of a record in all of them
    # For a norm: value * bound is at least `FLOOR`. For a factor: finite unless the norm is NaN,
    # and underflow of squares does not matter. Otherwise the bound does not hold either, and the
    # product may be infinite.
    safe: bool = False
    # None of the values holds NaN or infinity; otherwise the relation may fail where one does
    finite: bool = False

    @property
    def group(self) -> Group:
        """The values in units of their joint norm, whichever factors clip them."""
        return group_of("norm", self.contents)


@dataclasses.dataclass(frozen=True)
class Turns:
    """The values of one public number in each iteration of a loop, known at trace time."""

    loop: Any
    values: tuple[float, ...]
    error: float = 0.0  # As in `Public`


Fold = tuple[int, int, int]
"""An axis, the number of repetitions of the records along it, and the consecutive places of each record.

`vmap` of a convolution merges the axis of the records with a later one, since XLA has one axis of
images and one of channels. Such an axis is folded: place k is record k // inner, modulo the number
of records. All other rules except those of matrices treat a folded value as one without rows."""


@dataclasses.dataclass
class Cuts:
    """The rows that a program takes by number, and the loops and equations that do so."""

    # Parts of the table, by their row numbers
    rows: dict[tuple[RecordSet, Sequence[int]], RecordSet] = dataclasses.field(default_factory=dict)
    # Rows that a loop takes by number, keyed by their definition
    windows: dict[tuple[Any, ...], Part] = dataclasses.field(default_factory=dict)
    # Loops whose iterations differ by more than their records
    placed: set[Any] = dataclasses.field(default_factory=set)
    # Whether an equation only takes rows by number, by its identity; it is kept, so that no other
    # one has it
    _only: dict[int, tuple[bool, JaxprEqn]] = dataclasses.field(default_factory=dict)

    def look(self, equation: JaxprEqn, before: RecordSet | None, after: RecordSet | None) -> None:
        """Note whether an equation, from records to records, takes rows of the table by number."""
        cut = after is not before and after in self.windows.values()
        self._only[id(equation)] = (self.only_cut(equation, default=True) and cut, equation)

    def only_cut(self, equation: JaxprEqn, *, default: bool = False) -> bool:
        """True if an equation takes rows of the table by number at each visit so far; `default` before the first."""
        return self._only.get(id(equation), (default, equation))[0]
