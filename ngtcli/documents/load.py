"""Documents from files, folders, globs and standard input, and surveys of them.

A file that the user named and that cannot be read is an error. One in a folder or glob is skipped
and reported; only hidden files are skipped silently.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from itertools import count as count_from
from typing import IO, TypeVar

from ngtcli.config import Settings
from ngtcli.documents.content import About, Extracted
from ngtcli.documents.find import STDIN, Found, Listing, Skipped, find
from ngtcli.documents.read import Documents, Outcome
from ngtcli.documents.text import Unreadable, utf8
from ngtcli.system import store
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

Kept = TypeVar("Kept")
TOKENS = Kind("tokens", int)  # numbers of them, by text and tokenizer
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
        counts = Counter([*names, *taken])
        short = [i for i, n in enumerate(names) if counts[n] > 1 and wider[i] <= len(parts[i])]
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
    files: Documents | None = None,
    inside: bool = False,
) -> Loaded:
    """The documents of all `paths` in the order given; those of a folder in sorted order.

    The path "-" stands for `stdin`. A file named twice is loaded once. `settings` bound how much is
    read, and with `strict` an unreadable file in a folder is an error. Files that the command
    writes, `written` by their `identity`, are left out of folders and patterns. Raises UsageError
    where one of them is named outright, InputError for a path that cannot be read or contains no
    document. `inside` is as in `find`.

    Who loads many times gives `files`, opened for the same settings, and closes them at the end.
    """
    settings = settings or Settings()
    listing = find(paths, settings, written, inside)
    with nullcontext(files) if files else closing(Documents(settings)) as reader:
        results = reader.read(listing.found.values(), stdin, status)
        read = _readable(listing, results, lambda _, text: text)
    documents = tuple(
        Document(name, text.text, text.about, "" if found.real == STDIN else found.path)
        for name, (found, text) in read
    )
    return Loaded(documents, listing.all_skipped(), _remarks())


def _readable(
    listing: Listing,
    results: Generator[tuple[Found, Outcome], None, None],
    kept: Callable[[Found, Extracted], Kept],
) -> Iterable[tuple[str, tuple[Found, Kept]]]:
    """The name of each document and what is `kept` of its text; files of folders may be left out.

    Raises InputError for one that was named outright, and for a path of which nothing is left.
    """
    read, done = dict[str, tuple[Found, Kept]](), set[str]()
    with closing(results):
        for path, reals in listing.named.items():
            for real in (r for r in reals if r not in done):
                done.add(real)
                found, result = next(results)
                if not isinstance(result, Unreadable):
                    read[real] = found, kept(found, result)
                elif found.outright:
                    raise result.of(utf8(found.path))
                else:
                    needs = result.advice if result.advice.startswith("Install ") else ""
                    skipped = Skipped(utf8(found.path), str(result), needs=needs)
                    listing.leave_out(path, skipped)
            if not any(real in read for real in reals):
                raise listing.nothing(path)
    files = [(found.path, found.below) for found, _ in read.values() if found.real != STDIN]
    names = iter(distinct_names(files, [_STDIN_NAME] * (len(files) < len(read))))
    return ((_STDIN_NAME if real == STDIN else next(names), one) for real, one in read.items())


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
    recognized: tuple[int, ...] = ()  # pages, as in `About`


@dataclass(frozen=True, slots=True)
class Survey:
    """The rows of documents, the files left out, remarks on the cache, and how many were counted.

    `read` are the texts whose tokens were not known.
    """

    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    remarks: tuple[str, ...]
    read: int


def survey(
    paths: Sequence[str],
    settings: Settings,
    tokenizer: str,
    count: Callable[[str], int],
    status: Callable[[str], None] = lambda _: None,
) -> Survey:
    """The documents of `paths`, in the order of `load`; there is no bound on all together.

    `tokenizer` is the key in the cache of the one that `count` counts with. Raises InputError as
    `load` does.
    """
    listing, counted = find(paths, settings), dict[str, int]()

    def row(found: Found, text: Extracted) -> Row:
        key, about = key_of(Document("", text.text).sha256, tokenizer), text.about
        if (tokens := TOKENS.get(key)) is None:
            tokens = counted[key] = count(text.text)
        return Row("", utf8(found.path), about.format, about.pages, len(text.text), tokens,
                   about.dropped, about.warnings, about.recognized)  # fmt: skip

    with closing(Documents(settings)) as reader:
        results = reader.read(listing.found.values(), None, status, is_bounded=False)
        try:
            read = _readable(listing, results, row)
        finally:
            TOKENS.put_many(counted)
    rows = tuple(replace(one, name=name) for name, (_, one) in read)
    return Survey(rows, listing.all_skipped(), _remarks(), len(counted))


def _remarks() -> tuple[str, ...]:
    return tuple(filter(None, [store.take_remark()]))
