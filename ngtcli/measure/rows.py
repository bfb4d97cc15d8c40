"""The objects of files of JSON lines: prompts to measure with, and recordings."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ngtcli.batch.lines import json_object
from ngtcli.documents.read import Reader
from ngtcli.documents.text import Unreadable, decode_text
from ngtcli.errors import InputError


@dataclass(frozen=True, slots=True)
class InputRow:
    """One object of a file, and where it stands."""

    path: Path
    number: int
    data: dict[str, Any]

    def wrong(self, what: str, hint: str) -> InputError:
        """The error for this line."""
        return InputError(f"{self.path}:{self.number}: {what}", hint)


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
