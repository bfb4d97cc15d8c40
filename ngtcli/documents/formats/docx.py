"""Word documents: paragraphs, headings, lists, tables as rows, headers, footers and notes."""

import io
from collections.abc import Iterator, Mapping
from typing import Any

from docx.enum.style import WD_STYLE_TYPE
from docx.opc.part import PartFactory
from docx.oxml import parse_xml
from docx.package import Package
from docx.parts.document import DocumentPart

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats.office import (
    ALTERNATIVES,
    CHART,
    R,
    W,
    alternative,
    chart_of,
    text_of,
    unknown_signs,
)

_NUMBERED = f"{W}pPr/{W}numPr"
_STYLE = f"{W}pPr/{W}pStyle"
_NOTES = {"footnotes": "footnote", "endnotes": "endnote"}  # relationship, element
# Elements around blocks, rows and cells: content controls, inserted and moved text, tags.
_AROUND = {f"{W}{name}" for name in ("sdt", "sdtContent", "ins", "moveTo", "customXml", "smartTag")}
for _kind in (  # main parts that the library does not know
    "openxmlformats-officedocument.wordprocessingml.template",
    "ms-word.document.macroEnabled",
    "ms-word.template.macroEnabledTemplate",
):
    PartFactory.part_type_for[f"application/vnd.{_kind}.main+xml"] = DocumentPart


def parse(source: Source) -> Extracted:
    """The text as Word shows it: inserted text is read, deleted text is not."""
    part = Package.open(io.BytesIO(source.data)).main_document_part
    writer, styles = Writer(), _styles(part)
    _running(part, styles, writer, "header")
    _write(part.element.body, part, styles, writer)
    _running(part, styles, writer, "footer")
    _notes(part, writer)
    return writer.extracted("docx", unknown_signs(writer.text()))


def _write(root: Any, part: Any, styles: Mapping[str | None, str], writer: Writer) -> None:
    """Every block below `root`; a text box or chart behind its paragraph."""
    for block in _inside(root, f"{W}p", f"{W}tbl"):
        if block.tag == f"{W}tbl":
            rows = _inside(block, f"{W}tr")
            writer.table(map(text_of, _inside(row, f"{W}tc")) for row in rows)
            continue
        drawn: list[Any] = []
        text, named = text_of(block, drawn), block.find(_STYLE)
        style = styles[None] if named is None else styles.get(named.get(f"{W}val"), styles[None])
        if style.startswith("heading") or style in ("title", "subtitle"):
            writer.heading(text)
        elif style.startswith("list") or block.find(_NUMBERED) is not None:
            writer.add(f"- {text}" if text.strip() else "", "item")
        else:
            writer.add(text)
        for node in drawn:
            writer.stand_apart()
            if node.tag == CHART:
                writer.add(chart_of(node, part))
            else:
                _write(node, part, styles, writer)


def _inside(root: Any, *tags: str) -> Iterator[Any]:
    """The elements with these tags, in order, in `root` or in what stands around them."""
    waiting = list(reversed(root))
    while waiting:
        node = waiting.pop()
        if node.tag in tags:
            yield node
        elif node.tag in _AROUND:
            waiting += reversed(node)
        elif node.tag == ALTERNATIVES:
            waiting += [block for form in alternative(node) for block in reversed(form)]


def _styles(part: Any) -> dict[str | None, str]:
    """The English names of styles by their ids, in lower case; None stands for no style."""
    styles = {s.style_id: (s.name or "").lower() for s in part.styles}
    default = part.styles.default(WD_STYLE_TYPE.PARAGRAPH)
    return {**styles, None: (default.name or "").lower() if default is not None else ""}


def _running(part: Any, styles: Mapping[str | None, str], writer: Writer, kind: str) -> None:
    """The headers or footers that sections name, each text once; numbers alone are left out."""
    texts: dict[str, None] = {}
    for reference in part.element.iter(f"{W}{kind}Reference"):
        named = part.related_parts.get(reference.get(f"{R}id"))
        if named is not None and hasattr(named, "element"):
            own = Writer()
            _write(named.element, named, styles, own)
            texts[own.text()] = None
    for text in texts:
        writer.add(text if any(map(str.isalpha, text)) else "")


def _notes(part: Any, writer: Writer) -> None:
    """The notes below the text, each with its mark."""
    for relation in part.rels.values():
        kind = relation.reltype.rsplit("/", 1)[-1]
        if relation.is_external or kind not in _NOTES:
            continue
        mark = "e" if kind == "endnotes" else ""
        for note in parse_xml(relation.target_part.blob).iter(f"{W}{_NOTES[kind]}"):
            text = " ".join(text_of(note).split())
            if note.get(f"{W}type") is None and text:
                writer.add(f"[^{mark}{note.get(f'{W}id')}]: {text}", kind)
