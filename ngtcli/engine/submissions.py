"""The requests that an engine answers: their order, their parts, and their sources.

A driver adds prepared requests and calls `step`, which begins a job, runs one forward pass for all
jobs, or completes an answer, and returns the events of requests.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from ngtcli.drafting.steps import Step, Token
from ngtcli.engine.engine import (
    Engine,
    Job,
    Prepared,
    PreparedParts,
    PreparedRequest,
    PreparedWithoutModel,
    Submission,
)
from ngtcli.engine.events import Ended, Event, Message, Part, Prompted, Started, Stepped
from ngtcli.engine.no_answer import (
    NOT_IN_DOCUMENTS,
    PROMPT,
    caught,
    not_in_documents,
    repeats_instructions,
)
from ngtcli.engine.parts import CachedParts, Level, NumberedPart, PartsInProgress
from ngtcli.engine.report import details, remarks, speed_fact, with_sources
from ngtcli.engine.request import Want
from ngtcli.errors import NgtError, StoppedError, unexpected
from ngtcli.prompts.reports import PartReport
from ngtcli.system import process
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted

_LONG = 5_000_000  # length of documents, in characters, that take long to compare (guess)
_INTERVAL_S = 0.3  # between two status lines about parts (guess)

SubmissionEvent = tuple[Submission, Event | NgtError]


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """The work of one job: a prepared answer, or a part whose prompt is made when it begins."""

    submission: Submission
    prepared: Prepared | None = None
    part: NumberedPart | None = None


class Submissions:
    """The requests that one engine answers; it belongs to one thread.

    The last event of each request is an `Ended` or an NgtError.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[Submission, PartsInProgress | None] = {}  # requests that have not ended
        self._waiting: deque[_Work] = deque()
        self._running: dict[Job, _Work] = {}
        self._ended: deque[tuple[_Work, Job, Ended]] = deque()  # answers to compare with documents
        self._events: list[SubmissionEvent] = []  # for the next step to return
        # The caches of parts whose answer has been returned; the next `step` deletes them.
        self._part_caches_to_forget: list[CachedParts] = []
        self._reported_at = 0.0  # the last report on parts, by time.monotonic

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(
            self._open
            or self._events
            or self._running
            or self._part_caches_to_forget
            or self._engine.is_open
        )

    def has_room(self, submission: Submission | None = None) -> bool:
        """Return whether this request (None: any request) may be added now."""
        return not self._waiting and self._engine.has_room(submission)

    def add(self, prepared: PreparedRequest) -> None:
        """Add a prepared request, which begins next."""
        submission = prepared.submission
        if isinstance(prepared, PreparedWithoutModel):
            self._events += [(submission, event) for event in _answer_without_model(prepared)]
        elif isinstance(prepared, PreparedParts):
            self._open[submission] = PartsInProgress(
                prepared.session, submission.request, prepared.plan, prepared.level
            )
            self._add_level(submission, prepared.level)
        else:
            self._open[submission] = None
            self._add_answer(prepared)

    def step(self) -> list[SubmissionEvent]:
        """Do the next piece of work, at most one forward pass; return the events."""
        if not self._events:
            with reporting_to(self._engine.session):
                self._advance()
        return self._take_events()

    def stop(self, submission: Submission) -> None:
        """End a request as interrupted; its last event comes with the next step."""
        if submission not in self._open:
            return
        for work, job, answer in self._ended:
            if work.submission is submission:
                self._complete(work, job, answer)
                return
        for job, work in self._running.items():
            if work.submission is submission and work.part is None:
                del self._running[job]
                answer_so_far = self._engine.drop(job)
                if answer_so_far is not None:
                    self._complete(work, job, answer_so_far)
                    return
                break
        stopped = self._stopped(submission)
        self._remove(submission)
        self._events.append((submission, stopped))

    def interrupt(self) -> list[SubmissionEvent]:
        """End all requests as interrupted, without a forward pass, as one may be half done."""
        self._end_all(self.stop)
        return self._take_events()

    def close(self) -> None:
        """End all requests without events: nobody waits for them."""
        self._end_all(self._remove)

    def _end_all(self, end: Callable[[Submission], None]) -> None:
        """Close the engine, then end each open request by `end`, even where closing fails."""
        self._part_caches_to_forget.clear()
        try:
            if self._engine.is_open:
                self._engine.finish(store_prefixes=False)
        finally:
            for submission in list(self._open):
                end(submission)

    # --- one step ---

    def _advance(self) -> None:
        while self._part_caches_to_forget:
            self._after_answers(self._part_caches_to_forget.pop().forget)
        if self._ended:
            self._complete(*self._ended[0])
        elif self._waiting and self._engine.has_room(self._waiting[0].submission):
            self._begin(self._waiting.popleft())
        elif self._running:
            for job, event in self._engine.step():
                self._take(job, event)
            self._report_parts()
        elif self._engine.is_open:
            self._after_answers(lambda: self._engine.finish(store_prefixes=True))

    def _take_events(self) -> list[SubmissionEvent]:
        events = self._events
        self._events = []
        return events

    def _after_answers(self, work: Callable[[], None]) -> None:
        """Do work that follows delivered answers; report a failure as a warning only."""
        try:
            work()
        except Exception as error:
            self._engine.session.warn(f"what was learned was not stored: {caught(error)}")

    def _add_answer(self, prepared: Prepared) -> None:
        submission = prepared.submission
        prompt = prepared.prompt
        prompted = Prompted(len(prompt.ids), prompt.selection, prompt.left_out)
        self._events.append((submission, prompted))
        self._waiting.append(_Work(submission, prepared))

    def _begin(self, work: _Work) -> None:
        try:
            prepared = work.prepared
            if work.part is not None:
                prepared = self._prepare_part(work.submission, work.part)
            if prepared is not None:
                job = self._engine.add(prepared, others=bool(self._waiting))
                self._running[job] = work
        except BaseException as error:
            self._fail(work, caught(error))

    def _take(self, job: Job, event: Event | NgtError) -> None:
        """Handle an event of the engine, unless the request of the job has ended meanwhile."""
        work = self._running.get(job)
        if work is None:
            return
        if not isinstance(event, Ended | NgtError):
            if work.part is None:
                self._events.append((work.submission, event))
            return

        del self._running[job]
        if isinstance(event, NgtError):
            self._fail(work, event)
        elif work.part is None:
            self._ended.append((work, job, event))
        else:
            self._part_job_ended(work, job, event)

    # --- how requests end ---

    def _complete(self, work: _Work, job: Job, answer: Ended) -> None:
        """Add facts about the prompt, sources and remarks to an answer, and end its request."""
        submission = work.submission
        settings = submission.request.settings
        prompt = job.prepared.prompt
        model = job.prepared.session.facts
        parts = self._open[submission]
        answer = replace(
            answer,
            cuts=prompt.cuts,
            selection=prompt.selection,
            coverage=prompt.coverage,
            parts=tuple(parts.reports) if parts else (),
        )
        if _is_echo(submission, answer):
            answer = replace(answer, finish_reason=PROMPT)
        if parts and answer.finish_reason != "interrupted":
            self._part_caches_to_forget.append(parts.cache)

        answer = replace(answer, facts=(speed_fact(settings, answer),))
        if Want.SOURCES in submission.request.wants:
            answer = self._with_sources(job, answer)
        if Want.REMARKS in submission.request.wants:
            sentences = remarks(settings, model, answer, job.numerics, job.background)
            more = details(settings, model, answer)
            answer = replace(answer, remarks=tuple(sentences), details=tuple(more))

        self._remove(submission)
        self._events.append((submission, answer))

    def _with_sources(self, job: Job, answer: Ended) -> Ended:
        """Return an answer with its sources, or without them if they cannot be found.

        The answer is complete by now; a failure must not lose it.
        """
        documents = job.submission.request.documents
        try:
            if not answer.selection and sum(len(d.text) for d in documents) > _LONG:
                job.prepared.session.status("Comparing the answer with the documents …")
            return with_sources(answer, documents)
        except StoppedError:  # Nobody waits for the sources.
            return answer
        except KeyboardInterrupt:
            why = "interrupted"
        except Exception as error:
            why = "interrupted" if process.interrupted() else str(unexpected(error))
        warning = f"the answer is complete, but its sources could not be found: {why}"
        _report(job.submission, Message("warn", warning))
        return answer

    def _fail(self, work: _Work, error: NgtError) -> None:
        """End a request with the error of one of its jobs."""
        submission = work.submission
        part = work.part
        if submission not in self._open:
            return
        if isinstance(error, StoppedError):
            error = self._stopped(submission)
        elif part is not None:
            parts = self._open[submission]
            hint = parts.resume_hint if parts else ""
            warning = f"failed at {part.words.lower()}, {part.part.name}{hint}"
            _report(submission, Message("warn", warning))
        self._remove(submission)
        self._events.append((submission, error))

    def _stopped(self, submission: Submission) -> StoppedError:
        parts = self._open[submission]
        return StoppedError(f"interrupted{parts.resume_hint if parts else ''}")

    def _remove(self, submission: Submission) -> None:
        """Drop all work on a request."""
        jobs = [job for job, work in self._running.items() if work.submission is submission]
        for job in jobs:
            del self._running[job]
            self._engine.drop(job)
        self._waiting = deque(work for work in self._waiting if work.submission is not submission)
        self._ended = deque(ended for ended in self._ended if ended[0].submission is not submission)
        self._open.pop(submission, None)

    # --- parts ---

    def _add_level(self, submission: Submission, level: Level) -> None:
        self._waiting.extend(_Work(submission, part=part) for part in level.parts)

    def _prepare_part(self, submission: Submission, part: NumberedPart) -> Prepared | None:
        """Make the prompt of a part and report the part; None if an earlier run answered it."""
        parts = self._parts_of(submission)
        prompt = part.part.build()
        report = parts.reuse(part, prompt)
        if report is not None:
            self._add_part_report(submission, part, report)
            return None
        _report(submission, Part(part.words))
        parts.session.status(f"{part.part.name} …")
        options = parts.level.options
        return self._engine.prepare_prompt(submission, parts.session, prompt, options)

    def _part_job_ended(self, work: _Work, job: Job, answer: Ended) -> None:
        submission = work.submission
        part = work.part
        assert part is not None
        if answer.finish_reason == "repetition":
            warning = f"{part.words}, {part.part.name}: summary cut off because it repeats itself"
            _report(submission, Message("warn", warning))
        try:
            parts = self._parts_of(submission)
            report = parts.answered(part, job.prepared.prompt, answer.text, len(answer.tokens))
        except BaseException as error:
            self._fail(work, caught(error))
            return
        self._add_part_report(submission, part, report)

    def _add_part_report(
        self, submission: Submission, part: NumberedPart, report: PartReport
    ) -> None:
        """Record a finished part; after a level, continue with the next one or the last prompt."""
        parts = self._parts_of(submission)
        try:
            following = parts.add(part, report)
            if following is None:
                return
            if isinstance(following, Level):
                self._add_level(submission, following)
                return
            options = parts.last_options(following)
            _report(submission, Part(""))
            prepared = self._engine.prepare_answer(submission, parts.session, following, options)
            self._add_answer(prepared)
        except BaseException as error:
            self._fail(_Work(submission), caught(error))

    def _parts_of(self, submission: Submission) -> PartsInProgress:
        parts = self._open[submission]
        assert parts is not None
        return parts

    def _report_parts(self) -> None:
        """Report which parts of each long document are being answered, at most every 0.3 s."""
        if time.monotonic() - self._reported_at <= _INTERVAL_S:
            return
        self._reported_at = time.monotonic()
        running: dict[Submission, list[tuple[NumberedPart, Job]]] = {}
        for job, work in self._running.items():
            if work.part is not None:
                running.setdefault(work.submission, []).append((work.part, job))
        for submission, parts in running.items():
            numbers = sorted(part.number for part, _ in parts)
            words = f"Part {numbers[0]}"
            if len(numbers) > 1:
                words = f"Parts {numbers[0]} to {numbers[-1]}"
            _report(submission, Part(f"{words} of {parts[0][0].count}"))
            count = sum(len(step.tokens) for _, job in parts for step in job.steps)
            _report(submission, Message("status", f"{counted(count, 'token')} …"))


