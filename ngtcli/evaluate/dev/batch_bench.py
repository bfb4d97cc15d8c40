"""Several texts in one pass, timed: `python -m ngtcli.evaluate.dev.batch_bench [MODEL]`.

The same prompts are answered one by one and in batches, without drafts and by `auto`, and by
`transformers`: generate over left-padded batches in the order of their lengths, and its continuous
batching (generate_batch). All take turns, `--rounds` times; the best of each counts. Tokens a
second are of the whole work, prompts included. Memory is what the process held at most beyond what
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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from ngtcli.auto_memory import PassCosts
from ngtcli.config import Settings
from ngtcli.decode.batch.drafts import Drafts, OwnDrafts, joint_drafts
from ngtcli.decode.batch.run import Batch, Begun, Member
from ngtcli.decode.continuation import Continuation
from ngtcli.decode.load import load_model, use_threads
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits
from ngtcli.draft.auto.costs import Costs
from ngtcli.draft.auto.pool import TOKENS, Pool
from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.registry import parse_method
from ngtcli.errors import DifferenceError, NgtError
from ngtcli.evaluate.prompts import builtin_items, read_jsonl
from ngtcli.evaluate.replay.shape_decode import RecordedRun, RecordedText
from ngtcli.evaluate.replay.shape_files import find_shape
from ngtcli.evaluate.replay.shape_model import build, plan
from ngtcli.evaluate.replay.traces import Trace, read_traces
from ngtcli.model_files.checkpoint import find
from ngtcli.model_files.pretrained import transformers_quiet
from ngtcli.prompt.build import build_prompt
from ngtcli.prompt.preset import load_preset
from ngtcli.render.sinks import dump_json

_GREEDY, _NODES, _PAGE = SamplingSettings(), 32, 256
Answers = list[list[int]]


class _ReadRun(RecordedRun):
    """A recorded run that reads its prompt, too."""

    def _prefill(self) -> None:
        Run._prefill(self)


@dataclass(frozen=True)
class World:
    """The model as we run it, the one for generate, the prompts, and the answers if recorded."""

    model: TargetModel
    stock: Any
    prompts: list[list[int]]
    max_tokens: int
    recorded: tuple[Trace, ...] = ()
    costs: Costs | None = None

    def drafts(self, method: str) -> Drafts:
        if method == "none":
            return OwnDrafts(lambda: self.drafter(method), 0)
        return joint_drafts(self.costs, Pool(TOKENS), _NODES)

    def drafter(self, method: str) -> Drafter:
        settings = DraftSettings(costs=self.costs, pool=Pool(TOKENS))
        return parse_method(method, settings).build()

    def text(self, i: int, context: Context) -> Continuation:
        limits = Limits(self.max_tokens, _NODES)
        if self.recorded:
            return RecordedText(self.model, context, self.recorded[i], limits)
        return Continuation(self.model, context, _GREEDY, limits)

    def run(self, i: int, drafter: Drafter, context: Context) -> Run:
        if self.recorded:
            return _ReadRun(self.model, drafter, context, self.recorded[i], _NODES)
        return Run(self.model, drafter, context, _GREEDY, Limits(self.max_tokens, _NODES))

    def context(self, i: int) -> Context:
        return Context(self.prompts[i], vocabulary=self.model.vocabulary)

    def most(self, i: int) -> int:
        """Tokens of an answer at most; of a recorded one just as many."""
        return len(self.recorded[i].output_ids) if self.recorded else self.max_tokens


def one_by_one(method: str, world: World) -> Answers:
    """Ours as it is without a batch."""
    drafter, found = world.drafter(method), []
    for i in range(len(world.prompts)):
        found.append(world.run(i, drafter, world.context(i)).finish().output)
        drafter.finish()
    return found


def together(method: str, size: int, world: World) -> Answers:
    """Ours in batches."""
    batch, members = Batch(world.model, world.drafts(method), size), list[Member]()
    at = 0
    while at < len(world.prompts) or not batch.done:
        while at < len(world.prompts) and batch.takes_more:
            context = world.context(at)
            members += batch.add(Begun(at, world.text(at, context), context))
            at += 1
        members += batch.step()
    return [m.text.output for m in sorted(members, key=lambda m: int(m.given))]


def _generation(world: World) -> GenerationConfig:
    ends = sorted(world.model.end_ids) if not world.recorded else None
    return GenerationConfig(
        max_new_tokens=world.max_tokens, do_sample=False, eos_token_id=ends, pad_token_id=0
    )


def _cut(found: list[int], ends: frozenset[int]) -> list[int]:
    """Up to the first end token, it included."""
    at = next((i + 1 for i, token in enumerate(found) if token in ends), len(found))
    return found[:at]


@torch.inference_mode()
def generate(size: int, world: World) -> Answers:
    """`transformers` over batches padded on the left."""
    config, found = _generation(world), dict[int, list[int]]()
    order = sorted(range(len(world.prompts)), key=lambda i: len(world.prompts[i]))
    for start in range(0, len(order), size):
        own = order[start : start + size]
        longest = max(len(world.prompts[i]) for i in own)
        ids = torch.zeros((len(own), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(own):
            ids[row, longest - len(world.prompts[i]) :] = torch.tensor(world.prompts[i])
            mask[row, longest - len(world.prompts[i]) :] = 1
        config.max_new_tokens = max(world.most(i) for i in own)
        out = world.stock.generate(ids, attention_mask=mask, generation_config=config)
        for row, i in enumerate(own):
            found[i] = _cut(out[row, longest:].tolist(), world.model.end_ids)[: world.most(i)]
    return [found[i] for i in range(len(order))]


def generate_batch(size: int, world: World) -> Answers:
    """`transformers`' continuous batching, in as many pages as `size` texts need."""
    pages = max(-(-(len(p) + world.max_tokens + 1) // _PAGE) for p in world.prompts)
    config = ContinuousBatchingConfig(
        num_blocks=size * pages, max_batch_tokens=512, max_requests_per_batch=size,
        use_async_batching=False, use_cuda_graph=False,
    )  # fmt: skip
    own = world.stock.config._attn_implementation
    with world.stock.continuous_batching_context_manager(
        generation_config=_generation(world), continuous_batching_config=config, warmup=False,
    ) as manager:  # fmt: skip
        ids = [
            manager.add_request(ids, max_new_tokens=world.most(i))
            for i, ids in enumerate(world.prompts)
        ]
        done = dict[str, list[int]]()
        while len(done) < len(ids):
            if (result := manager.get_result(timeout=60)) is None:
                raise NgtError("generate_batch gave nothing for a minute")
            if result.error is not None:
                raise NgtError(f"generate_batch failed: {result.error}")
            if result.is_finished():
                done[result.request_id] = list(result.generated_tokens)
    world.stock.set_attn_implementation(own)
    return [_cut(done[i], world.model.end_ids) for i in ids]


def contestants(sizes: Sequence[int], against: bool) -> dict[str, Callable[[World], Answers]]:
    """All that take part, by name."""
    found: dict[str, Callable[[World], Answers]] = {}
    for method in ("none", "auto"):
        found[f"one by one, {method}"] = partial(one_by_one, method)
        for size in sizes:
            found[f"batch {size}, {method}"] = partial(together, method, size)
    for size in sizes if against else ():
        found[f"generate, {size} padded"] = partial(generate, size)
        found[f"generate_batch, {size}"] = partial(generate_batch, size)
    return found


def measure(world: World, rounds: int, chosen: dict[str, Callable[[World], Answers]]) -> list[Any]:
    """A row for each contestant: the best of its rounds, and whether its answers are the same."""
    base, rows = _resident("VmRSS"), dict[str, dict[str, Any]]()
    truth: Answers = []
    for turn in range(rounds):
        for name, work in chosen.items() if turn % 2 == 0 else reversed(chosen.items()):
            _forget_peak()
            clock = time.perf_counter()
            try:
                found = work(world)
            except Exception as error:  # whatever another library raises is its result
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            seconds = time.perf_counter() - clock
            truth = truth or found
            row = rows.setdefault(name, {"name": name, "tokens_per_s": 0.0, "peak_mb": 0.0})
            tokens = sum(map(len, found))
            row["tokens_per_s"] = max(row["tokens_per_s"], round(tokens / seconds, 1))
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
