"""Compare the checker's claims about a value with the numbers that the program computes.

A program is run three times: on a table, on a neighbour of it, and on the table in another order.
Then every claim made on the way is looked at, and not only the last: that rows depend on their own
record, their bounds, whether they are finite, where they are zero, what a norm is the norm of, what
a sum may change by.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discreet._jax import bind, inner_programs, is_key
from discreet.privacy.accounting import Relation
from discreet.privacy.mechanisms import CHOICE, CHOOSE, NOISE
from discreet.privacy.verify._bounds import NumberedRows, RecordSet, Table, outside
from discreet.privacy.verify._domain import Key, Origin, Private, Public
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._keyring import PRIVATE, SECRET
from discreet.privacy.verify._registry import INLINED, STRUCTURED

TABLE, NEIGHBOUR, REORDERED = 0, 1, 2
ROUNDING = 1e-4
TINY = 1e-6


@dataclasses.dataclass(frozen=True)
class World:
    """Facts common to the runs: `order[j]` is the record in row j of the reordered table."""

    relation: Relation
    batch: RecordSet
    masks: tuple[np.ndarray, ...]
    changed: int
    order: np.ndarray


@dataclasses.dataclass
class Seen:
    """One value: the primitive that made it, what is said of it, and what it is in each run."""

    maker: str
    value: Any
    kind: str = ""
    numbers: tuple[np.ndarray, ...] = ()


@dataclasses.dataclass
class Handed:
    """A mechanism's inputs in each run, and its record; `released` says which of its outputs are released."""

    items: list[Any]
    released: tuple[bool, ...]
    numbers: tuple[list[np.ndarray], ...] = ()


