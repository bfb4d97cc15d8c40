"""What a draft costs before the model sees it: `python -m tests.tools.drafting_bench`.

Times, place by place in turn, what `trie` proposes (longest match, best-first tree), our layout
of it (positions and additive tree mask for a cache of the text's length), and beside them the
construction as the paper describes it, written plainly: a trie of objects with Algorithm 1's
prefixes, every path below the match collected and sorted, the mask filled node by node. Then the
parts of a step of `auto`.
"""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ngtcli
from ngtcli.background.loaded import Backgrounds
from ngtcli.decode.layout import unpack
from ngtcli.decode.load import load_model
from ngtcli.decode.model import TargetModel
from ngtcli.documents.load import load
from ngtcli.draft.auto.config import CONFIG
from ngtcli.draft.auto.drafter import Auto
from ngtcli.draft.costs import SHORT, CostCurve, Costs
from ngtcli.draft.drafter import Context, DraftSettings, Feedback
from ngtcli.draft.methods.trie import TrieDrafter
from ngtcli.draft.tree import DraftTree
from ngtcli.system.json_form import dump_json
from ngtcli.trie.background import BackgroundCounts
from ngtcli.trie.ngram import build_trie

_OBSERVED = 5  # tokens
_ROUNDS = 4  # of measurements that alternate
EXAMPLES = Path(ngtcli.__file__).parent / "examples"


class PlainNode:
    """A node of the paper's trie."""

    def __init__(self) -> None:
        self.children: dict[int, PlainNode] = {}
        self.count = 0


@torch.inference_mode()
def tree_mask(model: TargetModel, token: int, tree: DraftTree) -> Any:
    """The additive mask of a pass over `token` and the tree below it."""
    layout = model.lay_out(token, tree)
    return model.masks.of_tree(unpack(layout.packed, layout.rows), layout.capacity)


def plain_trie(ids: Sequence[int], n: int, lp: int) -> PlainNode:
    """Algorithm 1: of every window the prefixes up to `lp` tokens, each with its suffix."""
    root = PlainNode()
    for at in range(len(ids) - n + 1):
        for skip in range(lp):
            node = root
            for token in ids[at + skip : at + n]:
                node = node.children.setdefault(token, PlainNode())
                node.count += 1
    return root


def plain_draft(root: PlainNode, tail: Sequence[int], lp: int, budget: int) -> DraftTree:
    """The `budget` most frequent nodes below the longest prefix that is found."""
    for length in range(min(lp, len(tail)), 0, -1):
        node: PlainNode | None = root
        for token in tail[len(tail) - length :]:
            node = node.children.get(token) if node else None
        if node is not None and node.children:
            return _prune(node, budget)
    return DraftTree()


def _prune(start: PlainNode, budget: int) -> DraftTree:
    paths: list[tuple[int, tuple[int, ...]]] = []

    def collect(node: PlainNode, path: tuple[int, ...]) -> None:
        for token, child in node.children.items():
            paths.append((child.count, (*path, token)))
            collect(child, (*path, token))

    collect(start, ())
    paths.sort(key=lambda pair: (-pair[0], len(pair[1])))
    places: dict[tuple[int, ...], int] = {(): -1}
    for _, path in paths[:budget]:
        places[path] = len(places) - 1
    kept = [path for path in places if path]
    return DraftTree(tuple(p[-1] for p in kept), tuple(places[p[:-1]] for p in kept))


def plain_mask(tree: DraftTree, length: int) -> torch.Tensor:
    """The additive mask, (1, 1, k + 1, length + k + 1), an entry at a time."""
    rows = len(tree) + 1
    mask = torch.full((rows, length + rows), torch.finfo(torch.float32).min)
    mask[:, :length] = 0.0
    mask[0, length] = 0.0
    for node in range(len(tree)):
        mask[node + 1, length] = 0.0
        above = node
        while above != -1:
            mask[node + 1, length + above + 1] = 0.0
            above = tree.parents[above]
    return mask[None, None]


