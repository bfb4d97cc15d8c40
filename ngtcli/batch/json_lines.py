"""JSON lines with texts and a question, as `ngt batch` and `ngt bench --prompts` read them.

The fields of a line, what is wrong with them and when an id stands twice are the same for both.
"""

import glob
import hashlib
import json
import os
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.config import check_key, settings_where
from ngtcli.documents.load import Document
from ngtcli.documents.read import Reader
from ngtcli.documents.text import Unreadable, checked_text, decode_text, utf8
from ngtcli.errors import InputError, UsageError, nearest
from ngtcli.prompt.preset import TASKS
from ngtcli.system.yaml_file import shown

HINT = "Write one JSON object a line."
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escaped half of a character, or of a pair
KEYS = ("id", "task", "documents", "paths", "context", "question", "settings", "predict")
_TEXTS = ("documents", "paths", "context")
_PER_LINE = settings_where(per_line=True)
Id = str | int
_LONGEST_ID = 1000  # characters; guess


@dataclass(frozen=True, slots=True)
class Row:
    """One object of a file, and where it stands."""

    path: Path
    number: int
    data: dict[str, Any]

    def wrong(self, what: str, hint: str) -> InputError:
        """The error for this line."""
        return _wrong(self.path, self.number, InputError(what, hint))


def read_rows(path: Path, reader: Reader, pipes: bool = False) -> Iterator[Row]:
    """The objects of a file (or with `pipes` of a pipe); empty lines are passed over.

    Raises InputError: for the file, or for the first line that `json_object` refuses.
    """
    try:
        text = decode_text(reader.file(path, pipes))
    except Unreadable as error:
        raise error.of(str(path)) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield Row(path, number, json_object(line))
        except InputError as error:
            raise _wrong(path, number, error) from None


def _wrong(path: Path, number: int, error: InputError) -> InputError:
    return InputError(f"{path}:{number}: {error}", error.hint)


class Ids:
    """Finds an id that stands twice, among the last `most`; 0: among all."""

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._numbers: OrderedDict[Id, int] = OrderedDict()  # of the first line with each id

    def check(self, own: Id, number: int) -> None:
        """Raise InputError where another line than that of this number has the id."""
        first = self._numbers.setdefault(own, number)
        if self._most and len(self._numbers) > self._most:
            self._numbers.popitem(last=False)
        if first != number:
            hint = "Give each line an id of its own."
            raise InputError(f"id {shown(own)} stands in line {first} already", hint)


def id_of(data: Mapping[str, Any], key: str = "id") -> Id | None:
    """The id under a key; None without one. Raises InputError for another value."""
    own = data.get(key)
    if own is None or _is_id(own):
        return own
    hint = f"It must be a string of at most {_LONGEST_ID:,} characters, or a whole number."
    raise InputError(f"{key} is {shown(own)}", hint)


def _is_id(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, str) and len(value) <= _LONGEST_ID


def string_of(data: Mapping[str, Any], key: str, default: str = "") -> str:
    """The string under a key. Raises InputError for another value."""
    value = data.get(key, default)
    if not isinstance(value, str):
        raise InputError(f"{key} is {shown(value)}", "It must be a string.")
    return value


