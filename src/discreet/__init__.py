"""Differentially private probabilistic programming on JAX and NumPyro.

Public names are loaded when they are first used, so that `import discreet` takes no longer than the part of it that
a program needs.

>>> import discreet as dp
>>> plan = dp.PrivacyPlan.calibrate(
...     epsilon=1.0, delta=1e-6, num_records=32_561, num_steps=2_000,
...     sampling=dp.PoissonSampling(rate=0.0184), clipping_norm=1.0)
>>> bool(plan.epsilon(delta=1e-6) <= 1.0)
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet import random
    from discreet.accounting import Relation, compare_accountants, suggest
    from discreet.audit import audit_fit, audit_mechanism, audit_one_run
    from discreet.clipping import AdaptiveClipping, NormalisedClipping
    from discreet.defaults import default_plan
    from discreet.inference import (
        DPSGLD,
        DPSVI,
        DPSGLDResult,
        DPSVIResult,
        OnePosteriorSample,
        OPSResult,
        load_result,
        suggest_clipping,
    )
    from discreet.inference_data import to_arviz
    from discreet.ledger import Ledger, LedgerError, SpentError
    from discreet.mechanisms import (
        clip_records,
        gaussian_mechanism,
        laplace_mechanism,
        poisson_subsample,
        subsample_without_replacement,
        sum_records,
    )
    from discreet.models import FactorAnalysis, GaussianMixture, MixtureOfProducts, TableVAE
    from discreet.optimizers import adadp
    from discreet.page import write_report
    from discreet.plan import PrivacyPlan
    from discreet.predict import (
        class_probabilities,
        classification_metrics,
        linear_predictor,
        plug_in_probabilities,
        probit_probabilities,
    )
    from discreet.rehearsal import rehearse
    from discreet.report import Statement
    from discreet.sampling import FixedSizeSampling, FullBatch, PoissonSampling
    from discreet.standardise import Scaling, Standardisation, private_standardisation
    from discreet.synthetic import synthesize
    from discreet.utility import utility_report
    from discreet.verify import Certificate, PrivacyError, certify, symbol

    __version__: str

__all__ = [
    "DPSGLD",
    "DPSVI",
    "AdaptiveClipping",
    "Certificate",
    "DPSGLDResult",
    "DPSVIResult",
    "FactorAnalysis",
    "FixedSizeSampling",
    "FullBatch",
    "GaussianMixture",
    "Ledger",
    "LedgerError",
    "MixtureOfProducts",
    "NormalisedClipping",
    "OPSResult",
    "OnePosteriorSample",
    "PoissonSampling",
    "PrivacyError",
    "PrivacyPlan",
    "Relation",
    "Scaling",
    "SpentError",
    "Standardisation",
    "Statement",
    "TableVAE",
    "adadp",
    "audit_fit",
    "audit_mechanism",
    "audit_one_run",
    "certify",
    "class_probabilities",
    "classification_metrics",
    "clip_records",
    "compare_accountants",
    "default_plan",
    "gaussian_mechanism",
    "laplace_mechanism",
    "linear_predictor",
    "load_result",
    "plug_in_probabilities",
    "poisson_subsample",
    "private_standardisation",
    "probit_probabilities",
    "random",
    "rehearse",
    "subsample_without_replacement",
    "suggest",
    "suggest_clipping",
    "sum_records",
    "symbol",
    "synthesize",
    "to_arviz",
    "utility_report",
    "write_report",
]

_ROOMS = {
    "accounting": ("Relation", "compare_accountants", "suggest"),
    "audit": ("audit_fit", "audit_mechanism", "audit_one_run"),
    "clipping": ("AdaptiveClipping", "NormalisedClipping"),
    "defaults": ("default_plan",),
    "inference": (
        "DPSGLD",
        "DPSVI",
        "DPSGLDResult",
        "DPSVIResult",
        "OPSResult",
        "OnePosteriorSample",
        "load_result",
        "suggest_clipping",
    ),
    "ledger": ("Ledger", "LedgerError", "SpentError"),
    "inference_data": ("to_arviz",),
    "mechanisms": (
        "clip_records",
        "gaussian_mechanism",
        "laplace_mechanism",
        "poisson_subsample",
        "subsample_without_replacement",
        "sum_records",
    ),
    "models": ("FactorAnalysis", "GaussianMixture", "MixtureOfProducts", "TableVAE"),
    "optimizers": ("adadp",),
    "page": ("write_report",),
    "plan": ("PrivacyPlan",),
    "predict": (
        "class_probabilities",
        "classification_metrics",
        "linear_predictor",
        "plug_in_probabilities",
        "probit_probabilities",
    ),
    "rehearsal": ("rehearse",),
    "report": ("Statement",),
    "sampling": ("FixedSizeSampling", "FullBatch", "PoissonSampling"),
    "standardise": ("Scaling", "Standardisation", "private_standardisation"),
    "synthetic": ("synthesize",),
    "utility": ("utility_report",),
    "verify": ("Certificate", "PrivacyError", "certify", "symbol"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from its room (PEP 562)."""
    if name in _ROOM_OF:
        value = getattr(import_module(f"discreet.{_ROOM_OF[name]}"), name)
    elif name == "__version__":
        value = import_module("importlib.metadata").version("discreet")
    elif name == "random":
        value = import_module("discreet.random")
    else:
        raise AttributeError(f"module 'discreet' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
