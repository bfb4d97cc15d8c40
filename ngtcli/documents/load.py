"""Documents from files, folders, globs and standard input. Independent of tokens.

`formats` has the table of formats. A file that the user named and that cannot be read is an error.
One in a folder or glob is skipped and reported; only hidden files are skipped silently.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.content import About, Extracted
from ngtcli.documents.files import Files, Text
from ngtcli.documents.find import Finder, Found, Skipped, kinds
from ngtcli.documents.formats import FORMATS, SUFFIXES, TEXT_SUFFIXES
from ngtcli.documents.names import distinct_names, utf8
from ngtcli.documents.pool import INSTALL, MissingExtra
from ngtcli.documents.text import Unreadable
from ngtcli.errors import InputError

STDIN = "-"
_STDIN_NAME = "stdin"
_SHOWN = 3  # unreadable files that an error names; guess
INTERVAL_S = 0.3  # between two status lines; guess
_KINDS = [*filter(None, TEXT_SUFFIXES), *(s for f in FORMATS for s in f.suffixes)]
READ_HERE = f"Files read here: {', '.join(_KINDS)}, and those without a suffix."


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
) -> Loaded:
    """The documents of all `paths` in the order given; those of a folder in sorted order.

    The path "-" stands for `stdin`. A file named twice is loaded once. `settings` bound how much is
    read, and with `strict` an unreadable file in a folder is an error. Raises InputError for a path
    that cannot be read or contains no document.
    """
    settings = settings or Settings()
    listing = Listing(settings)
    for path in paths:
        listing.add(path)
    files = Files(settings)
    try:
        loading = _Loading(stdin, files, listing, status)
        loading.run()
    except BaseException:
        files.close()
        raise
    return loading.loaded(files.close())


class Listing:
    """The files of all paths, each once, before any of them is read."""

    def __init__(self, settings: Settings) -> None:
        self._finder = Finder(settings, SUFFIXES)
        self.strict = settings.strict
        self.paths: dict[str, list[str]] = {}  # the real paths that each named path stands for
        self.found: dict[
            str, tuple[Found, str]
        ] = {}  # by real path; with the folder of its catalog
        self.skipped: dict[str, list[Skipped]] = {}

    def add(self, path: str) -> None:
        """The files of one path. Raises InputError."""
        self.skipped.setdefault(path, [])
        reals = self.paths.setdefault(path, [])
        if path == STDIN:
            return
        root = os.path.expanduser(path)
        root = os.path.realpath(root) if os.path.isdir(root) else ""
        for found in self._finder.find(path):
            reals.append(found.real)
            self.found.setdefault(found.real, (found, root))
        for skipped in self._finder.take_skipped():
            self.leave_out(path, skipped)

    def leave_out(self, path: str, skipped: Skipped) -> None:
        """Note what is not read of `path`. Raises InputError if `settings` are strict."""
        if self.strict and not skipped.kind:
            what = f"{skipped.name}: {skipped.reason}"
            raise InputError(what, "Mend or remove it, or leave out --strict to pass over it.")
        self.skipped[path].append(skipped)

    def all_skipped(self) -> tuple[Skipped, ...]:
        """All that is not read, files of other kinds last."""
        skipped = [s for of_path in self.skipped.values() for s in of_path]
        return tuple(sorted(skipped, key=lambda s: bool(s.kind)))

    def roots(self) -> dict[str, set[str]]:
        """The real paths of files below each folder that was named."""
        below: dict[str, set[str]] = {}
        for real, (_, root) in self.found.items():
            if root:
                below.setdefault(root, set()).add(real)
        return below


def skip(found: Found, error: Unreadable) -> Skipped:
    """The file as one that is left out."""
    needs = INSTALL if isinstance(error, MissingExtra) else ""
    return Skipped(utf8(found.path), str(error), "", needs)


class _Loading:
    """The texts loaded so far."""

    def __init__(
        self,
        stdin: IO[bytes] | None,
        files: Files,
        listing: Listing,
        status: Callable[[str], None],
    ) -> None:
        self._stdin, self._files, self._listing, self._status = stdin, files, listing, status
        self._texts: dict[str, tuple[Found | None, Extracted]] = {}  # by real path; None: stdin
        self._told = time.monotonic()

    def run(self) -> None:
        """Read everything, in order. Raises InputError."""
        texts = self._files.in_order(self._listing.found.values())
        read: set[str] = set()
        for path, reals in self._listing.paths.items():
            if path == STDIN:
                self._add_stdin()
                continue
            for real in reals:
                if real not in read:
                    read.add(real)
                    self._add(path, *next(texts))
            if not any(real in self._texts for real in reals):
                raise nothing(path, self._listing.skipped[path])

    def _add_stdin(self) -> None:
        if self._stdin is None:
            raise InputError(
                "standard input: nothing is piped in", "Pipe a text in or name a file."
            )
        try:
            self._texts[STDIN] = (None, self._files.stream(self._stdin))
        except Unreadable as error:
            raise error.of("standard input") from None

    def _add(self, path: str, found: Found, text: Text) -> None:
        try:
            self._texts[found.real] = (found, text())
        except Unreadable as error:
            if found.outright:
                raise error.of(utf8(found.path)) from None
            self._listing.leave_out(path, skip(found, error))
        if time.monotonic() - self._told > INTERVAL_S:
            self._told = time.monotonic()
            count = len(self._listing.found)
            self._status(f"Reading the documents: {len(self._texts)} of {count} …")

    def loaded(self, remarks: Iterable[str]) -> Loaded:
        """The documents loaded, under distinct names."""
        files = [(found.path, found.below) for found, _ in self._texts.values() if found]
        used = [_STDIN_NAME] if STDIN in self._texts else []
        names = iter(distinct_names(files, used))
        documents = tuple(
            Document(next(names), text.text, text.about, found.path)
            if found
            else Document(_STDIN_NAME, text.text, text.about)
            for found, text in self._texts.values()
        )
        return Loaded(documents, self._listing.all_skipped(), tuple(remarks))


def nothing(path: str, skipped: Sequence[Skipped]) -> InputError:
    """The error for a folder or pattern without documents, with the reasons."""
    bad = [s for s in skipped if not s.kind]
    if not bad:
        if not os.path.isdir(os.path.expanduser(path)):
            return InputError(f"{utf8(path)}: no file matches", "Check the pattern.")
        others = f" (only {kinds(skipped)})" if skipped else ""
        return InputError(f"{utf8(path)}: no documents in this folder{others}", READ_HERE)
    reasons = "; ".join(f"{s.name}: {s.reason}" for s in bad[:_SHOWN])
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return InputError(f"{utf8(path)}: nothing in it can be read: {reasons}{more}", READ_HERE)
