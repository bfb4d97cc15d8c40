"""A page's tree as a person sees it, in the elements that `markup.write_tree` writes.

What is hidden is taken out. What has no text of its own gets the text that it stands for: values of
forms, pictures, equations, the numbers of lists, ruby, and raised signs.
"""

import re
from itertools import count
from typing import Any

from ngtcli.documents.formats.equations import MATHML, mathml
from ngtcli.documents.formats.numerals import numeral

STANDS_FOR = "stands-for"  # what a text stands for that the page shows otherwise
_LISTS = ("ol", "ul", "menu", "dir")
_NEVER_HIDDEN = frozenset(["html", "body", "head"])  # pages hide these until a script has run
_HIDING = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|mso-hide\s*:\s*all)"
)
_NO_HEIGHT = re.compile(r"(?:^|;)\s*(?:max-)?height\s*:\s*0(?:px|pt|em)?\s*(?:;|$)")
_CUT = re.compile(r"overflow(?:-y)?\s*:\s*hidden")
_OFF_SCREEN = re.compile(r"(?:^|;)\s*(?:left|top|text-indent)\s*:\s*-\d{4,}(?:px|em)")
_DISPLAY = re.compile(r"(?:^|;)\s*(?:display|visibility)\s*:\s*([\w-]+)")
_NO_SIZE = re.compile(r"(?:^|;)\s*font-size\s*:\s*0(?:\.0+)?(?:px|pt|em|%)?\s*(?:;|$)")
_LIST_STYLE = re.compile(r"(?:^|;)\s*list-style(?:-type)?\s*:\s*([^;]+)")
_NUMBERS = re.compile(r"decimal(?:-leading-zero)?|(?:lower|upper)-\w+|\bnone\b")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_RULE = re.compile(r"([^{};]+)\{([^{}]*)\}")
_SELECTOR = re.compile(r"([a-zA-Z][\w-]*)?((?:[.#][\w-]+)*)")
_TYPES = {
    "1": "decimal",
    "a": "lower-alpha",
    "A": "upper-alpha",
    "i": "lower-roman",
    "I": "upper-roman",
}
_NO_VALUE = frozenset("hidden password submit button reset image file range color".split())
_REFERENCE = re.compile(r"\b(?:ref|reference|footnote|fn|cite|citation|noteref|endnote)", re.I)
_WITHIN = frozenset("a b i em strong span font u sub sup small cite abbr code var picture".split())
_FAR = 24  # characters before a raised sign that say what it is; guess


def show(root: Any) -> int:
    """Make the tree of an HTML page one of what is seen; the number of words that were hidden."""
    hidden = 0
    for element in _hidden(root):
        hidden += len(" ".join(element.itertext()).split())
        _remove(element)
    _show_forms(root)
    _show_pictures(root)
    number_lists(root)
    for quotation in root.iter("q"):
        quotation.text = f"“{quotation.text or ''}"
        _append(quotation, "”")
    for table in root.iter("table"):
        for foot in table.findall("tfoot"):
            table.append(foot)  # which is shown below the rows wherever it stands
    set_apart(root)
    return hidden


def join_scripts(root: Any) -> None:
    """Make one of raised or lowered runs that stand side by side."""
    for script in list(root.iter("sup", "sub")):
        previous = script.getprevious()
        if previous is not None and previous.tag == script.tag and not previous.tail:
            text = "".join([*previous.itertext(), *script.itertext()])
            previous[:] = []
            previous.text = text
            previous.tail = script.tail
            script.getparent().remove(script)


def set_apart(root: Any) -> None:
    """Write ruby in parentheses behind its base, and raised and lowered signs as such."""
    for reading in root.iter("rt"):
        text = "".join(reading.itertext())
        _replace(reading, f"({text})" if text.strip() and "(" not in text else text)
    for parenthesis in root.iter("rp"):
        _replace(parenthesis, "")
    for script in root.iter("sup", "sub"):
        text = "".join(script.itertext())
        follows = _text_after(script)
        is_mark = script.tag == "sup" and _is_reference(script)
        _replace(script, scripted(text, script.tag, _text_before(script), follows, is_mark))


