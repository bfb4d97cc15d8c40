"""Who takes part in a replay with real passes: our loop with a method, and `transformers`."""

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from ngtcli.config import Settings
from ngtcli.decode.model import TargetModel
from ngtcli.draft.costs import Costs
from ngtcli.draft.drafter import Context, DraftSettings, draft_settings
from ngtcli.draft.pool import TOKENS, Pool
from ngtcli.draft.registry import MethodSpec, parse_method
from ngtcli.errors import NgtError
from ngtcli.measure.contestants import AGAINST, BASELINE, decoded
from ngtcli.measure.recorded_run import RecordedRun, generate_recorded
from ngtcli.measure.records import Answering, Contestant, Generation, Notify
from ngtcli.measure.refusals import refusal
from ngtcli.measure.replay_run import budgets, context_of, recorded_background
from ngtcli.measure.traces import Trace, TraceSet
from ngtcli.render.rows import Refusal
from ngtcli.session.memory import PassCosts
from ngtcli.trie.background import BackgroundCounts

SPARE = 256  # places of the cache for draft nodes and padding, behind the longest answer; guess


class PromptCache:
    """The model's cache with a prompt in it, read once for all who answer it in turn.

    `seconds` are those of the readings, by question.
    """

    def __init__(self, model: TargetModel) -> None:
        self.model = model
        self.seconds: dict[str, list[float]] = {}
        self._read: tuple[str, tuple[int, ...]] | None = None

    def put(self, trace: Trace) -> None:
        """See that the cache holds all but the last id of the trace's prompt, and no more."""
        model, ids = self.model, trace.prompt_ids
        if self._read != (trace.id, ids):
            model.start(len(ids) + trace.room + SPARE)
            model.finish_device_work()
            clock = time.perf_counter()
            model.prefill(ids[:-1])
            model.finish_device_work()
            self.seconds.setdefault(trace.id, []).append(time.perf_counter() - clock)
            self._read = (trace.id, ids)
        model.truncate(len(ids) - 1)
        if model.plain_reason:  # it cannot go back: the next one reads the prompt again
            self._read = None


class Contestants:
    """Makes those that can take part; `refused` holds the others, each with the reason."""

    def __init__(self, model: TargetModel, traces: TraceSet, settings: Settings) -> None:
        self._model, self._traces, self._settings = model, traces, settings
        self.prompts = PromptCache(model)
        self.refused: list[Refusal] = []
        self.costs: Costs | None = None
        self.background: BackgroundCounts | None = None

    def make(
        self, methods: Sequence[str], num_drafts: Sequence[int], against: Any, progress: Notify
    ) -> list[Contestant[Trace]]:
        """Plain decoding, each method at each number of nodes, then generate where it is wanted.

        `against` is the model that generate runs, None where it takes no part. Measures the cost of
        passes if a method asks for it, which empties the model's cache.
        """
        found: dict[str, Contestant[Trace]] = {}
        for method in dict.fromkeys((BASELINE, *methods)):
            try:
                one = self._able(method, progress)
                for num_draft in budgets(one, num_drafts):
                    made = self._ours(one, num_draft)
                    made.begin()
                    found[made.key] = made
            except (NgtError, ImportError, OSError) as error:  # something it needs is not there
                self.refused.append(refusal(method, error))
        if against is not None:
            found |= {name: self._generate(against, name, o) for name, o in AGAINST.items()}
        return list(found.values())

    def _able(self, method: str, progress: Notify) -> MethodSpec:
        """The method, with the costs that it asks for. Raises NgtError."""
        one = parse_method(method, draft_settings(self._settings))
        if one.entry.live:
            raise NgtError(f"it needs {one.entry.needs}", "A recording has none.")
        if not one.entry.costs:
            return one
        if self.costs is None:
            passes = PassCosts(self._model, False, progress, progress)
            self.costs = passes.load(self._settings.calibrate)
            self.background = recorded_background(self._traces, self._settings.background, progress)
        own = replace(one.settings, costs=self.costs, background=self.background)
        return replace(one, settings=own)

    def _ours(self, one: MethodSpec, num_draft: int) -> Contestant[Trace]:
        def begin() -> Answering[Trace]:
            drafter = replace(one, settings=self._own(one.settings)).build()

            def answer(trace: Trace) -> Generation:
                self.prompts.put(trace)
                context = self._context(trace)
                return _decoded(RecordedRun(self._model, drafter, context, trace, num_draft))

            return answer

        return Contestant(one.spec, num_draft or None, begin)

    def _own(self, settings: DraftSettings) -> DraftSettings:
        """With a pool and costs of its own: what steps teach of costs is not shared."""
        pool = Pool(TOKENS, self._settings.pool_documents) if self._settings.pool else None
        return replace(settings, pool=pool, costs=deepcopy(settings.costs))

    def _context(self, trace: Trace) -> Context:
        return replace(context_of(trace, self._traces), vocabulary=self._model.vocabulary)

    def _generate(self, hf: Any, name: str, options: Mapping[str, int]) -> Contestant[Trace]:
        def answer(trace: Trace) -> Generation:
            self.prompts.put(trace)
            rows = self._model.cached()
            if not rows:
                raise NgtError("a cache that cannot be rolled back is not shared with generate")
            try:
                return generate_recorded(hf, trace, rows, options)
            except (ValueError, TypeError, NotImplementedError) as error:  # not with this model
                raise NgtError(str(error).strip().split("\n")[0]) from error

        return Contestant(name, None, lambda: answer)


def _decoded(run: RecordedRun) -> Generation:
    generation = decoded(run)
    run.drafter.finish()
    return generation
