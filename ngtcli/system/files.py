"""The user's files: folders, cache keys, bounded reading, atomic writing.

A file is written under a temporary name and renamed when it is complete. So a reader never sees an
incomplete file, and two writers cannot mix their data. The partial file of a killed writer is
removed by the next writer of the same file. Only the owner can read files of the cache, because
they contain text of documents and answers.
"""

import errno
import fcntl
import hashlib
import os
import re
import select
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, TypeVar

import msgspec
import platformdirs

from ngtcli.errors import UsageError
from ngtcli.system import process

PARTIAL = ".partial"  # suffix of files that are being written
Kind = TypeVar("Kind")
WRITER_WAIT_S = 5.0  # maximum wait for the first writer of a named pipe (guess)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_CHUNK_BYTES = 1 << 20  # read at once if the size is not known (guess)
_KEY_DIGITS = 32  # hex digits of a key, 128 bits (guess)


class DamagedFileError(Exception):
    """A file is damaged, foreign or of another version; the message says which."""


def home(kind: str) -> Path:
    """Return the user's folder of a kind: `NGT_HOME/kind` if NGT_HOME is set.

    Args:
        kind: "config", "cache", "state", or "run" for files that live as long as a process.

    Raises:
        UsageError: The cache is another user's, or NGT_HOME cannot be entered or starts with the
            home of an unknown user (`~name`).
    """
    base = os.environ.get("NGT_HOME")
    if base:
        try:
            folder = Path(base).expanduser() / kind
        except RuntimeError:
            raise UsageError(
                f"NGT_HOME is {base}: no such home", hint="Set it to a folder."
            ) from None
    elif kind == "run":  # the system's folder for it may be missing, or shared by all users
        folder = home("state") / kind
    else:
        folder = Path(getattr(platformdirs, f"user_{kind}_dir")("ngt", appauthor=False))
    try:
        owner = os.stat(folder).st_uid  # raises PermissionError for a closed NGT_HOME of any kind
        is_foreign = kind == "cache" and owner != os.geteuid()
    except OSError as error:
        is_foreign = isinstance(error, PermissionError)
    if is_foreign:
        raise UsageError(
            f"{folder} belongs to another user", hint="Set NGT_HOME to a folder that you own."
        )
    return folder


class Stamp(NamedTuple):
    """Metadata that shows whether a file has changed; a copy with kept times has a new ctime."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def stamp_of(file: str | Path | int) -> Stamp:
    """Return the stamp of a file, by its path or descriptor. Raises OSError."""
    status = os.stat(file)
    return Stamp(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def key_of(*parts: object) -> str:
    """Return the name of a cache entry: a hash of everything it depends on, 32 hex digits."""
    text = "\0".join(map(str, parts))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_DIGITS]


def parse_json(text: str | bytes, kind: type[Kind]) -> Kind:
    """Parse JSON strictly as a msgspec type. Raises DamagedFileError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedFileError(f"not JSON of the expected form ({error})") from None


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Write text in UTF-8 to a user's file, completely or not at all.

    Links are followed, and an existing file keeps its mode. A device or named pipe is written to
    directly. So is a descriptor such as /dev/stdout: the text is appended to what it wrote before,
    and its file is not replaced.

    Args:
        path: The file.
        text: The text, or pieces of it.

    Raises:
        OSError: The file cannot be written.
    """
    pieces = (piece.encode() for piece in ([text] if isinstance(text, str) else text))
    descriptor = _descriptor(path)
    if descriptor is not None or (path.exists() and not path.is_file()):
        with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
            file.writelines(pieces)
        return
    path = path.resolve()
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    with new_file(path, 0o666 if mode is None else mode & 0o700) as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())
        if mode is not None:
            os.fchmod(file.fileno(), mode)


def _descriptor(path: Path) -> int | None:
    """Return the descriptor that a path such as /dev/fd/5 stands for; None for other paths."""
    name = os.path.abspath(path)
    match = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,9})", name)
    if match:
        return int(match[1])
    return {"/dev/stdout": 1, "/dev/stderr": 2}.get(name)


def private_folder(path: Path) -> None:
    """Make a folder and its missing parents, to which no other user can write.

    Other users cannot even enter the folders of the cache and the state: the mode of existing ones
    is changed if they belong to the user. Raises OSError.
    """
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(0o755, exist_ok=True)
    for root in (home("cache"), home("state")):
        if path.is_relative_to(root):
            status = path.stat()
            if status.st_mode & 0o077 and status.st_uid == os.geteuid():
                path.chmod(0o700)
            if path != root:
                private_folder(path.parent)


@contextmanager
def new_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Open a file for writing that becomes `path` when the block ends. Raises OSError."""
    with process.unbroken(), closing(NewFile(path.parent, mode, name=path.name)) as new:
        yield new.file
        new.file.flush()
        new.finish(path)


class NewFile:
    """A file that gets its name when it is complete. Methods raise OSError; call `close` last.

    Args:
        folder: The folder of the file.
        mode: Its mode, which the user's umask restricts.
        buffering: As for `open`.
        name: Its final name. If given, the partial file that a killed process left under this name
            is removed.
    """

    def __init__(
        self, folder: Path, mode: int = 0o600, buffering: int = -1, name: str = ""
    ) -> None:
        self._is_finished = False
        self._temporary_path, handle = _partial_file(folder, mode, name)
        self.file: IO[bytes] = os.fdopen(handle, "w+b", buffering)

    def finish(self, path: Path) -> None:
        """Rename the file, which must be flushed, to `path`, replacing any file there."""
        self._temporary_path.replace(path)
        self._is_finished = True  # from now on another writer may use the temporary name

    def close(self) -> None:
        """Close the file, and delete it if it is not finished."""
        if not self._is_finished:
            # The file is still locked, so that this is not another writer's.
            self._temporary_path.unlink(missing_ok=True)
        self.file.close()  # may still write, and fail


