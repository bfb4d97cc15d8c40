"""A session whose answers come from vLLM: prompts are ngt's own, vLLM gets their token ids."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ngtcli.config import Settings
from ngtcli.decode.continuation import Growing
from ngtcli.draft.drafter import DraftSettings, PassRows
from ngtcli.draft.registry import parse_method
from ngtcli.draft.steps import OWN, InSteps, Limits, PassesReport, Statistics, Step, Token
from ngtcli.engines.vllm_arguments import sampling_arguments
from ngtcli.engines.vllm_engine import Piece, VllmEngine
from ngtcli.errors import ContextOverflowError, NgtError
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.prompt.build import Prompt
from ngtcli.session.session import (
    AS_SET,
    Answer,
    AnswerOptions,
    FinishedAnswer,
    Notify,
    NumberedPrompt,
    Session,
)
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.report import TrieReport


class VllmPasses:
    """How the model's passes are run is vLLM's own."""

    reason = ""

    def report(self) -> PassesReport:
        """As of passes that ngt runs."""
        return PassesReport(0, 0.0, "vLLM runs the model")


@dataclass(frozen=True, slots=True)
class VllmModel:
    """What is known of a model that vLLM runs; of what its checkpoint suggests nothing is."""

    tokenizer: Tokenizer
    context: int  # tokens
    vocabulary: int
    dtype: str
    context_reason: str = ""
    plain_reason: str = ""
    tree_reason: str = ""
    keeps_reason: str = ""
    unused: dict[str, Any] = field(default_factory=dict)
    dtype_reason: str = ""
    passes: VllmPasses = VllmPasses()


class VllmRun(Growing, InSteps):
    """One generation by vLLM. Iterate over it, or over `steps` in the engine's event loop.

    A step is what vLLM hands over at once, which may be the tokens of several passes; which of them
    were drafts vLLM does not tell. The statistics of drafts are complete after the last step; the
    pass that reads the prompt, which makes the first token, counts as a step.
    """

    exact = False
    rows: PassRows | None = None

    def __init__(
        self,
        engine: VllmEngine,
        model: VllmModel,
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

    def __init__(
        self, settings: Settings, engine: VllmEngine, status: Notify, warn: Notify
    ) -> None:
        super().__init__(settings, status, warn)
        self.engine, tokenizer = engine, load_tokenizer(settings.model)
        about = engine.context, engine.vocabulary, engine.dtype
        self.model: VllmModel = VllmModel(tokenizer, *about)

    def with_settings(self, settings: Settings) -> Self:
        """As `Session.with_settings`; the dtype cannot be another one, either."""
        self.check_settings(settings, ("model", "dtype"))
        other = copy(self)
        other.settings = settings
        return other

    def answer(self, prompt: Prompt, options: AnswerOptions = AS_SET) -> Answer:
        """A prepared answer to `prompt`; of the options none counts for vLLM."""
        run = VllmRun(self.engine, self.model, self.settings, self.limits, prompt.ids)
        return Answer(run, prompt, TrieReport("none"))

    def answers(
        self,
        prompts: Iterable[NumberedPrompt],
        size: int,
        session_of: Callable[[int], Self] | None = None,
    ) -> Iterator[FinishedAnswer]:
        """As `Session.answers`; vLLM joins what is asked at once into its own batches.

        Raises NgtError where vLLM's process has ended; what was being answered has no answer then.
        """
        most, source = size or self.engine.sequences, iter(prompts)
        tasks: set[asyncio.Task[FinishedAnswer]] = set()
        try:
            while True:
                while len(tasks) < most and (drawn := next(source, None)) is not None:
                    key, prompt = drawn
                    if isinstance(prompt, NgtError):
                        yield FinishedAnswer(key, error=prompt)
                    else:
                        session = session_of(key) if session_of else self
                        tasks.add(self.engine.loop.create_task(session._finished(key, prompt)))
                if not tasks:
                    return
                waiting = asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                done, tasks = self.engine.wait(waiting)
                self.engine.check_alive()
                for task in done:
                    yield task.result()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                self.engine.wait(asyncio.wait(tasks))

    async def _finished(self, key: int, prompt: Prompt) -> FinishedAnswer:
        try:
            run = VllmRun(self.engine, self.model, self.settings, self.limits, prompt.ids)
            answer = Answer(run, prompt, TrieReport("none"))
            answer.steps += [step async for step in run.steps()]
        except NgtError as error:
            return FinishedAnswer(key, prompt, error=error)
        return FinishedAnswer.of(key, prompt, answer.ended())
