"""Zip archives: their bounds, which format one holds, and its members."""

import io
import zipfile
import zlib
from importlib import import_module

from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.formats import format_of
from ngtcli.documents.text import Unreadable

_MEMBERS = 10_000  # most files in an archive that is read; guess
_RATIO = 1000  # most bytes that one packed byte may stand for: deflate's limit is 1032
_SMALL = 1_000_000  # bytes, up to which any ratio passes; guess
# A member that tells the format, and the module that reads it.
_INSIDE = {
    "word/document.xml": "docx",
    "ppt/presentation.xml": "pptx",
    "xl/workbook.xml": "xlsx",
    "META-INF/container.xml": "epub",
    "content.xml": "odt",
}
_BROKEN = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError)


def parse(source: Source) -> Extracted:
    """The text of an archive that is a document; its name counts where no member tells which.

    Raises Unreadable.
    """
    names = set(open_archive(source).namelist())
    named = format_of(source.suffix, b"")
    module = named.name if named is not None and named.module == "packed" else ""
    module = next((_INSIDE[member] for member in _INSIDE if member in names), module)
    if not module:
        raise Unreadable("a zip archive, which is not read", "Unpack it.")
    found: Extracted = import_module(f"ngtcli.documents.formats.{module}").parse(source)
    return found


def open_archive(source: Source) -> zipfile.ZipFile:
    """The archive, whose members together unpack to `source.most` bytes at most.

    Raises Unreadable.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(source.data))
    except (*_BROKEN, ValueError) as error:
        raise Unreadable(
            f"a broken zip archive ({error})"[:200], "Save or copy it again."
        ) from None
    members = archive.infolist()
    size = sum(member.file_size for member in members)
    if len(members) > _MEMBERS:
        raise Unreadable(f"an archive of {len(members)} files", "Unpack it.")
    if size > source.most or (size > _SMALL and size > _RATIO * len(source.data)):
        raise Unreadable(
            f"it unpacks to {size / 1e6:.0f} MB", "Raise the bound with --max-mb if it is sound."
        )
    return archive


def check_archive(source: Source) -> None:
    """Raise Unreadable for an archive that `open_archive` would not open."""
    open_archive(source).close()


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of one member. Raises Unreadable if it is missing, broken or encrypted."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable(f"broken: {name[:100]} is missing", "Save or copy it again.") from None
    except (*_BROKEN, ValueError, zlib.error) as error:
        raise Unreadable(
            f"broken: {name[:100]} ({error})"[:200], "Save or copy it again."
        ) from None
