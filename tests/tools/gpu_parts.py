"""The parts of the GPU report, and the report that they are added to.

Some compare: scores with `transformers`' own, drafted tokens with plain ones. What a model of
random weights answers to recorded prompts means nothing, but whether it answers the same with
drafts does. Others time passes, the machine's bandwidth, and plain decoding. The least that a pass
can take is the time to read its weights.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ngtcli.config import Settings
from ngtcli.decode.exact_check import ExactRows
from ngtcli.decode.load import load_model
from ngtcli.decode.loop import Run
from ngtcli.decode.model import TargetModel
from ngtcli.decode.probe import plain_generation
from ngtcli.decode.steps import Limits
from ngtcli.draft.drafter import Context, Drafter, DraftSettings
from ngtcli.draft.registry import parse_method
from ngtcli.draft.tree import DraftTree, chain
from ngtcli.measure.options import BenchOptions
from ngtcli.measure.replay import context_of
from ngtcli.measure.shape_model import Built, Plan, check_memory, dtype_name
from ngtcli.measure.shape_replay import replay_with_passes
from ngtcli.measure.traces import Trace, TraceSet
from ngtcli.system.json_form import to_json

_SAME = "auto"  # the method whose tokens are compared with plain ones


BEHIND = 24  # tokens of a prompt before the passes whose scores are compared; guess

_OFTEN = 22  # passes of each size where the first ones are not captured: beyond these; derived


@dataclass(frozen=True, slots=True)
class Sameness:
    """Answers with drafts beside plain ones; `first` are the tokens equal before a difference."""

    answers: int
    same: int
    tokens: int
    accepted: int
    rows: int | None
    first: tuple[int, ...]


def same_tokens(
    model: TargetModel,
    traces: TraceSet,
    *,
    method: str,
    num_draft: int,
    tokens: int,
    exact: bool = False,
) -> Sameness:
    """Answers to the prompts of `traces`, `tokens` long, with `method` and plainly.

    With `exact` both are decoded exactly. Raises ModelError where that cannot be.
    """
    settings = DraftSettings(num_draft=num_draft)
    plain, drafter = (parse_method(m, settings).build() for m in ("none", method))
    longest = max(len(t.prompt_ids) for t in traces.traces) + tokens
    choose = ExactRows(model, lambda: None, lambda _: None).choose
    rows = choose("on" if exact else "off", num_draft, longest)
    same, accepted, first = 0, 0, list[int]()
    for trace in traces.traces:
        one = _answer(model, traces, trace, plain, Limits(tokens, 0), rows)
        two = _answer(model, traces, trace, drafter, Limits(tokens, num_draft), rows)
        accepted += two.statistics.accepted_tokens
        pairs = zip(one.output, two.output, strict=False)
        equal = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        same += equal is None and len(one.output) == len(two.output)
        first += [] if equal is None else [equal]
    count = len(traces.traces)
    return Sameness(count, same, count * tokens, accepted, rows, tuple(first))


def _answer(
    model: TargetModel, traces: TraceSet, trace: Trace, drafter: Drafter, limits: Limits,
    rows: int | None,
) -> Run:  # fmt: skip
    context = replace(context_of(trace, traces), vocabulary=model.vocabulary, rows=rows)
    return Run(model, drafter, context, Settings(), limits).finish()


@torch.inference_mode()
def score_error(model: TargetModel, hf: torch.nn.Module, rows: Sequence[int]) -> float:
    """The largest difference of our passes' scores from those of one pass of `transformers`.

    Our passes are padded, and captured where they are so in use: each size is passed often enough
    for that. In standard deviations of the scores.
    """
    most = max(rows)
    text = [(7 * i) % model.vocabulary for i in range(BEHIND + most)]
    ids = torch.tensor([text], device=model.device)
    truth = hf(input_ids=ids, use_cache=False).logits[0, BEHIND:].double()
    worst, spread = 0.0, float(truth.std())
    model.start(len(text) + most)
    model.prefill(text[:BEHIND])
    for count in [*rows] * (2 if model.passes.at_once else _OFTEN):
        found = model.forward(text[BEHIND], chain(text[BEHIND + 1 : BEHIND + count])).double()
        worst = max(worst, float((found - truth[:count]).abs().max()))
    return worst / spread


TIMES = 9  # passes of each size, in turns; the median counts
_READ = 64  # tokens of the prompt that is repeated up to the length of the context; guess
_COPIED = {"cuda": 1 << 30, "cpu": 1 << 27}  # bytes: more than any cache on the way holds; guess
_TOKEN = 17


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a copy, reading and writing counted; the quickest of several."""
    size = _COPIED.get(device.type, 1 << 28)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(_seconds(lambda: target.copy_(source), device) for _ in range(TIMES + 1))


