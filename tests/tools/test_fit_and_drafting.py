"""The measuring modules that are no commands: what they compute, on small inputs."""

import json
import random
import sys
from itertools import accumulate, cycle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ngtcli.draft.auto.blend import COPIED, OWN, PROMPT, SCORES
from ngtcli.draft.auto.escapes import fitted_escapes
from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.methods.trie import TrieDrafter
from ngtcli.draft.tree import DraftTree
from ngtcli.measure.replay import select
from ngtcli.measure.traces import Trace, TraceWriter
from ngtcli.trie.ngram import build_trie
from tests.support.tiny_models import make_target
from tests.tools import drafting_bench, fit_escapes
from tests.tools.drafting_bench import (
    PlainNode,
    plain_draft,
    plain_mask,
    plain_trie,
    tree_mask,
)

N, LP = 6, 3


def frequencies(root: PlainNode, tail: list[int], tree: DraftTree) -> list[int]:
    """Sorted counts, in the plain trie, of the nodes a tree holds below the longest match."""
    for length in range(min(LP, len(tail)), 0, -1):
        start: PlainNode | None = root
        for token in tail[len(tail) - length :]:
            start = start.children.get(token) if start else None
        if start is not None and start.children:
            break
    nodes: list[PlainNode] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        above = start if parent < 0 else nodes[parent]
        assert above is not None
        nodes.append(above.children[token])
    return sorted(node.count for node in nodes)


def test_the_papers_construction_picks_nodes_of_the_same_frequencies() -> None:
    rng = random.Random(1)
    body = [rng.randrange(5) for _ in range(120)]
    text = [*range(100, 100 + N), *body, *range(200, 200 + N)]  # so that no window is cut off
    drafter = TrieDrafter(DraftSettings(N, LP), None)
    drafter.reset(Context((), build_trie([text], N, LP)))
    plain = plain_trie(text, N, LP)
    for at in range(N + LP, len(text) - N):
        tail = text[at - LP : at]
        ours, paper = drafter.propose(tail, 8), plain_draft(plain, tail, LP, 8)
        assert frequencies(plain, tail, ours) == frequencies(plain, tail, paper)


def test_the_papers_mask_is_ours() -> None:
    model = make_target()
    model.start(40)
    model.prefill([5, 6, 7])
    tree = DraftTree((8, 9, 8, 7), (-1, 0, 1, 0))
    assert tree_mask(model, 4, tree)[..., :5, : model.length + 5].equal(
        plain_mask(tree, model.length)
    )


def test_every_part_of_a_draft_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which the parts take 1 to 4 us, and what lies between two drafts 50."""
    ticks = accumulate(cycle([50e-6, 1e-6, 2e-6, 3e-6, 4e-6]))
    monkeypatch.setattr(drafting_bench, "time", SimpleNamespace(perf_counter=ticks.__next__))
    rng = random.Random(1)
    ids = [rng.randrange(4, 9) for _ in range(120)]
    figures = drafting_bench.measure(make_target(), ids, N, LP, nodes=4, times=5)
    assert figures["trees"] == 5
    for part, us in {
        "propose": 1.0, "layout": 2.0, "plain_draft": 3.0, "plain_mask": 4.0,
        "ours": 3.0, "as_in_the_paper": 7.0,
    }.items():  # fmt: skip
        assert figures[part] == {"median_us": us, "p99_us": us}


def copying(count: int) -> list[Trace]:
    """Outputs that copy their prompts, so that every match is right."""
    rng = random.Random(2)
    out = []
    for i in range(count):
        prompt = tuple(rng.randrange(50) for _ in range(40))
        out.append(Trace(str(i), "copy", prompt, prompt[:30], 30))
    return out


def test_fitting_lowers_the_surprise_and_trusts_what_was_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    escapes, losses = fit_escapes.fit([copying(4)], rounds=3)
    assert losses[2] < losses[0]
    assert escapes.shape == fitted_escapes().shape
    assert escapes[PROMPT, 3:].min() < 0.4  # matches in the prompt: 0.5 before
    assert "nats a token" in capsys.readouterr().err


def test_only_the_questions_that_ids_odd_selects_are_fitted_on() -> None:
    odd = Trace("q81/2", "", (1, 2, 3, 1, 2), (3, 1, 2, 3), 4)
    others = [Trace(id, "", (5, 6, 5), (6, 5, 6), 3) for id in ("doc2-5", "82/1", "none")]
    assert select([odd, *others], [], None, "odd") == [odd]
    assert fit_escapes.fit([[odd, *others]], 2)[1] == fit_escapes.fit([[odd]], 2)[1]


def test_a_fitted_table_can_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TraceWriter(tmp_path / "t", "print", "tiny", 97) as writer:
        for trace in copying(3):
            writer.add(trace.id, trace.task, trace.prompt_ids, trace.output_ids)
    table = tmp_path / "escapes.json"
    arguments = ["fit", str(tmp_path / "t"), "--rounds", "1", "--out", str(table)]
    monkeypatch.setattr(sys, "argv", arguments)
    fit_escapes.main()
    stored = json.loads(table.read_text())
    assert stored["fitted_on"] == "tiny, odd ids, all tasks"
    assert np.array(stored["escapes"]).shape == fitted_escapes()[OWN:SCORES].shape
    assert np.array(stored["copies"]).shape == fitted_escapes()[COPIED:].shape
