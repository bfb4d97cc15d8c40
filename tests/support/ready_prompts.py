"""Engines that answer ready-made prompts."""

from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from ngtcli.config import Settings
from ngtcli.engine.drivers import run
from ngtcli.engine.engine import Engine, Prepared, Submission
from ngtcli.engine.events import Outcome
from ngtcli.engine.local_engine import LocalEngine
from ngtcli.engine.request import Request
from ngtcli.engine.session import SESSION_OPTIONS
from ngtcli.engine.vllm.session import VllmBatchEngine
from ngtcli.errors import NgtError
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import Preset

NumberedPrompt = tuple[int, Prompt | NgtError]
_PRESET = Preset("as it is", Path(), "{documents}")


class _ReadyPromptEngine(Engine):
    """An engine whose questions are the numbers of prompts."""

    prompts: dict[str, Prompt] = {}

    def prepare(self, submission: Submission) -> Prepared:
        prompt = self.prompts[submission.request.question]
        return self.prepare_answer(
            submission, self._session_for(submission), prompt, SESSION_OPTIONS
        )


class ReadyPrompts(_ReadyPromptEngine, LocalEngine):
    """Answers prompts by a model that is loaded in this process."""


class ReadyPromptsForVllm(_ReadyPromptEngine, VllmBatchEngine):
    """Answers prompts by vLLM."""


def answer_prompts(
    engine: _ReadyPromptEngine,
    prompts: Iterable[NumberedPrompt],
    settings: dict[int, Settings] | None = None,
) -> Generator[Outcome]:
    """The engine's answers to prompts; `settings` are by the numbers of prompts that have some."""
    source: Iterator[NumberedPrompt] = iter(prompts)

    def draw(_: bool) -> tuple[int, Request | NgtError] | None:
        numbered = next(source, None)
        if numbered is None:
            return None
        key, prompt = numbered
        if isinstance(prompt, NgtError):
            return key, prompt
        engine.prompts = {**engine.prompts, str(key): prompt}
        chosen = (settings or {}).get(key, engine.session.settings)
        return key, Request(task="ask", settings=chosen, preset=_PRESET, question=str(key))

    return run(engine, draw)
