"""The texts of files that were found: plain text here and in order, other formats in workers."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.catalog import Catalog
from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.find import Found
from ngtcli.documents.formats import format_of, suffix_of
from ngtcli.documents.pool import Pool
from ngtcli.documents.reading import Reader
from ngtcli.documents.text import decode_text

Text = Callable[[], Extracted]  # waits for it; raises Unreadable, and InputError at the bound
_AHEAD = 64  # files that are being parsed before their texts are asked for; guess
_HEAD = 1024  # bytes that tell a format


class Files:
    """Reads files within the bounds of `settings`; `close` ends what is still running."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._reader = settings, Reader(settings)
        self._pool = Pool(settings)
        self._threads: ThreadPoolExecutor | None = None
        self._catalogs: dict[str, Catalog] = {}

    def catalog(self, found: Found, root: str = "") -> Catalog:
        """What is known of the files below `root`, by default the file's own folder."""
        root = root or os.path.dirname(found.real)
        if root not in self._catalogs:
            self._catalogs[root] = Catalog(root, self._settings)
        return self._catalogs[root]

    def in_order(self, found: Iterable[tuple[Found, str]]) -> Iterator[tuple[Found, Text]]:
        """Each file, with a root for its catalog, and its text, some parsed ahead."""
        waiting: deque[tuple[Found, Text]] = deque()
        for file, root in found:
            waiting.append((file, self.begin(file, root)))
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting

    def begin(self, found: Found, root: str = "") -> Text:
        """The text of a file; one of another format is read and parsed beside."""
        suffix = suffix_of(found.path)
        if format_of(suffix, b"") is None:
            return partial(self._plain, found, suffix)
        text = self.submit(found, self.catalog(found, root))
        return lambda: self._counted(text())

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

    def stream(self, stream: IO[bytes]) -> Extracted:
        """The text of a stream. Raises as `Text` does."""
        return self._parse("", self._reader.stream(stream))

    def _plain(self, found: Found, suffix: str) -> Extracted:
        return self._parse(suffix, self._reader.file(found.path, pipes=found.outright))

    def _parse(self, suffix: str, data: bytes) -> Extracted:
        form = format_of(suffix, data[:_HEAD])
        if form is None:
            return Extracted(decode_text(data))
        source = Source(
            data=data,
            suffix=suffix,
            most=self._reader.most,
            password=self._settings.password,
            field=self._settings.field,
        )
        return self._pool.extract(form, source)

    def _counted(self, found: Extracted) -> Extracted:
        self._reader.count(len(found.text))
        return found

    def close(self) -> list[str]:
        """Save what is known and end the workers; remarks on what could not be saved."""
        self._pool.close()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        for catalog in self._catalogs.values():
            catalog.save()
        return [c.remark for c in self._catalogs.values() if c.remark]
