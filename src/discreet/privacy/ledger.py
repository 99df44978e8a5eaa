"""A persistent privacy budget of one table of people: an append-only, locked, hash-chained file with a hard cap.

The file has one JSON object a line: the first opens the ledger (name, unit, relation, cap), each
further one is a debit or a change of the cap. Every line contains the SHA-256 of the line before;
lines are appended under a file lock and reach the disk before they count. `Ledger` documents the
guarantee. `privacy.act` debits, just before the first release.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from discreet._dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent
from discreet._validate import RefusedError, notebook_html
from discreet.privacy.accounting import (
    Cost,
    Planned,
    PrivacyFilter,
    Relation,
    cost_of,
    event_from_dict,
    event_to_dict,
    neighbours,
    profile,
    suggest,
    upper,
)
from discreet.privacy.report import RECORD, Receipt, Statement

__all__ = ["Ledger", "LedgerError", "Receipt", "SpentError"]


try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

Entry = Mapping[str, Any]


class LedgerError(RefusedError):
    """A file that cannot be read, is not a ledger, or was changed."""


@contextlib.contextmanager
def _opened(path: Path, how: int) -> Iterator[int]:
    if path.is_dir():
        raise LedgerError(
            f"{path} is a folder, and a ledger is a file. Give one that `discreet ledger open` created."
        )
    try:
        handle = os.open(path, how)
    except OSError as error:
        create = "Create one with Ledger.create or `discreet ledger open`"
        remedy = "Check its permissions" if path.exists() else create
        raise LedgerError(
            f"The ledger {path} cannot be opened ({error.strerror}). {remedy}."
        ) from None
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _appending(path: Path) -> Iterator[int]:
    """The file, locked against other writers."""
    with _opened(path, os.O_RDWR | os.O_APPEND) as handle, _locked(handle, path):
        if not os.path.samestat(os.fstat(handle), os.stat(path)):
            raise LedgerError(
                f"{path} was replaced by another file while this one waited. Try again."
            )
        yield handle


def _bytes(handle: int) -> bytes:
    parts = []
    place = 0
    while part := os.pread(handle, 2**20, place):
        parts.append(part)
        place += len(part)
    return b"".join(parts)


def _entries(handle: int, path: Path) -> list[Entry]:
    text = _bytes(handle)
    # What does not end in a new line was being written when its writer died, before it counted.
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise LedgerError(
            f"{path} is empty: it is not a ledger. Create one with Ledger.create or `discreet ledger open`."
        )
    remedy = "Restore the file from a copy: a changed ledger cannot show what was spent."
    found: list[Entry] = []
    previous = ""
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise TypeError
        except (ValueError, TypeError):
            raise LedgerError(
                f"Line {number + 1} of {path} is not an entry of a ledger. {remedy}"
            ) from None
        rest = {name: value for name, value in entry.items() if name != "hash"}
        if (
            entry.get("number") != number
            or entry.get("previous") != previous
            or entry.get("hash") != _hash(rest)
        ):
            raise LedgerError(
                f"Line {number + 1} of {path} was changed: its hash, or that of the line before, does not match. {remedy}"
            )
        previous = entry["hash"]
        found.append(entry)
    if found[0].get("format") != FORMAT:
        raise LedgerError(
            f"{path} is not of the format '{FORMAT}' but {found[0].get('format')!r}. Use the version of discreet that "
            "wrote it, or a newer one."
        )
    return found


def _append(handle: int, entries: Sequence[Entry], content: Entry) -> Entry:
    """Append an entry after the existing `entries`; on the disk when this returns."""
    text = _bytes(handle)
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.ftruncate(handle, whole)
    line = _line(entries, content)
    _write(handle, line)
    return json.loads(line)


@contextlib.contextmanager
def _locked(handle: int, path: Path) -> Iterator[None]:
    if fcntl is None:
        raise LedgerError(
            f"{path} cannot be locked on this system, so two processes could spend the same budget."
        )
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def _line(entries: Sequence[Entry], content: Entry) -> bytes:
    rest = {
        "number": len(entries),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **content,
        "previous": entries[-1]["hash"] if entries else "",
    }
    return _canonical({**rest, "hash": _hash(rest)}) + b"\n"


def _hash(rest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(rest)).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(
        content, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    ).encode()


def _write(handle: int, line: bytes) -> None:
    while line:
        line = line[os.write(handle, line) :]
    os.fsync(handle)


FORMAT = "discreet ledger, version 1"
ONE_RECORD = RECORD.brief


class SpentError(RefusedError):
    """The plan exceeds the remaining budget; nothing was debited."""


@dataclasses.dataclass(frozen=True)
class Debit:
    """A debit as listed by `Ledger.debits`: time (in UTC), purpose, and cost in the filter."""

    number: int
    time: str
    method: str
    event: DpEvent
    delta: float
    cost: Cost
    unit: str


class Ledger:
    """The budget of one table of people, in a file.

    A fit with a ledger is debited after all its checks and the compilation, on the disk before the
    first release. A crash, Ctrl-C or an error afterwards refunds nothing. Processes wait for one
    another, so that two cannot both spend the remainder. Every line contains the hash of the one
    before: edited or removed lines are detected, except the last ones (compare the newest hash with
    the statement of the last fit).

    The cap is a filter (`PrivacyFilter`): its (epsilon, delta) holds for all debited fits together,
    even if one was planned after the results of another were seen. That costs more than the
    composition of plans that were all fixed beforehand.

    It cannot detect fits without it, copies of the file, and whether two tables are about the same
    people.

    Args:
        path: A file created by `Ledger.create`.

    Raises:
        LedgerError: Not a ledger, or a changed one.

    Example::

        ledger = dp.Ledger.create("survey.ledger", dataset="survey 2026", epsilon=3.0, delta=1e-5)
        result = dpsvi.run(dp.random.key(), x, y, ledger=ledger)
        print(ledger)
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.verify()

    def refuse_unless_private(self, statement: Statement) -> None:
        """Refuse a release that is not private.

        Args:
            statement: The release's statement.

        Raises:
            ValueError: It is not private; the message says why, and what to do.
        """
        if statement.is_private:
            return
        why = " ".join(statement.violations) or "its epsilon is infinite"
        instead = "Omit the ledger."
        if statement.reproducible:
            why = "its random bits can be repeated"
            instead = "Use discreet.random.key() instead of a key from a seed, or omit the ledger."
        raise ValueError(
            f"This release is not private ({why}), so it cannot be charged to a ledger. {instead}"
        )

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        dataset: str,
        epsilon: float,
        delta: float,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        unit: str = ONE_RECORD,
    ) -> Ledger:
        """Create a ledger.

        Args:
            path: A new file.
            dataset: A public name of the table; the table itself is not used, since its hash would
                reveal its records.
            epsilon: The cap, above 0.
            delta: The cap's delta; the deltas of the single fits must add up to at most half of it.
            relation: The neighbouring relation of all fits.
            unit: The privacy unit, in words: "one record", or "one person" (or another word for it)
                if fits name the column that identifies persons. A fit with the other unit is
                refused.

        Raises:
            LedgerError: The file exists.
            ValueError: An invalid cap.
        """
        cap = PrivacyFilter(epsilon=epsilon, delta=delta)
        if not dataset.strip():
            raise ValueError(
                "The ledger's dataset has no name. Give it a public one, such as 'survey 2026'."
            )
        content = {
            "kind": "open",
            "format": FORMAT,
            "dataset": dataset,
            "relation": relation.name,
            "unit": unit,
        }
        content |= {"epsilon": cap.epsilon, "delta": cap.delta}
        path = Path(path)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except FileExistsError:
            raise LedgerError(f"{path} already exists. Use it, or choose another name.") from None
        except OSError as error:
            raise LedgerError(
                f"{path} cannot be written ({error.strerror}). Choose a folder that exists and that you may write to."
            ) from None
        try:
            with _locked(handle, path):
                _write(handle, _line([], content))
        finally:
            os.close(handle)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return cls(path)

    @property
    def dataset(self) -> str:
        """The public name of the table."""
        return self.entries[0]["dataset"]

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return Relation[self.entries[0]["relation"]]

    @property
    def unit(self) -> str:
        """The privacy unit, in words."""
        return self.entries[0]["unit"]

    @property
    def entries(self) -> list[Entry]:
        """All entries of the file: the first opens it, the others are debits and changes of the cap."""
        with _opened(self.path, os.O_RDONLY) as handle:
            return _entries(handle, self.path)

    @property
    def cap(self) -> PrivacyFilter:
        """The current cap."""
        return _cap(self.entries)

    @property
    def debits(self) -> list[Debit]:
        """All debits, in order."""
        return _debits(self.entries)

    @property
    def spent(self) -> float:
        """The part of the cap's epsilon that is spent, by its filter."""
        return _spent(self.entries)

    def epsilon_if_planned_together(self, delta: float) -> float:
        """The epsilon of all debits at `delta`, if every one was planned before the results of any were seen."""
        entries = self.entries
        events = ComposedDpEvent([debit.event for debit in _debits(entries)])
        slack = sum(entry["slack"] for entry in entries if entry["kind"] == "debit")
        return profile(events, relation=self.relation, slack=slack).epsilon(delta)

    def verify(self, receipt_hash: str | None = None) -> int:
        """Read every line and every hash.

        Args:
            receipt_hash: The hash of an entry, or its beginning (8 characters at least), as in a
                fit's statement.

        Returns:
            The number of entries.

        Raises:
            LedgerError: A line was changed, or the entry is missing.
        """
        entries = self.entries
        if receipt_hash is not None:
            if len(receipt_hash) < 8:
                raise ValueError("Give at least 8 characters of the hash in the statement.")
            if not any(entry["hash"].startswith(receipt_hash) for entry in entries):
                raise LedgerError(
                    f"{self.path} has no entry with the hash {receipt_hash}: lines are missing at its end, or it is another "
                    "ledger. Restore the file from a copy."
                )
        return len(entries)

    def check(
        self, plan: Planned, *, delta: float, run_id: str = "", unit: str = ONE_RECORD
    ) -> float:
        """Refuse a plan that exceeds the budget; debit nothing. A run that was debited already may continue.

        Returns:
            The total ε at the cap's δ after the plan's debit.

        Raises:
            SpentError: The plan exceeds the budget.
            ValueError: Another relation or unit, or an event without accounting.
        """
        return _admit(self.entries, plan, delta, run_id, unit)[0]

    def debit(
        self, plan: Planned, *, delta: float, method: str, run_id: str = "", unit: str = ONE_RECORD
    ) -> Receipt:
        """Debit a plan's event, irrevocably.

        Args:
            plan: The plan of the run.
            delta: The delta at which its own epsilon is stated.
            method: The method, in a word or two.
            run_id: Identifier of a run that may continue after a crash: it is debited once.
            unit: The privacy unit of the plan.

        Returns:
            The receipt, once the entry is on the disk.

        Raises:
            SpentError: The plan exceeds the budget.
            ValueError: Another relation or unit.
            LedgerError: The file was changed.
        """
        with _appending(self.path) as handle:
            entries = _entries(handle, self.path)
            spent, entry = _admit(entries, plan, delta, run_id, unit)
            if entry is None:
                content = {"kind": "debit", "method": method, "event": event_to_dict(plan.event())}
                content |= {"slack": plan.slack, "delta": delta, "run_id": run_id, "unit": unit}
                entry = _append(handle, entries, content)
        cap = _cap(entries)
        where = (self.path.name, entries[0]["dataset"], entry["number"], entry["hash"])
        return Receipt(*where, spent, cap.epsilon, cap.delta, entry.get("unit", ONE_RECORD))

    def set_cap(self, *, epsilon: float, delta: float, raised: bool = False) -> None:
        """Change the cap.

        Args:
            epsilon: The new epsilon.
            delta: The new delta.
            raised: Required if the new cap is higher. A new cap, higher or lower, is guaranteed
                only if the decision for it does not depend on the results so far.

        Raises:
            ValueError: A higher cap without `raised`.
        """
        cap = PrivacyFilter(epsilon=epsilon, delta=delta)
        with _appending(self.path) as handle:
            entries = _entries(handle, self.path)
            old = _cap(entries)
            if (cap.epsilon > old.epsilon or cap.delta > old.delta) and not raised:
                raise ValueError(
                    f"The cap is epsilon {old.epsilon:g} at delta {old.delta:g}, and epsilon {cap.epsilon:g} at delta "
                    f"{cap.delta:g} is more, which breaks the promise of the old cap. Pass raised=True (`--raise`) if this is "
                    "intended."
                )
            _append(handle, entries, {"kind": "cap", "epsilon": cap.epsilon, "delta": cap.delta})

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def _repr_html_(self) -> str:
        lines = str(self).split("\n")
        headline = next(line for line in lines if line.startswith("Spent: "))
        return notebook_html(headline, "\n".join(line for line in lines if line is not headline))

    def __str__(self) -> str:
        entries = self.entries
        first = entries[0]
        cap = _cap(entries)
        debits = _debits(entries)
        spent = _spent(entries)
        lines = [
            f"Ledger of '{first['dataset']}' ({first['unit']}, {neighbours(self.relation).name()}), created {first['time']}",
            *(
                f"  {debit.number:>3}  {debit.time}  {debit.method:<12} ε = {upper(debit.cost.epsilon)} "
                f"at δ = {upper(debit.delta)}, for {debit.unit}"
                for debit in debits
            ),
            f"Spent: ε = {upper(spent)} of the cap of ε = {upper(cap.epsilon)} at δ = {upper(cap.delta)}. "
            f"Left: about {max(0.0, cap.epsilon - spent):.4g} or more.",
        ]
        if len(debits) > 1:
            # What holds for fits planned one after another holds for these, too; two releases with
            # Laplace noise are composed numerically, a little above the sum.
            together = upper(min(spent, self.epsilon_if_planned_together(cap.delta)))
            lines.append(
                f"If every fit was planned before any result was seen, their total cost is ε = {together}."
            )
        if sum(entry["kind"] == "cap" for entry in entries):
            lines.append("The cap was changed after the ledger was created: see its `cap` entries.")
        return "\n".join(lines)


