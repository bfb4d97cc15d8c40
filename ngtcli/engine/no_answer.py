"""Requests without an answer: the model repeats itself or its instructions, or something failed."""

import re

from ngtcli.documents.selection import Coverage
from ngtcli.errors import NgtError, unexpected
from ngtcli.system import process

PROMPT = "prompt"  # the finish reason of an answer that repeats the instructions
REPETITION = "repetition"
NOT_IN_DOCUMENTS = "not_in_documents"  # the finish reason if the built-in model was not asked
_LEAST_WORDS = 3  # of a sentence: shorter ones are in answers by chance (guess)
_PLACE = re.compile(r"\{\w+\}")  # of documents and question in a template
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")


def repeats_instructions(answer: str, template: str, question: str = "") -> bool:
    """Return whether every sentence of an answer is one of the instructions, or it is the question.

    A sentence of a question of several may be the right answer: a question can list its options.

    >>> template = "{documents} Answer from the text. If it does not tell, say so. {question}"
    >>> repeats_instructions("If it does not tell, say so. If it does not tell, say", template)
    True
    >>> repeats_instructions("It does not tell.", template)
    False

    Args:
        answer: The text of the answer; its last sentence may be cut off.
        template: The wording of the task, with names in braces.
        question: What was asked.
    """
    sentences = _sentences(answer)
    if not sentences:
        return False
    if sentences == _sentences(question):
        return True
    known = set(_sentences(_PLACE.sub("\n", template)))
    *whole, last = sentences
    if not all(sentence in known for sentence in whole):
        return False
    if last in known:
        return True
    return bool(whole) and any(sentence.startswith(last) for sentence in known)


def not_in_documents(coverage: Coverage) -> str:
    """Return the answer to a question that the documents have too little about."""
    return f"Not in the documents: the nearest passage lacks {coverage.lacking}."


def doubt_of(coverage: Coverage) -> str:
    """Return the warning about an answer that a model gives nevertheless."""
    return f"the documents may not have the answer: the nearest passage lacks {coverage.lacking}"


def _sentences(text: str) -> list[str]:
    """Return the sentences of a text in lower case, without punctuation; skip short ones."""
    sentences = []
    for sentence in _SENTENCE_END.split(text):
        words = re.findall(r"\w+", sentence.casefold())
        if len(words) >= _LEAST_WORDS:
            sentences.append(" ".join(words))
    return sentences


def no_answer(finish_reason: str) -> NgtError | None:
    """Return the error for an answer with this finish reason; None if it is a proper answer."""
    if finish_reason == REPETITION:
        return NgtError(
            "the model repeated itself: what it wrote is no answer",
            hint="Name another model with -m, or ask in other words.",
        )
    if finish_reason == PROMPT:
        return NgtError(
            "the model repeated its instructions: what it wrote is no answer",
            hint="Name another model with -m, or ask in other words.",
        )
    return None


def caught(error: BaseException) -> NgtError:
    """Return the error that a request ends with.

    Raises:
        KeyboardInterrupt: Where a Ctrl-C was the cause. A library may make another error of it.
    """
    if isinstance(error, KeyboardInterrupt) or process.interrupted():
        raise KeyboardInterrupt from error
    failure = unexpected(error)
    if failure is not error:
        failure.__cause__ = error
    return failure
