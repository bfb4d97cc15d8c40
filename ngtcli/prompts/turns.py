"""What was said before a question: how much of it a prompt has, and what passages are found by."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.documents.selection import Excerpt

_EARLIER = 2  # questions that help to find passages; see EARLIER of retrieve/index.py


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said before by `role`, "user" or "assistant"; system text is a setting.

    `passages` of the question's documents were read with it, where not all of them fit.
    """

    role: str
    text: str
    passages: tuple[Excerpt, ...] = ()


def first_kept(asked: Sequence[int], tokens: Sequence[int], room: int) -> int:
    """How many of the oldest questions are left out, with what follows each up to the next.

    `asked` tokens each was to take, and last the one now asked, before its passages were known;
    `tokens` those before took with all that follows. When they do not fit in `room`, so many go
    that half of it is free: then the turns after it only add to the prompt, and what was read of it
    is not read anew. What went before stays out, since all is counted as it was at each question.

    >>> [first_kept([10] * (n + 1), [40] * n, 100) for n in range(5)]
    [0, 0, 0, 2, 2]
    """
    first = total = 0
    for i, (wanted, taken) in enumerate(zip(asked, [*tokens, 0], strict=True)):
        if total + wanted > room:
            while first < i and 2 * (total + wanted) > room:
                total -= tokens[first]
                first += 1
        total += taken
    return first


def earlier_questions(turns: Sequence[Turn]) -> list[str]:
    """The last questions, which passages are searched by as well."""
    return [turn.text for turn in turns if turn.role == "user"][-_EARLIER:]
