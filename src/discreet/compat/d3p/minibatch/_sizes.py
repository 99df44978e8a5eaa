"""Batch sizes and sampling rates."""

import math


def q_to_batch_size(q: float, N: int) -> int:
    """The batch size for a sampling rate q of N records: q N rounded down, the rounding error of q aside.

    >>> q_to_batch_size(0.29, 100)
    29
    """
    return math.floor(q * N * (1 + 1e-12))


def batch_size_to_q(batch_size: int, N: int) -> float:
    """The sampling rate q of a batch size.

    >>> batch_size_to_q(29, 100)
    0.29
    """
    return batch_size / N
