"""Which model a name on the command line means."""

import dataclasses
import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from discreet.data import Kind


@dataclasses.dataclass(frozen=True)
class ChosenModel:
    """A model function of (x, y) or (x) and what it expects.

    Attributes:
        name: As given.
        function: The NumPyro model.
        target_kind: The kind that its target must have; None for whatever the schema says.
        own: Whether it is the user's.
    """

    name: str
    function: Callable[..., object]
    target_kind: "Kind | None"
    own: bool


def choose_model(name: str) -> ChosenModel:
    """A built-in model by name, or `FILE.py:FUNCTION`. Runs the file.

    Raises:
        ValueError: An unknown name, a file that is absent or fails, or a function that is not in it.
    """
    from discreet.data import Kind
    from discreet.models import linear_regression, logistic_regression, poisson_regression

    built_in = {
        "logistic": (logistic_regression, Kind.BINARY),
        "linear": (linear_regression, Kind.REAL),
        "poisson": (poisson_regression, Kind.COUNT),
    }
    if name in built_in:
        function, kind = built_in[name]
        return ChosenModel(name, function, kind, own=False)
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ValueError(
            f"the model {name!r} is not known: choose {', '.join(built_in)}, or FILE.py:FUNCTION of your own"
        )
    path = Path(file)
    module = run_file(path, "model file")
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"{path} has no function {attribute}: name the model function after the colon")
    return ChosenModel(name, function, None, own=True)


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
