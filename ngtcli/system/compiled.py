"""numba's `njit`, whose results are stored: compiling takes several seconds, once per user.

They are stored in the user's cache folder, never in the package.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F")

COMPILING_S = 20  # to compile all functions of `auto`; measured on one slow core

_listeners: list[Callable[[str], object]] = []
_remarks: list[str] = []  # the first is told; the others are the same trouble at other functions


@cache
def _opened() -> None:
    """Have numba keep what it compiles from now on; the first call imports it."""
    import llvmlite
    import numba
    from llvmlite import binding
    from numba.core import event

    from ngtcli.system.compile_cache import open_folder

    versions = (numba.__version__, llvmlite.__version__, sys.version, binding.get_host_cpu_name())
    folder = open_folder("|".join(versions), _remarks.append)
    is_first = not folder or not any(Path(folder).glob("*/*.nbi"))
    how_long = [f" (about {COMPILING_S} s)"] if is_first else []

    class Compiles(event.Listener):
        """Hears of functions that numba compiles, not of those that it finds in its cache."""

        def on_start(self, data: Any) -> None:
            if _listeners:
                _listeners.pop()(f"Compiling once{how_long.pop() if how_long else ''} …")

        def on_end(self, data: Any) -> None:
            pass

    setattr(numba.config, "CACHE_DIR", folder)  # noqa: B010 - not in its types
    register: Any = event.register  # it has no types
    register("numba:compile", Compiles())


def announce(tell: Callable[[str], object]) -> None:
    """Call `tell` with a status line, once, when a function is compiled next."""
    _listeners[:] = [tell]


def take_remark() -> str:
    """What the user is to know of the cache, once in a run; else ""."""
    remark = next(iter(_remarks), "")
    _remarks[:] = [""] * bool(_remarks)
    return remark


def njit(**options: Any) -> Callable[[F], F]:
    """numba's decorator `njit`; what it compiles is stored if possible."""
    _opened()
    import numba

    from ngtcli.system.compile_cache import StoredFunction

    def decorate(function: F) -> F:
        compiled: Any = numba.njit(**options)(function)
        with suppress(RuntimeError):  # there is no folder
            compiled._cache = StoredFunction(function, _remarks.append)
        return compiled  # type: ignore[no-any-return]

    return decorate


def unowned(function: F) -> F:
    """Compile a function without reference counts of arrays, half the time of very short loops.

    Such a function cannot create arrays. numba does not list the option in its types.
    """
    decorate: Callable[[F], F] = njit(_nrt=False)
    return decorate(function)
