"""The files that paths name, each once, and which of them are left out."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from ngtcli.config import Settings
from ngtcli.documents.find import Finder, Found, Skipped, converting, expanded, kinds
from ngtcli.documents.formats import FORMATS, SUFFIXES, TEXT_SUFFIXES
from ngtcli.documents.names import utf8
from ngtcli.documents.pool import INSTALL, MissingExtra
from ngtcli.documents.text import Unreadable
from ngtcli.errors import InputError, UsageError
from ngtcli.system.reading import identity

Read = TypeVar("Read")

STDIN = "-"
WRITTEN = "this command writes it"  # why a file is left out
WRITES_OVER = "this command reads it, and would write over it"  # why one is refused
_SHOWN = 3  # unreadable files that an error names; guess
_INTERVAL_S = 0.3  # between two status lines; guess
_KINDS = [*filter(None, TEXT_SUFFIXES), *(s for f in FORMATS for s in f.suffixes)]
READ_HERE = f"Files read here: {', '.join(_KINDS)}, and those without a suffix."


class Listing:
    """The files of all `paths`, each once, before any of them is read. Raises InputError.

    Files that the command writes, `written` by their `identity`, are left out of folders and
    patterns, and refused with UsageError where they are named outright.
    """

    def __init__(
        self,
        settings: Settings,
        paths: Sequence[str],
        written: Collection[tuple[int, int] | None] = (),
    ) -> None:
        self._written = written
        self._finder = Finder(settings, SUFFIXES)
        self._strict = settings.strict
        self._paths: dict[str, list[str]] = {}  # the real paths that each named path stands for
        self.found: dict[str, tuple[Found, str]] = {}  # by real path; with its catalog's folder
        self._skipped: dict[str, list[Skipped]] = {}
        for path in paths:
            self._add(path)

    def _add(self, path: str) -> None:
        self._skipped.setdefault(path, [])
        reals = self._paths.setdefault(path, [])
        if path == STDIN:
            return
        every = list(self._finder.find(path))  # raises where there is no such home
        root = expanded(path)
        root = os.path.realpath(root) if os.path.isdir(root) else ""
        for found in every:
            if self._written and identity(found.real) in self._written:
                self._pass_by(path, found)
                continue
            reals.append(found.real)
            self.found.setdefault(found.real, (found, root))
        for skipped in self._finder.take_skipped():
            self._leave_out(path, skipped)

    def _pass_by(self, path: str, found: Found) -> None:
        """Leave out a file that the command writes; nothing is wrong with it, strict or not."""
        name = utf8(found.path)
        if found.outright:
            hint = "Name another file, or put a pattern in quotes: that leaves it out."
            raise UsageError(f"{name}: {WRITES_OVER}", hint)
        self._skipped[path].append(Skipped(name, WRITTEN))

    def _leave_out(self, path: str, skipped: Skipped) -> None:
        """Note what is not read of `path`. Raises InputError if `settings` are strict."""
        if self._strict and not skipped.kind:
            what = f"{skipped.name}: {skipped.reason}"
            raise InputError(what, "Mend or remove it, or leave out --strict to pass over it.")
        self._skipped[path].append(skipped)

    def each(
        self,
        in_order: Iterator[tuple[Found, Callable[[], Read]]],
        status: Callable[[str], None],
        stdin: Callable[[], Read] | None = None,
    ) -> dict[str, tuple[Found | None, Read]]:
        """What was read of each file, by real path and in order; STDIN is read by `stdin`.

        `in_order` has the files in the order of `found`, each with what reads it; that raises
        Unreadable. A file of a folder is left out then. Raises InputError for one that was named
        outright, and for a path of which nothing is left.
        """
        read: dict[str, tuple[Found | None, Read]] = {}
        done: set[str] = set()
        told = time.monotonic()
        for path, reals in self._paths.items():
            if path == STDIN and stdin is not None:
                read[STDIN] = (None, stdin())
                continue
            for real in (r for r in reals if r not in done):
                done.add(real)
                found, reading = next(in_order)
                try:
                    read[real] = (found, reading())
                except Unreadable as error:
                    self._unreadable(path, found, error)
                if time.monotonic() - told > _INTERVAL_S:
                    told = time.monotonic()
                    status(f"Reading the documents: {len(read)} of {len(self.found)} …")
            if not any(real in read for real in reals):
                raise _nothing(path, self._skipped[path])
        return read

    def _unreadable(self, path: str, found: Found, error: Unreadable) -> None:
        """Leave a file of `path` out. Raises InputError where it was named outright."""
        if found.outright:
            raise error.of(utf8(found.path)) from None
        needs = INSTALL if isinstance(error, MissingExtra) else ""
        self._leave_out(path, Skipped(utf8(found.path), str(error), "", needs))

    def all_skipped(self) -> tuple[Skipped, ...]:
        """All that is not read: first what the command writes, files of other kinds last."""
        skipped = [s for of_path in self._skipped.values() for s in of_path]
        return tuple(sorted(skipped, key=lambda s: (s.reason != WRITTEN, bool(s.kind))))

    def roots(self) -> dict[str, set[str]]:
        """The real paths of files below each folder that was named."""
        below: dict[str, set[str]] = {}
        for real, (_, root) in self.found.items():
            if root:
                below.setdefault(root, set()).add(real)
        return below


def _nothing(path: str, skipped: Sequence[Skipped]) -> InputError:
    """The error for a folder or pattern without documents, with the reasons."""
    bad = [s for s in skipped if not s.kind]
    if not bad:
        if not os.path.isdir(expanded(path)):
            return InputError(f"{utf8(path)}: no file matches", "Check the pattern.")
        others = f" (only {kinds(skipped)})" if skipped else ""
        old = converting(skipped)
        hint = f"Convert them: {old}" if old else READ_HERE
        return InputError(f"{utf8(path)}: no documents in this folder{others}", hint)
    reasons = "; ".join(f"{s.name}: {s.reason}" for s in bad[:_SHOWN])
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return InputError(f"{utf8(path)}: nothing in it can be read: {reasons}{more}", READ_HERE)
