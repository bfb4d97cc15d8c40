"""The `ngt` command: its subcommands, each imported when it is called, and what errors become."""

import os
import sys
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ngtcli import __version__
from ngtcli.cli.notes import Notes, report_error, silence
from ngtcli.cli.streams import finish_stdout, own_streams
from ngtcli.errors import INTERRUPTED, ClosedPipeError, UsageError, unexpected
from ngtcli.removed import removed_command, removed_flag
from ngtcli.system import process
from ngtcli.system.process import without_collection

_ABOVE = (
    "The card of a model, a preset, settings files and NGT_* variables stand above these defaults:"
    " ngt config show [-p PRESET] prints what holds."
).replace("[", r"\[")
# For each command, or group of them, its line in the listing, in that order. The tests hold it
# against what the command itself says.
COMMANDS = {
    "summarize": "Summarize documents: ngt summarize article.txt",
    "ask": 'Answer a question from documents: ngt ask "When is high tide?" notes/',
    "extract": "Fields of documents as a table: ngt extract reports/ --schema 'author, due date'"
    " -o t.csv",
    "chat": "Talk with a model, about documents too: ngt chat -d notes/",
    "generate": 'Follow a free prompt: ngt generate "Write a limerick about the tide."',
    "batch": "Answer many texts, a JSON line each: ngt batch in.jsonl -o out.jsonl",
    "serve": "Keep a model loaded: ngt ask and ngt summarize need not load it again.",
    "mcp": "Let other programs search documents and ask about them: ngt mcp -d ./notes",
    "check": "Decode with and without drafts and compare every token; exit 6 at a difference.",
    "bench": "Measure methods side by side: speed, tokens a step, and where the time goes.",
    "tune": "Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5",
    "env": "Show versions, device and folders, and what a model needs here.",
    "schema": "Print the JSON Schema of what --json prints, of one command or of all of them.",
    "docs": "Documents as they are read: text, pages, tokens, warnings.",
    "trie": "The cached n-gram tries of documents.",
    "cache": "All that is stored to be used again.",
    "presets": "Presets: how a task is worded and set.",
    "config": "Settings and where they come from.",
    "models": "Models on this machine.",
    "help": "Show a page of the manual, or list the pages: ngt help documents",
}
# Files of commands whose first word is not the file's name.
_FILES = {
    **dict.fromkeys(("summarize", "ask", "generate"), "answer"),
    **dict.fromkeys(("env", "presets", "config"), "about"),
}


class _Group(TyperGroup):
    """Lists stand-ins of the commands; the one that is called is imported then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, line in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=line)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        removed = None if ctx.resilient_parsing else removed_command(args)  # Tab says nothing
        if removed is not None:
            raise UsageError(f"there is no command ngt {removed[0]} any more", hint=removed[1])
        if (pair := " ".join(args[:2])) in COMMANDS:
            args = [pair, *args[2:]]
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:  # typer takes it for a Ctrl-D
            raise unexpected(error) from error
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # of the library, wherever it has it
                command = getattr(getattr(error, "ctx", None), "command_path", "")
                flag = str(getattr(error, "option_name", ""))
                _refuse_moved(command.removeprefix("ngt "), flag)
            raise


def _refuse_moved(command: str, flag: str) -> None:
    """Raise UsageError for what --set gives, or was a flag once, with what to give instead."""
    from ngtcli.config import SETTINGS, Use  # here: help does without

    name = flag.lstrip("-").replace("-", "_")
    about = SETTINGS.get(name.removeprefix("no_"))
    hint = removed_flag(command, flag)
    if not hint and about is not None and Use.SET in about.uses:
        no, yes = ("no", "yes") if about.kind is bool else ("none", "VALUE")
        hint = f"Give --set {about.name}={yes if about.name == name else no}."
    if hint:
        raise UsageError(f"{flag} is no flag", hint=hint)


@cache
def load(name: str) -> Any:
    """The command or group of that name, as the library makes it."""
    first, last = name.split()[0], name.split()[-1]
    with without_collection():
        module = import_module(f"ngtcli.cli.{_FILES.get(first, first)}")
    names = f"{last}_app", f"{last}_page", last
    found = next(getattr(module, one) for one in names if hasattr(module, one))
    app = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)
    command: Any = typer.main.get_command(app)
    command = command.commands[name] if isinstance(found, typer.Typer) else command
    command.help = command.help or COMMANDS[name]
    _finish(command)
    return command


_NUMBERS = {int: "whole number", float: "number"}
_build = getattr(typer.core, "build_runtime_param", None)  # other versions have no such function


class _Given:
    """Converts the value of a parameter where that is plain: a text, a number, a name of a file.

    Only for other values what the library converts with is made: it loads pydantic, in 0.1 s.
    """

    def __init__(self, about: Any) -> None:
        self._about = about

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value in the parameter's type. Raises the library's error for a wrong one."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        info = self._about.parameter_info
        with suppress(ValueError, TypeError, KeyError):
            plain = (info.parser or _PLAIN[self._about.annotation])(value)
            if not isinstance(plain, int) or (info.min or 0) <= plain <= (info.max or plain):
                return plain
        kind = _NUMBERS.get(self._about.annotation)
        if kind is not None and not _is_number(str(value), self._about.annotation):
            raise typer.BadParameter(f"{value!r} is not a {kind}", ctx=ctx, param=param)
        assert _build is not None
        return _build(self._about).coerce(value, param=param, ctx=ctx)


def _is_number(text: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _digits(given: object) -> int:
    """A number that has digits alone, or is one by default. Raises ValueError."""
    value = str(given)
    if not (value.isascii() and value.isdigit() and len(value) < 19):
        raise ValueError
    return int(value)


_PLAIN: dict[object, Any] = {str: str, int: _digits, list[str]: list}


if _build is not None:
    setattr(typer.core, _build.__name__, _Given)


def _finish(command: Any) -> None:
    """Give a command the options of all, and join the lines of its help text's paragraphs."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(map(_joined, paragraphs))
    if any(parameter.name == "max_tokens" for parameter in command.params):
        command.epilog = _ABOVE
    command.params += _of_every_command()
    for one in getattr(command, "commands", {}).values():
        _finish(one)


