"""Differentially private probabilistic programming on JAX and NumPyro.

The names in `_HOME`, which most programs need, are found here; everything else in a module, as `dp.models.MixtureOfProducts`.
Names and modules are loaded when they are first used (PEP 562), so `import discreet` alone imports neither JAX nor SciPy.

>>> import discreet as dp
>>> plan = dp.PrivacyPlan.calibrate(
...     epsilon=1.0, delta=1e-6, num_records=32_561, num_steps=2_000,
...     sampling=dp.PoissonSampling(rate=0.0184), clipping_norm=1.0)
>>> bool(plan.epsilon(delta=1e-6) <= 1.0)
True
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each public name is defined.
_HOME = {
    "AdaptiveClipping": "clipping",
    "Certificate": "verify",
    "DPNewton": "newton",
    "DPSGLD": "inference",
    "DPSVI": "inference",
    "DPSVIResult": "inference",
    "FixedSizeSampling": "sampling",
    "FullBatch": "sampling",
    "Ledger": "ledger",
    "LedgerError": "ledger",
    "OnePosteriorSample": "inference",
    "PoissonSampling": "sampling",
    "PrivacyError": "verify",
    "PrivacyPlan": "plan",
    "Relation": "accounting",
    "SpentError": "ledger",
    "Statement": "report",
    "certify": "verify",
    "clip_records": "mechanisms",
    "describe": "marginals",
    "exponential_mechanism": "mechanisms",
    "fit": "newton",
    "gaussian_mechanism": "mechanisms",
    "laplace_mechanism": "mechanisms",
    "load_result": "inference",
    "poisson_subsample": "mechanisms",
    "subsample_without_replacement": "mechanisms",
    "sum_records": "mechanisms",
    "symbol": "verify",
}

if TYPE_CHECKING:  # The same for type checkers, which do not run __getattr__; tests/test_names.py compares the two.
    from discreet import accounting as accounting
    from discreet import act as act
    from discreet import audit as audit
    from discreet import clipping as clipping
    from discreet import compat as compat
    from discreet import estimators as estimators
    from discreet import gradients as gradients
    from discreet import inference as inference
    from discreet import inference_data as inference_data
    from discreet import ledger as ledger
    from discreet import marginals as marginals
    from discreet import mechanisms as mechanisms
    from discreet import models as models
    from discreet import moments as moments
    from discreet import newton as newton
    from discreet import optimizers as optimizers
    from discreet import page as page
    from discreet import plan as plan
    from discreet import planning as planning
    from discreet import plots as plots
    from discreet import predict as predict
    from discreet import query as query
    from discreet import random as random
    from discreet import released as released
    from discreet import report as report
    from discreet import sampling as sampling
    from discreet import scores as scores
    from discreet import standardise as standardise
    from discreet import storage as storage
    from discreet import synthetic as synthetic
    from discreet import tables as tables
    from discreet import verify as verify
    from discreet.accounting import Relation as Relation
    from discreet.clipping import AdaptiveClipping as AdaptiveClipping
    from discreet.inference import DPSGLD as DPSGLD
    from discreet.inference import DPSVI as DPSVI
    from discreet.inference import DPSVIResult as DPSVIResult
    from discreet.inference import OnePosteriorSample as OnePosteriorSample
    from discreet.inference import load_result as load_result
    from discreet.ledger import Ledger as Ledger
    from discreet.ledger import LedgerError as LedgerError
    from discreet.ledger import SpentError as SpentError
    from discreet.marginals import describe as describe
    from discreet.mechanisms import clip_records as clip_records
    from discreet.mechanisms import exponential_mechanism as exponential_mechanism
    from discreet.mechanisms import gaussian_mechanism as gaussian_mechanism
    from discreet.mechanisms import laplace_mechanism as laplace_mechanism
    from discreet.mechanisms import poisson_subsample as poisson_subsample
    from discreet.mechanisms import subsample_without_replacement as subsample_without_replacement
    from discreet.mechanisms import sum_records as sum_records
    from discreet.newton import DPNewton as DPNewton
    from discreet.newton import fit as fit
    from discreet.plan import PrivacyPlan as PrivacyPlan
    from discreet.report import Statement as Statement
    from discreet.sampling import FixedSizeSampling as FixedSizeSampling
    from discreet.sampling import FullBatch as FullBatch
    from discreet.sampling import PoissonSampling as PoissonSampling
    from discreet.verify import Certificate as Certificate
    from discreet.verify import PrivacyError as PrivacyError
    from discreet.verify import certify as certify
    from discreet.verify import symbol as symbol

    __version__: str
else:
    __all__ = sorted([*_HOME, "random"])


def _modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]


def __getattr__(name: str) -> Any:
    """Load a public name from its home, or a module of the package."""
    if name in _HOME:
        value = getattr(import_module(f"discreet.{_HOME[name]}"), name)
    elif name == "__version__":
        value = import_module("importlib.metadata").version("discreet")
    elif not name.startswith("_") and name in _modules():
        value = import_module(f"discreet.{name}")
    else:
        raise AttributeError(f"module 'discreet' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_HOME, *_modules(), "__version__"})
