"""Save a conversation as JSON, which can be loaded, or as Markdown for people."""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

import msgspec

from ngtcli.cli import output
from ngtcli.cli.answer_object import DocumentObject
from ngtcli.documents.load import Document
from ngtcli.documents.quotes.sources import sources_of
from ngtcli.drafting.steps import Statistics, Step, Token
from ngtcli.engine.events import Ended
from ngtcli.errors import InputError
from ngtcli.render.answer_view import listed
from ngtcli.render.terminal import visible
from ngtcli.words import reason_of

if TYPE_CHECKING:
    from ngtcli.system.store import Kind

MAX_BYTES = 100_000_000  # of a conversation file (guess)
_WRITTEN_BY_SAVE = "Name a .json file that /save wrote."
_LAST = "last"  # the key of the conversation that was saved last


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and its answer."""

    question: str
    answer: Ended


@dataclass(frozen=True, slots=True)
class Conversation:
    """The content of a conversation file.

    Attributes:
        model: The model that answered.
        system: The system prompt; "" for none.
        paths: The absolute paths of the files and folders that were read.
        documents: The documents in them.
        exchanges: Questions and answers in order.
    """

    model: str
    system: str
    paths: Sequence[str] = ()
    documents: Sequence[Document] = ()
    exchanges: Sequence[Exchange] = ()


class _SavedExchange(msgspec.Struct):
    question: str
    answer: str
    thought: str | None = None
    finish_reason: str = "stop"
    statistics: Any = None


class _SavedDocument(msgspec.Struct):
    name: str
    sha256: str


class _SavedConversation(msgspec.Struct):
    exchanges: list[_SavedExchange]
    model: str = ""
    system: str = ""
    paths: list[str] = []
    documents: list[_SavedDocument] = []


@dataclass(frozen=True, slots=True)
class Saved:
    """A conversation that was read from a file.

    Attributes:
        conversation: The conversation, without the texts of its documents.
        checksums: The SHA-256 of each document, by name.
    """

    conversation: Conversation
    checksums: dict[str, str]

    def changed(self, documents: Sequence[Document]) -> list[str]:
        """Return the names of documents that have changed or are missing."""
        current = {document.name: document.sha256 for document in documents}
        return [name for name, sha256 in self.checksums.items() if current.get(name) != sha256]


def to_json(conversation: Conversation) -> str:
    """Return a conversation as JSON, which `read_conversation` reads."""
    keys = ("thought", "finish_reason", "sources", "statistics")
    exchanges = []
    for exchange in conversation.exchanges:
        answer = exchange.answer
        row = {"question": exchange.question, "answer": answer.text}
        exchanges.append(row | {key: getattr(answer, key) for key in keys})
    return output.json_of_answer(
        {
            "model": conversation.model,
            "system": conversation.system,
            "paths": list(conversation.paths),
            "documents": [
                DocumentObject(d.name, d.sha256, len(d.text)) for d in conversation.documents
            ],
            "exchanges": exchanges,
        }
    )


def to_markdown(conversation: Conversation) -> str:
    """Return a conversation as a Markdown page, with the sources of its answers."""
    parts = [f"# A conversation with {conversation.model}"]
    if conversation.documents:
        parts.append("Documents: " + ", ".join(d.name for d in conversation.documents))
    if conversation.system:
        parts.append(f"System prompt: {conversation.system}")
    for number, exchange in enumerate(conversation.exchanges, 1):
        answer = exchange.answer
        state = " (interrupted)" if answer.finish_reason == "interrupted" else ""
        parts += [f"## Question {number}", exchange.question]
        parts += [f"## Answer {number}{state}", answer.text.strip()]
        parts.append("\n".join(f"- {listed(source)}" for source in answer.sources.places()))
    return visible("\n\n".join(filter(None, parts)))


def read_conversation(path: Path) -> Saved:
    """Read a conversation that was saved as JSON. Raises InputError.

    Its answers have no sources yet: see `with_sources`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}", hint=_WRITTEN_BY_SAVE) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: more than {MAX_BYTES // 10**6} MB", hint=_WRITTEN_BY_SAVE)
    try:
        saved = msgspec.json.decode(data, type=_SavedConversation)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InputError(f"{path} is not a saved conversation", hint=_WRITTEN_BY_SAVE) from None
    conversation = Conversation(
        model=saved.model,
        system=saved.system,
        paths=saved.paths,
        exchanges=[Exchange(row.question, _answer(row)) for row in saved.exchanges],
    )
    return Saved(conversation, {d.name: d.sha256 for d in saved.documents})


def with_sources(exchanges: Sequence[Exchange], documents: Sequence[Document]) -> list[Exchange]:
    """Return exchanges whose answers have their sources in these documents."""
    complete = []
    for exchange in exchanges:
        sources = sources_of(exchange.answer.text, documents)
        complete.append(replace(exchange, answer=replace(exchange.answer, sources=sources)))
    return complete


def _answer(row: _SavedExchange) -> Ended:
    """Return a saved answer as a single step."""
    statistics = Statistics()
    with suppress(msgspec.ValidationError):  # another version of ngt may have saved them
        statistics = msgspec.convert(row.statistics or {}, Statistics, dec_hook=_counter)
    tokens = [Token(0, "", thought=row.thought)] if row.thought else []
    tokens.append(Token(0, row.answer))
    return Ended(
        finish_reason=row.finish_reason, steps=(Step(tuple(tokens)),), statistics=statistics
    )


def _counter(kind: type, value: Any) -> Any:
    """Convert a JSON object to a Counter of numbers. Raises ValueError for another type."""
    if (get_origin(kind) or kind) is not Counter or not isinstance(value, dict):
        raise ValueError(f"{kind} cannot be read")
    return Counter({int(key): int(count) for key, count in value.items()})


def remember(path: Path) -> None:
    """Store that this conversation was saved last."""
    _conversations().put(_LAST, str(path.resolve()))


def last_saved() -> Path:
    """Return the file of the conversation that was saved last. Raises InputError if none was."""
    name = _conversations().get(_LAST)
    if name is None:
        raise InputError(
            "no conversation has been saved", hint="In ngt chat, /save FILE.json saves one."
        )
    return Path(name)


def absolute(path: str) -> str:
    """Return a path or pattern that can be read from any folder."""
    return os.path.abspath(os.path.expanduser(path))


def _conversations() -> "Kind[str]":
    from ngtcli.system.store import Kind  # most commands do not need it

    return Kind("conversation", str, is_state=True)
