"""A question on its way through the resident process."""

from collections.abc import Callable
from typing import Any

from ngtcli.config import SETTINGS, Settings, Use
from ngtcli.decode.decoder import Member
from ngtcli.errors import NgtError
from ngtcli.session.answering import Answering
from ngtcli.session.events import Ended, Event, Wants
from ngtcli.session.local import Begun, LocalSession
from ngtcli.session.question import Question
from ngtcli.session.session import Answer

# Settings that answers in one batch have in common, each with the one method that reads it, or "".
_COMMON = {
    name: about.method
    for name, about in SETTINGS.items()
    if Use.LOADS in about.uses or (about.panel == "Drafting" and Use.LINE not in about.uses)
}
Tell = Callable[[Event | NgtError], object]


class Ticket:
    """A question that was taken. `cancel` ends it, within a step where it is being answered.

    Its last event is `Ended`, with what there was, or where nothing was a StoppedError.
    """

    def __init__(self, question: Question, on_event: Tell, owner: str, wants: Wants) -> None:
        self.question, self.owner, self.wants = question, owner, wants
        self.state, self.cancelled = "new", False
        self.on_cancel: Callable[[Ticket], object] = lambda _: None
        self._on_event, self._is_done = on_event, False
        # Once it is prepared.
        self.session: LocalSession | None = None
        self.asked: Answering | None = None
        self.begun: Begun | None = None  # None: the model makes its prompt, part by part
        # While it is answered.
        self.answer: Answer | None = None  # of one that was not begun beside others
        self.member: Member | None = None
        self.told = 0  # steps

    def cancel(self) -> None:
        """End it. From any thread; does nothing after the last event."""
        self.cancelled = True
        self.on_cancel(self)

    def tell(self, event: Event | NgtError) -> None:
        """Give an event to who asked; where that fails nobody is there any more."""
        if self._is_done:
            return
        if isinstance(event, Ended | NgtError):
            self._is_done = True
            self.session = self.asked = self.begun = self.answer = self.member = None
        try:
            self._on_event(event)
        except Exception:
            self.cancelled = True
        if self._is_done:  # its arrays are free now, and not once a collector finds the cycle
            self.asked = self.begun = self.answer = self.member = None

    @property
    def common(self) -> tuple[Any, ...]:
        """What it has in common with others of its batch."""
        return common_of(self.question.settings)


def common_of(settings: Settings) -> tuple[Any, ...]:
    """The values of what answers in one batch have in common."""
    method = settings.method.partition(":")[0]
    read = (name for name, of in _COMMON.items() if of in ("", method))
    return tuple((name, getattr(settings, name)) for name in read)
