"""`d3p.optimizers`: the optimizer that finds its own learning rate."""

from discreet.compat.d3p.optimizers._adadp import ADADP

__all__ = ["ADADP"]
