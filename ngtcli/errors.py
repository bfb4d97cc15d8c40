"""The errors that end a command: a line for what happened, a `hint` what to do, an exit code."""

from ngtcli.words import *  # noqa: F403  (until the callers import it from there)

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


class HubUnreachableError(ModelError):
    """The model is not on this machine, and Hugging Face cannot be asked for it."""


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
    """An error as ours; what is none is a mistake, of ours or of a library, in one line."""
    if isinstance(error, NgtError):
        return error
    text = f"{type(error).__name__}: {error}"
    return NgtError(text[:_LONGEST], "Run it again with --debug for details.")
