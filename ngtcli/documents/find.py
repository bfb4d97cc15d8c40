"""List the files that paths, folders and patterns name, each once, without reading them.

A folder stands for its visible files of known kinds, in the order of their relative paths; links to
folders are not followed. The number of files and the depth of folders are limited. Files that are
left out are listed with the reason.
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
# Reasons for which files are left out.
WRITTEN = "this command writes it"
ANSWERS = "{} that ngt wrote"
OUTSIDE = "a link out of the folder"
# The reason for which a file is refused.
WRITES_OVER = "this command reads it and would overwrite it"
_MAX_REASONS = 3  # unreadable files that an error names (guess)
_MAX_KINDS = 5  # kinds of files that a message counts one by one (guess)
# Pictures that are read without being named: OCR takes minutes for so many (guess).
MAX_PICTURES = 100
_PICTURES_NEED = (
    "They need the extra {extra} (pip install 'ngtcli[{extra}]'), and if they are more than"
    f" {MAX_PICTURES}, --set ocr=force."
)
_SETTINGS_FILE = "ngt.yaml"
_KINDS = [*filter(None, TEXT_SUFFIXES), *(s for f in FORMATS for s in f.suffixes)]
READ_HERE = f"Files read here: {', '.join(_KINDS)}, and those without a suffix."


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file to read.

    Attributes:
        path: Its path as the user named it, or below the folder that the user named.
        real: The path with links resolved; STDIN for standard input.
        below: How many last parts of the path lie below the named folder or pattern.
        is_explicit: Whether the user named the file itself, and not a folder or pattern.
    """

    path: str
    real: str
    below: int = 1
    is_explicit: bool = False


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that is not read.

    Attributes:
        name: Its path, for people.
        reason: Why it is not read.
        kind: Its suffix, if it was skipped because of its kind; "" for any other reason.
        needs: What to install, or which setting to give, to have it read.
    """

    name: str
    reason: str
    kind: str = field(default="", metadata=HIDDEN)
    needs: str = field(default="", metadata=HIDDEN)


@cache
def ocr_version(language: str = "") -> str:
    """Identify the version of the OCR package that reads `language`; "" if it is not installed."""
    package = "tesserocr" if language else "rapidocr"
    spec = find_spec(package)
    if spec is None or not spec.origin:
        return ""
    # The folder's name has the version. importlib.metadata would know it, but takes 20 ms to load.
    site_packages = Path(spec.origin).parents[1]
    folders = (path.name for path in site_packages.glob(f"{package}-*.dist-info"))
    version = next(folders, spec.origin)
    return f"{version} {language} {tessdata_folder()}" if language else version


@cache
def tessdata_folder() -> str:
    """Find the folder of Tesseract's languages by TESSDATA_PREFIX, or by Tesseract; or ""."""
    folder = os.environ.get("TESSDATA_PREFIX", "")
    program = shutil.which("tesseract")
    if not folder and program:
        with suppress(OSError, subprocess.TimeoutExpired):
            listing = subprocess.run([program, "--list-langs"], capture_output=True, timeout=5)  # s
            folder = "".join(os.fsdecode(listing.stdout).split('"')[1:2])
    return os.path.abspath(folder) if os.path.isdir(folder) else ""


def count_kinds(skipped: Sequence[Skipped]) -> str:
    """Count skipped files by kind, the most frequent first, for a message.

    >>> skipped = [Skipped("a", "", ".pdf"), Skipped("b", "", ".pdf"), Skipped("c", "", ".x")]
    >>> count_kinds(skipped)
    '.pdf 2, .x 1'
    """
    counts = Counter(s.kind for s in skipped if s.kind)
    most_frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{kind} {count}" for kind, count in most_frequent[:_MAX_KINDS]]
    others = sum(count for _, count in most_frequent[_MAX_KINDS:])
    if others:
        shown.append(f"others {others}")
    return ", ".join(shown)


