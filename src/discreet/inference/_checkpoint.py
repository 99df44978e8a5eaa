"""A fit's way through a crash: what it needs to go on to the same bits, in a folder that nobody else may read."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from discreet import random
from discreet.inference._keys import check_unused, claim, take
from discreet.inference._saved import kinds
from discreet.inference._step import DPSVIState
from discreet.inference._trace import TraceRecorder
from discreet.plan import PrivacyPlan
from discreet.storage import read_archive, write_archive
from discreet.verify import Certificate

FILE = "checkpoint.discreet"
_WHAT, _VERSION = "checkpoint of a private fit", 1
_SECONDS = 10.0
"""Between two checkpoints; more where writing one takes more than a twentieth of that."""


@dataclasses.dataclass
class Progress:
    """How far a fit has come: all that the loop gathers besides its state and the trace."""

    mean: Any
    done: int = 0
    losses: list[np.ndarray] = dataclasses.field(default_factory=list)
    norms: list[np.ndarray] = dataclasses.field(default_factory=list)


class Checkpoint:
    """A folder that a fit is written into, and from which it goes on after a crash; without a folder, nothing.

    Guarantee: whenever the process dies, the fit that goes on makes the releases that it would have made, to the bit. No step
    draws its noise for another state than it would have, since data, model, plan and options must be the same.

    The file holds the key that hides the records, and what records remember: it is its owner's alone (mode 0600), and no part of
    any result. When the fit is done the key is taken out of it.

    Args:
        folder: where; made if absent.
        key: the key of a new fit. One that goes on has its own.

    Raises:
        ValueError: the file is damaged, or something else.
    """

    def __init__(self, folder: Path | str | None, key: PRNGKeyArray) -> None:
        self.key, self.run_id, self._found = key, "", None
        self._facts: dict[str, Any] = {}
        self._due, self.interval = 0.0, _SECONDS
        self._path = None if folder is None else Path(folder) / FILE
        if self._path is None:
            check_unused(key)
            return
        self.run_id, self._salt = secrets.token_hex(16), secrets.token_bytes(32)
        self._sweep()
        if not self._path.exists():
            check_unused(key)
            return
        self._found = read_archive(self._path, _WHAT, _VERSION, kinds())
        self.run_id, self._salt = self._found["run_id"], bytes.fromhex(self._found["salt"])
        if self._found["key"] is not None:
            self.key = random.key_from_words(self._found["key"], reproducible=self._found["reproducible"])

    @property
    def reproducible(self) -> bool:
        """Whether the fit's random bits can be repeated."""
        return random.is_reproducible(self.key) if self._found is None else self._found["reproducible"]

    def describe(
        self, plan: PrivacyPlan, records: Sequence[Array], options: Any, certified: Callable[[], Certificate]
    ) -> None:
        """Say what fit this is, and refuse to go on with another one.

        Args:
            plan: its plan.
            records: the arrays of its records.
            options: what else decides what it does, as text.
            certified: reads the program.

        Raises:
            PrivacyError: there is no proof, by which a program is known.
            ValueError: the folder holds another fit.
        """
        if self._path is None:
            return
        self._facts = {
            "plan": plan.storable(),
            "options": str(options),
            "program": f"{certified().fingerprint} of {_versions()}",
            "records": self._digest(records),
        }
        if self._found is None:
            return
        names = {
            "plan": "another plan",
            "options": "other options",
            "program": "another model, guide or optimizer, or another version of a library",
            "records": "other data",
        }
        for name, what in names.items():
            if self._found[name] != self._facts[name]:
                raise ValueError(
                    f"{self._path.parent} holds a fit with {what}, and going on with it would draw the same noise for "
                    "something else, which takes the noise away. Go on with what the fit was begun with, or choose another "
                    "folder for a new fit, which spends anew."
                )

    def begin(
        self, state: DPSVIState, mean: Array, recorder: TraceRecorder, spend: Callable[[], None]
    ) -> tuple[DPSVIState, Progress]:
        """The state to go on from, once the spending is on the disk and the key is taken."""
        if self._found is None:
            self._write(state, Progress(mean), recorder, finished=False)
            try:
                claim(self.key)
                spend()
            except BaseException:
                # Refused: nothing was begun. Of a debit that was made all the same, the ledger has the receipt.
                if self._path is not None:
                    self._path.unlink()
                raise
            return state, Progress(mean)
        found = self._found
        spend()
        # The same releases again are none: the noise belongs to these states. What is done needs none.
        if found["key"] is not None:
            take(self.key)
        leaves, tree = jax.tree.flatten(state._replace(rng_key=None))
        kept = [jnp.asarray(x, y.dtype) for x, y in zip(found["state"], leaves, strict=True)]
        recorder.restore(found["trace"])
        progress = Progress(jnp.asarray(found["mean"], mean.dtype), found["done"], [found["losses"]], [found["norms"]])
        return jax.tree.unflatten(tree, kept)._replace(rng_key=jnp.copy(self.key)), progress

    def keep(
        self, state: DPSVIState, progress: Progress, recorder: TraceRecorder, *, last: bool, finished: bool
    ) -> None:
        """Write where the fit stands, if it is time to, or for the last time."""
        if self._path is None or (not last and time.perf_counter() < self._due):
            return
        self._write(state, progress, recorder, finished=finished)

    def _write(self, state: DPSVIState, progress: Progress, recorder: TraceRecorder, *, finished: bool) -> None:
        if self._path is None:
            return
        started = time.perf_counter()
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {
            **self._facts,
            "run_id": self.run_id,
            "salt": self._salt.hex(),
            "reproducible": self.reproducible,
            "key": None if finished else np.asarray(jax.random.key_data(self.key)),
            "state": [np.asarray(x) for x in jax.tree.leaves(state._replace(rng_key=None))],
            "mean": np.asarray(progress.mean),
            "done": progress.done,
            "losses": _joined(progress.losses),
            "norms": _joined(progress.norms),
            "trace": recorder.finish(),
        }
        write_archive(self._path, _WHAT, _VERSION, content, kinds(), private=True)
        if finished:
            self._sweep()
        ended = time.perf_counter()
        self._due = ended + max(self.interval, 20 * (ended - started))

    def _sweep(self) -> None:
        """Remove what a process that was killed while writing left: the key is in it."""
        if self._path is not None and self._path.parent.is_dir():
            for left in self._path.parent.glob(f".{FILE}.*"):
                left.unlink(missing_ok=True)

    def _digest(self, records: Sequence[Array]) -> str:
        """What tells tables apart, and tells nothing of them to whoever does not have the file."""
        digest = hmac.new(self._salt, digestmod=hashlib.sha256)
        for x in map(np.asarray, records):
            digest.update(f"{x.dtype}{x.shape}".encode())
            digest.update(np.ascontiguousarray(x).view(np.uint8).reshape(-1).data)
        return digest.hexdigest()


def _versions() -> str:
    """What computes it: other versions may draw other batches from the same key."""
    names = ", ".join(f"{name} {version(name)}" for name in ("discreet", "jax", "jaxlib", "numpyro", "numpy"))
    return f"{names} on {jax.default_backend()}"


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
