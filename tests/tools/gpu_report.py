"""One report of what a machine does: `python -m tests.tools.gpu_report`.

Needs no network and no weights but the built-in model's. For that model and for shapes with random
weights it says: are scores `transformers`' own, are drafted tokens plain decoding's (float32, then
bfloat16 as it is and with exact decoding); how long passes take beside reading the weights at the
measured bandwidth of a copy; plain decoding beside generate; and what
methods gain where a recording decides what is accepted. Without --replay the recording is made
here, by the built-in model of the example texts. A part that fails says so and the others continue.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
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

_SHAPES = {"cuda": "llama-3.1-8b,llama-3.2-1b,qwen2.5-0.5b"}
_METHODS = "prompt-lookup,trie,auto"
_SAME = "auto"  # the method whose tokens are compared with plain ones
_BEHIND = 24  # tokens of a prompt before the passes whose scores are compared; guess
_AIMS = {"1 rows": "1.25 × limit", "32 rows": "1.15 × 1 row", "summarization: auto": "2.8 ×"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; `aim` is "" where there is none."""

    part: str
    of: str
    what: str
    value: str
    aim: str = ""


Rows = list[tuple[str, ...]]  # what, value and perhaps aim of each line of a part


class Report:
    """Grows part by part: `lines` of the table, and in `parts` all figures by name."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.until = time.monotonic() + 60 * args.minutes
        self.args, self.lines, self.parts = args, list[Line](), dict[str, Any]()
        device = pick_device(args.device)
        self.settings = Settings.of(device=device, dtype=args.dtype, threads=args.threads)
        use_threads(args.threads)
        self.rate = bandwidth(torch.device(device))
        self.own = own_recording(self.settings, args)
        traces = read_traces(args.replay) if args.replay else self.own
        chosen = tuple(select(traces.traces, args.tasks, args.questions))
        self.traces = replace(traces, traces=chosen)
        self.about: dict[str, Any] = {
            "device": device,
            "device_name": torch.cuda.get_device_name() if device == "cuda" else model_name(),
            "threads": torch.get_num_threads(),
            "copy_bytes_per_s": self.rate,
            "recording": traces.source,
            "recorded_model": traces.model,
            "questions": len(chosen),
            "versions": versions(),
        }
        value = f"{self.rate / 1e9:.0f} GB/s"
        self.lines.append(Line("machine", device, self.about["device_name"], value))

    def add(self, part: str, of: str, work: Callable[[], tuple[Any, Rows]], key: str = "") -> None:
        """Run one part; if it fails, or there is no time, that is what the report says.

        Its figures are stored by `key`, or `of` without one.
        """
        if time.monotonic() > self.until:
            self.lines.append(Line(part, of, "left out", "no time; raise --minutes"))
            return
        say(f"{part}: {key or of} …")
        clock = time.monotonic()
        try:
            figures, rows = work()
        except Exception as error:  # a report of a rented machine must end with what there is
            figures, rows = {"error": said(error)}, [("failed", said(error))]
        seconds = round(time.monotonic() - clock, 1)
        self.parts.setdefault(part, {})[key or of] = {"seconds": seconds, "figures": figures}
        self.lines += [Line(part, of, *row) for row in rows]
        for row in rows:  # at once: what follows may be cut off
            say(f"  {': '.join(row[:2])} ({seconds} s)")

    def run(self) -> "Report":
        """All parts, in the order of the table: what tells most comes first."""
        for shape in self.args.shapes:
            self._shape(shape)
            gc.collect()
            if self.settings.model.device == "cuda":
                torch.cuda.empty_cache()
        self.add("scores", "builtin", self.builtin_scores)
        for dtype, exact in (("float32", False), ("bfloat16", False), ("bfloat16", True)):
            work = partial(self.builtin_sameness, dtype, exact)
            self.add("same tokens", "builtin", work, f"builtin {dtype}{' exact' * exact}")
        return self

    def _shape(self, name: str) -> None:
        made: list[Built] = []
        a = self.args

        def make() -> tuple[Any, Rows]:
            planned = plan(find_shape(name), self.settings)
            several = copies(planned.device, self.settings, True)
            check_memory(planned, max(a.prompt, 4096), several)
            made.append(build(planned, self.settings, say, True))
            value = f"{planned.parameters / 1e9:.2f} billion, {planned.weight_bytes / 1e9:.2f} GB"
            return planned.weight_bytes, [(f"{name_of(planned.dtype)}, random weights", value)]

        self.add("shape", Path(name).stem, make)
        if not made:
            return
        built, of = made[0], made[0].plan.shape.name
        self.add("replay", of, partial(self.replay, built))
        for length in a.contexts:
            if length + 2 * max(a.rows) < built.model.context:
                self.add("step", of, partial(self.steps, built, length), f"{of} behind {length}")
        for exact in (True, False):
            work = partial(self.sameness, built.model, self.traces, exact)
            self.add("same tokens", of, work, of + " exact" * exact)
        self.add("scores", of, partial(self.scores, built.model, built.stock))
        self.add("plain", of, partial(self.plain, built))

    def builtin(self, dtype: str) -> TargetModel:
        """The built-in model in that type of numbers."""
        with reporting_to(CallsOf(status=say, warn=say)):
            model = load_model(ModelSpec("builtin", self.settings.model.device, dtype))
            model.passes.switch_on(model.device)
        return model

    def builtin_sameness(self, dtype: str, exact: bool) -> tuple[Any, Rows]:
        """Tokens of the built-in model with drafts beside plain ones."""
        return self.sameness(self.builtin(dtype), self.own, exact)

    def sameness(self, model: TargetModel, traces: TraceSet, exact: bool) -> tuple[Any, Rows]:
        """Tokens with drafts beside plain ones."""
        num_draft, tokens = self.args.num_draft - 1, self.args.tokens
        found = same_tokens(model, traces, num_draft, tokens, exact)
        dtype = name_of(model.dtype)
        how = f"{dtype}, exact in passes of {found['rows']} rows" if exact else dtype
        value = f"{found['same']} of {found['answers']} answers"
        aim = "all" if exact or dtype == "float32" else ""
        return found, [(how, f"{value}, {found['accepted']} drafts accepted", aim)]

    def builtin_scores(self) -> tuple[Any, Rows]:
        """Scores of the built-in model in float32 beside those of one eager pass."""
        model = self.builtin("float32")
        return self.scores(model, model.hf)

    def scores(self, model: TargetModel, hf: Any) -> tuple[Any, Rows]:
        """Scores beside those of one pass of `transformers`."""
        error, passes = score_error(model, hf, self.args.rows), model.passes
        what = f"{name_of(model.dtype)}: largest difference from one eager pass, in deviations"
        how = f", {passes.captured} shapes captured in {passes.seconds:.1f} s"
        value = f"{error:.1e}{how if passes.captured else f', eager {passes.capturing.why}'}"
        return {"difference": error, **to_json(passes.report())}, [(what, value)]

    def steps(self, built: Built, length: int) -> tuple[Any, Rows]:
        """Times of passes behind `length` tokens, over what reading the weights takes."""
        rows = self.args.rows
        check_memory(built.plan, length + 2 * max(rows), copies=0)
        figures, lines, one = list[Any](), list[tuple[str, ...]](), 0.0
        for r, seconds in pass_seconds(built.model, rows, length).items():
            taken, limit = sorted(seconds)[len(seconds) // 2], read_bytes(built.plan, r)
            least, one = limit / self.rate, one or taken
            figures.append({"rows": r, "seconds": taken, "limit_s": least, "cached": length})
            value = f"{taken * 1e3:.2f} ms = {taken / least:.2f} × limit = {taken / one:.2f} ×"
            aim = _AIMS.get(f"{r} rows", "")
            lines.append((f"{r} rows behind {length} tokens", f"{value} {rows[0]} row", aim))
        return figures, lines

    def plain(self, built: Built) -> tuple[Any, Rows]:
        """Plain decoding beside generate's, in tokens a second."""
        tokens = self.args.tokens
        prompt = [(7 * i) % built.model.vocabulary for i in range(self.args.prompt)]
        own = fmean(plain_seconds(built.model, prompt, tokens))
        theirs = generate_seconds(built.stock, prompt, tokens)
        value = f"{1 / theirs:.1f} tokens/s; ngt {theirs / own:.2f} ×"
        lines: Rows = [("ngt", f"{1 / own:.1f} tokens/s"), ("generate", value)]
        return {"ngt": own, "generate": theirs}, lines

    def replay(self, built: Built) -> tuple[Any, Rows]:
        """Methods over the recording, with real passes."""
        options = ReplayOptions(methods=self.args.methods, num_drafts=(self.args.num_draft,))
        found = replay_with_passes(self.traces, built, options, self.settings)
        lines: Rows = []
        for r in found.rows:
            value = f"{r.speedup:.2f} × plain, {r.tokens_per_s:.1f} tokens/s"
            what = f"{r.task}: {r.method}"
            of_pass = f", {r.mean_acceptance_length:.2f} tokens a pass"
            lines.append((what, value + of_pass, _AIMS.get(what, "")))
        return to_json(found), lines


