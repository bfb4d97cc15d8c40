"""Measure the cost in quality of --dtype or --quantize: `python -m tests.tools.quality`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from ngtcli.bench.prompts import example_texts
from ngtcli.cli.bench import read_items, report_end
from ngtcli.cli.command import command
from ngtcli.cli.measuring import LINES, Run, prompt_option
from ngtcli.cli.notes import EachWarningOnce
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.documents.load import Document
from ngtcli.engine.checks import check_session
from ngtcli.errors import InputError, UsageError
from ngtcli.system import process
from ngtcli.system.reporting import reporting_to
from tests.tools.measuring.flags import (
    OF_MODEL,
    PageFlags,
    main,
    put_out,
    settings_in,
    with_invocation,
)
from tests.tools.measuring.tables import forms_of

_MODULE = "tests.tools.quality"
_FilesArgument = typer.Argument(help="Texts to score; default: the examples.")
_TasksOption = prompt_option(help="Only these tasks, separated by commas.")
_LimitOption = prompt_option(min=1, help="Maximum number of prompts per task.")


@dataclass(frozen=True, kw_only=True)
class QualityFlags(PageFlags):
    """The flags of the command line, not checked yet."""

    docs: ClassVar[None] = None  # no questions are asked about texts

    files: Annotated[list[str] | None, _FilesArgument] = None
    prompts: Annotated[Path | None, LINES] = None
    tasks: Annotated[str | None, _TasksOption] = None
    limit: Annotated[int | None, _LimitOption] = None


@command("quality", settings=settings_in(OF_MODEL))
def quality(setting_flags: SettingFlags, flags: QualityFlags) -> None:
    """Measure what --dtype or --quantize costs against float32."""
    run = Run.begin(flags, setting_flags)
    flags.check()
    is_float32 = run.settings.model.dtype in ("auto", "float32")
    if run.settings.model.quantize == "none" and is_float32:
        raise UsageError(
            "this compares with float32, and nothing else is asked for",
            hint="Give --dtype bfloat16, --dtype float16 or --quantize int8.",
        )
    if flags.files and (flags.tasks or flags.limit):
        raise UsageError("--tasks and --limit choose prompts", hint="Leave them out, or the files.")
    settings = run.settings.replace(method="none")
    check_session(settings)

    item_flags: Any = flags  # it has the fields that read_items reads
    read, skipped = read_items(run, item_flags)
    items = [item for item in read if item.answers]
    if flags.prompts and not items:
        raise InputError(
            f"{flags.prompts}: no prompt has a reference answer",
            hint="Give some, as in manual/measuring.md, or texts in place of prompts.",
        )
    texts: Sequence[Document]
    if flags.prompts:
        texts = ()
    elif flags.files:
        texts = [item.documents[0] for item in read]
    else:
        texts = example_texts().documents

    run.notes.status(f"Loading {settings.model.model} …")
    from tests.tools.measuring.precision import compare  # lazy: it loads torch

    process.unwind_on_interrupt()
    preset = run.preset if flags.preset else None
    with reporting_to(EachWarningOnce(run.notes)):
        result = compare(settings, texts, items, preset)
    run.notes.clear()
    result = with_invocation(replace(result, skipped=skipped), _MODULE)
    put_out(forms_of(result), flags)
    report_end(run, result.notes)


if __name__ == "__main__":
    main(quality, _MODULE)
