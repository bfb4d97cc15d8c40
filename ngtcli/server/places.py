"""The place of a server: its socket, lock and log, named by version and model settings.

Everything else that affects its answers is in the `runtime_stamp`, which goes with each request. A
server with another stamp refuses, and the command loads the model itself.
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

# Settings that may name files.
_FILE_SETTINGS = settings_where(complete="models")
# Prefixes of the variables of libraries that compute, or find models.
_LIBRARY_PREFIXES = (
    "ATEN_ CUDA_ DNNL_ GOMP_ HF_ HIP_ KMP_ MKL_ NCCL_ NUMBA_ NVIDIA_ OMP_ ONEDNN_ OPENBLAS_"
    " PYTORCH_ ROCR_ TORCH_ TRANSFORMERS_"
).split()
# Commands set these: the first where all models are on this machine, the second always.
_SET_BY_COMMANDS = ("HF_HUB_OFFLINE", "OMP_WAIT_POLICY")
# Variables of libraries and of this package with the path of a folder or a file.
_PATH_VARIABLES = (
    "HF_ASSETS_CACHE HF_HOME HF_HUB_CACHE HF_MODULES_CACHE HF_STORED_TOKENS_PATH HF_TOKEN_PATH"
    " HF_XET_CACHE HUGGINGFACE_ASSETS_CACHE HUGGINGFACE_HUB_CACHE NGT_HOME NUMBA_CACHE_DIR"
    " TESSDATA_PREFIX TORCHINDUCTOR_CACHE_DIR TORCH_HOME TRANSFORMERS_CACHE TRITON_CACHE_DIR"
    " XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME"
).split()
_DIGITS = 16  # hex digits of a name: the path of a socket has 107 bytes at most; derived
_MAX_PATH_BYTES = 100  # bytes of a socket's path, of 104 to 108 by system
RESPONSE_TIMEOUT_S = 20.0  # of silence; a server sends something every wire.BEAT_S (guess)
FINISH_S = 30.0  # for answers that are being made when a server stops (guess)
_POLL_S = 0.05  # between looks at whether a place is free (guess)
_CREDENTIALS = struct.Struct("3i")  # process, user, group: Linux's struct ucred
PACKAGE = Path(__file__).parent.parent


class ServedAlreadyError(NgtError):
    """Another process serves this model with these settings."""

    @classmethod
    def of_place(cls) -> "ServedAlreadyError":
        """Return the error in the words of `ngt serve`."""
        hint = "ngt serve status names it; ngt serve stop ends it."
        return cls("a server with this model and these settings is already running", hint=hint)


def absolute(settings: Settings) -> Settings:
    """Return the settings with full paths for the models that are files of this machine."""
    return settings.replace(**{name: _absolute(settings.get(name)) for name in _FILE_SETTINGS})


def _absolute(name: Any) -> Any:
    """Return the full path of a file or folder, or of each of several; other names as they are."""
    if not isinstance(name, str):
        return tuple(map(_absolute, name))
    path = os.path.expanduser(name)
    is_file = name not in ("", "builtin", OWN) and os.path.exists(path)
    return os.path.realpath(path) if is_file else name


def environment() -> dict[str, str]:
    """Return the variables of this process with full paths, so that they suit any folder."""
    full = dict(os.environ)
    for name in _PATH_VARIABLES:
        path = full.get(name)
        if path:
            full[name] = os.path.abspath(os.path.expanduser(path))
    return full


def code_stamp() -> str:
    """Return a hash of the sizes and times of the package's files.

    It looks at some 300 files. A server stops when this changes; a command never asks for it.
    """
    files = []
    for folder, _, names in os.walk(PACKAGE):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                status = os.stat(path)
                files.append((path, status.st_size, status.st_mtime_ns))
    return key_of(*sorted(files))


def runtime_stamp() -> str:
    """Return a hash of everything but the settings that affects how this process computes.

    These are the installed package, the interpreter, the folder of the cache, and the variables of
    libraries.
    """
    variables = {
        name: value
        for name, value in environment().items()
        if name.startswith(tuple(_LIBRARY_PREFIXES)) and name not in _SET_BY_COMMANDS
    }
    package = (str(PACKAGE), os.stat(PACKAGE / "__init__.py").st_mtime_ns)
    interpreter = (sys.prefix, sys.version)
    cache = os.path.abspath(home("cache"))
    return key_of(__version__, package, interpreter, cache, sorted(variables.items()))


@dataclass(frozen=True)
class Place:
    """The files of the server with a key, which may not run."""

    key: str

    @classmethod
    def of(cls, settings: Settings) -> "Place":
        """Return the place of the server with the model of these settings."""
        model = asdict(absolute(settings).model)
        return cls(key_of(__version__, sorted(model.items()))[:_DIGITS])

    @property
    def path(self) -> Path:
        """The path of the socket."""
        return folder() / f"{self.key}.sock"

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    @property
    def model(self) -> str:
        """The model of the process that has the lock, which wrote it there; "" before that."""
        with suppress(OSError):
            return self.path.with_suffix(".lock").read_text("utf-8", "replace")
        return ""

    def lock(self, model: str | None = None) -> int:
        """Take the lock of this place; return its descriptor, which holds it until it is closed.

        Args:
            model: Written into the file of the lock, for `Place.model`.

        Raises:
            ServedAlreadyError: Another process has the lock.
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
        """Return a listening socket for the user alone; the lock must be held.

        It replaces a socket that a killed process left.
        """
        self.remove()
        listening = socket.socket(socket.AF_UNIX)
        previous_umask = os.umask(0o177)
        try:
            listening.bind(str(self.path))
        finally:
            os.umask(previous_umask)
        listening.listen()
        return listening

    def wait_until_free(self, timeout_s: float) -> bool:
        """Wait until no process has the lock of this place; return whether that is so."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                os.close(self.lock())
                return True
            except ServedAlreadyError:
                if time.monotonic() > end:
                    return False
                time.sleep(_POLL_S)

    def remove(self) -> None:
        """Remove the socket. The lock is held."""
        self.path.unlink(missing_ok=True)

    def connect(self) -> socket.socket | None:
        """Connect to the process that listens here; return None if this user has none.

        A socket that a killed process left is removed.
        """
        connection = socket.socket(socket.AF_UNIX)
        # This limits the time to connect and to send to a process that hangs.
        timeout = struct.pack("ll", int(RESPONSE_TIMEOUT_S), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        try:
            if os.stat(folder()).st_uid == os.geteuid():
                connection.connect(str(self.path))
                if peer(connection)[1] == os.geteuid():
                    return connection
        except ConnectionRefusedError:
            with suppress(OSError, NgtError):
                handle = self.lock()
                self.remove()
                os.close(handle)
        except OSError:
            pass
        connection.close()
        return None


def folder() -> Path:
    """Return the folder of all places: `run`, or a temporary one where its path is too long.

    Raises UsageError as `home` does.
    """
    run = Path(os.path.abspath(home("run")))
    if len(os.fsencode(run)) + _DIGITS + len("/.sock") <= _MAX_PATH_BYTES:
        return run
    from tempfile import gettempdir  # here: few need it

    return Path(gettempdir(), f"ngt-{os.geteuid()}-{key_of(run)[:_DIGITS]}")


def places() -> list[Place]:
    """Return all places where a process listens, or did."""
    return [Place(path.stem) for path in sorted(folder().glob("*.sock"))]


def private(path: Path) -> None:
    """Make a folder that only the user may enter. Raises NgtError where that is impossible."""
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        status = path.lstat()  # not stat: a link of another user could lead to a folder of ours
        if status.st_uid == os.geteuid():
            path.chmod(0o700)
            return
        reason = "it is another user's"
    except OSError as error:
        reason = error.strerror or str(error)
    raise NgtError(f"{path}: {reason}", hint="Set XDG_RUNTIME_DIR or NGT_HOME to a folder you own.")


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end; process 0 if it is unknown."""
    if hasattr(socket, "SO_PEERCRED"):
        size = _CREDENTIALS.size
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        process, user, _ = _CREDENTIALS.unpack(credentials)
        return process, user
    # LOCAL_PEERCRED of macOS and the BSDs: struct xucred begins with a version and the user.
    _, user = struct.unpack("=Ii", connection.getsockopt(0, 1, 8))
    return 0, user


def flags_of(settings: Settings) -> list[str]:
    """Return the flags of a command for the settings of the model."""
    flags = []
    for name in settings_in("model"):
        value = settings.get(name)
        items = (value or ["[]"]) if SETTINGS[name].kind is tuple else [value]
        flags += [f"--set={name}={item}" for item in items]
    return flags
