"""What stands in the input of a batch, a file or a stream.

A file is read once for what is in it and where, and each line again when its turn comes, so that no
more than some facts about each line are kept.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ngtcli.batch.lines import Asked, Id, read_line
from ngtcli.batch.waiting import Line
from ngtcli.documents.text import Unreadable, check_format
from ngtcli.errors import InputError, NgtError, reason_of
from ngtcli.system.yaml_file import shown

_PIECE = 1 << 20  # bytes of a line too long that are passed over at once; guess
_HEAD = 1024  # bytes that tell a format
CheckPaths = Callable[[int, tuple[str, ...]], None]
_MARK = b"\xef\xbb\xbf"  # some programs begin a file in UTF-8 with it


@dataclass(frozen=True, slots=True)
class Choice:
    """Which lines are answered: the `part`-th of every `parts` (from 1), `limit` of them at most.

    0 is no limit.
    """

    part: int = 1
    parts: int = 1
    limit: int = 0

    def has(self, place: int) -> bool:
        """Whether the line at that place, from 0, is one of them, the limit left aside."""
        return place % self.parts == self.part - 1


@dataclass(frozen=True, slots=True)
class Scan:
    """What stands in a file: the chosen lines, and SHA-256 in hex of all of its bytes.

    The limit of the choice is left aside.
    """

    lines: list[Line]
    sha256: str


class Reader:
    """Lines of a stream as `Line`s, numbered, with what is wrong with them.

    An id is wrong that one of the `ids` lines before has; 0: of all lines. `check` gets the number
    and the paths of each line.
    """

    def __init__(
        self,
        stream: IO[bytes],
        most: int,
        choice: Choice,
        ids: int = 0,
        check: CheckPaths = lambda number, paths: None,
    ) -> None:
        self._stream, self._most, self._choice, self._last = stream, most, choice, ids
        self._check_paths = check
        self._sha256 = hashlib.sha256()
        self._ids: OrderedDict[Id, int] = OrderedDict()  # the number of the line with each id
        self._start = 0
        self.count = 0  # lines so far, chosen or not

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def lines(self) -> Iterator[Line]:
        """The chosen lines; those of white space alone are passed over."""
        number = index = 0
        while raw := self._stream.readline(self._most + 1):
            start, number = self._start, number + 1
            too_long = len(raw) > self._most
            self._count(raw)
            if number == 1:
                _check(raw[:_HEAD])
                raw = raw.removeprefix(_MARK)
                start = self._start - len(raw)
            if too_long:
                self._pass_over(raw)
                raw = b""
            elif not raw.strip():
                continue
            self.count += 1
            if self._choice.has(self.count - 1):
                yield self._line(index, number, start, raw)
                index += 1

    def _count(self, raw: bytes) -> None:
        self._sha256.update(raw)
        self._start += len(raw)

    def _pass_over(self, raw: bytes) -> None:
        while raw and not raw.endswith(b"\n"):
            raw = self._stream.readline(_PIECE)
            self._count(raw)

    def _line(self, index: int, number: int, start: int, raw: bytes) -> Line:
        own: Id | None
        asked: Asked | NgtError
        if raw:
            own, asked = read_line(raw)
        else:
            own, asked = None, _too_long(self._most)
        if own is None and isinstance(asked, NgtError):  # its number may be another line's id
            return Line(index, number, number, start=start, size=len(raw), wrong=asked)
        own = number if own is None else own
        first = self._first_with(own, number)
        if first != number and not isinstance(asked, NgtError):
            asked = InputError(
                f"id {shown(own)} stands in line {first} already",
                "Give each line an id of its own.",
            )
        line = Line(index, number, own, start=start, size=len(raw), hash=hash(raw), raw=raw)
        if isinstance(asked, NgtError):
            return replace(line, wrong=asked, raw=b"")
        self._check_paths(number, asked.paths)
        return replace(line, kind=asked.kind, texts=asked.texts)

    def _first_with(self, own: Id, number: int) -> int:
        """The number of the first line with an id, `number` where that is this one."""
        first = self._ids.setdefault(own, number)
        if self._last and len(self._ids) > self._last:
            self._ids.popitem(last=False)
        return first


def _check(head: bytes) -> None:
    """Raise Unreadable where a file begins as none of lines does."""
    check_format(head)
    if b"\0" in head:
        raise Unreadable("no text in UTF-8", "Give JSON lines in UTF-8.")


def _too_long(most: int) -> InputError:
    return InputError(f"a line of more than {most / 1e6:g} MB", "Raise the bound with --max-mb.")


def scan(
    path: Path, most: int, choice: Choice, check: CheckPaths = lambda number, paths: None
) -> Scan:
    """What stands in a file, of lines of at most `most` bytes.

    Raises InputError, and what `check` raises of the number and the paths of a line.
    """
    try:
        with path.open("rb") as file:
            reader = Reader(file, most, choice, check=check)
            lines = [replace(line, raw=b"") for line in reader.lines()]
    except Unreadable as error:
        raise error.of(str(path)) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {reason_of(error)}", "Name a file of JSON lines.") from None
    if not reader.count:
        raise InputError(f"{path}: empty", "Write one JSON object a line.")
    return Scan(lines, reader.sha256)


def asked_of(line: Line, path: Path | None = None) -> Asked:
    """What a line asks for, read again from its file where it has no bytes. Raises NgtError."""
    if line.wrong is not None:
        raise line.wrong
    raw = line.raw
    if path is not None:
        try:
            with path.open("rb") as file:
                file.seek(line.start)
                raw = file.read(line.size)
        except OSError as error:
            raise InputError(f"{path}: {reason_of(error)}", "Run it again.") from None
        if hash(raw) != line.hash:
            hint = "Start again with --restart, and leave the input as it is meanwhile."
            raise InputError("the line has changed since the run began", hint)
    _, asked = read_line(raw)
    if isinstance(asked, NgtError):
        raise asked
    return asked
