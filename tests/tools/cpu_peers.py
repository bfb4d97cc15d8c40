"""Measure other engines on this CPU with the same shape: `python -m tests.tools.cpu_peers`.

llama.cpp, by its Python package, runs a GGUF file of the shape with random weights, which is
written here with the package `gguf`; `transformers` runs `generate`; ngt runs as in replays.

It measures plain decoding after a prompt, in tokens/s; forward passes by their number of rows, with
logits for every row, as the verification of drafts needs them; and ngt's drafted decoding. A
recording decides which drafts are accepted: `--replay`, by default one of the example texts that is
made here.

The contestants take turns, each in a process of its own, `--rounds` times; the tables have medians
over all turns. To compare instruction sets, run it with ONEDNN_MAX_CPU_ISA.
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
GENERATED = 16  # tokens of plain decoding in a turn
MISSING = (
    "llama.cpp is left out; for it: CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python gguf"
)
NGT_SETTINGS = {
    "ngt float32": Settings.of(dtype="float32"),
    "ngt bfloat16": Settings.of(dtype="bfloat16"),
    "ngt int8": Settings.of(quantize="int8"),  # float32 between layers
    "ngt int8-bfloat16": Settings.of(quantize="int8", dtype="bfloat16"),
}
_SPEED_BASE = "llama.cpp Q8_0"  # tokens/s are divided by its
_PASS_BASE = "ngt float32"  # times of passes are divided by its
_LLAMA_PACKAGES = ("llama_cpp", "gguf")
_RANDOM_ROWS = 256  # distinct rows of a random matrix; they repeat

Figures = dict[str, list[float]]  # of one contestant, by their name, of all turns


def contestants(args: argparse.Namespace) -> dict[str, Callable[[], Figures]]:
    """The contestants that can be measured here, by name; `--only` chooses by words of names."""
    measures: dict[str, Callable[[], Figures]] = {}
    for name, settings in NGT_SETTINGS.items():
        measures[name] = partial(_measure_ngt, settings, args)
    if _has_llama():
        for kind in ("Q8_0", "F16"):
            measures[f"llama.cpp {kind}"] = partial(_measure_llama, kind, args)
    for dtype in ("float32", "bfloat16"):
        measures[f"transformers {dtype}"] = partial(_measure_generate, dtype, args)

    words = {word for word in args.only.split(",") if word}
    if not words:
        return measures
    return {name: measure for name, measure in measures.items() if words & set(name.split())}


def _has_llama() -> bool:
    return all(find_spec(package) for package in _LLAMA_PACKAGES)


def prompt(length: int) -> list[int]:
    """A prompt of `length` token ids, in which 64 ids repeat."""
    return [100 + i % 64 for i in range(length)]


def _build_model(settings: Settings, args: argparse.Namespace, stock: bool) -> Built:
    """A model of the shape. Raises ModelError if memory does not suffice."""
    shape_plan = plan(find_shape(args.shape), settings)
    check_memory(shape_plan, 2 * args.context, copies(shape_plan.device, settings, stock))
    return build(shape_plan, settings, lambda _: None, stock)


def _measure_ngt(settings: Settings, args: argparse.Namespace) -> Figures:
    """Measure ngt's passes, prepared and captured as in a session, and `auto` on the recording."""
    built = _build_model(settings, args, stock=False)
    figures: Figures = {}
    for rows, seconds in pass_seconds(built.model, args.rows, args.context).items():
        figures[f"{rows} rows"] = seconds
    figures["token"] = plain_seconds(built.model, prompt(args.context), GENERATED)

    if args.limit:
        options = ReplayOptions(
            methods=["auto"],
            num_drafts=(settings.drafting.num_draft,),
            tasks=[name for name in args.tasks.split(",") if name],
            limit=args.limit,
        )
        traces = chosen_traces(args.replay, options, settings.reading.max_mb)
        rows_by_method = {
            row.method: row for row in replay_with_passes(traces, built, options, settings).rows
        }
        plain = rows_by_method["none"]
        auto = rows_by_method["auto"]
        figures["plain"] = [1 / (plain.tokens_per_s or 1.0)]
        figures["drafted"] = [1 / (auto.tokens_per_s or 1.0)]
        figures["tokens a pass"] = [auto.mean_acceptance_length or 1.0]
    return figures


def _measure_generate(dtype: str, args: argparse.Namespace) -> Figures:
    """Measure `generate` without drafts, on the unchanged model of `transformers`."""
    settings = Settings.of(dtype=dtype, packed=False, capture=False)
    stock = _build_model(settings, args, stock=True).stock
    return {"token": [generate_seconds(stock, prompt(args.context), GENERATED)]}


