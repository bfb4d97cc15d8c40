"""Documents read for a command, from files or stdin; what was left out is said on stderr."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_not_read, files_of
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import Settings
from ngtcli.documents.find import STDIN, Skipped, converting, kinds
from ngtcli.documents.load import Loaded, load
from ngtcli.documents.read import Reader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.engine.request import MAX_PREDICTED
from ngtcli.errors import InputError
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted

_STDIN_FILE = 0  # its descriptor
_PREDICTION = f"Name a text file of at most {MAX_PREDICTED // 1_000_000} MB."
_SHOWN = 5  # lines about single files; -v shows all


def standard_input(paths: Sequence[str]) -> BinaryIO | None:
    """Standard input where something is piped in, or where `paths` name it: then also a terminal.

    None where there is none to read.
    """
    stdin = piped_stdin()
    if stdin is not None or STDIN not in paths or sys.stdin is None or sys.stdin.closed:
        return stdin
    Notes().say("Reading what is typed here; Ctrl-D at the start of a line ends it.")
    return sys.stdin.buffer


def read_prediction(path: str) -> str:
    """The text of a file that the answer is said to be like. Raises InputError."""
    try:
        data = Reader(MAX_PREDICTED // 1_000_000).read(path, pipes=True)
        return decode_text(data)
    except Unreadable as error:
        raise InputError(f"--predict {path}: {error}", hint=_PREDICTION) from None


def read_documents(
    paths: Sequence[str],
    stdin: BinaryIO | None,
    settings: Settings,
    notes: Notes,
    outputs: Iterable[Path | None] = (),
) -> Loaded:
    """The documents of `paths`, with a line for what was left out.

    Of folders and patterns `outputs` are left out. Raises InputError; UsageError where one of them
    would be written over a file that was named outright, or over standard input.
    """
    if STDIN in paths:
        check_not_read(outputs, [_STDIN_FILE])
    notes.status("Reading the documents …")
    with reporting_to(notes):
        loaded = load(paths, stdin, settings, files_of(outputs))
    notes.clear()
    tell(loaded, notes)
    return loaded


def tell(loaded: Loaded, notes: Notes) -> None:
    """What was not read: a line for each file, up to a number; one for all of other kinds."""
    tell_skipped(loaded.skipped, notes)
    rows = [(d.name, d.about.warnings, d.about.dropped) for d in loaded.documents]
    tell_warnings(rows, notes)
    for remark in loaded.remarks:
        notes.warn(remark)


def tell_warnings(documents: Sequence[tuple[str, Sequence[str], int]], notes: Notes) -> None:
    """What was remarked on documents, and how many lines of headers and footers they lost."""
    warnings = [(name, words) for name, of_one, _ in documents for words in of_one]
    shown = warnings if notes.verbose else warnings[:_SHOWN]
    for name, words in shown:
        notes.warn(f"{name}: {words}")
    if more := len(warnings) - len(shown):
        notes.warn(f"{counted(more, 'more such remark')}; -v has them all")
    if dropped := [lines for _, _, lines in documents if lines]:
        lines, of = counted(sum(dropped), "line"), counted(len(dropped), "document")
        notes.warn(f"left out {lines} of repeated headers and footers, in {of}")


def tell_skipped(skipped: Sequence[Skipped], notes: Notes, most: int = _SHOWN) -> None:
    """What was left out, and why; without -v `most` files by name."""
    bad = [s for s in skipped if not s.kind and not s.needs]
    shown = bad if notes.verbose else bad[:most]
    for one in shown:
        notes.warn(f"left out {one.name}: {one.reason}")
    if more := len(bad) - len(shown):
        notes.warn(f"left out {more} more; -v names them all")
    for needs in dict.fromkeys(s.needs for s in skipped if s.needs):
        reasons = [s.reason for s in skipped if s.needs == needs]
        reason = reasons[0] if len({*reasons}) == 1 else "their formats need more packages"
        notes.warn(f"left out {counted(len(reasons), 'file')}: {reason}. {needs}")
    if others := [s for s in skipped if s.kind and not s.needs]:
        notes.warn(f"left out {counted(len(others), 'file')} of other kinds: {kinds(others)}")
        if command := converting(others):
            notes.warn(f"old office files are read when converted: {command}")


def distinct(skipped: Sequence[Skipped]) -> tuple[Skipped, ...]:
    """Every file that was left out, once, as --json has it."""
    return tuple(dict.fromkeys(skipped))
