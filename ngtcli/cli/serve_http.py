"""The flags of `ngt serve --http`, and what comes of them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ngtcli.cli.checks import refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import VerboseOption
from ngtcli.cli.reading import tell
from ngtcli.documents.find import STDIN
from ngtcli.errors import UsageError
from ngtcli.session.question import Tasks

if TYPE_CHECKING:
    from ngtcli.serve.process import Others, Server

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

    def others(
        self, server: "Server", tasks: Tasks, notes: Notes
    ) -> AbstractContextManager["Others | None"]:
        """What serves others by HTTP, its port taken and its documents read; None for nobody.

        Raises UsageError, and InputError where the documents cannot be read.
        """
        if self.http is not None:
            return self._over_http(server, tasks, notes)
        others = {"-d": self.docs, "--host": self.host, "--api-key-file": self.api_key_file}
        refuse_with("ngt serve without --http", others, "Give --http 8421.")
        return nullcontext()

    @contextmanager
    def _over_http(self, server: "Server", tasks: Tasks, notes: Notes) -> Iterator["Others"]:
        from ngtcli.serve import app, http_guard  # here: status and stop do without
        from ngtcli.serve.folder import ServedFolder
        from ngtcli.serve.process import Others
        from ngtcli.serve.service import Service

        assert self.http is not None
        address = http_guard.address_of(self.http, self.host, self.api_key_file)
        if self.docs and STDIN in self.docs:
            raise UsageError("-d -: standard input is no folder", "Name files or folders.")
        with closing(ServedFolder(self.docs or (), server.settings)) as folder:
            if self.docs:
                tell(folder.documents(notes.status), notes)
                notes.clear()
            served = folder if self.docs else None
            service = Service(_name(server.settings.model), tasks, served)
            own: tuple[Any, ...] = ([], nullcontext)
            if served is not None and find_spec("mcp") is not None:
                from ngtcli.serve.mcp import Tools, mcp_routes  # here: it takes a second to load

                own = mcp_routes(Tools(service, server, server.counted, notes.warn))
            with closing(http_guard.listen(address)) as listening:
                url = f"http://{address.shown(listening.getsockname()[1])}"
                words = [f"{url}/ is a page for browsers, {url}/v1 OpenAI's API"]
                of_user = address.is_local and not address.keys
                if of_user and not (of_user := http_guard.knows_users(listening)):
                    words.append(f"every user of this machine may ask {url}: {_UNKNOWN}")
                routes, running = own
                every = app.OpenAi(server, service, notes.warn).app(routes)
                guard = http_guard.Guard(every, address, app.error_reply, of_user)
                yield Others(guard, listening, running, tuple(words))


_UNKNOWN = "the system does not tell whose a connection is; --api-key-file FILE asks for a key"


def _name(model: str) -> str:
    """The name that requests give a model: of a path its last part."""
    return Path(model).name if Path(model).exists() else model
