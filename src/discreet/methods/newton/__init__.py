"""Private Newton: posteriors with all noise in them, from a few noisy gradients; of regressions and of NumPyro models.

Files, in reading order:

- what both share: `_algebra` (what follows from releases), `_sums` (programs over a table in
  parts), `_saved` (each release once, kept and resumed), `_weights`, `_verdict`, `_posterior` (the
  base of results), `_invented`;
- regressions: `_plan`, `_releases` (rows and their bounds), `_counts`, `_bend`, `_fit`;
- models: `_model_plan`, `_model` (rows), `_lengths`, `_far`, `_blocks`, `_sampling`, `_own`
  (`DPNewton`).
"""

from discreet.methods.newton._algebra import Gradients as Gradients
from discreet.methods.newton._algebra import one_thread as one_thread
from discreet.methods.newton._algebra import secant as secant
from discreet.methods.newton._fit import NewtonResult as NewtonResult
from discreet.methods.newton._fit import fit_newton as fit_newton
from discreet.methods.newton._invented import fit_invented as fit_invented
from discreet.methods.newton._invented import fit_invented_model as fit_invented_model
from discreet.methods.newton._invented import names_of_latents as names_of_latents
from discreet.methods.newton._lengths import Lengths as Lengths
from discreet.methods.newton._model import EDGES as EDGES
from discreet.methods.newton._model import NUM_BINS as NUM_BINS
from discreet.methods.newton._model_plan import ModelPlan as ModelPlan
from discreet.methods.newton._own import MOST_LATENTS as MOST_LATENTS
from discreet.methods.newton._own import DPNewton as DPNewton
from discreet.methods.newton._own import DPNewtonResult as DPNewtonResult
from discreet.methods.newton._own import refuse_others as refuse_others
from discreet.methods.newton._plan import NUM_GRADIENTS as NUM_GRADIENTS
from discreet.methods.newton._plan import NewtonPlan as NewtonPlan
from discreet.methods.newton._posterior import OfCoefficients as OfCoefficients
from discreet.methods.newton._posterior import OfDraws as OfDraws
from discreet.methods.newton._posterior import label as label
from discreet.methods.newton._posterior import picked as picked
from discreet.methods.newton._weights import WEIGHTS_HIDDEN as WEIGHTS_HIDDEN
from discreet.methods.newton._weights import SurveyWeights as SurveyWeights
from discreet.methods.newton._weights import survey_weights as survey_weights
