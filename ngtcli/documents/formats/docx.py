"""Word documents: paragraphs, headings, lists, tables as rows, headers, footers and notes."""

import io
from collections.abc import Mapping
from typing import Any

from docx.enum.style import WD_STYLE_TYPE
from docx.opc.part import PartFactory
from docx.package import Package
from docx.parts.document import DocumentPart

from ngtcli.documents.content import Extracted, Source, Writer
from ngtcli.documents.formats import office
from ngtcli.documents.formats.markup import lines_of, write_tree
from ngtcli.documents.formats.office import R, W

_NUMBERED = f"{W}pPr/{W}numPr"
_STYLE = f"{W}pPr/{W}pStyle"
_NOTES = {"footnotes": "footnote", "endnotes": "endnote"}  # relationship, element
for _kind in (  # main parts that the library does not know
    "openxmlformats-officedocument.wordprocessingml.template",
    "ms-word.document.macroEnabled",
    "ms-word.template.macroEnabledTemplate",
):
    PartFactory.part_type_for[f"application/vnd.{_kind}.main+xml"] = DocumentPart


def parse(source: Source) -> Extracted:
    """The text as Word shows it: inserted text is read, deleted text is not."""
    part = Package.open(io.BytesIO(source.data)).main_document_part
    writer, styles, root = Writer(), _styles(part), office.tree_of(part)
    headers, footers = (_running(root, part, styles, kind) for kind in ("header", "footer"))
    writer.add(headers)
    write_tree(_as_html(root, part, styles), writer)
    writer.add(footers)
    _notes(part, writer)
    return writer.extracted("docx", office.unknown_signs(writer.text()))


def _as_html(root: Any, part: Any, styles: Mapping[str | None, str]) -> Any:
    """The part as HTML, with headings and items of lists by the styles of paragraphs."""
    for paragraph in root.iter(f"{W}p"):
        named = paragraph.find(_STYLE)
        style = styles[None] if named is None else styles.get(named.get(f"{W}val"), styles[None])
        if style.startswith("heading") or style in ("title", "subtitle"):
            paragraph.set(office.AS, "h2")
        elif style.startswith("list") or paragraph.find(_NUMBERED) is not None:
            paragraph.set(office.AS, "li")
    return office.as_html(root, part)


def _styles(part: Any) -> dict[str | None, str]:
    """The English names of styles by their ids, in lower case; None stands for no style."""
    styles = {s.style_id: (s.name or "").lower() for s in part.styles}
    default = part.styles.default(WD_STYLE_TYPE.PARAGRAPH)
    return {**styles, None: (default.name or "").lower() if default is not None else ""}


def _running(root: Any, part: Any, styles: Mapping[str | None, str], kind: str) -> str:
    """The headers or footers that sections name, each text once; numbers alone are left out."""
    texts: dict[str, None] = {}
    for reference in root.iter(f"{W}{kind}Reference"):
        named = part.related_parts.get(reference.get(f"{R}id"))
        if named is not None and hasattr(named, "element"):
            writer = Writer()
            write_tree(_as_html(office.tree_of(named), named, styles), writer)
            texts[writer.text()] = None
    return "\n\n".join(text for text in texts if any(map(str.isalpha, text)))


def _notes(part: Any, writer: Writer) -> None:
    """The notes below the text, each with its mark."""
    for relation in part.rels.values():
        kind = relation.reltype.rsplit("/", 1)[-1]
        if relation.is_external or kind not in _NOTES:
            continue
        notes, mark = relation.target_part, "e" if kind == "endnotes" else ""
        for note in office.tree_of(notes).iter(f"{W}{_NOTES[kind]}"):
            text = " ".join(" ".join(lines_of(office.as_html(note, notes))).split())
            if note.get(f"{W}type") is None and text:
                writer.add(f"[^{mark}{note.get(f'{W}id')}]: {text}", kind)
