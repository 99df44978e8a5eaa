"""Operands of every kind that a rule may meet: what is said of each, and numbers that come to the edge of that."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import discreet as dp
from discreet.privacy.accounting import Relation
from discreet.privacy.verify._bounds import (
    Group,
    RecordSet,
    Sample,
    Scale,
    Table,
    Term,
    new_symbol,
    outside,
)
from discreet.privacy.verify._control import captured
from discreet.privacy.verify._domain import Origin, Private, Public, constant
from discreet.privacy.verify._keyring import SECRET
from discreet.privacy.verify.recognize._facts import Norm

from .claims import Book, Handed, Seen, Watching, World, complaints, computed

N, D = 8, 3
EXTREMES = (0.0, -0.0, 1e-20, 1e4, -1e4, 3e38, -3e38, np.nan, np.inf, -np.inf)
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
WORLDS = {
    "add": (ADD, "table"),
    "replace": (REPLACE, "table"),
    "sample": (ADD, "poisson"),
    "fixed sample": (REPLACE, "fixed"),
}

CONSTANTS = {
    "zero": np.float32(0.0),
    "one": np.float32(1.0),
    "two": np.float32(-2.0),
    "line": np.array([0.5, -1.0, 2.0], np.float32),
    "places": np.linspace(-1.0, 2.0, N * D, dtype=np.float32).reshape(N, D),
    "numbers": np.arange(D, dtype=np.int32),
    "mask of places": np.arange(N)[:, None] % 2 == 0,
}
"""Public and known while tracing."""

ROWS = (
    "raw",
    "finite",
    "limited",
    "limited or NaN",
    "below",
    "clipped",
    "other",
    "masked",
    "placed",
)
"""One row of D numbers for each record. "clipped" and "other" were clipped together, to 1; "masked"
to 2, and is zero without a record; "raw masked" holds anything where there is one."""
NUMBERS = ("single", "norm", "squares", "factor")
"""One number for each record; the last three belong to "finite"."""
TRUTHS = ("truth", "guard", "whole guard", "near", "kept")
WHOLE = ("whole", "few")
SUMS = ("sum", "other sum", "small", "unknown")
"""What depends on all records: "sum" and "other sum" are by one record moved by 1 together."""
TRACED = ("scalar", "vector", "table of numbers")
FLOATS = (*ROWS, "raw masked", *SUMS)


def direction(r: np.random.Generator, size: int) -> np.ndarray:
    """A vector of norm 1, often one at which bounds are reached."""
    found = [r.normal(size=size), np.eye(size)[r.integers(size)], np.ones(size)][r.integers(3)]
    return found / np.linalg.norm(found) * r.choice([-1, 1])


def wild(r: np.random.Generator, size: int, extremes: Any = EXTREMES) -> np.ndarray:
    found = r.normal(size=size) * 10.0 ** r.integers(-2, 3)
    if r.random() < 0.6:
        found[r.integers(size)] = r.choice(extremes)
    return found


def record(r: np.random.Generator) -> dict[str, np.ndarray]:
    """One record's part in all operands."""
    joint = direction(r, 2 * D)
    if r.random() < 0.5:
        joint = np.roll(np.concatenate([direction(r, D), np.zeros(D)]), r.choice([0, D]))
    finite = wild(r, D, EXTREMES[:7])
    limited = r.choice([-0.5, 0.5, 0.1], size=D)
    hidden = np.where(r.random(D) < 0.2, np.nan, r.choice([-0.5, 0.5, 0.1], size=D))
    raw = wild(r, D)
    with np.errstate(over="ignore"):
        norm = np.linalg.norm(finite.astype(np.float32).astype(np.float64))
        size = np.float32(max(norm * r.choice([1.0, 1.01, 1.5]) * (1 + 1e-6), 1e-11))
    return {
        "raw": raw,
        "finite": finite,
        "limited": limited,
        "limited or NaN": hidden,
        "below": np.where(raw > 0.3, 0.3, raw),
        "clipped": joint[:D],
        "other": joint[D:],
        "masked": 2.0 * direction(r, D),
        "raw masked": wild(r, D),
        "placed": r.normal(size=D),
        "single": wild(r, 1),
        "norm": np.array([size]),
        "squares": np.array([min(float(size) ** 2, 3e38)]),
        "factor": np.array([min(1.0, 0.999999 / float(size))]),
        "truth": r.random(D) < 0.5,
        "guard": ~np.isnan(hidden) & (r.random(D) < 0.9),
        "whole guard": np.array([np.isfinite(raw).all() and r.random() < 0.9]),
        "near": np.array([norm <= 1.0]),
        "kept": np.ones(D, bool),
        "whole": r.choice([0, 1, -1, 2, 1 << 30, -(1 << 31)], size=D),
        "few": r.choice([-2, -1, 0, 1, 2], size=D),
    }


