"""Documents from files, folders, globs and standard input. Knows nothing of tokens.

`LOADERS` is the table of formats: a suffix and a function from bytes to text. Whatever cannot be
read is named; nothing is skipped silently but hidden files and, in folders, unknown suffixes.
"""

import glob
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ngtcli.errors import InputError

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Document:
    """One text with the name it is shown under; `sha256` is of the text's UTF-8 bytes."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def utf8(text: str) -> str:
    """`text` without the lone surrogates that Python makes of foreign bytes in names."""
    return text.encode("utf-8", "replace").decode()


def decode_text(data: bytes, name: str) -> str:
    """UTF-8 text, with or without a byte order mark; line ends become "\\n".

    Raises InputError for binary data and for other encodings.
    """
    if b"\0" in data[:65536]:
        raise InputError(f"{name}: binary, not text", "Give a text file (.txt, .md, .rst).")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: not UTF-8 (byte {error.start})", "Convert it first, as with iconv -t utf-8."
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise InputError(f"{name}: empty", "Give a document with text in it.")
    return text


LOADERS: dict[str, Callable[[bytes, str], str]] = {
    "": decode_text,
    ".txt": decode_text,
    ".text": decode_text,
    ".md": decode_text,
    ".markdown": decode_text,
    ".rst": decode_text,
}


def load(paths: Sequence[str], stdin: BinaryIO | None = None) -> list[Document]:
    """Documents of all `paths` in the order given; a folder's in sorted order.

    `stdin` is read where a path is "-". A file named twice is loaded once. Raises InputError.
    """
    documents: list[Document] = []
    seen: set[Path] = set()
    for path in paths:
        if path == STDIN:
            documents.append(_from_stdin(stdin))
            continue
        for file in _checked_files(path):
            if (real := file.resolve()) not in seen:
                seen.add(real)
                documents.append(_from_file(file))
    return documents


def _from_stdin(stdin: BinaryIO | None) -> Document:
    if stdin is None:
        raise InputError("standard input: nothing is piped in", "Pipe a text in or name a file.")
    return Document("stdin", decode_text(stdin.read(), "standard input"))


def _checked_files(path: str) -> list[Path]:
    try:
        return _files(path)
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such home, a null byte
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        shown = path if len(path) < 80 else f"{path[:60]}…"
        raise InputError(f"{shown}: {reason}", "Check the path.") from None


def _files(path: str) -> list[Path]:
    root = Path(path).expanduser()
    if root.is_dir():
        return _folder(root)
    if root.exists():
        return [root]
    if glob.has_magic(path):
        found = sorted(glob.glob(str(root), recursive=True))
        files = [Path(f) for f in found if Path(f).is_file()]
        if files:
            return files
        raise InputError(f"{path}: no file matches", "Check the pattern.")
    raise InputError(f"{path}: no such file or folder", "Check the path.")


def _folder(root: Path) -> list[Path]:
    """Known, visible files below a folder, by relative path."""
    files = [
        f
        for f in sorted(root.rglob("*"))
        if not any(part.startswith(".") for part in f.relative_to(root).parts)
        and f.suffix.lower() in LOADERS
        and f.is_file()
    ]
    if not files:
        known = ", ".join(s for s in LOADERS if s)
        raise InputError(f"{root}: no documents in this folder", f"Files read here: {known}.")
    return files


def _from_file(file: Path) -> Document:
    loader = LOADERS.get(file.suffix.lower(), decode_text)  # named outright: try it as text
    try:
        data = file.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{file}: {reason}", "Check the file and its permissions.") from None
    return Document(utf8(file.name), loader(data, str(file)))
