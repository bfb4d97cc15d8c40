"""numba's `njit`, whose results are kept: compiling takes several seconds, once per user.

They are stored in the user's cache folder, never in the package.
"""

import atexit
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from ngtcli.system.compile_cache import CompileCache, cache_folder

F = TypeVar("F")

COMPILING_S = 10  # to compile all functions of `auto`; measured on one slow core


@cache
def _opened() -> CompileCache:
    """The cache of this process, opened by the first `njit`, which also imports numba."""
    import llvmlite
    import numba
    from llvmlite import binding
    from numba.core import event

    class Compiles(event.Listener):
        """Counts the functions that numba compiles, without those that it finds in its cache."""

        def on_start(self, data: Any) -> None:
            how_long = "" if opened.compiled or not opened.empty else f" (about {COMPILING_S} s)"
            opened.compiled += 1
            if _listeners:
                _listeners.pop()(f"Compiling once{how_long} …")

        def on_end(self, data: Any) -> None:
            pass

    versions = (numba.__version__, llvmlite.__version__, sys.version, binding.get_host_cpu_name())
    opened = CompileCache(cache_folder("|".join(versions)))
    setattr(numba.config, "CACHE_DIR", str(opened.folder or ""))  # noqa: B010 - not in its types
    register: Any = event.register  # it has no types
    register("numba:compile", Compiles())
    atexit.register(opened.close)
    return opened


_listeners: list[Callable[[str], object]] = []


def announce(tell: Callable[[str], object]) -> None:
    """Call `tell` with a status line, once, when a function is compiled next."""
    _listeners[:] = [tell]


def keep() -> str:
    """Store what was compiled since the last call; returns a message for the user once, or ""."""
    if not _opened.cache_info().currsize:  # opening the cache would import numba
        return ""
    _opened().keep()
    remark, _opened().remark = _opened().remark, ""
    return remark


def close() -> None:
    """Store what was compiled and remove this process's folder; compile nothing after this."""
    if _opened.cache_info().currsize:
        _opened().close()


def njit(**options: Any) -> Callable[[F], F]:
    """numba's decorator `njit`; what it compiles is cached if possible."""
    cached = _opened().folder is not None
    import numba

    decorate: Callable[[F], F] = numba.njit(cache=cached, **options)
    return decorate


def unowned(function: F) -> F:
    """Compile a function without reference counts of arrays, half the time of very short loops.

    Such a function cannot create arrays. numba does not list the option in its types.
    """
    decorate: Callable[[F], F] = njit(_nrt=False)
    return decorate(function)