ZERO = ("masked", "raw masked", "truth", "few")
"""Exactly zero where there is no record. In a sample all is, but the norm, which is never zero."""
OPPOSITE = ("clipped", "other", "masked", "limited", "few")
TYPES: dict[str, Any] = {**dict.fromkeys(TRUTHS, bool), **dict.fromkeys(WHOLE, np.int32)}


def tables(
    r: np.random.Generator, relation: Relation, kind: str
) -> tuple[list[dict[str, np.ndarray]], list, int, Any]:
    """The numbers of three runs, their masks, which record differs, and the order of the third."""
    records, mask = [record(r) for _ in range(N)], r.random(N) < 0.75
    i, order = int(r.integers(N)), r.permutation(N)
    other, kept = list(records), mask.copy()
    other[i] = record(r)
    if r.random() < 0.6:
        other[i] |= {name: -records[i][name] for name in OPPOSITE}
    mask[i], kept[i] = True, relation is REPLACE
    if kind == "fixed":
        mask[:] = kept[:] = True
    if kind != "table":  # which row a record gets means nothing; rows without a record are zero
        places = r.permutation(N)
        other, kept = [other[j] for j in places], kept[places]
    runs, marks = [], [mask, kept, mask[order]]
    for rows, real in zip((records, other, [records[j] for j in order]), marks, strict=True):
        held = {
            name: np.stack([x[name] for x in rows]).astype(TYPES.get(name, np.float32))
            for name in record(r)
        }
        for name in set(held) - {"norm"} if kind == "poisson" else ZERO:
            held[name][~real] = 0
        held["placed"] += np.arange(N, dtype=np.float32)[:, None]
        held["kept"] = np.repeat(real[:, None], D, axis=1)
        runs.append(held)
    base = r.normal(size=(2, D))
    for held in runs:
        held["sum"], held["other sum"] = base
    step = (
        direction(r, 2 * D)
        if r.random() < 0.5
        else np.roll(np.concatenate([direction(r, D), np.zeros(D)]), r.choice([0, D]))
    )
    step = step * (2.0 if relation is REPLACE else 1.0)
    runs[1]["sum"], runs[1]["other sum"] = (
        runs[1]["sum"] + step[:D],
        runs[1]["other sum"] + step[D:],
    )
    for held in runs:
        held["small"] = r.choice([-0.5, 0.5], size=D)
        held["unknown"] = wild(r, D)
    public = {
        "scalar": r.choice([-3.0, 0.1, 2.0]),
        "vector": wild(r, D),
        "table of numbers": r.normal(size=(N, D)),
    }
    for held in runs:
        held |= public
        held |= CONSTANTS
    runs[2] |= {name: runs[0][name] for name in (*SUMS,)}
    return runs, marks, i, order


