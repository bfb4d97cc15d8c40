"""The texts of files: the one loop that reads them, what is known of them, and their bounds."""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Generic, TypeVar

from ngtcli.config import Settings
from ngtcli.documents.catalog import SMALL, TEXTS, TOKENS, Catalog, Entry, stamp_of
from ngtcli.documents.content import Extracted, Source, markdown
from ngtcli.documents.find import STDIN, Found
from ngtcli.documents.formats import HEAD, HTML, Format, format_of, suffix_of
from ngtcli.documents.parsers import Parsers
from ngtcli.documents.text import Unreadable, decode_text, utf8
from ngtcli.errors import InputError, reason_of
from ngtcli.system import store
from ngtcli.system.files import key_of, read_bounded, read_stream

Item = TypeVar("Item")
Result = TypeVar("Result")
_GROUP = 256  # files of which is asked at once what is known; guess
_AHEAD = 64  # files that are read before what is in them is asked for; guess
_SAVE_S = 1.0  # after which what was read is stored; guess
_MARKDOWN = (".md", ".markdown")
_PRINTED = bytes(range(32, 256)) + b"\t\n\v\f\r"
_CHECK = "Check the file and its permissions."
_PIPE = "Pipe a text in or name a file."
_RAISE_BOUND = "Raise the bound with --max-mb."
_ADVICE = {
    errno.EINVAL: "Name a file or a folder, or pipe a text in and name it -.",
    errno.EISDIR: "Name a file in it.",
    errno.ETIMEDOUT: "Start what writes to it first, or pipe its text in and name it -.",
}


class Reader:
    """Reads at most `max_mb` megabytes (10^6 bytes) in all; see `read` for what is not counted."""

    def __init__(self, max_mb: int) -> None:
        self._bound, self.most = f"{max_mb} MB", max_mb * 1_000_000  # bytes
        self._left, self._lock = self.most, threading.Lock()

    def read(self, source: str | Path | IO[bytes], pipes: bool = False) -> bytes:
        """The bytes of a stream, a regular file, or with `pipes` of a pipe; they are not counted.

        Raises Unreadable if it cannot be read or is larger than the bound by itself. May be called
        from any thread, as `count`.
        """
        try:
            if isinstance(source, str | Path):
                return read_bounded(source, self.most, pipes)
            return read_stream(source, self.most)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise Unreadable(f"more than {self._bound}", _RAISE_BOUND) from None
            advice = _CHECK if isinstance(source, str | Path) else _PIPE
            raise Unreadable(reason_of(error), _ADVICE.get(error.errno or 0, advice)) from None

    def file(self, source: str | Path | IO[bytes], pipes: bool = False) -> bytes:
        """As `read`, and counted. Raises InputError for more than what is left of the bound."""
        data = self.read(source, pipes)
        self.count(len(data))
        return data

    def count(self, size: int) -> None:
        """Count bytes, or the characters of a text.

        Raises Unreadable where it is more than the bound by itself; InputError for too much in all,
        from then on always.
        """
        if size > self.most:
            raise Unreadable(f"more than {self._bound}", _RAISE_BOUND)
        with self._lock:
            self._left = self._left - size if size <= self._left else -1
        if self._left < 0:
            what = f"more than {self._bound} of text in all"
            raise InputError(what, f"Name less. {_RAISE_BOUND}")

    def stop(self) -> None:
        """Let nothing more be counted."""
        self._left = -1


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """How tokens are counted; `key` stands for the tokenizer in the cache."""

    key: str
    count: Callable[[str], int]

    def key_of(self, entry: Entry) -> str:
        """The key in TOKENS of a file's text."""
        return key_of(entry.text, self.key)


@dataclass(frozen=True, slots=True)
class Row:
    """A document: its name in prompts, and what was read of it. `dropped` is as in `About`."""

    name: str
    path: str
    format: str
    pages: int
    characters: int
    tokens: int
    dropped: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Reading(Generic[Result]):
    """One way through files: what is made of each text, in any thread, and what counts them."""

    take: Callable[[Extracted], Result]
    reader: Reader
    stdin: IO[bytes] | None = None


