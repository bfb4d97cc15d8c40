"""PowerPoint files: the text of each slide with tables, charts and diagrams, then its notes."""

import io
from collections.abc import Iterator
from typing import Any

import pptx

from ngtcli.documents.content import BETWEEN_CELLS, Extracted, Source, Writer
from ngtcli.documents.formats.archives import check_archive
from ngtcli.documents.formats.office import (
    ALTERNATIVES,
    CHART,
    DIAGRAM,
    A,
    alternative,
    drawing,
    text_of,
    unknown_signs,
)

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_KIND = f"{_P}nvSpPr/{_P}nvPr/{_P}ph"
_TITLES = ("title", "ctrTitle")
_NUMBERS = ("sldNum", "dt")  # placeholders that hold no text of the author's
_RUNNING = ("ftr", "hdr")


def parse(source: Source) -> Extracted:
    """The text as PowerPoint shows it: hidden slides are left out."""
    check_archive(source)
    deck = pptx.Presentation(io.BytesIO(source.data))
    writer = Writer()
    hidden = 0
    running: set[str] = set()  # footers that stood before
    for number, slide in enumerate(deck.slides, 1):
        if slide._element.get("show") in ("0", "false"):
            hidden += 1
            continue
        blocks = list(_blocks(slide._element, slide.part))
        titles = (" ".join(text.split()) for kind, text in blocks if kind in _TITLES)
        title = " ".join(filter(None, titles))
        writer.mark(0, f"slide {number}: {title}" if title else f"slide {number}")
        writer.add(title)
        for kind, text in blocks:
            if kind not in _TITLES and text not in running:
                writer.add(text)
            if kind in _RUNNING:
                running.add(text)
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        text = text_of(notes._txBody, slide.part) if notes is not None else ""
        writer.add(f"Notes: {text}" if text.strip() else "")
    left = (f"hidden slides left out: {hidden}",) * bool(hidden)
    return writer.extracted("pptx", left + unknown_signs(writer.text()))


def _blocks(root: Any, part: Any) -> Iterator[tuple[str, str]]:
    """The kind of placeholder and the text of each shape; tables by rows."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.tag == f"{_P}sp":
            placeholder = node.find(_KIND)
            kind = placeholder.get("type", "body") if placeholder is not None else ""
            body = node.find(f"{_P}txBody")
            if body is not None and kind not in _NUMBERS:
                yield kind, text_of(body, part)
        elif node.tag == f"{A}tbl":
            yield "", "\n".join(_rows(node, part))
        elif node.tag in (CHART, DIAGRAM):
            yield "", drawing(node, part)
        else:
            waiting += alternative(node) if node.tag == ALTERNATIVES else reversed(node)


def _rows(table: Any, part: Any) -> Iterator[str]:
    for row in table.iterfind(f"{A}tr"):
        cells = [" ".join(text_of(cell, part).split()) for cell in row.iterfind(f"{A}tc")]
        if any(cells):
            yield BETWEEN_CELLS.join(cells)
