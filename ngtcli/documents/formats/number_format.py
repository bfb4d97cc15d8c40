"""Values as spreadsheets show them: number formats, as Excel and LibreOffice write them.

A format has up to four sections, for positive numbers, negative ones, zero and text, each of
placeholders and words. There are two differences to Excel: a date of year, month and day in digits
is written as in ISO 8601, since 03/04/2026 is in March or in April by the country of the user, and
has no time at midnight; and names of months and days are English.
"""

import datetime
import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from functools import lru_cache

GENERAL = "General"
_DATE = "yyyy-mm-dd"
_ACCOUNTS = '_(* #,##0{0}_);_(* \\(#,##0{0}\\);_(* "-"{1}_);_(@_)'
BUILT_IN = {  # by the numbers that files have for them
    0: GENERAL,
    1: "0",
    2: "0.00",
    3: "#,##0",
    4: "#,##0.00",
    5: "$#,##0_);($#,##0)",
    6: "$#,##0_);($#,##0)",
    7: "$#,##0.00_);($#,##0.00)",
    8: "$#,##0.00_);($#,##0.00)",
    9: "0%",
    10: "0.00%",
    11: "0.00E+00",
    12: "# ?/?",
    13: "# ??/??",
    14: _DATE,
    15: "d-mmm-yy",
    16: "d-mmm",
    17: "mmm-yy",
    18: "h:mm AM/PM",
    19: "h:mm:ss AM/PM",
    20: "h:mm",
    21: "h:mm:ss",
    22: f"{_DATE} h:mm",
    37: "#,##0_);(#,##0)",
    38: "#,##0_);(#,##0)",
    39: "#,##0.00_);(#,##0.00)",
    40: "#,##0.00_);(#,##0.00)",
    41: _ACCOUNTS.format("", ""),
    42: _ACCOUNTS.format("", "").replace("_(*", "_($*"),
    43: _ACCOUNTS.format(".00", "??"),
    44: _ACCOUNTS.format(".00", "??").replace("_(*", "_($*"),
    45: "mm:ss",
    46: "[h]:mm:ss",
    47: "mm:ss.0",
    48: "##0.0E+0",
    49: "@",
    **dict.fromkeys((*range(27, 32), *range(34, 37), *range(50, 59)), _DATE),
    32: "h:mm",
    33: "h:mm:ss",
}
_SYSTEM = {"f800": "dddd, mmmm d, yyyy", "f400": "h:mm:ss AM/PM"}  # which follow the country
_MONTHS = (
    "January February March April May June July August September October November December"
).split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_DAY_S = 86_400
_DIGITS = Context(prec=2000)  # more than a float before the point, and a format behind it, can have
_LAST_DAY = 2_958_466  # the first serial number behind 9999-12-31
_SIMPLE = re.compile(r"(#,##)?0(\.0+)?(%)?")
_COMPARED = re.compile(r"\[(<=|>=|<>|<|>|=)\s*(-?\d+(?:\.\d+)?)\]")
_TOKEN = re.compile(
    r"""
    "(?P<quoted>[^"]*)"? | \\(?P<escaped>.) | _(?P<space>.) | \*(?P<fill>.)
    | (?P<elapsed>\[(?:h+|m+|s+)\]) | \[\$(?P<currency>[^\]-]*)(?:-[^\]]*)?\]
    | \[(?P<other>[^\]]*)\]
    | (?P<half>AM/PM|A/P|上午/下午) | (?P<general>General) | (?P<exponent>E[+-])
    | (?P<fraction>(?<=[sS])\.0+) | (?P<date>y+|m+|d+|h+|s+|e+|aaaa?|b+)
    | (?P<digit>[0#?]) | (?P<point>\.) | (?P<comma>,) | (?P<percent>%) | (?P<slash>/) | (?P<text>@)
    | (?P<literal>.)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_Token = tuple[str, str]  # its kind and its text


@dataclass(frozen=True, slots=True)
class _Section:
    kind: str  # "general", "date", "number" or "text"
    tokens: tuple[_Token, ...]
    condition: tuple[str, float] | None = None

    def holds(self, value: float) -> bool:
        assert self.condition is not None
        sign, limit = self.condition
        return {
            "<": value < limit,
            "<=": value <= limit,
            ">": value > limit,
            ">=": value >= limit,
            "=": value == limit,
            "<>": value != limit,
        }[sign]


@lru_cache(16_384)  # most sheets have few values, or few formats
def shown_number(value: float, code: str, from_1904: bool = False) -> str:
    """A number in a format.

    >>> [shown_number(0.075, "0.0%"), shown_number(1067, "00000"), shown_number(1.25, "[h]:mm")]
    ['7.5%', '01067', '30:00']
    >>> [shown_number(-1234.5, "#,##0.00;(#,##0.00)"), shown_number(1.5, "# ?/?")]
    ['(1,234.50)', '1 1/2']
    """
    if code == GENERAL or not math.isfinite(value):
        return general(value)
    simple = _simple(code)
    if simple is not None:
        is_grouped, places, is_share = simple
        exact = Decimal(f"{value:.15g}") * (100 if is_share else 1)
        rounded = exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _DIGITS)
        shown = f"{abs(rounded) if not rounded else rounded:{',' if is_grouped else ''}f}"
        return f"{shown}%" if is_share else shown
    section, number, has_sign = _chosen(_sections(code), value)
    if section.kind == "date":
        text = _date(section, number if has_sign else value, from_1904)
        return general(value) if text is None else text
    if section.kind == "general":
        words = "".join(general(abs(number)) if k == "general" else t for k, t in section.tokens)
    elif section.kind == "number":
        words = _number(section.tokens, abs(number))
    else:
        words = "".join(general(abs(number)) if k == "text" else t for k, t in section.tokens)
    words = " ".join(words.split())
    is_negative = has_sign and number < 0 and any(c in "123456789" for c in words)
    return f"-{words}" if is_negative else words


def shown_text(text: str, code: str) -> str:
    """A text in a format, which may have words around it.

    >>> shown_text("Ada", '"Dr "@'), shown_text("Ada", "0;;;")
    ('Dr Ada', '')
    """
    if "@" not in code and code.count(";") < 3:
        return text
    sections = _sections(code)
    section = sections[3] if len(sections) > 3 else sections[-1]
    if section.kind != "text" and len(sections) < 4:
        return text
    return "".join(text if kind == "text" else words for kind, words in section.tokens).strip()


def general(value: float) -> str:
    """A number in a cell without a format of its own, with all its digits.

    >>> [general(v) for v in (3.0, 0.1 + 0.2, 1e21, -0.5)]
    ['3', '0.3', '1E+21', '-0.5']
    """
    return f"{value or 0.0:.15g}".upper()


@lru_cache(4096)
def _simple(code: str) -> tuple[bool, int, bool] | None:
    """Thousands apart, decimal places, and whether it is a share, of the commonest formats."""
    found = _SIMPLE.fullmatch(code)
    return (bool(found[1]), len(found[2] or ".") - 1, bool(found[3])) if found else None


@lru_cache(4096)
def _sections(code: str) -> tuple[_Section, ...]:
    return tuple(_section(part) for part in _split(code))


def _split(code: str) -> list[str]:
    """The sections of a format, which semicolons divide."""
    parts = [""]
    for found in re.finditer(r'"[^"]*"?|\\.|\[[^\]]*\]|[_*].|.', code, re.DOTALL):
        if found[0] == ";":
            parts.append("")
        else:
            parts[-1] += found[0]
    return parts[:4]


def _section(part: str) -> _Section:
    compared = _COMPARED.search(part)
    condition = (compared[1], float(compared[2])) if compared else None
    for name, code in _SYSTEM.items():
        if f"[$-{name}]" in part.lower():
            part = code
    tokens: list[_Token] = []
    for found in _TOKEN.finditer(part):
        kind = found.lastgroup or ""
        text = found[kind]
        if kind in ("quoted", "escaped", "currency", "literal"):
            tokens.append(("words", text))
        elif kind in ("space", "fill"):
            tokens.append(("words", " "))
        elif kind != "other":
            tokens.append((kind, text))
    kinds = {kind for kind, _ in tokens}
    if kinds & {"date", "elapsed", "half"}:
        return _Section("date", _in_iso(_with_minutes(tokens)), condition)
    if "general" in kinds:
        return _Section("general", _as_words(tokens, "general"), condition)
    if "digit" in kinds:
        return _Section("number", tuple(tokens), condition)
    return _Section("text", _as_words(tokens, "text"), condition)


def _as_words(tokens: list[_Token], but: str) -> tuple[_Token, ...]:
    return tuple((kind if kind == but else "words", text) for kind, text in tokens)


def _chosen(sections: tuple[_Section, ...], value: float) -> tuple[_Section, float, bool]:
    """The section for a number, the number, and whether its sign is still to be shown."""
    numeric = sections[:3]
    if any(section.condition for section in numeric):
        for index, section in enumerate(numeric):
            if section.condition is None and index < len(numeric) - 1 and index > 0 and value >= 0:
                continue
            if section.condition is None or section.holds(value):
                is_of_negative = section.condition is not None and section.condition[0] in (
                    "<",
                    "<=",
                )
                hides = (
                    is_of_negative and section.condition is not None and section.condition[1] <= 0
                )
                return section, value, not hides
        return numeric[-1], value, True
    if value < 0 and len(numeric) > 1:
        return numeric[1], value, False
    if value == 0 and len(numeric) > 2:
        return numeric[2], value, False
    return numeric[0], value, True


def _number(tokens: tuple[_Token, ...], value: float) -> str:
    """A number that is not negative by a section of placeholders."""
    kinds = [kind for kind, _ in tokens]
    if "slash" in kinds and "point" not in kinds:
        text = _fraction(tokens, value)
        if text is not None:
            return text
    if "exponent" in kinds:
        return _scientific(tokens, value)
    exact = Decimal(f"{value:.15g}") * 100 ** kinds.count("percent")
    digits = [i for i, kind in enumerate(kinds) if kind == "digit"]
    point = kinds.index("point") if "point" in kinds else len(kinds)
    whole = [i for i in digits if i < point]
    parts = [i for i in digits if i > point]
    last = whole[-1] if whole else -1
    commas = [i for i, kind in enumerate(kinds) if kind == "comma" and i < point]
    is_grouped = any(whole and whole[0] < i < last for i in commas)
    scaling = [i for i in commas if i > last]
    trailing = [i for i, kind in enumerate(kinds) if kind == "comma" and i > point]
    exact /= 1000 ** len(scaling + trailing)
    rounded = exact.quantize(Decimal(1).scaleb(-len(parts)), ROUND_HALF_UP, _DIGITS)
    integer, _, decimals = f"{rounded:f}".partition(".")
    written = _placed(integer, [tokens[i][1] for i in whole], is_grouped)
    written += _decimals(decimals, [tokens[i][1] for i in parts])
    by_token = dict(zip(whole + parts, written, strict=True))
    out = []
    for i, (kind, text) in enumerate(tokens):
        if kind == "point" and not whole and integer != "0":
            out.append(integer)
        if kind == "digit":
            out.append(by_token[i])
        elif kind != "comma":
            out.append(text)
    return "".join(out)


def _placed(integer: str, places: list[str], is_grouped: bool) -> list[str]:
    """The digits before the point at each placeholder; the first has all that are left."""
    integer = integer.lstrip("0")
    texts: list[str] = []
    count = 0
    for index in range(len(places) - 1, -1, -1):
        taken = integer[-1:] if index else integer
        integer = integer[: len(integer) - len(taken)]
        taken = taken or {"0": "0", "?": " "}.get(places[index], "")
        text = ""
        for digit in reversed(taken):
            if is_grouped and count and count % 3 == 0 and digit.isdigit():
                text = "," + text
            text = digit + text
            count += digit.isdigit()
        texts.append(text)
    return texts[::-1]


def _decimals(decimals: str, places: list[str]) -> list[str]:
    """The digits behind the point at each placeholder; zeros at the end may be left out."""
    texts = list(decimals[: len(places)])
    for index in range(len(places) - 1, -1, -1):
        if texts[index] != "0" or places[index] == "0":
            break
        texts[index] = " " if places[index] == "?" else ""
    return texts


def _scientific(tokens: tuple[_Token, ...], value: float) -> str:
    at = [kind for kind, _ in tokens].index("exponent")
    before, after = tokens[:at], tokens[at + 1 :]
    kinds = [kind for kind, _ in before]
    point = kinds.index("point") if "point" in kinds else len(kinds)
    step = max(1, kinds[:point].count("digit"))
    exponent = 0
    if value:
        exponent = Decimal(f"{value:.15g}").adjusted()
        exponent -= exponent % step
        places = kinds[point:].count("digit")
        mantissa = Decimal(f"{value:.15g}").scaleb(-exponent)
        if mantissa.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _DIGITS) >= 10**step:
            exponent += step
    text = _number(before, float(Decimal(f"{value:.15g}").scaleb(-exponent)))
    sign = "-" if exponent < 0 else tokens[at][1][1:].replace("-", "")
    return f"{text}E{sign}{_number(after, abs(exponent))}"


def _fraction(tokens: tuple[_Token, ...], value: float) -> str | None:
    """A number as a whole and a fraction; None if the section has no such form."""
    kinds = [kind for kind, _ in tokens]
    slash = kinds.index("slash")
    start = slash
    while start and kinds[start - 1] == "digit":
        start -= 1
    end = slash + 1
    while end < len(tokens) and (kinds[end] == "digit" or tokens[end][1].isdigit()):
        end += 1
    below = "".join(text for _, text in tokens[slash + 1 : end])
    if start == slash or not below:
        return None
    whole = [i for i in range(start) if kinds[i] == "digit"]
    exact = Fraction(Decimal(f"{value:.15g}"))
    integer = int(exact) if whole else 0
    rest = exact - integer
    if any(c in "123456789" for c in below):
        bottom = int(re.sub(r"\D", "0", below))
        top = int(rest * bottom + Fraction(1, 2))
    else:
        nearest = rest.limit_denominator(10 ** min(len(below), 7) - 1)
        top, bottom = nearest.numerator, nearest.denominator
    if whole and top == bottom:
        integer, top = integer + 1, 0
    if top or not whole:
        shown = f"{top}/{bottom}"
        wide = len([1 for kind, _ in tokens[start:slash] if kind == "digit"])
        shown = shown.rjust(wide + 1 + len(str(bottom)))
    else:
        shown = ""
    head = "".join(text for kind, text in tokens[:start] if kind != "digit")
    if whole and (integer or any(tokens[i][1] == "0" for i in whole)):
        head = _number(tuple(tokens[:start]), float(integer))
    elif not top:
        head = f"0{head}"
    return head + shown + "".join(text for _, text in tokens[end:])


def _with_minutes(tokens: list[_Token]) -> tuple[_Token, ...]:
    """The tokens of a date in lower case, with those "m" that stand for minutes named so."""
    marked: list[_Token] = []
    times = [
        (i, text.lower().strip("[]"))
        for i, (kind, text) in enumerate(tokens)
        if kind in ("date", "elapsed")
    ]
    is_minute: set[int] = set()
    for position, (index, text) in enumerate(times):
        before = times[position - 1][1] if position else ""
        after = times[position + 1][1] if position + 1 < len(times) else ""
        if text in ("m", "mm") and (before.startswith("h") or after.startswith("s")):
            is_minute.add(index)
    for i, (kind, text) in enumerate(tokens):
        if kind == "date":
            marked.append(("minute" if i in is_minute else "date", text.lower()))
        elif kind == "elapsed":
            marked.append((kind, text.lower().strip("[]")))
        elif kind in ("words", "half", "fraction"):
            marked.append((kind, text))
        else:
            marked.append(("words", text))
    return tuple(marked)


def _in_iso(tokens: tuple[_Token, ...]) -> tuple[_Token, ...]:
    """The tokens of a date with one for year, month and day where all are in digits."""
    places = {}
    for i, (kind, text) in enumerate(tokens):
        if kind == "date" and (text[0] == "y" or (text[0] in "md" and len(text) < 3)):
            if text[0] in places:
                return tokens
            places[text[0]] = i
    first, last = min(places.values(), default=0), max(places.values(), default=0)
    between = tokens[first : last + 1]
    if len(places) < 3 or sum(kind != "words" for kind, _ in between) != 3:
        return tokens
    return (*tokens[:first], ("iso", ""), *tokens[last + 1 :])


def _date(section: _Section, serial: float, from_1904: bool) -> str | None:
    """A date or a time; None for a number that is none."""
    tokens = section.tokens
    has_elapsed = any(kind == "elapsed" for kind, _ in tokens)
    sign = "-" if serial < 0 and has_elapsed else ""
    if has_elapsed:
        serial = abs(serial)
    if not 0 <= serial < _LAST_DAY:
        return None
    fractions = [len(text) - 1 for kind, text in tokens if kind == "fraction"]
    shows_seconds = any(k in ("date", "elapsed") and text.startswith("s") for k, text in tokens)
    places = fractions[0] if fractions else 0 if shows_seconds else 3
    total = Decimal(f"{serial:.15g}") * _DAY_S
    total = total.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _DIGITS)
    days, in_day = divmod(total, _DAY_S)
    seconds = int(in_day)
    day = _day(int(days), from_1904)
    if day is None:
        return None
    year, month, number, weekday = day
    has_time = any(kind == "date" and text[0] == "h" for kind, text in tokens)
    if not in_day and has_time and ("iso", "") in tokens:
        until = tokens.index(("iso", "")) + 1
        shown = [t for t in tokens[:until] if t[0] == "iso" or (t[0] == "date" and t[1][0] in "da")]
        tokens = tuple(token for t in shown for token in (t, ("words", " ")))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    half = any(kind == "half" for kind, _ in tokens)
    clock = (hours - 1) % 12 + 1 if half else hours
    out: list[str] = []
    for kind, text in tokens:
        if kind == "words":
            out.append(text)
        elif kind == "iso":
            out.append(f"{year:04}-{month:02}-{number:02}")
        elif kind == "half":
            words = text.split("/")
            out.append(words[hours >= 12])
        elif kind == "fraction":
            out.append(f"{in_day % 1:f}"[1:])
        elif kind == "elapsed":
            unit = {"h": 3600, "m": 60, "s": 1}[text[0]]
            out.append(str(int(total) // unit).zfill(len(text)))
        elif kind == "minute":
            out.append(str(minutes).zfill(len(text)))
        elif text[0] == "y" or text[0] in "eb":
            out.append(f"{year % 100:02}" if text[0] == "y" and len(text) < 3 else f"{year:04}")
        elif text[0] == "m":
            out.append(_named(_MONTHS[month - 1], month, len(text)))
        elif text[0] in "da":
            out.append(_named(_DAYS[weekday], number, len(text)))
        elif text[0] == "h":
            out.append(str(clock).zfill(min(len(text), 2)))
        else:
            out.append(str(seconds % 60).zfill(min(len(text), 2)))
    return sign + " ".join("".join(out).split())


def _day(days: int, from_1904: bool) -> tuple[int, int, int, int] | None:
    """Year, month, day, and day of the week from 0, of a serial number."""
    if from_1904:
        date = datetime.date(1904, 1, 1) + datetime.timedelta(days)
    elif days == 60:  # a day that never was, which Excel has from Lotus 1-2-3
        return 1900, 2, 29, 2
    elif days == 0:
        return 1900, 1, 0, 5
    else:
        date = datetime.date(1899, 12, 30) + datetime.timedelta(days + (days < 60))
    return date.year, date.month, date.day, date.weekday()


def _named(name: str, number: int, letters: int) -> str:
    if letters < 3:
        return str(number).zfill(letters)
    return {3: name[:3], 5: name[0]}.get(letters, name)
