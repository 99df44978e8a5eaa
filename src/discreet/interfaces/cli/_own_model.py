"""Models that users bring: a NumPyro program in a Python file.

`choose` reads the file before any data are read, `OwnModel.prepare` makes the model once the public
schema is known (a `model_factory` needs it), and the fit writes `settings_text`
beside its posterior. That is all that synthetic twins need: `read_own_fit` takes the posterior
draws from posterior.npz and the public facts from model.json, and `Prepared.draw` runs the program
again without records. No program is kept with a fit, because whoever can write to the folder could
then have theirs executed: the user names the file again.

The program's contract is twinify's: `model(x=None)` returns the row that it samples. A `preprocess`
is called with one row at a time, so that a record's numbers depend on its own cells; errors in it
are shown without their message, which may quote a cell.
"""

import argparse
import dataclasses
import functools
import hashlib
import importlib.util
import inspect
import json
import math
import tomllib
import traceback
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import discreet as dp
from discreet.interfaces.cli._terminal import say, say_error, say_lines

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from jaxtyping import PRNGKeyArray


FILE = "model.json"
FORMAT = "discreet model of one's own, version 1"
FACTORY = "model_factory"
COLUMNS = "columns"
"""Names with a meaning: a function that makes the model, and a first parameter that takes a dict from names to columns."""


@dataclasses.dataclass(frozen=True, eq=False)
class OwnModel:
    """A user's model file."""

    name: str
    path: Path
    function: Callable[..., Any]  # The model or the factory
    # The module with `guide`, `preprocess`, `postprocess` and `draw`, each of which may be absent
    module: ModuleType
    words: tuple[str, ...] = ()  # Unparsed arguments of a factory; `arguments` are parsed ones
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def prepare(self, schema: "dp.tables.Schema", *, raw: bool = False) -> "Prepared":
        """The model of tables that are described so."""
        if hasattr(self.module, "preprocess"):
            if schema.max_rows > 1:
                raise ValueError(
                    f"{self.path} takes one row of a person, and the schema's person may have {schema.max_rows}: write person = "
                    f'"{schema.person}" in it, or give a model of x, y and mask'
                )
            if schema.drops:
                raise ValueError(
                    f'{self.path} takes every row, and the schema drops some: remove missing = "drop" from it'
                )
        function = self.function
        guide = getattr(self.module, "guide", None)
        if getattr(function, "__name__", "") == FACTORY:  # a functools.partial has none
            arguments = argparse.Namespace(**self.arguments)
            try:
                made = function(arguments, list(self.words), schema)
            except (Exception, SystemExit) as error:
                raise ValueError(
                    f"{self.name} fails {failure(error)}. It is called with a namespace of options, the words of --model-args "
                    "and the schema"
                ) from error
            function, guide = made if isinstance(made, tuple) and len(made) == 2 else (made, guide)
            if not callable(function) or not (guide is None or callable(guide)):
                kinds = ", ".join(
                    type(x).__name__ for x in (made if isinstance(made, tuple) else (made,))
                )
                raise ValueError(
                    f"{self.name} returned {kinds}: let it return a model, or (model, guide)"
                )
        return Prepared(
            self, schema, function, guide, raw=raw or hasattr(self.module, "preprocess")
        )


def choose(name: str, **settings: Any) -> OwnModel:
    """The model in a file: `FILE.py:FUNCTION` or `FILE.py` (its `model` or `model_factory`). Runs the file."""
    file, _, attribute = (
        name.rpartition(":") if name.rpartition(":")[0].endswith(".py") else (name, "", "")
    )
    path = Path(file)
    module = run_file(path, "model file")
    function = getattr(
        module, attribute or "model", None if attribute else getattr(module, FACTORY, None)
    )
    if not callable(function):
        raise ValueError(
            f"{path} has no function {attribute or 'model or ' + FACTORY}: name the model function after a colon"
        )
    return OwnModel(name, path, function, module, **settings)


