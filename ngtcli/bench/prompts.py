"""Items to measure with: built in, of a user's documents, or of a file of JSON lines."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from msgspec import Meta, Struct

from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.read import BoundedReader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.engine.batch.lines import Id, Ids, converted, document_of, json_object
from ngtcli.errors import InputError, UsageError
from ngtcli.prompts.preset import Preset, can_ask
from ngtcli.words import nearest

CheckPath = Callable[[Path], None]  # raises an error for a path that must not be read
EXAMPLES = Path(__file__).parent.parent / "examples"
SUMMARIES = 10  # of the built-in items
_MIN_WORDS_OF_HALF = 60  # of a half of an example text that is summarized
_MIN_WORDS_OF_PASSAGE = 20
QUESTIONS = (
    "What is this about?",
    "Who is named here?",
    "When did it begin?",
    "Why was it done?",
    "How many are there?",
    "What happens today?",
)
_HINT = "Give documents, context or a message; see ngt help measuring."


@dataclass(frozen=True, slots=True)
class Item:
    """One request to measure.

    Attributes:
        id: Its name.
        task: "ask", "summarize", "chat", or what its line says.
        documents: What it is about.
        question: "" for a summary.
        answers: Reference answers, to measure quality.
        message: Whether the only document is the user's whole message, question included.
    """

    id: str
    task: str
    documents: tuple[Document, ...]
    question: str = ""
    answers: tuple[str, ...] = ()
    message: bool = False


def example_texts() -> Loaded:
    """Load the example texts, but not the folder of letters beside them."""
    return load([f"{EXAMPLES}/*.*"])


def builtin_items() -> list[Item]:
    """Make ten summaries of the example texts and their halves, and ten questions on the texts."""
    texts = example_texts().documents
    parts = [(text.name, text) for text in texts]
    for text in texts:
        for number, half in enumerate(_halves(text), 1):
            parts.append((f"{text.name}, half {number}", half))
    summaries = [Item(f"summarize {name}", "summarize", (part,)) for name, part in parts]
    return summaries[:SUMMARIES] + read_jsonl(EXAMPLES.parent / "questions.jsonl")


def _halves(document: Document) -> list[Document]:
    """Split a document between paragraphs into two halves; short halves are left out."""
    paragraphs = document.text.split("\n\n")
    middle = len(paragraphs) // 2
    halves = []
    for part in (paragraphs[:middle], paragraphs[middle:]):
        text = "\n\n".join(part)
        if len(text.split()) >= _MIN_WORDS_OF_HALF:
            halves.append(Document(document.name, text))
    return halves


def file_items(texts: Sequence[Document], asked: Sequence[Document]) -> list[Item]:
    """Make a summary of each document of `texts`, and six questions on each of `asked`."""
    items = [Item(f"summarize {text.name}", "summarize", (text,)) for text in texts]
    for document in asked:
        for question in QUESTIONS:
            item_id = f"ask {document.name}: {question}"
            items.append(Item(item_id, "ask", (document,), question))
    return items


def items_from(
    lines: Path | None,
    texts: Sequence[Document],
    asked: Sequence[Document],
    settings: Settings | None,
    check: CheckPath,
) -> list[Item]:
    """Return the items of a file of JSON lines, else of documents, else the built-in ones."""
    if lines is not None:
        return read_jsonl(lines, settings, check)
    return file_items(texts, asked) if texts or asked else builtin_items()


def preset_items(
    texts: Sequence[Document],
    preset: Preset,
    limit: int | None = None,
    lines: Path | None = None,
    settings: Settings | None = None,
    check: CheckPath = lambda path: None,
) -> list[Item]:
    """Return the items that a preset is for: with a question if the preset has one, else without.

    Args:
        texts: The user's documents.
        preset: The preset.
        limit: Maximum number of items. None: all.
        lines: A file of JSON lines.
        settings: See `read_jsonl`.
        check: See `read_jsonl`.

    Raises:
        InputError: The file cannot be read, or has no item that the preset is for.
    """
    asks = can_ask(preset)
    summarized, asked = ([], texts) if asks else (texts, [])
    items = items_from(lines, summarized, asked, settings, check)
    chosen = [item for item in items if bool(item.question) == asks]
    if not chosen:
        problem = "no prompt with a question" if asks else "no prompt without a question"
        raise InputError(
            f"{lines}: {problem}",
            hint=f"The preset {preset.name} needs one; choose another with -p.",
        )
    return chosen[:limit]


def spread(items: Sequence[Item], limit: int) -> list[Item]:
    """Select at most `limit` items at equal distances, in their order."""
    count = min(limit, len(items))
    return [items[i * len(items) // count] for i in range(count)]


@dataclass(frozen=True, slots=True)
class InputRow:
    """An object in a line of a file."""

    path: Path
    number: int
    data: dict[str, Any]

    def wrong(self, problem: str, hint: str) -> InputError:
        """Make the error for a problem in this line."""
        return InputError(f"{self.path}:{self.number}: {problem}", hint=hint)


def read_rows(path: Path, reader: BoundedReader, pipes: bool = False) -> Iterator[InputRow]:
    """Yield the objects in the lines of a file; empty lines are skipped.

    Args:
        path: The file.
        reader: Reads it within the limits of the settings.
        pipes: Whether the path may be a pipe.

    Raises:
        InputError: The file cannot be read, or a line is not a JSON object.
    """
    try:
        text = decode_text(reader.read(path, pipes))
    except Unreadable as error:
        raise error.of(str(path)) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = InputRow(path, number, json_object(line))
        except InputError as error:
            raise InputRow(path, number, {}).wrong(str(error), error.hint) from None
        yield row


def read_jsonl(
    path: Path, settings: Settings | None = None, check: CheckPath = lambda path: None
) -> list[Item]:
    """Read the items in a file of JSON lines; empty lines are skipped.

    Args:
        path: The file.
        settings: Limit how much is read, of the lines and of the files that they name.
        check: Called with the path of each file before it is read.

    Raises:
        InputError: A file or a line cannot be read.
        Exception: Whatever `check` raises.
    """
    path = path.expanduser()
    reader = BoundedReader((settings or Settings()).reading.max_mb)
    check(path)
    items: list[Item] = []
    ids = Ids()
    folder = path.parent.resolve()
    for row in read_rows(path, reader, pipes=True):
        try:
            item = _item(row, lambda name: _read_file(folder, name, reader, check))
            ids.check(item.id, row.number)
        except InputError as error:
            raise row.wrong(str(error), error.hint) from None
        except RecursionError:
            raise row.wrong("nested too deeply", _HINT) from None
        items.append(item)
    return items


class _TextObject(Struct):
    """A text of a line: in the line itself, or in a file."""

    text: str | None = None
    name: str | None = None
    file: str | None = None


_Texts = Annotated[list[str | _TextObject], Meta(min_length=1)] | str | _TextObject


class _PromptLine(Struct):
    """A line: `documents`, `passages` or `context` with a `question`, or a whole `message`."""

    id: Id | None = None
    task: str = ""
    documents: _Texts | None = None
    passages: _Texts | None = None
    context: _Texts | None = None
    message: str | None = None
    question: str = ""
    answers: str | list[str] = []


def _item(row: InputRow, read: Callable[[str], str]) -> Item:
    """Make the item of a line; `read` returns the text of a file. Raises InputError."""
    line = converted(row.data, _PromptLine)
    item_id = str(row.number if line.id is None else line.id)
    answers = [line.answers] if isinstance(line.answers, str) else line.answers
    if line.message is not None:
        message = document_of("message", "message", line.message)
        task = line.task or "chat"
        return Item(item_id, task, (message,), "", tuple(answers), message=True)
    for texts in (line.documents, line.passages, line.context):
        if texts is not None:
            break
    else:
        raise InputError("no documents", hint=_HINT)
    if not isinstance(texts, list):
        texts = [texts]
    documents = []
    for number, text in enumerate(texts, 1):
        documents.append(_document(f"passage {number}", text, read))
    question = line.question.strip()
    task = line.task or ("ask" if question else "summarize")
    return Item(item_id, task, tuple(documents), question, tuple(dict.fromkeys(answers)))


def _document(label: str, text: str | _TextObject, read: Callable[[str], str]) -> Document:
    """Make a document of a text, or of an object that has a text or names a file."""
    if isinstance(text, str):
        return document_of(label, label, text)
    if text.file is not None:
        return document_of(label, text.name or text.file, read(text.file))
    if text.text is None:
        raise InputError(f"{label} has no text", hint='Give a text, or {"name": …, "text": …}.')
    return document_of(label, text.name, text.text)


def _read_file(folder: Path, name: str, reader: BoundedReader, check: CheckPath) -> str:
    """Read a file in the folder of the lines; a file elsewhere on the machine is refused."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise InputError(
                f"file {name!r} is in another folder",
                hint="Use a file in the folder of the JSON lines.",
            )
        check(path)
        return decode_text(reader.read(path))
    except Unreadable as error:
        raise InputError(f"file {name!r} cannot be read: {error}", hint="Check it.") from None
    except (OSError, ValueError, RuntimeError):  # not a path, a loop of links
        raise InputError(f"file {name!r} cannot be read", hint="Check its name.") from None


