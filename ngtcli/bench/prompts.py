"""Prompts to measure with: the built-in ones, a user's files, or JSON lines.

Knows nothing of tokens. A line that cannot be read is an error that names it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded, load
from ngtcli.documents.read import Reader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.engine.batch.lines import Id, Ids, converted, document_of, json_object
from ngtcli.errors import InputError, UsageError
from ngtcli.prompts.preset import Preset, can_ask
from ngtcli.words import nearest

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
_KINDS = "Give documents, context or a message; see manual/measuring.md."


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to ask. No question: a summary is wanted. `answers` are references for quality.

    With `message` the only document is the user's whole message, question included.
    """

    id: str
    task: str
    documents: tuple[Document, ...]
    question: str = ""
    answers: tuple[str, ...] = ()
    message: bool = False


def example_texts() -> Loaded:
    """The example texts, without the letters beside them."""
    return load([f"{EXAMPLES}/*.*"])


def builtin_items() -> list[Item]:
    """Ten summaries of the example texts and of their halves, and ten questions of the texts."""
    texts = example_texts().documents
    parts = [(d.name, d) for d in texts]
    for text in texts:
        parts += [(f"{text.name}, half {i}", half) for i, half in enumerate(_halves(text), 1)]
    summaries = [Item(f"summarize {i}", "summarize", (d,)) for i, d in parts]
    return summaries[:SUMMARIES] + read_jsonl(EXAMPLES.parent / "questions.jsonl")


def _halves(document: Document) -> list[Document]:
    """The two halves of a document, by paragraphs, those under 60 words left out."""
    parts = document.text.split("\n\n")
    middle = len(parts) // 2
    texts = ("\n\n".join(half) for half in (parts[:middle], parts[middle:]))
    return [Document(document.name, text) for text in texts if len(text.split()) >= 60]


