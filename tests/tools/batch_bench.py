"""Several texts in one pass, timed: `python -m tests.tools.batch_bench [MODEL]`.

The same prompts are answered one by one and in batches, without drafts and by `auto`, and by
`transformers`: generate over left-padded batches in the order of their lengths, and its continuous
batching (generate_batch). All take turns, `--rounds` times; the best of each counts. Tokens a
second are of the whole work, prompts included; of seconds of the clock, and of the processor, which
depend less on what else the machine does. Memory is what the process held at most beyond what
it held before the first of them. Answers are compared with those given one by one without drafts.

With --shape NAME and --recording FOLDER a model of that shape with random weights does the work;
answers are then those recorded, of which the first `--max-tokens` count. generate runs for as many
steps as the longest answer of its batch has.
"""

import argparse
import ctypes
import gc
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ngtcli.config import Settings
from ngtcli.decode.load import load_model, use_threads
from ngtcli.errors import DifferenceError
from ngtcli.measure.prompts import builtin_items, read_jsonl
from ngtcli.measure.shape_files import find_shape
from ngtcli.measure.shape_model import build, plan
from ngtcli.measure.traces import read_traces
from ngtcli.model_files.checkpoint import find
from ngtcli.model_files.pretrained import transformers_quiet
from ngtcli.prompt.build import build_prompt
from ngtcli.prompt.preset import load_preset
from ngtcli.render.sinks import dump_json
from ngtcli.session.memory import PassCosts
from tests.tools.batch_contestants import Answers, World, contestants

_BEST = ("tokens_per_s", "tokens_per_cpu_s", "peak_mb")


def measure(world: World, rounds: int, chosen: dict[str, Callable[[World], Answers]]) -> list[Any]:
    """A row for each contestant: the best of its rounds, and whether its answers are the same."""
    base, rows = _resident("VmRSS"), dict[str, dict[str, Any]]()
    truth: Answers = []
    for turn in range(rounds):
        for name, work in chosen.items() if turn % 2 == 0 else reversed(chosen.items()):
            _forget_peak()
            clock, cpu = time.perf_counter(), time.process_time()
            try:
                found = work(world)
            except Exception as error:  # whatever another library raises is its result
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            seconds, cpu = time.perf_counter() - clock, time.process_time() - cpu
            truth = truth or found
            row = rows.setdefault(name, {"name": name, **dict.fromkeys(_BEST, 0.0)})
            tokens = sum(map(len, found))
            row["tokens_per_s"] = max(row["tokens_per_s"], round(tokens / seconds, 1))
            row["tokens_per_cpu_s"] = max(row["tokens_per_cpu_s"], round(tokens / cpu, 1))
            row["peak_mb"] = max(row["peak_mb"], round(_resident("VmHWM") - base, 1))
            row["same"] = sum(a == b for a, b in zip(found, truth, strict=True))
            row["tokens"] = tokens
            print(f"{name:24} {seconds:7.1f} s  {row}", file=sys.stderr, flush=True)
    return list(rows.values())


def _forget_peak() -> None:
    """Let the process's peak begin anew, with what is free given back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _resident(name: str) -> float:
    """Megabytes: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def _loaded(given: argparse.Namespace) -> World:
    """A real model and prompts by the presets' templates."""
    model = load_model(given.model, "cpu", "float32")
    items = (read_jsonl(given.prompts) if given.prompts else builtin_items())[: given.limit]
    ids = [
        list(build_prompt(load_preset(i.task), i.documents, i.question, model.tokenizer).ids)
        for i in items
    ]
    auto = transformers_quiet().AutoModelForCausalLM
    stock = auto.from_pretrained(find(given.model), dtype=torch.float32).eval()
    return World(model, stock, ids, given.max_tokens)


def _shaped(given: argparse.Namespace) -> World:
    """A model with random weights, and recorded answers to prompts that are not long."""
    settings = Settings(device="cpu", dtype="float32", threads=given.threads)
    traces = read_traces(given.recording, "", "first", settings.max_mb).traces
    short = [t for t in traces if len(t.prompt_ids) <= given.max_prompt]
    random.Random(0).shuffle(short)
    cut = tuple(
        replace(t, output_ids=t.output_ids[: given.max_tokens]) for t in short[: given.limit]
    )
    built = build(plan(find_shape(given.shape), settings), settings, print, given.against)
    prompts = [list(t.prompt_ids) for t in cut]
    return World(built.model, built.stock, prompts, given.max_tokens, cut)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the rows as JSON. Exit code 6 where an answer of ours differs."""
    parser = argparse.ArgumentParser(description=__doc__, prog="batch_bench")
    parser.add_argument("model", nargs="?", default="builtin")
    parser.add_argument("--prompts", type=Path, help="JSON lines, as for ngt bench")
    parser.add_argument("--shape", help="random weights of this shape")
    parser.add_argument("--recording", type=Path, help="the answers, with --shape")
    parser.add_argument("--max-prompt", type=int, default=128, help="tokens, with --recording")
    parser.add_argument("--limit", type=int, default=200, help="most prompts")
    parser.add_argument("--sizes", default="4,16,64")
    parser.add_argument("--only", default="", help="those whose names hold one of these words")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--against", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args(arguments)
    use_threads(given.threads)
    world = _shaped(given) if given.shape else _loaded(given)
    chosen = contestants([int(s) for s in given.sizes.split(",")], given.against)
    if words := [word.strip() for word in given.only.split(";") if word.strip()]:
        chosen = {n: w for n, w in chosen.items() if any(word in n for word in words)}
    costs = PassCosts(world.model, False, print, print).load(True)
    rows = measure(replace(world, costs=costs), given.rounds, chosen)
    print(dump_json(rows))
    if any(r["same"] < len(world.prompts) for r in rows if "generate" not in r["name"]):
        sys.exit(DifferenceError.exit_code)


if __name__ == "__main__":
    main()