class _WithTask(Protocol):
    """A prompt or a trace: it belongs to a task."""

    @property
    def task(self) -> str:
        """The name of its task."""


T = TypeVar("T", bound=_WithTask)


def choose(
    items: Sequence[T], tasks: Sequence[str], limit: int | None, where: str = "these prompts"
) -> list[T]:
    """Select items by their tasks.

    Args:
        items: The items.
        tasks: Their tasks; none: all.
        limit: Maximum number of items of each task. None: all.
        where: What the items are in, for the message.

    Raises:
        UsageError: No item has one of `tasks`.
    """
    item_tasks = list(dict.fromkeys(item.task for item in items))
    for task in tasks:
        if task not in item_tasks:
            raise UsageError(f"no task {task!r} in {where}", hint=nearest(task, item_tasks))
    counts: dict[str, int] = dict.fromkeys(item_tasks, 0)
    chosen = []
    for item in items:
        if tasks and item.task not in tasks:
            continue
        if limit is not None and counts[item.task] >= limit:
            continue
        counts[item.task] += 1
        chosen.append(item)
    return chosen


def passages(document: Document) -> list[str]:
    """Return the paragraphs of at least 20 words; the whole text if there are none."""
    paragraphs = document.text.split("\n\n")
    long = [part.strip() for part in paragraphs if len(part.split()) >= _MIN_WORDS_OF_PASSAGE]
    return long or [document.text.strip()]
