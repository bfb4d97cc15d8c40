"""Where a server listens: its socket, lock and log, named by version and model settings.

What else decides how it answers, `runtime_stamp`, goes with each request: a server of another
stamp refuses, and the command loads the model itself.
"""

import fcntl
import os
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ngtcli import __version__
from ngtcli.config import SETTINGS, Settings, settings_in, settings_where
from ngtcli.errors import NgtError
from ngtcli.heads.places import OWN
from ngtcli.system.files import home, key_of

# Settings that name files.
_FILES = settings_where(complete="models")
# Beginnings of variables that libraries read which compute, or find models.
_VARIABLES = (
    "ATEN_ CUDA_ DNNL_ GOMP_ HF_ HIP_ KMP_ MKL_ NCCL_ NUMBA_ NVIDIA_ OMP_ ONEDNN_ OPENBLAS_"
    " PYTORCH_ ROCR_ TORCH_ TRANSFORMERS_"
).split()
# Commands set these: the first where all models are on this machine, the second always.
_SET_BY_COMMANDS = ("HF_HUB_OFFLINE", "OMP_WAIT_POLICY")
# Variables that name a folder or a file, to libraries or to this package.
_NAMING_PATHS = (
    "HF_ASSETS_CACHE HF_HOME HF_HUB_CACHE HF_MODULES_CACHE HF_STORED_TOKENS_PATH HF_TOKEN_PATH"
    " HF_XET_CACHE HUGGINGFACE_ASSETS_CACHE HUGGINGFACE_HUB_CACHE NGT_HOME NUMBA_CACHE_DIR"
    " TESSDATA_PREFIX TORCHINDUCTOR_CACHE_DIR TORCH_HOME TRANSFORMERS_CACHE TRITON_CACHE_DIR"
    " XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME"
).split()
_DIGITS = 16  # hex digits of a name: the path of a socket has 107 bytes at most; derived
_LONGEST = 100  # bytes of a socket's path, of 104 to 108 by system
GIVEN_UP_S = 20.0  # of silence, of a process that says every wire.BEAT_S that it runs; guess
FINISH_S = 30.0  # for answers that are being made when a process is to leave; guess
_LOOK_S = 0.05  # between looks at whether a process has left; guess
_CREDENTIALS = struct.Struct("3i")  # process, user, group: Linux's struct ucred
PACKAGE = Path(__file__).parent.parent


class ServedAlreadyError(NgtError):
    """Another process serves this model with these settings."""

    @classmethod
    def of_place(cls) -> "ServedAlreadyError":
        """Return the error in the words of `ngt serve`."""
        hint = "ngt serve status names it; ngt serve stop ends it."
        return cls("a process serves this already", hint=hint)


def absolute(settings: Settings) -> Settings:
    """The settings with full paths for the models that are files of this machine."""
    return settings.replace(**{name: _absolute(settings.get(name)) for name in _FILES})


def _absolute(named: Any) -> Any:
    """The full path of a file or folder, or of each of several; other names as they are."""
    if not isinstance(named, str):
        return tuple(map(_absolute, named))
    path = os.path.expanduser(named)
    is_file = named not in ("", "builtin", OWN) and os.path.exists(path)
    return os.path.realpath(path) if is_file else named


def environment() -> dict[str, str]:
    """The variables of this process, with full paths: they mean the same in any folder."""
    full = dict(os.environ)
    for name in _NAMING_PATHS:
        if path := full.get(name):
            full[name] = os.path.abspath(os.path.expanduser(path))
    return full


def code_stamp() -> str:
    """Return a hash of the sizes and times of the package's files.

    It looks at some 300 files. A server leaves when this changes; a command never asks for it.
    """
    files = []
    for folder, _, names in os.walk(PACKAGE):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                about = os.stat(path)
                files.append((path, about.st_size, about.st_mtime_ns))
    return key_of(*sorted(files))


def runtime_stamp() -> str:
    """Return a hash of what decides, besides the settings, how this process computes.

    It has the installed package, the interpreter, the folder of the cache, and the variables that
    libraries read.
    """
    variables = {
        name: value
        for name, value in environment().items()
        if name.startswith(tuple(_VARIABLES)) and name not in _SET_BY_COMMANDS
    }
    package = str(PACKAGE), os.stat(PACKAGE / "__init__.py").st_mtime_ns
    interpreter = sys.prefix, sys.version
    cache = os.path.abspath(home("cache"))
    return key_of(__version__, package, interpreter, cache, sorted(variables.items()))


