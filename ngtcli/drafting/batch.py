"""The drafters of the sequences that share a forward pass, one or several."""

from collections.abc import Callable, Sequence
from typing import Any

from ngtcli.drafting.drafter import Context, Draft, Drafter, Outcome, Room
from ngtcli.drafting.log import TokenLog

MakeDrafter = Callable[[Context], Drafter]
# Drafts for all sequences at once, from the drafter, the log and the room of each.
ProposeTogether = Callable[[Sequence[Any], Sequence[TokenLog], Sequence[Room]], list[Draft]]


class Drafting:
    """A factory for the drafters of a batch, which divides the draft nodes of a pass among them.

    Usually each drafter proposes separately: the nodes are divided evenly, and the remainder goes
    to the sequences in turns. A drafter whose sequence has ended is reused. With
    `propose_together` each drafter may propose as many nodes as there are, and that function
    decides which of them are taken.

    Attributes:
        max_nodes: Draft nodes of a forward pass, of all sequences together.
    """

    def __init__(
        self,
        make: MakeDrafter,
        max_nodes: int,
        propose_together: ProposeTogether | None = None,
    ) -> None:
        self.max_nodes = max_nodes
        self._make = make
        self._propose_together = propose_together
        self._unused: list[Drafter] = []
        self._turn = 0  # the sequence that gets the first of the nodes left over

    def join(self, context: Context, log: TokenLog) -> Drafter:
        """Return a drafter that has begun on a prompt, and has learned the emitted tokens."""
        drafter: Drafter
        if self._unused and not context.private:
            drafter = self._unused.pop()
        else:
            drafter = self._make(context)
        drafter.begin(context)
        if log.emitted:
            drafter.learn(log, Outcome())
        return drafter

    def release(self, drafter: Drafter, context: Context) -> None:
        """Take back a drafter that has closed its sequence."""
        if self._propose_together is None and not context.private:
            self._unused.append(drafter)

    def shares(self, count: int) -> list[int]:
        """Return how many nodes each of `count` sequences may draft in this step."""
        if self._propose_together is not None:
            return [self.max_nodes] * count
        share, remainder = divmod(self.max_nodes, count)
        first = self._turn
        self._turn = (first + remainder) % count
        return [share + 1 if (i - first) % count < remainder else share for i in range(count)]

    def propose(
        self, drafters: Sequence[Drafter], logs: Sequence[TokenLog], rooms: Sequence[Room]
    ) -> list[Draft]:
        """Return a draft for each sequence; it is empty if there is no room."""
        if self._propose_together is not None:
            return self._propose_together(drafters, logs, rooms)
        return [
            drafter.propose(log, room) if room.nodes > 0 else Draft()
            for drafter, log, room in zip(drafters, logs, rooms, strict=True)
        ]
