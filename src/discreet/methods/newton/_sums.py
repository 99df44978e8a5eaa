"""Exact sums (`query`) over a table in parts, and their releases with noise, by programs that are proved and compiled once.

A small table is one part, and one program, compiled in a hurry, sums and adds the noise. Of a
larger one each part is summed by a program without noise, on any device, by any process, in memory
or while it is read; the sums are added, exactly, and go as `before` into the same release, whose
own part is empty. Both programs have one text (`Sums.of`), and the proof of the release holds for
each record: for the part that it is in, the sum of the other parts is a constant. The program of a
release is then that of every large table, whatever its number of records.

Many releases may begin alike, as all gradients do with the map of the features. What they have in
common is then computed once (`Sums.prepare`) and kept in place of the table, by the same text as in
the program that is proved.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from discreet._jax import in_own_settings
from discreet.methods.inference import Processes, lies_in_files
from discreet.privacy import random
from discreet.privacy.accounting import Relation
from discreet.privacy.gradients import SPARE
from discreet.privacy.mechanisms import GAUSSIAN, planned_gaussian
from discreet.privacy.query import TURN, Query, in_turns, turns_for
from discreet.privacy.verify import Certificate, Given, Runner, runner_of

PART = 128
"""Turns of a part at most."""
_LITTLE = 2**22  # numbers in rows and products
_FEW = 2**14  # numbers of a release
_MOST_BYTES = 2**26  # of a part
_MOST_KEPT = 2**32  # bytes of prepared parts; beyond it they are prepared again for each release
LARGEST_SHARED = 2**16  # numbers of a release
_LEAST_TURNS = 4  # XLA compiles a loop of one otherwise
# noise: a program that is proved for one is proved again for each, and not traced again
_ANY = Given(np.float64(1.0))


def rounded_up(size: int, digits: int = 3) -> int:
    """The next multiple of 4 with at most so many binary digits before its zeros, as 4, 8, 28, 32, 40: few programs."""
    step = max(4, 2 ** ((size - 1).bit_length() - digits))
    return max(1, -(-size // step)) * step


RowShapes = tuple[tuple[tuple[int, ...], str], ...]
"""For each array of the records the shape, without their axis, and the dtype."""


def layout_of(arrays: Sequence[Any]) -> RowShapes:
    """That of arrays as they are."""
    return tuple((array.shape[1:], str(array.dtype)) for array in arrays)


class Parts:
    """A table in parts of equally many turns. Those in memory are laid out once; what is in files is read for each sum.

    Args:
        arrays: The records' arrays.
        layout: What they are converted to, and the last axes filled up to; None: they stay as they
            are.
        apart: Sum them by a program of their own.
        again: Lay parts out again for each sum, as if all were in files: only what is prepared is
            kept.
        processes: Those that share the parts; None: this one alone.
        like: Parts with as many turns each, so of the same programs; None: any number.

    Attributes:
        layout: As above.
        apart: As above.
        count: Number of parts.
        own: The numbers of those that this process sums, at least one.
        turns: Of each part.
    """

    def __init__(
        self,
        arrays: Sequence[Any],
        layout: RowShapes | None = None,
        *,
        apart: bool = False,
        again: bool = False,
        processes: Processes | None = None,
        like: Parts | None = None,
    ) -> None:
        self._arrays = list(arrays)
        self.layout = layout or layout_of(arrays)
        self._processes = processes = processes or Processes()
        self.apart = apart = apart or processes.count > 1
        turns = turns_for(len(arrays[0]))
        self.count, self.turns = 1, rounded_up(turns)
        if apart:
            row = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.layout)
            most = min(PART, max(_LEAST_TURNS, _MOST_BYTES // (TURN * row)))
            most = most if like is None else like.turns
            self.count = max(processes.count, -(-turns // most))
            # Few sizes, so few programs.
            few = min(most, rounded_up(-(-turns // self.count)))
            self.turns = few if like is None else most
        self.own = range(processes.index, self.count, processes.count)
        self._kept: dict[int, list[Array]] = {}
        self._reads = apart and (again or any(lies_in_files(array) for array in arrays))
        self._prepared: dict[int, list[Array]] = {}
        self._prepared_with = b""
        self._has_room = False

    @property
    def last_turns(self) -> int:
        """Turns of the part that a release sums itself."""
        return _LEAST_TURNS if self.apart else self.turns

    def read(self, number: int) -> list[np.ndarray]:
        """The arrays of a part and its mask."""
        records = self.turns * (TURN - SPARE)
        first = number * records
        own = [array[first : first + records] for array in self._arrays]
        return in_turns(own, self.turns, layout=self.layout)

    @property
    def last(self) -> list[Array]:
        """The part that a release sums itself: all, or nobody."""
        if not self.apart:
            return self.part(0)
        if -1 not in self._kept:
            nobody = [array[:0] for array in self._arrays]
            self._kept[-1] = jax.device_put(in_turns(nobody, _LEAST_TURNS, layout=self.layout))
        return self._kept[-1]

    def part(self, number: int) -> list[Array]:
        """The arrays of a part and its mask, for JAX."""
        if number in self._kept:
            return self._kept[number]
        found = jax.device_put(self.read(number))
        if not self._reads:
            self._kept[number] = found
        return found

    def prepared(
        self, made_with: bytes, prepare: Callable[[list[Array]], list[Array]]
    ) -> Callable[[int], list[Array]]:
        """From a part's number to what `prepare` makes of its arrays, which is kept until something else is made.

        Args:
            made_with: What it is made with.
            prepare: From a part's arrays.
        """
        if made_with != self._prepared_with:
            self._prepared = {}
            self._prepared_with = made_with
        kept = self._prepared

        def part(number: int) -> list[Array]:
            if number in kept:
                return kept[number]
            found = prepare(self.part(number))
            if len(self.own) * sum(array.nbytes for array in found) <= _MOST_KEPT:
                kept[number] = found
            return found

        return part

    def check_room(self) -> None:
        """Fail here, before anything is spent, if what is prepared of all parts has no room: once the first one is kept."""
        if self._prepared and not self._has_room:
            size = sum(array.nbytes for array in self._prepared[self.own[0]])
            jnp.zeros((len(self.own) - 1) * size // 8, np.float64).block_until_ready()
            self._has_room = True

    def load(self) -> list[Array]:
        """Lay out what is in memory, and return the first own part: what has no room fails here, before anything is spent."""
        if not self._reads:
            for number in self.own[1:]:
                self.part(number)
        return self.part(self.own[0])

    def summed(self, add: Callable[[int], Any], size: int) -> Float[np.ndarray, " size"]:
        """The sum over the parts of what `add` makes of each, some of them at once, and over the processes; exact.

        Args:
            add: From a part's number to the sum over it.
            size: Of that sum.
        """

        def one(number: int) -> np.ndarray:
            return np.asarray(add(number))

        total = np.zeros(size)
        own_cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        with Threads(own_cores if jax.default_backend() == "cpu" else 2) as threads:
            for found in threads.map(one, self.own):
                total += found
        return self._processes.total(total)


class Threads(ThreadPoolExecutor):
    """A pool in the caller's settings of JAX, which are a thread's own, and in 64 bits.

    After an error, as Ctrl-C, tasks that wait are dropped. Where none may start any more, the
    caller does them: a thread may live longer than the program's main thread, which ends all pools.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As there."""
        device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]

        @in_own_settings
        def task() -> Any:
            with jax.enable_x64(True), jax.default_device(device):
                return fn(*args, **kwargs)

        try:
            # In the caller's context: which processes make the release, is of it.
            return super().submit(copy_context().run, task)
        except RuntimeError:
            done: Future[Any] = Future()
            done.set_result(task())
            return done

    def __exit__(self, *_: object) -> None:
        """As there."""
        self.shutdown(cancel_futures=True)


