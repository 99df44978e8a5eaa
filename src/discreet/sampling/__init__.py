"""Samplers: draw batches as row numbers and a mask, and name the event of a step on a batch."""

from discreet.sampling._samplers import SAMPLERS as SAMPLERS
from discreet.sampling._samplers import Batch as Batch
from discreet.sampling._samplers import Drawing as Drawing
from discreet.sampling._samplers import FixedSizeSampling as FixedSizeSampling
from discreet.sampling._samplers import FullBatch as FullBatch
from discreet.sampling._samplers import OpenPoisson as OpenPoisson
from discreet.sampling._samplers import PaddedDrawing as PaddedDrawing
from discreet.sampling._samplers import PoissonSampling as PoissonSampling
from discreet.sampling._samplers import Sampling as Sampling
