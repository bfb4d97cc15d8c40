"""Wall time of drafted, plain and `transformers` decoding: `python -m ngtcli.evaluate.bench`.

Every prompt is decoded by every contestant in turn, round after round (A B C A B C …), so that a
noisy machine troubles all alike. Figures are medians over prompts of each prompt's median time,
prefill included, and ratios are formed prompt by prompt.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ngtcli.config import Settings
from ngtcli.documents.load import Document, load
from ngtcli.prompts import Prompt, load_preset
from ngtcli.render.sinks import dump_json
from ngtcli.session import Session

EXAMPLES = Path(__file__).parent.parent / "examples"
Contestant = Callable[[Prompt], tuple[list[int], float]]  # ids and mean acceptance length


def ours(session: Session, method: str) -> Contestant:
    """Our loop with drafts of `method`, the trie taken from the cache."""

    def decode(prompt: Prompt) -> tuple[list[int], float]:
        run = session.answer(prompt, method).run
        for _ in run:
            pass
        return run.output, run.statistics.mean_acceptance_length

    return decode


def generate(session: Session) -> Contestant:
    """`transformers` greedy generate on the same weights."""
    model = session.model

    def decode(prompt: Prompt) -> tuple[list[int], float]:
        ids = torch.tensor([prompt.ids], device=model.device)
        with torch.inference_mode():
            out = model.hf.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                repetition_penalty=1.0,  # plain greedy, whatever the checkpoint suggests
                max_new_tokens=min(session.settings.max_tokens, model.context - len(prompt.ids)),
                eos_token_id=sorted(model.end_ids),
                pad_token_id=min(model.end_ids, default=0),
            )
        return out[0, len(prompt.ids) :].tolist(), 1.0

    return decode


def race(
    contestants: dict[str, Contestant], prompts: Sequence[Prompt], rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """Per contestant and prompt: ids, median seconds, acceptance length. One round warms up."""
    times: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in contestants}
    last: dict[str, list[tuple[list[int], float]]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for results in last.values():
            results.clear()
        for i, prompt in enumerate(prompts):
            for name, decode in contestants.items():
                clock = time.perf_counter()
                last[name].append(decode(prompt))
                if turn:
                    times[name][i].append(time.perf_counter() - clock)
    return {
        name: [
            {"ids": ids, "seconds": statistics.median(times[name][i]), "acceptance": length}
            for i, (ids, length) in enumerate(last[name])
        ]
        for name in contestants
    }


def report(results: dict[str, list[dict[str, Any]]], baseline: str) -> list[dict[str, Any]]:
    """One row a contestant; `speedup` is the median over prompts of baseline time / own time."""
    rows = []
    for name, runs in results.items():
        pairs = list(zip(runs, results[baseline], strict=True))
        ratios = sorted(b["seconds"] / r["seconds"] for r, b in pairs)
        tokens = sum(len(r["ids"]) for r in runs)
        rows.append(
            {
                "contestant": name,
                "prompts": len(runs),
                "new_tokens": tokens,
                "seconds_median": round(statistics.median(r["seconds"] for r in runs), 4),
                "tokens_per_s": round(tokens / sum(r["seconds"] for r in runs), 1),
                "mean_acceptance_length": round(statistics.mean(r["acceptance"] for r in runs), 3),
                f"speedup_over_{baseline}": round(statistics.median(ratios), 3),
                "speedup_least_and_most": [round(ratios[0], 3), round(ratios[-1], 3)],
                "same_ids": sum(r["ids"] == b["ids"] for r, b in pairs),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Time drafted, plain and transformers decoding.")
    parser.add_argument("files", nargs="*", default=[str(EXAMPLES)], help="texts to summarize")
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--method", default="trie")
    parser.add_argument("--num-draft", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--limit", type=int, default=10, help="prompts")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    settings = replace(
        Settings(), model=args.model, dtype=args.dtype, device=args.device, method=args.method,
        num_draft=args.num_draft, max_tokens=args.max_tokens,
    )  # fmt: skip
    session = Session(settings)
    preset = load_preset("summarize")
    documents = _enough(load(args.files), args.limit)
    prompts = [session.prompt(preset, [document]) for document in documents]
    contestants = {
        "plain": ours(session, "none"),
        args.method: ours(session, args.method),
        "transformers": generate(session),
    }
    print(dump_json(report(race(contestants, prompts, args.rounds), "plain")))


def _enough(documents: list[Document], limit: int) -> list[Document]:
    """The documents, then halves of them, until there are `limit`."""
    out = list(documents)
    for document in documents:
        parts = document.text.split("\n\n")
        middle = len(parts) // 2
        for half in (parts[:middle], parts[middle:]):
            text = "\n\n".join(half)
            if len(text.split()) >= 60:
                out.append(Document(document.name, text))
    return out[:limit]


if __name__ == "__main__":
    main()
