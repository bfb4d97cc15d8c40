"""Documents from files, folders, globs and standard input. Independent of tokens.

`formats` has the table of formats. A file that the user named and that cannot be read is an error.
One in a folder or glob is skipped and reported; only hidden files are skipped silently.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.content import About, Extracted
from ngtcli.documents.files import Files
from ngtcli.documents.find import Found, Skipped
from ngtcli.documents.listing import STDIN, Listing
from ngtcli.documents.names import distinct_names
from ngtcli.documents.reading import Reader
from ngtcli.documents.text import Unreadable
from ngtcli.errors import InputError

_STDIN_NAME = "stdin"


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
) -> Loaded:
    """The documents of all `paths` in the order given; those of a folder in sorted order.

    The path "-" stands for `stdin`. A file named twice is loaded once. `settings` bound how much is
    read, and with `strict` an unreadable file in a folder is an error. Files that the command
    writes, `written` by their `identity`, are left out of folders and patterns. Raises UsageError
    where one of them is named outright, InputError for a path that cannot be read or contains no
    document.

    Who loads many times gives `files` and closes them at the end; where they were opened for
    settings that read in another way, they are not used.
    """
    settings = settings or Settings()
    listing, reader = Listing(settings, paths, written), Reader(settings)
    if is_own := files is None or not files.reads_as(settings):
        files = Files(settings)
    try:
        texts = files.in_order(listing.found.values(), reader)
        read = listing.each(texts, status, lambda: _of_stdin(stdin, files, reader))
    finally:
        remarks = files.close() if is_own else files.remarks()
    return Loaded(_named(read), listing.all_skipped(), tuple(remarks))


def _of_stdin(stdin: IO[bytes] | None, files: Files, reader: Reader) -> Extracted:
    if stdin is None:
        raise InputError("standard input: nothing is piped in", "Pipe a text in or name a file.")
    try:
        return files.stream(stdin, reader)
    except Unreadable as error:
        raise error.of("standard input") from None


def _named(read: Mapping[str, tuple[Found | None, Extracted]]) -> tuple[Document, ...]:
    """The documents, under distinct names."""
    files = [(found.path, found.below) for found, _ in read.values() if found]
    used = [_STDIN_NAME] if STDIN in read else []
    names = iter(distinct_names(files, used))
    return tuple(
        Document(next(names), text.text, text.about, found.path)
        if found
        else Document(_STDIN_NAME, text.text, text.about)
        for found, text in read.values()
    )
