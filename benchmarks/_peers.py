"""Peers from the package index: loaded by name, skipped with a reason where absent."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = (
    "discreet",
    "jax",
    "jaxlib",
    "numpyro",
    "numpy",
    "optax",
    "dp-accounting",
    "jax-privacy",
    "opacus",
    "torch",
    "mbi",
    "smartnoise-synth",
    "smartnoise-sql",
    "diffprivlib",
    "opendp",
    "statsmodels",
)


class AbsentError(RuntimeError):
    """A peer that cannot be compared with, and why."""


def load(module: str, remedy: str = "pip install '.[peers]'") -> Any:
    """Import a peer, which `remedy` installs.

    Raises:
        AbsentError: it is not installed, or does not import here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as error:
        raise AbsentError(f"{module} does not import ({error}); {remedy} brings it") from error


def gather(outcome: Any, contenders: dict[str, Callable[[], Any]]) -> list[Any]:
    """Build each contender's program; what is absent goes to the outcome's `skipped`."""
    programs = []
    for name, build in contenders.items():
        try:
            programs.append(build())
        except AbsentError as reason:
            outcome.skipped[name] = str(reason)
    return programs


def versions() -> dict[str, str]:
    """Versions of the packages compared; absent ones are omitted."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