def read_bytes(plan: Plan, rows: int) -> int:
    """Bytes of weights that a pass over `rows` rows reads.

    An embedding is read only where it is the head, too. Of E experts, of which each row takes k at
    random, 1 − (1 − k/E)^rows are expected to be read.
    """
    config, head = plan.config.get_text_config(), plan.empty.get_output_embeddings()
    table = plan.empty.get_input_embeddings().weight
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    share = 1.0
    if experts:
        share = 1 - (1 - config.num_experts_per_tok / experts) ** rows
    total = 0.0
    for name, parameter in plan.empty.named_parameters():
        if parameter is table and head is not None and head.weight is not table:
            continue
        total += parameter.nbytes * (share if ".experts." in name else 1.0)
    return int(total)


@torch.inference_mode()
def pass_seconds(model: TargetModel, rows: Sequence[int], length: int) -> dict[int, list[float]]:
    """Seconds of passes by rows behind `length` tokens, with the choices brought back.

    The sizes take turns; a first pass of each, which may record it, is left out.
    """
    model.start(length + 2 * max(rows))
    model.prefill([_TOKEN] * min(_READ, length))
    model.cache.repeat(length)
    found: dict[int, list[float]] = {r: [] for r in rows}
    for turn in range(TIMES + 1):
        for count in rows:
            work = partial(_choices, model, chain([_TOKEN] * (count - 1)))
            seconds = _seconds(work, model.device)
            if turn:
                found[count].append(seconds)
    return found


def _choices(model: TargetModel, tree: DraftTree) -> list[int]:
    found: list[int] = model.forward(_TOKEN, tree).argmax(-1).tolist()
    return found


def plain_seconds(model: TargetModel, prompt: Sequence[int], tokens: int) -> float:
    """Seconds a token of our loop without drafts, prefill left out; the second of two runs."""
    for _ in range(2):
        context = Context(prompt, outside=(tuple(prompt),), vocabulary=model.vocabulary)
        plain = parse_method("none", DraftSettings()).build()
        run = Run(model, plain, context, Settings(), Limits(tokens, 0)).finish()
    return run.statistics.decode_s / len(run.output)


