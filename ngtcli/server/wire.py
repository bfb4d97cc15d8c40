"""The messages between commands and the server: lines of JSON, of types by name, no code.

A line is an array of the name of a type and its fields. Commands send HTTP over the server's
socket: POST /ask has an `Ask` and the header STAMP, and its response has the events, one on each
line, and an empty line every BEAT_S while there is nothing to report. Status 409 says that the
server has another stamp. GET /about and POST /stop are answered by a `Served`; POST /cancel/ID
has an empty response.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import Any, get_origin

import msgspec

from ngtcli import errors
from ngtcli.engine import events
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError
from ngtcli.system.json_form import HIDDEN

STAMP = "ngt-stamp"  # a header: the `runtime_stamp` of the client
BEAT_S = 2.0  # between two empty lines (guess)
MAX_REQUEST_BYTES = 2**31  # derived: a request has the texts of its documents


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to answer; `id` names it in POST /cancel."""

    id: str
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server, as it describes itself.

    Attributes:
        state: "loading", "ready", "leaving" or, set by its client, "does not answer".
        idle_s: Seconds without a request after which it stops; 0 for never.
        http: The URL of its HTTP API; "" without one.
        socket: The path of the socket for the commands of its user.
        kept_warm: Whether a command started it in the background.
        stamp: Its `runtime_stamp`.
    """

    model: str = ""
    state: str
    process: int
    version: str = ""
    running_s: float = 0.0
    idle_s: float = 0.0
    answering: int = 0
    answered: int = 0
    http: str = ""
    socket: str = ""
    kept_warm: bool = field(default=False, metadata=HIDDEN)
    stamp: str = field(default="", metadata=HIDDEN)


@dataclass(frozen=True, slots=True)
class Failed:
    """The NgtError that a request ends with; `kind` is its class."""

    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: NgtError) -> "Failed":
        """Return the message for an error, with the nearest class that has a name here."""
        class_names = (kind.__name__ for kind in type(error).__mro__)
        name = next(name for name in class_names if name in _ERRORS)
        return cls(name, str(error), error.hint)

    def error(self) -> NgtError:
        """Return the error."""
        return _ERRORS.get(self.kind, NgtError)(self.message, hint=self.hint)


_ERRORS: dict[str, type[NgtError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, NgtError) and kind is not errors.MarkedError
}
_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Ask,
        Served,
        Failed,
        events.Message,
        events.Reading,
        events.Part,
        events.Prompted,
        events.Started,
        events.Stepped,
        events.Ended,
    )
}


class WireError(Exception):
    """A line is not of this version."""


def encode(value: object) -> bytes:
    """Return an object as a line. Raises UnicodeEncodeError for a text with lone surrogates."""
    return msgspec.json.encode((type(value).__name__, value), enc_hook=_encode_hook) + b"\n"


def decode(line: bytes | bytearray, expected: type[object] = object) -> Any:
    """Return the object of a line. Raises WireError, also where its type is not `expected`."""
    try:
        name, fields = _LINE_DECODER.decode(line)
        value = _decoder(name).decode(fields)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise WireError(str(error)) from None
    if not isinstance(value, expected):
        raise WireError(name)
    return value


_LINE_DECODER = msgspec.json.Decoder(tuple[str, msgspec.Raw])  # a name and its fields


@cache
def _decoder(name: str) -> Any:
    return msgspec.json.Decoder(_KINDS[name], dec_hook=_decode_hook)


def _encode_hook(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"a {type(value).__name__} is not sent")


def _decode_hook(kind: Any, value: Any) -> Any:
    """Return a value of a class that JSON lacks: a path, or a Counter of integers."""
    if get_origin(kind) is Counter or kind is Counter:
        return Counter({int(key): count for key, count in value.items()})
    return kind(value)
