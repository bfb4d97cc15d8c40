"""A session whose answers come from vLLM: prompts are ngt's own, vLLM gets their token ids."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Self, cast

from ngtcli.config import Settings
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.output import Output
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.drafting.log import TokenLog
from ngtcli.drafting.registry import parse_method
from ngtcli.drafting.steps import OWN, PassesReport, Statistics, Step, Token
from ngtcli.engine.engine import Engine, Job, JobEvent, Prepared, Submission
from ngtcli.engine.events import Ended, Report, Started, Stepped, ignore
from ngtcli.engine.session import ModelFacts, Session
from ngtcli.engine.vllm.process import Piece, VllmEngine, sampling_arguments
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.prompts.build import Prompt


class VllmRun:
    """One generation by vLLM. Iterate over it, or over `steps` in the engine's event loop.

    A step is what vLLM hands over at once, which may be the tokens of several passes; which of them
    were drafts vLLM does not tell. The statistics of drafts are complete after the last step; the
    pass that reads the prompt, which makes the first token, counts as a step.
    """

    def __init__(
        self,
        engine: VllmEngine,
        model: ModelFacts,
        settings: Settings,
        limits: Limits,
        ids: list[int],
    ) -> None:
        room = min(limits.max_output, model.context - len(ids))
        if room < 1:
            raise ContextOverflowError(
                f"the prompt has {len(ids)} tokens, vLLM takes {model.context - 1}",
                hint="Shorten the prompt.",
            )
        self.model = model
        self.drafter = parse_method("none", DraftSettings()).build()  # vLLM's is in its process
        self.statistics = Statistics(prompt_tokens=len(ids))
        self._engine, self._ids = engine, ids
        # Of a model that thinks vLLM cannot tell the answer, in which alone stop strings count.
        stop = () if limits.thinking else settings.answer.stop
        self._parameters = sampling_arguments(settings.replace(stop=stop), room)
        self.limits = limits
        self.output = Output(TokenLog(ids), model.tokenizer, limits, room, room)

    @property
    def token_ids(self) -> list[int]:
        """The emitted tokens."""
        return self.output.log.output

    @property
    def finish_reason(self) -> str:
        """Why it has ended; "" before."""
        return self.output.finish_reason

    def interrupt(self) -> None:
        """End it now, unless it has ended."""
        self.output.finish_reason = self.output.finish_reason or "interrupted"

    def finish(self) -> Self:
        """Make all steps; return the answer itself."""
        for _ in self:
            pass
        return self

    def __iter__(self) -> Iterator[Step]:
        steps = self.steps()
        try:
            while (step := self._engine.wait(anext(steps, None))) is not None:
                yield step
        finally:
            self._engine.wait(steps.aclose())

    async def steps(self) -> AsyncGenerator[Step]:
        """The steps, in the engine's event loop."""
        began = time.perf_counter()
        statistics = self.statistics
        async with aclosing(self._engine.pieces(self._ids, self._parameters)) as pieces:
            async for piece in pieces:
                seconds = time.perf_counter() - began
                if self.output.log.emitted:
                    statistics.decode_s = seconds - statistics.prefill_s
                else:
                    statistics.prefill_s = seconds
                yield self._step(piece)
                if self.finish_reason:  # perhaps before vLLM has seen it
                    return

    def _step(self, piece: Piece) -> Step:
        """The tokens of a piece with their texts, up to a stop string."""
        reason = piece.finish_reason
        if reason not in ("", "stop"):
            reason = "length" if self.output.max_tokens == self.limits.max_output else "context"
        shown: list[Token] = []
        for i, token in enumerate(piece.ids, 1):
            last = i == len(piece.ids)
            shown.append(
                self.output.append(token, last and piece.ended, OWN, reason if last else "")
            )
            if self.finish_reason:
                break
        self.output.finish_reason = self.finish_reason or reason
        self._count(piece)
        return Step(tuple(shown), self.finish_reason)

    def _count(self, piece: Piece) -> None:
        """Count tokens and steps; how often drafts were accepted is in the last piece."""
        statistics = self.statistics
        histogram = Counter(dict(enumerate(piece.accepted)))  # steps by their accepted drafts
        statistics.new_tokens = self.output.log.emitted
        statistics.drafted_tokens = piece.drafted
        statistics.thought_tokens = None
        if self.limits.thinking:
            statistics.thought_tokens = self.output.stream.reasoning_tokens
        # Drafts behind the end of the answer were accepted, and left out of it.
        accepted = sum(histogram.elements())
        statistics.accepted_tokens = min(accepted, max(0, statistics.new_tokens - 1))
        statistics.steps = statistics.new_tokens - statistics.accepted_tokens
        histogram[0] += max(0, statistics.steps - sum(piece.accepted))
        statistics.acceptance_histogram = +histogram  # without counts of 0


