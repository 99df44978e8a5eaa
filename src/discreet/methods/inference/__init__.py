"""Private inference: one file a method, and the step, loop and result that they share.

Files, in reading order:

- the model: `_records`, `_levels` and `_plates` (which rows), `_programs`, `_tables_outside`,
  `_structure` with `_autoguides` and `_point_guide`, `_elbo` with `_start`, `_couplings` and
  `_support` (what is refused);
- the fit: `_step_keys`, `_draws`, `_local`, `_optimizers`, `_step`, `_trace`, `_saved`, `_checkpoint`,
  `_processes`, `_loop`, `_proof`;
- its result: `_forms`, `_tail`, `_noise_aware`, `_result`;
- the methods: `_dpsvi` with `_defaults`; `_dpsgld` with `_langevin`; `_ops` with `_points`,
  `_tempering` and `_chains`, or `_envelope` and `_exact`; `_products`, for private Newton.
"""

from discreet.methods.inference._defaults import (
    Defaults as Defaults,
    defaults_for as defaults_for,
    guide_for as guide_for,
)
from discreet.methods.inference._dpsgld import (
    DPSGLD as DPSGLD,
    DPSGLDResult as DPSGLDResult,
    releases_of as releases_of,
)
from discreet.methods.inference._dpsvi import (
    DPSVI as DPSVI,
    starting_objective as starting_objective,
    update_in_loop as update_in_loop,
)
from discreet.methods.inference._levels import with_levels as with_levels
from discreet.methods.inference._noise_aware import NoiseAware as NoiseAware
from discreet.methods.inference._ops import (
    OnePosteriorSample as OnePosteriorSample,
    OPSResult as OPSResult,
)
from discreet.methods.inference._point_guide import NoPointError as NoPointError
from discreet.methods.inference._points import (
    Latents as Latents,
    computed as computed,
    latents_of as latents_of,
    objective_of_points as objective_of_points,
)
from discreet.methods.inference._processes import (
    FAILED as FAILED,
    START_AGAIN as START_AGAIN,
    Processes as Processes,
)
from discreet.methods.inference._products import (
    kinds_of as kinds_of,
    other_values as other_values,
)
from discreet.methods.inference._records import (
    IN_SHARDS as IN_SHARDS,
    Records as Records,
    check_public as check_public,
    lies_in_files as lies_in_files,
    take_apart as take_apart,
)
from discreet.methods.inference._result import (
    DPSVIResult as DPSVIResult,
    Share as Share,
    UseWarning as UseWarning,
    load_result as load_result,
    warn_of_use as warn_of_use,
)
from discreet.methods.inference._saved import SavedFit as SavedFit, versions as versions
from discreet.methods.inference._step import DPSVIState as DPSVIState
from discreet.methods.inference._tempering import DrawsPlan as DrawsPlan, Tempering as Tempering
from discreet.methods.inference._trace import Trace as Trace
