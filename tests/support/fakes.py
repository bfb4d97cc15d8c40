"""What answers in place of a model."""

from collections.abc import Callable

import pytest

from ngtcli.config import Settings
from ngtcli.drafting.steps import PassesReport, Statistics, Step, Token
from ngtcli.engine.engine import Engine, Job, JobEvent, Prepared, Submission
from ngtcli.engine.events import Ended, Stepped
from ngtcli.engine.no_answer import caught
from ngtcli.engine.session import ModelFacts, Session
from ngtcli.models.tokenizer import Tokenizer
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

    def __init__(self, settings: Settings, answers: FakeAnswers, size: int = 1) -> None:
        super().__init__(FakeSession(settings), many=True)
        self._answers, self._size, self._is_full = answers, max(size, 1), False
        self._jobs: list[Job] = []
        self._is_open = False

    def _session_for(self, submission: Submission) -> Session:
        return self.session.sharing(
            submission.request.settings, submission.owner, submission.report
        )

    def has_room(self, submission: Submission | None = None) -> bool:
        self._is_full = bool(self._jobs) and (self._is_full or len(self._jobs) >= self._size)
        return not self._is_full

    def add(self, prepared: Prepared, *, others: bool = False) -> Job:
        self._is_open = True
        self._jobs.append(Job(prepared))
        return self._jobs[-1]

    def step(self) -> list[JobEvent]:
        job, self._is_full = self._jobs[-1], True
        prompt = job.prepared.prompt
        self._answers.asked.append(prompt.text)
        try:
            self._answers.before(prompt.text)
        except Exception as error:
            self._jobs.remove(job)
            return [(job, caught(error))]
        words = self._answers.say(prompt.text)
        reason = self._answers.finish_reason
        job.steps.append(Step((Token(5, words, probability=0.9),), reason))
        statistics = Statistics(prompt_tokens=len(prompt.ids))
        statistics.add_step(0, 0, 1)
        answer = Ended(
            finish_reason=reason, steps=tuple(job.steps), statistics=statistics, passes=PASSES
        )
        self._jobs.remove(job)
        return [(job, Stepped(job.steps[0])), (job, answer)]

    def drop(self, job: Job) -> Ended | None:
        self._jobs.remove(job)
        return Ended(finish_reason="interrupted", passes=PASSES)

    @property
    def is_open(self) -> bool:
        return self._is_open

    def finish(self, *, store_prefixes: bool) -> None:
        self._is_open = False


def answer_with(monkeypatch: pytest.MonkeyPatch, answers: FakeAnswers) -> None:
    """Commands answer with these instead of a model."""

    def opened(settings: Settings, *, size: int = 1, **_: object) -> FakeEngine:
        return FakeEngine(settings, answers, size)

    monkeypatch.setattr("ngtcli.engine.opening.open_engine", opened)
