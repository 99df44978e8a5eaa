"""Which model a name on the command line means."""

import dataclasses
import importlib.util
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from discreet.models import MixtureOfProducts
    from discreet.tables import Kind, Schema

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a fit takes where its options are left out.

    Attributes:
        steps: Number of steps.
        batch: Expected number of records in a batch.
        learning_rate: Step size of Adam.
        clip: Clipping norm; None: from the model's own bound on a record's gradient.
    """

    steps: int = 1_000
    batch: int = 500
    learning_rate: float = 0.02
    clip: str | None = "1.0"


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """A model and what it expects: a function of (x, y) or (x), or a model of whole tables.

    Attributes:
        name: As given.
        function: The NumPyro model; None for a model of whole tables, which `of_table` makes.
        target_kind: The kind that its target must have; None for whatever the schema says.
        own: Whether it is the user's.
        of_columns: Whether it takes a dict from names to columns, as a user's model may.
        of_classes: From the number of the target's categories to the NumPyro model, in the place of `function`.
        of_table: From the schema to a model of all its columns, from which twins are drawn.
        defaults: Of the fit's options.
    """

    name: str
    function: Callable[..., object] | None
    target_kind: "Kind | None"
    own: bool
    of_classes: Callable[[int], Callable[..., object]] | None = None
    of_table: "Callable[[Schema], MixtureOfProducts] | None" = None
    defaults: Defaults = Defaults()
    of_columns: bool = False

    @property
    def needs_target(self) -> bool:
        """Whether it explains a column by the others."""
        return not self.own and self.of_table is None

    def function_for(self, schema: "Schema") -> Callable[..., object]:
        """The NumPyro model of records that are described so; for a model that is not of whole tables."""
        if self.of_classes is not None:
            assert schema.target_column is not None
            return self.of_classes(len(schema.target_column.categories))
        assert self.function is not None
        return self.function


MODELS = {
    "logistic": "for a target with two values",
    "multinomial": "for one with several categories",
    "linear": "for a number",
    "poisson": "for a count",
    "negative-binomial": "for counts that scatter more",
    "twin": "for all columns, of which discreet synth draws twins",
}
MULTINOMIAL, TWIN = "multinomial", "twin"
COLUMNS = "columns"
"""The name of a first parameter that takes a dict from names to columns."""
COMPONENTS = 16


def choose_model(name: str, *, components: int | None = None) -> ChosenModel:
    """A built-in model by name, or `FILE.py:FUNCTION`. Runs the file.

    Args:
        name: As on the command line.
        components: Number of components of a mixture; None: 16.

    Raises:
        ValueError: An unknown name, a file that is absent or fails, a function that is not in it, or components of a model
            that has none.
    """
    from discreet.models import (
        linear_regression,
        logistic_regression,
        multinomial_regression,
        negative_binomial_regression,
        poisson_regression,
    )
    from discreet.tables import Kind

    if name == TWIN:
        return _twin(COMPONENTS if components is None else components)
    if components is not None:
        raise ValueError(f"--components is for --model {TWIN}: the model {name} has none, leave it out")
    built_in = {
        "logistic": (logistic_regression, Kind.BINARY),
        "linear": (linear_regression, Kind.REAL),
        "poisson": (poisson_regression, Kind.COUNT),
        "negative-binomial": (negative_binomial_regression, Kind.COUNT),
    }
    if name == MULTINOMIAL:
        return ChosenModel(name, None, Kind.CATEGORICAL, own=False, of_classes=multinomial_regression)
    if name in built_in:
        function, kind = built_in[name]
        return ChosenModel(name, function, kind, own=False)
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ValueError(
            f"the model {name!r} is not known: choose {', '.join(MODELS)}, or FILE.py:FUNCTION of your own"
        )
    path = Path(file)
    module = run_file(path, "model file")
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"{path} has no function {attribute}: name the model function after the colon")
    return ChosenModel(name, function, None, own=True, of_columns=_first_parameter(function) == COLUMNS)


def _first_parameter(function: Callable[..., object]) -> str | None:
    """The name of a function's first parameter; None if it has none that can be read."""
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except (TypeError, ValueError):
        return None


MOST_COMPONENTS = 1_000


def _twin(components: int) -> ChosenModel:
    from discreet.models import MixtureOfProducts

    if not 1 <= components <= MOST_COMPONENTS:
        raise ValueError(f"--components is {components}: give a number from 1 to {MOST_COMPONENTS}, 16 say")

    def of_table(schema: "Schema") -> "MixtureOfProducts":
        return MixtureOfProducts(schema, components=components)

    # Fewer and larger steps than a regression's: the noise is on thousands of parameters (docs/twins.md).
    defaults = Defaults(steps=300, batch=1_000, learning_rate=0.05, clip=None)
    return ChosenModel(TWIN, None, None, own=False, of_table=of_table, defaults=defaults)


def run_file(path: Path, what: str) -> ModuleType:
    """Run a Python file of the user's.

    Args:
        path: Where it is.
        what: What it is, for the error.

    Raises:
        ValueError: It is absent or fails.
    """
    if not path.is_file():
        raise ValueError(f"the {what} {path} does not exist: check the path")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        # No data have been read: the message is about the user's code and may be shown.
        raise ValueError(f"the {what} {path} fails on import {failure(error)}") from error
    return module


def failure(error: BaseException) -> str:
    """Where the user's code failed, and with what, as the end of a sentence."""
    from discreet._jax import users_file

    own = [x for x in traceback.extract_tb(error.__traceback__) if users_file(x.filename)]
    place = f"at {own[-1].filename}:{own[-1].lineno} ({own[-1].name}) " if own else ""
    return f"{place}with {type(error).__name__}: {str(error).rstrip('.')}".replace(f"{Path.cwd()}/", "")


def returned_by(
    program: str,
    function: Callable[[], object],
    kind: type[T],
    remedy: str,
    *,
    passing: tuple[type[Exception], ...] = (),
) -> T:
    """What the user's function returns.

    Args:
        program: What the user called it.
        function: The function.
        kind: What it is to return.
        remedy: What to do where it returns something else.
        passing: Errors that are an answer, too.

    Raises:
        ValueError: It fails, or returns something else.
    """
    try:
        found = function()
    except passing:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"{program} fails {failure(error)}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{program} returned an object of type {type(found).__name__}: {remedy}")
    return found
