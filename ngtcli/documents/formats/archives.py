"""Files inside of files: gzip files, zip archives and their bounds, and the XML in them."""

import io
import zipfile
import zlib
from dataclasses import replace
from typing import Any

from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.formats import FORMATS, GZ, GZIP, HEAD, format_of, parse
from ngtcli.documents.text import Unreadable, decode_text

_MEMBERS = 10_000  # most files in an archive that is read; guess
_RATIO = 1000  # most bytes that one packed byte may stand for: deflate's limit is 1032
_SMALL = 1_000_000  # bytes, up to which any ratio passes; guess
_BROKEN = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError)
_AGAIN = "Save or copy it again."
_ANEW = "Copy or pack it again."


def parse_xml(data: bytes) -> Any:
    """The root element. Raises Unreadable for broken XML, and for entities that it defines."""
    from defusedxml import DefusedXmlException, ElementTree  # here: gzip files need no package

    try:
        return ElementTree.fromstring(data, forbid_entities=True, forbid_external=True)
    except DefusedXmlException:
        told = "it defines XML entities, which are not expanded"
        raise Unreadable(told, "Save it again.") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise Unreadable(f"broken XML ({error})"[:200], _AGAIN) from None


def parse_zip(source: Source) -> Extracted:
    """The text of an archive that is a document; its name counts where no member tells which.

    Raises Unreadable.
    """
    names = set(open_archive(source).namelist())
    named = format_of(source.suffix, b"")
    found = next((form for form in FORMATS if form.member in names), named)
    if found is None or not found.member:
        raise Unreadable("a zip archive, which is not read", "Unpack it.")
    return found.parser()(source)


def open_archive(source: Source) -> zipfile.ZipFile:
    """The archive, whose members together unpack to `source.most` bytes at most.

    Raises Unreadable.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(source.data))
    except _BROKEN as error:
        raise Unreadable(f"a broken zip archive ({error})"[:200], _AGAIN) from None
    members = archive.infolist()
    size = sum(member.file_size for member in members)
    if len(members) > _MEMBERS:
        raise Unreadable(f"an archive of {len(members)} files", "Unpack it.")
    if size > source.most or (size > _SMALL and size > _RATIO * len(source.data)):
        advice = "Raise the bound with --max-mb if it is sound."
        raise Unreadable(f"it unpacks to {size / 1e6:.0f} MB", advice)
    return archive


def check_archive(source: Source) -> None:
    """Raise Unreadable for an archive that `open_archive` would not open."""
    open_archive(source).close()


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of one member. Raises Unreadable if it is missing, broken or encrypted."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable(f"broken: {name[:100]} is missing", _AGAIN) from None
    except (*_BROKEN, zlib.error) as error:
        raise Unreadable(f"broken: {name[:100]} ({error})"[:200], _AGAIN) from None


def parse_gzip(source: Source) -> Extracted:
    """The text of the packed file. Raises Unreadable."""
    data, suffix = unpack(source.data, source.most), source.suffix.removesuffix(GZIP)
    inner = format_of(suffix, data[:HEAD])
    if inner is None:
        return Extracted(decode_text(data))
    if inner is GZ:
        raise Unreadable("packed more than once", "Unpack it first, as with gunzip.")
    return parse(inner, replace(source, data=data, suffix=suffix))


def unpack(data: bytes, most: int) -> bytes:
    """The unpacked bytes of all members, `most` at most. Raises Unreadable."""
    parts: list[bytes] = []
    left = most
    while data:
        inflater = zlib.decompressobj(wbits=31)
        try:
            part = inflater.decompress(data, left + 1)
        except zlib.error as error:
            if parts:  # as gzip does, what follows the last member is ignored
                break
            raise Unreadable(f"broken gzip ({error})", _ANEW) from None
        left -= len(part)
        if left < 0:
            what = f"it unpacks to more than {most / 1e6:g} MB"
            raise Unreadable(what, "Raise the bound with --max-mb.")
        if not inflater.eof:
            raise Unreadable("broken gzip (it ends too early)", _ANEW)
        parts.append(part)
        data = inflater.unused_data
    return b"".join(parts)
