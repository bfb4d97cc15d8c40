"""What was asked and answered in a conversation, and the file that it is saved in."""

from collections.abc import Sequence
from dataclasses import dataclass

from ngtcli.cli.answer_object import DocumentObject, document_objects
from ngtcli.draft.steps import Statistics
from ngtcli.grounding.sources import Sources
from ngtcli.prompt.turns import Turn
from ngtcli.render.answer_view import listed
from ngtcli.render.terminal import visible
from ngtcli.session.events import Ended
from ngtcli.session.question import Question
from ngtcli.system.json_form import dump_json


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and what came of it."""

    question: str
    answer: Ended

    @property
    def turns(self) -> list[Turn]:
        """As the next prompt has them; none where there is no answer."""
        if not (text := self.answer.text.strip()):
            return []
        read = self.answer.selection.new if self.answer.selection else ()
        return [Turn("user", self.question, read), Turn("assistant", text)]


@dataclass(frozen=True, slots=True)
class ExchangeObject:
    """An exchange as JSON has it."""

    question: str
    answer: str
    thought: str | None
    finish_reason: str
    sources: Sources
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class ConversationObject:
    """A conversation as JSON has it."""

    model: str
    system: str
    documents: Sequence[DocumentObject]
    exchanges: Sequence[ExchangeObject]


def turns_of(exchanges: Sequence[Exchange]) -> tuple[Turn, ...]:
    """What was said, for the next question."""
    return tuple(turn for exchange in exchanges for turn in exchange.turns)


def saved(about: Question, exchanges: Sequence[Exchange], json: bool) -> str:
    """The text of a file, without its last newline: JSON, or else Markdown."""
    settings = about.settings
    if json:
        found = [
            ExchangeObject(e.question, a.text, a.thought, a.finish_reason, a.sources, a.statistics)
            for e in exchanges
            for a in [e.answer]
        ]
        documents = document_objects(about)
        return dump_json(ConversationObject(settings.model, settings.system, documents, found))
    parts = [f"# A conversation with {settings.model}"]
    if about.documents:
        parts.append("Documents: " + ", ".join(d.name for d in about.documents))
    if settings.system:
        parts.append(f"System text: {settings.system}")
    for number, exchange in enumerate(exchanges, 1):
        answer = exchange.answer
        how = " (interrupted)" if answer.finish_reason == "interrupted" else ""
        parts += [f"## Question {number}", exchange.question]
        parts += [f"## Answer {number}{how}", answer.text.strip()]
        parts.append("\n".join(f"- {listed(source)}" for source in answer.sources.places()))
    return visible("\n\n".join(filter(None, parts)))
