"""Answers one question: its prompt, the answer step by step, its sources, as events."""

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from ngtcli.config import IN_PARTS
from ngtcli.draft.drafter import PassRows
from ngtcli.errors import StoppedError
from ngtcli.prompt.build import Prompt, check_known, look_alikes
from ngtcli.session.events import USUAL, Ended, Event, Message, Prompted, Started, Stepped, Wants
from ngtcli.session.parts import Splitting
from ngtcli.session.question import Question
from ngtcli.session.report import explanation, facts, remarks, with_sources
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
    parts = None
    try:
        if question.settings.overflow in IN_PARTS:
            parts = Splitting(session, question.preset, question.documents, begin_part)
        prompt = parts.prompt() if parts else prompt_of(session, question)
        yield from prompted(session, question, prompt, wants)
        answer = parts.answer(prompt) if parts else session.answer(prompt)
    except KeyboardInterrupt:
        raise StoppedError(f"interrupted{parts.kept_words() if parts else ''}") from None
    yield from decoded(answer, wants)
    ended, run = answer.ended(parts.reports if parts else ()), answer.run
    background = answer.background_words() if wants.remarks else ""
    yield reported(session, question, ended, wants, run.rows, background)
    if not answer.interrupted:
        session.store_documents()
    if parts and not answer.interrupted:
        parts.forget()


def prompt_of(session: Session, question: Question) -> Prompt:
    """The prompt of a question, which fits. Raises NgtError."""
    q = question
    prompt = session.prompt(q.wording, q.documents, q.question, q.turns, q.raw)
    if not question.prediction:
        return prompt
    predicted = session.model.tokenizer.encode(question.prediction)
    check_known(predicted, session.model.vocabulary)
    return prompt.predicting(predicted)


def prompted(session: Session, question: Question, prompt: Prompt, wants: Wants) -> Iterator[Event]:
    """What is said of a prompt; with remarks also which texts hold what looks like control."""
    if wants.remarks:
        about = question.documents, question.question, session.model.tokenizer
        for words in look_alikes(*about, question.settings.system):
            yield Message("remark", words)
    yield Prompted(len(prompt.ids), prompt.selection)


def decoded(answer: Answer, wants: Wants) -> Generator[Event]:
    """The steps of an answer, to its end or to an interrupt."""
    try:
        yield Started(answer.run.drafter.origins)
        for step in answer:
            words = explanation(answer.run, step) if wants.explanations else ""
            yield Stepped(step, answer.run.statistics.thought_tokens or 0, words)
    except KeyboardInterrupt:
        answer.interrupted = True
    except Exception:
        if not process.interrupted():  # else a library made this of the Ctrl-C
            raise
        answer.interrupted = True


def reported(
    session: Session,
    question: Question,
    answer: Ended,
    wants: Wants,
    rows: PassRows | None = None,
    background: str = "",
) -> Ended:
    """The answer with all that is said of it; `rows` and `background` as for `remarks`."""
    settings, model = question.settings, session.model
    answer = replace(answer, facts=tuple(facts(settings, model, answer)))
    if wants.sources:
        if not answer.selection and sum(len(d.text) for d in question.documents) > _LONG:
            session.status("Comparing the answer with the documents …")
        answer = with_sources(answer, question.documents)
    if not wants.remarks:
        return answer
    return replace(answer, remarks=tuple(remarks(settings, model, answer, rows, background)))
