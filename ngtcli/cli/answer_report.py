"""What is reported of an answer: its JSON, the summary line, a line for each step, its passages."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import distinct
from ngtcli.config import Settings
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Document
from ngtcli.errors import counted
from ngtcli.grounding.sources import Sources, sources_of
from ngtcli.model_files.dtypes import name_of
from ngtcli.prompt.build import Chosen, Cut, Selection
from ngtcli.session.question import Question
from ngtcli.system.json_form import json_key

if TYPE_CHECKING:
    from ngtcli.draft.origins import PolicyReport
    from ngtcli.draft.steps import Step
    from ngtcli.prompt.build import Prompt
    from ngtcli.session.session import Answer, FinishedAnswer


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


def copied(answer: "FinishedAnswer", documents: Sequence[Document]) -> Sources:
    """Where what the answer copies stands in the documents that the model read of these."""
    selection = answer.prompt.selection
    return sources_of(answer.text, documents, selection.excerpts if selection else None)


def summary_facts(settings: Settings, answer: "Answer") -> list[str]:
    """What the line under an answer says."""
    s = answer.run.statistics
    facts = [counted(s.new_tokens, "token"), f"{s.tokens_per_s:.1f} tokens/s"]
    if s.thought_tokens:
        facts[0] += f", {s.thought_tokens} of thought"
    if s.drafted_tokens:
        share = s.accepted_tokens / s.new_tokens if s.new_tokens else 0.0
        facts += [f"acceptance length {s.mean_acceptance_length:.2f}", f"{share:.0%} drafted"]
    else:
        facts.append(f"nothing drafted: {_why_no_drafts(settings, answer)}")
    facts += [f"prefill {s.prefill_s:.2f} s", f"decoding {s.decode_s:.2f} s"]
    if answer.finish_reason == "length":
        facts.append("stopped at max-tokens")
    if answer.finish_reason == "repetition":
        facts.append("stopped where it repeats itself")
    if answer.policy and answer.policy.budgets:
        sizes = sorted(Counter(answer.policy.budgets).elements())
        facts.append(f"nodes a step {sizes[0]}–{sizes[-1]}, median {sizes[len(sizes) // 2]}")
        if answer.policy.stand_downs:
            facts.append(f"drafting stood down {counted(answer.policy.stand_downs, 'time')}")
    if answer.trie.status != "none":
        facts.append(f"trie {answer.trie.status} in {answer.trie.seconds * 1000:.0f} ms")
    return facts


def remarks(answer: "Answer", quantize: str = "none") -> Iterator[str]:
    """What -v says below an answer: why so much was drafted, from what, whether it is exact."""
    if answer.policy is not None:
        yield _policy_words(answer, answer.policy)
    yield answer.background_words()
    run, model = answer.run, answer.run.model
    dtype = name_of(model.dtype)
    if run.rows is not None and not model.plain_reason:
        shape = "a token's scores do not depend on the rows beside it"
        if run.rows.are_fixed:
            shape = f"all passes had {counted(run.rows.most, 'row')}"
        yield f"Exact: {shape}; plain decoding with --exact has the same tokens."
    elif (kind := quantize if quantize != "none" else dtype) != "float32":
        if not model.plain_reason:
            yield f"Not exact: in {kind} drafts may change tokens at near ties; see --exact."
    if model.tree_reason and not model.plain_reason:
        yield f"Drafts have no branches: {model.tree_reason}."
    if model.dtype_reason:
        yield f"Computed in {dtype}: {model.dtype_reason}."
    if model.unused:
        unused = ", ".join(f"{name}={_short(value)}" for name, value in model.unused.items())
        yield f"Left unused of the model's generation settings: {unused}."
    if model.passes.reason and not model.tree_reason:
        yield f"The model's passes are not captured: {model.passes.reason}."


def _policy_words(answer: "Answer", policy: "PolicyReport") -> str:
    """Why the drafter drafted as much as it did."""
    costs = policy.cost_s
    most = max(costs)
    words = (
        f"A pass over {most} rows costs {costs[most] / costs[1]:.1f} times one over a single row,"
        f" drafting {policy.drafting_s / costs[1]:.0%} of that."
        f" Drafts were accepted {policy.came_true:.1f} times as often as expected, of late."
    )
    if policy.stand_downs:
        words += (
            " Drafting stood down while no number of nodes was expected to make up for its cost,"
            f" {policy.budgets.get(0, 0)} of {answer.run.statistics.steps} steps."
        )
    return words


def _short(value: object, most: int = 40) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _why_no_drafts(settings: Settings, answer: "Answer") -> str:
    if settings.method == "none":
        return "method none"
    if answer.run.model.plain_reason:
        return answer.run.model.plain_reason
    if settings.num_draft == 0:
        return "num-draft is 0"
    if answer.run.exact and answer.run.model.tree_reason:
        return f"exact without drafts alone, as {answer.run.model.tree_reason}"
    if answer.policy:
        return "no draft would have paid"
    return "no match"


def explanation(answer: "Answer", step: "Step") -> str:
    """One line on a step: what was drafted and why, what came of it."""
    why = answer.run.drafter.explain()
    run = answer.run
    if not run.proposed:
        why = run.model.plain_reason or ("no room left" if run.limits.num_draft else "no drafts")
    accepted = sum(t.drafted for t in step.tokens)
    parts = [f"step {run.statistics.steps}", why, f"{step.nodes} drafted"]
    return " · ".join(p for p in [*parts, f"{accepted} accepted"] if p)


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
