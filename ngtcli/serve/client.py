"""Asks the resident process, where there is one for the settings, in place of loading a model.

Loads neither numpy nor what loads models.
"""

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, TypeVar

from ngtcli.config import Settings
from ngtcli.documents.load import Loaded
from ngtcli.errors import NgtError, reason_of
from ngtcli.serve import wire
from ngtcli.serve.places import (
    GIVEN_UP_S,
    PACKAGE,
    Place,
    absolute,
    flags_of,
    folder,
    peer,
    private,
)
from ngtcli.session.events import Ended, Event, Message, Wants
from ngtcli.session.question import Question
from ngtcli.system import process

Said = TypeVar("Said", wire.Failed, Message)
_PART = 1 << 18  # bytes that are taken from the socket at once; guess


class NotServedError(Exception):
    """The process takes no questions any more, and has said nothing yet of this one."""


class Connection:
    """To the resident process of a place; open while a question is answered."""

    def __init__(self, place: Place) -> None:
        self._place, self._inbox = place, wire.Inbox()
        self._waiting: list[Any] = []

    def open(self) -> socket.socket:
        """Connect, and give what is to be closed. Raises NotServedError."""
        if (connected := self._place.connect()) is None:
            raise NotServedError
        self._socket = connected
        return connected

    def ask(self, question: Question, wants: Wants) -> Generator[Event, None, None]:
        """The events of an answer; KeyboardInterrupt ends it, and `Ended` says how far it came.

        Raises the NgtError that it ends with; NotServedError, before any event but statuses, where
        it is to be answered elsewhere.
        """
        said = interrupted = False
        self.open()
        try:
            self.send(wire.Ask(_plain(question), wants))
            while True:
                try:
                    event = self.next()
                    if isinstance(event, wire.Failed):
                        raise _as_named(event, question.settings).error()
                    if isinstance(event, Message):
                        event = _as_named(event, question.settings)
                    if isinstance(event, wire.Refused):
                        raise NotServedError
                    said = said or not (isinstance(event, Message) and event.kind == "status")
                    if isinstance(event, Ended):
                        self._socket.close()  # whatever becomes of the answer where it is shown
                    yield event
                    if isinstance(event, Ended):
                        return
                except KeyboardInterrupt:
                    if interrupted:
                        raise
                    interrupted = True
                    self.send(wire.Cancel())
        except (OSError, EOFError, UnicodeEncodeError, wire.WireError) as error:
            if not said and not interrupted:
                raise NotServedError from error
            how = "does not answer" if isinstance(error, TimeoutError) else "ended"
            what = f"the resident process {how} in the middle of the answer"
            raise NgtError(what, "Ask again; ngt serve status shows what runs.") from None
        finally:
            self._socket.close()

    def send(self, message: object) -> None:
        """Raises OSError; UnicodeEncodeError for a text that UTF-8 does not have."""
        self._socket.sendall(wire.pack(message))

    def next(self) -> Any:
        """The next message. Raises EOFError, WireError, and OSError, also where none comes."""
        while not self._waiting:
            # Here a Ctrl-C loses nothing.
            if not select.select([self._socket], [], [], GIVEN_UP_S)[0]:
                raise TimeoutError
            with process.unbroken():
                if not (data := self._socket.recv(_PART)):
                    raise EOFError
                self._inbox.add(data)
                said = self._inbox.messages()
                self._waiting += (one for one in said if not isinstance(one, wire.Alive))
        return self._waiting.pop(0)


def served(settings: Settings) -> Connection | None:
    """Reaches the resident process for these settings, if there is one."""
    if os.name != "posix" or not settings.serve or settings.engine != "ngt":
        return None
    place = Place.of(settings)
    if (connected := place.connect()) is None:
        return None
    connected.close()
    return Connection(place)


def request(place: Place, message: wire.Describe | wire.Stop) -> wire.Served | None:
    """What the process there says of itself; None for none, or one that does not understand."""
    connection = Connection(place)
    with suppress(NotServedError, OSError, EOFError, wire.WireError), connection.open() as there:
        try:
            connection.send(message)
            if isinstance(answer := connection.next(), wire.Served):
                return answer
        except TimeoutError:
            return wire.Served(process=peer(there)[0], state="does not answer")
    return None


def start(settings: Settings, warn: Callable[[str], object]) -> None:
    """Start the resident process for these settings, which leaves after `keep_warm` of rest.

    It has no terminal; what it says goes to a file.
    """
    place, flags = Place.of(settings), flags_of(absolute(settings))
    command = [sys.executable, "-P", "-m", "ngtcli", "serve", *flags]
    path = filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH")))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    try:
        private(folder())
        log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        with open(log, "wb") as out, open(os.devnull, "rb") as no:
            started = subprocess.Popen(
                [*command, f"--keep-warm={settings.keep_warm}"],
                stdin=no, stdout=out, stderr=out, env=environ, cwd="/", start_new_session=True,
            )  # fmt: skip
        # Where it ends before this process does, it is waited for, or it would stay a zombie.
        threading.Thread(target=started.wait, daemon=True).start()
    except (OSError, NgtError) as error:
        warn(f"the model is not kept loaded: {reason_of(error)}")


def _as_named(said: Said, settings: Settings) -> Said:
    """What the process says, with the model's name as it was given here in place of its path."""
    if (path := absolute(settings).model) == settings.model:
        return said
    texts = {one.name: getattr(said, one.name) for one in fields(said)}
    return replace(said, **{n: text.replace(path, settings.model) for n, text in texts.items()})


def _plain(question: Question) -> Question:
    """The question as a process in another folder understands it: with full paths."""
    own = {one.name: getattr(question, one.name) for one in fields(Question)}
    own["settings"] = absolute(question.settings)
    own["loaded"] = Loaded(
        tuple(
            replace(document, path=os.path.abspath(document.path)) if document.path else document
            for document in question.documents
        )
    )
    return Question(**own)
