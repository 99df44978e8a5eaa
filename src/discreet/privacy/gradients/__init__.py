"""Per-record gradients in, one clipped sum with a known L2 bound out; nothing raw.

Files, in reading order: `_contract` (what an engine guarantees), `_rows` (clipping), `_sums` (sums
of batches), `_weighted` (sums of integer rows times weights), `_reference` (the engine by
definition). Then book-keeping: `_views` and `_uses` (where weights meet a record), `_layer`,
`_layers` and `_convolutions` (the factors of a gradient), `_norms`, `_bookkeeping` (the engine).
"""

from discreet.privacy.gradients._bookkeeping import BookKeepingEngine as BookKeepingEngine
from discreet.privacy.gradients._contract import (
    Channels as Channels,
    ClippedSum as ClippedSum,
    GradientEngine as GradientEngine,
)
from discreet.privacy.gradients._reference import ReferenceEngine as ReferenceEngine
from discreet.privacy.gradients._rows import (
    check_positive as check_positive,
    clip_records as clip_records,
    rounding_margin as rounding_margin,
    rounding_of_records as rounding_of_records,
    row_weights as row_weights,
    sum_records as sum_records,
)
from discreet.privacy.gradients._sums import DEVICES as DEVICES, SPARE as SPARE
from discreet.privacy.gradients._weighted import (
    MOST_WEIGHTED as MOST_WEIGHTED,
    sum_weighted as sum_weighted,
)
