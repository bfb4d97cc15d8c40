"""The decoding loop over a recording: its passes are real, its choices are the recorded ones."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from ngtcli.decode.continuation import Continuation
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits
from ngtcli.draft.drafter import Context, Drafter, Feedback
from ngtcli.draft.origins import PolicyReport
from ngtcli.draft.tree import DraftTree
from ngtcli.measure.replay.traces import Trace

_END = -1  # what follows the last recorded token: no draft has it
_GREEDY = SamplingSettings()


class Unscored(Drafter):
    """A drafter that is given no scores. The loop computes the best ids that it asks for anyway."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.origins = inner.origins

    @property
    def top_k(self) -> int:  # type: ignore[override]  # elsewhere it is a plain number
        """What the drafter asks for."""
        return self._inner.top_k

    def reset(self, context: Context) -> None:
        self._inner.reset(context)

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        return self._inner.propose(ids, budget)

    def observe(self, tokens: Sequence[int]) -> None:
        self._inner.observe(tokens)

    def learn(self, feedback: Feedback) -> None:
        pass

    def spent(self, rows: int, seconds: float) -> None:
        self._inner.spent(rows, seconds)

    def finish(self) -> None:
        self._inner.finish()

    def report(self) -> PolicyReport | None:
        return self._inner.report()


class RecordedText(Continuation):
    """A text whose tokens are those of a trace, whatever the scores are."""

    def __init__(self, model: TargetModel, context: Context, trace: Trace, limits: Limits) -> None:
        super().__init__(model, context, _GREEDY, limits)
        self._recorded = trace.output_ids

    def chooser(self, *scored: Any) -> Callable[[int, Sequence[int]], int]:
        def choose(node: int, tokens: Sequence[int]) -> int:
            at = len(self.output) + len(tokens)
            return self._recorded[at] if at < len(self._recorded) else _END

        return choose

    def _reason(self, ended: bool, repeats: bool) -> str:
        return "stop" if len(self.output) >= len(self._recorded) else ""


class RecordedRun(Run):
    """A run whose tokens are those of a trace. Otherwise each step does what it always does.

    Scores are computed and reduced to choices as in greedy decoding; then the recorded tokens take
    the place of the choices. The scores are of random weights, so the drafter is given none. The
    prompt is in the model's cache already: `statistics.prefill_s` is the time to start the drafter.
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
        super().__init__(model, Unscored(drafter), context, _GREEDY, limits)
        self._text = RecordedText(model, context, trace, limits)
        self.statistics.split_s = self._watch.parts

    def _prefill(self) -> None:
        clock = time.perf_counter()
        self.drafter.reset(self.context)
        self.statistics.prefill_s = time.perf_counter() - clock
