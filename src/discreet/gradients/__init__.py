"""Per-record gradients in, one clipped sum with a known L2 bound out; nothing raw."""

from discreet.gradients._bookkeeping import BookKeepingEngine as BookKeepingEngine
from discreet.gradients._contract import DEVICES as DEVICES
from discreet.gradients._contract import SPARE as SPARE
from discreet.gradients._contract import Channels as Channels
from discreet.gradients._contract import ClippedSum as ClippedSum
from discreet.gradients._contract import EngineReport as EngineReport
from discreet.gradients._contract import GradientEngine as GradientEngine
from discreet.gradients._contract import ReferenceEngine as ReferenceEngine
from discreet.gradients._contract import check_positive as check_positive
from discreet.gradients._contract import clip_records as clip_records
from discreet.gradients._contract import clipped_total as clipped_total
from discreet.gradients._contract import rounding_margin as rounding_margin
from discreet.gradients._contract import rounding_of_records as rounding_of_records
from discreet.gradients._contract import row_weights as row_weights
from discreet.gradients._contract import sum_records as sum_records
