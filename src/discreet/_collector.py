"""Python's collector of cycles, which imports and traces keep busy: they make very many objects that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Context in which Python looks for no cycles of objects.

    It would visit those that stay again and again. Arrays are freed as ever.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()
