"""A table over several devices: each one has its rows, works on its part of a batch, and adds to one sum.

The marks of a step keep their meaning, which is about the whole table; what XLA runs for a clipped
sum is a `shard_map`. So a fit over devices is the same program to the prover and to the rest of the
step. Parameters, keys, row numbers and noise are the same on each device, and one `psum` of one
vector a step is all that devices exchange.

Each device has `rows` places, s * rows, ..., (s + 1) * rows - 1, in which its records come first;
in the others are zeros, and no batch names them. A batch names records by their row numbers, and
records draw by these, as on one device; only results' last bits differ, by the rounding of the sum
over devices.

Where neighbouring tables differ in a record more or less, **that record must move no other one to
another device**: sums of batches without it would be rounded otherwise, which amplification by
sampling takes for equal. An even cut of the table moves one record over each border. So each
record's device is drawn for itself, from the fit's key (`where`) or when the table was converted to
files: given the devices of all others, the record more is one more on one device, and nothing else
moves. That draw need not be uniform, but no record's device may follow from other records. It is
secret, or lies in files with its record: a published stream, read by row numbers, would move the
records behind one that is removed.

Where the number of records is public, and where users have laid the records themselves, the places
of rows are fixed, and a record that is replaced, or whose row holds none, moves no other.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from discreet._jax import double
from discreet.privacy import random
from discreet.privacy.gradients import SPARE

_REMEDY = 'Pass a mesh of one axis, as jax.make_mesh((jax.device_count(),), ("records",)).'


TURN = 64
"""Rows that are updated at once, the last `SPARE` of them nobody's, however many there are:
programs of other numbers of rows round otherwise, so that the number of records would show in what
each of them remembers (`gradients._sums`)."""


def in_turns(
    function: Callable[[Any, Array, list[Array]], list[Array]],
    indices: Any,
    mask: Bool[Array, "row"],
    carried: list[Array],
) -> list[Array]:
    """Apply `function(indices, mask, carried)` to the rows that the mask keeps, `TURN` at a time, and return the final carry.

    `indices` is one array of numbers, or several, of as many as there are rows.
    """
    count = jnp.max(jnp.where(mask, jnp.arange(1, len(mask) + 1, dtype=jnp.int32), 0))
    filled = TURN - SPARE
    lanes = jnp.arange(TURN, dtype=jnp.int32)

    def turn(number: Int[Array, ""], carried: list[Array]) -> list[Array]:
        at = number * filled + lanes
        inside = jnp.minimum(at, len(mask) - 1)
        rows = jax.tree.map(lambda x: x[inside], indices)
        return function(rows, mask[inside] & (at < len(mask)) & (lanes < filled), carried)

    return lax.fori_loop(0, (count + filled - 1) // filled, turn, list(carried))


@functools.cache
def _identity(sharding: NamedSharding) -> Callable[[Array], Array]:
    return jax.jit(lambda x: x, out_shardings=sharding)


@runtime_checkable
class InFiles(Protocol):
    """An array of records in files, of which each process reads the parts of its own devices (`tables.ShardedArray`).

    Attributes:
        shape: That of the whole table's array.
        dtype: As NumPy's.
        digest: A hash of its content.
        lengths: Number of records of each shard, in the order of row numbers. Each record's shard
            was drawn independently.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    digest: str
    lengths: tuple[int, ...]

    def rows_of_part(self, parts: int) -> int:
        """Rows of each of so many parts, padding included; each shard of a part has equally many."""
        ...

    def part(self, number: int, parts: int) -> np.ndarray:
        """The rows of one of so many parts, zeros behind each shard's last; refuses what is not the table any more."""
        ...


def _room(mean: float) -> int:
    """Rows that a device with so many records on average has room for: more have a probability below 2^-158.

    By Bernstein's bound for a sum of independent coins. So the program of a fit does not follow
    what was drawn.
    """
    exponent = 110.0
    return (
        math.ceil(mean + exponent / 3.0 + math.sqrt(exponent**2 / 9.0 + 2.0 * exponent * mean)) + 1
    )


