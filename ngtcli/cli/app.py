"""The `ngt` command: its subcommands, each imported when it is called, and what errors become."""

import os
import sys
import traceback
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ngtcli import __version__
from ngtcli.cli import everywhere
from ngtcli.cli.everywhere import DebugOption, QuietOption
from ngtcli.cli.notes import Notes, report_error
from ngtcli.cli.parameters import quickly_converted
from ngtcli.cli.streams import finish_stdout, own_streams
from ngtcli.errors import INTERRUPTED, ClosedPipeError, UsageError, unexpected
from ngtcli.removed import removed_command
from ngtcli.system import process
from ngtcli.system.process import without_garbage_collection


@dataclass(frozen=True, slots=True)
class Listed:
    """A command in the list of `ngt --help`.

    Attributes:
        path: Where it is: a module of `ngtcli.cli`, and the name of a `Command` or a `Group` in it.
        line: What the list says of it, which is the first line of its own page.
    """

    path: str
    line: str


# By name, in the order of the list. A test compares the lines with the pages.
COMMANDS = {
    "summarize": Listed("answer.summarize", "Summarize documents: ngt summarize article.txt"),
    "ask": Listed(
        "answer.ask", 'Answer a question from documents: ngt ask "When is high tide?" notes/'
    ),
    "extract": Listed(
        "extract.extract",
        "Extract fields into a table: ngt extract reports/ --schema 'author, total float' -o t.csv",
    ),
    "chat": Listed("chat.chat", "Chat with a model, with or without documents: ngt chat notes/"),
    "generate": Listed(
        "answer.generate",
        'Generate text from a prompt: ngt generate "Write a limerick about the tide."',
    ),
    "batch": Listed(
        "batch.batch", "Process many texts, one JSON line each: ngt batch in.jsonl -o out.jsonl"
    ),
    "serve": Listed("serve.serve", "Keep a model loaded for fast answers, and serve it over HTTP."),
    "mcp": Listed(
        "mcp.mcp", "Let MCP clients search documents and ask about them: ngt mcp -d ./notes"
    ),
    "check": Listed(
        "check.check",
        "Decode with and without drafts and compare every token; exit with 6 if one differs.",
    ),
    "bench": Listed(
        "bench.bench",
        "Benchmark drafting methods: speed, tokens per step, and where the time goes.",
    ),
    "tune": Listed("tune.tune", "Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5"),
    "env": Listed(
        "about.env", "Show versions, device and folders, and how much memory a model needs."
    ),
    "schema": Listed(
        "schema.schema",
        "Print the JSON Schema of the --json output of one command, or of all.",
    ),
    "docs": Listed(
        "docs.docs_app", "Show documents as ngt reads them: text, pages, tokens, warnings."
    ),
    "trie": Listed("trie.trie_app", "Build, list and show the n-gram tries of documents."),
    "cache": Listed("cache.cache_app", "List and clear the cache."),
    "presets": Listed(
        "about.presets_app", "List and print presets: the wording and settings of tasks."
    ),
    "config": Listed("about.config_app", "Show settings and where they come from."),
    "models": Listed("models.models_app", "List, download and delete models."),
    "help": Listed(
        "help.help_page", "Show a page of the manual, or list the pages: ngt help documents"
    ),
}


def load(name: str) -> Any:
    """Import a command or a group of the list, and return it: a `Command` or a `Group`."""
    module, _, attribute = COMMANDS[name].path.partition(".")
    with without_garbage_collection():
        command = getattr(import_module(f"ngtcli.cli.{module}"), attribute)
    command.help = command.help or COMMANDS[name].line  # groups have none of their own
    return command


class _LazyCommand(TyperCommand):
    """A command of which only the name and the line of the list are known.

    Click's lazy group imports a command in `get_command`, which pages and completion call for all
    commands of the list. This one is imported when its command line is read.
    """

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself, which is called then."""
        return load(self.name or "").make_context(info_name, args, parent, **extra)


class _LazyGroup(TyperGroup):
    """The commands of ngt, each imported when it is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, listed in COMMANDS.items():
            self.add_command(_LazyCommand(name, help=listed.line))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options with `--help` and those of completion."""
        return quickly_converted(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name. Raises UsageError for a removed one."""
        removed = None if ctx.resilient_parsing else removed_command(args)  # Tab says nothing
        if removed is not None:
            name, hint = removed
            raise UsageError(f"the command ngt {name} was removed", hint=hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Call the command. An EOFError is none of the terminal's, for which Typer takes it."""
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise unexpected(error) from error


app = typer.Typer(
    name="ngt",
    cls=_LazyGroup,
    help="Ask about your documents and summarize them with a local model: the same output as plain"
    " decoding, but faster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="ngt help lists the pages of the manual; ngt help TOPIC shows one.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ngt {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Options of every command."""
    from ngtcli.system.files import home  # here: help does without

    home("cache")  # reports another user's folder before anything is done


def run() -> int:
    """Run the command line in `sys.argv`, and return the exit code.

    Every error becomes two lines.
    """
    own_streams()
    everywhere.reset()
    try:
        _check_folder()
        return _invoke(_read(sys.argv[1:]))
    except ClosedPipeError:
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:  # a library in another language may panic
        if process.interrupted():
            return INTERRUPTED
        if everywhere.shows_tracebacks():
            traceback.print_exc()
        known = unexpected(error)
        _warn_of_store()  # what failed is last
        report_error(known)
        return known.exit_code
    finally:
        _warn_of_store()
        finish_stdout()


def _warn_of_store() -> None:
    """Warn of what is wrong with the store of the cache, if the command used it."""
    store = sys.modules.get("ngtcli.system.store")
    if store is not None and (remark := store.take_remark()):
        Notes().warn(remark)


def _check_folder() -> None:
    """Raise UsageError where the current folder is gone: libraries end the process then."""
    try:
        os.getcwd()
    except OSError:
        raise UsageError(
            "the current folder no longer exists", hint="Change to another folder."
        ) from None


def _read(arguments: list[str]) -> list[str]:
    """Return the arguments for Typer: `ngt help COMMAND` is `ngt COMMAND --help`.

    >>> _read(["help", "trie", "list"])
    ['trie', 'list', '--help']
    """
    if arguments[:1] == ["help"] and len(arguments) > 1 and arguments[1] in COMMANDS:
        from ngtcli.cli.help import topics  # here: other commands do without

        if len(arguments) > 2 or arguments[1] not in topics():  # a page of that name goes first
            return [*arguments[1:], "--help"]
    return arguments


def _invoke(arguments: list[str]) -> int:
    """Run the command, and return its exit code once all that it printed is written."""
    try:
        app(arguments, prog_name="ngt")
    except SystemExit as done:
        sys.stdout.flush()
        if done.code is None:
            return 0
        return done.code if isinstance(done.code, int) else 1
    return 0
