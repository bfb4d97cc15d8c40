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
from ngtcli.documents.formats.archives import check_archive
from ngtcli.documents.formats.office import ALTERNATIVES, R, W, alternative, text_of, unknown_signs

_NUMBERED = f"{W}pPr/{W}numPr"
_STYLE = f"{W}pPr/{W}pStyle"
_NOTES = {"footnotes": "footnote", "endnotes": "endnote"}  # relationship, element
# Elements around blocks, rows and cells: content controls, inserted and moved text, tags.
_AROUND = {f"{W}{name}" for name in ("sdt", "sdtContent", "ins", "moveTo", "customXml", "smartTag")}
_TEMPLATE = "openxmlformats-officedocument.wordprocessingml.template"
_MACROS = ("ms-word.document.macroEnabled", "ms-word.template.macroEnabledTemplate")
for _kind in (_TEMPLATE, *_MACROS):  # main parts that the library does not know
    PartFactory.part_type_for[f"application/vnd.{_kind}.main+xml"] = DocumentPart


def parse(source: Source) -> Extracted:
    """The text as Word shows it: inserted text is read, deleted text is not."""
    check_archive(source)
    part = Package.open(io.BytesIO(source.data)).main_document_part
    writer = Writer()
    styles = _styles(part)
    for text in _running(part, styles, "header"):
        writer.add(text)
    _write(part.element.body, part, styles, writer)
    for text in _running(part, styles, "footer"):
        writer.add(text)
    _notes(part, writer)
    return writer.extracted("docx", unknown_signs(writer.text()))


def _write(root: Any, part: Any, styles: Mapping[str | None, str], writer: Writer) -> None:
    """Every block below `root`; a text box, chart or diagram behind its paragraph."""
    for block in _inside(root, f"{W}p", f"{W}tbl"):
        if block.tag == f"{W}tbl":
            writer.table(
                [" ".join(text_of(cell, part).split()) for cell in _inside(row, f"{W}tc")]
                for row in _inside(block, f"{W}tr")
            )
            continue
        after: list[Any] = []
        text, named = text_of(block, part, after), block.find(_STYLE)
        style = styles[None] if named is None else styles.get(named.get(f"{W}val"), styles[None])
        if style.startswith("heading") or style in ("title", "subtitle"):
            writer.heading(text)
        elif style.startswith("list") or block.find(_NUMBERED) is not None:
            writer.add(f"- {text}" if text.strip() else "", "item")
        else:
            writer.add(text)
        for more in after:
            writer.stand_apart()
            if isinstance(more, str):
                writer.add(more)
            else:
                _write(more, part, styles, writer)


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


def _running(part: Any, styles: Mapping[str | None, str], kind: str) -> list[str]:
    """The headers or footers that sections name, each text once; numbers alone are left out."""
    texts: dict[str, None] = {}
    for reference in part.element.iter(f"{W}{kind}Reference"):
        named = part.related_parts.get(reference.get(f"{R}id"))
        if named is not None and hasattr(named, "element"):
            writer = Writer()
            _write(named.element, named, styles, writer)
            if any(c.isalpha() for c in writer.text()):
                texts[writer.text()] = None
    return list(texts)


def _notes(part: Any, writer: Writer) -> None:
    """The notes below the text, each with its mark."""
    for relation in part.rels.values():
        kind = relation.reltype.rsplit("/", 1)[-1]
        if relation.is_external or kind not in _NOTES:
            continue
        notes, mark = relation.target_part, "e" if kind == "endnotes" else ""
        for note in parse_xml(notes.blob).iter(f"{W}{_NOTES[kind]}"):
            text = " ".join(text_of(note, notes).split())
            if note.get(f"{W}type") is None and text:
                writer.add(f"[^{mark}{note.get(f'{W}id')}]: {text}", kind)
