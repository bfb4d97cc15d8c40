"""Other engines on this CPU, by the same shape: `python -m tests.tools.cpu_peers`.

llama.cpp, by its Python package, runs a GGUF of the shape with random weights, written here by the
package `gguf`; `transformers` generates with and without its prompt lookup; ours runs as it does in
replays. Measured are plain tokens/s behind a prompt, and passes by rows with scores for every row,
as verifying drafts needs. Contestants take turns, each in a process of its own, `--rounds` times;
reported are medians over all turns. What random weights accept of a prompt lookup means nothing, so
its tokens a pass stand beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ngtcli.config import SETTINGS, Settings
from ngtcli.decode.load import use_threads
from ngtcli.draft.tree import chain
from ngtcli.errors import UsageError
from ngtcli.measure.machine import processor
from ngtcli.measure.options import find_shape
from ngtcli.measure.shape_model import Plan, build, make_hf, plan
from ngtcli.render.tables import Column, Table, to_markdown
from ngtcli.system.json_form import dump_json

ROWS = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 5  # passes of each number of rows in a turn
GENERATED = 16  # tokens of a turn's plain decoding
MISSING = (
    "llama.cpp is left out; for it: CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python gguf"
)
_PEER = "llama.cpp Q8_0"  # that tokens/s are divided by
_PEERS = ("llama_cpp", "gguf")
_SOURCE_ROWS = 256  # rows of random weights that are quantised and repeated down a tensor


@dataclass(slots=True)
class Measured:
    """Of one contestant the seconds of plain tokens, of passes by rows, and tokens a pass."""

    token_s: list[float] = field(default_factory=list)
    pass_s: dict[int, list[float]] = field(default_factory=dict)
    tokens_a_pass: float = 1.0

    def add(self, turn: "Measured") -> None:
        """Add another turn, which may come from JSON."""
        self.token_s, self.tokens_a_pass = self.token_s + turn.token_s, turn.tokens_a_pass
        for rows, seconds in turn.pass_s.items():
            self.pass_s.setdefault(int(rows), []).extend(seconds)


def contestants() -> dict[str, Any]:
    """What can be measured here: by name a function from the arguments to `Measured`."""
    dtypes = ("float32", "bfloat16")
    made: dict[str, Any] = {f"ngt {d}": partial(_ours, Settings(dtype=d)) for d in dtypes}
    if "quantize" in SETTINGS:
        own: dict[str, Any] = {"quantize": "int8"}
        made["ngt int8"] = partial(_ours, Settings(**own))
    if all(map(find_spec, _PEERS)):
        made |= {f"llama.cpp {kind}": partial(_llama, kind) for kind in ("Q8_0", "F16")}
    made |= {f"transformers {dtype}": partial(_generate, dtype, {}) for dtype in dtypes}
    lookup = {"prompt_lookup_num_tokens": 10}
    return {**made, "transformers float32, prompt lookup": partial(_generate, "float32", lookup)}


def prompt(length: int) -> list[int]:
    """So many ids, the same few again and again."""
    return [100 + i % 64 for i in range(length)]


def _timed(work: Callable[[], object]) -> float:
    clock = time.perf_counter()
    work()
    return time.perf_counter() - clock


def _measured(
    args: argparse.Namespace, passed: Callable[[int], None], token: Callable[[], None]
) -> Measured:
    """What `passed` over so many rows takes, once it has made its buffers, and one `token`."""
    made = Measured()
    for rows in args.rows:
        passed(rows)
        made.pass_s[rows] = [_timed(partial(passed, rows)) for _ in range(REPEATS)]
    made.token_s = [_timed(token) for _ in range(GENERATED)]
    return made


def _ours(settings: Settings, args: argparse.Namespace) -> Measured:
    """Our passes, prepared and captured as a session has them."""
    model = build(plan(find_shape(args.shape), settings), settings, lambda _: None, False).model
    model.start(args.context + GENERATED + max(args.rows))
    model.prefill(prompt(args.context))

    def passed(rows: int) -> None:
        model.forward(100, chain(prompt(rows - 1))).argmax(-1).tolist()

    def token() -> None:
        passed(1)
        model.keep(())

    return _measured(args, passed, token)


def _generate(dtype: str, more: dict[str, int], args: argparse.Namespace) -> Measured:
    """`generate` on a model as `transformers` has it, from its second pass on."""
    hf = make_hf(plan(find_shape(args.shape), Settings(dtype=dtype)))
    ids, begun = torch.tensor([prompt(args.context)]), list[float]()
    hf.register_forward_pre_hook(lambda *_: begun.append(time.perf_counter()))
    limits = {"max_new_tokens": 1 + GENERATED, "min_new_tokens": 1 + GENERATED}
    with torch.inference_mode():
        hf.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0,
            **limits, **more,
        )  # fmt: skip
    seconds, passes = time.perf_counter() - begun[1], len(begun) - 1
    return Measured([seconds / GENERATED], {}, GENERATED / passes)


def write_gguf(planned: Plan, path: Path, kind: str) -> None:
    """A GGUF of a plan's shape without a tokenizer, its matrices random, of `kind` Q8_0 or F16.

    Rows repeat every _SOURCE_ROWS: passes cost what they cost with others. Raises UsageError for a
    shape that llama.cpp has under another name.
    """
    import gguf

    config = planned.config.get_text_config()
    if config.model_type not in ("llama", "qwen2", "qwen3"):
        raise UsageError(f"no GGUF is written of {config.model_type}", "Choose a llama or qwen.")
    architecture = gguf.MODEL_ARCH[config.model_type.upper()]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, config.model_type)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for key, value in {
        "tokenizer_model": "none", "vocab_size": config.vocab_size,
        "block_count": config.num_hidden_layers, "embedding_length": config.hidden_size,
        "context_length": config.max_position_embeddings, "head_count": config.num_attention_heads,
        "feed_forward_length": config.intermediate_size, "key_length": width,
        "head_count_kv": config.num_key_value_heads, "value_length": width,
        "rope_freq_base": float(config.rope_parameters["rope_theta"]),
        "rope_dimension_count": width, "layer_norm_rms_eps": config.rms_norm_eps,
    }.items():  # fmt: skip
        getattr(writer, f"add_{key}")(value)
    source, stored = np.random.default_rng(0), gguf.GGMLQuantizationType[kind]
    for name, parameter in planned.empty.named_parameters():
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if parameter.ndim == 1:
            writer.add_tensor(own, np.full(parameter.shape, name.endswith("weight"), np.float32))
            continue
        some = source.uniform(-0.035, 0.035, (_SOURCE_ROWS, parameter.shape[1]))
        packed = gguf.quants.quantize(some.astype(np.float32), stored)
        whole = np.resize(packed, (len(parameter), packed.shape[1]))
        writer.add_tensor(own, whole, raw_dtype=stored)
    for part in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{part}_to_file")()
    writer.close()


def _llama(kind: str, args: argparse.Namespace) -> Measured:
    """llama.cpp through its C interface: what a program that drafts by itself would call."""
    import llama_cpp as llama

    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, None)
    planned, defaults = plan(find_shape(args.shape), Settings()), llama.llama_model_default_params()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shape.gguf"
        write_gguf(planned, path, kind)
        model = llama.llama_model_load_from_file(os.fsencode(path), defaults)
    about = llama.llama_context_default_params()
    about.n_ctx = about.n_batch = args.context + GENERATED + max(args.rows) + 64
    about.n_threads = about.n_threads_batch = torch.get_num_threads()
    context = llama.llama_init_from_model(model, about)
    vocabulary = planned.config.get_text_config().vocab_size
    batch, length = llama.llama_batch_init(about.n_batch, 0, 1), 0

    def decode(ids: Sequence[int], scored: bool = True) -> None:
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, length + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, scored
        if llama.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        if scored:
            scores = llama.llama_get_logits(context)
            np.ctypeslib.as_array(scores, (len(ids), vocabulary)).argmax(-1).tolist()

    def passed(rows: int) -> None:
        decode(prompt(rows))
        llama.llama_memory_seq_rm(llama.llama_get_memory(context), 0, length, -1)

    def token() -> None:
        nonlocal length
        decode(prompt(1))
        length += 1

    decode(prompt(args.context), scored=False)
    length = args.context
    return _measured(args, passed, token)


def turn(name: str, arguments: Sequence[str]) -> Measured:
    """One contestant in a process of its own. Raises CalledProcessError."""
    command = [sys.executable, "-m", "tests.tools.cpu_peers", *arguments, "--worker", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def table(found: dict[str, Measured], rows: Sequence[int]) -> Table:
    """Medians: tokens/s, also by llama.cpp's; ms by rows, in brackets by those of one row."""
    speeds = {name: 1 / median(m.token_s) for name, m in found.items()}
    peer, cells = speeds.get(_PEER), []
    for name, m in found.items():
        ms = {r: 1e3 * median(seconds) for r, seconds in m.pass_s.items()}
        ratio = f"{speeds[name] / peer:.2f}" if peer else "–"
        shown = [f"{ms[r]:.1f} ({ms[r] / ms[rows[0]]:.2f})" if ms else "–" for r in rows]
        cells.append([name, f"{speeds[name]:.2f}", ratio, f"{m.tokens_a_pass:.1f}", *shown])
    titles = ["tokens/s", f"by {_PEER}", "tokens a pass", *(f"{r} rows" for r in rows)]
    return Table("", [Column("engine", left=True), *map(Column, titles)], cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in turns; print tables in Markdown, or JSON."""
    parser = argparse.ArgumentParser(description="Measure other engines on this CPU.")
    for flag, text in (("--shape", "qwen2.5-0.5b"), ("--only", ""), ("--worker", "")):
        parser.add_argument(flag, default=text)  # --only: parts of names, with commas
    for flag, number in (("--context", 500), ("--rounds", 2), ("--threads", 1)):
        parser.add_argument(flag, type=int, default=number)
    parser.add_argument("--rows", type=lambda s: [int(r) for r in s.split(",")], default=ROWS)
    own = list(sys.argv[1:] if arguments is None else arguments)
    args, every = parser.parse_args(own), contestants()
    if args.worker:
        use_threads(args.threads)
        print(dump_json(every[args.worker](args), indent=None))
        return
    if not all(map(find_spec, _PEERS)):
        print(MISSING, file=sys.stderr)
    names = [name for name in every if any(part in name for part in args.only.split(","))]
    found = {name: Measured() for name in names}
    for name in names * args.rounds:
        found[name].add(turn(name, own))
    print(to_markdown([table(found, args.rows)]))
    print(f"\n{args.shape} behind {args.context} tokens, {args.threads} threads, {processor()}")


if __name__ == "__main__":
    main()