def default_delta(num_records: int, ledger: Ledger | None) -> float:
    """The delta of a fit that is given none: that of `accounting.suggest`, and at most a tenth of the cap's of its ledger.

    A ledger adds the delta of its fits. One of the cap's own delta leaves no room for a sum by
    epsilon: epsilon = 1 was charged as 1.32.
    """
    usual = suggest(num_records=num_records).delta
    if not isinstance(ledger, Ledger):
        return usual
    return min(usual, float(f"{ledger.cap.delta / 10:.3g}"))


def _admit(
    entries: Sequence[Entry], plan: Planned, delta: float, run_id: str, unit: str
) -> tuple[float, Entry | None]:
    """The part of the cap's epsilon that is spent after the plan; and the debit of a run that continues."""
    event = plan.event()
    cap = _cap(entries)
    before = [debit.cost for debit in _debits(entries)]
    for entry in entries:
        if run_id and entry.get("run_id") == run_id:
            if entry["event"] != event_to_dict(event):
                raise LedgerError(
                    "The ledger has a debit of this run for another event. Start a new run, in another folder."
                )
            return cap.spent(before), entry
    _check_terms(entries, plan, unit)
    relation = plan.relation
    spent = cap.spent([*before, cost_of(event, relation, delta=delta, slack=plan.slack)])
    if spent > cap.epsilon:
        raise SpentError(
            f"The plan exceeds the remaining budget of '{entries[0]['dataset']}': the total would be ε = "
            f"{upper(spent)}, and the cap is ε = {upper(cap.epsilon)} at δ = {cap.delta:.3g}, of which "
            f"{upper(cap.spent(before))} is spent. Nothing was debited. {_what_fits(cap, before, relation, delta)} "
            "(Where the δ of all fits are more than half of the cap's δ together, the ledger charges a fit more than its ε.)"
        )
    return spent, None


