"""Prompts to measure with: the built-in ones, a user's files, or JSON lines of several kinds.

The kind of a line is told by its keys:

- ours and TriviaQA's: `documents`, `passages` or `context`, with `question` and `answers`
- Spec-Bench: `question_id`, `category`, `turns`; the first turn is the whole message
- HAGRID: `query`, `quotes`, `answers`
- CNN/DailyMail: `article`, `highlights`

Knows nothing of tokens. A line that cannot be read is an error that names it. Unrelated passages
can be mixed into the documents of a prompt, as retrieval does (paper, Table 4).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from msgspec import Meta, Struct

from ngtcli.batch.lines import Id, Ids, converted, document_of
from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.read import Reader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError, UsageError, nearest
from ngtcli.measure.rows import InputRow, read_rows

CheckPath = Callable[[Path], None]
EXAMPLES = Path(__file__).parent.parent / "examples"
SUMMARIES = 10
QUESTIONS = (
    "What is this about?",
    "Who is named here?",
    "When did it begin?",
    "Why was it done?",
    "How many are there?",
    "What happens today?",
)
_KINDS = (
    "Give documents (or context) with a question; or Spec-Bench's turns, HAGRID's query and quotes,"
    " CNN/DM's article."
)


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to ask. No question: a summary is wanted. `answers` are references for quality.

    `source` names where the documents come from, so that no noise is taken from there. With
    `message` the only document is the user's whole message, question included.
    """

    id: str
    task: str
    documents: tuple[Document, ...]
    question: str = ""
    answers: tuple[str, ...] = ()
    source: str = ""
    message: bool = False


def example_texts() -> Loaded:
    """The example texts."""
    return load([str(EXAMPLES)])


def builtin_items() -> list[Item]:
    """Ten summaries of the example texts and of their halves, and ten questions of the texts."""
    texts = example_texts().documents
    parts = [(d.name, d) for d in texts]
    for text in texts:
        halves = _halves(text)
        parts += [(f"{text.name}, half {i}", half) for i, half in enumerate(halves, 1)]
    summaries = [Item(f"summarize {i}", "summarize", (d,), source=d.name) for i, d in parts]
    return summaries[:SUMMARIES] + read_jsonl(EXAMPLES.parent / "questions.jsonl")


def _halves(document: Document) -> list[Document]:
    """The two halves of a document, by paragraphs, those under 60 words left out."""
    parts = document.text.split("\n\n")
    middle = len(parts) // 2
    texts = ("\n\n".join(half) for half in (parts[:middle], parts[middle:]))
    return [Document(document.name, text) for text in texts if len(text.split()) >= 60]


def file_items(texts: Sequence[Document], asked: Sequence[Document]) -> list[Item]:
    """A summary of each of `texts`; six questions of each of `asked`."""
    items = [Item(f"summarize {d.name}", "summarize", (d,), source=d.name) for d in texts]
    return items + [
        Item(f"ask {d.name}: {question}", "ask", (d,), question, source=d.name)
        for d in asked
        for question in QUESTIONS
    ]


def items_from(
    lines: Path | None,
    texts: Sequence[Document],
    asked: Sequence[Document],
    settings: Settings | None,
    check: CheckPath,
) -> list[Item]:
    """The items of a file of JSON lines, else of documents, else the built-in ones."""
    if lines is not None:
        return read_jsonl(lines, settings, check)
    return file_items(texts, asked) if texts or asked else builtin_items()


def read_jsonl(
    path: Path, settings: Settings | None = None, check: CheckPath = lambda path: None
) -> list[Item]:
    """The items of a file of JSON lines; empty lines are passed over.

    `settings` bound what is read: the lines and the files that they name. Raises InputError, and
    what `check` raises of the path of one of these files, before it is read.
    """
    path, reader = path.expanduser(), Reader((settings or Settings()).max_mb)
    check(path)
    items, ids = list[Item](), Ids()
    for row in read_rows(path, reader, pipes=True):
        try:
            item = _item(row, lambda name: _file(path.parent.resolve(), name, reader, check))
            ids.check(item.id, row.number)
        except InputError as error:
            raise row.wrong(str(error), error.hint) from None
        except RecursionError:
            raise row.wrong("nested too deeply", _KINDS) from None
        items.append(item)
    return items


class _GivenText(Struct):
    text: str | None = None
    name: str | None = None
    title: str | None = None
    file: str | None = None


_Texts = Annotated[list[str | _GivenText], Meta(min_length=1)] | str | _GivenText


class _PromptLine(Struct):
    """The keys of all kinds; the first of `turns` to `context` that is there tells which it is."""

    turns: Annotated[list[str], Meta(min_length=1)] | None = None
    quotes: _Texts | None = None
    article: str | None = None
    documents: _Texts | None = None
    passages: _Texts | None = None
    context: _Texts | None = None
    id: Id | None = None
    question_id: Id | None = None
    query_id: Id | None = None
    task: str = ""
    category: str = "chat"
    question: str = ""
    query: str = ""
    answers: Any = None
    answer: Any = None
    highlights: Any = None


