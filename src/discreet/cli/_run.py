"""From records and a plan to a posterior in files, through Ctrl-C and crashes: what `fit`, `demo` and `resume` share."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import discreet as dp
from discreet._validate import require
from discreet.cli._options import LINEAR, AsJson
from discreet.cli._own_model import FILE as MODEL_FILE
from discreet.cli._report import latent_of, plot, relative, summarise, write_page, write_results, write_statement
from discreet.cli._terminal import (
    continue_hint,
    folder_for_results,
    give_room,
    refusing,
    say_error,
    say_lines,
    settings,
    spent,
    write_file,
)

if TYPE_CHECKING:
    import numpy as np

    from discreet.cli._own_model import Prepared

    Draw = Callable[[int], dict[str, np.ndarray]]


COMMAND = "command.json"
CHECKPOINT = "checkpoint.discreet"
STATEMENTS = "statements.sha256"

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="What --checkpoint named.")]


@refusing
def resume(context: typer.Context, folder: Folder, as_json: AsJson = False) -> None:
    """Continue a fit that was started with --checkpoint and stopped: by Ctrl-C, a crash or a full disk.

    `discreet resume saved`

    Runs the same command again, in the folder where it was started. The result has the same bits as that of a fit that was
    never stopped, and the budget is spent once.
    """
    try:
        kept = json.loads((folder / COMMAND).read_text(encoding="utf-8"))
        arguments, where = [str(word) for word in kept["arguments"]], Path(kept["folder"])
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
    settings.continue_with = f"discreet resume {shlex.quote(str(folder))}"
    os.chdir(where)
    if as_json and "--json" not in arguments:
        arguments.append("--json")
    settings.arguments = tuple(arguments)
    # The root command: importing the application here would be a circle.
    context.find_root().command.main(args=arguments, prog_name="discreet")


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
            raise ValueError("--coordinator, --processes and --process-id are for --distributed: add it")
        yield dp.inference.Processes()
        return
    try:
        processes = dp.inference.Processes.start(coordinator, count, index)
    except ValueError as error:
        raise ValueError(f"{error}: give --coordinator, --processes and --process-id") from None
    sys.excepthook = _say_unexpected
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of schedulers: as Ctrl-C, which the others learn of
    settings.silent = not processes.first
    _own_output(sys.stdout.fileno() if settings.document is None else settings.document.fileno())
    with processes:
        yield processes


def _own_output(file: int) -> None:
    """Let nothing but the first process's command write on standard output: gloo announces its connections there."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    output = os.fdopen(nowhere if settings.silent else os.dup(file), "w", encoding="utf-8", errors="replace")
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
    if settings.continue_with is None and settings.arguments is not None and not (checkpoint / CHECKPOINT).exists():
        kept = {"arguments": settings.arguments, "folder": str(Path.cwd())}
        write_file(checkpoint / COMMAND, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    if (checkpoint / COMMAND).exists() and settings.continue_with is None:
        settings.continue_with = f"discreet resume {shlex.quote(str(checkpoint))}"


def note_statement(checkpoint: Path | None, content: str) -> None:
    """Record the hash of a statement before it is written, so that the same fit may replace it when it continues.

    Hashes of earlier statements stay: a process can die between this and the writing of the statement itself.
    """
    if checkpoint is not None:
        known = (*_statements(checkpoint), hashlib.sha256(content.encode("utf-8")).hexdigest())
        write_file(checkpoint / STATEMENTS, "".join(f"{line}\n" for line in known))


def is_own_statement(checkpoint: Path | None, file: Path) -> bool:
    """True if the fit in the checkpoint wrote this statement."""
    return checkpoint is not None and hashlib.sha256(file.read_bytes()).hexdigest() in _statements(checkpoint)


def _statements(checkpoint: Path) -> list[str]:
    file = checkpoint / STATEMENTS
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def kept_secret(path: Path) -> bytes:
    """32 secret bytes, the same every time; in a file of its owner's alone."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with dp.storage.replacing(path, private=True) as file:
                file.write(secrets.token_bytes(32))
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}): choose another --checkpoint") from None


PLAN_IS_SPENT = "count the ε of the whole plan as spent"
RELATIVE = (
    " The weights of one column's categories are relative to their mean, which the intercept has; in posterior.npz they are "
    "not."
)
ESTIMATES = (
    " To predict, use the estimates in summary.json, which are drawn to 0 where the noise hides a coefficient. Features and "
    "target are scaled to [-1, 1] by their bounds. sigma has no interval: one would hold only for normal residuals with the "
    "same spread everywhere. Where they have long tails, sigma is smaller than their standard deviation."
)
SPREAD_WITH_NOISE = "The draws in posterior.npz include the noise of the private fit."
NO_INTERVALS = "No intervals are given: a fit in steps does not measure how far its noise moved the coefficients."
SPREAD = (
    "The draws in posterior.npz are those of the fitted guide: their spread does not include the noise of the private fit, which "
    "can be several times as large at small ε."
)
TWIN_SPREAD = (
    "Twins are drawn from the fitted guide, which does not include the noise of the private fit: analyses of several twins "
    "understate their uncertainty at small ε."
)


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A fit whose results are in files."""

    result: "dp.DPSVIResult | dp.moments.MomentsResult"  # The result of the fit
    statement: "dp.Statement"  # Its statement, with the command's additions
    samples: dict[str, np.ndarray]  # Draws of each global latent; none of a model of a whole table
    rows: list[tuple[str, dict[str, float]]]  # Mean and interval of each coefficient, by name
    files: list[Path]  # The files written
    own: "Prepared | None" = None  # The user's model, if it is one
    scales_target: bool = False  # True if the target is a number that was scaled by its bounds
    left_out: str = ""  # The share of records that the schema drops, in a sentence

    @property
    def by_moments(self) -> bool:
        """True if the fit was computed from noisy sums, without steps."""
        return isinstance(self.result, dp.moments.MomentsResult)

    @property
    def stopped_after(self) -> int | None:
        """The number of steps after which Ctrl-C stopped the fit; None if it did not."""
        if isinstance(self.result, dp.moments.MomentsResult):
            return None
        done = self.result.steps_completed
        return done if done < self.result.plan.num_steps else None

    def facts(self) -> dict[str, Any]:
        """The fit for programs."""
        from discreet._validate import finite_or_none

        rows = {name: {part: x for part, x in row.items() if part != "sd"} for name, row in self.rows}
        return {
            "statement": self.statement.to_dict(),
            "converged": getattr(self.result, "converged", None),
            "warnings": [*self.statement.warnings, *[NO_INTERVALS] * (bool(self.rows) and not self.by_moments)],
            "coefficients": finite_or_none(rows),
            "files": [str(file) for file in self.files],
        }

    def say(self, what: str, ledger: Path | None) -> None:
        """Ten lines: for whom, at what price, whether it converged, the strongest coefficients, files, what to do next."""
        out = self.files[0].parent
        steps = self.stopped_after
        line = f"Fitted {what}" if steps is None else f"Stopped after {steps:,} steps of fitting {what}"
        say_price(line, self.statement, budget_line(ledger, self.statement.delta))
        if self.statement.use:
            usable = self.statement.use != dp.report.NOT_USABLE
            say_lines(f"Use: {dp.report.use_words(self.statement)}", fg=None if usable else "yellow")
        if self.left_out:
            say_lines(self.left_out)
        for warning in self.statement.warnings:
            say_lines(f"Warning: {warning}", fg="yellow")
        self._say_coefficients()
        say_lines(f"Files in {out}: {', '.join(file.name for file in self.files)}.")
        twins = f"discreet synth {shlex.quote(str(out))}"
        if not self.samples:
            say_lines(f"Next: {twins} --twins 5 --out twins")
        elif self.own is not None and self.own.draws_rows:
            say_lines(f"Next: {twins} --model {self.own.own.name} --out twins")
        else:
            say_lines(
                f"Next: discreet explain {shlex.quote(str(self.files[0]))}, and {out / 'report.html'} in a browser."
            )

    def _say_coefficients(self) -> None:
        others = {"intercept"} if self.own is not None else self.samples.keys() - {"weights"}
        weights = [(name, row) for name, row in self.rows if latent_of(name) not in others]
        if not weights:
            return
        # Of a fit in steps no error is known, so the largest may be the noisiest: they stand in the table's order.
        named = sorted(weights, key=lambda pair: -abs(pair[1]["mean"])) if self.by_moments else weights
        named = named[:SHOWN]
        scale = "in their own units" if self.own is not None and self.own.raw else "scaled to [-1, 1] by their bounds"
        scale = f"features {'and target ' if self.scales_target else ''}{scale}"
        which = "Coefficients"
        if len(weights) > SHOWN:
            which = (
                f"Largest of {len(weights)} coefficients"
                if self.by_moments
                else f"First {SHOWN} of {len(weights)} coefficients"
            )
        intervals = ", each with its 90 % interval" if self.by_moments else ", no intervals"
        say_lines(f"{which} ({scale}){intervals}:")
        for name, row in named:
            ends = f" ({row['low']:.3g} to {row['high']:.3g})" if self.by_moments else ""
            say_lines(f"  {name}: {row['mean']:.{3 if self.by_moments else 2}g}{ends}")

    def leave(self) -> None:
        """End the command with the exit code of an interrupted one, if Ctrl-C stopped the fit."""
        if self.stopped_after is not None:
            steps = f"{self.stopped_after:,} of {self.statement.plan['num_steps']:,} steps"
            say_error(f"Stopped after {steps}. The budget of all steps is spent.{continue_hint()}")
            raise typer.Exit(130)


SHOWN = 3
ROOM = 2**24
"""Bytes of the disk that are reserved for the files of results before anything is spent."""
AGAIN = "The fit ran. Start all processes again with the same command: it is written from its checkpoint, at no further cost."


def say_price(what: str, statement: "dp.Statement", budget: str) -> None:
    """Print the action, the privacy unit, the cost, and the remaining budget."""
    say_lines(f"{what}. Protected: {statement.unit}.")
    held = f"ε = {dp.accounting.upper(statement.epsilon)} at δ = {statement.delta:g}"
    say_lines(f"{held}." if statement.is_private else f"NOT PRIVATE: {held} does not hold; the statement says why.")
    say_lines(f"Budget: {budget}")


def tenth_of_cap(ledger: Path) -> float:
    """A tenth of the δ of a ledger's cap: fits of it are charged their own ε, or less."""
    return float(f"{dp.Ledger(ledger).cap.delta / 10:.3g}")


def budget_line(ledger: Path | None, delta: float) -> str:
    """The spent and remaining budget, and why a fit at this δ is charged more than its ε."""
    if ledger is None:
        return "no --ledger keeps count. The ε of all releases from the same data add up."
    book = dp.Ledger(ledger)
    gone, cap = book.spent, book.cap.epsilon
    shown, whole = dp.accounting.upper(gone), dp.accounting.upper(cap)
    line = f"ε = {shown} of {whole} in {ledger} is spent, about {max(0.0, cap - gone):.4g} is left."
    most = tenth_of_cap(ledger)
    if delta > most:
        why = f"δ = {delta:g} is more than a tenth of the cap's, so a fit may be charged more than its ε"
        line += f" {why}: try --delta {most:g}."
    return line


def charge_line(ledger: Path, plan: "dp.accounting.Planned", delta: float, schema: "dp.tables.Schema") -> str:
    """The cost of a plan in the ledger, or the reason of its refusal. Debits nothing."""
    book = dp.Ledger(ledger)
    try:
        after = book.check(plan, delta=delta, unit=dp.ledger.ONE_RECORD if schema.person is None else "one person")
    except (dp.SpentError, ValueError) as error:
        return f"The ledger would refuse this fit. {error}"
    return f"After it, ε = {dp.accounting.upper(after)} of {dp.accounting.upper(book.cap.epsilon)} in {ledger} would be spent."


def fit_and_write(
    out: Path,
    model: Callable[..., object],
    plan: "dp.PrivacyPlan | dp.moments.MomentsPlan",
    records: "dp.tables.Records",
    *,
    complete: Callable[["dp.Statement"], "dp.Statement"],
    draws: int,
    whole: "dp.models.MixtureOfProducts | None" = None,
    ledger: Path | None = None,
    checkpoint: Path | None = None,
    own: "Prepared | None" = None,
    drops: Sequence[str] = (),
    groups: Sequence[Sequence[int]] = (),
    processes: "dp.inference.Processes | None" = None,
    about: Mapping[str, str] | None = None,
    classes: Sequence[str] = (),
    **how: Any,
) -> Fitted:
    """Spend the budget, and write the statement before anything else can fail.

    `out` is checked before the fit; results of an earlier one in it are replaced. `complete` adds to the statement what
    the command knows besides. Of a `whole` table's model, what twins need is written and no draws; of the user's `own`,
    what twins need, too. Rows with a missing cell in a column of `drops` were left out. `groups` are the places of the
    features of each column of categories. `how` is what `run` takes besides; `classes` are a multinomial target's
    categories. Of several `processes` the first one writes; what the others return has no files.
    """
    processes = processes or dp.inference.Processes()
    after = (
        ("The fit ran and its budget is spent.", dp.inference.FAILED)
        if checkpoint is None
        else (AGAIN, dp.inference.START_AGAIN)
    )
    for name, given in (("--checkpoint", checkpoint), ("--ledger", ledger)):
        processes.first_is_given(name, given is not None)
    if not processes.first:
        ledger = checkpoint = None
    with ExitStack() as stack:
        with processes.together():
            # The page is written last: what it needs must be there before anything is spent.
            require("jinja2", extra="cli", what="The statement page")
            if processes.first:
                stack.enter_context(folder_for_results(out, room=ROOM + 16 * draws * len(records.feature_names)))
        if isinstance(plan, dp.moments.MomentsPlan):
            result, draw = run_moments(plan, records, ledger=ledger, **how)
        else:
            how |= {"whole": whole, "ledger": ledger, "checkpoint": checkpoint, "own": own}
            how["processes"] = processes
            result, draw = run(model, plan, records, **how)
        spent(f"no statement was written, so {PLAN_IS_SPENT}")
        processes.remedy = after
        stack.enter_context(processes.together())
        if not processes.first:
            return Fitted(result, result.statement, {}, [], [])
        by_moments = isinstance(result, dp.moments.MomentsResult)
        spread = SPREAD_WITH_NOISE if by_moments else SPREAD if whole is None else TWIN_SPREAD
        statement, left_out = result.statement, ""
        if drops:
            # Asked for, so not worth a warning.
            left_out = left_out_words(result, drops)
            statement = dataclasses.replace(statement, data_warnings=()).with_notes(left_out)
        statement = complete(statement).with_notes(spread)
        files = write_first(out, statement, checkpoint)
        samples = draw(draws) if whole is None else {}
        rows = []
        if whole is None:
            drawn, estimate = samples, None
            if groups:
                contrasts = dp.models.contrasts(len(records.feature_names), groups)
                drawn = relative(samples, contrasts)
            if isinstance(result, dp.moments.MomentsResult):
                estimate = contrasts @ result.estimate if groups else result.estimate
            note = dp.report.use_words(statement) if by_moments else NO_INTERVALS
            note += (RELATIVE if groups else "") + (ESTIMATES if by_moments else "")
            rows = summarise(drawn, records, estimate, classes)
            facts = {"statement": statement, "note": note, "about": about}
            files += write_results(out, result, samples, records, rows, **facts)
            files += [] if own is None else [write_file(out / MODEL_FILE, own.settings_text())]
        elif not isinstance(result, dp.moments.MomentsResult):
            files += dp.synthetic.write_fitted(out, dataclasses.replace(result, statement=statement), whole)
        if not isinstance(result, dp.moments.MomentsResult):
            files += plot(out, result)
        files.append(write_page(out, ledger=ledger).file)
        scales_target = about is not None and about["model"] == LINEAR
        return Fitted(result, statement, samples, rows, files, own, scales_target, left_out)


def left_out_words(result: Any, drops: Sequence[str]) -> str:
    """The share of the records that the schema drops, in a sentence."""
    counted, noun = result.counted, result.statement.noun
    share = counted._replace(value=1 - counted.value)
    return (
        f"Left out, as the schema asks: {share} of the {result.plan.num_records:,} {noun}s, for a missing cell in "
        f"{', '.join(drops)}. If that is more than the table has of them, other {noun}s had no finite loss."
    )


def write_first(out: Path, statement: "dp.Statement", checkpoint: Path | None, done: str = "The fit ran") -> list[Path]:
    """Write the statement before anything else can fail, or print it: what was spent must at least be known."""
    give_room(out)
    try:
        note_statement(checkpoint, statement.to_json())
        files = write_statement(out, statement)
    except OSError:
        say_lines(str(statement))
        spent(f"the statement could not be written to {out} and was printed on standard output", done)
        raise
    spent(f"the statement is in {files[0]}", done)
    return files


def count_and_write(
    out: Path,
    data: Path,
    plan: "dp.marginals.MarginalsPlan",
    *,
    complete: Callable[["dp.Statement"], "dp.Statement"],
    then: Callable[["dp.marginals.Marginals"], list[Path]],
    ledger: Path | None,
    out_of_bounds: str,
    seed: int | None,
    keep: Path | None = None,
    progress_bar: bool = False,
) -> tuple["dp.Statement", list[Path]]:
    """Count, write the statement before anything else can fail, then what follows from the counts, and the page.

    Arguments as in `fit_and_write`; `then` writes files from the noisy counts, whose statement is complete. While pairs of
    columns are chosen, the file `keep` has what was counted so far, from which `discreet fit` goes on if that is interrupted.
    """
    require("jinja2", extra="cli", what="The statement page")
    keep_compiled_programs(settings.compilation_cache)
    book, order = None if ledger is None else dp.Ledger(ledger), None
    if seed is not None:
        order = hashlib.sha256(str(seed).encode()).digest()

    def save(released: "dp.marginals.Marginals") -> None:
        done = "The releases were made"
        spent(f"no statement was written, so {PLAN_IS_SPENT}", done)
        if keep is not None:
            dataclasses.replace(released, statement=complete(released.statement)).save(keep)
            spent(
                f"what was counted is in {keep}, which discreet fit --model twin takes as --data, and spends nothing",
                done,
            )

    options = {
        "ledger": book,
        "out_of_bounds": out_of_bounds,
        "person_key": order,
        "non_private_seed": seed is not None,
        "keep": save,
        "progress_bar": progress_bar,
    }
    with folder_for_results(out, room=ROOM):
        released = dp.marginals.private_marginals(dp.random.key(seed), data, plan, **options)
        done = "The release was made"
        spent(f"no statement was written, so {PLAN_IS_SPENT}", done)
        statement = complete(released.statement).with_notes(*dp.marginals.not_counted(released.plan))
        files = write_first(out, statement, None, done)
        files += then(dataclasses.replace(released, statement=statement))
        files.append(write_page(out, ledger=ledger).file)
    return statement, files


def run(
    model: Callable[..., object],
    plan: "dp.PrivacyPlan",
    records: "dp.tables.Records",
    *,
    processes: "dp.inference.Processes",
    learning_rate: float,
    seed: int | None,
    progress_bar: bool,
    whole: "dp.models.MixtureOfProducts | None" = None,
    ledger: Path | None = None,
    checkpoint: Path | None = None,
    person: str | None = None,
    max_rows: int = 1,
    own: "Prepared | None" = None,
) -> tuple["dp.DPSVIResult", Draw]:
    """Fit by DPSVI with a diagonal normal guide, or the whole table's own; arguments as in `fit_and_write`.

    A `seed` of None is the operating system's entropy; `person` and `max_rows` are as in `DPSVI.run`.
    Also returned is a function from a number of draws to the draws of each global latent along the leading axis.
    """
    import jax
    import numpy as np
    import numpyro

    with processes.together():
        book = None if ledger is None else dp.Ledger(ledger)
        keep_compiled_programs(settings.compilation_cache)
        fit_key, draw_key = jax.random.split(dp.random.key(seed))
        if checkpoint is not None and seed is None:
            # A fit that continues draws the same posterior sample as one that was never stopped.
            words = np.frombuffer(kept_secret(checkpoint / "draws.key"), "<u4")
            draw_key = dp.random.key_from_words(words, reproducible=False)
        guide = own.guide if own is not None and own.guide is not None else dp.models.guide_for(whole or model)
        placeholder = None if whole is None else whole.placeholder
        dpsvi = dp.inference.DPSVI(model, guide, numpyro.optim.Adam(learning_rate), plan=plan, placeholder=placeholder)
        arrays: tuple[Any, ...] = records.arrays
        if own is not None and own.of_columns:
            named = dict(zip(records.feature_names, np.moveaxis(records.x, -1, 0), strict=True))
            named = named if records.y is None else named | {own.schema.target: records.y}
            arrays = (named,) if records.mask is None else (named, records.mask)
    if checkpoint is not None and (checkpoint / CHECKPOINT).exists():
        spent(f"it was started earlier, so {PLAN_IS_SPENT}")
    if progress_bar and processes.first:
        say_error("Compiling the fit, which takes up to a minute. Steps follow.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dp.inference.UseWarning)  # `Fitted.say` and the statement say the same
            result = dpsvi.run(
                fit_key,
                *arrays,
                progress_bar=progress_bar,
                ledger=book,
                checkpoint=checkpoint,
                person=person,
                max_rows=max_rows,
                mesh=processes.mesh,
            )
    except BaseException as error:
        if seed is None and dp.random.is_used(fit_key):
            spent(f"it stopped before it wrote a statement, so {PLAN_IS_SPENT}")
        elif own is not None and isinstance(error, Exception):
            raise own.explain(error) from error
        raise

    def draw(number: int) -> dict[str, np.ndarray]:
        return {name: np.asarray(drawn) for name, drawn in result.posterior(draw_key, number).items()}

    return result, draw


def run_moments(
    plan: "dp.moments.MomentsPlan",
    records: "dp.tables.Records",
    *,
    seed: int | None,
    progress_bar: bool,
    ledger: Path | None = None,
    person: str | None = None,
    **_: Any,
) -> tuple["dp.moments.MomentsResult", Draw]:
    """Fit a line to noisy moments; arguments and results as in `run`, whose other arguments are of steps."""
    import jax

    keep_compiled_programs(settings.compilation_cache)
    fit_key, draw_key = jax.random.split(dp.random.key(seed))
    if progress_bar:
        say_error("Measuring noisy sums. It takes some seconds.")
    assert records.y is not None
    try:
        book = None if ledger is None else dp.Ledger(ledger)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dp.inference.UseWarning)  # as above
            result = dp.moments.fit_moments(fit_key, records.x, records.y, plan, person=person, ledger=book)
    except BaseException:
        if seed is None and dp.random.is_used(dp.random.subkey(fit_key, dp.random.Purpose.MOMENTS)):
            spent(f"it stopped before it wrote a statement, so {PLAN_IS_SPENT}")
        raise
    return result, lambda number: result.posterior(draw_key, number)


def keep_compiled_programs(folder: Path | None) -> None:
    """Let JAX keep compiled programs in a folder, and take them from there. None: whatever JAX is set to.

    Records are arguments of programs and so never in one; those that come in through a closure are refused before the loop is
    compiled with them.
    """
    import jax

    from discreet._jax import reset_compilation_cache

    if folder is None:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _others_may_write(folder, folder):
        raise ValueError(
            f"--compilation-cache: others can write to {folder}, and the programs in it are executed: one could add no noise. "
            f"Use a folder of your own, or run chmod 700 {folder}."
        )
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Setting up a model takes many small programs, each of which takes less time than JAX thinks worth keeping.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # JAX decides at the first compilation whether there is a cache.
    reset_compilation_cache()
