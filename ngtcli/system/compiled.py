"""numba's `njit`, whose results are kept in the store: compiling takes several seconds, once.

Each is a piece under its signature, this machine's instructions, the versions, and all sources that
are compiled: numba looks at the file of a function alone, and not at those of functions that it
calls. They are pickles, which are trusted: the store opens no file that others may have written to.
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

COMPILING_S = 35  # processor seconds to compile all functions of `auto`; measured
# What is compiled, and the modules whose constants are compiled into it.
SOURCES = (
    "drafting/auto/core/*.py", "drafting/auto/sources/*.py", "drafting/auto/config.py",
    "drafting/guesses.py", "drafting/tries/background.py", "drafting/tries/background_search.py",
    "drafting/tries/classes.py", "drafting/tries/counts.py",
)  # fmt: skip
LOCK = "compiling.lock"
COMPILED = Kind("compiled", bytes, "NUMBA_CACHE_DIR")

_loaded: list[str] = []  # keys of results that were kept
# Results by their keys that another process compiled for this one, where no file can be written.
received: dict[str, bytes] = {}
# Called with the key of each result that is compiled here, and the result.
compiled_listeners: list[Callable[[str, bytes], object]] = []


class _Kept:
    """What numba asks for the results of one function before it compiles them."""

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

        # The dispatcher of numba would load all that it can compile, in twice the time. What is
        # loaded needs the functions that count references, and no sets, dicts or strings.
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

        pickled: Any = dumps  # not in its types
        key, data = self._key(signature, result.target_context), pickled(result._reduce())
        COMPILED.put(key, data)
        for listener in compiled_listeners:
            listener(key, data)


@cache
def _listen() -> None:
    """Report that numba compiles a function; of one that was compiled before nothing is said."""
    from numba.core import event

    class Compiles(event.Listener):
        def on_start(self, data: Any) -> None:
            how_long = "" if _loaded else f" (about {COMPILING_S} s)"
            with suppress(StoppedError):  # it may come in a forward pass, which serves others, too
                reporting.status_once(f"Compiling once{how_long} …")

        def on_end(self, data: Any) -> None: ...

    register: Any = event.register  # not in its types
    register("numba:compile", Compiles())


def njit(**options: Any) -> Callable[[F], F]:
    """numba's decorator `njit`; what it compiles is kept if possible."""
    import numba

    _listen()

    def decorate(function: F) -> F:
        compiled: Any = numba.njit(**options)(function)
        if hasattr(compiled, "_cache"):  # else numba is told to compile nothing
            compiled._cache = _Kept(function)
        return compiled  # type: ignore[no-any-return]

    return decorate


def unowned(function: F) -> F:
    """Compile a function without reference counts of arrays, half the time of very short loops.

    Such a function cannot create arrays. numba does not list the option in its types.
    """
    return njit(_nrt=False)(function)


def lock_path() -> Path:
    """Return the file that one process at a time locks to compile for all, beside the store."""
    folder = os.environ.get(COMPILED.variable)
    return (Path(folder) / "ngt" if folder else home("cache")) / LOCK


def key_in_store(*parts: object) -> str:
    """Return the key of something about the functions, as they are in these versions."""
    return key_of(*parts, _versions())


def mark_ready(name: str) -> None:
    """Note that all functions of `name` are stored for this machine, with these versions."""
    if not is_ready(name):
        COMPILED.put_many({_mark_of(name): b"", _mark_of(name, _machine()): b""})


def is_ready(name: str) -> bool:
    """Return whether `mark_ready` has been called for `name` on such a machine.

    Where numba is told to compile nothing, nothing is missing. numba is imported only where the
    functions were compiled for some machine: it takes half a second.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return True
    if COMPILED.get(_mark_of(name)) is None:
        return False
    return COMPILED.get(_mark_of(name, _machine())) is not None


def _mark_of(name: str, *machine: object) -> str:
    return key_in_store("ready", name, *machine)


def _machine() -> object:
    """The instructions that numba compiles for."""
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
    """A hash of the versions and of all sources."""
    package = Path(__file__).parent.parent
    sources = sorted(file for pattern in SOURCES for file in package.glob(pattern))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources))
    versions = [_version_of(name) for name in ("numba", "llvmlite")]
    return key_of(*versions, sys.version, digest.hexdigest())
