"""A drafter with an index of the sequence, which can go back to an earlier length of it.

Most tokens that it indexes were emitted and stay. Some are only expected. Where others come
instead, the index has to forget them: it is then what it would be had they never come.
"""

from collections.abc import Callable
from typing import Any

from ngtcli.drafting.drafter import Context, Draft, Drafter, DraftSettings, Outcome, Room
from ngtcli.drafting.log import Mark, TokenLog
from ngtcli.drafting.tree import DraftTree


class Indexed(Drafter):
    """Follows the log of a sequence with an index.

    Subclasses write `clear`, `index` and `draft`, and either pass every change of the index that
    depends on tokens after the prompt to `undo_below` with what undoes it, or override `shorten`.
    `token_ids` holds the tokens that are indexed.
    """

    def __init__(self, settings: DraftSettings, options: Any) -> None:
        super().__init__(settings, options)
        self.token_ids: list[int] = []
        self.prompt_length = 0
        self._mark = Mark()
        self._undo: list[tuple[int, Callable[[], object]]] = []

    def clear(self, context: Context) -> None:
        """Make the index that of an empty sequence."""
        raise NotImplementedError

    def index(self, start: int) -> None:
        """Index the tokens of `token_ids` from position `start` on."""
        raise NotImplementedError

    def draft(self, budget: int) -> DraftTree:
        """Return a tree of at most `budget` nodes to follow `token_ids`."""
        raise NotImplementedError

    def begin(self, context: Context) -> None:
        """Index a new prompt."""
        self._undo.clear()
        self.token_ids = list(context.ids)
        self.prompt_length = len(self.token_ids)
        self._mark = Mark(self.prompt_length)
        self.clear(context)
        self.index(0)

    def propose(self, log: TokenLog, room: Room) -> Draft:
        """Index what is new, and draft from the index."""
        self.sync(log)
        return Draft(self.draft(room.nodes))

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        """Index what is new."""
        self.sync(log)

    def sync(self, log: TokenLog) -> None:
        """Make the index that of the tokens of `log`."""
        unchanged, new = log.since(self._mark)
        self._mark = log.mark
        if unchanged < len(self.token_ids):
            self.shorten(unchanged)
        if new:
            self.token_ids += new
            self.index(unchanged)

    def shorten(self, length: int) -> None:
        """Go back to the first `length` tokens: undo what depends on others, the latest first."""
        while self._undo and self._undo[-1][0] > length:
            _, undo = self._undo.pop()
            undo()
        del self.token_ids[length:]

    def undo_below(self, length: int, undo: Callable[[], object]) -> None:
        """Have a change undone as soon as fewer tokens are indexed than `length`.

        Nothing is remembered for the prompt, which stays.
        """
        if length > self.prompt_length:
            self._undo.append((length, undo))