def file_items(texts: Sequence[Document], asked: Sequence[Document]) -> list[Item]:
    """A summary of each of `texts`; six questions of each of `asked`."""
    items = [Item(f"summarize {d.name}", "summarize", (d,)) for d in texts]
    return items + [
        Item(f"ask {d.name}: {question}", "ask", (d,), question)
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


def preset_items(
    texts: Sequence[Document],
    preset: Preset,
    limit: int | None = None,
    lines: Path | None = None,
    settings: Settings | None = None,
    check: CheckPath = lambda path: None,
) -> list[Item]:
    """As `items_from`, what a preset is for: with a question if it asks for one, else without.

    Raises InputError.
    """
    asks = can_ask(preset)
    summarized, asked = ([], texts) if asks else (texts, [])
    items = items_from(lines, summarized, asked, settings, check)
    chosen = [item for item in items if bool(item.question) == asks]
    if not chosen:
        what = f"{lines}: no prompt {'with' if asks else 'without'} a question"
        raise InputError(what, hint=f"Preset {preset.name} wants one; see -p.")
    return chosen[:limit]


def spread(items: Sequence[Item], limit: int) -> list[Item]:
    """At most `limit` of the items, in their order and from all parts of them."""
    count = min(limit, len(items))
    return [items[i * len(items) // count] for i in range(count)]


@dataclass(frozen=True, slots=True)
class InputRow:
    """One object of a file, and where it stands."""

    path: Path
    number: int
    data: dict[str, Any]

    def wrong(self, what: str, hint: str) -> InputError:
        """The error for this line."""
        return InputError(f"{self.path}:{self.number}: {what}", hint=hint)


def read_rows(path: Path, reader: Reader, pipes: bool = False) -> Iterator[InputRow]:
    """The objects of a file (or with `pipes` of a pipe); empty lines are passed over.

    Raises InputError: for the file, or for the first line that `json_object` refuses.
    """
    try:
        text = decode_text(reader.read(path, pipes))
    except Unreadable as error:
        raise error.of(str(path)) from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield InputRow(path, number, json_object(line))
            except InputError as error:
                raise InputRow(path, number, {}).wrong(str(error), error.hint) from None


def read_jsonl(
    path: Path, settings: Settings | None = None, check: CheckPath = lambda path: None
) -> list[Item]:
    """The items of a file of JSON lines; empty lines are passed over.

    `settings` bound what is read: the lines and the files that they name. Raises InputError, and
    what `check` raises of the path of one of these files, before it is read.
    """
    path, reader = path.expanduser(), Reader((settings or Settings()).reading.max_mb)
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
    file: str | None = None


_Texts = Annotated[list[str | _GivenText], Meta(min_length=1)] | str | _GivenText


class _PromptLine(Struct):
    """`documents`, `passages` or `context` with `question`; or `message`, the whole of it."""

    id: Id | None = None
    task: str = ""
    documents: _Texts | None = None
    passages: _Texts | None = None
    context: _Texts | None = None
    message: str | None = None
    question: str = ""
    answers: str | list[str] = []


def _item(row: InputRow, read: Callable[[str], str]) -> Item:
    """The item of a line; `read` gives the text of a file."""
    line = converted(row.data, _PromptLine)
    id = str(row.number if line.id is None else line.id)
    answers = [line.answers] if isinstance(line.answers, str) else line.answers
    if line.message is not None:
        texts = (document_of("message", "message", line.message),)
        return Item(id, line.task or "chat", texts, "", tuple(answers), message=True)
    given = next((g for g in (line.documents, line.passages, line.context) if g is not None), None)
    if given is None:
        raise InputError("no documents", hint=_KINDS)
    parts = given if isinstance(given, list) else [given]
    documents = tuple(_document(f"passage {i}", one, read) for i, one in enumerate(parts, 1))
    question = line.question.strip()
    task = line.task or ("ask" if question else "summarize")
    return Item(id, task, documents, question, tuple(dict.fromkeys(answers)))


def _document(what: str, given: str | _GivenText, read: Callable[[str], str]) -> Document:
    """A text, or an object with `text` (and `name`), or one that names a `file`."""
    if isinstance(given, str):
        return document_of(what, what, given)
    if given.file is not None:
        return document_of(what, given.name or given.file, read(given.file))
    if given.text is None:
        raise InputError(f"{what} has no text", hint='Give a text, or {"name": …, "text": …}.')
    return document_of(what, given.name, given.text)


def _file(folder: Path, name: str, reader: Reader, check: CheckPath) -> str:
    """The text of a file next to the lines; never one from elsewhere on the machine."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise InputError(
                f"file {name!r} is elsewhere", hint="Name one in the folder of this file."
            )
        check(path)
        return decode_text(reader.read(path))
    except Unreadable as error:
        raise InputError(f"file {name!r} cannot be read: {error}", hint="Check it.") from None
    except (OSError, ValueError, RuntimeError):  # not a path, a loop of links
        raise InputError(f"file {name!r} cannot be read", hint="Check its name.") from None


T = TypeVar("T", bound=Any)  # what has a task


def choose(
    items: Sequence[T], tasks: Sequence[str], limit: int | None, where: str = "these prompts"
) -> list[T]:
    """The items of `tasks` (all where none is named), at most `limit` of each task.

    Raises UsageError for a task that is not in `where`.
    """
    known = list(dict.fromkeys(item.task for item in items))
    for task in tasks:
        if task not in known:
            raise UsageError(f"no task {task!r} in {where}", hint=nearest(task, known))
    taken: dict[str, int] = dict.fromkeys(known, 0)
    chosen = []
    for item in items:
        if (not tasks or item.task in tasks) and (limit is None or taken[item.task] < limit):
            taken[item.task] += 1
            chosen.append(item)
    return chosen


def passages(document: Document) -> list[str]:
    """Paragraphs of at least 20 words; the whole text where there are none."""
    parts = [p.strip() for p in document.text.split("\n\n") if len(p.split()) >= 20]
    return parts or [document.text.strip()]
