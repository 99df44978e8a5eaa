"""Per-record gradients in, one clipped sum with a known L2 bound out; nothing raw."""

from discreet.gradients._bookkeeping import BookKeepingEngine as BookKeepingEngine
from discreet.gradients._contract import (
    DEVICES as DEVICES,
    SPARE as SPARE,
    Channels as Channels,
    ClippedSum as ClippedSum,
    EngineReport as EngineReport,
    GradientEngine as GradientEngine,
    ReferenceEngine as ReferenceEngine,
    check_positive as check_positive,
    clip_records as clip_records,
    rounding_margin as rounding_margin,
    rounding_of_records as rounding_of_records,
    row_weights as row_weights,
    sum_records as sum_records,
)
