"""What is known of the files that paths name: a row for each; unchanged ones are not read."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ngtcli.config import Settings
from ngtcli.documents.catalog import Catalog, Entry
from ngtcli.documents.content import Extracted
from ngtcli.documents.files import Files
from ngtcli.documents.find import Found, Skipped
from ngtcli.documents.listing import Listing
from ngtcli.documents.names import distinct_names, utf8
from ngtcli.documents.text import Unreadable

_AHEAD = 64  # files that are being read before their rows are made; guess


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """How tokens are counted; `key` stands for the tokenizer in the cache."""

    key: str
    count: Callable[[str], int]


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

    def as_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Survey:
    """The rows of documents, the files left out, remarks on the cache, and how many were read."""

    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...]
    read: int


def survey(
    paths: Sequence[str],
    settings: Settings,
    counter: TokenCounter,
    status: Callable[[str], None] = lambda _: None,
) -> Survey:
    """The documents of `paths`, in the order of `load`. Raises InputError as `load` does."""
    listing = Listing(settings, paths)
    files = Files(settings)
    try:
        surveying = _Surveying(files, listing, counter, status)
        surveying.run()
        for root, real in listing.roots().items():
            files.keep_only(root, real)
    finally:
        remarks = files.close()
    return surveying.survey(remarks)


class _Surveying:
    """The rows so far."""

    def __init__(
        self, files: Files, listing: Listing, counter: TokenCounter, status: Callable[[str], None]
    ) -> None:
        self._files, self._listing, self._counter = files, listing, counter
        self._status = status
        self._known: list[tuple[Found, Entry]] = []
        self._read = 0

    def run(self) -> None:
        """Make a row of every file. Raises InputError."""
        read = self._listing.each(self._in_order(), self._status)
        self._known = [(found, entry) for found, entry in read.values() if found]

    def _in_order(self) -> Iterator[tuple[Found, Callable[[], Entry]]]:
        waiting: deque[tuple[Found, Callable[[], Entry]]] = deque()
        for found, root in self._listing.found.values():
            waiting.append((found, self._begin(found, self._files.catalog(found, root))))
            if len(waiting) > _AHEAD:
                yield waiting.popleft()
        yield from waiting

    def _begin(self, found: Found, catalog: Catalog) -> Callable[[], Entry]:
        """The file's entry, which may have to be waited for."""
        entry = catalog.known(found.real)
        if entry is not None and (entry.reason or self._counter.key in entry.tokens):
            return partial(_told, entry)
        self._read += 1
        text = self._files.submit(found, catalog)
        return lambda: self._counted(text(), found, catalog)

    def _counted(self, text: Extracted, found: Found, catalog: Catalog) -> Entry:
        """The entry of a file that was read, with its number of tokens."""
        entry = catalog.entry(found.real) or Entry.of(text)  # a pipe has none
        if self._counter.key not in entry.tokens:
            tokens = {**entry.tokens, self._counter.key: self._counter.count(text.text)}
            entry = catalog.with_tokens(found.real, entry, tokens)
        return entry

    def survey(self, remarks: Sequence[str]) -> Survey:
        """All of it, under the names that the documents have in prompts."""
        names = distinct_names([(found.path, found.below) for found, _ in self._known])
        rows = tuple(
            Row(name, utf8(found.path), entry.format, entry.pages, entry.characters,
                entry.tokens[self._counter.key], entry.dropped, entry.warnings)
            for name, (found, entry) in zip(names, self._known, strict=True)
        )  # fmt: skip
        return Survey(rows, self._listing.all_skipped(), tuple(remarks), self._read)


def _told(entry: Entry) -> Entry:
    """The entry of a file that has a text. Raises Unreadable for one that has none."""
    if entry.reason:
        raise Unreadable(entry.reason, entry.advice)
    return entry