@dataclasses.dataclass(frozen=True)
class Sums(ABC):
    """The sums over records of one layout that one program can release; programs are kept by it.

    Attributes:
        layout: As in `Parts`.
        relation: The neighbouring relation.
        reproducible: The key of the noise is from a seed.
    """

    layout: RowShapes
    relation: Relation
    reproducible: bool

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers a release has: as many as the largest sum."""

    @property
    @abstractmethod
    def nowhere(self) -> Any:
        """Arrays of what rows are computed with, of the shapes that the program takes."""

    def __call__(
        self, noise: Any, which: Any, public: Any, before: Array, *arrays: Array
    ) -> tuple[Any, Array]:
        """The noise that a release is given, and the exact sum over all parts, of those `before` and of this one."""
        return noise, before + self.of(which, public, arrays)

    @abstractmethod
    def of(self, which: Any, public: Any, arrays: Sequence[Array]) -> Float[Array, " size"]:
        """The exact sum with this number over a part, filled up with zeros. One record changes it by at most 1."""

    def is_prepared(self, which: int) -> bool:
        """True if the sum with this number begins as others do, with `prepare`."""
        del which
        return False

    def prepared_with(self, public: Any) -> Float[np.ndarray, "..."]:
        """What `prepare` takes of `public`; here nothing."""
        del public
        return np.zeros(0)

    def prepare(self, made_with: Array, arrays: Sequence[Array]) -> list[Array]:
        """What sums that begin alike have in common, of each record by itself; the last array is the mask. Here the arrays."""
        del made_with
        return list(arrays)

    def of_prepared(
        self, which: Any, public: Any, arrays: Sequence[Array]
    ) -> Float[Array, " size"]:
        """The sum with this number, to the bit, over what `prepare` made of a part."""
        return self.of(which, public, arrays)

    def are_little(self, num_records: int) -> bool:
        """True if these sums take less time than to compile a program that makes them fast.

        Args:
            num_records: Public: another program might round a row to the next step of the grid.
        """
        return num_records * self.size <= _LITTLE

    def filled(self, public: Any) -> Any:
        """What rows are computed with, filled up to the program's shapes."""
        return public

    @abstractmethod
    def cut(self, which: int, found: Float[np.ndarray, " size"], public: Any) -> np.ndarray:
        """The sum with this number without what it was filled up with; `public` as it was before `filled`."""


