"""Reduces the tree of an HTML page to what a person sees, in elements that `write_tree` writes.

Hidden elements are removed. Elements without text of their own get the text that they stand for:
the values of forms, pictures, equations, the numbers of lists, ruby, and raised or lowered text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ngtcli.documents.formats.equations import MATHML, mathml
from ngtcli.documents.formats.numerals import numeral

STANDS_FOR = "stands-for"  # an attribute: what is shown where a text is in the tree
_LISTS = ("ol", "ul", "menu", "dir")
_FORMULAS = ("math", "m:math", "mml:math", MATHML)
_DRAWINGS = ("svg", "{http://www.w3.org/2000/svg}svg")
_NEVER_HIDDEN = frozenset(["html", "body", "head"])  # pages hide these until a script has run
_FIELDS_WITHOUT_TEXT = frozenset(
    "hidden password submit button reset image file range color".split()
)
_INLINE = frozenset("a b i em strong span font u sub sup small cite abbr code var picture".split())
_MAX_CONTEXT = 24  # characters before a raised text that decide what it means (guess)

# Declarations of styles, in lower case.
_HIDING = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|mso-hide\s*:\s*all)"
)
_NO_HEIGHT = re.compile(r"(?:^|;)\s*(?:max-)?height\s*:\s*0(?:px|pt|em)?\s*(?:;|$)")
_NO_OVERFLOW = re.compile(r"overflow(?:-y)?\s*:\s*hidden")
_OFF_SCREEN = re.compile(r"(?:^|;)\s*(?:left|top|text-indent)\s*:\s*-\d{4,}(?:px|em)")
_DISPLAY = re.compile(r"(?:^|;)\s*(?:display|visibility)\s*:\s*([\w-]+)")
_NO_FONT_SIZE = re.compile(r"(?:^|;)\s*font-size\s*:\s*0(?:\.0+)?(?:px|pt|em|%)?\s*(?:;|$)")
_LIST_STYLE = re.compile(r"(?:^|;)\s*list-style(?:-type)?\s*:\s*([^;]+)")
_NUMERAL_STYLE = re.compile(r"decimal(?:-leading-zero)?|(?:lower|upper)-\w+|\bnone\b")
_NUMERAL_STYLES_BY_TYPE = {  # of the attribute `type`
    "1": "decimal",
    "a": "lower-alpha",
    "A": "upper-alpha",
    "i": "lower-roman",
    "I": "upper-roman",
}

# Style sheets.
_CSS_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CSS_AT_RULE = re.compile(r"@[\w-]+[^{};]*([{;])")
_CSS_RULE = re.compile(r"([^{};]+)\{([^{}]*)\}")
_CSS_SELECTOR = re.compile(r"([a-zA-Z][\w-]*)?((?:[.#][\w-]+)*)")  # of an element alone
_SPECIFICITIES = {"#": 100, ".": 10}  # by the first character of a name; 1 for a tag

# Raised and lowered text.
_REFERENCE = re.compile(r"\b(?:ref|reference|footnote|fn|cite|citation|noteref|endnote)", re.I)
_FORMULA = re.compile(r"[+−–-]?(?:\d[\d.,/–-]*)?[a-zA-Zα-ω]?(?:[+−*/·][\da-zA-Zα-ω]+)*[+−–-]?")
_NOTE_MARKS = re.compile(r"\d+[a-z]?(?:[,–-]\s?\d+[a-z]?)*|[a-z]")
_REMARK_END = re.compile(r"[^\W\d_]{3}[^()]*\)$")  # of words in parentheses, not of a formula
_ORDINAL_SIGNS = frozenset("o a e r".split())  # as in 1º, 1ª, 2ᵉ
# Words that may have an exponent.
_UNITS = frozenset("sec min mol rad deg sin cos tan log exp mile miles inch feet yard".split())
# Words of two letters; other short words are taken for units or variables.
_SHORT_WORDS = frozenset(
    "st nd rd th am an as at be by do go he if in is it me my no of on or so to up us we"
    " de du en et il la le ou un se si al da di el es ja lo na ne od po su te va ve zu".split()
)


def keep_visible(root: Any) -> int:
    """Reduce the tree of an HTML page to what is seen; return how many words were hidden."""
    hidden_words = 0
    for element in _hidden_elements(root):
        hidden_words += len(" ".join(element.itertext()).split())
        _remove(element)
    _replace_form_fields(root)
    _replace_formulas(root)
    _replace_drawings(root)
    _replace_pictures(root)
    number_lists(root)
    for quotation in root.iter("q"):
        quotation.text = f"“{quotation.text or ''}"
        _append_text(quotation, "”")
    for table in root.iter("table"):
        for foot in table.findall("tfoot"):
            table.append(foot)  # it is shown at the bottom, wherever the page has it
    set_apart(root)
    return hidden_words


def join_scripts(root: Any) -> None:
    """Join raised or lowered runs that directly follow each other."""
    for script in list(root.iter("sup", "sub")):
        previous = script.getprevious()
        if previous is not None and previous.tag == script.tag and not previous.tail:
            text = "".join([*previous.itertext(), *script.itertext()])
            previous[:] = []
            previous.text = text
            previous.tail = script.tail
            script.getparent().remove(script)


def set_apart(root: Any) -> None:
    """Write ruby in parentheses after its base, and mark raised and lowered text as such."""
    for reading in root.iter("rt"):
        text = "".join(reading.itertext())
        needs_parentheses = text.strip() and "(" not in text
        _replace(reading, f"({text})" if needs_parentheses else text)
    for parenthesis in root.iter("rp"):
        _replace(parenthesis, "")
    for script in root.iter("sup", "sub"):
        text = "".join(script.itertext())
        before = _text_before(script)
        after = _text_after(script)
        is_mark = script.tag == "sup" and _is_reference(script)
        _replace(script, scripted(text, script.tag, before, after, is_mark))


def scripted(text: str, kind: str, before: str, after: str, is_mark: bool = False) -> str:
    """Write a raised or lowered text in a line, so that digits never run together.

    Args:
        text: The text.
        kind: "sup" for raised, "sub" for lowered text.
        before: The text before it, which tells an exponent from the mark of a note.
        after: The text after it.
        is_mark: Whether it is known to be the mark of a note.

    >>> [scripted("2", "sup", before, "") for before in ("r", "10", "cm", "harbour", "end.")]
    ['^2', '^2', '^2', '[2]', '[2]']
    >>> [scripted(text, "sup", "the 1", " of May") for text in ("st", "n+1", "*")]
    ['st', '^(n+1)', '*']
    >>> scripted("2", "sub", "H", "O"), scripted("2", "sub", "10", "")
    ('2', '_2')
    """
    words = " ".join(text.split())
    if not words:
        return text
    before = before[-_MAX_CONTEXT:]
    follows_digit = before[-1:].isdigit()
    meets_digit_before = follows_digit and words[0].isdigit()
    meets_digit_after = words[-1].isdigit() and after[:1].isdigit()
    separator = " " if meets_digit_after else ""

    if kind == "sub":
        if meets_digit_before or meets_digit_after:
            return f"_{_operand(words)}{separator}"
        return text
    if is_mark:
        has_brackets = words[0] in "[("
        is_sign = not any(map(str.isalnum, words))  # such as "*"
        return text if has_brackets or is_sign else f"[{words}]"
    is_ordinal = follows_digit and words in _ORDINAL_SIGNS
    if is_ordinal or not _FORMULA.fullmatch(words):
        return text
    if _is_exponent(words, before):
        return f"^{_operand(words)}{separator}"
    return f"[{words}]"


def _is_exponent(raised: str, before: str) -> bool:
    """Whether a raised text is an exponent rather than the mark of a note.

    Args:
        raised: The text.
        before: The text before it.
    """
    word_match = re.search(r"[^\W\d_]+$", before)
    if word_match:
        return _may_have_exponent(word_match[0]) or not _NOTE_MARKS.fullmatch(raised)
    if before.endswith(")"):
        return not _REMARK_END.search(before)
    return before[-1:].isdigit() or before.endswith(("]", "}", "|", "∞", "·", "⋅", "×"))


def _may_have_exponent(word: str) -> bool:
    """Whether a word is a unit or a variable."""
    if len(word) == 1 or word.lower() in _UNITS:
        return True
    is_abbreviation = word.isupper()
    return len(word) < 3 and not is_abbreviation and word.lower() not in _SHORT_WORDS


def _operand(text: str) -> str:
    """A text in parentheses, unless it is a number or a single character."""
    number = text.lstrip("+-−–")
    is_single = number.replace(".", "").isdigit() or len(text) == 1
    return text if is_single else f"({text})"


def _is_reference(script: Any) -> bool:
    """Whether a raised text is a link, is in one, or is named as the mark of a note."""
    parent = script.getparent()
    if parent is not None and parent.tag in ("a", "xref"):
        return True
    if next(script.iter("a", "xref"), None) is not None:
        return True
    names = " ".join(script.get(name) or "" for name in ("class", "id", "role", "epub:type"))
    return bool(_REFERENCE.search(names))


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule of a style sheet that shows or hides an element.

    Attributes:
        specificity: Its weight; of two rules the one with the higher weight holds.
        order: Its number in the page; of two rules with one weight the later one holds.
        names: The tag, classes and id that an element must have.
        hides: Whether it hides elements.
    """

    specificity: int
    order: int
    names: frozenset[str]
    hides: bool


