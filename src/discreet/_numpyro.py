"""All uses of NumPyro's private names, and of those that its documentation does not list.

NumPyro promises stability for what it documents. What discreet needs beyond that is imported here,
so that a new release can break this file only. A comment gives the purpose of each name. discreet
declares the tested releases (`TRIED_FROM`, `UNTRIED_FROM`). On any other it warns: proofs read the
program that JAX runs, whatever NumPyro made of the model, but the parts of a model may be found
otherwise than they were here.
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpyro
from jax.core import Tracer
from numpyro import handlers

# the function of a `scan` message
from numpyro.contrib.control_flow.scan import (
    scan_wrapper as scan_wrapper,
)

# its warning of values outside of a support
from numpyro.distributions import (
    distribution as numpyro_distribution,
)

# as NumPyro's ELBO scales a site's density
from numpyro.distributions.util import (
    scale_and_mask as scale_and_mask,
)
from numpyro.infer import util as numpyro_util

# names the site in an error
from numpyro.infer.util import (
    helpful_support_errors as helpful_support_errors,
)
from numpyro.optim import _NumPyroOptim as NumPyroOptim  # the base class of all optimizers
from numpyro.primitives import _PYRO_STACK  # the handlers that are open

from discreet._jax import release_numbers, run_kept

__all__ = ["NumPyroOptim", "helpful_support_errors", "scale_and_mask", "scan_wrapper"]

TRIED_FROM = "0.22"
UNTRIED_FROM = "0.23"
"""The first tested release of NumPyro, and the first one after it that is not tested, as in pyproject.toml."""

one_model = threading.RLock()
"""Held while a model or guide runs. NumPyro has one list of open handlers for all threads, so that
the sites of one thread's model would be found in the trace of another's. Models run while they are
traced, not in the compiled program."""


def untried_numpyro() -> str:
    """A sentence that warns users of an untested release of NumPyro; empty for a tested one."""
    if (
        release_numbers(TRIED_FROM)
        <= release_numbers(numpyro.__version__)
        < release_numbers(UNTRIED_FROM)
    ):
        return ""
    return (
        f"discreet was tested on NumPyro {TRIED_FROM} to the last release before {UNTRIED_FROM}, and this is NumPyro "
        f"{numpyro.__version__}, which may run a model otherwise: pip install 'numpyro>={TRIED_FROM},<{UNTRIED_FROM}'."
    )


def open_plates() -> list[Any]:
    """The plates that are open, from the outermost."""
    return [x for x in _PYRO_STACK if isinstance(x, numpyro.plate)]


def trace_of(program: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The sites of one run of a model or guide, with the handlers around it; one thread at a time."""
    with one_model:
        return handlers.trace(program).get_trace(*args, **kwargs)


class _Warnings(threading.local):
    """In the place of `warnings` in the module whose only warning is that of values outside of a support."""

    depth = 0  # contexts that are open in this thread

    def warn(
        self, message: str, category: type[Warning] | None = None, stacklevel: int = 1
    ) -> None:
        if not self.depth:
            warnings.warn(message, category, stacklevel=stacklevel + 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)


_quiet = _Warnings()


@contextmanager
def artificial_records() -> Iterator[None]:
    """Do not warn of values outside of a support: they are those of artificial records.

    `warnings.catch_warnings` would do more: Python forgets which warnings it has shown, and repeats
    the user's own.
    """
    # Never put back, which another thread's context may need; outside of all contexts it changes
    # nothing.
    numpyro_distribution.warnings = _quiet  # pyright: ignore[reportAttributeAccessIssue]
    _quiet.depth += 1
    try:
        yield
    finally:
        _quiet.depth -= 1


def set_up_prototype(guide: Any, *args: Any, **kwargs: Any) -> None:
    """Set up an AutoGuide of NumPyro's own on these arguments, without the draw that follows in its first call."""
    guide._setup_prototype(*args, **kwargs)


@contextmanager
def compiled_search() -> Iterator[None]:
    """Let AutoGuides search initial values by one compiled program; compiling each operation alone takes longer.

    The values are the same: it is NumPyro's own search, of which only the first try would not have
    been compiled. One thread at a time.
    """

    def at_once(key: Any, model: Any, *, prototype_params: Any = None, **options: Any) -> Any:
        if isinstance(key, Tracer):
            # On shapes alone: nothing is compiled.
            return search(key, model, prototype_params=prototype_params, **options)
        return run_kept(
            lambda key, start: search(key, model, prototype_params=start, **options),
            key,
            prototype_params,
        )

    with one_model:
        search = numpyro_util.find_valid_initial_params
        numpyro_util.find_valid_initial_params = at_once
        try:
            yield
        finally:
            numpyro_util.find_valid_initial_params = search
