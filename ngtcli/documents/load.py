"""Documents from files, folders, globs and standard input. Independent of tokens.

`LOADERS` is the table of formats: a suffix and a function from bytes to text. A file that the user
named and that cannot be read is an error. One in a folder or glob is skipped and reported; only
hidden files are skipped silently.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from ngtcli.config import Settings
from ngtcli.documents.find import Finder, Found, Skipped, kinds
from ngtcli.documents.names import distinct_names, utf8
from ngtcli.documents.reading import Reader
from ngtcli.documents.text import Unreadable, decode_text, is_html
from ngtcli.errors import InputError

STDIN = "-"
_STDIN_NAME = "stdin"
_SHOWN = 3  # unreadable files that an error names; guess

LOADERS: dict[str, Callable[[bytes], str]] = {
    "": decode_text,
    ".txt": decode_text,
    ".text": decode_text,
    ".md": decode_text,
    ".markdown": decode_text,
    ".rst": decode_text,
}
READ_HERE = f"Files read here: {', '.join(s for s in LOADERS if s)}, and those without a suffix."


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its name in prompts and output."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the text in UTF-8, 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Documents, the files skipped in folders and globs, and the names of documents in HTML."""

    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...] = ()
    html: tuple[str, ...] = ()


def load(
    paths: Sequence[str], stdin: IO[bytes] | None = None, settings: Settings | None = None
) -> Loaded:
    """The documents of all `paths` in the order given; those of a folder in sorted order.

    The path "-" stands for `stdin`. A file named twice is loaded once. `settings` bound how much is
    read, and with `strict` an unreadable file in a folder is an error. Raises InputError for a path
    that cannot be read or contains no document.
    """
    loading = _Loading(stdin, settings or Settings())
    for path in paths:
        loading.add(path)
    return loading.loaded()


class _Loading:
    """The texts loaded so far, and the bounds for all of them together."""

    def __init__(self, stdin: IO[bytes] | None, settings: Settings) -> None:
        self._stdin, self._strict = stdin, settings.strict
        self._reader = Reader(settings)
        self._finder = Finder(settings, frozenset(LOADERS))
        self._texts: dict[str, tuple[Found | None, str]] = {}  # by real path; None: stdin
        self._seen: set[str] = set()
        self._skipped: list[Skipped] = []

    def add(self, path: str) -> None:
        """Load the documents of one path. Raises InputError."""
        if path == STDIN:
            self._add_stdin()
            return
        before, loaded = len(self._skipped), False
        for found in self._finder.find(path):
            loaded = self._add_file(found) or loaded
        for skipped in self._finder.take_skipped():
            self._leave_out(skipped)
        if not loaded:
            raise _nothing(path, self._skipped[before:])

    def _leave_out(self, skipped: Skipped) -> None:
        if self._strict and not skipped.kind:
            what = f"{skipped.name}: {skipped.reason}"
            raise InputError(what, "Mend or remove it, or leave out --strict to pass over it.")
        self._skipped.append(skipped)

    def _add_stdin(self) -> None:
        if self._stdin is None:
            raise InputError(
                "standard input: nothing is piped in", "Pipe a text in or name a file."
            )
        if STDIN not in self._texts:
            try:
                text = decode_text(self._reader.stream(self._stdin))
            except Unreadable as error:
                raise error.of("standard input") from None
            self._texts[STDIN] = (None, text)

    def _add_file(self, found: Found) -> bool:
        """Load a file unless it is loaded; whether it is loaded now."""
        if found.real not in self._seen:
            self._seen.add(found.real)
            try:
                self._texts[found.real] = (found, self._text(found))
            except Unreadable as error:
                if found.outright:
                    raise error.of(utf8(found.path)) from None
                self._leave_out(Skipped(utf8(found.path), str(error)))
        return found.real in self._texts

    def _text(self, found: Found) -> str:
        suffix = os.path.splitext(found.path)[1].lower()
        data = self._reader.file(found.path, pipes=found.outright)
        return LOADERS.get(suffix, decode_text)(data)  # any other kind: try to read it as text

    def loaded(self) -> Loaded:
        """The documents loaded, under distinct names."""
        files = [(found.path, found.below) for found, _ in self._texts.values() if found]
        used = [_STDIN_NAME] if STDIN in self._texts else []
        names = iter(distinct_names(files, used))
        documents = tuple(
            Document(next(names) if found else _STDIN_NAME, text)
            for found, text in self._texts.values()
        )
        html = tuple(d.name for d in documents if is_html(d.text))
        return Loaded(documents, tuple(self._skipped), html)


def _nothing(path: str, skipped: Sequence[Skipped]) -> InputError:
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
