"""`ngt check`: check on this machine and model that drafting changes no token."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ngtcli.bench.prompts import Item, example_texts, file_items, passages, spread
from ngtcli.bench.results import CheckReport, Comparison
from ngtcli.cli.checks import Situation, check_settings, given_settings, warn_of_no_effect
from ngtcli.cli.command import command
from ngtcli.cli.measuring import TEXTS
from ngtcli.cli.notes import Notes
from ngtcli.cli.options import OF_OWN_ENGINE, PresetOption, numbers_of, resolve
from ngtcli.cli.reading import distinct, read_documents
from ngtcli.cli.setting_flags import SettingFlags
from ngtcli.cli.show import Shown, comment
from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.engine.checks import check_session
from ngtcli.engine.request import check_form
from ngtcli.errors import DifferenceError, UsageError
from ngtcli.render.terminal import one_line
from ngtcli.system.reporting import reporting_to
from ngtcli.words import counted

DRAFTS = "8,32,64"
# Of the 52 prompts over the example texts. All of them took 38 s of one core with 24 tokens
# (measured on a Xeon without AVX-512), and 250 s of a slower CPU.
PROMPTS = 12
_COLUMNS = ["num_draft", "prompts", "tokens", "acceptance length", "identical"]
_DOCS = typer.Option("--docs", "-d", help="Documents to ask questions about.")
_DRAFTS = typer.Option("--drafts", help=f"Numbers of draft nodes to try; default: {DRAFTS}.")
_LIMIT = typer.Option(
    "--limit",
    min=0,
    help=f"Check only N prompts; 0: all. Default: all if files are named, else {PROMPTS}.",
)


def _view(report: CheckReport) -> Iterator[Shown]:
    """Yield a row for each number of draft nodes, then the differences."""
    rows = []
    for num_draft in report.num_draft:
        comparisons = [c for c in report.results if c.num_draft == num_draft]
        rows.append(_row(num_draft, comparisons))
    yield _COLUMNS, rows
    if report.prompts < report.prompts_available:
        yield comment(
            f"{report.prompts} of {report.prompts_available} prompts were checked;"
            " --limit 0 checks all."
        )
    for result in report.results:
        if not result.identical:
            yield comment(
                f"{one_line(result.name)} (num_draft {result.num_draft}): differs from token"
                f" {result.divergence}, where the two best logits are {result.margin:.4g} apart"
            )


def _row(num_draft: int, comparisons: Sequence[Comparison]) -> list[object]:
    count = len(comparisons)
    length = sum(c.mean_acceptance_length for c in comparisons) / count
    tokens = sum(c.new_tokens for c in comparisons)
    identical = sum(c.identical for c in comparisons)
    return [num_draft, count, tokens, f"{length:.2f}", f"{identical}/{count}"]


@command("check", settings=OF_OWN_ENGINE, view=_view)
def check(
    flags: SettingFlags,
    files: Annotated[list[str] | None, typer.Argument(help=TEXTS)] = None,
    docs: Annotated[list[str] | None, _DOCS] = None,
    preset: PresetOption = None,
    drafts: Annotated[str | None, _DRAFTS] = None,
    limit: Annotated[int | None, _LIMIT] = None,
) -> Generator[CheckReport, bool]:
    """Decode with and without drafts and compare every token; exit with 6 if one differs."""
    resolved, loaded_preset = resolve(flags, preset)
    settings = resolved.settings
    notes = Notes()
    num_drafts = _num_drafts(drafts, flags, settings)
    check_settings(flags, settings)
    warn_of_no_effect([Situation.NO_COLOR], given_settings(flags))
    check_form("ask", settings)
    check_session(settings)
    if files or docs:
        texts = read_documents(files or [], None, settings, notes)
        questioned = read_documents(docs or [], None, settings, notes)
    else:
        texts = questioned = example_texts()
        limit = PROMPTS if limit is None else limit
    available = _items(texts.documents, questioned.documents)
    items = spread(available, limit or len(available))
    from ngtcli.bench.check import run_check  # these load torch
    from ngtcli.bench.live import Live

    with reporting_to(notes), notes.heartbeat():
        report = run_check(Live(items, loaded_preset), settings, num_drafts)
    notes.clear()
    skipped = distinct([*texts.skipped, *questioned.skipped])
    yield replace(report, prompts_available=len(available), skipped=skipped)
    _check_identical(report)


def _num_drafts(drafts: str | None, flags: Mapping[str, Any], settings: Settings) -> list[int]:
    """Return the numbers of draft nodes to try.

    Args:
        drafts: The value of --drafts.
        flags: The settings that were given as flags.
        settings: All settings.

    Raises:
        UsageError: Both flags were given, or nothing would be drafted.
    """
    if drafts is not None and "num_draft" in flags:
        raise UsageError(
            "--drafts and --num-draft are mutually exclusive", hint="Give one of them."
        )
    if "num_draft" in flags:
        numbers = [settings.drafting.num_draft]
    else:
        numbers = numbers_of("--drafts", DRAFTS if drafts is None else drafts)
    cause = ""
    if settings.drafting.method == "none":
        cause = "method none"
    elif numbers == [0]:
        cause = "--num-draft 0"
    if cause:
        raise UsageError(
            f"there are no drafts to check with {cause}", hint="Give --method trie --num-draft 8."
        )
    return numbers


def _items(texts: Sequence[Document], questioned: Sequence[Document]) -> list[Item]:
    """Return the prompts to check.

    Args:
        texts: Each is summarized, and so is each of its paragraphs if there are several.
        questioned: Each gets six questions.
    """
    items: list[Item] = []
    for text in texts:
        items += file_items([text], [])
        paragraphs = passages(text)
        if len(paragraphs) == 1:
            continue
        for number, paragraph in enumerate(paragraphs, 1):
            name = f"summarize {text.name} ¶{number}"
            items.append(Item(name, "summarize", (Document(text.name, paragraph),)))
    return items + file_items([], questioned)


def _check_identical(report: CheckReport) -> None:
    """Raise DifferenceError if a run differs from plain decoding."""
    different = [c for c in report.results if not c.identical]
    if not different:
        return
    hint = "Near-ties flip in half precision and int8; with --exact nothing may differ."
    if any(c.exact for c in different):
        hint = "With --exact nothing may differ; report this with the device and the versions."
    runs = counted(report.runs, "run")
    raise DifferenceError(
        f"{len(different)} of {runs} produced tokens that differ from plain decoding", hint=hint
    )
