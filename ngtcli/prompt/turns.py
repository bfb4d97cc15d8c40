"""What was said before a question: how much of it a prompt has, and what passages are found by."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.retrieve.selection import Excerpt

_EARLIER = 2  # questions that help to find passages; see EARLIER of retrieve/index.py


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said before by `role`, "user" or "assistant"; system text is a setting.

    `passages` of the question's documents were read with it, where not all of them fit.
    """

    role: str
    text: str
    passages: tuple[Excerpt, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question with what follows it up to the next one: its number of turns, and tokens.

    `asked` tokens were needed for the question before its passages were known, `tokens` are those
    of all.
    """

    turns: int
    asked: int
    tokens: int


def first_kept(exchanges: Sequence[Exchange], question: int, room: int) -> int:
    """How many of the oldest exchanges are left out before a question of so many tokens.

    When they do not fit in `room`, so many go that half of it is free: then the turns after it only
    add to the prompt, and what was read of it is not read anew. What went before stays out, since
    all is counted as it was at each question.

    >>> pairs = [Exchange(2, 10, 40)] * 4
    >>> [first_kept(pairs[:n], 10, 100) for n in range(5)]
    [0, 0, 0, 2, 2]
    """
    first = total = 0
    for i, one in enumerate([*exchanges, Exchange(1, question, 0)]):
        if total + one.asked > room:
            while first < i and 2 * (total + one.asked) > room:
                total -= exchanges[first].tokens
                first += 1
        total += one.tokens
    return first


def earlier_questions(turns: Sequence[Turn]) -> list[str]:
    """The last questions, which passages are searched by as well."""
    return [turn.text for turn in turns if turn.role == "user"][-_EARLIER:]