class Documents:
    """Reads files as `settings` say; `close` ends what is still running.

    It may stay open for many loads, since parsers keep running.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._parsers = Parsers(settings.parser_seconds, settings.parser_mb)
        self._threads = ThreadPoolExecutor(self._parsers.size)
        self._catalog = Catalog(settings)
        self.opened = 0  # files of which nothing was known

    def read(
        self, found: Iterable[Found], stdin: IO[bytes] | None = None
    ) -> Generator[tuple[Found, Extracted | Unreadable], None, None]:
        """The text of each file in order, or why it has none; some are read ahead.

        Raises InputError where they are larger than the bound in all, and where nothing is piped
        in. It is to be closed, and so is `about`.
        """
        reader = Reader(self._settings.max_mb)

        def counted(text: Extracted) -> Extracted:
            reader.count(len(text.text))
            return text

        return self._each(found, _Reading(counted, reader, stdin))

    def about(
        self, found: Iterable[Found], counter: TokenCounter
    ) -> Generator[tuple[Found, Row | Unreadable], None, None]:
        """What is known of each file, or why it has no text; rows have no names yet.

        No file that is unchanged is opened, and there is no bound on all.
        """
        counting = threading.Lock()  # not all tokenizers may be used by several threads

        def described(text: Extracted) -> tuple[Entry, int]:
            with counting:
                return Entry().described(text), counter.count(text.text)

        for group in _groups(found):
            known = self._catalog.known(one.real for one in group)
            counts = TOKENS.get_many(counter.key_of(entry) for entry in known.values())
            told = {r: e for r, e in known.items() if e.reason or counter.key_of(e) in counts}
            rest, new = [one for one in group if one.real not in told], dict[str, int]()
            results = self._each(rest, _Reading(described, Reader(self._settings.max_mb)))
            try:
                with closing(results):
                    for one in group:
                        if (entry := told.get(one.real)) is None:
                            result = next(results)[1]
                            if isinstance(result, Unreadable):
                                yield one, result
                                continue
                            entry, tokens = result
                            counts[counter.key_of(entry)] = new[counter.key_of(entry)] = tokens
                        yield one, entry.error or _row(one, entry, counts[counter.key_of(entry)])
            finally:
                TOKENS.put_many(new)

    def _each(
        self, found: Iterable[Found], reading: _Reading[Result]
    ) -> Generator[tuple[Found, Result | Unreadable], None, None]:
        """What is made of each file in order, or why it has no text; some are read ahead."""
        saved, begun = time.monotonic(), self._begun(found, reading)
        waiting = deque(islice(begun, _AHEAD))
        try:
            while waiting:
                one, text = waiting.popleft()
                result: Result | Unreadable
                try:
                    result = text()
                except Unreadable as error:
                    result = error
                if time.monotonic() - saved > _SAVE_S:
                    self._catalog.save()
                    saved = time.monotonic()
                yield one, result
                waiting.extend(islice(begun, 1))
        finally:
            reading.reader.stop()
            self._catalog.save()

    def _begun(
        self, found: Iterable[Found], reading: _Reading[Result]
    ) -> Iterator[tuple[Found, Callable[[], Result]]]:
        """Each file with what gives its result: at once where it is known, or from a thread.

        A pipe and the like are read when they are asked for: if nobody writes to one, a thread
        would not end.
        """
        for group in _groups(found):
            known = self._catalog.known(one.real for one in group)
            texts = TEXTS.get_many(e.source for e in known.values() if e.characters <= SMALL)
            for one in group:
                entry = known.get(one.real)
                self.opened += entry is None
                if entry and (entry.reason or entry.source in texts):
                    yield one, partial(_taken, entry, texts, reading)
                elif one.real != STDIN and stamp_of(one.real):
                    yield one, self._threads.submit(self._made, one, entry, reading).result
                else:
                    yield one, partial(self._piped, one, reading)

    def _piped(self, one: Found, reading: _Reading[Result]) -> Result:
        """What is made of standard input, or of a pipe. Raises Unreadable and InputError."""
        if one.real == STDIN and reading.stdin is None:
            raise InputError("standard input: nothing is piped in", _PIPE)
        source = reading.stdin if one.real == STDIN and reading.stdin else one.path
        return reading.take(self._parsed(one, reading.reader.read(source, one.outright)))

    def _made(self, one: Found, known: Entry | None, reading: _Reading[Result]) -> Result:
        """What is made of a regular file, whose text is noted in the catalog. Raises Unreadable."""
        reading.reader.count(0)  # raises where there is too much already
        text = TEXTS.get(known.source) if known else None
        if text is None:
            entry = Entry(stamp_of(one.real) or (0, 0, 0), time.time_ns())
            data = reading.reader.read(one.path)
            entry = replace(entry, source=self._catalog.source(data, suffix_of(one.path)))
            try:
                text = self._parsed(one, data, entry.source)
            except Unreadable as error:
                self._catalog.add_failure(one.real, entry, error)
                raise
            self._catalog.add(one.real, entry, text)
        return reading.take(text)

    def _parsed(self, one: Found, data: bytes, source: str = "") -> Extracted:
        """The text of a file's bytes, or the one stored under `source`. Raises Unreadable."""
        suffix = suffix_of(one.path)
        form = format_of(suffix, data[:HEAD]) if data else None
        if form is None:
            text = decode_text(data)
            return markdown(text) if suffix in _MARKDOWN else Extracted(text)
        _check_begin(form, data[:HEAD])
        settings = self._settings
        return TEXTS.get(source) or self._parsers.extract(
            form,
            Source(
                data=data,
                suffix=suffix,
                most=settings.max_mb * 1_000_000,
                password=settings.password,
                field=settings.field,
            ),
        )

    def remarks(self) -> list[str]:
        """What is wrong with the store, each once."""
        return [remark] if (remark := store.take_remark()) else []

    def close(self) -> list[str]:
        """Store what is known and end the workers; `remarks` that nobody took."""
        self._parsers.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._catalog.save()
        return self.remarks()


def _groups(files: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(files)
    while group := list(islice(rest, _GROUP)):
        yield group


def _taken(entry: Entry, texts: Mapping[str, Extracted], reading: _Reading[Result]) -> Result:
    """What is made of a file that is known. Raises Unreadable."""
    if error := entry.error:
        raise error
    return reading.take(texts[entry.source])


def _row(one: Found, entry: Entry, tokens: int) -> Row:
    about = entry.about
    return Row("", utf8(one.path), about.format, about.pages, entry.characters, tokens,
               about.dropped, about.warnings)  # fmt: skip


def _check_begin(form: Format, head: bytes) -> None:
    """Raise Unreadable where what begins like this is plain text or HTML by another name."""
    looks = format_of("", head)
    if form.is_text or looks not in (None, HTML) or b"%PDF-" in head:
        return
    if not head.translate(None, _PRINTED):
        kind, suffix = ("HTML", ".html") if looks else ("plain text", ".txt")
        what = f"not {form.what} (it looks like {kind})"
        raise Unreadable(what, f"If it is, let its name end in {suffix}.")
