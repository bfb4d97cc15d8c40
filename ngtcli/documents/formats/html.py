"""HTML: the main text of a page, found by trafilatura; all its text where it has few links.

Every block of the page gets a mark, a sign that the page has not. The marks that come out of
trafilatura say which blocks are the main ones; they are read off the page itself, so that its
headings, paragraphs, lists and tables stay as they are. A page of more blocks than marks
is read whole.
"""

import re
import unicodedata
from copy import deepcopy
from typing import Any

import trafilatura
from lxml import etree

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.markup import HIDDEN, INLINE, decode_page, tree_of, write_tree

_LINKS = 5  # most links to elsewhere on a page that is read whole, its menu aside; guess
_HEADING = 12  # most words that are left out silently; guess
# About 6,000 marks. Single ones change least of what trafilatura, which counts characters, finds.
_SIGNS = [chr(i) for i in range(0x2190, 0x1FB00) if unicodedata.category(chr(i)) == "So"]
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML


def parse(source: Source) -> Extracted:
    """The article of a page with its headings; navigation and the like are left out."""
    page, told = decode_page(source.data)
    tree = tree_of(page)
    starts = _starts(tree)
    used = set("".join(tree.itertext()))
    signs = [sign for sign in _SIGNS if sign not in used]
    links = sum(not link.startswith("#") for link in tree.xpath("//a/@href"))
    if links <= _LINKS or len(starts) > len(signs):
        return _whole(tree, told)
    for (element, name, text), sign in zip(starts, signs, strict=False):
        words = text.lstrip()  # a mark before white space would keep it from being stripped
        setattr(element, name, text[: len(text) - len(words)] + sign + words)
    found = trafilatura.bare_extraction(deepcopy(tree), include_comments=False, favor_recall=True)
    body = getattr(found, "body", None)  # as trafilatura's elements
    if body is None:
        for element, name, text in starts:
            setattr(element, name, text)
        return _whole(tree, told)
    marks = frozenset(signs)
    if marks.isdisjoint("".join(body.itertext())):  # the text comes from a script, as JSON
        plain = Writer()
        for block in body.itertext():
            plain.add(block)
        return plain.extracted("html", told)
    main = frozenset(c for root in (body, *tree.iter("h1")) for c in "".join(root.itertext()))
    writer = _Main(marks, main)
    write_tree(tree, writer)
    return _extracted(writer, writer.left, told)


def _whole(tree: Any, told: tuple[str, ...]) -> Extracted:
    """All text of a page but its menus; these too if there is nothing else."""
    whole, without = Writer(), Writer()
    write_tree(tree, whole)
    for menu in list(tree.iter("nav")):
        menu.clear(keep_tail=True)
    write_tree(tree, without)
    writer = without if len(without) else whole
    return _extracted(writer, len(whole.text().split()) - len(writer.text().split()), told)


def _extracted(writer: Writer, left: int, told: tuple[str, ...]) -> Extracted:
    if left > _HEADING:
        told += (f"left out as no part of the main text: {left} words",)
    return writer.extracted("html", told)


def _starts(tree: Any) -> list[tuple[Any, str, str]]:
    """The first text of each block, as (element, "text" or "tail", text); control characters go."""
    starts: list[tuple[Any, str, str]] = []
    is_first = True
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        is_first = is_first or element.tag not in INLINE
        name = "text" if event == "start" else "tail"
        text = getattr(element, name)
        if not text or text.isspace() or (name == "text" and element.tag in HIDDEN):
            continue
        text = _CONTROL.sub(" ", text)
        setattr(element, name, text)
        if is_first and not text.isspace():
            starts.append((element, name, text))
            is_first = False
    return starts


class _Main(Writer):
    """Takes the blocks whose mark, one of `signs`, is in `main`; `left` counts words left out.

    A heading is taken too if the block behind it is.
    """

    def __init__(self, signs: frozenset[str], main: frozenset[str]) -> None:
        super().__init__()
        self._main, self._waiting = main & signs, ""
        self._marks = dict.fromkeys(map(ord, signs))
        self.left = 0

    def add(self, block: str, kind: str = "") -> None:
        """A block, unless it is left out; first the heading that waits for it."""
        waiting, self._waiting = self._waiting, ""
        if self._main.isdisjoint(block):
            return self._leave(f"{waiting} {block}")
        if waiting:
            self._name(waiting)
        super().add(block.translate(self._marks), kind)

    def heading(self, words: str, page: int = 0) -> None:
        """A heading, which may have to wait for the block behind it."""
        self._leave(self._waiting)
        self._waiting = ""
        self.stand_apart()
        if self._main.isdisjoint(words):
            self._waiting = words
        else:
            self._name(words)

    def _name(self, words: str) -> None:
        words = " ".join(words.translate(self._marks).split())
        self.mark(0, words)
        super().add(words)

    def _leave(self, block: str) -> None:
        if words := block.translate(self._marks).split():
            self.left += len(words)
            self.stand_apart()
