"""Several processes as one curator: what they agree on before anything is spent, and how an error in one of them ends all.

Under `jax.distributed` each process runs the whole program. `Processes` makes one fit of that:
whatever a process decides by itself (a key, a clock, a signal, a file) comes from process 0 or is
combined from all, and what must be equal is compared by its hash, so that a refusal names the
process that differs. JAX has collectives for arrays alone, so each message is an array of bytes,
summed over the processes: each one writes its own row and leaves zeros in the others.

An error must never leave other processes waiting in a collective. What may fail runs in `together`,
behind which each process learns of every other one's error, and all raise. An error anywhere else
ends the process at once, without the barrier of 300 seconds at which `jax.distributed` would hold
it; its connections break, and it tells the others, which have a thread to listen. So does a program
that ends by an error outside of a fit.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from discreet._jax import as_one_curator, await_processes, tell_processes, told_by_processes
from discreet._validate import RefusedError

_BYTES = 1024  # of a message; longer ones are cut
START_AGAIN = 75
FAILED = 70
"""Exit codes: EX_TEMPFAIL and EX_SOFTWARE of sysexits.h."""


class Processes:
    """The processes of a fit, within which one release is made by all: one, unless a mesh lies over several.

    Attributes:
        count: Number of processes.
        index: The number of this one.
        first: True for the process that writes, debits and prints.
        mesh: All their devices; None: one process, and its first device.
        remedy: The remedy after an error, and its exit code.
    """

    def __init__(self, mesh: Any = None) -> None:
        self.mesh = mesh
        self.count, self.index = (
            (1, 0) if mesh is None else (jax.process_count(), jax.process_index())
        )
        self.first = self.index == 0
        self.remedy: tuple[str, int] = "Nothing was spent. Start all processes again.", START_AGAIN

    @classmethod
    def start(cls, coordinator: str | None, count: int | None, index: int | None) -> Processes:
        """Join `jax.distributed`, before anything else of JAX is used. What is None is found by JAX, on a cluster that it knows.

        Raises:
            ValueError: JAX finds no cluster, or an argument is out of range.
        """
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        try:
            jax.distributed.initialize(
                coordinator, count, index, heartbeat_timeout_seconds=10, shutdown_timeout_seconds=20
            )
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise ValueError(
                f"JAX cannot tell which process of which job this is ({error}): say where process 0 listens (HOST:PORT, the "
                "same in all), how many processes there are, and which number this one has, from 0"
            ) from None
        return cls(jax.make_mesh((jax.device_count(),), ("records",)))

    @contextmanager
    def joined(self) -> Iterator[Processes]:
        """Context of a release by all: meet the others, and end after an error that they do not know of.

        They connect first: gloo gives up where one comes 30 seconds after another.
        """
        with as_one_curator(self.count > 1):
            if self.count == 1:
                yield self
                return
            _entered.append(self)
            _listen()
            try:
                await_processes()
                self.all_of("")  # the connections, while all are here
                yield self
            except BaseException as error:
                if not _is_known(error):
                    sys.excepthook(type(error), error, error.__traceback__)
                    reason = type(error).__name__  # its text may quote a record
                    what, code = self.remedy
                    _stop(
                        f"Process {self.index} of {self.count} stopped ({reason}), and so do the others. {what}",
                        code,
                    )
                raise
            finally:
                _entered.remove(self)

    # Messages.

    def all_of(self, message: str) -> list[str]:
        """The message of each process."""
        if self.count == 1:
            return [message]
        rows = np.zeros((self.count, _BYTES), np.uint8)
        text = message.encode()[:_BYTES]
        rows[self.index, : len(text)] = np.frombuffer(text, np.uint8)
        return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in _summed(rows)]

    def from_first(self, content: bytes) -> bytes:
        """Broadcast the content of process 0."""
        if self.count == 1:
            return content
        length = int(self.all_of(str(len(content)))[0])
        content = content if self.first else bytes(length)
        return _summed(np.frombuffer(content, np.uint8)).tobytes() if length else b""

    def of_first(self, tree: Any) -> Any:
        """The arrays of process 0; all have them, of the same shapes and types."""
        if self.count == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        arrays = [np.asarray(leaf) for leaf in leaves]
        content = memoryview(self.from_first(b"".join(x.tobytes() for x in arrays)))
        found = []
        for x in arrays:
            found.append(np.frombuffer(content[: x.nbytes], x.dtype).reshape(x.shape))
            content = content[x.nbytes :]
        return jax.tree.unflatten(structure, found)

    def total(self, own: np.ndarray) -> np.ndarray:
        """The sum of an array of each process, added in the order of their numbers."""
        if self.count == 1:
            return own
        rows = np.zeros((self.count, own.nbytes), np.uint8)
        rows[self.index] = np.frombuffer(own.tobytes(), np.uint8)
        return _summed(rows).view(own.dtype).reshape(self.count, *own.shape).sum(axis=0)

    def first_is_given(self, name: str, given: bool) -> bool:
        """Check whether process 0, the only user of an argument, is given it.

        Raises:
            ValueError: Another one is, and process 0 is not; in all processes.
        """
        said = self.all_of("given" if given else "")
        if any(said) and not said[0]:
            number = next(i for i, x in enumerate(said) if x)
            self._refuse(
                RefusedError(
                    f"Process {number} is given {name}, and process 0, which alone would use it, is not. Nothing was spent. "
                    "Pass it in process 0, or in all."
                )
            )
        return bool(said[0])

    def decide(self, count: int, due: bool, stop: bool) -> tuple[int, bool, bool]:
        """Agree on the number of next steps and on saving, by process 0's clock; and on stopping, if any process must."""
        said = [json.loads(x) for x in self.all_of(json.dumps([count, bool(due), bool(stop)]))]
        return said[0][0], said[0][1], any(x[2] for x in said)

    # Agreement.

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do what may fail, without a message in it: if it fails in one process, it fails in all."""
        if self.count == 1:
            yield
            return
        failed: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failed = error
        said = self.all_of(_in_words(failed))
        if failed is not None:
            self._refuse(failed)
        for number, reason in enumerate(said):
            if reason == KeyboardInterrupt.__name__:
                self._refuse(KeyboardInterrupt())
            if reason:
                self._refuse(RefusedError(f"Process {number} refused: {reason}"))

    def agree(self, **facts: str) -> None:
        """Compare facts.

        Raises:
            ValueError: A process has other ones than process 0; in all processes.
        """
        hashes = {
            name: hashlib.sha256(fact.encode()).hexdigest()[:32] for name, fact in facts.items()
        }
        said = [json.loads(x) for x in self.all_of(json.dumps(hashes))]
        for name in facts:
            others = [
                str(number) for number, x in enumerate(said) if x.get(name) != said[0].get(name)
            ]
            if others:
                who = (
                    f"Process {others[0]} has"
                    if len(others) == 1
                    else f"Processes {', '.join(others)} have"
                )
                self._refuse(RefusedError(f"{who} {_DIFFERENCES[name]}"))

    def _refuse(self, error: BaseException) -> NoReturn:
        vars(error)[_KNOWN] = True
        raise error

    def same_state(self, state: Any) -> None:
        """Compare what each process has computed.

        Raises:
            RuntimeError: They are not the same; in all processes.
        """
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


_KNOWN = "known to all processes"


def _is_known(error: BaseException | None) -> bool:
    """True if all processes raise this error, or its cause."""
    return error is not None and (_KNOWN in vars(error) or _is_known(error.__cause__))


def _in_words(error: BaseException | None) -> str:
    """An error for other processes: a `RefusedError` with its text, and others, whose text may quote a record, by kind."""
    if error is None:
        return ""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.errno:
        return f"{kind}: {os.strerror(error.errno)}"
    if not isinstance(error, RefusedError):
        return kind
    return str(error) if type(error) is RefusedError else f"{kind}: {error}"


_entered: list[Processes] = []
_over = threading.Event()
_stopping = threading.Lock()


@functools.cache
def _listen() -> None:
    """Have a thread that ends this process when another one has told that it ends."""

    def listen() -> None:
        while not _over.wait(0.25):
            if why := told_by_processes():
                what, code = _entered[-1].remedy if _entered else ("", FAILED)
                _stop(f"Process {jax.process_index()} stops, too. {why} {what}", code)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    # it must not come back to an interpreter that has ended
    atexit.register(lambda: (_over.set(), thread.join(5.0)))


def _stop(why: str, code: int) -> NoReturn:
    """End this process without waiting for others, which learn of it."""
    if not _stopping.acquire(blocking=False):
        time.sleep(60.0)  # until the other thread, which said why, has ended the process
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"{why}\n")):
        with suppress(OSError, ValueError, AttributeError):
            stream.write(text)
            stream.flush()
    tell_processes(why)
    os._exit(code)


def _leave() -> None:
    """Leave a program that ends by an error outside of a fit: at JAX's barrier the others would be waited for."""
    failed = getattr(sys, "last_value", None)
    if failed is None or hasattr(sys, "ps1") or not tell_processes(""):
        return
    code = 130 if isinstance(failed, KeyboardInterrupt) else FAILED
    _stop(
        f"A process stopped outside of a fit ({type(failed).__name__}), and so do the others.", code
    )


atexit.register(_leave)  # later than JAX's own, so called before it

_AGAIN = "Nothing was spent. Start all processes with the same"
_DIFFERENCES = {
    "versions": f"other versions of discreet, JAX, NumPyro or NumPy, or another kind of device, than process 0. {_AGAIN} ones.",
    "plan": f"another plan than process 0. {_AGAIN} plan.",
    "schema": f"another schema, target or person column than process 0. {_AGAIN} ones.",
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
    firsts = [
        min((d for d in devices if d.process_index == i), key=lambda d: d.id)
        for i in range(jax.process_count())
    ]
    mesh = Mesh(np.array(firsts), ("processes",))
    own = jax.device_put(rows[None], firsts[jax.process_index()])
    sharding = NamedSharding(mesh, PartitionSpec("processes"))
    whole = jax.make_array_from_single_device_arrays((len(firsts), *rows.shape), sharding, [own])
    return np.asarray(_adder(mesh)(whole))


@functools.cache
def _adder(mesh: Mesh) -> Callable[[Any], Any]:
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda x: jnp.sum(x, 0, dtype=x.dtype), out_shardings=everywhere)
