"""JSON lines with texts and a question, as `ngt batch` and `ngt bench --prompts` read them.

What a line of a file may say is declared by a Struct; what is wrong with it is told alike for all.
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
HINT = "Write one JSON object a line."
_TASKS = f"Choose from {', '.join(TASKS)}."
_HINTS = {  # by the key of a line
    "id": "It must be a string of at most 1,000 characters, or a whole number.",
    "paths": "It must be a list of strings: files, folders or patterns.",
    "settings": "It must be an object.",
    "schema": "It must be a JSON Schema, or a text with a concise one.",
    **dict.fromkeys(("documents", "passages"), 'Give texts, or {"name": …, "text": …}.'),
}
_PLACE = re.compile(r"(\w+)|\[(\d+)\]")
_PER_LINE = (*PER_REQUEST, "field")


def document_of(what: str, name: str | None, text: str) -> Document:
    """A document of a line, called `what` without a name. Raises InputError for no text."""
    name = name or what
    try:
        return Document(name, checked_text(text))
    except Unreadable as error:
        raise error.of(utf8(name)) from None


class NamedText(Struct, forbid_unknown_fields=True):
    """A text and its name."""

    text: str
    name: str | None = None


class BatchLine(Struct, forbid_unknown_fields=True, dict=True):
    """What a line of a batch says. Raises InputError and UsageError for what does not fit together.

    Its texts are `documents`, the one of `context`, or in the files of `paths`. `predict` is a text
    that the answer is said to be like, `schema` a setting. Of `task` and `question` one tells the
    other.
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
        asks, self.question = self.question is not None, (self.question or "").strip()
        self.task = self.task or ("ask" if asks else "summarize")
        texts = {"documents": self.documents, "paths": self.paths, "context": self.context}
        found = [name for name, given in texts.items() if given not in (None, ())]
        together = f"{' and '.join(found)} together" if found else "no documents"
        for wrong, what, hint in (
            (self.task not in TASKS, f"task is {shown(self.task)}", _TASKS),
            (asks and not self.question, "the question is empty", "Write one, or leave it out."),
            (self.task == "ask" and not asks, "no question", 'Give one: "question": "When?"'),
            (self.task != "ask" and asks, "a question with task summarize", "Leave one out."),
            (len(found) != 1, together, f"Give one of {', '.join(texts)}."),
            (bool(self.schema) and "schema" in self.settings, "schema twice", "Leave one out."),
        ):
            if wrong:
                raise InputError(what, hint=hint)
        if self.schema is not None:
            self.settings = {"schema": self.schema, **self.settings}
        for name in self.settings:
            if name not in _PER_LINE:
                what = f"settings: {shown(name)} cannot be set for one line"
                raise UsageError(what, hint=nearest(name, _PER_LINE))
        own = self.settings.items()
        self.settings = {name: check_key(name, value, "settings") for name, value in own}
        if self.predict.strip():
            self.predict = document_of("predict", "", self.predict).text
        self.texts  # noqa: B018  # they are checked, too

    @cached_property
    def texts(self) -> tuple[Document, ...]:
        """The documents that the line itself holds; one without a name has a number."""
        given = (self.context,) if self.context is not None else self.documents or ()
        pairs = ((one.name, one.text) if isinstance(one, NamedText) else ("", one) for one in given)
        return tuple(document_of(f"document {i}", *pair) for i, pair in enumerate(pairs, 1))

    @property
    def documents_key(self) -> str:
        """The same for lines with the same documents."""
        value = [[(d.name, d.text) for d in self.texts], self.paths]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def converted(data: Mapping[str, Any], kind: type[AnyLine]) -> AnyLine:
    """What an object says as a line of a kind; null is as if a key were not there.

    Raises InputError, which shows the value that is wrong, and what the kind itself raises.
    """
    given: Any = {name: value for name, value in data.items() if value is not None}
    keys = kind.__struct_fields__
    unknown = [name for name in given if name not in keys]
    if unknown and kind.__struct_config__.forbid_unknown_fields:
        raise InputError(f"unknown key {shown(unknown[0])}", hint=nearest(unknown[0], keys))
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        where = str(error).rpartition(" - at `$.")[2].rstrip("`")
    value, place = given, _PLACE.findall(where)
    for key, index in place:
        value = value[key] if key else value[int(index)]
    hint = _HINTS.get("id" if place[0][0].endswith("id") else place[0][0], "It must be a string.")
    raise InputError(f"{where} is {shown(value)}", hint=hint)


