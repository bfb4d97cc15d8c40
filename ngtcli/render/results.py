"""The results of `ngt bench`, live or replayed, as tables. Takes mappings, measures nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ngtcli.render.tables import MISSING, Column, Table

Row = Mapping[str, Any]
OVERALL = "overall"  # the task of rows over all tasks
_PART_RANKS = {"tree": 1, "verify": 2, "prefill": 3, "cache": 4}  # the others are always shown
# Accepted drafts a step, for tables; the page shows every number.
_BUCKETS = (
    ("0", 0, 0), ("1", 1, 1), ("2", 2, 2), ("3", 3, 3), ("4", 4, 4), ("5–6", 5, 6),
    ("7–9", 7, 9), ("10+", 10, 10**9),
)  # fmt: skip


def number(value: float | None, digits: int = 2) -> str:
    """`value` with `digits` decimals; a dash for None."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share, 0 to 1, in percent; a dash for None."""
    return MISSING if value is None else f"{value * 100:.{digits}f}%"


def times(value: float | None) -> str:
    """A speed-up in the form 2.11×; a dash for None."""
    return MISSING if value is None else f"{value:.2f}×"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 prompt, 2 prompts."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _range(pair: Sequence[float] | None) -> str:
    return MISSING if not pair else f"{pair[0]:.2f}–{pair[1]:.2f}"


def _whole(value: int | None) -> str:
    return MISSING if value is None else str(value)


Show = Callable[[Row], str]
_TOKENS_PER_S = "tokens_per_s_with_prefill"
# Rank, heading, key, and the text of a row's value; columns without values are omitted.
_LIVE: tuple[tuple[int, str, str, Show], ...] = (
    (0, "speed-up", "speedup", lambda r: times(r["speedup"])),
    (4, "quartiles", "speedup_quartiles", lambda r: _range(r["speedup_quartiles"])),
    (9, "over hf", "speedup_over_hf", lambda r: times(r["speedup_over_hf"])),
    (1, "accept. length", "mean_acceptance_length", lambda r: number(r["mean_acceptance_length"])),
    (2, "same ids", "same_ids", lambda r: f"{r['same_ids']}/{r['questions']}"),
    (3, "tokens/s", _TOKENS_PER_S, lambda r: number(r[_TOKENS_PER_S], 1)),
    (6, "EM", "exact_match", lambda r: number(_hundred(r["exact_match"]), 1)),
    (5, "F1", "f1", lambda r: number(_hundred(r["f1"]), 1)),
    (7, "ROUGE-L", "rouge_l", lambda r: number(_hundred(r["rouge_l"]), 1)),
    (8, "seconds", "seconds_median", lambda r: number(r["seconds_median"], 3)),
    (11, "spread", "spread", lambda r: percent(r["spread"])),
    (10, "accepted", "draft_acceptance_rate", lambda r: percent(r["draft_acceptance_rate"], 1)),
    (12, "undrafted", "undrafted_share", lambda r: percent(r["undrafted_share"])),
    (13, "MiB", "peak_memory_mib", lambda r: number(r["peak_memory_mib"], 1)),
)  # fmt: skip
_REPLAY: tuple[tuple[int, str, str, Show], ...] = (
    (0, "accept. length", "mean_acceptance_length", lambda r: number(r["mean_acceptance_length"])),
    (1, "accepted", "draft_acceptance_rate", lambda r: percent(r["draft_acceptance_rate"], 1)),
    (3, "nodes/step", "nodes_per_step", lambda r: number(r["nodes_per_step"], 1)),
    (2, "draft µs", "draft_us_median", lambda r: number(r["draft_us_median"], 0)),
    (5, "99th", "draft_us_p99", lambda r: number(r["draft_us_p99"], 0)),
    (4, "undrafted", "undrafted_share", lambda r: percent(r["undrafted_share"])),
    (6, "steps", "steps", lambda r: _whole(r["steps"])),
    (7, "tokens", "new_tokens", lambda r: _whole(r["new_tokens"])),
)  # fmt: skip
_SHAPE: tuple[tuple[int, str, str, Show], ...] = (
    (0, "speed-up", "speedup", lambda r: times(r["speedup"])),
    (4, "quartiles", "speedup_quartiles", lambda r: _range(r["speedup_quartiles"])),
    (3, "of sums", "speedup_overall", lambda r: times(r["speedup_overall"])),
    (1, "accept. length", "mean_acceptance_length", lambda r: number(r["mean_acceptance_length"])),
    (2, "tokens/s", "tokens_per_s", lambda r: number(r["tokens_per_s"], 1)),
    (5, "ms/step", "step_ms", lambda r: number(r["step_ms"], 1)),
    (6, "draft ms", "draft_ms", lambda r: number(r["draft_ms"], 2)),
    (7, "nodes/step", "nodes_per_step", lambda r: number(r["nodes_per_step"], 1)),
    (8, "accepted", "draft_acceptance_rate", lambda r: percent(r["draft_acceptance_rate"], 1)),
    (9, "undrafted", "undrafted_share", lambda r: percent(r["undrafted_share"])),
    (10, "spread", "spread", lambda r: percent(r["spread"])),
)  # fmt: skip
_LIVE_NOTE = (
    "Speed-up: plain decoding's time by own time, median over prompts, prefill included; quartiles"
    " over prompts. Accept. length: tokens a pass of the model. Spread: the interquartile range of"
    " a prompt's rounds, by their median."
)
_MEMORY = {
    "device": " MiB: most memory of tensors on the GPU, weights included.",
    "process": " MiB: how far a run raised the process's memory, at most.",
    "process-high": " MiB: how far a run raised the process's highest memory so far.",
}
_REPLAY_NOTE = (
    "Accept. length: tokens a pass of the model. Accepted: share of drafted tokens. Draft µs:"
    " time of a proposal, median and 99th percentile. Undrafted: steps without a draft. A recording"
    " has neither the cost of passes nor scores: auto drafts as many nodes as it may, and without"
    " the model's runners-up."
)
_SHAPE_NOTE = (
    "Passes are real and timed; which drafts are accepted, the recording says. Speed-up: plain"
    " decoding's time by own time, prefill left out, median over prompts with quartiles; of sums:"
    " all its time by all own time. Accept. length: tokens a pass. Of a step's ms, draft ms are"
    " spent drafting."
)
_SHOWN = {
    "live": ("live", _LIVE, _LIVE_NOTE),
    "replay": ("replayed", _REPLAY, _REPLAY_NOTE),
    "shape": ("replayed with real passes", _SHAPE, _SHAPE_NOTE),
}


