"""Measure once: noisy counts of cross tables in one Gaussian release, and what is computed from them.

`private_marginals` counts the cross tables of a `MarginalsPlan`. It alone sees records.
"""

from discreet.marginals._release import Marginals, MarginalsPlan, private_marginals

__all__ = ["Marginals", "MarginalsPlan", "private_marginals"]
