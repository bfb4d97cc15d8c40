"""Other engines on this CPU, by the same shape: `python -m tests.tools.cpu_peers`.

llama.cpp, by its Python package, runs a GGUF of the shape with random weights, written here by the
package `gguf`; `transformers` generates; ours runs as it does in replays. Measured are plain
tokens/s after a prompt, passes by rows with scores for every row, as verifying drafts needs, and
ours with drafts over a recording, which says what is accepted: `--replay`, by default one of the
example texts, made here. Contestants take turns, each in a process of its own, `--rounds` times;
reported are medians over all turns. Instruction sets are compared by running it with
ONEDNN_MAX_CPU_ISA.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ngtcli.bench.results import versions
from ngtcli.config import Settings
from ngtcli.decoding.load import use_threads
from ngtcli.render.tables import Column, Table
from ngtcli.system.cpu import model_name
from ngtcli.system.json_form import dump_json
from tests.tools import gguf_files
from tests.tools.measuring.replaying import ReplayOptions, chosen_traces
from tests.tools.measuring.tables import to_markdown
from tests.tools.shapes.model import Built, Plan, build, check_memory, copies, find_shape, plan
from tests.tools.shapes.replay import replay_with_passes
from tests.tools.shapes.timing import generate_seconds, pass_seconds, plain_seconds

ROWS = (1, 4, 8, 16, 32, 64)
REPEATS = 5  # passes of each number of rows in a turn
GENERATED = 16  # tokens of a turn's plain decoding
MISSING = (
    "llama.cpp is left out; for it: CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python gguf"
)
OURS = {
    "ngt float32": Settings.of(dtype="float32"),
    "ngt bfloat16": Settings.of(dtype="bfloat16"),
    "ngt int8": Settings.of(quantize="int8"),  # float32 between layers
    "ngt int8-bfloat16": Settings.of(quantize="int8", dtype="bfloat16"),
}
_PEER, _BASE = "llama.cpp Q8_0", "ngt float32"  # that tokens/s, and passes, are divided by
_PEERS = ("llama_cpp", "gguf")
_SOURCE_ROWS = 256  # rows of random weights that are quantized and repeated down a tensor
Figures = dict[str, list[float]]  # of one contestant by what they are, of all turns


def contestants(args: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """What can be measured here, by name; `--only` keeps names with one of its words."""
    made: dict[str, Callable[[], Figures]] = {}
    made |= {name: partial(_ours, settings, args) for name, settings in OURS.items()}
    if all(map(find_spec, _PEERS)):
        made |= {f"llama.cpp {kind}": partial(_llama, kind, args) for kind in ("Q8_0", "F16")}
    for dtype in ("float32", "bfloat16"):
        made[f"transformers {dtype}"] = partial(_generate, dtype, args)
    words = {word for word in args.only.split(",") if word}
    return {name: work for name, work in made.items() if not words or words & {*name.split()}}


def prompt(length: int) -> list[int]:
    """So many ids, the same few again and again."""
    return [100 + i % 64 for i in range(length)]


def _built(settings: Settings, args: argparse.Namespace, stock: bool) -> Built:
    """A model of the shape. Raises ModelError where there is no room for it."""
    planned = plan(find_shape(args.shape), settings)
    check_memory(planned, 2 * args.context, copies(planned.device, settings, stock))
    return build(planned, settings, lambda _: None, stock)


def _ours(settings: Settings, args: argparse.Namespace) -> Figures:
    """Our passes, prepared and captured as a session has them; `auto` over the recording."""
    built = _built(settings, args, False)
    passes = pass_seconds(built.model, args.rows, args.context)
    made = {f"{rows} rows": seconds for rows, seconds in passes.items()}
    made["token"] = plain_seconds(built.model, prompt(args.context), GENERATED)
    if args.limit:
        budget, tasks = (
            (settings.drafting.num_draft,),
            [name for name in args.tasks.split(",") if name],
        )
        options = ReplayOptions(methods=["auto"], num_drafts=budget, tasks=tasks, limit=args.limit)
        traces = chosen_traces(args.replay, options, settings.reading.max_mb)
        rows = replay_with_passes(traces, built, options, settings).rows
        plain, auto = (next(r for r in rows if r.method == m) for m in ("none", "auto"))
        made["plain"], made["drafted"] = ([1 / (r.tokens_per_s or 1.0)] for r in (plain, auto))
        made["tokens a pass"] = [auto.mean_acceptance_length or 1.0]
    return made


def _generate(dtype: str, args: argparse.Namespace) -> Figures:
    """`generate` without drafts, on the model as `transformers` has it."""
    stock = _built(Settings.of(dtype=dtype, packed=False, capture=False), args, True).stock
    return {"token": [generate_seconds(stock, prompt(args.context), GENERATED)]}


def write_gguf(planned: Plan, path: Path, kind: str) -> None:
    """A GGUF of a plan's shape without a tokenizer, its matrices random, of `kind` Q8_0 or F16.

    Rows repeat every _SOURCE_ROWS: passes cost what they cost with others. Raises UsageError for a
    shape that is not written.
    """
    config = planned.config.get_text_config()
    gguf_files.write(path, config, _random(planned, gguf_files.names_of(config), kind))


def _random(planned: Plan, names: Any, kind: str) -> Iterator[gguf_files.Stored]:
    import gguf

    source, stored = np.random.default_rng(0), gguf.GGMLQuantizationType[kind]
    for name, parameter in planned.empty.named_parameters():
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if parameter.ndim == 1:
            yield own, np.full(parameter.shape, name.endswith("weight"), np.float32), "F32"
            continue
        some = source.uniform(-0.035, 0.035, (_SOURCE_ROWS, parameter.shape[1]))
        packed = gguf.quants.quantize(some.astype(np.float32), stored)
        yield own, np.resize(packed, (len(parameter), packed.shape[1])), kind


def _llama(kind: str, args: argparse.Namespace) -> Figures:
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

    def passed(rows: int, token: bool = False) -> float:
        nonlocal length
        clock = time.perf_counter()
        decode(prompt(rows))
        seconds, length = time.perf_counter() - clock, length + token
        llama.llama_memory_seq_rm(llama.llama_get_memory(context), 0, length, -1)
        return seconds

    decode(prompt(args.context), scored=False)
    length = args.context
    made: Figures = {}
    for rows in args.rows:  # the first makes its buffers
        made[f"{rows} rows"] = [passed(rows) for _ in range(REPEATS + 1)][1:]
    return {**made, "token": [passed(1, token=True) for _ in range(GENERATED)]}


def turn(name: str, arguments: Sequence[str]) -> Figures:
    """One contestant in a process of its own. Raises CalledProcessError."""
    command = [sys.executable, "-m", "tests.tools.cpu_peers", *arguments, "--worker", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def take_turns(names: Sequence[str], rounds: int, own: Sequence[str]) -> dict[str, Figures]:
    """All turns' figures by name, which says how those ended that give none; the others continue.

    llama.cpp ends by signal 11 on a CPU with AMX (seen on a Xeon).
    """
    found: dict[str, Figures] = {name: {} for name in names}
    ends = dict[str, str]()
    for number, name in enumerate([*names] * rounds, 1):
        print(f"Turn {number} of {len(names) * rounds}: {name}", file=sys.stderr)
        try:
            for key, figures in turn(name, own).items():
                found[name].setdefault(key, []).extend(figures)
        except subprocess.CalledProcessError as error:
            code = error.returncode
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            ends[name] = f"{name}, ended by {how}"
            print(ends[name], file=sys.stderr)
    return {name if made else ends.get(name, name): made for name, made in found.items()}


def _recorded(folder: Path, limit: int) -> str:
    """A recording of the built-in model's summaries of example texts."""
    command = f"-m tests.tools.record {folder} --tasks summarize --limit {limit}"
    subprocess.run([sys.executable, *command.split()], check=True, stdout=subprocess.DEVNULL)
    return str(folder)