def check_mesh(mesh: Any) -> None:
    """Refuse a mesh over which no records can be spread.

    Raises:
        TypeError: Not a mesh.
        ValueError: A mesh with several axes, or without a device of some process.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh is a {type(mesh).__name__}. {_REMEDY}")
    if missing := set(range(jax.process_count())) - {x.process_index for x in mesh.devices.flat}:
        raise ValueError(
            f"mesh has no device of process {min(missing)} of jax.distributed, which would release the records once more, "
            f"with noise of its own. {_REMEDY}"
        )
    if len(mesh.axis_names) != 1:
        raise ValueError(
            f"mesh has the axes {', '.join(map(str, mesh.axis_names))}, and records are spread along one. {_REMEDY}"
        )


@dataclasses.dataclass(frozen=True)
class Shards:
    """The layout of a table on the devices of a mesh of one axis.

    Attributes:
        mesh: One axis, of type Auto.
        num_records: Number of rows with a record.
        rows: Rows of one device, padding included.
        starts: Number of the first record of each of equally many parts on each device, and that of
            all records; None: each record's device is drawn (`where`).
        laid: Users placed the records on devices of several processes, so that each one's place is
            public.
    """

    mesh: Mesh
    num_records: int
    rows: int
    starts: tuple[int, ...] | None
    laid: bool = False

    @classmethod
    def of(
        cls, mesh: Any, num_records: int, leaves: Sequence[Any] = (), *, drawn: bool = False
    ) -> Shards:
        """Spread a table's records over a mesh.

        Args:
            mesh: The mesh.
            num_records: The number of records.
            leaves: Their arrays: those in files, or on devices of several processes, lie where they
                are.
            drawn: Draw the device of each other one, so that a record more moves none; else all
                have equally many, in order.

        Raises:
            TypeError, ValueError: As `check_mesh`; or files cannot be divided among its devices.
        """
        check_mesh(mesh)
        found = {(x.lengths, x.rows_of_part(mesh.size)) for x in leaves if isinstance(x, InFiles)}
        if len(found) > 1:
            raise ValueError(
                "Arrays come from folders of shards of other lengths. Pass those of one folder, all of one open_records."
            )
        laid = any(isinstance(x, jax.Array) and not x.is_fully_addressable for x in leaves)
        rows = -(-num_records // mesh.size)
        lengths: tuple[int, ...] = tuple(
            min(rows, max(0, num_records - i * rows)) for i in range(mesh.size)
        )
        if found:
            ((lengths, rows),) = found
        starts: tuple[int, ...] | None = tuple(itertools.accumulate(lengths, initial=0))
        if drawn and not found and not laid and mesh.size > 1:
            starts = None
            rows = min(num_records, _room(num_records / mesh.size))
        # An Explicit mesh would ask for a sharding in the type of every operation of the model.
        return cls(Mesh(mesh.devices, mesh.axis_names), num_records, rows, starts, laid)

    def where(self, key: PRNGKeyArray) -> list[Int[np.ndarray, " record"]]:
        """The place of each record, as one array, if they are drawn; else none: `place` and `at` find them by `starts`.

        Each record's device is drawn from a stream of its own of a fit's key, by its row number,
        whatever the other ones are. Records of a device stay in the order of their row numbers.
        """
        if self.starts is not None:
            return []
        words = jax.random.bits(
            random.subkey(key, random.Purpose.DEVICES), (self.num_records,), jnp.uint32
        )
        return [self.places((np.asarray(words) % np.uint32(self.count)).astype(np.uint16))]

    def places(self, device: Int[np.ndarray, " record"]) -> Int[np.ndarray, " record"]:
        """The place of each record, given its device."""
        lengths = np.bincount(device, minlength=self.count)
        if lengths.max() > self.rows:
            raise RuntimeError(
                "More records than there is room for were drawn for a device. Start the fit again."
            )
        order = np.argsort(device, kind="stable")
        where = np.empty(len(device), np.int32)
        gaps = self.rows * np.arange(self.count) - (np.cumsum(lengths) - lengths)
        where[order] = np.arange(len(device)) + np.repeat(gaps, lengths)
        return where

    @property
    def axis(self) -> str:
        """The mesh's axis."""
        return self.mesh.axis_names[0]

    @property
    def count(self) -> int:
        """Number of devices."""
        return self.mesh.size

    def devices(self) -> list[tuple[int, str]]:
        """Number and kind of each device, in order: a mesh's own text has neither."""
        return [(device.id, device.device_kind) for device in self.mesh.devices.flat]

    def copied(self, tree: Any) -> Any:
        """A tree of arrays with a copy of each on every device."""
        return jax.tree.map(self._copied, tree)

    def _copied(self, x: Any) -> Any:
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        if isinstance(x, Tracer) or everywhere.is_fully_addressable:
            return jax.device_put(x, everywhere)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                self._copied(jax.random.key_data(x)), impl=jax.random.key_impl(x)
            )
        # JAX would have all processes compare the value.
        parts = [jax.device_put(x, device) for _, device in self._local_devices()]
        return jax.make_array_from_single_device_arrays(jnp.shape(x), everywhere, parts)

    def _local_devices(self) -> list[tuple[int, Any]]:
        """The devices of this process, each with its number along the axis."""
        here = jax.process_index()
        return [
            (number, x)
            for number, x in enumerate(self.mesh.devices.flat)
            if x.process_index == here
        ]

    def spread(self, tree: Any) -> Any:
        """A tree of arrays of `count * rows` rows with each device's rows there."""
        along = NamedSharding(self.mesh, PartitionSpec(self.axis))

        def laid(x: Any) -> Any:
            local = not isinstance(x, Tracer) and not along.is_fully_addressable
            return self._placed(x) if local else jax.device_put(x, along)

        return jax.tree.map(laid, tree)

    def gathered(self, tree: Any) -> Any:
        """A tree of arrays that `spread` or `copied` laid, in the memory of this process."""
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        whole = [
            x if x.is_fully_replicated else _identity(everywhere)(x) for x in jax.tree.leaves(tree)
        ]
        return jax.tree.unflatten(jax.tree.structure(tree), [np.asarray(x) for x in whole])

    def place(self, leaves: Sequence[Any], where: Sequence[np.ndarray] = ()) -> list[Array]:
        """The table on its devices, with `count * rows` rows.

        Args:
            leaves: Arrays of `num_records` rows, in memory, in files, or on devices.
            where: The result of `where`.

        Raises:
            ValueError: An array lies on devices of several processes in another way than along this
                axis.
        """
        return [self._placed(x, where) for x in leaves]

    def _placed(self, leaf: Any, where: Sequence[np.ndarray] = ()) -> Array:
        sharding = NamedSharding(self.mesh, PartitionSpec(self.axis))
        rows = self.rows
        in_order = not where and len(leaf) == rows * self.count
        if isinstance(leaf, jax.Array) and in_order and sharding.is_fully_addressable:
            return self.spread(leaf)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return self._taken(leaf, sharding)
        if isinstance(leaf, jax.Array) and where:
            leaf = np.asarray(leaf)
        parts = []
        for number, device in self._local_devices():
            part = (
                leaf.part(number, self.count)
                if isinstance(leaf, InFiles)
                else self._rows_of(leaf, number, where)
            )
            parts.append(jax.device_put(part, device, may_alias=True))
        return jax.make_array_from_single_device_arrays(
            (rows * self.count, *leaf.shape[1:]), sharding, parts
        )

    def _rows_of(self, leaf: Any, number: int, where: Sequence[np.ndarray]) -> Any:
        """A device's rows of an array of the whole table; not copied if they follow each other there and fill its places."""
        first = number * self.rows
        # no place is empty, or the array has a row for each of them
        if len(leaf) == self.rows * self.count:
            return leaf[first : first + self.rows]
        if where:
            parts = [
                (0, leaf[np.flatnonzero((where[0] >= first) & (where[0] < first + self.rows))])
            ]
        else:
            assert self.starts is not None
            each = (len(self.starts) - 1) // self.count
            bounds = enumerate(
                itertools.pairwise(self.starts[number * each : (number + 1) * each + 1])
            )
            parts = [(i * (self.rows // each), leaf[start:end]) for i, (start, end) in bounds]
        rows = np.zeros((self.rows, *leaf.shape[1:]), leaf.dtype)
        for start, part in parts:
            rows[start : start + len(part)] = part
        return rows

    def parts(
        self, table: Sequence[Array], where: Sequence[np.ndarray]
    ) -> Iterator[tuple[list[Array], Bool[np.ndarray, " row"]]]:
        """What `place` laid on each device of this process, and True for the rows there that hold a record."""
        for number, device in self._local_devices():
            held = self._rows_of(np.broadcast_to(True, self.num_records), number, where)
            here = [{x.device: x.data for x in leaf.addressable_shards}[device] for leaf in table]
            yield here, held

    def _taken(self, leaf: jax.Array, sharding: NamedSharding) -> Array:
        found = {x.device: x for x in leaf.addressable_shards}
        parts = []
        for number, device in self._local_devices():
            place = found[device].index[0].indices(len(leaf)) if device in found else None
            if place != (number * self.rows, (number + 1) * self.rows, 1):
                raise ValueError(
                    f"An array of {len(leaf)} records lies on devices of several processes, but not {self.rows} records on each "
                    "device of mesh, in order. Lay it so: jax.make_array_from_process_local_data(NamedSharding(mesh, "
                    f"PartitionSpec({self.axis!r})), rows), where the number of devices must divide that of the records."
                )
            parts.append(found[device].data)
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, parts)

    def at(self, numbers: Int[Array, "capacity"], where: Sequence[Array]) -> Int[Array, "capacity"]:
        """The places of records with these row numbers."""
        if self.starts is None:
            return where[0].at[numbers].get(mode="promise_in_bounds", wrap_negative_indices=False)
        parts = len(self.starts) - 1
        step = self.rows * self.count // parts
        gaps = np.arange(parts) * step - np.asarray(self.starts[:-1])
        if not gaps[np.diff(self.starts) > 0].any():
            return numbers
        part = jnp.searchsorted(jnp.asarray(self.starts[1:], jnp.int32), numbers, side="right")
        return numbers + jnp.asarray(gaps, jnp.int32)[part]

    def part(
        self, first: Int[Array, ""], indices: Int[Array, "capacity"], mask: Bool[Array, "capacity"]
    ) -> tuple[Int[Array, "part"], Bool[Array, "part"]]:
        """The batch's records in the places `indices` that are on this device, whose first place is `first`.

        Those come first, and the mask says how many.
        """
        here = mask & (indices >= first) & (indices < first + self.rows)
        room = min(len(indices), self.rows)  # all that may be here: no part of a batch is ever cut
        before = jnp.cumsum(here, dtype=jnp.int32)
        all_places = jnp.arange(len(indices), dtype=jnp.int32)
        places = (
            jnp.zeros(room, jnp.int32)
            .at[jnp.where(here, before - 1, room)]
            .set(all_places, mode="drop")
        )
        return places, jnp.arange(room) < before[-1]

    def rows_here(
        self,
        first: Any,
        numbers: Int[Array, "capacity"],
        mask: Bool[Array, "capacity"],
        where: Sequence[Array],
    ) -> tuple[Int[Array, "part"], Int[Array, "part"], Bool[Array, "part"]]:
        """A device's part of a batch: as `part`, and in between the rows of its own arrays; where the mask is False, row 0."""
        at = self.at(numbers, where)
        places, mine = self.part(first, at, mask)
        return places, jnp.where(mine, at[places] - first, 0), mine

    def local_shapes(self, operands: Sequence[Any], tables: int) -> list[jax.ShapeDtypeStruct]:
        """Shapes of one device's part of operands, the last `tables` of which are the table's arrays."""
        shapes = [(x.shape, x.dtype) for x in map(jax.typeof, operands)]
        whole = len(shapes) - tables
        if any(shape[0] != self.rows * self.count for shape, _ in shapes[whole:]):
            raise ValueError(
                f"The table has other rows than {self.rows} for each of {self.count} devices."
            )
        cut = [((self.rows, *shape[1:]), dtype) for shape, dtype in shapes[whole:]]
        return [jax.ShapeDtypeStruct(*x) for x in (*shapes[:whole], *cut)]

    def on_each(
        self,
        function: Callable[..., Sequence[Array]],
        operands: Sequence[Any],
        tables: int,
        *,
        summed: bool,
    ) -> list[Array]:
        """What `function(first row, *operands)` gives on each device: arrays of the table, each device its own rows.

        If `summed`, their sum over the devices; the last output, a Boolean, is that of all.
        """

        def part(*operands: Any) -> list[Array]:
            outputs = function(lax.axis_index(self.axis) * self.rows, *operands)
            if not summed:
                return list(outputs)
            *sums, right = outputs
            # One vector: each all-reduce costs the same, however short it is. In float64, as the
            # sums are.
            with double():
                parts = [*sums, jnp.where(right, 0.0, 1.0)]
                flat = jnp.concatenate([x.reshape(-1) for x in parts])
                total = jnp.split(
                    lax.psum(flat, self.axis), np.cumsum([x.size for x in parts])[:-1]
                )
                *sums, wrong = (
                    x.reshape(y.shape).astype(y.dtype) for x, y in zip(total, parts, strict=True)
                )
                return [*sums, wrong == 0]

        everywhere = PartitionSpec()
        along = PartitionSpec(self.axis)
        specs = (everywhere,) * (len(operands) - tables) + (along,) * tables
        results = everywhere if summed else along
        return jax.shard_map(
            part, mesh=self.mesh, in_specs=specs, out_specs=results, check_vma=False
        )(*operands)

    def in_words(self) -> str:
        """The layout, for a statement."""
        kind = self.mesh.devices.flat[0].device_kind
        processes = len({x.process_index for x in self.mesh.devices.flat})
        where = f" of {processes} processes" if processes > 1 else ""
        return (
            f"The records lay on {self.count} devices ({kind}){where}, along the axis {self.axis!r} of a mesh. Each of them "
            "summed the clipped contributions of its own records; noise was added once, to the sum over all devices."
            + self.laid
            * " Each process brought its own rows: their number and order are public, and a record is absent if its "
            "row holds none (NaN)."
        )
