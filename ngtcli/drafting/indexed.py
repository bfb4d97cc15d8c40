"""A drafter with an index of the text so far, which can go back to an earlier length of it.

Most tokens that a drafter observes were emitted and stay. Some are only expected: those that a
grammar forces, and those that an exact pass has found in a branch. Where others come instead, the
index has to forget them: it is then what it would be had they never come.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ngtcli.drafting.drafter import Context, Drafter, DraftSettings
from ngtcli.drafting.tree import DraftTree


class Indexed(Drafter):
    """Keeps the text so far in `text`, and how to undo what its last tokens changed.

    Subclasses write `clear`, `index` and `draft`. Each change of the index that depends on tokens
    behind the prompt goes to `on_retract` with what undoes it.
    """

    def __init__(self, settings: DraftSettings, options: Any) -> None:
        super().__init__(settings, options)
        self.text: list[int] = []
        self.prompt_length = 0
        self._undo: list[tuple[int, Callable[[], object]]] = []

    def clear(self, context: Context) -> None:
        """Make the index that of an empty text."""
        raise NotImplementedError

    def index(self, start: int) -> None:
        """Index the tokens of `text` from the place `start` on."""
        raise NotImplementedError

    def draft(self, budget: int) -> DraftTree:
        """A tree of at most `budget` nodes to follow `text`."""
        raise NotImplementedError

    def reset(self, context: Context) -> None:
        """Index a new prompt."""
        self._undo.clear()
        self.text, self.prompt_length = list(context.ids), len(context.ids)
        self.clear(context)
        self.index(0)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        """As Drafter.propose; observes those of `ids` that were not observed yet."""
        if len(ids) > len(self.text):
            self.observe(ids[len(self.text) :])
        return self.draft(budget)

    def observe(self, tokens: Sequence[int]) -> None:
        """Index the next tokens of the text."""
        start = len(self.text)
        self.text += tokens
        self.index(start)

    def retract(self, count: int, ids: Sequence[int]) -> None:
        """Undo the changes that depend on the last `count` tokens, the latest first."""
        while self._undo and self._undo[-1][0] > len(ids):
            _, undo = self._undo.pop()
            undo()
        del self.text[len(ids) :]

    def on_retract(self, length: int, undo: Callable[[], object]) -> None:
        """Have a change undone as soon as the text is shorter than `length`.

        Nothing is kept for the prompt, which stays.
        """
        if length > self.prompt_length:
            self._undo.append((length, undo))
