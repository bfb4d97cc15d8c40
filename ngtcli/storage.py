"""What lies on disk: the user's folders, and reading no more of a file than a bound allows."""

import errno
import os
import stat
from pathlib import Path

import platformdirs

from ngtcli.errors import UsageError


def home(kind: str) -> Path:
    """The user's folder for `kind`, "config" or "cache"; `NGT_HOME/kind` where NGT_HOME is set.

    Raises UsageError where NGT_HOME begins with the name of a user who is not known.
    """
    if base := os.environ.get("NGT_HOME"):
        try:
            return Path(base).expanduser() / kind
        except RuntimeError:
            raise UsageError(f"NGT_HOME is {base}: no such home", "Name a folder.") from None
    if kind == "config":
        return Path(platformdirs.user_config_dir("ngt", appauthor=False))
    return Path(platformdirs.user_cache_dir("ngt", appauthor=False))


def read_bounded(path: Path, most: int, pipes: bool = False) -> bytes:
    """The bytes of a regular file, or with `pipes` of a named or anonymous pipe.

    Raises OSError: as `open` does; EINVAL for anything else that is no regular file (a device, a
    socket, a pipe that is not allowed); EFBIG where there are more than `most` bytes.
    """
    # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
            if stat.S_ISDIR(mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        os.set_blocking(handle, True)
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most / 1e6:g} MB", str(path))
    return data
