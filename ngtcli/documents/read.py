"""The texts of files: the one loop that reads them, what is known of them, and their bounds."""

import errno
import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

from ngtcli.config import Settings
from ngtcli.documents.catalog import SMALL, TEXTS, TOKENS, Catalog, Entry, stamp_of
from ngtcli.documents.content import About, Extracted, Source, markdown
from ngtcli.documents.find import STDIN, Found
from ngtcli.documents.formats import HEAD, HTML, Format, format_of, suffix_of
from ngtcli.documents.parsers import Parsers
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError, reason_of
from ngtcli.system import store
from ngtcli.system.files import key_of, read_bounded, read_stream

Item = TypeVar("Item")
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
        self._bound = f"{max_mb} MB"
        self.most = self._left = max_mb * 1_000_000  # bytes

    def read(self, source: str | Path | IO[bytes], pipes: bool = False) -> bytes:
        """The bytes of a stream, a regular file, or with `pipes` of a pipe; they are not counted.

        Raises Unreadable if it cannot be read or is larger than the bound by itself. May be called
        from any thread.
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

        Raises Unreadable where it is more than the bound by itself, InputError for too much in all.
        """
        if size > self.most:
            raise Unreadable(f"more than {self._bound}", _RAISE_BOUND)
        if size > self._left:
            what = f"more than {self._bound} of text in all"
            raise InputError(what, f"Name less. {_RAISE_BOUND}")
        self._left -= size


