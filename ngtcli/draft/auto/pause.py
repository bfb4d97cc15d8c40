"""When a text is not drafted for: after several proposals in a row that did not pay."""

from collections.abc import Callable

from ngtcli.draft.auto.config import CONFIG


class Pause:
    """Pauses of a text, each twice as long as the last one until a proposal pays.

    `left` are the steps that the pause going on still has.
    """

    def __init__(self) -> None:
        self.left = 0
        self._next = CONFIG.first_pause
        self._unpaid = 0  # proposals in a row that did not pay

    def goes_on(self, has_repeated: Callable[[], bool]) -> bool:
        """Begin a step; whether it is one of a pause. `has_repeated`, of the text, ends a pause."""
        if not self.left:
            return False
        if has_repeated():
            self.left = 0
            return False
        self.left -= 1
        return True

    def learn(self, pays: bool) -> bool:
        """Learn whether a proposal paid; whether a pause begins.

        One that does not begins a pause if it is the first after a pause, or one of several.
        """
        if pays:
            self._unpaid, self._next = 0, CONFIG.first_pause
            return False
        self._unpaid += 1
        if self._unpaid < CONFIG.patience:
            return False
        self.left = self._next
        self._next = min(2 * self._next, CONFIG.longest_pause)
        self._unpaid = CONFIG.patience - 1
        return True
