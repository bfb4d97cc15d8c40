"""vLLM with and without our drafts: `python -m ngtcli.evaluate.dev.vllm_bench [MODEL]`.

The same prompts go through vLLM with each method, at each number of requests at a time, greedily;
each engine runs in a process of its own. Answers are compared with those of the engine without
drafts at the same number: in float32 they must be the same. Acceptance is read from vLLM's own
counters. Exit code 6 where an answer of ours differs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ngtcli.errors import DifferenceError, NgtError, UsageError
from ngtcli.evaluate.prompts import builtin_items, read_jsonl
from ngtcli.model_files.checkpoint import find
from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.prompt.build import build_prompt
from ngtcli.prompt.preset import load_preset
from ngtcli.render.sinks import dump_json

OURS = "ngtcli.engines.vllm.NgramTrieProposer"
_COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "drafted_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
}
# vLLM's own on a CPU: gigabytes for keys and values, and no thread bound to a core.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
_MOST_S = 1800  # seconds that one engine may take; guess


def speculation(method: str, tokens: int) -> dict[str, Any] | None:
    """vLLM's `speculative_config` for a method; None for plain decoding. Raises UsageError."""
    known: dict[str, dict[str, Any] | None] = {
        "none": None,
        "ours": {"method": "custom_class", "model": OURS, "num_speculative_tokens": tokens},
        "ngram": {
            "method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 3,
            "prompt_lookup_min": 1,
        },
        "suffix": {"method": "suffix", "num_speculative_tokens": tokens},
    }  # fmt: skip
    if method not in known:
        raise UsageError(f"no method {method!r}", f"Choose from {', '.join(known)}.")
    return known[method]


def encoded(model: str, prompts: Path | None, limit: int) -> list[list[int]]:
    """The ids of the prompts, by the presets' templates."""
    tokenizer = load_tokenizer(model)
    items = read_jsonl(prompts) if prompts else builtin_items()
    return [
        list(build_prompt(load_preset(i.task), i.documents, i.question, tokenizer).ids)
        for i in items[:limit]
    ]


def serve(job: dict[str, Any]) -> dict[str, Any]:
    """Run one engine over the job's prompts, in this process."""
    from vllm import LLM, SamplingParams

    config = speculation(job["method"], job["tokens"])
    longest = max(map(len, job["prompts"])) + job["max_tokens"] + 1
    llm = LLM(
        job["model"], enforce_eager=True, dtype=job["dtype"], max_model_len=longest,
        max_num_seqs=job["at_once"], enable_prefix_caching=False, disable_log_stats=False,
        **({"speculative_config": config} if config else {}),
    )  # fmt: skip
    parameters = SamplingParams(temperature=0, max_tokens=job["max_tokens"])
    requests = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    llm.generate(requests[:1], parameters, use_tqdm=False)  # compiles and warms up
    before = _counters(llm)
    clock = time.perf_counter()
    answers = llm.generate(requests, parameters, use_tqdm=False)
    seconds = time.perf_counter() - clock
    counted = {name: value - before[name] for name, value in _counters(llm).items()}
    ids = [list(answer.outputs[0].token_ids) for answer in answers]
    return {"answers": ids, "seconds": seconds, **counted}


def _counters(llm: Any) -> dict[str, int]:
    values = {m.name: getattr(m, "value", 0) for m in llm.get_metrics()}
    return {name: values.get(key) or 0 for name, key in _COUNTERS.items()}


def run_apart(job: dict[str, Any]) -> dict[str, Any]:
    """`serve` in a process of its own. Raises NgtError where it fails."""
    command = [sys.executable, "-m", "ngtcli.evaluate.dev.vllm_bench", "--serve"]
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
    """The figures of one engine; `plain` is the result without drafts at the same number."""
    made = sum(map(len, result["answers"]))
    drafts = result["drafts"]
    same = sum(a == b for a, b in zip(result["answers"], plain["answers"], strict=True))
    return {
        "method": job["method"],
        "at_once": job["at_once"],
        "tokens_per_s": round(made / result["seconds"], 1),
        "speedup": round(plain["seconds"] / result["seconds"], 2),
        "mean_acceptance_length": round(1 + result["accepted_tokens"] / drafts, 2) if drafts else 1,
        "draft_acceptance_rate": round(
            result["accepted_tokens"] / max(1, result["drafted_tokens"]), 3
        ),
        "same_answers": same,
        "answers": len(plain["answers"]),
    }


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All engines, those without drafts first at each number of requests."""
    prompts = encoded(arguments.model, arguments.prompts, arguments.limit)
    rows = []
    methods = [m for m in arguments.methods.split(",") if m != "none"]
    for at_once in map(int, arguments.at_once.split(",")):
        job = {
            "model": str(find(arguments.model)), "prompts": prompts, "at_once": at_once,
            "tokens": arguments.num_draft, "max_tokens": arguments.max_tokens,
            "dtype": arguments.dtype, "method": "none",
        }  # fmt: skip
        plain = run_apart(job)
        rows.append(row(job, plain, plain))
        _tell(rows[-1])
        for method in methods:
            job["method"] = method
            rows.append(row(job, run_apart(job), plain))
            _tell(rows[-1])
    return rows


def _tell(figures: dict[str, Any]) -> None:
    print(
        f"{figures['method']:7} at {figures['at_once']:3}: {figures['tokens_per_s']:8.1f} tokens/s"
        f" ({figures['speedup']:.2f} x), acceptance length"
        f" {figures['mean_acceptance_length']:.2f}, same answers"
        f" {figures['same_answers']}/{figures['answers']}",
        file=sys.stderr,
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or with --serve run one engine for the process that measures."""
    parser = argparse.ArgumentParser(description=__doc__, prog="vllm_bench")
    parser.add_argument("model", nargs="?", default="builtin")
    parser.add_argument("--prompts", type=Path, help="JSON lines, as for ngt bench")
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
