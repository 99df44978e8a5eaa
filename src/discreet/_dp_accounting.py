"""dp_accounting's events and relations, imported without its accountants.

Its package imports them, and with them SciPy's statistics, signal processing and optimization,
which takes as long as importing JAX. So the two modules that are needed are imported as those of a
package that was not executed. Whoever imports dp_accounting later executes it and finds these two
modules, so that an event has one class.
"""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec


def _import_alone(package: str, *modules: str) -> None:
    """Import modules of a package that was not imported yet, without the package itself."""
    found = None if package in sys.modules else find_spec(package)
    if found is None:
        return
    sys.modules[package] = module_from_spec(found)
    try:
        for module in modules:
            import_module(f"{package}.{module}")
    finally:
        del sys.modules[package]


_import_alone("dp_accounting", "dp_event", "privacy_accountant")

from dp_accounting.dp_event import (  # noqa: E402
    ComposedDpEvent as ComposedDpEvent,
    DpEvent as DpEvent,
    GaussianDpEvent as GaussianDpEvent,
    LaplaceDpEvent as LaplaceDpEvent,
    NonPrivateDpEvent as NonPrivateDpEvent,
    NoOpDpEvent as NoOpDpEvent,
    PoissonSampledDpEvent as PoissonSampledDpEvent,
    RandomizedResponseDpEvent as RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent as SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent as SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent as TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.privacy_accountant import NeighboringRelation as NeighboringRelation  # noqa: E402