def write_gguf(shape_plan: Plan, path: Path, kind: str) -> None:
    """Write a GGUF file of a shape, with random matrices of `kind` Q8_0 or F16, no tokenizer.

    Their rows repeat every _RANDOM_ROWS rows; that does not change how long passes take. Raises
    UsageError for a shape that cannot be written.
    """
    config = shape_plan.config.get_text_config()
    names = gguf_files.names_of(config)
    gguf_files.write(path, config, _random_tensors(shape_plan, names, kind))


def _random_tensors(shape_plan: Plan, names: Any, kind: str) -> Iterator[gguf_files.Stored]:
    """Yield the tensors of a GGUF file: vectors of ones or zeros, and random matrices."""
    import gguf

    generator = np.random.default_rng(0)
    quantization = gguf.GGMLQuantizationType[kind]
    for name, parameter in shape_plan.empty.named_parameters():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if parameter.ndim == 1:
            value = 1.0 if name.endswith("weight") else 0.0
            yield gguf_name, np.full(parameter.shape, value, np.float32), "F32"
            continue

        rows, columns = parameter.shape
        weights = generator.uniform(-0.035, 0.035, (_RANDOM_ROWS, columns)).astype(np.float32)
        packed = gguf.quants.quantize(weights, quantization)
        yield gguf_name, np.resize(packed, (rows, packed.shape[1])), kind


def _measure_llama(kind: str, args: argparse.Namespace) -> Figures:
    """Measure llama.cpp through its C interface, as a program with its own drafts would call it."""
    import llama_cpp as llama

    ignore_log = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(ignore_log, None)

    shape_plan = plan(find_shape(args.shape), Settings())
    vocabulary = shape_plan.config.get_text_config().vocab_size
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shape.gguf"
        write_gguf(shape_plan, path, kind)
        model_options = llama.llama_model_default_params()
        model = llama.llama_model_load_from_file(os.fsencode(path), model_options)

    max_tokens = args.context + GENERATED + max(args.rows) + 64
    threads = torch.get_num_threads()
    options = llama.llama_context_default_params()
    options.n_ctx = max_tokens
    options.n_batch = max_tokens
    options.n_threads = threads
    options.n_threads_batch = threads
    context = llama.llama_init_from_model(model, options)
    batch = llama.llama_batch_init(max_tokens, 0, 1)
    length = 0  # of the sequence in the KV cache

    def decode(ids: Sequence[int], with_logits: bool = True) -> None:
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = length + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = with_logits
        if llama.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        if with_logits:
            logits = llama.llama_get_logits(context)
            np.ctypeslib.as_array(logits, (len(ids), vocabulary)).argmax(-1).tolist()

    def timed_pass(rows: int, keep: bool = False) -> float:
        """The seconds of a pass; with `keep` its first token stays in the KV cache."""
        nonlocal length
        started = time.perf_counter()
        decode(prompt(rows))
        seconds = time.perf_counter() - started
        if keep:
            length += 1
        llama.llama_memory_seq_rm(llama.llama_get_memory(context), 0, length, -1)
        return seconds

    decode(prompt(args.context), with_logits=False)
    length = args.context
    figures: Figures = {}
    for rows in args.rows:
        timed_pass(rows)  # The first pass of a size allocates buffers, so it does not count.
        figures[f"{rows} rows"] = [timed_pass(rows) for _ in range(REPEATS)]
    figures["token"] = [timed_pass(1, keep=True) for _ in range(GENERATED)]
    return figures


def turn(name: str, arguments: Sequence[str]) -> Figures:
    """Measure one contestant in a process of its own. Raises CalledProcessError."""
    command = [sys.executable, "-m", "tests.tools.cpu_peers", *arguments, "--worker", name]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    figures: Figures = json.loads(process.stdout.splitlines()[-1])
    return figures


def take_turns(names: Sequence[str], rounds: int, arguments: Sequence[str]) -> dict[str, Figures]:
    """The figures of all turns by contestant. If one fails, the others continue.

    The name of one without any figures says how its process ended. (On a Xeon with AMX, llama.cpp
    was ended by signal 11.)
    """
    figures: dict[str, Figures] = {name: {} for name in names}
    failures: dict[str, str] = {}
    for number, name in enumerate([*names] * rounds, 1):
        print(f"Turn {number} of {len(names) * rounds}: {name}", file=sys.stderr)
        try:
            figures_of_turn = turn(name, arguments)
        except subprocess.CalledProcessError as error:
            code = error.returncode
            ending = f"signal {-code}" if code < 0 else f"exit code {code}"
            failures[name] = f"{name}, ended by {ending}"
            print(failures[name], file=sys.stderr)
            continue
        for key, values in figures_of_turn.items():
            figures[name].setdefault(key, []).extend(values)

    labelled: dict[str, Figures] = {}
    for name, values_by_key in figures.items():
        label = name if values_by_key else failures.get(name, name)
        labelled[label] = values_by_key
    return labelled


