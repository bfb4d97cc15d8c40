"""HTML: the main text of a page, found by trafilatura; all its text where it has few links.

Every text of the page gets a number as a mark, in signs that pages hardly have. The marks that come
out of trafilatura say which texts are the main ones; they are read off the page itself, so that
its headings, paragraphs, lists and tables stay as they are.
"""

import re
from copy import deepcopy
from typing import Any

import trafilatura

from ngtcli.documents.content import About, Extracted, Source, Writer
from ngtcli.documents.formats.markup import HIDDEN, decode_page, tree_of, write_tree

_LINKS = 5  # most links to elsewhere on a page that is read whole, its menu aside; guess
_HEADING = 12  # most words that are left out silently; guess
_BASE, _ZERO, _PLACES = 255, 0x2801, 3  # marks are numbers of three Braille signs
_SIGN = re.compile("[\u2800-\u28ff]")
_MARK = re.compile(f"{_SIGN.pattern}{{{_PLACES}}}")
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # of no XML


def parse(source: Source) -> Extracted:
    """The article of a page with its headings; navigation and the like are left out."""
    page, told = decode_page(source.data)
    tree = tree_of(page)
    main, body = _chosen(tree) if not _SIGN.search(page) else (frozenset(), None)
    writer = _Main(main)
    if body is not None and not main:  # the text comes from a script, as JSON
        for block in body.itertext():
            writer.add(block)
    else:
        write_tree(tree, writer)
    if writer.left > _HEADING:
        told += (f"left out as no part of the main text: {writer.left} words",)
    return Extracted(writer.text(), About("html", 0, 0, writer.sections(), told))


def _chosen(tree: Any) -> tuple[frozenset[str], Any]:
    """The marks of what is read of the page, which are put there, and trafilatura's main text."""
    _mark(tree)
    links = sum(not link.startswith("#") for link in tree.xpath("//a/@href"))
    body = _body(tree) if links > _LINKS else None
    if body is None:
        return _marks(tree) - _marks(*tree.iter("nav")) or _marks(tree), None
    main = _marks(body)
    return main and main | _marks(*tree.iter("h1")), body


def _mark(tree: Any) -> None:
    """Put a mark before each text of the page."""
    number = 0
    for element in tree.iter():
        for name in ("text", "tail"):
            text = getattr(element, name)
            if text and not text.isspace() and (name == "tail" or element.tag not in HIDDEN):
                digits = [number // _BASE**i % _BASE for i in range(_PLACES)]
                mark = "".join(chr(_ZERO + digit) for digit in digits)
                setattr(element, name, mark + _CONTROL.sub(" ", text))
                number += 1


def _marks(*roots: Any) -> frozenset[str]:
    return frozenset(mark for root in roots for mark in _MARK.findall("".join(root.itertext())))


def _body(tree: Any) -> Any:
    """The main text as trafilatura's elements; None if there is no such."""
    found = trafilatura.bare_extraction(
        deepcopy(tree),
        include_comments=False,
        include_tables=True,
        include_images=False,
        include_links=False,
        favor_recall=True,
        with_metadata=False,
    )
    return getattr(found, "body", None)


class _Main(Writer):
    """Takes the blocks with one of the marks in `main`, all if it is empty; `left` counts words.

    A heading is taken too if the block behind it is.
    """

    def __init__(self, main: frozenset[str]) -> None:
        super().__init__()
        self._main, self._waiting = main, ""
        self._gap = False  # whether a block was left out since the last one
        self.left = 0

    def add(self, block: str, between: str = "\n\n") -> None:
        """A block, unless it is left out; first the heading that waits for it."""
        waiting, self._waiting = self._waiting, ""
        if not self._is_main(block):
            self._leave(f"{waiting} {block}")
            return
        if waiting:
            self._name(waiting)
        super().add(self._bare(block), "\n\n" if self._gap else between)
        self._gap = False

    def heading(self, words: str, page: int = 0) -> None:
        """A heading, which may have to wait for the block behind it."""
        self._leave(self._waiting)
        self._waiting = ""
        if self._is_main(words):
            self._name(words)
        else:
            self._waiting = words

    def _name(self, words: str) -> None:
        words = " ".join(self._bare(words).split())
        self.mark(0, words)
        super().add(words)
        self._gap = False

    def _is_main(self, block: str) -> bool:
        return not self._main or not self._main.isdisjoint(_MARK.findall(block))

    def _bare(self, text: str) -> str:
        return _MARK.sub("", text) if self._main else text

    def _leave(self, block: str) -> None:
        self.left += len(self._bare(block).split())
        self._gap = True