def scripted(text: str, kind: str, before: str, after: str, is_mark: bool = False) -> str:
    """A raised or lowered text (`kind` is "sup" or "sub") in a line.

    What stands before it tells an exponent from the mark of a note. Digits never run together.

    >>> [scripted("2", "sup", before, "") for before in ("r", "10", "cm", "harbour", "end.")]
    ['^2', '^2', '^2', '[2]', '[2]']
    >>> [scripted(text, "sup", "the 1", " of May") for text in ("st", "n+1", "*")]
    ['st', '^(n+1)', '*']
    >>> scripted("2", "sub", "H", "O"), scripted("2", "sub", "10", "")
    ('2', '_2')
    """
    inner = " ".join(text.split())
    if not inner:
        return text
    before = before[-_FAR:]
    meets_before = before[-1:].isdigit() and inner[0].isdigit()
    apart = " " if inner[-1].isdigit() and after[:1].isdigit() else ""
    if kind == "sub":
        return f"_{_grouped(inner)}{apart}" if meets_before or apart else text
    if is_mark and any(map(str.isalnum, inner)) and inner[0] not in "[(":
        return f"[{inner}]"
    if is_mark or not _FORMULA.fullmatch(inner) or (before[-1:].isdigit() and inner in _ORDINALS):
        return text
    if _is_exponent(inner, before):
        return f"^{_grouped(inner)}{apart}"
    return f"[{inner}]"


_FORMULA = re.compile(r"[+−–-]?(?:\d[\d.,/–-]*)?[a-zA-Zα-ω]?(?:[+−*/·][\da-zA-Zα-ω]+)*[+−–-]?")
_NOTES = re.compile(r"\d+[a-z]?(?:[,–-]\s?\d+[a-z]?)*|[a-z]")
_SENTENCE = re.compile(r"[^\W\d_]{3}[^()]*\)$")  # in parentheses at the end
_ORDINALS = frozenset("o a e r".split())  # as in 1º, 1ª, 2ᵉ
_UNITS = frozenset("sec min mol rad deg sin cos tan log exp mile miles inch feet yard".split())
_WORDS = frozenset(  # of two letters: a sign behind them is the mark of a note
    "st nd rd th am an as at be by do go he if in is it me my no of on or so to up us we"
    " de du en et il la le ou un se si al da di el es ja lo na ne od po su te va ve zu".split()
)


def _is_exponent(raised: str, before: str) -> bool:
    """Whether a raised text is one, by what stands before it, and no mark of a note."""
    word = re.search(r"[^\W\d_]+$", before)
    if word:
        is_short = len(word[0]) < 3 and word[0].lower() not in _WORDS and not word[0].isupper()
        is_base = is_short or len(word[0]) == 1 or word[0].lower() in _UNITS
        return is_base or not _NOTES.fullmatch(raised)
    if before[-1:] == ")":
        return not _SENTENCE.search(before)
    return before[-1:].isdigit() or before[-1:] in tuple("]}|∞·⋅×")


def _grouped(text: str) -> str:
    """A raised or lowered text as one operand."""
    number = text.lstrip("+-−–")
    is_one = number.replace(".", "").isdigit() or len(text) == 1
    return text if is_one else f"({text})"


def _is_reference(script: Any) -> bool:
    """Whether a raised text links to a note, or says that it does."""
    around = script.getparent()
    links = [*script.iter("a", "xref"), *([around] if around is not None else [])]
    if any(link.tag in ("a", "xref") for link in links):
        return True
    names = " ".join(script.get(name) or "" for name in ("class", "id", "role", "epub:type"))
    return bool(_REFERENCE.search(names))


def _hidden(root: Any) -> list[Any]:
    """The outermost elements that a browser does not show."""
    rules = _rules(root)
    wanted = "@hidden or @style or self::dialog"
    found = root.xpath("//*" if rules else f"//*[{wanted}]")
    hidden = {
        element: None
        for element in found
        if element.tag not in _NEVER_HIDDEN and _is_hidden(element, rules)
    }
    return [e for e in hidden if not any(around in hidden for around in e.iterancestors())]


_Rules = dict[str, list[tuple[int, int, frozenset[str], bool]]]


