"""What is known of files that were read: kept in the cache, so that unchanged ones are not read.

A manifest for each folder that is named holds for each file its size, times and hash, and what
came of it; the texts that parsers made lie with it under the hash of the file's bytes. A file
counts as unchanged if its size and times are, else if its hash is. Texts for which a password was
needed are not kept.
"""

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ngtcli.config import Settings
from ngtcli.documents.content import About, Extracted
from ngtcli.documents.parsers import FailedParser
from ngtcli.documents.text import Unreadable
from ngtcli.errors import reason_of
from ngtcli.system.files import DamagedFileError, home, key_of, read_json, write_json
from ngtcli.system.json_form import from_json

VERSION = 7  # of the parsers' output and of these files
_MANIFEST_BYTES = 1_000_000_000  # largest manifest that is read, of about 3 million files; guess
_RUN_NS = time.time_ns()  # when this run began
_TRY_AGAIN = "in two runs; ngt docs clear has it tried again"
_RACE_NS = 2_000_000_000  # a file this young when it was read may change without a new time; guess


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as it was read: `stamp` is size, modification and change time, all as the system has.

    `reason` and `advice` say why there is no text; `once`: the parser failed, and another run tries
    it again, since the machine may have been to blame. `text` is the hash of the text, `tokens` the
    number of tokens for each tokenizer's key; `about` has no sections.
    """

    stamp: tuple[int, int, int] = (0, 0, 0)
    seen: int = 0  # nanoseconds since 1970
    hash: str = ""
    way: str = ""
    about: About = About("")
    characters: int = 0
    text: str = ""
    reason: str = ""
    advice: str = ""
    once: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)

    def described(self, found: Extracted) -> "Entry":
        """This entry with what is known of its text."""
        about = replace(found.about, sections=())
        text = hashlib.sha256(found.text.encode()).hexdigest()
        return replace(self, about=about, characters=len(found.text), text=text)

    def checked(self) -> "Entry":
        """This entry of a file that has a text. Raises Unreadable for one that has none."""
        if self.reason:
            raise Unreadable(self.reason, self.advice)
        return self


class Catalog:
    """The manifest of one folder, and the texts; methods may be called from many threads."""

    def __init__(self, root: str, settings: Settings) -> None:
        self._path = folder() / f"{key_of(root)}.json"
        self._root, self._field = root, settings.field
        # What else decides what comes of a file; a way that failed is tried again with another.
        limits = settings.max_mb, settings.parser_seconds, settings.parser_mb
        self._way = key_of(VERSION, settings.field, *limits, bool(settings.password))
        self._entries: dict[str, Entry] = {}
        self._changed = False
        self._lock = threading.Lock()
        self.remark = ""  # what is wrong with the cache, to be told
        self._load()

    def _load(self) -> None:
        try:
            body = read_json(self._path, _MANIFEST_BYTES)
            if body.get("version") != VERSION or body.get("root") != self._root:
                raise DamagedFileError("another version")
            self._entries = from_json(Mapping[str, Entry], body["files"])
        except FileNotFoundError:
            pass
        except (DamagedFileError, KeyError, ValueError, TypeError, AttributeError) as error:
            self.remark = f"what was known of the files is lost, and they are read again: {error}"

    def known(self, path: str) -> Entry | None:
        """What came of the file at this real path, if it is as it was. Reads no file."""
        entry = self._entries.get(path)
        if entry is None or entry.way != self._way or (entry.once and entry.seen < _RUN_NS):
            return None
        is_young = entry.seen - max(entry.stamp[1:]) < _RACE_NS
        return entry if not is_young and stamp_of(path) == entry.stamp else None

    def extracted(
        self, path: str, suffix: str, read: Callable[[], bytes], parse: Callable[[bytes], Extracted]
    ) -> Extracted:
        """The text of a file: from the cache, or else what `parse` makes of what `read` gives.

        Plain text is not copied into the cache. Raises Unreadable, also at once for a file that
        could not be read before and is unchanged.
        """
        entry = self.known(path)
        if entry and (kept := self._kept(entry.checked().hash, suffix)):
            return kept
        stamp, seen = stamp_of(path), time.time_ns()
        data = read()
        if stamp is None:
            return parse(data)
        start = Entry(stamp, seen, hashlib.sha256(data).hexdigest(), self._way)
        kept = self._kept(start.hash, suffix)
        try:
            found = kept or parse(data)
        except Unreadable as error:
            if not error.lasting and not isinstance(error, FailedParser):
                raise
            failed = self._failed(path, start, error)
            self._put(path, failed)
            raise Unreadable(failed.reason, failed.advice) from None
        entry, before = start.described(found), self._entries.get(path)
        if before and before.text == entry.text:
            entry = replace(entry, tokens=before.tokens)
        self._put(path, entry)
        if not kept and not found.about.secret and found.about.format != "text":
            try:
                write_json(self._text_path(start.hash, suffix), asdict(found))
            except OSError as error:
                self.remark = f"a text is not kept: {reason_of(error)}"
        return found

    def _failed(self, path: str, start: Entry, error: Unreadable) -> Entry:
        """The entry of a file that has no text. What a parser failed at lasts from the second run.

        The first is one before this that had the same bytes and limits.
        """
        failed = replace(start, reason=str(error), advice=error.advice, once=not error.lasting)
        before = self._entries.get(path)
        if failed.once and before and before.once and before.seen < _RUN_NS:
            if (before.hash, before.way) == (start.hash, start.way):
                return replace(failed, reason=f"{error}, {_TRY_AGAIN}", once=False)
        return failed

    def _put(self, path: str, entry: Entry) -> None:
        with self._lock:
            self._entries[path] = entry
            self._changed = True

    def entry(self, path: str) -> Entry | None:
        """What is recorded of the file at this real path, however it is now."""
        return self._entries.get(path)

    def with_tokens(self, path: str, entry: Entry, tokens: Mapping[str, int]) -> Entry:
        """`entry` with these numbers of tokens, which are recorded if the file is."""
        entry = replace(entry, tokens=tokens)
        if path in self._entries:
            self._put(path, entry)
        return entry

    def keep_only(self, paths: set[str]) -> None:
        """Forget all files but these."""
        if gone := self._entries.keys() - paths:
            self._entries = {p: e for p, e in self._entries.items() if p not in gone}
            self._changed = True

    def save(self) -> None:
        """Write the manifest if anything changed; where that fails `remark` says why."""
        if not self._changed:
            return
        files = {
            path: {**_fields(entry), "about": _fields(entry.about)}
            for path, entry in self._entries.items()
            if not entry.about.secret
        }
        try:
            write_json(self._path, {"version": VERSION, "root": self._root, "files": files})
            self._changed = False
        except (OSError, ValueError) as error:
            self.remark = f"what was read is not kept: {reason_of(error)}"

    def take_remark(self) -> str:
        """`remark`, which is then forgotten."""
        remark, self.remark = self.remark, ""
        return remark

    def _text_path(self, digest: str, suffix: str) -> Path:
        key = key_of(VERSION, digest, suffix, self._field)
        return folder() / "texts" / key[:2] / f"{key}.json"

    def _kept(self, digest: str, suffix: str) -> Extracted | None:
        """The text that was kept; None where there is none or it is damaged."""
        path = self._text_path(digest, suffix)
        try:
            body = read_json(path, _MANIFEST_BYTES)
            text: str = from_json(str, body["text"])
            return Extracted(text, About.from_json(body["about"], len(text)))
        except (OSError, DamagedFileError, KeyError, ValueError):
            return None


def folder() -> Path:
    """The cache folder of what is known of documents. Raises UsageError as `home` does."""
    return home("cache") / "documents"


def _fields(value: Entry | About) -> dict[str, object]:
    """As `asdict`, which takes ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


def stamp_of(path: str) -> tuple[int, int, int] | None:
    """Size and times of a regular file; None for what is not one."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
