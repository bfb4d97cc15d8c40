"""The files that paths, folders and globs name, each once, and which are left out; none is read.

A folder stands for its visible files of known kinds, in the order of their relative paths; links to
folders are not followed. It is bounded how many files are listed and how many folders deep.
"""

import glob
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

from ngtcli.config import Settings
from ngtcli.documents.formats import FORMATS, OLD, SUFFIXES, TEXT_SUFFIXES, suffix_of
from ngtcli.documents.parsers import INSTALL, MissingExtra
from ngtcli.documents.text import Unreadable, utf8
from ngtcli.errors import InputError, UsageError, reason_of, shortened
from ngtcli.system.files import identity
from ngtcli.system.json_form import HIDDEN

Read = TypeVar("Read")

STDIN = "-"
WRITTEN = "this command writes it"  # why a file is left out
OUTSIDE = "a link out of the folder"
WRITES_OVER = "this command reads it, and would write over it"  # why one is refused
_SHOWN, _KINDS_SHOWN = 3, 5  # unreadable files, and kinds, that are named; guess
_AHEAD = 64  # files that are being read before what is in them is asked for; guess
_INTERVAL_S = 0.3  # between two status lines; guess
_KINDS = [*filter(None, TEXT_SUFFIXES), *(s for f in FORMATS for s in f.suffixes)]
READ_HERE = f"Files read here: {', '.join(_KINDS)}, and those without a suffix."


