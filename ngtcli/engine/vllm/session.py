"""A session and an engine over vLLM: ngt makes the prompts, vLLM gets their token ids."""

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
from ngtcli.engine.events import Ended, Started, Stepped
from ngtcli.engine.session import ModelFacts, Session
from ngtcli.engine.vllm.process import Piece, VllmEngine, sampling_arguments
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.prompts.build import Prompt


class VllmSequence:
    """One sequence that vLLM decodes. Iterate over it, or over `steps` in vLLM's event loop.

    A step has the tokens that vLLM returns at once, perhaps those of several forward passes. vLLM
    does not report which of them were drafted, and reports how many only at the end. The forward
    pass that prefills the prompt and makes the first token counts as a step.

    Raises:
        ContextOverflowError: The prompt leaves no room for an answer.
    """

    def __init__(
        self,
        engine: VllmEngine,
        model: ModelFacts,
        settings: Settings,
        limits: Limits,
        prompt_ids: list[int],
    ) -> None:
        max_tokens = min(limits.max_output, model.context - len(prompt_ids))
        if max_tokens < 1:
            raise ContextOverflowError(
                f"the prompt has {len(prompt_ids)} tokens, but vLLM takes at most"
                f" {model.context - 1}",
                hint="Shorten the prompt.",
            )
        self.model = model
        # vLLM's drafter is in vLLM's process. This one stands for it, and drafts nothing.
        self.drafter = parse_method("none", DraftSettings()).build()
        self.statistics = Statistics(prompt_tokens=len(prompt_ids))
        self._engine = engine
        self._prompt_ids = prompt_ids
        # Stop strings count in the answer only, and vLLM cannot tell it from the reasoning.
        stop = () if limits.thinking else settings.answer.stop
        self._parameters = sampling_arguments(settings.replace(stop=stop), max_tokens)
        self.limits = limits
        self.output = Output(TokenLog(prompt_ids), model.tokenizer, limits, max_tokens, max_tokens)

    @property
    def token_ids(self) -> list[int]:
        """The emitted tokens."""
        return self.output.log.output

    @property
    def finish_reason(self) -> str:
        """The reason that it has ended, "" while it is decoded."""
        return self.output.finish_reason

    def interrupt(self) -> None:
        """End it now, unless it has ended."""
        self.output.finish_reason = self.output.finish_reason or "interrupted"

    def finish(self) -> Self:
        """Decode to the end; return the sequence itself."""
        for _ in self:
            pass
        return self

    def __iter__(self) -> Iterator[Step]:
        steps = self.steps()
        try:
            step = self._engine.wait(anext(steps, None))
            while step is not None:
                yield step
                step = self._engine.wait(anext(steps, None))
        finally:
            self._engine.wait(steps.aclose())

    async def steps(self) -> AsyncGenerator[Step]:
        """Decode step by step, in vLLM's event loop."""
        started = time.perf_counter()
        statistics = self.statistics
        async with aclosing(self._engine.pieces(self._prompt_ids, self._parameters)) as pieces:
            async for piece in pieces:
                seconds = time.perf_counter() - started
                if self.output.log.emitted:
                    statistics.decode_s = seconds - statistics.prefill_s
                else:
                    statistics.prefill_s = seconds
                yield self._step(piece)
                if self.finish_reason:  # It may have ended here and not in vLLM.
                    return

    def _step(self, piece: Piece) -> Step:
        """Emit the tokens of a piece with their texts, up to a stop string."""
        reason = piece.finish_reason
        if reason not in ("", "stop"):
            reason = "length" if self.output.max_tokens == self.limits.max_output else "context"
        tokens: list[Token] = []
        for i, token_id in enumerate(piece.token_ids, 1):
            is_last = i == len(piece.token_ids)
            is_end = is_last and piece.ended
            tokens.append(self.output.append(token_id, is_end, OWN, reason if is_last else ""))
            if self.finish_reason:
                break
        self.output.finish_reason = self.finish_reason or reason
        self._count(piece)
        return Step(tuple(tokens), self.finish_reason)

    def _count(self, piece: Piece) -> None:
        """Count tokens and steps; only the last piece has the numbers of accepted drafts."""
        statistics = self.statistics
        histogram = Counter(dict(enumerate(piece.accepted)))  # steps by their accepted drafts
        statistics.new_tokens = self.output.log.emitted
        statistics.drafted_tokens = piece.drafted
        statistics.thought_tokens = None
        if self.limits.thinking:
            statistics.thought_tokens = self.output.stream.reasoning_tokens
        # vLLM also counts accepted drafts after the end of the answer, which are left out.
        accepted = sum(histogram.elements())
        statistics.accepted_tokens = min(accepted, max(0, statistics.new_tokens - 1))
        statistics.steps = statistics.new_tokens - statistics.accepted_tokens
        histogram[0] += max(0, statistics.steps - sum(piece.accepted))
        statistics.acceptance_histogram = +histogram  # This removes counts of 0.


