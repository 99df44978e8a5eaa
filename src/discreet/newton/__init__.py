"""Private Newton: regressions from a few noisy gradients, with a posterior that has all noise in it."""

from discreet.newton._fit import NewtonResult as NewtonResult
from discreet.newton._fit import fit_newton as fit_newton
from discreet.newton._invented import fit_invented as fit_invented
from discreet.newton._plan import NUM_GRADIENTS as NUM_GRADIENTS
from discreet.newton._plan import NewtonPlan as NewtonPlan
