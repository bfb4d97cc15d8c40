"""Decoding several texts together: they join and leave between passes.

Where memory ends drafts become smaller, then fewer texts run together; those set aside wait, and
are read again when there is room. None is lost.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from ngtcli.decode.batch_drafts import Drafts
from ngtcli.decode.batch_target import BatchTarget, Root
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.drafting import Path, verify
from ngtcli.decode.memory_limits import fits, read_prompt, too_long
from ngtcli.decode.model import TargetModel
from ngtcli.decode.steps import Step, Stopwatch
from ngtcli.draft.drafter import Context
from ngtcli.draft.origins import PolicyReport
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import NgtError

# Texts that run together unless a number is wished; memory may allow fewer. Measured (built-in
# model, 200 documents, one thread, `auto`): 1, 4, 16 and 64 give 197, 345, 365 and 360 tokens for a
# second of the processor, and 64 take more than twice the memory of 16.
MOST = 16
_AHEAD = 512  # tokens of output that there is room for at first; guess: more than most answers have
_NOTHING = Path((), ())


@dataclass(frozen=True, slots=True)
class Begun:
    """A text to be continued; `given` is what the caller knows it by."""

    given: Any
    text: Continuation
    context: Context


@dataclass(slots=True, eq=False)
class Member:
    """One text of a batch, and its drafter's handle. `error` is what it ended with, if it did.

    One that is `crowded` was left off, as memory does not suffice even for it alone beside what a
    batch needs; a run of its own may need less.
    """

    given: Any
    text: Continuation
    handle: Any
    steps: list[Step] = field(default_factory=list)
    policy: PolicyReport | None = None  # what the drafter reports at the end
    error: NgtError | None = None
    crowded: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.error is not None or bool(self.text.finish_reason)


class Batch:
    """At most `size` texts run together; 0: as many as memory allows, `MOST` at most.

    `progress` is told how many ids of how many are read of a prompt. A text's statistics have its
    share of each step's seconds, in proportion to its rows of the pass, so those of all texts add
    up to what the steps took.
    """

    def __init__(
        self,
        model: TargetModel,
        drafts: Drafts,
        size: int,
        progress: Callable[[int, int], object] = lambda read, total: None,
    ) -> None:
        self.running: list[Member] = []  # in the order of the target's sequences
        self._waiting: deque[Member] = deque()
        self._ended: list[Member] = []
        self._model, self._drafts, self._progress = model, drafts, progress
        self._most = size or MOST
        self._target = BatchTarget(model, self._most)
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

    def add(self, begun: Begun) -> list[Member]:
        """Go on with a text; returns it if it has ended at once."""
        self._join(Member(begun.given, begun.text, self._drafts.start(begun.context)))
        return self._take_ended()

    def step(self) -> list[Member]:
        """Read those that wait, if there is room, and do one pass; returns those that ended."""
        self._retries |= not self.running
        while self._retries and self._waiting and self._has_room:
            self._join(self._waiting.popleft())
        if self.running:
            self._pass()
            self._leave()
        return self._take_ended()

    def _join(self, member: Member) -> None:
        """Let a text run. It waits where memory does not suffice beside others."""
        self._target.size = self._most
        error = self._read(member)
        if error is not None and not self.running:  # what is held for others is of no use
            self._target.drop()
            self._target.size = 1
            error = self._read(member)
        self._retries = error is None
        if error is None:
            self.running.append(member)
        elif self.running:
            self._waiting.appendleft(member)
        else:
            member.crowded = True
            self._end(member)

    def _read(self, member: Member) -> NgtError | None:
        """Read a text; why that is not possible, if it is not."""
        clock, text, target = time.perf_counter(), member.text, self._target
        total = len(text.ids)
        ahead = min(text.most, total + _AHEAD) + self._drafts.most + 1
        places = min(ahead, self._model.context)
        if self.running and not fits(self._model, partial(target.reserve, places)):
            return too_long(total)
        try:
            read_prompt(self._model, text.ids[:-1], total, lambda at: self._progress(at, total))
        except NgtError as error:
            return error
        if not fits(self._model, partial(target.take, places)):
            return too_long(total)
        text.statistics.prefill_s += time.perf_counter() - clock
        return None

    def _end(self, member: Member) -> None:
        member.policy = self._drafts.report(member.handle)
        self._drafts.finish(member.handle)
        self._ended.append(member)

    def _take_ended(self) -> list[Member]:
        ended, self._ended = self._ended, []
        return ended

    def _pass(self) -> None:
        """From the drafts to what is learned from their outcome."""
        watch = Stopwatch()
        with watch("draft"):
            handles = [member.handle for member in self.running]
            trees = self._drafts.propose(handles, [member.text for member in self.running])
        drafting_s = watch.elapsed_s
        scored = self._score(trees, watch)
        if scored is None:
            return
        trees, scores = scored
        with watch("verify"):
            paths = [*map(self._verified, self.running, trees, scores)]
        with watch("draft"):
            for handle, tree, rows in zip(handles, trees, scores, strict=True):
                self._drafts.learn(handle, tree, rows)
        with watch("cache"):
            self._target.keep([path.rows for path in paths])
        with watch("draft"):
            rows_in_all = sum(map(len, scores))
            self._drafts.spent(rows_in_all, watch.elapsed_s - drafting_s)
            self._learn_tokens(paths)
        for member, rows in zip(self.running, scores, strict=True):
            _count_time(member, watch, len(rows) / rows_in_all)

    def _score(
        self, trees: list[DraftTree], watch: Stopwatch
    ) -> tuple[list[DraftTree], list[Tensor]] | None:
        """The trees, cut where memory ends, and their scores; None where even that is too much."""
        found: list[list[Tensor]] = []

        def work() -> None:
            roots = [Root(m.text.ids[-1], t) for m, t in zip(self.running, trees, strict=True)]
            with watch("forward"):
                found.append(self._target.score(roots))

        while not fits(self._model, work):
            largest = max(tree.drafts for tree in trees)
            if not largest:
                self._set_aside()
                return None
            self._drafts.most = largest // 2
            trees = [tree.cut(len(tree), largest // 2, 0) for tree in trees]
        return trees, found[0]

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

    def _verified(self, member: Member, tree: DraftTree, scores: Tensor) -> Path:
        """The accepted path, its tokens emitted; nothing where scores are not numbers."""
        text = member.text
        chosen = text.sampler.choose_all(scores, [0, *tree.depths()])
        try:
            path = verify(tree, text.chooser(scores, chosen))
        except NgtError as error:
            member.error = error
            return _NOTHING
        member.steps.append(text.emit(path, tree))
        return path

    def _learn_tokens(self, paths: Sequence[Path]) -> None:
        """Give the drafters the emitted tokens, and count the steps."""
        going = [(m, p) for m, p in zip(self.running, paths, strict=True) if m.error is None]
        emitted = [[token.id for token in m.steps[-1].tokens] for m, _ in going]
        self._drafts.observe([m.handle for m, _ in going], emitted)
        for member, path in going:
            member.text.commit(member.steps[-1], len(path.rows))

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


def _count_time(member: Member, watch: Stopwatch, share: float) -> None:
    statistics = member.text.statistics
    statistics.decode_s += share * watch.elapsed_s
    for part, seconds in watch.parts.items():
        statistics.split_s[part] += share * seconds