_Rules = dict[str, list[_Rule]]  # by the first of the names of each


def _hidden_elements(root: Any) -> list[Any]:
    """The outermost elements that a browser does not show."""
    rules = _parse_rules(root)
    candidates = root.xpath("//*" if rules else "//*[@hidden or @style or self::dialog]")
    hidden: dict[Any, None] = {}
    for element in candidates:
        if element.tag not in _NEVER_HIDDEN and _is_hidden(element, rules):
            hidden[element] = None
    return [e for e in hidden if not any(ancestor in hidden for ancestor in e.iterancestors())]


def _is_hidden(element: Any, rules: _Rules) -> bool:
    style = (element.get("style") or "").lower()
    if element.get("hidden") is not None or _hides(style):
        return True
    if element.tag == "dialog" and element.get("open") is None:
        return True
    if style and not len(element) and _NO_FONT_SIZE.search(style):
        return True
    if not rules or _DISPLAY.search(style):
        return False

    names = _names_of(element)
    matching = []
    for name in names:
        matching += [rule for rule in rules.get(name, ()) if rule.names <= names]
    if not matching:
        return False
    return max(matching, key=lambda rule: (rule.specificity, rule.order)).hides


def _hides(style: str) -> bool:
    """Whether declarations, in lower case, leave nothing of an element to be seen."""
    if _HIDING.search(style) or _OFF_SCREEN.search(style):
        return True
    return bool(_NO_HEIGHT.search(style) and _NO_OVERFLOW.search(style))