def read_line(raw: bytes) -> tuple[Id | None, BatchLine | InputError | UsageError]:
    """The id of a line, None without one, and what it says or else what is wrong with it.

    The id is None, too, where it is wrong or stands twice, and of what is no JSON object in UTF-8.
    """
    own: Id | None = None
    try:
        data, repeated = parsed(raw.decode("utf-8"))
        own = converted({"id": data.get("id")}, _WithId).id
        return own, repeated or converted(data, BatchLine)
    except UnicodeDecodeError as error:
        return None, InputError(f"not UTF-8 (byte {error.start})", hint="Save the lines as UTF-8.")
    except (InputError, UsageError) as error:
        return own, error


class _WithId(Struct):
    id: Id | None = None


class Ids:
    """Finds an id that stands twice, among the last `most`; 0: among all."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._numbers: OrderedDict[str | int, int] = OrderedDict()  # of the first line with each id

    def check(self, own: str | int, number: int) -> None:
        """Raise InputError where another line than that of this number has the id."""
        first = self._numbers.setdefault(own, number)
        if self._most and len(self._numbers) > self._most:
            self._numbers.popitem(last=False)
        if first != number:
            hint = "Give each line an id of its own."
            raise InputError(f"id {shown(own)} stands in line {first} already", hint=hint)


def json_object(line: str) -> dict[str, Any]:
    """The object that a line holds. Raises InputError as `parsed`, and where a key stands twice.

    >>> json_object('{"id": 3}')
    {'id': 3}
    """
    data, repeated = parsed(line)
    if repeated is not None:
        raise repeated
    return data


def parsed(line: str) -> tuple[dict[str, Any], InputError | None]:
    """The object that a line holds, without keys that stand twice, and an error that names one.

    Raises InputError for what is not a JSON object, is nested too deeply, or has text that is not
    Unicode.
    """
    twice: list[str] = []  # keys of all objects, the inner ones first

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        counts = Counter(key for key, _ in pairs)
        twice.extend(key for key, count in counts.items() if count > 1)
        return {key: value for key, value in pairs if counts[key] == 1}

    try:
        data = json.loads(line, object_pairs_hook=object_of)
        if "\\u" in line:  # an escaped half of a character, too, would be read
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("half of a character (a lone surrogate)", hint=HINT) from None
    except RecursionError:
        raise InputError("nested too deeply", hint=HINT) from None
    except ValueError as error:  # a number with too many digits, too
        place = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        what = str(error).split(":")[0].lower()
        raise InputError(f"not JSON ({what}{place})", hint=HINT) from None
    if not isinstance(data, dict):
        raise InputError("no JSON object", hint=HINT)
    if not twice:
        return data, None
    return data, InputError(f"{shown(twice[0])} stands there twice", hint="Give each key once.")


def below(folder: str, path: str) -> str:
    """A path of a line, taken from `folder` unless it is absolute or begins with a home.

    A file in `folder` whose name begins as a home does is that file. Of a pattern its own magic
    characters count, the folder's do not.

    >>> [below("/data", path) for path in ("a.txt", "/b.txt", "~/c.txt")]
    ['/data/a.txt', '/b.txt', '~/c.txt']
    """
    plain = os.path.join(folder, path)
    if not path or (os.path.expanduser(path) != path and not os.path.lexists(plain)):
        return path
    if os.path.isabs(path) or not glob.has_magic(path) or os.path.lexists(plain):
        return plain
    return os.path.join(glob.escape(folder), path)
