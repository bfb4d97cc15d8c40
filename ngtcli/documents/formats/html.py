"""HTML: the main text of a page, found by trafilatura; all its text where it has few links."""

from copy import deepcopy
from typing import Any

import trafilatura
from lxml import html

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.markup import decode_page, parse_xml, tree_of, write_tree

_LINKS = 5  # most links to elsewhere on a page that is read whole, its menu aside; guess
_HEADING = 12  # most words that are left out silently; guess
_TEMPLATES = "//noscript[normalize-space()] | //script[contains(@type, 'template')]"
_REVEALED = 2  # least words of a page with its templates shown, to those without them; guess


def parse(source: Source) -> Extracted:
    """The article of a page with its headings; navigation and the like are left out."""
    page, told = decode_page(source.data)
    tree = tree_of(page)
    writer, left = _read(tree)
    if tree.xpath(_TEMPLATES):
        revealed = _read(_with_templates(tree_of(page)))
        if len(revealed[0]) >= _REVEALED * len(writer):
            writer, left = revealed
    if left > _HEADING:
        told += (f"left out as no part of the main text: {left} words",)
    return writer.extracted("html", told)


def _with_templates(tree: Any) -> Any:
    """The page as it is once a script has put its templates in their place."""
    for element in tree.xpath(_TEMPLATES):
        if element.tag == "script":
            element.append(html.fragment_fromstring(element.text or "", create_parent=True))
            element.text = None
        element.tag = "div"
        element.attrib.clear()
    return tree


def _read(tree: Any) -> tuple[Writer, int]:
    """The text of a page, and the number of words that were left out."""
    whole, writer = Writer(), Writer()
    write_tree(tree, whole)
    links = sum(not link.startswith("#") for link in tree.xpath("//a/@href"))
    main = None
    if links > _LINKS:
        main = trafilatura.extract(deepcopy(tree), output_format="html", include_comments=False)
    if main:
        body = parse_xml(main)
        for code in body.xpath("//pre[not(contains(., '\n'))]"):  # in text
            code.tag = "code"
        if body.find(".//h1") is None:  # it stands outside of the main text
            writer.heading(tree.xpath("string((//h1)[1])"))
        write_tree(body, writer)
    else:
        for menu in list(tree.iter("nav")):
            menu.clear(keep_tail=True)
        write_tree(tree, writer)
    writer = writer if len(writer) else whole  # a page of menus alone
    return writer, len(whole.text().split()) - len(writer.text().split())
