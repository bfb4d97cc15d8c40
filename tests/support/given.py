"""Prompts that are made already, answered by an engine."""

from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from ngtcli.config import Settings
from ngtcli.engine.drivers import run
from ngtcli.engine.engine import Engine, Prepared, Submission
from ngtcli.engine.events import Outcome
from ngtcli.engine.local_engine import LocalEngine
from ngtcli.engine.request import Request
from ngtcli.engine.session import AS_SET
from ngtcli.engine.vllm.session import VllmTexts
from ngtcli.errors import NgtError
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import Preset

NumberedPrompt = tuple[int, Prompt | NgtError]
_PRESET = Preset("as it is", Path(), "{documents}")


class _Given(Engine):
    """Its questions are numbers of prompts."""

    prompts: dict[str, Prompt] = {}

    def prepare(self, submission: Submission) -> Prepared:
        prompt = self.prompts[submission.request.question]
        return self.prepare_answer(submission, self._session_for(submission), prompt, AS_SET)


class GivenPrompts(_Given, LocalEngine):
    """Of a model that is loaded here."""


class GivenToVllm(_Given, VllmTexts):
    """Of vLLM."""


def answers(
    engine: _Given, prompts: Iterable[NumberedPrompt], settings: dict[int, Settings] | None = None
) -> Generator[Outcome]:
    """What an engine answers to prompts, each with its own settings if there are any."""
    source: Iterator[NumberedPrompt] = iter(prompts)

    def draw(_: bool) -> tuple[int, Request | NgtError] | None:
        if (drawn := next(source, None)) is None:
            return None
        key, prompt = drawn
        if isinstance(prompt, NgtError):
            return key, prompt
        engine.prompts = {**engine.prompts, str(key): prompt}
        own = (settings or {}).get(key, engine.session.settings)
        return key, Request(task="ask", settings=own, preset=_PRESET, question=str(key))

    return run(engine, draw)
