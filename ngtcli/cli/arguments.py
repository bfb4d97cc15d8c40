"""The arguments of a command line that are not flags: a question or a prompt, and paths."""

import os
import shlex
from collections.abc import Sequence
from textwrap import shorten

from ngtcli.documents.find import STDIN
from ngtcli.errors import UsageError

_LONGEST = 200  # characters of a command line that a hint shows; guess


def question_and_paths(words: Sequence[str], has_documents: bool) -> tuple[str, list[str]]:
    """Return the question, which comes first, and the paths behind it.

    Paths that do not exist are returned as well: reading them says so. But where a question of
    several words was not quoted, the error says that it needs quotes. With paths before the
    question, the question is the last word.

    Args:
        words: The arguments of the command line, one at least.
        has_documents: Whether documents were named otherwise.

    Raises:
        UsageError: There is no question, or it was not quoted.
    """
    question, *paths = words
    last = words[-1]
    if paths and _exists(question) and _is_plain_word(last):
        return last, list(words[:-1])
    if paths and _is_sentence(last) and not (_is_sentence(question) or _is_plain_word(question)):
        return last, list(words[:-1])
    is_only_word = not paths and not has_documents
    if _is_document(question) or (is_only_word and _exists(question)):
        raise _no_question(words)
    if _is_sentence(question) or not any(_is_plain_word(path) for path in paths):
        return question, paths
    end = len(words)  # of the question
    while not _is_plain_word(words[end - 1]):
        end -= 1
    raise unquoted("question", "ask", words[:end], words[end:])


def only_word(what: str, command: str, words: Sequence[str]) -> str:
    """Return the question or the prompt of a command that takes no paths. Raises UsageError.

    Args:
        what: What it is called.
        command: The command, for the hint.
        words: The arguments of the command line.
    """
    if len(words) == 1:
        return words[0]
    if path := next((word for word in words if os.path.exists(word)), None):
        hint = f"Give -d before each document: ngt {command} -d {shlex.quote(path)} …"
        raise UsageError(f"{path} is a path, not part of the {what}", hint=hint)
    raise unquoted(what, command, words)


def unquoted(
    what: str, command: str, words: Sequence[str], paths: Sequence[str] = ()
) -> UsageError:
    """Return the error of a question or prompt of several words without quotes."""
    quoted = shlex.quote(" ".join(words))
    shown = shorten(quoted, _LONGEST, placeholder="…'")
    behind = "".join(f" {shlex.quote(path)}" for path in paths)
    return UsageError(
        f"the {what} is {len(words)} words without quotes",
        hint=f"Put it in quotes: ngt {command} {shown}{behind}",
    )


def _no_question(words: Sequence[str]) -> UsageError:
    """Return the error of a command line with nothing but paths."""
    named = f"the path {words[0]}" if len(words) == 1 else f"the paths {', '.join(words)}"
    shown = shorten(shlex.join(words), _LONGEST, placeholder="…")
    return UsageError(
        f"there is no question, only {shorten(named, _LONGEST, placeholder='…')}",
        hint=f"The question comes first, as in ngt ask 'Who signed it?' {shown}",
    )


def _exists(word: str) -> bool:
    return word == STDIN or os.path.exists(word)


def _is_document(word: str) -> bool:
    """Whether this names a document that is there: no word of a sentence is written like it."""
    return _exists(word) and (word == STDIN or os.sep in word or bool(os.path.splitext(word)[1]))


def _is_sentence(word: str) -> bool:
    """Whether this was quoted for the shell, or ends like a question, and is no path."""
    return not _exists(word) and (len(word.split()) > 1 or word.endswith("?"))


def _is_plain_word(word: str) -> bool:
    """Whether this looks like a word of a sentence and not like a path, a pattern or a file."""
    if _exists(word) or os.sep in word or any(character in word for character in "*["):
        return False
    return not os.path.splitext(word.rstrip("?.,!"))[1]
