"""The releases of a private Newton fit, kept as they are made, so that a fit that dies goes on from them.

What happens between two releases follows from earlier releases and public numbers, and is quickly
computed again. So the file has the releases alone: a fit that goes on runs from its start, takes
from the file what is there, and makes the rest. It comes to the same bits, since a release is
computed by the same program from the same table with the same noise.

One release may be drawn twice: if the process died after it was drawn and before it was written.
For the same public numbers the second one is the first one, to the bit, and shows nothing new. But
public numbers come from linear algebra in floating point, whose last bits may follow the number of
threads; and rows are rounded to a grid, so that a last bit may move a single row by a step. With
the same noise, two releases at such numbers would show by their difference what one row did. The
first one was never written, so it has been seen by nobody, unless the folder was copied and the fit
went on from both copies. Therefore the noise of a secret key follows the public numbers, too
(`random.key_for`): there is nothing to subtract. But from a last bit on that differs, two copies
make releases of their own, which were paid for once: never continue a fit from two copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from discreet._garbage import uncollected
from discreet._jax import run_once
from discreet.methods.inference import FAILED, START_AGAIN, Processes, SavedFit, versions
from discreet.methods.newton._algebra import one_thread
from discreet.methods.newton._model_plan import ModelPlan
from discreet.methods.newton._plan import NewtonPlan
from discreet.methods.newton._sums import Parts, Program, Threads
from discreet.privacy import random
from discreet.privacy.act import Act, stated
from discreet.privacy.ledger import Ledger
from discreet.privacy.mechanisms import check_mesh
from discreet.storage import exclusive

_key_for = run_once(random.key_for)
_COINS = 2**32 - 1  # the number of no release
_AT_ONCE = 2**18  # coins: one program for all tables


def words_of(key: PRNGKeyArray) -> np.ndarray:
    """A seed for NumPy's generator, for what is drawn from releases: nothing else follows from these words."""
    return np.asarray(
        jax.random.key_data(random.subkey(random.check_key(key), random.Purpose.POSTERIOR))
    )


@contextmanager
def joined(mesh: Mesh | None, checkpoint: Path | str | None) -> Iterator[Processes]:
    """Context of a fit by all processes of a mesh (None: this one), of which the first one alone uses the folder."""
    with Processes(mesh).joined() as processes, ExitStack() as stack:
        with processes.together():
            if mesh is not None:
                check_mesh(mesh)
            if processes.first:
                stack.enter_context(exclusive(checkpoint))
        yield processes


