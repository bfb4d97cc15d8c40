"""What is known of files that were read, in the store, so that unchanged ones are not opened.

A file counts as unchanged if its size and times are. Else it is read, and the text that was made of
the same bytes before is taken. Texts for which a password was needed are not stored.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ngtcli.documents.content import Extracted
from ngtcli.documents.parsers import FailedParser
from ngtcli.documents.text import Unreadable
from ngtcli.system import files
from ngtcli.system.files import Stamp
from ngtcli.system.store import Kind

VERSION = 11  # of the parsers' output and of these pieces
_RACE_NS = 2_000_000_000  # a file this young when it was read may change without a new time; guess
_TRIED_S = 86_400.0  # seconds after which a parser that failed at a file is tried again; guess
_TRY_AGAIN = ", when it was last tried; ngt cache clear documents has it tried again"
NO_FILE = Stamp(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as it was read; with the stamp NO_FILE, one of which nothing is stored.

    `reason` and `advice` say why there is no text. `until` is when these end, in seconds since
    1970, as the machine may have been to blame; 0.0: they hold for good.
    """

    stamp: Stamp = NO_FILE
    seen: int = 0  # nanoseconds since 1970
    source: str = ""  # key of the text in TEXTS, "" for plain text
    reason: str = ""
    advice: str = ""
    until: float = 0.0

    def of(self, outcome: Extracted | Unreadable) -> "Entry":
        """This with what came of reading, if that is the file's own."""
        if isinstance(outcome, Extracted):
            return replace(self, stamp=NO_FILE if outcome.about.secret else self.stamp)
        is_its_own = outcome.lasting or isinstance(outcome, FailedParser)
        return replace(
            self,
            stamp=self.stamp if is_its_own else NO_FILE,
            reason=str(outcome),
            advice=outcome.advice,
            until=0.0 if outcome.lasting else time.time() + _TRIED_S,
        )

    @property
    def error(self) -> Unreadable | None:
        """Why there is no text; None where there is one."""
        last = _TRY_AGAIN if self.until else ""
        return Unreadable(self.reason + last, self.advice) if self.reason else None


FILES = Kind("files", Entry)  # by path, suffix, and settings that decide what comes of a file
TEXTS = Kind("texts", Extracted)  # by a file's bytes, suffix, and settings that decide its text


def known(keys: Mapping[str, str]) -> dict[str, Entry]:
    """What came of the files at these real paths, with their keys, that are as they were.

    Opens no file.
    """
    entries, now = FILES.get_many(keys.values()), time.time()
    return {
        path: entry
        for path, key in keys.items()
        if (entry := entries.get(key)) is not None
        and not 0 < entry.until < now
        and entry.seen - max(entry.stamp.mtime_ns, entry.stamp.ctime_ns) >= _RACE_NS
        and stamp_of(path) == entry.stamp
    }


def stamp_of(path: str) -> Stamp | None:
    """The state of a regular file; None for what is not one."""
    with suppress(OSError, ValueError):
        return files.stamp_of(path) if os.path.isfile(path) else None
    return None