def conversion_commands(skipped: Sequence[Skipped]) -> str:
    """List the commands that convert skipped files of old formats; "" if there are none.

    >>> conversion_commands([Skipped("a.doc", "", ".doc"), Skipped("b.jpg", "", ".jpg")])
    'soffice --headless --convert-to docx FILE'
    """
    kinds = {s.kind for s in skipped}
    return "; ".join(command for old, command in OLD.items() if old in kinds)


def expand_home(path: str) -> str:
    """Expand `~` in a path, unless a file with exactly this name exists.

    Raises RuntimeError if there is no such user.
    """
    is_home = path.startswith("~") and not os.path.lexists(path)
    return str(Path(path).expanduser() if is_home else Path(path))


class Listing:
    """The files that all paths name, and for each path its files and what was left out.

    Attributes:
        files: Every file once, by its real path.
        by_path: For each path that the user named, the real paths of its files.
        skipped: For each path that the user named, what was left out.
    """

    def __init__(
        self, settings: Settings, written: Collection[tuple[int, int] | None], inside: bool
    ) -> None:
        self._settings = settings
        self._written = written
        self._inside = inside
        self._counts: Counter[str] = Counter()
        self._shown_path = ""  # the path that is being listed, as errors show it
        self.files: dict[str, ListedFile] = {}
        self.by_path: dict[str, list[str]] = {}
        self.skipped: dict[str, list[Skipped]] = {}

    def add(self, path: str) -> None:
        """Add the files of a path. Raises InputError, and UsageError as `find` does."""
        self.by_path[path] = []
        self.skipped[path] = []
        self._shown_path = utf8(shortened(path))
        try:
            for item in self._list_path(path):
                if isinstance(item, Skipped):
                    self.leave_out(path, item)
                    continue
                self.by_path[path].append(item.real)
                earlier = self.files.setdefault(item.real, item)
                # If a file is named explicitly anywhere, an error in it is reported.
                if item.is_explicit and not earlier.is_explicit:
                    self.files[item.real] = replace(earlier, is_explicit=True)
        except (OSError, RuntimeError, ValueError) as error:  # too long, no home, a null byte
            is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            reason = "no such file or folder" if is_missing else reason_of(error)
            raise InputError(f"{self._shown_path}: {reason}", hint="Check the path.") from None

    def leave_out(self, path: str, skipped: Skipped) -> None:
        """Record what is not read of `path`. Raises InputError if `strict` forbids it."""
        is_written = skipped.reason == WRITTEN or skipped.reason.endswith(ANSWERS[2:])
        if self._settings.reading.strict and not skipped.kind and not is_written:
            raise InputError(
                f"{skipped.name}: {skipped.reason}",
                hint="Correct or remove it, or use --set strict=no to skip it.",
            )
        self.skipped[path].append(skipped)

    def leave_out_pictures(self) -> None:
        """Leave out pictures of folders and patterns if they are too many, or OCR is missing."""
        pictures: dict[str, str] = {}  # suffixes by real paths
        for real, file in self.files.items():
            suffix = suffix_of(file.path)
            if not file.is_explicit and suffix in PICTURE.suffixes:
                pictures[real] = suffix

        reading = self._settings.reading
        max_pictures = {"off": 0, "auto": MAX_PICTURES, "force": len(pictures)}[reading.ocr]
        if ocr_version(reading.ocr_language) and len(pictures) <= max_pictures:
            return

        needs = ""
        if max_pictures > 0:
            needs = _PICTURES_NEED.format(extra="tesseract" if reading.ocr_language else "ocr")
        for path, reals in self.by_path.items():
            for real in reals:
                if real in pictures:
                    name = utf8(self.files[real].path)
                    reason = "pictures are not read here"
                    self.leave_out(path, Skipped(name, reason, pictures[real], needs))
            self.by_path[path] = [real for real in reals if real not in pictures]
        self.files = {real: file for real, file in self.files.items() if real not in pictures}

    def leave_out_answers(self) -> None:
        """Leave out answers that ngt wrote into the folders of other documents.

        Answers that the user named explicitly stay, and so does a folder that has nothing else.
        """
        answers = self._answers()
        for path, reals in self.by_path.items():
            if answers.issuperset(reals):
                continue
            folders = [os.path.dirname(self.files[real].path) for real in reals if real in answers]
            for folder, count in sorted(Counter(folders).items()):
                reason = ANSWERS.format(counted(count, "answer"))
                self.leave_out(path, Skipped(utf8(os.path.join(folder, "")), reason))
            self.by_path[path] = [real for real in reals if real not in answers]
        remaining = {real for reals in self.by_path.values() for real in reals}
        self.files = {real: file for real, file in self.files.items() if real in remaining}

    def _answers(self) -> set[str]:
        """The real paths of the listed files that ngt wrote, and that nobody changed since."""
        digests_by_folder: dict[str, dict[str, set[str]]] = {}
        answers = set[str]()
        for real, file in self.files.items():
            if file.is_explicit:
                continue
            folder, name = os.path.split(real)
            if folder not in digests_by_folder:
                digests_by_folder[folder] = answers_in(folder)
            digests = digests_by_folder[folder].get(name)
            if digests and file_sha256(real) in digests:
                answers.add(real)
        return answers

    def all_skipped(self) -> tuple[Skipped, ...]:
        """All that was left out: what the command writes first, files of unread kinds last."""
        skipped = chain.from_iterable(self.skipped.values())
        return tuple(sorted(skipped, key=lambda s: (s.reason != WRITTEN, bool(s.kind))))

    def no_documents_error(self, path: str) -> InputError:
        """The error for a folder or pattern without documents, with the reasons."""
        skipped = self.skipped[path]
        is_folder = os.path.isdir(expand_home(path))
        reasons = [f"{s.name}: {s.reason}" for s in skipped if not s.kind]
        if reasons:
            shown = reasons[:_MAX_REASONS]
            if len(reasons) > _MAX_REASONS:
                shown.append(f"and {len(reasons) - _MAX_REASONS} more")
            message = f"nothing in it can be read: {'; '.join(shown)}"
            hint = "ngt docs show FILE says what can be done about each."
        elif is_folder or skipped:
            message = "no documents in this folder" if is_folder else "no documents match"
            if skipped:
                message += f" (only {count_kinds(skipped)})"
            commands = conversion_commands(skipped)
            hint = f"Convert them: {commands}" if commands else READ_HERE
        else:
            message = "no file matches"
            hint = "Check the pattern."
        needs = next((s.needs for s in skipped if s.needs), "")
        return InputError(f"{utf8(path)}: {message}", hint=needs or hint)

    def _list_path(self, path: str) -> Iterator[ListedFile | Skipped]:
        """Yield the files of a path and what is left out.

        Raises InputError, OSError and ValueError.
        """
        if path == STDIN:
            yield ListedFile("standard input", STDIN, is_explicit=True)
            return
        if not path:  # pathlib takes it for the current folder
            raise InputError("an empty path", hint="Name a file or a folder.")
        root = expand_home(path)
        if os.path.isdir(root):
            yield from self._list_folder(root)
        elif glob.has_magic(path) and not os.path.lexists(root):
            yield from self._list_matches(root)
        else:
            os.lstat(root)  # raises if nothing is there, but not for a dangling link
            yield self._unless_left_out(ListedFile(root, os.path.realpath(root), is_explicit=True))

    def _list_folder(self, folder: str) -> Iterator[ListedFile | Skipped]:
        """Yield the files below a folder, depth first, ordered by the parts of their paths.

        A stack replaces recursion, so that deep folders raise no RecursionError.
        """
        root = os.path.realpath(folder)
        prefix_length = len(os.path.join(folder, ""))
        stack = self._scan(folder, 0)
        while stack:
            entry = stack.pop()
            relative = entry.path[prefix_length:]
            depth = relative.count(os.sep) + 1
            if entry.is_dir(follow_symlinks=False):
                try:
                    stack += self._scan(entry.path, depth)
                except OSError as error:
                    yield Skipped(utf8(entry.path), reason_of(error))
                continue
            # isdir, unlike is_dir, raises nothing for a link to itself.
            if entry.is_symlink() and os.path.isdir(entry.path):
                yield Skipped(utf8(entry.path), "a link to a folder; name it to have it read")
                continue
            if entry.name == _SETTINGS_FILE:
                yield Skipped(utf8(entry.path), "a settings file of ngt", ".yaml")
                continue
            kind = suffix_of(entry.name)
            if kind not in SUFFIXES:
                yield Skipped(utf8(entry.path), f"files of kind {kind} are not read", kind)
                continue
            is_link = entry.is_symlink()
            real = os.path.realpath(entry.path) if is_link else os.path.join(root, relative)
            yield self._unless_left_out(ListedFile(entry.path, real, depth), root)

    def _unless_left_out(self, file: ListedFile, root: str = "") -> ListedFile | Skipped:
        """Pass a file on, unless it links out of `root` or is what the command writes.

        Raises UsageError if the user explicitly named a file that the command would overwrite.
        """
        if root and self._inside and os.path.commonpath([root, file.real]) != root:
            return Skipped(utf8(file.path), OUTSIDE)
        if not self._written or identity(file.real) not in self._written:
            return file
        if file.is_explicit:
            raise UsageError(
                f"{utf8(file.path)}: {WRITES_OVER}",
                hint="Name another output. (A pattern in quotes skips the output.)",
            )
        return Skipped(utf8(file.path), WRITTEN)

    def _scan(self, folder: str, depth: int) -> list[os.DirEntry[str]]:
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

    def _list_matches(self, pattern: str) -> Iterator[ListedFile | Skipped]:
        """Yield files of any kind that match a pattern.

        Hidden files match only if the pattern itself has a part that begins with a dot.
        """
        parts = Path(pattern).parts
        fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
        variable = parts[fixed:]
        if parts[-1] == "**":
            variable = (*variable, "*")
        folder = Path(*parts[:fixed])
        matches = set[Path]()
        for match in folder.glob("/".join(variable)):
            self._count("files")
            matches.add(match)

        shows_hidden = any(part.startswith(".") for part in variable)
        for match in sorted(matches):
            below = match.parts[fixed:]
            is_hidden = any(part.startswith(".") for part in below)
            if (is_hidden and not shows_hidden) or match.is_dir():
                continue
            file = ListedFile(str(match), os.path.realpath(match), len(below))
            yield self._unless_left_out(file, os.path.realpath(folder))

    def _count(self, noun: str) -> None:
        """Count one more file or folder. Raises InputError for too many."""
        self._counts[noun] += 1
        limit = self._settings.reading.max_files
        if self._counts[noun] > limit:
            raise InputError(
                f"{self._shown_path}: more than {limit} {noun}",
                hint="Name fewer, or raise the limit with --set max_files.",
            )


def find(
    paths: Sequence[str],
    settings: Settings,
    written: Collection[tuple[int, int] | None] = (),
    inside: bool = False,
) -> Listing:
    """List the files of `paths`.

    Args:
        paths: Files, folders, patterns, and STDIN.
        settings: Its limits apply to all paths together.
        written: The `identity` of each file that the command writes. They are left out of folders
            and patterns.
        inside: Whether to leave out links that lead out of the named folder, or out of the folder
            that a pattern begins with.

    Raises:
        InputError: A path names nothing, too many files, or with `strict` something unreadable.
        UsageError: A path explicitly names a file that the command writes.
    """
    listing = Listing(settings, written, inside)
    for path in dict.fromkeys(paths):
        listing.add(path)
    listing.leave_out_pictures()
    listing.leave_out_answers()
    return listing
