"""Messages between a command and the resident process: their types by name, msgpack, no code.

A message is four bytes with its length, then an array of its type's name and its fields.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Any

import msgspec

from ngtcli import errors
from ngtcli.errors import NgtError
from ngtcli.session import events
from ngtcli.session.question import Question

HEAD = struct.Struct(">I")
BEAT_S = 2.0  # guess
MOST = 2**31  # bytes of a message; derived: a question brings the texts of its documents


@dataclass(frozen=True, slots=True)
class Ask:
    """Answer this; the events follow."""

    question: Question
    wants: events.Wants


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the answer; what came of it follows."""


@dataclass(frozen=True, slots=True)
class Describe:
    """Say who serves what: a `Served` follows."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Take no more questions, finish the answers that are being made, and leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A resident process. `state` is "loading", "ready", "leaving" or, said by who asked it,
    "does not answer"; `idle_s` are the seconds without a question after which it leaves, 0 for
    never.
    """

    model: str = ""
    state: str
    process: int
    version: str = ""
    running_s: float = 0.0
    idle_s: float = 0.0
    answering: int = 0
    answered: int = 0


@dataclass(frozen=True, slots=True)
class Alive:
    """The process runs; it says so while there may be nothing else to say, every BEAT_S."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The question is not answered here, and may be elsewhere: the process is leaving."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The NgtError that a question ends with; `kind` is its class."""

    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: NgtError) -> "Failed":
        kinds = (kind.__name__ for kind in type(error).__mro__)
        kind = next(name for name in kinds if name in _ERRORS)
        return cls(kind, str(error), error.hint)

    def error(self) -> NgtError:
        return _ERRORS.get(self.kind, NgtError)(self.message, self.hint)


_ERRORS: dict[str, type[NgtError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, NgtError) and kind is not errors.GrammarError
}
_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Ask, Cancel, Describe, Stop, Served, Alive, Refused, Failed, events.Message,
        events.Reading, events.Part, events.Prompted, events.Started, events.Stepped, events.Ended,
    )
}  # fmt: skip


class WireError(Exception):
    """What came is not a message of this version."""


def pack(message: object) -> bytes:
    """A message as it is sent. Raises UnicodeEncodeError for a text that UTF-8 does not have."""
    body = msgspec.msgpack.encode((type(message).__name__, message), enc_hook=_plain)
    return HEAD.pack(len(body)) + body


def unpack(body: bytes | memoryview) -> Any:
    """The message of what follows its length. Raises WireError."""
    try:
        name, fields = _NAMED.decode(body)
        return _decoder(name).decode(fields)
    except (msgspec.MsgspecError, KeyError) as error:
        raise WireError(str(error)) from None


def checked(size: int) -> int:
    """The length of a message. Raises WireError for one that is too long."""
    if size > MOST:
        raise WireError(f"a message of {size} bytes")
    return size


class Inbox:
    """Bytes as they arrive, and the messages in them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        self._data += data

    def messages(self) -> Iterator[Any]:
        """The messages that are complete; each is taken. Raises WireError."""
        while len(self._data) >= HEAD.size:
            (size,) = HEAD.unpack_from(self._data)
            end = HEAD.size + checked(size)
            if len(self._data) < end:
                return
            body = bytes(self._data[HEAD.size : end])
            del self._data[:end]
            yield unpack(body)


_NAMED = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


@cache
def _decoder(name: str) -> Any:
    return msgspec.msgpack.Decoder(_KINDS[name], dec_hook=_typed)


def _plain(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} is not sent")


def _typed(kind: Any, value: Any) -> Any:
    """A value of a class that msgpack does not have: of a path, or of numbers counted."""
    return kind(value)