def _is_hidden(element: Any, rules: _Rules) -> bool:
    style = (element.get("style") or "").lower()
    if element.get("hidden") is not None or _hides(style):
        return True
    if element.tag == "dialog" and element.get("open") is None:
        return True
    if style and not len(element) and _NO_SIZE.search(style):
        return True
    if not rules or _DISPLAY.search(style):
        return False
    names = _names_of(element)
    matching = [
        (weight, order, hides)
        for name in names
        for weight, order, wanted, hides in rules.get(name, ())
        if wanted <= names
    ]
    return bool(matching) and max(matching)[2]


def _hides(style: str) -> bool:
    """Whether a style, in lower case, leaves nothing of an element to be seen."""
    if _HIDING.search(style) or _OFF_SCREEN.search(style):
        return True
    return bool(_NO_HEIGHT.search(style) and _CUT.search(style))


def _names_of(element: Any) -> set[str]:
    """What selectors can name an element by: its tag, its classes and its id."""
    names = {element.tag}
    names |= {f".{name}" for name in (element.get("class") or "").split()}
    if element.get("id"):
        names.add(f"#{element.get('id')}")
    return names


def _rules(root: Any) -> _Rules:
    """Rules of style sheets by which an element alone is hidden or shown, by one of its names.

    Each has its weight and place, all names that it wants, and whether it hides. Rules for
    elements within others, and those for print or small screens, are not looked at.
    """
    rules: _Rules = {}
    hides_any = False
    order = count()
    for sheet in root.iter("style"):
        if "print" in (sheet.get("media") or ""):
            continue
        text = _COMMENT.sub("", "".join(sheet.itertext()))
        for found in _RULE.finditer(_without_blocks(text)):
            declared = found[2].lower()
            hides = _hides(declared)
            if not hides and not _DISPLAY.search(declared):
                continue
            hides_any |= hides
            for selector in found[1].split(","):
                named = _SELECTOR.fullmatch(selector.strip())
                if not named or not named[0]:
                    continue
                names = re.findall(r"[.#][\w-]+", named[2]) + (
                    [named[1].lower()] if named[1] else []
                )
                weight = sum({"#": 100, ".": 10}.get(name[0], 1) for name in names)
                rules.setdefault(names[0], []).append(
                    (weight, next(order), frozenset(names), hides)
                )
    return rules if hides_any else {}


def _without_blocks(sheet: str) -> str:
    """A style sheet without what holds under conditions (`@media` and the like)."""
    kept, at = [], 0
    for found in re.finditer(r"@[\w-]+[^{};]*([{;])", sheet):
        if found.start() < at:
            continue
        kept.append(sheet[at : found.start()])
        at, depth = found.end(), int(found[1] == "{")
        while depth and at < len(sheet):
            depth += {"{": 1, "}": -1}.get(sheet[at], 0)
            at += 1
    return "".join([*kept, sheet[at:]])


def _show_forms(root: Any) -> None:
    """Put what is filled in and chosen in the place of a form's fields."""
    for field in list(root.iter("input", "select", "textarea")):
        kind = (field.get("type") or "text").lower()
        if field.tag == "input" and kind in ("checkbox", "radio"):
            text = "[x]" if field.get("checked") is not None else "[ ]"
        elif field.tag == "input":
            text = "" if kind in _NO_VALUE else field.get("value") or ""
        elif field.tag == "select":
            text = _chosen(field)
        else:
            text = "".join(field.itertext())
        is_block = field.tag == "textarea" and "\n" in text.strip()
        _replace(field, text, "pre" if is_block else "span", "field")


def _chosen(field: Any) -> str:
    """What a list of choices shows: those that are chosen, else the first."""
    options = list(field.iter("option"))
    chosen = [option for option in options if option.get("selected") is not None]
    if field.get("multiple") is None:
        chosen = chosen[-1:] or options[:1]
    return ", ".join(o.get("label") or " ".join("".join(o.itertext()).split()) for o in chosen)


