"""What commands put out: a line, a list as a table, or a result in a file."""

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngtcli.cli.streams import styles, terminal_width
from ngtcli.documents.find import WRITES_OVER
from ngtcli.errors import NgtError, UsageError
from ngtcli.render.terminal import reveal, to_tabs, visible
from ngtcli.system.files import identity, key_of, write_atomically
from ngtcli.system.journal import errors_named
from ngtcli.system.json_form import dump_json, to_json
from ngtcli.words import reason_of, shortened

if TYPE_CHECKING:
    from ngtcli.system.store import Kind

_MAX_COMPARED_BYTES = 1_000_000_000  # of a file; larger ones are not ours: guess
_VERSIONS_KNOWN = 16  # of a file that ngt wrote; guess
_ELSEWHERE = "Choose another file."
_PRINTED = "Choose another file; the result went to standard output."
_FORCE = "Name another file, or use --force to overwrite it."


def check_output_file(path: Path | None) -> None:
    """Raise UsageError where no file can be written at `path`, before anything is computed."""
    if path is None:
        return
    check_name(path)
    folder = path.resolve().parent
    is_file = not path.exists() or path.is_file()
    is_special = os.path.abspath(path).startswith(("/dev/", "/proc/"))
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="Name a file in it.")
    if not folder.is_dir():
        raise UsageError(
            f"{path}: no such folder", hint="Make the folder first, or name another file."
        )
    if is_file and not is_special and not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: no permission to write in its folder", hint="Name another file.")


def check_name(path: Path) -> None:
    """Raise UsageError for a path under which nothing can be, and for -."""
    if str(path) == "-":
        raise UsageError(
            "-: standard output is not a file",
            hint="Leave the option out to print to standard output.",
        )
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, links in a circle
        raise UsageError(
            f"{shortened(str(path))}: {reason_of(error)}", hint="Give another name."
        ) from None


def check_output_files(paths: Mapping[str, Path | None]) -> None:
    """Check each file, by its flag. Raises UsageError; also where two flags name one file."""
    taken: dict[Path, str] = {}
    for flag, path in paths.items():
        check_output_file(path)
        if path is None or path.is_char_device():  # as /dev/null
            continue
        other_flag = taken.get(path.resolve())
        if other_flag:
            raise UsageError(f"{other_flag} and {flag} both name {path}", hint="Name two files.")
        taken[path.resolve()] = flag


def check_not_read(
    outputs: Iterable[Path | None],
    read: Iterable[str | Path | int],
    hint: str = "Name another file.",
) -> None:
    """Raise UsageError where an output would be written over a file that is read.

    Args:
        outputs: The outputs.
        read: Paths and descriptors.
        hint: What to do.
    """
    written = files_of(outputs)
    if not written:
        return
    for path in read:
        output = written.get(identity(path))
        if output is not None:
            raise UsageError(f"{output}: {WRITES_OVER}", hint=hint)


def check_written(outputs: Iterable[Path | None], force: bool = False, hint: str = _FORCE) -> None:
    """Raise UsageError for a file that is there already and not as ngt wrote it, unless `force`.

    After `check_not_read`, whose error says more.
    """
    for path in filter(None, outputs):
        _check_own(path, hint, force)


def _check_own(path: Path, hint: str, force: bool = False) -> None:
    """Raise UsageError with `hint` for a regular file, not empty, that is not as ngt wrote it.

    The user's state has the SHA-256 of what was written last to each path.
    """
    if force or not path.is_file() or not (size := path.stat().st_size):
        return
    written = None
    with suppress(OSError), path.open("rb") as file:
        written = _written().get(_key(path)) if size <= _MAX_COMPARED_BYTES else None
        if written and hashlib.file_digest(file, "sha256").hexdigest() in written:
            return
    whose = "was changed since ngt wrote it" if written else "was not written by ngt"
    raise UsageError(f"{path} already exists and {whose}", hint=hint)


def _key(path: Path) -> str:
    return key_of(str(path.resolve()))


def _written() -> "Kind[list[str]]":
    from ngtcli.system.store import Kind  # here: most runs write no file

    return Kind("written", list[str], is_state=True)


def _remember(path: Path, text: str) -> None:
    """Note that ngt wrote this text to the file."""
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    hashes = [known for known in _written().get(_key(path)) or [] if known != sha256]
    _written().put(_key(path), [*hashes, sha256][-_VERSIONS_KNOWN:])


def files_of(outputs: Iterable[Path | None]) -> dict[tuple[int, int] | None, Path]:
    """Return the outputs that are files already, by their `identity`."""
    return {identity(path): path for path in outputs if path is not None and path.is_file()}


def write_result(text: str, path: Path | None, force: bool = False) -> None:
    """Write a result, without its last newline, whole to `path`; to stdout where that is None.

    Where the file cannot be written, the result goes to stdout, rather there than lost, and
    NgtError is raised.
    """
    if path is None:
        print_line(text)
        return
    try:
        write_page(text + "\n", path, _PRINTED, force)
    except NgtError:
        print_line(text)
        raise


def write_page(text: str, path: Path, hint: str = _ELSEWHERE, force: bool = False) -> None:
    """Write `text` whole to `path`, and nowhere else. Raises NgtError with `hint`.

    Without `force` it is refused where another file came there meanwhile.
    """
    _check_own(path, hint, force)
    with errors_named(path, hint):
        write_atomically(path, text)
        if path.is_file():
            _remember(path, text)


def json_of_answer(value: object, indent: int | None = 2) -> str:
    """Return the JSON of an answer, whose texts have no control characters, as in a pipe.

    As JSON has them they would be escaped, and reach the terminal once another program reads it.
    """
    return dump_json(_without_controls(to_json(value)), indent)


def _without_controls(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {_without_controls(k): _without_controls(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_controls(item) for item in value]
    return value


def print_line(text: str) -> None:
    """Print a line (or object) of output; never through Rich, which wraps and reads markup."""
    shown = reveal(text) if sys.stdout.isatty() else text
    sys.stdout.write(shown + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on a terminal; elsewhere tab-separated values below their headings."""
    cells = [[str(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        from ngtcli.render.tables import Column, Table, to_terminal  # here: answers need none

        table = Table("", [Column(title, left=True) for title in columns], cells)
        print_line(to_terminal([table], width=terminal_width(sys.stdout), color=styles(sys.stdout)))
    elif cells:
        print_line(to_tabs([columns, *cells]))
