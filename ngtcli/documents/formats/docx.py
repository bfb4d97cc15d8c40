"""Word documents: paragraphs, headings, lists, tables as rows, footnotes and endnotes."""

import io
from collections.abc import Iterator, Mapping
from typing import Any
from zipfile import BadZipFile

import docx
from docx.enum.style import WD_STYLE_TYPE
from docx.opc.exceptions import PackageNotFoundError
from docx.oxml import parse_xml
from docx.oxml.ns import qn
from docx.table import Table
from docx.text.paragraph import Paragraph

from ngtcli.documents.content import BETWEEN_CELLS, About, Extracted, Source, Writer
from ngtcli.documents.formats.packed import check_archive
from ngtcli.documents.text import Unreadable

_T, _TAB, _BR, _CR, _P, _ID = (qn(f"w:{name}") for name in "t tab br cr p id".split())
_HYPHEN, _NUMBERED = qn("w:noBreakHyphen"), f"{qn('w:pPr')}/{qn('w:numPr')}"
_NOTES = {"footnotes": "footnote", "endnotes": "endnote"}  # relationship, element
_MARKS = {qn("w:footnoteReference"): "", qn("w:endnoteReference"): "e"}
_SKIPPED = frozenset(
    [
        qn("w:del"),
        qn("w:moveFrom"),
        "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
    ]
)


def parse(source: Source) -> Extracted:
    """The text as Word shows it: inserted text is read, deleted text is not."""
    check_archive(source)
    try:
        document = docx.Document(io.BytesIO(source.data))
    except (BadZipFile, PackageNotFoundError, KeyError, ValueError) as error:
        raise Unreadable(
            f"a broken Word document ({error})"[:200], "Save it again in Word."
        ) from None
    writer = Writer()
    _write(document.iter_inner_content(), _styles(document), writer)
    _notes(document, writer)
    return Extracted(writer.text(), About("docx", 0, 0, writer.sections()))


def _write(
    blocks: Iterator[Paragraph | Table], styles: Mapping[str | None, str], writer: Writer
) -> None:
    before = ""
    for block in blocks:
        if isinstance(block, Table):
            _write_table(block, writer)
            before = ""
            continue
        style = styles.get(block._p.style, styles.get(None, ""))
        text = text_of(block._p)
        if style.startswith("heading") or style in ("title", "subtitle"):
            writer.heading(text)
            before = ""
        elif style.startswith("list") or block._p.find(_NUMBERED) is not None:
            writer.add(f"- {text}" if text.strip() else "", "\n" if before == "list" else "\n\n")
            before = "list"
        else:
            writer.add(text)
            before = ""


def _styles(document: Any) -> dict[str | None, str]:
    """The English names of styles by their ids, in lower case; None stands for no style."""
    styles = {s.style_id: (s.name or "").lower() for s in document.styles}
    default = document.styles.default(WD_STYLE_TYPE.PARAGRAPH)
    return {**styles, None: (default.name or "").lower() if default is not None else ""}


def _write_table(table: Table, writer: Writer) -> None:
    between = "\n\n"
    for row in table._tbl.tr_lst:
        cells = [" ".join(text_of(cell).split()) for cell in row.tc_lst]
        if any(cells):
            writer.add(BETWEEN_CELLS.join(cells), between)
            between = "\n"


def text_of(element: Any) -> str:
    """The text below an element: runs, tabs, breaks, and marks [^1] for notes."""
    parts: list[str] = []
    waiting = [element]
    while waiting:
        node = waiting.pop()
        tag = node.tag
        if tag == _T:
            parts.append(node.text or "")
        elif tag == _TAB:
            parts.append("\t")
        elif tag in (_BR, _CR):
            parts.append("\n")
        elif tag == _HYPHEN:
            parts.append("-")
        elif tag in _MARKS:
            parts.append(f"[^{_MARKS[tag]}{node.get(_ID)}]")
        elif tag not in _SKIPPED:
            waiting += reversed(node)
            if tag == _P and parts:
                parts.append("\n")
    return "".join(parts)


def _notes(document: Any, writer: Writer) -> None:
    """The notes below the text, each with its mark."""
    for relation in document.part.rels.values():
        kind = relation.reltype.rsplit("/", 1)[-1]
        if relation.is_external or kind not in _NOTES:
            continue
        mark = "e" if kind == "endnotes" else ""
        between = "\n\n"
        for note in parse_xml(relation.target_part.blob).iter(qn(f"w:{_NOTES[kind]}")):
            text = " ".join(text_of(note).split())
            if note.get(qn("w:type")) is None and text:
                writer.add(f"[^{mark}{note.get(qn('w:id'))}]: {text}", between)
                between = "\n"
