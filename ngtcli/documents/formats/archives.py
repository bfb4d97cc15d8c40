"""Files inside of files: gzip files, zip archives and their bounds, and the XML in them."""

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats import FORMATS, GZ, GZIP, HEAD, format_of, parse
from ngtcli.documents.text import Unreadable, decode_text

_MEMBERS = 10_000  # most files in an archive that is read; guess
_RATIO = 1000  # most bytes that one packed byte may stand for: deflate's limit is 1032
_SMALL = 1_000_000  # bytes, up to which any ratio passes; guess
_BROKEN = (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError)
_AGAIN = "Save or copy it again."
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")  # names in Office's "strict" files
_RELATIONS = "_rels/.rels"  # of Office files
_USUAL = rb"http://schemas.openxmlformats.org/\1/2006/"
_Row = TypeVar("_Row")


def parse_xml(data: str | bytes) -> Any:
    """The root element. Raises Unreadable for broken XML, and for entities that it defines."""
    from lxml import etree  # here: gzip files need no package

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True
    )
    try:
        root = etree.fromstring(data, parser)
    except (etree.LxmlError, ValueError) as error:
        raise Unreadable(f"broken XML ({error})"[:200], _AGAIN) from None
    defined = root.getroottree().docinfo.internalDTD
    if defined is not None and next(defined.iterentities(), None) is not None:
        told = "it defines XML entities, which are not expanded"
        raise Unreadable(told, "Save it again.")
    return root


def parse_zip(source: Source) -> Extracted:
    """The text of an archive that is a document; its name counts where no member tells which.

    Raises Unreadable.
    """
    with open_archive(source) as archive:
        names = archive.NameToInfo
        named = format_of(source.suffix, b"")
        found = next((form for form in FORMATS if form.member in names), named)
        if found is None or not found.member:
            raise Unreadable("a zip archive, which is not read", "Unpack it.")
        if _RELATIONS in names and _STRICT.search(member(archive, _RELATIONS)):
            source = _usual(source, archive)
    return found.parser()(source)


def _usual(source: Source, archive: zipfile.ZipFile) -> Source:
    """An Office file in the strict form of its standard, in the form that programs write."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as rewritten:
        for name in archive.NameToInfo:
            rewritten.writestr(name, _STRICT.sub(_USUAL, member(archive, name)))
    return replace(source, data=out.getvalue())


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


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of one member. Raises Unreadable if it is missing, broken or encrypted."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable(f"broken: {name[:100]} is missing", _AGAIN) from None
    except (*_BROKEN, zlib.error) as error:
        raise Unreadable(f"broken: {name[:100]} ({error})"[:200], _AGAIN) from None


def bounded(rows: Iterable[_Row], writer: Writer, most: int) -> Iterator[_Row]:
    """The rows of a sheet. Raises Unreadable once more than `most` characters are written."""
    for row in rows:
        if len(writer) > most:
            raise Unreadable("a spreadsheet with too much text in it", "Save it as CSV.")
        yield row


def parse_gzip(source: Source) -> Extracted:
    """The text of the packed file. Raises Unreadable."""
    try:
        data = gzip.GzipFile(fileobj=io.BytesIO(source.data)).read(source.most + 1)
    except (EOFError, OSError, zlib.error) as error:
        told = "it ends too early" if isinstance(error, EOFError) else error
        raise Unreadable(f"broken gzip ({told})"[:200], "Copy or pack it again.") from None
    if len(data) > source.most:
        what = f"it unpacks to more than {source.most / 1e6:g} MB"
        raise Unreadable(what, "Raise the bound with --max-mb.")
    suffix = source.suffix.removesuffix(GZIP)
    inner = format_of(suffix, data[:HEAD])
    if inner is None:
        return Extracted(decode_text(data))
    if inner is GZ:
        raise Unreadable("packed more than once", "Unpack it first, as with gunzip.")
    return parse(inner, replace(source, data=data, suffix=suffix))
