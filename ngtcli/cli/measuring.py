"""What the commands that measure have in common: their flags, and where results go.

A command is a function of what it runs with and of its flags, which yields a result and goes on
below it.
"""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ngtcli.cli import options, streams
from ngtcli.cli.checks import refuse_idle, refuse_with
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_output_files, check_written, write_page, write_result
from ngtcli.config import Resolved, Settings
from ngtcli.errors import INTERRUPTED, UsageError
from ngtcli.measure.results import Invocation, versions
from ngtcli.prompt.preset import Preset
from ngtcli.render.terminal import wants_color

prompt_option = partial(typer.Option, rich_help_panel="Prompts")
measured_option = partial(typer.Option, rich_help_panel="Measuring")
result_option = partial(typer.Option, rich_help_panel="Results")
_file = partial(options.file_option, rich_help_panel="Results")
_DOCS = prompt_option("--docs", "-d", help="Texts to ask questions of.")
LINES = prompt_option(help="Prompts as JSON lines.")
TEXTS = "Texts to summarize; default: the examples."


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """Where a result goes, unread; of all commands that measure."""

    preset: options.PresetOption = None
    json: options.JsonOption = False
    output: Annotated[Path | None, _file("--output", "-o", help="Write to this file.")] = None
    force: options.ForceOption = False
    verbose: options.VerboseOption = False

    @property
    def outputs(self) -> tuple[Path | None, Path | None]:
        """The file and the page."""
        return self.output, getattr(self, "html", None)

    def check(self) -> str:
        """The flag of the form that is asked for, "" for tables.

        Raises UsageError for two of them, and for files that cannot be written.
        """
        forms = [form for form in ("json", "markdown", "csv") if getattr(self, form, False)]
        if len(forms) > 1:
            raise UsageError(f"--{forms[0]} and --{forms[1]} are both given", "Give one of them.")
        output, html = self.outputs
        check_output_files({"-o": output, "--html": html})
        kept = getattr(self, "write", None) or output or html
        refuse_with("no file to write", {"--force": self.force and not kept}, "Leave it out.")
        check_written(self.outputs, self.force)
        return "".join(forms)


@dataclass(frozen=True, kw_only=True)
class PageFlags(OutputFlags):
    """The same for tables."""

    markdown: Annotated[bool, result_option("--markdown", help="Print Markdown tables.")] = False
    html: Annotated[Path | None, _file(help="Write a page as well.")] = None


@dataclass(frozen=True, kw_only=True)
class PromptFlags:
    """What is answered."""

    docs: Annotated[list[str] | None, _DOCS] = None
    prompts: Annotated[Path | None, LINES] = None


@dataclass(frozen=True, slots=True)
class Run:
    """What a command runs with: its settings, `preset` (the task's own, if none was given)."""

    resolved: Resolved
    preset: Preset
    flags: Mapping[str, Any]
    notes: Notes

    @property
    def settings(self) -> Settings:
        """The settings from all layers."""
        return self.resolved.settings


Work = Callable[[Run, Any], Generator[Any]]


def measures(names: Sequence[str]) -> Callable[[Work], Callable[..., None]]:
    """Make a command of a function: flags for these settings and for its own, forms of its result.

    An interruption before there is a result ends it; a result that is `interrupted` is shown.
    """

    def decorate(work: Work) -> Callable[..., None]:
        hints = get_type_hints(work)

        def command(given: Any, flags: dict[str, Any] | None = None) -> None:
            resolved, preset = options.resolve(flags or {}, given.preset)
            refuse_idle(flags or {}, resolved.settings)
            run = Run(resolved, preset, flags or {}, Notes(given.verbose))
            form, made = given.check(), work(run, given)
            try:
                with run.notes.heartbeat():
                    found = next(made)
            except KeyboardInterrupt:
                run.notes.warn("interrupted; nothing was measured")
                raise typer.Exit(INTERRUPTED) from None
            _put_out(found, run, given, form)
            next(made, None)

        command.__doc__, command.__name__ = work.__doc__, work.__name__
        command.__annotations__["given"] = hints["given"]
        command.printed = get_args(hints["return"])[0]  # type: ignore[attr-defined]
        return options.with_settings(names)(command)

    return decorate


def _put_out(result: Any, run: Run, given: OutputFlags, form: str) -> None:
    from ngtcli.render.results import forms_of  # here: help does without

    run.notes.clear()
    if hasattr(result, "invocation"):
        date = datetime.now().astimezone().isoformat(timespec="seconds")
        invocation = Invocation(command=options.command_line(), date=date, versions=versions())
        result = replace(result, invocation=invocation)
    forms, (output, html) = forms_of(result, given.verbose), given.outputs
    if form:
        text = str(getattr(forms, form)())
    elif output is None and sys.stdout.isatty():
        colour = wants_color(sys.stdout, run.settings.color)
        text = forms.terminal(streams.terminal_width(sys.stdout), colour)
    else:
        text = forms.plain()
    write_result(text, output, force=given.force)
    if html is not None:
        write_page(forms.page(), html, force=given.force)
