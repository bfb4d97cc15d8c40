"""The engine over a model that is loaded in this process: a single sequence, or a batch.

A job that comes alone is decoded as a single sequence, with all that only those have: captured
forward passes, exact decoding, heads. When jobs arrive that may share forward passes with it, it
continues in a batch with them.
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
    "batched answers may differ from single ones in half precision and int8, where logits nearly"
    " tie; use --batch-size 1 for the answers of single runs"
)
_MAX_SESSIONS = 8  # cached for the user, and as many for all other owners (guess)
_Sessions = OrderedDict[tuple[ModelSettings, DraftingSettings], LocalSession]  # by `batch_key`


def batch_key(settings: Settings) -> tuple[ModelSettings, DraftingSettings]:
    """Return the settings that all answers of a batch have in common.

    A line with another method is answered in another batch.
    """
    return settings.model, settings.drafting.effective


def private(settings: Settings) -> Settings:
    """Return settings that store nothing of what the model reads."""
    return settings.replace(keep_documents="off")


@dataclass(slots=True, eq=False, kw_only=True)
class LocalJob(Job):
    """A job of a `LocalEngine`.

    Attributes:
        candidate: Its properties that decide which other jobs it may share a batch with.
        sequence: Its sequence; None until it has a decoder.
    """

    candidate: Candidate
    sequence: DecodedSequence | None = None

    @property
    def session(self) -> LocalSession:
        """The session that prepared it."""
        return cast(LocalSession, self.prepared.session)  # It is made by `_session_for`.

    @property
    def start(self) -> AnswerStart:
        """The preparation of its answer."""
        return cast(AnswerStart, self.prepared.start)  # It is made by `_start`.

    @property
    def begun_sequence(self) -> DecodedSequence:
        """The sequence of a job that has a decoder."""
        assert self.sequence is not None
        return self.sequence


@dataclass(frozen=True, slots=True, eq=False)
class _Single:
    """The decoder of a single job. It is made in one step, and its prompt prefilled in the next."""

    job: LocalJob
    decoder: Decoder
    method: MethodSpec


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """A decoder that jobs join and leave.

    Attributes:
        decoder: The decoder.
        method: The method that drafts.
        is_parted: The batch failed, so that its jobs are finished one after another.
    """

    decoder: Decoder
    method: MethodSpec
    is_parted: bool = False


class LocalEngine(Engine):
    """An engine over one model.

    In float32 an answer has the same token ids in a batch as alone. In half precision and int8 near
    ties may be decided differently; there the user's questions are not batched, unless exactness is
    switched off or they are those of a batch command.

    Args:
        session: The session over the model.
        size: The maximum number of sequences at a time; 0: as many as memory allows.
        many: The prompts are those of a batch command.

    Raises:
        UsageError: The answers of a batch shall be exact.
    """

    def __init__(self, session: LocalSession, *, size: int = 0, many: bool = False) -> None:
        super().__init__(session, many=many)
        self._base = session
        self._model = session.model
        self._size = size
        self._rounds = rounds(self._model.hf)
        self._sessions: _Sessions = OrderedDict({batch_key(session.settings): session})
        self._client_sessions: _Sessions = OrderedDict()  # used by other owners only
        self._sessions_lock = threading.Lock()
        self._state: _Single | _Batch | None = None
        self._waiting: deque[LocalJob] = deque()  # jobs to begin, in order
        self._jobs: list[LocalJob] = []  # jobs that have begun
        self._others_follow = False  # other jobs will soon follow the one that was added last
        self._reading: LocalJob | None = None  # the job whose prompt is being prefilled
        self._events: list[JobEvent] = []  # for the next step to return
        self._learning: LocalSession | None = None  # the session whose memory learns from answers
        if many and size != 1:
            if session.settings.drafting.exact == "on" and self._model.takes_drafts:
                raise UsageError(
                    "--exact does not support batches",
                    hint="Leave out --exact, or use --batch-size 1.",
                )
            find_batching(self._model)

    def warm(self) -> None:
        """Do the work that the first question would wait for, and try whether batches work."""
        find_batching(self._model)
        self._base.drafter()

    # --- before a forward pass, from any thread ---

    def _session_for(self, submission: Submission) -> LocalSession:
        settings = submission.request.settings
        settings = settings.replace(pool=settings.drafting.pool and not submission.owner)
        session = self._with(settings, submission.owner)
        return session.sharing(settings, submission.owner, submission.report)

    def _with(self, settings: Settings, owner: str) -> LocalSession:
        """Return a session for the batch key of settings; a few sessions are cached.

        Other owners cannot evict sessions that the user of this process has used.
        """
        key = batch_key(settings)
        with self._sessions_lock:
            cache = self._client_sessions if owner else self._sessions
            if owner and key in self._sessions:
                return self._sessions[key]
            session = cache.pop(key, None) or self._client_sessions.pop(key, None)
            if session is None:
                session = self._base.with_settings(settings)
            cache[key] = session  # The most recently used session is the last.
            if len(cache) > _MAX_SESSIONS:
                cache.popitem(last=False)
            return session

    def _start(
        self, session: Session, prompt: Prompt, options: AnswerOptions, private: bool
    ) -> AnswerStart:
        start = cast(LocalSession, session).start(prompt, options)
        return replace(start, context=replace(start.context, private=private))

    # --- which jobs share a batch ---

    def candidate(self, submission: Submission) -> Candidate:
        """Return the properties of a request that decide which others it may share a batch with."""
        settings = submission.request.settings
        return Candidate(
            shared=batch_key(settings),
            is_exact=settings.drafting.exact == "on",
            may_differ=self.many or bool(submission.owner) or settings.drafting.exact == "off",
            single_drafter=_single_sequence_drafter(settings),
        )

    @property
    def _batching(self) -> Batching:
        return Batching(self._size, self._model.batching, self._rounds)

    def _may_join(self, candidate: Candidate | None) -> bool:
        """Return whether another job may join those that run; None stands for any other job."""
        if not self._jobs:  # What the last jobs have learned has to be stored first.
            return False
        running = [job.candidate for job in self._jobs]
        if why_apart(candidate or running[0], running, self._batching):
            return False
        if self._is_stand_in_over():  # The next jobs get the method, once these have ended.
            return False
        return isinstance(self._state, _Single) or self._decoder.takes_more

    def _is_stand_in_over(self) -> bool:
        """Return whether a stand-in drafts for the running jobs although their method is ready."""
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
            elif self._waiting:  # The decoder has no jobs any more.
                self._finish_last()
        events = self._events
        self._events = []
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

    def finish(self, *, store_prefixes: bool) -> None:
        # The state is reset before anything can fail: no job would begin while a decoder is closed.
        state = self._state
        learning = self._learning
        self._state = None
        self._learning = None
        self._events = []
        try:
            if state is not None:
                state.decoder.close()
        finally:
            if learning is not None:
                learning.save(store_prefixes=store_prefixes)

    def _finish_last(self) -> None:
        """Store what was learned from the last jobs, so that the next one may begin."""
        try:
            self.finish(store_prefixes=True)
        except Exception as error:
            self.session.warn(f"what was learned was not stored: {caught(error)}")

    # --- how a job begins ---

    def _may_begin(self, job: LocalJob) -> bool:
        if self._state is None or self._is_opened(job):
            return True
        return self._may_join(job.candidate)

    def _is_opened(self, job: LocalJob) -> bool:
        """Return whether a single job has its decoder, and its prompt is prefilled next."""
        return isinstance(self._state, _Single) and self._state.job is job

    def _begin(self, job: LocalJob) -> None:
        """Do the next step for a waiting job: make its decoder, or prefill its prompt."""
        try:
            if self._state is None:
                self._open(job)
                if self._is_opened(job):  # `Started` has to be returned before the prefill.
                    return
            elif isinstance(self._state, _Single) and not self._is_opened(job):
                self._share(self._state)
                return
            self._prefill(job)
        except BaseException as error:
            failure = caught(error)
            self._waiting.remove(job)
            self._events.append((job, failure))

    def _open(self, job: LocalJob) -> None:
        """Make a decoder for a job: one for it alone, or one that others may join at once."""
        prepared = job.prepared
        settings = prepared.submission.request.settings
        if prepared.options.many and self._size != 1:
            find_batching(self._model)  # It can be tried now, as nothing runs.
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
        self._warn_of_batches(settings)  # Last: if the above fails, there is no answer to warn of.

    def _prefill(self, job: LocalJob) -> None:
        """Prefill the prompt of a job, which then runs."""
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
        if not is_single and drafter is not None:  # There is none if memory did not suffice.
            self._add_started(job, drafter)
        self._collect(ended)

    def _report_reading(self, read: int, total: int) -> None:
        """Report how many tokens of a prompt are prefilled, perhaps for the second time."""
        session = self._base if self._reading is None else self._reading.session
        session.reading(read, total)

    def _add_started(self, job: LocalJob, drafter: Drafter) -> None:
        origins = drafter.origins
        if job.start.limits.grammar and drafter.drafts:
            origins = (*(origins or (DRAFT,)), GRAMMAR)
        self._events.append((job, Started(origins)))

    def _warn_of_batches(self, settings: Settings) -> None:
        """Warn that the answers of a batch command are not batched, or that a batch differs."""
        if not self.many or self._size == 1:
            return
        drafting_model = _single_sequence_drafter(settings)
        reason = self._model.batching.why
        if drafting_model:
            reason = f"{drafting_model} drafts for one sequence at a time"
        if reason:
            self.session.warn(f"prompts are answered one at a time: {reason}")
            return
        if settings.drafting.exact == "auto" and self._rounds:
            self.session.warn(_MAY_DIFFER)
        method = parse_method(settings.drafting.method, draft_settings(settings))
        if settings.model.heads and method.entry.costs:
            self.session.warn("heads are not used in a batch (--batch-size 1 uses them)")

    # --- forward passes, and how jobs end ---

    def _share(self, single: _Single) -> None:
        """Let other jobs join the single job; if that fails, no job joins it any more."""
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
            del failure  # Its traceback refers to the memory of the forward pass.

    def _collect(self, ended: Iterable[DecodedSequence]) -> None:
        """Record the new steps of all jobs, and the answers of those that have ended."""
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
        """Finish the jobs of a batch one after another: any of them may have caused the failure."""
        self._warn_of_failure(error)
        for job in self._jobs:
            job.candidate = replace(job.candidate, has_failed=True)
        batch.decoder.regroup()
        self._state = replace(batch, is_parted=True)

    def _warn_of_failure(self, error: NgtError) -> None:
        self.session.warn(f"decoding in a batch failed ({error}): continuing one after another")

    def _interrupted(self, job: LocalJob) -> Ended:
        answer = self._answer(job)
        return replace(answer, finish_reason=answer.finish_reason or "interrupted")

    def _answer(self, job: LocalJob) -> Ended:
        """Return the answer of a job as far as it is decoded."""
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


def _single_sequence_drafter(settings: Settings) -> str:
    """Name the model that drafts by these settings for one sequence only, "" if there is none."""
    method = parse_method(settings.drafting.method, draft_settings(settings))
    if method.name == "draft-model":
        return "a draft model"
    return "a head" if method.entry.heads else ""
