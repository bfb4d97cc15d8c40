"""What is known of files that were read, in the store, so that unchanged ones are not opened.

A file counts as unchanged if its size and times are. Else it is read, and the text that was made of
the same bytes before is taken. Texts for which a password was needed are not stored.
"""

import hashlib
import os
import queue
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ngtcli.config import Settings
from ngtcli.documents.content import About, Extracted
from ngtcli.documents.parsers import FailedParser
from ngtcli.documents.text import Unreadable
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

VERSION = 9  # of the parsers' output and of these pieces
SMALL = 65_536  # most characters of a plain text that is stored, not read from its file; guess
_RACE_NS = 2_000_000_000  # a file this young when it was read may change without a new time; guess
_TRIED_S = 86_400.0  # seconds after which a parser that failed at a file is tried again; guess
_TRY_AGAIN = ", when it was last tried; ngt docs clear has it tried again"
Stamp = tuple[int, int, int]  # size, modification and change time, all as the system has


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as it was read. `reason` and `advice` say why there is no text.

    `until` is when these end, in seconds since 1970, as the machine may have been to blame; 0.0:
    they hold for good. `about` has no sections.
    """

    stamp: Stamp = (0, 0, 0)
    seen: int = 0  # nanoseconds since 1970
    about: About = About()
    characters: int = 0
    source: str = ""  # key of the text in TEXTS
    text: str = ""  # SHA-256 of the text
    reason: str = ""
    advice: str = ""
    until: float = 0.0

    def described(self, text: Extracted) -> "Entry":
        """This with what is known of its text."""
        about = replace(text.about, sections=())
        digest = hashlib.sha256(text.text.encode()).hexdigest()
        return replace(self, about=about, characters=len(text.text), text=digest)

    @property
    def error(self) -> Unreadable | None:
        """Why there is no text; None where there is one."""
        last = _TRY_AGAIN if self.until else ""
        return Unreadable(self.reason + last, self.advice) if self.reason else None


FILES = Kind("files", Entry)  # by path, and settings that decide what comes of a file
TEXTS = Kind("texts", Extracted)  # by a file's bytes, suffix, and settings that decide its text
TOKENS = Kind("tokens", int)  # numbers of them, by text and tokenizer


class Catalog:
    """What is known under these settings; methods may be called from many threads."""

    def __init__(self, settings: Settings) -> None:
        self._field = settings.field
        limits = settings.max_mb, settings.parser_seconds, settings.parser_mb
        self._reading = key_of(VERSION, settings.field, *limits, bool(settings.password))
        self._new: queue.SimpleQueue[tuple[str, Entry, Extracted | None]] = queue.SimpleQueue()

    def known(self, paths: Iterable[str]) -> dict[str, Entry]:
        """What came of the files at these real paths that are as they were. Opens no file."""
        keys = {path: self._key(path) for path in paths}
        entries, now = FILES.get_many(keys.values()), time.time()
        return {
            path: entry
            for path, key in keys.items()
            if (entry := entries.get(key)) is not None
            and not 0 < entry.until < now
            and entry.seen - max(entry.stamp[1:]) >= _RACE_NS
            and stamp_of(path) == entry.stamp
        }

    def source(self, data: bytes, suffix: str) -> str:
        """The key in TEXTS of a file's text."""
        return key_of(VERSION, hashlib.sha256(data).hexdigest(), suffix, self._field)

    def add(self, path: str, entry: Entry, text: Extracted) -> None:
        """Note the text of a file; `entry` has its stamp and source. Both are stored by `save`."""
        if text.about.secret:
            return
        is_small = len(text.text) <= SMALL
        if not is_small and text.about.format != "text":  # at once, so that it is not held
            TEXTS.put(entry.source, text)
        self._new.put((self._key(path), entry.described(text), text if is_small else None))

    def add_failure(self, path: str, entry: Entry, error: Unreadable) -> None:
        """Note why a file has no text, if that is the file's fault."""
        if error.lasting or isinstance(error, FailedParser):
            until = 0.0 if error.lasting else time.time() + _TRIED_S
            failed = replace(entry, reason=str(error), advice=error.advice, until=until)
            self._new.put((self._key(path), failed, None))

    def save(self) -> None:
        """Store what was noted."""
        new = [self._new.get() for _ in range(self._new.qsize())]
        TEXTS.put_many({entry.source: text for _, entry, text in new if text is not None})
        FILES.put_many({key: entry for key, entry, _ in new})

    def _key(self, path: str) -> str:
        return key_of(path, self._reading)


def stamp_of(path: str) -> Stamp | None:
    """Size and times of a regular file; None for what is not one."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