def _names_of(element: Any) -> set[str]:
    """Return the names that a selector can have for an element: tag, classes and id."""
    names = {element.tag}
    names |= {f".{name}" for name in (element.get("class") or "").split()}
    if element.get("id"):
        names.add(f"#{element.get('id')}")
    return names


def _parse_rules(root: Any) -> _Rules:
    """The rules of style sheets that show or hide elements; {} if none of them hides any.

    Selectors that depend on other elements are ignored, and so are rules that hold only for print,
    for small screens or the like.
    """
    rules: _Rules = {}
    hides_any = False
    order = count()
    for sheet in root.iter("style"):
        if "print" in (sheet.get("media") or ""):
            continue
        css = _CSS_COMMENT.sub("", "".join(sheet.itertext()))
        for match in _CSS_RULE.finditer(_without_at_rules(css)):
            declarations = match[2].lower()
            hides = _hides(declarations)
            if not hides and not _DISPLAY.search(declarations):
                continue
            hides_any = hides_any or hides
            for selector in match[1].split(","):
                names = _parse_selector(selector.strip())
                if names:
                    specificity = sum(_SPECIFICITIES.get(name[0], 1) for name in names)
                    rule = _Rule(specificity, next(order), frozenset(names), hides)
                    rules.setdefault(names[0], []).append(rule)
    return rules if hides_any else {}