class Watching(Checker):
    """A checker that tells what it says of every value outside of loops and branches."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(relation)
        self.seen: list[Seen] = []
        self.handed: list[Handed] = []
        self._within = 0

    def step(self, equation, operands):
        primitive, before = equation.primitive, len(self.items)
        self._within += primitive in STRUCTURED
        outputs = super().step(equation, operands)
        self._within -= primitive in STRUCTURED
        if not self._within and primitive not in INLINED:
            self.seen += [self.entry(primitive.name, x) for x in outputs]
            if primitive in (NOISE, CHOOSE):
                self.handed.append(
                    Handed(self.items[before:], tuple(isinstance(x, Public) for x in outputs))
                )
        return outputs

    def entry(self, maker: str, value: Any) -> Seen:
        return Seen(maker, value, self.keys.kind(value)[0] if isinstance(value, Key) else "")

    def origin(self, equation, operands, what=""):
        """Lines cost time, and no claim rests on them."""
        return Origin("", what or equation.primitive.name)


def computed(closed: Any) -> Callable[..., tuple[list[Any], list[Any]]]:
    """A program that returns all of its values, in the order in which a checker sees them, and what mechanisms are given.

    Releases are zero: what they are is a coin's doing and no record's.
    """

    def run(*args):
        values: list[Any] = []
        handed: list[Any] = []

        def walk(program, operands):
            jaxpr = getattr(program, "jaxpr", program)
            known = dict(zip(jaxpr.constvars, getattr(program, "consts", ()), strict=True))
            known.update(zip(jaxpr.invars, operands, strict=True))

            def read(x):
                return x.val if hasattr(x, "val") else known[x]

            for equation in jaxpr.eqns:
                own = [read(x) for x in equation.invars]
                if equation.primitive in INLINED:
                    outputs = walk(inner_programs(equation)[0], own)
                elif equation.primitive is NOISE:
                    outputs = [jnp.zeros(x.aval.shape, x.aval.dtype) for x in equation.outvars]
                    size = equation.params["size"]
                    handed.append(own[1:] if size is None else [*own[1:], jnp.asarray(size)])
                elif equation.primitive is CHOOSE:
                    outputs = [jnp.int32(0)]
                    handed.append([own[1], jnp.asarray(1 / equation.params["epsilon"])])
                else:
                    outputs = bind(equation, own)
                if equation.primitive not in INLINED:
                    values.extend(jax.random.key_data(x) if is_key(x) else x for x in outputs)
                known.update(zip(equation.outvars, outputs, strict=True))
            return [read(x) for x in jaxpr.outvars]

        walk(closed, args)
        return values, handed

    return jax.jit(run)


def complaints(
    world: World, seen: list[Seen], handed: list[Handed], unless_made_by: tuple[str, ...] = ()
) -> Iterator[str]:
    """All that is said and is not so; of values that some makers made, only what is said of several together."""
    book = Book(world, seen)
    for number, item in enumerate(seen):
        for complaint in book.about(item) if item.maker not in unless_made_by else ():
            yield f"{number} {item.maker}: {complaint}"
    yield from book.about_groups()
    yield from book.about_keys()
    for item in handed:
        yield from book.about_release(item)


class Book:
    """The values of one program, by name."""

    def __init__(self, world: World, seen: list[Seen]) -> None:
        self.world, self.seen = world, seen
        self.factor = 2.0 if world.relation is Relation.REPLACE_ONE else 1.0
        private = [x for x in seen if isinstance(x.value, Private)]
        self.contents = {x.value.content: x for x in reversed(private)}
        self.spots = {x.value.spot: x for x in reversed(private)}
        self.symbols: dict[int, float] = {}
        for item in seen:
            scale = item.value.scale if isinstance(item.value, Public) else None
            plain = (
                scale is not None and scale.factor == 1.0 and [x[1] for x in scale.powers] == [1.0]
            )
            if plain and item.numbers[0].size:
                self.symbols.setdefault(
                    scale.powers[0][0], abs(float(item.numbers[0].reshape(-1)[0]))
                )

    def size(self, scale: Any) -> float | None:
        """A bound as a number."""
        if any(s not in self.symbols for s, _ in scale.powers):
            return None
        return abs(scale.factor) * float(np.prod([self.symbols[s] ** p for s, p in scale.powers]))

    def total(self, terms: Any) -> float | None:
        """The terms of a group as parts of one vector, if they are; otherwise they add up."""
        sizes = [self.size(t.bound) for t in terms]
        if None in sizes:
            return None
        found: dict[Any, list[tuple[Any, float]]] = {}
        for term, size in zip(terms, sizes, strict=True):
            found.setdefault((term.group, term.source), []).append(
                (term.leaves, float(size or 0.0))
            )
        alone = [
            all(not a & b for i, (a, _) in enumerate(x) for b, _ in x[:i]) for x in found.values()
        ]
        groups = [[size for _, size in x] for x in found.values()]
        return sum(
            math.hypot(*x) if apart else sum(x) for x, apart in zip(groups, alone, strict=True)
        )

    def rows(self, value: Private, numbers: np.ndarray) -> np.ndarray | None:
        """One row per record, in the order of the records; None where they are not those of the table."""
        if value.batch is None or (value.axes is None and value.folded is None):
            return None
        if value.folded is not None:
            axis, outer, inner = value.folded
            moved = np.moveaxis(numbers, axis, 0)
            numbers = np.moveaxis(moved.reshape(outer, -1, inner, *moved.shape[1:]), 1, 0)
        axes = value.axes if value.axes is not None else (0,)
        moved = numbers if axes == (0,) else np.moveaxis(numbers, axes, range(len(axes)))
        count = math.prod(moved.shape[: len(axes)])
        found = moved.reshape(count, -1) if numbers.size else None
        return found if found is not None and count == len(self.records(value)) else None

    def records(self, value: Private) -> np.ndarray:
        """The numbers of the records that rows are of."""
        batch = value.batch
        if batch is self.world.batch:
            return np.arange(len(self.world.masks[0]))
        if isinstance(batch, NumberedRows) and batch.parent is self.world.batch:
            return np.array(batch.numbers)
        return np.zeros(0, int)

    def about(self, item: Seen) -> Iterator[str]:
        value = item.value
        if isinstance(value, Public):
            yield from self.about_public(value, item.numbers)
        elif isinstance(value, Private):
            for run, numbers in enumerate(
                item.numbers if item.numbers[0].dtype.kind != "c" else ()
            ):
                yield from self.about_numbers(value, numbers.astype(np.float64), run)
            yield from self.about_rows(value, item.numbers)
            yield from self.about_sum(value, item.numbers)

    def about_public(self, value: Public, numbers: tuple[np.ndarray, ...]) -> Iterator[str]:
        first = numbers[0]
        if not all(
            np.array_equal(first, x, equal_nan=first.dtype.kind == "f") for x in numbers[:2]
        ):
            yield "public, but it depends on the records"
        if value.const is not None and not np.allclose(
            first, value.const, rtol=1e-5, atol=0, equal_nan=True
        ):
            yield "known, but as something else"
        for axis in value.uniform:
            if first.size and not np.array_equal(
                first, np.broadcast_to(first.take([0], axis), first.shape), True
            ):
                yield f"it changes along axis {axis}"
        size = None if value.scale is None else self.size(value.scale)
        if (
            size is not None
            and np.isfinite(size)
            and not np.allclose(np.abs(first), size, rtol=1e-4, atol=0)
        ):
            yield "it is another multiple"

    def about_numbers(self, value: Private, numbers: np.ndarray, run: int) -> Iterator[str]:
        known = numbers[~np.isnan(numbers)]
        if value.finite and value.axes is not None and not np.isfinite(numbers).all():
            yield "not finite"  # a sum is so in both runs or in none, and that is looked at with its bound
        if value.linf is not None and (np.abs(known) > value.linf * (1 + ROUNDING)).any():
            yield f"an element beyond {value.linf}: {np.abs(known).max()}"
        if value.low is not None and (known < value.low).any():
            yield f"an element below {value.low}"
        if value.high is not None and (known > value.high).any():
            yield f"an element above {value.high}"
        which = {"nan": np.isnan(numbers), "inf": numbers == np.inf, "-inf": numbers == -np.inf}
        if any(which[kind].any() for kind in value.lacks):
            yield "an element that should not be there"
        yield from self.about_tells(value, numbers, run)
        rows = self.rows(value, numbers)
        if rows is None:
            return
        kept = self.kept(run)[self.records(value)]
        for batch, those in ((self.world.batch, ~kept), (outside(self.world.batch), kept)):
            if any(x is batch and (rows[those] != number).any() for x, number in value.absent):
                yield "another number where there is no record, or where there is one"
            if batch in value.zero and rows[those].any():
                yield "not zero where there is no record, or where there is one"
        if value.absolute is not None and value.finite:
            largest = np.abs(rows).sum(1).max(initial=0)
            if not largest <= value.absolute * (1 + ROUNDING) + TINY:
                yield f"a row of L1 norm {largest} and not {value.absolute}"
        bound = None if value.terms is None or not value.finite else self.total(value.terms)
        if bound is not None and (
            longest := np.linalg.norm(rows, axis=1).max(initial=0)
        ) > bound * (1 + ROUNDING):
            yield f"a row of {longest} and not of {bound}"
        if value.most is not None and (true := rows.sum(1).max(initial=0)) > value.most:
            yield f"{true} elements of a record are true and not {value.most}"
        yield from self.about_finite_where(value, numbers, run)
        yield from self.about_norm(value, numbers, rows, run)

    def kept(self, run: int) -> np.ndarray:
        return self.world.masks[0][self.world.order] if run == REORDERED else self.world.masks[run]

    def about_tells(self, value: Private, numbers: np.ndarray, run: int) -> Iterator[str]:
        kind, spot = value.tells
        if kind == "never" and numbers.any():
            yield "true, and never should be"
        if kind in ("nan", "inf", "-inf") and spot in self.spots:
            theirs = _real(self.spots[spot].numbers[run])
            is_so = np.isnan(theirs) if kind == "nan" else theirs == float(kind)
            if not np.array_equal(is_so, numbers.astype(bool)):
                yield f"it should tell which elements are {kind}"

    def about_finite_where(self, value: Private, numbers: np.ndarray, run: int) -> Iterator[str]:
        for kind, name in value.finite_where:
            other = (self.spots if kind == "each" else self.contents).get(name)
            if other is None:
                continue
            theirs = np.isfinite(_real(other.numbers[run]))
            if kind == "each":
                if not theirs[numbers.astype(bool)].all():
                    yield "true where something is not finite"
                continue
            own, rows = self.rows(value, numbers), self.rows(other.value, theirs)
            if own is None or rows is None:
                continue
            true = own.all(1) if kind == "of" else own.any(1)
            if not rows[true].all():
                yield f"true ({kind}) of a record that is not finite"
        spot, content = value.number_if
        own = self.rows(value, numbers)
        if own is None:
            return
        if spot in self.spots:
            theirs = np.isfinite(_real(self.spots[spot].numbers[run]))
            if theirs.shape != numbers.shape or not np.isfinite(numbers[theirs]).all():
                yield "no number where there was one"
        if content in self.contents:
            rows = self.rows(
                self.contents[content].value, _real(self.contents[content].numbers[run])
            )
            if rows is not None and not np.isfinite(own[np.isfinite(rows).all(1)]).all():
                yield "no number where all were"

    def about_norm(
        self, value: Private, numbers: np.ndarray, own: np.ndarray, run: int
    ) -> Iterator[str]:
        norm = value.norm_of
        if norm is None or any(c not in self.contents for c in norm.contents):
            return
        parts = [
            self.rows(x.value, _real(x.numbers[run])) for x in map(self.contents.get, norm.contents)
        ]
        bound = self.size(norm.bound)
        if bound is None or any(x is None for x in parts):
            return
        n = np.linalg.norm(np.concatenate([x for x in parts if x is not None], 1), axis=1)
        usual = np.isfinite(n) & (n > 1e-10) & (n < 1e15)
        n, own, more = n[usual], own[usual], 1 + 10 * ROUNDING
        if (
            norm.finite
            and not usual.all()
            and not all(np.isfinite(x).all() for x in parts if x is not None)
        ):
            yield "a norm of numbers that are none"
        if norm.kind == "squares" and (own.sum(1) * more < n**2).any():
            yield "squares that are too small"
        if norm.kind == "norm" and (own.min(1, initial=np.inf) * bound * more < n).any():
            yield "a norm that is too small"
        if (
            norm.kind == "factor"
            and norm.safe
            and (np.abs(own).max(1, initial=0) * n > bound * more).any()
        ):
            yield "a factor that is too large"
        if norm.kind == "shares" and (
            np.abs(numbers).max(initial=0) > 1 or (own.max(1, initial=0) < 1).any()
        ):
            yield "none of a row's shares is 1, or one is above"
        decides = {"above": own == 0, "below": own != 0}.get(norm.kind)
        if decides is not None and (n[decides.any(1)] > bound * more).any():
            yield "a comparison that says the norm is small, and it is not"

    def about_rows(self, value: Private, numbers: tuple[np.ndarray, ...]) -> Iterator[str]:
        rows = [self.rows(value, x) for x in numbers]
        if not isinstance(self.world.batch, Table) or rows[0] is None or rows[1] is None:
            return
        others = self.records(value) != self.world.changed
        if not _same(rows[0][others], rows[1][others]):
            yield "a row depends on another record"
        anywhere = not value.positional and value.batch is self.world.batch and rows[2] is not None
        if anywhere and not _close(rows[0][self.world.order], rows[2]):
            yield "a row depends on its place"

    def about_sum(self, value: Private, numbers: tuple[np.ndarray, ...]) -> Iterator[str]:
        bound = None if value.terms is None or value.axes is not None else self.total(value.terms)
        if bound is None or value.batch is None or value.batch.whole is not self.world.batch:
            return
        apart = np.abs(np.float64(numbers[0]) - np.float64(numbers[1]))
        if (
            value.moves is not None
            and not apart.max(initial=0) <= self.factor * value.moves * (1 + ROUNDING) + TINY
        ):
            yield f"an element that moves by {apart.max()} and not by {self.factor * value.moves}"
        if (
            value.absolute is not None
            and not apart.sum() <= self.factor * value.absolute * (1 + ROUNDING) + TINY
        ):
            yield f"a sum that moves by {apart.sum()} in L1 and not by {self.factor * value.absolute}"
        seen = _distance(numbers)
        if not seen <= self.factor * bound * (1 + ROUNDING) + TINY:
            yield f"a sum that moves by {seen} and not by {self.factor * bound}"

    def about_groups(self) -> Iterator[str]:
        """Disjoint leaves of one group have one bound together."""
        shares: dict[tuple[int, bool], dict[frozenset[int], np.ndarray]] = {}
        for item in self.seen:
            value = item.value
            if (
                not isinstance(value, Private)
                or value.terms is None
                or len(value.terms) != 1
                or not value.finite
            ):
                continue
            (term,) = value.terms
            bound = self.size(term.bound)
            if (
                not bound
                or term.source is not self.world.batch
                or value.batch is not self.world.batch
            ):
                continue
            rows = self.rows(value, item.numbers[0].astype(np.float64))
            if value.axes is not None and rows is not None:
                share = np.linalg.norm(rows, axis=1) / bound
            elif value.axes is None:
                share = np.array([max(0.0, _distance(item.numbers) - TINY) / bound / self.factor])
            else:
                continue
            leaves = shares.setdefault((id(term.group), value.axes is None), {})
            leaves[term.leaves] = np.maximum(share, leaves.get(term.leaves, 0.0))
        for leaves in shares.values():
            apart: list[frozenset[int]] = []
            for name in sorted(leaves, key=len, reverse=True):
                if not any(name & other for other in apart):
                    apart.append(name)
            if np.sqrt(sum(leaves[x] ** 2 for x in apart)).max() > 1 + ROUNDING:
                yield "values whose joint norm is above their bound"

    def about_keys(self) -> Iterator[str]:
        """A name stands for one key, and names that are secret for different ones."""
        known: dict[int, bytes] = {}
        for item in self.seen:
            if isinstance(item.value, Key):
                names, data = (
                    item.value.names.reshape(-1),
                    [x.reshape(item.value.names.size, -1) for x in item.numbers],
                )
                for i, name in enumerate(names):
                    if known.setdefault(int(name), data[0][i].tobytes()) != data[0][i].tobytes():
                        yield f"{item.maker}: a key under the name of another"
                if item.kind != PRIVATE and not np.array_equal(data[0], data[1]):
                    yield f"{item.maker}: a key that depends on records, and is not called private"
        keys = [x for x in self.seen if isinstance(x.value, Key) and x.kind == SECRET]
        secret = [known[n] for n in {int(n) for x in keys for n in x.value.names.reshape(-1)}]
        if len(set(secret)) < len(secret):
            yield "two secret keys are one"

    def about_release(self, item: Handed) -> Iterator[str]:
        """Check that one record moves the release, in units of the noise, by no more than was recorded."""
        *leaves, size = zip(*item.numbers, strict=True)
        moved = [
            np.nan_to_num(np.abs(np.float64(a) - np.float64(b)), nan=1e30, posinf=1e30)
            for a, b, *_ in leaves
        ]
        moved = np.concatenate(
            [x.reshape(-1) * out for x, out in zip(moved, item.released, strict=True)]
        )
        moved = moved / float(np.abs(size[0])) / self.factor
        loads = sum(load for x in item.items for load in _worst(x.loads))
        if any(x.mechanism is CHOICE for x in item.items):
            # With nothing for the rounding to the grid of 2^-16.
            if (
                moved.max()
                > np.sqrt(loads) * (1 + ROUNDING) + 2.0**-15 / float(np.abs(size[0])) + TINY
            ):
                yield "choice: a record moves a score by more than was recorded"
        elif any(x.mechanism.norm == 1 for x in item.items):
            if (
                moved.sum()
                > sum(np.sqrt(sum(_worst(x.loads)) * x.size) for x in item.items) * (1 + ROUNDING)
                + TINY
            ):
                yield "laplace: a record moves what is released by more than was recorded"
        elif np.linalg.norm(moved) > np.sqrt(loads) * (1 + ROUNDING) + TINY:
            yield "gaussian: a record moves what is released by more than was recorded"


def _worst(loads: Any) -> list[float]:
    worst: dict[int, float] = {}
    for (group, _), load in loads.items():
        worst[id(group)] = max(worst.get(id(group), 0.0), load)
    return list(worst.values())


def _real(numbers: np.ndarray) -> np.ndarray:
    """As numbers that may be compared; of complex ones the sizes."""
    return (np.abs(numbers) if numbers.dtype.kind == "c" else numbers).astype(np.float64)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    if a.dtype.kind not in "fc":
        return np.array_equal(a, b)
    return np.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def _distance(numbers: tuple[np.ndarray, ...]) -> float:
    a, b = (np.float64(x) for x in numbers[:2])
    with np.errstate(invalid="ignore"):
        return float(np.linalg.norm(np.where(_equal(a, b), 0.0, a - b)))


def _equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | (np.isnan(a) & np.isnan(b))
