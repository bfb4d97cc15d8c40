"""What answers in place of a model."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from ngtcli.config import Settings
from ngtcli.draft.steps import PassesReport, Statistics, Step, Token
from ngtcli.errors import NgtError
from ngtcli.prompt.build import Prompt
from ngtcli.session.events import Ended
from ngtcli.session.session import FinishedAnswer, NumberedPrompt, Session
from ngtcli.tokens.tokenizer import Tokenizer
from tests.support.helpers import FakeBackend

TOKENIZER, CONTEXT = Tokenizer(FakeBackend()), 4000
PASSES = PassesReport(0, 0.0, "")


class FakeSession(Session):
    """Makes prompts of a token a letter, and has `give` answer them."""

    def __init__(self, settings: Settings, give: Any) -> None:
        super().__init__(settings, lambda _: None, lambda _: None)
        self.give = give
        passes = SimpleNamespace(reason="", report=lambda: PASSES)
        self.model: Any = SimpleNamespace(
            tokenizer=TOKENIZER, context=CONTEXT, vocabulary=0, context_reason="", passes=passes
        )

    def with_settings(self, settings: Settings) -> "FakeSession":
        return FakeSession(settings, self.give)

    def answer(self, prompt: Prompt, options: Any = None) -> Any:
        raise AssertionError("answers are given together")

    def answers(self, prompts: Any, size: int, session_of: Any = None) -> Any:
        return self.give(self, prompts, size, session_of)


class FakeAnswers:
    """Answers a few prompts together, the last one first, with the first words of each.

    `before` is called with the text of each prompt; what it raises that prompt, or the run, ends
    with. `asked` are the texts, `sizes` how many there were together.
    """

    def __init__(self, before: Callable[[str], None] = lambda _: None) -> None:
        self.before = before
        self.asked: list[str] = []

    def __call__(
        self, session: Any, prompts: Iterable[NumberedPrompt], size: int, own: Any = None
    ) -> Iterator[FinishedAnswer]:
        waiting = iter(prompts)
        while some := [*islice(waiting, max(size, 1))]:
            yield from (self._answer(*one) for one in reversed(some))

    def _answer(self, key: int, prompt: Prompt | NgtError) -> FinishedAnswer:
        if isinstance(prompt, NgtError):
            return FinishedAnswer(key, error=prompt)
        self.asked.append(prompt.text)
        try:
            self.before(prompt.text)
        except NgtError as error:
            return FinishedAnswer(key, prompt, error=error)
        words = " ".join(prompt.text.split()[:4])
        statistics = Statistics(prompt_tokens=len(prompt.ids))
        statistics.add_step(0, 0, 1)
        steps = (Step((Token(5, words),), "stop"),)
        answer = Ended(finish_reason="stop", steps=steps, statistics=statistics, passes=PASSES)
        return FinishedAnswer.of(key, prompt, answer)


def answer_with(monkeypatch: pytest.MonkeyPatch, answers: FakeAnswers) -> None:
    """Commands answer with these instead of a model."""
    opened = lambda settings, *_, **__: FakeSession(settings, answers)  # noqa: E731
    monkeypatch.setattr("ngtcli.cli.batch.open_session", opened)
