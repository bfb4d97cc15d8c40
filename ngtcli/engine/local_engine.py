"""The engine over a model that is loaded here: one sequence by itself, or a batch.

A job that finds no other runs by itself, with all that a single sequence can have: captured forward
passes, exact rows, heads. When others come that may share forward passes with it, it goes on beside
them.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

from ngtcli.config import DraftingSettings, ModelSettings, Settings
from ngtcli.decoding.decoder import Decoder
from ngtcli.decoding.exactness.numerics import NOT_EXACT
from ngtcli.decoding.grouping import Batching, Candidate, why_apart, why_single
from ngtcli.decoding.logits import rounds
from ngtcli.decoding.probe import find_batching
from ngtcli.decoding.sequence import DecodedSequence
from ngtcli.drafting.drafter import Drafter, draft_settings
from ngtcli.drafting.origins import DRAFT, GRAMMAR
from ngtcli.drafting.registry import MethodSpec, parse_method
from ngtcli.engine.engine import Engine, Job, JobEvent, Prepared, Submission
from ngtcli.engine.events import Ended, Started, Stepped
from ngtcli.engine.local import AnswerStart, LocalSession
from ngtcli.engine.no_answer import caught
from ngtcli.engine.session import AnswerOptions, Session
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompts.build import Prompt

_MAY_DIFFER = (
    "in half precision and int8 an answer given with others may differ from its own run where"
    " logits nearly tie; --batch-size 1 gives that one"
)
_SESSIONS = 8  # that are cached for the user, and as many for all other owners; guess
_Sessions = OrderedDict[tuple[ModelSettings, DraftingSettings], LocalSession]  # by `common_of`


def common_of(settings: Settings) -> tuple[ModelSettings, DraftingSettings]:
    """Return the settings that the answers of a batch have in common.

    A line may have a method of its own, and is then answered in another batch.
    """
    return settings.model, settings.drafting.effective


def private(settings: Settings) -> Settings:
    """Return settings by which nothing of the user's own is drafted from, and nothing stored."""
    return settings.replace(keep_documents="off")


@dataclass(slots=True, eq=False, kw_only=True)
class LocalJob(Job):
    """A job of this engine.

    Attributes:
        candidate: What decides with which others it is decoded.
        sequence: What is decoded; None until it has a decoder.
    """

    candidate: Candidate
    sequence: DecodedSequence | None = None

    @property
    def session(self) -> LocalSession:
        """The session that prepared it."""
        return cast(LocalSession, self.prepared.session)  # as of `LocalEngine._session_for`

    @property
    def start(self) -> AnswerStart:
        """What is known of its answer before the model is used."""
        return cast(AnswerStart, self.prepared.start)  # as of `LocalEngine._start`

    @property
    def begun_sequence(self) -> DecodedSequence:
        """Its sequence, which has begun."""
        assert self.sequence is not None
        return self.sequence


@dataclass(frozen=True, slots=True, eq=False)
class _Single:
    """The decoder of one job; its prompt is read in a step of its own."""

    job: LocalJob
    decoder: Decoder
    method: MethodSpec


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """A decoder that jobs join and leave; `is_parted`: each goes on by itself, one by one."""

    decoder: Decoder
    method: MethodSpec
    is_parted: bool = False


