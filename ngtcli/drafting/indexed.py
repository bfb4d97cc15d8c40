"""A drafter with an index of the sequence, which can go back to an earlier length of it.

Most indexed tokens were emitted and stay. Some are only expected. If other tokens come instead, the
index has to forget the expected ones: it is then the same as if they had never been indexed.
"""

from collections.abc import Callable
from typing import Any

from ngtcli.drafting.drafter import Context, Draft, Drafter, DraftSettings, Outcome, Room
from ngtcli.drafting.log import Mark, TokenLog
from ngtcli.drafting.tree import DraftTree


class Indexed(Drafter):
    """A drafter that follows the log of a sequence with an index.

    Subclasses implement `clear`, `index` and `draft`. For every change of the index that depends on
    tokens after the prompt they either pass a function that undoes it to `undo_if_shorter_than`, or
    override `shorten`. `token_ids` has the indexed tokens.
    """

    def __init__(self, settings: DraftSettings, options: Any) -> None:
        super().__init__(settings, options)
        self.token_ids: list[int] = []
        self.prompt_length = 0
        self._mark = Mark()
        self._undo: list[tuple[int, Callable[[], object]]] = []

    def clear(self, context: Context) -> None:
        """Clear the index, as for an empty sequence."""
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
        """Index the new tokens, and draft from the index."""
        self.sync(log)
        return Draft(self.draft(room.nodes))

    def learn(self, log: TokenLog, outcome: Outcome) -> None:
        """Index the new tokens."""
        self.sync(log)

    def sync(self, log: TokenLog) -> None:
        """Update the index to the tokens of `log`."""
        unchanged, new = log.since(self._mark)
        self._mark = log.mark
        if unchanged < len(self.token_ids):
            self.shorten(unchanged)
        if new:
            self.token_ids += new
            self.index(unchanged)

    def shorten(self, length: int) -> None:
        """Go back to the first `length` tokens; undo the changes by later ones, latest first."""
        while self._undo and self._undo[-1][0] > length:
            _, undo = self._undo.pop()
            undo()
        del self.token_ids[length:]

    def undo_if_shorter_than(self, length: int, undo: Callable[[], object]) -> None:
        """Register a function that undoes a change as soon as fewer than `length` tokens remain.

        Nothing is registered for the prompt, which stays.
        """
        if length > self.prompt_length:
            self._undo.append((length, undo))
