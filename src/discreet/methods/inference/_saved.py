"""The folder of a fit that may die: its key, what identifies it, and whether another call may continue it.

Each method derives from `SavedFit` and adds what it needs to go on: `DPSVI` its state
(`_checkpoint`), private Newton its releases. The file is there before the debit, so that no debit
is ever without the key of what it paid for, and the ledger recognizes the run by its `run_id` and
debits it once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from discreet._jax import rounds_like
from discreet._validate import RefusedError
from discreet.methods.inference._forms import kinds
from discreet.methods.inference._processes import Processes
from discreet.privacy import mechanisms, random
from discreet.privacy.act import Act
from discreet.privacy.report import Statement, statement_from_dict
from discreet.storage import read_archive, write_archive

FILE = "checkpoint.discreet"
_WHAT = "checkpoint of a private fit"
_VERSION = 1
_OTHERS = {
    "plan": "another plan",
    "options": "other options or devices",
    "program": "another model, guide or optimizer, another library version, other options of JAX or XLA, or another kind of "
    "processor",
    "records": "other data",
}


class SavedFit:
    """A folder from which a fit continues after a crash; without a folder, it does nothing.

    The file contains the key of the noise: only its owner may read it (mode 0600), and it is not
    part of any result. The key is removed when the fit is done.

    Args:
        folder: Where; made if absent. Of several processes, that of the first one, which alone
            reads and writes there.
        key: The key of a new fit, of which the first process's is taken. One that goes on has its
            own.
        processes: Those that make the fit; None: this one.
        purpose: The purpose of the subkey that draws all noise; None: the key itself does.
    """

    def __init__(
        self,
        folder: Path | str | None,
        key: PRNGKeyArray,
        processes: Processes | None = None,
        purpose: random.Purpose | None = None,
    ) -> None:
        self._purpose = purpose
        self.key = key
        self.run_id = ""
        self._found = None
        self.reproducible = seeded = random.is_reproducible(key)
        self._facts: dict[str, Any] = {}
        self.processes = processes = processes or Processes()
        self._path = None if folder is None or not processes.first else Path(folder) / FILE
        held = b""
        with processes.together():
            self._sweep()
            if self._path is not None and self._path.exists():
                held = self._path.read_bytes()
            else:
                random.check_unused(self.noise_key)
        words = np.asarray(jax.random.key_data(key))
        if processes.count > 1:
            processes.agree(key=words.tobytes().hex() if seeded else "secret")
            words = np.frombuffer(processes.from_first(words.tobytes()), words.dtype)
            self.key = random.key_from_words(words, reproducible=seeded)
        self._salt = processes.from_first(secrets.token_bytes(32))
        if processes.first_is_given("checkpoint=", folder is not None):
            self.run_id = processes.from_first(secrets.token_hex(16).encode()).decode()
        held = processes.from_first(held)
        self.goes_on = bool(held)
        if not held:
            return
        with processes.together():
            found = read_archive(
                self._path if self._path is not None else held, _WHAT, _VERSION, kinds()
            )
            if found["reproducible"] != seeded:
                of_key = (
                    "a secret key (discreet.random.key())",
                    "a key made from a seed, which is not private",
                )
                raise RefusedError(
                    f"{self._where} holds a fit with {of_key[not seeded]}, and this call gives {of_key[seeded]}. Give a key of "
                    "that kind to continue, or choose another folder for a new fit, which spends again."
                )
            self._found = found
            self.run_id, self._salt = found["run_id"], bytes.fromhex(found["salt"])
            if found["key"] is not None:
                self.key = random.key_from_words(found["key"], reproducible=seeded)

    @property
    def noise_key(self) -> Any:
        """The key of the noise; None where the fit is done and draws none."""
        if self._found is not None and self._found["key"] is None:
            return None
        return self.key if self._purpose is None else random.subkey(self.key, self._purpose)

    @property
    def _where(self) -> Path | str:
        return self._path.parent if self._path else "The checkpoint"

    def describe(self, **facts: Any) -> None:
        """Identify the fit, and refuse to continue another one.

        Args:
            facts: Some of `plan`, `options`, `program` (a fingerprint, to which the versions of all
                libraries are added) and `records` (by `digest`).

        Raises:
            RefusedError: The file is that of another fit.
        """
        if not self.run_id:
            return
        if "program" in facts:
            facts["program"] = f"{facts['program']} of {versions()}"
        self._facts |= facts
        if self._found is None:
            return
        for name, what in _OTHERS.items():
            if name in facts and self._found[name] != facts[name]:
                raise RefusedError(
                    f"{self._where} holds a fit with {what}, and continuing it would draw the same noise for another sum, so the "
                    "noise could be subtracted. Continue with the original arguments, or choose another folder for a new fit, "
                    "which spends again."
                )

    def stated(self, act: Act) -> Statement:
        """The statement of an act that has begun: of several processes the first one's, which has the receipt."""
        if self.processes.count == 1:
            return act.statement
        text = self.processes.from_first(act.statement.to_json().encode())
        return statement_from_dict(json.loads(text))

    def _enter(self, begin: Callable[[], None]) -> None:
        """Call `begin`, which claims the key and debits; the file must be there. It is removed where nothing was begun."""
        try:
            begin()
        except ValueError:
            # Refused. After any other error the debit may be on the disk: the file stays, and the
            # ledger has its run.
            if self._found is None and self._path is not None:
                self._path.unlink()
            raise

    def _put(self, content: Mapping[str, Any], *, finished: bool) -> None:
        """Replace the file."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        whole = {
            **self._facts,
            "run_id": self.run_id,
            "salt": self._salt.hex(),
            "reproducible": self.reproducible,
            "key": None if finished else np.asarray(jax.random.key_data(self.key)),
            **content,
        }
        write_archive(self._path, _WHAT, _VERSION, whole, kinds(), private=True)
        if finished:
            self._sweep()

    def _sweep(self) -> None:
        """Remove what a process that was killed while writing left: the key is in it."""
        if self._path is not None and self._path.parent.is_dir():
            for left in self._path.parent.glob(f".{FILE}.*"):
                left.unlink(missing_ok=True)

    def digest(self, records: Sequence[Array | np.ndarray]) -> str:
        """A keyed hash of the table, which reveals nothing without the checkpoint file; empty if it is not needed."""
        if not self.run_id and self.processes.count == 1:
            return ""
        digest = hmac.new(self._salt, digestmod=hashlib.sha256)
        apart = any(isinstance(x, jax.Array) and not x.is_fully_addressable for x in records)
        for whole in records:
            digest.update(f"{whole.dtype}{whole.shape}".encode())
            if isinstance(whole, mechanisms.InFiles):
                digest.update(whole.digest.encode())
                continue
            parts = (
                [x.data for x in whole.addressable_shards]
                if isinstance(whole, jax.Array) and apart
                else [whole]
            )
            for x in map(np.asarray, parts):
                digest.update(np.ascontiguousarray(x).view(np.uint8).reshape(-1).data)
        own = digest.hexdigest()
        return " ".join(self.processes.all_of(own)) if apart else own


def versions() -> str:
    """The versions and the device: others may draw different batches from the same key, or round differently."""
    names = ", ".join(
        f"{name} {version(name)}" for name in ("discreet", "jax", "jaxlib", "numpyro", "numpy")
    )
    return f"{names} on {jax.default_backend()}: {rounds_like()}"
