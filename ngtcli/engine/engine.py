"""The engine: prepared prompts in, the events of their answers out, one forward pass at a time.

A caller prepares a request, from any thread, and adds what comes of it where the engine has room.
`step` then does one forward pass for all jobs and returns what happened. What is worth showing
while work goes on, such as how much of a prompt is read, goes to the request's own `report`.
"""

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.drafting.steps import Step
from ngtcli.engine.events import Ended, Event, Message, Report, ignore
from ngtcli.engine.no_answer import doubt_of
from ngtcli.engine.parts import Level, Plan, advance, in_parts
from ngtcli.engine.request import Request, Want
from ngtcli.engine.session import AS_SET, AnswerOptions, Session
from ngtcli.errors import NgtError
from ngtcli.models.recommended import is_demonstration
from ngtcli.prompts.build import Prompt, check_known, look_alikes
from ngtcli.system.reporting import reporting_to


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A request as an engine gets it: with who asks, and where to report what happens meanwhile.

    `report` is called at once with messages, the progress of reading a prompt, and the part of a
    long text that is being answered. It may raise StoppedError to end that work. The `owner` is ""
    for the user of this process.
    """

    request: Request
    owner: str = ""
    report: Report = ignore


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A prompt, and all that is known of its answer before a forward pass.

    `start` is what the engine made for it in `Engine._start`; nobody else reads it.
    """

    submission: Submission
    session: Session
    prompt: Prompt
    options: AnswerOptions
    start: object


@dataclass(frozen=True, slots=True, eq=False)
class PreparedParts:
    """A request about documents that do not fit: the plan of its parts, and their first level."""

    submission: Submission
    session: Session
    plan: Plan
    level: Level


@dataclass(frozen=True, slots=True, eq=False)
class Unasked:
    """A request that is answered without the model: its documents have too little of it."""

    submission: Submission
    session: Session
    prompt: Prompt


PreparedRequest = Prepared | PreparedParts | Unasked


@dataclass(slots=True, eq=False)
class Job:
    """A prompt whose answer is being made; it exists while the engine works on it.

    An engine may have a subclass, with what it decodes.

    Attributes:
        prepared: The prompt.
        steps: Those that are done.
        numerics: Whether the answer is exact.
        background: A sentence that says which general text its drafts come from; "" for none.
    """

    prepared: Prepared
    steps: list[Step] = field(default_factory=list)
    numerics: Numerics = NOT_EXACT
    background: str = ""

    @property
    def submission(self) -> Submission:
        """The request that it answers, or a part of it."""
        return self.prepared.submission


JobEvent = tuple[Job, Event | NgtError]


class Engine(ABC):
    """A loaded model. All but `prepare` and `prepare_prompt` belong to one thread.

    `many`: the prompts are many texts, which share forward passes from the first on.
    """

    def __init__(self, session: Session, *, many: bool = False) -> None:
        self.session = session
        self.many = many
        self._starting = threading.Lock()  # grammars and tries of the last prompts are shared

    # --- before a forward pass, from any thread ---

    def prepare(self, submission: Submission) -> PreparedRequest:
        """Make the prompt of a request, and what is drafted from. Raises NgtError."""
        session = self._session_for(submission)
        with reporting_to(session):
            return self._prepare(submission, session)

    def _prepare(self, submission: Submission, session: Session) -> PreparedRequest:
        request = submission.request
        if request.settings.retrieval.overflow == "split":
            plan = in_parts(session, request)
            first = advance(plan)
            if isinstance(first, Level):
                return PreparedParts(submission, session, plan, first)
            prompt = first
        else:
            prompt = session.prompt(
                request.wording,
                request.documents,
                request.question,
                request.turns,
                request.queries,
                compares=request.task == "ask",
            )
        if _is_unasked(submission, prompt):
            return Unasked(submission, session, prompt)
        options = replace(AS_SET, many=self.many, probabilities=Want.PROBABILITIES in request.wants)
        return self.prepare_answer(submission, session, prompt, options)

    def prepare_answer(
        self, submission: Submission, session: Session, prompt: Prompt, options: AnswerOptions
    ) -> Prepared:
        """Prepare the answer to a whole request, whose prompt is made. Raises ModelError."""
        request = submission.request
        facts = session.facts
        if request.prediction:
            predicted = facts.tokenizer.encode(request.prediction)
            check_known(predicted, facts.vocabulary)
            prompt = replace(prompt, predicted=tuple(predicted))
        if Want.REMARKS in request.wants:
            system = request.settings.answer.system
            for words in look_alikes(request.documents, request.question, facts.tokenizer, system):
                submission.report(Message("remark", words))
        return self.prepare_prompt(submission, session, prompt, options)

    def prepare_prompt(
        self, submission: Submission, session: Session, prompt: Prompt, options: AnswerOptions
    ) -> Prepared:
        """Prepare the answer to any prompt of a request, also to that of a part."""
        with self._starting:
            start = self._start(session, prompt, options, bool(submission.owner))
        return Prepared(submission, session, prompt, options, start)

    def _session_for(self, submission: Submission) -> Session:
        """Return the session that makes the prompts of a request. Raises OtherModelError."""
        settings = submission.request.settings
        return self.session.with_settings(settings, submission.owner, submission.report)

    def _start(
        self, session: Session, prompt: Prompt, options: AnswerOptions, private: bool
    ) -> object:
        """Return what this engine has to know of an answer; `private` ones teach it nothing."""
        return None

    # --- jobs ---

    @abstractmethod
    def has_room(self, submission: Submission | None = None) -> bool:
        """Whether a prompt of this request may be added now, or with None that of any other."""

    @abstractmethod
    def add(self, prepared: Prepared, *, others: bool = False) -> Job:
        """Take a prompt for which there is room; `step` begins it. `others` are soon to follow."""

    @abstractmethod
    def step(self) -> list[JobEvent]:
        """Read the prompt of a job, or do one forward pass for all jobs; return what happened.

        The last event of a job is `Ended` or the error that it ends with.
        """

    @abstractmethod
    def drop(self, job: Job) -> Ended | None:
        """End a job as interrupted; return what there is of its answer, None where it never began.

        No event of it comes any more.
        """

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether `finish` has something to do."""

    @abstractmethod
    def finish(self, *, store: bool) -> None:
        """No job goes on: store what was learned, and with `store` what was read of prompts."""


def _is_unasked(submission: Submission, prompt: Prompt) -> bool:
    """Return whether a question is answered without the model, as no passage has enough of it.

    The built-in model quotes some sentence for any question. Other models can say that a text has
    no answer, and know other words for what is asked: the user is warned, and the model is asked.
    """
    settings = submission.request.settings
    coverage = prompt.coverage
    if coverage is None or coverage.enough:
        return False
    if is_demonstration(settings.model.model) and not settings.answer.has_form:
        return True
    submission.report(Message("warn", doubt_of(coverage)))
    return False
