"""The objects that --json prints of an answer and of a line of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ngtcli.cli.answer_report import RETRIEVAL, SKIPPED, TASKS, DocumentObject, document_objects
from ngtcli.cli.reading import distinct
from ngtcli.config import settings_schemas, shown_settings
from ngtcli.documents.find import Skipped
from ngtcli.draft.origins import PolicyReport
from ngtcli.draft.steps import PassesReport, Statistics, Token
from ngtcli.grounding.sources import Sources
from ngtcli.prompt.reports import Cut, PartReport, Selection
from ngtcli.session.events import Ended
from ngtcli.session.question import Question
from ngtcli.system.json_form import Schema, json_key, shape
from ngtcli.trie.report import TrieReport

FINISH_REASONS = {
    "stop": "the model ended its answer, or a stop string came",
    "repetition": "the same tokens came max_repeats times in a row, 128 or more in all",
    "length": "max_tokens were made",
    "context": "the model's context is full",
    "interrupted": "Ctrl-C ended it",
}
_EXACT = "no token depends on drafts, in any dtype"
_PARTS = "the parts that were summarized first; none where everything fits"
_PASSES = "shapes of passes that are captured, the time that took, and why not"
_THOUGHT = "what the model thought before its answer, which is not in text"
_POLICY = "what auto decided, in seconds and steps"


def _reasons() -> Schema:
    return {"oneOf": [{"const": k, "description": text} for k, text in FINISH_REASONS.items()]}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerObject:
    """An answer; it has `tokens` with --json-tokens, `policy` for methods that set their budget."""

    text: str
    thought: str | None = field(metadata=json_key(omit=True, about=_THOUGHT))
    task: str = field(metadata=json_key(choices=TASKS))
    question: str | None
    model: str
    method: str
    finish_reason: str = field(metadata=json_key(schema=_reasons))
    exact: bool = field(metadata=json_key(about=_EXACT))
    settings: Mapping[str, Any] = field(metadata=json_key(schema=lambda: shape(settings_schemas())))
    preset: str
    documents: Sequence[DocumentObject]
    skipped: Sequence[Skipped] = field(metadata=json_key(about=SKIPPED))
    truncated: Sequence[Cut]
    retrieval: Selection | None = field(metadata=json_key(about=RETRIEVAL))
    parts: Sequence[PartReport] = field(metadata=json_key(about=_PARTS))
    trie: TrieReport
    passes: PassesReport = field(metadata=json_key(about=_PASSES))
    statistics: Statistics
    sources: Sources
    policy: PolicyReport | None = field(metadata=json_key(omit=True, about=_POLICY))
    tokens: Sequence[Token] | None = field(metadata=json_key(omit=True))


def answer_object(request: Question, answer: Ended, tokens: bool = False) -> AnswerObject:
    """The object that --json prints, with `tokens` that of --json-tokens."""
    return AnswerObject(
        text=answer.text,
        thought=answer.thought,
        task=request.task,
        question=request.question or None,
        model=request.settings.model,
        method=request.settings.method,
        finish_reason=answer.finish_reason,
        exact=answer.exact,
        settings=shown_settings(request.settings),
        preset=request.preset.name,
        documents=document_objects(request),
        skipped=distinct(request.loaded.skipped),
        truncated=answer.cuts,
        retrieval=answer.selection,
        parts=answer.parts,
        trie=answer.trie,
        passes=answer.passes,
        statistics=answer.statistics,
        sources=answer.sources,
        policy=answer.policy,
        tokens=answer.tokens if tokens else None,
    )


_ID = json_key(schema=lambda: {"type": ["string", "integer"]})


@dataclass(frozen=True, slots=True)
class LineObject:
    """A line of `ngt batch`: an answer with its id."""

    id: str | int = field(metadata=_ID)
    answer: AnswerObject = field(metadata=json_key(flat=True))


@dataclass(frozen=True, slots=True)
class ErrorObject:
    """Why a line of `ngt batch` has no answer."""

    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class FailedLineObject:
    """A line of `ngt batch` without an answer."""

    id: str | int = field(metadata=_ID)
    error: ErrorObject
