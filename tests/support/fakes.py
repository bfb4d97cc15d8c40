"""What answers in place of a model."""

from collections.abc import Callable
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import NOT_EXACT
from ngtcli.drafting.steps import PassesReport, Statistics, Step, Token
from ngtcli.engine.engine import Asked, Engine, caught
from ngtcli.engine.events import Ended, Tell, nobody
from ngtcli.engine.session import ModelFacts, Session
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.prompts.build import Prompt
from tests.support.helpers import FakeBackend

TOKENIZER, CONTEXT = Tokenizer(FakeBackend()), 4000
PASSES = PassesReport(0, 0.0, "")


class FakeSession(Session):
    """Makes prompts of a token a letter."""

    facts = ModelFacts(tokenizer=TOKENIZER, context=CONTEXT, vocabulary=0, dtype="float32")


class FakeAnswers:
    """Answers a few prompts together, the last one first, each as `say` does: with its first words.

    `before` is called with the text of each prompt; what it raises that prompt, or the run, ends
    with. `asked` are the texts.
    """

    def __init__(self, before: Callable[[str], None] = lambda _: None) -> None:
        self.before = before
        self.say: Callable[[str], str] = lambda prompt: " ".join(prompt.split()[:4])
        self.asked: list[str] = []
        self.finish_reason = "stop"


class FakeEngine(Engine):
    """Answers with `answers`, up to `size` texts together."""

    def __init__(
        self, settings: Settings, answers: FakeAnswers, size: int = 1, tell: Tell = nobody
    ) -> None:
        super().__init__(FakeSession(settings, tell), many=True)
        self._answers, self._size, self._is_full = answers, max(size, 1), False

    def _session_for(self, settings: Settings, owner: str) -> Session:
        return self.session.sharing(settings, owner)

    def _start(self, text: Asked) -> None:
        pass

    def _has_room(self, one: Asked | None) -> bool:
        self._is_full = bool(self._texts) and (self._is_full or len(self._texts) >= self._size)
        return not self._is_full

    def _begin(self, text: Asked) -> list[Asked]:
        text.run = self._is_open = True
        return []

    def _pass(self) -> list[Asked]:
        text, self._is_full = self._texts[-1], True
        assert isinstance(text.prompt, Prompt)
        self._answers.asked.append(text.prompt.text)
        try:
            self._answers.before(text.prompt.text)
        except Exception as error:
            text.error = caught(error)
        words = self._answers.say(text.prompt.text)
        text.steps.append(Step((Token(5, words, probability=0.9),), self._answers.finish_reason))
        text.statistics = Statistics(prompt_tokens=len(text.prompt.ids))
        text.statistics.add_step(0, 0, 1)
        return [text]

    def _drop(self, text: Asked) -> None:
        pass

    def _ended(self, text: Asked) -> Any:
        answer = Ended(
            finish_reason=self._answers.finish_reason, statistics=text.statistics, passes=PASSES
        )
        return answer, NOT_EXACT, ""

    def _close(self, *, store: bool = True) -> None:
        pass


def answer_with(monkeypatch: pytest.MonkeyPatch, answers: FakeAnswers) -> None:
    """Commands answer with these instead of a model."""

    def opened(settings: Settings, tell: Tell, *, size: int = 1, **_: object) -> FakeEngine:
        return FakeEngine(settings, answers, size, tell)

    monkeypatch.setattr("ngtcli.engine.opening.open_engine", opened)
