"""Where the axes that number records go when an array changes its shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

Axes = tuple[int, ...]


def through_reshape(old: Axes, new: Axes, axes: Axes) -> Axes | None:
    """The axes of a reshaped array that number the same records, in the order of the record index; None if there are none.

    An axis of records may be cut in several, and several put together in their order, beside axes of size 1 only.
    """
    if 0 in old:
        return None
    placed: dict[int, list[int]] = {}
    for ours, theirs in _blocks(old, new):
        records = [i for i in ours if i in axes]
        if not records:
            continue
        if any(old[i] != 1 for i in ours if i not in axes):
            return None
        positions = [axes.index(i) for i in records]
        if positions != list(range(positions[0], positions[0] + len(positions))):
            return None
        kept = [j for j in theirs if new[j] != 1] or theirs[:1]
        if not kept:
            return None
        placed[positions[0]] = kept
    return tuple(j for position in sorted(placed) for j in placed[position])


def _blocks(old: Axes, new: Axes) -> list[tuple[list[int], list[int]]]:
    """The least groups of neighbouring axes, old and new, that hold the same elements."""
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        ours, theirs = list(range(i, min(i + 1, len(old)))), list(range(j, min(j + 1, len(new))))
        i, j = i + len(ours), j + len(theirs)
        while (mine := math.prod(old[k] for k in ours)) != (other := math.prod(new[k] for k in theirs)):
            if mine < other:
                ours.append(i)
                i += 1
            else:
                theirs.append(j)
                j += 1
        blocks.append((ours, theirs))
    return blocks


def without(axes: Axes, removed: Sequence[int]) -> Axes:
    """Axes after others are taken out of the array; none of them may be among those."""
    return tuple(a - sum(1 for r in removed if r < a) for a in axes)