def _what_fits(cap: PrivacyFilter, before: Sequence[Cost], relation: Relation, delta: float) -> str:
    """The largest ε at a δ that the rest of a budget holds, in words; of a release with Gaussian noise, as most are."""
    if not delta:
        return "Plan a smaller ε."
    low = math.log(0.1)
    high = math.log(1e5)
    fitting = 0.0
    while high - low > 0.003:
        middle = (low + high) / 2
        cost = cost_of(GaussianDpEvent(math.exp(middle)), relation, delta=delta)
        if cap.admits([*before, cost]):
            fitting = cost.epsilon
            high = middle
        else:
            low = middle
    if fitting < 0.001:
        return "Nothing is left for another release."
    return f"About ε = {math.floor(1000 * fitting) / 1000:g} is left for one more release at δ = {delta:.3g}."


def _check_terms(entries: Sequence[Entry], plan: Planned, unit: str) -> None:
    """Refuse a plan with another unit or relation than the ledger's."""
    # A person has several records, and changing one row replaces the person: neither unit bounds
    # the other.
    if (unit == ONE_RECORD) != (entries[0]["unit"] == ONE_RECORD):
        remedy = (
            "Open another ledger for it, with the unit 'one person' (--unit)."
            if unit != ONE_RECORD
            else "Name the column that identifies persons (person in the schema, groups= of an estimator, person= of run)."
        )
        raise ValueError(
            f"The ledger is about {entries[0]['unit']}, and this fit protects {unit}: the cap would not hold for the ledger's "
            f"unit. {remedy}"
        )
    relation = Relation[entries[0]["relation"]]
    if plan.relation is not relation:
        ledgers, plans = (neighbours(x).name("record") for x in (relation, plan.relation))
        raise ValueError(
            f"The ledger is for neighbouring tables with {ledgers}, and this plan for {plans}: their costs cannot be added. "
            "Make the plan for the ledger's relation."
        )


def _cap(entries: Sequence[Entry]) -> PrivacyFilter:
    last = next(entry for entry in reversed(entries) if entry["kind"] in ("open", "cap"))
    return PrivacyFilter(epsilon=last["epsilon"], delta=last["delta"])


def _spent(entries: Sequence[Entry]) -> float:
    return _cap(entries).spent([debit.cost for debit in _debits(entries)])


# The cost of an entry, by its hash, which covers all its content and all entries before it, and by
# relation.
_costs: dict[str, Cost] = {}


def _debits(entries: Sequence[Entry]) -> list[Debit]:
    relation = Relation[entries[0]["relation"]]
    found = []
    for entry in entries:
        if entry["kind"] != "debit":
            continue
        event = event_from_dict(entry["event"])
        digest = entry["hash"]
        delta = entry["delta"]
        if digest not in _costs:
            _costs[digest] = cost_of(event, relation, delta=delta, slack=entry["slack"])
        unit = entry.get("unit", ONE_RECORD)
        found.append(
            Debit(
                entry["number"], entry["time"], entry["method"], event, delta, _costs[digest], unit
            )
        )
    return found
