"""vLLM with and without our drafts: `python -m tests.tools.vllm_bench [MODEL]`.

The same prompts go through vLLM with each method, at each number of requests at a time, greedily;
each engine runs in a process of its own, warmed up on other prompts. Answers are compared with
those of the engine without drafts at the same number: in float32 they must be the same. Acceptance
is read from vLLM's own counters. With --state FILE a run that was broken off goes on where it was.
Exit code 6 where an answer of ours differs.
"""

import argparse
import hashlib
import json
import lzma
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ngtcli.documents.load import Document
from ngtcli.engines.vllm_arguments import ENVIRONMENT
from ngtcli.engines.vllm_arguments import speculation as our_speculation
from ngtcli.errors import DifferenceError, NgtError, UsageError
from ngtcli.measure.prompts import Item, builtin_items, read_jsonl
from ngtcli.model_files.checkpoint import find
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.prompt.build import Task
from ngtcli.prompt.preset import load_preset
from ngtcli.system.json_form import dump_json

_COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "drafted_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
}
# vLLM's own on a CPU: gigabytes for keys and values, and no thread bound to a core. Where its ngram
# and torch share OpenMP's threads, every change of their number stops both: 100 times slower.
_ENVIRONMENT = {
    **ENVIRONMENT,
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "NUMBA_THREADING_LAYER": "workqueue",
    "HF_HUB_OFFLINE": "1",
}
_OTHERS = 8  # prompts to warm up on
_MOST_S = 1800  # seconds that one engine may take; guess


