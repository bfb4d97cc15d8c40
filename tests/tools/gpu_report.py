"""One report of what a machine does: `python -m tests.tools.gpu_report`.

Needs no network and no weights but the built-in model's. For that model and for shapes with random
weights it says: are scores `transformers`' own, are drafted tokens plain decoding's (float32, then
bfloat16 as it is and with exact decoding); how long passes take beside reading the weights at the
measured bandwidth of a copy; plain decoding beside generate (dynamic, static, compiled); and what
methods gain where a recording decides what is accepted. Without --replay the recording is made
here, by the built-in model of the example texts. A part that fails says so and the others go on.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ngtcli.config import Settings
from ngtcli.decode.load import use_threads
from ngtcli.measure.live import build_prompts, record
from ngtcli.measure.machine import processor, versions
from ngtcli.measure.options import find_shape
from ngtcli.measure.prompts import builtin_items, choose
from ngtcli.measure.replay import select
from ngtcli.measure.shape_model import Built, build, check_memory, copies, dtype_name, plan
from ngtcli.measure.traces import TraceSet, read_traces
from ngtcli.render.tables import Column, Table, to_plain
from ngtcli.session.local import LocalSession
from ngtcli.system.json_form import dump_json
from ngtcli.system.machine import pick_device
from tests.tools.gpu_parts import Line, Parts, Report, bandwidth, say

_SHAPES = {"cuda": "qwen2.5-0.5b,llama-3.1-8b,qwen3-30b-a3b"}
_METHODS = "prompt-lookup,suffix:max_spec_factor=64,trie,auto"


def run(args: argparse.Namespace) -> Report:
    """All parts, in the order of the table."""
    report = Report(time.monotonic() + 60 * args.minutes)
    device = pick_device(args.device)
    settings = Settings(device=device, dtype=args.dtype, threads=args.threads)
    use_threads(args.threads)
    rate = bandwidth(torch.device(device))
    own = own_recording(settings, args)
    traces = read_traces(args.replay) if args.replay else own
    chosen = tuple(select(traces.traces, args.tasks, args.questions))
    traces = replace(traces, traces=chosen)
    report.about = _about(device, rate, traces)
    report.lines.append(
        Line("machine", device, report.about["device_name"], f"{rate / 1e9:.0f} GB/s")
    )
    parts = Parts(args, settings, traces)
    report.add("scores", "builtin", parts.builtin_scores)
    for dtype, exact in (("float32", False), ("bfloat16", False), ("bfloat16", True)):
        name = f"builtin {dtype}{' exact' if exact else ''}"
        report.add("same tokens", name, partial(parts.sameness, dtype, exact, own))
    for shape in args.shapes:
        _shape(report, parts, shape, settings, args, rate)
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return report


def _shape(
    report: Report, parts: Parts, name: str, settings: Settings, args: argparse.Namespace,
    rate: float,
) -> None:  # fmt: skip
    made: list[Built] = []

    def make() -> tuple[Any, list[Line]]:
        planned = plan(find_shape(name), settings)
        check_memory(planned, max(args.prompt, 4096), copies(planned.device, settings, True))
        made.append(build(planned, settings, say, True))
        value = f"{planned.parameters / 1e9:.2f} billion, {planned.weight_bytes / 1e9:.2f} GB"
        of = f"{dtype_name(planned.dtype)}, random weights"
        return planned.weight_bytes, [Line("shape", planned.shape.name, of, value)]

    report.add("shape", name, make)
    if not made:
        return
    built, name = made[0], made[0].plan.shape.name
    report.add("scores", name, partial(parts.scores, built))
    report.add("same tokens", name, partial(parts.shape_sameness, built, False))
    report.add("same tokens", f"{name} exact", partial(parts.shape_sameness, built, True))
    for length in args.contexts:
        if length + 2 * max(args.rows) < built.model.context:
            work = partial(parts.steps, built, length, rate)
            report.add("step", f"{name} behind {length}", work)
    report.add("replay", name, partial(parts.replay, built))
    report.add("plain", name, partial(parts.plain, built))  # the last: compiling takes minutes


def own_recording(settings: Settings, args: argparse.Namespace) -> TraceSet:
    """What the built-in model answers of the example texts."""
    own = replace(settings, model="builtin", method="none", dtype="float32", calibrate=False)
    session = LocalSession(own, persist=False)
    items = choose(builtin_items(), (), args.questions)
    with tempfile.TemporaryDirectory() as folder:
        record(session, items, build_prompts(session, items, None), Path(folder))
        return replace(read_traces(Path(folder)), source="the example texts")


def _about(device: str, rate: float, traces: TraceSet) -> dict[str, Any]:
    return {
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "copy_bytes_per_s": rate,
        "recording": traces.source,
        "recorded_model": traces.model,
        "questions": len(traces.traces),
        "versions": versions(),
    }


def table(report: Report) -> Table:
    """All lines in one table."""
    about = report.about
    title = f"{about['device_name']}; tokens of {about['recorded_model']} from {about['recording']}"
    columns = [Column(t, left=True) for t in ("part", "of", "what", "value", "aim")]
    cells = [[x.part, x.of, x.what, x.value, x.aim] for x in report.lines]
    return Table(title, columns, cells)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print the table, write the JSON."""
    args = _arguments(words)
    report = run(args)
    print(to_plain([table(report)]))
    if args.json:
        lines = [asdict(line) for line in report.lines]
        whole = {**report.about, "lines": lines, "parts": report.parts}
        args.json.write_text(dump_json(whole) + "\n", encoding="utf-8")


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What this machine does: one table, one JSON.")

    def numbers(text: str) -> list[int]:
        return sorted(int(part) for part in text.split(","))

    def names(text: str) -> list[str]:
        return [part for part in text.split(",") if part]

    add = parser.add_argument
    add("--device", default="auto")
    add("--dtype", default="auto", help="of the shapes")
    add("--threads", type=int, default=0)
    add("--shapes", type=names, help="names or files; a small one on a CPU by default")
    add("--rows", type=numbers, default=[1, 2, 4, 8, 16, 32, 48, 64])
    add("--contexts", type=numbers, default=[1024, 8192, 32512], help="tokens before a pass")
    add("--prompt", type=int, default=1024, help="tokens before plain decoding")
    add("--tokens", type=int, default=96, help="of answers that are not recorded")
    add("--generate", type=names, help="dynamic, static, compiled; by default all on a GPU")
    add("--replay", type=Path, help="a recording, as of ngt bench --replay")
    add("--tasks", type=names, default=[])
    add("--questions", type=int, default=3, help="most of each task")
    add("--methods", type=names, default=names(_METHODS))
    add("--num-draft", type=int, default=32)
    add("--minutes", type=float, default=9.0, help="no part begins after them")
    add("--json", type=Path, help="write all figures here")
    args = parser.parse_args(words)
    device = pick_device(args.device)
    if args.shapes is None:
        args.shapes = names(_SHAPES.get(device, "qwen2.5-0.5b"))
    if args.generate is None:  # compiling takes a CPU minutes
        args.generate = ["dynamic", "static", *(["compiled"] if device == "cuda" else [])]
    return args


if __name__ == "__main__":
    main()