def _joined(paragraph: str) -> str:
    """A paragraph of a help text as one line; examples keep their lines, as the library marks."""
    lines = [line.strip() for line in paragraph.strip().split("\n")]
    return "\b\n" + "\n".join(lines) if lines[0].startswith("ngt ") else " ".join(lines)


_tracebacks = False  # whether --debug was given


def _debug(wanted: bool) -> None:
    global _tracebacks
    _tracebacks = _tracebacks or wanted


def _brief(context: typer.Context, wanted: bool) -> None:
    if wanted:
        from ngtcli.cli.help import brief  # here: other runs do without

        print(brief(context, sys.stdout))
        raise typer.Exit()


def _quiet(wanted: bool) -> None:
    if wanted:
        silence(True)


_QUIET = typer.Option("--quiet", "-q", callback=_quiet, is_eager=True, help="Say only errors.")
_DEBUG = typer.Option("--debug", callback=_debug, is_eager=True, help="Show tracebacks.")
_SHORT = typer.Option("-h", callback=_brief, is_eager=True)


@cache
def _of_every_command() -> list[Any]:
    """The options that each command has; its page shows -q alone."""
    made = typer.Typer(add_completion=False)

    @made.command()
    def _(
        quiet: Annotated[bool, _QUIET] = False,
        debug: Annotated[bool, _DEBUG] = False,
        short: Annotated[bool, _SHORT] = False,
    ) -> None: ...

    options: list[Any] = typer.main.get_command(made).params
    for option in options:
        option.hidden, option.expose_value = option.name != "quiet", False
    return options


app = typer.Typer(
    name="ngt",
    cls=_Group,
    help="Answers from documents on your own machine, faster than plain decoding"
    " and with the same tokens.",
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
    quiet: Annotated[bool, _QUIET] = False,
    debug: Annotated[bool, _DEBUG] = False,
) -> None:
    """Options of every command."""
    from ngtcli.system.files import home  # here: help does without

    home("cache")  # another user's is told before anything is done


def run() -> int:
    """Run the command line in `sys.argv`; the exit code. Every error becomes two lines."""
    global _tracebacks
    own_streams()
    _tracebacks = False
    silence(False)
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
        if _tracebacks:
            traceback.print_exc()
        known = unexpected(error)
        _tell_remark()  # what failed stands last
        report_error(known)
        return known.exit_code
    finally:
        _tell_remark()
        finish_stdout()


def _tell_remark() -> None:
    """What is wrong with the store of the cache, if the command used it."""
    store = sys.modules.get("ngtcli.system.store")
    if store is not None and (remark := store.take_remark()):
        Notes().warn(remark)


def _check_folder() -> None:
    """Raise UsageError where the current folder is gone: libraries end the process then."""
    try:
        os.getcwd()
    except OSError:
        raise UsageError("the current folder is gone", hint="cd to another.") from None


def _read(arguments: list[str]) -> list[str]:
    """What typer is to read.

    >>> _read(["help", "trie", "list"])
    ['trie', 'list', '--help']
    """
    if arguments[:1] == ["help"] and len(arguments) > 1 and arguments[1] in COMMANDS:
        from ngtcli.cli.help import topics  # here: other commands do without

        if len(arguments) > 2 or arguments[1] not in topics():  # a page of that name goes first
            return [*arguments[1:], "--help"]
    return arguments


def _invoke(arguments: list[str]) -> int:
    """The command's exit code, when all it printed has been written."""
    try:
        app(arguments, prog_name="ngt")
    except SystemExit as done:
        sys.stdout.flush()
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0
