"""Word and PowerPoint files: paragraphs, headings, lists, tables as rows, notes, charts, equations.

Parts of a package refer to others by relationship ids, which are in `part.rels`. Each part is made
a tree of HTML.
"""

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from docx.opc.package import OpcPackage

from ngtcli.documents.content import Extracted, Source, Writer, row_of
from ngtcli.documents.formats.markup import lines_of, parse_xml, write_tree

_OPEN = "http://schemas.openxmlformats.org/"
_W = f"{{{_OPEN}wordprocessingml/2006/main}}"
_A = f"{{{_OPEN}drawingml/2006/main}}"
_R = f"{{{_OPEN}officeDocument/2006/relationships}}"
_C = f"{{{_OPEN}drawingml/2006/chart}}"
_M = f"{{{_OPEN}officeDocument/2006/math}}"
_CHART = f"{_C}chart"
_ALTERNATIVES = f"{{{_OPEN}markup-compatibility/2006}}AlternateContent"
_BOX, _EQUATION, _SYMBOL = f"{_W}txbxContent", f"{_M}oMath", f"{_W}sym"
_TEXT = (f"{_W}t", f"{_A}t")
_TAGS = {
    f"{_W}p": "pre", f"{_A}p": "pre", f"{_W}tbl": "table", f"{_W}tr": "tr", f"{_A}tr": "tr",
    f"{_W}tc": "td", f"{_A}tc": "td", f"{_W}br": "br", f"{_W}cr": "br", f"{_A}br": "br",
    _CHART: "pre", "h2": "h2", "li": "li",
}  # fmt: skip
_SIGNS = {f"{_W}tab": "\t", f"{_W}noBreakHyphen": "-"}
_NOTES = {f"{_W}footnoteReference": "", f"{_W}endnoteReference": "e"}
_GONE = (f"{_W}del", f"{_W}moveFrom")
_FORMS = {  # of parts of equations in a line; what is raised may be lowered, too
    "f": "{num}/{den}", "rad": "√{e}", "nary": "{sign}{raised} {e}",
    "sSup": "{e}{raised}", "sSub": "{e}{raised}", "sSubSup": "{e}{raised}",
}  # fmt: skip
_SEEN = (*_TEXT, _SYMBOL, f"{_M}t", _CHART)  # what an alternative is chosen for
_NUMBERED = f"{_W}pPr/{_W}numPr"
_STYLE = f"{_W}pPr/{_W}pStyle"
_P = f"{{{_OPEN}presentationml/2006/main}}"
_KIND = f"{_P}nvSpPr/{_P}nvPr/{_P}ph"
_TITLES = ("title", "ctrTitle")
_NUMBERS = ("sldNum", "dt")  # placeholders that hold no text of the author's
_RUNNING = ("ftr", "hdr")


def parse_docx(source: Source) -> Extracted:
    """The text as Word shows it: inserted text is read, deleted text is not."""
    part = _main_part(source)
    writer, styles = Writer(), _styles(part)
    writer.add(_running(part, styles, "header"))
    write_tree(_styled(part, styles), writer)
    writer.add(_running(part, styles, "footer"))
    for kind, mark in (("footnote", ""), ("endnote", "e")):
        for notes in _related(part, f"{kind}s"):
            for note in _tree_of(notes).iterfind(f"{_W}{kind}"):
                text = row_of([lines_of(_as_html(note, notes))])
                if note.get(f"{_W}type") is None and text:
                    writer.add(f"[^{mark}{note.get(f'{_W}id')}]: {text}", kind)
    return writer.extracted("docx", _unknown_signs(writer.text()))


def _running(part: Any, styles: Mapping[str | None, str], kind: str) -> str:
    """The headers or footers, each text once; numbers alone are left out."""
    texts: dict[str, None] = {}
    for running in _related(part, kind):
        writer = Writer()
        write_tree(_styled(running, styles), writer)
        texts[writer.text()] = None
    return "\n\n".join(text for text in texts if any(map(str.isalpha, text)))


