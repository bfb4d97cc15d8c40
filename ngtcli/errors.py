"""The errors that end a command, or the answer to one question of many.

NgtError                        something failed
├── UsageError                  a flag, a setting or a preset is wrong
│   ├── MarkedError             a text that the user wrote has an error; the message marks it
│   └── MissingDependencyError  a package of an extra is not installed
├── InputError                  a document cannot be read
├── ModelError                  the target model or its tokenizer cannot be loaded
│   ├── HubUnreachableError     it would have to be downloaded, and there is no network
│   └── TemplateError           its chat template fails, or changes what it is given
├── ContextOverflowError        prompt and answer are longer than the context
├── DifferenceError             drafted and plain decoding gave different tokens
├── FailedLinesError            some lines or files of a batch failed
├── StoppedError                interrupted before there was an answer
├── BusyError                   the server's queue is full
└── ClosedPipeError             the reader of standard output has gone

Packages define subclasses of these. The message is one sentence that says what happened, in the
user's words; the hint is one that says what to do. `ngtcli/cli/app.py` prints both and ends the
process with the exit code.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `ngt`, as `ngt help exit-codes` lists them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INPUT = 3
    MODEL = 4
    CONTEXT = 5
    DIFFERENCE = 6
    FAILED_LINES = 7
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


INTERRUPTED = ExitCode.INTERRUPTED
_LONGEST = 500  # characters of an unexpected error's text (guess)


class NgtError(Exception):
    """Something failed.

    Attributes:
        exit_code: The exit code of a command that ends with this error.
        hint: A sentence that says what to do; "" if there is nothing to do.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(NgtError):
    """A flag, a setting or a preset is wrong."""

    exit_code = ExitCode.USAGE


class MarkedError(UsageError):
    """A schema or a pattern that the user wrote has an error; the message marks the place.

    Args:
        message: What is wrong.
        text: The schema or pattern.
        place: The index of the error in `text`.
        hint: What to do.
    """

    def __init__(self, message: str, text: str, place: int, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.text = text
        self.place = place


class MissingDependencyError(UsageError):
    """A package is not installed; the hint is the command that installs it."""


class InputError(NgtError):
    """A document is missing, unreadable, binary or empty."""

    exit_code = ExitCode.INPUT


class ModelError(NgtError):
    """The target model or its tokenizer cannot be loaded."""

    exit_code = ExitCode.MODEL


class HubUnreachableError(ModelError):
    """The model is not on this machine, and Hugging Face cannot be asked for it."""


class TemplateError(ModelError):
    """The model's chat template fails, or leaves out or changes a text that it is given."""


class ContextOverflowError(NgtError):
    """Prompt and answer need more positions than the model has."""

    exit_code = ExitCode.CONTEXT


class ClosedPipeError(NgtError):
    """The reader of standard output closed it. This is not a failure, and no message is shown."""

    exit_code = ExitCode.OK


class DifferenceError(NgtError):
    """Drafted and plain decoding gave different tokens."""

    exit_code = ExitCode.DIFFERENCE


class FailedLinesError(NgtError):
    """Some lines or files of a batch failed; the others are done."""

    exit_code = ExitCode.FAILED_LINES


class StoppedError(NgtError):
    """Ctrl-C or the client ended the request before there was anything to show."""

    exit_code = ExitCode.INTERRUPTED


class BusyError(NgtError):
    """So many requests wait already that no other is taken."""


def unexpected(error: BaseException) -> NgtError:
    """Return the error itself if it is an NgtError, otherwise wrap its text in one.

    Such an error is a defect of ngt or of a library.
    """
    if isinstance(error, NgtError):
        return error
    text = f"{type(error).__name__}: {error}"
    return NgtError(text[:_LONGEST], hint="Run it again with --debug for details.")
