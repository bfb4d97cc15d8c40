"""Word documents: paragraphs, headings, lists, tables as rows, headers, footers and notes."""

import io
from collections.abc import Mapping
from typing import Any

from docx.enum.style import WD_STYLE_TYPE
from docx.opc.part import PartFactory
from docx.package import Package
from docx.parts.document import DocumentPart

from ngtcli.documents.content import Extracted, Source, Writer, row_of
from ngtcli.documents.formats import office
from ngtcli.documents.formats.markup import lines_of, write_tree
from ngtcli.documents.formats.office import W

_NUMBERED = f"{W}pPr/{W}numPr"
_STYLE = f"{W}pPr/{W}pStyle"
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
    writer.add(_running(part, styles, "header"))
    write_tree(_as_html(part, styles), writer)
    writer.add(_running(part, styles, "footer"))
    for kind, mark in (("footnote", ""), ("endnote", "e")):
        for notes in _related(part, f"{kind}s"):
            for note in office.tree_of(notes).iterfind(f"{W}{kind}"):
                text = row_of([lines_of(office.as_html(note, notes))])
                if note.get(f"{W}type") is None and text:
                    writer.add(f"[^{mark}{note.get(f'{W}id')}]: {text}", kind)
    return writer.extracted("docx", office.unknown_signs(writer.text()))


def _related(part: Any, kind: str) -> list[Any]:
    """The parts of a kind that the document has."""
    relations = [r for r in part.rels.values() if r.reltype.endswith(f"/{kind}")]
    return [relation.target_part for relation in relations if not relation.is_external]


def _running(part: Any, styles: Mapping[str | None, str], kind: str) -> str:
    """The headers or footers, each text once; numbers alone are left out."""
    texts: dict[str, None] = {}
    for related in _related(part, kind):
        writer = Writer()
        write_tree(_as_html(related, styles), writer)
        texts[writer.text()] = None
    return "\n\n".join(text for text in texts if any(map(str.isalpha, text)))


def _styles(part: Any) -> dict[str | None, str]:
    """The English names of styles by their ids, in lower case; None stands for no style."""
    styles = {s.style_id: (s.name or "").lower() for s in part.styles}
    default = part.styles.default(WD_STYLE_TYPE.PARAGRAPH)
    return {**styles, None: styles[default.style_id] if default is not None else ""}


def _as_html(part: Any, styles: Mapping[str | None, str]) -> Any:
    """A part as HTML, with headings and items of lists by the styles of paragraphs."""
    root = office.tree_of(part)
    for paragraph in root.iter(f"{W}p"):
        named = paragraph.find(_STYLE)
        style = styles[None] if named is None else styles.get(named.get(f"{W}val"), styles[None])
        if style.startswith("heading") or style in ("title", "subtitle"):
            paragraph.set(office.AS, "h2")
        elif style.startswith("list") or paragraph.find(_NUMBERED) is not None:
            paragraph.set(office.AS, "li")
    return office.as_html(root, part)
