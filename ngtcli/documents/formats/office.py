"""What Word and PowerPoint files share: text of runs, equations, charts, diagrams, symbol fonts.

Parts of a package refer to others by relationship ids. Both libraries have them in `part.rels`.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from lxml import etree

from ngtcli.documents.content import BETWEEN_CELLS

_OPEN = "http://schemas.openxmlformats.org/"
W = f"{{{_OPEN}wordprocessingml/2006/main}}"
A = f"{{{_OPEN}drawingml/2006/main}}"
R = f"{{{_OPEN}officeDocument/2006/relationships}}"
_C, _DGM = f"{{{_OPEN}drawingml/2006/chart}}", f"{{{_OPEN}drawingml/2006/diagram}}"
_M = f"{{{_OPEN}officeDocument/2006/math}}"
_MC = f"{{{_OPEN}markup-compatibility/2006}}"
CHART, DIAGRAM, ALTERNATIVES = f"{_C}chart", f"{_DGM}relIds", f"{_MC}AlternateContent"
BOX = f"{W}txbxContent"
_TEXT = {f"{W}t", f"{A}t"}
_BREAKS = {
    f"{W}br": "\n",
    f"{W}cr": "\n",
    f"{A}br": "\n",
    f"{W}tab": "\t",
    f"{W}noBreakHyphen": "-",
}
_PARAGRAPHS = {f"{W}p", f"{A}p"}
_NOTES = {f"{W}footnoteReference": "", f"{W}endnoteReference": "e"}
_SKIPPED = {f"{W}del", f"{W}moveFrom", f"{W}pPr", f"{W}rPr", f"{W}sdtPr"}  # tabs, too, are in pPr
_OPERANDS = ("num", "den", "sub", "sup", "e")
_SEEN = (*_TEXT, f"{W}sym", f"{_M}t", CHART, DIAGRAM)  # what an alternative is chosen for

_FIRST, _LAST = "\uf020", "\uf0ff"  # where symbol fonts put their 224 characters
# Adobe's Symbol encoding from 0x20, with gaps as blanks.
_SYMBOL = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_"
    "‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼                                 €"
    "ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓"
    "◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪ 〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"
)
# The commonest of Wingdings, runs of signs behind the code of the first: bullets, ticks, arrows.
_WINGDINGS = """
    21✏✂✁ 28☎✆✉ 36⌛ 3F✍ 41✌ 45☜☞☝☟ 4A☺ 4C☹ 51✈☼ 54❄ 58✠✡☪☯ 6C● 6E■□ 71❑❒ 74⧫◆❖
    78⌧ 7D❝❞ 80⓪①②③④⑤⑥⑦⑧⑨⑩⓿❶❷❸❹❺❻❼❽❾❿ 9E·• A1○ A7▪◻ AA✦★ D8➢ DF←→↑↓↖↗↙↘ E8➔ EF⇦⇨⇧⇩ FB✗✓☒☑
"""
_FONTS = {
    "symbol": {code: sign for code, sign in enumerate(_SYMBOL, 0x20) if sign > " "},
    "wingdings": {
        code: sign
        for run in _WINGDINGS.split()
        for code, sign in enumerate(run[2:], int(run[:2], 16))
    },
}


def text_of(element: Any, part: Any, after: list[Any] | None = None) -> str:
    """The text below an element of a part: runs, tabs, breaks, equations, marks [^1] for notes.

    Text boxes (elements), charts and diagrams (texts) are appended to `after`; without it they
    stand where they are.
    """
    parts: list[str] = []
    waiting = [element]
    while waiting:
        node = waiting.pop()
        tag = node.tag
        if isinstance(node, str):
            parts.append(node)
        elif tag in _TEXT:
            parts.append(_run(node))
        elif tag in _BREAKS:
            parts.append(_BREAKS[tag])
        elif tag == f"{W}sym":
            parts.append(_symbol(node))
        elif tag == f"{_M}oMath":
            parts.append(equation(node))
        elif tag in _NOTES:
            parts.append(f"[^{_NOTES[tag]}{node.get(f'{W}id')}]")
        elif tag in (CHART, DIAGRAM):
            drawn = drawing(node, part)
            parts.append(f" {drawn} ") if after is None else after.append(drawn)
        elif tag == BOX and after is not None:
            after.append(node)
        elif tag == ALTERNATIVES:
            waiting += alternative(node)
        elif tag not in _SKIPPED:
            waiting += reversed(node)
            if tag in _PARAGRAPHS and parts:
                parts.append("\n")
    return "".join(parts)


def alternative(node: Any) -> list[Any]:
    """Of the forms in which a thing is stored the first with text in it."""
    return next(([form] for form in node if next(form.iter(*_SEEN), None) is not None), [])


def _run(node: Any) -> str:
    text = node.text or ""
    if not has_symbols(text):
        return text
    run = node.getparent()
    for path, name in ((f"{W}rPr/{W}rFonts", f"{W}ascii"), (f"{A}rPr/{A}sym", "typeface")):
        if (font := run.find(path)) is not None and font.get(name):
            return as_signs(text, font.get(name))
    return as_signs(text, "")


def _symbol(node: Any) -> str:
    """The sign of an element that names a font and a character's code in hexadecimal."""
    try:
        code = int(node.get(f"{W}char", ""), 16)
        sign = chr(code if code > 0xFF else 0xF000 + code)
    except (ValueError, OverflowError):
        return ""
    return as_signs(sign, node.get(f"{W}font") or "")


