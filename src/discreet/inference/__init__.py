"""Private inference: one file a method, and the step, loop and result that they share."""

from discreet.inference._dpsgld import DPSGLD, DPSGLDResult, releases_of
from discreet.inference._dpsvi import DPSVI
from discreet.inference._loop import ManyFits
from discreet.inference._ops import OnePosteriorSample, OPSResult
from discreet.inference._processes import FAILED, START_AGAIN, Processes
from discreet.inference._records import Records, take_apart, with_levels, with_records
from discreet.inference._result import DPSVIResult, load_result
from discreet.inference._step import DPSVIState, check_unused, claim
from discreet.inference._suggest_clipping import ClippingSuggestion, Unobserved, starting_objective, suggest_clipping
from discreet.inference._trace import NoiseAware, Trace

__all__ = [
    "DPSGLD",
    "DPSVI",
    "FAILED",
    "START_AGAIN",
    "ClippingSuggestion",
    "DPSGLDResult",
    "DPSVIResult",
    "DPSVIState",
    "ManyFits",
    "NoiseAware",
    "OPSResult",
    "OnePosteriorSample",
    "Processes",
    "Records",
    "Trace",
    "Unobserved",
    "check_unused",
    "claim",
    "load_result",
    "releases_of",
    "starting_objective",
    "suggest_clipping",
    "take_apart",
    "with_levels",
    "with_records",
]