def _parse_selector(selector: str) -> list[str]:
    """The classes, the id and the tag that a selector names; [] if it is of another kind."""
    match = _CSS_SELECTOR.fullmatch(selector)
    if match is None:
        return []
    names: list[str] = re.findall(r"[.#][\w-]+", match[2])
    if match[1]:
        names.append(match[1].lower())
    return names


def _without_at_rules(css: str) -> str:
    """A style sheet without rules such as `@media`, whose blocks hold under conditions."""
    parts = []
    position = 0
    for match in _CSS_AT_RULE.finditer(css):
        if match.start() < position:  # within a block that is left out
            continue
        parts.append(css[position : match.start()])
        position = match.end()
        depth = 1 if match[1] == "{" else 0
        while depth and position < len(css):
            if css[position] == "{":
                depth += 1
            elif css[position] == "}":
                depth -= 1
            position += 1
    parts.append(css[position:])
    return "".join(parts)


def _replace_form_fields(root: Any) -> None:
    """Replace the fields of forms by what is filled in or chosen."""
    for field in list(root.iter("input", "select", "textarea")):
        text = _field_text(field)
        is_block = field.tag == "textarea" and "\n" in text.strip()
        _replace(field, text, tag="pre" if is_block else "span", stands_for="field")


def _field_text(field: Any) -> str:
    if field.tag == "select":
        return _chosen_options(field)
    if field.tag == "textarea":
        return "".join(field.itertext())
    kind = (field.get("type") or "text").lower()
    if kind in ("checkbox", "radio"):
        return "[x]" if field.get("checked") is not None else "[ ]"
    return "" if kind in _FIELDS_WITHOUT_TEXT else field.get("value") or ""


def _chosen_options(field: Any) -> str:
    """The chosen options of a list; the first one if none is chosen and one must be."""
    options = list(field.iter("option"))
    chosen = [option for option in options if option.get("selected") is not None]
    if field.get("multiple") is None:
        chosen = chosen[-1:] or options[:1]
    return ", ".join(option.get("label") or _normalized_text(option) for option in chosen)


def _replace_formulas(root: Any) -> None:
    for formula in list(root.iter(*_FORMULAS)):
        _replace(formula, mathml(formula))
    # KaTeX writes a formula twice: as MathML, and as HTML that shows it.
    for duplicate in root.xpath(
        "//*[contains(@class, 'katex-html')][../*[contains(@class, 'katex-mathml')]]"
    ):
        _remove(duplicate)


def _replace_drawings(root: Any) -> None:
    """Replace vector graphics by the texts in them."""
    for drawing in list(root.iter(*_DRAWINGS)):
        texts = [_normalized_text(text) for text in drawing.iter("text", "{*}text")]
        _replace(drawing, " ".join(filter(None, texts)), stands_for="picture")


def _replace_pictures(root: Any) -> None:
    """Replace pictures by their alternative text, unless the page shows that anyway."""
    block_texts: dict[Any, str] = {}
    for picture in list(root.iter("img")):
        text = " ".join((picture.get("alt") or "").split())
        if text and not _is_described(picture, text, block_texts):
            _replace(picture, text, stands_for="picture")


def _is_described(picture: Any, text: str, block_texts: dict[Any, str]) -> bool:
    """Whether a picture has a caption, or its alternative text is in the block around it.

    Args:
        picture: The picture.
        text: Its alternative text.
        block_texts: A cache of the texts of blocks, many of which have several pictures.
    """
    for figure in picture.iterancestors("figure"):
        captions = ["".join(caption.itertext()) for caption in figure.iter("figcaption")]
        if "".join(captions).strip():
            return True
    block = picture.getparent()
    while block is not None and block.tag in _INLINE:
        block = block.getparent()
    if block is None or block.tag in _NEVER_HIDDEN:
        return False
    if block not in block_texts:
        block_texts[block] = _normalized_text(block).casefold()
    return text.casefold() in block_texts[block]


