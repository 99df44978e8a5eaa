"""Private inference: one file a method, and the step, loop and result that they share."""

from discreet.inference._dpsgld import DPSGLD as DPSGLD
from discreet.inference._dpsgld import DPSGLDResult as DPSGLDResult
from discreet.inference._dpsgld import releases_of as releases_of
from discreet.inference._dpsvi import DPSVI as DPSVI
from discreet.inference._dpsvi import update_in_loop as update_in_loop
from discreet.inference._loop import ManyFits as ManyFits
from discreet.inference._ops import OnePosteriorSample as OnePosteriorSample
from discreet.inference._ops import OPSResult as OPSResult
from discreet.inference._processes import FAILED as FAILED
from discreet.inference._processes import START_AGAIN as START_AGAIN
from discreet.inference._processes import Processes as Processes
from discreet.inference._records import Records as Records
from discreet.inference._records import take_apart as take_apart
from discreet.inference._records import with_levels as with_levels
from discreet.inference._result import DPSVIResult as DPSVIResult
from discreet.inference._result import UseWarning as UseWarning
from discreet.inference._result import load_result as load_result
from discreet.inference._result import too_few as too_few
from discreet.inference._result import warn_of_use as warn_of_use
from discreet.inference._step import DPSVIState as DPSVIState
from discreet.inference._suggest_clipping import ClippingSuggestion as ClippingSuggestion
from discreet.inference._suggest_clipping import Unobserved as Unobserved
from discreet.inference._suggest_clipping import starting_objective as starting_objective
from discreet.inference._suggest_clipping import suggest_clipping as suggest_clipping
from discreet.inference._trace import NoiseAware as NoiseAware
from discreet.inference._trace import Trace as Trace
