"""Documents read for a command, from files or stdin; what was left out is said on stderr."""

import sys
from collections.abc import Sequence
from typing import BinaryIO

from ngtcli.cli.notes import Notes
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import Settings
from ngtcli.documents.find import Skipped, kinds
from ngtcli.documents.load import STDIN, Loaded, load

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


def read_documents(
    paths: Sequence[str], stdin: BinaryIO | None, settings: Settings, notes: Notes
) -> Loaded:
    """The documents of `paths`, with a line for what was left out. Raises InputError."""
    notes.status("Reading the documents …")
    loaded = load(paths, stdin, settings)
    notes.clear()
    tell(loaded, notes)
    return loaded


def tell(loaded: Loaded, notes: Notes) -> None:
    """One line a file that could not be read, up to a number; one for all of other kinds."""
    bad = [s for s in loaded.skipped if not s.kind]
    shown = bad if notes.verbose else bad[:_SHOWN]
    for skipped in shown:
        notes.warn(f"left out {skipped.name}: {skipped.reason}")
    if more := len(bad) - len(shown):
        notes.warn(f"left out {more} more; --json names them all")
    if others := [s for s in loaded.skipped if s.kind]:
        what = "1 file" if len(others) == 1 else f"{len(others)} files"
        notes.warn(f"left out {what} of other kinds: {kinds(others)}")
    if loaded.html:
        shown_names = ", ".join(loaded.html[:_SHOWN])
        more_names = f" and {len(loaded.html) - _SHOWN} more" if len(loaded.html) > _SHOWN else ""
        notes.warn(f"HTML, read with its tags: {shown_names}{more_names}")


def skipped_json(skipped: Sequence[Skipped]) -> list[dict[str, str]]:
    """The `skipped` of --json: name and reason of every file that was left out, once."""
    return [s.as_json() for s in dict.fromkeys(skipped)]
