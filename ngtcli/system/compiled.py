"""numba's `njit`, whose results are kept in the store: compiling takes several seconds, once.

Each is a piece under its signature, this machine's instructions, the versions, and all sources that
are compiled: numba looks at the file of a function alone, and not at those of functions that it
calls. They are pickles, which are trusted: the store opens no file that others may have written to.
"""

import hashlib
import pickle
import sys
from collections.abc import Callable
from functools import cache
from inspect import ismethod
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakMethod

from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

F = TypeVar("F")

COMPILING_S = 20  # to compile all functions of `auto`; measured on one slow core
UNUSED_S = 30 * 86400  # after which results of other versions are removed; guess
# What is compiled, and the modules whose constants are compiled into it.
SOURCES = ("draft/auto/core/*.py", "draft/auto/config.py", "draft/guesses.py", "draft/origins.py",
           "trie/background.py", "trie/background_search.py", "trie/counts.py")  # fmt: skip
COMPILED = Kind("compiled", bytes, "NUMBA_CACHE_DIR")

_listeners: list[Callable[[], Callable[[str], object] | None]] = []  # weak, of models' methods
_loaded: list[str] = []  # keys of results that were kept


@cache
def _kept_by() -> Any:
    """The class of numba's caches that keeps results in the store; imports numba."""
    from numba.core import event
    from numba.core.caching import _Cache
    from numba.core.compiler import CompileResult
    from numba.core.serialize import dumps

    class Compiles(event.Listener):
        """Hears of functions that numba compiles, not of those that it finds in its cache."""

        def on_start(self, data: Any) -> None:
            if _listeners and (tell := _listeners.pop()()) is not None:
                how_long = "" if _loaded else f" (about {COMPILING_S} s)"
                tell(f"Compiling once{how_long} …")

        def on_end(self, data: Any) -> None:
            COMPILED.remove_unused(UNUSED_S)

    rebuild: Any = CompileResult._rebuild  # these are not in its types
    pickled: Any = dumps

    class Kept(_Cache):
        """The results of one function."""

        cache_path = ""

        def __init__(self, function: Any) -> None:
            self._name = f"{function.__module__}.{function.__qualname__}"
            self._code = function.__code__.co_code.hex()

        def _key(self, signature: Any, target: Any) -> str:
            machine = target.codegen().magic_tuple()
            return key_of(_versions(), self._name, self._code, signature, machine)

        def load_overload(self, signature: Any, target: Any) -> Any:
            target.refresh()
            if (result := COMPILED.get(key := self._key(signature, target))) is None:
                return None
            _loaded.append(key)
            return rebuild(target, *pickle.loads(result))

        def save_overload(self, signature: Any, result: Any) -> None:
            key = self._key(signature, result.target_context)
            COMPILED.put(key, pickled(result._reduce()))

        def enable(self) -> None: ...

        def disable(self) -> None: ...

        def flush(self) -> None: ...

    register: Any = event.register
    register("numba:compile", Compiles())
    return Kept


def announce(tell: Callable[[str], object]) -> None:
    """Call `tell` with a status line, once, when a function is compiled next."""
    _listeners[:] = [WeakMethod(tell) if ismethod(tell) else lambda: tell]


def njit(**options: Any) -> Callable[[F], F]:
    """numba's decorator `njit`; what it compiles is kept if possible."""
    kept_by = _kept_by()
    import numba

    def decorate(function: F) -> F:
        compiled: Any = numba.njit(**options)(function)
        if hasattr(compiled, "_cache"):  # else numba is told to compile nothing
            compiled._cache = kept_by(function)
        return compiled  # type: ignore[no-any-return]

    return decorate


def unowned(function: F) -> F:
    """Compile a function without reference counts of arrays, half the time of very short loops.

    Such a function cannot create arrays. numba does not list the option in its types.
    """
    return njit(_nrt=False)(function)


@cache
def _versions() -> str:
    """A hash of the versions and of all sources."""
    import llvmlite
    import numba

    package = Path(__file__).parent.parent
    sources = sorted(file for pattern in SOURCES for file in package.glob(pattern))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    return key_of(numba.__version__, llvmlite.__version__, sys.version, digest.hexdigest())
