"""Equations of Office files (OMML) and of web pages (MathML) in one line of text."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

MATHML = "{http://www.w3.org/1998/Math/MathML}math"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
EQUATION = f"{_MATH}oMath"
EQUATION_TEXT = f"{_MATH}t"
# How elements of OMML are written, with the names of their parts. `scripts` are the lowered and the
# raised part, `root` is the sign of a root with its degree, `sign` that of a sum or an integral.
_OMML_PATTERNS = {
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
_ROOT_SIGNS = {"": "√", "2": "√", "3": "∛", "4": "∜"}  # by degree
_MATHML_TOKENS = ("mi", "mn", "mo", "mtext", "ms")  # elements that hold text
_NOT_SHOWN = frozenset(["annotation", "annotation-xml", "mphantom", "none", "mprescripts"])
_INVISIBLE = dict.fromkeys(range(0x2061, 0x2065))  # function application, invisible times, …
_RAISED_SIGNS = ("′", "″", "‴", "'", "*", "°")  # written after their base without "^"


def equation(node: Any) -> str:
    """Write an equation in OMML in one line, such as "x=(-b±√(b^2-4ac))/(2a)"."""
    if node.tag == EQUATION_TEXT:
        return node.text or ""
    name = node.tag.removeprefix(_MATH)
    children = [(child.tag.removeprefix(_MATH), equation(child)) for child in node]
    texts = [text for _, text in children if text]
    if name == "m":
        return _matrix(texts)
    if name == "mr":
        return ", ".join(texts)
    if name == "d":
        return _delimited(node, texts)
    if name not in _OMML_PATTERNS:
        return "".join(texts)

    parts: dict[str, str] = defaultdict(str)
    for child_name, text in children:
        parts[child_name] = _operand(text)
    parts["scripts"] = _scripts(parts["sub"], parts["sup"])
    parts["root"] = _root_sign(parts["deg"])
    sign = node.find(f"{_MATH}naryPr/{_MATH}chr")
    parts["sign"] = "∫" if sign is None else sign.get(f"{_MATH}val", "")
    return _OMML_PATTERNS[name].format_map(parts)


def _delimited(node: Any, texts: Sequence[str]) -> str:
    """Put the delimiters of an element around its texts: parentheses unless it names others."""
    signs = {"begChr": "(", "endChr": ")", "sepChr": ","}
    for name in signs:
        element = node.find(f"{_MATH}dPr/{_MATH}{name}")
        if element is not None:
            signs[name] = element.get(f"{_MATH}val", "")
    return f"{signs['begChr']}{signs['sepChr'].join(texts)}{signs['endChr']}"


def mathml(node: Any) -> str:
    """Write an equation in MathML in one line, in the same notation.

    >>> from lxml import etree
    >>> mathml(etree.fromstring("<math><mi>A</mi><msup><mi>r</mi><mn>2</mn></msup></math>"))
    'Ar^2'
    """
    if not isinstance(node.tag, str):  # a comment
        return ""
    name = node.tag.rpartition("}")[2].rpartition(":")[2]  # HTML keeps prefixes as they are
    if name in _NOT_SHOWN:
        return ""
    if name == "mspace":
        return " "
    if name in _MATHML_TOKENS:
        return " ".join("".join(node.itertext()).split()).translate(_INVISIBLE)

    texts = [mathml(child) for child in node]
    if name == "semantics":
        return texts[0] if texts else ""
    if name == "mtable":
        return _matrix(texts)
    if name in ("mtr", "mlabeledtr"):
        return ", ".join(texts)
    if name == "mfenced":
        inside = ",".join(text for text in texts if text)
        return f"{node.get('open', '(')}{inside}{node.get('close', ')')}"
    if name == "msqrt":
        return f"√{_operand(''.join(texts))}"
    if len(texts) >= 2:
        return _mathml_layout(name, texts)
    return "".join(texts)


def _mathml_layout(name: str, texts: Sequence[str]) -> str:
    """Write an element that places its children around the first of them.

    Args:
        name: The name of the element in MathML.
        texts: Its children as text, at least two.
    """
    base = _operand(texts[0])
    second = _operand(texts[1])
    if name == "mfrac":
        return f"{base}/{second}"
    if name == "mroot":
        return f"{_root_sign(texts[1])}{base}"
    if name in ("msub", "munder"):
        return f"{base}_{second}"
    if name == "msup":
        return f"{base}{second}" if second in _RAISED_SIGNS else f"{base}^{second}"
    if name == "mover":
        return f"{texts[0]}{second}" if _is_accent(second) else f"{texts[0]}^{second}"
    if name in ("msubsup", "munderover"):
        return base + _scripts(second, _operand("".join(texts[2:])))
    return "".join(texts)


def _matrix(rows: Sequence[str]) -> str:
    return f"[{'; '.join(rows)}]"


def _is_accent(text: str) -> bool:
    return len(text) == 1 and not text.isalnum()


def _root_sign(degree: str) -> str:
    return _ROOT_SIGNS.get(degree, f"{_operand(degree)}√")


def _scripts(lowered: str, raised: str) -> str:
    text = f"_{lowered}" if lowered else ""
    if raised:
        text += f"^{raised}"
    return text


def _operand(text: str) -> str:
    """Put a text in parentheses, unless it is a number, one character, or has them already."""
    has_parentheses = text[:1] == "(" and text.find(")") == len(text) - 1
    if text.isdigit() or len(text) < 2 or has_parentheses:
        return text
    return f"({text})"
