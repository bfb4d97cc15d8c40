"""Have requests answered by the user's server, or else by a model that stays loaded here.

The modules that answer are imported when a request needs them.
"""

import threading
from collections.abc import Iterator

from ngtcli.config import ModelSettings, Settings
from ngtcli.engine.answers import Answers, Local
from ngtcli.engine.events import Answer, Event, Message
from ngtcli.engine.request import Request
from ngtcli.errors import StoppedError
from ngtcli.server.client import NotServedError, OtherStampError, Remote
from ngtcli.system import process

_OTHER_STAMP = (
    "ngt serve runs from another installation or with other library variables, so the model is"
    " loaded here."
)


class Answerer:
    """The `Answers` of a command: `Remote` where a server runs, or else a model here.

    Args:
        stays: Whether it answers several requests; Ctrl-C then ends only an answer.
        threads: Whether it may be asked from any thread.
    """

    def __init__(self, *, stays: bool = False, threads: bool = False) -> None:
        self._stays = stays
        self._threads = threads
        self._lock = threading.Lock()
        self._is_closed = False
        self._loaded: dict[ModelSettings, Answers] = {}
        self._checked: Settings | None = None

    @property
    def loaded(self) -> bool:
        """True once a model was loaded here."""
        return bool(self._loaded)

    def check(self, settings: Settings) -> None:
        """Check that a request with these settings can be answered.

        If a server runs, it checks them itself when it gets a request.

        Raises:
            UsageError: The settings are wrong.
            ModelError: The model cannot be used.
        """
        if settings != self._checked and Remote.of(settings) is None:
            from ngtcli.engine.checks import check_session  # here: it loads what reads models

            check_session(settings)
            self._checked = settings

    def ask(self, request: Request, *, owner: str = "") -> "Asking":
        """As `Answers.ask`."""
        return Asking(self, request, owner)

    def remote(self, settings: Settings) -> Remote | None:
        """Return the server for these settings; None for a model here."""
        return None if settings.model in self._loaded else Remote.of(settings)

    def must_report_loading(self, settings: Settings) -> bool:
        """Return whether a client waits while the model is loaded, which is then reported."""
        return self._threads and settings.model not in self._loaded

    def local(self, settings: Settings) -> Answers:
        """Return the `Answers` of a model here, and load it where that was not done yet.

        After an error the next request tries again, unless a server runs by then.

        Raises:
            StoppedError: After `close`.
            NgtError: The model cannot be loaded.
        """
        if settings.model not in self._loaded:
            self.check(settings)
        with self._lock:
            if self._is_closed:
                raise StoppedError("interrupted")
            answers = self._loaded.get(settings.model)
            if answers is None:
                answers = self._load(settings)
                self._loaded[settings.model] = answers
            return answers

    def _load(self, settings: Settings) -> Answers:
        if not self._threads:
            local = Local(settings, stays=self._stays)
            local.load()
            return local
        from ngtcli.server.resident import Resident  # here: it loads torch

        return Resident(settings)

    def unwind_on_interrupt(self) -> None:
        """Have Ctrl-C end only an answer where others may follow."""
        if self._stays:
            process.unwind_on_interrupt()

    def close(self) -> None:
        """End the answers here, and unload the models, also one that is being loaded."""
        with self._lock:
            self._is_closed = True
            while self._loaded:
                self._loaded.popitem()[1].close()


class Asking:
    """The `Answer` of an Answerer: that of a server, or else that of a model here."""

    def __init__(self, answerer: Answerer, request: Request, owner: str = "") -> None:
        self._answerer = answerer
        self._request = request
        self._owner = owner
        self._answer: Answer | None = None
        self._is_here = False  # whether a model here answers
        self._is_loading_reported = False
        self._is_stopped = False  # whether it was interrupted before it was asked

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._is_stopped:
            raise StoppedError("interrupted")
        settings = self._request.settings
        if self._answer is None and not self._is_here:
            remote = self._answerer.remote(settings)
            if remote is None:
                self._is_here = True
            else:
                self._answerer.unwind_on_interrupt()
                self._answer = remote.ask(self._request, owner=self._owner)
        if self._answer is None:
            if self._answerer.must_report_loading(settings) and not self._is_loading_reported:
                self._is_loading_reported = True
                return Message("status", f"Loading {settings.model.model} …")
            answers = self._answerer.local(settings)
            self._answer = answers.ask(self._request, owner=self._owner)
            self._answerer.unwind_on_interrupt()
        try:
            return next(self._answer)
        except NotServedError as error:  # The server sent no event but statuses.
            self._answer = None
            self._is_here = True
            if isinstance(error, OtherStampError):
                return Message("remark", _OTHER_STAMP)
            return next(self)

    def interrupt(self) -> None:
        """As `Answer.interrupt`."""
        if self._answer is None:
            self._is_stopped = True
        else:
            self._answer.interrupt()

    def close(self) -> None:
        """As `Answer.close`."""
        if self._answer is not None:
            self._answer.close()
