"""Report what a machine can do, in one table: `python -m tests.tools.gpu_report`.

It needs no network, and no weights but those of the built-in model. For that model and for shapes
with random weights it reports:

- whether the logits are those of `transformers`;
- whether drafted tokens are those of plain decoding, in float32, in bfloat16, and in bfloat16 with
  exact decoding;
- how long forward passes take, relative to reading the weights at the measured bandwidth of a copy;
- how fast plain decoding is, beside `generate`;
- what methods gain, if a recording decides which drafts are accepted.

Without --replay the recording is made here, by the built-in model on the example texts. If a part
fails, its line says so, and the others continue.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ngtcli.bench.check import first_difference
from ngtcli.bench.live import Live
from ngtcli.bench.prompts import builtin_items, choose
from ngtcli.bench.results import versions
from ngtcli.config import Settings
from ngtcli.decoding.captured import USES
from ngtcli.decoding.exactness.choice import Exactness
from ngtcli.decoding.limits import Limits
from ngtcli.decoding.load import ModelSpec, load_model, use_threads
from ngtcli.decoding.model import TargetModel
from ngtcli.drafting.drafter import DraftSettings
from ngtcli.drafting.registry import parse_method
from ngtcli.drafting.tree import chain
from ngtcli.models.quantized import name_of
from ngtcli.render.tables import Column, Table, to_plain
from ngtcli.system.cpu import model_name
from ngtcli.system.json_form import dump_json, to_json
from ngtcli.system.machine import pick_device
from ngtcli.system.reporting import reporting_to
from tests.support.recording_reporter import CallsOf
from tests.support.runs import Run
from tests.tools.measuring.replaying import ReplayOptions, context_of, select
from tests.tools.measuring.traces import TraceSet, read_traces
from tests.tools.record import write_recording
from tests.tools.shapes.model import Built, build, check_memory, copies, find_shape, plan
from tests.tools.shapes.replay import replay_with_passes
from tests.tools.shapes.timing import (
    bandwidth,
    generate_seconds,
    pass_seconds,
    plain_seconds,
    read_bytes,
)

_DEFAULT_SHAPES = {"cuda": "llama-3.1-8b,llama-3.2-1b,qwen2.5-0.5b"}
_DEFAULT_SHAPE_CPU = "qwen2.5-0.5b"
_DEFAULT_METHODS = "prompt-lookup,trie,auto"
_COMPARED_METHOD = "auto"  # the method whose tokens are compared with plain decoding
_PREFIX_TOKENS = 24  # prompt tokens before the passes whose logits are compared; guess
_GOALS = {
    "1 rows": "1.25 × limit",
    "32 rows": "1.15 × 1 row",
    "summarization: auto": "2.8 ×",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table.

    Args:
        part: The part of the report.
        subject: The model or shape it is about.
        measure: The name of the value.
        value: The value, as text.
        goal: The value to reach; "" if there is none.
    """

    part: str
    subject: str
    measure: str
    value: str
    goal: str = ""


# The measures of a part: name, value, and a goal if there is one.
Measures = list[tuple[str, ...]]
# The figures of a part for the JSON file, and its measures for the table.
PartResult = tuple[Any, Measures]


