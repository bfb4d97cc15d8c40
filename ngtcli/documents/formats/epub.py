"""EPUB: the chapters in the order of the spine, each an HTML page."""

import posixpath
import zlib
from collections.abc import Iterator
from urllib.parse import unquote
from zipfile import BadZipFile, ZipFile

from lxml.etree import LxmlError

from ngtcli.documents.content import Extracted, ParserInput, Writer
from ngtcli.documents.formats.archives import open_archive
from ngtcli.documents.formats.markup import decode_page, parse_xml, tree_of, write_tree
from ngtcli.documents.formats.visible import keep_visible
from ngtcli.documents.text import Unreadable

_CONTAINER = "META-INF/container.xml"
_PAGE_TYPES = ("application/xhtml+xml", "text/html", "application/xml")
# Errors of a chapter. RuntimeError is zipfile's, for unsupported compression or a password.
_CHAPTER_ERRORS = (
    KeyError,
    BadZipFile,
    zlib.error,
    EOFError,
    LxmlError,
    Unreadable,
    RuntimeError,
)


def parse(source: ParserInput) -> Extracted:
    """Read all chapters; those that are broken are counted in a warning.

    Raises:
        Unreadable: The book is copy-protected, or too large. Other errors, such as a KeyError for
            an archive without _CONTAINER, reach the worker, which reports the file as broken.
    """
    archive = open_archive(source)
    writer = Writer()
    unread_chapters = 0
    for name in _chapters(archive):
        if name is None:
            unread_chapters += 1
            continue
        try:
            page, _ = decode_page(archive.read(name), source.encoding)
            tree = tree_of(page)
            keep_visible(tree)
            write_tree(tree, writer)
        except RecursionError:  # It is a RuntimeError, too, but the worker has a message for it.
            raise
        except _CHAPTER_ERRORS:
            unread_chapters += 1
    if not len(writer) and "META-INF/encryption.xml" in archive.NameToInfo:
        raise Unreadable(
            "copy-protected (DRM), so it cannot be read",
            "Ask the seller for a copy without DRM.",
        )
    warnings: tuple[str, ...] = ()
    if unread_chapters:
        warnings = (f"chapters that are missing, broken or not HTML: {unread_chapters}",)
    return writer.extracted("epub", warnings)


def _chapters(archive: ZipFile) -> Iterator[str | None]:
    """Yield the names of the book's chapters in the archive, in reading order.

    None stands for a chapter that the manifest lacks, or that is not HTML, such as a picture.
    """
    package_path = parse_xml(archive.read(_CONTAINER)).xpath("string(//@full-path)")
    package = parse_xml(archive.read(package_path))
    folder = posixpath.dirname(package_path)
    items = {item.get("id"): item for item in package.iter("{*}item")}
    for reference in package.iter("{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is None or item.get("media-type") not in _PAGE_TYPES:
            yield None
            continue
        href = unquote((item.get("href") or "").split("#")[0])
        yield posixpath.normpath(posixpath.join(folder, href))
