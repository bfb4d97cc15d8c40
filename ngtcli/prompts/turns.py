"""The earlier turns of a conversation: which of them a prompt has, and which retrieval uses."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.documents.selection import Excerpt

_MAX_EARLIER = 2  # questions that help to find passages; see EARLIER of retrieval/index.py


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the conversation. The system prompt is a setting, not a turn.

    Attributes:
        role: "user" or "assistant".
        text: The question or the answer.
        passages: The passages that were read for it, where not all documents fit.
    """

    role: str
    text: str
    passages: tuple[Excerpt, ...] = ()


def first_kept(question_tokens: Sequence[int], exchange_tokens: Sequence[int], room: int) -> int:
    """Return how many of the oldest questions are left out, with what follows each of them.

    If the questions do not fit, enough are left out that half of the room is free. So the next
    turns only add to the prompt, and the prefix cache stays valid. Earlier decisions are repeated,
    because they are made from the same counts.

    Args:
        question_tokens: The tokens that each question with its passages was expected to take
            before these were known; the current question is last.
        exchange_tokens: The tokens of each earlier question with everything up to the next one.
        room: The tokens that all of them may have.

    >>> [first_kept([10] * (n + 1), [40] * n, 100) for n in range(5)]
    [0, 0, 0, 2, 2]
    """
    first = 0
    total = 0  # tokens of the questions from the first one on
    for i, (expected, used) in enumerate(zip(question_tokens, [*exchange_tokens, 0], strict=True)):
        if total + expected > room:
            while first < i and 2 * (total + expected) > room:
                total -= exchange_tokens[first]
                first += 1
        total += used
    return first


def earlier_questions(turns: Sequence[Turn]) -> list[str]:
    """Return the last questions, which help retrieval to find passages."""
    return [turn.text for turn in turns if turn.role == "user"][-_MAX_EARLIER:]
