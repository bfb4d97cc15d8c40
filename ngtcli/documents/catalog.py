"""What is known of files that were read, in the store, so that unchanged ones are not opened.

A file counts as unchanged if its path, inode, size and times are. Else it is read, and the text
that was made of the same bytes before is taken. What is known of its earlier states stays until the
cache is full. Texts for which a password was needed are not stored.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ngtcli.documents.content import Extracted
from ngtcli.documents.parsers import FailedParser
from ngtcli.documents.text import Unreadable
from ngtcli.system import files
from ngtcli.system.files import Stamp
from ngtcli.system.store import Kind

VERSION = 12  # of the parsers' output and of these pieces
_RACE_NS = 2_000_000_000  # a file this young when it is read may change without a new time; guess
_TRIED_S = 86_400.0  # seconds after which a parser that failed at a file is tried again; guess
_TRY_AGAIN = ", when it was last tried; ngt cache clear documents has it tried again"


@dataclass(frozen=True, slots=True)
class Entry:
    """What came of a file: the key of its text in TEXTS, or why there is none and what to do.

    `until` is when the latter ends, in seconds since 1970, as the machine may have been to blame;
    0.0: it holds for good.
    """

    source: str
    reason: str = ""
    advice: str = ""
    until: float = 0.0

    @classmethod
    def of(cls, source: str, outcome: Extracted | Unreadable) -> "Entry | None":
        """What is stored of this outcome; None where it is secret, or not the file's own."""
        if isinstance(outcome, Extracted):
            return None if outcome.about.secret else cls(source)
        if not (outcome.lasting or isinstance(outcome, FailedParser)):
            return None
        until = 0.0 if outcome.lasting else time.time() + _TRIED_S
        return cls(source, str(outcome), outcome.advice, until)

    @property
    def error(self) -> Unreadable | None:
        """Why there is no text; None where there is one."""
        last = _TRY_AGAIN if self.until else ""
        return Unreadable(self.reason + last, self.advice) if self.reason else None


FILES = Kind("files", Entry)  # by path, state, suffix, and settings that decide what comes of it
TEXTS = Kind("texts", Extracted)  # by a file's bytes, suffix, and settings that decide its text


def known(keys: Mapping[str, str]) -> dict[str, Entry]:
    """What came of the files at these real paths, with their keys. Opens no file."""
    entries, now = FILES.get_many(filter(None, keys.values())), time.time()
    found = {path: entry for path, key in keys.items() if (entry := entries.get(key)) is not None}
    return {path: entry for path, entry in found.items() if not 0 < entry.until < now}


def settled(path: str) -> Stamp | None:
    """The state of a regular file; None for another, or where a write may yet leave its times."""
    stamp = stamp_of(path)
    is_new = stamp and time.time_ns() - max(stamp.mtime_ns, stamp.ctime_ns) < _RACE_NS
    return None if is_new else stamp


def stamp_of(path: str) -> Stamp | None:
    """The state of a regular file; None for what is not one."""
    with suppress(OSError, ValueError):
        return files.stamp_of(path) if os.path.isfile(path) else None
    return None
