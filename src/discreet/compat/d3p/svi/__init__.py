"""`d3p.svi`: `DPSVI` with d3p's arguments."""

from discreet.compat.d3p.svi._dpsvi import DPSVI
from discreet.inference import DPSVIState

__all__ = ["DPSVI", "DPSVIState"]
