"""Values of cells as spreadsheets show them: number formats of Excel and LibreOffice.

A format, or its code, has up to four sections: for positive numbers, negative ones, zero and text.
A section consists of placeholders and words. There are two differences from Excel:

- A date that has year, month and day in digits is written as in ISO 8601, without the time if that
  is midnight, since 03/04/2026 is in March or in April, depending on the country of the user.
- Names of months and days are in English.
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
_ACCOUNTING = '_(* #,##0{0}_);_(* \\(#,##0{0}\\);_(* "-"{1}_);_(@_)'
BUILT_IN = {  # codes by the numbers (`numFmtId`) that files have for them
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
    41: _ACCOUNTING.format("", ""),
    42: _ACCOUNTING.format("", "").replace("_(*", "_($*"),
    43: _ACCOUNTING.format(".00", "??"),
    44: _ACCOUNTING.format(".00", "??").replace("_(*", "_($*"),
    45: "mm:ss",
    46: "[h]:mm:ss",
    47: "mm:ss.0",
    48: "##0.0E+0",
    49: "@",
    **dict.fromkeys((*range(27, 32), *range(34, 37), *range(50, 59)), _DATE),
    32: "h:mm",
    33: "h:mm:ss",
}
# Formats that depend on the settings of the system, by the code of their "locale".
_SYSTEM_CODES = {"f800": "dddd, mmmm d, yyyy", "f400": "h:mm:ss AM/PM"}
_MONTHS = (
    "January February March April May June July August September October November December"
).split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_SECONDS_PER_DAY = 86_400
_SECONDS_PER_UNIT = {"h": 3600, "m": 60, "s": 1}
_EXACT = Context(prec=2000)  # digits: more than a float and the longest format can have
_MAX_SERIAL = 2_958_466  # the first serial number after 9999-12-31
_SIMPLE = re.compile(r"(#,##)?0(\.0+)?(%)?")
_CONDITION = re.compile(r"\[(<=|>=|<>|<|>|=)\s*(-?\d+(?:\.\d+)?)\]")
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
_Token = tuple[str, str]  # kind and text; text of kind "words" is shown as it stands
_ISO_DATE: _Token = ("iso", "")  # year, month and day as in ISO 8601


@dataclass(frozen=True, slots=True)
class _Condition:
    """The condition on which a section is used for a number, such as "[<100]"."""

    operator: str
    limit: float

    def holds(self, value: float) -> bool:
        return {
            "<": value < self.limit,
            "<=": value <= self.limit,
            ">": value > self.limit,
            ">=": value >= self.limit,
            "=": value == self.limit,
            "<>": value != self.limit,
        }[self.operator]

    @property
    def excludes_positive(self) -> bool:
        """Whether no positive number meets it."""
        return self.operator in ("<", "<=") and self.limit <= 0


@dataclass(frozen=True, slots=True)
class _Section:
    """One of up to four parts of a format.

    Attributes:
        kind: "general", "date", "number" or "text".
        tokens: Its placeholders and words.
        condition: What must hold of a number for this section to be used.
    """

    kind: str
    tokens: tuple[_Token, ...]
    condition: _Condition | None = None


@dataclass(frozen=True, slots=True)
class _SimpleFormat:
    """One of the most frequent formats, such as "#,##0.00" or "0%"."""

    has_thousands: bool
    decimals: int
    is_percentage: bool


@lru_cache(16_384)  # most sheets repeat few values, or few formats
def format_number(value: float, code: str, from_1904: bool = False) -> str:
    """Write a number in a format.

    Args:
        value: The number, which of a date is the serial number of its day.
        code: The code of the format.
        from_1904: Whether serial number 0 is 1904-01-01, as in files of old Excels for Mac.

    >>> [format_number(0.075, "0.0%"), format_number(1067, "00000"), format_number(1.25, "[h]:mm")]
    ['7.5%', '01067', '30:00']
    >>> [format_number(-1234.5, "#,##0.00;(#,##0.00)"), format_number(1.5, "# ?/?")]
    ['(1,234.50)', '1 1/2']
    """
    if code == GENERAL or not math.isfinite(value):
        return format_general(value)
    simple = _simple_format(code)
    if simple is not None:
        return _format_simple(value, simple)

    section, shows_sign = _choose_section(_sections(code), value)
    if section.kind == "date":
        date = _format_date(section.tokens, value, from_1904)
        return format_general(value) if date is None else date
    if section.kind == "number":
        text = _format_digits(section.tokens, abs(value))
    else:  # the number replaces the token that the section is named by
        text = _fill_in(section, format_general(abs(value)))
    text = " ".join(text.split())
    has_digits = any(character in "123456789" for character in text)
    return f"-{text}" if shows_sign and value < 0 and has_digits else text


def format_text(text: str, code: str) -> str:
    """Write a text in a format, which may have words around it.

    >>> format_text("Ada", '"Dr "@'), format_text("Ada", "0;;;")
    ('Dr Ada', '')
    """
    may_have_section = "@" in code or code.count(";") >= 3
    if not may_have_section:
        return text
    sections = _sections(code)
    section = sections[3] if len(sections) > 3 else sections[-1]
    if section.kind != "text" and len(sections) < 4:
        return text
    return "".join(text if kind == "text" else words for kind, words in section.tokens).strip()


def format_general(value: float) -> str:
    """Write a number of a cell that has no format, with all its digits.

    >>> [format_general(v) for v in (3.0, 0.1 + 0.2, 1e21, -0.5)]
    ['3', '0.3', '1E+21', '-0.5']
    """
    return f"{value or 0.0:.15g}".upper()  # never "-0"


@lru_cache(4096)
def _simple_format(code: str) -> _SimpleFormat | None:
    match = _SIMPLE.fullmatch(code)
    if match is None:
        return None
    decimals = len(match[2]) - 1 if match[2] else 0
    return _SimpleFormat(bool(match[1]), decimals, bool(match[3]))


def _format_simple(value: float, simple: _SimpleFormat) -> str:
    exact = _decimal(value)
    if simple.is_percentage:
        exact *= 100
    rounded = _rounded(exact, simple.decimals)
    if not rounded:
        rounded = abs(rounded)  # never "-0"
    text = f"{rounded:,f}" if simple.has_thousands else f"{rounded:f}"
    return f"{text}%" if simple.is_percentage else text


def _decimal(value: float) -> Decimal:
    """A number as Excel has it: with 15 significant digits."""
    return Decimal(f"{value:.15g}")


def _rounded(number: Decimal, decimals: int) -> Decimal:
    """A number with this many decimals; a half is rounded away from zero, as in Excel."""
    return number.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, _EXACT)


def _fill_in(section: _Section, text: str) -> str:
    return "".join(text if kind == section.kind else words for kind, words in section.tokens)


@lru_cache(4096)
def _sections(code: str) -> tuple[_Section, ...]:
    return tuple(_parse_section(part) for part in _split(code))


def _split(code: str) -> list[str]:
    """The sections of a format, between semicolons that are not quoted."""
    parts = [""]
    for match in re.finditer(r'"[^"]*"?|\\.|\[[^\]]*\]|[_*].|.', code, re.DOTALL):
        if match[0] == ";":
            parts.append("")
        else:
            parts[-1] += match[0]
    return parts[:4]


def _parse_section(code: str) -> _Section:
    comparison = _CONDITION.search(code)
    condition = None
    if comparison:
        condition = _Condition(operator=comparison[1], limit=float(comparison[2]))
    for locale, system_code in _SYSTEM_CODES.items():
        if f"[$-{locale}]" in code.lower():
            code = system_code

    tokens = _tokenize(code)
    kinds = {kind for kind, _ in tokens}
    if kinds & {"date", "elapsed", "half"}:
        return _Section("date", _join_iso_date(_mark_minutes(tokens)), condition)
    if "general" in kinds:
        return _Section("general", _keep_only(tokens, "general"), condition)
    if "digit" in kinds:
        return _Section("number", tuple(tokens), condition)
    return _Section("text", _keep_only(tokens, "text"), condition)


def _tokenize(code: str) -> list[_Token]:
    """The tokens of a section; colors, conditions and the like are left out."""
    tokens: list[_Token] = []
    for match in _TOKEN.finditer(code):
        kind = match.lastgroup or ""
        text = match[kind]
        if kind in ("quoted", "escaped", "currency", "literal"):
            tokens.append(("words", text))
        elif kind in ("space", "fill"):
            tokens.append(("words", " "))
        elif kind != "other":
            tokens.append((kind, text))
    return tokens


def _keep_only(tokens: list[_Token], kind_to_keep: str) -> tuple[_Token, ...]:
    """The tokens with those of all other kinds as words."""
    return tuple((kind if kind == kind_to_keep else "words", text) for kind, text in tokens)


def _choose_section(sections: tuple[_Section, ...], value: float) -> tuple[_Section, bool]:
    """Choose the section for a number; return also whether its sign is still to be shown."""
    numeric = sections[:3]
    if any(section.condition for section in numeric):
        return _choose_by_condition(numeric, value)
    if value < 0 and len(numeric) > 1:
        return numeric[1], False
    if value == 0 and len(numeric) > 2:
        return numeric[2], False
    return numeric[0], True


def _choose_by_condition(sections: tuple[_Section, ...], value: float) -> tuple[_Section, bool]:
    """Choose the section as `_choose_section` does, if some sections have conditions."""
    for index, section in enumerate(sections):
        condition = section.condition
        if condition is None:
            is_for_negatives = 0 < index < len(sections) - 1
            if not is_for_negatives or value < 0:
                return section, True
        elif condition.holds(value):
            return section, not condition.excludes_positive
    return sections[-1], True


def _format_digits(tokens: tuple[_Token, ...], value: float) -> str:
    """Write a number that is not negative by a section of placeholders for digits."""
    kinds = [kind for kind, _ in tokens]
    if "slash" in kinds and "point" not in kinds:
        fraction = _format_fraction(tokens, value)
        if fraction is not None:
            return fraction
    if "exponent" in kinds:
        return _format_scientific(tokens, value)

    point = kinds.index("point") if "point" in kinds else len(kinds)
    digits = [i for i, kind in enumerate(kinds) if kind == "digit"]
    integer_digits = [i for i in digits if i < point]
    decimal_digits = [i for i in digits if i > point]
    last_integer_digit = integer_digits[-1] if integer_digits else -1

    # A comma between digits separates thousands; one after them divides by a thousand.
    has_thousands = False
    divisions = 0
    for i, kind in enumerate(kinds):
        if kind == "comma" and i > last_integer_digit:
            divisions += 1
        elif kind == "comma" and i > integer_digits[0]:
            has_thousands = True

    exact = _decimal(value) * 100 ** kinds.count("percent") / 1000**divisions
    rounded = _rounded(exact, len(decimal_digits))
    integer, _, decimals = f"{rounded:f}".partition(".")
    integer_places = [tokens[i][1] for i in integer_digits]
    decimal_places = [tokens[i][1] for i in decimal_digits]
    written = _place_integer(integer, integer_places, has_thousands)
    written += _place_decimals(decimals, decimal_places)
    text_by_token = dict(zip(digits, written, strict=True))

    parts = []
    for i, (kind, text) in enumerate(tokens):
        if kind == "point" and not integer_digits and integer != "0":
            parts.append(integer)  # it has no place of its own, as in ".00"
        if kind == "digit":
            parts.append(text_by_token[i])
        elif kind != "comma":
            parts.append(text)
    return "".join(parts)


def _place_integer(integer: str, places: list[str], has_thousands: bool) -> list[str]:
    """Distribute the digits before the point; the first place takes all that are left.

    Args:
        integer: The digits.
        places: Placeholders: "0" shows a zero where there is no digit, "?" a space, "#" nothing.
        has_thousands: Whether commas separate thousands.
    """
    integer = integer.lstrip("0")
    texts: list[str] = []
    digit_count = 0
    for index in reversed(range(len(places))):
        if index > 0:
            digits = integer[-1:]
            integer = integer[:-1]
        else:
            digits = integer
        if not digits:
            digits = {"0": "0", "?": " "}.get(places[index], "")
        text = ""
        for digit in reversed(digits):
            if digit.isdigit():
                if has_thousands and digit_count and digit_count % 3 == 0:
                    text = f",{text}"
                digit_count += 1
            text = digit + text
        texts.append(text)
    return texts[::-1]


def _place_decimals(decimals: str, places: list[str]) -> list[str]:
    """Distribute the digits after the point; "?" shows a zero at the end as a space, "#" not."""
    texts = list(decimals[: len(places)])
    for index in reversed(range(len(places))):
        if texts[index] != "0" or places[index] == "0":
            break
        texts[index] = " " if places[index] == "?" else ""
    return texts


def _format_scientific(tokens: tuple[_Token, ...], value: float) -> str:
    """Write a number as mantissa and exponent.

    The exponent is a multiple of the number of digits before the point, as in "##0.0E+0".
    """
    exponent_index = [kind for kind, _ in tokens].index("exponent")
    mantissa_tokens = tokens[:exponent_index]
    exponent_tokens = tokens[exponent_index + 1 :]
    kinds = [kind for kind, _ in mantissa_tokens]
    point = kinds.index("point") if "point" in kinds else len(kinds)
    step = max(1, kinds[:point].count("digit"))
    decimals = kinds[point:].count("digit")

    exact = _decimal(value)
    exponent = 0
    if value:
        exponent = exact.adjusted()
        exponent -= exponent % step
        if _rounded(exact.scaleb(-exponent), decimals) >= 10**step:
            exponent += step  # rounding has given the mantissa one digit more

    mantissa = _format_digits(mantissa_tokens, float(exact.scaleb(-exponent)))
    sign = tokens[exponent_index][1][1:].replace("-", "")  # "E-" shows no sign, "E+" does
    if exponent < 0:
        sign = "-"
    return f"{mantissa}E{sign}{_format_digits(exponent_tokens, abs(exponent))}"


def _format_fraction(tokens: tuple[_Token, ...], value: float) -> str | None:
    """Write a number as an integer and a fraction; None if the section has no such form."""
    kinds = [kind for kind, _ in tokens]
    slash = kinds.index("slash")
    start = slash
    while start and kinds[start - 1] == "digit":
        start -= 1
    end = slash + 1
    while end < len(tokens) and (kinds[end] == "digit" or tokens[end][1].isdigit()):
        end += 1
    denominator_places = "".join(text for _, text in tokens[slash + 1 : end])
    if start == slash or not denominator_places:
        return None

    integer_digits = [i for i in range(start) if kinds[i] == "digit"]
    exact = Fraction(_decimal(value))
    integer = int(exact) if integer_digits else 0
    rest = exact - integer
    if any(character in "123456789" for character in denominator_places):  # as in "# ?/16"
        denominator = int(re.sub(r"\D", "0", denominator_places))
        numerator = int(rest * denominator + Fraction(1, 2))
    else:
        max_denominator = 10 ** min(len(denominator_places), 7) - 1
        nearest = rest.limit_denominator(max_denominator)
        numerator = nearest.numerator
        denominator = nearest.denominator
    if integer_digits and numerator == denominator:
        integer += 1
        numerator = 0

    fraction = ""
    if numerator or not integer_digits:
        numerator_width = slash - start
        fraction = f"{str(numerator).rjust(numerator_width)}/{denominator}"
    shows_zero = any(tokens[i][1] == "0" for i in integer_digits)
    if integer_digits and (integer or shows_zero):
        head = _format_digits(tokens[:start], float(integer))
    else:
        head = "".join(text for kind, text in tokens[:start] if kind != "digit")
        if not numerator:
            head = f"0{head}"
    return head + fraction + "".join(text for _, text in tokens[end:])


def _mark_minutes(tokens: list[_Token]) -> tuple[_Token, ...]:
    """The tokens of a date in lower case, with the kind "minute" for each "m" that means minutes.

    These are the ones next to hours or seconds; all others are months.
    """
    units = [
        (i, text.lower().strip("[]"))
        for i, (kind, text) in enumerate(tokens)
        if kind in ("date", "elapsed")
    ]
    minutes: set[int] = set()
    for position, (i, unit) in enumerate(units):
        previous = units[position - 1][1] if position else ""
        following = units[position + 1][1] if position + 1 < len(units) else ""
        if unit in ("m", "mm") and (previous.startswith("h") or following.startswith("s")):
            minutes.add(i)

    marked: list[_Token] = []
    for i, (kind, text) in enumerate(tokens):
        if kind == "date":
            marked.append(("minute" if i in minutes else "date", text.lower()))
        elif kind == "elapsed":
            marked.append((kind, text.lower().strip("[]")))
        elif kind in ("words", "half", "fraction"):
            marked.append((kind, text))
        else:
            marked.append(("words", text))
    return tuple(marked)


def _join_iso_date(tokens: tuple[_Token, ...]) -> tuple[_Token, ...]:
    """The tokens with one of kind "iso" for year, month and day, if these are all in digits."""
    indices: dict[str, int] = {}
    for i, (kind, text) in enumerate(tokens):
        if kind != "date":
            continue
        unit = text[0]
        is_in_digits = unit == "y" or (unit in "md" and len(text) < 3)
        if not is_in_digits:
            continue
        if unit in indices:
            return tokens
        indices[unit] = i
    if len(indices) < 3:
        return tokens
    first = min(indices.values())
    last = max(indices.values())
    units_between = [kind for kind, _ in tokens[first : last + 1] if kind != "words"]
    if len(units_between) != 3:
        return tokens
    return (*tokens[:first], _ISO_DATE, *tokens[last + 1 :])


@dataclass(frozen=True, slots=True)
class _Moment:
    """A date and a time.

    Attributes:
        year: The year.
        month: The month, from 1.
        day: The day of the month, from 1; 0 only on the day before 1900-01-01.
        weekday: The day of the week, from 0 for Monday.
        total_s: Seconds since the day with serial number 0.
        time_s: Seconds since midnight.
    """

    year: int
    month: int
    day: int
    weekday: int
    total_s: Decimal
    time_s: Decimal

    @property
    def hour(self) -> int:
        return int(self.time_s) // 3600

    @property
    def minute(self) -> int:
        return int(self.time_s) // 60 % 60

    @property
    def second(self) -> int:
        return int(self.time_s) % 60


def _format_date(tokens: tuple[_Token, ...], serial: float, from_1904: bool) -> str | None:
    """Write a serial number as a date, a time or both; None if it is out of range.

    Args:
        tokens: Those of a section of kind "date".
        serial: Days since the first one, with the time as a fraction.
        from_1904: Whether the first day is 1904-01-01.
    """
    is_duration = any(kind == "elapsed" for kind, _ in tokens)
    sign = "-" if is_duration and serial < 0 else ""
    if is_duration:
        serial = abs(serial)
    if not 0 <= serial < _MAX_SERIAL:
        return None
    moment = _moment(serial, _second_decimals(tokens), from_1904)
    if moment is None:
        return None

    has_hours = any(kind == "date" and text[0] == "h" for kind, text in tokens)
    if not moment.time_s and has_hours and _ISO_DATE in tokens:
        tokens = _without_time(tokens)
    has_half_days = any(kind == "half" for kind, _ in tokens)
    text = "".join(_format_date_token(token, moment, has_half_days) for token in tokens)
    return sign + " ".join(text.split())


def _second_decimals(tokens: tuple[_Token, ...]) -> int:
    """The number of decimals of a second to which a time is rounded."""
    for kind, text in tokens:
        if kind == "fraction":
            return len(text) - 1
    for kind, text in tokens:
        if kind in ("date", "elapsed") and text.startswith("s"):
            return 0
    return 3  # minutes are not rounded: 10:59:59.9 shows as 10:59


def _moment(serial: float, second_decimals: int, from_1904: bool) -> _Moment | None:
    """The date and time of a serial number that is not negative, rounded; None after year 9999."""
    total_s = _rounded(_decimal(serial) * _SECONDS_PER_DAY, second_decimals)
    days, time_s = divmod(total_s, _SECONDS_PER_DAY)
    try:
        year, month, day, weekday = _calendar_day(int(days), from_1904)
    except OverflowError:
        return None
    return _Moment(year, month, day, weekday, total_s=total_s, time_s=time_s)


def _without_time(tokens: tuple[_Token, ...]) -> tuple[_Token, ...]:
    """The date and the day of the week before it, with spaces between them."""
    until_date = tokens[: tokens.index(_ISO_DATE) + 1]
    shown: list[_Token] = []
    for kind, text in until_date:
        if kind == "iso" or (kind == "date" and text[0] in "da"):
            shown.append((kind, text))
            shown.append(("words", " "))
    return tuple(shown)


def _format_date_token(token: _Token, moment: _Moment, has_half_days: bool) -> str:
    """Write what one token of a date stands for.

    Args:
        token: Its kind and text.
        moment: The date and time.
        has_half_days: Whether hours go from 1 to 12.
    """
    kind, text = token
    if kind == "words":
        return text
    if kind == "iso":
        return f"{moment.year:04}-{moment.month:02}-{moment.day:02}"
    if kind == "half":
        morning, afternoon = text.split("/")
        return afternoon if moment.hour >= 12 else morning
    if kind == "fraction":
        return f"{moment.time_s % 1:f}"[1:]
    if kind == "elapsed":
        count = int(moment.total_s) // _SECONDS_PER_UNIT[text[0]]
        return str(count).zfill(len(text))
    if kind == "minute":
        return str(moment.minute).zfill(len(text))

    unit = text[0]
    if unit == "y":
        return f"{moment.year % 100:02}" if len(text) < 3 else f"{moment.year:04}"
    if unit in "eb":  # years of eras of emperors, which are written as those of our calendar
        return f"{moment.year:04}"
    if unit == "m":
        return _number_or_name(moment.month, _MONTHS[moment.month - 1], len(text))
    if unit in "da":
        return _number_or_name(moment.day, _DAYS[moment.weekday], len(text))
    if unit == "h":
        hour = (moment.hour - 1) % 12 + 1 if has_half_days else moment.hour
        return str(hour).zfill(min(len(text), 2))
    return str(moment.second).zfill(min(len(text), 2))


def _calendar_day(days: int, from_1904: bool) -> tuple[int, int, int, int]:
    """Year, month, day, and day of the week from 0 for Monday, of a serial number."""
    if from_1904:
        date = datetime.date(1904, 1, 1) + datetime.timedelta(days)
    elif days == 60:  # a day that never was, which Excel has taken over from Lotus 1-2-3
        return 1900, 2, 29, 2
    elif days == 0:
        return 1900, 1, 0, 5
    elif days < 60:
        date = datetime.date(1899, 12, 31) + datetime.timedelta(days)
    else:
        date = datetime.date(1899, 12, 30) + datetime.timedelta(days)
    return date.year, date.month, date.day, date.weekday()


def _number_or_name(number: int, name: str, length: int) -> str:
    """A month or day: digits for "m" and "mm", "Jan" for "mmm", "J" for "mmmmm", else the name."""
    if length < 3:
        return str(number).zfill(length)
    if length == 3:
        return name[:3]
    return name[0] if length == 5 else name
