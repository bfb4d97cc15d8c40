"""What a line of a batch asks for, as `{id, task, documents|paths|context, question, settings}`."""

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ngtcli.config import check_key, settings_where
from ngtcli.documents.json_object import RepeatedKeyError, json_object
from ngtcli.documents.load import Document
from ngtcli.documents.names import utf8
from ngtcli.documents.text import Unreadable, checked_text
from ngtcli.errors import InputError, UsageError, nearest
from ngtcli.prompt.tasks import TASKS
from ngtcli.system.yaml_file import shown

KEYS = ("id", "task", "documents", "paths", "context", "question", "settings")
_TEXTS = ("documents", "paths", "context")
_PER_LINE = settings_where(per_line=True)
Id = str | int
_LONGEST_ID = 1000  # characters; guess


@dataclass(frozen=True, slots=True)
class Asked:
    """What one line asks for. Its texts are `documents`, or in the files of `paths`."""

    task: str
    question: str
    settings: Mapping[str, Any]
    documents: tuple[Document, ...] = ()
    paths: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The same for lines that may be answered together: one task, whose preset has settings."""
        return self.task

    @property
    def texts(self) -> str:
        """The same for lines with the same documents."""
        return _digest([[(d.name, d.text) for d in self.documents], self.paths])


def read_line(raw: bytes) -> tuple[Id | None, Asked | InputError | UsageError]:
    """The id of a line, None without one, and what it asks for or else what is wrong with it."""
    try:
        data = json_object(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return None, InputError(f"not UTF-8 (byte {error.start})", "Save the lines as UTF-8.")
    except RepeatedKeyError as error:
        own = error.found.get("id")
        return own if _is_id(own) else None, error
    except InputError as error:
        return None, error
    given = {name: value for name, value in data.items() if value is not None}
    own = given.get("id")
    if own is not None and not _is_id(own):
        hint = f"It must be a string of at most {_LONGEST_ID:,} characters, or a whole number."
        return None, InputError(f"id is {shown(own)}", hint)
    try:
        return own, _asked(given)
    except (InputError, UsageError) as error:
        return own, error


def _is_id(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, str) and len(value) <= _LONGEST_ID


def _asked(given: Mapping[str, Any]) -> Asked:
    for name in given:
        if name not in KEYS:
            raise InputError(f"unknown key {shown(name)}", nearest(name, KEYS))
    question = _string(given, "question").strip()
    task = _string(given, "task") or ("ask" if "question" in given else "summarize")
    if task not in TASKS:
        raise InputError(f"task is {shown(task)}", f"Choose from {', '.join(TASKS)}.")
    if "question" in given and not question:
        raise InputError("the question is empty", "Write one, or leave the key out.")
    if task == "ask" and not question:
        raise InputError("no question", 'Give one: "question": "When?"')
    if task == "summarize" and question:
        raise InputError("a question beside task summarize", "Leave it out, or make the task ask.")
    found = [name for name in _TEXTS if name in given]
    if len(found) != 1:
        what = f"{' and '.join(found)} together" if found else "no documents"
        raise InputError(what, f"Give one of {', '.join(_TEXTS)}.")
    settings = _settings(given.get("settings", {}))
    if "paths" in given:
        return Asked(task, question, settings, paths=_paths(given["paths"]))
    documents = given["documents"] if "documents" in given else [_string(given, "context")]
    return Asked(task, question, settings, documents=_documents(documents))


def _string(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str):
        raise InputError(f"{name} is {shown(value)}", "It must be a string.")
    return value


def _settings(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise UsageError(f"settings is {shown(given)}", "It must be an object.")
    for name in given:
        if name not in _PER_LINE:
            raise UsageError(
                f"settings: {shown(name)} cannot be set for one line", nearest(name, _PER_LINE)
            )
    return {name: check_key(name, value, "settings") for name, value in given.items()}


def _paths(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(path, str) for path in given):
        raise InputError(f"paths is {shown(given)}", "It must be a list of strings.")
    if not given:
        raise InputError("no paths", "Name a file, a folder or a pattern.")
    return tuple(given)


def _documents(given: Any) -> tuple[Document, ...]:
    if not isinstance(given, list) or not given:
        raise InputError(f"documents is {shown(given)}", "It must be a list with a text in it.")
    return tuple(_document(number, one) for number, one in enumerate(given, 1))


def _document(number: int, given: Any) -> Document:
    """A document from a text, or from its name and text; one without a name has a number."""
    name, text = f"document {number}", given
    if isinstance(given, dict) and set(given) <= {"name", "text"}:
        name, text = given.get("name") or name, given.get("text")
    if not isinstance(text, str) or not isinstance(name, str):
        raise InputError(
            f"{f'document {number}'} is {shown(given)}", 'Give a text, or {"name": …, "text": …}.'
        )
    try:
        return Document(name, checked_text(text))
    except Unreadable as error:
        raise error.of(utf8(name)) from None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def below(folder: str, paths: Iterable[str]) -> list[str]:
    """Paths of a line, taken from `folder` unless they are absolute or begin with a home.

    A file in `folder` whose name begins as a home does is that file.

    >>> below("/data", ["a.txt", "/b.txt", "~/c.txt"])
    ['/data/a.txt', '/b.txt', '~/c.txt']
    """
    return [_joined(folder, path) for path in paths]


def _joined(folder: str, path: str) -> str:
    """A pattern's own magic characters count, the folder's do not."""
    plain = os.path.join(folder, path)
    if os.path.expanduser(path) != path and not os.path.lexists(plain):
        return path
    if not path or os.path.isabs(path) or not glob.has_magic(path) or os.path.lexists(plain):
        return plain if path else path
    return os.path.join(glob.escape(folder), path)