def described(checker: Watching, batch: RecordSet) -> dict[str, Any]:
    """Return the abstract value of each operand."""
    origin, clipping, adding = Origin("", "an operand"), Group(), Group()
    sampled = (
        frozenset([batch])
        if isinstance(batch, Sample) and not batch.sampling.constant_size
        else frozenset()
    )
    zero = sampled | {batch.table}

    def row(**what: Any) -> Private:
        return Private(batch, (0,), origin, **{"zero": sampled, **what})

    def term(group: Group, leaf: int, bound: float = 1.0) -> tuple[Term, ...]:
        return (Term(group, frozenset([leaf]), Scale(bound), batch),)

    def total(leaf: int) -> Private:
        return Private(batch, None, origin, terms=term(adding, leaf), finite=True, additive=True)

    half = {"linf": 0.5, "low": -0.5, "high": 0.5}
    raw, finite, hidden = row(), row(finite=True), row(**half)
    own = frozenset([finite.content])
    symbol = new_symbol()
    return {
        "raw": raw,
        "finite": finite,
        "limited": row(**half, finite=True),
        "limited or NaN": hidden,
        "below": row(high=0.3 + 1e-6),
        "clipped": row(terms=term(clipping, 0), finite=True),
        "other": row(terms=term(clipping, 1), finite=True),
        "masked": row(terms=term(Group(), 0, 2.0), finite=True, zero=zero),
        "raw masked": row(zero=zero),
        "placed": row(positional=True, zero=frozenset()),
        "single": row(),
        "norm": row(zero=frozenset(), norm_of=Norm("norm", own, size=D, safe=True, finite=True)),
        "squares": row(norm_of=Norm("squares", own, size=D, finite=True)),
        "factor": row(norm_of=Norm("factor", own, size=D, safe=True, finite=True), finite=True),
        "truth": row(zero=zero, linf=1.0, finite=True),
        "guard": row(finite_where=frozenset({("each", hidden.spot)}), linf=1.0, finite=True),
        "whole guard": row(finite_where=frozenset({("all", raw.content)}), linf=1.0, finite=True),
        "near": row(norm_of=Norm("below", own, size=D, finite=True), linf=1.0, finite=True),
        "kept": row(zero=zero, absent=frozenset([(outside(batch), 1)]), linf=1.0, finite=True),
        "whole": row(finite=True),
        "few": row(finite=True, linf=2.0, zero=zero),
        "sum": total(0),
        "other sum": total(1),
        "small": Private(batch, None, origin, linf=0.5, finite=True),
        "unknown": Private(batch, None, origin),
        "scalar": Public(scale=Scale(1.0, ((symbol, 1.0),))),
        "vector": Public(),
        "table of numbers": Public(),
        **{name: constant(value) for name, value in CONSTANTS.items()},
    }


@functools.lru_cache(maxsize=4096)
def kinds() -> dict[str, Any]:
    """Shapes and types of the operands."""
    (held, *_), *_ = tables(np.random.default_rng(0), ADD, "table")
    floats = {
        name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in held.items()
    }
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in floats.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A program of some of the operands, and of a key where it wants one; it returns what it likes."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    keyed: bool = False
    worlds: tuple[str, ...] = tuple(WORLDS)

    @functools.cached_property
    def program(self) -> Any:
        keys = [jax.eval_shape(lambda: jax.random.key(0))] if self.keyed else []
        return jax.make_jaxpr(self.function)(*keys, *(kinds()[name] for name in self.names))

    @functools.cached_property
    def run(self) -> Any:
        return computed(self.program)


def say(case: Case, world: str) -> tuple[Watching, World, list[Seen]]:
    """Return the checker's claims about a program."""
    relation, kind = WORLDS[world]
    table = Table(masked=True)
    samplers = {"poisson": dp.PoissonSampling(0.5), "fixed": dp.FixedSizeSampling(N)}
    sampling = samplers.get(kind)
    batch = table if sampling is None else Sample(table, sampling=sampling, num_records=2 * N)
    checker = Watching(relation)
    values = described(checker, batch)
    keys = [checker.keys.new((), SECRET)] if case.keyed else []
    operands = [checker.entry("operand", x) for x in [*keys, *values.values()]]
    consts = [captured(checker, x) for x in case.program.consts]
    checker.walk(case.program.jaxpr, consts, [*keys, *(values[name] for name in case.names)])
    return checker, World(relation, batch, (), 0, np.arange(0)), operands


def _readable(x: Any) -> np.ndarray:
    """NumPy does not take bfloat16 for a float."""
    return np.asarray(x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x)


@functools.lru_cache
def drawn(
    world: str, tries: int, seed: int
) -> list[tuple[list[dict[str, np.ndarray]], tuple[np.ndarray, ...], int, Any]]:
    """The tables of several trials, as arrays of the operands' types; they are the same for every program."""
    r = np.random.default_rng(seed)
    found = []
    for _ in range(tries):
        runs, marks, changed, order = tables(r, *WORLDS[world])
        arrays = [
            {name: np.asarray(held[name], x.dtype) for name, x in kinds().items()} for held in runs
        ]
        found.append((arrays, tuple(marks), changed, order))
    return found


