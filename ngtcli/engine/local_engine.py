"""The engine over a model that is loaded here: one text by itself, or several that share passes.

A question that finds no other runs alone, with all that one text can have: captured passes, exact
rows, heads. When others come that may share passes with it, it goes on beside them.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ngtcli.config import SETTINGS, Settings, Use
from ngtcli.decoding.decoder import Decoder, Member
from ngtcli.decoding.exactness.numerics import NOT_EXACT, Numerics
from ngtcli.decoding.loop import Run
from ngtcli.decoding.probe import find_batching
from ngtcli.decoding.scores import rounds
from ngtcli.drafting.drafter import Drafter, Drafters, draft_settings
from ngtcli.drafting.origins import DRAFT, GRAMMAR
from ngtcli.drafting.registry import MethodSpec, parse_method
from ngtcli.engine.engine import Asked, Engine, caught
from ngtcli.engine.events import Ended, Message, Started
from ngtcli.engine.local import LocalSession
from ngtcli.errors import NgtError, UsageError

# Settings that answers in one batch have in common, each with the one method that reads it, or "".
_COMMON = {
    name: about.method
    for name, about in SETTINGS.items()
    if Use.LOADS in about.uses or (about.panel == "Drafting" and Use.LINE not in about.uses)
}
_MAY_DIFFER = (
    "in half precision and int8 an answer given with others may differ from its own run where"
    " scores nearly tie; --batch-size 1 gives that one"
)
_SESSIONS = 8  # with other settings than those of the model's first, that are kept; guess


def common_of(settings: Settings) -> tuple[Any, ...]:
    """The values of what answers in one batch have in common."""
    method = settings.method.partition(":")[0]
    read = (name for name, of in _COMMON.items() if of in ("", method))
    return tuple((name, getattr(settings, name)) for name in read)


def private(settings: Settings) -> Settings:
    """Settings by which nothing of the user's own is drafted from, and nothing stored for it."""
    return replace(settings, keep_documents="off")


