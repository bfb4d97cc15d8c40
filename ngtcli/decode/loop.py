"""The decoding loop: draft, one pass, verify, commit. Plain decoding has empty drafts."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from torch import Tensor

from ngtcli.decode.drafting import Drafting
from ngtcli.decode.exact import ExactDrafting
from ngtcli.decode.memory_limits import fits, read_prompt, too_long
from ngtcli.decode.model import TargetModel
from ngtcli.decode.reference import scores_are_not_numbers
from ngtcli.decode.sampling import Sampler, SamplingSettings
from ngtcli.decode.stats import Statistics, Stopwatch
from ngtcli.decode.steps import OWN, Limits, Step, Token
from ngtcli.decode.text_stream import TextStream
from ngtcli.decode.verify import Path
from ngtcli.draft.drafter import Context, Drafter
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import ContextOverflowError
from ngtcli.tokens.tokenizer import Detokenizer


class Run:
    """One generation: iterate over it for its steps, or `finish` it; `statistics` grows meanwhile.

    `output` holds the ids emitted, end token included. With `split_times` the device is waited for
    between the parts of a step, so that `statistics.split_s` tells them apart on an asynchronous
    device, too. `progress` is told how many ids of the prompt are read.
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
        if not len(context.ids):
            raise ContextOverflowError("the prompt is empty", "Give some text.")
        if len(context.ids) >= model.context:
            raise ContextOverflowError(
                f"the prompt has {len(context.ids)} tokens, the model takes {model.context - 1}",
                model.context_reason or "Shorten the prompt.",
            )
        self.model, self.drafter, self.context, self.limits = model, drafter, context, limits
        self.sampler = Sampler(sampling, context.ids)
        self.room = min(limits.max_tokens, model.context - len(context.ids))
        self.output: list[int] = []
        self.statistics = Statistics(prompt_tokens=len(context.ids))
        self.finish_reason = ""
        self._ids = list(context.ids)  # prompt and output
        self._text = TextStream(Detokenizer(model.tokenizer), limits.stop)
        self._progress = progress
        self._drafting = _drafting(model, drafter, context, limits)
        self._watch = Stopwatch(model.finish_device_work if split_times else None)
        self.statistics.split_s = self._watch.parts

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
        rows, room = self._drafting.rows, len(self._ids) + self.room
        room += 0 if rows else self.limits.num_draft + 1
        read_prompt(self.model, self._ids[:-1], room, self._progress, rows=rows)
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
            step = self._emit(path, tree)
        with watch("draft"):
            self._drafting.learn(tree, scores)
        with watch("cache"):
            self.model.keep(path.rows)
        with watch("draft"):
            if not self.model.passes.first_use:
                rows = self._drafting.rows or len(tree) + 1
                self.drafter.spent(rows, watch.elapsed_s - drafting_s)
            self._learn_tokens(step, len(path.rows))
        self.statistics.decode_s += watch.elapsed_s
        return step

    def _score(self, tree: DraftTree) -> tuple[DraftTree, Tensor]:
        """The scores of a draft. Where memory ends it is cut, and none to come is larger."""
        scores: list[Tensor] = []

        def work() -> None:
            with self._watch("tree"):
                layout = self.model.lay_out(self._ids[-1], tree)
            with self._watch("forward"):
                scores.append(self.model.score(layout))

        while not fits(self.model, work):
            smaller = self._drafting.halve(tree)
            if smaller is None:
                raise too_long(len(self._ids))
            tree = smaller
        return tree, scores[0]

    def _propose(self) -> DraftTree:
        """A draft that fits the context, no deeper than can still be emitted."""
        left = self.model.context - len(self._ids)
        return self._drafting.propose(self._ids, self.room - len(self.output) - 1, left)

    def _learn_tokens(self, step: Step, accepted: int) -> None:
        """Give the drafter the emitted tokens, and count the step."""
        emitted = [token.id for token in step.tokens]
        self._drafting.observe(emitted)
        self.sampler.commit(emitted)
        self._ids += emitted
        self.statistics.add_step(step.nodes, min(accepted, len(emitted)), len(emitted))

    def _chooser(self, scores: Tensor, tree: DraftTree) -> Callable[[int, Sequence[int]], int]:
        chosen = self.sampler.choose_all(*self._drafting.padded(scores, [0, *tree.depths()]))

        def choose(node: int, tokens: Sequence[int]) -> int:
            if chosen is not None:
                token = chosen[node + 1]
            else:
                token = self.sampler.choose(scores[node + 1], tokens)
            if token < 0:
                raise scores_are_not_numbers(self.model.name)
            return token

        return choose

    def _emit(self, path: Path, tree: DraftTree) -> Step:
        """Emit the path's tokens up to an end; tokens behind an end are dropped."""
        shown: list[Token] = []
        for i, token in enumerate(path.tokens):
            self.output.append(token)
            ends = token in self.model.end_ids
            text, stopped = ("", False) if ends else self._text.push(token)
            origin = tree.origin(path.nodes[i]) if i < len(path.nodes) else OWN
            shown.append(Token(token, text, origin))
            self.finish_reason = self._reason(ends or stopped)
            if self.finish_reason:
                if not stopped:
                    shown[-1] = Token(token, text + self._text.flush(), origin)
                break
        return Step(tuple(shown), self.finish_reason, tree.drafts)

    def _reason(self, ended: bool) -> str:
        if ended:
            return "stop"
        if len(self.output) < self.room:
            return ""
        return "length" if self.room == self.limits.max_tokens else "context"


def _drafting(model: TargetModel, drafter: Drafter, context: Context, limits: Limits) -> Drafting:
    """Exact where the rows are given. A model that decodes plainly is exact without."""
    if context.rows is not None and not model.plain_reason:
        return ExactDrafting(drafter, context.rows, context.ids)
    return Drafting(drafter, 0 if model.plain_reason else limits.num_draft)
