"""Answers one question: its prompt, the answer step by step, its sources, as events."""

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace

from ngtcli.config import IN_PARTS
from ngtcli.draft.drafter import PassRows
from ngtcli.errors import StoppedError
from ngtcli.prompt.build import Prompt, check_known, look_alikes
from ngtcli.session.events import USUAL, Ended, Event, Message, Prompted, Started, Stepped, Wants
from ngtcli.session.parts import Splitting
from ngtcli.session.question import Question
from ngtcli.session.report import facts, remarks, with_sources
from ngtcli.session.session import Answer, Session
from ngtcli.system import process

_LONG = 5_000_000  # characters of documents that take longer to compare than is waited; guess


def answering(
    session: Session,
    question: Question,
    wants: Wants = USUAL,
    begin_part: Callable[[str], None] = lambda _: None,
) -> Generator[Event]:
    """The events of a question, which has the session's settings. Raises NgtError.

    What is said meanwhile the session tells those that it was made for; `begin_part` is told which
    part of a long text that is of. A KeyboardInterrupt, raised here or thrown in, ends the answer:
    `Ended` has as much as there is then. Before it has begun that raises StoppedError. What is kept
    of parts stays until the caller asks for more than `Ended`; then documents that were read are
    kept.
    """
    return Answering(session, question, wants, begin_part).events()


def prompt_of(session: Session, question: Question) -> Prompt:
    """The prompt of a question, which fits. Raises NgtError."""
    q = question
    return session.prompt(q.wording, q.documents, q.question, q.turns)


def predicting(session: Session, question: Question, prompt: Prompt) -> Prompt:
    """The prompt of the answer, with the tokens of what is predicted. Raises ModelError."""
    if not question.prediction:
        return prompt
    predicted = session.model.tokenizer.encode(question.prediction)
    check_known(predicted, session.model.vocabulary)
    return replace(prompt, predicted=tuple(predicted))


class Answering:
    """A question on its way to an answer, as `answering`.

    `prepare` may be called before `events`, from another thread: it uses no pass of the model.
    `prompt` is None until it is made.
    """

    def __init__(
        self,
        session: Session,
        question: Question,
        wants: Wants = USUAL,
        begin_part: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._session, self._question, self._wants = session, question, wants
        self._begin_part = begin_part
        self._parts: Splitting | None = None
        self._is_prepared = False
        self.prompt: Prompt | None = None

    def prepare(self) -> None:
        """Make the prompt, unless the model makes it, of summaries of parts. Raises NgtError."""
        session, question = self._session, self._question
        self._is_prepared = True
        if question.settings.overflow in IN_PARTS:
            documents = question.documents
            self._parts = Splitting(session, question.preset, documents, self._begin_part)
            whole = self._parts.whole()
        else:
            whole = prompt_of(session, question)
        self.prompt = whole and predicting(session, question, whole)

    def events(self, answer: Callable[[Prompt], Answer] | None = None) -> Generator[Event]:
        """All events; `answer` takes the place of the session's for a prompt that is whole."""
        parts = None
        try:
            if not self._is_prepared:
                self.prepare()
            answer = answer or self._session.answer
            if self.prompt is None:
                parts = self._parts
                assert parts is not None
                self.prompt, answer = parts.prompt(), parts.answer
                self.prompt = predicting(self._session, self._question, self.prompt)
            yield from self.said_of_prompt(self.prompt)
            made = answer(self.prompt)
        except KeyboardInterrupt:
            raise StoppedError(f"interrupted{parts.kept_words() if parts else ''}") from None
        yield from self._steps(made)
        ended, background = made.ended(parts.reports if parts else ()), ""
        if self._wants.remarks:
            background = made.background_words()
        yield self.reported(ended, made.run.rows, background)
        if not made.interrupted:
            with suppress(KeyboardInterrupt):  # the answer is there: only what is kept is less
                self._session.store_documents()
            if parts:
                parts.forget()

    def said_of_prompt(self, prompt: Prompt) -> Iterator[Event]:
        """The events between the prompt and its answer."""
        if self._wants.remarks:
            question, tokenizer = self._question, self._session.model.tokenizer
            about = question.documents, question.question, tokenizer, question.settings.system
            for words in look_alikes(*about):
                yield Message("remark", words)
        yield Prompted(len(prompt.ids), prompt.selection, prompt.left_out)

    def _steps(self, answer: Answer) -> Generator[Event]:
        """The steps of an answer, to its end or to an interrupt."""
        run = answer.run
        try:
            yield Started(run.drafter.origins)
            for step in answer:
                yield Stepped(step, run.statistics.thought_tokens or 0)
        except KeyboardInterrupt:
            answer.interrupted = True
        except Exception:
            if not process.interrupted():  # else a library made this of the Ctrl-C
                raise
            answer.interrupted = True

    def reported(self, answer: Ended, rows: PassRows | None = None, background: str = "") -> Ended:
        """The answer with all that is said of it; `rows` and `background` as for `remarks`."""
        question, model = self._question, self._session.model
        settings, documents = question.settings, question.documents
        answer = replace(answer, facts=tuple(facts(settings, model, answer)))
        if self._wants.sources:
            if not answer.selection and sum(len(d.text) for d in documents) > _LONG:
                self._session.status("Comparing the answer with the documents …")
            answer = with_sources(answer, documents)
        if not self._wants.remarks:
            return answer
        return replace(answer, remarks=tuple(remarks(settings, model, answer, rows, background)))