def _styles(part: Any) -> dict[str | None, str]:
    """The English names of styles by their ids, in lower case; None stands for no style."""
    names: dict[str | None, str] = {None: ""}
    for root in map(_tree_of, _related(part, "styles")):
        for name in root.iterfind(f"{_W}style/{_W}name"):
            style = name.getparent()
            names[style.get(f"{_W}styleId")] = name.get(f"{_W}val").lower()
            if style.get(f"{_W}default") == "1" and style.get(f"{_W}type") == "paragraph":
                names[None] = name.get(f"{_W}val").lower()
    return names


def _styled(part: Any, styles: Mapping[str | None, str]) -> Any:
    """A part as HTML, with headings and items of lists by the styles of paragraphs."""
    root = _tree_of(part)
    for paragraph in list(root.iter(f"{_W}p")):
        named = paragraph.find(_STYLE)
        style = styles[None] if named is None else styles.get(named.get(f"{_W}val"), styles[None])
        if style.startswith("heading") or style in ("title", "subtitle"):
            paragraph.tag = "h2"
        elif style.startswith("list") or paragraph.find(_NUMBERED) is not None:
            paragraph.tag = "li"
    return _as_html(root, part)


def parse_pptx(source: Source) -> Extracted:
    """The text as PowerPoint shows it: hidden slides are left out."""
    writer, main, hidden = Writer(), _main_part(source), 0
    running: set[str] = set()  # footers that stood before
    for number, slide in enumerate(_tree_of(main).iter(f"{_P}sldId"), 1):
        part = main.rels[slide.get(f"{_R}id")].target_part
        root = _tree_of(part)
        if root.get("show") in ("0", "false"):
            hidden += 1
            continue
        blocks = list(_blocks(root, part))
        title = row_of([[text for kind, text in blocks if kind in _TITLES]])
        writer.mark(0, f"slide {number}: {title}" if title else f"slide {number}")
        writer.add(title)
        for kind, text in blocks:
            if kind not in _TITLES and not (kind in _RUNNING and text in running):
                writer.add(text)
            if kind in _RUNNING:
                running.add(text)
        for notes in _related(part, "notesSlide"):
            texts = dict(_blocks(_tree_of(notes), notes))
            writer.add(f"Notes: {texts['body']}" if texts.get("body") else "")
    left = (f"hidden slides left out: {hidden}",) * bool(hidden)
    return writer.extracted("pptx", left + _unknown_signs(writer.text()))


def _blocks(root: Any, part: Any) -> Iterator[tuple[str, str]]:
    """The kind of placeholder and the text of each shape; tables by rows."""
    for node in list(root.iter(f"{_P}sp", f"{_A}tbl", _CHART)):
        placeholder = node.find(_KIND)
        kind = placeholder.get("type", "body") if placeholder is not None else ""
        body = node.find(f"{_P}txBody") if node.tag == f"{_P}sp" else node
        if body is not None and kind not in _NUMBERS:
            yield kind, "\n".join(filter(None, lines_of(_as_html(body, part))))


def _main_part(source: Source) -> Any:
    """The part of a package that the others belong to."""
    return OpcPackage.open(io.BytesIO(source.data)).main_document_part


def _related(part: Any, kind: str) -> list[Any]:
    """The parts of a kind that a part refers to."""
    relations = [r for r in part.rels.values() if r.reltype.endswith(f"/{kind}")]
    return [relation.target_part for relation in relations if not relation.is_external]


def _tree_of(part: Any) -> Any:
    """The elements of a part; of the forms in which a thing is stored the first with text."""
    root = parse_xml(part.blob)
    for node in list(root.iter(_ALTERNATIVES)):
        node[:] = next(([form] for form in node if next(form.iter(*_SEEN), None) is not None), [])
    return root


