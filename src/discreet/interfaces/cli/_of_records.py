"""A fit of records in memory, of `discreet fit`: reading, the plan, the files and the words that all methods of it share."""

import dataclasses
import hashlib
import math
import secrets
import shlex
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import discreet as dp
from discreet._validate import finite_or_none
from discreet.interfaces.cli._methods import Method
from discreet.interfaces.cli._options import LINEAR, MULTINOMIAL, suggest_delta, tenth_of_cap
from discreet.interfaces.cli._own_model import FILE as MODEL_FILE
from discreet.interfaces.cli._report import (
    NO_INTERVAL,
    latent_of,
    npz,
    profile_of,
    relative,
    summarise,
    write_page,
)
from discreet.interfaces.cli._run import (
    CHECKPOINT,
    budget_line,
    keep_compiled_programs,
    row_order,
    say_price,
    write_first,
)
from discreet.interfaces.cli._statement import dropped_cells, facts_about, warn
from discreet.interfaces.cli._terminal import (
    PLAN_IS_SPENT,
    continue_hint,
    has_begun,
    on_terminal,
    say_error,
    say_json,
    say_lines,
    settings,
    spent,
    write_file,
    write_json,
)

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import PRNGKeyArray


SHOWN = 3
MADE_UP = 7
NUM_DRAWS = 1_000
RELATIVE = (
    " The weights of one column's categories are relative to their mean{which}; the mean is in the intercept. In posterior.npz "
    "they are not relative."
)
NO_INTERVALS = "No intervals are given: a fit in steps does not measure how far its noise moved the coefficients."
FEWER = "Use fewer columns or categories, a smaller model, a larger --epsilon, or more records."
AGAIN = "The fit ran. Start all processes again with the same command: it is written from its checkpoint, at no further cost."


