"""Makes the import of large libraries faster."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn garbage collection off, and exclude what was imported from it for good.

    Importing torch and transformers creates about a million objects that are never freed. Scanning
    them repeatedly takes a fourth of the import time. Wrap imports only. Where all modules were
    loaded before, nothing is excluded: else models that await collection would never be freed.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    before = len(sys.modules)
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()  # all objects there are: Python cannot exclude some
        gc.enable()
