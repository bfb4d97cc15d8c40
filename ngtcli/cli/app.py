"""The `ngt` command: its subcommands, each imported when it is called, and what errors become."""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ngtcli import __version__
from ngtcli.cli.notes import Notes, report_error
from ngtcli.cli.streams import finish_stdout, own_streams
from ngtcli.errors import INTERRUPTED, ClosedPipeError, NgtError, UsageError, unexpected
from ngtcli.system import process
from ngtcli.system.process import without_collection

_ABOVE = (
    "The card of a model, a preset, settings files and NGT_* variables stand above these defaults:"
    " ngt config show [-p PRESET] prints what holds."
).replace("[", r"\[")
# For each command, or group of them, its line in the listing and where it is: in the order of the
# listing. The tests hold each line against what the command itself says.
COMMANDS = {
    "summarize": ("Summarize documents: ngt summarize article.txt", "answer:summarize"),
    "ask": (
        'Answer a question from documents: ngt ask --docs ./notes "When is high tide?"',
        "answer:ask",
    ),
    "chat": ("Talk with a model, about documents too: ngt chat -d notes/", "chat:chat"),
    "generate": (
        'Follow a free prompt: ngt generate "Write a limerick about the tide."',
        "answer:generate",
    ),
    "batch": (
        "Answer many texts, a JSON line each: ngt batch in.jsonl -o out.jsonl",
        "batch:batch",
    ),
    "serve": (
        "Keep a model loaded: ngt ask and ngt summarize need not load it again.",
        "serve:serve_app",
    ),
    "mcp": (
        "Let other programs search documents and ask about them: ngt mcp -d ./notes",
        "mcp:mcp",
    ),
    "check": (
        "Decode with and without drafts and compare every token; exit 6 at a difference.",
        "check:check",
    ),
    "bench": (
        "Measure methods side by side: speed, acceptance, quality, and where the time goes.",
        "bench:bench",
    ),
    "bench replay": (
        "Measure methods on a recording, without the model: ngt bench replay RECORDING",
        "bench:replay",
    ),
    "bench record": (
        "Decode without drafts, and write a recording: ngt bench record RECORDING",
        "bench:record",
    ),
    "bench quality": ("Measure what --dtype or --quantize costs against float32.", "bench:quality"),
    "tune": ("Find the fastest settings: ngt tune --sweep n=8..16 lp=2..5", "tune:tune"),
    "heads": (
        "Learned heads, which guess tokens from a model's hidden states.",
        "heads:heads_app",
    ),
    "env": ("Show versions, device and folders, and what a model needs here.", "about:env"),
    "schema": (
        "Print the JSON Schema of what --json prints, of one command or of all that have one.",
        "schema:schema",
    ),
    "docs": ("Documents as they are read: text, pages, tokens, warnings.", "docs:docs_app"),
    "trie": ("The cached n-gram tries of documents.", "trie:trie_app"),
    "cache": ("All that is stored to be used again.", "cache:cache_app"),
    "runs": ("The log of answers: what drafting brought, by model.", "runs:runs_app"),
    "presets": ("Presets: how a task is worded and set.", "about:presets_app"),
    "config": ("Settings and where they come from.", "about:config_app"),
    "models": ("Models on this machine.", "models:models_app"),
    "help": ("Show a page of the manual, or list the pages: ngt help documents", "help:help_page"),
}


# Flags that `ngt bench` once had: what to give in their place.
_MOVED = {
    "--replay": "Give ngt bench replay RECORDING.",
    "--record": "Give ngt bench record RECORDING.",
    "--quality": "Give ngt bench quality.",
    **dict.fromkeys(("--template", "--turns"), "In a clone: python -m tests.tools.spec_bench."),
    "--shape": "In a clone: python -m tests.tools.shapes.",
    "--noise": "In a clone: python -m tests.tools.datasets.",
}


class _Group(TyperGroup):
    """Lists stand-ins of the commands; the one that is called is imported then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, (line, _) in COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=line)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (pair := " ".join(args[:2])) in COMMANDS:
            args = [pair, *args[2:]]
        name, command, rest = super().resolve_command(ctx, args)
        for word in rest if name == "bench" else ():
            if hint := _MOVED.get(word.partition("=")[0]):
                raise UsageError(f"{word.partition('=')[0]} is no flag of ngt bench any more", hint)
        return name, load(name) if name in COMMANDS else command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:  # typer takes it for a Ctrl-D
            raise unexpected(error) from error


@cache
def load(name: str) -> Any:
    """The command or group of that name, as the library makes it."""
    module, _, function = COMMANDS[name][1].partition(":")
    with without_collection():
        found = getattr(import_module(f"ngtcli.cli.{module}"), function)
    app = typer.Typer(add_completion=False)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)
    command: Any = typer.main.get_command(app)
    command = command.commands[name] if isinstance(found, typer.Typer) else command
    _finish(command)
    return command


_build = getattr(typer.core, "build_runtime_param", None)  # other versions have no such function


class _Given:
    """Converts the value of a parameter where that is plain: a text, a number, a name of a file.

    Only for other values what the library converts with is made: it loads pydantic, in 0.1 s.
    """

    def __init__(self, about: Any) -> None:
        self._about = about
        self._of_one = about.parameter_info.parser or _PLAIN.get(about.annotation)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value in the parameter's type. Raises the library's error for a wrong one."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._of_one is not None:
            with suppress(ValueError, TypeError):
                return self._of_one(value)
        assert _build is not None
        return _build(self._about).coerce(value, param=param, ctx=ctx)


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
    """Join the lines of a help text's paragraphs, and say below settings what stands above them."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    if any(parameter.name == "max_tokens" for parameter in command.params):
        command.epilog = _ABOVE
    for below in getattr(command, "commands", {}).values():
        _finish(below)


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
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Options of every command."""
    from ngtcli.system.files import home  # here: help does without

    home("cache")  # another user's is told before anything is done


def main() -> None:
    """Run the command line and exit; `ngtcli.__main__` does so for the process."""
    sys.exit(run())


def run() -> int:
    """Run the command line in `sys.argv`; the exit code. Every error becomes two lines."""
    own_streams()
    arguments, debug = _read(sys.argv[1:])
    try:
        _check_folder()
        return _invoke(arguments)
    except ClosedPipeError:
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:  # a library in another language may panic
        if process.interrupted():
            return INTERRUPTED
        if debug:
            traceback.print_exc()
        known = error if isinstance(error, NgtError) else unexpected(error)
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
        raise UsageError("the current folder is gone", "cd to another.") from None


def _read(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """What typer is to read, and whether --debug was given anywhere before `--`.

    >>> _read(["help", "trie", "list", "--debug"])
    (['trie', 'list', '--help'], True)
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    ours = [word for word in arguments[:end] if word != "--debug"]
    debug = len(ours) < end
    if ours[:1] == ["help"] and len(ours) > 1 and ours[1] in COMMANDS:
        from ngtcli.cli.help import topics  # here: other commands do without

        if len(ours) > 2 or ours[1] not in topics():  # a page of the command's name goes first
            ours = [*ours[1:], "--help"]
    return [*ours, *arguments[end:]], debug


def _invoke(arguments: list[str]) -> int:
    """The command's exit code, when all it printed has been written."""
    try:
        app(arguments, prog_name="ngt")
    except SystemExit as done:
        sys.stdout.flush()
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0


if __name__ == "__main__":
    main()
