"""The errors that end a command, with their exit codes.

`str(error)` is one line for what happened, `hint` one for what to do.
"""

import difflib
from collections.abc import Iterable

INTERRUPTED = 130  # exit code after Ctrl-C: 128 + SIGINT, as shells have it
_LONGEST = 500  # characters of an unexpected error's text; guess


class NgtError(Exception):
    """Something failed; `exit_code` is the process's, `hint` says what to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(NgtError):
    """A flag, a setting or a preset is wrong."""

    exit_code = 2


class GrammarError(UsageError):
    """A text that the user wrote is wrong at index `place` of `text`; output marks the place."""

    def __init__(self, message: str, text: str, place: int, hint: str) -> None:
        super().__init__(message, hint)
        self.text, self.place = text, place


class InputError(NgtError):
    """A document is missing, unreadable, binary or empty."""

    exit_code = 3


class ModelError(NgtError):
    """The target model or its tokenizer cannot be loaded."""

    exit_code = 4


class ContextOverflowError(NgtError):
    """Prompt and answer need more positions than the model has."""

    exit_code = 5


class ClosedPipeError(NgtError):
    """The reader of standard output closed it. This is not a failure, and no message is shown."""

    exit_code = 0


class DifferenceError(NgtError):
    """Drafted and plain decoding gave different tokens."""

    exit_code = 6


class FailedLinesError(NgtError):
    """Some lines or files of a batch failed; the others are done."""

    exit_code = 7


class StoppedError(NgtError):
    """Ctrl-C, or who asked, ended it before there was anything to show."""

    exit_code = INTERRUPTED


class BusyError(NgtError):
    """So many questions wait already that no other is taken."""


def unexpected(error: BaseException) -> NgtError:
    """A mistake of ours or of a library, in one line."""
    text = f"{type(error).__name__}: {error}"
    return NgtError(text[:_LONGEST], "Run it again with --debug for details.")


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