def equation(node: Any) -> str:
    """An equation in a line, as in "x=(-b±√(b^2-4ac))/(2a)"."""
    if node.tag == f"{_M}t":
        return node.text or ""
    inside = [(child.tag, equation(child)) for child in node if isinstance(child.tag, str)]
    named = dict(inside)
    part = {name: _group(named.get(f"{_M}{name}", "")) for name in _OPERANDS}
    raised = (f"_{part['sub']}" * bool(part["sub"])) + (f"^{part['sup']}" * bool(part["sup"]))
    kind = node.tag.removeprefix(_M)
    if kind == "f":
        return f"{part['num']}/{part['den']}"
    if kind in ("sSup", "sSub", "sSubSup"):
        return part["e"] + raised
    if kind == "rad":
        return f"√{part['e']}"
    if kind == "nary":
        sign = node.find(f"{_M}naryPr/{_M}chr")
        return f"{'∫' if sign is None else sign.get(f'{_M}val', '')}{raised} {part['e']}"
    texts = [text for _, text in inside if text]
    return f"({','.join(texts)})" if kind == "d" else "".join(texts)


def _group(text: str) -> str:
    """`text` as one operand: in parentheses unless it is one character, a number or has them."""
    whole = text.isdigit() or len(text) < 2 or (text[0] == "(" and text.find(")") == len(text) - 1)
    return text if whole else f"({text})"


def drawing(node: Any, part: Any) -> str:
    """The text of a chart or diagram, to whose part `node` refers; "" for a broken one."""
    name = node.get(f"{R}id" if node.tag == CHART else f"{R}dm", "")
    parser = etree.XMLParser(resolve_entities=False, no_network=True)
    try:
        root = etree.fromstring(part.rels[name].target_part.blob, parser)
    except (KeyError, etree.LxmlError, ValueError):
        return ""
    return "\n".join(_chart(root) if node.tag == CHART else _diagram(root))


def _diagram(root: Any) -> Iterator[str]:
    for point in root.iter(f"{_DGM}pt"):
        lines = ["".join(t.text or "" for t in p.iter(f"{A}t")) for p in point.iter(f"{A}p")]
        if text := " ".join(lines):
            yield " ".join(text.split())


def _chart(root: Any) -> Iterator[str]:
    """The title, and a line for each category with a value of each series."""
    title = root.find(f"{_C}chart/{_C}title")
    if title is not None:
        yield "".join(t.text or "" for t in title.iter(f"{A}t", f"{_C}v"))
    names: list[str] = []
    columns: list[dict[str, str]] = []
    categories: dict[str, str] = {}
    for series in root.iter(f"{_C}ser"):
        names.append(" ".join(_points(series, "tx").values()))
        categories |= _points(series, "cat", "xVal")
        columns.append(_points(series, "val", "yVal"))
    if any(names):
        yield BETWEEN_CELLS.join(["", *names])
    indices = {index for column in (categories, *columns) for index in column}
    for index in sorted(indices, key=lambda index: (len(index), index)):
        yield BETWEEN_CELLS.join([categories.get(index, ""), *(c.get(index, "") for c in columns)])


def _points(series: Any, *names: str) -> dict[str, str]:
    """The stored values of one part of a series by their index."""
    points: dict[str, str] = {}
    for name in names:
        for value in series.iterfind(f"{_C}{name}//{_C}v"):
            text = " ".join((value.text or "").split())
            with suppress(ValueError):  # it is no number, of which Office shows 15 digits
                text = f"{float(text):.15g}" if "." in text else text
            points[value.getparent().get("idx", "")] = text
    return points


def has_symbols(text: str) -> bool:
    """Whether characters of a symbol font stand in `text`."""
    return any(_FIRST <= c <= _LAST for c in text)


def as_signs(text: str, font: str) -> str:
    """`text` in a font of that name, characters of symbol fonts as signs where they are known.

    >>> as_signs("\\uf061 \\uf0ff", "Symbol"), as_signs("\\uf0fc", "Wingdings")
    ('α \\uf0ff', '✓')
    """
    known = {0x20: " ", **_FONTS.get(font.lower(), {})}
    return "".join(known.get(ord(c) - 0xF000, c) if has_symbols(c) else c for c in text)


def unknown_signs(text: str) -> tuple[str, ...]:
    """A warning if characters without a meaning are left in `text`."""
    left = sum("\ue000" <= c <= "\uf8ff" for c in text)
    return (f"characters of symbol fonts whose meaning is not known: {left}",) * bool(left)
