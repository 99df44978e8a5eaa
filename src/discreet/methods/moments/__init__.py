"""Linear regression from noisy moments: sums of products, then gradients of the squared error, and the posterior given them.

A row is (z, e): features with a leading 1, and what is left of the target. Its outer product is
added up with the weight 1 / (|z|^2 + SHARE_OF_TARGET), so that its Frobenius norm is at most 1
wherever the row lies; the weight depends on the features alone, so it biases no coefficient. Noise
hides features that vary little or together with others. So the first release, of a fifth of the
budget, is read for two public maps, under which the next one measures again: features are whitened,
and the target becomes its distance from the line found so far, clipped to a few standard
deviations. Directions that the noise hides, as those of rare categories, are stretched less: else
their few rows are so long that they decide where all are clipped.

Files, in reading order: `_plan` (the releases and what they cost), `_sums` (what is summed),
`_posterior` (given sums of products), `_gradients` (the last stage), `_verdict` (the estimate and
its use), `_fit`.
"""

from discreet.methods.moments._fit import MomentsResult as MomentsResult, fit_moments as fit_moments
from discreet.methods.moments._plan import MomentsPlan as MomentsPlan
