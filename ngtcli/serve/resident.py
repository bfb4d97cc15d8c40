"""A loaded model that answers the questions of many threads, each as it would be answered alone.

One thread does all that uses the model, a few others prepare prompts. A question that finds no
other waiting runs alone, with captured passes. When others come it goes on beside them in a batch,
where requests share passes; those whose answers could then differ run alone to their end.

The owner "" is the user of this process: what earlier answers taught is for this one alone. What
others ask is private: nothing is drafted from other texts, and nothing is learned from theirs.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from ngtcli.background.files import SHIPPED
from ngtcli.config import Settings
from ngtcli.decode.batch import Batch
from ngtcli.decode.batch_target import why_not
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.loop import Member, Run
from ngtcli.decode.scores import rounds
from ngtcli.draft.drafter import draft_settings
from ngtcli.draft.registry import parse_method
from ngtcli.errors import NgtError, StoppedError, UsageError, unexpected
from ngtcli.prompt.build import Prompt
from ngtcli.serve.fair_queue import FairQueue
from ngtcli.serve.ticket import Tell, Ticket, common_of
from ngtcli.session.answering import Answering
from ngtcli.session.events import (
    USUAL,
    Ended,
    Event,
    Message,
    Part,
    Reading,
    Started,
    Stepped,
    Wants,
)
from ngtcli.session.local import Begun, LocalSession, ended
from ngtcli.session.question import Question
from ngtcli.session.session import Answer
from ngtcli.system.machine import return_memory

_PREPARING = 2  # threads that make prompts; guess
_SESSIONS = 8  # with other settings than those of the process, that are kept; guess


class Resident:
    """Loads the model of `settings`, and answers until `close`. Raises as LocalSession does.

    `status` is told of loading, and `warn` what the user should know; each question tells that
    again. `size` are answered together at most; 0: as many as memory allows. Without `persist`
    nothing is kept in files.
    """

    def __init__(
        self,
        settings: Settings,
        status: Callable[[str], object] = lambda _: None,
        warn: Callable[[str], object] = lambda _: None,
        *,
        size: int = 0,
        persist: bool = True,
    ) -> None:
        self.settings, self._size, self._persist = settings, size, persist
        self._loading = status, warn
        self._warned: list[str] = []  # while loading
        self._queue: FairQueue[Ticket] = FairQueue()
        self._here = threading.local()  # .ticket: what this thread works for
        self._sessions: OrderedDict[tuple[Any, ...], LocalSession] = OrderedDict()
        self._of_sessions, self._starting = threading.Lock(), threading.Lock()
        self._is_loaded, self._failure = threading.Event(), list[BaseException]()
        self._threads = [threading.Thread(target=self._run, name="model", daemon=True)]
        self._threads[0].start()
        self._is_loaded.wait()
        if self._failure:
            raise self._failure[0]
        for _ in range(_PREPARING):
            self._threads.append(threading.Thread(target=self._prepare, daemon=True))
            self._threads[-1].start()

    def submit(
        self, question: Question, on_event: Tell, *, owner: str = "", wants: Wants = USUAL
    ) -> Ticket:
        """Take a question, from any thread. Raises BusyError.

        `on_event` gets its events in threads of this object, the last of them `Ended` or the
        NgtError that it ends with. It must return at once; what it raises cancels the question.
        """
        if owner:
            question = replace(question, settings=_private(question.settings))
        ticket = Ticket(question, on_event, owner, wants)
        ticket.on_cancel = self._cancelled
        self._queue.put(ticket)
        return ticket

    def ask(self, question: Question, *, owner: str = "", wants: Wants = USUAL) -> Generator[Event]:
        """The events of a question. Raises NgtError; BusyError at once.

        Closing it, or a KeyboardInterrupt raised in it, cancels the question.
        """
        events: SimpleQueue[Event | NgtError] = SimpleQueue()
        ticket = self.submit(question, events.put, owner=owner, wants=wants)

        def each() -> Generator[Event]:
            event: Event | NgtError | None = None
            try:
                while not isinstance(event, Ended):
                    try:
                        event = events.get()
                        if isinstance(event, NgtError):
                            raise event
                        yield event
                    except KeyboardInterrupt:
                        ticket.cancel()
            finally:
                ticket.cancel()

        return each()

    @property
    def waiting(self) -> int:
        """How many questions wait for their turn."""
        return len(self._queue)

    def close(self) -> None:
        """End all that is being answered, and the threads."""
        self._is_closing = True
        left = self._queue.close()
        for thread in self._threads:
            thread.join()
        for ticket in left + self._queue.close():  # some may have become ready meanwhile
            ticket.tell(_stopped())

    def _cancelled(self, ticket: Ticket) -> None:
        if self._queue.remove(ticket):
            ticket.tell(_stopped())

    # --- what the session says ---

    def _say(self, event: Event) -> None:
        """Tell who asked for what this thread does. Raises StoppedError where that is cancelled."""
        ticket: Ticket | None = getattr(self._here, "ticket", None)
        if ticket is not None:
            ticket.tell(event)
            if ticket.cancelled or self._is_closing:
                raise _stopped()
        elif isinstance(event, Message) and not self._is_loaded.is_set():
            if event.kind == "warn":
                self._warned.append(event.text)
            self._loading[event.kind == "warn"](event.text)

    @contextmanager
    def _for(self, ticket: Ticket) -> Iterator[None]:
        """A block of work for one question."""
        self._here.ticket = ticket
        try:
            yield
        finally:
            self._here.ticket = None

    # --- threads that prepare ---

    def _prepare(self) -> None:
        while (ticket := self._queue.to_prepare()) is not None:
            is_ready = False
            try:
                with self._for(ticket):
                    self._make_ready(ticket)
                is_ready = not (ticket.cancelled or self._is_closing)
                if not is_ready:
                    ticket.tell(_stopped())
            except BaseException as error:
                ticket.tell(_known(error))
            self._queue.prepared(ticket, is_ready)

    def _make_ready(self, ticket: Ticket) -> None:
        """The prompt, and what is drafted from."""
        for words in self._warned:
            ticket.tell(Message("warn", words))
        settings, is_private = ticket.question.settings, bool(ticket.owner)
        own = replace(settings, pool=settings.pool and not is_private)
        session = self._session(own).sharing(own, ticket.owner)
        asked = Answering(
            session, ticket.question, ticket.wants, lambda words: self._say(Part(words))
        )
        asked.prepare()
        ticket.session, ticket.asked = session, asked
        if (prompt := asked.prompt) is None:
            return
        with self._starting:  # what counts documents keeps what it counted last
            begun = session.start(prompt)
        context = replace(begun.context, private=is_private)
        ticket.begun = replace(begun, context=context)

    def _session(self, settings: Settings) -> LocalSession:
        """A session with these settings but for those of one answer; a few are kept."""
        key = common_of(settings)
        with self._of_sessions:
            found = self._sessions.pop(key, None)
            try:
                found = found or self._base.with_settings(settings)
            except ValueError as error:
                raise UsageError(f"another model is loaded: {error}", "Use --no-serve.") from None
            self._sessions[key] = found  # the last used is the last
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
            return found

    # --- the model's thread ---

    _is_closing = False

    def _run(self) -> None:
        try:
            self._load()
        except BaseException as error:
            self._failure.append(error)
            return
        finally:
            self._is_loaded.set()
        while (ticket := self._next()) is not None:
            try:
                if self._queue.next_suits(self._beside(ticket)):
                    self._together(ticket)
                else:
                    self._alone(ticket)
            except BaseException as error:
                ticket.tell(_known(error))
            del ticket  # and what it holds, before memory is given back

    def _next(self) -> Ticket | None:
        """The next question; memory is given back before one is waited for."""
        if not self.waiting:
            return_memory()
        return self._queue.take(wait=True)

    def _load(self) -> None:
        def reading(read: int, total: int) -> None:
            self._say(Reading(read, total))

        self._base = LocalSession(
            self.settings,
            lambda text: self._say(Message("status", text)),
            lambda text: self._say(Message("warn", text)),
            self._persist,
            reading,
        )
        self._base.model.keep_prefixes(memory=True)
        self._sessions[common_of(self.settings)] = self._base
        self._rounds = rounds(self._base.model.hf)
        self._joint_reason = why_not(self._base.model)
        self._base.drafter()  # the first question need not wait for it

    def _beside(self, ticket: Ticket) -> Callable[[Ticket], bool]:
        """Which questions may be answered together with this one."""
        joins, common = self._joins(ticket), ticket.common
        return lambda other: joins and self._joins(other) and other.common == common

    def _joins(self, ticket: Ticket) -> bool:
        """Whether a question may be answered beside others."""
        settings = ticket.question.settings
        if ticket.begun is None or ticket.wants.explanations or self._joint_reason:
            return False
        method = parse_method(settings.method, draft_settings(settings))
        if method.name == "draft-model" or method.entry.heads or settings.exact == "on":
            return False
        return bool(ticket.owner) or settings.exact == "off" or not self._rounds

    def _alone(self, ticket: Ticket, text: Continuation | None = None) -> None:
        """Answer a question, or go on with its `text`; it joins others when they come."""
        suits = self._beside(ticket)
        joins = False
        with self._for(ticket), closing(self._events(ticket, text)) as events:
            event = next(events, None)
            while event is not None:
                if text is None or isinstance(event, Stepped | Ended):
                    ticket.tell(event)
                stops = ticket.cancelled or self._is_closing
                goes_on = isinstance(event, Stepped) and not event.step.finish_reason and not text
                if goes_on and not stops:
                    joins = self._queue.next_suits(suits)
                if joins or (stops and isinstance(event, Ended)):
                    break
                event = events.throw(KeyboardInterrupt()) if stops else next(events, None)
        if joins:
            self._together(ticket)

    def _events(self, ticket: Ticket, text: Continuation | None) -> Generator[Event]:
        session, begun = _prepared(ticket)
        assert ticket.asked is not None

        def answer(prompt: Prompt) -> Answer:
            with self._starting:
                ticket.answer = session.answer(prompt, begun=begun, text=text)
            if ticket.member is not None:
                ticket.answer.steps += ticket.member.steps
            return ticket.answer

        return ticket.asked.events(answer if begun else None)

    def _together(self, first: Ticket) -> None:
        """Answer questions by passes that they share, as long as there are any."""
        members: list[Member] = []
        settings, suits = first.question.settings, self._beside(first)
        session = self._session(settings)
        with self._starting, self._for(first):
            batch = session.batch(self._size)
        with suppress(BaseException):  # of which text it is can be told from each alone
            self._add(batch, members, first)
            while members:
                while batch.takes_more and (ticket := self._queue.take(suits)) is not None:
                    self._add(batch, members, ticket)
                for member in [m for m in members if m.given.cancelled or self._is_closing]:
                    self._tell(batch.drop(member), members)
                self._tell(batch.step(), members)
        del batch
        for member in members:  # none, unless it failed
            self._go_on(member)
        session.save_memory()
        session.store_documents()

    def _add(self, batch: Batch, members: list[Member], ticket: Ticket) -> None:
        """One more text; what it ends with at once is told."""
        session, begun = _prepared(ticket)
        assert begun is not None and ticket.asked is not None and ticket.asked.prompt is not None
        answer, text = ticket.answer, None
        try:
            with self._for(ticket):
                if answer is None:
                    for event in ticket.asked.said_of_prompt(ticket.asked.prompt):
                        ticket.tell(event)
                else:
                    assert isinstance(answer.run, Run)
                    text = answer.run.continuation
                is_part = ticket.asked.prompt.selection is not None
                member = ticket.member = session.member(begun, ticket, text, is_part)
                if answer is not None:
                    member.steps += answer.steps
                    ticket.told = len(member.steps)
                members.append(member)
                over = batch.add(member, text is not None)
                if text is None:
                    ticket.tell(Started(member.drafter.origins))
        except BaseException as error:
            members[:] = [m for m in members if m.given is not ticket]
            ticket.tell(_known(error))
            return
        self._tell(over, members)

    def _tell(self, over: list[Member], members: list[Member]) -> None:
        """Tell each the steps that are new, and what came of those that are over."""
        for member in members:
            ticket: Ticket = member.given
            thought = member.text.statistics.thought_tokens or 0
            for step in member.steps[ticket.told :]:
                ticket.tell(Stepped(step, thought))
            ticket.told = len(member.steps)
        for member in over:
            members[:] = [m for m in members if m is not member]
            if member.crowded:
                self._go_on(member)
            else:
                self._end(member)

    def _end(self, member: Member) -> None:
        ticket: Ticket = member.given
        session, begun = _prepared(ticket)
        assert begun is not None and ticket.asked is not None and ticket.asked.prompt is not None
        if member.error is not None:
            ticket.tell(member.error)
            return
        answer = ended(member, session.model, ticket.asked.prompt, begun.trie)
        try:
            with self._for(ticket):
                answer = ticket.asked.reported(answer)
        except StoppedError:  # nobody waits for its sources
            pass
        except Exception as error:
            ticket.tell(_known(error))
        ticket.tell(answer)

    def _go_on(self, member: Member) -> None:
        """Answer a text of a batch alone, from where it is."""
        ticket: Ticket = member.given
        text, before = member.text, len(member.context.ids)
        if len(text.ids) - before != len(text.output):
            ticket.tell(NgtError("a step failed half done", "Ask again."))
            return
        try:
            self._alone(ticket, text)
        except StoppedError:  # before it went on
            text.finish_reason = "interrupted"
            self._end(member)
        except BaseException as error:
            ticket.tell(_known(error))


def _prepared(ticket: Ticket) -> tuple[LocalSession, Begun | None]:
    assert ticket.session is not None
    return ticket.session, ticket.begun


def _private(settings: Settings) -> Settings:
    """Settings by which nothing of the user's own is drafted from, and nothing stored for it."""
    shipped = tuple(name for name in settings.background if name in SHIPPED)
    return replace(settings, background=shipped, keep_documents="off")


def _stopped() -> StoppedError:
    return StoppedError("interrupted")


def _known(error: BaseException) -> NgtError:
    return error if isinstance(error, NgtError) else unexpected(error)
