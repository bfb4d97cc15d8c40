"""What is reported of an answer: its JSON, the summary line, a line for each step, its passages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ngtcli.cli.answer_request import AnswerRequest
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import distinct
from ngtcli.config import Settings, shown_settings
from ngtcli.errors import counted
from ngtcli.grounding.sources import Sources
from ngtcli.prompt.build import Chosen, Selection
from ngtcli.system.json_form import to_json

if TYPE_CHECKING:
    from ngtcli.decode.steps import Step
    from ngtcli.draft.origins import PolicyReport
    from ngtcli.prompt.build import Prompt
    from ngtcli.session.answer import Answer, FinishedAnswer


def answer_json(
    request: AnswerRequest,
    answer: "FinishedAnswer",
    sources: Sources,
) -> dict[str, Any]:
    """The object that --json prints."""
    body: dict[str, Any] = {
        "text": answer.text,
        "task": request.task,
        "question": request.question or None,
        "model": request.settings.model,
        "method": request.settings.method,
        "finish_reason": answer.finish_reason,
        "exact": answer.exact,
        "settings": shown_settings(request.settings),
        "preset": request.preset.name,
        "documents": _documents(request),
        "skipped": to_json(distinct(request.loaded.skipped)),
        "truncated": [asdict(cut) for cut in answer.prompt.cuts],
        "retrieval": _retrieval(answer.prompt),
        "parts": to_json(answer.parts),
        "trie": to_json(answer.trie),
        "passes": to_json(answer.passes),
        "statistics": to_json(answer.statistics),
        "sources": to_json(sources),
    }
    if answer.policy is not None:
        body["policy"] = to_json(answer.policy)
    if request.json_tokens:
        body["tokens"] = [{"id": t.id, "text": t.text, "origin": t.origin} for t in answer.tokens]
    return body


def dry_run_json(request: AnswerRequest, prompt: "Prompt | None", context: int) -> dict[str, Any]:
    """The object that --dry-run --json prints; a prompt that does not fit is None."""
    return {
        "task": request.task,
        "question": request.question or None,
        "model": request.settings.model,
        "preset": request.preset.name,
        "fits": prompt is not None,
        "context": context,
        "prompt_tokens": len(prompt.ids) if prompt else None,
        "documents": _documents(request),
        "skipped": to_json(distinct(request.loaded.skipped)),
        "truncated": [asdict(cut) for cut in prompt.cuts] if prompt else [],
        "retrieval": _retrieval(prompt) if prompt else None,
        "prompt": prompt.text if prompt else None,
        "ids": prompt.ids if prompt else None,
    }


def _retrieval(prompt: "Prompt") -> Any:
    return to_json(prompt.selection)


def _documents(request: AnswerRequest) -> list[dict[str, Any]]:
    return [
        {"name": d.name, "sha256": d.sha256, "characters": len(d.text)} for d in request.documents
    ]


def summary_facts(settings: Settings, answer: "Answer") -> list[str]:
    """What the line under an answer says."""
    s = answer.run.statistics
    facts = [counted(s.new_tokens, "token"), f"{s.tokens_per_s:.1f} tokens/s"]
    if s.drafted_tokens:
        share = s.accepted_tokens / s.new_tokens if s.new_tokens else 0.0
        facts += [
            f"acceptance length {s.mean_acceptance_length:.2f}",
            f"{share:.0%} drafted",
        ]
    else:
        facts.append(f"nothing drafted: {_why_no_drafts(settings, answer)}")
    facts += [f"prefill {s.prefill_s:.2f} s", f"decoding {s.decode_s:.2f} s"]
    if answer.finish_reason == "length":
        facts.append("stopped at max-tokens")
    if answer.finish_reason == "repetition":
        facts.append("stopped where it repeats itself")
    facts += _policy_facts(answer.policy)
    if answer.trie.status != "none":
        facts.append(f"trie {answer.trie.status} in {answer.trie.seconds * 1000:.0f} ms")
    return facts


def _policy_facts(policy: "PolicyReport | None") -> list[str]:
    """How many nodes the steps had, and how often drafting rested."""
    if policy is None or not policy.budgets:
        return []
    sizes = sorted(Counter(policy.budgets).elements())
    facts = [f"nodes a step {sizes[0]}–{sizes[-1]}, median {sizes[len(sizes) // 2]}"]
    if policy.stand_downs:
        facts.append(f"drafting stood down {counted(policy.stand_downs, 'time')}")
    return facts


def policy_words(answer: "Answer") -> list[str]:
    """Why the drafter drafted as much as it did, in sentences; none where it decides nothing."""
    policy = answer.policy
    if policy is None:
        return []
    costs = policy.cost_s
    most = max(costs)
    words = [
        f"A pass over {most} rows costs {costs[most] / costs[1]:.1f} times one over a single row,"
        f" drafting {policy.drafting_s / costs[1]:.0%} of that.",
        f"Drafts were accepted {policy.came_true:.1f} times as often as expected, of late.",
    ]
    if policy.stand_downs:
        words.append(
            "Drafting stood down while no number of nodes was expected to make up for its cost,"
            f" {policy.budgets.get(0, 0)} of {answer.run.statistics.steps} steps."
        )
    return words


def exact_words(answer: "Answer") -> str:
    """Whether the tokens depend on drafts, and what made sure of it; "" in float32."""
    run = answer.run
    if run.model.plain_reason:
        return ""
    if run.exact:
        return (
            f"Exact: all passes had {run.rows} rows; plain decoding with --exact has the same"
            " tokens."
        )
    dtype = str(run.model.dtype).removeprefix("torch.")
    if dtype == "float32":
        return ""
    return f"Not exact: in {dtype} drafts may change tokens at near ties; see --exact."


def eager_words(answer: "Answer") -> str:
    """Why the model's passes are not captured; "" where they are or may be."""
    model = answer.run.model
    if model.plain_reason or not model.passes.reason:
        return ""
    return f"The model's passes are not captured: {model.passes.reason}."


def unused_words(answer: "Answer") -> str:
    """What the checkpoint suggests to `generate` and ngt's own settings take the place of."""
    unused = answer.run.model.unused
    if not unused:
        return ""
    told = ", ".join(f"{name}={_short(value)}" for name, value in unused.items())
    return f"Left unused of the model's generation settings: {told}."


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
    if answer.policy:
        return "no draft would have paid"
    return "no match"


def explanation(answer: "Answer", step: "Step") -> str:
    """One line on a step: what was drafted and why, what came of it."""
    told = answer.run.drafter.explain()
    run = answer.run
    if not run.proposed:
        told = run.model.plain_reason or ("no room left" if run.limits.num_draft else "no drafts")
    accepted = sum(t.drafted for t in step.tokens)
    parts = [f"step {run.statistics.steps}", told, f"{step.nodes} drafted"]
    return " · ".join(p for p in [*parts, f"{accepted} accepted"] if p)


def origins(answer: "Answer") -> Sequence[str]:
    """What drafts of this method come from, as far as it tells."""
    return answer.run.drafter.origins


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
    scores = {
        f"BM25 {by.bm25:.2f}": True,
        f"dense {by.dense or 0:.3f}": by.dense is not None,
        f"fused {by.fused or 0:.4f}": by.fused is not None,
        f"reranked {by.reranked or 0:.2f}": by.reranked is not None,
    }
    return f"rank {passage.rank} ({', '.join(words for words, given in scores.items() if given)})"
