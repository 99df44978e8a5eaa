"""The record of one walk: draws, releases, loops and branches, in the order of the program.

The checker appends a `Sample` at each draw (`_bounds`) and a `MechanismUse` at each mechanism; a
loop or a branch collects its own list, and is one item of the list around it. Nothing is added up
here: `_events` derives the event from the list when the walk is over.

A release has loads: by leaf of a group the sum of (bound / noise)^2. Leaves of one group are parts
of one vector, so what counts of a group is its worst leaf. A group with a serial after `before`
was made within the loop or the branch, and so is another group in each iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from discreet.privacy.mechanisms import Mechanism
from discreet.privacy.sampling import Sampling
from discreet.privacy.verify._bounds import Group, RecordSet, Sample


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop, compared by identity. The length is infinite if unknown, and an expression if open."""

    length: Any


Loads = dict[tuple[Group, int], Any]
"""For each leaf of each group: the sum over releases of (bound / noise)^2, in the units of one record.

Numbers, or expressions of open parameters; so are noise multipliers, rates and counts."""


@dataclasses.dataclass
class MechanismUse:
    """One mechanism on values of one batch."""

    batch: RecordSet  # The records
    mechanism: Mechanism  # The source of the noise
    loads: Loads  # In the L2 norm
    size: int  # Coordinates, for mechanisms calibrated to the L1 norm
    # An upper bound on the load added by rounding to a grid, if a record shares its bound between
    # this release and others (`_rules_noise`). Otherwise the noise covers it.
    rounding: Any = 0.0


@dataclasses.dataclass
class Repeat:
    """A loop. `before`: groups with a later serial are made anew in each iteration."""

    loop: Any
    items: list[Any]
    before: int = 0


@dataclasses.dataclass
class Drawn:
    """A sampler in the place of that of a `Sample` further on in the same list."""

    batch: Sample
    sampling: Sampling


@dataclasses.dataclass
class Scheduled:
    """Releases whose noise or bound, or a draw whose rate, changes between iterations of an enclosing loop."""

    loop: Any
    items: Sequence[Sequence[MechanismUse | Drawn]]  # For each kind of iteration
    kinds: tuple[int, ...]  # The kind of each iteration


@dataclasses.dataclass
class Branches:
    """Branches, one of which a public value selects. `before`: groups with a later serial are made in a branch."""

    branches: list[list[Any]]
    before: int
