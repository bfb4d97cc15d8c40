"""Record a model's answers for replays: `python -m tests.tools.record FOLDER [FILES]`.

Prompts are decoded without drafts; `python -m tests.tools.replay` reads the recording. With
`--top 8` it also has the model's 8 best tokens after each token of prompt and answer. That takes
one more forward pass over both for each prompt.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ngtcli.bench.grid import BASELINE
from ngtcli.cli.bench import ItemFlags, open_source, report_end
from ngtcli.cli.command import command
from ngtcli.cli.measuring import Run, measured_option
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.config import Settings
from ngtcli.engine.session import AnswerOptions
from ngtcli.words import counted
from tests.support.recording_reporter import Notify
from tests.tools.measuring.flags import OF_MODEL, main, put_out, settings_in, with_invocation
from tests.tools.measuring.results import RecordResult
from tests.tools.measuring.tables import forms_of
from tests.tools.measuring.traces import NO_TOP, TraceWriter

if TYPE_CHECKING:
    from ngtcli.bench.live import Live

_MODULE = "tests.tools.record"
_FolderArgument = typer.Argument(help="A new folder for the recording.", metavar="FOLDER")
_FilesArgument = typer.Argument(help="Texts to summarize.")
_TopOption = measured_option(
    min=0,
    max=256,
    help="Record so many of the best tokens after each token of prompt and answer.",
)


@dataclass(frozen=True, kw_only=True)
class RecordFlags(ItemFlags):
    """The flags of the command line, not checked yet."""

    folder: Annotated[Path, _FolderArgument]
    files: Annotated[list[str] | None, _FilesArgument] = None
    top: Annotated[int, _TopOption] = 0


@command("record", settings=settings_in((*OF_MODEL, "Sampling"), ("exact",)))
def record(setting_flags: SettingFlags, flags: RecordFlags) -> None:
    """Decode without drafts, and write a recording."""
    run = Run.begin(flags, setting_flags)
    flags.check()
    source, skipped = open_source(run, flags, "none")
    result = write_recording(source, run.settings, flags.folder, run.notes.status, flags.top)
    run.notes.clear()
    put_out(forms_of(with_invocation(replace(result, skipped=skipped), _MODULE)), flags)
    report_end(run, (), result.interrupted, result.questions)


def write_recording(
    source: "Live", settings: Settings, folder: Path, progress: Notify, top: int = 0
) -> RecordResult:
    """Decode every prompt without drafts and write a recording.

    An interruption keeps the prompts that are done.

    Args:
        source: The prompts.
        settings: The settings of the model and its answers.
        folder: The recording's folder.
        progress: Receives status lines.
        top: The number of best tokens to record after each token.
    """
    from tests.tools.measuring.top_tokens import top_tokens  # lazy: it loads torch

    session = source.session(settings.replace(method=BASELINE))
    model = session.model
    prompts = source.built_prompts(session)
    writer = TraceWriter(
        folder, model.tokenizer.fingerprint, settings.model.model, model.vocabulary
    )
    lengths: list[int] = []
    interrupted = False
    with writer:
        try:
            for item, prompt in zip(source.items, prompts, strict=True):
                progress(f"Recording: {len(lengths) + 1} of {counted(len(prompts), 'prompt')}")
                run = session.generate(prompt, AnswerOptions(to_the_end=True))
                room = min(run.limits.max_output, model.context - len(prompt.ids))
                best_tokens = NO_TOP
                if top:
                    best_tokens = top_tokens(model, (*prompt.ids, *run.token_ids), top)
                writer.add(
                    item.id,
                    item.task,
                    prompt.ids,
                    run.token_ids,
                    prompt.references,
                    room,
                    best_tokens,
                )
                lengths.append(len(run.token_ids))
        except KeyboardInterrupt:
            interrupted = True
    return RecordResult(
        path=str(folder),
        model=settings.model.model,
        questions=len(lengths),
        new_tokens=sum(lengths),
        interrupted=interrupted,
    )


if __name__ == "__main__":
    main(record, _MODULE)