def _show_pictures(root: Any) -> None:
    """Put equations and the texts of pictures in their place, unless these stand beside them."""
    for formula in list(root.iter("math", "m:math", "mml:math", MATHML)):
        _replace(formula, mathml(formula))
    for shown in root.xpath(
        "//*[contains(@class, 'katex-html')][../*[contains(@class, 'katex-mathml')]]"
    ):
        _remove(shown)
    for drawing in list(root.iter("svg", "{http://www.w3.org/2000/svg}svg")):
        texts = (" ".join("".join(t.itertext()).split()) for t in drawing.iter("text", "{*}text"))
        _replace(drawing, " ".join(filter(None, texts)), stands_for="picture")
    around: dict[Any, str] = {}
    for picture in list(root.iter("img")):
        words = " ".join((picture.get("alt") or "").split())
        if words and not _is_said(picture, words, around):
            _replace(picture, words, stands_for="picture")


def _is_said(picture: Any, words: str, texts: dict[Any, str]) -> bool:
    """Whether a figure has a caption, or the text stands beside the picture anyway.

    `texts` keeps those of elements around pictures, as many may be in one.
    """
    around = picture.getparent()
    for figure in picture.iterancestors("figure"):
        if "".join("".join(caption.itertext()) for caption in figure.iter("figcaption")).strip():
            return True
    while around is not None and around.tag in _WITHIN:
        around = around.getparent()
    if around is None or around.tag in _NEVER_HIDDEN:
        return False
    if around not in texts:
        texts[around] = " ".join("".join(around.itertext()).split()).casefold()
    return words.casefold() in texts[around]


def number_lists(root: Any) -> None:
    """Give items of numbered lists what is shown before them, as attribute `mark`."""
    lists: dict[Any, list[Any]] = {}
    for item in root.iter("li"):
        around = next(item.iterancestors(*_LISTS), None)
        if around is not None:
            lists.setdefault(around, []).append(item)
    for numbered, items in lists.items():
        if numbered.tag != "ol" and not _list_style(numbered):
            continue
        reverse = numbered.get("reversed") is not None
        number = _integer(numbered.get("start"), len(items) if reverse else 1)
        for item in items:
            number = _integer(item.get("value"), number)
            style = _list_style(item) or _list_style(numbered) or "decimal"
            if style != "none":
                item.set("mark", f"{numeral(number, style)}.")
            number += -1 if reverse else 1


def _list_style(element: Any) -> str:
    """The style of a list's numbers, by its name in CSS; "" for bullets and none declared."""
    declared = _LIST_STYLE.search((element.get("style") or "").lower())
    named = _NUMBERS.search(declared[1]) if declared else None
    return named[0] if named else _TYPES.get(element.get("type") or "", "")


def _integer(text: str | None, otherwise: int) -> int:
    found = re.match(r"\s*([+-]?\d{1,9})", text or "")
    return int(found[1]) if found else otherwise


def _text_before(element: Any) -> str:
    """Up to `_FAR` characters that stand before an element in its block."""
    text = ""
    for _ in range(_FAR):
        if element is None or len(text) >= _FAR:
            break
        previous = element.getprevious()
        around = element.getparent()
        if previous is not None:
            text = (previous.tail or "") + text
            if not text and previous.tag == "br":
                break
            if len(text) < _FAR and isinstance(previous.tag, str):
                text = "".join(previous.itertext())[-_FAR:] + text
            element = previous
        elif around is None:
            break
        else:
            text = (around.text or "") + text
            if around.tag not in _WITHIN:
                break
            element = around
    return text[-_FAR:]


def _text_after(element: Any) -> str:
    if element.tail:
        return str(element.tail[:1])
    following = element.getnext()
    if following is None or following.tag in ("sup", "sub") or not isinstance(following.tag, str):
        return ""
    return "".join(following.itertext())[:1]


def _append(element: Any, text: str) -> None:
    """Put text at the end of what is in an element."""
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _replace(element: Any, text: str, tag: str = "span", stands_for: str = "") -> None:
    """Make an element one of this text alone; `stands_for` is said of it in an attribute."""
    element.clear(keep_tail=True)
    element.tag = tag
    element.text = text
    if stands_for:
        element.set(STANDS_FOR, stands_for)


def _remove(element: Any) -> None:
    """Leave of an element only what comes after it; iterating over the tree may go on."""
    _replace(element, "", "template")