class SavedReleases(SavedFit):
    """A folder from which a private Newton fit continues after a crash; without a folder, releases are made and not kept.

    Guarantee: a release is on the disk before anything follows from it. A continued fit that comes
    to the same public numbers makes the same releases, to the bit; for other numbers it draws
    independent noise.

    Args:
        folder: As in `SavedFit`.
        key: As in `SavedFit`.
        plan: The plan.
        processes: As in `SavedFit`. All make each release, of the sums over the parts of all.
    """

    def __init__(
        self,
        folder: Path | str | None,
        key: PRNGKeyArray,
        plan: NewtonPlan | ModelPlan,
        processes: Processes | None = None,
    ) -> None:
        super().__init__(folder, key, processes, purpose=random.Purpose.NEWTON)
        # A folder of another method has none, and is refused by `describe`.
        found = self._found or {}
        self._folder = folder
        self._plan = plan
        self._made: list[np.ndarray] = list(found.get("releases", ()))
        self._next = 0
        self.words: np.ndarray = found.get("words", words_of(self.key))
        self._noise = self.noise_key

    def act(self, ledger: Ledger | None, **told: Any) -> Act:
        """The act of the plan, which continues if the fit does.

        Args:
            ledger: As in `Act`.
            told: As in `Act.on`.
        """
        self.processes.first_is_given("ledger=", ledger is not None)
        with self.processes.together():
            return Act(
                self._plan,
                self._noise,
                stated(self._plan, self.reproducible, **told),
                ledger=ledger if self.processes.first else None,
                run_id=self.run_id,
                again=self.goes_on,
            )

    def describe(self, **facts: Any) -> None:
        """As there; and refuse what several processes differ in."""
        if self.processes.count > 1:
            self.processes.agree(versions=versions(), **facts)
        with self.processes.together():
            super().describe(**facts)

    @property
    def is_done(self) -> bool:
        """True if all releases are in the file."""
        return self._noise is None

    def programs(
        self,
        act: Act,
        proved: Iterable[Program],
        public: Any,
        parts: Parts,
        *,
        times: Sequence[int] = (),
        beside: Sequence[str] = (),
    ) -> list[Program]:
        """The programs of an act, of which each is compiled while the next one is proved: seconds, before anything is spent.

        Args:
            act: The act, of which they are all.
            proved: The programs, as they are proved.
            public: Any public numbers.
            parts: The table.
            times: As in `Act.prove`.
            beside: Digests of what no program has, and the fit depends on.
        """
        found = []
        waiting = []
        with self.processes.together(), uncollected(), Threads(1) as thread:
            for program in proved:
                found.append(program)
                waiting.append(thread.submit(self._compile, program, public, parts))
            for compiled in waiting:
                compiled.result()
        proofs = [program.certificate for program in found]
        if self.run_id or self.processes.count > 1:
            prints = dict.fromkeys(proof.fingerprint for proof in proofs)
            self.describe(program=" ".join([*prints, *beside]))
        # Their fingerprints follow the number of records.
        with self.processes.together():
            act.prove(*proofs, times=times, named=False)
        return found

    def _compile(self, program: Program, public: Any, parts: Parts) -> None:
        if self._noise is not None:
            program.compile(self._key(0, public), public, parts)

    @contextmanager
    def begun(self, act: Act) -> Iterator[None]:
        """Begin the act. What ends the fit from then on, as Ctrl-C does, has a note on what becomes of its releases."""
        kept = (
            f"The same call continues from {self._folder}, to the same bits and at no further cost."
        )
        lost = "Its releases are lost: with checkpoint=, the same call would continue."
        if self.run_id:
            self.processes.remedy = f"Start all processes again: {kept}", START_AGAIN
        else:
            self.processes.remedy = f"The plan may be spent. {lost}", FAILED
        with self.processes.together():
            if self._found is None and self.run_id:
                self._write()
            self._enter(act.begin)
        try:
            with one_thread():
                yield
        except BaseException as error:
            error.add_note(f"The plan is spent. {kept if self.run_id else lost}")
            raise

    def release(self, program: Program, public: Any, parts: Parts) -> np.ndarray:
        """The next release: from the file if it is there; otherwise it is made, and kept before it is returned.

        Args:
            program: Of the release.
            public: What its rows are computed with.
            parts: The table.
        """
        number = self._next
        self._next += 1
        if number < len(self._made):
            return self._made[number]
        # At one point in all processes, whose linear algebra may round in other ways, and with one
        # noise.
        public = self.processes.of_first(public)
        made = program(self._key(number, public), public, parts)
        # In one layout, whether it was just made or comes from the file: linear algebra might round
        # otherwise.
        found = np.ascontiguousarray(self.processes.of_first(made))
        if self.run_id:
            self._made.append(found)
            self._write()
        return found

    def _key(self, number: int, public: Any) -> PRNGKeyArray:
        assert self._noise is not None
        key = jax.random.fold_in(self._noise, jax.device_put(np.uint32(number)))
        return (
            _key_for(key, [np.float64(x) for x in jax.tree.leaves(public)]) if self.run_id else key
        )

    def coins(self, count: int) -> np.ndarray:
        """Independent uniform bytes, one for each record: the same ones if the fit goes on, and in all processes."""
        assert self._noise is not None
        key = jax.random.fold_in(self._noise, jax.device_put(np.uint32(_COINS)))
        keys = jax.random.split(key, -(-count // _AT_ONCE))
        found = [np.asarray(jax.random.bits(own, (_AT_ONCE,), np.uint8)) for own in keys]
        return np.concatenate(found)[:count]

    def _write(self) -> None:
        finished = len(self._made) == self._plan.num_releases
        self._put({"releases": self._made, "words": self.words}, finished=finished)
