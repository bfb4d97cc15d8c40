"""The cache of texts that were read from files, so that unchanged files are not opened again.

A file counts as unchanged if its path, inode, size and times are. If one of them changed, the file
is read, and a text that was made of the same bytes before is used. Entries of earlier states stay
until the cache is full. Texts for which a password was needed are not stored.
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

VERSION = 14  # of the parsers' output and of these entries
_RACE_NS = 2_000_000_000  # a file this young may change without a new time (guess)
_RETRY_AFTER_S = 86_400.0  # when a parser that failed at a file is tried again (guess)
_RETRY_NOTE = ", when it was last tried; ngt cache clear documents has it tried again"


@dataclass(frozen=True, slots=True)
class Entry:
    """The outcome of reading a file: the key of its text in TEXTS, or why it has none.

    Attributes:
        source: Key of the text; "" if there is none.
        reason: Why there is no text; "" if there is one.
        advice: What to do about it.
        until: When a failure expires, because the machine may have been to blame, in seconds since
            1970; 0.0 if never.
    """

    source: str
    reason: str = ""
    advice: str = ""
    until: float = 0.0

    @classmethod
    def of(cls, source: str, outcome: Extracted | Unreadable) -> "Entry | None":
        """Make the entry of an outcome; None if it must not be stored.

        Secret texts are not stored, nor failures for which the file is not to blame.
        """
        if isinstance(outcome, Extracted):
            return None if outcome.about.secret else cls(source)
        if not (outcome.lasting or isinstance(outcome, FailedParser)):
            return None
        until = 0.0 if outcome.lasting else time.time() + _RETRY_AFTER_S
        return cls(source, str(outcome), outcome.advice, until)

    @property
    def error(self) -> Unreadable | None:
        """Why there is no text; None if there is one."""
        if not self.reason:
            return None
        note = _RETRY_NOTE if self.until else ""
        return Unreadable(self.reason + note, self.advice)


FILES = Kind("files", Entry)  # by path, state, suffix, and the settings that decide the outcome
TEXTS = Kind("texts", Extracted)  # by a file's bytes, suffix, and settings that decide its text


def cached_entries(keys: Mapping[str, str]) -> dict[str, Entry]:
    """Look up files without opening them.

    Args:
        keys: The key of each file in FILES, by its real path; "" if it cannot be stored.

    Returns:
        The entries that have not expired, by real path.
    """
    stored = FILES.get_many(filter(None, keys.values()))
    now = time.time()
    entries: dict[str, Entry] = {}
    for path, key in keys.items():
        entry = stored.get(key)
        if entry is None:
            continue
        is_expired = 0 < entry.until < now
        if not is_expired:
            entries[path] = entry
    return entries


def settled_stamp(path: str) -> Stamp | None:
    """The stamp of a regular file that was not written just now; None for any other.

    A second write within the resolution of the clock would not change the times of a file.
    """
    stamp = stamp_of(path)
    if stamp is None:
        return None
    age_ns = time.time_ns() - max(stamp.mtime_ns, stamp.ctime_ns)
    return stamp if age_ns >= _RACE_NS else None


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a regular file; None if it is no such file."""
    with suppress(OSError, ValueError):
        return files.stamp_of(path) if os.path.isfile(path) else None
    return None
