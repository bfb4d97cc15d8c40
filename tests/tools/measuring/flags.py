"""The command lines of the measuring tools, with the settings, errors and outputs of ngt."""

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ngtcli.cli import options
from ngtcli.cli.command import Command
from ngtcli.cli.measuring import OutputFlags, Run, invocation, measured_option, result_option
from ngtcli.cli.notes import report_error
from ngtcli.cli.options import OF_OWN_ENGINE, numbers_of
from ngtcli.cli.output import check_output_files, check_written, write_page, write_result
from ngtcli.cli.streams import finish_stdout, own_streams
from ngtcli.config import SETTINGS
from ngtcli.errors import INTERRUPTED, ClosedPipeError, NgtError, UsageError
from tests.tools.measuring.tables import ToolForms

OF_MODEL = ("Reading", "Passages", "Answer", "Model")
SWEEP = (4, 8, 16, 32, 64, 128)  # Draft nodes per step.
_NUM_DRAFT = measured_option(
    help="Maximum number of draft nodes per step; several, separated by commas."
)
_SWEEP_NUM_DRAFT = measured_option("--sweep-num-draft", help="Try 4 to 128 nodes.")
_FRESH = "Drafts learn nothing from earlier prompts: forget it before each one."
_html = partial(options.file_option, rich_help_panel="Results")


@dataclass(frozen=True, kw_only=True)
class PageFlags(OutputFlags):
    """The flags for output, as typed."""

    markdown: Annotated[bool, result_option("--markdown", help="Print Markdown tables.")] = False
    html: Annotated[Path | None, _html(help="Write a page as well.")] = None

    @property
    def outputs(self) -> tuple[Path | None, ...]:
        """The file of -o and that of --html."""
        return self.output, self.html

    def check(self) -> str:
        """Return the name of the requested format, "" for tables. Raises UsageError."""
        if self.json and self.markdown:
            raise UsageError(
                "--json and --markdown are mutually exclusive", hint="Give one of them."
            )
        check_output_files({"-o": self.output, "--html": self.html})
        check_written(self.outputs, self.force)
        if self.json:
            return "json"
        return "markdown" if self.markdown else ""


@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """The flags for the number of draft nodes and for learning, as typed."""

    num_draft: Annotated[str | None, _NUM_DRAFT] = None
    sweep_num_draft: Annotated[bool, _SWEEP_NUM_DRAFT] = False
    fresh: Annotated[bool, measured_option("--fresh", help=_FRESH)] = False

    def numbers(self, run: Run) -> list[int]:
        """Return the numbers of draft nodes to try. Raises UsageError."""
        if self.num_draft and self.sweep_num_draft:
            raise UsageError(
                "--num-draft and --sweep-num-draft are mutually exclusive",
                hint="Give one of them.",
            )
        if self.sweep_num_draft:
            return list(SWEEP)
        return numbers_of("--num-draft", self.num_draft) or [run.settings.drafting.num_draft]


def settings_in(
    panels: tuple[str, ...], more: tuple[str, ...] = (), less: tuple[str, ...] = ()
) -> list[str]:
    """Return the names of the settings that a tool takes as flags.

    Args:
        panels: The panels of the help whose settings it takes.
        more: Further settings, beside those of every tool.
        less: Settings to leave out.
    """
    more = (*more, "color", "max_mb", "cache_mb")
    names = [name for name in OF_OWN_ENGINE if SETTINGS[name].panel in panels or name in more]
    return [name for name in names if name not in less]


def put_out(forms: ToolForms, flags: OutputFlags) -> None:
    """Print a result in the requested format, or write it to the requested files."""
    form = flags.check()
    text = str(getattr(forms, form)()) if form else forms.plain()
    write_result(text, flags.output, force=flags.force)
    html = getattr(flags, "html", None)
    if html is not None:
        write_page(forms.page(), html, force=flags.force)


def with_invocation(result: Any, module: str) -> Any:
    """Return the result with the command line of the tool `module`, the time and the versions."""
    ngt_invocation = invocation()
    command = f"python -m {module}{ngt_invocation.command.removeprefix('ngt')}"
    return replace(result, invocation=replace(ngt_invocation, command=command))


def main(command: Command, module: str) -> None:
    """Run a tool with the arguments of `sys.argv`, then exit. Errors look like those of ngt."""
    own_streams()
    code = 0
    try:
        command.main(prog_name=f"python -m {module}")
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except ClosedPipeError:
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except NgtError as error:
        report_error(error)
        code = error.exit_code
    finally:
        finish_stdout()
    sys.exit(code)
