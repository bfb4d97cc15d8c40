"""Files of JSON lines: one object a line. What is wrong is named with the file and the line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.documents.files import Reader
from ngtcli.documents.json_object import json_object
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError


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
            raise _wrong(path, number, str(error), error.hint) from None


def _wrong(path: Path, number: int, what: str, hint: str) -> InputError:
    return InputError(f"{path}:{number}: {what}", hint)
