"""Several processes as one curator: what they agree on before anything is spent, and how an error in one of them ends all.

Under `jax.distributed` each process runs the whole program. `Processes` makes one fit of that: whatever a process decides by
itself (a key, a clock, a signal, a file) comes from process 0 or is combined from all, and what must be equal is compared by
its hash, so that a refusal names the process that differs. JAX has collectives for arrays alone, so each message is an array of
bytes, summed over the processes: each one writes its own row and leaves zeros in the others.

An error must never leave other processes waiting in a collective. What may fail runs in `together`, behind which each process
learns of every other one's error, and all raise. An error anywhere else ends the process at once, without the barrier of 300
seconds at which `jax.distributed` would hold it; its connections break, which raises an error in all others.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from discreet._jax import as_one_curator, await_processes

_BYTES = 1024  # of a message; longer ones are cut
START_AGAIN, FAILED = 75, 70
"""Exit codes: EX_TEMPFAIL and EX_SOFTWARE of sysexits.h."""


class Processes:
    """The processes of a fit, within which one release is made by all: one, unless a mesh lies over several.

    Used as a context; an error in it that other processes do not know of ends this process.

    Attributes:
        count: How many.
        index: The number of this one.
        remedy: What to do after an error, and the exit code that says so.
    """

    def __init__(self, mesh: Any) -> None:
        self.count, self.index = (1, 0) if mesh is None else (jax.process_count(), jax.process_index())
        self.remedy: tuple[str, int] = "Nothing was spent. Start all processes again.", START_AGAIN
        self._known_to_all: BaseException | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes, debits and prints."""
        return self.index == 0

    def __enter__(self) -> Processes:
        """Meet the others: connections are made at the first message, and JAX waits for them for 30 seconds only."""
        self._curator = as_one_curator(self.count > 1)
        self._curator.__enter__()
        if self.count > 1:
            try:
                await_processes()
            except BaseException as error:
                self._end(error)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: TracebackType | None) -> None:
        """After an error that the others do not know of: end."""
        self._curator.__exit__(kind, error, where)
        if error is not None and self.count > 1 and error is not self._known_to_all:
            self._end(error)

    def _end(self, error: BaseException) -> NoReturn:
        if not isinstance(error, jax.errors.JaxRuntimeError):
            traceback.print_exception(error)
        what, code = self.remedy
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        sys.stderr.write(f"Process {self.index} of {self.count} stopped ({reason}), and so do the others. {what}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    # --- Messages ---

    def all_of(self, message: str) -> list[str]:
        """The message of each process."""
        if self.count == 1:
            return [message]
        rows = np.zeros((self.count, _BYTES), np.uint8)
        text = message.encode()[:_BYTES]
        rows[self.index, : len(text)] = np.frombuffer(text, np.uint8)
        return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in _summed(rows)]

    def from_first(self, content: bytes) -> bytes:
        """What process 0 has."""
        if self.count == 1:
            return content
        length = int(self.all_of(str(len(content)))[0])
        content = content if self.first else bytes(length)
        return _summed(np.frombuffer(content, np.uint8)).tobytes() if length else b""

    def first_is_given(self, name: str, given: bool) -> bool:
        """Whether process 0, which alone uses it, is given an argument.

        Raises:
            ValueError: Another one is, and process 0 is not; in all processes.
        """
        said = self.all_of("given" if given else "")
        if any(said) and not said[0]:
            number = next(i for i, x in enumerate(said) if x)
            self._refuse(
                ValueError(
                    f"Process {number} is given {name}=, and process 0, which alone would use it, is not. Nothing was spent. "
                    "Pass it in process 0, or in all."
                )
            )
        return bool(said[0])

    def decide(self, count: int, due: bool, stop: bool) -> tuple[int, bool, bool]:
        """How many steps come next and whether it is time to save, by process 0's clock; and whether any one is to stop."""
        if self.count == 1:
            return count, due, stop
        said = [json.loads(x) for x in self.all_of(json.dumps([count, bool(due), bool(stop)]))]
        return said[0][0], said[0][1], any(x[2] for x in said)

    # --- Agreement ---

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do what may fail, without a message in it: if it fails in one process, it fails in all."""
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            if self.count == 1:
                raise
            failed = error
        if self.count == 1:
            return
        said = self.all_of("" if failed is None else f"{type(failed).__name__}: {failed}")
        if failed is not None:
            self._refuse(failed)
        for number, reason in enumerate(said):
            if reason:
                self._refuse(ValueError(f"Process {number} refused: {reason}"))

    def agree(self, **facts: str) -> None:
        """Compare facts.

        Raises:
            ValueError: A process has other ones than process 0; in all processes.
        """
        if self.count == 1:
            return
        hashes = {name: hashlib.sha256(fact.encode()).hexdigest()[:32] for name, fact in facts.items()}
        said = [json.loads(x) for x in self.all_of(json.dumps(hashes))]
        for name in facts:
            others = [str(number) for number, x in enumerate(said) if x.get(name) != said[0].get(name)]
            if others:
                who = f"Process {others[0]} has" if len(others) == 1 else f"Processes {', '.join(others)} have"
                self._refuse(ValueError(f"{who} {_DIFFERENCES[name]}"))

    def _refuse(self, error: BaseException) -> NoReturn:
        self._known_to_all = error
        raise error

    def same_state(self, state: Any) -> None:
        """Compare what each process has computed.

        Raises:
            RuntimeError: They are not the same; in all processes.
        """
        if self.count == 1:
            return
        digest = hashlib.sha256()
        for x in jax.tree.leaves(state):
            digest.update(np.asarray(x).tobytes())
        said = self.all_of(digest.hexdigest())
        others = [str(number) for number, x in enumerate(said) if x != said[0]]
        if others:
            self._refuse(
                RuntimeError(
                    f"Processes 0 and {', '.join(others)} have computed other parameters from the same sums: their processors "
                    "round in other ways, or one is faulty. What was spent stays spent. Use machines of one kind."
                )
            )


_AGAIN = "Nothing was spent. Start all processes with the same"
_DIFFERENCES = {
    "versions": f"other versions of discreet, JAX, NumPyro or NumPy, or another kind of device, than process 0. {_AGAIN} ones.",
    "plan": f"another plan than process 0. {_AGAIN} plan.",
    "options": f"other options, another mesh or other shapes of arrays than process 0. {_AGAIN} ones.",
    "key": "another seed than process 0, or a secret key where process 0 has a seed. Nothing was spent. Use one seed in all "
    "processes; or a secret key in each, of which that of process 0 is used.",
    "records": "other records than process 0. Nothing was spent. Pass the whole table in each process, as arrays or memory maps "
    "of the same file: each device takes its own rows. Or, if each process has its own rows only, join them by "
    "jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])), rows).",
    "program": f"another model, guide or optimizer than process 0. {_AGAIN} ones.",
}


def _summed(rows: np.ndarray) -> np.ndarray:
    """The sum of what each process has."""
    devices = jax.devices()
    firsts = [min((d for d in devices if d.process_index == i), key=lambda d: d.id) for i in range(jax.process_count())]
    mesh = Mesh(np.array(firsts), ("processes",))
    own = jax.device_put(rows[None], firsts[jax.process_index()])
    sharding = NamedSharding(mesh, PartitionSpec("processes"))
    whole = jax.make_array_from_single_device_arrays((len(firsts), *rows.shape), sharding, [own])
    return np.asarray(_adder(mesh)(whole))


@functools.cache
def _adder(mesh: Mesh) -> Callable[[Any], Any]:
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda x: jnp.sum(x, 0, dtype=x.dtype), out_shardings=everywhere)
