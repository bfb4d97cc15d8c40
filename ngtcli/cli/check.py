"""`ngt check`: proof, on this machine and model, that drafting changes no token."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from ngtcli.cli.checks import refuse_colour, refuse_ignored
from ngtcli.cli.notes import Notes, once
from ngtcli.cli.options import (
    OF_OWN_ENGINE,
    JsonOption,
    PresetOption,
    numbers_of,
    resolve,
    with_settings,
)
from ngtcli.cli.output import print_json, print_line, print_table
from ngtcli.cli.reading import distinct, read_documents
from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.errors import DifferenceError, UsageError, counted
from ngtcli.measure.prompts import Item, example_texts, file_items, passages
from ngtcli.measure.results import CheckReport, Comparison, GenerateReport
from ngtcli.prompt.preset import Preset, load_preset
from ngtcli.render.terminal import one_line
from ngtcli.session.checks import check_session

DRAFTS = "8,32,64"


@with_settings(OF_OWN_ENGINE)
def check(
    flags: dict[str, Any],
    files: Annotated[
        list[str] | None, typer.Argument(help="Texts to summarize; default: the examples.")
    ] = None,
    docs: Annotated[
        list[str] | None, typer.Option("--docs", "-d", help="Texts to ask questions of.")
    ] = None,
    preset: PresetOption = None,
    drafts: Annotated[
        str, typer.Option("--drafts", help=f"Numbers of draft nodes to try; default: {DRAFTS}.")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Decode with and without drafts and compare every token; exit 6 at a difference."""
    resolved, chosen = resolve(flags, preset, "summarize")
    settings = resolved.settings
    num_drafts = _num_drafts(drafts, flags, settings)
    refuse_ignored(flags, settings)
    refuse_colour("ngt check", flags)
    check_session(settings, Notes().warn)
    notes = Notes()
    if files or docs:
        texts = read_documents(files or [], None, settings, notes)
        asked = read_documents(docs or [], None, settings, notes)
    else:
        texts = asked = example_texts()
    items = _items(texts.documents, asked.documents)
    found = _compare(items, chosen, settings, num_drafts, notes)
    report = CheckReport(
        model=settings.model,
        method=settings.method,
        dtype=settings.dtype,
        quantize=settings.quantize,
        exact=all(c.exact for c in found),
        prompts=len(items),
        num_draft=num_drafts,
        runs=len(found),
        identical=sum(c.identical for c in found),
        results=found,
        generate=_against_generate(found, num_drafts),
        skipped=distinct([*texts.skipped, *asked.skipped]),
    )
    if json:
        print_json(report)
    else:
        _print(report)
    _check_identical(report)


def _num_drafts(drafts: str, given: Mapping[str, Any], settings: Settings) -> list[int]:
    """The numbers of draft nodes to try. Raises UsageError."""
    if drafts and "num_draft" in given:
        raise UsageError("--drafts and --num-draft are both given", "Give one of them.")
    numbers = numbers_of("--drafts", drafts or DRAFTS)
    numbers = [settings.num_draft] if "num_draft" in given else numbers
    if settings.method == "none" or numbers == [0]:
        what = "method none" if settings.method == "none" else "--num-draft 0"
        raise UsageError(f"{what} drafts nothing to check", "Give --method trie --num-draft 8.")
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


def _compare(
    items: Sequence[Item], preset: Preset, settings: Settings, num_drafts: list[int], notes: Notes
) -> list[Comparison]:
    """Each item in both ways: a question in the wording of "ask", a summary in that of `preset`."""
    from ngtcli.measure.check import compare
    from ngtcli.session.local import LocalSession

    ask = load_preset("ask")
    session = LocalSession(settings, once(notes.status), notes.warn, persist=False)
    found: list[Comparison] = []
    for done, item in enumerate(items):
        notes.status(f"{done} of {counted(len(items), 'prompt')} compared")
        prompt = session.prompt(ask if item.question else preset, item.documents, item.question)
        found += compare(session, [(item.id, prompt)], num_drafts)
    notes.clear()
    return found


def _against_generate(found: Sequence[Comparison], num_drafts: list[int]) -> list[GenerateReport]:
    """For each number of drafts, how many plain answers are as `generate` gives them."""
    rows = []
    for num_draft in num_drafts:
        tried = [c.as_generate for c in found if c.num_draft == num_draft]
        known = [same for same in tried if same is not None]
        if known:
            rows.append(GenerateReport(num_draft, len(known), sum(known)))
    return rows


def _check_identical(report: CheckReport) -> None:
    """Raise DifferenceError where a run differs from plain decoding."""
    different = [c for c in report.results if not c.identical]
    if not different:
        return
    hint = "Near-ties flip in half precision and int8; with --exact nothing may differ."
    if any(c.exact for c in different):
        hint = "With --exact nothing may differ; report this with the device and the versions."
    runs = counted(report.runs, "run")
    raise DifferenceError(f"{len(different)} of {runs} gave other tokens than plain decoding", hint)


def _print(report: CheckReport) -> None:
    table = []
    for num_draft in report.num_draft:
        part = [c for c in report.results if c.num_draft == num_draft]
        length = sum(c.mean_acceptance_length for c in part) / len(part)
        tokens, same = sum(c.new_tokens for c in part), sum(c.identical for c in part)
        table.append([num_draft, len(part), tokens, f"{length:.2f}", f"{same}/{len(part)}"])
    print_table(["num_draft", "prompts", "tokens", "acceptance length", "identical"], table)
    for row in report.generate:
        print_line(
            f"For information: {row.identical} of {row.prompts} plain answers at num_draft"
            f" {row.num_draft} are those of transformers' generate in this dtype."
        )
    for c in report.results:
        if not c.identical:
            print_line(
                f"{one_line(c.name)} (num_draft {c.num_draft}): differs from token {c.divergence},"
                f" where the two best scores are {c.margin:.4g} apart"
            )