def read_paragraphs(path: Path) -> tuple[list[str], list[tuple[int, str]]]:
    """The paragraphs, and each question with the index of its paragraph."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    questions = [(i, qa["question"]) for i, row in enumerate(rows) for qa in row["qas"]]
    return [row["context"].strip() for row in rows], questions


def speculation(method: str, tokens: int) -> dict[str, Any] | None:
    """vLLM's `speculative_config` for a method; None for plain decoding. Raises UsageError."""
    known: dict[str, dict[str, Any] | None] = {
        "none": None,
        "ours": our_speculation(tokens),
        "ngram": {
            "method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        },
        "suffix": {"method": "suffix", "num_speculative_tokens": tokens},
    }  # fmt: skip
    if method not in known:
        raise UsageError(f"no method {method!r}", f"Choose from {', '.join(known)}.")
    return known[method]


def items_of(arguments: argparse.Namespace) -> list[Item]:
    """What is asked: of paragraphs spread over a file, of JSON lines, or of the example texts.

    Every other paragraph is to be summarized, of the others their first question is asked.
    """
    if arguments.prompts:
        return read_jsonl(arguments.prompts)[: arguments.limit]
    if not arguments.paragraphs:
        return builtin_items()[: arguments.limit]
    paragraphs, questions = read_paragraphs(arguments.paragraphs)
    first = dict(reversed(questions))
    chosen = sorted(first)[:: max(1, len(first) // arguments.limit)][: arguments.limit]
    return [
        Item(str(i), "ask" if n % 2 else "summarize", (Document("paragraph", paragraphs[i]),),
             first[i] if n % 2 else "")
        for n, i in enumerate(chosen)
    ]  # fmt: skip


def encoded(model: str, items: Sequence[Item]) -> list[list[int]]:
    """The ids of the prompts, by the presets' templates."""
    tokenizer = load_tokenizer(model)
    return [
        Task(load_preset(i.task), i.documents, i.question, tokenizer, 10**6, 0)
        .build(i.documents)
        .ids
        for i in items
    ]


def serve(job: dict[str, Any]) -> dict[str, Any]:
    """Run one engine over the job's prompts, in this process."""
    from vllm import LLM, SamplingParams

    config = speculation(job["method"], job["tokens"])
    longest = max(map(len, [*job["prompts"], *job["others"]])) + job["max_tokens"] + 1
    llm = LLM(
        job["model"], enforce_eager=True, dtype=job["dtype"], max_model_len=longest,
        max_num_seqs=job["at_once"], enable_prefix_caching=False, disable_log_stats=False,
        **({"speculative_config": config} if config else {}),
    )  # fmt: skip
    parameters = SamplingParams(temperature=0, max_tokens=job["max_tokens"])
    requests = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    others = [{"prompt_token_ids": ids} for ids in job["others"]]
    llm.generate(others, parameters, use_tqdm=False)  # compiles and warms up
    before, passes = _counters(llm), _counted_passes(llm)
    clock = time.perf_counter()
    answers = llm.generate(requests, parameters, use_tqdm=False)
    seconds = time.perf_counter() - clock
    counted = {name: value - before[name] for name, value in _counters(llm).items()}
    ids = [list(answer.outputs[0].token_ids) for answer in answers]
    return {"answers": ids, "seconds": seconds, "passes": passes.total(), **counted}


def _counted_passes(llm: Any) -> Counter[str]:
    """Grows by one at each pass from now on."""
    passes, step = Counter[str](), llm.llm_engine.step

    def counted() -> Any:
        passes["all"] += 1
        return step()

    llm.llm_engine.step = counted
    return passes


def _counters(llm: Any) -> dict[str, int]:
    values = {m.name: getattr(m, "value", 0) for m in llm.get_metrics()}
    return {name: values.get(key) or 0 for name, key in _COUNTERS.items()}


def run_apart(job: dict[str, Any]) -> dict[str, Any]:
    """`serve` in a process of its own. Raises NgtError where it fails."""
    command = [sys.executable, "-m", "tests.tools.vllm_bench", "--serve"]
    done = subprocess.run(
        command, input=json.dumps(job), capture_output=True, text=True, timeout=_MOST_S,
        env={**_ENVIRONMENT, **os.environ}, check=False,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        what = f"vLLM with {job['method']} failed: {last}"
        raise NgtError(what, "Install it as the README says.")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def row(job: dict[str, Any], result: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """The figures of one engine; `plain` is the result without drafts at the same number.

    The acceptance length is vLLM's: of the steps that had drafts, of each request by itself.
    """
    made = sum(map(len, result["answers"]))
    drafts = result["drafts"]
    same = sum(a == b for a, b in zip(result["answers"], plain["answers"], strict=True))
    return {
        "method": job["method"],
        "at_once": job["at_once"],
        "seconds": round(result["seconds"], 2),
        "new_tokens": made,
        "tokens_per_s": round(made / result["seconds"], 1),
        "speedup": round(plain["seconds"] / result["seconds"], 2),
        "passes": result["passes"],
        "mean_acceptance_length": round(1 + result["accepted_tokens"] / drafts, 2) if drafts else 1,
        "draft_acceptance_rate": round(
            result["accepted_tokens"] / max(1, result["drafted_tokens"]), 3
        ),
        "same_answers": same,
        "answers": len(plain["answers"]),
    }


class Kept:
    """Results of finished engines by job, in a file of JSON lines; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self._done = dict(json.loads(line) for line in lines)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """The result of `job`, from the file or from an engine."""
        key = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
        if key not in self._done:
            self._done[key] = run_apart(job)
            if self._path:
                with self._path.open("a") as file:
                    file.write(json.dumps([key, self._done[key]]) + "\n")
        result: dict[str, Any] = self._done[key]
        return result


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All engines, those without drafts first at each number of requests."""
    kept = Kept(arguments.state)
    others = builtin_items()[:_OTHERS] if arguments.paragraphs or arguments.prompts else []
    job = {
        "model": str(find(arguments.model)), "tokens": arguments.num_draft,
        "prompts": encoded(arguments.model, items_of(arguments)),
        "max_tokens": arguments.max_tokens, "dtype": arguments.dtype,
    }  # fmt: skip
    job["others"] = encoded(arguments.model, others) or job["prompts"][:1]
    rows = []
    methods = ["none", *(m for m in arguments.methods.split(",") if m != "none")]
    for at_once in map(int, arguments.at_once.split(",")):
        plain: dict[str, Any] = {}
        for method in methods:
            result = kept.run(job | {"at_once": at_once, "method": method})
            plain = plain or result
            rows.append(row({"method": method, "at_once": at_once}, result, plain))
            _tell(rows[-1])
    return rows


def _tell(figures: dict[str, Any]) -> None:
    print(
        f"{figures['method']:7} at {figures['at_once']:3}: {figures['tokens_per_s']:8.1f} tokens/s"
        f" ({figures['speedup']:.2f} x), acceptance length"
        f" {figures['mean_acceptance_length']:.2f}, {figures['passes']} passes, same answers"
        f" {figures['same_answers']}/{figures['answers']}",
        file=sys.stderr,
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or with --serve run one engine for the process that measures."""
    parser = argparse.ArgumentParser(description=__doc__, prog="vllm_bench")
    parser.add_argument("model", nargs="?", default="builtin")
    parser.add_argument("--prompts", type=Path, help="JSON lines, as for ngt bench")
    parser.add_argument("--paragraphs", type=Path, help="JSON lines with context and qas, or .xz")
    parser.add_argument("--state", type=Path, help="keep finished engines here, and go on")
    parser.add_argument("--limit", type=int, default=100, help="most prompts")
    parser.add_argument("--methods", default="ours,ngram,suffix")
    parser.add_argument("--at-once", default="1,8,32", help="requests at a time")
    parser.add_argument("--num-draft", type=int, default=16, help="longest chain")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        print(json.dumps(serve(json.load(sys.stdin))))
        return
    try:
        rows = measure(given)
    except NgtError as error:
        sys.exit(f"{error}\n{error.hint}")
    print(dump_json(rows))
    if any(r["method"] == "ours" and r["same_answers"] < r["answers"] for r in rows):
        sys.exit(DifferenceError.exit_code)


if __name__ == "__main__":
    main()