def measure(model: Any, ids: Sequence[int], n: int, lp: int, nodes: int, times: int) -> Any:
    """Microseconds (median, 99th percentile) of each part over trees of exactly `nodes` nodes."""
    drafter = TrieDrafter(DraftSettings(n, lp), None)
    drafter.reset(Context((), build_trie([ids], n, lp)))
    plain = plain_trie(ids, n, lp)
    model.start(len(ids) + nodes + 1)
    model.prefill(ids[: model.context - nodes - 1])
    rng = random.Random(0)
    taken: dict[str, list[float]] = {
        k: [] for k in ("propose", "layout", "plain_draft", "plain_mask")
    }
    seen = 0
    while len(taken["propose"]) < times and seen < 200 * times:
        seen += 1
        at = rng.randrange(lp, len(ids))
        tail = list(ids[at - lp : at])
        clock = [time.perf_counter()]
        tree = drafter.propose(tail, nodes)
        clock.append(time.perf_counter())
        tree_mask(model, tail[-1], tree)
        clock.append(time.perf_counter())
        other = plain_draft(plain, tail, lp, nodes)
        clock.append(time.perf_counter())
        plain_mask(other, model.length)
        clock.append(time.perf_counter())
        if len(tree) == nodes:
            for part, seconds in zip(taken, np.diff(clock), strict=True):
                taken[part].append(float(seconds) * 1e6)
    taken["ours"] = np.add(taken["propose"], taken["layout"]).tolist()
    taken["as_in_the_paper"] = np.add(taken["plain_draft"], taken["plain_mask"]).tolist()
    return {"tokens": len(ids), "cache_rows": model.length, "nodes": nodes,
            "trees": len(taken["propose"]), **_summary(taken)}  # fmt: skip


def measure_auto(
    model: Any, ids: Sequence[int], nodes: int, times: int, background: BackgroundCounts | None
) -> dict[str, list[float]]:
    """Microseconds of the parts of `auto` where all nodes pay, over trees of exactly `nodes` nodes.

    The text is the prompt, and places of it the output.

    `observe` takes in five tokens, `learn` the runners-up of each node.
    """
    costs = Costs({SHORT: CostCurve({1: 1.0, 64: 1.0})})
    drafter = Auto(DraftSettings(costs=costs, background=background))
    drafter.reset(Context(ids, vocabulary=model.vocabulary))
    rng = random.Random(0)
    taken: dict[str, list[float]] = {k: [] for k in ("propose", "layout", "learn", "observe")}
    for _ in range(times):
        at = rng.randrange(len(ids) - _OBSERVED)
        clock = [time.perf_counter()]
        tree = drafter.propose((), nodes)
        clock.append(time.perf_counter())
        tree_mask(model, ids[at], tree)
        clock.append(time.perf_counter())
        top = np.array([rng.choices(ids, k=CONFIG.ranks_read) for _ in range(len(tree) + 1)])
        begin = time.perf_counter()
        drafter.learn(Feedback(tree, top))
        clock.append(clock[-1] + time.perf_counter() - begin)
        begin = time.perf_counter()
        drafter.observe(ids[at : at + _OBSERVED])
        clock.append(clock[-1] + time.perf_counter() - begin)
        if len(tree) == nodes:
            for part, seconds in zip(taken, np.diff(clock), strict=True):
                taken[part].append(float(seconds) * 1e6)
    taken["propose_and_layout"] = np.add(taken["propose"], taken["layout"]).tolist()
    return taken


def alternate(
    model: Any, ids: Sequence[int], nodes: int, times: int, background: BackgroundCounts | None
) -> Any:
    """What `auto` takes without a background and, if there is one, with it, A B A B …."""
    kinds = {"auto": None} if background is None else {"auto": None, "with_background": background}
    taken: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for _ in range(_ROUNDS):
        for kind, counts in kinds.items():
            found = measure_auto(model, ids, nodes, times // _ROUNDS, counts)
            for part, us in found.items():
                taken[kind].setdefault(part, []).extend(us)
    return {k: {"trees": len(v["propose"]), **_summary(v)} for k, v in taken.items()}


def _summary(taken: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "median_us": round(float(np.median(us)), 1),
            "p99_us": round(float(np.percentile(us, 99)), 1),
        }
        for name, us in taken.items()
        if len(us)
    }


def main() -> None:
    """Read texts, measure, print one JSON object."""
    parser = argparse.ArgumentParser(description="Measure what a draft costs.")
    parser.add_argument("files", nargs="*", default=[str(EXAMPLES)], help="texts to draft from")
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--n", type=int, default=13)
    parser.add_argument("--lp", type=int, default=3)
    parser.add_argument("--num-draft", type=int, default=32)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--background", default="", help="names with commas, to compare with none")
    args = parser.parse_args()
    model = load_model(args.model)
    ids = [i for d in load(args.files).documents for i in model.tokenizer.encode(d.text)]
    figures = measure(model, ids, args.n, args.lp, args.num_draft, args.times)
    names = [name for name in args.background.split(",") if name]
    background = Backgrounds(names, model.tokenizer, model.vocabulary).load()
    autos = alternate(model, ids, args.num_draft, args.times, background)
    print(dump_json({**figures, **autos}))


if __name__ == "__main__":
    main()
