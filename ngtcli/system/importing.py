"""Makes the import of large libraries faster."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Turn garbage collection off, and exclude all objects that exist at the end from it for good.

    Importing torch and transformers creates about a million objects that are never freed. Scanning
    them repeatedly takes a fourth of the import time. Wrap imports only.
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
