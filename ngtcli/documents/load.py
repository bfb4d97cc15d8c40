"""Documents from files, folders, globs and standard input, and surveys of them.

A file that the user named and that cannot be read is an error. One in a folder or glob is skipped
and reported; only hidden files are skipped silently. A survey reads no file that is unchanged.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from itertools import count as count_from
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.catalog import Entry
from ngtcli.documents.content import About, Extracted
from ngtcli.documents.files import Files, Reader
from ngtcli.documents.find import STDIN, Found, Listing, Skipped
from ngtcli.documents.text import utf8

_STDIN_NAME = "stdin"


def distinct_names(files: Sequence[tuple[str, int]], taken: Iterable[str] = ()) -> list[str]:
    """A name for each (path, number of its last parts below the named path), in order.

    The name is that of the file; if it repeats, the path below the named one; if that repeats too,
    as many further parts as make the names distinct. No name is one of `taken`.

    >>> distinct_names([("dup/a/notes.txt", 2), ("dup/notes.txt", 1), ("dup/b.txt", 1)])
    ['a/notes.txt', 'notes.txt', 'b.txt']
    """
    parts = [[p for p in os.path.abspath(path).split(os.sep) if p] for path, _ in files]
    names = [utf8(part[-1]) for part in parts]
    wider = [below for _, below in files]  # the number of parts of the next longer name
    while True:
        counts = Counter(names) + Counter(taken)
        repeated = (i for i, name in enumerate(names) if counts[name] > 1)
        short = [i for i in repeated if wider[i] <= len(parts[i])]
        if not short:
            break
        for i in short:
            names[i] = utf8("/".join(parts[i][-wider[i] :]))
            wider[i] += 1
    used = set(taken)
    for i, name in enumerate(names):  # some may still repeat, as where different bytes became "?"
        numbered = (f"{name} ({number})" for number in count_from(2))
        names[i] = next(new for new in chain([name], numbered) if new not in used)
        used.add(names[i])
    return names


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its name in prompts and output; `about` has its pages and headings.

    `path` is the file's, as it was found; "" for standard input.
    """

    name: str
    text: str
    about: About = field(default=About(), compare=False)
    path: str = field(default="", compare=False)

    @property
    def sha256(self) -> str:
        """SHA-256 of the text in UTF-8, 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def common_folder(documents: Sequence[Document]) -> str:
    """The folder that the files of all documents have in common; "" where none has a file."""
    named = {os.path.dirname(d.path) for d in documents if d.path}
    return os.path.commonpath([os.path.realpath(folder) for folder in named]) if named else ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Documents, the files skipped in folders and globs, and remarks on the cache."""

    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...] = ()
    remarks: tuple[str, ...] = ()


def load(
    paths: Sequence[str],
    stdin: IO[bytes] | None = None,
    settings: Settings | None = None,
    status: Callable[[str], None] = lambda _: None,
    written: Collection[tuple[int, int] | None] = (),
    files: Files | None = None,
    inside: bool = False,
) -> Loaded:
    """The documents of all `paths` in the order given; those of a folder in sorted order.

    The path "-" stands for `stdin`. A file named twice is loaded once. `settings` bound how much is
    read, and with `strict` an unreadable file in a folder is an error. Files that the command
    writes, `written` by their `identity`, are left out of folders and patterns. Raises UsageError
    where one of them is named outright, InputError for a path that cannot be read or contains no
    document. `inside` is as in `Listing`.

    Who loads many times gives `files`, opened for the same settings, and closes them at the end.
    """
    settings = settings or Settings()
    listing, reader = Listing(settings, paths, written, inside), Reader(settings.max_mb)
    is_own, files = files is None, files or Files(settings)
    try:
        read = listing.each(lambda found: files.begin(found, reader, stdin), status)
    finally:
        remarks = files.close() if is_own else files.remarks()
    return Loaded(_named(read), listing.all_skipped(), tuple(remarks))


def _named(read: Mapping[str, tuple[Found, Extracted]]) -> tuple[Document, ...]:
    """The documents, under distinct names."""
    files = [(found.path, found.below) for real, (found, _) in read.items() if real != STDIN]
    names = iter(distinct_names(files, [_STDIN_NAME] if STDIN in read else []))
    return tuple(
        Document(_STDIN_NAME, text.text, text.about)
        if real == STDIN
        else Document(next(names), text.text, text.about, found.path)
        for real, (found, text) in read.items()
    )


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
    listing, files = Listing(settings, paths), Files(settings)
    read = 0

    def begin(found: Found) -> Callable[[], Entry]:
        """The file's entry, which may have to be waited for; that raises Unreadable."""
        nonlocal read
        catalog = files.catalog(found)
        known = catalog.known(found.real)
        if known and (known.reason or counter.key in known.tokens):
            return known.checked
        read += 1
        text = files.submit(found)

        def counted() -> Entry:
            extracted = text()
            entry = catalog.entry(found.real) or Entry().described(extracted)  # a pipe has none
            if counter.key in entry.tokens:
                return entry
            tokens = {**entry.tokens, counter.key: counter.count(extracted.text)}
            return catalog.with_tokens(found.real, entry, tokens)

        return counted

    try:
        entries = listing.each(begin, status)
        for root, real in listing.roots().items():
            files.keep_only(root, real)
    finally:
        remarks = files.close()
    names = distinct_names([(found.path, found.below) for found, _ in entries.values()])
    rows = tuple(
        Row(name, utf8(found.path), entry.about.format, entry.about.pages, entry.characters,
            entry.tokens[counter.key], entry.about.dropped, entry.about.warnings)
        for name, (found, entry) in zip(names, entries.values(), strict=True)
    )  # fmt: skip
    return Survey(rows, listing.all_skipped(), tuple(remarks), read)
