"""JSON lines with texts and a question, as `ngt batch` and `ngt bench --prompts` read them.

A Struct declares the keys of a line. Errors have the same wording for all kinds of lines.
"""

import glob
import hashlib
import json
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from ngtcli.config import PER_REQUEST, check_key
from ngtcli.documents.load import Document
from ngtcli.documents.text import Unreadable, checked_text, utf8
from ngtcli.errors import InputError, UsageError
from ngtcli.prompts.preset import TASKS
from ngtcli.system.yaml_file import shown
from ngtcli.words import nearest

AnyLine = TypeVar("AnyLine", bound=Struct)
Id = Annotated[str, Meta(max_length=1000)] | Annotated[int, Meta(ge=1 - 2**63, le=2**63 - 1)]
HINT = "Write one JSON object per line."
_TASKS = f"Choose from {', '.join(TASKS)}."
_HINTS = {  # by key of a line
    "id": "It must be a string of at most 1,000 characters, or a whole number.",
    "paths": "It must be a list of strings: files, folders or patterns.",
    "settings": "It must be an object.",
    "schema": "It must be a JSON Schema, or a text with a concise one.",
    **dict.fromkeys(("documents", "passages"), 'Give texts, or {"name": …, "text": …}.'),
}
_PLACE = re.compile(r"(\w+)|\[(\d+)\]")
_PER_LINE = (*PER_REQUEST, "field")


def document_of(default_name: str, name: str | None, text: str) -> Document:
    """Return a document of a line. Raises InputError if it is not text."""
    name = name or default_name
    try:
        return Document(name, checked_text(text))
    except Unreadable as error:
        raise error.of(utf8(name)) from None


class NamedText(Struct, forbid_unknown_fields=True):
    """A text and its name."""

    text: str
    name: str | None = None


class BatchLine(Struct, forbid_unknown_fields=True, dict=True):
    """The content of a line of a batch.

    Attributes:
        id: The id of its answer; None for its number.
        task: "ask" or "summarize"; by default the one that fits the question.
        question: What is asked.
        documents: Texts.
        context: A single text, in place of `documents`.
        paths: Files, folders and patterns, in place of `documents`.
        settings: Settings of this line alone.
        predict: A text that the answer may resemble.
        schema: A setting that may be given outside `settings`.

    Raises:
        InputError: Its keys do not fit together.
        UsageError: A setting cannot be set for a single line.
    """

    id: Id | None = None
    task: str = ""
    question: str | None = None
    documents: Annotated[tuple[str | NamedText, ...], Meta(min_length=1)] | None = None
    context: str | None = None
    paths: Annotated[tuple[str, ...], Meta(min_length=1)] = ()
    settings: dict[str, Any] = {}
    predict: str = ""
    schema: str | dict[str, Any] | None = None

    def __post_init__(self) -> None:
        has_question = self.question is not None
        self.question = (self.question or "").strip()
        self.task = self.task or ("ask" if has_question else "summarize")
        self._check(has_question)

        if self.schema is not None:
            self.settings = {"schema": self.schema, **self.settings}
        for name in self.settings:
            if name not in _PER_LINE:
                raise UsageError(
                    f"settings: {shown(name)} cannot be set for one line",
                    hint=nearest(name, _PER_LINE),
                )
        self.settings = {
            name: check_key(name, value, "settings") for name, value in self.settings.items()
        }
        if self.predict.strip():
            self.predict = document_of("predict", "", self.predict).text
        self.texts  # noqa: B018  # they are checked, too

    def _check(self, has_question: bool) -> None:
        """Raise InputError for the first thing that is wrong with the keys of the line."""
        if self.task not in TASKS:
            raise InputError(f"unknown task {shown(self.task)}", hint=_TASKS)
        if has_question and not self.question:
            raise InputError("the question is empty", hint="Write one, or leave the key out.")
        if self.task == "ask" and not has_question:
            raise InputError("no question", hint='Give one: "question": "When?"')
        if self.task != "ask" and has_question:
            raise InputError("task summarize takes no question", hint="Leave one of them out.")
        sources = {"documents": self.documents, "paths": self.paths, "context": self.context}
        named = [name for name, value in sources.items() if value not in (None, ())]
        if len(named) != 1:
            raise InputError(
                f"{' and '.join(named)} are mutually exclusive" if named else "no documents",
                hint=f"Give one of {', '.join(sources)}.",
            )
        if self.schema and "schema" in self.settings:
            raise InputError("schema is both a key and a setting", hint="Leave one of them out.")

    @cached_property
    def texts(self) -> tuple[Document, ...]:
        """Return the documents in the line itself; one without a name gets a number."""
        texts = self.documents or ()
        if self.context is not None:
            texts = (self.context,)
        documents = []
        for number, text in enumerate(texts, 1):
            name = text.name if isinstance(text, NamedText) else None
            body = text.text if isinstance(text, NamedText) else text
            documents.append(document_of(f"document {number}", name, body))
        return tuple(documents)

    @property
    def documents_key(self) -> str:
        """Return a key that lines with the same documents share."""
        value = [[(d.name, d.text) for d in self.texts], self.paths]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def converted(data: Mapping[str, Any], kind: type[AnyLine]) -> AnyLine:
    """Convert an object to a line of a kind; null means that a key is absent.

    Raises:
        InputError: A key is unknown, or a value is wrong; the message shows it.
    """
    values: Any = {name: value for name, value in data.items() if value is not None}
    keys = kind.__struct_fields__
    unknown = [name for name in values if name not in keys]
    if unknown and kind.__struct_config__.forbid_unknown_fields:
        raise InputError(f"unknown key {shown(unknown[0])}", hint=nearest(unknown[0], keys))
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        where = str(error).rpartition(" - at `$.")[2].rstrip("`")

    wrong = values
    steps = _PLACE.findall(where)
    for key, index in steps:
        wrong = wrong[key] if key else wrong[int(index)]
    first_key = steps[0][0]
    if first_key.endswith("id"):
        first_key = "id"
    hint = _HINTS.get(first_key, "It must be a string.")
    raise InputError(f"{where} is {shown(wrong)}", hint=hint)


