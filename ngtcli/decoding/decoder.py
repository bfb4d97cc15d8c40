"""The decoding loop: draft, one pass, verify, commit, for one text or several.

Plain decoding has empty drafts. Texts join and leave between passes; each has a region of the
model's cache (kv_cache.py). One text alone, in the first region, is what passes are captured for,
what can be exact, and what heads read. Where memory ends drafts become smaller, then fewer texts
run together; those set aside wait, and are read again when there is room. None is lost.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ngtcli.decoding.continuation import Continuation
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.kv_cache import Keeping
from ngtcli.decoding.memory_limits import fits, read_prompt, too_long
from ngtcli.decoding.model import TargetModel
from ngtcli.decoding.scores import as_guesses, highest, likeliest
from ngtcli.decoding.sizes import capacity_for
from ngtcli.drafting.drafter import Context, Drafters, Outcome
from ngtcli.drafting.guesses import Guessed
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.steps import Step, Stopwatch
from ngtcli.drafting.tree import ROOT, DraftTree, Path, verify
from ngtcli.errors import ContextOverflowError, ModelError, NgtError
from ngtcli.system.machine import free_memory

# Texts that run together unless a number is wished; memory may allow fewer. Measured (built-in
# model, 200 documents, one thread, `auto`): 1, 4, 16 and 64 give 197, 345, 365 and 360 tokens for a
# second of the processor, and 64 take more than twice the memory of 16.
MOST = 16
_AHEAD = 512  # tokens of output that there is room for at first; guess: more than most answers have
# Of the memory that is free, so much is for the cache of several texts. Guess: the rest is for
# scores and what else the machine does.
_SHARE = 0.5
# Steps after which the free memory is looked up again, while no text comes or goes. Guess: to look
# it up takes up to 10 ms on a busy machine.
_LOOKS_AFTER = 64
_NOTHING = Path((), ())


@dataclass(slots=True, eq=False)
class Member:
    """A text that is decoded; `given` is what the caller knows it by.

    `keeping` says what is kept of its prompt, None: nothing. `places` of the cache were promised to
    it. `steps` are those that it has done, `policy` is what its drafter reports at the end, `error`
    what it ended with, if it did.
    """

    given: Any
    text: Continuation
    context: Context
    keeping: Keeping | None = None
    drafter: Any = None
    places: int = 0
    steps: list[Step] = field(default_factory=list)
    policy: PolicyReport | None = None
    error: NgtError | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.error is not None or bool(self.text.finish_reason)


class Decoder:
    """Decodes up to `size` texts together; 0: as many as memory allows, `MOST` at most.

    `progress` is called with how many ids of how many are read of a prompt. A text's statistics
    have its share of a step's seconds, in proportion to its rows of the pass, so those of all texts
    add up to what the steps took. With `split_times` the device is waited for between the parts of
    a step, so that `split_s` has the time of each on an asynchronous device, too.
    """

    def __init__(
        self,
        model: TargetModel,
        drafters: Drafters[Any],
        size: int = 1,
        progress: Callable[[int, int], object] = lambda read, total: None,
        split_times: bool = False,
        numerics: Numerics = NOT_EXACT,
    ) -> None:
        self.running: list[Member] = []  # in the order of their regions
        self._waiting: deque[Member] = deque()
        self._ended: list[Member] = []
        self._model, self._drafters, self._progress = model, drafters, progress
        self._most, self._is_alone = size or MOST, size == 1
        self._numerics = numerics  # of one text
        self._wait = model.finish_device_work if split_times else None
        self._retries = False  # whether memory may have become free for one that waits
        self._free: int | None = None  # bytes that were free when they were looked up last
        self._fresh = 0  # steps for which that counts

    # --- texts that come and go ---

    @property
    def takes_more(self) -> bool:
        """Whether another text may be added now."""
        return not self._waiting and self._has_room

    @property
    def _has_room(self) -> bool:
        count = len(self.running)
        if not count or count >= self._most:
            return not count
        return count < max(len(self._model.cache.regions), self._allowed(self._needed))

    @property
    def done(self) -> bool:
        """Whether no text is left."""
        return not self.running and not self._waiting

    def add(self, member: Member) -> list[Member]:
        """Begin a text, or go on with it; returns it if it has ended at once."""
        clock = time.perf_counter()
        if not fits(self._model, partial(self._begin, member)):
            member.error = too_long(len(member.text.ids))
            self._ended.append(member)
            return self._take_ended()
        try:
            self._join(member, clock)
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
            self._retries = True  # a smaller one behind it may have room
        self._leave()
        return self._take_ended()

    def step(self) -> list[Member]:
        """Read those that wait, if there is room, and do one pass; returns those that ended."""
        self._retries |= not self.running
        while self._retries and self._waiting and self._has_room:
            self._join(self._waiting.popleft(), time.perf_counter())
        if self.running:
            self._fresh = max(0, self._fresh - 1)
            if not self._advance():
                self._set_aside()
            self._leave()
        return self._take_ended()

    def share(self, drafters: Drafters[Any], size: int) -> None:
        """Let up to `size` texts run, of which there was one; `drafters` are for all of them.

        Where that raises, all is as it was.
        """
        before, (member,) = (self._drafters, self._most, self._is_alone), self.running
        alone, context = member.drafter, member.context
        try:
            self._drafters, self._most, self._is_alone = drafters, size or MOST, False
            member.context = replace(context, free_nodes=False, probes_count=False)
            self._begin(member)
        except BaseException:
            self._drafters, self._most, self._is_alone = before
            member.drafter, member.context = alone, context
            raise
        before[0].end()
        alone.close(keep=False)
        before[0].finish(alone)
        self._numerics = NOT_EXACT
        self._model.use_any_rows()

    def close(self) -> None:
        """No more steps come."""
        self._drafters.end()
        for member in (*self.running, *self._waiting):
            self._end(member)

    def _begin(self, member: Member) -> None:
        member.drafter = self._drafters.start(member.context)
        if member.text.output:
            self._drafters.observe([member.drafter], [member.text.output])

    def _join(self, member: Member, clock: float) -> None:
        """Let a text run. It waits where memory does not suffice for it with the others."""
        error = self._read(member, clock)
        self._retries, self._fresh = error is None, 0
        if error is None:
            self.running.append(member)
        elif self.running:
            self._waiting.appendleft(member)
        else:
            member.error = error
            self._end(member)

    def _read(self, member: Member, clock: float) -> NgtError | None:
        """Read a text behind those that run; the error where memory does not suffice.

        The seconds since `clock` are those of its prompt.
        """
        text, model = member.text, self._model
        total, beside = len(text.ids), len(self.running)
        ahead = text.most if self._is_alone else min(text.most, total + _AHEAD)
        places = ahead if self._numerics.is_exact else ahead + self._drafters.most + 1
        member.places = min(places, model.context)
        if beside and not self._fits(member.places, 1):
            return too_long(total)
        more: dict[str, Any] = {"keeping": member.keeping, "beside": beside}
        more["numerics"] = self._numerics
        if self._is_alone:
            more["reader"] = member.drafter.heads
        try:
            read_prompt(model, text.ids[:-1], places, lambda at: self._progress(at, total), **more)
        except (ContextOverflowError, ModelError) as error:
            return error
        text.statistics.add_prefill(time.perf_counter() - clock, model.reused)
        return None

    def _end(self, member: Member) -> None:
        member.policy = self._drafters.report(member.drafter)
        self._drafters.finish(member.drafter)
        self._ended.append(member)

    def _take_ended(self) -> list[Member]:
        ended, self._ended = self._ended, []
        return ended

    def _set_aside(self) -> None:
        """Half as many texts will run, and all are read again; one alone ends."""
        members, self.running = self.running, []
        if len(members) == self._most == 1:
            members[0].error = too_long(len(members[0].text.ids))
            self._end(members[0])
            return
        self._model.close(0, 0)
        self._most, self._fresh = max(1, len(members) // 2), 0
        self._waiting.extend(members)

    def _leave(self) -> None:
        """Take out those that have ended; the last takes the place of each."""
        model = self._model
        for at in reversed(range(len(self.running))):
            if not (member := self.running[at]).ended:
                continue
            if self._most > 1:
                self._keep_prompt(at)
            self.running[at] = self.running[-1]
            self.running.pop()
            model.close(at, len(self.running))
            self._retries, self._fresh = True, 0
            if not self.running:
                self._drafters.end()
            self._end(member)

    def _keep_prompt(self, at: int) -> None:
        """Keep what was read of the prompt of a text beside others, whose slot is about to go."""
        model = self._model
        if model.prefixes and len(model.cache.regions) > 1:
            fits(model, partial(model.prefixes.keep, model.cache, model.cache.regions[at]))

    def close_slots(self) -> None:
        """Give the cache back, as the texts go on elsewhere; their prompts are kept if they fit.

        No slot may stay: a text that begins alone gets the first one, over what others had there.
        """
        try:
            for at in reversed(range(len(self.running))):
                self._keep_prompt(at)
                self._model.close(at, at)
        except Exception:  # whatever a device raises that has just failed
            for region in self._model.cache.regions:
                region.chunks.clear()  # none is relied on

    # --- room for several ---

    @property
    def _needed(self) -> int:
        """Places that each text needs, as regions are equally large."""
        regions = self._model.cache.regions[: len(self.running)]
        return max(
            max(member.places, region.length)
            for member, region in zip(self.running, regions, strict=True)
        )

    def _allowed(self, places: int) -> int:
        """How many texts of so many places the free memory allows; all if it is not known."""
        cache, places = self._model.cache, capacity_for(places)
        if not self._fresh:
            self._free, self._fresh = free_memory(str(self._model.device)), _LOOKS_AFTER
        free, each = self._free, cache.bytes_of(1)
        if free is None or not each:
            return max(self._most, len(self.running) + 1)
        return max(int(_SHARE * free) // (each * places), cache.capacity // places * cache.stay)

    def _fits(self, places: int, more: int = 0) -> bool:
        """Make room for `more` texts, and so many places of each; False where memory is short."""
        cache, count = self._model.cache, len(self.running) + more
        if places <= cache.places and count <= len(cache.regions):
            return True
        places = capacity_for(max(places, self._needed))
        self._fresh = 0
        most = self._allowed(places)
        self._fresh = 0  # buffers will take some of it
        if count > max(1, most):
            return False
        room = max(count, min(self._most, most))
        return fits(self._model, partial(self._model.resize, room, places))

    # --- a step ---

    def _advance(self) -> bool:
        """One step, from the drafts to what is learned from their outcome.

        False, and nothing is done, where memory does not suffice even without drafts.
        """
        watch, drafters, members = Stopwatch(self._wait), self._drafters, self.running
        with watch("draft"):
            drafts = self._propose()
        if drafts is None:
            return False
        drafting_s = watch.elapsed_s
        scored = self._score(drafts, watch)
        if scored is None:
            return False
        trees, scores = scored
        with watch("verify"):
            read = self._read_scores(trees, scores)
            paths = [*map(self._emit, members, trees, scores, read[::2])]
        with watch("draft"):
            for member, tree, rows, top, path in zip(
                members, trees, scores, read[1::2], paths, strict=True
            ):
                self._learn(member, tree, rows, top, path.nodes[-1] if path.nodes else ROOT)
        with watch("cache"):
            self._model.keep(*(path.rows for path in paths))
        rows_in_all = sum(map(len, scores))
        with watch("draft"):
            if not self._model.took_longer:
                drafters.spent(self._numerics.padded(rows_in_all), watch.elapsed_s - drafting_s)
            going = [(m, path) for m, path in zip(members, paths, strict=True) if m.error is None]
            if going:
                emitted = [[token.id for token in m.steps[-1].tokens] for m, _ in going]
                drafters.observe([m.drafter for m, _ in going], emitted)
            for member, path in going:
                member.text.commit(member.steps[-1], len(path.rows))
        for member, rows in zip(members, scores, strict=True):
            member.text.statistics.add_time(watch, len(rows), rows_in_all)
        return True

    def _propose(self) -> list[DraftTree] | None:
        """A draft for each text; None where memory does not suffice.

        Before, drafts are halved down to none, as a draft model or heads need memory, too.
        """
        drafters, model, drafts = self._drafters, self._model, list[DraftTree]()

        def work() -> None:
            members = self.running
            drafts[:] = drafters.propose([m.drafter for m in members], [m.text for m in members])

        while not fits(model, work):
            if not drafters.most:
                return None
            drafters.most //= 2
            if model.reader is not None:  # what it has of the rows is not known, and takes memory
                model.reader.reset(model.length)
        return drafts

    def _score(
        self, trees: list[DraftTree], watch: Stopwatch
    ) -> tuple[list[DraftTree], list[Tensor]] | None:
        """The trees and their scores; None where memory does not suffice.

        Before, drafts are cut to half their nodes, and none to come is larger. In an exact run they
        are not: its capacity is that of the largest, often its rows are too.
        """
        model, found = self._model, list[list[Tensor]]()

        def work() -> None:
            with watch("tree"):
                roots = [(m.text.ids[-1], t) for m, t in zip(self.running, trees, strict=True)]
                layout = model.lay_out(roots)
            with watch("forward"):
                found.append(model.score(layout))

        while not (self._has_places(trees) and fits(model, work)):
            if self._numerics.is_exact or not any(map(len, trees)):
                return None
            self._drafters.most = max(tree.drafts for tree in trees) // 2
            trees = [tree.cut(len(tree), self._drafters.most, 0) for tree in trees]
        return trees, found[0]

    def _has_places(self, trees: Sequence[DraftTree]) -> bool:
        """Whether the cache has, or gets, room for several texts and their trees."""
        if len(trees) == 1:
            return True
        regions = self._model.cache.regions[: len(trees)]
        each = self._model.rows_of(trees)
        lengths = [
            one.length + (each or len(tree) + 1) for one, tree in zip(regions, trees, strict=True)
        ]
        return self._fits(max(lengths))

    def _read_scores(
        self, trees: Sequence[DraftTree], scores: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """For each text the tokens chosen in its rows, if at once, and the best ids of each row.

        There are the latter where its drafter asks for them. All are read from the device at once.
        """
        found = list[Tensor | None]()
        for member, tree, rows in zip(self.running, trees, scores, strict=True):
            found.append(member.text.choices(self._padded(rows), tree))
            top_k = self._drafters.top_k(member.drafter)
            asks = self._drafters.most and (top_k or tree.probes)
            found.append(highest(rows, top_k)[1] if asks else None)
        return on_host(found)

    def _emit(self, member: Member, tree: DraftTree, scores: Tensor, chosen: Tensor | None) -> Path:
        """The accepted path, its tokens emitted; nothing where scores are not numbers."""
        text, tokens = member.text, None if chosen is None else chosen.tolist()
        try:
            path = self._drafters.accept(tree, verify(tree, text.chooser(scores, tokens)))
            member.steps.append(text.emit(path, tree))
        except NgtError as error:
            member.error = error
            return _NOTHING
        return path

    def _padded(self, scores: Tensor) -> Tensor:
        """As many rows for any draft: a GPU may add up one row in another order than several."""
        missing = self._numerics.min_rows - len(scores)
        if scores.device.type == "cpu" or missing < 1:
            return scores
        return torch.cat([scores, scores[:1].expand(missing, -1)])

    def _learn(
        self, member: Member, tree: DraftTree, scores: Tensor, top: Tensor | None, stop: int
    ) -> None:
        """Give the drafter the best ids of each row, `top`, if it asks for them."""
        if top is None or member.error is not None:
            return

        def after(nodes: Sequence[int]) -> Guessed:
            return as_guesses(*likeliest(scores[[node + 1 for node in nodes]]))

        self._drafters.learn(member.drafter, Outcome(tree, top.numpy(), stop, after))


def on_host(found: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Tensors of one dtype in the memory of the host, which one copy brings there."""
    there = [one for one in found if one is not None and one.device.type != "cpu"]
    if not there:
        return list(found)
    whole = there[0].flatten() if len(there) == 1 else torch.cat([one.flatten() for one in there])
    parts = iter(torch.split(whole.cpu(), [one.numel() for one in there]))
    return [
        one if one is None or one.device.type == "cpu" else next(parts).view(one.shape)
        for one in found
    ]
