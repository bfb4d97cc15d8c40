"""Gzip files, and zip archives that are documents, with the bound of what they unpack to."""

import gzip
import io
import re
import zipfile
from dataclasses import replace

from ngtcli.documents.content import About, Extracted, Source
from ngtcli.documents.formats import FORMATS, GZ, GZIP, HEAD, format_of, parse
from ngtcli.documents.text import Unreadable, decoded

_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")  # names in Office's "strict" files
_USUAL = rb"http://schemas.openxmlformats.org/\1/2006/"
_RELATIONS = "_rels/.rels"  # of Office files


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
        if _RELATIONS in names and _STRICT.search(archive.read(_RELATIONS)):
            source = _usual(source, archive)
    return found.parser()(source)


def _usual(source: Source, archive: zipfile.ZipFile) -> Source:
    """An Office file in the strict form of its standard, in the form that programs write."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as rewritten:
        for name in archive.NameToInfo:
            rewritten.writestr(name, _STRICT.sub(_USUAL, archive.read(name)))
    return replace(source, data=out.getvalue())


def open_archive(source: Source) -> zipfile.ZipFile:
    """The archive. Raises Unreadable if its members unpack to more than `source.most` bytes."""
    archive = zipfile.ZipFile(io.BytesIO(source.data))
    _check(sum(member.file_size for member in archive.infolist()), source)
    return archive


def parse_gzip(source: Source) -> Extracted:
    """The text of the packed file. Raises Unreadable."""
    data = _unpacked(source)
    _check(len(data), source)
    suffix = source.suffix.removesuffix(GZIP)
    inner = format_of(suffix, data[:HEAD])
    if inner is None:
        text, warnings = decoded(data, source.encoding)
        return Extracted(text, About(warnings=warnings))
    if inner is GZ:
        raise Unreadable("packed more than once", "Unpack it first, as with gunzip.")
    return parse(inner, replace(source, data=data, suffix=suffix))


def _unpacked(source: Source) -> bytes:
    """What is packed, up to a byte over the bound; what is behind it is ignored, as by gzip."""
    file, pieces, left = gzip.GzipFile(fileobj=io.BytesIO(source.data)), list[bytes](), source.most
    try:
        while left >= 0 and (piece := file.read1(left + 1)):
            pieces.append(piece)
            left -= len(piece)
    except gzip.BadGzipFile as error:
        if not pieces or not str(error).startswith("Not a gzipped file"):
            raise
    return b"".join(pieces)


def _check(size: int, source: Source) -> None:
    if size > source.most:
        what = f"it unpacks to more than {source.most / 1e6:g} MB"
        raise Unreadable(what, "Raise the bound with --set max_mb if it is sound.")
