"""Measure methods on a recording, without the model: `python -m tests.tools.replay RECORDING`."""

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
_MODEL_SETTINGS = ("draft_model", "heads", "calibrate", "exact")  # drafting that needs the model
_FolderArgument = typer.Argument(help="A folder that python -m tests.tools.record has written.")
_MethodsOption = measured_option(help=f"Methods, separated by commas; default: {_METHODS}.")
_TasksOption = prompt_option(help="Only these tasks, separated by commas.")
_LimitOption = prompt_option(min=1, help="Maximum number of prompts per task.")
_IdsOption = prompt_option(help="Of a recording all, odd or even ids.")


@dataclass(frozen=True, kw_only=True)
class ReplayFlags(NodeFlags, PageFlags):
    """The flags of the command line, not checked yet."""

    folder: Annotated[Path, _FolderArgument]
    methods: Annotated[str | None, _MethodsOption] = None
    tasks: Annotated[str | None, _TasksOption] = None
    limit: Annotated[int | None, _LimitOption] = None
    ids: Annotated[str, _IdsOption] = "all"


@command("replay", settings=settings_in(("Drafting",), less=(*_MODEL_SETTINGS, "num_draft")))
def replay(setting_flags: SettingFlags, flags: ReplayFlags) -> None:
    """Measure methods on a recording, without the model."""
    run = Run.begin(flags, setting_flags)
    flags.check()
    check_not_read(flags.outputs, recorded_files(flags.folder))
    options = ReplayOptions(
        methods=methods_of(run, flags.methods, _METHODS),
        num_drafts=flags.numbers(run),
        fresh=flags.fresh,
        tasks=names_in("--tasks", flags.tasks),
        limit=flags.limit,
        ids=flags.ids,
    )
    notes = run.notes
    result = run_replay(flags.folder, options, run.settings, notes.status, notes.warn)
    notes.clear()
    put_out(forms_of(with_invocation(result, _MODULE)), flags)
    report_end(run, ())


if __name__ == "__main__":
    main(replay, _MODULE)
