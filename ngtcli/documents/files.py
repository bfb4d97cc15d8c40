"""The texts of files: plain text is read here and in order, other formats in worker processes.

One bound holds for all that a run reads.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from ngtcli.config import Settings, settings_where
from ngtcli.documents.catalog import Catalog
from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.find import Found
from ngtcli.documents.formats import HEAD, HTML, Format, format_of, suffix_of
from ngtcli.documents.parsers import Pool
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError, reason_of
from ngtcli.system.reading import read_bounded, read_stream

_RAISE_BOUND = "Raise the bound with --max-mb."
_ADVICE = {
    errno.EINVAL: "Name a file or a folder, or pipe a text in and name it -.",
    errno.EISDIR: "Name a file in it.",
    errno.ETIMEDOUT: "Start what writes to it first, or pipe its text in and name it -.",
}


def _unreadable(error: OSError) -> Unreadable:
    advice = _ADVICE.get(error.errno or 0, "Check the file and its permissions.")
    return Unreadable(reason_of(error), advice)


class Reader:
    """Reads at most `settings.max_mb` megabytes (10^6 bytes) in all."""

    def __init__(self, settings: Settings) -> None:
        self._bound = f"{settings.max_mb} MB"
        self._most = self._left = settings.max_mb * 1_000_000

    @property
    def most(self) -> int:
        """The bound in bytes."""
        return self._most

    def file(self, path: str | Path, pipes: bool = False) -> bytes:
        """The bytes of a regular file, or with `pipes` of a pipe.

        Raises Unreadable if it cannot be read or is larger than the bound by itself; InputError if
        it is larger than what is left of the bound.
        """
        try:
            return self._counted(read_bounded(path, self._left, pipes))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self._over(os.stat(path).st_size) from None
            raise _unreadable(error) from None

    def parsed_file(self, path: str | Path, pipes: bool = False) -> bytes:
        """As `file`, for a file whose text is counted later, by `count`; safe in any thread."""
        try:
            return read_bounded(path, self._most, pipes)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise Unreadable(f"more than {self._bound}", _RAISE_BOUND) from None
            raise _unreadable(error) from None

    def count(self, size: int) -> None:
        """Count the text that a parser made of a file. Raises as `file` does for too much."""
        if size > self._left:
            raise self._over(size)
        self._left -= size

    def stream(self, stream: IO[bytes]) -> bytes:
        """The bytes of a stream up to its end. Raises as `file` does."""
        try:
            return self._counted(read_stream(stream, self._left))
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise self._over(0) from None
            raise Unreadable(reason_of(error), "Pipe a text in or name a file.") from None

    def _counted(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data

    def _over(self, size: int) -> InputError:
        """The error where `size` bytes (0 if unknown) are more than is left of the bound."""
        if size > self._most or self._left == self._most:
            return Unreadable(f"more than {self._bound}", _RAISE_BOUND)
        return InputError(f"more than {self._bound} of text in all", f"Name less. {_RAISE_BOUND}")


Text = Callable[[], Extracted]  # waits for it; raises Unreadable, and InputError at the bound
_AHEAD = 64  # files that are being parsed before their texts are asked for; guess
_PRINTED = bytes(range(32, 256)) + b"\t\n\v\f\r"


class Files:
    """Reads files as `settings` say; `close` ends what is still running.

    It may stay open for many loads: parsers keep running, and what is known of a folder is read
    once and saved at the end. Each load counts what it reads with a `Reader` of its own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._reader = settings, Reader(settings)  # which counts nothing
        self._pool = Pool(settings)
        self._threads: ThreadPoolExecutor | None = None
        self._catalogs: dict[str, Catalog] = {}

    def reads_as(self, settings: Settings) -> bool:
        """Whether these settings have files read in the same way and within the same bounds."""
        names = settings_where(reading=True)
        return all(getattr(self._settings, name) == getattr(settings, name) for name in names)

    def catalog(self, found: Found, root: str = "") -> Catalog:
        """What is known of the files below `root`, by default the file's own folder."""
        root = root or os.path.dirname(found.real)
        if root not in self._catalogs:
            self._catalogs[root] = Catalog(root, self._settings)
        return self._catalogs[root]

    def in_order(
        self, found: Iterable[tuple[Found, str]], reader: Reader
    ) -> Iterator[tuple[Found, Text]]:
        """Each file, with a root for its catalog, and its text, some parsed ahead."""
        waiting: deque[tuple[Found, Text]] = deque()
        for file, root in found:
            waiting.append((file, self.begin(file, reader, root)))
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting

    def begin(self, found: Found, reader: Reader, root: str = "") -> Text:
        """The text of a file; one of another format is read and parsed beside."""
        suffix = suffix_of(found.path)
        if format_of(suffix, b"") is None:
            return lambda: self._parse(suffix, reader.file(found.path, pipes=found.outright))
        text = self.submit(found, self.catalog(found, root))
        return lambda: _counted(text(), reader)

    def submit(self, found: Found, catalog: Catalog) -> Text:
        """The text of a file, as `recorded` gives it, read beside."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._pool.size)
        return self._threads.submit(self.recorded, found, catalog).result

    def keep_only(self, root: str, paths: set[str]) -> None:
        """Forget all files below a folder but these."""
        if root in self._catalogs:
            self._catalogs[root].keep_only(paths)

    def recorded(self, found: Found, catalog: Catalog) -> Extracted:
        """The text of a file, which is not read if `catalog` has it; else it is recorded there.

        Raises Unreadable. It does not count for the bound on all texts together.
        """
        suffix = suffix_of(found.path)
        read = partial(self._reader.parsed_file, found.path, found.outright)
        return catalog.extracted(found.real, suffix, read, partial(self._parse, suffix))

    def stream(self, stream: IO[bytes], reader: Reader) -> Extracted:
        """The text of a stream. Raises as `Text` does."""
        return self._parse("", reader.stream(stream))

    def _parse(self, suffix: str, data: bytes) -> Extracted:
        form = format_of(suffix, data[:HEAD])
        if form is None or not data:
            return Extracted(decode_text(data))
        _check_begin(form, data[:HEAD])
        source = Source(
            data=data,
            suffix=suffix,
            most=self._reader.most,
            password=self._settings.password,
            field=self._settings.field,
        )
        return self._pool.extract(form, source)

    def remarks(self) -> list[str]:
        """What is wrong with the cache, each once."""
        return [remark for catalog in self._catalogs.values() if (remark := catalog.take_remark())]

    def close(self) -> list[str]:
        """Save what is known and end the workers; `remarks` that nobody took."""
        self._pool.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        for catalog in self._catalogs.values():
            catalog.save()
        return self.remarks()


def _counted(found: Extracted, reader: Reader) -> Extracted:
    reader.count(len(found.text))
    return found


def _check_begin(form: Format, head: bytes) -> None:
    """Raise Unreadable where what begins like this is plain text or HTML by another name."""
    looks = format_of("", head)
    if form.is_text or looks not in (None, HTML) or b"%PDF-" in head:
        return
    if not head.translate(None, _PRINTED):
        kind, suffix = ("HTML", ".html") if looks else ("plain text", ".txt")
        what = f"not {form.what} (it looks like {kind})"
        raise Unreadable(what, f"If it is, let its name end in {suffix}.")
