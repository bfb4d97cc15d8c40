"""The texts of files: the one loop that reads them, what is known of them, and their bounds."""

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
from ngtcli.documents.catalog import FILES, TEXTS, VERSION, Entry, known, settled, stamp_of
from ngtcli.documents.content import Extracted, Source, markdown
from ngtcli.documents.find import STDIN, Found, recognizer, tessdata
from ngtcli.documents.formats import HEAD, HTML, Format, format_of, suffix_of
from ngtcli.documents.parsers import Parsers
from ngtcli.documents.text import Unreadable, decoded
from ngtcli.errors import InputError
from ngtcli.system.files import key_of, read_bounded, read_stream
from ngtcli.words import counted, reason_of

Outcome = Extracted | Unreadable  # a file's text, or why it has none
_INTERVAL_S = 0.3  # between two status lines; guess
_GROUP = 256  # files of which is asked at once what is known; guess
_AHEAD = 2  # files a worker that are read before their texts are asked for; guess
_MARKDOWN = (".md", ".markdown")
_PRINTED = bytes(range(32, 256)) + b"\t\n\v\f\r"
_CHECK = "Check the file and its permissions."
_PIPE = "Pipe a text in or name a file."
_RAISE_BOUND = "Raise the bound with --set max_mb."
_ADVICE = {
    errno.EINVAL: "Name a file or a folder, or pipe a text in and name it -.",
    errno.EISDIR: "Name a file in it.",
    errno.ETIMEDOUT: "Start what writes to it first, or pipe its text in and name it -.",
}


class Reader:
    """Reads at most `max_mb` megabytes (10^6 bytes) in all."""

    def __init__(self, max_mb: int) -> None:
        self._bound, self._most = f"{max_mb} MB", max_mb * 1_000_000  # bytes
        self._left = self._most

    def read(
        self, source: str | Path | IO[bytes], pipes: bool = False, links: bool = True
    ) -> bytes:
        """The bytes of a stream, a regular file, or with `pipes` of a pipe.

        Without `links` no part of a file's full path may be one.

        Raises Unreadable if it cannot be read; else as `count`.
        """
        try:
            if isinstance(source, str | Path):
                data = read_bounded(source, self._most, pipes, links=links)
            else:
                data = read_stream(source, self._most)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self._too_large() from None
            advice = _CHECK if isinstance(source, str | Path) else _PIPE
            raise Unreadable(reason_of(error), _ADVICE.get(error.errno or 0, advice)) from None
        self.count(len(data))
        return data

    def count(self, size: int) -> None:
        """Count bytes, or the characters of a text.

        Raises Unreadable where it is more than the bound by itself; InputError for too much in all.
        """
        if size > self._most:
            raise self._too_large()
        self._left -= size
        if self._left < 0:
            what = f"more than {self._bound} of text in all"
            raise InputError(what, hint=f"Name less. {_RAISE_BOUND}")

    def _too_large(self) -> Unreadable:
        return Unreadable(f"more than {self._bound}", _RAISE_BOUND)


