"""Numbers of lists, headings and attributes: read as digits, shown as letters or numerals."""

_ROMAN = (
    (1000, "m"),
    (900, "cm"),
    (500, "d"),
    (400, "cd"),
    (100, "c"),
    (90, "xc"),
    (50, "l"),
    (40, "xl"),
    (10, "x"),
    (9, "ix"),
    (5, "v"),
    (4, "iv"),
    (1, "i"),
)
_GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
_CYRILLIC = "абвгдежзиклмнопрстуфхцчшщыэюя"
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINAL = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
# Names of Word, in lower case, for those of CSS.
_ALIASES = {
    "lowerletter": "lower-alpha",
    "upperletter": "upper-alpha",
    "lowerroman": "lower-roman",
    "upperroman": "upper-roman",
    "lower-latin": "lower-alpha",
    "upper-latin": "upper-alpha",
    "decimalzero": "decimal-leading-zero",
}
_ODF = {"a": "lower-alpha", "A": "upper-alpha", "i": "lower-roman", "I": "upper-roman"}
_FAR = 10_000  # beyond this, letters and Roman numerals are of no use; guess


def integer(text: str | None, otherwise: int) -> int:
    """The number that these digits write, or `otherwise` where there are none, or too many.

    A damaged file may have thousands, which Python does not convert.

    >>> integer("12", 1), integer("", 1), integer("-3", 1), integer("9" * 5000, 1)
    (12, 1, 1, 1)
    """
    return int(text) if text and text.isdecimal() and len(text) < 10 else otherwise


def numeral(number: int, style: str) -> str:
    """A number in a style, by its name in CSS, Word or ODF; digits where the style is not known.

    Word and CSS differ behind the last letter: Word's style names double it (`aa`, `bb`).

    >>> [numeral(4, style) for style in ("decimal", "lower-roman", "upperLetter", "ordinal")]
    ['4', 'iv', 'D', '4th']
    >>> numeral(28, "lower-alpha"), numeral(28, "lowerLetter"), numeral(22, "ordinalText")
    ('ab', 'bb', 'Twenty-second')
    """
    name = _ODF.get(style, style.lower())
    doubles = name in ("lowerletter", "upperletter")
    name = _ALIASES.get(name, name)
    if name == "none":
        return ""
    if name == "decimal-leading-zero":
        return f"{number:02}"
    if not 0 < number < _FAR:
        return str(number)
    if name == "ordinal":
        return f"{number}{_suffix(number)}"
    if name in ("cardinaltext", "ordinaltext"):
        words = _words(number)
        return (words if name == "cardinaltext" else _ordinal(words)).capitalize()
    if name.endswith("roman"):
        text = _roman(number)
    elif name.endswith("alpha"):
        text = _letters(number, "abcdefghijklmnopqrstuvwxyz", doubles)
    elif name.endswith("greek"):
        text = _letters(number, _GREEK, doubles)
    elif name.startswith("russian"):
        text = _letters(number, _CYRILLIC, True)
        return text.upper() if name == "russianupper" else text
    else:
        return str(number)
    return text.upper() if name.startswith("upper") else text


def _letters(number: int, alphabet: str, doubles: bool) -> str:
    if doubles:
        times, index = divmod(number - 1, len(alphabet))
        return alphabet[index] * (times + 1)
    text = ""
    while number:
        number, index = divmod(number - 1, len(alphabet))
        text = alphabet[index] + text
    return text


def _roman(number: int) -> str:
    text = ""
    for value, letters in _ROMAN:
        times, number = divmod(number, value)
        text += letters * times
    return text


def _suffix(number: int) -> str:
    if 10 < number % 100 < 14:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _words(number: int) -> str:
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    large, rest = divmod(number, size)
    return f"{_words(large)} {name}" + (f" {_words(rest)}" if rest else "")


def _ordinal(words: str) -> str:
    """Words of a number as those of a place: the last of them changes."""
    last = words.replace("-", " ").split()[-1]
    head = words[: -len(last)]
    if last in _ORDINAL:
        return head + _ORDINAL[last]
    return head + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