def _shapes(sums: Sums, turns: int) -> list[jax.ShapeDtypeStruct]:
    """Those of a part's arrays and its mask."""
    kinds = [*sums.layout, ((), "bool")]
    return [jax.ShapeDtypeStruct((turns * TURN, *shape), dtype) for shape, dtype in kinds]


def _computed_with(sums: Sums) -> tuple[Any, Any]:
    """Shapes of the number of a sum and of what its rows are computed with."""
    public = jax.tree.map(
        lambda value: jax.ShapeDtypeStruct(np.shape(value), np.float64), sums.nowhere
    )
    return jax.ShapeDtypeStruct((), np.int32), public


@dataclasses.dataclass(frozen=True)
class _GivenNoise:
    """Gaussian noise of the standard deviation that is an argument of the program, in units of the bound on one record.

    Attributes:
        most: The largest.
    """

    most: float

    def event(self) -> None:
        """None: it follows from the noise that is given."""

    def __call__(self, key: PRNGKeyArray, total: tuple[Any, Array]) -> Any:
        noise, exact = total
        return planned_gaussian(key, exact, noise, self.most)


@functools.lru_cache(maxsize=64)
def _adder(sums: Sums, turns: int) -> Runner:
    """The program that sums a part."""
    return runner_of(
        lambda which, public, *arrays: sums.of(which, public, arrays),
        *_computed_with(sums),
        *_shapes(sums, turns),
    )


@functools.lru_cache(maxsize=64)
def _preparer(sums: Sums, turns: int) -> Runner:
    """The program that prepares a part."""
    return runner_of(
        lambda made_with, *arrays: sums.prepare(made_with, arrays), *_to_prepare(sums, turns)
    )


def _to_prepare(sums: Sums, turns: int) -> list[jax.ShapeDtypeStruct]:
    """Shapes of what `prepare` takes."""
    made_with = jax.ShapeDtypeStruct(np.shape(sums.prepared_with(sums.nowhere)), np.float64)
    return [made_with, *_shapes(sums, turns)]