class LocalEngine(Engine):
    """Answers by one model, at most `size` sequences at a time; 0: as many as memory allows.

    In float32 each answer has the token ids of its own run. In half precision and int8 near ties
    may turn out otherwise, so that the user's own questions run by themselves there unless
    exactness is not wanted, or they are `many`.

    Raises:
        UsageError: Where many answers are to be exact.
    """

    def __init__(self, session: LocalSession, *, size: int = 0, many: bool = False) -> None:
        super().__init__(session, many=many)
        self._base = session
        self._model = session.model
        self._size = size
        self._rounds = rounds(self._model.hf)
        self._sessions: _Sessions = OrderedDict({common_of(session.settings): session})
        self._client_sessions: _Sessions = OrderedDict()  # that only other owners have used
        self._sessions_lock = threading.Lock()
        self._state: _Single | _Batch | None = None
        self._waiting: deque[LocalJob] = deque()  # that are to begin, the first of them next
        self._jobs: list[LocalJob] = []  # that have begun
        self._others_follow = False  # soon, behind the job that was added last
        self._reading: LocalJob | None = None  # whose prompt is being read
        self._events: list[JobEvent] = []  # to be returned by the next step
        self._learning: LocalSession | None = None  # whose memory the answers teach
        if many and size != 1:
            if session.settings.drafting.exact == "on" and self._model.takes_drafts:
                raise UsageError(
                    "exact decoding takes one text at a time",
                    hint="Leave out --exact, or give --batch-size 1.",
                )
            find_batching(self._model)

    def warm(self) -> None:
        """Do before the first question what it would wait for, and try whether batches work."""
        find_batching(self._model)
        self._base.drafter()

    # --- before a forward pass, from any thread ---

    def _session_for(self, submission: Submission) -> LocalSession:
        settings = submission.request.settings
        settings = settings.replace(pool=settings.drafting.pool and not submission.owner)
        session = self._with(settings, submission.owner)
        return session.sharing(settings, submission.owner, submission.report)

    def _with(self, settings: Settings, owner: str) -> LocalSession:
        """Return a session with these settings but for those of one answer; a few are cached.

        What the user of this process has used is not evicted by what other owners use.
        """
        key = common_of(settings)
        with self._sessions_lock:
            cache = self._client_sessions if owner else self._sessions
            if owner and key in self._sessions:
                return self._sessions[key]
            session = cache.pop(key, None) or self._client_sessions.pop(key, None)
            if session is None:
                session = self._base.with_settings(settings)
            cache[key] = session  # the last used is the last
            if len(cache) > _SESSIONS:
                cache.popitem(last=False)
            return session

    def _start(
        self, session: Session, prompt: Prompt, options: AnswerOptions, private: bool
    ) -> AnswerStart:
        start = cast(LocalSession, session).start(prompt, options)
        return replace(start, context=replace(start.context, private=private))

    # --- who runs with whom ---

    def candidate(self, submission: Submission) -> Candidate:
        """Return what decides with which others a request is decoded."""
        settings = submission.request.settings
        return Candidate(
            shared=common_of(settings),
            is_exact=settings.drafting.exact == "on",
            may_differ=self.many or bool(submission.owner) or settings.drafting.exact == "off",
            follows=_follows(settings),
        )

    @property
    def _batching(self) -> Batching:
        return Batching(self._size, self._model.batching, self._rounds)

    def _may_join(self, candidate: Candidate | None) -> bool:
        """Whether another job may begin beside those that run; None stands for any other."""
        if not self._jobs:  # what the last jobs have learned is still to be stored
            return False
        running = [job.candidate for job in self._jobs]
        if why_apart(candidate or running[0], running, self._batching):
            return False
        if self._is_stand_in_over():  # these jobs end first, and the next ones have the method
            return False
        return isinstance(self._state, _Single) or self._decoder.takes_more

    def _is_stand_in_over(self) -> bool:
        """Whether a stand-in drafts for the running jobs though their method is compiled by now."""
        assert self._state is not None
        drafting = self._state.method.name
        submission = self._jobs[0].submission
        session = self._with(submission.request.settings, submission.owner)
        if session.parse_method().name == drafting:
            return False
        return session.available_method().name != drafting

    @property
    def _decoder(self) -> Decoder:
        assert self._state is not None
        return self._state.decoder

    # --- jobs ---

    def has_room(self, submission: Submission | None = None) -> bool:
        if self._waiting:
            return False
        if self._state is None:
            return True
        return self._may_join(self.candidate(submission) if submission is not None else None)

    def add(self, prepared: Prepared, *, others: bool = False) -> LocalJob:
        job = LocalJob(prepared, candidate=self.candidate(prepared.submission))
        self._waiting.append(job)
        self._others_follow = others
        return job

    def step(self) -> list[JobEvent]:
        if not self._events:
            if self._waiting and self._may_begin(self._waiting[0]):
                self._begin(self._waiting[0])
            elif self._jobs:
                self._decode()
            elif self._waiting:  # for a decoder that has no job any more
                self._finish_last()
        events, self._events = self._events, []
        return events

    def drop(self, job: Job) -> Ended | None:
        assert isinstance(job, LocalJob)
        if job in self._waiting:
            self._waiting.remove(job)
            return self._interrupted(job) if job.sequence is not None else None
        self._jobs.remove(job)
        if self._state is None:
            return self._interrupted(job)
        ended = self._state.decoder.drop(job.begun_sequence)
        answer = self._interrupted(job)
        self._collect(sequence for sequence in ended if sequence is not job.sequence)
        return answer

    @property
    def is_open(self) -> bool:
        return self._learning is not None

    def finish(self, *, store: bool) -> None:
        # None before what may fail: beside a closed decoder no other job would ever begin.
        state, self._state = self._state, None
        learning, self._learning = self._learning, None
        self._events = []
        try:
            if state is not None:
                state.decoder.close()
        finally:
            if learning is not None:
                learning.save(documents=store)

    def _finish_last(self) -> None:
        """Store what the last jobs have taught, so that the next one may begin."""
        try:
            self.finish(store=True)
        except Exception as error:
            self.session.warn(f"what the model learned is not kept: {caught(error)}")

    # --- how a job begins ---

    def _may_begin(self, job: LocalJob) -> bool:
        if self._state is None or self._is_opened(job):
            return True
        return self._may_join(job.candidate)

    def _is_opened(self, job: LocalJob) -> bool:
        """Whether a job has a decoder for itself, and its prompt is to be read."""
        return isinstance(self._state, _Single) and self._state.job is job

    def _begin(self, job: LocalJob) -> None:
        """Do what comes next for a job that waits: make its decoder, or read its prompt."""
        try:
            if self._state is None:
                self._open(job)
                if self._is_opened(job):  # `Started` is to come before its prompt is read
                    return
            elif isinstance(self._state, _Single) and not self._is_opened(job):
                self._share(self._state)
                return
            self._read(job)
        except BaseException as error:
            failure = caught(error)
            self._waiting.remove(job)
            self._events.append((job, failure))

    def _open(self, job: LocalJob) -> None:
        """Make a decoder for a job: its own, or one that others may join at once."""
        prepared = job.prepared
        settings = prepared.submission.request.settings
        if prepared.options.many and self._size != 1:
            find_batching(self._model)  # now, as nothing runs
        self._learning = self._with(settings, prepared.submission.owner)
        is_single = bool(why_single(job.candidate, self._batching))
        if not is_single and (self.many or self._others_follow):
            method = self._learning.available_method()
            drafting = self._learning.batch_drafting(method)
            decoder = Decoder(self._model, drafting, self._size, self._report_reading)
            self._state = _Batch(decoder, method)
            self._warn_of_batches(settings)
            return
        with self._starting:
            sequence = job.session.sequence(prepared.prompt, prepared.options, job.start)
        decoder = Decoder(
            self._model,
            progress=self._report_reading,
            split_times=prepared.options.split_times,
        )
        self._state = _Single(job, decoder, job.start.method)
        job.sequence = sequence
        job.numerics = sequence.numerics
        self._add_started(job, sequence.make_drafter())
        self._warn_of_batches(settings)  # last, for nothing is answered where the above fails

    def _read(self, job: LocalJob) -> None:
        """Read the prompt of a job, which then runs."""
        prepared = job.prepared
        is_single = job.sequence is not None
        if not is_single:
            many = prepared.options.many or prepared.prompt.selection is not None
            job.sequence = job.session.batch_sequence(job.start, prepared.options, many)
        self._reading = job
        try:
            ended = self._decoder.add(job.begun_sequence)
        finally:
            self._reading = None
        self._waiting.remove(job)
        self._jobs.append(job)
        drafter = job.begun_sequence.drafter
        if not is_single and drafter is not None:  # there is none where memory did not suffice
            self._add_started(job, drafter)
        self._collect(ended)

    def _report_reading(self, read: int, total: int) -> None:
        """Report how many tokens of a prompt are read; it may be one that is read again."""
        session = self._base if self._reading is None else self._reading.session
        session.reading(read, total)

    def _add_started(self, job: LocalJob, drafter: Drafter) -> None:
        origins = drafter.origins
        if job.start.limits.grammar and drafter.drafts:
            origins = (*(origins or (DRAFT,)), GRAMMAR)
        self._events.append((job, Started(origins)))

    def _warn_of_batches(self, settings: Settings) -> None:
        """Warn why many answers are not batched, or what is different in a batch."""
        if not self.many or self._size == 1:
            return
        follows = _follows(settings)
        reason = f"{follows} follows one text at a time" if follows else self._model.batching.why
        if reason:
            self.session.warn(f"prompts are answered one after another: {reason}")
            return
        if settings.drafting.exact == "auto" and self._rounds:
            self.session.warn(_MAY_DIFFER)
        method = parse_method(settings.drafting.method, draft_settings(settings))
        if settings.model.heads and method.entry.costs:
            self.session.warn(
                "several texts at once are drafted without heads (--batch-size 1 uses them)"
            )

    # --- forward passes, and how jobs end ---

    def _share(self, single: _Single) -> None:
        """Let others join the job that has run by itself; where that fails, nobody joins it."""
        job = single.job
        try:
            session = self._with(job.submission.request.settings, job.submission.owner)
            method = session.available_method()
            with self._starting:
                drafting = session.batch_drafting(method)
                single.decoder.regroup(drafting, self._size)
        except BaseException as error:
            job.candidate = replace(job.candidate, has_failed=True)
            self._warn_of_failure(caught(error))
            return
        self._state = _Batch(single.decoder, method)
        job.numerics = NOT_EXACT

    def _decode(self) -> None:
        try:
            ended = self._decoder.step()
        except BaseException as error:
            failure = caught(error)
        else:
            self._collect(ended)
            return
        try:
            if isinstance(self._state, _Batch) and not self._state.is_parted:
                self._separate(self._state, failure)
            else:
                failed = self._decoder.sequences[0]
                self._collect(self._decoder.drop(failed, failure))
        finally:
            del failure  # it holds all that the forward pass had in memory

    def _collect(self, ended: Iterable[DecodedSequence]) -> None:
        """Take the new steps of all jobs, and the answers of those that have ended."""
        for job in self._jobs:
            self._take_steps(job)
        jobs = {job.begun_sequence: job for job in self._jobs}
        for sequence in ended:
            self._end(jobs[sequence], sequence.error)

    def _take_steps(self, job: LocalJob) -> None:
        sequence = job.begun_sequence
        for step in sequence.take_steps():
            job.steps.append(step)
            thought_tokens = sequence.statistics.thought_tokens or 0
            self._events.append((job, Stepped(step, thought_tokens)))

    def _end(self, job: LocalJob, error: NgtError | None) -> None:
        self._jobs.remove(job)
        self._events.append((job, error or self._answer(job)))

    def _separate(self, batch: _Batch, error: NgtError) -> None:
        """Let each job go on by itself, as nobody knows whose part of a forward pass failed."""
        self._warn_of_failure(error)
        for job in self._jobs:
            job.candidate = replace(job.candidate, has_failed=True)
        batch.decoder.regroup()
        self._state = replace(batch, is_parted=True)

    def _warn_of_failure(self, error: NgtError) -> None:
        self.session.warn(f"answering texts together failed ({error}): each goes on by itself")

    def _interrupted(self, job: LocalJob) -> Ended:
        answer = self._answer(job)
        return replace(answer, finish_reason=answer.finish_reason or "interrupted")

    def _answer(self, job: LocalJob) -> Ended:
        """Return what has come of a job so far."""
        sequence = job.begun_sequence
        is_single = isinstance(self._state, _Single) or (
            self._state is not None and self._state.is_parted
        )
        if is_single:
            job.background = job.session.memory.background.words()
        return Ended(
            finish_reason=sequence.finish_reason,
            steps=tuple(job.steps),
            exact=is_single and sequence.is_exact,
            statistics=sequence.statistics,
            trie=job.start.trie,
            passes=self._model.passes.report(),
            policy=sequence.policy,
            drafted_by=self._state.method.name if self._state is not None else "",
        )


def _follows(settings: Settings) -> str:
    """Return what drafts of these settings come from that follows one text; "" for nothing."""
    method = parse_method(settings.drafting.method, draft_settings(settings))
    if method.name == "draft-model":
        return "a draft model"
    return "a head" if method.entry.heads else ""
