"""The objects that --json prints of an answer, of a dry run, and of a line of a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ngtcli.config import settings_schemas, shown_settings
from ngtcli.documents.find import Skipped
from ngtcli.documents.quotes.sources import Sources
from ngtcli.documents.selection import Coverage
from ngtcli.drafting.origins import PolicyReport
from ngtcli.drafting.steps import PassesReport, Statistics, Token
from ngtcli.drafting.tries.files import TrieReport
from ngtcli.engine.events import Ended
from ngtcli.engine.request import Request
from ngtcli.engine.speed import plain_decoding_s
from ngtcli.errors import NgtError
from ngtcli.prompts.reports import Cut, PartReport, Selection
from ngtcli.system.json_form import Schema, json_key, shape

if TYPE_CHECKING:
    from ngtcli.prompts.build import Prompt

FINISH_REASONS = {
    "stop": "the model ended the answer, or a stop string occurred",
    "repetition": "the same tokens were repeated max_repeats times in a row, at least 128 in total",
    "prompt": "the answer repeats the instructions of its prompt",
    "not_in_documents": "no passage covers enough of the question: the built-in model was not run",
    "length": "max_tokens was reached",
    "context": "the model's context is full",
    "interrupted": "interrupted by Ctrl-C",
}
_TASK = json_key(choices=("summarize", "ask", "generate"))
_SKIPPED = json_key(about="skipped files, with the reason")
_RETRIEVAL = json_key(about="the passages that the model read, if not everything fits")
_EXACT = json_key(about="whether drafts cannot change a token, in any dtype")
_PARTS = json_key(about="the parts that were summarized first; none if everything fits")
_PASSES = json_key(
    about="which forward passes were captured as CUDA graphs and how many seconds that took, or why"
    " none were"
)
_THOUGHT = json_key(omit=True, about="the model's reasoning before its answer; it is not in text")
_PLAIN = json_key(
    digits=6,
    about="seconds that plain decoding would have taken for these tokens, estimated and not"
    " measured; compare statistics.decode_s; null if unknown",
)
_DRAFTED_BY = json_key(
    about="the method that drafted: that of `method`, or its substitute while that is compiled"
)
_COVERAGE = json_key(
    about="how much of the question the best passage covers, and whether that is enough for an"
    " answer; null if that was not checked"
)
_POLICY = json_key(omit=True, about="decisions of auto, with their seconds and steps")
_SHA256 = json_key(schema=lambda: {"type": "string", "pattern": "^[0-9a-f]{64}$"})
_SETTINGS = json_key(schema=lambda: shape(settings_schemas()))
_SCHEMA = json_key(omit=True, about="the JSON Schema that the answer obeys, with all limits")
_ID = json_key(schema=lambda: {"type": ["string", "integer"]})


def _reasons() -> Schema:
    return {"oneOf": [{"const": k, "description": text} for k, text in FINISH_REASONS.items()]}


@dataclass(frozen=True, slots=True)
class DocumentObject:
    """A document that was read."""

    name: str
    sha256: str = field(metadata=_SHA256)
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerObject:
    """An answer; it has `tokens` with --json-tokens, and `policy` with method auto."""

    text: str
    thought: str | None = field(metadata=_THOUGHT)
    finish_reason: str = field(metadata=json_key(schema=_reasons))
    sources: Sources
    coverage: Coverage | None = field(metadata=_COVERAGE)
    task: str = field(metadata=_TASK)
    question: str | None
    model: str
    preset: str
    documents: Sequence[DocumentObject]
    skipped: Sequence[Skipped] = field(metadata=_SKIPPED)
    truncated: Sequence[Cut]
    retrieval: Selection | None = field(metadata=_RETRIEVAL)
    parts: Sequence[PartReport] = field(metadata=_PARTS)
    method: str
    drafted_by: str = field(metadata=_DRAFTED_BY)
    exact: bool = field(metadata=_EXACT)
    trie: TrieReport
    passes: PassesReport = field(metadata=_PASSES)
    statistics: Statistics
    plain_decode_s: float | None = field(metadata=_PLAIN)
    policy: PolicyReport | None = field(metadata=_POLICY)
    settings: Mapping[str, Any] = field(metadata=_SETTINGS)
    tokens: Sequence[Token] | None = field(metadata=json_key(omit=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunObject:
    """What --dry-run prints; the prompt's parts are null if it does not fit."""

    task: str = field(metadata=_TASK)
    question: str | None
    model: str
    preset: str
    fits: bool
    context: int
    prompt_tokens: int | None
    documents: Sequence[DocumentObject]
    skipped: Sequence[Skipped] = field(metadata=_SKIPPED)
    truncated: Sequence[Cut]
    retrieval: Selection | None = field(metadata=_RETRIEVAL)
    prompt: str | None
    ids: Sequence[int] | None
    schema: Mapping[str, Any] | None = field(metadata=_SCHEMA)