class _Room:
    """Holds up threads that read ahead while the texts nobody asked for yet are too large."""

    def __init__(self, most: int) -> None:
        self._left, self._turn = most, 0  # characters; number of the file that is asked for
        self._changed = threading.Condition()

    def wait(self, number: int) -> None:
        """Wait until there is room, or this file is asked for."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0 or number <= self._turn)

    def take(self, size: int) -> None:
        """Count a text that was read."""
        with self._changed:
            self._left -= size

    def go_on(self, size: int, files: int = 1) -> None:
        """The text asked for, of that size, was handed over."""
        with self._changed:
            self._left, self._turn = self._left + size, self._turn + files
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """How tokens are counted; `key` stands for the tokenizer in the cache."""

    key: str
    count: Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Counted:
    """What is known of a text besides its sections: `about`, and its length."""

    about: About
    characters: int
    tokens: int


Begun = Future[Extracted] | Extracted | Unreadable | None  # None: read when it is asked for


class Documents:
    """Reads files as `settings` say; `close` ends what is still running.

    It may stay open for many loads, since parsers keep running.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._reader = Reader(settings.max_mb)  # which counts nothing
        self._parsers = Parsers(settings.parser_seconds, settings.parser_mb)
        self._threads = ThreadPoolExecutor(self._parsers.size)
        self._catalog = Catalog(settings)
        self.opened = 0  # files of which nothing was known

    def read(
        self, found: Iterable[Found], stdin: IO[bytes] | None = None
    ) -> Generator[tuple[Found, Extracted | Unreadable], None, None]:
        """The text of each file in order, or why it has none; some are read ahead.

        Raises InputError where they are larger than the bound in all, and where nothing is piped
        in. It is to be closed.
        """
        reader = Reader(self._settings.max_mb)
        for one, result in self._each(found, stdin):
            try:
                if isinstance(result, Extracted):
                    reader.count(len(result.text))
                yield one, result
            except Unreadable as error:
                yield one, error

    def about(
        self, found: Iterable[Found], counter: TokenCounter
    ) -> Generator[tuple[Found, Counted | Unreadable], None, None]:
        """As `read`, without the bound on all; no file that is unchanged is opened."""
        for group in _groups(found):
            known = self._catalog.known(one.real for one in group)
            keys = {real: key_of(entry.text, counter.key) for real, entry in known.items()}
            counts = TOKENS.get_many(keys.values())
            results = {
                real: entry.error or Counted(entry.about, entry.characters, counts[keys[real]])
                for real, entry in known.items()
                if entry.reason or keys[real] in counts
            }
            rest = self._each(one for one in group if one.real not in results)
            new: dict[str, int] = {}
            try:
                for one in group:
                    yield one, results.get(one.real) or self._counted(next(rest)[1], counter, new)
            finally:
                rest.close()
                TOKENS.put_many(new)

    def _counted(
        self, text: Extracted | Unreadable, counter: TokenCounter, new: dict[str, int]
    ) -> Counted | Unreadable:
        if isinstance(text, Unreadable):
            return text
        key = key_of(hashlib.sha256(text.text.encode()).hexdigest(), counter.key)
        new[key] = counter.count(text.text)
        return Counted(text.about, len(text.text), new[key])

    def _each(
        self, found: Iterable[Found], stdin: IO[bytes] | None = None
    ) -> Generator[tuple[Found, Extracted | Unreadable], None, None]:
        room, saved = _Room(self._reader.most), time.monotonic()
        begun = self._begun(found, room)
        waiting = deque(islice(begun, _AHEAD))
        try:
            while waiting:
                one, text = waiting.popleft()
                result: Extracted | Unreadable
                try:
                    result = self._asked(one, text, stdin)
                except Unreadable as error:
                    result = error
                is_taken = isinstance(text, Future)
                room.go_on(len(result.text) * is_taken if isinstance(result, Extracted) else 0)
                if time.monotonic() - saved > _SAVE_S:
                    self._catalog.save()
                    saved = time.monotonic()
                yield one, result
                waiting.extend(islice(begun, 1))
        finally:
            room.go_on(0, _GROUP)
            for _, text in waiting:
                if isinstance(text, Future):
                    text.cancel()
            self._catalog.save()

    def _asked(self, one: Found, text: Begun, stdin: IO[bytes] | None) -> Extracted:
        """The text of a file, for which it is the turn. Raises Unreadable and InputError."""
        if isinstance(text, Unreadable):
            raise text
        if isinstance(text, Future):
            return text.result()
        if text is not None:
            return text
        if one.real != STDIN:
            return self._parsed(one, self._reader.read(one.path, one.outright))
        if stdin is None:
            raise InputError("standard input: nothing is piped in", _PIPE)
        return self._parsed(one, self._reader.read(stdin))

    def _begun(self, found: Iterable[Found], room: _Room) -> Iterator[tuple[Found, Begun]]:
        """Each file with its text where that is known; else reading is begun in a thread.

        A pipe and the like are not, since nobody may write to them and a thread would not end.
        """
        for group in _groups(enumerate(found)):
            known = self._catalog.known(one.real for _, one in group)
            small = (e.source for e in known.values() if e.characters <= SMALL and not e.reason)
            texts = TEXTS.get_many(small)
            for number, one in group:
                entry = known.get(one.real)
                text: Begun = None if entry is None else entry.error or texts.get(entry.source)
                if text is None and one.real != STDIN and stamp_of(one.real):
                    text = self._threads.submit(self._made, one, entry, room, number)
                self.opened += entry is None
                yield one, text

    def _made(self, one: Found, known: Entry | None, room: _Room, number: int) -> Extracted:
        """The text of a regular file, which is noted in the catalog. Raises Unreadable."""
        room.wait(number)
        text = TEXTS.get(known.source) if known else None
        if text is None:
            stamp, seen = stamp_of(one.real) or (0, 0, 0), time.time_ns()
            data = self._reader.read(one.path)
            entry = Entry(stamp, seen, source=self._catalog.source(data, suffix_of(one.path)))
            try:
                text = self._parsed(one, data, entry.source)
            except Unreadable as error:
                self._catalog.add_failure(one.real, entry, error)
                raise
            self._catalog.add(one.real, entry, text)
        room.take(len(text.text))
        return text

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
                most=self._reader.most,
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


def _check_begin(form: Format, head: bytes) -> None:
    """Raise Unreadable where what begins like this is plain text or HTML by another name."""
    looks = format_of("", head)
    if form.is_text or looks not in (None, HTML) or b"%PDF-" in head:
        return
    if not head.translate(None, _PRINTED):
        kind, suffix = ("HTML", ".html") if looks else ("plain text", ".txt")
        what = f"not {form.what} (it looks like {kind})"
        raise Unreadable(what, f"If it is, let its name end in {suffix}.")