def list_of(data: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a key, with at least one value. Raises InputError."""
    value = data[key]
    if not isinstance(value, list) or not value:
        raise InputError(f"{key} is {shown(value)}", "It must be a list with a text in it.")
    return value


def document_of(what: str, name: Any, text: Any, given: Any) -> Document:
    """A document of a line, which is called `what` without a name, and stands there as `given`.

    Raises InputError for a name or text that is not a string, or not a text that can be read.
    """
    name = name or what
    if not isinstance(text, str) or not isinstance(name, str):
        raise InputError(f"{what} is {shown(given)}", 'Give a text, or {"name": …, "text": …}.')
    try:
        return Document(name, checked_text(text))
    except Unreadable as error:
        raise error.of(utf8(name)) from None


@dataclass(frozen=True, slots=True)
class BatchLine:
    """What one line of a batch says. Its texts are `documents`, or in the files of `paths`.

    `prediction` is a text that the answer is said to be like, "" for none.
    """

    task: str
    question: str
    settings: Mapping[str, Any]
    documents: tuple[Document, ...] = ()
    paths: tuple[str, ...] = ()
    prediction: str = ""

    @property
    def texts(self) -> str:
        """The same for lines with the same documents."""
        value = [[(d.name, d.text) for d in self.documents], self.paths]
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def read_line(raw: bytes) -> tuple[Id | None, BatchLine | InputError | UsageError]:
    """The id of a line, None without one, and what it says or else what is wrong with it.

    The id is None, too, where it is wrong or stands twice, and of what is no JSON object in UTF-8.
    """
    own: Id | None = None
    try:
        data = json_object(raw.decode("utf-8"))
        given = {name: value for name, value in data.items() if value is not None}
        own = id_of(given)
        return own, _batch_line(given)
    except UnicodeDecodeError as error:
        return None, InputError(f"not UTF-8 (byte {error.start})", "Save the lines as UTF-8.")
    except RepeatedKeyError as error:
        own = error.found.get("id")
        return own if _is_id(own) else None, error
    except (InputError, UsageError) as error:
        return own, error


def _batch_line(given: Mapping[str, Any]) -> BatchLine:
    for name in given:
        if name not in KEYS:
            raise InputError(f"unknown key {shown(name)}", nearest(name, KEYS))
    asks, question = "question" in given, string_of(given, "question").strip()
    task = string_of(given, "task") or ("ask" if asks else "summarize")
    if task not in TASKS:
        raise InputError(f"task is {shown(task)}", f"Choose from {', '.join(TASKS)}.")
    if asks and not question:
        raise InputError("the question is empty", "Write one, or leave the key out.")
    if task == "ask" and not question:
        raise InputError("no question", 'Give one: "question": "When?"')
    if task == "summarize" and asks:
        raise InputError("a question with task summarize", "Leave it out, or make the task ask.")
    found = [name for name in _TEXTS if name in given]
    if len(found) != 1:
        what = f"{' and '.join(found)} together" if found else "no documents"
        raise InputError(what, f"Give one of {', '.join(_TEXTS)}.")
    settings, predicted = _settings(given.get("settings", {})), string_of(given, "predict")
    if predicted.strip():
        predicted = document_of("predict", "predict", predicted, predicted).text
    if "paths" in given:
        paths = given["paths"]
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise InputError(f"paths is {shown(paths)}", "It must be a list of strings.")
        if not paths:
            raise InputError("no paths", "Name a file, a folder or a pattern.")
        return BatchLine(task, question, settings, (), tuple(paths), predicted)
    own = list_of(given, "documents") if "documents" in given else [string_of(given, "context")]
    documents = tuple(_document(number, one) for number, one in enumerate(own, 1))
    return BatchLine(task, question, settings, documents, prediction=predicted)


def _settings(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise UsageError(f"settings is {shown(given)}", "It must be an object.")
    for name in given:
        if name not in _PER_LINE:
            what = f"settings: {shown(name)} cannot be set for one line"
            raise UsageError(what, nearest(name, _PER_LINE))
    return {name: check_key(name, value, "settings") for name, value in given.items()}


def _document(number: int, given: Any) -> Document:
    """A document from a text, or from its name and text; one without a name has a number."""
    what = f"document {number}"
    if isinstance(given, dict) and set(given) <= {"name", "text"}:
        return document_of(what, given.get("name"), given.get("text"), given)
    return document_of(what, what, given, given)


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


class RepeatedKeyError(InputError):
    """A key stands twice in an object; `found` is what the outermost one has once."""

    def __init__(self, key: str, found: dict[str, Any]) -> None:
        super().__init__(f"{shown(key)} stands there twice", "Give each key once.")
        self.found = found


def json_object(line: str) -> dict[str, Any]:
    """The object that a line holds.

    Raises InputError for what is not a JSON object, is nested too deeply, or has text that is not
    Unicode; RepeatedKeyError for one that has a key twice.

    >>> json_object('{"id": 3}')
    {'id': 3}
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
        if _HALF.search(line):
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise InputError("nested too deeply", HINT) from None
    except UnicodeEncodeError:
        what = "half of a character (a lone surrogate)"
        raise InputError(what, "Write characters whole.") from None
    except ValueError as error:
        raise InputError(f"not JSON ({_place(error)})", HINT) from None
    if not isinstance(data, dict):
        raise InputError("no JSON object", HINT)
    if twice:
        raise RepeatedKeyError(twice[0], data)
    return data


def _place(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at character {error.pos + 1}"
    return str(error).split(":", 1)[0].lower()  # a number with too many digits
