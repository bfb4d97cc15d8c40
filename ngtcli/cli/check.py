"""`ngt check`: proof, on this machine and model, that drafting changes no token."""

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
    """A row for each number of draft nodes, then what was left out and the differences."""
    by_number = {k: [c for c in report.results if c.num_draft == k] for k in report.num_draft}
    yield _COLUMNS, [_row(k, part) for k, part in by_number.items()]
    if report.prompts < report.prompts_available:
        yield comment(
            f"{report.prompts} of {report.prompts_available} prompts were checked;"
            " --limit 0 checks all."
        )
    for c in report.results:
        if not c.identical:
            yield comment(
                f"{one_line(c.name)} (num_draft {c.num_draft}): differs from token {c.divergence},"
                f" where the two best logits are {c.margin:.4g} apart"
            )


def _row(num_draft: int, part: Sequence[Comparison]) -> list[object]:
    length = sum(c.mean_acceptance_length for c in part) / len(part)
    tokens, same = sum(c.new_tokens for c in part), sum(c.identical for c in part)
    return [num_draft, len(part), tokens, f"{length:.2f}", f"{same}/{len(part)}"]


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
    resolved, chosen = resolve(flags, preset)
    settings, notes = resolved.settings, Notes()
    num_drafts = _num_drafts(drafts, flags, settings)
    check_settings(flags, settings)
    warn_of_no_effect([Situation.NO_COLOR], given_settings(flags))
    check_form("ask", settings)
    check_session(settings)
    if files or docs:
        texts = read_documents(files or [], None, settings, notes)
        asked = read_documents(docs or [], None, settings, notes)
    else:
        texts = asked = example_texts()
        limit = PROMPTS if limit is None else limit
    available = _items(texts.documents, asked.documents)
    items = spread(available, limit or len(available))
    from ngtcli.bench.check import run_check  # here: they load torch
    from ngtcli.bench.live import Live

    with reporting_to(notes), notes.heartbeat():
        report = run_check(Live(items, chosen), settings, num_drafts)
    notes.clear()
    skipped = distinct([*texts.skipped, *asked.skipped])
    yield replace(report, prompts_available=len(available), skipped=skipped)
    _check_identical(report)


def _num_drafts(drafts: str | None, given: Mapping[str, Any], settings: Settings) -> list[int]:
    """The numbers of draft nodes to try. Raises UsageError."""
    if drafts is not None and "num_draft" in given:
        raise UsageError(
            "--drafts and --num-draft are mutually exclusive", hint="Give one of them."
        )
    numbers = numbers_of("--drafts", DRAFTS if drafts is None else drafts)
    numbers = [settings.drafting.num_draft] if "num_draft" in given else numbers
    if settings.drafting.method == "none" or numbers == [0]:
        what = "method none" if settings.drafting.method == "none" else "--num-draft 0"
        raise UsageError(
            f"there are no drafts to check with {what}", hint="Give --method trie --num-draft 8."
        )
    return numbers


def _items(texts: Sequence[Document], asked: Sequence[Document]) -> list[Item]:
    """A summary of each text and of each of its paragraphs, and six questions a document."""
    items: list[Item] = []
    for text in texts:
        items += file_items([text], [])
        parts = passages(text)
        for i, part in enumerate(parts if len(parts) > 1 else [], 1):
            part_of = Document(text.name, part)
            items.append(Item(f"summarize {text.name} ¶{i}", "summarize", (part_of,)))
    return items + file_items([], asked)


def _check_identical(report: CheckReport) -> None:
    """Raise DifferenceError where a run differs from plain decoding."""
    different = [c for c in report.results if not c.identical]
    if not different:
        return
    hint = "Near-ties flip in half precision and int8; with --exact nothing may differ."
    if any(c.exact for c in different):
        hint = "With --exact nothing may differ; report this with the device and the versions."
    runs = counted(report.runs, "run")
    raise DifferenceError(
        f"{len(different)} of {runs} produced other tokens than plain decoding", hint=hint
    )
