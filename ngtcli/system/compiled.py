"""numba's `njit` with compiled code in the store, so that it is compiled only once.

An entry's key has the function's signature, this machine's instructions, the versions, and all
sources that are compiled. (numba's own cache checks the file of a function, but not the files of
functions that it calls.) Entries are pickles. They can be trusted, since the store opens no file
that other users may have written.
"""

import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from ngtcli.errors import StoppedError
from ngtcli.system import reporting
from ngtcli.system.files import home, key_of
from ngtcli.system.store import Kind

F = TypeVar("F")

COMPILING_S = 35  # processor seconds to compile all functions of `auto` (measured)
# Files that are compiled, and files whose constants are compiled into these.
SOURCES = (
    "drafting/auto/core/*.py",
    "drafting/auto/sources/*.py",
    "drafting/auto/config.py",
    "drafting/guesses.py",
    "drafting/tries/background.py",
    "drafting/tries/background_search.py",
    "drafting/tries/classes.py",
    "drafting/tries/counts.py",
)
LOCK = "compiling.lock"
COMPILED = Kind("compiled", bytes, "NUMBA_CACHE_DIR")

_loaded: list[str] = []  # keys of entries that were loaded
# Compiled code by keys that another process made for this one, if no file can be written.
received: dict[str, bytes] = {}
# Called with key and code of each function that is compiled in this process.
compiled_listeners: list[Callable[[str, bytes], object]] = []


class _StoreCache:
    """The cache of one function, with the methods that numba calls of its own cache."""

    cache_path = ""

    def __init__(self, function: Any) -> None:
        name = f"{function.__module__}.{function.__qualname__}"
        self._function = name, function.__code__.co_code.hex()

    def _key(self, signature: Any, target: Any) -> str:
        machine = target.codegen().magic_tuple()
        return key_of(_versions(), *self._function, signature, machine)

    def load_overload(self, signature: Any, target: Any) -> Any:
        from numba.core.compiler import CompileResult
        from numba.core.runtime.nrt import rtsys

        # numba's dispatcher would initialize support for all types, which takes twice as long. The
        # loaded code needs reference counting, but no sets, dicts or strings.
        rtsys.initialize(target)
        key = self._key(signature, target)
        result = received.get(key) or COMPILED.get(key)
        if result is None:
            return None
        _loaded.append(key)
        rebuild: Any = CompileResult._rebuild  # not in its types
        return rebuild(target, *pickle.loads(result))

    def save_overload(self, signature: Any, result: Any) -> None:
        from numba.core.serialize import dumps

        to_pickle: Any = dumps  # not in its types
        key = self._key(signature, result.target_context)
        data = to_pickle(result._reduce())
        COMPILED.put(key, data)
        for listener in compiled_listeners:
            listener(key, data)


@cache
def _listen() -> None:
    """Report when numba compiles a function; loading compiled code is not reported."""
    from numba.core import event

    class Compiles(event.Listener):
        def on_start(self, data: Any) -> None:
            duration = "" if _loaded else f" (about {COMPILING_S} s)"
            # A stopped request must not stop a forward pass, which may serve other requests, too.
            with suppress(StoppedError):
                reporting.status_once(f"Compiling once{duration} …")

        def on_end(self, data: Any) -> None: ...

    register: Any = event.register  # not in its types
    register("numba:compile", Compiles())


def njit(**options: Any) -> Callable[[F], F]:
    """Decorate like numba's `njit`, and store the compiled code if possible."""
    import numba

    _listen()

    def decorate(function: F) -> F:
        compiled: Any = numba.njit(**options)(function)
        # numba has no interface for another cache. Without the attribute, NUMBA_DISABLE_JIT is set.
        if hasattr(compiled, "_cache"):
            compiled._cache = _StoreCache(function)
        return compiled  # type: ignore[no-any-return]

    return decorate


def unowned(function: F) -> F:
    """Compile a function without reference counting of arrays.

    That halves the time of very short loops. Such a function cannot create arrays. numba's types do
    not list the option.
    """
    return njit(_nrt=False)(function)


def lock_path() -> Path:
    """Return the file that a process locks while it compiles for all; it is beside the store."""
    folder = os.environ.get(COMPILED.variable)
    if folder:
        return Path(folder) / "ngt" / LOCK
    return home("cache") / LOCK


def key_in_store(*parts: object) -> str:
    """Return a key for an entry that depends on versions and sources, too."""
    return key_of(*parts, _versions())


def mark_ready(name: str) -> None:
    """Record that all functions of `name` are stored for this machine and these versions."""
    if not is_ready(name):
        COMPILED.put_many({_mark_of(name): b"", _mark_of(name, _machine()): b""})


def is_ready(name: str) -> bool:
    """Return whether `mark_ready` was called for `name` on such a machine.

    It is ready, too, if NUMBA_DISABLE_JIT keeps numba from compiling. numba is imported only if the
    functions were compiled for some machine, since that takes half a second.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return True
    if COMPILED.get(_mark_of(name)) is None:
        return False
    return COMPILED.get(_mark_of(name, _machine())) is not None


def _mark_of(name: str, *machine: object) -> str:
    return key_in_store("ready", name, *machine)


def _machine() -> object:
    """Return the instructions that numba compiles for."""
    from numba.core.registry import cpu_target

    codegen: Any = cpu_target.target_context.codegen()
    return codegen.magic_tuple()


def _version_of(package: str) -> str:
    """Return the version of an installed package, without importing it if possible."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(__import__(package).__version__)


@cache
def _versions() -> str:
    """Return a hash of the versions and of all sources."""
    package = Path(__file__).parent.parent
    sources: list[Path] = []
    for pattern in SOURCES:
        sources += package.glob(pattern)
    sources.sort()
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    versions = [_version_of(name) for name in ("numba", "llvmlite")]
    return key_of(*versions, sys.version, digest.hexdigest())
