"""`ngt serve`: a process that keeps a model loaded, and answers what other commands ask."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ngtcli.cli import options, reading
from ngtcli.cli.command import group
from ngtcli.cli.completion import models
from ngtcli.cli.notes import Notes
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.show import table
from ngtcli.config import Settings, seconds_of
from ngtcli.documents.find import STDIN
from ngtcli.engine.checks import check_session
from ngtcli.engine.request import Tasks
from ngtcli.engine.settings import apply_to_process, settings_of
from ngtcli.errors import NgtError, UsageError
from ngtcli.server.client import request
from ngtcli.server.places import FINISH_S, Place, ServedAlreadyError, absolute, places
from ngtcli.server.wire import Served
from ngtcli.system.process import KEPT_WARM
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from ngtcli.server.process import Server, Site
    from ngtcli.server.resident import Resident

Model = Annotated[
    str, typer.Option("--model", "-m", help="Only this model.", autocompletion=models)
]
_PATIENCE_S = 5.0  # for a server to stop, beyond FINISH_S for its answers (guess)
TASKS = ("ask", "chat", "generate", "summarize")  # whose presets word what is asked
_DOCS = typer.Option(
    "--docs",
    "-d",
    help="File or folder to answer HTTP requests from, if they name the model builtin+docs (with -m"
    " NAME: NAME+docs).",
)
_HTTP = typer.Option(
    "--http", metavar="[HOST:]PORT", help="Serve HTTP on this port. [default: 127.0.0.1:8421]"
)
_NO_HTTP = typer.Option("--no-http", help="Do not serve HTTP, only your own ngt commands.")
_HOST = typer.Option(
    "--host", help="Listen on this address, such as 0.0.0.0; requires --api-key-file."
)
_KEYS = typer.Option("--api-key-file", help="Require an API key; this file has one per line.")
_UNKNOWN_USER = (
    "this system does not say which user opened a connection; --api-key-file FILE requires a key"
)


@dataclass(frozen=True, kw_only=True)
class HttpFlags:
    """The flags of `ngt serve` besides the settings."""

    docs: Annotated[list[str] | None, _DOCS] = None
    http: Annotated[str | None, _HTTP] = None
    no_http: Annotated[bool, _NO_HTTP] = False
    host: Annotated[str | None, _HOST] = None
    api_key_file: Annotated[Path | None, _KEYS] = None
    verbose: options.VerboseOption = False

    @contextmanager
    def site(self, server: "Server", tasks: Tasks, notes: Notes) -> Iterator["Site"]:
        """Return what the server serves, its port taken and its documents read.

        Raises:
            PortInUseError: Another program has the port, and a flag asks for HTTP.
            UsageError: A flag is wrong.
            InputError: The documents cannot be read.
        """
        from ngtcli.server import http_guard  # here: status and stop do without
        from ngtcli.server.app import application
        from ngtcli.server.folder import ServedFolder
        from ngtcli.server.process import Site
        from ngtcli.server.service import Service

        name = _name(server.settings.model.model)
        for_user = Site(app=application(server, Service(name, tasks)))
        if self.no_http:
            yield for_user
            return
        address = http_guard.address_of(
            self.http or http_guard.DEFAULT_ADDRESS, self.host, self.api_key_file
        )
        if self.docs and STDIN in self.docs:
            raise UsageError("-d -: standard input cannot be served", hint="Name files or folders.")
        with closing(ServedFolder(self.docs or (), server.settings)) as folder:
            if self.docs:
                loaded = folder.documents()
                reading.report_loaded(loaded, notes)
                notes.clear()
            served = folder if self.docs else None
            service = Service(name, tasks, served)
            mcp_routes: list[BaseRoute] = []
            mcp_lifespan: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
            if served is not None and find_spec("mcp") is not None:
                from ngtcli.server import mcp  # here: it takes a second to load

                tools = mcp.Tools(service, server, server.activity)
                mcp_routes, mcp_lifespan = mcp.mcp_routes(tools)
            try:
                listening = http_guard.listen(address)
            except http_guard.PortInUseError as error:
                if self._ask_for_http:
                    raise
                notes.warn(f"HTTP is not served: {error}; --http PORT takes another port")
                yield for_user
                return
            with closing(listening):
                url = f"http://{address.shown(listening.getsockname()[1])}"
                lines = [
                    f"{url}/ is a page for browsers,"
                    f" {url}/v1 is for programs that speak OpenAI's API"
                ]
                is_private = address.is_local and not address.keys
                of_user = is_private and http_guard.knows_users(listening)
                if is_private and not of_user:
                    if self.http is None:  # nobody has asked for HTTP that others can use
                        notes.warn(f"HTTP is not served: {_UNKNOWN_USER}")
                        yield for_user
                        return
                    lines.append(f"every user of this machine can use {url}: {_UNKNOWN_USER}")
                yield Site(
                    app=application(server, service, mcp_routes),
                    guard=http_guard.Guard(address, of_user),
                    listening=listening,
                    url=url,
                    running=mcp_lifespan,
                    notes=tuple(lines),
                )

    @property
    def _ask_for_http(self) -> bool:
        """Whether a flag is for HTTP alone; without one HTTP is served where that is possible."""
        return bool(self.http or self.docs or self.host or self.api_key_file)


def _name(model: str) -> str:
    """Return the name of a model in requests: of a path its last part."""
    return Path(model).name if Path(model).exists() else model


@group("serve", settings=(*options.OF_OWN_ENGINE, "keep_documents", "keep_warm"))
def serve(flags: SettingFlags, context: typer.Context, http_flags: HttpFlags) -> None:
    """Keep a model loaded for fast answers, and serve it over HTTP.

    At http://127.0.0.1:8421 your browser finds a page, and programs can ask as they would ask
    OpenAI (the same HTTP API, but nothing leaves the machine). Other users of the machine have no
    access. Your ngt commands use the server if they have the same model and model settings. Ctrl-C
    stops it when the current answers are complete; a second Ctrl-C stops it immediately.
    """
    if context.invoked_subcommand:
        if flags or http_flags != HttpFlags():
            word = context.invoked_subcommand
            raise UsageError(f"options must come after {word}", hint=f"Move them after {word}.")
        return
    if http_flags.no_http:
        with_http = {
            "--http": http_flags.http,
            "-d": http_flags.docs,
            "--host": http_flags.host,
            "--api-key-file": http_flags.api_key_file,
        }
        for flag, value in with_http.items():
            if value and flag == "--http":
                raise UsageError(
                    "--http and --no-http are mutually exclusive", hint="Give one of them."
                )
            if value:
                raise UsageError(f"{flag} needs HTTP", hint="Leave out --no-http.")
    layers = options.layers_of(flags)
    settings = settings_of(layers).settings
    apply_to_process(settings)
    tasks = Tasks.resolved(layers, None, TASKS, model_of=settings)
    # Which dtype is exact depends on it.
    settings = settings.replace(
        num_draft=max(own.drafting.num_draft for own, _ in tasks.by_name.values())
    )
    check_session(settings)
    notes = _ServerNotes(http_flags.verbose)

    from ngtcli.server.process import Server  # here: status and stop do without a web server

    with reporting_to(notes):
        server = Server(settings, _load, idle_s=seconds_of(settings.engine.keep_warm))
        if KEPT_WARM not in os.environ:
            _check_free(server.place)
        with http_flags.site(server, tasks, notes) as site:
            if KEPT_WARM not in os.environ:
                _take_over(server.place, notes)
            try:
                server.run(site)
            except ServedAlreadyError as error:
                if KEPT_WARM not in os.environ:
                    raise
                notes.warn(str(error))  # two were started at once: that is no failure
                raise typer.Exit(1) from None


class _ServerNotes(Notes):
    """What a server says: its remarks are all that it has to say, and so they are not dim."""

    def remark(self, message: str) -> None:
        """A sentence."""
        self.say(message)


def _load(settings: Settings) -> "Resident":
    """Load the model of a server."""
    from ngtcli.server.resident import Resident  # here: it loads torch

    return Resident(settings)


def _check_free(place: Place) -> None:
    """Raise ServedAlreadyError where another `ngt serve` serves this, before its port is taken."""
    served = request(place, "GET /about")
    if served is not None and not served.kept_warm:
        raise ServedAlreadyError.of_place()


def _take_over(place: Place, notes: Notes) -> None:
    """End the process of a place that was started behind the scenes, if there is one."""
    served = request(place, "GET /about")
    if served is not None and served.kept_warm:
        request(place, "POST /stop")
        _wait(place, served, notes)


def _cells(row: Served) -> list[object]:
    if not row.version:  # it does not answer
        return [row.model, row.state, row.process, "", "", "", ""]
    state = f"{row.state}, stops after {row.idle_s:g} s idle" if row.idle_s else row.state
    running = f"{row.running_s:.0f} s"
    return [row.model, state, row.process, running, row.answered, row.http, row.socket]


@serve.command("status", view=table("model,state,process,for,answered,http,socket", _cells))
def status() -> Generator[list[Served], bool]:
    """List the running servers and their models."""
    rows = [served for _, served in _described("")]
    if (yield rows) and not rows:
        Notes().say("No server is running.")


@serve.command("stop")
def stop(model: Model = "") -> None:
    """Stop the running servers, once their current answers are complete."""
    found, notes = _described(model), Notes()
    for place, _ in found:
        request(place, "POST /stop")
    for place, served in found:
        _wait(place, served, notes)
        notes.say(f"The server of {served.model} has stopped.")
    if not found:
        notes.say("No server is running.")


def _wait(place: Place, served: Served, notes: Notes) -> None:
    """Wait until a server has stopped. Raises NgtError where it does not."""
    notes.status(f"Waiting for {counted(served.answering, 'answer')} of {served.model} …")
    if not place.wait_until_free(FINISH_S + _PATIENCE_S):
        what = f"process {served.process} does not stop"
        raise NgtError(what, hint=f"End it with: kill {served.process}")


def _described(model: str) -> list[tuple[Place, Served]]:
    """Return the places and descriptions of the servers, of all or of those of this model."""
    name = absolute(Settings.of(model=model)).model.model if model else ""
    servers = []
    for place in places():
        served = request(place, "GET /about")
        if served is not None and name in ("", served.model):
            servers.append((place, served))
    return servers
