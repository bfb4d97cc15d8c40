"""The files that paths, folders and globs name, each once, and which are left out; none is read.

A folder stands for its visible files of known kinds, in the order of their relative paths; links to
folders are not followed. It is bounded how many files are listed and how many folders deep.
"""

import glob
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from ngtcli.config import Settings
from ngtcli.documents.formats import FORMATS, OLD, PICTURE, SUFFIXES, TEXT_SUFFIXES, suffix_of
from ngtcli.documents.text import utf8
from ngtcli.errors import InputError, UsageError
from ngtcli.system.files import file_sha256, identity
from ngtcli.system.journal import answers_in
from ngtcli.system.json_form import HIDDEN
from ngtcli.words import counted, reason_of, shortened

STDIN = "-"
WRITTEN = "this command writes it"  # why a file is left out
ANSWERS = "{} that ngt wrote"
OUTSIDE = "a link out of the folder"
WRITES_OVER = "this command reads it, and would write over it"  # why one is refused
_SHOWN, _KINDS_SHOWN = 3, 5  # unreadable files, and kinds, that are named; guess
MOST_PICTURES = 100  # that are read without being named, in minutes; guess
_PICTURES = (
    "They need the extra {extra} (pip install 'ngtcli[{extra}]'), and if they are more than"
    f" {MOST_PICTURES}, --set ocr=force."
)
_SETTINGS = "ngt.yaml"
_KINDS = [*filter(None, TEXT_SUFFIXES), *(s for f in FORMATS for s in f.suffixes)]
READ_HERE = f"Files read here: {', '.join(_KINDS)}, and those without a suffix."


