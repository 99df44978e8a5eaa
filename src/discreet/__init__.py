"""Differentially private probabilistic programming on JAX and NumPyro.

>>> import discreet as dp
>>> plan = dp.PrivacyPlan.calibrate(
...     epsilon=1.0, delta=1e-6, num_records=32_561, num_steps=2_000,
...     sampling=dp.PoissonSampling(rate=0.0184), clipping_norm=1.0)
>>> bool(plan.epsilon(delta=1e-6) <= 1.0)
True
"""

from importlib.metadata import version as _version

from discreet import random
from discreet.accounting import Relation, suggest
from discreet.inference import DPSVI, DPSVIResult
from discreet.mechanisms import clip_records, gaussian_mechanism, laplace_mechanism, sum_records
from discreet.plan import PrivacyPlan
from discreet.report import Statement
from discreet.sampling import FixedSizeSampling, FullBatch, PoissonSampling

__version__ = _version("discreet")

__all__ = [
    "DPSVI",
    "DPSVIResult",
    "FixedSizeSampling",
    "FullBatch",
    "PoissonSampling",
    "PrivacyPlan",
    "Relation",
    "Statement",
    "clip_records",
    "gaussian_mechanism",
    "laplace_mechanism",
    "random",
    "suggest",
    "sum_records",
]
