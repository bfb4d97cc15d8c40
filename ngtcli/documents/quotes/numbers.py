"""Find the numbers that a text states, except ambiguous ones.

1,234.50 and 1'234.50 are numbers, and so is 1.234,50; 1.234 is left out, because it is 1234 in half
of the world. Parts of fractions, ranges, powers and codes are left out, too: finding no number is
better than finding a part of one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from ngtcli.documents.text import UNSPACED

_MAX_DIGITS = 15  # of a number; derived: float64 and JSON readers keep these
_SPACES = "\u00a0\u202f\u2009"  # no-break, narrow and thin spaces, which separate thousands
_BLOB = re.compile(rf"[0-9]+(?:[.,'’{_SPACES}][0-9]+)*")
# Notations of numbers, and the separators of thousands and of decimals in each.
_NOTATIONS = [
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
_AMBIGUOUS = re.compile(r"[1-9][0-9]{0,2}\.[0-9]{3}")  # one of thousands, or of three decimals
_SIZES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_SIZE = re.compile(rf"[ -]?({'|'.join(_SIZES)})s?\b", re.IGNORECASE)
_CURRENCY = r"(?:[$€£¥₹]|\b(?:EUR|USD|GBP|CHF|JPY|CAD|AUD|SEK|NOK|DKK|PLN|CZK|INR|CNY)\b)"
_WORD = rf"(?![{UNSPACED}])[\w^]"
# The text before and after digits that are a part of something else.
_BEFORE = re.compile(
    rf"(?:{_WORD}|\w[-–—/.,]|[.,]|[0-9]:|[0-9][ ]?[-–—/][ ]?|[0-9A-Za-z]/[ ]?|[~≈<>≤≥±×^][ ]?"
    r"|(?<!\w)[–—]|[0-9][ ]?[×x*][ ]?)\Z"
)
_AFTER = re.compile(
    rf"{_WORD}|[.,'’{_SPACES}][0-9]|[ ]?[-–—/][ ]?[0-9]|[.,]?[-–—]{{1,2}}(?!\w)|:[0-9]|[½¼¾⅓⅔]"
    r"|[ ][0-9]+/[0-9]|[ ]?[×x*·][ ]?[0-9]|[ ][½¼¾⅓⅔]"
    r"|[ ]?(?:trillion|hundred|dozen|mio|mrd|tsd|mn|bn|lakh|crore)s?\b",
    re.IGNORECASE,
)
_MINUS = re.compile(rf"(?:(?<!\w)[-−]|\b(?:minus|negative)[ ])[ ]?(?:{_CURRENCY}[ ]?)?\Z", re.I)
_OPENED = re.compile(rf"\([ ]?(?P<currency>{_CURRENCY}[ ]?)?\Z")
_CLOSED = re.compile(rf"[ ]?(?P<currency>{_CURRENCY})?[ ]?\)")
_YEAR = re.compile(r"[12][0-9]{3}")
_CONTEXT = 16  # characters before and after a number that are examined
_CHAIN = re.compile(r"(?<![0-9])[0-9]{1,3}(?: [0-9]{3}(?![0-9]))+")  # 12 345, or 12 and 345


@dataclass(frozen=True, slots=True)
class Number:
    """`text[start:end]` states a number; an int where it is written without decimals."""

    start: int
    end: int
    value: int | float


def numbers(text: str) -> Iterator[Number]:
    """Find the numbers of a text, in its order.

    >>> [number.value for number in numbers("12, 1'234.50, (7.50), minus 5, 2.5 million")]
    [12, 1234.5, -7.5, -5, 2500000]
    >>> [number.value for number in numbers("1/2, 1.234, 3-4, 10^6")]
    []
    """
    ambiguous = set[int]()  # offsets in chains of digits, which are one number or several
    for chain in _CHAIN.finditer(text):
        ambiguous.update(range(chain.start(), chain.end()))
    for match in _BLOB.finditer(text):
        start, end = match.span()
        before = text[max(0, start - _CONTEXT) : start]
        after = text[end : end + _CONTEXT]
        if start in ambiguous or _BEFORE.search(before) or _AFTER.match(after):
            continue
        value = _value(match[0], before, after)
        if value is None:
            continue
        size = _SIZE.match(after)
        if size:
            value *= _SIZES[size[1].lower()]
            end += size.end()
        is_whole = value == value.to_integral_value() and (size or "." not in str(value))
        minus = _MINUS.search(before)
        opened = _OPENED.search(before)
        closed = _CLOSED.match(after)
        if minus:
            value = -value
            start -= len(minus[0])
        elif opened and closed:
            # In accounts, parentheses mean a negative number.
            if opened["currency"] or closed["currency"] or not is_whole:
                value = -value
                start -= len(opened[0])
                end += closed.end()
            elif not _YEAR.fullmatch(match[0]):
                continue  # a reference mark, or a negative number
        yield Number(start, end, int(value) if is_whole else float(value))


def _value(digits: str, before: str, after: str) -> Decimal | None:
    """The value of digits with separators between them; None if it is ambiguous."""
    if _AMBIGUOUS.fullmatch(digits) or sum(map(str.isdigit, digits)) > _MAX_DIGITS:
        return None
    currency = re.search(rf"{_CURRENCY}[ ]?\Z", before) or re.match(rf"[ ]?{_CURRENCY}", after)
    if currency and _WITH_COMMA.fullmatch(digits):
        return Decimal(digits.replace(",", "."))
    for pattern, thousands, decimal in _NOTATIONS:
        if pattern.fullmatch(digits):
            plain = digits.replace(thousands, "") if thousands else digits
            return Decimal(plain.replace(decimal or ",", "."))
    return None
