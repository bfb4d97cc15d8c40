"""XML, such as articles in JATS: paragraphs, headings, lists, and tables as rows."""

import re
from html import unescape
from typing import Any

from lxml import etree

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.markup import decode_page, is_blank, parse_xml, write_tree

_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")  # lxml takes no str that declares an encoding
_NAMED = re.compile(r"&(?!(?:amp|lt|gt|quot|apos);)\w+;")  # a DTD that is not fetched has them
# What elements of JATS, DocBook, TEI and XHTML stand for in HTML; "h2" in text is none.
_TAGS = {name: name for name in "p pre br ul ol li table tr td th h1 h2 h3 h4 h5 h6".split()} | {
    "title": "h2", "head": "h2", "para": "p", "break": "br", "lb": "br", "list-item": "li",
    "listitem": "li", "row": "tr", "entry": "td", "cell": "td",
}  # fmt: skip


def parse(source: Source) -> Extracted:
    """The text of all elements. Raises etree.XMLSyntaxError."""
    page, told = decode_page(source.data)
    page = _NAMED.sub(lambda found: unescape(found[0]), _DECLARATION.sub("", page))
    root = parse_xml(page)
    _as_html(root)
    writer = Writer()
    write_tree(root, writer)
    return writer.extracted("xml", told)


def _as_html(root: Any) -> None:
    """Name elements as in HTML: those that have text are paragraphs, those in text are inline."""
    waiting = [(root, False)]
    while waiting:
        element, in_text = waiting.pop()
        has_text = not is_blank(element.text, *(child.tail for child in element))
        tag = _TAGS.get(etree.QName(element).localname, "")
        if not tag or (in_text and tag == "h2"):
            tag = "span" if in_text else "p" if has_text else "div"
        element.tag = tag
        waiting += [(child, has_text or tag == "span") for child in element]
