"""Files of the user: folders, cache keys, reading up to a bound, atomic writing.

Files are written below a passing name and get theirs when they are complete: a reader never sees a
part of one, and two writers cannot mix theirs. What a killed writer leaves is removed by the next
one of the same file. Only their owner can read those of the cache, since
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

PARTIAL = ".partial"  # end of the name of a file that is being written
Kind = TypeVar("Kind")
WRITER_WAIT_S = 5.0  # longest wait for the first writer of a named pipe; guess
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_PIECE = 1 << 20  # bytes read at once if the size is not known; guess
_DIGITS = 32  # hex digits of a key, 128 bits; guess


class DamagedFileError(Exception):
    """A file is damaged, foreign or of another version; the message says which."""


def home(kind: str) -> Path:
    """The user's folder for `kind`; `NGT_HOME/kind` if that is set.

    Kinds are "config", "cache", "state", and "run" for what lives as long as a process does. Raises
    UsageError for a cache that is another user's, for an NGT_HOME that is closed to this user, and
    for one that starts with the home of an unknown one (`~name`).
    """
    if base := os.environ.get("NGT_HOME"):
        try:
            folder = Path(base).expanduser() / kind
        except RuntimeError:
            raise UsageError(f"NGT_HOME is {base}: no such home", hint="Name a folder.") from None
    elif kind == "run":  # the system's folder for it may be missing, or one that all users share
        folder = home("state") / kind
    else:
        folder = Path(getattr(platformdirs, f"user_{kind}_dir")("ngt", appauthor=False))
    try:
        is_others = os.stat(folder).st_uid != os.geteuid() and kind == "cache"
    except OSError as error:
        is_others = isinstance(error, PermissionError)
    if is_others:
        hint = "Set NGT_HOME to a folder of yours."
        raise UsageError(f"what is in {folder} is another user's", hint=hint)
    return folder


class Stamp(NamedTuple):
    """The state of a file; the last time is new even where one is copied with its times."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def stamp_of(file: str | Path | int) -> Stamp:
    """The state of a file, or of one that is open. Raises OSError."""
    about = os.stat(file)
    return Stamp(about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)


def key_of(*parts: object) -> str:
    """The name of a cache entry: a hash of all that it depends on, 32 hex digits."""
    text = "\0".join(map(str, parts))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def parse_json(text: str | bytes, kind: type[Kind]) -> Kind:
    """The JSON value in `text`, strictly of type `kind`, as msgspec has it.

    Raises DamagedFileError.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedFileError(f"not JSON as it should be ({error})") from None


def write_atomically(path: Path, text: str | Iterable[str]) -> None:
    """Write `text`, or its pieces, in UTF-8 to a file of the user's, completely or not at all.

    Links are followed, and an existing file keeps its mode. A device or named pipe is written to
    directly, and so is a descriptor such as /dev/stdout: behind what it wrote before, and the file
    that it leads to stays the same. Raises OSError.
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
    """The descriptor that a path such as /dev/fd/5 stands for."""
    name = os.path.abspath(path)
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,9})", name)
    return int(found[1]) if found else {"/dev/stdout": 1, "/dev/stderr": 2}.get(name)


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; no other user can write to them.

    Nor can others enter those of the cache and the state, which are closed to them if they are the
    user's. Raises OSError.
    """
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(0o755, exist_ok=True)
    for own in home("cache"), home("state"):
        if path.is_relative_to(own):
            about = path.stat()
            if about.st_mode & 0o077 and about.st_uid == os.geteuid():
                path.chmod(0o700)
            if path != own:
                private_folder(path.parent)


@contextmanager
def new_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A file to write, which is `path` when the block ends. Raises OSError."""
    with process.unbroken(), closing(NewFile(path.parent, mode, name=path.name)) as new:
        yield new.file
        new.file.flush()
        new.finish(path)


class NewFile:
    """A file that is written, and gets its name when it is complete.

    The user's mask holds for `mode`. With the `name` that it will have, what a killed process left
    of an earlier such file is removed. Methods raise OSError; `close` is to be called at last.
    """

    def __init__(
        self, folder: Path, mode: int = 0o600, buffering: int = -1, name: str = ""
    ) -> None:
        self._is_finished = False
        self._passing, handle = _partial_file(folder, mode, name)
        self.file: IO[bytes] = os.fdopen(handle, "w+b", buffering)

    def finish(self, path: Path) -> None:
        """The file, which is flushed, is `path` then, in the place of another."""
        self._passing.replace(path)
        self._is_finished = True  # another writer may have the passing name from now on

    def close(self) -> None:
        """Close it; nothing is left of a file that is not finished."""
        if not self._is_finished:
            self._passing.unlink(missing_ok=True)  # still locked, so that it is this one
        self.file.close()  # which may write, and fail


