"""What `ngt bench` is asked for, checked before anything heavy is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ngtcli.cli.bench_options import LIVE_METHODS, REPLAYED_METHODS, SHAPE_METHODS, BenchFlags
from ngtcli.cli.checks import LIVE, RECORD, REPLAY, SHAPE, check_session
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import resolve
from ngtcli.cli.output import check_not_read
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.find import Skipped
from ngtcli.errors import UsageError
from ngtcli.measure.noise import add_noise
from ngtcli.measure.prompts import Item, builtin_items, choose, file_items, read_jsonl
from ngtcli.prompt.preset import Preset

SWEEP = (4, 8, 16, 32, 64, 128)
_METHODS = {
    LIVE: LIVE_METHODS, RECORD: LIVE_METHODS, REPLAY: REPLAYED_METHODS, SHAPE: SHAPE_METHODS,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What is measured, of what, and how. Without a preset each task has its own."""

    given: BenchFlags
    methods: list[str]
    tasks: list[str]
    settings: Settings
    preset: Preset | None


def mode_of(given: BenchFlags) -> str:
    """The way of measuring that the flags ask for."""
    if given.replay:
        return SHAPE if given.shape else REPLAY
    return RECORD if given.record else LIVE


def read_request(given: BenchFlags, flags: dict[str, Any]) -> BenchRequest:
    """The request as the command line and the settings have it. Raises UsageError."""
    resolved, chosen = resolve(flags, given.preset, "summarize")
    named = names_in(given.methods) or [m for m in (flags.get("method"),) if m]
    return BenchRequest(
        given=given,
        methods=named or names_in(_METHODS[mode_of(given)]),
        tasks=names_in(given.tasks),
        settings=resolved.settings,
        preset=chosen if given.preset else None,
    )


def names_in(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def num_drafts_of(request: BenchRequest) -> list[int]:
    """The numbers of draft nodes to measure with. Raises UsageError."""
    text = request.given.num_draft
    if not text:
        return list(SWEEP) if request.given.sweep_num_draft else [request.settings.num_draft]
    try:
        numbers = [int(part) for part in names_in(text)]
    except ValueError:
        numbers = []
    most = int(SETTINGS["num_draft"].within[1])
    if not numbers or not all(1 <= number <= most for number in numbers):
        raise UsageError(
            f"--num-draft {text}: not numbers from 1 to {most}",
            "Give them as in --num-draft 16,32,64.",
        )
    return list(dict.fromkeys(numbers))


def check_race(request: BenchRequest) -> None:
    """What is wrong with the request, before anything heavy is loaded."""
    from ngtcli.measure.refusals import check_against, check_some_left, unreadable

    given = request.given
    if given.prompts and (given.files or given.docs):
        raise UsageError("--prompts beside files or --docs", "Give one of them.")
    if against(given):
        check_against(request.settings)
    check_some_left(request.methods, unreadable(request.methods, request.settings))
    drafts = any(method.partition(":")[0] == "auto" for method in request.methods)
    check_session(replace(request.settings, method="auto" if drafts else "none"))


def against(given: BenchFlags) -> bool:
    """Whether `transformers` takes part. Raises UsageError for an unknown name."""
    if given.against not in ("", "hf"):
        raise UsageError(f"--against {given.against}: unknown", "Known: hf.")
    return bool(given.against)


def items_of(request: BenchRequest, notes: Notes) -> tuple[list[Item], Sequence[Skipped]]:
    """What is to be answered, and the files that were left out of folders."""
    given, settings = request.given, request.settings
    skipped: Sequence[Skipped] = ()
    outputs = given.output, given.html
    if given.prompts:
        items = read_jsonl(given.prompts, settings, lambda path: check_not_read(outputs, [path]))
    elif given.files or given.docs:
        stdin = piped_stdin()
        texts = read_documents(given.files or [], stdin, settings, notes, outputs)
        asked = read_documents(given.docs or [], stdin, settings, notes, outputs)
        items = file_items(texts.documents, asked.documents)
        skipped = (*texts.skipped, *asked.skipped)
    else:
        items = builtin_items()
    chosen = choose(items, request.tasks, given.limit)
    if given.noise:
        chosen = add_noise(chosen, given.noise, settings.seed, sources=items)
    return chosen, skipped
