"""Word documents: paragraphs, headings, lists, tables as rows, headers, footers and notes."""

from collections.abc import Mapping
from typing import Any

from ngtcli.documents.content import Extracted, Source, Writer, row_of
from ngtcli.documents.formats import office
from ngtcli.documents.formats.markup import lines_of, write_tree
from ngtcli.documents.formats.office import W, related

_NUMBERED = f"{W}pPr/{W}numPr"
_STYLE = f"{W}pPr/{W}pStyle"


def parse(source: Source) -> Extracted:
    """The text as Word shows it: inserted text is read, deleted text is not."""
    part = office.main_part(source)
    writer, styles = Writer(), _styles(part)
    writer.add(_running(part, styles, "header"))
    write_tree(_as_html(part, styles), writer)
    writer.add(_running(part, styles, "footer"))
    for kind, mark in (("footnote", ""), ("endnote", "e")):
        for notes in related(part, f"{kind}s"):
            for note in office.tree_of(notes).iterfind(f"{W}{kind}"):
                text = row_of([lines_of(office.as_html(note, notes))])
                if note.get(f"{W}type") is None and text:
                    writer.add(f"[^{mark}{note.get(f'{W}id')}]: {text}", kind)
    return writer.extracted("docx", office.unknown_signs(writer.text()))


def _running(part: Any, styles: Mapping[str | None, str], kind: str) -> str:
    """The headers or footers, each text once; numbers alone are left out."""
    texts: dict[str, None] = {}
    for running in related(part, kind):
        writer = Writer()
        write_tree(_as_html(running, styles), writer)
        texts[writer.text()] = None
    return "\n\n".join(text for text in texts if any(map(str.isalpha, text)))


def _styles(part: Any) -> dict[str | None, str]:
    """The English names of styles by their ids, in lower case; None stands for no style."""
    names: dict[str | None, str] = {None: ""}
    for root in map(office.tree_of, related(part, "styles")):
        for name in root.iterfind(f"{W}style/{W}name"):
            style = name.getparent()
            names[style.get(f"{W}styleId")] = name.get(f"{W}val").lower()
            if style.get(f"{W}default") == "1" and style.get(f"{W}type") == "paragraph":
                names[None] = name.get(f"{W}val").lower()
    return names


def _as_html(part: Any, styles: Mapping[str | None, str]) -> Any:
    """A part as HTML, with headings and items of lists by the styles of paragraphs."""
    root = office.tree_of(part)
    for paragraph in list(root.iter(f"{W}p")):
        named = paragraph.find(_STYLE)
        style = styles[None] if named is None else styles.get(named.get(f"{W}val"), styles[None])
        if style.startswith("heading") or style in ("title", "subtitle"):
            paragraph.tag = "h2"
        elif style.startswith("list") or paragraph.find(_NUMBERED) is not None:
            paragraph.tag = "li"
    return office.as_html(root, part)
