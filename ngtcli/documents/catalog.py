"""What is known of files that were read, in the store, so that unchanged ones are not opened.

A file counts as unchanged if its size and times are. Else it is read, and the text that was made of
the same bytes before is taken. Texts for which a password was needed are not stored.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ngtcli.config import Settings
from ngtcli.documents.content import Extracted
from ngtcli.documents.parsers import FailedParser
from ngtcli.documents.text import Unreadable
from ngtcli.system import files
from ngtcli.system.files import Stamp, key_of
from ngtcli.system.store import Kind

VERSION = 10  # of the parsers' output and of these pieces
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


class Catalog:
    """What is known under these settings."""

    def __init__(self, settings: Settings) -> None:
        self._field = settings.field
        limits = settings.max_mb, settings.parser_seconds, settings.parser_mb
        self._reading = key_of(VERSION, settings.field, *limits, bool(settings.password))

    def known(self, suffixes: Mapping[str, str]) -> dict[str, Entry]:
        """What came of the files at these real paths that are as they were. Opens no file.

        Each was read as one of a suffix: that of the name, which may be a link's.
        """
        keys = {path: self.key(path, suffix) for path, suffix in suffixes.items()}
        entries, now = FILES.get_many(keys.values()), time.time()
        return {
            path: entry
            for path, key in keys.items()
            if (entry := entries.get(key)) is not None
            and not 0 < entry.until < now
            and entry.seen - max(entry.stamp.mtime_ns, entry.stamp.ctime_ns) >= _RACE_NS
            and stamp_of(path) == entry.stamp
        }

    def source(self, data: bytes, suffix: str) -> str:
        """The key in TEXTS of a file's text."""
        return key_of(VERSION, hashlib.sha256(data).hexdigest(), suffix, self._field)

    def key(self, path: str, suffix: str) -> str:
        """The key in FILES of the file at this real path."""
        return key_of(path, suffix, self._reading)


def stamp_of(path: str) -> Stamp | None:
    """The state of a regular file; None for what is not one."""
    with suppress(OSError, ValueError):
        return files.stamp_of(path) if os.path.isfile(path) else None
    return None