def _item(row: InputRow, read: Callable[[str], str]) -> Item:
    """The item of a line, by the kind that its keys tell; `read` gives the text of a file."""
    line = converted(row.data, _PromptLine)
    id, question, found = line.id, line.question.strip(), line.answers
    if line.turns is not None:
        message = Document("message", _not_blank("turns", line.turns[0]))
        return Item(_id(row, line.question_id), line.category, (message,), message=True)
    texts = (line.quotes, line.documents, line.passages, line.context)
    given = next((one for one in texts if one is not None), None)
    if line.quotes is not None:
        question = _not_blank("query", line.query).strip()
        id = line.query_id if id is None else id
    elif line.article is not None:
        given = [_GivenText(_not_blank("article", line.article), "article")]
        question, found = "", line.highlights
    else:
        found = line.answer if found is None else found
    if given is None:
        raise InputError("no documents", _KINDS)
    parts = given if isinstance(given, list) else [given]
    documents = tuple(_document(f"passage {i}", one, read) for i, one in enumerate(parts, 1))
    task = line.task or ("ask" if question else "summarize")
    return Item(_id(row, id), task, documents, question, _answers([] if found is None else found))


def _id(row: InputRow, own: Id | None) -> str:
    """The line's id; its number where it has none."""
    return str(row.number if own is None else own)


def _not_blank(key: str, text: str) -> str:
    if not text.strip():
        raise InputError(f"no {key}", f'Give "{key}": "…".')
    return text


def _document(what: str, given: str | _GivenText, read: Callable[[str], str]) -> Document:
    """A text, or an object with `text` (and `name` or `title`), or one that names a `file`."""
    if isinstance(given, str):
        return document_of(what, what, given)
    if given.file is not None:
        return document_of(what, given.name or given.file, read(given.file))
    if given.text is None:
        raise InputError(f"{what} has no text", 'Give a text, or {"name": …, "text": …}.')
    return document_of(what, given.name or given.title, given.text)


def _file(folder: Path, name: str, reader: Reader, check: CheckPath) -> str:
    """The text of a file next to the lines; never one from elsewhere on the machine."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise InputError(f"file {name!r} is elsewhere", "Name one in the folder of this file.")
        check(path)
        return decode_text(reader.read(path))
    except Unreadable as error:
        raise InputError(f"file {name!r} cannot be read: {error}", "Check it.") from None
    except (OSError, ValueError, RuntimeError):  # not a path, a loop of links
        raise InputError(f"file {name!r} cannot be read", "Check its name.") from None


def _answers(value: Any) -> tuple[str, ...]:
    """Reference answers: a text, a list, HAGRID's objects, TriviaQA's value and aliases."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(dict.fromkeys(a for v in value for a in _answers(v)))
    if isinstance(value, dict) and value.keys() & {"value", "aliases", "answer", "text"}:
        return _answers([value[k] for k in ("value", "answer", "text", "aliases") if k in value])
    raise InputError("an answer is not a text", 'Give "answers": ["…"].')


class _Asked(Protocol):
    @property
    def task(self) -> str: ...


T = TypeVar("T", bound=_Asked)


def choose(
    items: Sequence[T], tasks: Sequence[str], limit: int | None, where: str = "these prompts"
) -> list[T]:
    """The items of `tasks` (all where none is named), at most `limit` of each task.

    Raises UsageError for a task that is not in `where`.
    """
    known = list(dict.fromkeys(item.task for item in items))
    for task in tasks:
        if task not in known:
            raise UsageError(f"no task {task!r} in {where}", nearest(task, known))
    taken: dict[str, int] = dict.fromkeys(known, 0)
    chosen = []
    for item in items:
        if (not tasks or item.task in tasks) and (limit is None or taken[item.task] < limit):
            taken[item.task] += 1
            chosen.append(item)
    return chosen


def add_noise(
    items: Sequence[Item], count: int, seed: int = 0, sources: Sequence[Item] = ()
) -> list[Item]:
    """Each item with `count` passages of `sources` (else of the items) among its documents.

    They are the same for one `seed`, and none is of a text that the item itself is about. Raises
    UsageError where there are too few.
    """
    if any(item.message for item in items):
        what = "--noise cannot be mixed into whole messages"
        raise UsageError(what, "Give prompts whose documents stand apart from the question.")
    others = [(other, _passages(other)) for other in sources or items]
    return [_noisy(item, others, count, seed) for item in items]


def _passages(item: Item) -> set[str]:
    return {passage for document in item.documents for passage in passages(document)}


def passages(document: Document) -> list[str]:
    """Paragraphs of at least 20 words; the whole text where there are none."""
    parts = [p.strip() for p in document.text.split("\n\n") if len(p.split()) >= 20]
    return parts or [document.text.strip()]


def _noisy(item: Item, others: Sequence[tuple[Item, set[str]]], count: int, seed: int) -> Item:
    own = _passages(item)
    unrelated = [
        d
        for other, theirs in others
        if not theirs & own and not (item.source and item.source == other.source)
        for d in other.documents
    ]
    offered = dict.fromkeys(passage for d in unrelated for passage in passages(d))
    found = [p for p in offered if not any(p in d.text for d in item.documents)]
    if len(found) < count:
        what = f"--noise {count}: only {len(found)} unrelated passages for {item.id}"
        raise UsageError(what, "Give fewer, or more prompts to take them from.")
    chance = random.Random(f"{seed} {item.id}")  # its own: the order of items decides nothing
    mixed = list(item.documents)
    for i, passage in enumerate(chance.sample(found, count), 1):
        mixed.insert(chance.randint(0, len(mixed)), Document(f"extract {i}", passage))
    return replace(item, documents=tuple(mixed))
