"""Read the texts of files: read ahead, reuse stored texts, and keep the limits on size."""

import errno
import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.catalog import (
    FILES,
    TEXTS,
    VERSION,
    Entry,
    cached_entries,
    settled_stamp,
    stamp_of,
)
from ngtcli.documents.content import Extracted, ParserInput, markdown
from ngtcli.documents.find import STDIN, ListedFile, ocr_version, tessdata_folder
from ngtcli.documents.formats import HEAD, HTML, Format, format_of, suffix_of
from ngtcli.documents.parsers import Parsers
from ngtcli.documents.text import Unreadable, decode_with_warnings
from ngtcli.errors import InputError
from ngtcli.system import reporting
from ngtcli.system.files import key_of, read_bounded, read_stream
from ngtcli.words import counted, reason_of

ReadResult = Extracted | Unreadable  # the text of a file, or why it has none
_STATUS_INTERVAL_S = 0.3  # seconds between two status lines (guess)
_LOOKUP_SIZE = 256  # files that are looked up in the store at once (guess)
_AHEAD_PER_WORKER = 2  # files that are parsed before their texts are needed (guess)
_MARKDOWN_SUFFIXES = (".md", ".markdown")
_PRINTABLE = bytes(range(32, 256)) + b"\t\n\v\f\r"
_CHECK_FILE = "Check the file and its permissions."
_PIPE_OR_NAME = "Pipe a text in or name a file."
_RAISE_LIMIT = "Raise the limit with --set max_mb."
_ADVICE = {  # what to do, by the number of an OSError
    errno.EINVAL: "Name a file or a folder, or pipe a text in and name it -.",
    errno.EISDIR: "Name a file in it.",
    errno.ETIMEDOUT: "Start what writes to it first, or pipe its text in and name it -.",
}


class BoundedReader:
    """Reads files until `max_mb` megabytes (10^6 bytes) have been read in all."""

    def __init__(self, max_mb: int) -> None:
        self._limit_text = f"{max_mb} MB"
        self._max_bytes = max_mb * 1_000_000
        self._remaining = self._max_bytes

    def read(
        self, source: str | Path | IO[bytes], pipes: bool = False, links: bool = True
    ) -> bytes:
        """Read a stream or a file whole.

        Args:
            source: An open stream, or the path of a regular file.
            pipes: Whether the path may be a named pipe.
            links: Whether any part of the path may be a link.

        Raises:
            Unreadable: It cannot be read, or exceeds the limit by itself.
            InputError: All that was read exceeds the limit together.
        """
        try:
            if isinstance(source, str | Path):
                data = read_bounded(source, self._max_bytes, pipes, links=links)
            else:
                data = read_stream(source, self._max_bytes)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self._too_large() from None
            advice = _CHECK_FILE if isinstance(source, str | Path) else _PIPE_OR_NAME
            raise Unreadable(reason_of(error), _ADVICE.get(error.errno or 0, advice)) from None
        self.count(len(data))
        return data

    def count(self, size: int) -> None:
        """Count `size` bytes of a file, or characters of a text, as read.

        Raises:
            Unreadable: They exceed the limit by themselves.
            InputError: All that was counted exceeds the limit together.
        """
        if size > self._max_bytes:
            raise self._too_large()
        self._remaining -= size
        if self._remaining < 0:
            raise InputError(
                f"more than {self._limit_text} of text in total",
                hint=f"Name fewer files. {_RAISE_LIMIT}",
            )

    def _too_large(self) -> Unreadable:
        return Unreadable(f"more than {self._limit_text}", _RAISE_LIMIT)


