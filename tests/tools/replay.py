"""Methods measured on a recording, without the model: `python -m tests.tools.replay RECORDING`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ngtcli.cli.bench import methods_of, report_end
from ngtcli.cli.command import command
from ngtcli.cli.measuring import Run, measured_option, prompt_option
from ngtcli.cli.options import names_in
from ngtcli.cli.output import check_not_read
from ngtcli.cli.setting_flags import SettingFlags
from tests.tools.measuring.flags import (
    NodeFlags,
    PageFlags,
    main,
    put_out,
    settings_in,
    with_invocation,
)
from tests.tools.measuring.replaying import ReplayOptions, run_replay
from tests.tools.measuring.tables import forms_of
from tests.tools.measuring.traces import recorded_files

_MODULE = "tests.tools.replay"
_METHODS = "prompt-lookup,akunu,trtllm,trie,auto"
_LIVE_ALONE = ("draft_model", "heads", "calibrate", "exact")  # of drafting
_RECORDING = typer.Argument(help="A folder that python -m tests.tools.record has written.")


@dataclass(frozen=True, kw_only=True)
class ReplayFlags(NodeFlags, PageFlags):
    """What is on the command line, unread."""

    folder: Annotated[Path, _RECORDING]
    methods: Annotated[
        str | None, measured_option(help=f"Methods, separated by commas; default: {_METHODS}.")
    ] = None
    tasks: Annotated[str | None, prompt_option(help="Only these tasks, separated by commas.")] = (
        None
    )
    limit: Annotated[
        int | None, prompt_option(min=1, help="Maximum number of prompts per task.")
    ] = None
    ids: Annotated[str, prompt_option(help="Of a recording all, odd or even ids.")] = "all"


@command("replay", settings=settings_in(("Drafting",), less=(*_LIVE_ALONE, "num_draft")))
def replay(flags: SettingFlags, given: ReplayFlags) -> None:
    """Measure methods on a recording, without the model."""
    run = Run.begin(given, flags)
    given.check()
    check_not_read(given.outputs, recorded_files(given.folder))
    options = ReplayOptions(
        methods=methods_of(run, given.methods, _METHODS),
        num_drafts=given.numbers(run),
        fresh=given.fresh,
        tasks=names_in("--tasks", given.tasks),
        limit=given.limit,
        ids=given.ids,
    )
    notes = run.notes
    result = run_replay(given.folder, options, run.settings, notes.status, notes.warn)
    notes.clear()
    put_out(forms_of(with_invocation(result, _MODULE)), given)
    report_end(run, ())


if __name__ == "__main__":
    main(replay, _MODULE)
