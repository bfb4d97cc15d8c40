"""A loaded model that answers the questions of many threads, each as it would be answered alone.

One thread does all that uses the model, a few others prepare prompts. A question that finds no
other waiting runs alone, with captured passes. When others come they share passes with it; those
whose answers could then differ run alone to their end.

The owner "" is the user of this process: what earlier answers taught is for this one alone. What
others ask is private: nothing is drafted from other texts, and nothing is learned from theirs.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from ngtcli.background.files import SHIPPED
from ngtcli.config import Settings
from ngtcli.decode.decoder import Decoder, Member
from ngtcli.decode.loop import Run
from ngtcli.decode.scores import rounds
from ngtcli.decode.together import why_not
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
                if ticket.begun is None:
                    self._in_parts(ticket)
                else:
                    self._answer(ticket)
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
        if ticket.begun is None or self._joint_reason:
            return False
        method = parse_method(settings.method, draft_settings(settings))
        if method.name == "draft-model" or method.entry.heads or settings.exact == "on":
            return False
        return bool(ticket.owner) or settings.exact == "off" or not self._rounds

    def _in_parts(self, ticket: Ticket) -> None:
        """Answer a question whose prompt the model makes."""
        assert ticket.asked is not None
        with self._for(ticket), closing(ticket.asked.events()) as events:
            event = next(events, None)
            while event is not None:
                ticket.tell(event)
                stops = ticket.cancelled or self._is_closing
                if stops and isinstance(event, Ended):
                    break
                event = events.throw(KeyboardInterrupt()) if stops else next(events, None)

    def _answer(self, first: Ticket, goes_on: bool = False) -> None:
        """Answer a question, and beside it those that come, by passes that they share.

        One that `goes_on` was answered beside others, which failed, and is alone to its end.
        """
        tickets, shared, suits = list[Ticket](), False, self._beside(first)
        session, common = _ready(first)[0], self._session(first.question.settings)
        decoder = self._add(first, tickets)
        try:
            while tickets:
                if not shared and not goes_on and self._queue.next_suits(suits):
                    with self._starting, self._for(first):
                        decoder.share(common.drafters(), self._size)
                    shared, first.answer = True, None
                while shared and decoder.takes_more and (one := self._queue.take(suits)):
                    try:
                        self._add(one, tickets, decoder)
                    except BaseException as error:
                        one.tell(_known(error))
                for ticket in [t for t in tickets if t.cancelled or self._is_closing]:
                    self._tell(decoder.drop(_member(ticket)), tickets)
                self._tell(decoder.step(), tickets)
        except BaseException:  # of which text it is can be told from each alone
            for ticket in tickets if shared else ():
                _member(ticket).drafter.leave()
            decoder.close()
            if not shared:
                raise
            del decoder
            for ticket in tickets:
                self._go_on(ticket)
        session.save_memory()
        session.store_documents()

    def _add(
        self, ticket: Ticket, tickets: list[Ticket], decoder: Decoder | None = None
    ) -> Decoder:
        """Begin a text, or go on with it; without a decoder it gets one of its own.

        Alone it has all that one text can have. What it ends with at once is told.
        """
        (session, begun, asked, prompt), before = _ready(ticket), ticket.member
        with self._for(ticket):
            for event in () if before else asked.said_of_prompt(prompt):
                ticket.tell(event)
            is_alone = decoder is None
            if decoder is None:
                with self._starting:
                    text = before.text if before else None
                    ticket.answer = session.answer(prompt, begun=begun, text=text)
                run = ticket.answer.run
                assert isinstance(run, Run)
                decoder, member = run.decoder, run.member
                member.given, member.steps = ticket, before.steps if before else []
                if not before:
                    ticket.tell(Started(run.drafter.origins))
            else:
                member = session.member(begun, ticket, prompt.selection is not None)
            ticket.member = member
            over = decoder.add(member)
            if not is_alone:
                ticket.tell(Started(member.drafter.origins))
        tickets.append(ticket)
        self._tell(over, tickets)
        return decoder

    def _tell(self, over: list[Member], tickets: list[Ticket]) -> None:
        """Tell each the steps that are new, and what came of those that are over."""
        for ticket in tickets:
            member = _member(ticket)
            thought = member.text.statistics.thought_tokens or 0
            for step in member.steps[ticket.told :]:
                ticket.tell(Stepped(step, thought))
            ticket.told = len(member.steps)
        for member in over:
            tickets.remove(member.given)
            self._end(member.given)

    def _end(self, ticket: Ticket) -> None:
        (session, begun, asked, prompt), member = _ready(ticket), _member(ticket)
        if member.error is not None:
            ticket.tell(member.error)
            return
        answer, rows, background = ended(member, session.model, prompt, begun.trie), None, ""
        if (alone := ticket.answer) is not None:
            answer, rows = replace(answer, exact=alone.run.exact), alone.run.rows
            background = alone.background_words() if ticket.wants.remarks else ""
        try:
            with self._for(ticket):
                answer = asked.reported(answer, rows, background)
        except StoppedError:  # nobody waits for its sources
            pass
        except Exception as error:
            ticket.tell(_known(error))
        ticket.tell(answer)

    def _go_on(self, ticket: Ticket) -> None:
        """Answer a text whose batch failed alone, from where it is."""
        text = _member(ticket).text
        if len(text.ids) - len(_member(ticket).context.ids) != len(text.output):
            ticket.tell(NgtError("a step failed half done", "Ask again."))
            return
        try:
            self._answer(ticket, goes_on=True)
        except StoppedError:  # before it went on
            text.finish_reason = "interrupted"
            self._end(ticket)
        except BaseException as error:
            ticket.tell(_known(error))


def _member(ticket: Ticket) -> Member:
    assert ticket.member is not None
    return ticket.member


def _ready(ticket: Ticket) -> tuple[LocalSession, Begun, Answering, Prompt]:
    """What was prepared of a question whose prompt is whole."""
    assert ticket.session and ticket.begun and ticket.asked and ticket.asked.prompt
    return ticket.session, ticket.begun, ticket.asked, ticket.asked.prompt


def _private(settings: Settings) -> Settings:
    """Settings by which nothing of the user's own is drafted from, and nothing stored for it."""
    shipped = tuple(name for name in settings.background if name in SHIPPED)
    return replace(settings, background=shipped, keep_documents="off")


def _stopped() -> StoppedError:
    return StoppedError("interrupted")


def _known(error: BaseException) -> NgtError:
    return error if isinstance(error, NgtError) else unexpected(error)
