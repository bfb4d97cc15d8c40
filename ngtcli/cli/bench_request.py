"""What `ngt bench` is asked for, checked before anything heavy is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ngtcli.cli.bench_options import LIVE_METHODS
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import read_documents
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import Settings
from ngtcli.documents.find import Skipped
from ngtcli.errors import UsageError
from ngtcli.evaluate.noise import add_noise
from ngtcli.evaluate.prompts import Item, builtin_items, choose, file_items, read_jsonl
from ngtcli.prompt.preset import Preset

SWEEP = (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What is measured, of what, and how; `methods` and `num_drafts` as they were written."""

    files: list[str]
    docs: list[str]
    prompts: Path | None
    tasks: list[str]
    limit: int | None
    noise: int
    replay: Path | None
    shape: str
    template: str
    turns: str
    ids: str
    methods: list[str]
    against: str
    rounds: int
    num_drafts: str
    sweep: bool
    fresh: bool
    quality: bool
    record: Path | None
    settings: Settings
    preset: Preset | None


def names_in(text: str) -> list[str]:
    """The names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def num_drafts_of(request: BenchRequest) -> list[int]:
    """The numbers of draft nodes to measure with. Raises UsageError."""
    if not request.num_drafts:
        return list(SWEEP) if request.sweep else [request.settings.num_draft]
    try:
        numbers = [int(part) for part in names_in(request.num_drafts)]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= 1024 for number in numbers):
        raise UsageError(
            f"--num-draft {request.num_drafts}: not numbers from 1 to 1024",
            "Give them as in --num-draft 16,32,64.",
        )
    return list(dict.fromkeys(numbers))


def check_race(request: BenchRequest) -> None:
    """What is wrong with the request, before anything heavy is loaded."""
    from ngtcli.evaluate.refusals import check_against, check_some_left, unreadable

    if request.prompts and (request.files or request.docs):
        raise UsageError("--prompts beside files or --docs", "Give one of them.")
    check_against_known(request)
    if request.against:
        check_against(request.settings)
    methods = request.methods or names_in(LIVE_METHODS)
    check_some_left(methods, unreadable(methods, request.settings))


def check_against_known(request: BenchRequest) -> None:
    """Raise UsageError where --against names what is not known."""
    if request.against not in ("", "hf"):
        raise UsageError(f"--against {request.against}: unknown", "Known: hf.")


def items_of(request: BenchRequest, notes: Notes) -> tuple[list[Item], Sequence[Skipped]]:
    """What is to be answered, and the files that were left out of folders."""
    skipped: Sequence[Skipped] = ()
    if request.prompts:
        items = read_jsonl(request.prompts, request.settings)
    elif request.files or request.docs:
        stdin = piped_stdin()
        texts = read_documents(request.files, stdin, request.settings, notes)
        asked = read_documents(request.docs, stdin, request.settings, notes)
        items = file_items(texts.documents, asked.documents)
        skipped = (*texts.skipped, *asked.skipped)
    else:
        items = builtin_items()
    chosen = choose(items, request.tasks, request.limit)
    if request.noise:
        chosen = add_noise(chosen, request.noise, request.settings.seed, sources=items)
    return chosen, skipped
