"""What is known of files that were read, in the store, so that unchanged ones are not opened.

A file counts as unchanged if its size and times are. Else it is read, and the text that was made of
the same bytes before is taken. Texts for which a password was needed are not stored.
"""

import hashlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ngtcli.config import Settings
from ngtcli.documents.content import About, Extracted
from ngtcli.documents.parsers import FailedParser
from ngtcli.documents.text import Unreadable
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

VERSION = 10  # of the parsers' output and of these pieces
_RACE_NS = 2_000_000_000  # a file this young when it was read may change without a new time; guess
_TRIED_S = 86_400.0  # seconds after which a parser that failed at a file is tried again; guess
_TRY_AGAIN = ", when it was last tried; ngt cache clear documents has it tried again"
_FILES, _HELD = 1_000, 1_000_000  # files and characters of texts that are stored at once; guess
Stamp = tuple[int, int, int]  # size, modification and change time, all as the system has
NO_FILE: Stamp = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as it was read; with the stamp NO_FILE, one of which nothing is stored.

    `reason` and `advice` say why there is no text. `until` is when these end, in seconds since
    1970, as the machine may have been to blame; 0.0: they hold for good. `about` has no sections.
    """

    stamp: Stamp = NO_FILE
    seen: int = 0  # nanoseconds since 1970
    source: str = ""  # key of the text in TEXTS, "" for plain text
    about: About = About()
    characters: int = 0
    text: str = ""  # SHA-256 of the text
    reason: str = ""
    advice: str = ""
    until: float = 0.0

    def of(self, outcome: Extracted | Unreadable) -> "Entry":
        """This with what came of reading, if that is the file's own."""
        if isinstance(outcome, Extracted):
            about = replace(outcome.about, sections=())
            digest = hashlib.sha256(outcome.text.encode()).hexdigest()
            stamp = NO_FILE if about.secret else self.stamp
            return replace(
                self, stamp=stamp, about=about, characters=len(outcome.text), text=digest
            )
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
TOKENS = Kind("tokens", int)  # numbers of them, by text and tokenizer


class Catalog:
    """What is known under these settings; methods may be called from many threads."""

    def __init__(self, settings: Settings) -> None:
        self._field = settings.field
        limits = settings.max_mb, settings.parser_seconds, settings.parser_mb
        self._reading = key_of(VERSION, settings.field, *limits, bool(settings.password))
        self._entries, self._texts = dict[str, Entry](), dict[str, Extracted]()  # not stored yet
        self._held = 0  # characters of these texts

    def known(self, suffixes: Mapping[str, str]) -> dict[str, Entry]:
        """What came of the files at these real paths that are as they were. Opens no file.

        Each was read as one of a suffix: that of the name, which may be a link's.
        """
        keys = {path: self._key(path, suffix) for path, suffix in suffixes.items()}
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

    def note(self, path: str, suffix: str, entry: Entry, outcome: Extracted | Unreadable) -> None:
        """Have stored what came of the file at this real path, at the latest by `save`."""
        if entry.stamp == NO_FILE:
            return
        self._entries[self._key(path, suffix)] = entry
        if entry.source and isinstance(outcome, Extracted):
            self._texts[entry.source] = outcome
            self._held += len(outcome.text)
        if len(self._entries) >= _FILES or self._held >= _HELD:
            self.save()

    def save(self) -> None:
        """Store what was noted."""
        (entries, texts), self._held = (self._entries, self._texts), 0
        self._entries, self._texts = {}, {}
        TEXTS.put_many(texts)
        FILES.put_many(entries)

    def _key(self, path: str, suffix: str) -> str:
        return key_of(path, suffix, self._reading)


def stamp_of(path: str) -> Stamp | None:
    """Size and times of a regular file; None for what is not one."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