class LocalEngine(Engine):
    """Answers by one model, `size` texts together at most; 0: as many as memory allows.

    In float32 each answer has the ids of its run alone. In half precision and int8 near ties may
    turn out otherwise, so that the user's own questions run alone there unless exactness is not
    wanted, or they are `many`. Raises UsageError where many are to be exact.
    """

    def __init__(self, session: LocalSession, *, size: int = 0, many: bool = False) -> None:
        super().__init__(session, many=many)
        self._base, self._model, self._size = session, session.model, size
        self._rounds = rounds(self._model.hf)
        self._sessions = OrderedDict({common_of(session.settings): session})
        self._of_sessions = threading.Lock()
        self._decoder: Decoder | None = None
        self._alone: Run | None = None  # of the text that has the decoder for itself
        self._opened: Asked | None = None  # whose decoder is made, and which is to be read
        self._saving: LocalSession | None = None  # whose memory the answers teach
        self._late = list[Asked]()  # that ended when another was dropped
        self._method: MethodSpec | None = None  # what drafts for the texts that are open
        if many and size != 1:
            if session.settings.exact == "on" and self._model.takes_drafts:
                hint = "Leave out --exact, or give --batch-size 1."
                raise UsageError("exact decoding takes one text at a time", hint)
            find_batching(self._model)

    def warm(self) -> None:
        """Do before the first question what it would wait for, and try whether texts may join."""
        find_batching(self._model)
        self._base.drafter()

    # --- questions ---

    def _session_for(self, settings: Settings, owner: str) -> LocalSession:
        own = replace(settings, pool=settings.pool and not owner)
        return self._with(own).sharing(own, owner)

    def _with(self, settings: Settings) -> LocalSession:
        """A session with these settings but for those of one answer; a few are kept."""
        key = common_of(settings)
        with self._of_sessions:
            found = self._sessions.pop(key, None) or self._base.with_settings(settings)
            self._sessions[key] = found  # the last used is the last
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
            return found

    def _start(self, text: Asked) -> None:
        begun = text.session.start(text.prompt, text.options)
        context = replace(begun.context, private=bool(text.owner))
        text.begun = replace(begun, context=context)

    def _is_alone(self, asked: Asked) -> bool:
        """Whether a question is answered with no other beside it."""
        settings = asked.question.settings
        if self._size == 1 or not self._model.batching.is_supported or settings.exact == "on":
            return True
        if self._follows(settings):
            return True
        return self._rounds and not (self.many or asked.owner or settings.exact == "off")

    def _follows(self, settings: Settings) -> str:
        """What drafts of these settings come from that follows one text alone; "" for nothing."""
        method = parse_method(settings.method, draft_settings(settings))
        return "a draft model" * (method.name == "draft-model") or "a head" * method.entry.heads

    # --- texts ---

    def _has_room(self, one: Asked | None) -> bool:
        if self._decoder is None or (one is not None and one is self._opened):
            return True
        if not self._texts or any(text.alone for text in self._texts):
            return False
        if one is not None:
            if one.alone or self._is_alone(one):
                return False
            first = self._texts[0].question.settings
            if common_of(one.question.settings) != common_of(first):
                return False
        if self._is_stand_in_over():  # the texts end first, and the next ones have the method
            return False
        return self._alone is not None or self._decoder.takes_more

    def _is_stand_in_over(self) -> bool:
        """Return whether the open texts have a stand-in though their method is compiled by now."""
        if self._method is None or not self._texts:
            return False
        session = self._with(self._texts[0].question.settings)
        if session.parse_method().name == self._method.name:
            return False
        return session.available_method().name != self._method.name

    def _begin(self, text: Asked) -> list[Asked] | None:
        if self._decoder is None:
            self._open(text)
            if self._opened is text:  # what is told of it comes before it is read
                return None
        elif self._alone is not None and text is not self._opened:
            self._share()
            return None
        self._opened = None
        assert self._decoder is not None
        goes_on = text.run is not None
        if not goes_on:
            many = text.options.many or text.prompt.selection is not None
            text.run = text.session.member(text.begun, many)
        self._take(text, text.run)
        over = self._decoder.add(text.run)
        if self._alone is None and text.part is None and not goes_on:
            self._starts(text, text.run.drafter)
        return self._texts_of(over)

    def _open(self, text: Asked) -> None:
        """Make a decoder for a text: its own, or one that others may join at once."""
        if text.part is not None:
            find_batching(self._model)  # here, where no text runs
        text.alone = text.alone or self._is_alone(text)
        session, self._is_open = text.session, True
        self._saving = self._with(text.question.settings)
        others = len(self._pending) > 1 and not self._pending[1].alone
        if self.many and self._size != 1:
            self._tell_of_many(text.question.settings)
        if not text.alone and (self.many or others):
            drafters = self._shared_drafters(text.question.settings)
            self._decoder = Decoder(self._model, drafters, self._size, self._base.reading)
            return
        before = text.run
        known = before.text if before else None
        with self._starting:
            self._alone = session.generate(text.prompt, text.options, text.begun, known)
        assert self._alone is not None
        self._method = text.begun.method
        self._decoder, self._opened = self._alone.decoder, text
        text.run = self._alone.member
        self._take(text, text.run)
        if text.part is None and before is None:
            self._starts(text, self._alone.drafter)

    def _shared_drafters(self, settings: Settings) -> Drafters[Any]:
        """Make drafters for texts that share passes."""
        session = self._with(settings)
        self._method = session.available_method()
        return session.drafters(self._method)

    @staticmethod
    def _starts(text: Asked, drafter: Drafter) -> None:
        """Tell that it starts, and what its drafts come from."""
        own, follows = drafter.origins, text.begun.limits.grammar and drafter.drafts
        text.say(Started((*(own or (DRAFT,)), GRAMMAR) if follows else own))

    @staticmethod
    def _take(text: Asked, member: Member) -> None:
        member.given, member.steps, text.statistics = text, text.steps, member.text.statistics

    def _tell_of_many(self, settings: Settings) -> None:
        """Say why many texts are not answered together, or what is otherwise then."""
        follows = self._follows(settings)
        reason = f"{follows} follows one text at a time" if follows else self._model.batching.why
        if reason:
            self.session.warn(f"prompts are answered one after another: {reason}")
            return
        if settings.exact == "auto" and self._rounds:
            self.session.warn(_MAY_DIFFER)
        method = parse_method(settings.method, draft_settings(settings))
        if settings.heads and method.entry.costs:
            self.session.warn(
                "several texts at once are drafted without heads (--batch-size 1 uses them)"
            )

    def _share(self) -> None:
        """Let others join the text that has run alone; where that fails it does so to its end."""
        assert self._decoder is not None
        first = self._texts[0]
        try:
            with self._starting:
                drafters = self._shared_drafters(first.question.settings)
                self._decoder.share(drafters, self._size)
            self._alone = None
        except BaseException as error:
            first.alone = True
            self._tell_apart(caught(error))

    def _pass(self) -> list[Asked]:
        assert self._decoder is not None
        late, self._late = self._late, []
        try:
            return late + self._texts_of(self._decoder.step())
        except BaseException as error:
            failure = caught(error)
        try:
            if self._alone is None:
                return late + self._separate(failure)
            self._texts[0].error = failure
            return late + self._texts[:1]
        finally:
            del failure  # it holds all that the pass had in memory

    def _separate(self, error: NgtError) -> list[Asked]:
        """Have each text go on alone, as it cannot be told whose pass failed.

        Those that cannot go on are returned.
        """
        assert self._decoder is not None
        self._tell_apart(error)
        for text in self._texts:
            text.run.drafter.close(keep=False)
        self._decoder.close_slots()
        self._decoder.close()
        self._decoder, over = None, list[Asked]()
        for text in reversed(self._texts):
            member, text.alone = text.run, True
            if len(member.text.ids) - len(member.context.ids) == len(member.text.output):
                self._texts.remove(text)
                self._pending.appendleft(text)
            else:
                text.error = NgtError("a step failed half done", "Ask again.")
                over.append(text)
        return over

    def _tell_apart(self, error: NgtError) -> None:
        self.aloud(
            Message("warn", f"answering texts together failed ({error}): each goes on by itself")
        )

    def _texts_of(self, members: Iterable[Member]) -> list[Asked]:
        found: list[Asked] = []
        for member in members:
            member.given.error = member.error
            found.append(member.given)
        return found

    def _drop(self, text: Asked) -> None:
        text.run.text.finish_reason = text.run.text.finish_reason or "interrupted"
        if self._decoder is not None and text in self._texts:
            self._late += [t for t in self._texts_of(self._decoder.drop(text.run)) if t is not text]

    def _ended(self, text: Asked) -> tuple[Ended, Numerics, str]:
        member, alone = text.run, self._alone
        answer = Ended(
            finish_reason=member.text.finish_reason,
            exact=alone is not None and alone.exact,
            statistics=member.text.statistics,
            trie=text.begun.trie,
            passes=self._model.passes.report(),
            policy=member.policy,
            drafted_by=self._method.name if self._method else "",
        )
        if alone is None:
            return answer, NOT_EXACT, ""
        return answer, alone.numerics, text.session.memory.background.words()

    def _close(self, *, store: bool = True) -> None:
        # None before what may fail: beside a closed decoder no other question would ever begin.
        decoder, self._decoder = self._decoder, None
        self._opened = self._alone = self._method = None
        self._late = []
        try:
            if decoder is not None:
                decoder.close()
        finally:
            if self._saving is not None:
                self._saving.save(documents=store)
        self._saving = None
