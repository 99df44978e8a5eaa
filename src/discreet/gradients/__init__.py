"""Per-record gradients in, one clipped sum with a known L2 bound out; nothing raw."""

from discreet.gradients._bookkeeping import BookKeepingEngine
from discreet.gradients._clipping import check_positive, clip_records, rounding_margin, sum_records
from discreet.gradients._contract import (
    Channels,
    ClippedSum,
    Clipping,
    CountChannel,
    EngineReport,
    GradientEngine,
    LeafReport,
    LossChannel,
    RecordLoss,
    RowWeights,
    row_weights,
)
from discreet.gradients._reference import ReferenceEngine

__all__ = [
    "BookKeepingEngine",
    "Channels",
    "ClippedSum",
    "Clipping",
    "CountChannel",
    "EngineReport",
    "GradientEngine",
    "LeafReport",
    "LossChannel",
    "RecordLoss",
    "ReferenceEngine",
    "RowWeights",
    "check_positive",
    "clip_records",
    "rounding_margin",
    "row_weights",
    "sum_records",
]
