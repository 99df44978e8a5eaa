"""What surrounds a release: several processes, checkpoints and `discreet resume`, the ledger, the statement's files."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet.interfaces.cli._options import AsJson, tenth_of_cap
from discreet.interfaces.cli._report import write_statement
from discreet.interfaces.cli._statement import price_words
from discreet.interfaces.cli._terminal import (
    give_room,
    refusing,
    say_files,
    say_lines,
    settings,
    spent,
    write_file,
)

COMMAND = "command.json"
CHECKPOINT = "checkpoint.discreet"
STATEMENTS = "statements.sha256"


@refusing
def resume(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What --checkpoint named.")],
    as_json: AsJson = False,
) -> None:
    """Continue a fit that was started with --checkpoint and stopped: by Ctrl-C, a crash or a full disk.

    `discreet resume saved`

    Runs the same command again, in the folder where it was started. The result has the same bits as
    that of a fit that was never stopped, and the budget is spent once.
    """
    try:
        kept = json.loads((folder / COMMAND).read_text(encoding="utf-8"))
        arguments = [str(word) for word in kept["arguments"]]
        where = Path(kept["folder"])
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(
            f"{folder} contains no fit that was started with --checkpoint: check the path. To continue the fit of a Python "
            "program, run the program again."
        ) from None
    if _others_may_write(folder, folder / COMMAND):
        raise ValueError(
            f"others can write to {folder}, and the command kept there is executed: run chmod 700 {folder} if it is yours"
        )
    if not where.is_dir():
        raise ValueError(
            f"{where}, where the fit was started, does not exist any more: run the fit's command again where its table is"
        )
    named = where / _checkpoint_in(arguments)
    if named.resolve() != folder.resolve():
        raise ValueError(
            f"{folder} was moved or copied: its command would begin a fit in {named} and spend again. Move it back there"
        )
    settings.continue_with = f"discreet resume {shlex.quote(str(folder))}"
    os.chdir(where)
    if as_json and "--json" not in arguments:
        arguments.append("--json")
    settings.arguments = tuple(arguments)
    # The root command: importing the application here would be a circle.
    context.find_root().command.main(args=arguments, prog_name="discreet")


def _checkpoint_in(arguments: list[str]) -> str:
    """The folder that a command names with --checkpoint."""
    for place, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name == "--checkpoint":
            return value or (arguments[place + 1] if place + 1 < len(arguments) else "")
    return ""


def _others_may_write(folder: Path, file: Path) -> bool:
    """True if others may write to a folder, or own a file in it."""
    own = not hasattr(os, "getuid") or file.stat().st_uid == os.getuid()
    return not own or bool(folder.stat().st_mode & 0o022)


@contextmanager
def joined(
    distributed: bool, coordinator: str | None, count: int | None, index: int | None
) -> "Iterator[dp.inference.Processes]":
    """The processes that run the command together: this one, or with --distributed all; of which the first one speaks."""
    if not distributed:
        if any(x is not None for x in (coordinator, count, index)):
            raise ValueError(
                "--coordinator, --processes and --process-id are for --distributed: add it"
            )
        yield dp.inference.Processes()
        return
    try:
        processes = dp.inference.Processes.start(coordinator, count, index)
    except ValueError as error:
        raise ValueError(f"{error}: give --coordinator, --processes and --process-id") from None
    sys.excepthook = _say_unexpected
    # of schedulers: as Ctrl-C, which the others learn of
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings.silent = not processes.first
    _own_output(sys.stdout.fileno() if settings.document is None else settings.document.fileno())
    with processes.joined():
        yield processes


def _own_output(file: int) -> None:
    """Let nothing but the first process's command write on standard output: gloo announces its connections there."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    output = os.fdopen(
        nowhere if settings.silent else os.dup(file), "w", encoding="utf-8", errors="replace"
    )
    os.dup2(nowhere, file)
    if settings.document is None:
        sys.stdout = output
    else:
        settings.document = output


def _say_unexpected(kind: type[BaseException], error: BaseException, where: Any) -> None:
    """Say what ended one of several processes; the message may quote the data."""
    if settings.debug:
        traceback.print_exception(kind, error, where)
    sys.stderr.write(f"Stopped by an unexpected {kind.__name__}. Add --debug to see more.\n")