def _report(submission: Submission, event: Event) -> None:
    """Report an event; a request that was cancelled meanwhile is stopped by its driver."""
    try:
        submission.report(event)
    except StoppedError:
        pass


def _answer_without_model(unasked: PreparedWithoutModel) -> list[Event]:
    """Return the events of a request that is answered without the model."""
    prompt = unasked.prompt
    assert prompt.coverage is not None
    text = not_in_documents(prompt.coverage)
    token_ids = unasked.session.facts.tokenizer.encode(text)
    tokens = [Token(token_id, "") for token_id in token_ids[:-1]]
    tokens.append(Token(token_ids[-1], text))  # The last token carries the whole text.
    step = Step(tuple(tokens), NOT_IN_DOCUMENTS)
    ended = Ended(
        finish_reason=NOT_IN_DOCUMENTS,
        steps=(step,),
        exact=True,
        selection=prompt.selection,
        coverage=prompt.coverage,
        facts=("the model was not asked",),
    )
    prompted = Prompted(len(prompt.ids), prompt.selection, prompt.left_out)
    return [prompted, Started(), Stepped(step), ended]


def _is_echo(submission: Submission, answer: Ended) -> bool:
    """Return whether an answer from documents only repeats its instructions."""
    request = submission.request
    if request.task not in ("summarize", "ask") or request.settings.answer.has_form:
        return False
    if answer.finish_reason == "interrupted":
        return False
    return repeats_instructions(answer.text, request.preset.template, request.question)
