"""Decoding several texts together: they join and leave between passes (loop.py).

Where memory ends drafts become smaller, then fewer texts run together; those set aside wait, and
are read again when there is room. None is lost.
"""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ngtcli.decode.batch_target import BatchTarget
from ngtcli.decode.loop import Loop, Member
from ngtcli.decode.memory_limits import fits, read_prompt
from ngtcli.decode.model import TargetModel
from ngtcli.draft.drafter import Drafters
from ngtcli.errors import NgtError

# Texts that run together unless a number is wished; memory may allow fewer. Measured (built-in
# model, 200 documents, one thread, `auto`): 1, 4, 16 and 64 give 197, 345, 365 and 360 tokens for a
# second of the processor, and 64 take more than twice the memory of 16.
MOST = 16
_AHEAD = 512  # tokens of output that there is room for at first; guess: more than most answers have


class Batch:
    """At most `size` texts run together; 0: as many as memory allows, `MOST` at most.

    `progress` is called with how many ids of how many are read of a prompt.
    """

    def __init__(
        self,
        model: TargetModel,
        drafters: Drafters[Any],
        size: int,
        progress: Callable[[int, int], object] = lambda read, total: None,
    ) -> None:
        self.running: list[Member] = []  # in the order of the target's sequences
        self._waiting: deque[Member] = deque()
        self._ended: list[Member] = []
        self._model, self._drafters, self._progress = model, drafters, progress
        self._most = size or MOST
        self._target = BatchTarget(model, self._most)
        self._loop = Loop(model, self._target, drafters)
        self._retries = False  # whether memory may have become free for one that waits

    @property
    def takes_more(self) -> bool:
        """Whether another text may be added now."""
        return not self._waiting and self._has_room

    @property
    def _has_room(self) -> bool:
        return not self.running or len(self.running) < min(self._most, self._target.room)

    @property
    def done(self) -> bool:
        """Whether no text is left."""
        return not self.running and not self._waiting

    def add(self, member: Member, is_read: bool = False) -> list[Member]:
        """Go on with a text; returns it if it has ended at once.

        `is_read`: the model's own cache has all of it but its last token.
        """
        member.drafter = self._drafters.start(member.context)
        try:
            if member.text.output:
                self._drafters.observe([member.drafter], [member.text.output])
            self._join(member, is_read)
        except BaseException:
            self._drafters.finish(member.drafter)
            raise
        return self._take_ended()

    def drop(self, member: Member) -> list[Member]:
        """End a text as interrupted; returns it, and others that ended."""
        member.text.finish_reason = "interrupted"
        if member in self._waiting:
            self._waiting.remove(member)
            self._end(member)
        self._leave()
        return self._take_ended()

    def step(self) -> list[Member]:
        """Read those that wait, if there is room, and do one pass; returns those that ended."""
        self._retries |= not self.running
        while self._retries and self._waiting and self._has_room:
            self._join(self._waiting.popleft())
        if self.running:
            if not self._loop.step(self.running):
                self._set_aside()
            self._leave()
        return self._take_ended()

    def _join(self, member: Member, is_read: bool = False) -> None:
        """Let a text run. It waits where memory does not suffice for it with the others."""
        self._target.size = self._most
        self._retries = self._read(member, is_read)
        if not self._retries and not self.running:  # what is held for others is of no use
            self._target.drop()
            self._target.size = 1
            self._retries = self._read(member)
        if self._retries:
            self.running.append(member)
        elif self.running:
            self._waiting.appendleft(member)
        else:
            member.crowded = True
            self._end(member)

    def _read(self, member: Member, is_read: bool = False) -> bool:
        """Read a text, unless the model has; False where memory does not suffice."""
        clock, text, target = time.perf_counter(), member.text, self._target
        total = len(text.ids)
        ahead = min(text.most, total + _AHEAD) + self._drafters.most + 1
        places = min(ahead, self._model.context)
        if self.running:
            has_room = list[bool]()
            if not fits(self._model, lambda: has_room.append(target.reserve(places))):
                return False
            if not has_room[0]:
                return False
        try:
            if not is_read:
                ids, keeping = text.ids[:-1], member.keeping
                read_prompt(
                    self._model, ids, total, lambda at: self._progress(at, total), keeping=keeping
                )
        except NgtError:
            return False
        if not fits(self._model, partial(target.take, places)):
            return False
        text.statistics.add_prefill(time.perf_counter() - clock, self._model.reused)
        return True

    def _end(self, member: Member) -> None:
        member.policy = self._drafters.report(member.drafter)
        self._drafters.finish(member.drafter)
        self._ended.append(member)

    def _take_ended(self) -> list[Member]:
        ended, self._ended = self._ended, []
        return ended

    def _set_aside(self) -> None:
        """Half as many texts will run, and all are read again."""
        members, self.running = self.running, []
        self._target.drop()
        self._most = max(1, len(members) // 2)
        if len(members) > 1:
            self._waiting.extend(members)
        else:
            members[0].crowded = True
            self._end(members[0])

    def _leave(self) -> None:
        """Take out those that have ended; the last takes the place of each."""
        for i in reversed(range(len(self.running))):
            if (member := self.running[i]).ended:
                self._target.remove(i)
                self.running[i] = self.running[-1]
                self.running.pop()
                self._end(member)
                self._retries = True
        if not self.running:
            self._target.drop()
        elif self._retries:
            fits(self._model, self._target.refit)
