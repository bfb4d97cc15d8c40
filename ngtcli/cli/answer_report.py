"""What is reported of an answer: its JSON, the summary line, a line for each step, its passages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import distinct
from ngtcli.documents.find import Skipped
from ngtcli.prompt.build import Chosen, Cut, Selection
from ngtcli.session.question import Question
from ngtcli.system.json_form import json_key

if TYPE_CHECKING:
    from ngtcli.prompt.build import Prompt


TASKS = ("summarize", "ask")
SKIPPED = "files that were left out, with the reason"
RETRIEVAL = "the passages read, where not all fits"


@dataclass(frozen=True, slots=True)
class DocumentObject:
    """A document that was read."""

    name: str
    sha256: str = field(
        metadata=json_key(schema=lambda: {"type": "string", "pattern": "^[0-9a-f]{64}$"})
    )
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunObject:
    """What --dry-run prints; the prompt's parts are null if it does not fit."""

    task: str = field(metadata=json_key(choices=TASKS))
    question: str = field(metadata=json_key(null=True))
    model: str
    preset: str
    fits: bool
    context: int
    prompt_tokens: int | None
    documents: Sequence[DocumentObject]
    skipped: Sequence[Skipped] = field(metadata=json_key(about=SKIPPED))
    truncated: Sequence[Cut]
    retrieval: Selection | None = field(metadata=json_key(about=RETRIEVAL))
    prompt: str | None
    ids: Sequence[int] | None


def dry_run_object(request: AnswerRequest, prompt: "Prompt | None", context: int) -> DryRunObject:
    """The object that --dry-run --json prints; a prompt that does not fit is None."""
    return DryRunObject(
        task=request.task,
        question=request.question,
        model=request.settings.model,
        preset=request.preset.name,
        fits=prompt is not None,
        context=context,
        documents=document_objects(request),
        skipped=distinct(request.loaded.skipped),
        prompt_tokens=len(prompt.ids) if prompt else None,
        truncated=prompt.cuts if prompt else (),
        retrieval=prompt.selection if prompt else None,
        prompt=prompt.text if prompt else None,
        ids=prompt.ids if prompt else None,
    )


def document_objects(request: Question) -> list[DocumentObject]:
    """The documents as JSON has them."""
    return [DocumentObject(d.name, d.sha256, len(d.text)) for d in request.documents]


def tell_passages(request: AnswerRequest, selection: Selection | None, notes: Notes) -> None:
    """With -v a line for each passage, and with --show-passages its text below it."""
    if request.show_passages and selection is None:
        notes.say("Everything fits: the documents are read whole.")
    if selection is None or not (request.verbose or request.show_passages):
        return
    for passage in selection.passages:
        document = request.documents[passage.document]
        where = f"page {passage.page}" if passage.page else passage.heading
        named = f"{document.name}, {where}" if where else document.name
        notes.say(f"{named}: characters {passage.start}–{passage.end}, {_scores(passage)}")
        if request.show_passages:
            text = document.text[passage.start : passage.end]
            for line in text.splitlines():
                notes.say(f"  {line}", dim=True)


def _scores(passage: Chosen) -> str:
    """Its score by each ranker; with more than one also its rank by all of them.

    >>> from ngtcli.retrieve.ranking import Scores
    >>> _scores(Chosen(Scores(0.03, 4.5, 0.71, 0.03), 0, 0, 9, 0, "", rank=2))
    'rank 2 (BM25 4.50, dense 0.710, fused 0.0300)'
    """
    by = passage.scores
    if by.dense is None and by.reranked is None:
        return f"score {by.bm25:.2f}"
    scores = [
        ("BM25", by.bm25, 2),
        ("dense", by.dense, 3),
        ("fused", by.fused, 4),
        ("reranked", by.reranked, 2),
    ]
    words = [f"{name} {value:.{digits}f}" for name, value, digits in scores if value is not None]
    return f"rank {passage.rank} ({', '.join(words)})"
