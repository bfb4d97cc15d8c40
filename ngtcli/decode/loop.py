"""The decoding loop: propose, one pass, verify, keep. Plain decoding has empty trees."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from ngtcli.decode.model import TargetModel
from ngtcli.decode.reference import scores_are_not_numbers
from ngtcli.decode.sampling import Sampler, SamplingSettings
from ngtcli.decode.stats import Statistics, Stopwatch
from ngtcli.decode.verify import verify
from ngtcli.draft.drafter import Context, Drafter, Feedback
from ngtcli.draft.tree import DraftTree
from ngtcli.errors import ContextOverflowError
from ngtcli.tokens import Detokenizer

_EMPTY = DraftTree()
OWN = "model"


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop, besides the model's end tokens; `num_draft` nodes a step at most."""

    max_tokens: int = 256
    num_draft: int = 32
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """One emitted token and the text it completed.

    `origin` is OWN for the model's own choice; an accepted draft names its source, or "draft".
    """

    id: int
    text: str
    origin: str = OWN

    @property
    def drafted(self) -> bool:
        """Whether it was an accepted draft."""
        return self.origin != OWN


@dataclass(frozen=True, slots=True)
class Step:
    """What one verify step emitted; `nodes` were drafted; `finish_reason` is "" but in the last.

    Reasons: "stop" (an end token or stop string), "length" (max_tokens), "context" (no room left).
    """

    tokens: tuple[Token, ...]
    finish_reason: str = ""
    nodes: int = 0


class TextStream:
    """Text of the tokens so far, held back while it could be the start of a stop string."""

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str]) -> None:
        self._detokenizer, self._stop = detokenizer, [s for s in stop if s]
        self._held = ""

    def push(self, token: int) -> tuple[str, bool]:
        """(text to show, whether a stop string was completed and cut off)."""
        return self._release(self._detokenizer.push(token))

    def flush(self) -> str:
        """What is left when there are no more tokens."""
        text, stopped = self._release(self._detokenizer.flush())
        return text if stopped else text + self._held

    def _release(self, text: str) -> tuple[str, bool]:
        text = self._held + text
        ends = [at for s in self._stop if (at := text.find(s)) >= 0]
        if ends:
            self._held = ""
            return text[: min(ends)], True
        longest = max((_overlap(text, s) for s in self._stop), default=0)
        self._held = text[len(text) - longest :]
        return text[: len(text) - longest], False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    return next(
        (k for k in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:k])), 0
    )


class Run:
    """One generation: iterate over it for its steps; `statistics` grows meanwhile.

    `output` holds the ids emitted, end token included. Set `cancelled` to stop between steps.
    With `split_times` the device is waited for between the parts of a step, so that
    `statistics.split_s` tells them apart even on a device that works on its own.
    `progress` is told how many ids of the prompt are read.
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
        self.cancelled = False
        self._progress = progress
        self.proposed = False  # whether the drafter was asked in the last step
        self._most = 0 if model.plain_reason else limits.num_draft  # nodes a step
        self._watch = Stopwatch(model.finish_device_work if split_times else None)
        self.statistics.split_s = self._watch.parts

    def __iter__(self) -> Iterator[Step]:
        ids = list(self.context.ids)
        stream = TextStream(Detokenizer(self.model.tokenizer), self.limits.stop)
        self._prefill(ids)
        while not self.finish_reason and not self.cancelled:
            clock = time.perf_counter()
            self._watch.start()
            tree = self._propose(ids)
            drafted = time.perf_counter()
            nodes, tokens = self._verify(ids[-1], tree)
            step, kept = self._emit(tokens, nodes, tree, stream)
            self._watch.lap("verify")
            self.model.keep(nodes)
            self._watch.lap("cache")
            self.drafter.spent(len(tree) + 1, time.perf_counter() - drafted)
            self.drafter.observe(kept)
            self._watch.lap("draft")
            ids += kept
            self.statistics.add_step(tree.drafts, min(len(nodes), len(kept)), len(kept))
            self.statistics.decode_s += time.perf_counter() - clock
            yield step

    def _prefill(self, ids: list[int]) -> None:
        clock = time.perf_counter()
        self.drafter.reset(self.context)
        self.model.start(len(ids) + self.room + self._most + 1)
        self.model.prefill(ids[:-1], progress=self._progress)
        self.statistics.prefill_s = time.perf_counter() - clock

    def _propose(self, ids: list[int]) -> DraftTree:
        """A draft no larger than the budget and no deeper than can still be emitted.

        The tree must also fit the context, with all its rows: some models keep tables with a row
        for each place in the cache. Probes, which are not emitted, may be as deep as that allows.
        """
        left = self.model.context - len(ids)
        depth, most = self.room - len(self.output) - 1, min(self._most, left)
        self.proposed = depth >= 1 and most >= 1
        if not self.proposed:
            return _EMPTY
        return self.drafter.propose(ids, most).cut(depth, most, left)

    def _verify(self, last: int, tree: DraftTree) -> tuple[tuple[int, ...], tuple[int, ...]]:
        self._watch.lap("draft")
        layout = self.model.lay_out(last, tree)
        self._watch.lap("tree")
        scores = self.model.score(layout)
        self._watch.lap("forward")
        path = verify(tree, self._chooser(scores))
        if self._most and (top_k := self.drafter.top_k):
            self._watch.lap("verify")
            self.drafter.learn(Feedback(tree, scores.topk(top_k).indices.cpu().numpy()))
            self._watch.lap("draft")
        return path.nodes, path.tokens

    def _chooser(self, scores: Tensor) -> Callable[[int, Sequence[int]], int]:
        best = self.sampler.best(scores)

        def choose(node: int, tokens: Sequence[int]) -> int:
            if best is not None:
                token = best[node + 1]
            else:
                token = self.sampler.choose(scores[node + 1], [*self.output, *tokens])
            if token < 0:
                raise scores_are_not_numbers(self.model.name)
            return token

        return choose

    def _emit(
        self, tokens: Sequence[int], nodes: Sequence[int], tree: DraftTree, stream: TextStream
    ) -> tuple[Step, list[int]]:
        """Emit tokens up to an end; what stands behind an end inside the block is dropped."""
        shown: list[Token] = []
        for i, token in enumerate(tokens):
            self.output.append(token)
            ends = token in self.model.end_ids
            text, stopped = ("", False) if ends else stream.push(token)
            origin = tree.origin(nodes[i]) if i < len(nodes) else OWN
            shown.append(Token(token, text, origin))
            self.finish_reason = self._reason(ends or stopped)
            if self.finish_reason:
                if not stopped:
                    shown[-1] = Token(token, text + stream.flush(), origin)
                break
        step = Step(tuple(shown), self.finish_reason, tree.drafts)
        return step, [t.id for t in shown]

    def _reason(self, ended: bool) -> str:
        if ended:
            return "stop"
        if len(self.output) < self.room:
            return ""
        return "length" if self.room == self.limits.max_tokens else "context"