class Documents:
    """Reads files as `settings` say; `close` ends what is still running.

    It may stay open for many loads, since parsers keep running. `inside`: of a file in a folder
    what is opened is the path that was found to lie in it, and no link that came there meanwhile.
    """

    def __init__(self, settings: Settings, inside: bool = False) -> None:
        self._settings, self._inside = settings, inside
        language = settings.reading.ocr_language
        how = VERSION, settings.reading.field, settings.reading.encoding, settings.reading.ocr
        self._how = key_of(*how, recognizer(language))
        languages = tessdata() if language else ""
        self._parsers = Parsers(
            settings.reading.parser_seconds, settings.reading.parser_mb, languages
        )
        self._pages = list[None]()  # those whose text is recognized
        self._threads = ThreadPoolExecutor(self._parsers.size)

    def read(
        self,
        found: Collection[Found],
        stdin: IO[bytes] | None = None,
        status: Callable[[str], None] = lambda _: None,
        is_bounded: bool = True,
    ) -> Generator[tuple[Found, Outcome], None, None]:
        """The text of each file in order, or why it has none; some are read ahead.

        Raises InputError where they are larger than the bound in all, if there `is_bounded`, and
        where nothing is piped in. Plain text is not stored: to take it from the store takes as long
        as from its file.
        """
        reader, rest, done = Reader(self._settings.reading.max_mb), iter(found), 0
        said = "", time.monotonic()

        def tell() -> None:
            """Show how far it is, if that is new and some time has passed."""
            nonlocal said
            pages = f", {counted(len(self._pages), 'page')} by OCR" * bool(self._pages)
            line = f"Reading the documents: {done} of {len(found)}{pages} …"
            if line != said[0] and time.monotonic() - said[1] > _INTERVAL_S:
                said = line, time.monotonic()
                status(line)

        while group := list(islice(rest, _GROUP)):
            for one, outcome in self._each(group, stdin, tell):
                done += 1
                tell()
                try:
                    if isinstance(outcome, Extracted) and is_bounded:
                        reader.count(len(outcome.text))
                except Unreadable as error:
                    outcome = error
                yield one, outcome

    def _key(self, one: Found) -> str:
        """The key in FILES of a file in its state, read as of its suffix, which may be a link's.

        "" for what is no file, or was written just now.
        """
        s, state = self._settings, settled(one.real)
        limits = (
            s.reading.max_mb,
            s.reading.parser_seconds,
            s.reading.parser_mb,
            bool(s.reading.password),
        )
        return key_of(one.real, state, suffix_of(one.path), self._how, *limits) if state else ""

    def _each(
        self, group: list[Found], stdin: IO[bytes] | None, during: Callable[[], None]
    ) -> Iterator[tuple[Found, Outcome]]:
        """What comes of each file in order, and is stored; those that are parsed are read ahead.

        What is known, plain text and pipes are read when they are asked for: the first two take no
        time, and if nobody writes to a pipe, a thread would not end. `during` is called in between.
        """
        keys = {one.real: self._key(one) for one in group if not _is_plain(one)}
        entries, new = known(keys), dict[str, Entry]()
        ahead = {real for real in keys if real not in entries and stamp_of(real)}
        threads = (self._threads.submit(self._outcome, one) for one in group if one.real in ahead)
        waiting = deque(islice(threads, _AHEAD * self._parsers.size))
        try:
            for one in group:
                if one.real in ahead:
                    while not wait([waiting[0]], _INTERVAL_S).done:
                        during()
                    source, outcome = waiting.popleft().result()
                    waiting.extend(islice(threads, 1))
                else:
                    source, outcome = self._outcome(one, entries.get(one.real), stdin)
                key = source and keys.get(one.real)
                if key and (entry := Entry.of(source, outcome)):
                    new[key] = entry
                yield one, outcome
        finally:
            FILES.put_many(new)

    def _outcome(
        self, one: Found, known: Entry | None = None, stdin: IO[bytes] | None = None
    ) -> tuple[str, Outcome]:
        """What comes of a file, and the key of its text in TEXTS if that is parsed, "" if not.

        Raises InputError for no stdin.
        """
        if known and (of_known := known.error or TEXTS.get(known.source)):
            return "", of_known
        opened, suffix, source = stdin if one.real == STDIN else one.path, suffix_of(one.path), ""
        is_kept = stamp_of(one.real) is not None
        if opened is None:
            raise InputError("standard input: nothing is piped in", hint=_PIPE)
        try:
            follows = one.outright or not self._inside or one.real == STDIN
            source_file = opened if follows else one.real
            data = Reader(self._settings.reading.max_mb).read(source_file, one.outright, follows)
            form = format_of(suffix, data[:HEAD]) if data else None
            if form is None:
                text, warnings = decoded(data, self._settings.reading.encoding)
                read = markdown(text) if suffix in _MARKDOWN else Extracted(text)
                return "", replace(read, about=replace(read.about, warnings=warnings))
            source = key_of(self._how, hashlib.sha256(data).hexdigest(), suffix)
            return source, self._parsed(form, data, suffix, source, is_kept)
        except Unreadable as error:
            return source, error

    def _parsed(self, form: Format, data: bytes, suffix: str, key: str, is_kept: bool) -> Extracted:
        """The text of a file of a format other than plain text, stored if it `is_kept`.

        Raises Unreadable.
        """
        _check_begin(form, data[:HEAD])
        if (text := TEXTS.get(key)) is None:
            settings = self._settings
            source = Source(
                data=data,
                suffix=suffix,
                most=settings.reading.max_mb * 1_000_000,
                password=settings.reading.password,
                field=settings.reading.field,
                encoding=settings.reading.encoding,
                ocr=settings.reading.ocr,
                ocr_language=settings.reading.ocr_language,
                on_page=lambda: self._pages.append(None),
            )
            text = self._parsers.extract(form, source)
            if is_kept and not text.about.secret:
                TEXTS.put(key, text)
        return text

    def close(self) -> None:
        """End the workers."""
        self._parsers.close()
        self._threads.shutdown(wait=True, cancel_futures=True)


def _is_plain(one: Found) -> bool:
    """Whether it is plain text by its name; its first bytes may say something else."""
    return one.real == STDIN or format_of(suffix_of(one.path), b"") is None


def _check_begin(form: Format, head: bytes) -> None:
    """Raise Unreadable where what begins like this is plain text or HTML by another name."""
    looks = format_of("", head)
    if form.is_text or looks not in (None, HTML) or b"%PDF-" in head:
        return
    if not head.translate(None, _PRINTED):
        kind, suffix = ("HTML", ".html") if looks else ("plain text", ".txt")
        what = f"not {form.what} (it looks like {kind})"
        raise Unreadable(what, f"If it is, let its name end in {suffix}.")