class Report:
    """A report that grows part by part.

    Attributes:
        lines: The lines of the table.
        parts: All figures, by part and subject.
        machine: The device, the recording, and the versions of the libraries.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.lines: list[Line] = []
        self.parts: dict[str, Any] = {}
        self._deadline = time.monotonic() + 60 * args.minutes

        device = pick_device(args.device)
        self.settings = Settings.of(device=device, dtype=args.dtype, threads=args.threads)
        use_threads(args.threads)
        self.bytes_per_s = bandwidth(torch.device(device))

        self.builtin_traces = record_builtin(self.settings, args)
        recorded = read_traces(args.replay) if args.replay else self.builtin_traces
        traces = tuple(select(recorded.traces, args.tasks, args.questions))
        self.traces = replace(recorded, traces=traces)

        device_name = torch.cuda.get_device_name() if device == "cuda" else model_name()
        self.machine: dict[str, Any] = {
            "device": device,
            "device_name": device_name,
            "threads": torch.get_num_threads(),
            "copy_bytes_per_s": self.bytes_per_s,
            "recording": recorded.source,
            "recorded_model": recorded.model,
            "questions": len(traces),
            "versions": versions(),
        }
        bandwidth_text = f"{self.bytes_per_s / 1e9:.0f} GB/s"
        self.lines.append(Line("machine", device, device_name, bandwidth_text))

    def add(
        self, part: str, subject: str, measure: Callable[[], PartResult], key: str = ""
    ) -> None:
        """Measure one part. If it fails, or no time is left, its line says so.

        Args:
            part: The part of the report.
            subject: The model or shape it is about.
            measure: Does the measuring.
            key: The name that the figures are stored by; "": `subject`.
        """
        if time.monotonic() > self._deadline:
            self.lines.append(Line(part, subject, "left out", "no time; raise --minutes"))
            return

        key = key or subject
        print_status(f"{part}: {key} …")
        started = time.monotonic()
        figures: Any
        measures: Measures
        try:
            figures, measures = measure()
        except Exception as error:  # The report of a rented machine must not be lost.
            figures = {"error": one_line(error)}
            measures = [("failed", one_line(error))]
        seconds = round(time.monotonic() - started, 1)

        self.parts.setdefault(part, {})[key] = {"seconds": seconds, "figures": figures}
        for values in measures:
            self.lines.append(Line(part, subject, *values))
            # The values are printed at once, since the machine may end before the table.
            print_status(f"  {values[0]}: {values[1]} ({seconds} s)")

    def run(self) -> "Report":
        """Measure all parts, the most telling ones first; return the report itself."""
        for shape in self.args.shapes:
            self._add_shape(shape)
            gc.collect()
            if self.settings.model.device == "cuda":
                torch.cuda.empty_cache()

        self.add("scores", "builtin", self.builtin_scores)
        for dtype, exact in (("float32", False), ("bfloat16", False), ("bfloat16", True)):
            key = f"builtin {dtype} exact" if exact else f"builtin {dtype}"
            self.add("same tokens", "builtin", partial(self.builtin_sameness, dtype, exact), key)
        return self

    def _add_shape(self, name: str) -> None:
        """Measure all parts of a shape; none but the first if the model cannot be made."""
        built_models: list[Built] = []

        def make() -> PartResult:
            shape_plan = plan(find_shape(name), self.settings)
            model_copies = copies(shape_plan.device, self.settings, True)
            check_memory(shape_plan, max(self.args.prompt, 4096), model_copies)
            built_models.append(build(shape_plan, self.settings, print_status, True))
            billions = shape_plan.parameters / 1e9
            gigabytes = shape_plan.weight_bytes / 1e9
            measure = f"{name_of(shape_plan.dtype)}, random weights"
            value = f"{billions:.2f} billion, {gigabytes:.2f} GB"
            return shape_plan.weight_bytes, [(measure, value)]

        self.add("shape", Path(name).stem, make)
        if not built_models:
            return

        built = built_models[0]
        subject = built.plan.shape.name
        self.add("replay", subject, partial(self.replay, built))
        for length in self.args.contexts:
            if length + 2 * max(self.args.rows) < built.model.context:
                key = f"{subject} behind {length}"
                self.add("step", subject, partial(self.steps, built, length), key)
        for exact in (True, False):
            compare = partial(self.sameness, built.model, self.traces, exact)
            key = f"{subject} exact" if exact else subject
            self.add("same tokens", subject, compare, key)
        self.add("scores", subject, partial(self.scores, built.model, built.stock))
        self.add("plain", subject, partial(self.plain, built))

    def builtin(self, dtype: str) -> TargetModel:
        """Load the built-in model in a dtype."""
        with reporting_to(CallsOf(status=print_status, warn=print_status)):
            model = load_model(ModelSpec("builtin", self.settings.model.device, dtype))
            model.passes.switch_on(model.device)
        return model

    def builtin_sameness(self, dtype: str, exact: bool) -> PartResult:
        """Compare the built-in model's drafted tokens with plain decoding."""
        return self.sameness(self.builtin(dtype), self.builtin_traces, exact)

    def sameness(self, model: TargetModel, traces: TraceSet, exact: bool) -> PartResult:
        """Compare drafted tokens with plain decoding."""
        figures = same_tokens(model, traces, self.args.num_draft - 1, self.args.tokens, exact)
        measure = dtype = name_of(model.dtype)
        if exact:
            measure = f"{dtype}, exact in passes of {figures['rows']} rows"
        value = (
            f"{figures['same']} of {figures['answers']} answers,"
            f" {figures['accepted']} drafts accepted"
        )
        goal = "all" if exact or dtype == "float32" else ""
        return figures, [(measure, value, goal)]

    def builtin_scores(self) -> PartResult:
        """Compare the built-in model's logits in float32 with those of one eager pass."""
        model = self.builtin("float32")
        return self.scores(model, model.hf)

    def scores(self, model: TargetModel, hf: Any) -> PartResult:
        """Compare logits with those of one pass of `transformers`."""
        error = logits_error(model, hf, self.args.rows)
        passes = model.passes
        if passes.captured:
            execution = f"{passes.captured} shapes captured in {passes.seconds:.1f} s"
        else:
            execution = f"eager {passes.capturing.why}"
        dtype = name_of(model.dtype)
        measure = f"{dtype}: largest difference from one eager pass, in deviations"
        figures = {"difference": error, **to_json(passes.report())}
        return figures, [(measure, f"{error:.1e}, {execution}")]

    def steps(self, built: Built, length: int) -> PartResult:
        """Measure passes behind `length` tokens, beside the time to read the weights once."""
        all_rows = self.args.rows
        check_memory(built.plan, length + 2 * max(all_rows), copies=0)
        times = pass_seconds(built.model, all_rows, length)

        figures = []
        measures: Measures = []
        fewest_rows_seconds = 0.0
        for rows, seconds in times.items():
            median_seconds = sorted(seconds)[len(seconds) // 2]
            if not fewest_rows_seconds:
                fewest_rows_seconds = median_seconds
            limit = read_bytes(built.plan, rows) / self.bytes_per_s
            figures.append(
                {"rows": rows, "seconds": median_seconds, "limit_s": limit, "cached": length}
            )
            value = (
                f"{median_seconds * 1e3:.2f} ms = {median_seconds / limit:.2f} × limit"
                f" = {median_seconds / fewest_rows_seconds:.2f} × {all_rows[0]} row"
            )
            goal = _GOALS.get(f"{rows} rows", "")
            measures.append((f"{rows} rows behind {length} tokens", value, goal))
        return figures, measures

    def plain(self, built: Built) -> PartResult:
        """Measure plain decoding and `generate`, in tokens per second."""
        tokens = self.args.tokens
        prompt = [(7 * i) % built.model.vocabulary for i in range(self.args.prompt)]
        ngt_seconds = fmean(plain_seconds(built.model, prompt, tokens))
        generate_s = generate_seconds(built.stock, prompt, tokens)
        measures: Measures = [
            ("ngt", f"{1 / ngt_seconds:.1f} tokens/s"),
            (
                "generate",
                f"{1 / generate_s:.1f} tokens/s; ngt {generate_s / ngt_seconds:.2f} ×",
            ),
        ]
        return {"ngt": ngt_seconds, "generate": generate_s}, measures

    def replay(self, built: Built) -> PartResult:
        """Replay the recording with each method and real passes."""
        options = ReplayOptions(methods=self.args.methods, num_drafts=(self.args.num_draft,))
        result = replay_with_passes(self.traces, built, options, self.settings)
        measures: Measures = []
        for row in result.rows:
            measure = f"{row.task}: {row.method}"
            value = (
                f"{row.speedup:.2f} × plain, {row.tokens_per_s:.1f} tokens/s,"
                f" {row.mean_acceptance_length:.2f} tokens a pass"
            )
            measures.append((measure, value, _GOALS.get(measure, "")))
        return to_json(result), measures


def same_tokens(
    model: TargetModel, traces: TraceSet, num_draft: int, tokens: int, exact: bool
) -> dict[str, Any]:
    """Answer the prompts of `traces` with and without drafts, and count the equal answers.

    Raises ModelError if the model cannot be exact.

    Args:
        model: The model.
        traces: The recorded prompts.
        num_draft: Maximum number of draft nodes.
        tokens: Tokens of each answer.
        exact: Whether both are decoded in passes of the same number of rows.

    Returns:
        The counts; `first` has, for each answer that differs, the number of equal tokens before the
        difference.
    """
    settings = DraftSettings(num_draft=num_draft)
    plain = parse_method("none", settings).build()
    drafter = parse_method(_COMPARED_METHOD, settings).build()
    max_length = max(len(trace.prompt_ids) for trace in traces.traces) + tokens
    numerics = Exactness(model).numerics("on" if exact else "off", num_draft, max_length)

    accepted = 0
    differences: list[int] = []
    for trace in traces.traces:
        context = replace(context_of(trace, traces), vocabulary=model.vocabulary)
        expected = Run(
            model, plain, context, Settings(), Limits(tokens, 0), numerics=numerics
        ).finish()
        drafted = Run(
            model, drafter, context, Settings(), Limits(tokens, num_draft), numerics=numerics
        ).finish()
        accepted += drafted.statistics.accepted_tokens
        difference = first_difference(expected.output, drafted.output)
        if difference is not None:
            differences.append(difference)

    answers = len(traces.traces)
    return {
        "answers": answers,
        "same": answers - len(differences),
        "tokens": answers * tokens,
        "accepted": accepted,
        "rows": numerics.rows and numerics.rows.max,
        "first": differences,
    }


@torch.inference_mode()
def logits_error(model: TargetModel, hf: torch.nn.Module, rows: Sequence[int]) -> float:
    """The largest difference between our logits and those of one pass of `transformers`.

    Returns it in standard deviations of the logits. Our passes are padded, and captured if they are
    captured in use: each size then runs often enough for that.
    """
    max_rows = max(rows)
    tokens = [(7 * i) % model.vocabulary for i in range(_PREFIX_TOKENS + max_rows)]
    ids = torch.tensor([tokens], device=model.device)
    expected = hf(input_ids=ids, use_cache=False).logits[0, _PREFIX_TOKENS:].cpu().double()

    largest = 0.0
    model.start(len(tokens) + max_rows)
    model.prefill(tokens[:_PREFIX_TOKENS])
    repeats = USES + 2 if model.passes.captures else 1
    for _ in range(repeats):
        for count in rows:
            root = tokens[_PREFIX_TOKENS]
            draft = chain(tokens[_PREFIX_TOKENS + 1 : _PREFIX_TOKENS + count])
            logits = model.forward(root, draft).cpu().double()
            largest = max(largest, float((logits - expected[:count]).abs().max()))
    return largest / float(expected.std())


def print_status(line: str) -> None:
    """Print a line on stderr, at once."""
    print(line, file=sys.stderr, flush=True)


def one_line(error: Exception) -> str:
    """An error's class and the first line of its message."""
    message = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {message}"


def record_builtin(settings: Settings, args: argparse.Namespace) -> TraceSet:
    """Record the built-in model's answers about the example texts."""
    builtin_settings = settings.replace(
        model="builtin", method="none", dtype="float32", calibrate=False
    )
    source = Live(choose(builtin_items(), (), args.questions), None)
    with tempfile.TemporaryDirectory() as folder:
        with reporting_to(CallsOf(status=print_status, warn=print_status)):
            write_recording(source, builtin_settings, Path(folder), print_status)
        return replace(read_traces(Path(folder)), source="the example texts")


def table(report: Report) -> Table:
    """All lines of a report in one table."""
    machine = report.machine
    title = (
        f"{machine['device_name']};"
        f" tokens of {machine['recorded_model']} from {machine['recording']}"
    )
    columns = [Column(field.name, left=True) for field in fields(Line)]
    cells = [list(asdict(line).values()) for line in report.lines]
    return Table(title, columns, cells)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the JSON file."""
    args = parse_arguments(argv)
    report = Report(args).run()
    print(to_plain([table(report)]))
    if args.json:
        lines = [asdict(line) for line in report.lines]
        contents = {**report.machine, "lines": lines, "parts": report.parts}
        args.json.write_text(dump_json(contents) + "\n", encoding="utf-8")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
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
    add("--rows", type=numbers, default=[1, 8, 32, 64])
    add("--contexts", type=numbers, default=[1024, 8192, 32512], help="tokens before a pass")
    add("--prompt", type=int, default=1024, help="tokens before plain decoding")
    add("--tokens", type=int, default=96, help="of answers that are not recorded")
    add("--replay", type=Path, help="a recording, as of python -m tests.tools.record")
    add("--tasks", type=names, default=[])
    add("--questions", type=int, default=3, help="most of each task")
    add("--methods", type=names, default=names(_DEFAULT_METHODS))
    add("--num-draft", type=int, default=32)
    add("--minutes", type=float, default=9.0, help="no part begins after them")
    add("--json", type=Path, help="write all figures here")
    args = parser.parse_args(argv)
    if args.shapes is None:
        device = pick_device(args.device)
        args.shapes = names(_DEFAULT_SHAPES.get(device, _DEFAULT_SHAPE_CPU))
    return args


if __name__ == "__main__":
    main()
