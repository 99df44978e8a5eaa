"""`d3p.gmm`: a Gaussian mixture whose assignments are summed out."""

from discreet.compat.d3p.gmm._mixture import GaussianMixture

__all__ = ["GaussianMixture"]
