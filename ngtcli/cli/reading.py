"""Read the documents of a command from files or standard input, and report what was skipped."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_not_read, files_of
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import Settings
from ngtcli.documents.find import STDIN, Skipped, conversion_commands, count_kinds
from ngtcli.documents.load import Loaded, load
from ngtcli.documents.read import BoundedReader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.engine.request import MAX_PREDICTED
from ngtcli.errors import InputError
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted

_STDIN_FILE = 0  # its descriptor
_PREDICTION_HINT = f"Name a text file of at most {MAX_PREDICTED // 1_000_000} MB."
_SHOWN = 5  # warnings about single files; -v shows all


def standard_input(paths: Sequence[str]) -> BinaryIO | None:
    """Return standard input if something is piped in, or if `paths` name it; else None.

    If `paths` name it, it may be a terminal.
    """
    stdin = piped_stdin()
    if stdin is not None or STDIN not in paths or sys.stdin is None or sys.stdin.closed:
        return stdin
    Notes().say("Reading from the terminal; Ctrl-D on an empty line ends the input.")
    return sys.stdin.buffer


def read_prediction(path: str) -> str:
    """Return the text of the file that --predict names. Raises InputError."""
    try:
        data = BoundedReader(MAX_PREDICTED // 1_000_000).read(path, pipes=True)
        return decode_text(data)
    except Unreadable as error:
        raise InputError(f"--predict {path}: {error}", hint=_PREDICTION_HINT) from None


def read_documents(
    paths: Sequence[str],
    stdin: BinaryIO | None,
    settings: Settings,
    notes: Notes,
    outputs: Iterable[Path | None] = (),
) -> Loaded:
    """Read documents, and report the files that were skipped.

    Args:
        paths: Files, folders, patterns, and - for standard input.
        stdin: Standard input, if something can be read from it.
        settings: How files are read.
        notes: Shows what was skipped.
        outputs: The files that the command writes; they are skipped in folders and patterns.

    Raises:
        InputError: A path that was named cannot be read, or there is no document.
        UsageError: An output is a file that was named, or standard input.
    """
    if STDIN in paths:
        check_not_read(outputs, [_STDIN_FILE])
    notes.status("Reading the documents …")
    with reporting_to(notes):
        loaded = load(paths, stdin, settings, files_of(outputs))
    notes.clear()
    report_loaded(loaded, notes)
    return loaded


def report_loaded(loaded: Loaded, notes: Notes) -> None:
    """Report what was not read of documents, and what was skipped in folders."""
    report_skipped(loaded.skipped, notes)
    report_warnings([(d.name, d.about.warnings, d.about.dropped) for d in loaded.documents], notes)
    for remark in loaded.remarks:
        notes.warn(remark)


def report_warnings(documents: Sequence[tuple[str, Sequence[str], int]], notes: Notes) -> None:
    """Report warnings about documents, the first few of them without -v.

    Args:
        documents: For each document its name, its warnings, and the number of lines of headers and
            footers that were removed from it.
        notes: Shows them.
    """
    messages = [f"{name}: {warning}" for name, warnings, _ in documents for warning in warnings]
    shown = messages if notes.verbose else messages[:_SHOWN]
    for message in shown:
        notes.warn(message)
    more = len(messages) - len(shown)
    if more:
        notes.warn(f"{counted(more, 'more warning')} like these; -v shows all")
    removed = [lines for _, _, lines in documents if lines]
    if removed:
        lines = counted(sum(removed), "line")
        count = counted(len(removed), "document")
        notes.warn(f"removed {lines} of repeated headers and footers from {count}")


def report_skipped(skipped: Sequence[Skipped], notes: Notes, max_shown: int = _SHOWN) -> None:
    """Report the files that were skipped, and why.

    Args:
        skipped: The files.
        notes: Shows them.
        max_shown: Unreadable files that are named without -v.
    """
    # A file with a `kind` is of a type that is not read; one with `needs` lacks a package.
    unreadable = [file for file in skipped if not file.kind and not file.needs]
    shown = unreadable if notes.verbose else unreadable[:max_shown]
    for file in shown:
        notes.warn(f"skipped {file.name}: {file.reason}")
    more = len(unreadable) - len(shown)
    if more:
        notes.warn(f"skipped {more} more; -v lists all")

    for needs in dict.fromkeys(file.needs for file in skipped if file.needs):
        reasons = [file.reason for file in skipped if file.needs == needs]
        reason = reasons[0] if len(set(reasons)) == 1 else "their formats need more packages"
        notes.warn(f"skipped {counted(len(reasons), 'file')}: {reason}. {needs}")

    other_types = [file for file in skipped if file.kind and not file.needs]
    if other_types:
        count = counted(len(other_types), "file")
        notes.warn(f"skipped {count} of other types: {count_kinds(other_types)}")
        command = conversion_commands(other_types)
        if command:
            notes.warn(f"convert old office files to have them read: {command}")


def distinct(skipped: Sequence[Skipped]) -> tuple[Skipped, ...]:
    """Return the skipped files without duplicates, as --json lists them."""
    return tuple(dict.fromkeys(skipped))
