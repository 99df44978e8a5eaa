"""A table over several devices: each one has its rows, works on its part of a batch, and adds to one sum.

The marks of a step keep their meaning, which is about the whole table; what XLA runs for a clipped sum is a `shard_map`. So a
fit over devices is the same program to the prover and to the rest of the step. Parameters, keys, row numbers and noise are the
same on each device, and one `psum` of one vector a step is all that devices exchange.

Device s has the rows s * rows, ..., (s + 1) * rows - 1. So a row keeps its number, and rows without a record are the last ones:
they are made of zeros, and no batch names them. Row numbers and random bits are those of one device. Results differ by the
rounding of the sum over devices alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int

from discreet._jax import double
from discreet.gradients import SPARE

_REMEDY = 'Pass a mesh of one axis, as jax.make_mesh((jax.device_count(),), ("records",)).'


TURN = 64
"""Rows that are updated at once, the last `SPARE` of them nobody's, however many there are: programs of other numbers of rows
round otherwise, so that the number of records would show in what each of them remembers (`gradients._contract`)."""


def in_turns(
    function: Callable[[Array, Array, list[Array]], list[Array]],
    indices: Int[Array, "row"],
    mask: Bool[Array, "row"],
    carried: list[Array],
) -> list[Array]:
    """What `function(row numbers, mask, carried)` leaves of arrays, for the rows that the mask keeps, `TURN` at a time."""
    count, filled = jnp.max(jnp.where(mask, jnp.arange(1, len(mask) + 1, dtype=jnp.int32), 0)), TURN - SPARE
    lanes = jnp.arange(TURN, dtype=jnp.int32)

    def turn(number: Int[Array, ""], carried: list[Array]) -> list[Array]:
        at = number * filled + lanes
        inside = jnp.minimum(at, len(mask) - 1)
        return function(indices[inside], mask[inside] & (at < len(mask)) & (lanes < filled), carried)

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
        digest: What tells its content from others'.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    digest: str

    def rows_of_part(self, parts: int) -> int:
        """Rows of each of so many parts, padding included."""
        ...

    def part(self, number: int, parts: int) -> np.ndarray:
        """The rows of one of so many parts, and zeros behind the last record; refuses what is not the table any more."""
        ...


@dataclasses.dataclass(frozen=True)
class Shards:
    """How a table lies on the devices of a mesh of one axis.

    Attributes:
        mesh: One axis, of type Auto.
        num_records: Rows that hold a record.
        rows: Rows of one device, padding included.
    """

    mesh: Mesh
    num_records: int
    rows: int

    @classmethod
    def of(cls, mesh: Any, num_records: int, leaves: Sequence[Any] = ()) -> Shards:
        """Spread so many records over a mesh: evenly, or as arrays in files are cut.

        Raises:
            TypeError: It is no mesh.
            ValueError: It has several axes, or leaves out a process; or files cannot be shared out among its devices.
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
        rows = {x.rows_of_part(mesh.size) for x in leaves if isinstance(x, InFiles)} or {-(-num_records // mesh.size)}
        if len(rows) > 1:
            raise ValueError(
                "Arrays come from folders of shards of other lengths. Pass those of one folder, all of one open_records."
            )
        # An Explicit mesh would ask for a sharding in the type of every operation of the model.
        return cls(Mesh(mesh.devices, mesh.axis_names), num_records, rows.pop())

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
            return jax.random.wrap_key_data(self._copied(jax.random.key_data(x)), impl=jax.random.key_impl(x))
        # JAX would have all processes compare the value.
        parts = [jax.device_put(x, device) for _, device in self._local_devices()]
        return jax.make_array_from_single_device_arrays(jnp.shape(x), everywhere, parts)

    def _local_devices(self) -> list[tuple[int, Any]]:
        """The devices of this process, each with its number along the axis."""
        here = jax.process_index()
        return [(number, x) for number, x in enumerate(self.mesh.devices.flat) if x.process_index == here]

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
        whole = [x if x.is_fully_replicated else _identity(everywhere)(x) for x in jax.tree.leaves(tree)]
        return jax.tree.unflatten(jax.tree.structure(tree), [np.asarray(x) for x in whole])

    def place(self, leaves: Sequence[Any]) -> list[Array]:
        """The table on its devices, with `count * rows` rows.

        Args:
            leaves: Arrays of `num_records` rows, in memory, in files, or on devices.

        Raises:
            ValueError: An array lies on devices of several processes in another way than along this axis.
        """
        return [self._placed(x) for x in leaves]

    def _placed(self, leaf: Any) -> Array:
        sharding, rows = NamedSharding(self.mesh, PartitionSpec(self.axis)), self.rows
        if isinstance(leaf, jax.Array) and len(leaf) == rows * self.count and sharding.is_fully_addressable:
            return self.spread(leaf)
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return self._taken(leaf, sharding)
        parts = []
        for number, device in self._local_devices():
            part = (
                leaf.part(number, self.count)
                if isinstance(leaf, InFiles)
                else leaf[number * rows : (number + 1) * rows]
            )
            if missing := rows - len(part):
                part = np.concatenate([np.asarray(part), np.zeros((missing, *leaf.shape[1:]), leaf.dtype)])
            parts.append(jax.device_put(part, device, may_alias=True))
        return jax.make_array_from_single_device_arrays((rows * self.count, *leaf.shape[1:]), sharding, parts)

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

    def part(
        self, first: Int[Array, ""], indices: Int[Array, "capacity"], mask: Bool[Array, "capacity"]
    ) -> tuple[Int[Array, "part"], Bool[Array, "part"]]:
        """Which places of a batch are this device's, whose first row is `first`; those come first, and the mask says how many."""
        here = mask & (indices >= first) & (indices < first + self.rows)
        room = min(len(indices), self.rows)  # all that may be here: no part of a batch is ever cut
        before = jnp.cumsum(here, dtype=jnp.int32)
        all_places = jnp.arange(len(indices), dtype=jnp.int32)
        places = jnp.zeros(room, jnp.int32).at[jnp.where(here, before - 1, room)].set(all_places, mode="drop")
        return places, jnp.arange(room) < before[-1]

    def in_turns(
        self,
        function: Callable[[Array, Array, list[Array]], list[Array]],
        first: Any,
        indices: Int[Array, "capacity"],
        mask: Bool[Array, "capacity"],
        carried: list[Array],
    ) -> list[Array]:
        """What `function(row numbers, mask, carried)` leaves of arrays, for a device's part of a batch, some rows at a time."""
        places, mine = self.part(first, indices, mask)
        return in_turns(function, jnp.where(mine, indices[places], first), mine, carried)

    def local_shapes(self, operands: Sequence[Any], tables: int) -> list[jax.ShapeDtypeStruct]:
        """What one device sees of operands, the last `tables` of which are the table's arrays."""
        shapes = [(x.shape, x.dtype) for x in map(jax.typeof, operands)]
        whole = len(shapes) - tables
        if any(shape[0] != self.rows * self.count for shape, _ in shapes[whole:]):
            raise ValueError(f"The table has other rows than {self.rows} for each of {self.count} devices.")
        cut = [((self.rows, *shape[1:]), dtype) for shape, dtype in shapes[whole:]]
        return [jax.ShapeDtypeStruct(*x) for x in (*shapes[:whole], *cut)]

    def summed(self, function: Callable[..., Sequence[Array]], operands: Sequence[Any], tables: int) -> list[Array]:
        """Sum over devices what `function(first row, *operands)` gives on each; the last output, a Boolean, is that of all."""

        def part(first: Array, *operands: Any) -> list[Array]:
            *sums, right = function(first, *operands)
            # One vector: each all-reduce costs the same, however short it is. In float64, as the sums are.
            with double():
                parts = [*sums, jnp.where(right, 0.0, 1.0)]
                flat = jnp.concatenate([x.reshape(-1) for x in parts])
                total = jnp.split(lax.psum(flat, self.axis), np.cumsum([x.size for x in parts])[:-1])
                *sums, wrong = (x.reshape(y.shape).astype(y.dtype) for x, y in zip(total, parts, strict=True))
                return [*sums, wrong == 0]

        return self._on_each(part, operands, tables, PartitionSpec())

    def updated(self, function: Callable[..., Sequence[Array]], operands: Sequence[Any], tables: int) -> list[Array]:
        """Arrays of the table that `function(first row, *operands)` makes, each device its own rows."""
        return self._on_each(function, operands, tables, PartitionSpec(self.axis))

    def _on_each(
        self, function: Callable[..., Sequence[Array]], operands: Sequence[Any], tables: int, results: PartitionSpec
    ) -> list[Array]:
        specs = [PartitionSpec()] * (len(operands) - tables) + [PartitionSpec(self.axis)] * tables
        over = jax.shard_map(
            lambda *x: list(function(lax.axis_index(self.axis) * self.rows, *x)),
            mesh=self.mesh,
            in_specs=tuple(specs),
            out_specs=results,
            check_vma=False,
        )
        return over(*operands)

    def in_words(self) -> str:
        """The layout, for a statement."""
        kind = self.mesh.devices.flat[0].device_kind
        processes = len({x.process_index for x in self.mesh.devices.flat})
        where = f" of {processes} processes" if processes > 1 else ""
        return (
            f"The records lay on {self.count} devices ({kind}){where}, along the axis {self.axis!r} of a mesh. Each of them "
            "summed the clipped contributions of its own records; noise was added once, to the sum over all devices."
        )
