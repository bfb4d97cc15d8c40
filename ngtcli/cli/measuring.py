"""What the commands that measure have in common: their flags, and where results go."""

import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ngtcli.bench.results import Invocation, versions
from ngtcli.cli import options, streams
from ngtcli.cli.checks import Situation, check_weights, warn_of_no_effect
from ngtcli.cli.notes import EachWarningOnce, Notes
from ngtcli.cli.output import check_output_files, check_written, write_result
from ngtcli.config import Resolved, Settings
from ngtcli.errors import INTERRUPTED, UsageError
from ngtcli.prompts.preset import Preset
from ngtcli.render.terminal import wants_color
from ngtcli.system.reporting import reporting_to

prompt_option = partial(typer.Option, rich_help_panel="Prompts")
measured_option = partial(typer.Option, rich_help_panel="Measuring")
result_option = partial(typer.Option, rich_help_panel="Results")
_file = partial(options.file_option, rich_help_panel="Results")
_DOCS = prompt_option("--docs", "-d", help="Documents to ask questions about.")
LINES = prompt_option(help="Prompts as JSON lines.")
TEXTS = "Documents to summarize; default: examples that come with ngt."


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """The flags of all commands that measure: where a result goes."""

    preset: options.PresetOption = None
    json: options.JsonOption = False
    output: Annotated[Path | None, _file("--output", "-o", help="Write to this file.")] = None
    force: options.ForceOption = False
    verbose: options.VerboseOption = False

    @property
    def outputs(self) -> tuple[Path | None, ...]:
        """The files that are written; None for those that are not asked for."""
        return (self.output,)

    def check(self) -> str:
        """Return the form of the result, json or csv; "" for tables.

        Raises UsageError for two forms, and for files that cannot be written.
        """
        forms = [form for form in ("json", "csv") if getattr(self, form, False)]
        if len(forms) > 1:
            raise UsageError(
                f"--{forms[0]} and --{forms[1]} are mutually exclusive", hint="Give one of them."
            )
        check_output_files({"-o": self.output})
        written = getattr(self, "write", None) or self.output
        if not written:
            warn_of_no_effect([Situation.NO_FILE], {"--force": self.force})
        check_written(self.outputs, self.force)
        return "".join(forms)


@dataclass(frozen=True, kw_only=True)
class PromptFlags:
    """The flags that say what is answered."""

    docs: Annotated[list[str] | None, _DOCS] = None
    prompts: Annotated[Path | None, LINES] = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a command measures with.

    Attributes:
        resolved: The settings from all layers, with their origins.
        preset: The preset that was named; else that of summaries.
        flags: The settings that were given on the command line.
        notes: What reports on stderr.
    """

    resolved: Resolved
    preset: Preset
    flags: Mapping[str, Any]
    notes: Notes

    @classmethod
    def begin(cls, output: OutputFlags, flags: Mapping[str, Any]) -> "Run":
        """Resolve the settings, and warn of flags without effect. Raises UsageError."""
        resolved, preset = options.resolve(dict(flags), output.preset)
        notes = Notes(output.verbose)
        check_weights(flags, resolved.settings)
        return cls(resolved, preset, flags, notes)

    @property
    def settings(self) -> Settings:
        """The settings from all layers."""
        return self.resolved.settings


Work = Callable[[Run, Any], Generator[Any]]


def measure_and_put_out(work: Work, flags: Mapping[str, Any], output: OutputFlags) -> None:
    """Run what a command measures, and put its result out.

    An interruption before there is a result ends the command; a result that is `interrupted` is
    shown.

    Args:
        work: Yields the result, and continues below it.
        flags: The settings that were given.
        output: The other flags of the command.
    """
    run = Run.begin(output, flags)
    form = output.check()
    steps = work(run, output)
    try:
        with reporting_to(EachWarningOnce(run.notes)), run.notes.heartbeat():
            result = next(steps)
    except KeyboardInterrupt:
        run.notes.warn("interrupted; nothing was measured")
        raise typer.Exit(INTERRUPTED) from None
    _put_out(result, run, output, form)
    next(steps, None)


def invocation() -> Invocation:
    """Return the command line, the time and the versions of this run."""
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    return Invocation(command=options.command_line(), date=date, versions=versions())


def _put_out(result: Any, run: Run, output: OutputFlags, form: str) -> None:
    """Print a result, or write it, as JSON or CSV where `form` says so."""
    from ngtcli.render.results import forms_of  # here: help does without

    run.notes.clear()
    if hasattr(result, "invocation"):
        result = replace(result, invocation=invocation())
    forms = forms_of(result)
    if form:
        text = str(getattr(forms, form)())
    elif output.output is None and sys.stdout.isatty():
        is_colored = wants_color(sys.stdout, run.settings.output.color)
        text = forms.terminal(streams.terminal_width(sys.stdout), is_colored)
    else:
        text = forms.plain()
    write_result(text, output.output, force=output.force)
