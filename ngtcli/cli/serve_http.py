"""The flags of `ngt serve --http`, and what comes of them."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ngtcli.cli.checks import refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import VerboseOption
from ngtcli.cli.reading import tell
from ngtcli.config import Settings
from ngtcli.documents.find import STDIN
from ngtcli.errors import UsageError
from ngtcli.prompt.preset import Preset
from ngtcli.serve.server import Listener, Server

if TYPE_CHECKING:
    from ngtcli.serve.folder import ServedFolder

Tasks = Mapping[str, tuple[Settings, Preset]]
TASKS = ("ask", "chat", "generate", "summarize")  # whose presets word what is asked
_DOCS = typer.Option("--docs", "-d", help="With --http: file or folder of the model NAME+docs.")
_HTTP = typer.Option("--http", metavar="[HOST:]PORT", help="Serve OpenAI's HTTP API, too: 8421")
_HOST = typer.Option("--host", help="Listen on this address, which needs --api-key-file: 0.0.0.0")
_KEYS = typer.Option("--api-key-file", help="Only those with a key of this file may ask.")


@dataclass(frozen=True, kw_only=True)
class HttpFlags:
    """The flags of `ngt serve` besides the settings."""

    docs: Annotated[list[str] | None, _DOCS] = None
    http: Annotated[str | None, _HTTP] = None
    host: Annotated[str | None, _HOST] = None
    api_key_file: Annotated[Path | None, _KEYS] = None
    verbose: VerboseOption = False

    def listener(self, settings: Settings, tasks: Tasks, notes: Notes) -> Listener | None:
        """What serves HTTP, its port taken and its documents read; None where it is not wanted.

        Raises UsageError, and InputError where the documents cannot be read.
        """
        if self.http is None:
            others = {"-d": self.docs, "--host": self.host, "--api-key-file": self.api_key_file}
            refuse_with("ngt serve without --http", others, "Give --http 8421.")
            return None
        try:
            from ngtcli.serve import http, http_guard, openai_requests  # here: many packages
        except ImportError as error:
            what = f"--http needs packages that are not installed ({error.name})"
            raise UsageError(what, "Install them: pip install 'ngtcli[serve]'") from None
        from ngtcli.serve.folder import ServedFolder  # here: few runs need it

        address = http_guard.address_of(self.http, self.host, self.api_key_file)
        folder = None
        if self.docs:
            if STDIN in self.docs:
                raise UsageError("-d -: standard input is no folder", "Name files or folders.")
            folder = ServedFolder(self.docs, settings)
            tell(folder.documents(notes.status), notes)
            notes.clear()
        every = {**tasks, "complete": tasks["generate"]}
        service = openai_requests.Service(_name(settings.model), every, folder)
        place = http.listen(address)

        @contextmanager
        def listening(server: Server, answerer: Any) -> Iterator[None]:
            more = _mcp(tasks, folder, server, answerer) if folder else ()
            app = http.OpenAi(answerer, service, notes.warn, server.counted).app(address, *more)
            with closing(http.HttpServer(app, place)):
                url = f"http://{address.shown(place.getsockname()[1])}"
                notes.say(f"{url}/ is a page for browsers, {url}/v1 OpenAI's API")
                yield
            if folder:
                folder.close()

        return listening


def _mcp(tasks: Tasks, folder: "ServedFolder", server: Server, answerer: Any) -> tuple[Any, ...]:
    """The tools of MCP over a folder, if their package is installed: routes and what they need."""
    if find_spec("mcp") is None:
        return ()
    from ngtcli.serve.mcp import Tools, mcp_routes  # here: the SDK takes a second to load

    return mcp_routes(Tools(folder, tasks, answerer, server.counted))


def _name(model: str) -> str:
    """The name that requests give a model: of a path its last part."""
    return Path(model).name if Path(model).exists() else model