def _record(folder: Path, limit: int) -> str:
    """Record the built-in model's summaries of example texts; return the recording's path."""
    arguments = f"-m tests.tools.record {folder} --tasks summarize --limit {limit}"
    command = [sys.executable, *arguments.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return str(folder)


def table(title: str, headings: Sequence[str], rows: Mapping[str, Sequence[float]]) -> Table:
    """A table with a row for each engine; a 0 stands for a missing value and is shown as a dash."""
    columns = [Column("engine", left=True), *map(Column, headings)]
    cells = []
    for name, values in rows.items():
        cells.append([name, *(f"{value:.2f}" if value else "–" for value in values)])
    return Table(title, columns, cells)


def tables(figures: Mapping[str, Figures], rows: Sequence[int]) -> list[Table]:
    """The medians: tokens/s, and their ratios to llama.cpp; passes, and their ratios to float32."""

    def median_of(name: str, key: str) -> float:
        values = figures.get(name, {}).get(key)
        return median(values) if values else 0.0

    def ratio(dividend: float, divisor: float) -> float:
        return dividend / divisor if divisor else 0.0

    base_token = median_of(_SPEED_BASE, "token")
    base_pass = median_of(_PASS_BASE, "1 rows")
    speeds: dict[str, list[float]] = {}
    milliseconds: dict[str, list[float]] = {}
    pass_ratios: dict[str, list[float]] = {}
    for name in figures:
        token = median_of(name, "token")
        plain = median_of(name, "plain")
        drafted = median_of(name, "drafted")
        speeds[name] = [
            ratio(1, token),
            ratio(base_token, token),
            ratio(1, drafted),
            ratio(base_token, drafted),
            ratio(plain, drafted),
            median_of(name, "tokens a pass"),
        ]
        passes = [median_of(name, f"{count} rows") for count in rows]
        milliseconds[name] = [1e3 * seconds for seconds in passes]
        pass_ratios[name] = [ratio(seconds, base_pass) for seconds in passes]

    by_base = f"by {_SPEED_BASE}"
    speed_headings = ("plain", by_base, "with drafts", by_base, "by plain", "tokens a pass")
    pass_headings = [f"{count} rows" for count in rows]
    return [
        table("Tokens/s", speed_headings, speeds),
        table("Passes, ms", pass_headings, milliseconds),
        table(f"By one row of {_PASS_BASE}", pass_headings, pass_ratios),
    ]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure other engines on this CPU.")
    add = parser.add_argument
    add("--shape", default="qwen2.5-0.5b", help="a name or a file")
    add("--only", default="", help="words of names, with commas: ngt,Q8_0")
    add("--rows", type=lambda text: [int(part) for part in text.split(",")], default=ROWS)
    add("--context", type=int, default=500, help="tokens before plain decoding and passes")
    add("--rounds", type=int, default=2)
    add("--threads", type=int, default=1)
    add("--replay", type=Path, help="a recording, as of python -m tests.tools.record")
    add("--tasks", default="summarize", help="of the recording")
    add("--limit", type=int, default=2, help="most questions of a task; 0: nothing is drafted")
    add("--json", type=Path, help="write all that was measured here")
    add("--worker", default="", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure in turns; print tables in Markdown, and write JSON."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parse_arguments(arguments)
    measures = contestants(args)
    if args.worker:
        use_threads(args.threads)
        print(dump_json(measures[args.worker](), indent=None))
        return

    if not _has_llama():
        print(MISSING, file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        if args.limit and not args.replay:
            recording = _record(Path(folder) / "recording", args.limit)
            arguments += ["--replay", recording]
        figures = take_turns(list(measures), args.rounds, arguments)

    environment = {
        "of": args.shape,
        "context": args.context,
        "rounds": args.rounds,
        "threads": args.threads,
        "cpu": model_name(),
        "ONEDNN_MAX_CPU_ISA": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "versions": versions(),
    }
    print(to_markdown(tables(figures, args.rows)))
    print(f"\n{json.dumps(environment)}")
    if args.json:
        contents = dump_json({**environment, "measured": figures})
        args.json.write_text(contents + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
