"""`ngt bench`: methods measured side by side on this machine, as one table."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ngtcli.bench.grid import BenchOptions, cells_of, check_some_left
from ngtcli.bench.prompts import Item, choose, items_from
from ngtcli.bench.results import LiveResult
from ngtcli.cli.command import command
from ngtcli.cli.measuring import (
    TEXTS,
    OutputFlags,
    PromptFlags,
    Run,
    measure_and_put_out,
    measured_option,
    prompt_option,
)
from ngtcli.cli.options import OF_OWN_ENGINE, names_in, numbers_of
from ngtcli.cli.output import check_not_read
from ngtcli.cli.reading import read_documents
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.streams import piped_stdin
from ngtcli.config import Settings
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Loaded
from ngtcli.engine.checks import check_session
from ngtcli.errors import INTERRUPTED, UsageError
from ngtcli.system import process
from ngtcli.words import counted

if TYPE_CHECKING:
    from ngtcli.bench.live import Live  # torch comes with it

_METHODS = "none,prompt-lookup,trie,auto"
_FILES = typer.Argument(help=TEXTS)
_NODES = measured_option(help="Maximum number of draft nodes; several, separated by commas.")
_AGAINST = measured_option(help="hf: also measure generate of transformers.")
# --num-draft takes several numbers here, so it is not the setting.
_SETTINGS = tuple(name for name in OF_OWN_ENGINE if name != "num_draft")
_FRESH = "Drafts learn nothing from earlier prompts: forget it before each one."


@dataclass(frozen=True, kw_only=True)
class ItemFlags(PromptFlags, OutputFlags):
    """The flags that select prompts; commands have `files` in addition."""

    tasks: Annotated[str | None, prompt_option(help="Only these tasks, separated by commas.")] = (
        None
    )
    limit: Annotated[
        int | None, prompt_option(min=1, help="Maximum number of prompts per task.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class BenchFlags(ItemFlags):
    """The flags of `ngt bench`."""

    files: Annotated[list[str] | None, _FILES] = None
    methods: Annotated[
        str | None, measured_option(help=f"Methods, separated by commas; default: {_METHODS}.")
    ] = None
    num_draft: Annotated[str | None, _NODES] = None
    fresh: Annotated[bool, measured_option("--fresh", help=_FRESH)] = False
    against: Annotated[str | None, _AGAINST] = None
    rounds: Annotated[int, measured_option(min=1, help="Number of timed rounds.")] = 5


@command("bench", settings=_SETTINGS, report=LiveResult)
def bench(flags: SettingFlags, bench_flags: BenchFlags) -> None:
    """Benchmark drafting methods: speed, tokens per step, and where the time goes."""
    measure_and_put_out(_bench, flags, bench_flags)


def _bench(run: Run, bench_flags: BenchFlags) -> Generator[LiveResult]:
    """Yield the result, and report remarks below it."""
    options = _options(run, bench_flags)
    settings = run.settings
    if bench_flags.against not in (None, "hf"):
        raise UsageError(f"--against {bench_flags.against}: unknown", hint="Use hf.")
    if bench_flags.against:
        check_against(settings)
    check_some_left(options.methods, *cells_of(options.methods, options.num_drafts, settings))
    has_auto = any(method.partition(":")[0] == "auto" for method in options.methods)
    source, skipped = open_source(run, bench_flags, "auto" if has_auto else "none")
    from ngtcli.bench.live import run_live

    result = replace(run_live(source, settings, options), skipped=skipped)
    yield result
    refusals = [f"{r.method} was not measured: {r.reason}" for r in result.refused]
    report_end(run, [*result.notes, *refusals], result.interrupted, result.questions)


def check_against(settings: Settings) -> None:
    """Raise UsageError for settings that `generate` of transformers does not have."""
    penalties = (settings.answer.presence_penalty, settings.answer.frequency_penalty)
    if settings.answer.temperature > 0 or settings.answer.repetition_penalty != 1 or any(penalties):
        raise UsageError("--against hf compares greedy decoding", hint="Leave out sampling flags.")
    if settings.answer.stop:
        raise UsageError("--against hf does not support stop strings", hint="Leave out --stop.")


def report_end(
    run: Run, remarks: Sequence[str], interrupted: bool = False, prompts: int = 0
) -> None:
    """Report remarks below a result.

    Args:
        run: Its notes show the remarks.
        remarks: The remarks.
        interrupted: Whether the measurement was interrupted.
        prompts: How many prompts were measured until then.

    Raises:
        Exit: The measurement was interrupted.
    """
    for remark in remarks:
        run.notes.warn(remark)
    if interrupted:
        run.notes.warn(f"interrupted; measured {counted(prompts, 'prompt')}")
        raise typer.Exit(INTERRUPTED)


def _options(run: Run, bench_flags: BenchFlags) -> BenchOptions:
    """Return what is measured. Raises UsageError."""
    return BenchOptions(
        methods=methods_of(run, bench_flags.methods, _METHODS),
        num_drafts=numbers_of("--num-draft", bench_flags.num_draft)
        or [run.settings.drafting.num_draft],
        against=bool(bench_flags.against),
        rounds=bench_flags.rounds,
        fresh=bench_flags.fresh,
    )


def methods_of(run: Run, methods: str | None, default: str) -> list[str]:
    """Return the methods of --methods or --method, or the default ones. Raises UsageError."""
    method = run.flags.get("method")
    if methods and method:
        raise UsageError("--methods and --method are mutually exclusive", hint="Give one of them.")
    names = names_in("--methods", methods)
    if names:
        return names
    return [method] if method else default.split(",")


def open_source(run: Run, item_flags: ItemFlags, method: str) -> tuple["Live", Sequence[Skipped]]:
    """Return the prompts with a model to answer them, and the files that were skipped.

    Errors are reported before anything large is loaded. Without -p each task has its own preset.

    Args:
        run: The settings and the notes of the command.
        item_flags: The flags that select prompts.
        method: The method that is checked with the settings.
    """
    check_session(run.settings.replace(method=method))
    items, skipped = read_items(run, item_flags)
    run.notes.status(f"Loading {run.settings.model.model} …")
    from ngtcli.bench.live import Live

    process.unwind_on_interrupt()
    preset = run.preset if item_flags.preset else None
    return Live(items, preset), skipped


def read_items(run: Run, item_flags: ItemFlags) -> tuple[list[Item], Sequence[Skipped]]:
    """Return the prompts, and the files that were skipped."""
    outputs = item_flags.outputs
    files = getattr(item_flags, "files", None)
    if item_flags.prompts and (files or item_flags.docs):
        raise UsageError(
            "--prompts cannot be combined with files or --docs", hint="Give one of them."
        )
    texts = questioned = Loaded(())
    if files or item_flags.docs:
        stdin = piped_stdin()
        texts = read_documents(files or [], stdin, run.settings, run.notes, outputs)
        questioned = read_documents(item_flags.docs or [], stdin, run.settings, run.notes, outputs)

    def check(path: Path) -> None:
        check_not_read(outputs, [path])

    items = items_from(
        item_flags.prompts, texts.documents, questioned.documents, run.settings, check
    )
    chosen = choose(items, names_in("--tasks", item_flags.tasks), item_flags.limit)
    return chosen, tuple(dict.fromkeys([*texts.skipped, *questioned.skipped]))
