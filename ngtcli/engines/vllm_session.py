"""A session whose answers come from vLLM: prompts are ngt's own, vLLM gets their token ids.

`VllmSession` and `VllmRun` stand where a `Session` and a `Run` do, so what shows or collects
answers needs not know which engine made them.
"""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

from ngtcli.config import Settings
from ngtcli.decode.continuation import Repetition, TextStream
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.steps import Limits, PassesReport, Statistics, Step, Token
from ngtcli.documents.load import Document
from ngtcli.draft.drafter import DraftSettings
from ngtcli.draft.registry import parse_method
from ngtcli.engines.vllm_arguments import sampling_arguments
from ngtcli.engines.vllm_engine import Piece, VllmEngine
from ngtcli.errors import ContextOverflowError
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.prompt.build import Prompt
from ngtcli.session.answer import Answer, AnswerOptions, DocumentsTrie
from ngtcli.session.local import Notify, Session
from ngtcli.tokens.tokenizer import Detokenizer, Tokenizer
from ngtcli.trie.store import TrieReport

_AS_SET = AnswerOptions()


@dataclass(frozen=True, slots=True)
class ServedPasses:
    """Stands for `Passes`: how vLLM runs the model's passes is its own."""

    reason: str = ""

    def report(self) -> PassesReport:
        """As `Passes.report`."""
        return PassesReport(0, 0.0, "vLLM runs the model")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Stands for a `TargetModel`: a model that vLLM runs, for those who ask about it."""

    name: str
    tokenizer: Tokenizer
    context: int  # tokens
    vocabulary: int
    dtype: str
    context_reason: str = ""
    plain_reason: str = ""
    passes: ServedPasses = ServedPasses()

    @property
    def unused(self) -> dict[str, Any]:
        """Nothing is known of what the checkpoint suggests."""
        return {}


class VllmRun:
    """Stands for a `Run`: one generation by vLLM. Iterate over it, or over `steps` in the loop.

    A step is what vLLM hands over at once, which may be the tokens of several passes; which of them
    were drafts vLLM does not tell. The statistics of drafts are complete after the last step; the
    pass that reads the prompt, which makes the first token, counts as a step.
    """

    exact, rows, proposed = False, None, True

    def __init__(
        self, engine: VllmEngine, model: ServedModel, settings: Settings, ids: list[int]
    ) -> None:
        room = min(settings.max_tokens, model.context - len(ids))
        if room < 1:
            raise ContextOverflowError(
                f"the prompt has {len(ids)} tokens, vLLM takes {model.context - 1}",
                "Shorten the prompt.",
            )
        self.model, self.output = model, list[int]()
        self.limits = Limits(
            settings.max_tokens, settings.num_draft, settings.stop, settings.max_repeats
        )
        self.drafter = parse_method("none", DraftSettings()).build()  # vLLM's is in its process
        self.statistics = Statistics(prompt_tokens=len(ids))
        self.finish_reason = ""
        self._engine, self._ids, self._room = engine, ids, room
        self._parameters = sampling_arguments(settings, room)
        self._text = TextStream(Detokenizer(model.tokenizer), settings.stop)
        self._repetition = Repetition(settings.max_repeats)

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
        shown: list[Token] = []
        for i, token in enumerate(piece.ids, 1):
            last = i == len(piece.ids)
            ends = last and piece.ended
            text, stopped = ("", False) if ends else self._text.push(token)
            self.finish_reason = "stop" if stopped else self._reason(piece) if last else ""
            if self._repetition.push(token) and self.finish_reason != "stop":
                self.finish_reason = "repetition"
            text += self._text.flush() if self.finish_reason and not stopped else ""
            shown.append(Token(token, text))
            if self.finish_reason:
                break
        self.finish_reason = self.finish_reason or self._reason(piece)
        self.output += [token.id for token in shown]
        self._count(piece)
        return Step(tuple(shown), self.finish_reason)

    def _reason(self, piece: Piece) -> str:
        if piece.finish_reason in ("", "stop"):
            return piece.finish_reason
        return "length" if self._room == self.limits.max_tokens else "context"

    def _count(self, piece: Piece) -> None:
        """Count tokens and steps; how often drafts were accepted is in the last piece."""
        s = self.statistics
        s.new_tokens = s.steps = len(self.output)
        s.acceptance_histogram.clear()
        for accepted, steps in enumerate(piece.accepted):
            s.acceptance_histogram[accepted] = steps
        s.drafted_tokens = piece.drafted
        # Drafts behind the end of the answer were accepted, and left out of it.
        most = sum(accepted * steps for accepted, steps in enumerate(piece.accepted))
        s.accepted_tokens = min(most, max(0, s.new_tokens - 1))
        s.steps -= s.accepted_tokens
        s.acceptance_histogram[0] += max(0, s.steps - sum(piece.accepted))
        s.acceptance_histogram += Counter()  # drops what never was


class VllmSession(Session):
    """A session over a vLLM engine. `prompt` and `task` are a Session's."""

    def __init__(
        self, settings: Settings, engine: VllmEngine, progress: Notify, warn: Notify
    ) -> None:
        self._settings, self._tell, self._warn = settings, progress, warn
        self.engine = engine
        self._served = ServedModel(
            settings.model, load_tokenizer(settings.model), engine.context, engine.vocabulary,
            engine.dtype,
        )  # fmt: skip
        self.model = cast(TargetModel, self._served)

    def with_settings(self, settings: Settings) -> "VllmSession":
        """A session with other settings over the same engine, which drafts as it was started.

        Raises ValueError where `settings` name another model or dtype than what is loaded.
        """
        for name in ("model", "dtype"):
            if getattr(settings, name) != getattr(self._settings, name):
                raise ValueError(f"a session cannot change its {name}")
        other = copy(self)
        other._settings = settings
        return other

    def documents_trie(self, documents: Sequence[Document], keep: bool = True) -> DocumentsTrie:
        """No trie: what vLLM is given drafts from is in its own process."""
        return None, TrieReport("none")

    def run(self, prompt: Prompt) -> VllmRun:
        """A generation for `prompt` that has not begun. Raises ContextOverflowError."""
        return VllmRun(self.engine, self._served, self.settings, prompt.ids)

    def answer(self, prompt: Prompt, options: AnswerOptions = _AS_SET) -> Answer:
        """A prepared answer to `prompt`; of the options none counts for vLLM."""
        return Answer(cast(Run, self.run(prompt)), prompt, TrieReport("none"), lambda: None)