class VllmSession(Session):
    """A session over a vLLM engine, which drafts as it was started."""

    def __init__(self, settings: Settings, engine: VllmEngine, report: Report = ignore) -> None:
        super().__init__(settings, report)
        self.engine = engine
        self._facts = ModelFacts(
            tokenizer=load_tokenizer(settings.model.model),
            context=engine.context,
            vocabulary=engine.vocabulary,
            dtype=engine.dtype,
        )

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    def generate(self, prompt: Prompt) -> VllmRun:
        """A prepared answer to `prompt`. Raises ContextOverflowError."""
        return VllmRun(self.engine, self.facts, self.settings, self.limits, prompt.ids)


@dataclass(slots=True, eq=False, kw_only=True)
class VllmJob(Job):
    """A job of this engine, and its generation by vLLM."""

    run: VllmRun


class VllmTexts(Engine):
    """Answers by vLLM, which joins what is asked at once into its own batches."""

    def __init__(self, session: VllmSession, *, size: int = 0, many: bool = False) -> None:
        super().__init__(session, many=many)
        self._vllm = session.engine
        self._max_jobs = size or session.engine.sequences
        self._steps: dict[VllmJob, AsyncGenerator[Step]] = {}
        self._coming: dict[asyncio.Task[Step | None], VllmJob] = {}  # the next step of each job
        self._events: list[JobEvent] = []
        self._is_open = False

    def has_room(self, submission: Submission | None = None) -> bool:
        return len(self._steps) < self._max_jobs

    def add(self, prepared: Prepared, *, others: bool = False) -> VllmJob:
        self._is_open = True
        session = cast(VllmSession, prepared.session)  # this engine's own, or one with its settings
        run = session.generate(prepared.prompt)
        job = VllmJob(prepared, run=run)
        self._steps[job] = run.steps()
        self._events.append((job, Started(run.drafter.origins)))
        self._await_step(job)
        return job

    def step(self) -> list[JobEvent]:
        """As `Engine.step`. Raises NgtError where vLLM has ended."""
        if not self._events and self._coming:
            self._wait_for_steps()
        events, self._events = self._events, []
        return events

    def drop(self, job: Job) -> Ended | None:
        assert isinstance(job, VllmJob)
        self._end_tasks([task for task, of in self._coming.items() if of is job])
        self._steps.pop(job, None)
        answer = self._answer(job)
        return replace(answer, finish_reason=answer.finish_reason or "interrupted")

    @property
    def is_open(self) -> bool:
        return self._is_open

    def finish(self, *, store: bool) -> None:
        self._is_open = False
        self._events = []
        self._end_tasks([*self._coming])

    def _await_step(self, job: VllmJob) -> None:
        self._coming[self._vllm.loop.create_task(_next(self._steps[job]))] = job

    def _wait_for_steps(self) -> None:
        waiting = asyncio.wait(self._coming, return_when=asyncio.FIRST_COMPLETED)
        done, _ = self._vllm.wait(waiting)
        self._vllm.check_alive()
        for task in done:
            job = self._coming.pop(task)
            try:
                step = task.result()
            except NgtError as error:
                del self._steps[job]
                self._events.append((job, error))
                continue
            if step is None:
                del self._steps[job]
                self._events.append((job, self._answer(job)))
            else:
                job.steps.append(step)
                thought_tokens = job.run.statistics.thought_tokens or 0
                self._events.append((job, Stepped(step, thought_tokens)))
                self._await_step(job)

    def _end_tasks(self, tasks: Sequence[asyncio.Task[Step | None]]) -> None:
        """Cancel what is awaited, and close its steps, which ends it in vLLM."""
        jobs = [self._coming.pop(task) for task in tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            self._vllm.wait(asyncio.wait(tasks))
        for job in jobs:
            self._vllm.wait(self._steps[job].aclose())

    def _answer(self, job: VllmJob) -> Ended:
        run = job.run
        return Ended(
            finish_reason=run.finish_reason,
            steps=tuple(job.steps),
            statistics=run.statistics,
            passes=PassesReport(0, 0.0, "vLLM runs the model"),
            drafted_by=job.submission.request.settings.drafting.method.partition(":")[0],
        )


async def _next(steps: AsyncGenerator[Step]) -> Step | None:
    return await anext(steps, None)