@dataclass(frozen=True, slots=True)
class Found:
    """A file to read; `real` is its path with links followed, STDIN for standard input.

    `below` is the number of the path's last parts that lie below the folder or pattern that the
    user named. `outright`: the user named the file itself.
    """

    path: str
    real: str
    below: int = 1
    outright: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that is not read. `kind` is its suffix if files of that kind never are.

    `needs` says what to install, or to give, to have it read.
    """

    name: str
    reason: str
    kind: str = field(default="", metadata=HIDDEN)
    needs: str = field(default="", metadata=HIDDEN)


@cache
def recognizer(language: str = "") -> str:
    """What tells the version of what recognizes text, in a `language`; "" without its package."""
    package = "tesserocr" if language else "rapidocr"
    if not (found := find_spec(package)) or not found.origin:
        return ""
    place = Path(found.origin).parents[1]  # looked at here: importlib.metadata takes 20 ms to load
    version = next((path.name for path in place.glob(f"{package}-*.dist-info")), found.origin)
    return f"{version} {language} {tessdata()}" if language else version


@cache
def tessdata() -> str:
    """The folder of Tesseract's languages, by its variable or as it says; "" for none."""
    folder = os.environ.get("TESSDATA_PREFIX", "")
    if not folder and (program := shutil.which("tesseract")):
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([program, "--list-langs"], capture_output=True, timeout=5)  # s
            folder = "".join(os.fsdecode(done.stdout).split('"')[1:2])
    return os.path.abspath(folder) if os.path.isdir(folder) else ""


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
    """The files of all paths, each once, by real path; and of each path its files and the rest."""

    def __init__(
        self, settings: Settings, written: Collection[tuple[int, int] | None], inside: bool
    ) -> None:
        self._settings, self._written, self._inside = settings, written, inside
        self._counts: Counter[str] = Counter()
        self.found: dict[str, Found] = {}
        self.named: dict[str, list[str]] = {}  # real paths by the user's
        self.skipped: dict[str, list[Skipped]] = {}

    def add(self, path: str) -> None:
        """Add the files of a path. Raises InputError, and UsageError as `find` does."""
        self.named[path], self.skipped[path] = [], []
        self._named = utf8(shortened(path))  # as errors show it
        try:
            for found in self._find(path):
                if isinstance(found, Skipped):
                    self.leave_out(path, found)
                else:
                    self.named[path].append(found.real)
                    before = self.found.setdefault(found.real, found)
                    if found.outright and not before.outright:  # then its error is told
                        self.found[found.real] = replace(before, outright=True)
        except (OSError, RuntimeError, ValueError) as error:  # too long, no home, a null byte
            is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            what = "no such file or folder" if is_missing else reason_of(error)
            raise InputError(f"{self._named}: {what}", hint="Check the path.") from None

    def leave_out(self, path: str, skipped: Skipped) -> None:
        """Note what is not read of `path`. Raises InputError if `settings` are strict."""
        written = skipped.reason == WRITTEN or skipped.reason.endswith(ANSWERS[2:])
        if self._settings.reading.strict and not skipped.kind and not written:
            what = f"{skipped.name}: {skipped.reason}"
            raise InputError(
                what, hint="Mend or remove it, or give --set strict=no to pass over it."
            )
        self.skipped[path].append(skipped)

    def leave_out_pictures(self) -> None:
        """Leave out pictures that were not named, where they cannot be read or are many."""
        kinds = {real: suffix_of(one.path) for real, one in self.found.items() if not one.outright}
        pictures = {real: kind for real, kind in kinds.items() if kind in PICTURE.suffixes}
        is_read = {"off": 0, "auto": MOST_PICTURES, "force": len(pictures)}[
            self._settings.reading.ocr
        ]
        language = self._settings.reading.ocr_language
        if recognizer(language) and len(pictures) <= is_read:
            return
        for path, reals in self.named.items():
            for real in filter(pictures.get, reals):
                name, extra = utf8(self.found[real].path), "tesseract" if language else "ocr"
                needs = _PICTURES.format(extra=extra) * (is_read > 0)
                self.leave_out(
                    path, Skipped(name, "pictures are not read here", pictures[real], needs)
                )
            self.named[path] = [real for real in reals if real not in pictures]
        self.found = {real: one for real, one in self.found.items() if real not in pictures}

    def leave_out_answers(self) -> None:
        """Leave out answers of ngt that stand among other documents and were not named."""
        by_folder: dict[str, dict[str, set[str]]] = {}
        answers = set[str]()
        for real, one in self.found.items():
            if one.outright:
                continue
            folder, name = os.path.split(real)
            if folder not in by_folder:
                by_folder[folder] = answers_in(folder)
            digests = by_folder[folder].get(name)
            if digests and file_sha256(real) in digests:
                answers.add(real)
        for path, reals in self.named.items():
            if not answers.issuperset(reals):  # a folder of answers alone is one of documents
                counts = Counter(
                    os.path.dirname(self.found[real].path) for real in reals if real in answers
                )
                for folder, count in sorted(counts.items()):
                    what = ANSWERS.format(counted(count, "answer"))
                    self.leave_out(path, Skipped(utf8(os.path.join(folder, "")), what))
                self.named[path] = [real for real in reals if real not in answers]
        kept = {real for reals in self.named.values() for real in reals}
        self.found = {real: one for real, one in self.found.items() if real in kept}

    def all_skipped(self) -> tuple[Skipped, ...]:
        """All that is not read: first what the command writes, files of other kinds last."""
        skipped = chain.from_iterable(self.skipped.values())
        return tuple(sorted(skipped, key=lambda s: (s.reason != WRITTEN, bool(s.kind))))

    def nothing(self, path: str) -> InputError:
        """The error for a folder or pattern without documents, with the reasons."""
        skipped, is_folder = self.skipped[path], os.path.isdir(expanded(path))
        reasons = [f"{s.name}: {s.reason}" for s in skipped if not s.kind]
        if reasons:
            more = [f"and {len(reasons) - _SHOWN} more"] * (len(reasons) > _SHOWN)
            what = f"nothing in it can be read: {'; '.join([*reasons[:_SHOWN], *more])}"
            hint = "ngt docs show FILE says what can be done about each."
        elif is_folder or skipped:
            what = "no documents in this folder" if is_folder else "no documents match"
            what += f" (only {kinds(skipped)})" if skipped else ""
            hint = f"Convert them: {old}" if (old := converting(skipped)) else READ_HERE
        else:
            what, hint = "no file matches", "Check the pattern."
        needs = next((s.needs for s in skipped if s.needs), hint)
        return InputError(f"{utf8(path)}: {what}", hint=needs)

    def _find(self, path: str) -> Iterator[Found | Skipped]:
        """The files of a path, and what is left out. Raises InputError, OSError and ValueError."""
        if path == STDIN:
            yield Found("standard input", STDIN, outright=True)
            return
        if not path:  # pathlib takes it for the current folder
            raise InputError("an empty path", hint="Name a file or a folder.")
        root = expanded(path)
        if os.path.isdir(root):
            yield from self._folder(root)
        elif glob.has_magic(path) and not os.path.lexists(root):
            yield from self._matches(root)
        else:
            os.lstat(root)  # raises where there is nothing, not for a dangling link
            yield self._wanted(Found(root, os.path.realpath(root), outright=True))

    def _folder(self, named: str) -> Iterator[Found | Skipped]:
        """The files below a folder, depth first, in the order of the parts of their relative paths.

        A stack replaces recursion, so that deep folders raise no RecursionError.
        """
        root, begin = os.path.realpath(named), len(os.path.join(named, ""))
        waiting = self._listed(named, 0)
        while waiting:
            entry = waiting.pop()
            inner = entry.path[begin:]
            below = inner.count(os.sep) + 1
            if entry.is_dir(follow_symlinks=False):
                try:
                    waiting += self._listed(entry.path, below)
                except OSError as error:
                    yield Skipped(utf8(entry.path), reason_of(error))
            elif entry.is_symlink() and os.path.isdir(entry.path):  # no error for a link to itself
                yield Skipped(utf8(entry.path), "a link to a folder; name it to have it read")
            elif entry.name == _SETTINGS:
                yield Skipped(utf8(entry.path), "it has the settings of ngt", ".yaml")
            elif (kind := suffix_of(entry.name)) not in SUFFIXES:
                yield Skipped(utf8(entry.path), f"files of kind {kind} are not read", kind)
            else:
                is_link = entry.is_symlink()
                real = os.path.realpath(entry.path) if is_link else os.path.join(root, inner)
                yield self._wanted(Found(entry.path, real, below), root)

    def _wanted(self, found: Found, root: str = "") -> Found | Skipped:
        """The file, or that it is left out: a link out of `root`, or what the command writes.

        Raises UsageError where it was named outright and would be written over.
        """
        if root and self._inside and os.path.commonpath([root, found.real]) != root:
            return Skipped(utf8(found.path), OUTSIDE)
        if not self._written or identity(found.real) not in self._written:
            return found
        if found.outright:
            hint = "Name another file, or put a pattern in quotes: that leaves it out."
            raise UsageError(f"{utf8(found.path)}: {WRITES_OVER}", hint=hint)
        return Skipped(utf8(found.path), WRITTEN)

    def _listed(self, folder: str, depth: int) -> list[os.DirEntry[str]]:
        """The visible entries of a folder, in reverse order. Raises OSError where it is closed."""
        if depth > self._settings.reading.max_depth:
            raise OSError(
                f"more than {self._settings.reading.max_depth} folders deep; see --set max_depth"
            )
        entries = []
        with os.scandir(folder) as listing:
            for entry in listing:
                if not entry.name.startswith("."):
                    self._count("folders" if entry.is_dir(follow_symlinks=False) else "files")
                    entries.append(entry)
        return sorted(entries, key=lambda entry: entry.name, reverse=True)

    def _matches(self, pattern: str) -> Iterator[Found | Skipped]:
        """Files of any kind that match a pattern; hidden ones only if the pattern names a dot."""
        parts = Path(pattern).parts
        fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        variable = (*parts[fixed:], "*") if parts[-1] == "**" else parts[fixed:]
        hidden = any(part.startswith(".") for part in variable)
        matches, begin = set[Path](), Path(*parts[:fixed])
        for match in begin.glob("/".join(variable)):
            self._count("files")
            matches.add(match)
        for match in sorted(matches):
            below = match.parts[fixed:]
            if (hidden or not any(p.startswith(".") for p in below)) and not match.is_dir():
                found = Found(str(match), os.path.realpath(match), len(below))
                yield self._wanted(found, os.path.realpath(begin))

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        if self._counts[what] > (most := self._settings.reading.max_files):
            hint = "Name fewer, or raise the bound with --set max_files."
            raise InputError(f"{self._named}: more than {most} {what}", hint=hint)


def find(
    paths: Sequence[str],
    settings: Settings,
    written: Collection[tuple[int, int] | None] = (),
    inside: bool = False,
) -> Listing:
    """The files of `paths`. Raises InputError.

    The bounds of `settings` apply to all paths together. Files that the command writes, `written`
    by their `identity`, are left out of folders and patterns, and refused with UsageError where
    they are named outright. `inside`: so are links that lead out of a named folder, or out of the
    one that a pattern begins with.
    """
    listing = Listing(settings, written, inside)
    for path in dict.fromkeys(paths):
        listing.add(path)
    listing.leave_out_pictures()
    listing.leave_out_answers()
    return listing