def _partial_file(folder: Path, mode: int, name: str) -> tuple[Path, int]:
    """Make and open a file under a temporary name that depends on its later name.

    Its writer holds a lock on it as long as the process runs. So the next writer of that name
    recognizes and removes the file of a killed one. If another writer is still running, the
    temporary name is random.
    """
    if name:
        path = folder / f".{key_of(name)[:16]}{PARTIAL}"
        for _ in range(2):
            with suppress(FileExistsError):
                handle = os.open(path, _NEW, mode)
                if _lock(handle) is not False and identity(path) == identity(handle):
                    return path, handle
                os.close(handle)  # another writer takes it for abandoned and removes it
                break
            _remove_abandoned(path)
    path = folder / f".{os.urandom(8).hex()}{PARTIAL}"
    return path, os.open(path, _NEW, mode)


def _remove_abandoned(path: Path) -> None:
    """Remove an unfinished file if it belongs to the user and no process is writing it."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(handle)
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if is_own and _lock(handle) and identity(path) == identity(handle):
                path.unlink()
        finally:
            os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file.

    Returns:
        True if it is locked now, False if another process has locked it, None if the file system
        has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def read_bounded(
    path: Path | str, max_bytes: int, pipes: bool = False, *, links: bool = True
) -> bytes:
    """Read a file of limited size.

    Args:
        path: The file.
        max_bytes: Its maximum size.
        pipes: Whether it may be a pipe.
        links: Whether parts of the path may be links. If not, the file is where the path says,
            whatever other processes do to the folders meanwhile.

    Raises:
        OSError: As `open` raises it; EISDIR for a folder; EINVAL for a device, a socket, or a pipe
            without `pipes`; EFBIG for a file that is too large; ETIMEDOUT for a pipe that no
            process opens for writing within `WRITER_WAIT_S`.
    """
    # Without O_NONBLOCK, opening a pipe without a writer would block for ever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    if links:
        _check_type(os.stat(path), path, max_bytes, pipes)  # opening some devices starts them
        handle = os.open(path, flags)
    else:
        folder = _folder_without_links(path)
        try:
            name = os.path.basename(path)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            _check_type(status, path, max_bytes, pipes)
            handle = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
    with os.fdopen(handle, "rb", buffering=0) as file:
        status = os.fstat(handle)
        _check_type(status, path, max_bytes, pipes)
        first = b""
        if stat.S_ISFIFO(status.st_mode):
            first = _first_bytes(handle, path)
            os.set_blocking(handle, True)
        return read_stream(file, max_bytes, path, first)


def _folder_without_links(path: Path | str) -> int:
    """Open the folder of an absolute path, from the root on, without following any link."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
    handle = os.open(os.sep, flags)
    for part in Path(path).parts[1:-1]:
        parent = handle
        try:
            handle = os.open(part, flags, dir_fd=parent)
        finally:
            os.close(parent)
    return handle


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all bytes to an unbuffered file, whose `write` may take only a part of them."""
    while data:
        data = data[file.write(data) :]


def identity(path: Path | str | int) -> tuple[int, int] | None:
    """Return device and inode, equal for all paths and descriptors of a file; None if missing."""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


def file_sha256(path: Path | str) -> str:
    """Return the SHA-256 of a regular file in hex; "" if it cannot be read."""
    with suppress(OSError), open(path, "rb", opener=_regular) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def _regular(path: str, flags: int) -> int:
    """Open a regular file. Raises OSError for others: a pipe would never end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", path)


def read_stream(
    stream: IO[bytes], max_bytes: int, path: Path | str = "", first: bytes = b""
) -> bytes:
    """Read a stream to its end.

    Args:
        stream: The stream.
        max_bytes: The maximum size, with `first`.
        path: Its path, for messages.
        first: Bytes that were already read.

    Raises:
        OSError: EFBIG if it has more bytes; EAGAIN if a non-blocking file has no data, as some
            below /proc.
    """
    parts = [first]
    remaining = max_bytes - len(first)
    # A buffered `read` reads again after the end of file, which a terminal signals only once.
    read = getattr(stream, "read1", stream.read)
    while remaining >= 0:
        part = read(min(_CHUNK_BYTES, remaining + 1))
        if part is None:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        if not part:
            return b"".join(parts)
        parts.append(part)
        remaining -= len(part)
    raise _too_large(max_bytes, path)


def _check_type(status: os.stat_result, path: Path | str, max_bytes: int, pipes: bool) -> None:
    """Raise OSError unless it is a regular file or, with `pipes`, a pipe, and not too large."""
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(status.st_mode) or (pipes and stat.S_ISFIFO(status.st_mode))):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > max_bytes:
        raise _too_large(max_bytes, path)


def _too_large(max_bytes: int, path: Path | str) -> OSError:
    return OSError(errno.EFBIG, f"more than {max_bytes / 1e6:g} MB", str(path))


def _first_bytes(handle: int, path: Path | str) -> bytes:
    """Read the first data of a non-blocking pipe; b"" if a writer sends none in time.

    Raises OSError if there is no writer by then.
    """
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    is_ready = poll.poll(WRITER_WAIT_S * 1000)  # data, or a writer that closed the pipe again
    try:
        first = os.read(handle, _CHUNK_BYTES)
    except BlockingIOError:  # there is a writer that has sent nothing yet
        return b""
    if not first and not is_ready:
        reason = f"a pipe that nobody wrote to for {WRITER_WAIT_S:g} s"
        raise OSError(errno.ETIMEDOUT, reason, str(path))
    return first
