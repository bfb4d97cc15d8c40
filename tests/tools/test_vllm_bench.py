"""What the script that measures vLLM computes, without vLLM."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools import vllm_bench
from tests.tools.vllm_bench import Kept, items_of, row


def test_every_other_paragraph_is_summarized_and_the_others_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    lines = [
        {"context": f"Text {i}.", "qas": [{"question": f"Q{i}?"}, {"question": "more?"}]}
        for i in range(10)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    items = items_of(argparse.Namespace(prompts=None, paragraphs=path, limit=4))
    assert [(i.task, i.documents[0].text, i.question) for i in items] == [
        ("summarize", "Text 0.", ""),
        ("ask", "Text 2.", "Q2?"),
        ("summarize", "Text 4.", ""),
        ("ask", "Text 6.", "Q6?"),
    ]


def test_a_run_that_was_broken_off_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def run_apart(job: dict[str, Any]) -> dict[str, Any]:
        ran.append(job["method"])
        return {"answers": [[1]], "of": job["method"]}

    monkeypatch.setattr(vllm_bench, "run_apart", run_apart)
    jobs = [{"method": m, "at_once": n} for m in ("none", "ours") for n in (1, 8)]
    path = tmp_path / "state.jsonl"
    first = [Kept(path).run(job) for job in jobs[:3]]
    kept = Kept(path)
    assert [kept.run(job) for job in jobs][:3] == first
    assert ran == ["none", "none", "ours", "ours"]


def test_a_row_compares_with_the_engine_without_drafts() -> None:
    plain = {"answers": [[1, 2], [3, 4, 5]], "seconds": 2.0, "passes": 5, "drafts": 0}
    plain |= {"drafted_tokens": 0, "accepted_tokens": 0}
    drafted = {"answers": [[1, 2], [3, 4, 6]], "seconds": 1.0, "passes": 3, "drafts": 2}
    drafted |= {"drafted_tokens": 4, "accepted_tokens": 3}
    found = row({"method": "ours", "at_once": 2}, drafted, plain)
    assert (found["tokens_per_s"], found["speedup"], found["same_answers"]) == (5.0, 2.0, 1)
    assert (found["mean_acceptance_length"], found["draft_acceptance_rate"]) == (2.5, 0.75)
    assert row({"method": "none", "at_once": 2}, plain, plain)["mean_acceptance_length"] == 1
