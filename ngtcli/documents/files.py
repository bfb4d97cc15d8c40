"""The texts of files: plain text is read here and in order, other formats in worker processes.

One bound holds for all that a run reads.
"""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.catalog import Catalog
from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.find import STDIN, Found
from ngtcli.documents.formats import HEAD, HTML, Format, format_of, suffix_of
from ngtcli.documents.parsers import Parsers
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError, reason_of
from ngtcli.system.files import read_bounded, read_stream

Text = Callable[[], Extracted]  # waits for it; raises Unreadable, and InputError at the bound
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
        """Count bytes, or the text that a parser made of them.

        Raises Unreadable where it is more than the bound by itself, InputError for too much in all.
        """
        if size > self.most:
            raise Unreadable(f"more than {self._bound}", _RAISE_BOUND)
        if size > self._left:
            what = f"more than {self._bound} of text in all"
            raise InputError(what, f"Name less. {_RAISE_BOUND}")
        self._left -= size


class Files:
    """Reads files as `settings` say; `close` ends what is still running.

    It may stay open for many loads: parsers keep running, and what is known of a folder is read
    once and saved at the end. Each load counts what it reads with a `Reader` of its own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._uncounted = Reader(settings.max_mb)
        self._parsers = Parsers(settings.parser_seconds, settings.parser_mb)
        self._threads = ThreadPoolExecutor(self._parsers.size)
        self._catalogs: dict[str, Catalog] = {}

    def catalog(self, found: Found) -> Catalog:
        """What is known of the files below the folder that was named, or in the file's own."""
        root = found.root or os.path.dirname(found.real)
        if root not in self._catalogs:
            self._catalogs[root] = Catalog(root, self._settings)
        return self._catalogs[root]

    def begin(self, found: Found, reader: Reader, stdin: IO[bytes] | None = None) -> Text:
        """The text of a file, counted by `reader`; one of another format is parsed meanwhile."""
        if found.real == STDIN:
            return lambda: self._parse("", reader.file(_piped(stdin)))
        suffix = suffix_of(found.path)
        if format_of(suffix, b"") is None:
            return lambda: self._parse(suffix, reader.file(found.path, pipes=found.outright))
        text = self.submit(found)

        def counted() -> Extracted:
            extracted = text()
            reader.count(len(extracted.text))
            return extracted

        return counted

    def submit(self, found: Found) -> Text:
        """The text of a file, read in another thread unless its catalog has it, and recorded there.

        It does not count for the bound on all texts together.
        """
        catalog, suffix = self.catalog(found), suffix_of(found.path)
        read = partial(self._uncounted.read, found.path, found.outright)
        parse = partial(self._parse, suffix)
        return self._threads.submit(catalog.extracted, found.real, suffix, read, parse).result

    def keep_only(self, root: str, paths: set[str]) -> None:
        """Forget all files below a folder but these."""
        if root in self._catalogs:
            self._catalogs[root].keep_only(paths)

    def _parse(self, suffix: str, data: bytes) -> Extracted:
        form = format_of(suffix, data[:HEAD])
        if form is None or not data:
            return Extracted(decode_text(data))
        _check_begin(form, data[:HEAD])
        password, field = self._settings.password, self._settings.field
        most = self._uncounted.most
        source = Source(data=data, suffix=suffix, most=most, password=password, field=field)
        return self._parsers.extract(form, source)

    def remarks(self) -> list[str]:
        """What is wrong with the cache, each once."""
        return [remark for catalog in self._catalogs.values() if (remark := catalog.take_remark())]

    def close(self) -> list[str]:
        """Save what is known and end the workers; `remarks` that nobody took."""
        self._parsers.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for catalog in self._catalogs.values():
            catalog.save()
        return self.remarks()


def _piped(stdin: IO[bytes] | None) -> IO[bytes]:
    if stdin is None:
        raise InputError("standard input: nothing is piped in", _PIPE)
    return stdin


def _check_begin(form: Format, head: bytes) -> None:
    """Raise Unreadable where what begins like this is plain text or HTML by another name."""
    looks = format_of("", head)
    if form.is_text or looks not in (None, HTML) or b"%PDF-" in head:
        return
    if not head.translate(None, _PRINTED):
        kind, suffix = ("HTML", ".html") if looks else ("plain text", ".txt")
        what = f"not {form.what} (it looks like {kind})"
        raise Unreadable(what, f"If it is, let its name end in {suffix}.")