def _as_html(root: Any, part: Any) -> Any:
    """`root`, of a part, with elements as in HTML; text boxes and charts behind their paragraph."""
    for node in reversed(list(root.iter(_BOX, _CHART))):
        around = next(node.iterancestors(f"{_W}p", "h2", "li"), None)
        if around is not None:
            around.addnext(node)
    for node in list(root.iter(_EQUATION)):
        node.text = _equation(node)
        del node[:]
    for node in [n for n in root.iter() if n.tag.endswith("Pr") or n.tag in _GONE]:
        node.getparent().remove(node)
    for node in list(root.iter()):
        in_text = node is not root and node.getparent().tag in ("pre", "h2", "li", "span")
        if node.tag in (*_TEXT, _EQUATION):
            text = node.text
        elif node.tag in _NOTES:
            text = f"[^{_NOTES[node.tag]}{node.get(f'{_W}id')}]"
        elif node.tag == _CHART:
            text = _chart(node, part)
        elif node.tag == _SYMBOL:
            text = ""
            with suppress(ValueError, OverflowError):  # its code in the font, in hexadecimal
                text = chr(int(node.get(f"{_W}char", "20"), 16))
        else:
            text = _SIGNS.get(node.tag)
        node.tag = _TAGS.get(node.tag, "span" if in_text else "div")
        node.text = text
    return root


def _equation(node: Any) -> str:
    """An equation in a line, as in "x=(-b±√(b^2-4ac))/(2a)"."""
    if node.tag == f"{_M}t":
        return node.text or ""
    kind, inside = node.tag.removeprefix(_M), [(child.tag, _equation(child)) for child in node]
    texts = [text for _, text in inside if text]
    if kind not in _FORMS:
        return f"({','.join(texts)})" if kind == "d" else "".join(texts)
    part = defaultdict(str, {tag.removeprefix(_M): _group(text) for tag, text in inside})
    part["raised"] = f"_{part['sub']}" * bool(part["sub"]) + f"^{part['sup']}" * bool(part["sup"])
    sign = node.find(f"{_M}naryPr/{_M}chr")
    part["sign"] = "∫" if sign is None else sign.get(f"{_M}val", "")
    return _FORMS[kind].format_map(part)


def _group(text: str) -> str:
    """`text` as one operand: in parentheses unless it is one character, a number or has them."""
    whole = text.isdigit() or len(text) < 2 or (text[0] == "(" and text.find(")") == len(text) - 1)
    return text if whole else f"({text})"


def _chart(node: Any, part: Any) -> str:
    """The title of a chart, and a row for each category with a value of each series."""
    try:
        root = parse_xml(part.rels[node.get(f"{_R}id", "")].target_part.blob)
    except (KeyError, ValueError, SyntaxError):
        return ""
    series = list(root.iter(f"{_C}ser"))
    columns = [dict(_points(one, "val", "yVal")) for one in series]
    columns.insert(0, dict(point for one in series for point in _points(one, "cat", "xVal")))
    indices = sorted({index for column in columns for index in column}, key=lambda i: (len(i), i))
    rows = [["", *("".join(v.text or "" for v in s.iterfind(f"{_C}tx//{_C}v")) for s in series)]]
    rows += [[column.get(index, "") for column in columns] for index in indices]
    title = "".join(t.text or "" for t in root.iterfind(f"{_C}chart/{_C}title//*"))
    return "\n".join(filter(None, [title, *map(row_of, rows)]))


def _points(series: Any, *names: str) -> Iterator[tuple[str, str]]:
    """The stored values of one part of a series, each with its index."""
    for value in (v for name in names for v in series.iterfind(f"{_C}{name}//{_C}v")):
        text = value.text or ""
        with suppress(ValueError):  # it is no number, of which Office shows 15 digits
            text = f"{float(text):.15g}" if "." in text else text
        yield value.getparent().get("idx", ""), text


def _unknown_signs(text: str) -> tuple[str, ...]:
    """A warning if characters of fonts that have signs of their own are in `text`."""
    count = sum("\ue000" <= c <= "\uf8ff" for c in text)
    return (f"characters of symbol fonts whose meaning is not known: {count}",) * bool(count)