def trials(
    case: Case, world: str, tries: int, seed: int = 0
) -> Iterator[tuple[World, list[Seen], list[Handed]]]:
    """Return the claims about operands and program, with the numbers of several tables and their neighbours."""
    checker, empty, operands = say(case, world)
    for number, (runs, masks, changed, order) in enumerate(drawn(world, tries, seed)):
        here = dataclasses.replace(empty, masks=masks, changed=changed, order=order)
        keys = [jax.random.key(number)] if case.keyed else []
        found = []
        for held in runs:
            values, handed = case.run(*keys, *(held[name] for name in case.names))
            first = [np.asarray(jax.random.key_data(k)) for k in keys] + [*held.values()]
            found.append(
                ([*first, *map(_readable, values)], [list(map(np.asarray, x)) for x in handed])
            )
        seen = [dataclasses.replace(x) for x in [*operands, *checker.seen]]
        for item, numbers in zip(seen, zip(*(x[0] for x in found), strict=True), strict=True):
            item.numbers = numbers
        mechanisms = [Handed(x.items, x.released) for x in checker.handed]
        for i, item in enumerate(mechanisms):
            item.numbers = tuple(x[1][i] for x in found)
        yield here, seen, mechanisms


def _stronger(value: Private, world: World) -> dict[str, Private | None]:
    """Yield the claims of a rule that claims too much: each claim strengthened, unless it is the strongest already."""
    terms = value.terms and tuple(dataclasses.replace(t, bound=t.bound * 0.5) for t in value.terms)
    rows, batch = value.axes is not None, world.batch
    if value.batch is None or value.batch.whole is not batch:
        return {}
    return {
        "terms": dataclasses.replace(value, terms=terms)
        if terms and (value.finite or not rows)
        else None,
        "linf": dataclasses.replace(value, linf=0.5 * value.linf) if value.linf else None,
        "moves": dataclasses.replace(value, moves=0.5 * value.moves)
        if value.moves and not rows
        else None,
        "absolute": dataclasses.replace(value, absolute=0.5 * value.absolute)
        if value.absolute and (value.finite or not rows)
        else None,
        "low": dataclasses.replace(value, low=value.low + 0.1) if value.low is not None else None,
        "high": dataclasses.replace(value, high=value.high - 0.1)
        if value.high is not None
        else None,
        "finite": dataclasses.replace(value, finite=True) if rows and not value.finite else None,
        "zero": dataclasses.replace(value, zero=frozenset([batch]))
        if rows and batch not in value.zero
        else None,
        "place": dataclasses.replace(value, positional=False)
        if value.positional and rows and isinstance(batch, Table)
        else None,
    }


def held_against_numbers(
    cases: Sequence[Case], maker: str, tries: int, worlds: Sequence[str], seed: int = 0
) -> tuple[list[str], set[str]]:
    """Return the false claims about programs, and the claims of a rule that no number shows to be tight."""
    faults: list[str] = []
    possible: set[str] = set()
    caught: set[str] = set()
    # Operands are the same for all rules (`test_operands_are_what_is_said`); every program of a
    # pair broadcasts them.
    others = tuple({"operand", "broadcast_in_dim"} - {maker})
    for case in cases:
        for world in [x for x in case.worlds if x in worlds]:
            for here, seen, handed in trials(
                case, world, tries if WORLDS[world][1] == "table" else 1, seed
            ):
                faults += [f"{world}: {x}" for x in complaints(here, seen, handed, others)]
                book = Book(here, seen)
                for item in seen:
                    if (
                        item.maker != maker
                        or not isinstance(item.value, Private)
                        or item.numbers[0].dtype.kind == "c"
                    ):
                        continue
                    for name, value in _stronger(item.value, here).items():
                        if value is None or name in caught:
                            continue
                        possible.add(name)
                        if any(True for _ in book.about(dataclasses.replace(item, value=value))):
                            caught.add(name)
    return faults, possible - caught