def same_tokens(
    model: TargetModel, traces: TraceSet, num_draft: int, tokens: int, exact: bool
) -> dict[str, Any]:
    """Answers of `tokens` tokens to the prompts of `traces` with drafts, beside plain ones.

    `first` counts the tokens that are equal before each difference. With `exact` both are decoded
    in passes of `rows` rows. Raises ModelError where that cannot be.
    """
    settings = DraftSettings(num_draft=num_draft)
    plain, drafter = (parse_method(m, settings).build() for m in ("none", _SAME))
    longest = max(len(t.prompt_ids) for t in traces.traces) + tokens
    wanted = "on" if exact else "off"
    numerics = Exactness(model).numerics(wanted, num_draft, longest)
    same, accepted, first = 0, 0, list[int]()
    for trace in traces.traces:
        context = replace(context_of(trace, traces), vocabulary=model.vocabulary)
        limits = Limits(tokens, 0), Limits(tokens, num_draft)
        one = Run(model, plain, context, Settings(), limits[0], numerics=numerics).finish()
        two = Run(model, drafter, context, Settings(), limits[1], numerics=numerics).finish()
        accepted += two.statistics.accepted_tokens
        place = first_difference(one.output, two.output)
        same += place is None
        first += [] if place is None else [place]
    count = len(traces.traces)
    return {
        "answers": count,
        "same": same,
        "tokens": count * tokens,
        "accepted": accepted,
        "rows": numerics.rows and numerics.rows.max,
        "first": first,
    }