class _ReadingStatus:
    """The status line while files are read: shown when it changes, and not too often."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._line = ""
        self._shown_at = time.monotonic()

    def show(self, done: int, ocr_pages: int) -> None:
        """Show how many files are done, and how many pages OCR has read."""
        pages = f", {counted(ocr_pages, 'page')} by OCR" if ocr_pages else ""
        line = f"Reading the documents: {done} of {self._total}{pages} …"
        now = time.monotonic()
        if line != self._line and now - self._shown_at > _STATUS_INTERVAL_S:
            self._line = line
            self._shown_at = now
            reporting.status(line)


class DocumentReader:
    """Reads files with parsers that keep running between calls, until `close`.

    Args:
        settings: How to read: limits, encoding, password, OCR.
        inside: Whether to follow no links below a folder, so that nobody can replace a listed file
            by a link that leads out of the folder.
    """

    def __init__(self, settings: Settings, inside: bool = False) -> None:
        self._settings = settings
        self._inside = inside
        reading = settings.reading
        # Part of every key in the store: all that decides the text of the same bytes.
        self._version_key = key_of(
            VERSION, reading.field, reading.encoding, reading.ocr, ocr_version(reading.ocr_language)
        )
        languages = tessdata_folder() if reading.ocr_language else ""
        self._parsers = Parsers(reading.parser_seconds, reading.parser_mb, languages)
        # One entry for each page that OCR has begun: several threads append, which is atomic.
        self._ocr_pages = list[None]()
        self._threads = ThreadPoolExecutor(self._parsers.size)

    def read(
        self,
        files: Collection[ListedFile],
        stdin: IO[bytes] | None = None,
        is_bounded: bool = True,
    ) -> Generator[tuple[ListedFile, ReadResult], None, None]:
        """Yield each file with its text, or with the reason why it has none, in order.

        Some files are read ahead. Plain text is not stored, because reading it from its file takes
        no longer than from the store.

        Args:
            files: The files, as `find` lists them.
            stdin: What STDIN stands for.
            is_bounded: Whether the limit on size holds for all texts together.

        Raises:
            InputError: The texts exceed the limit together, or nothing is piped in.
        """
        reader = BoundedReader(self._settings.reading.max_mb)
        shown = _ReadingStatus(len(files))
        done = 0

        def show_status() -> None:
            shown.show(done, len(self._ocr_pages))

        remaining = iter(files)
        while group := list(islice(remaining, _LOOKUP_SIZE)):
            for file, outcome in self._read_group(group, stdin, show_status):
                done += 1
                show_status()
                try:
                    if isinstance(outcome, Extracted) and is_bounded:
                        reader.count(len(outcome.text))
                except Unreadable as error:
                    outcome = error
                yield file, outcome

    def _key(self, file: ListedFile) -> str:
        """The key in FILES of a file in its present state; "" if it cannot be stored.

        That is so for what is not a regular file, and for one that was written just now. The suffix
        is that of the listed path, which may be a link.
        """
        state = settled_stamp(file.real)
        if not state:
            return ""
        reading = self._settings.reading
        limits = (
            reading.max_mb,
            reading.parser_seconds,
            reading.parser_mb,
            bool(reading.password),
        )
        return key_of(file.real, state, suffix_of(file.path), self._version_key, *limits)

    def _read_group(
        self, group: list[ListedFile], stdin: IO[bytes] | None, while_waiting: Callable[[], None]
    ) -> Iterator[tuple[ListedFile, ReadResult]]:
        """Yield the outcome of each file in order, and store what is new.

        Files that need a parser are read ahead in threads. Stored texts and plain texts are read
        only when it is their turn, since they take no time; so are pipes, because a thread would
        never end if nobody wrote to its pipe. `while_waiting` is called again and again while a
        parser runs.
        """
        keys = {file.real: self._key(file) for file in group if not _is_plain(file)}
        entries = cached_entries(keys)
        new_entries = dict[str, Entry]()
        # Only regular files have a stamp.
        ahead = {real for real in keys if real not in entries and stamp_of(real)}
        tasks = (self._threads.submit(self._outcome, file) for file in group if file.real in ahead)
        pending = deque(islice(tasks, _AHEAD_PER_WORKER * self._parsers.size))
        try:
            for file in group:
                if file.real in ahead:
                    while not wait([pending[0]], _STATUS_INTERVAL_S).done:
                        while_waiting()
                    text_key, outcome = pending.popleft().result()
                    pending.extend(islice(tasks, 1))
                else:
                    text_key, outcome = self._outcome(file, entries.get(file.real), stdin)
                file_key = keys.get(file.real)
                if text_key and file_key:
                    entry = Entry.of(text_key, outcome)
                    if entry is not None:
                        new_entries[file_key] = entry
                yield file, outcome
        finally:
            FILES.put_many(new_entries)

    def _outcome(
        self, file: ListedFile, entry: Entry | None = None, stdin: IO[bytes] | None = None
    ) -> tuple[str, ReadResult]:
        """Read one file.

        Args:
            file: The file to read.
            entry: What the store knows of it.
            stdin: What STDIN stands for.

        Returns:
            The key of its text in TEXTS, and its text or why it has none. The key is "" for plain
            text, which is not stored, and for what `entry` already knows.

        Raises:
            InputError: Standard input is to be read, and there is none.
        """
        if entry is not None:
            stored = entry.error or TEXTS.get(entry.source)
            if stored:
                return "", stored
        opened = stdin if file.real == STDIN else file.path
        is_storable = stamp_of(file.real) is not None
        if opened is None:
            raise InputError("standard input: nothing is piped in", hint=_PIPE_OR_NAME)
        suffix = suffix_of(file.path)
        encoding = self._settings.reading.encoding
        text_key = ""
        try:
            links = file.is_explicit or not self._inside or file.real == STDIN
            reader = BoundedReader(self._settings.reading.max_mb)
            data = reader.read(opened if links else file.real, file.is_explicit, links)
            file_format = format_of(suffix, data[:HEAD]) if data else None
            if file_format is None:
                text, warnings = decode_with_warnings(data, encoding)
                extracted = markdown(text) if suffix in _MARKDOWN_SUFFIXES else Extracted(text)
                about = replace(extracted.about, warnings=warnings)
                return "", replace(extracted, about=about)
            text_key = key_of(self._version_key, hashlib.sha256(data).hexdigest(), suffix)
            return text_key, self._parse(file_format, data, suffix, text_key, is_storable)
        except Unreadable as error:
            return text_key, error

    def _parse(
        self, file_format: Format, data: bytes, suffix: str, text_key: str, is_storable: bool
    ) -> Extracted:
        """Take the text of a file from the store, or parse it.

        Args:
            file_format: A format other than plain text.
            data: The bytes of the file.
            suffix: The suffix of its name, which some formats depend on.
            text_key: Its key in TEXTS.
            is_storable: Whether to store a new text, unless a password was needed for it.

        Raises:
            Unreadable: The file is damaged, too large, or of another format than its name says.
        """
        _check_begin(file_format, data[:HEAD])
        stored = TEXTS.get(text_key)
        if stored is not None:
            return stored
        reading = self._settings.reading
        source = ParserInput(
            data=data,
            suffix=suffix,
            max_bytes=reading.max_mb * 1_000_000,
            password=reading.password,
            field=reading.field,
            encoding=reading.encoding,
            ocr=reading.ocr,
            ocr_language=reading.ocr_language,
            on_page=lambda: self._ocr_pages.append(None),
        )
        extracted = self._parsers.extract(file_format, source)
        if is_storable and not extracted.about.secret:
            TEXTS.put(text_key, extracted)
        return extracted

    def close(self) -> None:
        """Stop the parsers and threads."""
        self._parsers.close()
        self._threads.shutdown(wait=True, cancel_futures=True)


def _is_plain(file: ListedFile) -> bool:
    """Whether the name says plain text; the first bytes may still say something else."""
    return file.real == STDIN or format_of(suffix_of(file.path), b"") is None


def _check_begin(file_format: Format, head: bytes) -> None:
    """Raise Unreadable if a file begins like plain text or HTML, and its name says otherwise."""
    likely = format_of("", head)
    if file_format.is_text or likely not in (None, HTML) or b"%PDF-" in head:
        return
    has_only_printable = not head.translate(None, _PRINTABLE)
    if has_only_printable:
        kind, suffix = ("HTML", ".html") if likely else ("plain text", ".txt")
        raise Unreadable(
            f"not {file_format.noun} (it looks like {kind})",
            f"If it is, rename it to end in {suffix}.",
        )
