"""Per-record gradients in, one clipped sum with a known L2 bound out; nothing raw."""

from discreet.gradients._clipping import check_positive, clip_records, rounding_margin, sum_records
from discreet.gradients._contract import (
    ClippedSum,
    GradientEngine,
    LossChannel,
    RecordLoss,
)
from discreet.gradients._reference import ReferenceEngine

__all__ = [
    "ClippedSum",
    "GradientEngine",
    "LossChannel",
    "RecordLoss",
    "ReferenceEngine",
    "check_positive",
    "clip_records",
    "rounding_margin",
    "sum_records",
]