@dataclass(frozen=True)
class Place:
    """The files of the server of a key, which is there or not."""

    key: str

    @classmethod
    def of(cls, settings: Settings) -> "Place":
        """Return that of the server with the model of these settings."""
        model = asdict(absolute(settings).model)
        return cls(key_of(__version__, sorted(model.items()))[:_DIGITS])

    @property
    def path(self) -> Path:
        """That of the socket."""
        return folder() / f"{self.key}.sock"

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    @property
    def model(self) -> str:
        """That of the process that has the lock, by that process; "" where it has not said it."""
        with suppress(OSError):
            return self.path.with_suffix(".lock").read_text("utf-8", "replace")
        return ""

    def lock(self, model: str | None = None) -> int:
        """The descriptor of the lock of this place, which is held until that is closed.

        The process that serves says its `model` in it. Raises ServedAlreadyError where another has
        it.
        """
        private(folder())
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise ServedAlreadyError.of_place() from None
        if model is not None:
            os.ftruncate(handle, 0)
            os.write(handle, model.encode("utf-8", "replace"))
        return handle

    def listen(self) -> socket.socket:
        """The socket, bound in the place of one that a killed process left; for its user alone.

        The lock is held.
        """
        self.remove()
        own = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            own.bind(str(self.path))
        finally:
            os.umask(before)
        own.listen()
        return own

    def left(self, within_s: float) -> bool:
        """Whether no process is here any more, at the latest after so many seconds."""
        end = time.monotonic() + within_s
        while True:
            try:
                os.close(self.lock())
                return True
            except ServedAlreadyError:
                if time.monotonic() > end:
                    return False
                time.sleep(_LOOK_S)

    def remove(self) -> None:
        """Remove the socket. The lock is held."""
        self.path.unlink(missing_ok=True)

    def connect(self) -> socket.socket | None:
        """A connection to the process that listens here; None where there is none of this user's.

        What a killed process left is removed.
        """
        own = socket.socket(socket.AF_UNIX)
        # What does not take connections, or what is sent, is waited for no longer than this.
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(GIVEN_UP_S), 0))
        try:
            if os.stat(folder()).st_uid == os.geteuid():
                own.connect(str(self.path))
                if peer(own)[1] == os.geteuid():
                    return own
        except ConnectionRefusedError:
            with suppress(OSError, NgtError):
                handle = self.lock()
                self.remove()
                os.close(handle)
        except OSError:
            pass
        own.close()
        return None


def folder() -> Path:
    """The folder of all places, a short one where sockets have too long a path in the user's own.

    Raises UsageError as `home` does.
    """
    own = Path(os.path.abspath(home("run")))
    if len(os.fsencode(own)) + _DIGITS + len("/.sock") <= _LONGEST:
        return own
    from tempfile import gettempdir  # here: few need it

    return Path(gettempdir(), f"ngt-{os.geteuid()}-{key_of(own)[:_DIGITS]}")


def places() -> list[Place]:
    """All places where a process listens, or did."""
    return [Place(path.stem) for path in sorted(folder().glob("*.sock"))]


def private(path: Path) -> None:
    """Make a folder of the user's that is closed to others. Raises NgtError where it is not."""
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        about = path.lstat()  # a link of another user's is theirs
        if about.st_uid == os.geteuid():
            path.chmod(0o700)
            return
        reason = "it is another user's"
    except OSError as error:
        reason = error.strerror or str(error)
    raise NgtError(
        f"{path}: {reason}", hint="Set XDG_RUNTIME_DIR or NGT_HOME to a folder of yours."
    )


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end; process 0 where the system does not tell."""
    if hasattr(socket, "SO_PEERCRED"):
        size = _CREDENTIALS.size
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        process, user, _ = _CREDENTIALS.unpack(found)
        return process, user
    # LOCAL_PEERCRED of macOS and the BSDs: struct xucred begins with a version and the user.
    _, user = struct.unpack("=Ii", connection.getsockopt(0, 1, 8))
    return 0, user


def flags_of(settings: Settings) -> list[str]:
    """The words of a command line that say which model is loaded, and how."""
    found = []
    for name in settings_in("model"):
        value = settings.get(name)
        items = (value or ["[]"]) if SETTINGS[name].kind is tuple else [value]
        found += [f"--set={name}={item}" for item in items]
    return found