@torch.inference_mode()
def score_error(model: TargetModel, hf: torch.nn.Module, rows: Sequence[int]) -> float:
    """The largest difference of our passes' scores from those of one pass of `transformers`.

    Our passes are padded, and captured where they are so in use: each size is passed often enough
    for that. In standard deviations of the scores.
    """
    most = max(rows)
    text = [(7 * i) % model.vocabulary for i in range(_BEHIND + most)]
    ids = torch.tensor([text], device=model.device)
    truth = hf(input_ids=ids, use_cache=False).logits[0, _BEHIND:].cpu().double()
    worst, spread = 0.0, float(truth.std())
    model.start(len(text) + most)
    model.prefill(text[:_BEHIND])
    for count in [*rows] * (USES + 2 if model.passes.captures else 1):
        found = (
            model.forward(text[_BEHIND], chain(text[_BEHIND + 1 : _BEHIND + count])).cpu().double()
        )
        worst = max(worst, float((found - truth[:count]).abs().max()))
    return worst / spread


def say(words: str) -> None:
    """A line on stderr, at once."""
    print(words, file=sys.stderr, flush=True)


def said(error: Exception) -> str:
    """An error in a line."""
    first = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {first}"


def own_recording(settings: Settings, args: argparse.Namespace) -> TraceSet:
    """What the built-in model answers of the example texts."""
    own = settings.replace(model="builtin", method="none", dtype="float32", calibrate=False)
    source = Live(choose(builtin_items(), (), args.questions), None)
    with tempfile.TemporaryDirectory() as folder:
        with reporting_to(CallsOf(status=say, warn=say)):
            write_recording(source, own, Path(folder), say)
        return replace(read_traces(Path(folder)), source="the example texts")


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
    report = Report(args).run()
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
    add("--rows", type=numbers, default=[1, 8, 32, 64])
    add("--contexts", type=numbers, default=[1024, 8192, 32512], help="tokens before a pass")
    add("--prompt", type=int, default=1024, help="tokens before plain decoding")
    add("--tokens", type=int, default=96, help="of answers that are not recorded")
    add("--replay", type=Path, help="a recording, as of python -m tests.tools.record")
    add("--tasks", type=names, default=[])
    add("--questions", type=int, default=3, help="most of each task")
    add("--methods", type=names, default=names(_METHODS))
    add("--num-draft", type=int, default=32)
    add("--minutes", type=float, default=9.0, help="no part begins after them")
    add("--json", type=Path, help="write all figures here")
    args = parser.parse_args(words)
    if args.shapes is None:
        args.shapes = names(_SHAPES.get(pick_device(args.device), "qwen2.5-0.5b"))
    return args


if __name__ == "__main__":
    main()
