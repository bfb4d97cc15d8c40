"""Parse the integers of attributes; write the numbers of lists and headings as numerals.

Numerals are digits, letters, Roman numerals or words.
"""

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
_LATIN = "abcdefghijklmnopqrstuvwxyz"
_GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
_CYRILLIC = "абвгдежзиклмнопрстуфхцчшщыэюя"
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
# Cardinal words whose ordinal is irregular.
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
# The names of Word, in lower case, with those of CSS for the same style.
_ALIASES = {
    "lowerletter": "lower-alpha",
    "upperletter": "upper-alpha",
    "lowerroman": "lower-roman",
    "upperroman": "upper-roman",
    "lower-latin": "lower-alpha",
    "upper-latin": "upper-alpha",
    "decimalzero": "decimal-leading-zero",
}
# The names of OpenDocument with those of CSS; here the case of the letter counts.
_ODF_NAMES = {"a": "lower-alpha", "A": "upper-alpha", "i": "lower-roman", "I": "upper-roman"}
_MAX_NUMERAL = 10_000  # from here on nobody can read letters or Roman numerals (guess)
_MAX_DIGITS = 9  # of an integer in an attribute: more occur only in damaged files


def parse_integer(text: str | None, default: int) -> int:
    """The number that these digits write; `default` if there are none, or too many.

    A damaged file may have thousands of digits, and Python refuses to convert so many.

    >>> parse_integer("12", 1), parse_integer("", 1), parse_integer("-3", 1)
    (12, 1, 1)
    >>> parse_integer("9" * 5000, 1)
    1
    """
    if text and text.isdecimal() and len(text) <= _MAX_DIGITS:
        return int(text)
    return default


def numeral(number: int, style: str) -> str:
    """Write a number in a style, which is a name of CSS, Word or OpenDocument.

    The number is in digits if the style is not known. After the last letter of the alphabet, Word
    doubles letters (`aa`, `bb`), while CSS counts on (`aa`, `ab`).

    >>> [numeral(4, style) for style in ("decimal", "lower-roman", "upperLetter", "ordinal")]
    ['4', 'iv', 'D', '4th']
    >>> numeral(28, "lower-alpha"), numeral(28, "lowerLetter"), numeral(22, "ordinalText")
    ('ab', 'bb', 'Twenty-second')
    """
    name = _ODF_NAMES.get(style, style.lower())
    doubles_letters = name in ("lowerletter", "upperletter")
    name = _ALIASES.get(name, name)

    if name == "none":
        return ""
    if name == "decimal-leading-zero":
        return f"{number:02}"
    if not 0 < number < _MAX_NUMERAL:
        return str(number)

    if name == "ordinal":
        return f"{number}{_ordinal_suffix(number)}"
    if name == "cardinaltext":
        return _cardinal_words(number).capitalize()
    if name == "ordinaltext":
        return _ordinal_words(number).capitalize()
    if name.startswith("russian"):
        text = _letters(number, _CYRILLIC, doubles_letters=True)
        return text.upper() if name == "russianupper" else text

    if name.endswith("roman"):
        text = _roman(number)
    elif name.endswith("alpha"):
        text = _letters(number, _LATIN, doubles_letters)
    elif name.endswith("greek"):
        text = _letters(number, _GREEK, doubles_letters)
    else:
        return str(number)
    return text.upper() if name.startswith("upper") else text


def _letters(number: int, alphabet: str, doubles_letters: bool) -> str:
    """Write a number in the letters of an alphabet, the first of which is 1.

    Args:
        number: At least 1.
        alphabet: Its letters in order.
        doubles_letters: Repeat one letter after the last (`bb`), rather than count on (`ab`).
    """
    if doubles_letters:
        rounds, index = divmod(number - 1, len(alphabet))
        return alphabet[index] * (rounds + 1)
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


def _ordinal_suffix(number: int) -> str:
    if 10 < number % 100 < 14:
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _cardinal_words(number: int) -> str:
    """Write a number below a million in words: "twenty-two"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        words = _TENS[tens - 2]
        return f"{words}-{_ONES[ones]}" if ones else words

    unit, unit_name = (100, "hundred") if number < 1000 else (1000, "thousand")
    multiple, rest = divmod(number, unit)
    words = f"{_cardinal_words(multiple)} {unit_name}"
    return f"{words} {_cardinal_words(rest)}" if rest else words


def _ordinal_words(number: int) -> str:
    """Write an ordinal in words: "twenty-second". Only the last word differs from the cardinal."""
    words = _cardinal_words(number)
    last = words.replace("-", " ").split()[-1]
    head = words.removesuffix(last)
    if last in _ORDINALS:
        return head + _ORDINALS[last]
    if last.endswith("y"):
        return f"{head}{last[:-1]}ieth"
    return f"{head}{last}th"
