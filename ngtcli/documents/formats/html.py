"""HTML: the main text of a page, found by trafilatura; all its text where it has few links."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import trafilatura
from lxml import html

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.markup import decode_page, parse_xml, tree_of, write_tree
from ngtcli.documents.formats.visible import STANDS_FOR, show

_LINKS = 5  # most links to elsewhere on a page that is read whole, its menu aside; guess
_HEADING = 12  # most words that are left out silently; guess
_TEMPLATES = "//noscript[normalize-space()] | //script[contains(@type, 'template')]"
_APART = "\U0001d159"  # stands around the number of an item of a list: a sign that shows nothing
_REVEALED = 2  # least words of a page with its templates shown, to those without them; guess


@dataclass(frozen=True, slots=True)
class _Page:
    """The text of a page, and how many words were left out, or are hidden."""

    writer: Writer
    left_out: int
    hidden: int


def parse(source: Source) -> Extracted:
    """The article of a page with its headings; navigation and the like are left out."""
    page, told = decode_page(source.data, source.encoding)
    tree = tree_of(page)
    has_templates = bool(tree.xpath(_TEMPLATES))
    read = _read(tree)
    if has_templates:
        revealed = _read(_with_templates(tree_of(page)))
        if len(revealed.writer) >= _REVEALED * len(read.writer):
            read = revealed
    if read.left_out > _HEADING:
        told += (f"left out as no part of the main text: {read.left_out} words",)
    if read.hidden > _HEADING:
        told += (f"hidden text left out: {read.hidden} words",)
    return read.writer.extracted("html", told)


def _with_templates(tree: Any) -> Any:
    """The page as it is once a script has put its templates in their place."""
    for element in tree.xpath(_TEMPLATES):
        if element.tag == "script":
            element.append(html.fragment_fromstring(element.text or "", create_parent=True))
            element.text = None
        element.tag = "div"
        element.attrib.clear()
    return tree


def _read(tree: Any) -> _Page:
    """The text of a page's tree, which is changed."""
    hidden = show(tree)
    whole, writer = Writer(), Writer()
    write_tree(tree, whole)
    links = sum(not link.startswith("#") for link in tree.xpath("//a/@href"))
    article = _article(tree) if links > _LINKS else None
    if article is not None:
        if article.find(".//h1") is None:  # it stands outside of the main text
            writer.heading(tree.xpath("string((//h1)[1])"))
        write_tree(article, writer)
    else:
        for menu in list(tree.iter("nav")):
            menu.clear(keep_tail=True)
        write_tree(tree, writer)
    writer = writer if len(writer) else whole  # a page of menus alone
    left_out = len(whole.text().split()) - len(writer.text().split())
    return _Page(writer, left_out, hidden)


def _article(tree: Any) -> Any:
    """The main text of a page as trafilatura finds it, a tree; None where it finds none.

    Texts of pictures and fields are no part of it, as they are none for trafilatura.
    """
    copy = deepcopy(tree)
    for element in copy.xpath(f"//*[@{STANDS_FOR}]"):
        element.text = None
    for item in copy.xpath("//li[@mark]"):  # attributes are not kept
        item.text = f"{_APART}{item.get('mark')}{_APART} {item.text or ''}"
    main = trafilatura.extract(copy, output_format="html", include_comments=False)
    if not main:
        return None
    article = parse_xml(main)
    for code in article.xpath("//pre[not(contains(., '\n'))]"):  # in text
        code.tag = "code"
    for item in article.iter("li"):
        _, _, rest = (item.text or "").partition(_APART)
        mark, apart, text = rest.partition(_APART)
        if apart:
            item.set("mark", mark)
            item.text = text
    return article