def _partial_file(folder: Path, mode: int, name: str) -> tuple[Path, int]:
    """Make a file below a passing name, which depends on the `name` that it will have; open it.

    Its writer holds a lock on it as long as it lives. So the next writer of that name knows what a
    killed one left, and removes it; where another one is still writing, the passing name is random.
    """
    if name:
        path = folder / f".{key_of(name)[:16]}{PARTIAL}"
        for _ in range(2):
            with suppress(FileExistsError):
                handle = os.open(path, _NEW, mode)
                if _lock(handle) is not False and identity(path) == identity(handle):
                    return path, handle
                os.close(handle)  # another writer took it for one that was left, and removes it
                break
            _remove_left(path)
    path = folder / f".{os.urandom(8).hex()}{PARTIAL}"
    return path, os.open(path, _NEW, mode)


def _remove_left(path: Path) -> None:
    """Remove a file that is not finished, if it is the user's and nobody is writing it."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about = os.fstat(handle)
            is_own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
            if is_own and _lock(handle) and identity(path) == identity(handle):
                path.unlink()
        finally:
            os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file: False where another process has locked it, None where files have none."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def read_bounded(path: Path | str, most: int, pipes: bool = False, *, links: bool = True) -> bytes:
    """The bytes of a regular file, or with `pipes` of a pipe; at most `most`.

    Without `links` no part of the path may be one, so that what is read is where the path says,
    whatever others do to the folders meanwhile.

    Raises OSError: those of `open`; EISDIR for a folder; EINVAL for what is not a regular file (a
    device, a socket, a pipe without `pipes`); EFBIG for more than `most` bytes; ETIMEDOUT for a
    pipe that no process opens for writing within `WRITER_WAIT_S`.
    """
    # Without O_NONBLOCK, opening a pipe without a writer would block for ever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    if links:
        _check_kind(os.stat(path), path, most, pipes)  # opening some devices starts them
        handle = os.open(path, flags)
    else:
        folder = _folder_without_links(path)
        try:
            name = os.path.basename(path)
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            _check_kind(about, path, most, pipes)
            handle = os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
    with os.fdopen(handle, "rb", buffering=0) as file:
        about, first = os.fstat(handle), b""
        _check_kind(about, path, most, pipes)
        if stat.S_ISFIFO(about.st_mode):
            first = _first_bytes(handle, path)
            os.set_blocking(handle, True)
        return read_stream(file, most, path, first)


def _folder_without_links(path: Path | str) -> int:
    """Open the folder of a file, given by its full path, from the root on and through no link."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
    handle = os.open(os.sep, flags)
    for part in Path(path).parts[1:-1]:
        above = handle
        try:
            handle = os.open(part, flags, dir_fd=above)
        finally:
            os.close(above)
    return handle


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write bytes to a file without a buffer, which may take a part of them at once."""
    while data:
        data = data[file.write(data) :]


def identity(path: Path | str | int) -> tuple[int, int] | None:
    """What all paths and descriptors of one file have in common; None where there is none."""
    with suppress(OSError, ValueError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None


def file_sha256(path: Path | str) -> str:
    """The SHA-256 digest of a file in hexadecimal; "" where it cannot be read or is no file."""
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


def read_stream(stream: IO[bytes], most: int, path: Path | str = "", first: bytes = b"") -> bytes:
    """`first`, then the bytes of `stream` to its end; at most `most` in all.

    Raises OSError: EFBIG for more than `most` bytes; EAGAIN if a non-blocking file has no data, as
    some below /proc.
    """
    parts, left = [first], most - len(first)
    # A buffered `read` reads again after the end of file, which a terminal signals only once.
    read = getattr(stream, "read1", stream.read)
    while left >= 0 and (part := read(min(_PIECE, left + 1))):
        parts.append(part)
        left -= len(part)
    if left < 0:
        raise _too_big(most, path)
    if part is None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
    return b"".join(parts)


def _check_kind(about: os.stat_result, path: Path | str, most: int, pipes: bool) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(about.st_mode) or (pipes and stat.S_ISFIFO(about.st_mode))):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if about.st_size > most:
        raise _too_big(most, path)


def _too_big(most: int, path: Path | str) -> OSError:
    return OSError(errno.EFBIG, f"more than {most / 1e6:g} MB", str(path))


def _first_bytes(handle: int, path: Path | str) -> bytes:
    """The first data in a non-blocking pipe, b"" where a writer sends none in time.

    Raises OSError where there is no writer by then.
    """
    (poll := select.poll()).register(handle, select.POLLIN)
    is_ready = poll.poll(WRITER_WAIT_S * 1000)  # data, or a writer that closed the pipe again
    try:
        first = os.read(handle, _PIECE)
    except BlockingIOError:  # there is a writer
        return b""
    if not first and not is_ready:
        reason = f"a pipe that nobody wrote to for {WRITER_WAIT_S:g} s"
        raise OSError(errno.ETIMEDOUT, reason, str(path))
    return first
