"""The methods of `discreet fit`: each decides which fits it takes, plans, spends, writes and prints.

`fit` chooses the first of `METHODS` that `suits` the options and the schema, and calls it in this
order:

    share                   what several processes must agree on
    prepare                 read the table, make the plan, warn; nothing is spent
    say_dry_run             with --dry-run, the end
    check_use               refuse or ask, if the result is likely not usable
    run, write in folder    spend the budget; write the statement first, before anything else can fail
    say, leave              print the result; end with the exit code

To add a method, write a class with these functions, enter it in `METHODS`, and its name in
`_options.MethodName`. A fit of records in memory derives from `OfRecords`: it adds a plan
(`plan_for`), a fit (`set_up`), and sentences.
"""

import dataclasses
import hashlib
import json
import math
import secrets
import shlex
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import typer

import discreet as dp
from discreet._validate import RefusedError, finite_or_none, require
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._convert import check_whole
from discreet.interfaces.cli._options import (
    FAMILIES,
    LINEAR,
    MULTINOMIAL,
    NEGATIVE_BINOMIAL,
    TWIN,
    MethodName,
    choose_model,
    delta_of,
    suggest_delta,
    tenth_of_cap,
)
from discreet.interfaces.cli._own_model import FILE as MODEL_FILE
from discreet.interfaces.cli._report import (
    COUNTS,
    NO_INTERVAL,
    draw_picture,
    facts_in,
    latent_of,
    npz,
    profile_of,
    relative,
    summarise,
    write_page,
    write_statement,
)
from discreet.interfaces.cli._run import (
    CHECKPOINT,
    RELEASED,
    ROOM,
    budget_line,
    check_folder,
    keep_compiled_programs,
    row_order,
    say_price,
    write_first,
)
from discreet.interfaces.cli._schema import unit_of
from discreet.interfaces.cli._statement import (
    about_words,
    complete_statement,
    dropped_cells,
    facts_about,
    warn,
)
from discreet.interfaces.cli._terminal import (
    PLAN_IS_SPENT,
    continue_hint,
    folder_for_results,
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
    from matplotlib.figure import Figure

    from discreet.interfaces.cli._fit import Asked
    from discreet.interfaces.cli._options import ChosenModel
    from discreet.interfaces.cli._own_model import Prepared

SHOWN = 3
# Rows to count a model's parameters with: unlike the size of most plates.
MADE_UP = 7
NUM_DRAWS = 1_000
RELATIVE = (
    " The weights of one column's categories are relative to their mean{which}; the mean is in the intercept. In posterior.npz "
    "they are not relative."
)
CONCENTRATION = (
    "A count of mean m has the variance m + m² / concentration. The concentration lies between {low:.2g} and {high:.2g} (90 %, "
    "by a noisy histogram); from 45 on the counts are as good as Poisson's."
)
AGAIN = "The fit ran. Start all processes again with the same command: it is written from its checkpoint, at no further cost."
TO_PREDICT = (
    " Means and intervals are of the same draws. To predict, use to_predict, which is nearer to 0 where the noise hides a "
    "coefficient."
)
NO_INTERVALS = "No intervals are given: a fit in steps does not measure how far its noise moved the coefficients."
OVERCHARGED = 1.05
"""Times its ε: a fit that a ledger would charge more is not run without asking."""
FEWER = "Use fewer columns or categories, a smaller model, a larger --epsilon, or more records."


@dataclasses.dataclass
class Method:
    """One way to fit a table."""

    asked: "Asked"
    members: "dp.inference.Processes"
    chosen: "ChosenModel"
    schema: "dp.tables.Schema"  # As the options describe the table, then as the model takes it
    made: "dp.tables.Conversion | None"  # How the table was converted, if it was
    own: "Prepared | None" = None  # The user's model, if it is one
    room: int = ROOM  # Bytes of the disk that are reserved for the results
    plan: Any = dataclasses.field(init=False)
    statement: "dp.Statement" = dataclasses.field(init=False)
    files: list[Path] = dataclasses.field(init=False)

    by: ClassVar[MethodName]
    models = ()  # The names of the models that it fits; empty for all
    in_steps = False  # True if it takes the options of steps
    continues = False  # True if it takes a checkpoint
    leaves_out = True  # True if records are left out where the schema drops them
    weighs = False  # True if a record counts as often as its survey weight says
    why_not_weighed = "a fit in steps counts each record once: leave the options of steps out, or fit fewer records"

    @classmethod
    def takes(cls, asked: "Asked") -> bool:
        """True if the options allow this method."""
        named = asked.by in (None, cls.by) and (not cls.models or asked.model in cls.models)
        continued = cls.continues or asked.checkpoint is None
        return named and continued and (cls.in_steps or not asked.in_steps)

    @classmethod
    def check(cls, asked: "Asked") -> None:
        """Refuse an option of this method, if other options rule the method out."""

    @classmethod
    def suits(cls, asked: "Asked", schema: "dp.tables.Schema") -> bool:
        """True if the method is the one for these options and such a table; if asked for by name, `prepare` may refuse it."""
        del schema
        return cls.takes(asked)

    def share(self) -> None:
        """Agree with the other processes on what the next messages depend on."""

    def check_use(self) -> None:
        """Refuse to spend a budget on a result that is likely not usable, or at a δ that is too large; or ask."""
        asked = self.asked
        # One that goes on was agreed to, and is paid for.
        started = asked.checkpoint is not None and (asked.checkpoint / CHECKPOINT).exists()
        doubts = None if asked.yes or started else self.doubts()
        if doubts is None:
            return
        found, ways = doubts
        if asked.as_json or asked.distributed or not on_terminal():
            raise ValueError(f"{found} Nothing was spent. {ways} To go on all the same, add --yes.")
        say_error(f"{found} {ways}")
        if not typer.confirm("Spend the budget all the same?", err=True):
            raise ValueError("nothing was spent. " + ways)

    def doubts(self) -> tuple[str, str] | None:
        """Why the budget would be spent badly, and what would help; from public facts alone. None if it may be spent well."""
        count = getattr(self.plan, "num_records", self.asked.num_records)
        delta = self.stated_delta
        if count is not None and delta * count > 1:
            found = f"δ = {delta:g} is more than 1 / {count:,}: publishing a random record in the clear would meet it."
            return (
                found,
                f"Leave --delta out, or give --delta {suggest_delta(count, self.asked.ledger):g}.",
            )
        book = self.book()
        if book is None:
            return None
        most = tenth_of_cap(book.path)
        if delta <= most:
            return None
        try:
            charge = book.check(self.plan, delta=delta, unit=self.unit_in_ledger) - book.spent
        except (dp.SpentError, ValueError):
            return None  # refused before the first release
        epsilon, _ = self.cost
        upper = dp.accounting.upper
        if charge <= OVERCHARGED * epsilon:
            return None
        found = (
            f"The ledger would charge ε = {upper(charge)} for this fit of ε = {upper(epsilon)}, since δ = {delta:g} is more "
            f"than a tenth of its cap's, {book.cap.delta:g}."
        )
        return (
            found,
            f"Leave --delta out, or give --delta {most:g}: then it charges the fit's own ε.",
        )

    @property
    def stated_delta(self) -> float:
        """The δ of the plan."""
        return self.plan.delta

    @property
    def unit_in_ledger(self) -> str:
        """The unit of privacy, as ledgers name it."""
        return dp.ledger.ONE_RECORD if self.schema.person is None else "one person"

    @contextmanager
    def folder(self) -> Iterator[None]:
        """Make sure that results can be written, before they are paid for."""
        asked = self.asked
        members = self.members
        members.first_is_given("--checkpoint", asked.checkpoint is not None)
        members.first_is_given("--ledger", asked.ledger is not None)
        with ExitStack() as stack:
            with members.together():
                # The page is written last: what it needs must be there before anything is spent.
                require("jinja2", extra="cli", what="The statement page")
                if members.first:
                    stack.enter_context(folder_for_results(asked.out, room=self.room))
            yield

    def book(self) -> "dp.Ledger | None":
        """The ledger, from which process 0 alone debits."""
        ledger = self.asked.ledger if self.members.first else None
        return None if ledger is None else dp.Ledger(ledger)

    def leave(self) -> None:
        """End with the exit code of an interrupted command, if Ctrl-C stopped the fit."""

    @property
    def cost(self) -> tuple[float, float]:
        """The (ε, δ) of the plan."""
        return self.plan.state(reproducible=False).epsilon, self.plan.delta

    @property
    def odd_cells(self) -> str:
        """The treatment of cells that the schema does not allow."""
        return str(self.asked.out_of_bounds) if self.made is None else self.made.out_of_bounds

    def complete(self, statement: "dp.Statement") -> "dp.Statement":
        """The statement with the model, the columns and the treatment of cells."""
        asked = self.asked
        count = getattr(self.plan, "num_records", None)
        return complete_statement(
            statement,
            self.schema,
            self.odd_cells,
            counted=count is None or asked.num_records is None,
            own=self.own,
            drops=self.leaves_out,
            weighs=self.weighs,
            about=about_words(asked.model, self.schema, asked.dataset or asked.data.name, count),
            contact=asked.contact,
        )

    def _say_dry_run(self, facts: Mapping[str, Any], *, whom: str = "", cost: str = "") -> None:
        """Print the unit, the cost and what the ledger would charge."""
        ledger = self.asked.ledger
        epsilon, delta = self.cost
        budget = charge = None
        if ledger is not None:
            budget = budget_line(ledger, delta)
            book = dp.Ledger(ledger)
            cap = dp.accounting.upper(book.cap.epsilon)
            try:
                after = dp.accounting.upper(
                    book.check(self.plan, delta=delta, unit=self.unit_in_ledger)
                )
                charge = f"After it, ε = {after} of {cap} in {ledger} would be spent."
            except (dp.SpentError, ValueError) as error:
                charge = f"The ledger would refuse this fit. {error}"
        unit = unit_of(self.schema)
        if self.asked.as_json:
            price = {"dry_run": True, "epsilon": epsilon, "delta": delta, "unit": unit}
            say_json("fit", {**price, **facts, "budget": budget, "charge": charge})
            return
        say_lines(
            f"Dry run: nothing is spent, and nothing is written.\nPrivacy unit: {unit}{whom}."
        )
        say_lines(f"Cost: ε = {dp.accounting.upper(epsilon)} at δ = {delta:g}{cost}.")
        if ledger is not None:
            say_lines(f"Before it: {budget}\n{charge}")
        if doubts := self.doubts():
            say_lines(f"A fit would ask first, or refuse. {' '.join(doubts)}")


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
    most_cells = math.inf  # The most features of all records that it fits by default
    instead: ClassVar[Any] = None  # The method that fits larger tables by default

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
        method = self.instead(**vars(self)) if asked.by is None and self.is_unfit(count) else self
        method.check_weight()
        method.plan = method.plan_for(count, delta)
        warn(self.schema, asked.seed, asked.ledger, asked.data, by_bounds=asked.bounds is not None)
        return method

    def check_weight(self) -> None:
        """Refuse survey weights that the method cannot apply."""
        if self.schema.weight is not None and not self.weighs:
            raise ValueError(
                f"the schema has survey weights ('{self.schema.weight}'), and {self.why_not_weighed}; or take weight out of the "
                "schema, by which the column is one like others"
            )

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
            of_shards = self.in_steps and not (own is not None and own.of_columns)
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

    def is_unfit(self, num_records: int) -> bool:
        """True if `instead` is the method for these records by default."""
        return (
            num_records * self.schema.max_rows * len(self.records.feature_names) > self.most_cells
        )

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


class InSteps(OfRecords):
    """A fit in noisy steps, by `DPSVI` with the default guide or the user's."""

    by = MethodName.SVI
    in_steps = True
    continues = True
    spread = (
        "The draws in posterior.npz are those of the fitted guide: their spread does not include the noise of the private fit, "
        "which can be several times as large at small ε."
    )
    hidden = (
        "The gradients of {whose} can add up to {signal} C for each of them (C is the clipping norm), and the noise that is "
        "left in the mean of all steps is {noise:.2g} C."
    )
    waiting = "Compiling the fit, which takes up to a minute. Steps follow."
    whole: Any = None  # The model of the whole table, if it is one

    def plan_for(self, num_records: int, delta: float) -> "dp.PrivacyPlan":
        asked = self.asked
        defaults = self.chosen.defaults(self.schema)
        return options.plan_of(
            num_records=num_records,
            epsilon=asked.epsilon,
            delta=delta,
            num_steps=defaults.num_steps if asked.steps is None else asked.steps,
            clipping_norm=defaults.clipping_norm
            if asked.clip is None
            else options.clipping_of(asked.clip),
            sampling=asked.sampler(num_records, defaults.rate_for(num_records)),
            relation=asked.relation,
        )

    @property
    def stated_delta(self) -> float:
        return self.plan.target_delta

    @property
    def learning_rate(self) -> float:
        """The step size of Adam."""
        given = self.asked.learning_rate
        return self.chosen.defaults(self.schema).learning_rate if given is None else given

    @property
    def cost(self) -> tuple[float, float]:
        return self.plan.epsilon(self.stated_delta), self.stated_delta

    @property
    def plan_facts(self) -> dict[str, float]:
        plan = self.plan
        return {
            "num_steps": plan.num_steps,
            "rate": plan.rate,
            "clipping_norm": plan.clipping.start,
        }

    def plan_words(self, noun: str) -> str:
        plan = self.plan
        adapts = ", which then adapts" if plan.clipping.adapts else ""
        return (
            f"{plan.num_steps:,} steps; {plan.sampling.in_words(plan.num_records, noun)}; clipping norm "
            f"{plan.clipping.start:g}{adapts}; noise {plan.noise_multiplier:.4g}"
        )

    def to_see(self) -> tuple[int | None, float]:
        """The number of parameters, and the noise that is left in the mean of all steps, in units of C.

        All gradients together are at most N C long, which leaves N C / P for each of P parameters.
        C cancels out.
        """
        plan = self.plan
        return self.num_parameters, plan.noise_multiplier / (plan.rate * math.sqrt(plan.num_steps))

    @property
    def left_out(self) -> str:
        if not self.drops:
            return ""
        counted = self.result.counted
        share = counted._replace(value=1 - counted.value)
        return f"{share} of the {self.plan.num_records:,} {self._persons} had such a cell, or no finite loss."

    def set_up(self) -> Callable[..., Any]:
        import numpyro

        guide = None if self.own is None else self.own.guide
        dpsvi = dp.inference.DPSVI(
            self.function,
            dp.models.guide_for(self.whole or self.function) if guide is None else guide,
            numpyro.optim.Adam(self.learning_rate),
            plan=self.plan,
            placeholder=None if self.whole is None else self.whole.placeholder,
        )
        arguments = self.arguments()

        def fit(key: "PRNGKeyArray", **how: Any) -> Any:
            return dpsvi.run(
                key,
                *arguments,
                progress_bar=self.asked.progress_bar,
                checkpoint=self.checkpoint,
                max_rows=self.schema.max_rows,
                mesh=self.members.mesh,
                **how,
            )

        return fit

    def plot(self) -> list[Path]:
        return draw_picture(self.asked.out / "fit.png", self.picture)

    def picture(self) -> "Figure":
        """Draw the trade-off curve and the private losses."""
        figure = dp.plots.new_figure(9, 4)
        left, right = figure.subplots(1, 2)
        dp.plots.draw_trade_off(left, self.plan.profile())
        dp.plots.draw_losses(right, self.result.losses)
        return figure


class TwinInSteps(InSteps):
    """A fit in steps of a model of the whole table, from which `discreet synth` draws."""

    models = (TWIN,)
    spread = (
        "Twins are drawn from the fitted guide, which does not include the noise of the private fit: analyses of several twins "
        "understate their uncertainty at small ε."
    )
    leaves_out = False

    def check_weight(self) -> None:
        say_unweighed(self.schema)

    def read(self) -> None:
        """Read the level of each cell."""
        data = self.asked.data
        schema = self.schema
        self.whole = self.chosen.build(schema)
        self.function = self.whole.model
        check_whole(data, self.made, self.odd_cells)
        table = dp.tables.read_table(data, schema, out_of_bounds=self.odd_cells)
        if schema.person is not None and schema.max_rows == 1:
            table = table.filter(
                dp.tables.keep_one_row_a_person(table.column(schema.person), key=self.order)
            )
        levels = self.whole.encode(table, out_of_bounds=self.odd_cells, key=self.order)
        names = tuple(column.name for column in schema.columns)
        self.records = dp.tables.Records(x=levels, y=None, feature_names=names)

    def doubts(self) -> tuple[str, str] | None:
        doubts = super().doubts()
        if self.whole.components == 1:
            doubts = (
                "Likely not usable: the columns of a twin with one component are independent, so no column predicts another.",
                "Use --components 2 or more.",
            )
        if doubts is None or self.schema.max_rows == 1:
            return doubts
        # 1,675 persons with up to 5 rows at ε = 1: three components pass, but predict nothing (AUC
        # 0.50); counts do (0.76).
        counts = " With --by marginals a twin is fitted to noisy counts of rows, which keep relations of columns."
        return doubts[0], doubts[1] + counts

    def write_results(self) -> list[Path]:
        result = dataclasses.replace(self.result, statement=self.statement)
        return dp.synthetic.write_fitted(self.asked.out, result, self.whole)

    def next_step(self) -> str:
        return synth_words(self.asked.out)


class InSums(OfRecords):
    """A regression fitted to a few noisy sums over all records, whose intervals include all noise."""

    intervals = True
    spread = "The draws in posterior.npz include the noise of the private fit."
    hidden = "The sums of {whose} can show {signal} for each of them, and the noise on each sum is {noise:.2g}."
    hints = f"{TO_PREDICT} Features are scaled to [-1, 1] by their bounds."
    weighs = True
    several_rows = False  # True if a person may have several rows
    is_shared = False  # True if several processes share it
    most_cells = 2**26  # It needs three copies of the table in 64 bits
    instead = InSteps
    waiting = "Measuring noisy sums. It takes some seconds."

    @classmethod
    def check(cls, asked: "Asked") -> None:
        if asked.by == cls.by and asked.distributed and not cls.is_shared:
            raise RefusedError(
                f"--distributed is for --by svi and --by newton, and this is --by {cls.by}: choose another one, or leave it out"
            )

    @classmethod
    def suits(cls, asked: "Asked", schema: "dp.tables.Schema") -> bool:
        usual = (cls.is_shared or not asked.distributed) and (
            cls.several_rows or schema.max_rows == 1
        )
        return cls.takes(asked) and (asked.by == cls.by or usual)

    def plan_for(self, num_records: int, delta: float) -> Any:
        schema = self.schema
        if schema.max_rows > 1 and not self.several_rows:
            raise ValueError(
                f"--by {self.by} takes one row a person, and the schema's max_rows is {schema.max_rows}: write "
                "max_rows = 1 in the schema, by which one row of each person is used, or fit in steps by --by svi"
            )
        return self.calibrate(
            epsilon=self.asked.epsilon,
            delta=delta,
            num_features=len(self.records.feature_names),
            num_records=num_records,
            relation=options.relation_of(self.asked.relation),
        )

    @abstractmethod
    def calibrate(self, **terms: Any) -> Any:
        """Calibrate the plan to these terms."""

    @property
    def left_out(self) -> str:
        if not self.drops:
            return ""
        return f"{self.result.dropped} of the {self.plan.num_records:,} {self._persons} had such a cell."

    @abstractmethod
    def fit(self, key: "PRNGKeyArray", **how: Any) -> Any:
        """Fit the records."""

    def set_up(self) -> Callable[..., Any]:
        return self.fit


class Moments(InSums):
    """A fit of a line to noisy sums of products and gradients."""

    spread = (
        f"{InSums.spread} The prior of the intercept and of each weight is Normal(0, 1), for features and a target that are "
        "scaled to [-1, 1]."
    )

    by = MethodName.MOMENTS
    models = (LINEAR,)
    hints = (
        f"{TO_PREDICT} Features and target are scaled to [-1, 1] by their bounds. sigma has no interval: one would hold only for "
        "normal residuals with the same spread everywhere. Where they have long tails, sigma is smaller than their standard "
        "deviation."
    )

    def calibrate(self, **terms: Any) -> "dp.moments.MomentsPlan":
        return dp.moments.MomentsPlan.calibrate(
            weighted=self.schema.weight is not None, drops=bool(self.drops), **terms
        )

    def plan_words(self, noun: str) -> str:
        stddevs = self.plan.stddevs
        noises = ", ".join(f"{stddev:.4g}" for stddev in stddevs)
        return (
            f"{len(stddevs)} releases of noisy sums of products, counts and gradients, to which a {noun} adds at most 1; noise "
            f"{noises}"
        )

    def to_see(self) -> tuple[int, float]:
        """The number of parameters, and the noise of the second release, the last one of products.

        The sums of products of P - 1 features and a constant have eigenvalues of N / P on average
        at most.
        """
        return self.plan.num_features + 1, self.plan.stddevs[1]

    def fit(self, key: "PRNGKeyArray", **how: Any) -> "dp.moments.MomentsResult":
        import numpy as np

        x, y = self.records.arrays
        # A row that the schema drops is NaN throughout.
        mask = ~np.isnan(y) if self.drops else None
        return dp.moments.fit_moments(
            key, x, y, self.plan, mask=mask, weights=self.records.weights, **how
        )


class Newton(InSums):
    """A fit of a regression to a few noisy gradients, by `newton.fit_newton`."""

    by = MethodName.NEWTON
    models = (*FAMILIES,)
    several_rows = True
    is_shared = True
    continues = True

    def calibrate(self, **terms: Any) -> "dp.newton.NewtonPlan":
        target = self.schema.target_column
        if self.asked.model == MULTINOMIAL and target is not None:
            terms |= {"num_classes": len(target.categories)}
        family = FAMILIES[str(self.asked.model)]
        terms |= {"max_rows": self.schema.max_rows, "drops": bool(self.drops)}
        terms["weighted"] = self.schema.weight is not None
        return dp.newton.NewtonPlan.calibrate(family=family, **terms)

    def plan_words(self, noun: str) -> str:
        releases = sum(count for *_, count in self.plan.releases)
        return f"{releases} noisy sums, {dp.newton.NUM_GRADIENTS} of them gradients, to which a {noun} adds at most 1"

    def to_see(self) -> tuple[int, float]:
        """The number of parameters, and four times the noise of all gradients together.

        A curvature is 1/4 at most, so N records show N / 4P of each of P coordinates.
        """
        return self.plan.outputs * (self.plan.num_features + 1), 4 * self.plan.noise(
            self.plan.gradient_share
        )

    def estimates(self) -> tuple[dict[str, float], str]:
        if self.asked.model != NEGATIVE_BINOMIAL:
            return {}, ""
        low, high = self.result.dispersion_range
        return {"concentration": self.result.dispersion}, CONCENTRATION.format(low=low, high=high)

    def fit(self, key: "PRNGKeyArray", **how: Any) -> "dp.newton.NewtonResult":
        import numpy as np

        x, y, *masks = self.records.arrays
        # A row that the schema drops is NaN throughout.
        mask = masks[0] if masks else ~np.isnan(y) if self.drops else None
        return dp.newton.fit_newton(
            key,
            x,
            y,
            self.plan,
            mask=mask,
            weights=self.records.weights,
            levels=dp.tables.are_levels(self.schema),
            names=self.records.feature_names,
            checkpoint=self.checkpoint,
            progress_bar=self.asked.progress_bar,
            mesh=self.members.mesh,
            **how,
        )


class OwnNewton(InSums):
    """A fit of the user's model to a few noisy gradients, by `DPNewton`, unless the model has a guide or is refused by it."""

    by = MethodName.NEWTON
    why_not_weighed = "a model of your own takes one of each record, and none with preprocess: fit a built-in regression"
    several_rows = True
    is_shared = True
    continues = True
    hints = ""

    @classmethod
    def takes(cls, asked: "Asked") -> bool:
        own = asked.model.partition(":")[0].endswith(".py")
        return own and asked.by in (None, cls.by) and not asked.in_steps

    def is_unfit(self, num_records: int) -> bool:
        if self.own is not None and self.own.guide is not None:
            return True
        try:
            dp.newton.names_of_latents(self.function, self.arguments(), num_records=num_records)
        except dp.inference.NoPointError as error:
            say_error(f"Fitted in steps: {error}")
            return True
        return False

    def plan_for(self, num_records: int, delta: float) -> "dp.newton.ModelPlan":
        if self.own is not None and self.own.guide is not None:
            raise ValueError(
                f"--by {self.by} takes no guide, and {self.asked.model} has one: fit it in steps by --by svi, or remove the guide"
            )
        return super().plan_for(num_records, delta)

    def calibrate(self, *, num_features: int, **terms: Any) -> "dp.newton.ModelPlan":
        del num_features
        return dp.newton.ModelPlan.calibrate(**terms)

    @property
    def cost(self) -> tuple[float, float]:
        return self.plan.epsilon(), self.plan.delta

    def plan_words(self, noun: str) -> str:
        return f"{self.plan.num_releases} noisy sums of gradients, to which a {noun} adds at most 1"

    def to_see(self) -> tuple[int | None, float]:
        """The number of parameters, and the noise of the last gradients together."""
        return self.num_parameters, self.plan.noise(self.plan.gradient_share)

    def check_weight(self) -> None:
        import numpy as np

        self.weighs = np.ndim(self.records.weights) == 1
        super().check_weight()

    def fit(self, key: "PRNGKeyArray", **how: Any) -> "dp.newton.DPNewtonResult":
        import numpy as np

        weights = self.records.weights
        return dp.DPNewton(self.function, plan=self.plan).run(
            key,
            *self.arguments(),
            max_rows=self.schema.max_rows,
            checkpoint=self.checkpoint,
            progress_bar=self.asked.progress_bar,
            mesh=self.members.mesh,
            # A row that the schema drops is NaN throughout, and counts as nothing.
            weights=None if weights is None else np.nan_to_num(weights),
            **how,
        )


class Counts(Method):
    """A twin fitted to noisy counts, which are released in one pass over the file."""

    by = MethodName.MARGINALS
    models = (TWIN,)
    leaves_out = False

    released: "dp.marginals.Marginals"

    @classmethod
    def check(cls, asked: "Asked") -> None:
        if asked.choices is not None and not cls.takes(asked):
            raise ValueError(f"--choices is for --model {TWIN} by marginals: leave it out")

    @classmethod
    def suits(cls, asked: "Asked", schema: "dp.tables.Schema") -> bool:
        wanted = asked.by == cls.by or asked.choices is not None
        return cls.takes(asked) and (wanted or dp.marginals.counts_suffice(schema))

    def prepare(self) -> "Counts":
        asked = self.asked
        schema = self.schema
        if asked.distributed:
            raise RefusedError(
                "--distributed is for fits in steps, and noisy counts take one pass: leave it out, or add --by svi"
            )
        check_whole(asked.data, self.made, asked.out_of_bounds)
        say_unweighed(schema)
        warn(schema, asked.seed, asked.ledger, asked.data, by_bounds=asked.bounds is not None)
        assert asked.epsilon is not None
        self.plan = dp.marginals.MarginalsPlan.calibrate(
            schema,
            epsilon=asked.epsilon,
            delta=delta_of(asked.delta, asked.num_records, asked.ledger),
            relation=options.relation_of(asked.relation),
            choices=asked.choices or 0,
        )
        return self

    def say_dry_run(self) -> None:
        columns = [column.name for column in self.schema.columns]
        self._say_dry_run(
            {"columns": columns}, cost=f", for noisy counts of these columns: {', '.join(columns)}"
        )

    def run(self) -> None:
        asked = self.asked
        seed = asked.seed
        keep_compiled_programs(settings.compilation_cache)
        released = dp.marginals.private_marginals(
            dp.random.key(seed),
            asked.data,
            self.plan,
            ledger=self.book(),
            out_of_bounds=asked.out_of_bounds,
            person_key=row_order(seed),
            non_private_seed=seed is not None,
            keep=self.keep,
            progress_bar=asked.progress_bar,
        )
        spent(f"no statement was written, so {PLAN_IS_SPENT}", RELEASED)
        self.statement = self.complete(released.statement).with_notes(
            *dp.marginals.not_counted(released.plan)
        )
        self.released = dataclasses.replace(released, statement=self.statement)

    def keep(self, released: "dp.marginals.Marginals") -> None:
        """Keep what was counted so far, while pairs of columns are chosen: an interrupted fit goes on from it."""
        done = "The releases were made"
        spent(f"no statement was written, so {PLAN_IS_SPENT}", done)
        kept = dataclasses.replace(released, statement=self.complete(released.statement)).save(
            self.asked.out / COUNTS
        )
        spent(
            f"what was counted is in {kept}, which discreet fit --model twin takes as --data, and spends nothing",
            done,
        )

    def complete(self, statement: "dp.Statement") -> "dp.Statement":
        notes = [
            dp.marginals.NO_SPREAD,
            *([dp.marginals.NOBODYS] if self.schema.max_rows > 1 else []),
        ]
        return super().complete(statement).with_notes(*notes)

    def write(self) -> None:
        out = self.asked.out
        self.files = write_first(out, self.statement, None, RELEASED)
        counts = self.released.save(out / COUNTS)
        spent(
            f"the statement is in {out}, and the noisy counts are in {counts}: discreet fit --data {shlex.quote(str(counts))} "
            f"--model {TWIN} --out {shlex.quote(str(out))} continues, and spends nothing",
            RELEASED,
        )
        if on_terminal():
            say_error("Fitting the noisy counts, which spends nothing more. It takes some seconds.")
        model, result = fit_counts(self.asked, self.released)
        self.files += [counts, *dp.synthetic.write_fitted(out, result, model)]
        self.files.append(write_page(out, ledger=self.asked.ledger).file)

    def say(self) -> None:
        budget = budget_line(self.asked.ledger, self.statement.delta)
        say_twin(self.asked, "Fitted a twin to noisy counts", self.statement, self.files, budget)


def say_unweighed(schema: "dp.tables.Schema") -> None:
    """Say before the run that survey weights are not applied, if the schema has any."""
    if schema.weight is not None:
        say_error(f"{schema.weight_words()} The column is drawn like any other.")


METHODS = (Moments, Newton, OwnNewton, Counts, TwinInSteps, InSteps)


def fit_counts(
    asked: "Asked", released: "dp.marginals.Marginals"
) -> "tuple[dp.models.MixtureOfProducts, dp.marginals.MarginalsResult]":
    """Fit a twin to noisy counts."""
    chosen = {"components": asked.components, "num_draws": asked.draws}
    return dp.marginals.fit_twins(
        released, **{name: value for name, value in chosen.items() if value is not None}
    )


def fit_again(asked: "Asked") -> None:
    """Fit noisy counts that were kept: in their own folder, or in another one."""
    data = asked.data / COUNTS if asked.data.is_dir() else asked.data
    out = asked.out
    if asked.distributed:
        raise RefusedError(
            f"--distributed is for fits in steps, and {data} has noisy counts: leave it out"
        )
    free = ("data", "model", "by", "components", "draws", "out", "overwrite", "as_json")
    left_out = all(
        getattr(asked, x.name) == x.default for x in dataclasses.fields(asked) if x.name not in free
    )
    if asked.model != TWIN or asked.by not in (None, Counts.by) or not left_out:
        raise ValueError(
            f"{data} has noisy counts, which were paid for: with --model {TWIN} give --components, --draws, --out, "
            "--overwrite and --json alone, or the table itself"
        )
    choose_model(TWIN, components=asked.components)
    released = dp.marginals.Marginals.load(data)
    files = []
    # What else the statement in the folder says may be more.
    stated = facts_in(out / "statement.json")
    wanted = json.loads(released.statement.to_json())
    same = all(stated.get(name) == wanted[name] for name in ("epsilon", "delta", "plan"))
    at_home = same and out.resolve() == data.parent.resolve()
    check_folder(out, overwrite=asked.overwrite or at_home)
    with folder_for_results(out):
        model, result = fit_counts(asked, released)
        # That of a description does not say yet what holds of twins.
        if not at_home or stated == wanted != json.loads(result.statement.to_json()):
            files = [*write_statement(out, result.statement), released.save(out / COUNTS)]
        files += dp.synthetic.write_fitted(out, result, model)
        files.append(write_page(out).file)
    nothing = "nothing more was spent. This ε was, when the counts were released."
    say_twin(asked, "Fitted the noisy counts again", result.statement, files, nothing)


def say_twin(
    asked: "Asked", what: str, statement: "dp.Statement", files: list[Path], budget: str
) -> None:
    """Print the price of a twin, and its files."""
    if asked.as_json:
        say_json("fit", {"statement": statement.to_dict(), "files": files})
        return
    say_price(what, statement, budget)
    for warning in statement.data_warnings:
        say_lines(f"Warning: {warning}", fg="yellow")
    say_lines(f"Files in {asked.out}: {', '.join(file.name for file in files)}.")
    say_lines(f"Next: {synth_words(asked.out)}")


def synth_words(out: Path) -> str:
    """The command that draws twins of a fit."""
    return f"discreet synth {shlex.quote(str(out))} --twins 5 --out twins"
