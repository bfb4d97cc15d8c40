"""Equations of Office files (OMML) and of web pages (MathML) in one line of text."""

from collections import defaultdict
from typing import Any

_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
EQUATION, EQUATION_TEXT = f"{_MATH}oMath", f"{_MATH}t"
_FORMS = {  # parts of OMML in a line; `scripts` are what is lowered and raised
    "f": "{num}/{den}",
    "rad": "{root}{e}",
    "nary": "{sign}{scripts} {e}",
    "sSup": "{e}{scripts}",
    "sSub": "{e}{scripts}",
    "sSubSup": "{e}{scripts}",
    "sPre": "{scripts}{e}",
    "limLow": "{e}_{lim}",
    "limUpp": "{e}^{lim}",
}
_ROOTS = {"": "√", "2": "√", "3": "∛", "4": "∜"}
_SILENT = frozenset(["annotation", "annotation-xml", "mphantom", "none", "mprescripts"])
MATHML = "{http://www.w3.org/1998/Math/MathML}math"
_INVISIBLE = dict.fromkeys(range(0x2061, 0x2065))  # function application, invisible times, …


def equation(node: Any) -> str:
    """An equation in OMML in a line, as in "x=(-b±√(b^2-4ac))/(2a)"."""
    if node.tag == EQUATION_TEXT:
        return node.text or ""
    kind = node.tag.removeprefix(_MATH)
    inside = [(child.tag, equation(child)) for child in node]
    texts = [text for _, text in inside if text]
    if kind == "m":
        return f"[{'; '.join(texts)}]"
    if kind == "mr":
        return ", ".join(texts)
    if kind == "d":
        return _fenced(node, texts)
    if kind not in _FORMS:
        return "".join(texts)
    part = defaultdict(str, {tag.removeprefix(_MATH): _group(text) for tag, text in inside})
    part["scripts"] = _scripts(part["sub"], part["sup"])
    part["root"] = _root(part["deg"])
    sign = node.find(f"{_MATH}naryPr/{_MATH}chr")
    part["sign"] = "∫" if sign is None else sign.get(f"{_MATH}val", "")
    return _FORMS[kind].format_map(part)


def _fenced(node: Any, texts: list[str]) -> str:
    """What stands between delimiters, which are parentheses unless others are named."""
    signs = {"begChr": "(", "endChr": ")", "sepChr": ","}
    for name, usual in signs.items():
        named = node.find(f"{_MATH}dPr/{_MATH}{name}")
        signs[name] = usual if named is None else named.get(f"{_MATH}val", "")
    return f"{signs['begChr']}{signs['sepChr'].join(texts)}{signs['endChr']}"


def mathml(node: Any) -> str:
    """An equation in MathML in a line, in the same form.

    >>> from lxml import etree
    >>> mathml(etree.fromstring("<math><mi>A</mi><msup><mi>r</mi><mn>2</mn></msup></math>"))
    'Ar^2'
    """
    if not isinstance(node.tag, str):
        return ""
    kind = node.tag.rpartition("}")[2].rpartition(":")[2]  # HTML keeps prefixes as they are
    if kind in _SILENT:
        return ""
    if kind in ("mi", "mn", "mo", "mtext", "ms"):
        return " ".join("".join(node.itertext()).split()).translate(_INVISIBLE)
    texts = [mathml(child) for child in node]
    if kind == "mspace":
        return " "
    if kind == "semantics":
        return texts[0] if texts else ""
    if kind == "mtable":
        return f"[{'; '.join(texts)}]"
    if kind in ("mtr", "mlabeledtr"):
        return ", ".join(texts)
    if kind == "mfenced":
        inside = ",".join(text for text in texts if text)
        return f"{node.get('open', '(')}{inside}{node.get('close', ')')}"
    if kind == "msqrt":
        return f"√{_group(''.join(texts))}"
    if len(texts) >= 2:
        base, second = texts[0], _group(texts[1])
        if kind == "mfrac":
            return f"{_group(base)}/{second}"
        if kind == "mroot":
            return f"{_root(texts[1])}{_group(base)}"
        if kind in ("msub", "munder"):
            return f"{_group(base)}_{second}"
        if kind == "msup":
            return f"{_group(base)}{second if second in _PRIMES else f'^{second}'}"
        if kind == "mover":
            return f"{base}{second}" if _is_accent(second) else f"{base}^{second}"
        if kind in ("msubsup", "munderover"):
            return f"{_group(base)}{_scripts(second, _group(''.join(texts[2:])))}"
    return "".join(texts)


_PRIMES = ("′", "″", "‴", "'", "*", "°")


def _is_accent(text: str) -> bool:
    return len(text) == 1 and not text.isalnum()


def _root(degree: str) -> str:
    return _ROOTS.get(degree, f"{_group(degree)}√")


def _scripts(lowered: str, raised: str) -> str:
    return (f"_{lowered}" if lowered else "") + (f"^{raised}" if raised else "")


def _group(text: str) -> str:
    """`text` as one operand: in parentheses unless it is one character, a number or has them."""
    in_parentheses = text[:1] == "(" and text.find(")") == len(text) - 1
    return text if text.isdigit() or len(text) < 2 or in_parentheses else f"({text})"
