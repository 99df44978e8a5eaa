"""Python's collector of cycles, which imports and traces keep busy: they make very many objects that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected(*, stay: bool = False) -> Iterator[None]:
    """Context in which Python looks for no cycles of objects.

    It would visit those that stay again and again. Arrays are freed as ever.

    Args:
        stay: The objects made within stay, as modules do. They count as old from then on, so that
            the next search does not visit them either.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            if stay and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
