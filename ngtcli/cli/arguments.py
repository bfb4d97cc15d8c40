"""The arguments of a command line that are not flags: a question or a prompt, and paths."""

import os
import shlex
from collections.abc import Sequence
from textwrap import shorten

from ngtcli.documents.find import STDIN
from ngtcli.errors import UsageError

_MAX_SHOWN = 200  # characters of a command line in an error and its hint (guess)


def question_and_paths(words: Sequence[str], has_documents: bool) -> tuple[str, list[str]]:
    """Return the question, which comes first, and the paths after it.

    Paths that do not exist are returned as well, and reading reports them. A question of several
    words without quotes is an error. If paths come before the question, it is the last word.

    Args:
        words: The arguments of the command line, at least one.
        has_documents: Whether -d names documents or some are piped in.

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


def only_word(noun: str, command: str, words: Sequence[str]) -> str:
    """Return the question or the prompt of a command that takes no paths.

    Args:
        noun: "question" or "prompt", for errors.
        command: The command, for the hint.
        words: The arguments of the command line.

    Raises:
        UsageError: There are several words, or paths among them.
    """
    if len(words) == 1:
        return words[0]
    path = next((word for word in words if os.path.exists(word)), "")
    if path:
        raise UsageError(
            f"{path} is a path, not part of the {noun}",
            hint=f"Give -d before each document: ngt {command} -d {shlex.quote(path)} …",
        )
    raise unquoted(noun, command, words)


def unquoted(
    noun: str, command: str, words: Sequence[str], paths: Sequence[str] = ()
) -> UsageError:
    """Return the error for a question or prompt of several words without quotes.

    Args:
        noun: "question" or "prompt".
        command: The command, for the hint.
        words: The words.
        paths: The paths that follow them on the command line.
    """
    quoted = shorten(shlex.quote(" ".join(words)), _MAX_SHOWN, placeholder="…'")
    arguments = " ".join([quoted, *map(shlex.quote, paths)])
    return UsageError(
        f"the {noun} is {len(words)} words without quotes",
        hint=f"Put it in quotes: ngt {command} {arguments}",
    )


def _no_question(words: Sequence[str]) -> UsageError:
    """Return the error for a command line that has only paths."""
    paths = f"the path {words[0]}" if len(words) == 1 else f"the paths {', '.join(words)}"
    arguments = shorten(shlex.join(words), _MAX_SHOWN, placeholder="…")
    return UsageError(
        f"there is no question, only {shorten(paths, _MAX_SHOWN, placeholder='…')}",
        hint=f"The question comes first, as in ngt ask 'Who signed it?' {arguments}",
    )


def _exists(word: str) -> bool:
    return word == STDIN or os.path.exists(word)


def _is_document(word: str) -> bool:
    """Return whether this names an existing document, and cannot be a word of a sentence."""
    return _exists(word) and (word == STDIN or os.sep in word or bool(os.path.splitext(word)[1]))


def _is_sentence(word: str) -> bool:
    """Return whether this was quoted or ends like a question, and is not a path."""
    return not _exists(word) and (len(word.split()) > 1 or word.endswith("?"))


def _is_plain_word(word: str) -> bool:
    """Return whether this looks like a word of a sentence, not like a path or pattern."""
    if _exists(word) or os.sep in word or any(character in word for character in "*["):
        return False
    return not os.path.splitext(word.rstrip("?.,!"))[1]
