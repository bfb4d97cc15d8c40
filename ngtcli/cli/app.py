"""The `ngt` command: its subcommands, and what happens to errors."""

import signal
import sys
from typing import Annotated

import typer

from ngtcli import __version__
from ngtcli.cli.answer import ask, summarize
from ngtcli.cli.bench import bench
from ngtcli.cli.measure import check
from ngtcli.cli.schema import schema
from ngtcli.cli.stores import config_app, env, models_app, presets_app
from ngtcli.cli.streams import abandon_stdout, report_error
from ngtcli.cli.tries import trie_app
from ngtcli.cli.tune import tune
from ngtcli.errors import INTERRUPTED, ClosedPipeError, NgtError

app = typer.Typer(
    name="ngt",
    help="Answers from documents on your own machine, faster than plain decoding"
    " and with the same tokens.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(summarize)
app.command()(ask)
app.command()(check)
app.command()(bench)
app.command()(tune)
app.add_typer(trie_app, name="trie")
app.add_typer(presets_app, name="presets")
app.add_typer(config_app, name="config")
app.add_typer(models_app, name="models")
app.command()(env)
app.command()(schema)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"ngt {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; stands before the command.")
    ] = False,
) -> None:
    """Options that stand before the command."""


class _Interrupts:
    """Remembers a Ctrl-C: where it meets an import, the library may turn it into another error."""

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        self.came = True
        raise KeyboardInterrupt


def main() -> None:
    """Entry point: every NgtError becomes two lines and an exit code."""
    interrupts = _Interrupts()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a name or a text that the terminal cannot show
    try:
        app()
    except ClosedPipeError:
        abandon_stdout()
        sys.exit(0)
    except NgtError as error:
        if interrupts.came:
            sys.exit(INTERRUPTED)
        if "--debug" in sys.argv[1:2]:
            raise
        report_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if interrupts.came:
            sys.exit(INTERRUPTED)
        if "--debug" in sys.argv[1:2]:
            raise
        name = type(error).__name__
        report_error(NgtError(f"{name}: {error}", "Run it again as ngt --debug … for details."))
        sys.exit(1)


if __name__ == "__main__":
    main()
