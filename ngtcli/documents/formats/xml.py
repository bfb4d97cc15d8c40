"""XML, such as articles in JATS: paragraphs, headings, lists, and tables as rows."""

import re
from html.entities import html5
from typing import Any

from lxml import etree

from ngtcli.documents.content import Extracted, ParserInput, Writer
from ngtcli.documents.formats.equations import MATHML, mathml
from ngtcli.documents.formats.markup import decode_page, is_blank, parse_xml, write_tree

_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")  # lxml accepts no str that declares an encoding
_LITERAL = r"<!\[CDATA\[.*?\]\]>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>"
# A named entity, other than the five of XML. Its DTD is not fetched.
_ENTITY = re.compile(rf"{_LITERAL}|&(?!(?:amp|lt|gt|quot|apos);)(\w[\w.-]*);", re.DOTALL)
_ENTITY_DECLARATION = re.compile(r"<!ENTITY\s+([\w.-]+)\s")
# Greek letters of ISOgrk1 and ISOgrk2, which HTML lacks, by their names without "gr" at the end.
_GREEK_NAMES = "a b g d e z ee th i k l m n x o p r s sf t u ph kh ps oh".split()
_GREEK = dict(zip(_GREEK_NAMES, "αβγδεζηθικλμνξοπρσςτυφχψω", strict=True))
_GREEK |= {name.title(): letter.upper() for name, letter in _GREEK.items()}
_GREEK |= {name.upper(): letter.upper() for name, letter in _GREEK.items() if len(name) == 2}
_GREEK |= {"aa": "ά", "ea": "έ", "ia": "ί", "oa": "ό"}
# The HTML elements for those of JATS, DocBook, TEI and XHTML. Within text, "h2" does not apply.
_TAGS = {name: name for name in "p pre br ul ol li table tr td th h1 h2 h3 h4 h5 h6".split()} | {
    "title": "h2",
    "head": "h2",
    "para": "p",
    "break": "br",
    "lb": "br",
    "list-item": "li",
    "listitem": "li",
    "row": "tr",
    "entry": "td",
    "cell": "td",
}
_RAISED = ("sup", "superscript")
_REFERENCE_TYPES = ("bibr", "fn", "table-fn", "corresp", "aff")  # of <xref> in JATS
_REFERENCE_MARK = re.compile(r"[\d,;–\-\s*†‡§a-z]{1,20}")  # without brackets
_EXPONENT = re.compile(r"[-+−–]?\d+(?:[.,/]\d+)?")
_MAX_CHILDREN = 9  # of an element whose text is compared with the one after it, to bound the work


def parse(source: ParserInput) -> Extracted:
    """Read the text of all elements. Raises etree.XMLSyntaxError."""
    markup, warnings = decode_page(source.data, source.encoding)
    markup = _DECLARATION.sub("", markup)
    declared = set(_ENTITY_DECLARATION.findall(markup))
    markup = _ENTITY.sub(lambda match: _replace_entity(match, declared), markup)
    root = parse_xml(markup)
    for formula in list(root.iter(MATHML)):
        text = mathml(formula)
        formula.clear(keep_tail=True)
        formula.text = text
    _separate_raised(root)
    _rename_as_html(root)
    writer = Writer()
    write_tree(root, writer)
    return writer.extracted("xml", warnings)


def _replace_entity(match: re.Match[str], declared: set[str]) -> str:
    """Replace an entity by its character; an unknown one is shown by its name.

    Entities that the file has declared itself stay, and so do comments and the like.
    """
    name = match[1]
    if name is None or name in declared:
        return match[0]
    if f"{name};" in html5:
        return html5[f"{name};"]
    return _GREEK.get(name.removesuffix("gr"), "") or f"&amp;{name};"


def _separate_raised(root: Any) -> None:
    """Separate exponents and reference marks from the word or number before them."""
    for element in root.iter(etree.Element):
        name = etree.QName(element).localname
        text = "".join(element.itertext()).strip()
        if not text or not _text_before(element)[-1:].isalnum():
            continue
        is_raised = name in _RAISED
        if name == "xref":
            is_reference = element.get("ref-type") in _REFERENCE_TYPES
        else:
            is_reference = is_raised and _has_reference(element)
        if is_reference and _REFERENCE_MARK.fullmatch(text) and not text.isalpha():
            _add_around(element, " [", "]")
        elif is_raised and _EXPONENT.fullmatch(text):
            _add_around(element, "^", "")


def _has_reference(raised: Any) -> bool:
    return any(xref.get("ref-type") in _REFERENCE_TYPES for xref in raised.iter("{*}xref"))


def _text_before(element: Any) -> str:
    """The text right before an element, in its parent."""
    previous = element.getprevious()
    if previous is not None:
        if previous.tail:
            return str(previous.tail)
        return "".join(previous.itertext()) if len(previous) < _MAX_CHILDREN else ""
    parent = element.getparent()
    return (parent.text or "") if parent is not None else ""


def _add_around(element: Any, before: str, after: str) -> None:
    """Put text before and after the content of an element."""
    element.text = before + (element.text or "")
    if after and len(element):
        element[-1].tail = (element[-1].tail or "") + after
    elif after:
        element.text += after


def _rename_as_html(root: Any) -> None:
    """Name elements as in HTML.

    Other elements that have text become paragraphs, those within text inline elements.
    """
    pending = [(root, False)]
    while pending:
        element, is_in_text = pending.pop()
        has_text = not is_blank(element.text, *(child.tail for child in element))
        tag = _TAGS.get(etree.QName(element).localname, "")
        if is_in_text and tag == "h2":
            tag = ""
        if not tag:
            if is_in_text:
                tag = "span"
            else:
                tag = "p" if has_text else "div"
        element.tag = tag
        pending += [(child, has_text or tag == "span") for child in element]