def read_line(raw: bytes) -> tuple[Id | None, BatchLine | InputError | UsageError]:
    """Return the id of a line, None without one, and its content or else the error in it.

    The id is also None if it is invalid or given twice, or if the line is no JSON object in UTF-8.
    """
    line_id: Id | None = None
    try:
        data, repeated = parsed(raw.decode("utf-8"))
        line_id = converted({"id": data.get("id")}, _WithId).id
        return line_id, repeated or converted(data, BatchLine)
    except UnicodeDecodeError as error:
        return None, InputError(f"not UTF-8 (byte {error.start})", hint="Save the lines as UTF-8.")
    except (InputError, UsageError) as error:
        return line_id, error


class _WithId(Struct):
    id: Id | None = None


class Ids:
    """A detector of duplicate ids among the last `max_count` ids; 0: among all."""

    def __init__(self, max_count: int = 0) -> None:
        self._max_count = max_count
        # The number of the first line with each id.
        self._numbers: OrderedDict[str | int, int] = OrderedDict()

    def check(self, line_id: str | int, number: int) -> None:
        """Raise InputError if a line with another number has the id."""
        first = self._numbers.setdefault(line_id, number)
        if self._max_count and len(self._numbers) > self._max_count:
            self._numbers.popitem(last=False)
        if first != number:
            raise InputError(
                f"duplicate id {shown(line_id)}: line {first} also has it",
                hint="Give each line a unique id.",
            )


def json_object(line: str) -> dict[str, Any]:
    """Return the JSON object in a line.

    Raises InputError as `parsed` does, and for a duplicate key.

    >>> json_object('{"id": 3}')
    {'id': 3}
    """
    data, repeated = parsed(line)
    if repeated is not None:
        raise repeated
    return data


def parsed(line: str) -> tuple[dict[str, Any], InputError | None]:
    """Return the JSON object in a line, without duplicate keys, and an error for these.

    Raises InputError if the line is not a JSON object, is nested too deeply, or has text that is
    not Unicode.
    """
    repeated: list[str] = []  # keys of all objects, the inner ones first

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) == len(pairs):
            return values
        counts = Counter(key for key, _ in pairs)
        repeated.extend(key for key, count in counts.items() if count > 1)
        return {key: value for key, value in pairs if counts[key] == 1}

    try:
        data = json.loads(line, object_pairs_hook=object_of)
        if "\\u" in line:  # an escaped half of a character, too, would be read
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("half of a character (a lone surrogate)", hint=HINT) from None
    except RecursionError:
        raise InputError("nested too deeply", hint=HINT) from None
    except ValueError as error:  # also for a number with too many digits
        reason = str(error).split(":")[0].lower()
        place = ""
        if isinstance(error, json.JSONDecodeError):
            place = f" at character {error.pos + 1}"
        raise InputError(f"not JSON ({reason}{place})", hint=HINT) from None
    if not isinstance(data, dict):
        raise InputError("not a JSON object", hint=HINT)
    if not repeated:
        return data, None
    return data, InputError(f"duplicate key {shown(repeated[0])}", hint="Give each key once.")


def below(folder: str, path: str) -> str:
    """Return a path of a line, relative to `folder` unless it is absolute or begins with a home.

    If a file in `folder` has a name like a home, the path means this file. Magic characters count
    in the pattern of the line, not in the folder.

    >>> [below("/data", path) for path in ("a.txt", "/b.txt", "~/c.txt")]
    ['/data/a.txt', '/b.txt', '~/c.txt']
    """
    plain = os.path.join(folder, path)
    if not path or (os.path.expanduser(path) != path and not os.path.lexists(plain)):
        return path
    if os.path.isabs(path) or not glob.has_magic(path) or os.path.lexists(plain):
        return plain
    return os.path.join(glob.escape(folder), path)
