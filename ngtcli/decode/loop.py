"""The decoding loop: draft, one pass, verify, commit. Plain decoding has empty drafts."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from torch import Tensor

from ngtcli.decode.continuation import Continuation
from ngtcli.decode.drafting import Drafting
from ngtcli.decode.exact import ExactDrafting
from ngtcli.decode.memory_limits import fits, read_prompt, too_long
from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits, Statistics, Step, Stopwatch
from ngtcli.draft.drafter import Context, Drafter
from ngtcli.draft.tree import DraftTree


class Run:
    """One generation: iterate over it for its steps, or `finish` it; `statistics` grows meanwhile.

    With `split_times` the device is waited for between the parts of a step, so that
    `statistics.split_s` has the time of each on an asynchronous device, too. `progress` is told how
    many ids of the prompt are read.
    Raises ContextOverflowError when the prompt leaves no room for a single token.
    """

    def __init__(
        self,
        model: TargetModel,
        drafter: Drafter,
        context: Context,
        sampling: SamplingSettings,
        limits: Limits,
        split_times: bool = False,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.model, self.drafter, self.context, self.limits = model, drafter, context, limits
        self._text = Continuation(model, context, sampling, limits)
        self._progress = progress
        self._drafting = _drafting(model, drafter, context, limits)
        self._watch = Stopwatch(model.finish_device_work if split_times else None)
        self.statistics.split_s = self._watch.parts

    @property
    def output(self) -> list[int]:
        """The ids emitted, end token included."""
        return self._text.output

    @property
    def statistics(self) -> Statistics:
        """What the run has done so far."""
        return self._text.statistics

    @property
    def finish_reason(self) -> str:
        """Why the run has ended, as in its last step; "" before."""
        return self._text.finish_reason

    @property
    def proposed(self) -> bool:
        """Whether the drafter was queried in the last step."""
        return self._drafting.proposed

    @property
    def rows(self) -> int | None:
        """What every pass has; None where that depends on the drafts."""
        return 1 if self.model.plain_reason else self._drafting.rows

    @property
    def exact(self) -> bool:
        """Whether, in any dtype, the tokens do not depend on what is drafted."""
        return self.rows is not None

    def __iter__(self) -> Iterator[Step]:
        self._prefill()
        try:
            while not self.finish_reason:
                yield self._step()
        finally:
            self._drafting.end()

    def finish(self) -> Self:
        """Run all steps; the run itself."""
        for _ in self:
            pass
        return self

    def _prefill(self) -> None:
        clock = time.perf_counter()
        self.drafter.reset(self.context)
        rows, room = self._drafting.rows, self._text.most
        room += 0 if rows else self.limits.num_draft + 1
        read_prompt(self.model, self._text.ids[:-1], room, self._progress, rows=rows)
        self.statistics.prefill_s = time.perf_counter() - clock

    def _step(self) -> Step:
        """One step, from the draft to what is learned from its outcome; each part is timed."""
        watch = self._watch
        watch.start()
        with watch("draft"):
            tree = self._propose()
        drafting_s = watch.elapsed_s
        tree, scores = self._score(tree)
        with watch("verify"):
            path = self._drafting.verify(tree, self._chooser(scores, tree))
            step = self._text.emit(path, tree)
        with watch("draft"):
            self._drafting.learn(tree, scores)
        with watch("cache"):
            self.model.keep(path.rows)
        with watch("draft"):
            if not self.model.passes.first_use:
                rows = self._drafting.rows or len(tree) + 1
                self.drafter.spent(rows, watch.elapsed_s - drafting_s)
            self._drafting.observe([token.id for token in step.tokens])
            self._text.commit(step, len(path.rows))
        self.statistics.decode_s += watch.elapsed_s
        return step

    def _score(self, tree: DraftTree) -> tuple[DraftTree, Tensor]:
        """The scores of a draft. Where memory ends it is cut, and none to come is larger."""
        scores: list[Tensor] = []

        def work() -> None:
            with self._watch("tree"):
                layout = self.model.lay_out(self._text.ids[-1], tree)
            with self._watch("forward"):
                scores.append(self.model.score(layout))

        while not fits(self.model, work):
            smaller = self._drafting.halve(tree)
            if smaller is None:
                raise too_long(len(self._text.ids))
            tree = smaller
        return tree, scores[0]

    def _propose(self) -> DraftTree:
        """A draft that fits the context, no deeper than can still be emitted."""
        return self._drafting.propose(self._text.ids, self._text.depth, self._text.left)

    def _chooser(self, scores: Tensor, tree: DraftTree) -> Callable[[int, Sequence[int]], int]:
        padded = self._drafting.padded(scores, [0, *tree.depths()])
        return self._text.chooser(scores, self._text.sampler.choose_all(*padded))


def _drafting(model: TargetModel, drafter: Drafter, context: Context, limits: Limits) -> Drafting:
    """Exact where the rows are given. A model that decodes plainly is exact without."""
    if context.rows is not None and not model.plain_reason:
        return ExactDrafting(drafter, context.rows, context.ids)
    return Drafting(drafter, 0 if model.plain_reason else limits.num_draft)
