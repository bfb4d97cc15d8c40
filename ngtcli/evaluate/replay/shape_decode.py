"""The decoding loop over a recording: its passes are real, its choices are the recorded ones."""

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits
from ngtcli.draft.drafter import Context, Drafter
from ngtcli.draft.tree import DraftTree
from ngtcli.evaluate.replay.traces import Trace

_END = -1  # what follows the last recorded token: no draft has it
_GREEDY = SamplingSettings()


class RecordedRun(Run):
    """A run whose tokens are those of a trace. Otherwise each step does what it always does.

    Scores are computed and reduced to choices as in greedy decoding; then the recorded tokens take
    the place of the choices. Best ids of each row are computed for a drafter that asks for them,
    but not given to it: they are of random weights. The prompt is in the model's cache already:
    `statistics.prefill_s` is the time to start the drafter.
    """

    def __init__(
        self,
        model: TargetModel,
        drafter: Drafter,
        context: Context,
        trace: Trace,
        num_draft: int,
    ) -> None:
        limits = Limits(trace.room, num_draft)
        super().__init__(model, drafter, context, _GREEDY, limits)
        self._recorded = trace.output_ids
        self.undrafted = 0

    def _prefill(self) -> None:
        clock = time.perf_counter()
        self.drafter.reset(self.context)
        self.statistics.prefill_s = time.perf_counter() - clock

    def _propose(self) -> DraftTree:
        tree = super()._propose()
        self.undrafted += not tree.drafts
        return tree

    def _chooser(self, scores: Tensor) -> Callable[[int, Sequence[int]], int]:
        super()._chooser(scores)

        def choose(node: int, tokens: Sequence[int]) -> int:
            at = len(self.output) + len(tokens)
            return self._recorded[at] if at < len(self._recorded) else _END

        return choose

    def _learn_scores(self, tree: DraftTree, scores: Tensor) -> None:
        if self._most and (top_k := self.drafter.top_k):
            scores.topk(top_k).indices.cpu()

    def _reason(self, ended: bool) -> str:
        return "stop" if len(self.output) >= len(self._recorded) else ""