def remember(checkpoint: Path) -> None:
    """Keep the command that is running, for `resume`."""
    checkpoint.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (
        settings.continue_with is None
        and settings.arguments is not None
        and not (checkpoint / CHECKPOINT).exists()
    ):
        kept = {"arguments": settings.arguments, "folder": str(Path.cwd())}
        write_file(checkpoint / COMMAND, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    if (checkpoint / COMMAND).exists() and settings.continue_with is None:
        settings.continue_with = f"discreet resume {shlex.quote(str(checkpoint))}"


def _statements(checkpoint: Path | None) -> list[str]:
    """The hashes of the statements that the fit in a checkpoint wrote."""
    file = None if checkpoint is None else checkpoint / STATEMENTS
    return (
        [] if file is None or not file.exists() else file.read_text(encoding="utf-8").splitlines()
    )


def check_folder(out: Path, checkpoint: Path | None = None, *, overwrite: bool) -> None:
    """Refuse to write where an earlier fit's results are."""
    earlier = out / "statement.json"
    if overwrite or not earlier.exists():
        return
    if hashlib.sha256(earlier.read_bytes()).hexdigest() not in _statements(checkpoint):
        raise ValueError(
            f"{out} contains the statement of an earlier release: choose another --out, or replace it with --overwrite"
        )


RELEASED = "The release was made"
ROOM = 2**24
"""Bytes of the disk that are reserved for the files of results before anything is spent."""


def say_price(what: str, statement: "dp.Statement", budget: str) -> None:
    """Print the action, the privacy unit, the cost, and the remaining budget."""
    say_lines(f"{what}. Protected: {statement.unit}.")
    price = price_words(statement)
    say_lines(
        f"{price}."
        if statement.is_private
        else f"NOT PRIVATE: {price} does not hold; the statement says why."
    )
    say_lines(f"Budget: {budget}")


def budget_line(ledger: Path | None, delta: float) -> str:
    """The spent and remaining budget, and why a fit at this δ is charged more than its ε."""
    if ledger is None:
        return "no --ledger keeps count. The ε of all releases from the same data add up."
    book = dp.Ledger(ledger)
    gone = book.spent
    cap = book.cap.epsilon
    upper = dp.accounting.upper
    line = f"ε = {upper(gone)} of {upper(cap)} in {ledger} is spent, about {max(0.0, cap - gone):.4g} is left."
    most = tenth_of_cap(ledger)
    if delta > most:
        why = f"δ = {delta:g} is more than a tenth of the cap's, so a fit may be charged more than its ε"
        line += f" {why}: try --delta {most:g}."
    return line


def say_spent(statement: "dp.Statement", ledger: Path | None, files: list[Path]) -> None:
    """Print what a release cost, the budget that is left, and the files."""
    say_lines(
        f"Spent: ε = {dp.accounting.upper(statement.epsilon)} at δ = {dp.accounting.upper(statement.delta)}."
    )
    say_lines(f"Budget: {budget_line(ledger, statement.delta)}")
    say_files(files)


def write_first(
    out: Path, statement: "dp.Statement", checkpoint: Path | None, done: str = "The fit ran"
) -> list[Path]:
    """Write the statement before anything else can fail, or print it: what was spent must at least be known.

    Its hash is kept before it, so that the same fit may replace it when it continues. Hashes of
    earlier statements stay: a process can die between the two.
    """
    give_room(out)
    try:
        if checkpoint is not None:
            known = [
                *_statements(checkpoint),
                hashlib.sha256(statement.to_json().encode()).hexdigest(),
            ]
            write_file(checkpoint / STATEMENTS, "".join(f"{line}\n" for line in known))
        files = write_statement(out, statement)
    except OSError:
        say_lines(str(statement))
        spent(
            f"the statement could not be written to {out} and was printed on standard output", done
        )
        raise
    spent(f"the statement is in {files[0]}", done)
    return files


def row_order(seed: int | None) -> bytes | None:
    """The key by which rows of each person are chosen, for a seed; None: a secret one."""
    return None if seed is None else hashlib.sha256(str(seed).encode()).digest()


def keep_compiled_programs(folder: Path | None) -> None:
    """Let JAX keep compiled programs in a folder, and take them from there. None: whatever JAX is set to.

    Programs of another version, processor or setting are in another folder within it: there are
    folders that several machines share, and a program may contain instructions that a processor
    lacks.

    Records are arguments of programs and so never in one; those that come in through a closure are
    refused before the loop is compiled with them.
    """
    import jax

    from discreet._jax import reset_compilation_cache, rounds_like

    if folder is None:
        return
    here = hashlib.sha256(
        f"{dp.__version__} {jax.__version__} {rounds_like()}".encode()
    ).hexdigest()[:16]
    # JAX would make the inner one, which a group may then write to.
    for each in (folder, folder / here):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _others_may_write(each, each):
            raise ValueError(
                f"--compilation-cache: others can write to {each}, and the programs in it are executed: one could add no noise. "
                f"Use a folder of your own, or run chmod 700 {each}."
            )
    jax.config.update("jax_compilation_cache_dir", str(folder / here))
    # Setting up a model takes many small programs, each of which takes less time than JAX thinks
    # worth keeping.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX decides at the first compilation whether there is a cache.
    reset_compilation_cache()
