"""Keys by name: which are secret, which are used, and which are derived from which.

Two draws from one key are equal, so noise protects only if its key is secret and used for nothing
else. An array of keys is an array of names (`Key`), and the ring has a record of each name: its
kind, the loops around its creation, its use, and the numbers folded into it.

The invariant: a secret name is used once in all runs of the program. A use in a loop of a key made
outside of it counts as a use in each iteration, so it is refused; several numbers folded into one
key are one use as long as they differ; after a branch a key is used if one branch used it. Keys of
unknown origin are `KNOWN` or `PRIVATE`: they may be reused, and never make noise.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from discreet.privacy.verify._domain import Key
from discreet.privacy.verify._errors import Why

SECRET = "secret"
KNOWN = "known"
PRIVATE = "private"
"""Secret: from a key argument, so its noise is fresh. Known: from a number of the program, or
mixed. Private: draws from it depend on records."""


@dataclasses.dataclass
class _Record:
    kind: str
    depth: int
    why: str
    use: tuple[str, str] | None = None
    folds: dict[Any, str] = dataclasses.field(default_factory=dict)

    @property
    def taken(self) -> tuple[str, str] | None:
        """The purpose and place of the key's use; None if it is unused."""
        return self.use or next(
            (("jax.random.fold_in", line) for line in self.folds.values()), None
        )


@dataclasses.dataclass(eq=False)
class KeyRing:
    """All keys of a program. Each may be split, folded, drawn from, passed to a mechanism or returned: one of these, once.

    Folding numbers into one key is one use, as long as the numbers differ.
    """

    loops: list[Any] = dataclasses.field(default_factory=list)
    _records: dict[int, _Record] = dataclasses.field(default_factory=dict)
    _next: int = 0

    def snapshot(self) -> dict[int, _Record]:
        """Copy the state of all keys, so that a branch can be tried."""
        return {
            name: dataclasses.replace(r, folds=dict(r.folds)) for name, r in self._records.items()
        }

    def restore(self, saved: dict[int, _Record]) -> None:
        """Return to a snapshot."""
        self._records = saved
        self._records = self.snapshot()

    def merge(self, others: list[dict[int, _Record]]) -> None:
        """Combine branches: a key is used if one of them used it."""
        for other in others:
            for name, record in other.items():
                mine = self._records.setdefault(name, record)
                mine.use = mine.use or record.use
                mine.folds.update(record.folds)

    def new(self, shape: tuple[int, ...], kind: str, why: str = "") -> Key:
        """Create keys with new names."""
        start = self._next
        self._next = self._next + math.prod(shape)
        self._records |= {
            name: _Record(kind, len(self.loops), why) for name in range(start, self._next)
        }
        return Key(np.arange(start, self._next, dtype=np.int64).reshape(shape))

    def anew(self, key: Key) -> Key:
        """The keys of another iteration: as many of the same kind, with new names."""
        return self.new(key.names.shape, *self.kind(key))

    def shared(self, key: Key, shape: tuple[int, ...], loop: Any, purpose: str, line: str) -> Key:
        """The keys of one iteration of a loop, each of which takes its own part of an array."""
        self.spend(key, purpose, line)
        self.loops.append(loop)
        part = self.new(shape, *self.kind(key))
        self.loops.pop()
        return part

    def _of(self, key: Key) -> list[_Record]:
        return [self._records[int(name)] for name in key.names.reshape(-1)]

    def kind(self, key: Key) -> tuple[str, str]:
        """The kind of an array of keys, and why: secret only if all are, private if one is."""
        found = (
            (kind, x.why) for kind in (PRIVATE, KNOWN) for x in self._of(key) if x.kind == kind
        )
        return next(found, (SECRET, ""))

    def spend(self, key: Key, purpose: str, line: str) -> None:
        """Record the use of keys. Known keys are not secret and may be reused."""
        if len(np.unique(key.names)) < key.names.size and self.kind(key)[0] == SECRET:
            self._refuse(purpose, line, "the same key several times in one array", line)
        for record in self._of(key):
            if record.kind != SECRET:
                continue
            if record.taken is not None:
                self._refuse(purpose, line, *record.taken)
            # Made outside of a loop and used inside: used in every iteration.
            if any(loop.length != 1 for loop in self.loops[record.depth :]):
                self._refuse(purpose, line, "the same, in another iteration of the loop", line)
            record.use = (purpose, line)

    def depth_of(self, key: Key) -> int:
        """The largest number of loops around the creation of one of the keys."""
        return max((x.depth for x in self._of(key)), default=0)

    def spend_in(self, loop: Any, key: Key, purpose: str, line: str) -> None:
        """Record the use of keys in every iteration of the loop."""
        self.loops.append(loop)
        self.spend(key, purpose, line)
        self.loops.pop()

    def spend_outside(self, key: Key, purpose: str, line: str, loop: Any) -> None:
        """Record the use of keys of which every iteration of the loop takes another."""
        kept = self.loops
        self.loops = [x for x in self.loops if x is not loop]
        self.spend(key, purpose, line)
        self.loops = kept

    def fold(self, key: Key, const: Any, counter: tuple[Any, int, int] | None, line: str) -> Key:
        """The keys of `jax.random.fold_in`, for a known number or for a counter of the enclosing loop."""
        kind, why = self.kind(key)
        if kind != SECRET:
            return self.new(key.names.shape, kind, why)
        for record in self._of(key):
            # The loops since the key was made: only a counter of a single one differs in every
            # iteration.
            around = [loop for loop in self.loops[record.depth :] if loop.length != 1]
            if record.use is not None:
                self._refuse("jax.random.fold_in", line, *record.use)
            if around and (counter is None or [counter[0]] != around):
                self._refuse(
                    "jax.random.fold_in",
                    line,
                    "the same number, in another iteration of the loop",
                    line,
                )
            if counter is not None:
                taken = (counter[1], counter[2])
            elif const is not None:
                taken = (const, const)
            else:
                if record.taken is not None:
                    self._refuse("jax.random.fold_in", line, *record.taken)
                taken = (-(2**40), 2**40)
            for (low, high), where in record.folds.items():
                if low <= taken[1] and taken[0] <= high:
                    again = "jax.random.fold_in with a number that may be the same"
                    self._refuse(again, line, "jax.random.fold_in", where)
            record.folds[taken] = line
        return self.new(key.names.shape, SECRET)

    def use_of(self, key: Key) -> tuple[str, str] | None:
        """The purpose and place of the first use among the keys; None if all are unused."""
        return next((x.taken for x in self._of(key) if x.taken), None)

    def _refuse(self, purpose: str, line: str, before: str, where: str) -> None:
        raise Why.KEY.refusal(
            f"a key is used twice: for {purpose} at {line}, and for {before} at {where}. Two draws from one key are equal, so "
            "one noise can be subtracted from the other.",
            where,
            line,
        )
