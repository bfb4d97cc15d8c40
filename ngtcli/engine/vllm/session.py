"""A session whose answers come from vLLM: prompts are ngt's own, vLLM gets their token ids."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from ngtcli.config import Settings
from ngtcli.decoding.continuation import Growing
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.drafting.registry import parse_method
from ngtcli.drafting.steps import OWN, InSteps, Limits, PassesReport, Statistics, Step, Token
from ngtcli.engine.engine import Asked, Engine
from ngtcli.engine.events import Ended, Started, Tell, nobody
from ngtcli.engine.session import ModelFacts, Session
from ngtcli.engine.vllm.process import Piece, VllmEngine, sampling_arguments
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.prompts.build import Prompt


class VllmRun(Growing, InSteps):
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
        room = min(limits.most, model.context - len(ids))
        if room < 1:
            what = f"the prompt has {len(ids)} tokens, vLLM takes {model.context - 1}"
            raise ContextOverflowError(what, "Shorten the prompt.")
        self.model = model
        self.drafter = parse_method("none", DraftSettings()).build()  # vLLM's is in its process
        self.statistics = Statistics(prompt_tokens=len(ids))
        self._engine, self._ids = engine, ids
        # Of a model that thinks vLLM cannot tell the answer, in which alone stop strings count.
        stop = () if limits.thinking else settings.stop
        self._parameters = sampling_arguments(replace(settings, stop=stop), room)
        self._begin(model.tokenizer, limits, room, room)

    def __iter__(self) -> Iterator[Step]:
        steps = self.steps()
        try:
            while (step := self._engine.wait(anext(steps, None))) is not None:
                yield step
        finally:
            self._engine.wait(steps.aclose())

    async def steps(self) -> AsyncGenerator[Step]:
        """The steps, in the engine's event loop."""
        clock, s = time.perf_counter(), self.statistics
        async with aclosing(self._engine.pieces(self._ids, self._parameters)) as pieces:
            async for piece in pieces:
                seconds = time.perf_counter() - clock
                if self.output:
                    s.decode_s = seconds - s.prefill_s
                else:
                    s.prefill_s = seconds
                yield self._step(piece)
                if self.finish_reason:  # perhaps before vLLM has seen it
                    return

    def _step(self, piece: Piece) -> Step:
        """The tokens of a piece with their texts, up to a stop string."""
        reason = piece.finish_reason
        if reason not in ("", "stop"):
            reason = "length" if self._room == self.limits.most else "context"
        shown: list[Token] = []
        for i, token in enumerate(piece.ids, 1):
            last = i == len(piece.ids)
            shown.append(self._add(token, last and piece.ended, OWN, reason if last else ""))
            if self.finish_reason:
                break
        self.finish_reason = self.finish_reason or reason
        self._count(piece)
        return Step(tuple(shown), self.finish_reason)

    def _count(self, piece: Piece) -> None:
        """Count tokens and steps; how often drafts were accepted is in the last piece."""
        s, accepted = self.statistics, Counter(dict(enumerate(piece.accepted)))
        s.new_tokens, s.drafted_tokens = len(self.output), piece.drafted
        s.thought_tokens = self._text.thought if self.limits.thinking else None
        # Drafts behind the end of the answer were accepted, and left out of it.
        s.accepted_tokens = min(sum(accepted.elements()), max(0, s.new_tokens - 1))
        s.steps = s.new_tokens - s.accepted_tokens
        accepted[0] += max(0, s.steps - sum(piece.accepted))
        s.acceptance_histogram = +accepted  # without what never was


class VllmSession(Session):
    """A session over a vLLM engine, which drafts as it was started."""

    def __init__(self, settings: Settings, engine: VllmEngine, tell: Tell = nobody) -> None:
        super().__init__(settings, tell)
        self.engine = engine
        self._facts = ModelFacts(
            tokenizer=load_tokenizer(settings.model),
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


class VllmTexts(Engine):
    """Answers by vLLM, which joins what is asked at once into its own batches."""

    def __init__(self, session: VllmSession, *, size: int = 0, many: bool = False) -> None:
        super().__init__(session, many=many)
        self._vllm, self._most = session.engine, size or session.engine.sequences
        self._coming: dict[asyncio.Task[Step | None], Asked] = {}  # the next step of each text

    def _start(self, text: Asked) -> None:
        """vLLM drafts by itself."""

    def _has_room(self, one: Asked | None) -> bool:
        return len(self._texts) < self._most

    def _begin(self, text: Asked) -> list[Asked]:
        self._is_open = True
        text.run = run = text.session.generate(text.prompt)
        text.statistics = run.statistics
        text.begun = run.steps()
        if text.part is None:
            text.say(Started(run.drafter.origins))
        self._await(text)
        return []

    def _await(self, text: Asked) -> None:
        self._coming[self._vllm.loop.create_task(_next(text.begun))] = text

    def _pass(self) -> list[Asked]:
        waiting = asyncio.wait(self._coming, return_when=asyncio.FIRST_COMPLETED)
        done, _ = self._vllm.wait(waiting)
        self._vllm.check_alive()
        over: list[Asked] = []
        for task in done:
            text = self._coming.pop(task)
            try:
                step = task.result()
            except NgtError as error:
                text.error, step = error, None
            if step is None:
                over.append(text)
            else:
                text.steps.append(step)
                self._await(text)
        return over

    def _drop(self, text: Asked) -> None:
        text.run.finish_reason = text.run.finish_reason or "interrupted"
        self._end_tasks([task for task, of in self._coming.items() if of is text])

    def _end_tasks(self, tasks: Sequence[asyncio.Task[Step | None]]) -> None:
        """Cancel what is awaited; vLLM is told so where the steps are closed."""
        texts = [self._coming.pop(task) for task in tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            self._vllm.wait(asyncio.wait(tasks))
        for text in texts:
            self._vllm.wait(text.begun.aclose())

    def _ended(self, text: Asked) -> tuple[Ended, Numerics, str]:
        run = text.run
        passes = PassesReport(0, 0.0, "vLLM runs the model")
        answer = Ended(
            finish_reason=run.finish_reason,
            statistics=run.statistics,
            passes=passes,
            drafted_by=text.question.settings.method.partition(":")[0],
        )
        return answer, NOT_EXACT, ""

    def _close(self, *, store: bool = True) -> None:
        self._end_tasks([*self._coming])


async def _next(steps: AsyncGenerator[Step]) -> Step | None:
    return await anext(steps, None)
