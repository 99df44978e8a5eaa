"""Differentially private probabilistic programming on JAX and NumPyro.

The names in `_HOME`, which most programs need, are found here; everything else in a module, as
`dp.models.MixtureOfProducts`. A module lies in one of four storeys, and is imported from there:
`from discreet.tabular.models import MixtureOfProducts`. Names and modules are loaded when they are
first used (PEP 562), so `import discreet` alone imports neither JAX nor SciPy.

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

# From the ground up; the docstring of each has its modules, and what it may import.
_STOREYS = ("privacy", "methods", "tabular", "interfaces")

# The module where each public name is defined.
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
    "check": "criticism",
    "clip_records": "mechanisms",
    "compare": "scores",
    "describe": "marginals",
    "exponential_mechanism": "mechanisms",
    "fit": "choose",
    "gaussian_mechanism": "mechanisms",
    "laplace_mechanism": "mechanisms",
    "load_result": "inference",
    "poisson_subsample": "mechanisms",
    "regress": "formulas",
    "subsample_without_replacement": "mechanisms",
    "sum_records": "mechanisms",
    "symbol": "verify",
    "twins": "synthetic",
}

if TYPE_CHECKING:  # The same for type checkers, which do not run __getattr__; tests/test_names.py compares the two.
    from discreet import storage as storage
    from discreet.interfaces import compat as compat, page as page
    from discreet.methods import (
        audit as audit,
        choose as choose,
        inference as inference,
        inference_data as inference_data,
        moments as moments,
        newton as newton,
        optimizers as optimizers,
        plots as plots,
        predict as predict,
    )
    from discreet.methods.choose import fit as fit
    from discreet.methods.inference import (
        DPSGLD as DPSGLD,
        DPSVI as DPSVI,
        DPSVIResult as DPSVIResult,
        OnePosteriorSample as OnePosteriorSample,
        load_result as load_result,
    )
    from discreet.methods.newton import DPNewton as DPNewton
    from discreet.privacy import (
        accounting as accounting,
        act as act,
        clipping as clipping,
        gradients as gradients,
        ledger as ledger,
        mechanisms as mechanisms,
        plan as plan,
        query as query,
        random as random,
        released as released,
        report as report,
        sampling as sampling,
        verify as verify,
    )
    from discreet.privacy.accounting import Relation as Relation
    from discreet.privacy.clipping import AdaptiveClipping as AdaptiveClipping
    from discreet.privacy.ledger import (
        Ledger as Ledger,
        LedgerError as LedgerError,
        SpentError as SpentError,
    )
    from discreet.privacy.mechanisms import (
        clip_records as clip_records,
        exponential_mechanism as exponential_mechanism,
        gaussian_mechanism as gaussian_mechanism,
        laplace_mechanism as laplace_mechanism,
        poisson_subsample as poisson_subsample,
        subsample_without_replacement as subsample_without_replacement,
        sum_records as sum_records,
    )
    from discreet.privacy.plan import PrivacyPlan as PrivacyPlan
    from discreet.privacy.report import Statement as Statement
    from discreet.privacy.sampling import (
        FixedSizeSampling as FixedSizeSampling,
        FullBatch as FullBatch,
        PoissonSampling as PoissonSampling,
    )
    from discreet.privacy.verify import (
        Certificate as Certificate,
        PrivacyError as PrivacyError,
        certify as certify,
        symbol as symbol,
    )
    from discreet.tabular import (
        criticism as criticism,
        estimators as estimators,
        formulas as formulas,
        marginals as marginals,
        models as models,
        planning as planning,
        private_schema as private_schema,
        scores as scores,
        synthetic as synthetic,
        tables as tables,
    )
    from discreet.tabular.criticism import check as check
    from discreet.tabular.formulas import regress as regress
    from discreet.tabular.marginals import describe as describe
    from discreet.tabular.scores import compare as compare
    from discreet.tabular.synthetic import twins as twins

    __version__: str
else:
    __all__ = sorted([*_HOME, "random"])


def _modules() -> dict[str, str]:
    """Public modules with their full names: "random" is discreet.privacy.random."""
    places = {__name__: "", **{f"{__name__}.{storey}": f"/{storey}" for storey in _STOREYS}}
    return {
        module.name: f"{place}.{module.name}"
        for place, folder in places.items()
        for module in pkgutil.iter_modules([path + folder for path in __path__])
        if not module.name.startswith("_") and module.name not in _STOREYS
    }


def _loaded(module: str) -> Any:
    with import_module("discreet._garbage").uncollected(stay=True):
        return import_module(module)


def __getattr__(name: str) -> Any:
    """Load a public name from its home, or a module of the package."""
    if name in _HOME:
        value = getattr(_loaded(_modules()[_HOME[name]]), name)
    elif name == "__version__":
        value = import_module("importlib.metadata").version("discreet")
    elif not name.startswith("_") and name in (modules := _modules()):
        value = _loaded(modules[name])
    else:
        raise AttributeError(f"module 'discreet' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_HOME, *_modules(), "__version__"})
