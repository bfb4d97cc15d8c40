"""A model's answers as a recording: `python -m tests.tools.record NEW [FILES]`.

Prompts are decoded without drafts. The recording is what `python -m tests.tools.replay` reads. With
`--top 8` it has the model's 8 best tokens after each token of prompt and answer, too: a forward
pass over both, once more for each prompt.
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
_NEW = typer.Argument(help="A new folder for the recording.", metavar="FOLDER")
_TOP = "Record so many of the best tokens after each token of prompt and answer."


@dataclass(frozen=True, kw_only=True)
class RecordFlags(ItemFlags):
    """What is on the command line, unread."""

    folder: Annotated[Path, _NEW]
    files: Annotated[list[str] | None, typer.Argument(help="Texts to summarize.")] = None
    top: Annotated[int, measured_option(min=0, max=256, help=_TOP)] = 0


@command("record", settings=settings_in((*OF_MODEL, "Sampling"), ("exact",)))
def record(flags: SettingFlags, given: RecordFlags) -> None:
    """Decode without drafts, and write a recording."""
    run = Run.begin(given, flags)
    given.check()
    source, skipped = open_source(run, given, "none")
    made = write_recording(source, run.settings, given.folder, run.notes.status, given.top)
    run.notes.clear()
    put_out(forms_of(with_invocation(replace(made, skipped=skipped), _MODULE)), given)
    report_end(run, (), made.interrupted, made.questions)


def write_recording(
    source: "Live", settings: Settings, folder: Path, progress: Notify, top: int = 0
) -> RecordResult:
    """Decode every prompt plainly and write a recording.

    With `top` it has so many of the best tokens after each token. An interruption keeps the prompts
    that are done.
    """
    from tests.tools.measuring.top_tokens import top_tokens  # here: it loads torch

    session, interrupted = source.session(settings.replace(method=BASELINE)), False
    prompts, model, lengths = source.built_prompts(session), session.model, list[int]()
    about = model.tokenizer.fingerprint, settings.model.model, model.vocabulary
    with TraceWriter(folder, *about) as trace:
        try:
            for item, prompt in zip(source.items, prompts, strict=True):
                progress(f"Recording: {len(lengths) + 1} of {counted(len(prompts), 'prompt')}")
                run = session.generate(prompt, AnswerOptions(to_the_end=True))
                room = min(run.limits.max_output, model.context - len(prompt.ids))
                best = NO_TOP
                if top:
                    best = top_tokens(model, (*prompt.ids, *run.token_ids), top)
                own = prompt.ids, run.token_ids, prompt.references, room
                trace.add(item.id, item.task, *own, best)
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
