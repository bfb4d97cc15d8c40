"""`ngt mcp`: documents as tools of the Model Context Protocol, on standard input and output."""

import sys
from contextlib import closing
from importlib.util import find_spec
from typing import Annotated

import typer

from ngtcli.cli.checks import Situation, check_settings, given_settings, warn_of_no_effect
from ngtcli.cli.command import command
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import PresetOption, tasks_of
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.config import NGT_PARTS, settings_in
from ngtcli.documents.find import STDIN, find
from ngtcli.engine.checks import check_session
from ngtcli.errors import MissingDependencyError, UsageError
from ngtcli.prompts.preset import TASKS

_STARTED = "MCP server ready: start it from your client (ngt help mcp). Ctrl-C stops it."
_DOCS = typer.Option("--docs", "-d", help="File, folder or glob; give -d before each.")


@command("mcp", settings=settings_in(*NGT_PARTS))
def mcp(
    flags: SettingFlags,
    docs: Annotated[list[str], _DOCS],
    preset_name: PresetOption = None,
) -> None:
    """Let MCP clients search documents and ask about them: ngt mcp -d ./notes

    It speaks the Model Context Protocol on standard input and output, and ends when its client
    does; see ngt help mcp for the entry in a client's configuration.
    """
    if find_spec("mcp") is None:
        raise MissingDependencyError(
            "ngt mcp needs the extra mcp", hint="pip install 'ngtcli[mcp]'"
        )
    tasks = tasks_of(flags, preset_name, TASKS, fallback_for_ask=True)
    settings = tasks.by_name["ask"][0]
    notes = Notes()
    warn_of_no_effect([Situation.NO_COLOR], given_settings(flags))
    if settings.engine.engine == "vllm":
        raise UsageError("ngt mcp cannot answer with --engine vllm", hint="Leave it out.")
    check_settings(flags, settings)
    if STDIN in docs:
        raise UsageError(
            "-d - cannot be used: standard input has the protocol", hint="Name a folder."
        )
    check_session(settings)
    find(docs, settings, inside=True)
    if sys.stdin.isatty():
        notes.say(_STARTED)
    notes.demonstration(settings.model.model)

    from ngtcli.server.answerer import Answerer  # here: the SDK takes a second to load
    from ngtcli.server.exchange import Threaded
    from ngtcli.server.folder import ServedFolder
    from ngtcli.server.mcp import Tools, mcp_server
    from ngtcli.server.service import Service

    with (
        closing(ServedFolder(docs, settings)) as folder,
        closing(Answerer(threads=True)) as answers,
    ):
        server = mcp_server(
            Tools(Service(settings.model.model, tasks, folder), Threaded(answers)), on_streams=True
        )
        try:
            server.run()
        except* BrokenPipeError:  # the client has left
            pass