def generate_seconds(hf: Any, prompt: Sequence[int], tokens: int, how: str) -> dict[str, float]:
    """Seconds a token of generate; `first_s` those of its first run, where it may compile.

    `how` is "dynamic", "static" or "compiled". Prefill is taken off: what a run of a single token
    takes.
    """
    options: dict[str, Any] = {}
    if how != "dynamic":
        options = {"cache_implementation": "static", "disable_compile": how == "static"}
    ids = torch.tensor([list(prompt)], device=hf.device)

    def run(count: int) -> float:
        def work() -> Any:
            return hf.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
                min_new_tokens=count, **options,
            )  # fmt: skip

        return _seconds(work, hf.device)

    with torch.inference_mode(), plain_generation(hf):
        first = run(tokens + 1)
        whole, one = (statistics.median(run(n) for _ in range(2)) for n in (tokens + 1, 1))
    return {"token_s": max(whole - one, 1e-9) / tokens, "first_s": first}


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    _wait(device)
    clock = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - clock


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table; `aim` is "" where there is none."""

    part: str
    of: str
    what: str
    value: str
    aim: str = ""


@dataclass(slots=True)
class Report:
    """Grows part by part. `about` is the machine, `parts` hold all figures by name."""

    until: float
    about: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)

    def add(self, part: str, of: str, work: Callable[[], tuple[Any, list[Line]]]) -> None:
        """Run one part; if it fails, or there is no time, that is what the report says."""
        if time.monotonic() > self.until:
            self.lines.append(Line(part, of, "left out", "no time; raise --minutes"))
            return
        say(f"{part}: {of} …")
        clock = time.monotonic()
        try:
            figures, lines = work()
        except Exception as error:  # a report of a rented machine must end with what there is
            figures, lines = {"error": said(error)}, [Line(part, of, "failed", said(error))]
        seconds = round(time.monotonic() - clock, 1)
        self.parts.setdefault(part, {})[of] = {"seconds": seconds, "figures": figures}
        self.lines += lines


def say(words: str) -> None:
    """A line on stderr, at once."""
    print(words, file=sys.stderr, flush=True)


def said(error: Exception) -> str:
    """An error in a line."""
    first = str(error).strip().split("\n")[0][:200]
    return f"{type(error).__name__}: {first}"


class Parts:
    """The parts of the report, with what the command line says of them."""

    def __init__(self, args: argparse.Namespace, settings: Settings, traces: TraceSet) -> None:
        self._args, self._settings, self._traces = args, settings, traces

    def sameness(self, dtype: str, exact: bool, own: TraceSet) -> tuple[Any, list[Line]]:
        """Tokens of the built-in model with drafts beside plain ones."""
        model = self._builtin(dtype)
        found = self._same(model, own, exact)
        return asdict(found), [_same_line("builtin", dtype, exact, found)]

    def _builtin(self, dtype: str) -> TargetModel:
        model = load_model("builtin", self._settings.device, dtype, say, say)
        model.passes.switch_on(model.device, False, say)
        return model

    def shape_sameness(self, built: Built, exact: bool) -> tuple[Any, list[Line]]:
        """The same of a shape."""
        found = self._same(built.model, self._traces, exact)
        of, dtype = built.plan.shape.name, dtype_name(built.plan.dtype)
        return asdict(found), [_same_line(of, dtype, exact, found)]

    def _same(self, model: TargetModel, traces: TraceSet, exact: bool) -> Sameness:
        a = self._args
        return same_tokens(
            model, traces, method=_SAME, num_draft=a.num_draft - 1, tokens=a.tokens, exact=exact
        )

    def builtin_scores(self) -> tuple[Any, list[Line]]:
        """Scores of the built-in model in float32 beside those of one eager pass."""
        model = self._builtin("float32")
        return self._scores(model, model.hf, "builtin")

    def scores(self, built: Built) -> tuple[Any, list[Line]]:
        """Scores beside those of one pass of `transformers`."""
        return self._scores(built.model, built.stock, built.plan.shape.name)

    def _scores(self, model: TargetModel, hf: Any, of: str) -> tuple[Any, list[Line]]:
        error, passes = score_error(model, hf, self._args.rows), model.passes
        what = f"{dtype_name(model.dtype)}: largest difference from one eager pass, in deviations"
        how = f", {passes.captured} shapes captured in {passes.seconds:.1f} s"
        value = f"{error:.1e}{how if passes.captured else f', eager {passes.reason}'}"
        figures = {"difference": error, **to_json(passes.report())}
        return figures, [Line("scores", of, what, value)]

    def steps(self, built: Built, length: int, rate: float) -> tuple[Any, list[Line]]:
        """Times of passes behind `length` tokens, over what reading the weights takes."""
        rows = self._args.rows
        taken = {r: sorted(s)[len(s) // 2] for r, s in self._passes(built, length).items()}
        limits = {r: read_bytes(built.plan, r) / rate for r in rows}
        figures = [
            {"rows": r, "seconds": taken[r], "limit_s": limits[r], "cached": length} for r in rows
        ]
        one = taken[rows[0]]
        lines = [
            Line(
                "step", built.plan.shape.name, f"{r} rows behind {length} tokens",
                f"{taken[r] * 1e3:.2f} ms = {taken[r] / limits[r]:.2f} × limit"
                f" = {taken[r] / one:.2f} × {rows[0]} row",
                {1: "1.25 × limit", 32: "1.15 × 1 row"}.get(r, ""),
            )
            for r in rows
        ]  # fmt: skip
        return figures, lines

    def _passes(self, built: Built, length: int) -> dict[int, list[float]]:
        check_memory(built.plan, length + 2 * max(self._args.rows), copies=0)
        return pass_seconds(built.model, self._args.rows, length)

    def plain(self, built: Built) -> tuple[Any, list[Line]]:
        """Plain decoding beside generate's, in tokens a second."""
        a, of = self._args, built.plan.shape.name
        prompt = [(7 * i) % built.model.vocabulary for i in range(a.prompt)]
        own = plain_seconds(built.model, prompt, a.tokens)
        figures: dict[str, Any] = {"ngt": {"token_s": own}}
        lines = [Line("plain", of, "ngt", f"{1 / own:.1f} tokens/s")]
        for how in a.generate:
            try:
                taken = generate_seconds(built.stock, prompt, a.tokens, how)
            except Exception as error:  # static caches and compilers fail in many ways
                lines.append(Line("plain", of, f"generate, {how}", said(error)))
                continue
            figures[how] = taken
            speed, ratio = 1 / taken["token_s"], taken["token_s"] / own
            value = f"{speed:.1f} tokens/s; ngt {ratio:.2f} ×; first run {taken['first_s']:.1f} s"
            lines.append(Line("plain", of, f"generate, {how}", value))
        return figures, lines

    def replay(self, built: Built) -> tuple[Any, list[Line]]:
        """Methods over the recording, with real passes."""
        a, of = self._args, built.plan.shape.name
        options = BenchOptions(shape=of, methods=a.methods, num_drafts=(a.num_draft,), against=True)
        found = replay_with_passes(self._traces, built, options, self._settings)
        aims = {("auto", "summarization"): "2.8 ×"}
        lines = [
            Line(
                "replay", of, f"{r.task}: {r.method}",
                f"{r.speedup:.2f} × plain, {r.tokens_per_s:.1f} tokens/s,"
                f" {r.mean_acceptance_length:.2f} tokens a pass",
                aims.get((r.method, r.task), ""),
            )
            for r in found.rows
        ]  # fmt: skip
        return to_json(found), lines


def _same_line(of: str, dtype: str, exact: bool, found: Sameness) -> Line:
    how = f"{dtype}, exact in passes of {found.rows} rows" if exact else dtype
    value = f"{found.same} of {found.answers} answers, {found.accepted} drafts accepted"
    return Line("same tokens", of, how, value, "all" if exact or dtype == "float32" else "")
