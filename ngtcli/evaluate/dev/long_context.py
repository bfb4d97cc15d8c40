"""Steps and prefill behind long texts: `python -m ngtcli.evaluate.dev.long_context`.

A tiny random Llama with full attention, and one with a sliding window on every other layer, read
texts of 1k, 16k and 60k tokens. A table (or --json) of what a step takes greedy, and sampled with
penalties, without drafts and with a draft of 32 nodes; of its part outside the forward pass, which
must not grow with the text; and of how much memory prefill takes beside the cache.
"""

import argparse
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ngtcli.decode.load import use_threads
from ngtcli.decode.loop import Run
from ngtcli.decode.model import PREFILL_CHUNK, TargetModel
from ngtcli.decode.sampling import SamplingSettings
from ngtcli.decode.steps import Limits
from ngtcli.draft.drafter import Context, Drafter
from ngtcli.draft.tree import DraftTree
from ngtcli.render.sinks import dump_json
from ngtcli.tokens.tokenizer import Tokenizer

LENGTHS = (1_000, 16_000, 60_000)  # tokens
ATTENTION = ("full", "sliding")
WINDOW = 1024  # positions of a sliding layer
SAMPLED = SamplingSettings(
    temperature=0.8, top_p=0.9, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1
)
_NODES = 32  # of a draft
_KINDS = ("greedy", "greedy_drafts", "sampled", "sampled_drafts")
_ROW = "{:>9} {:>7} {:>9} {:>6} {:>16} {:>16} {:>16} {:>16}"


class ReadOnce(TargetModel):
    """Reads its prompt once; each run after the first starts behind it."""

    _done = 0  # tokens

    def start(self, capacity: int, rows: int | None = None, ids: Sequence[int] = ()) -> None:
        if self._done:
            self.truncate(self._done)
        else:
            super().start(capacity)

    def prefill(
        self,
        ids: Sequence[int],
        chunk: int = PREFILL_CHUNK,
        progress: Callable[[int], object] = lambda _: None,
    ) -> None:
        if not self._done:
            super().prefill(ids, chunk, progress)
            self._done = self.length


class Letters:
    """A tokenizer whose token i is the character of code i + 256."""

    eos_token_id = None
    chat_template = None
    is_fast = False
    model_max_length = 10**9

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(c) - 256 for c in text]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join(chr(i + 256) for i in ids)

    def get_vocab(self) -> dict[str, int]:
        return {}


def tiny_model(vocabulary: int, context: int, attention: str) -> TargetModel:
    """Two layers of random weights; of a "sliding" one the first sees the last WINDOW positions."""
    import transformers

    common = {
        "vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": context, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": None,
    }  # fmt: skip
    torch.manual_seed(0)
    config: Any = transformers.LlamaConfig(**common)
    if attention == "sliding":
        kinds = ["sliding_attention", "full_attention"]
        window = {"sliding_window": WINDOW, "use_sliding_window": True, "layer_types": kinds}
        config = transformers.Qwen2Config(**common, **window)
    hf = transformers.AutoModelForCausalLM.from_config(config).eval()
    return ReadOnce(hf, Tokenizer(Letters()), attention)


class Repeating(Drafter):
    """Chains of `nodes` tokens of the text, nearly all wrong for a random model."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def reset(self, context: Context) -> None:
        pass

    def observe(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, ids: Sequence[int], budget: int) -> DraftTree:
        tail = ids[-self._nodes :] if self._nodes else ()
        return DraftTree(tuple(tail), tuple(range(-1, len(tail) - 1)))


class PeakGrowth:
    """Bytes by which the memory of the process (or of the GPU) grows in a block, at most."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.bytes = device, 0
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakGrowth":
        self._start = self._now()
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._watcher.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(0.002):
            self._look()

    def _look(self) -> None:
        self.bytes = max(self.bytes, self._now() - self._start)

    def _now(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.memory_reserved(self._device)
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        except OSError:  # not on this system
            return 0
        return pages * 4096


def text_of(tokens: int, vocabulary: int) -> list[int]:
    """Ids in which few tokens are frequent and many are rare, as in a text."""
    rng = random.Random(0)
    return [min(int(rng.paretovariate(0.7)), vocabulary - 1) for _ in range(tokens)]


def measure(model: TargetModel, tokens: int, vocabulary: int, steps: int) -> dict[str, Any]:
    """Milliseconds of a step (medians) and of its part beside the pass; prefill's time and MB."""
    ids = text_of(tokens, vocabulary)
    row: dict[str, Any] = {"attention": model.name, "tokens": tokens}
    for name, sampling, nodes in (
        ("greedy", SamplingSettings(), 0), ("greedy_drafts", SamplingSettings(), _NODES),
        ("sampled", SAMPLED, 0), ("sampled_drafts", SAMPLED, _NODES),
    ):  # fmt: skip
        context = Context(ids, vocabulary=vocabulary)
        run = Run(model, Repeating(nodes), context, sampling, Limits(steps + 1, _NODES), True)
        with PeakGrowth(model.device) as growth:
            iterator = iter(run)
            next(iterator)  # prefill, and a first step to warm up
        if name == "greedy":
            row["prefill_s"] = round(run.statistics.prefill_s, 3)
            row["prefill_mb"] = round(growth.bytes / 1e6)
        row[name] = _steps(run, iterator)
    return row


def _steps(run: Run, iterator: Any) -> dict[str, float]:
    taken: list[float] = []
    beside: list[float] = []
    while True:
        clock, forward = time.perf_counter(), run.statistics.split_s["forward"]
        if next(iterator, None) is None:
            break
        seconds = time.perf_counter() - clock
        taken.append(seconds * 1e3)
        beside.append((seconds - (run.statistics.split_s["forward"] - forward)) * 1e3)
    return {
        "step_ms": round(statistics.median(taken), 3),
        "beside_ms": round(statistics.median(beside), 3),
    }


def heading() -> str:
    """The lines above the table's rows."""
    names = ("greedy", f"{_NODES} nodes", "sampled", f"{_NODES} nodes")
    what = "Prefill, then milliseconds of a step, in brackets those beside the pass"
    return f"{what}\n{_ROW.format('attention', 'tokens', 'seconds', 'MB', *names)}"


def line(row: dict[str, Any]) -> str:
    """The table's row."""
    cells = [f"{row[kind]['step_ms']:.2f} ({row[kind]['beside_ms']:.2f})" for kind in _KINDS]
    start = (row["attention"], row["tokens"], f"{row['prefill_s']:.2f}", row["prefill_mb"])
    return _ROW.format(*start, *cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table, row by row, or JSON."""
    parser = argparse.ArgumentParser(description="Measure steps and prefill behind long texts.")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens")
    parser.add_argument("--attention", nargs="+", choices=ATTENTION, default=ATTENTION)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as cores are idle")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    use_threads(args.threads)
    rows = []
    if not args.json:
        print(heading())
    for kind in args.attention:
        for tokens in args.lengths:
            context = tokens + 2 * _NODES + args.steps * (_NODES + 1)
            model = tiny_model(args.vocabulary, context, kind)
            rows.append(measure(model, tokens, args.vocabulary, args.steps))
            if not args.json:
                print(line(rows[-1]), flush=True)
    if args.json:
        print(dump_json({"vocabulary": args.vocabulary, "steps": args.steps, "rows": rows}))


if __name__ == "__main__":
    main()
