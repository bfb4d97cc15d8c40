"""Print lines and tables, and write results to files without overwriting those of others."""

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

_MAX_COMPARED_BYTES = 1_000_000_000  # a larger file counts as not written by ngt (guess)
_MAX_VERSIONS = 16  # hashes that are stored for a file that ngt wrote (guess)
_ELSEWHERE = "Choose another file."
_PRINTED = "Choose another file; the result went to standard output."
_FORCE = "Name another file, or use --force to overwrite it."


def check_output_file(path: Path | None) -> None:
    """Raise UsageError if no file can be written at `path`, before anything is computed."""
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
    """Raise UsageError for an invalid path, and for -."""
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
    """Check the file of each flag. Raises UsageError, also if two flags name the same file."""
    taken: dict[Path, str] = {}
    for flag, path in paths.items():
        check_output_file(path)
        if path is None or path.is_char_device():  # such as /dev/null
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
    """Raise UsageError if an output would overwrite a file that is read.

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
    """Raise UsageError for an existing file that ngt did not write, or that was changed since.

    Call it after `check_not_read`, whose error is more specific.

    Args:
        outputs: The files.
        force: Whether the user allows to overwrite them.
        hint: What to do.
    """
    if force:
        return
    for path in outputs:
        if path is not None:
            _check_written_by_ngt(path, hint)


def _check_written_by_ngt(path: Path, hint: str) -> None:
    """Raise UsageError for a regular file with content that ngt did not write.

    The user's state has the SHA-256 of the last versions that ngt wrote to each path.
    """
    if not path.is_file():
        return
    size = path.stat().st_size
    if size == 0:
        return
    hashes = None
    with suppress(OSError), path.open("rb") as file:
        if size <= _MAX_COMPARED_BYTES:
            hashes = _written_hashes().get(_key(path))
        if hashes and hashlib.file_digest(file, "sha256").hexdigest() in hashes:
            return
    problem = "was changed since ngt wrote it" if hashes else "was not written by ngt"
    raise UsageError(f"{path} already exists and {problem}", hint=hint)


def _key(path: Path) -> str:
    return key_of(str(path.resolve()))


def _written_hashes() -> "Kind[list[str]]":
    """Return the stored SHA-256 sums of the files that ngt wrote."""
    from ngtcli.system.store import Kind  # most commands write no file

    return Kind("written", list[str], is_state=True)


def _remember(path: Path, text: str) -> None:
    """Store that ngt wrote this text to the file."""
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    earlier = _written_hashes().get(_key(path)) or []
    others = [earlier_sha256 for earlier_sha256 in earlier if earlier_sha256 != sha256]
    _written_hashes().put(_key(path), [*others, sha256][-_MAX_VERSIONS:])


def files_of(outputs: Iterable[Path | None]) -> dict[tuple[int, int] | None, Path]:
    """Return the outputs that already exist as files, by their `identity`."""
    return {identity(path): path for path in outputs if path is not None and path.is_file()}


def write_result(text: str, path: Path | None, force: bool = False) -> None:
    """Write a result to a file, or to standard output.

    A result that cannot be written to the file is printed, so that it is not lost.

    Args:
        text: The result, without its last newline.
        path: The file; None for standard output.
        force: Whether to overwrite a file that ngt did not write.

    Raises:
        NgtError: The file cannot be written.
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
    """Write a text to a file in one step.

    Args:
        text: The text.
        path: The file.
        hint: What to do if that fails.
        force: Whether to overwrite a file that ngt did not write.

    Raises:
        NgtError: The file cannot be written.
    """
    if not force:
        _check_written_by_ngt(path, hint)
    with errors_named(path, hint):
        write_atomically(path, text)
        if path.is_file():
            _remember(path, text)


def json_of_answer(value: object, indent: int | None = 2) -> str:
    """Return the JSON of an answer, with visible characters for control characters.

    JSON would escape them, and a program that reads it could print them to a terminal.
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
    """Print a line or a JSON object. Rich is not used, because it wraps and interprets markup."""
    shown = reveal(text) if sys.stdout.isatty() else text
    sys.stdout.write(shown + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on a terminal, and tab-separated values with headings elsewhere."""
    cells = [[str(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        from ngtcli.render.tables import Column, Table, to_terminal  # answers need no tables

        table = Table("", [Column(title, left=True) for title in columns], cells)
        print_line(to_terminal([table], width=terminal_width(sys.stdout), color=styles(sys.stdout)))
    elif cells:
        print_line(to_tabs([columns, *cells]))
