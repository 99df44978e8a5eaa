"""Differentially private probabilistic programming on JAX and NumPyro.

The names in `_HOME`, which most programs need, are found here; everything else in a module, as `dp.models.MixtureOfProducts`.
Names and modules are loaded when they are first used (PEP 562), so `import discreet` alone imports neither JAX nor SciPy.

>>> import discreet as dp
>>> plan = dp.PrivacyPlan.calibrate(
...     epsilon=1.0, delta=1e-6, num_records=32_561, num_steps=2_000,
...     sampling=dp.PoissonSampling(rate=0.0184))
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
    from discreet import (
        accounting as accounting,
        act as act,
        audit as audit,
        clipping as clipping,
        compat as compat,
        estimators as estimators,
        gradients as gradients,
        inference as inference,
        inference_data as inference_data,
        ledger as ledger,
        marginals as marginals,
        mechanisms as mechanisms,
        models as models,
        moments as moments,
        newton as newton,
        optimizers as optimizers,
        page as page,
        plan as plan,
        planning as planning,
        plots as plots,
        predict as predict,
        query as query,
        random as random,
        released as released,
        report as report,
        sampling as sampling,
        scores as scores,
        standardise as standardise,
        storage as storage,
        synthetic as synthetic,
        tables as tables,
        verify as verify,
    )
    from discreet.accounting import Relation as Relation
    from discreet.clipping import AdaptiveClipping as AdaptiveClipping
    from discreet.inference import (
        DPSGLD as DPSGLD,
        DPSVI as DPSVI,
        DPSVIResult as DPSVIResult,
        OnePosteriorSample as OnePosteriorSample,
        load_result as load_result,
    )
    from discreet.ledger import Ledger as Ledger, LedgerError as LedgerError, SpentError as SpentError
    from discreet.marginals import describe as describe
    from discreet.mechanisms import (
        clip_records as clip_records,
        exponential_mechanism as exponential_mechanism,
        gaussian_mechanism as gaussian_mechanism,
        laplace_mechanism as laplace_mechanism,
        poisson_subsample as poisson_subsample,
        subsample_without_replacement as subsample_without_replacement,
        sum_records as sum_records,
    )
    from discreet.newton import DPNewton as DPNewton, fit as fit
    from discreet.plan import PrivacyPlan as PrivacyPlan
    from discreet.report import Statement as Statement
    from discreet.sampling import (
        FixedSizeSampling as FixedSizeSampling,
        FullBatch as FullBatch,
        PoissonSampling as PoissonSampling,
    )
    from discreet.verify import (
        Certificate as Certificate,
        PrivacyError as PrivacyError,
        certify as certify,
        symbol as symbol,
    )

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