def _hundred(value: float | None) -> float | None:
    return None if value is None else value * 100


def tables(result: Row) -> list[Table]:
    """All tables of a result that have rows, the main one first."""
    timed = result["kind"] != "replay"
    rows: list[Row] = list(result["rows"])
    found = [
        _main(result),
        _pivot(rows, "speedup", "Speed-up over plain decoding by task", times) if timed else None,
        _pivot(rows, "mean_acceptance_length", "Mean acceptance length by task", number),
        _histograms(rows),
        _split(result.get("split", [])),
        _refused(result["refused"]),
    ]
    return [table for table in found if table is not None and table.rows]


def facts(result: Row) -> list[str]:
    """The run in short phrases: model, machine, sizes, versions, date."""
    parts = [result["label"]] if "label" in result else []
    parts += [str(result["model"])]
    if result["kind"] != "replay":
        parts += [
            f"{result['dtype']} on {result['device']} ({result['device_name']})",
            f"{result['threads']} of {result['cores']} cores",
            counted(result["rounds"], "round"),
        ]
    if result["kind"] == "live":
        parts.append(f"at most {result['max_tokens']} tokens")
        parts += [counted(result["noise"], "unrelated passage")] if result.get("noise") else []
    else:
        parts += [f"from {result['source']}", f"{result['seconds']:.1f} s"]
    parts += ["forgetting at each prompt"] if result.get("fresh") else []
    parts += ["interrupted"] if result.get("interrupted") else []
    versions = result.get("versions", {})
    parts += [f"{name} {versions[name]}" for name in ("ngt", "torch", "transformers") if versions]
    return [*parts, *([result["date"]] if "date" in result else [])]


