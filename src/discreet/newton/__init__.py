"""Private Newton: posteriors with all noise in them, from a few noisy gradients; of regressions and of NumPyro models."""

from discreet.newton._algebra import Gradients as Gradients
from discreet.newton._algebra import secant as secant
from discreet.newton._choose import fit as fit
from discreet.newton._fit import NewtonResult as NewtonResult
from discreet.newton._fit import fit_newton as fit_newton
from discreet.newton._invented import fit_invented as fit_invented
from discreet.newton._invented import fit_invented_model as fit_invented_model
from discreet.newton._invented import names_of_latents as names_of_latents
from discreet.newton._lengths import Lengths as Lengths
from discreet.newton._model import EDGES as EDGES
from discreet.newton._model import NUM_BINS as NUM_BINS
from discreet.newton._model_plan import ModelPlan as ModelPlan
from discreet.newton._own import DPNewton as DPNewton
from discreet.newton._own import DPNewtonResult as DPNewtonResult
from discreet.newton._plan import NUM_GRADIENTS as NUM_GRADIENTS
from discreet.newton._plan import NewtonPlan as NewtonPlan
