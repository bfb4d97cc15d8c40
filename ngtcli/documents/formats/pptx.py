"""PowerPoint files: the text of each slide with its tables and charts, then its notes."""

from collections.abc import Iterator
from typing import Any

from ngtcli.documents.content import Extracted, Source, Writer, row_of
from ngtcli.documents.formats import office
from ngtcli.documents.formats.markup import lines_of
from ngtcli.documents.formats.office import A, R

_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_KIND = f"{_P}nvSpPr/{_P}nvPr/{_P}ph"
_TITLES = ("title", "ctrTitle")
_NUMBERS = ("sldNum", "dt")  # placeholders that hold no text of the author's
_RUNNING = ("ftr", "hdr")


def parse(source: Source) -> Extracted:
    """The text as PowerPoint shows it: hidden slides are left out."""
    writer, main, hidden = Writer(), office.main_part(source), 0
    running: set[str] = set()  # footers that stood before
    for number, slide in enumerate(office.tree_of(main).iter(f"{_P}sldId"), 1):
        part = main.rels[slide.get(f"{R}id")].target_part
        root = office.tree_of(part)
        if root.get("show") in ("0", "false"):
            hidden += 1
            continue
        blocks = list(_blocks(root, part))
        title = row_of([[text for kind, text in blocks if kind in _TITLES]])
        writer.mark(0, f"slide {number}: {title}" if title else f"slide {number}")
        writer.add(title)
        for kind, text in blocks:
            if kind not in _TITLES and text not in running:
                writer.add(text)
            if kind in _RUNNING:
                running.add(text)
        for notes in office.related(part, "notesSlide"):
            texts = dict(_blocks(office.tree_of(notes), notes))
            writer.add(f"Notes: {texts['body']}" if texts.get("body") else "")
    left = (f"hidden slides left out: {hidden}",) * bool(hidden)
    return writer.extracted("pptx", left + office.unknown_signs(writer.text()))


def _blocks(root: Any, part: Any) -> Iterator[tuple[str, str]]:
    """The kind of placeholder and the text of each shape; tables by rows."""
    for node in list(root.iter(f"{_P}sp", f"{A}tbl", office.CHART)):
        placeholder = node.find(_KIND)
        kind = placeholder.get("type", "body") if placeholder is not None else ""
        body = node.find(f"{_P}txBody") if node.tag == f"{_P}sp" else node
        if body is not None and kind not in _NUMBERS:
            yield kind, "\n".join(filter(None, lines_of(office.as_html(body, part))))
