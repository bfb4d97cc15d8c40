"""Load documents from files, folders, patterns and standard input, or survey them.

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
from ngtcli.documents.find import STDIN, ListedFile, Listing, Skipped, find
from ngtcli.documents.read import DocumentReader, ReadResult
from ngtcli.documents.text import Unreadable, utf8
from ngtcli.system import store
from ngtcli.system.files import key_of
from ngtcli.system.store import Kind

Result = TypeVar("Result")
TOKENS = Kind("tokens", int)  # numbers of tokens, by text and tokenizer
_STDIN_NAME = "stdin"


def distinct_names(files: Sequence[tuple[str, int]], taken: Iterable[str] = ()) -> list[str]:
    """Return a distinct name for each file, in order.

    The name is that of the file; if it repeats, the path below the folder or pattern that the user
    named; if that repeats too, as many further parts as make the names distinct.

    Args:
        files: The path of each file, and how many of its last parts are below the named folder.
        taken: Names that none of them may get.

    >>> distinct_names([("dup/a/notes.txt", 2), ("dup/notes.txt", 1), ("dup/b.txt", 1)])
    ['a/notes.txt', 'notes.txt', 'b.txt']
    """
    parts: list[list[str]] = []
    for path, _ in files:
        parts.append([part for part in os.path.abspath(path).split(os.sep) if part])
    names = [utf8(path_parts[-1]) for path_parts in parts]
    next_length = [below for _, below in files]  # parts of the next longer name
    while True:
        counts = Counter([*names, *taken])
        repeated = [
            i
            for i, name in enumerate(names)
            if counts[name] > 1 and next_length[i] <= len(parts[i])
        ]
        if not repeated:
            break
        for i in repeated:
            names[i] = utf8("/".join(parts[i][-next_length[i] :]))
            next_length[i] += 1

    # Names may still repeat, as where different bytes that are not UTF-8 became "?".
    used = set(taken)
    for i, name in enumerate(names):
        numbered = (f"{name} ({number})" for number in count_from(2))
        names[i] = next(new for new in chain([name], numbered) if new not in used)
        used.add(names[i])
    return names


@dataclass(frozen=True, slots=True)
class Document:
    """A text with its name in prompts and output.

    Attributes:
        about: Its pages and headings.
        path: The path of the file as it was listed; "" for standard input.
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
    written: Collection[tuple[int, int] | None] = (),
    reader: DocumentReader | None = None,
    inside: bool = False,
) -> Loaded:
    """Load the documents of all `paths`, each file once.

    Args:
        paths: Files, folders, patterns, and "-" for `stdin`. Documents keep this order, and those
            of a folder are sorted.
        stdin: Standard input.
        settings: Limits and how to read. With `strict`, an unreadable file in a folder is an error.
        written: The `identity` of each file that the command writes, which folders and patterns
            leave out.
        reader: A reader with the same settings, for callers that load many times; they close it
            themselves.
        inside: As for `find`.

    Raises:
        InputError: A path cannot be read, or contains no document.
        UsageError: A path explicitly names a file that the command writes.
    """
    settings = settings or Settings()
    listing = find(paths, settings, written, inside)
    with nullcontext(reader) if reader else closing(DocumentReader(settings)) as opened:
        outcomes = opened.read(listing.files.values(), stdin)
        named_texts = _with_names(listing, outcomes, lambda _, extracted: extracted)
    documents = tuple(
        Document(name, text.text, text.about, "" if file.real == STDIN else file.path)
        for name, file, text in named_texts
    )
    return Loaded(documents, listing.all_skipped(), _remarks())


def _with_names(
    listing: Listing,
    outcomes: Generator[tuple[ListedFile, ReadResult], None, None],
    convert: Callable[[ListedFile, Extracted], Result],
) -> list[tuple[str, ListedFile, Result]]:
    """Read all files of a listing, and give each document its name.

    Args:
        listing: The files; unreadable ones in folders and patterns are recorded in it as left out.
        outcomes: The texts of its files, in its order.
        convert: Turns the text of each file into its result, so that texts need not stay in memory.

    Raises:
        InputError: A file that was named explicitly cannot be read, or nothing of a path can.
    """
    results = dict[str, tuple[ListedFile, Result]]()  # by real path
    finished = set[str]()
    with closing(outcomes):
        for path, reals in listing.by_path.items():
            for real in reals:
                if real in finished:
                    continue
                finished.add(real)
                file, outcome = next(outcomes)
                if not isinstance(outcome, Unreadable):
                    results[real] = file, convert(file, outcome)
                elif file.is_explicit:
                    raise outcome.of(utf8(file.path))
                else:
                    needs = outcome.advice if outcome.advice.startswith("Install ") else ""
                    listing.leave_out(path, Skipped(utf8(file.path), str(outcome), needs=needs))
            if not any(real in results for real in reals):
                raise listing.no_documents_error(path)

    files = [(file.path, file.below) for file, _ in results.values() if file.real != STDIN]
    has_stdin = len(files) < len(results)
    names = iter(distinct_names(files, [_STDIN_NAME] if has_stdin else []))
    return [
        (_STDIN_NAME if real == STDIN else next(names), file, result)
        for real, (file, result) in results.items()
    ]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a survey: a document's name in prompts, and facts about its text.

    `dropped` and `recognized` are as in `About`.
    """

    name: str
    path: str
    format: str
    pages: int
    characters: int
    tokens: int
    dropped: int
    warnings: tuple[str, ...]
    recognized: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """Facts about documents.

    Attributes:
        rows: One for each document.
        skipped: The files that were left out.
        remarks: Problems with the cache.
        read: How many texts had to be tokenized, because their number of tokens was not stored.
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
) -> Survey:
    """Survey the documents of `paths`, in the order of `load`, without a limit on all together.

    Args:
        paths: As for `load`.
        settings: As for `load`.
        tokenizer: The cache key of the tokenizer that `count` uses.
        count: Counts the tokens of a text.

    Raises:
        InputError: As for `load`.
    """
    listing = find(paths, settings)
    new_counts = dict[str, int]()  # tokens of texts that were not in the cache

    def survey_row(file: ListedFile, extracted: Extracted) -> Row:
        key = key_of(Document("", extracted.text).sha256, tokenizer)
        tokens = TOKENS.get(key)
        if tokens is None:
            tokens = count(extracted.text)
            new_counts[key] = tokens
        about = extracted.about
        return Row(
            name="",  # known when all files are
            path=utf8(file.path),
            format=about.format,
            pages=about.pages,
            characters=len(extracted.text),
            tokens=tokens,
            dropped=about.dropped,
            warnings=about.warnings,
            recognized=about.recognized,
        )

    with closing(DocumentReader(settings)) as reader:
        outcomes = reader.read(listing.files.values(), None, is_bounded=False)
        try:
            named_rows = _with_names(listing, outcomes, survey_row)
        finally:
            TOKENS.put_many(new_counts)
    rows = tuple(replace(row, name=name) for name, _, row in named_rows)
    return Survey(rows, listing.all_skipped(), _remarks(), len(new_counts))


def _remarks() -> tuple[str, ...]:
    remark = store.take_remark()
    return (remark,) if remark else ()
