"""Files of JSON lines: one object a line. What is wrong is named with the file and the line."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.documents.reading import Reader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escaped half of a character, or of a pair


@dataclass(frozen=True, slots=True)
class Row:
    """One object and where it stands."""

    path: Path
    number: int
    data: dict[str, Any]

    def wrong(self, what: str, hint: str) -> InputError:
        """The error for this line."""
        return _wrong(self.path, self.number, what, hint)


def read_rows(path: Path, reader: Reader, pipes: bool = False) -> Iterator[Row]:
    """The objects of a file (or with `pipes` of a pipe); empty lines are passed over.

    Raises InputError: for the file, or for the first line that is no JSON object, is nested too
    deeply, or holds text that is no Unicode.
    """
    try:
        text = decode_text(reader.file(path, pipes))
    except Unreadable as error:
        raise error.of(str(path)) from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield Row(path, number, _object(path, number, line))


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    hint = "Write one JSON object a line."
    try:
        data = json.loads(line)
        if _HALF.search(line):
            json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise _wrong(path, number, "nested too deeply", hint) from None
    except UnicodeEncodeError:
        raise _wrong(
            path, number, "half of a character (a lone surrogate)", "Write characters whole."
        ) from None
    except ValueError as error:
        raise _wrong(path, number, f"not JSON ({_place(error)})", hint) from None
    if not isinstance(data, dict):
        raise _wrong(path, number, "no JSON object", hint)
    return data


def _place(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at character {error.pos + 1}"
    return str(error).split(":", 1)[0].lower()  # a number with too many digits


def _wrong(path: Path, number: int, what: str, hint: str) -> InputError:
    return InputError(f"{path}:{number}: {what}", hint)