class VllmSession(Session):
    """A session over vLLM; the settings at vLLM's start decide how it drafts."""

    def __init__(self, settings: Settings, engine: VllmEngine) -> None:
        super().__init__(settings)
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

    def generate(self, prompt: Prompt) -> VllmSequence:
        """Prepare an answer to a prompt. Raises ContextOverflowError."""
        return VllmSequence(self.engine, self.facts, self.settings, self.limits, prompt.ids)


@dataclass(slots=True, eq=False, kw_only=True)
class VllmJob(Job):
    """A job of a `VllmBatchEngine`, with its sequence."""

    sequence: VllmSequence


class VllmBatchEngine(Engine):
    """An engine over vLLM, which batches the jobs.

    Args:
        session: The session over vLLM.
        size: The maximum number of jobs at a time; 0: that of vLLM.
        many: The prompts are those of a batch.
    """

    def __init__(self, session: VllmSession, *, size: int = 0, many: bool = False) -> None:
        super().__init__(session, many=many)
        self._vllm = session.engine
        self._max_jobs = size or session.engine.sequences
        self._steps: dict[VllmJob, AsyncGenerator[Step]] = {}
        self._pending: dict[asyncio.Task[Step | None], VllmJob] = {}  # the next step of each job
        self._events: list[JobEvent] = []  # for the next `step` to return
        self._is_open = False

    def has_room(self, submission: Submission | None = None) -> bool:
        return len(self._steps) < self._max_jobs

    def add(self, prepared: Prepared, *, others: bool = False) -> VllmJob:
        self._is_open = True
        session = cast(VllmSession, prepared.session)  # `Engine.prepare` copied it from ours.
        sequence = session.generate(prepared.prompt)
        job = VllmJob(prepared, sequence=sequence)
        self._steps[job] = sequence.steps()
        self._events.append((job, Started(sequence.drafter.origins)))
        self._await_step(job)
        return job

    def step(self) -> list[JobEvent]:
        """Return the next events, as `Engine.step` does. Raises NgtError if vLLM has ended."""
        if not self._events and self._pending:
            self._wait_for_steps()
        events = self._events
        self._events = []
        return events

    def drop(self, job: Job) -> Ended | None:
        assert isinstance(job, VllmJob)
        self._end_tasks([task for task, owner in self._pending.items() if owner is job])
        self._steps.pop(job, None)
        answer = self._answer(job)
        return replace(answer, finish_reason=answer.finish_reason or "interrupted")

    @property
    def is_open(self) -> bool:
        return self._is_open

    def finish(self, *, store_prefixes: bool) -> None:
        self._is_open = False
        self._events = []
        self._end_tasks(list(self._pending))

    def _await_step(self, job: VllmJob) -> None:
        task = self._vllm.loop.create_task(_next(self._steps[job]))
        self._pending[task] = job

    def _wait_for_steps(self) -> None:
        """Wait until at least one job has its next step; record the events."""
        waiting = asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
        done, _ = self._vllm.wait(waiting)
        self._vllm.check_alive()
        for task in done:
            job = self._pending.pop(task)
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
                thought_tokens = job.sequence.statistics.thought_tokens or 0
                self._events.append((job, Stepped(step, thought_tokens)))
                self._await_step(job)

    def _end_tasks(self, tasks: Sequence[asyncio.Task[Step | None]]) -> None:
        """Cancel tasks and close the steps of their jobs, which ends the jobs in vLLM."""
        jobs = [self._pending.pop(task) for task in tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            self._vllm.wait(asyncio.wait(tasks))
        for job in jobs:
            self._vllm.wait(self._steps[job].aclose())

    def _answer(self, job: VllmJob) -> Ended:
        sequence = job.sequence
        return Ended(
            finish_reason=sequence.finish_reason,
            steps=tuple(job.steps),
            statistics=sequence.statistics,
            passes=PassesReport(0, 0.0, "vLLM runs the model"),
            drafted_by=job.submission.request.settings.drafting.method.partition(":")[0],
        )


async def _next(steps: AsyncGenerator[Step]) -> Step | None:
    return await anext(steps, None)