def table(title: str, headings: Sequence[str], rows: Mapping[str, Sequence[float]]) -> Table:
    """A row for each engine; 0 is shown as what there is not."""
    cells = [[name, *(f"{x:.2f}" if x else "–" for x in row)] for name, row in rows.items()]
    return Table(title, [Column("engine", left=True), *map(Column, headings)], cells)


def tables(found: Mapping[str, Figures], rows: Sequence[int]) -> list[Table]:
    """Medians: tokens/s, with their ratios to plain llama.cpp; passes, to one row of float32."""

    def middle(name: str, key: str) -> float:
        return median(found.get(name, {}).get(key) or [0.0])

    def ratio(over: float, by: float) -> float:
        return over / by if by else 0.0

    peer, one = middle(_PEER, "token"), middle(_BASE, "1 rows")
    speeds, times = dict[str, list[float]](), dict[str, list[float]]()
    for name in found:
        token, plain, drafted = (middle(name, key) for key in ("token", "plain", "drafted"))
        ratios = [(1, token), (peer, token), (1, drafted), (peer, drafted), (plain, drafted)]
        speeds[name] = [*(ratio(*of) for of in ratios), middle(name, "tokens a pass")]
        times[name] = [middle(name, f"{r} rows") for r in rows]
    by_peer, of_rows = f"by {_PEER}", [f"{r} rows" for r in rows]
    by_one = {n: [ratio(s, one) for s in t] for n, t in times.items()}
    headings = ("plain", by_peer, "with drafts", by_peer, "by plain", "tokens a pass")
    return [
        table("Tokens/s", headings, speeds),
        table("Passes, ms", of_rows, {n: [1e3 * s for s in t] for n, t in times.items()}),
        table(f"By one row of {_BASE}", of_rows, by_one),
    ]


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure other engines on this CPU.")
    add = parser.add_argument
    add("--shape", default="qwen2.5-0.5b", help="a name or a file")
    add("--only", default="", help="words of names, with commas: ngt,Q8_0")
    add("--rows", type=lambda s: [int(r) for r in s.split(",")], default=ROWS)
    add("--context", type=int, default=500, help="tokens before plain decoding and passes")
    add("--rounds", type=int, default=2)
    add("--threads", type=int, default=1)
    add("--replay", type=Path, help="a recording, as of python -m tests.tools.record")
    add("--tasks", default="summarize", help="of the recording")
    add("--limit", type=int, default=2, help="most questions of a task; 0: nothing is drafted")
    add("--json", type=Path, help="write all that was measured here")
    add("--worker", default="", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in turns; print tables in Markdown, and write JSON."""
    own = list(sys.argv[1:] if arguments is None else arguments)
    args = _arguments(own)
    every = contestants(args)
    if args.worker:
        use_threads(args.threads)
        print(dump_json(every[args.worker](), indent=None))
        return
    if not all(map(find_spec, _PEERS)):
        print(MISSING, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        if args.limit and not args.replay:
            own += ["--replay", _recorded(Path(folder) / "recording", args.limit)]
        found = take_turns(list(every), args.rounds, own)
    about = {
        "of": args.shape,
        "context": args.context,
        "rounds": args.rounds,
        "threads": args.threads,
        "cpu": model_name(),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "versions": versions(),
    }
    print(to_markdown(tables(found, args.rows)))
    print(f"\n{json.dumps(about)}")
    if args.json:
        args.json.write_text(dump_json({**about, "measured": found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
