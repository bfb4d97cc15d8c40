"""Importing large libraries, quicker."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Import without looking for garbage meanwhile, and never look through the modules again.

    Importing torch and transformers makes a million objects that stay; to look through them again
    and again takes a fourth of the time. Nothing is collected before the end, so wrap imports only.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
