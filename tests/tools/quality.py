"""What --dtype or --quantize costs against float32: `python -m tests.tools.quality`."""

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
_SCORED = typer.Argument(help="Texts to score; default: the examples.")


@dataclass(frozen=True, kw_only=True)
class QualityFlags(PageFlags):
    """What is on the command line, unread."""

    docs: ClassVar[None] = None  # no questions are asked of texts

    files: Annotated[list[str] | None, _SCORED] = None
    prompts: Annotated[Path | None, LINES] = None
    tasks: Annotated[str | None, prompt_option(help="Only these tasks, separated by commas.")] = (
        None
    )
    limit: Annotated[
        int | None, prompt_option(min=1, help="Maximum number of prompts per task.")
    ] = None


@command("quality", settings=settings_in(OF_MODEL))
def quality(flags: SettingFlags, given: QualityFlags) -> None:
    """Measure what --dtype or --quantize costs against float32."""
    run = Run.begin(given, flags)
    given.check()
    settings, notes = run.settings, run.notes
    if settings.model.quantize == "none" and settings.model.dtype in ("auto", "float32"):
        what = "this compares with float32, and nothing else is asked for"
        raise UsageError(what, hint="Give --dtype bfloat16, --dtype float16 or --quantize int8.")
    if given.files and (given.tasks or given.limit):
        raise UsageError("--tasks and --limit choose prompts", hint="Leave them out, or the files.")
    settings = settings.replace(method="none")
    check_session(settings)
    prompts: Any = given  # all that read_items reads of flags
    chosen, skipped = read_items(run, prompts)
    items = [item for item in chosen if item.answers]
    texts: Sequence[Document] = () if given.prompts else example_texts().documents
    if given.files:
        texts = [item.documents[0] for item in chosen]
    if given.prompts and not items:
        what = f"{given.prompts}: no prompt has a reference answer"
        hint = "Give some, as in manual/measuring.md, or texts in place of prompts."
        raise InputError(what, hint=hint)
    notes.status(f"Loading {settings.model.model} …")
    from tests.tools.measuring.precision import compare  # it loads torch

    process.unwind_on_interrupt()
    preset = run.preset if given.preset else None
    with reporting_to(EachWarningOnce(notes)):
        made = compare(settings, texts, items, preset)
    notes.clear()
    put_out(forms_of(with_invocation(replace(made, skipped=skipped), _MODULE)), given)
    report_end(run, made.notes)


if __name__ == "__main__":
    main(quality, _MODULE)
