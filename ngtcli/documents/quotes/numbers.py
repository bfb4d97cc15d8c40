"""Numbers that a text states, found by rules that leave out what they are not sure of.

1,234.50 and 1'234.50 are numbers, and so is 1.234,50; 1.234 is none, for it is 1234 in half of the
world. What goes on as a fraction, a range, a power or a code is none either: no number is better
than a part of one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from ngtcli.documents.text import UNSPACED

_DIGITS = 15  # that a number may have at most; derived: float64 and JSON readers keep these
_SPACES = "\u00a0\u202f\u2009"  # no-break, narrow and thin spaces, which stand between thousands
_BLOB = re.compile(rf"[0-9]+(?:[.,'’{_SPACES}][0-9]+)*")
# Ways to write a number, and what stands between thousands and before decimals in each.
_WAYS = [
    (re.compile(r"[0-9]+(?:\.[0-9]+)?"), "", "."),
    (re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?"), ",", "."),
    (re.compile(r"[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{1,2}"), ".", ","),
    (re.compile(r"[0-9]{1,3}(?:\.[0-9]{3}){2,}"), ".", ","),
    *[
        (re.compile(rf"[0-9]{{1,3}}(?:{mark}[0-9]{{3}})+(?:[.,][0-9]+)?"), mark, None)
        for mark in ("'", "’", *_SPACES)
    ],
]
_WITH_COMMA = re.compile(r"[0-9]+,[0-9]{1,2}")  # a number only next to a currency
_UNSURE = re.compile(r"[1-9][0-9]{0,2}\.[0-9]{3}")  # one of thousands, or of three decimals
_SIZES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_SIZE = re.compile(rf"[ -]?({'|'.join(_SIZES)})s?\b", re.IGNORECASE)
_CURRENCY = r"(?:[$€£¥₹]|\b(?:EUR|USD|GBP|CHF|JPY|CAD|AUD|SEK|NOK|DKK|PLN|CZK|INR|CNY)\b)"
_WORD = rf"(?![{UNSPACED}])[\w^]"
# What stands before and behind digits that are a part of something else.
_BEFORE = re.compile(
    rf"(?:{_WORD}|\w[-–—/.,]|[.,]|[0-9]:|[0-9][ ]?[-–—/][ ]?|[0-9A-Za-z]/[ ]?|[~≈<>≤≥±×^][ ]?"
    r"|(?<!\w)[–—]|[0-9][ ]?[×x*][ ]?)\Z"
)
_BEHIND = re.compile(
    rf"{_WORD}|[.,'’{_SPACES}][0-9]|[ ]?[-–—/][ ]?[0-9]|[.,]?[-–—]{{1,2}}(?!\w)|:[0-9]|[½¼¾⅓⅔]"
    r"|[ ][0-9]+/[0-9]|[ ]?[×x*·][ ]?[0-9]|[ ][½¼¾⅓⅔]"
    r"|[ ]?(?:trillion|hundred|dozen|mio|mrd|tsd|mn|bn|lakh|crore)s?\b",
    re.IGNORECASE,
)
_MINUS = re.compile(rf"(?:(?<!\w)[-−]|\b(?:minus|negative)[ ])[ ]?(?:{_CURRENCY}[ ]?)?\Z", re.I)
_OPENED = re.compile(rf"\([ ]?(?P<currency>{_CURRENCY}[ ]?)?\Z")
_CLOSED = re.compile(rf"[ ]?(?P<currency>{_CURRENCY})?[ ]?\)")
_YEAR = re.compile(r"[12][0-9]{3}")
_NEAR = 16  # characters before and behind a number that are looked at
_CHAIN = re.compile(r"(?<![0-9])[0-9]{1,3}(?: [0-9]{3}(?![0-9]))+")  # 12 345, or 12 and 345


@dataclass(frozen=True, slots=True)
class Number:
    """`text[start:end]` states a number; an int where it is written without decimals."""

    start: int
    end: int
    value: int | float


def numbers(text: str) -> Iterator[Number]:
    """The numbers of a text, in its order.

    >>> [one.value for one in numbers("12, 1'234.50, (7.50), minus 5, 2.5 million")]
    [12, 1234.5, -7.5, -5, 2500000]
    >>> [one.value for one in numbers("1/2, 1.234, 3-4, 10^6")]
    []
    """
    unsure = {m.start() + at for m in _CHAIN.finditer(text) for at in range(len(m[0]))}
    for m in _BLOB.finditer(text):
        before = text[max(0, m.start() - _NEAR) : m.start()]
        behind = text[m.end() : m.end() + _NEAR]
        if m.start() in unsure or _BEFORE.search(before) or _BEHIND.match(behind):
            continue
        if (value := _value(m[0], before, behind)) is None:
            continue
        start, end = m.span()
        if size := _SIZE.match(behind):
            value, end = value * _SIZES[size[1].lower()], end + size.end()
        is_whole = value == value.to_integral_value() and (size or "." not in str(value))
        if minus := _MINUS.search(before):
            value, start = -value, start - len(minus[0])
        elif opened := _OPENED.search(before):
            closed = _CLOSED.match(behind)
            if closed and (opened["currency"] or closed["currency"] or not is_whole):
                value, start, end = -value, start - len(opened[0]), end + closed.end()
            elif closed and not _YEAR.fullmatch(m[0]):
                continue  # a mark, or a negative number
        yield Number(start, end, int(value) if is_whole else float(value))


def _value(digits: str, before: str, behind: str) -> Decimal | None:
    """The value of digits with signs between them; None where that is not sure."""
    near = re.search(rf"{_CURRENCY}[ ]?\Z", before) or re.match(rf"[ ]?{_CURRENCY}", behind)
    if _UNSURE.fullmatch(digits) or sum(c.isdigit() for c in digits) > _DIGITS:
        return None
    if near and _WITH_COMMA.fullmatch(digits):
        return Decimal(digits.replace(",", "."))
    for way, thousands, decimal in _WAYS:
        if way.fullmatch(digits):
            plain = digits.replace(thousands, "") if thousands else digits
            return Decimal(plain.replace(decimal or ",", "."))
    return None
