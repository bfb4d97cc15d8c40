"""The engine: it takes prepared prompts and returns the events of their answers.

A caller prepares a request on any thread, and adds the result when the engine has room for it. Each
`step` then prefills the prompt of one job or runs one forward pass for all jobs, and returns their
events. Progress within a step, such as the number of prefilled tokens, goes to the `report` of the
submission.
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
from ngtcli.engine.session import SESSION_OPTIONS, AnswerOptions, Session
from ngtcli.errors import NgtError
from ngtcli.prompts.build import Prompt, check_known, look_alikes
from ngtcli.prompts.selecting import skips_model
from ngtcli.system.reporting import reporting_to


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A request as an engine gets it.

    Attributes:
        request: The request.
        owner: The client that sent the request; "" for the user of this process.
        report: Receives messages while the request is prepared, and while a step runs also the
            progress of the prefill and which part of a long document is being summarized. It may
            raise StoppedError to end that work.
    """

    request: Request
    owner: str = ""
    report: Report = ignore


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A prompt, and the preparation of its answer before any forward pass.

    Attributes:
        start: The result of `Engine._start`, which only that engine uses.
    """

    submission: Submission
    session: Session
    prompt: Prompt
    options: AnswerOptions
    start: object


@dataclass(frozen=True, slots=True, eq=False)
class PreparedParts:
    """A request whose documents do not fit: the plan of their parts, and the first level of it."""

    submission: Submission
    session: Session
    plan: Plan
    level: Level


@dataclass(frozen=True, slots=True, eq=False)
class PreparedWithoutModel:
    """A request answered without the model: no passage has enough of the question's words."""

    submission: Submission
    session: Session
    prompt: Prompt


PreparedRequest = Prepared | PreparedParts | PreparedWithoutModel


@dataclass(slots=True, eq=False)
class Job:
    """A prompt that an engine is answering. Engines may subclass it to add their sequences.

    Attributes:
        prepared: The prompt.
        steps: The steps so far.
        numerics: Whether the answer is exact.
        background: A sentence about the general text that drafts come from; "" if there is none.
    """

    prepared: Prepared
    steps: list[Step] = field(default_factory=list)
    numerics: Numerics = NOT_EXACT
    background: str = ""

    @property
    def submission(self) -> Submission:
        """The submission that the prompt belongs to; one in parts has a job for each part."""
        return self.prepared.submission


JobEvent = tuple[Job, Event | NgtError]


class Engine(ABC):
    """A loaded model that answers requests. Only the `prepare…` methods may run on any thread.

    Args:
        session: The session over the model.
        many: Whether the prompts are those of a batch, which share forward passes from the start.
    """

    def __init__(self, session: Session, *, many: bool = False) -> None:
        self.session = session
        self.many = many
        # Held while an answer is prepared or begun: sessions share the latest grammars and tries.
        self._starting = threading.Lock()

    # --- before a forward pass, from any thread ---

    def prepare(self, submission: Submission) -> PreparedRequest:
        """Make the prompt of a request and prepare its answer. Raises NgtError."""
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
                with_coverage=request.task == "ask",
            )
        if skips_model(prompt, request.settings):
            return PreparedWithoutModel(submission, session, prompt)
        if prompt.coverage is not None and not prompt.coverage.enough:
            submission.report(Message("warn", doubt_of(prompt.coverage)))
        options = replace(
            SESSION_OPTIONS, many=self.many, probabilities=Want.PROBABILITIES in request.wants
        )
        return self.prepare_answer(submission, session, prompt, options)

    def prepare_answer(
        self, submission: Submission, session: Session, prompt: Prompt, options: AnswerOptions
    ) -> Prepared:
        """Prepare the answer to a request from its final prompt, which is not that of a part.

        The prompt gets the predicted answer. Text that looks like a control token is reported, if
        remarks are wanted.

        Args:
            submission: The request.
            session: The session that made the prompt.
            prompt: The prompt.
            options: The options of the answer.

        Raises:
            ModelError: The model lacks a token of the prediction.
        """
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
        """Prepare the answer to any prompt of a request: the final one, or that of a part.

        Args:
            submission: The request.
            session: The session that made the prompt.
            prompt: The prompt.
            options: The options of the answer.
        """
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
        """Prepare an answer for this engine; nothing is learned from one that is `private`."""
        return None

    # --- jobs ---

    @abstractmethod
    def has_room(self, submission: Submission | None = None) -> bool:
        """Return whether a prompt of this request (None: of any request) may be added now."""

    @abstractmethod
    def add(self, prepared: Prepared, *, others: bool = False) -> Job:
        """Add a prompt, which `step` begins when there is room; `others`: more will soon follow."""

    @abstractmethod
    def step(self) -> list[JobEvent]:
        """Prefill the prompt of a job, or run one forward pass for all jobs; return the events.

        The last event of a job is `Ended`, or the error that ended it.
        """

    @abstractmethod
    def drop(self, job: Job) -> Ended | None:
        """End a job as interrupted; return its answer so far, None if it has not begun.

        The job has no further events.
        """

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether `finish` has work to do."""

    @abstractmethod
    def finish(self, *, store_prefixes: bool) -> None:
        """Store what was learned, when no job is left.

        Args:
            store_prefixes: Whether to store the prefix cache, too.
        """
