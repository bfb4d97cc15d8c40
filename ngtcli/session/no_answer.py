"""Answers that are none: the model repeats itself, or the instructions of its prompt."""

import re

from ngtcli.errors import NgtError

PROMPT = "prompt"  # the finish reason of an answer that repeats the instructions
REPETITION = "repetition"
_LEAST_WORDS = 3  # of a sentence: shorter ones stand in answers by chance; guess
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")


def repeats_instructions(answer: str, instructions: str) -> bool:
    """Return whether every sentence of an answer is one of the instructions.

    >>> asked = "Answer from the text. If it does not tell, say so. When is high tide?"
    >>> repeats_instructions("If it does not tell, say so. If it does not tell, say", asked)
    True
    >>> repeats_instructions("It does not tell.", asked)
    False

    Args:
        answer: The text of the answer; its last sentence may be cut off.
        instructions: The prompt without its documents: wording, question, names.
    """
    known = set(_sentences(instructions))
    sentences = _sentences(answer)
    if not sentences:
        return False
    *whole, last = sentences
    if not all(sentence in known for sentence in whole):
        return False
    if last in known:
        return True
    return bool(whole) and any(sentence.startswith(last) for sentence in known)


def _sentences(text: str) -> list[str]:
    """The sentences of a text in lower case, without punctuation and those of few words."""
    sentences = []
    for sentence in _SENTENCE_END.split(text):
        words = re.findall(r"\w+", sentence.casefold())
        if len(words) >= _LEAST_WORDS:
            sentences.append(" ".join(words))
    return sentences


def no_answer(finish_reason: str) -> NgtError | None:
    """Return the error that an answer with this finish reason is, None where it is an answer."""
    if finish_reason == REPETITION:
        return NgtError(
            "the model repeated itself: this is no answer",
            "Ask in other words, or name another model with -m; --set max_repeats=0 lets it go on.",
        )
    if finish_reason == PROMPT:
        return NgtError(
            "the model repeated its instructions: this is no answer",
            "Ask in other words, or name another model with -m.",
        )
    return None
