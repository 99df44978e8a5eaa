"""Keys are used once: which was made from which, and what it was used for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from discreet.verify._domain import Key
from discreet.verify._errors import REMEDIES, PrivacyError

SECRET, KNOWN, PRIVATE = "secret", "known", "private"
"""Secret: from a key argument, so that noise made with it is fresh. Known: from a number of the program, or mixed.
Private: what is drawn from it tells of records."""
_WORST_FIRST = (PRIVATE, KNOWN)


@dataclasses.dataclass
class _Record:
    kind: str
    depth: int
    why: str
    use: tuple[str, str] | None = None
    folds: dict[Any, str] = dataclasses.field(default_factory=dict)


class KeyRing:
    """All keys of a program. A key may be split, folded, drawn from, given to a mechanism or returned: one of these, once.

    Folding numbers into one key is one use, as long as the numbers differ.
    """

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}
        self._next = 0
        self.loops: list[Any] = []

    def snapshot(self) -> dict[int, _Record]:
        """What was used up to now, for a rehearsal."""
        return {name: dataclasses.replace(r, folds=dict(r.folds)) for name, r in self._records.items()}

    def restore(self, saved: dict[int, _Record]) -> None:
        """Forget what happened since."""
        self._records = {name: dataclasses.replace(r, folds=dict(r.folds)) for name, r in saved.items()}

    def merge(self, others: list[dict[int, _Record]]) -> None:
        """After branches: used is what one of them used."""
        for other in others:
            for name, record in other.items():
                mine = self._records.setdefault(name, record)
                mine.use = mine.use or record.use
                mine.folds.update(record.folds)

    def new(self, shape: tuple[int, ...], kind: str, why: str = "") -> Key:
        """Keys that did not exist before."""
        size = int(np.prod(shape, dtype=np.int64))
        start = self._next
        self._next += size
        names = np.arange(start, start + size, dtype=np.int64).reshape(shape)
        for name in range(start, start + size):
            self._records[name] = _Record(kind, len(self.loops), why)
        return Key(names)

    def kind(self, key: Key) -> tuple[str, str]:
        """Secret only if all are, private if one is; and why."""
        records = [self._records[int(name)] for name in key.names.reshape(-1)]
        for kind in _WORST_FIRST:
            for record in records:
                if record.kind == kind:
                    return kind, record.why
        return SECRET, ""

    def spend(self, key: Key, purpose: str, line: str) -> None:
        """Use keys up. Those that are known are no secret and may be used at will.

        Raises:
            PrivacyError: one of them was used before, or will be in another turn of a loop.
        """
        names = key.names.reshape(-1)
        if len(np.unique(names)) < len(names) and self.kind(key)[0] == SECRET:
            self._refuse(purpose, line, "the same key several times in one array", line)
        for name in names:
            record = self._records[int(name)]
            if record.kind != SECRET:
                continue
            if record.use is not None:
                self._refuse(purpose, line, *record.use)
            if record.folds:
                self._refuse(purpose, line, "jax.random.fold_in", next(iter(record.folds.values())))
            if any(loop.length != 1 for loop in self.loops[record.depth :]):
                self._refuse(purpose, line, "the same, in another turn of the loop", line)
            record.use = (purpose, line)

    def depth_of(self, key: Key) -> int:
        """How many loops were around when the keys were made; the most of them."""
        return max((self._records[int(name)].depth for name in key.names.reshape(-1)), default=0)

    def spend_outside(self, key: Key, purpose: str, line: str, loop: Any) -> None:
        """Use keys up whose every turn of the loop takes another one."""
        kept, self.loops = self.loops, [x for x in self.loops if x is not loop]
        self.spend(key, purpose, line)
        self.loops = kept

    def fold(self, key: Key, const: Any, counter: tuple[Any, int, int] | None, line: str) -> Key:
        """The keys of `jax.random.fold_in`, for a known number or for a counter of the loop around."""
        kind, why = self.kind(key)
        if kind != SECRET:
            return self.new(key.names.shape, kind, why)
        for name in key.names.reshape(-1):
            record = self._records[int(name)]
            around = [loop for loop in self.loops[record.depth :] if loop.length != 1]
            if record.use is not None:
                self._refuse("jax.random.fold_in", line, *record.use)
            taken = (const, const) if const is not None else None
            if around and (counter is None or [counter[0]] != around):
                self._refuse("jax.random.fold_in", line, "the same number, in another turn of the loop", line)
            if counter is not None:
                taken = (counter[1], counter[2])
            if taken is None:
                if record.folds:
                    self._refuse("jax.random.fold_in", line, "jax.random.fold_in", next(iter(record.folds.values())))
                taken = (-(2**40), 2**40)
            for (low, high), where in record.folds.items():
                if low <= taken[1] and taken[0] <= high:
                    self._refuse(
                        "jax.random.fold_in with a number that may be the same", line, "jax.random.fold_in", where
                    )
            record.folds[taken] = line
        return self.new(key.names.shape, SECRET)

    def use_of(self, key: Key) -> tuple[str, str]:
        """What one of the keys was used for, and where; empty if for nothing."""
        records = [self._records[int(name)] for name in key.names.reshape(-1)]
        uses = [r.use or ("jax.random.fold_in", next(iter(r.folds.values()))) for r in records if r.use or r.folds]
        return uses[0] if uses else ("", "")

    def is_spent(self, key: Key) -> bool:
        """Whether one of the keys was used in any way."""
        records = [self._records[int(name)] for name in key.names.reshape(-1)]
        return any(r.use is not None or r.folds for r in records)

    def _refuse(self, purpose: str, line: str, before: str, where: str) -> None:
        raise PrivacyError(
            f"a key is used twice: for {purpose} at {line}, and for {before} at {where}. What is drawn from one key twice is "
            "the same, so it can be subtracted, and two noises are one.",
            REMEDIES["key"],
            chain=(where, line),
        )