@dataclass(frozen=True, slots=True)
class Found:
    """A file to read; `real` is its path with links followed, STDIN for standard input.

    `below` is the number of the path's last parts that lie below the folder or pattern that the
    user named. `outright`: the user named the file itself. `root` is the real path of the folder
    that the user named, "" where it was a file or a pattern.
    """

    path: str
    real: str
    below: int = 1
    outright: bool = False
    root: str = ""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that is not read. `kind` is its suffix if files of that kind never are.

    `needs` says what to install to have it read.
    """

    name: str
    reason: str
    kind: str = field(default="", metadata=HIDDEN)
    needs: str = field(default="", metadata=HIDDEN)


def kinds(skipped: Sequence[Skipped]) -> str:
    """The number of skipped files of each kind, the most frequent first; a few by name.

    >>> kinds([Skipped("a.pdf", "", ".pdf"), Skipped("b.pdf", "", ".pdf"), Skipped("c", "", ".x")])
    '.pdf 2, .x 1'
    """
    counts = sorted(Counter(s.kind for s in skipped if s.kind).items(), key=lambda c: (-c[1], c[0]))
    rest = sum(count for _, count in counts[_KINDS_SHOWN:])
    shown = [f"{kind} {count}" for kind, count in counts[:_KINDS_SHOWN]]
    return ", ".join([*shown, f"others {rest}"] if rest else shown)


def converting(skipped: Sequence[Skipped]) -> str:
    """How to make files that are read of those whose kinds are old; "" where there are none.

    >>> converting([Skipped("a.doc", "", ".doc"), Skipped("b.jpg", "", ".jpg")])
    'soffice --headless --convert-to docx FILE'
    """
    kinds = {s.kind for s in skipped}
    return "; ".join(command for old, command in OLD.items() if old in kinds)


def expanded(path: str) -> str:
    """`path` with the user's folder in the place of `~`, unless a file of that very name is there.

    Raises RuntimeError where there is no such user.
    """
    is_home = path.startswith("~") and not os.path.lexists(path)
    return str(Path(path).expanduser() if is_home else Path(path))


class Listing:
    """The files of all `paths`, each once, before any of them is read. Raises InputError.

    The bounds of `settings` apply to all paths together. Files that the command writes, `written`
    by their `identity`, are left out of folders and patterns, and refused with UsageError where
    they are named outright. `inside`: so are links that lead out of a named folder, or out of the
    one that a pattern begins with.
    """

    def __init__(
        self,
        settings: Settings,
        paths: Sequence[str],
        written: Collection[tuple[int, int] | None] = (),
        inside: bool = False,
    ) -> None:
        self._settings, self._written, self._inside = settings, written, inside
        self._counts: Counter[str] = Counter()
        self._reals: dict[str, list[str]] = {}  # the real paths that each named path stands for
        self._skipped: dict[str, list[Skipped]] = {}
        self.found: dict[str, Found] = {}  # by real path
        for path in dict.fromkeys(paths):
            self._named = utf8(shortened(path))  # as errors show it
            self._reals[path], self._skipped[path] = [], []
            try:
                for found in self._find(path):
                    self._add(path, found)
            except (OSError, RuntimeError, ValueError) as error:  # too long, no home, a null byte
                raise InputError(f"{self._named}: {reason_of(error)}", "Check the path.") from None

    def _find(self, path: str) -> Iterator[Found | Skipped]:
        if path == STDIN:
            yield Found("standard input", STDIN, outright=True)
            return
        if not path:  # pathlib takes it for the current folder
            raise InputError("an empty path", "Name a file or a folder.")
        root = expanded(path)
        if os.path.isdir(root):
            yield from self._folder(root)
        elif _is_there(root):
            yield Found(root, os.path.realpath(root), outright=True)  # a dangling link, too
        elif glob.has_magic(path):
            yield from self._matches(root)
        else:
            raise InputError(f"{self._named}: no such file or folder", "Check the path.")

    def _folder(self, named: str) -> Iterator[Found | Skipped]:
        """The files below a folder, depth first, in the order of the parts of their relative paths.

        A stack replaces recursion, so that deep folders raise no RecursionError.
        """
        root = os.path.realpath(named)
        waiting = self._listed(named, root, 1)
        while waiting:
            entry, real, below = waiting.pop()
            if entry.is_dir(follow_symlinks=False):
                try:
                    waiting += self._listed(entry.path, real, below + 1)
                except OSError as error:
                    yield Skipped(utf8(entry.path), reason_of(error))
            elif entry.is_symlink() and os.path.isdir(entry.path):  # no error for a link to itself
                yield Skipped(utf8(entry.path), "a link to a folder; name it to have it read")
            elif (kind := suffix_of(entry.name)) not in SUFFIXES:
                yield Skipped(utf8(entry.path), f"files of kind {kind} are not read", kind)
            else:
                real = os.path.realpath(entry.path) if entry.is_symlink() else real
                yield self._kept(Found(entry.path, real, below, root=root), root)

    def _kept(self, found: Found, root: str) -> Found | Skipped:
        """The file, or that it is left out, being a link out of `root`, a real path."""
        if self._inside and os.path.commonpath([root, found.real]) != root:
            return Skipped(utf8(found.path), OUTSIDE)
        return found

    def _listed(
        self, folder: str, real: str, below: int
    ) -> list[tuple[os.DirEntry[str], str, int]]:
        """The visible entries of a folder, in reverse order; with each its real path and `below`.

        Raises OSError where it is not listed.
        """
        if below > self._settings.max_depth + 1:
            most = self._settings.max_depth
            raise OSError(f"more than {most} folders deep; see --max-depth")
        entries = []
        with os.scandir(folder) as listing:
            for entry in listing:
                if not entry.name.startswith("."):
                    self._count("folders" if entry.is_dir(follow_symlinks=False) else "files")
                    entries.append((entry, os.path.join(real, entry.name), below))
        return sorted(entries, key=lambda e: e[0].name, reverse=True)

    def _matches(self, pattern: str) -> Iterator[Found | Skipped]:
        """Files of any kind that match a pattern; hidden ones only if the pattern names a dot."""
        parts = Path(pattern).parts
        fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        variable = (*parts[fixed:], "*") if parts[-1] == "**" else parts[fixed:]
        hidden = any(part.startswith(".") for part in variable)
        matches, root = set(), os.path.realpath(Path(*parts[:fixed]))
        for match in Path(*parts[:fixed]).glob("/".join(variable)):
            self._count("files")
            matches.add(match)
        for match in sorted(matches):
            below = match.parts[fixed:]
            if (hidden or not any(p.startswith(".") for p in below)) and not match.is_dir():
                yield self._kept(Found(str(match), os.path.realpath(match), len(below)), root)

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        if self._counts[what] > self._settings.max_files:
            raise InputError(
                f"{self._named}: more than {self._settings.max_files} {what}",
                "Name fewer, or raise the bound with --max-files.",
            )

    def _add(self, path: str, found: Found | Skipped) -> None:
        if isinstance(found, Skipped):
            self._leave_out(path, found)
        elif found.real != STDIN and self._written and identity(found.real) in self._written:
            name = utf8(found.path)
            if found.outright:
                hint = "Name another file, or put a pattern in quotes: that leaves it out."
                raise UsageError(f"{name}: {WRITES_OVER}", hint)
            self._skipped[path].append(Skipped(name, WRITTEN))  # nothing is wrong with it
        else:
            self._reals[path].append(found.real)
            self.found.setdefault(found.real, found)

    def _leave_out(self, path: str, skipped: Skipped) -> None:
        """Note what is not read of `path`. Raises InputError if `settings` are strict."""
        if self._settings.strict and not skipped.kind:
            what = f"{skipped.name}: {skipped.reason}"
            raise InputError(what, "Mend or remove it, or leave out --strict to pass over it.")
        self._skipped[path].append(skipped)

    def each(
        self, begin: Callable[[Found], Callable[[], Read]], status: Callable[[str], None]
    ) -> dict[str, tuple[Found, Read]]:
        """What was read of each file, by real path and in order.

        `begin` starts to read a file, some files ahead, and returns what waits for it and raises
        Unreadable. A file of a folder is left out then. Raises InputError for one that was named
        outright, and for a path of which nothing is left.
        """
        read: dict[str, tuple[Found, Read]] = {}
        done: set[str] = set()
        begun = _ahead(self.found.values(), begin)
        told = time.monotonic()
        for path, reals in self._reals.items():
            for real in (r for r in reals if r not in done):
                done.add(real)
                found, reading = next(begun)
                try:
                    read[real] = (found, reading())
                except Unreadable as error:
                    if found.outright:
                        raise error.of(utf8(found.path)) from None
                    needs = INSTALL if isinstance(error, MissingExtra) else ""
                    self._leave_out(path, Skipped(utf8(found.path), str(error), "", needs))
                if time.monotonic() - told > _INTERVAL_S:
                    told = time.monotonic()
                    status(f"Reading the documents: {len(read)} of {len(self.found)} …")
            if not any(real in read for real in reals):
                raise _nothing(path, self._skipped[path])
        return read

    def all_skipped(self) -> tuple[Skipped, ...]:
        """All that is not read: first what the command writes, files of other kinds last."""
        skipped = chain.from_iterable(self._skipped.values())
        return tuple(sorted(skipped, key=lambda s: (s.reason != WRITTEN, bool(s.kind))))

    def roots(self) -> dict[str, set[str]]:
        """The real paths of files below each folder that was named."""
        below: dict[str, set[str]] = defaultdict(set)
        for real, found in self.found.items():
            if found.root:
                below[found.root].add(real)
        return below


def _is_there(path: str) -> bool:
    """Whether there is a file or link at `path`. Raises OSError if that cannot be determined."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _ahead(
    files: Iterable[Found], begin: Callable[[Found], Callable[[], Read]]
) -> Iterator[tuple[Found, Callable[[], Read]]]:
    """Each file with what `begin` returned for it, some files before it is asked for."""
    waiting: deque[tuple[Found, Callable[[], Read]]] = deque()
    for found in files:
        waiting.append((found, begin(found)))
        if len(waiting) > _AHEAD:
            yield waiting.popleft()
    yield from waiting


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
