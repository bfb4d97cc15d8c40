"""Words of messages: plurals, shortened names and numbers, the nearest name that there is."""

import difflib
from collections.abc import Iterable


def shortened(path: str, max_length: int = 80) -> str:
    """Return a path for one line of a message: of a longer one the last characters.

    >>> shortened("/a/very/long/folder/notes.txt", 12)
    '…r/notes.txt'
    """
    return path if len(path) <= max_length else f"…{path[1 - max_length :]}"


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint for a name that is not known.

    Args:
        name: What was written.
        known: The names that there are; the hint has the most similar one.
        otherwise: The hint where none is similar; without it, all names are listed.

    >>> nearest("num_drafts", ["n", "lp", "num_draft"])
    'Did you mean num_draft?'
    """
    choices = list(known)
    compared = name[:100]  # comparing takes time that is quadratic in the lengths
    similar = difflib.get_close_matches(compared, choices, n=1, cutoff=0.6)
    if similar:
        return f"Did you mean {similar[0]}?"
    return otherwise or f"Known: {', '.join(choices)}."


def plain_number(value: float) -> str:
    """Return a number in decimal digits, without an exponent.

    >>> plain_number(1e6), plain_number(1e-6), plain_number(0.5)
    ('1000000', '0.000001', '0.5')
    """
    if isinstance(value, int) or value.is_integer():
        return str(int(value))
    return f"{value:.12f}".rstrip("0")


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    >>> counted(1, "prompt"), counted(12_000, "prompt"), counted(0, "summary", "summaries")
    ('1 prompt', '12000 prompts', '0 summaries')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {plural or noun + 's'}"


def short(tokens: int) -> str:
    """Return a number of tokens as a status line has it.

    >>> short(812), short(12_345), short(12_345_678)
    ('812', '12k', '12.3M')
    """
    if tokens < 10_000:
        return str(tokens)
    if tokens < 1_000_000:
        return f"{tokens // 1000}k"
    return f"{tokens / 1e6:.1f}M"


def reason_of(error: BaseException) -> str:
    """Return the operating system's message in lower case, without the number of the error."""
    reason = getattr(error, "strerror", None) or str(error)
    return reason[:1].lower() + reason[1:]
