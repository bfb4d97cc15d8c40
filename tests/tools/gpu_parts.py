"""The parts of the GPU report, and the report that they are added to."""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from ngtcli.config import Settings
from ngtcli.decode.load import load_model
from ngtcli.decode.model import TargetModel
from ngtcli.measure.options import BenchOptions
from ngtcli.measure.shape_model import Built, check_memory, dtype_name
from ngtcli.measure.shape_replay import replay_with_passes
from ngtcli.measure.traces import TraceSet
from ngtcli.system.json_form import to_json
from tests.tools.gpu_sameness import Sameness, same_tokens, score_error
from tests.tools.gpu_times import (
    generate_seconds,
    pass_seconds,
    plain_seconds,
    read_bytes,
)

_SAME = "auto"  # the method whose tokens are compared with plain ones


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
