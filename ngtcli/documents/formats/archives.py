"""Gzip files, and zip archives that are documents; what they unpack to is bounded."""

import gzip
import io
import re
import zipfile
from dataclasses import replace

from ngtcli.documents.content import About, Extracted, ParserInput
from ngtcli.documents.formats import FORMATS, GZ, GZIP, HEAD, format_of, parse
from ngtcli.documents.text import Unreadable, decode_with_warnings

_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")  # namespaces of "strict" Office files
_TRANSITIONAL = rb"http://schemas.openxmlformats.org/\1/2006/"
_RELATIONS = "_rels/.rels"  # of Office files


def parse_zip(source: ParserInput) -> Extracted:
    """Read an archive that is a document; its suffix counts if no member tells the format.

    Raises:
        Unreadable: It is no document, or unpacks to too much.
    """
    with open_archive(source) as archive:
        members = archive.NameToInfo
        by_suffix = format_of(source.suffix, b"")
        form = next((form for form in FORMATS if form.member in members), by_suffix)
        if form is None or not form.member:
            raise Unreadable("a zip archive, which is not read", "Unpack it.")
        if _RELATIONS in members and _STRICT.search(archive.read(_RELATIONS)):
            source = _to_transitional(source, archive)
    return form.parser()(source)


def _to_transitional(source: ParserInput, archive: zipfile.ZipFile) -> ParserInput:
    """Rewrite an Office file from the strict form of its standard to the usual one."""
    rewritten = io.BytesIO()
    with zipfile.ZipFile(rewritten, "w", zipfile.ZIP_DEFLATED) as transitional:
        for name in archive.NameToInfo:
            transitional.writestr(name, _STRICT.sub(_TRANSITIONAL, archive.read(name)))
    return replace(source, data=rewritten.getvalue())


def open_archive(source: ParserInput) -> zipfile.ZipFile:
    """Open an archive. Raises Unreadable if it unpacks to more than `source.max_bytes`."""
    archive = zipfile.ZipFile(io.BytesIO(source.data))
    _check_size(sum(member.file_size for member in archive.infolist()), source)
    return archive


def parse_gzip(source: ParserInput) -> Extracted:
    """Read the file that is packed. Raises Unreadable if it is not read, or too large."""
    data = _unpack(source)
    _check_size(len(data), source)
    suffix = source.suffix.removesuffix(GZIP)
    inner = format_of(suffix, data[:HEAD])
    if inner is None:
        text, warnings = decode_with_warnings(data, source.encoding)
        return Extracted(text, About(warnings=warnings))
    if inner is GZ:
        raise Unreadable("packed more than once", "Unpack it first, for example with gunzip.")
    return parse(inner, replace(source, data=data, suffix=suffix))


def _unpack(source: ParserInput) -> bytes:
    """Unpack a gzip file up to one byte over the limit; as in gzip, what follows it is ignored."""
    file = gzip.GzipFile(fileobj=io.BytesIO(source.data))
    chunks = list[bytes]()
    remaining = source.max_bytes
    try:
        while remaining >= 0:
            chunk = file.read1(remaining + 1)
            if not chunk:
                break
            chunks.append(chunk)
            remaining -= len(chunk)
    except gzip.BadGzipFile as error:
        if not chunks or not str(error).startswith("Not a gzipped file"):
            raise
    return b"".join(chunks)


def _check_size(size: int, source: ParserInput) -> None:
    if size > source.max_bytes:
        raise Unreadable(
            f"it unpacks to more than {source.max_bytes / 1e6:g} MB",
            "Raise the limit with --set max_mb if you trust the file.",
        )