@functools.lru_cache(maxsize=64)
def _adder_of_prepared(sums: Sums, turns: int) -> Runner:
    """The program that sums a prepared part."""
    made_with, *arrays = _to_prepare(sums, turns)
    made = jax.eval_shape(sums.prepare, made_with, arrays)
    return runner_of(
        lambda which, public, *arrays: sums.of_prepared(which, public, arrays),
        *_computed_with(sums),
        *made,
    )


@dataclasses.dataclass(frozen=True)
class Program:
    """A release of one sum with some noise, proved for tables of one layout.

    Noise takes longer to compile than sums. So all sums share a program, and the noise on what a
    smaller one is filled up with is dropped.

    Attributes:
        sums: The sums that the program can release.
        which: The number of this one.
        noise: Its standard deviation, in units of the bound on one record.
        certificate: Of the program.
    """

    sums: Sums
    which: int
    noise: float
    certificate: Certificate

    def _arguments(
        self, key: PRNGKeyArray, public: Any, before: np.ndarray, parts: Parts
    ) -> tuple[Any, ...]:
        return key, np.float64(self.noise), np.int32(self.which), public, before, *parts.last

    def _add(self, public: Any, parts: Parts) -> Callable[[int], Array]:
        """From a part's number to its sum. Rows have the same bits each time, on a GPU, too: they are on a grid."""
        prepared = self.sums.is_prepared(self.which)
        adder = (_adder_of_prepared if prepared else _adder)(self.sums, parts.turns)
        with_public = jax.device_put([np.int32(self.which), *jax.tree.leaves(public)])

        def run(runner: Runner, leaves: list[Any]) -> list[Array]:
            return runner.of(leaves, repeats=True)(*leaves)

        part = parts.part
        if prepared:
            made_with = self.sums.prepared_with(public)
            preparer = _preparer(self.sums, parts.turns)
            part = parts.prepared(
                made_with.tobytes(), lambda arrays: run(preparer, [made_with, *arrays])
            )
        return lambda number: run(adder, [*with_public, *part(number)])[0]

    def compile(self, key: PRNGKeyArray, public: Any, parts: Parts) -> None:
        """Compile it for these arguments, and load them."""
        public = jax.tree.map(np.float64, self.sums.filled(public))
        parts.load()
        if parts.apart:
            self._add(public, parts)(parts.own[0])
            parts.check_room()
        self.certificate.compile(*self._arguments(key, public, np.zeros(self.sums.size), parts))

    def __call__(self, key: PRNGKeyArray, public: Any, parts: Parts) -> np.ndarray:
        """Make the release."""
        own = public
        public = jax.tree.map(np.float64, self.sums.filled(public))
        before = np.zeros(self.sums.size)
        if parts.apart:
            before = parts.summed(self._add(public, parts), self.sums.size)
        found = np.asarray(
            self.certificate(*self._arguments(key, public, before, parts)), np.float64
        )
        if not np.isfinite(found).all():
            raise FloatingPointError("a release is not finite")
        return self.sums.cut(self.which, found, own)


@functools.lru_cache(maxsize=512)
def proved(sums: Sums, which: int, noise: float, turns: int) -> Program:
    """A release, proved for this noise.

    Args:
        sums: As in `Program`, as are the next two.
        which: As there.
        noise: As there.
        turns: `Parts.last_turns`.

    Raises:
        PrivacyError: There is no proof.
    """
    # Compiled once for all sums, and for all noises up to `most`.
    most = 1.0 if noise <= GAUSSIAN.most_multiplier(sums.size) else noise
    query = Query(
        sums, _GivenNoise(most), sums.relation, records=tuple(range(5, 6 + len(sums.layout)))
    )
    key = random.key(0 if sums.reproducible else None)
    before = jax.ShapeDtypeStruct((sums.size,), np.float64)
    arguments = *_computed_with(sums), before, *_shapes(sums, turns)
    found = query.certificate(key, _ANY, *arguments).given(
        key, Given(np.float64(noise)), *arguments
    )
    found.check(GAUSSIAN.event(noise))
    return Program(sums, which, noise, found.repeating(quickly=sums.size <= _FEW))
