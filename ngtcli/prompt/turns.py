"""What was said before a question."""

from dataclasses import dataclass

from ngtcli.retrieve.selection import Excerpt


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said before by `role`, "user" or "assistant"; system text is a setting.

    `passages` of the question's documents were read with it, where not all of them fit.
    """

    role: str
    text: str
    passages: tuple[Excerpt, ...] = ()
