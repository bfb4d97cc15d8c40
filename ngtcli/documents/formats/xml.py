"""XML, such as articles in JATS: paragraphs, headings, lists, and tables as rows."""

import re
from html.entities import html5
from typing import Any

from lxml import etree

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.equations import MATHML, mathml
from ngtcli.documents.formats.markup import decode_page, is_blank, parse_xml, write_tree

_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")  # lxml takes no str that declares an encoding
_AS_IT_IS = r"<!\[CDATA\[.*?\]\]>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[.*?\]\s*)?>"
# A name that a DTD has, which is not fetched; XML has five of its own.
_NAMED = re.compile(rf"{_AS_IT_IS}|&(?!(?:amp|lt|gt|quot|apos);)(\w[\w.-]*);", re.DOTALL)
_DECLARED = re.compile(r"<!ENTITY\s+([\w.-]+)\s")
# The letters of the sets ISOgrk1 and ISOgrk2, which are not of HTML, without "gr" behind each.
_GREEK = dict(
    zip(
        "a b g d e z ee th i k l m n x o p r s sf t u ph kh ps oh".split(),
        "αβγδεζηθικλμνξοπρσςτυφχψω",
        strict=True,
    )
)
_GREEK |= {name.title(): sign.upper() for name, sign in _GREEK.items()}
_GREEK |= {name.upper(): sign.upper() for name, sign in _GREEK.items() if len(name) == 2}
_GREEK |= {f"{name[0]}a": sign for name, sign in (("a", "ά"), ("e", "έ"), ("i", "ί"), ("o", "ό"))}
# What elements of JATS, DocBook, TEI and XHTML stand for in HTML; "h2" in text is none.
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
_MARKS = ("bibr", "fn", "table-fn", "corresp", "aff")  # of references by xref, in JATS
_BARE = re.compile(r"[\d,;–\-\s*†‡§a-z]{1,20}")  # a reference mark that has no brackets of its own


def parse(source: Source) -> Extracted:
    """The text of all elements. Raises etree.XMLSyntaxError."""
    page, told = decode_page(source.data, source.encoding)
    page = _DECLARATION.sub("", page)
    own = set(_DECLARED.findall(page))
    page = _NAMED.sub(lambda found: _character(found, own), page)
    root = parse_xml(page)
    for formula in list(root.iter(MATHML)):
        text = mathml(formula)
        formula.clear(keep_tail=True)
        formula.text = text
    _raise_marks(root)
    _as_html(root)
    writer = Writer()
    write_tree(root, writer)
    return writer.extracted("xml", told)


def _character(found: re.Match[str], own: set[str]) -> str:
    """The character that a name stands for; one that is not known is shown by its name."""
    name = found[1]
    if name is None or name in own:
        return found[0]
    if f"{name};" in html5:
        return html5[f"{name};"]
    return _GREEK.get(name.removesuffix("gr"), "") or f"&amp;{name};"


def _raise_marks(root: Any) -> None:
    """Part exponents and reference marks from the word or number that they stand upon."""
    for element in root.iter(etree.Element):
        name = etree.QName(element).localname
        text = "".join(element.itertext()).strip()
        before = _before(element)
        if not text or not before[-1:].isalnum():
            continue
        is_mark = name == "xref" and element.get("ref-type") in _MARKS
        is_mark = is_mark or (name in _RAISED and _has_mark(element))
        if is_mark and _BARE.fullmatch(text) and not text.isalpha():
            _add_around(element, " [", "]")
        elif name in _RAISED and re.fullmatch(r"[-+−–]?\d+(?:[.,/]\d+)?", text):
            _add_around(element, "^", "")


def _has_mark(raised: Any) -> bool:
    return any(inner.get("ref-type") in _MARKS for inner in raised.iter("{*}xref"))


def _before(element: Any) -> str:
    """The text that stands right before an element, in its parent."""
    if (previous := element.getprevious()) is not None:
        return previous.tail or ("".join(previous.itertext()) if len(previous) < 9 else "")
    parent = element.getparent()
    return (parent.text or "") if parent is not None else ""


def _add_around(element: Any, before: str, behind: str) -> None:
    """Put text before and behind what is in an element."""
    element.text = before + (element.text or "")
    if behind and len(element):
        element[-1].tail = (element[-1].tail or "") + behind
    elif behind:
        element.text += behind


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
