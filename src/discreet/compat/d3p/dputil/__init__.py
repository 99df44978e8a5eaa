"""`d3p.dputil`: the noise for a target epsilon, from accounting that fits the batches."""

from discreet.compat.d3p.dputil._sigma import (
    Calibration,
    NoiseScale,
    approximate_sigma,
    approximate_sigma_remove_relation,
    whole_steps,
)
from discreet.compat.d3p.dputil._warning import D3PAccountingWarning

__all__ = [
    "Calibration",
    "D3PAccountingWarning",
    "NoiseScale",
    "approximate_sigma",
    "approximate_sigma_remove_relation",
    "whole_steps",
]
