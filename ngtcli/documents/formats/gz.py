"""Gzip: what is inside, as the rest of the file's name says."""

import zlib
from dataclasses import replace
from importlib import import_module

from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.formats import GZ, GZIP, format_of
from ngtcli.documents.text import Unreadable, decode_text

_ANEW = "Copy or pack it again."


def parse(source: Source) -> Extracted:
    """The text of the packed file. Raises Unreadable."""
    data, suffix = unpack(source.data, source.most), source.suffix.removesuffix(GZIP)
    inner = format_of(suffix, data[:1024])
    if inner is None:
        return Extracted(decode_text(data))
    if inner is GZ:
        raise Unreadable("packed more than once", "Unpack it first, as with gunzip.")
    module = import_module(f"ngtcli.documents.formats.{inner.module}")
    found: Extracted = module.parse(replace(source, data=data, suffix=suffix))
    return found


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
            raise Unreadable(
                f"it unpacks to more than {most / 1e6:g} MB", "Raise the bound with --max-mb."
            )
        if not inflater.eof:
            raise Unreadable("broken gzip (it ends too early)", _ANEW)
        parts.append(part)
        data = inflater.unused_data
    return b"".join(parts)
