"""EPUB: the chapters in the order of the spine, each an HTML page."""

import posixpath
import zlib
from collections.abc import Iterator
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from lxml.etree import LxmlError

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.archives import open_archive
from ngtcli.documents.formats.markup import decode_page, parse_xml, tree_of, write_tree
from ngtcli.documents.formats.visible import show
from ngtcli.documents.text import Unreadable

_CONTAINER = "META-INF/container.xml"
_BROKEN = (KeyError, BadZipFile, zlib.error, EOFError, LxmlError, Unreadable)  # is a chapter then
_PAGES = ("application/xhtml+xml", "text/html", "application/xml")


def parse(source: Source) -> Extracted:
    """The text of all chapters. Raises Unreadable, also for a book with copy protection."""
    archive = open_archive(source)
    writer, missing = Writer(), 0
    for name in _chapters(archive):
        try:
            page, _ = decode_page(archive.read(name), source.encoding)
            tree = tree_of(page)
            show(tree)
            write_tree(tree, writer)
        except RecursionError:
            raise
        except (*_BROKEN, RuntimeError):  # zipfile's, for a packing or a password it cannot do
            missing += 1
    if not len(writer) and "META-INF/encryption.xml" in archive.NameToInfo:
        what = "copy-protected (DRM), so it cannot be read"
        raise Unreadable(what, "Ask its seller for one without.")
    told = (f"chapters that are missing or broken: {missing}",) * bool(missing)
    return writer.extracted("epub", told)


def _chapters(archive: ZipFile) -> Iterator[str]:
    """The members with the book's pages, in reading order."""
    place = parse_xml(archive.read(_CONTAINER)).xpath("string(//@full-path)")
    package = parse_xml(archive.read(place))
    items = {e.get("id"): e for e in package.iter("{*}item") if e.get("media-type") in _PAGES}
    for reference in package.iter("{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is not None:
            href = unquote((item.get("href") or "").split("#")[0])
            yield posixpath.normpath(posixpath.join(posixpath.dirname(place), href))