# Fields of an answer that are keys under their own names.
_OF_ANSWER = (
    "text thought finish_reason exact drafted_by parts trie passes statistics sources coverage"
    " policy"
).split()


def document_objects(request: Request) -> list[DocumentObject]:
    """The documents as JSON has them."""
    return [DocumentObject(d.name, d.sha256, len(d.text)) for d in request.documents]


def _common_fields(request: Request, outcome: "Ended | Prompt | None") -> dict[str, Any]:
    """Return the fields that AnswerObject and DryRunObject share.

    Args:
        request: The request.
        outcome: Its prompt or its answer; None if the prompt does not fit.
    """
    return {
        "task": request.task,
        "question": request.question or None,
        "model": request.settings.model.model,
        "preset": request.preset.name,
        "documents": document_objects(request),
        "skipped": tuple(dict.fromkeys(request.loaded.skipped)),
        "truncated": outcome.cuts if outcome else (),
        "retrieval": outcome.selection if outcome else None,
    }


def answer_object(request: Request, answer: Ended, tokens: bool = False) -> AnswerObject:
    """Return the object that --json prints; `tokens`: with the key of --json-tokens."""
    return AnswerObject(
        **_common_fields(request, answer),
        **{name: getattr(answer, name) for name in _OF_ANSWER},
        method=request.settings.drafting.method,
        plain_decode_s=plain_decoding_s(request.settings, answer),
        settings=shown_settings(request.settings),
        tokens=answer.tokens if tokens else None,
    )


def dry_run_object(
    request: Request, prompt: "Prompt | None", context: int, schema: Schema | None
) -> DryRunObject:
    """The object that --dry-run --json prints; a prompt that does not fit is None."""
    return DryRunObject(
        **_common_fields(request, prompt),
        fits=prompt is not None,
        context=context,
        prompt_tokens=len(prompt.ids) if prompt else None,
        prompt=prompt.text if prompt else None,
        ids=prompt.ids if prompt else None,
        schema=schema,
    )


@dataclass(frozen=True, slots=True)
class LineObject:
    """An answer with its id: a line of `ngt batch`, or a file by its name (`--each`)."""

    id: str | int = field(metadata=_ID)
    answer: AnswerObject = field(metadata=json_key(flat=True))


@dataclass(frozen=True, slots=True)
class ErrorObject:
    """Why a line has no answer."""

    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class FailedLineObject:
    """A line without an answer."""

    id: str | int = field(metadata=_ID)
    error: ErrorObject


def line_object(
    line_id: str | int, request: Request, answer: Ended, tokens: bool = False
) -> LineObject:
    """Return the output for a line; `tokens`: with the key of --json-tokens."""
    return LineObject(line_id, answer_object(request, answer, tokens))


def failed_line(line_id: str | int, error: NgtError) -> FailedLineObject:
    """Return what is put out for a line without an answer."""
    return FailedLineObject(line_id, ErrorObject(str(error), error.hint, error.exit_code))
