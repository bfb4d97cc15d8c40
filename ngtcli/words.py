"""Words of messages: plurals, shortened names and numbers, the nearest name that there is."""

import difflib
from collections.abc import Iterable


def shortened(path: str, most: int = 80) -> str:
    """The end of a path, at most `most` characters, for one line of a message.

    >>> shortened("/a/very/long/folder/notes.txt", 12)
    '…r/notes.txt'
    """
    return path if len(path) <= most else f"…{path[1 - most :]}"


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint: the known word most similar to `name`, else `otherwise`, else all known words.

    >>> nearest("num_drafts", ["n", "lp", "num_draft"])
    'Did you mean num_draft?'
    """
    choices = list(known)
    # Its time is quadratic in the lengths.
    close = difflib.get_close_matches(name[:100], choices, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else otherwise or f"Known: {', '.join(choices)}."


def plain_number(value: float) -> str:
    """A number in decimal digits, without an exponent.

    >>> plain_number(1e6), plain_number(1e-6), plain_number(0.5)
    ('1000000', '0.000001', '0.5')
    """
    if isinstance(value, int) or value.is_integer():
        return str(int(value))
    return f"{value:.12f}".rstrip("0")


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "prompt"), counted(12_000, "prompt"), counted(0, "summary", "summaries")
    ('1 prompt', '12000 prompts', '0 summaries')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def short(tokens: int) -> str:
    """A number of tokens in the form of a status line.

    >>> short(812), short(12_345), short(12_345_678)
    ('812', '12k', '12.3M')
    """
    if tokens < 10_000:
        return str(tokens)
    return f"{tokens // 1000}k" if tokens < 1_000_000 else f"{tokens / 1e6:.1f}M"


def reason_of(error: BaseException) -> str:
    """The operating system's message without the error number; it begins in lower case."""
    reason = getattr(error, "strerror", None) or str(error)
    return reason[:1].lower() + reason[1:]
