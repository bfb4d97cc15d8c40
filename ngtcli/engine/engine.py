"""What answers: questions in, events out, on one thread.

A driver has a question prepared, adds it where the engine takes it, and steps while the engine is
busy. The parts of a long text are asked as any other text is: those of a level are answered
together where the engine can.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ngtcli.config import Settings
from ngtcli.decoding.exactness.numerics import Numerics
from ngtcli.drafting.steps import Statistics, Step
from ngtcli.engine.events import USUAL, Ended, Event, Message, Part, Prompted, Stepped, Wants
from ngtcli.engine.no_answer import PROMPT, repeats_instructions
from ngtcli.engine.parts import InParts
from ngtcli.engine.question import Question
from ngtcli.engine.report import facts, remarks, with_sources
from ngtcli.engine.session import AS_SET, AnswerOptions, Session
from ngtcli.errors import NgtError, StoppedError, counted, unexpected
from ngtcli.prompts.build import Prompt, check_known, look_alikes
from ngtcli.prompts.reports import PartReport
from ngtcli.system import process

_LONG = 5_000_000  # characters of documents that take longer to compare than is waited; guess
_INTERVAL_S = 0.3  # between two status lines; guess


@dataclass(slots=True, eq=False)
class Asked:
    """A question on its way; `tell` gets its events, the last of them `Ended` or an NgtError.

    `cancel` it from any thread: it ends within a step. `state` is that in a queue. A `part` of the
    `whole` question is one, too, and says what it says as that.
    """

    question: Question
    tell: Callable[[Event | NgtError], object]
    owner: str = ""
    wants: Wants = USUAL
    on_cancel: Callable[["Asked"], object] = lambda _: None
    whole: "Asked | None" = None
    part: Any = None  # NumberedPart
    cancelled: bool = False
    state: str = "new"
    is_over: bool = False
    # Once it is prepared. Without a prompt that is made of what comes of `parts`.
    session: Any = None
    parts: Any = None  # InParts
    prompt: Any = None  # Prompt
    options: AnswerOptions = AS_SET
    # `begun` is what is known before the model is used, `run` what makes the answer, `steps` those
    # that it has done, of which so many are `told`. `alone`: no other shares passes with it.
    begun: Any = None
    run: Any = None
    alone: bool = False
    steps: list[Step] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    told: int = 0
    error: NgtError | None = None

    @property
    def root(self) -> "Asked":
        """The question that this is, or is a part of."""
        return self.whole or self

    def say(self, event: Event | NgtError) -> None:
        """Tell an event; nothing comes after the last one."""
        if (asked := self.root).is_over:
            return
        asked.is_over = isinstance(event, Ended | NgtError)
        asked.tell(event)
        if asked.is_over:  # its arrays are free now, and not once a collector finds the cycle
            asked.session = asked.parts = asked.begun = asked.run = None

    def cancel(self) -> None:
        """End it; does nothing after the last event."""
        self.cancelled = True
        self.on_cancel(self)

    @property
    def stopped(self) -> StoppedError:
        """What it ends with where nothing of an answer is there."""
        return StoppedError(f"interrupted{self.parts.kept_words() if self.parts else ''}")


class Engine(ABC):
    """A loaded model, and what it answers now. All but `prepare` and `tell` belong to one thread.

    It takes over what its session tells: while it works for a question that is told there, else to
    whom the session told it. `many`: the questions are many texts that share passes from the first.
    """

    def __init__(self, session: Session, *, many: bool = False) -> None:
        self.session, self.many = session, many
        self.aloud, session.tell = session.tell, self.tell
        self._here = threading.local()  # .asked: what this thread works for
        self._starting = threading.Lock()  # what counts documents keeps what it counted last
        self._texts: list[Asked] = []  # that are being answered
        self._pending = deque[Asked]()  # that wait for room, after all that came before them
        self._is_open = False  # whether there is something to be stored
        self._finished = list[Callable[[], None]]()  # to be called once an answer was delivered
        self._shown = 0.0  # when the last status of parts was told, by time.monotonic

    # --- what an engine does in its own way ---

    def _session_for(self, settings: Settings, owner: str) -> Session:
        """The session of a question. Raises OtherModelError."""
        return self.session.with_settings(settings, owner)

    @abstractmethod
    def _start(self, text: Asked) -> None:
        """Set what is known of a text before the model is used. From any thread."""

    @abstractmethod
    def _has_room(self, one: Asked | None) -> bool:
        """Whether it, or with None any other, may begin now, beside what is being answered."""

    @abstractmethod
    def _begin(self, text: Asked) -> list[Asked] | None:
        """Begin a text, which is returned if it has ended at once; None: it is to be begun again.

        Then what comes before was done.
        """

    @abstractmethod
    def _pass(self) -> list[Asked]:
        """Have all texts go on; those that have ended. Raises NgtError for what ends them all."""

    @abstractmethod
    def _drop(self, text: Asked) -> None:
        """End a text as interrupted."""

    @abstractmethod
    def _ended(self, text: Asked) -> tuple[Ended, Numerics, str]:
        """What came of a text, whether it was exact, and what general text it drafts from."""

    @abstractmethod
    def _close(self, *, store: bool = True) -> None:
        """No text goes on: store what was learned; and what was read, unless not to `store`."""

    # --- questions ---

    @property
    def asked(self) -> list[Asked]:
        """The questions that are being answered."""
        return [*dict.fromkeys(text.root for text in (*self._texts, *self._pending))]

    @property
    def has_room(self) -> bool:
        """Whether another question may be prepared, to be added soon."""
        return not self._pending and self._has_room(None)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._texts or self._pending or self._is_open)

    def prepare(self, asked: Asked) -> None:
        """Make its prompt, and what is drafted from; uses no pass. Raises NgtError."""
        q = asked.question
        with self._for(asked):
            asked.session = session = self._session_for(q.settings, asked.owner)
            if q.settings.overflow == "split":
                asked.parts = InParts(session, q)
                prompt = asked.parts.whole
            else:
                prompt = session.prompt(q.wording, q.documents, q.question, q.turns, q.queries)
            if prompt is not None:
                options = replace(AS_SET, many=self.many, probabilities=asked.wants.probabilities)
                self._set_prompt(asked, prompt, options)

    def takes(self, asked: Asked) -> bool:
        """Whether a question may be added now."""
        return not self._pending and self._has_room(asked)

    def add(self, asked: Asked) -> None:
        """Begin a question that is prepared; `step` goes on with it.

        A question that cannot begin is told why, and ends: nobody else knows of it any more.
        """
        try:
            if asked.prompt is None:
                self._go_on(asked)
            else:
                self._add(asked)
        except BaseException as error:
            self._fail(asked, caught(error))

    def step(self) -> None:
        """One pass, or what comes before and after passes; tells what comes of it."""
        for asked in self.asked:
            if asked.cancelled:
                self._stop(asked)
        if self._pending and self._has_room(self._pending[0]):
            self._begin_next()
        elif self._texts:
            self._told(self._pass())
        else:  # all that was answered has been told, and delivered
            while self._finished:
                self._after_answers(self._finished.pop())
            self._after_answers(self._close)
            self._is_open = False

    def _after_answers(self, work: Callable[[], None]) -> None:
        """Do what follows answers that were delivered; a failure of it is no failure of theirs."""
        try:
            work()
        except Exception as error:
            self.session.warn(f"what the model learned is not kept: {caught(error)}")

    def interrupt(self) -> None:
        """End all as far as it came, without a pass: one may be half done."""
        is_open, self._is_open = self._is_open, False
        self._finished.clear()
        try:
            if is_open:
                self._close(store=False)
        finally:
            for asked in self.asked:
                self._stop(asked)

    def tell(self, event: Event) -> None:
        """Tell who asked for what this thread does. Raises StoppedError where it is cancelled."""
        asked: Asked | None = getattr(self._here, "asked", None)
        if asked is None:
            self.aloud(event)
            return
        asked.say(event)
        if asked.cancelled:
            raise asked.stopped

    @contextmanager
    def _for(self, asked: Asked) -> Iterator[None]:
        """A block of work for one question."""
        self._here.asked = asked.root
        try:
            yield
        finally:
            self._here.asked = None

    # --- texts ---

    def _set_prompt(self, asked: Asked, prompt: Prompt, options: AnswerOptions) -> None:
        """Have a question answered by this prompt, its last. Raises ModelError."""
        if prediction := asked.question.prediction:
            known = asked.session.facts
            predicted = known.tokenizer.encode(prediction)
            check_known(predicted, known.vocabulary)
            prompt = replace(prompt, predicted=tuple(predicted))
        asked.prompt, asked.options = prompt, options
        with self._starting:
            self._start(asked)

    def _add(self, asked: Asked) -> None:
        """Let a question whose prompt is made wait for its turn, which comes next."""
        q, prompt = asked.question, asked.prompt
        if asked.wants.remarks:
            tokenizer = asked.session.facts.tokenizer
            for words in look_alikes(q.documents, q.question, tokenizer, q.settings.system):
                asked.say(Message("remark", words))
        asked.say(Prompted(len(prompt.ids), prompt.selection, prompt.left_out))
        self._pending.append(asked)

    def _begin_next(self) -> None:
        text = self._pending[0]
        try:
            with self._for(text):
                known = self._known(text) if text.prompt is None else None
                over = self._begin(text) if known is None else []
        except BaseException as error:
            self._fail(text, caught(error))
            return
        if over is None:
            return
        self._pending.popleft()
        if known is None:
            self._texts.append(text)
            self._told(over)
        else:
            self._go_on(text.root, text.part, known)

    def _told(self, over: Sequence[Asked]) -> None:
        """Tell the steps that are new, and what came of texts that are over."""
        for text in self._texts:
            new, text.told = text.steps[text.told :], len(text.steps)
            if text.part is None:
                for step in new:
                    text.say(Stepped(step, text.statistics.thought_tokens or 0))
        if time.monotonic() - self._shown > _INTERVAL_S:
            self._shown = time.monotonic()
            self._tell_of_parts()
        for text in over:
            if text in self._texts:  # else it went with another part of its question
                self._end(text)
                if text in self._texts:
                    self._texts.remove(text)

    def _end(self, text: Asked, reason: str = "") -> None:
        """Tell what came of a text, which ended for its own reason or else for this one."""
        if text.root.is_over:
            return
        if text.error is not None:
            self._fail(text, text.error)
            return
        answer, numerics, background = self._ended(text)
        if text.part is not None:
            self._part_answered(text, answer)
            return
        answer = replace(
            answer,
            finish_reason=answer.finish_reason or reason,
            steps=tuple(text.steps[: text.told]),
            cuts=text.prompt.cuts,
            selection=text.prompt.selection,
            parts=tuple(text.parts.reports) if text.parts else (),
        )
        if self._is_echo(text, answer):
            answer = replace(answer, finish_reason=PROMPT)
        if text.parts and answer.finish_reason != "interrupted":
            self._finished.append(text.parts.kept.forget)
        settings, known = text.question.settings, text.session.facts
        answer = replace(answer, facts=tuple(facts(settings, known, answer)))
        if text.wants.sources:
            answer = self._with_sources(text, answer)
        if text.wants.remarks:
            words = remarks(settings, known, answer, numerics, background)
            answer = replace(answer, remarks=tuple(words))
        text.say(answer)

    def _is_echo(self, asked: Asked, answer: Ended) -> bool:
        """Return whether an answer from documents repeats the wording of its task."""
        question = asked.question
        if question.task not in ("summarize", "ask") or question.settings.has_form:
            return False
        if answer.finish_reason == "interrupted":
            return False
        return repeats_instructions(answer.text, question.preset.template, question.question)

    def _with_sources(self, asked: Asked, answer: Ended) -> Ended:
        """Return the answer with its sources; without them where looking for them fails.

        The answer is complete by then, so that it comes in any case.
        """
        documents = asked.question.documents
        try:
            with self._for(asked):
                if not answer.selection and sum(len(d.text) for d in documents) > _LONG:
                    self.session.status("Comparing the answer with the documents …")
                return with_sources(answer, documents)
        except StoppedError:  # nobody waits for them
            return answer
        except KeyboardInterrupt:
            why = "interrupted"
        except Exception as error:
            why = "interrupted" if process.interrupted() else str(unexpected(error))
        asked.say(Message("warn", f"the answer is complete, but its sources are not known: {why}"))
        return answer

    def _stop(self, asked: Asked) -> None:
        """End a question as interrupted, as far as its answer came."""
        if asked.run is not None:
            self._drop(asked)
            self._end(asked, "interrupted")
        self._take_out(asked)
        asked.say(asked.stopped)

    def _fail(self, text: Asked, error: NgtError) -> None:
        """End the question of a text with an error, which names a part."""
        asked = text.root
        if isinstance(error, StoppedError):
            error = asked.stopped
        elif text.part is not None:
            one, kept = text.part, text.parts.kept_words()
            asked.say(Message("warn", f"failed at {one.words.lower()}, {one.part.name}{kept}"))
        self._take_out(asked)
        asked.say(error)

    def _take_out(self, asked: Asked) -> None:
        """No text of a question is answered any more."""
        for text in [text for text in self._texts if text.root is asked]:
            if text.run is not None and text.error is None:  # else it has ended
                self._drop(text)
            self._texts.remove(text)
        self._pending = deque(text for text in self._pending if text.root is not asked)

    # --- parts ---

    def _go_on(self, asked: Asked, *done: Any) -> None:
        """Have the parts of the next level answered, or the last prompt, if a level is `done`."""
        try:
            with self._for(asked):
                found = asked.parts.after(*done)
                if isinstance(found, Prompt):
                    asked.say(Part(""))
                    self._set_prompt(asked, found, asked.parts.options)
                    self._add(asked)
                    return
                for one in found:
                    text = Asked(asked.question, asked.tell, asked.owner, whole=asked, part=one)
                    text.session, text.parts = asked.session, asked.parts
                    text.options = text.parts.options
                    self._pending.append(text)
        except BaseException as error:
            self._fail(asked, caught(error))

    def _known(self, text: Asked) -> PartReport | None:
        """What an earlier run made of a part; else None, and it has its prompt and is announced."""
        one = text.part
        text.prompt = one.part.build()
        report: PartReport | None = text.parts.earlier(one, text.prompt)
        if report is None:
            text.say(Part(one.words))
            text.session.status(f"{one.part.name} …")
            self._start(text)
        return report

    def _part_answered(self, text: Asked, answer: Ended) -> None:
        one = text.part
        if answer.finish_reason == "repetition":
            words = f"{one.words}, {one.part.name}: its summary is cut off: it repeats itself"
            text.say(Message("warn", words))
        tokens = [token for step in text.steps for token in step.tokens]
        text.run = text.begun = None
        words = "".join(token.text for token in tokens)
        report = text.parts.answered(one, text.prompt, words, len(tokens))
        self._go_on(text.root, one, report)

    def _tell_of_parts(self) -> None:
        """Say of each question whose parts are being answered which these are, and how far."""
        for asked in self.asked:
            texts = [text for text in self._texts if text.whole is asked]
            if texts:
                numbers = sorted(text.part.number for text in texts)
                first, last = numbers[0], numbers[-1]
                words = f"Part {first}" if first == last else f"Parts {first} to {last}"
                asked.say(Part(f"{words} of {texts[0].part.count}"))
                count = sum(len(step.tokens) for text in texts for step in text.steps)
                asked.say(Message("status", f"{counted(count, 'token')} …"))


def caught(error: BaseException) -> NgtError:
    """What a question ends with. Raises KeyboardInterrupt where a Ctrl-C was the cause.

    A library may make another error of it.
    """
    if isinstance(error, KeyboardInterrupt) or process.interrupted():
        raise KeyboardInterrupt from error
    failure = unexpected(error)
    if failure is not error:
        failure.__cause__ = error
    return failure
