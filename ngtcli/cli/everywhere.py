"""The options of every command: `--quiet`, `--debug`, and `-h` for a page of one screen."""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from ngtcli.cli.notes import silence

_shows_tracebacks = False  # whether --debug was given


def reset() -> None:
    """Undo --quiet and --debug of the last command of this process."""
    global _shows_tracebacks
    _shows_tracebacks = False
    silence(False)


def shows_tracebacks() -> bool:
    """Return whether `--debug` was given."""
    return _shows_tracebacks


def _quiet(is_given: bool) -> None:
    if is_given:
        silence(True)


def _debug(is_given: bool) -> None:
    global _shows_tracebacks
    if is_given:
        _shows_tracebacks = True


def _short(context: typer.Context, is_given: bool) -> None:
    if is_given:
        from ngtcli.cli.short_page import short_page  # only -h needs it

        print(short_page(context, sys.stdout))
        raise typer.Exit()


_quiet_option = partial(
    typer.Option, "--quiet", "-q", callback=_quiet, is_eager=True, help="Print only errors."
)
_debug_option = partial(
    typer.Option, "--debug", callback=_debug, is_eager=True, help="Show tracebacks."
)
QuietOption = Annotated[bool, _quiet_option()]
DebugOption = Annotated[bool, _debug_option()]


@dataclass(frozen=True, slots=True)
class EverywhereFlags:
    """The options that every command has. Their callbacks act; no function receives them.

    Help pages of commands list only `--quiet`; `--debug` is on the page of `ngt` itself.
    """

    quiet: Annotated[bool, _quiet_option(expose_value=False)] = False
    debug: Annotated[bool, _debug_option(expose_value=False, hidden=True)] = False
    short: Annotated[
        bool,
        typer.Option("-h", callback=_short, is_eager=True, expose_value=False, hidden=True),
    ] = False
