"""Per-record gradients in, one clipped sum with a known L2 bound out; nothing raw."""

from discreet.gradients._bookkeeping import BookKeepingEngine
from discreet.gradients._contract import (
    DEVICES,
    SPARE,
    Channels,
    ClippedSum,
    EngineReport,
    GradientEngine,
    ReferenceEngine,
    check_positive,
    clip_records,
    clipped_total,
    rounding_margin,
    rounding_of_records,
    row_weights,
    sum_records,
)

__all__ = [
    "DEVICES",
    "SPARE",
    "BookKeepingEngine",
    "Channels",
    "ClippedSum",
    "EngineReport",
    "GradientEngine",
    "ReferenceEngine",
    "check_positive",
    "clip_records",
    "clipped_total",
    "rounding_margin",
    "rounding_of_records",
    "row_weights",
    "sum_records",
]
