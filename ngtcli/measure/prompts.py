"""Prompts to measure with: the built-in ones, a user's files, or JSON lines of several kinds.

The kind of a line is told by its keys:

- ours and TriviaQA's: `documents`, `passages` or `context`, with `question` and `answers`
- Spec-Bench: `question_id`, `category`, `turns`; the first turn is the whole message
- HAGRID: `query`, `quotes`, `answers`
- CNN/DailyMail: `article`, `highlights`

Knows nothing of tokens. A line that cannot be read is an error that names it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.config import Settings
from ngtcli.documents.files import Reader
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import UsageError
from ngtcli.measure.json_lines import Row, read_rows

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
    halves = (parts[: len(parts) // 2], parts[len(parts) // 2 :])
    texts = ("\n\n".join(half) for half in halves)
    return [Document(document.name, text) for text in texts if len(text.split()) >= 60]


def file_items(texts: Sequence[Document], asked: Sequence[Document]) -> list[Item]:
    """A summary of each of `texts`; six questions of each of `asked`."""
    items = [Item(f"summarize {d.name}", "summarize", (d,), source=d.name) for d in texts]
    return items + [
        Item(f"ask {d.name}: {question}", "ask", (d,), question, source=d.name)
        for d in asked
        for question in QUESTIONS
    ]


def read_jsonl(
    path: Path, settings: Settings | None = None, check: CheckPath = lambda path: None
) -> list[Item]:
    """The items of a file of JSON lines; empty lines are passed over.

    `settings` bound what is read: the lines and the files that they name. Raises InputError, and
    what `check` raises of the path of one of these files, before it is read.
    """
    path, reader = path.expanduser(), Reader((settings or Settings()).max_mb)
    check(path)
    items: list[Item] = []
    seen: dict[str, int] = {}
    for row in read_rows(path, reader, pipes=True):
        try:
            item = _Line(row, reader, check).item()
        except RecursionError:
            raise row.wrong("nested too deeply", _KINDS) from None
        if item.id in seen:
            raise row.wrong(
                f"id {item.id!r} is that of line {seen[item.id]}",
                "Give each line an id of its own.",
            )
        seen[item.id] = row.number
        items.append(item)
    return items


def choose(items: Sequence[Item], tasks: Sequence[str], limit: int | None) -> list[Item]:
    """The items of `tasks` (all where none is named), at most `limit` of each task."""
    known = list(dict.fromkeys(item.task for item in items))
    for task in tasks:
        if task not in known:
            raise UsageError(f"no task {task!r} in these prompts", f"Known: {', '.join(known)}.")
    taken: dict[str, int] = dict.fromkeys(known, 0)
    chosen = []
    for item in items:
        if (not tasks or item.task in tasks) and (limit is None or taken[item.task] < limit):
            taken[item.task] += 1
            chosen.append(item)
    return chosen


class _Line:
    """One line of a file, read by the kind that its keys tell."""

    def __init__(self, row: Row, reader: Reader, check: CheckPath) -> None:
        self.path, self.data, self._reader = row.path, row.data, reader
        self._check = check
        self._number, self._wrong = row.number, row.wrong

    def item(self) -> Item:
        """The item, by the keys of the line."""
        for key, read in (
            ("turns", self._spec_bench),
            ("quotes", self._hagrid),
            ("article", self._cnn_dm),
        ):
            if key in self.data:
                return read()
        for key in ("documents", "passages", "context"):
            if key in self.data:
                question = self._text("question", "")
                return self._item(self._documents(key), question, ("answers", "answer"))
        raise self._wrong("no documents", _KINDS)

    def _item(
        self, documents: tuple[Document, ...], question: str, answers: tuple[str, ...]
    ) -> Item:
        id = self._id("id")
        task = self._text("task", "ask" if question else "summarize")
        found: Any = next((self.data[k] for k in answers if self.data.get(k) is not None), [])
        return Item(id, task, documents, question.strip(), self._answers(found))

    def _id(self, key: str) -> str:
        """The line's id; its number where it has none."""
        given = self.data.get(key, self._number)
        if isinstance(given, bool) or not isinstance(given, str | int):
            raise self._wrong(f"{key} is not a string or number", "Give one or leave it out.")
        return str(given)

    def _spec_bench(self) -> Item:
        turns = self.data["turns"]
        if not (isinstance(turns, list) and turns and isinstance(turns[0], str) and turns[0]):
            raise self._wrong("turns is not a list of messages", 'Give "turns": ["…"].')
        documents = (Document("message", turns[0]),)
        return Item(
            self._id("question_id"), self._text("category", "chat"), documents, message=True
        )

    def _hagrid(self) -> Item:
        question = self._text("query")
        item = self._item(self._documents("quotes"), question, ("answers",))
        id = self._id("id" if "id" in self.data else "query_id")
        return Item(id, item.task, item.documents, question, item.answers)

    def _cnn_dm(self) -> Item:
        documents = (Document("article", self._text("article")),)
        return self._item(documents, "", ("highlights",))

    def _text(self, key: str, default: str | None = None) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self._wrong(f"{key} is not a text", f'Give "{key}": "…".')
        return value

    def _documents(self, key: str) -> tuple[Document, ...]:
        value = self.data[key]
        values = value if isinstance(value, list) else [value]
        if not values:
            raise self._wrong(f"{key} is empty", f'Give "{key}": ["…"].')
        return tuple(self._document(key, v, i) for i, v in enumerate(values, 1))

    def _document(self, key: str, value: Any, number: int) -> Document:
        """A text, or an object with `text` (and `name` or `title`), or one that names a `file`."""
        name, text = f"passage {number}", value
        if isinstance(value, dict):
            name = value.get("name") or value.get("title") or name
            text = self._file(value["file"]) if "file" in value else value.get("text")
            if "file" in value:
                name = value.get("name") or value["file"]
            if not isinstance(name, str):
                raise self._wrong(f"{key} holds a name that is not a text", 'Give "name": "…".')
        if not isinstance(text, str) or not text.strip():
            raise self._wrong(
                f"{key} holds something without text", f'Give "{key}": ["…"] or [{{"text": "…"}}].'
            )
        return Document(name, text)

    def _file(self, name: Any) -> str:
        """The text of a file beside this one; never one from elsewhere on the machine."""
        folder = self.path.parent.resolve()
        try:
            path = (folder / name).resolve()
            if not path.is_relative_to(folder):
                raise self._wrong(
                    f"file {name!r} is elsewhere", "Name one in the folder of this file."
                )
            self._check(path)
            return decode_text(self._reader.file(path))
        except Unreadable as error:
            raise self._wrong(f"file {name!r} cannot be read: {error}", "Check it.") from None
        except (OSError, ValueError, TypeError, RuntimeError):  # no path, a loop of links
            raise self._wrong(f"file {name!r} cannot be read", "Check its name.") from None

    def _answers(self, value: Any) -> tuple[str, ...]:
        """Reference answers: a text, a list, HAGRID's objects, TriviaQA's value and aliases."""
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list):
            return tuple(dict.fromkeys(a for v in value for a in self._answers(v)))
        if isinstance(value, dict) and value.keys() & {"value", "aliases", "answer", "text"}:
            parts = [value[k] for k in ("value", "answer", "text", "aliases") if k in value]
            return self._answers(parts)
        raise self._wrong("an answer is not a text", 'Give "answers": ["…"].')