def number_lists(root: Any) -> None:
    """Set `mark` of the items of numbered lists to what is shown before them."""
    items_by_list: dict[Any, list[Any]] = {}
    for item in root.iter("li"):
        parent_list = next(item.iterancestors(*_LISTS), None)
        if parent_list is not None:
            items_by_list.setdefault(parent_list, []).append(item)
    for parent_list, items in items_by_list.items():
        list_style = _numeral_style(parent_list)
        if parent_list.tag == "ol" or list_style:
            _number_items(parent_list, items, list_style or "decimal")


def _number_items(parent_list: Any, items: Sequence[Any], list_style: str) -> None:
    """Set `mark` of the items of one list.

    Args:
        parent_list: The list.
        items: Its items.
        list_style: The style of its numbers, which an item may override.
    """
    is_reversed = parent_list.get("reversed") is not None
    step = -1 if is_reversed else 1
    number = _parse_integer(parent_list.get("start"), len(items) if is_reversed else 1)
    for item in items:
        number = _parse_integer(item.get("value"), number)
        style = _numeral_style(item) or list_style
        if style != "none":
            item.set("mark", f"{numeral(number, style)}.")
        number += step


def _numeral_style(element: Any) -> str:
    """The style of a list's numbers by its name in CSS; "" if it declares bullets or nothing."""
    declaration = _LIST_STYLE.search((element.get("style") or "").lower())
    style = _NUMERAL_STYLE.search(declaration[1]) if declaration else None
    if style:
        return style[0]
    return _NUMERAL_STYLES_BY_TYPE.get(element.get("type") or "", "")


def _parse_integer(text: str | None, default: int) -> int:
    """The number at the beginning of an attribute, as browsers read it."""
    match = re.match(r"\s*([+-]?\d{1,9})", text or "")
    return int(match[1]) if match else default


def _text_before(element: Any) -> str:
    """Up to `_MAX_CONTEXT` characters before an element in its block."""
    text = ""
    for _ in range(_MAX_CONTEXT):
        if element is None or len(text) >= _MAX_CONTEXT:
            break
        previous = element.getprevious()
        parent = element.getparent()
        if previous is not None:
            text = (previous.tail or "") + text
            if not text and previous.tag == "br":
                break
            if len(text) < _MAX_CONTEXT and isinstance(previous.tag, str):
                text = "".join(previous.itertext())[-_MAX_CONTEXT:] + text
            element = previous
        elif parent is None:
            break
        else:
            text = (parent.text or "") + text
            if parent.tag not in _INLINE:
                break
            element = parent
    return text[-_MAX_CONTEXT:]


def _text_after(element: Any) -> str:
    """The character after an element; "" if that is raised or lowered, too."""
    if element.tail:
        return str(element.tail[:1])
    following = element.getnext()
    if following is None or following.tag in ("sup", "sub") or not isinstance(following.tag, str):
        return ""
    return "".join(following.itertext())[:1]


def _normalized_text(element: Any) -> str:
    """The text in an element, with single spaces."""
    return " ".join("".join(element.itertext()).split())


def _append_text(element: Any, text: str) -> None:
    """Add text at the end of an element."""
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _replace(element: Any, text: str, tag: str = "span", stands_for: str = "") -> None:
    """Replace an element, in place, by another one with only this text.

    Args:
        element: The element, which keeps its place in the tree and the text after it.
        text: The text.
        tag: Its new tag.
        stands_for: What it replaces, which an attribute says.
    """
    element.clear(keep_tail=True)
    element.tag = tag
    element.text = text
    if stands_for:
        element.set(STANDS_FOR, stands_for)


def _remove(element: Any) -> None:
    """Empty an element so that nothing of it is shown; iteration over the tree may continue."""
    _replace(element, "", tag="template")
