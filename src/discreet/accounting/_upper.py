"""Upper bounds in few digits."""

import math


def upper(value: float, digits: int = 4) -> str:
    """A number in few digits, rounded up so that it stays an upper bound.

    >>> upper(0.99991), upper(12.0), upper(float("inf")), upper(0.0)
    ('1', '12', 'infinite', '0')
    >>> upper(0.123401)
    '0.1235'
    """
    if not math.isfinite(value):
        return "infinite" if value > 0 else "undefined"
    shown = f"{value:.{digits}g}"
    if float(shown) < value:
        step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
        shown = f"{float(shown) + step:.{digits}g}"
    return shown