def run_file(path: Path, what: str) -> ModuleType:
    """Run a Python file of the user's; `what` is what an error calls it."""
    if not path.is_file():
        raise ValueError(f"the {what} {path} does not exist: check the path")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        hint = f". To read a statement: discreet explain {path}" if path.suffix == ".json" else ""
        raise ValueError(
            f"the {what} {path} is no Python program: give a file that ends in .py{hint}"
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # No data have been read: the message is about the user's code and may be shown.
        raise ValueError(f"the {what} {path} fails on import {failure(error)}") from error
    return module


def failure(error: BaseException, *, quote: bool = True) -> str:
    """The place and type of an error in the user's code, as the end of a sentence; no message if it may quote a cell."""
    from discreet._jax import users_file

    own = [x for x in traceback.extract_tb(error.__traceback__) if users_file(x.filename)]
    place = f"at {own[-1].filename}:{own[-1].lineno} ({own[-1].name}) " if own else ""
    message = f": {str(error).rstrip('.')}" if quote else ""
    return f"{place}with {type(error).__name__}{message}".replace(f"{Path.cwd()}/", "")


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A user's model of one table, from which rows can be drawn."""

    own: OwnModel
    schema: "dp.tables.Schema"
    function: Callable[..., Any]
    guide: Callable[..., Any] | None  # The user's guide; None for the default
    raw: bool  # True if x has the columns of the schema in their own units, with NaN for missing cells
    # Names of the columns that `preprocess` returns, once it has been called
    seen: tuple[str, ...] | None = None

    @property
    def of_columns(self) -> bool:
        """True if the model takes a dict from names to columns."""
        try:
            return next(iter(inspect.signature(self.function).parameters), None) == COLUMNS
        except (TypeError, ValueError):
            return False

    @property
    def preprocesses(self) -> bool:
        """True if the file has a `preprocess`, which makes the columns of x."""
        return hasattr(self.own.module, "preprocess")

    @property
    def draws_rows(self) -> bool:
        """True if the program may draw rows: it can be called without records, or has a `draw`."""
        parameters = (
            inspect.signature(self.function).parameters.values() if callable(self.function) else ()
        )
        optional = all(
            x.default is not x.empty or x.kind in (x.VAR_POSITIONAL, x.VAR_KEYWORD)
            for x in parameters
        )
        return optional or hasattr(self.own.module, "draw")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of x, then of y."""
        names = self.seen or tuple(
            name for name, _ in dp.tables.describe_features(self.schema, raw=self.raw)
        )
        return names if self.schema.target is None else (*names, self.schema.target)

    def say_features(self) -> None:
        """Print what the model gets, before anything is spent: wrong columns fit as smoothly as right ones."""
        target = self.schema.target_column
        if self.preprocesses:
            say(
                f"preprocess of {self.own.path} makes the columns of x. It gets one row at a time, with these columns:"
            )
        elif self.of_columns:
            say("The model gets a dict named columns. Its arrays, by name:")
        else:
            say(
                f"The model gets x{'' if target is None else ' and y'}. The columns of x, by position:"
            )
        if self.schema.max_rows > 1:
            say(
                f"Arrays have an axis of {self.schema.max_rows} rows after that of persons; mask, the last argument, says which "
                "exist."
            )
        named = self.of_columns or self.preprocesses
        for place, (name, meaning) in enumerate(
            dp.tables.describe_features(self.schema, raw=self.raw)
        ):
            say_lines(
                f"  {repr(name) if named else place}: {'' if named else f'{name}, '}{meaning}"
            )
        if target is not None:
            scaled = target.kind.has_bounds and target.kind != "count" and not self.raw
            meaning = target.rule() + (", scaled to -1 to 1" if scaled else "")
            say_lines(f"  {repr(target.name) if named else 'y'}: {target.name}, {meaning}")
        if not self.raw:
            say(
                "With --raw: one column for each column of the schema, in its own unit, NaN where a cell is missing."
            )
        say()

    def explain(self, error: Exception) -> Exception:
        """An error of the program itself with its place, ours as they are. Programs see shapes, so no message quotes a cell."""
        from discreet._jax import users_file

        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        ours = max(
            i for i, name in enumerate(files) if name.startswith(str(Path(dp.__file__).parent))
        )
        inside = any(map(users_file, files[ours + 1 :]))
        if ours == len(files) - 1 or not (inside or isinstance(error, ValueError | TypeError)):
            return error
        how = failure(error) if inside else f"with {type(error).__name__}: {error}"
        return ValueError(
            f"{self.own.name} fails {how.rstrip('.')}. x has the columns {', '.join(self.columns)}"
        )

    def preprocessed(self, table: "pyarrow.Table") -> "dp.tables.Records":
        """Call the user's `preprocess` for each row by itself, of a table as `decode` gives it.

        Guarantee: as far as the user's function keeps nothing from one call to the next, a record
        depends on its own row only.
        """
        import numpy as np
        import pandas as pd

        if self.schema.target is not None:
            raise ValueError(
                f"{self.own.path} has a preprocess, which gets all columns: omit the target"
            )
        assert self.own.module is not None
        rows = []
        names = None
        for row in table.to_pylist():
            # A frame of this row alone: its types and categories depend on no other row.
            frame = pd.DataFrame(
                [{name: math.nan if cell is None else cell for name, cell in row.items()}]
            )
            try:
                found: Any = self.own.module.preprocess(frame)
                found = found.to_frame() if isinstance(found, pd.Series) else found
                numbers = found.to_numpy(np.float32)
                has = tuple(map(str, found.columns))
            except Exception as error:
                raise ValueError(
                    f"preprocess of {self.own.path} fails {failure(error, quote=False)}. It is called with each row by itself, "
                    "as a data frame, and should return a frame of numbers (the message is not shown, since it may quote a "
                    "cell)"
                ) from None
            if len(numbers) > 1 or (names or has) != has:
                raise ValueError(
                    f"preprocess of {self.own.path} returned several rows for one, or other columns for another row: it is "
                    "called with each row by itself"
                )
            names = has
            rows.append(numbers)
        x = np.concatenate(rows) if rows else np.zeros((0, 0), np.float32)
        if not x.size:
            raise ValueError(
                f"preprocess of {self.own.path} left no rows or no columns: there is nothing to fit"
            )
        return dp.tables.Records(x=x, y=None, feature_names=names or ())

    def draw(
        self, latents: Mapping[str, Any], num_records: int, rng: "np.random.Generator"
    ) -> "pyarrow.Table":
        """A table of `num_records` rows, as `discreet.synthetic` asks for it."""
        return self.draw_several([(latents, num_records)], rng)

    def draw_several(
        self, parts: "list[tuple[Mapping[str, Any], int]]", rng: "np.random.Generator"
    ) -> "pyarrow.Table":
        """A table of rows from several posterior draws, each with its number of rows: one call of the program for all."""
        import jax
        import numpy as np
        import pandas as pd

        module = self.own.module
        schema = self.schema
        own_draw = getattr(module, "draw", None)
        postprocess = getattr(module, "postprocess", None)
        maker = "preprocess"
        try:
            if own_draw is not None:
                maker = "draw"
                frames = [own_draw(latents, num_records, rng) for latents, num_records in parts]
                frame = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
            else:
                which = np.repeat(np.arange(len(parts)), [num_records for _, num_records in parts])
                keys = jax.random.split(jax.random.key(int(rng.integers(2**63))), len(which))
                latents = {
                    name: np.stack([values[name] for values, _ in parts]) for name in parts[0][0]
                }
                x = np.asarray(self._rows(latents, which, keys), np.float64)
                if postprocess is None and self.seen is None:
                    width = len(self.columns) - (schema.target is not None)
                    return dp.tables.decode(
                        x[:, :width],
                        schema,
                        x[:, width] if width < x.shape[1] else None,
                        raw=self.raw,
                    )
                frame = pd.DataFrame(x, columns=list(self.columns))
                if postprocess is not None:
                    maker = "postprocess"
                    frame = postprocess(frame)
        except Exception as error:
            raise ValueError(f"{self.own.name} drew no rows: it failed {failure(error)}") from error
        names = getattr(frame, "columns", ())
        wanted = [column.name for column in schema.columns]
        if not isinstance(frame, pd.DataFrame) or {*names} != {*wanted}:
            made = (
                f"columns {', '.join(map(str, names))}"
                if isinstance(frame, pd.DataFrame)
                else type(frame).__name__
            )
            remedy = (
                "write a postprocess"
                if maker == "preprocess"
                else f"let {maker} return a data frame"
            )
            raise ValueError(
                f"{maker} of {self.own.path} returned {made}, and the schema has the columns {', '.join(wanted)}: {remedy} with "
                "these columns"
            )
        features = dataclasses.replace(schema.without_person(), target=None)
        checked = dp.tables.encode(
            dp.tables.read_table(frame, features), features, out_of_bounds="clip", raw=True
        )
        return dp.tables.decode(checked.x, features, raw=True)

    def check(self, draws: Mapping[str, Any]) -> None:
        """Check that the program has the latents of a posterior."""
        import jax
        import numpy as np
        from numpyro import handlers

        from discreet._numpyro import trace_of

        if getattr(self.own.module, "draw", None) is not None:
            return
        try:
            found = trace_of(handlers.seed(self.function, jax.random.key(0)), *self._none)
        except Exception as error:
            raise ValueError(
                f"{self.own.name} cannot be called without records, it fails {failure(error)}. Where x is None it should sample "
                "one row and return it: rows = 1 if x is None else x.shape[0]; with numpyro.plate('rows', rows): "
                "return numpyro.sample('x', ..., obs=x)"
            ) from error
        sites = {name: np.shape(site["value"]) for name, site in found.items()}
        if wrong := [
            name for name, values in draws.items() if sites.get(name) != np.shape(values)[1:]
        ]:
            raise ValueError(
                f"{self.own.name} is not the model of this fit: the posterior has a latent {wrong[0]} of shape "
                f"{np.shape(draws[wrong[0]])[1:]}, and the model {sites.get(wrong[0], 'has none')}: name the model that was "
                "fitted"
            )

    @property
    def _none(self) -> list[None]:
        return [None] * (2 if self.schema.target is not None and not self.of_columns else 1)

    @functools.cached_property
    def _rows(self) -> Callable[..., Any]:
        import jax
        from numpyro import handlers

        def one(draws: dict[str, Any], which: Any, key: "PRNGKeyArray") -> Any:
            latents = {name: values[which] for name, values in draws.items()}
            return self._as_row(
                handlers.seed(handlers.substitute(self.function, data=latents), key)(*self._none)
            )

        return jax.jit(jax.vmap(one, (None, 0, 0)))

    def _as_row(self, returned: Any) -> Any:
        """The cells of x, then y, as one vector."""
        import jax.numpy as jnp
        import numpy as np

        names = self.columns
        if isinstance(returned, Mapping) and set(names) <= set(returned):
            returned = tuple(returned[name] for name in names)
        try:
            parts = returned if isinstance(returned, tuple | list) else [returned]
            row = jnp.concatenate([jnp.ravel(jnp.asarray(part, float)) for part in parts])
        except (TypeError, ValueError):
            row = np.zeros(0)
        if row.shape != (len(names),):
            raise ValueError(
                f"it should return one row of {len(names)} numbers ({', '.join(names)}) where it gets no records, and returned "
                f"{'nothing' if returned is None else f'{row.size} numbers' if row.size else type(returned).__name__}"
            )
        return row

    def settings_text(self) -> str:
        """The public facts about the model that a fit saves, without the program."""
        facts = {
            "format": FORMAT,
            "model": self.own.name,
            "sha256": _digest(self.own.path),
            "words": self.own.words,
            "arguments": self.own.arguments,
            "raw": self.raw,
            "seen": self.seen,
            "schema": dp.tables.schema_to_toml(self.schema),
        }
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"


class OwnFit(NamedTuple):
    """A fit of a user's model, from which twins are drawn; `draws` has those of each latent along the leading axis."""

    statement: "dp.Statement"
    model: Prepared
    draws: dict[str, "np.ndarray"]

    @property
    def num_draws(self) -> int:
        """The number of draws that the fit released."""
        return len(next(iter(self.draws.values())))

    @property
    def about(self) -> dict[str, Any]:
        """The model's settings in the twins' metadata."""
        return {"name": self.model.own.name}

    def posterior(self, key: "PRNGKeyArray", num_samples: int) -> dict[str, "np.ndarray"]:
        """Draws that the fit released, in random order; if more are asked for, they repeat."""
        import jax
        import numpy as np

        order = np.resize(np.asarray(jax.random.permutation(key, self.num_draws)), num_samples)
        return {name: values[order] for name, values in self.draws.items()}


def read_own_fit(folder: Path, name: str | None) -> OwnFit:
    """Read what the fit of a user's model left, and run the model's file, which `name` says as `choose` takes it."""
    import numpy as np

    path = folder / FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["format"] != FORMAT:
            raise ValueError
        schema = dp.tables.schema_from_dict(tomllib.loads(facts["schema"]))
        statement = dp.report.statement_from_dict(
            json.loads((folder / "statement.json").read_text(encoding="utf-8"))
        )
        with np.load(folder / "posterior.npz", allow_pickle=False) as file:
            draws = {latent: file[latent] for latent in file.files}
        fitted = str(facts["model"])
        words = tuple(map(str, facts["words"]))
        arguments = dict(facts["arguments"])
        raw = bool(facts["raw"])
        seen = None if facts["seen"] is None else tuple(map(str, facts["seen"]))
    except (
        OSError,
        EOFError,
        zipfile.BadZipFile,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ):
        raise ValueError(
            f"{folder}: {FILE}, statement.json or posterior.npz is damaged: restore what the fit wrote"
        ) from None
    if name is None:
        raise ValueError(
            f"{folder} holds a fit of your own model, and no program is kept with it: name the model again, --model {fitted}"
        )
    own = choose(name, words=words, arguments=arguments)
    if _digest(own.path) != facts["sha256"]:
        say_error(
            f"{own.path} was changed since the fit: the twins are right only if the model is the same."
        )
    if not draws or not all(np.isfinite(values).all() for values in draws.values()):
        raise ValueError(
            f"The fit in {folder} failed: its posterior is not finite, so no twin can be drawn"
        )
    model = dataclasses.replace(own.prepare(schema, raw=raw), seen=seen)
    model.check(draws)
    return OwnFit(statement, model, draws)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(
            f"the model file {path} cannot be read ({error.strerror}): check the path"
        ) from None
