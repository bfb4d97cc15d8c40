"""Word and PowerPoint files as trees of HTML: paragraphs, tables, text boxes, equations, charts.

Parts of a package refer to others by relationship ids, which are in `part.rels`.
"""

import io
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from docx.opc.package import OpcPackage

from ngtcli.documents.content import Source, row_of
from ngtcli.documents.formats.markup import parse_xml

_OPEN = "http://schemas.openxmlformats.org/"
W = f"{{{_OPEN}wordprocessingml/2006/main}}"
A = f"{{{_OPEN}drawingml/2006/main}}"
R = f"{{{_OPEN}officeDocument/2006/relationships}}"
_C = f"{{{_OPEN}drawingml/2006/chart}}"
_M = f"{{{_OPEN}officeDocument/2006/math}}"
CHART = f"{_C}chart"
_ALTERNATIVES = f"{{{_OPEN}markup-compatibility/2006}}AlternateContent"
_BOX, _EQUATION, _SYMBOL = f"{W}txbxContent", f"{_M}oMath", f"{W}sym"
_TEXT = (f"{W}t", f"{A}t")
_TAGS = {
    f"{W}p": "pre", f"{A}p": "pre", f"{W}tbl": "table", f"{W}tr": "tr", f"{A}tr": "tr",
    f"{W}tc": "td", f"{A}tc": "td", f"{W}br": "br", f"{W}cr": "br", f"{A}br": "br", CHART: "pre",
    "h2": "h2", "li": "li",
}  # fmt: skip
_SIGNS = {f"{W}tab": "\t", f"{W}noBreakHyphen": "-"}
_NOTES = {f"{W}footnoteReference": "", f"{W}endnoteReference": "e"}
_GONE = (f"{W}del", f"{W}moveFrom")
_FORMS = {  # of parts of equations in a line; what is raised may be lowered, too
    "f": "{num}/{den}", "rad": "√{e}", "nary": "{sign}{raised} {e}",
    "sSup": "{e}{raised}", "sSub": "{e}{raised}", "sSubSup": "{e}{raised}",
}  # fmt: skip
_SEEN = (*_TEXT, _SYMBOL, f"{_M}t", CHART)  # what an alternative is chosen for


def main_part(source: Source) -> Any:
    """The part of a package that the others belong to."""
    return OpcPackage.open(io.BytesIO(source.data)).main_document_part


def related(part: Any, kind: str) -> list[Any]:
    """The parts of a kind that a part refers to."""
    relations = [r for r in part.rels.values() if r.reltype.endswith(f"/{kind}")]
    return [relation.target_part for relation in relations if not relation.is_external]


def tree_of(part: Any) -> Any:
    """The elements of a part; of the forms in which a thing is stored the first with text."""
    root = parse_xml(part.blob)
    for node in list(root.iter(_ALTERNATIVES)):
        node[:] = next(([form] for form in node if next(form.iter(*_SEEN), None) is not None), [])
    return root


def as_html(root: Any, part: Any) -> Any:
    """`root`, of a part, with elements as in HTML; text boxes and charts behind their paragraph."""
    for node in reversed(list(root.iter(_BOX, CHART))):
        around = next(node.iterancestors(f"{W}p", "h2", "li"), None)
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
            text = f"[^{_NOTES[node.tag]}{node.get(f'{W}id')}]"
        elif node.tag == CHART:
            text = _chart(node, part)
        elif node.tag == _SYMBOL:  # of a font, by its code in hexadecimal
            text = chr(int(node.get(f"{W}char", "20"), 16))
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
        root = parse_xml(part.rels[node.get(f"{R}id", "")].target_part.blob)
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


def unknown_signs(text: str) -> tuple[str, ...]:
    """A warning if characters of fonts that have signs of their own are in `text`."""
    count = sum("\ue000" <= c <= "\uf8ff" for c in text)
    return (f"characters of symbol fonts whose meaning is not known: {count}",) * bool(count)