def names(rows: Sequence[Row]) -> tuple[list[Column], Callable[[Row], list[str]]]:
    """The columns that name a row, and its cells: the method, and a draft budget that varies."""
    varies = len(_budgets(rows)) > 1
    columns = [Column("method", left=True)]
    if varies:
        columns.append(Column("drafts"))
    return columns, lambda r: [str(r["method"]), *([_whole(r["num_draft"])] if varies else [])]


def _budgets(rows: Sequence[Row]) -> list[int]:
    """The draft budgets, in nodes per step; plain decoding has none."""
    return sorted({r["num_draft"] for r in rows if r["num_draft"]})


def label(row: Row, rows: Sequence[Row]) -> str:
    """A name for a row among `rows`: its method, with the draft budget if that varies."""
    parts = [p for p in names(rows)[1](row) if p != MISSING]
    return " · ".join(parts)


def overall(rows: Sequence[Row]) -> list[Row]:
    """The rows that summarise all tasks."""
    return [r for r in rows if r["task"] == OVERALL]


def _main(result: Row) -> Table | None:
    how, shown, note = _SHOWN[result["kind"]]
    rows = overall(result["rows"])
    columns, name = names(rows)
    used = [s for s in shown if any(r.get(s[2]) is not None for r in rows)]
    columns += [Column(title, rank) for rank, title, _, _ in used]
    cells = [
        [*name(r), *(show(r) if key in r else MISSING for _, _, key, show in used)] for r in rows
    ]
    note += _MEMORY.get(result.get("memory", ""), "")
    title = [counted(result["questions"], "prompt"), how]
    if len(budgets := _budgets(rows)) == 1:
        title.append(f"at most {counted(budgets[0], 'draft node')} a step")
    title += [result["label"]] if "label" in result else []
    return Table(", ".join(title), columns, cells, note)


def _pivot(
    rows: Sequence[Row], key: str, title: str, show: Callable[[float | None], str]
) -> Table | None:
    tasks = list(dict.fromkeys(r["task"] for r in rows if r["task"] != OVERALL))
    if len(tasks) < 2:
        return None
    columns, name = names(rows)
    found = {(tuple(name(r)), r["task"]): r.get(key) for r in rows}
    cells = [
        [*name(r), *(show(found.get((tuple(name(r)), t))) for t in (*tasks, OVERALL))]
        for r in overall(rows)
    ]
    columns += [Column(t, i + 1) for i, t in enumerate(tasks)]
    return Table(title, [*columns, Column(OVERALL)], cells)


def _histograms(rows: Sequence[Row]) -> Table | None:
    """Share of steps by accepted drafts (paper, Figure 4)."""
    drafting = [r for r in overall(rows) if any(k != "0" for k in r["acceptance_histogram"])]
    columns, name = names(drafting)
    cells = [[*name(r), *_shares(r["acceptance_histogram"])] for r in drafting]
    columns += [Column(title, i) for i, (title, _, _) in enumerate(_BUCKETS)]
    return Table("Steps by accepted drafts", columns, cells)


def _shares(histogram: Mapping[str, int]) -> list[str]:
    total = sum(histogram.values()) or 1
    counts = {int(k): v for k, v in histogram.items()}
    return [
        percent(sum(v for k, v in counts.items() if low <= k <= high) / total)
        for _, low, high in _BUCKETS
    ]


def _split(rows: Sequence[Row]) -> Table | None:
    """Where the time goes (paper, Figure 5)."""
    if not rows:
        return None
    columns, name = names(rows)
    cells = [
        [
            *name(r),
            f"{r['prefill_ms']:.1f} ms {percent(r['share']['prefill'])}",
            *(f"{us:.0f} {percent(r['share'][p])}" for p, us in r["step_us"].items()),
        ]
        for r in rows
    ]
    columns += [Column(part, _PART_RANKS.get(part, 0)) for part in rows[0]["share"]]
    note = (
        "Mean µs a step and share of the whole time; prefill in ms a prompt. Tree: the tree and its"
        " mask. Cache: its upkeep."
    )
    return Table("Where the time goes", columns, cells, note)


def _refused(rows: Sequence[Row]) -> Table | None:
    columns = [Column("method", left=True), Column("reason", left=True)]
    return Table("Refused", columns, [[str(r["method"]), str(r["reason"])] for r in rows])
