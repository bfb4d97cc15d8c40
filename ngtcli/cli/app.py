"""The `ngt` command: its subcommands, and what happens to errors."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ngtcli import __version__
from ngtcli.cli.lazy import COMMANDS, LazyGroup
from ngtcli.cli.notes import Notes, report_error
from ngtcli.cli.streams import finish_stdout, own_streams
from ngtcli.errors import INTERRUPTED, ClosedPipeError, NgtError, UsageError
from ngtcli.system import process


class _Group(LazyGroup):
    """Commands whose EOFError is a failure as any other: typer takes it for a Ctrl-D."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EOFError as error:
            raise unexpected(error) from error


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
    from ngtcli.system.storage import others_cache  # here: help does without

    if others := others_cache():
        Notes().warn(f"the cache in {others} is another user's: set NGT_HOME to a folder of yours")


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
        told = error if isinstance(error, NgtError) else unexpected(error)
        report_error(told)
        return told.exit_code
    finally:
        finish_stdout()


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
    if ours[:1] == ["help"] and _is_command(ours[1:]):
        ours = [*ours[1:], "--help"]
    return [*ours, *arguments[end:]], debug


def _is_command(words: Sequence[str]) -> bool:
    """Whether words behind `help` name a command: a page of the same name goes first."""
    from ngtcli.cli.help import topics  # here: other commands do without

    return bool(words) and words[0] in COMMANDS and (len(words) > 1 or words[0] not in topics())


def _invoke(arguments: list[str]) -> int:
    """The command's exit code, when all it printed has been written."""
    try:
        app(arguments, prog_name="ngt")
    except SystemExit as done:
        sys.stdout.flush()
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    return 0


def unexpected(error: BaseException) -> NgtError:
    """A mistake of ours or a library's, in a line."""
    text = f"{type(error).__name__}: {error}"
    return NgtError(text[:LONGEST], "Run it again with --debug for details.")


LONGEST = 500  # characters of an unexpected error's text: guessed


if __name__ == "__main__":
    main()
