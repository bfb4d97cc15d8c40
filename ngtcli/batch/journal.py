"""Journals of batches, which grow by whole lines, and what one begins with.

A Head is what an output was begun with, JSON-ready: the command that resumes it must ask for the
same. It has SHA-256 of the `input` in hex, which of its lines are meant (`shard`), the `engine`,
and under "TASK.NAME" how lines are answered, settings and wording; see `prompt.preset.deciding`.
"""

import errno
import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ngtcli.errors import NgtError, UsageError, reason_of
from ngtcli.system.files import DamagedFileError, parse_json
from ngtcli.system.line_file import LineFile, LongLineError
from ngtcli.system.yaml_file import shown

Head = Mapping[str, Any]
FORMAT: Head = {"format": "ngt-batch", "version": 2}
_KINDS = {"format": str, "version": int, "input": str, "shard": str, "engine": str}
ANOTHER_FILE = "Name another file with -o, or write it again with --restart."
_FULL = (errno.ENOSPC, errno.EDQUOT)


def open_journal(path: Path, output: Path, where: object, what: str = "file") -> LineFile:
    """The journal of an output, a `what`, locked for as long as it is open.

    Raises UsageError, where it cannot be opened under the name `where`, and where another process
    has it.
    """
    with errors_named(where, UsageError, what):
        journal = LineFile(path, 0o600)
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        journal.close()
        hint = "Wait for it, or name another file with -o."
        raise UsageError(f"{output}: another process is writing it", hint) from None
    except OSError:  # a file system without locks
        pass
    return journal


@contextmanager
def errors_named(
    where: object, kind: type[NgtError] = NgtError, what: str = "file"
) -> Iterator[None]:
    """Make of an OSError an error of a kind, for a `what` of the user's at `where`.

    That of a full disk is never a UsageError.
    """
    try:
        yield
    except OSError as error:
        hint = f"name another {what} with -o."
        if error.errno in _FULL:
            kind, hint = NgtError, f"make room, or {hint}"
        elif isinstance(error, LongLineError):
            hint = f"raise the bound with --max-mb, or {hint}"
        message = f"{where}: {reason_of(error)}"
        raise kind(message, hint[0].upper() + hint[1:]) from None


def read_head(line: bytes) -> Head | None:
    """The head in a journal's first line; None for another one's, damaged, or another version's."""
    try:
        found = parse_json(line, dict)
    except DamagedFileError:
        return None
    kinds = {name: type(value) for name, value in found.items() if "." not in name}
    return found if kinds == _KINDS and found.items() >= FORMAT.items() else None


def check_head(then: Head, now: Head, path: object) -> None:
    """Raise UsageError, which names what differs, unless `now` asks for the same as `then`."""
    changed: dict[str, str] = {}  # in words, by name: what differs in two tasks is told once
    for key in {**now, **then}:
        before, after = then.get(key), now.get(key)
        task, _, name = key.rpartition(".")
        if before == after:
            continue
        if name == "input":
            words = "other lines: the input has changed"
        elif name == "wording":
            words = f"another wording of preset {task}"
        else:
            words = f"{name} {shown(before)}, now {shown(after)}"
        changed.setdefault(name, words)
    if changed:
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        new = "Put new and mended lines into a file of their own. " if "input" in changed else ""
        first = next(iter(changed.values()))
        raise UsageError(f"{path} was begun with {first}{more}", f"{new}{ANOTHER_FILE}")