@dataclasses.dataclass
class OfRecords(Method, ABC):
    """A fit of records in memory; subclasses add a plan, a fit and sentences."""

    # The key by which rows of each person are chosen, if others must choose the same
    order: bytes | None = None
    most_delta: float = math.inf  # The largest default δ, by the ledger
    function: Any = None  # The NumPyro model
    records: Any = None  # The records that it takes
    result: Any = dataclasses.field(init=False)
    draw_key: Any = dataclasses.field(init=False)
    # Draws of each global latent
    samples: "Mapping[str, np.ndarray]" = dataclasses.field(default_factory=dict)
    # Mean and interval of each coefficient, by name
    rows: list[tuple[str, dict[str, float]]] = dataclasses.field(default_factory=list)

    intervals = False  # True if the intervals of its draws cover the noise
    spread = ""  # What the draws include, for the statement
    hidden = ""  # The sentence on a result that the noise hides
    hints = ""  # What else readers of the summary must know
    waiting = ""  # What takes a while
    in_shards = False  # True if several processes need their own shards alone

    def share(self) -> None:
        asked = self.asked
        members = self.members
        # Processes that differ would wait for one another.
        key = "secret" if asked.seed is None else str(asked.seed)
        members.agree(
            key=key, schema=dp.tables.schema_to_toml(self.schema), options=str(asked.dry_run)
        )
        checkpoint = asked.checkpoint
        ledger = asked.ledger
        self.order = row_order(asked.seed)
        if (
            asked.seed is None
            and self.schema.person is not None
            and (checkpoint is not None or members.count > 1)
        ):
            self.order = self._from_first(
                lambda: (
                    secrets.token_bytes(32)
                    if checkpoint is None
                    else dp.storage.kept_secret(checkpoint / "persons.key")
                )
            )
        # Process 0 alone may be given it: what the others do with it may not hang on it.
        if members.first_is_given("--ledger", ledger is not None):
            cap = self._from_first(lambda: repr(ledger and tenth_of_cap(ledger)).encode())
            self.most_delta = float(cap)

    def _from_first(self, make: Callable[[], bytes]) -> bytes:
        """Broadcast what process 0 makes, which alone may have the ledger and the checkpoint."""
        content = b""
        with self.members.together():
            if self.members.first:
                content = make()
        return self.members.from_first(content)

    def prepare(self) -> "OfRecords":
        asked = self.asked
        self.read()
        features = len(self.records.feature_names)
        count = self.records.num_records if asked.num_records is None else asked.num_records
        delta = (
            min(self.most_delta, suggest_delta(count, None)) if asked.delta is None else asked.delta
        )
        self.room += 16 * (asked.draws or NUM_DRAWS) * features
        method = self.method_for(count)
        method.check_weight()
        method.plan = method.plan_for(count, delta)
        warn(self.schema, asked.seed, asked.ledger, asked.data, by_bounds=asked.bounds is not None)
        return method

    def check_weight(self) -> None:
        """Refuse survey weights that the method cannot apply."""
        if self.schema.weight is not None and not self.weighs:
            raise ValueError(
                f"the schema has survey weights ('{self.schema.weight}'), and {self.why_not_weighed()}; take weight out of the "
                "schema, by which the column is one like others, or fit a built-in regression without options of steps"
            )

    def why_not_weighed(self) -> str:
        """Why the method cannot apply survey weights."""
        return dp.choose.Chosen(dp.choose.STEPS).lacks("weights")

    def read(self) -> None:
        """Find the model's function and read the records."""
        asked = self.asked
        made = self.made
        own = None
        if self.chosen.own is None:
            self.function = self.chosen.build(self.schema)
        else:
            own = self.own = self.chosen.own.prepare(self.schema, raw=asked.raw)
            self.function = own.function
            self.schema = own.schema
            if own.raw and made is not None:
                raise ValueError(
                    f"{asked.data} holds converted records, which are scaled: for raw columns give the table itself"
                )
            if not asked.as_json:
                own.say_features()
        if made is not None:
            # A model of named columns takes them apart, which shards on several machines cannot be.
            of_shards = self.in_shards and not (own is not None and own.of_columns)
            mesh = self.members.mesh if of_shards else None
            shown = on_terminal() and not settings.silent
            self.records = dp.tables.open_records(
                asked.data, self.schema, mesh=mesh, progress_bar=shown
            )
            return
        table = dp.tables.read_table(asked.data, self.schema, out_of_bounds=self.odd_cells)
        raw = own is not None and own.raw
        records = dp.tables.encode(
            table, self.schema, raw=raw, out_of_bounds=self.odd_cells, key=self.order
        )
        if own is not None and own.preprocesses:
            records = own.preprocessed(
                dp.tables.decode(records.x, self.schema, records.y, raw=True)
            )
            self.own = dataclasses.replace(own, seen=records.feature_names)
        self.records = records

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the model."""
        import numpy as np

        own = self.own
        records = self.records
        if own is None or not own.of_columns:
            return records.arrays
        named = dict(zip(records.feature_names, np.moveaxis(records.x, -1, 0), strict=True))
        named = named if records.y is None else named | {own.schema.target: records.y}
        return (named,) if records.mask is None else (named, records.mask)

    def method_for(self, num_records: int) -> "OfRecords":
        """The method that fits these records; of which another is, it was printed why."""
        del num_records
        return self

    @abstractmethod
    def plan_for(self, num_records: int, delta: float) -> Any:
        """Calibrate the plan."""

    @property
    def num_parameters(self) -> int | None:
        """The number of coordinates of a record's gradient; None if the user's model cannot be inspected."""
        import jax
        import numpy as np
        import numpyro

        from discreet._numpyro import trace_of

        if self.own is not None and self.own.of_columns:
            return None
        made = [np.zeros((MADE_UP, *x.shape[1:]), x.dtype) for x in self.records.arrays]
        seeded = numpyro.handlers.seed(self.function, jax.random.key(0))
        try:
            sites = trace_of(seeded, *made).values()
        except Exception:  # `DPSVI` says better what is wrong with it
            return None
        shared = [
            site
            for site in sites
            if not any(frame.size == MADE_UP for frame in site.get("cond_indep_stack", ()))
        ]
        kinds = ("sample", "param")
        return sum(
            np.size(x["value"]) for x in shared if x["type"] in kinds and not x.get("is_observed")
        )

    @property
    def plan_facts(self) -> dict[str, float]:
        """The numbers of the plan beside its noise, for programs."""
        return {}

    @abstractmethod
    def plan_words(self, noun: str) -> str:
        """The plan in words; `noun` is what is protected."""

    def say_dry_run(self) -> None:
        plan = self.plan
        count = self.num_parameters
        names = self.records.feature_names
        facts = {
            "relation": plan.relation.name,
            "num_records": plan.num_records,
            "features": names,
            "num_parameters": count,
            "noise_multiplier": plan.noise_multiplier,
            **self.plan_facts,
        }
        relation = dp.accounting.neighbours(plan.relation).name()
        self._say_dry_run(facts, whom=f" ({relation}). {plan.num_records:,} of them")
        if self.asked.as_json:
            return
        say_lines(f"Plan: {self.plan_words('record' if self.schema.person is None else 'person')}.")
        say_lines(
            f"Columns: {', '.join(names)}." + ("" if count is None else f" {count:,} parameters.")
        )
        say_lines(
            "What the fit will be good for: discreet plan says, after a dry run on invented tables."
        )

    def doubts(self) -> tuple[str, str] | None:
        plan = self.plan
        count, noise = self.to_see()
        if not count or plan.num_records / count >= noise:
            return super().doubts()
        signal = f"{plan.num_records / count:.2g}"
        found = self.hidden.format(
            whose=f"{plan.num_records:,} {self._persons}", signal=signal, noise=noise
        )
        return f"Likely not usable: the model has {count:,} parameters. {found}", FEWER

    @abstractmethod
    def to_see(self) -> tuple[int | None, float]:
        """The number of parameters, and the noise that each parameter's share of all records must exceed."""

    @property
    def _persons(self) -> str:
        return "persons" if self.schema.person else "records"

    def run(self) -> None:
        self.result, self.draw_key = self.release()
        spent(f"no statement was written, so {PLAN_IS_SPENT}")
        self.members.remedy = (
            ("The fit ran and its budget is spent.", dp.inference.FAILED)
            if self.asked.checkpoint is None
            else (AGAIN, dp.inference.START_AGAIN)
        )

    def release(self) -> tuple[Any, Any]:
        """Fit. Returns the result, and the key for draws from its posterior."""
        members = self.members
        with members.together():
            book = self.book()
            keep_compiled_programs(settings.compilation_cache)
            fit_key, draw_key = self.keys()
            fit = self.set_up()
        self.say_spent()
        if self.asked.progress_bar and members.first:
            say_error(self.waiting)
        with self._explained():
            return fit(fit_key, person=self.schema.person, ledger=book), draw_key

    @abstractmethod
    def set_up(self) -> Callable[..., Any]:
        """Set the fit up: the function that makes it with a key, a person and a ledger."""

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the checkpoint; None where another process has it."""
        return self.asked.checkpoint if self.members.first else None

    def keys(self) -> "tuple[PRNGKeyArray, PRNGKeyArray]":
        """The key of the fit, and that of draws from its posterior: a fit that continues draws the same ones."""
        import jax
        import numpy as np

        checkpoint = self.checkpoint
        seeded = self.asked.seed is not None
        # By way of words: JAX compiles a program to take the keys of an array apart.
        both = np.asarray(jax.random.key_data(jax.random.split(dp.random.key(self.asked.seed))))
        fit_key, draw_key = (dp.random.key_from_words(x, reproducible=seeded) for x in both)
        if checkpoint is not None and self.asked.seed is None:
            words = np.frombuffer(dp.storage.kept_secret(checkpoint / "draws.key"), "<u4")
            draw_key = dp.random.key_from_words(words, reproducible=False)
        return fit_key, draw_key

    def say_spent(self) -> None:
        """From now on an error is no refusal, if the fit continues: its budget was spent when it was started."""
        if self.checkpoint is not None and (self.checkpoint / CHECKPOINT).exists():
            spent(f"it was started earlier, so {PLAN_IS_SPENT}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explain errors of a model of the user's own, as long as nothing is spent."""
        try:
            with warnings.catch_warnings():
                # `say` and the statement say the same
                warnings.simplefilter("ignore", dp.inference.UseWarning)
                yield
        except Exception as error:
            if self.own is not None and not has_begun():
                raise self.own.explain(error) from error
            raise

    @property
    def drops(self) -> tuple[str, ...]:
        """Columns in which a missing cell leaves a record out."""
        return self.schema.drops if self.leaves_out and self.schema.max_rows == 1 else ()

    def write(self, complete: "Callable[[dp.Statement], dp.Statement] | None" = None) -> None:
        """Write the files; `complete`, for a statement of another command, replaces the method of that name."""
        asked = self.asked
        with self.members.together():
            if not self.members.first:
                return
            statement = self.result.statement
            if self.drops:
                # Asked for, so not worth a warning.
                statement = dataclasses.replace(statement, data_warnings=()).with_notes(
                    self.left_out
                )
            self.statement = (complete or self.complete)(statement).with_notes(self.spread)
            self.files = write_first(asked.out, self.statement, asked.checkpoint)
            self.files += [*self.write_results(), *self.plot()]
            self.files.append(write_page(asked.out, ledger=asked.ledger).file)

    @property
    def left_out(self) -> str:
        """The share of the records that the schema drops, in a sentence; empty if it drops none."""
        return ""

    def write_results(self) -> list[Path]:
        """Write draws and summary of a regression or of the user's model."""
        import numpy as np

        out = self.asked.out
        own = self.own
        records = self.records
        schema = self.schema
        posterior = self.result.posterior(self.draw_key, self.asked.draws or NUM_DRAWS)
        self.samples = drawn = {name: np.asarray(draws) for name, draws in posterior.items()}
        estimate = getattr(self.result, "estimate", None)
        if isinstance(estimate, dict):
            # Of a NumPyro model, by latent; a line's sigma is none of its coefficients.
            names = ("intercept", "weights") if own is None else drawn
            estimate = np.concatenate([np.ravel(estimate[name]) for name in names])
        shrunk = estimate
        about = {}
        groups = ()
        counted = None
        relation = ""
        if self.chosen.needs_target:
            # The model and the schema, for `discreet score`; the unit of the coefficients.
            about = facts_about(self.chosen.name, schema)
            groups = dp.models.groups_of(schema.columns, records.feature_names)
        target = schema.target_column
        classes = (
            target.categories if self.chosen.name == MULTINOMIAL and target is not None else ()
        )
        if groups:
            shares = getattr(self.result, "mean_squares", None)
            contrasts = dp.models.contrasts(len(records.feature_names), groups, shares)
            which = ""
            if shares is not None:
                which = " over the records, by approximate shares of the categories that were released (category_shares)"
                counted = {
                    records.feature_names[place]: contrasts[0, 1 + place]
                    for group in groups
                    for place in group
                }
            relation = RELATIVE.format(which=which)
            drawn = relative(self.samples, contrasts)
            estimate = None if estimate is None else contrasts @ estimate
        estimates, meaning = self.estimates()
        alone = {name: np.full(1, value) for name, value in estimates.items()}
        point_only = () if own is not None else (*NO_INTERVAL, *alone)
        self.rows = summarise({**drawn, **alone}, records, estimate, classes, point_only)
        self.say_unknown()
        note = dp.report.use_words(self.statement) if self.intervals else NO_INTERVALS
        summary = {
            "note": " ".join(filter(None, [note + relation + self.hints, meaning])),
            **about,
            "feature_names": records.feature_names,
            "category_shares": counted,
            "target_centre": records.target_centre,
            "target_scale": records.target_scale,
            "posterior": finite_or_none(dict(self.rows)),
            "to_predict": None if shrunk is None else shrunk.tolist(),
            "learned": self.learned(),
            "losses": finite_or_none(list(getattr(self.result, "losses", ()))),
            # For the page: the course of the fit, and the decisive points of the plan's profile,
            # (ε, δ) that hold.
            "course": dp.page.course_of(self.result, records.feature_names),
            "profile": profile_of(self.plan, self.statement),
            "statement_sha256": hashlib.sha256(self.statement.to_json().encode()).hexdigest(),
        }
        files = [
            write_file(out / "posterior.npz", npz(self.samples)),
            write_json(out / "summary.json", summary),
        ]
        return files if own is None else [*files, write_file(out / MODEL_FILE, own.settings_text())]

    def learned(self) -> dict[str, Any]:
        """The share of the prior's variance that is gone, by feature (of classes the largest), or by latent."""
        import numpy as np

        shares = getattr(self.result, "learned", {})
        if isinstance(shares, Mapping):
            return {name: np.asarray(share).tolist() for name, share in shares.items()}
        names = self.records.feature_names
        most = np.reshape(shares, (-1, len(names) + 1)).max(axis=0)
        return dict(zip(names, most[1:].tolist(), strict=True))

    def say_unknown(self) -> None:
        """Add to the verdict of a usable fit of which coefficients it says little. The statement was written without it."""
        statement = self.statement
        if not self.intervals or statement.use in ("", dp.report.NOT_USABLE):
            return
        # The verdict on a model names its latents itself.
        learned = (
            self.learned()
            if self.chosen.needs_target and not isinstance(self.result.learned, Mapping)
            else {}
        )
        hidden = [name for name, share in learned.items() if share < dp.report.LEARNED]
        words = dp.report.unknown_words(
            [(row["low"], row["high"]) for _, row in self.coefficients], hidden
        )
        if words:
            reason = f"{words[0].lower()}{words[1:]}. {statement.use_reason[0].upper()}{statement.use_reason[1:]}"
            self.statement = statement.with_use(statement.use, reason)
            write_first(self.asked.out, self.statement, self.asked.checkpoint)

    @property
    def coefficients(self) -> list[tuple[str, dict[str, float]]]:
        """The rows without intercepts and what has a row beside the coefficients."""
        estimates, _ = self.estimates()
        others = (
            {"intercept"} if self.own is not None else {*self.samples, *estimates} - {"weights"}
        )
        return [(name, row) for name, row in self.rows if latent_of(name) not in others]

    def estimates(self) -> tuple[dict[str, float], str]:
        """Parameters that are estimated without draws, by name, and what they mean, in words."""
        return {}, ""

    def plot(self) -> list[Path]:
        """Write a picture."""
        return []

    @property
    def stopped_after(self) -> int | None:
        """The number of steps after which Ctrl-C stopped the fit; None if it did not."""
        done = getattr(self.result, "steps_completed", None)
        return done if done is not None and done < self.plan.num_steps else None

    def leave(self) -> None:
        if self.stopped_after is not None:
            steps = f"{self.stopped_after:,} of {self.plan.num_steps:,} steps"
            say_error(f"Stopped after {steps}. The budget of all steps is spent.{continue_hint()}")
            raise typer.Exit(130)

    def say(self) -> None:
        """Ten lines: for whom, at what price, whether it converged, the strongest coefficients, files, what to do next."""
        asked = self.asked
        statement = self.statement
        if asked.as_json:
            say_json("fit", self.facts())
            return
        what = f"{asked.model} to {self.plan.num_records:,} {self._persons}"
        steps = self.stopped_after
        line = (
            f"Fitted {what}"
            if steps is None
            else f"Stopped after {steps:,} steps of fitting {what}"
        )
        say_price(line, statement, budget_line(asked.ledger, statement.delta))
        if statement.use:
            usable = statement.use != dp.report.NOT_USABLE
            say_lines(f"Use: {dp.report.use_words(statement)}", fg=None if usable else "yellow")
        if self.drops:
            say_lines(
                f"Records with {dropped_cells(self.schema)} are left out, as the schema asks. {self.left_out}"
            )
        for warning in statement.warnings:
            say_lines(f"Warning: {warning}", fg="yellow")
        self.say_coefficients()
        say_lines(f"Files in {asked.out}: {', '.join(file.name for file in self.files)}.")
        say_lines(f"Next: {self.next_step()}")

    def facts(self) -> dict[str, Any]:
        """The fit for programs."""
        rows = {
            name: {part: x for part, x in row.items() if part != "sd"} for name, row in self.rows
        }
        missing = [NO_INTERVALS] if rows and not self.intervals else []
        return {
            "statement": self.statement.to_dict(),
            "converged": getattr(self.result, "converged", None),
            "warnings": [*self.statement.warnings, *missing],
            "coefficients": finite_or_none(rows),
            "files": self.files,
        }

    def say_coefficients(self) -> None:
        """Print some of the coefficients."""
        own = self.own
        estimates, meaning = self.estimates()
        weights = self.coefficients
        if not weights:
            return
        scale = (
            "in their own units"
            if own is not None and own.raw
            else "scaled to [-1, 1] by their bounds"
        )
        features = "features and target" if self.chosen.name == LINEAR else "features"
        which = "Coefficients"
        rest = ""
        if len(weights) > SHOWN:
            # Of a fit in steps no error is known, so the largest may be the noisiest.
            which = f"First {SHOWN} of {len(weights)} coefficients"
            rest = "; all: summary.json"
            if self.intervals:
                which = f"The {SHOWN} of {len(weights)} coefficients that stand out most from 0"
                # As on the page, in the table's order.
                means = [row["mean"] if math.isfinite(row["mean"]) else 0.0 for _, row in weights]
                sds = [row["sd"] for _, row in weights]
                weights = [weights[place] for place in dp.plots.foremost(means, sds, SHOWN)]
        intervals = "each with its 90 % interval" if self.intervals else "no intervals"
        say_lines(f"{which} ({features} {scale}{rest}), {intervals}:")
        for name, row in weights[:SHOWN]:
            # The page rounds to the second digit of the standard deviation; its minus is no ASCII.
            cells = dp.page.panel_of_summary({name: row}).rows[0].cells
            mean, _, low, high = (cell.replace("−", "-") for cell in cells)
            say_lines(
                f"  {name}: {mean} ({low} to {high})" if self.intervals else f"  {name}: {mean}"
            )
        for name, value in estimates.items():
            say_lines(f"{name.capitalize()}: {value:.2g}. {meaning}")

    def next_step(self) -> str:
        """The command to run next, as the end of a sentence."""
        out = self.asked.out
        own = self.own
        if own is not None and own.draws_rows:
            return f"discreet synth {shlex.quote(str(out))} --model {own.own.name} --out twins"
        return f"discreet explain {shlex.quote(str(self.files[0]))}, and {out / 'report.html'} in a browser."
