"""A server over answers that are scripted, in a thread of its own, and clients of it."""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import httpx

from ngtcli.engine.events import Event
from ngtcli.engine.request import Request
from ngtcli.errors import NgtError, unexpected
from ngtcli.server.activity import Activity
from ngtcli.server.app import Entrance, application
from ngtcli.server.http_guard import Address, Guard, knows_users, listen
from ngtcli.server.process import Http
from ngtcli.server.service import Service
from tests.support.recording_reporter import RecordingReporter

CLIENT = httpx.Client(verify=False)  # reading certificates takes long
LOCAL = Address("127.0.0.1", 0)


class Ticket:
    """A question that is answered in a thread; `cancelled` is set by who asked."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


@dataclass
class ScriptedAnswers:
    """Answers every question by the events of `script`; notes what was asked, and by whom.

    The script ends, at its next event, when its question is cancelled; `ended` is set then.
    """

    script: Callable[[Request, Ticket], Generator[Event]]
    asked: list[tuple[Request, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def submit(
        self,
        question: Request,
        on_event: Callable[[Event | NgtError], object],
        *,
        owner: str = "",
    ) -> Ticket:
        self.asked.append((question, owner))
        self.ended.clear()
        ticket = Ticket()
        threading.Thread(target=self._run, args=(question, ticket, on_event), daemon=True).start()
        return ticket

    def _run(self, question: Request, ticket: Ticket, tell: Callable[..., object]) -> None:
        try:
            with closing(self.script(question, ticket)) as events:
                for event in events:
                    if ticket.cancelled.is_set():
                        return
                    tell(event)
        except Exception as error:
            tell(unexpected(error))
        finally:
            self.ended.set()

    @property
    def last(self) -> Request:
        """What was asked last."""
        return self.asked[-1][0]


class LoadedServer:
    """Stands for a server whose model is loaded."""

    progress = ""

    def __init__(self, answers: Any) -> None:
        self.submit = answers.submit
        self.activity = Activity()
        self.loaded = asyncio.Event()
        self.loaded.set()


class RunningServer:
    """A server of these answers over TCP, until `close`; `warned` is what it told."""

    def __init__(
        self, answers: Any, service: Service, address: Address = LOCAL, mcp: Any = ((), nullcontext)
    ) -> None:
        self.answers = answers
        reported = RecordingReporter()
        self.warned = reported.warnings
        listening, (routes, running) = listen(address), mcp
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server: Any = LoadedServer(answers)
        app = reported.of(lambda: application(server, service, routes))
        guard = Guard(address, not address.keys and knows_users(listening))
        self._http = reported.of(lambda: Http(Entrance(server, app, guard)))
        self._ends, self._loop = asyncio.Event(), asyncio.new_event_loop()
        main = self._run(listening, running)
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(main,))
        self._thread.start()

    async def _run(self, listening: Any, running: Any) -> None:
        serving = asyncio.ensure_future(self._http.serve([listening]))
        async with running():
            await self._ends.wait()
            await self._http.leave(serving, Activity())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()
        self._loop.close()
