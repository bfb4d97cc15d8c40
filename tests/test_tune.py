"""`ngt tune`: the grammar against a naive reading, the verdict, stopping and going on, presets."""

import json
import re
import weakref
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.cli.notes import pointed
from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.load import Document
from ngtcli.errors import GrammarError, InputError, UsageError
from ngtcli.measure import tune as tuning
from ngtcli.measure.grid import (
    BenchOptions,
    Cell,
    SkippedCell,
    grid,
    is_axis,
    parse_axis,
    parse_sweep,
)
from ngtcli.measure.live import Live
from ngtcli.measure.prompts import preset_items
from ngtcli.measure.records import Answering, Generation, Record, by_cell, take
from ngtcli.measure.replay import (
    DEFAULT_COSTS,
    Replay,
    check_replayable,
    chosen_traces,
    read_costs,
    run_replay,
)
from ngtcli.measure.results import SweepData, SweepReport
from ngtcli.measure.summary import TUNE, CellRow, Group, row_of
from ngtcli.measure.traces import TraceWriter
from ngtcli.measure.tune import State, behind, judge, preset_path
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.prompt.preset import load_preset, preset_files
from ngtcli.render.results import forms_of
from tests.support.helpers import END, ngt

# --- the grammar ---


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("num-draft=0,8..10,100", (0, 8, 9, 10, 100)), ("lp=3", (3,)), ("lp=3,2,3", (3, 2)),
        ("temperature=0..1", (0.0, 1.0)), ("top_p=.5,1e-1", (0.5, 0.1)),
        ("presence_penalty=-1..1+.5", (-1.0, -0.5, 0.0, 0.5, 1.0)),
        ("learn_output=true,False", (True, False)),
        ("method=none,trie:lp=4,auto", ("none", "trie:lp=4", "auto")), ("stop=END", (("END",),)),
    ],
)  # fmt: skip
def test_an_axis_is_read(text: str, values: tuple[Any, ...]) -> None:
    assert parse_axis(text) == (text.partition("=")[0].replace("-", "_"), values)
    assert [type(v) for v in parse_axis(text)[1]] == [type(v) for v in values]


@pytest.mark.parametrize(
    ("text", "caret"),
    [
        ("m=8", "^"), ("n", " ^"), ("n=", "  ^"), ("n=8,,9", "    ^"), ("n=x", "  ^"),
        ("n=8..", "  ^"), ("n=8.16", "  ^"), ("n=8..16x", "  ^"), ("n=9,8..16+", "    ^"),
        ("n=8..16+0", "  ^"), ("n=8..16*1", "  ^"), ("n=9,16..8", "    ^"), ("n=8.5", "  ^"),
        ("n=7,100", "    ^"), ("temperature=0..1*2", "            ^"), ("n=８", "  ^"),
        ("temperature=0..1+1e-9", "            ^"), ("temperature=1e99", "            ^"),
        ("learn_output=yes", "             ^"), ("method=trie,tire", "            ^"),
        ("device=cpu,gpu", "           ^"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_pointed_at(text: str, caret: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_axis(text)
    assert " " * caught.value.place + "^" == caret
    assert caught.value.text == text and caught.value.hint and "\n" not in caught.value.hint


def test_the_caret_stands_under_its_character_in_long_and_wide_texts() -> None:
    assert pointed("n=8..x", 5) == ["  n=8..x", "       ^"]
    assert pointed("stop=東京,x", 8) == ["  stop=東京,x", "            ^"]
    line, caret = pointed("x" * 500 + "!" + "y" * 500, 500)
    assert len(line) < 60 and line[len(caret) - 1] == "!"
    assert pointed("a\x1bb", 2)[0] == "  a␛b"


_NEAR = st.builds(
    "{}={}".format,
    st.sampled_from(list(SETTINGS)),
    st.text(alphabet="0123456789.,+*-e:=truefals", max_size=20),
)


@given(st.text(max_size=40) | _NEAR)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        name, values = parse_axis(text)
    except GrammarError as error:
        assert 0 <= error.place <= len(text)
    else:
        kind = type(getattr(Settings(), name))
        assert values and len(set(values)) == len(values)
        assert all(type(v) is kind for v in values)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 40), st.sampled_from("+*"))
def test_ranges_are_those_of_a_naive_reading_and_do_not_drift(
    a: int, more: int, by: int, sign: str
) -> None:
    if sign == "*":
        a, by = max(a, 1), max(by, 2)
    expected, x = [], a
    while x <= a + more:
        expected.append(x)
        x = x * by if sign == "*" else x + by
    assert list(parse_axis(f"num_draft={a}..{a + more}{sign}{by}")[1]) == expected
    if sign == "+":
        parts = [Decimal(number) / 100 for number in (a, a + more, by)]
        text = "temperature={}..{}+{}".format(*parts)
        assert list(parse_axis(text)[1]) == [float(Decimal(x) / 100) for x in expected]


def test_axes_are_told_from_files_come_once_and_make_a_bounded_number_of_cells() -> None:
    assert is_axis("n=8..9") and is_axis("num-draft=1")
    assert not is_axis("notes.txt") and not is_axis("./a=b.txt") and not is_axis("a.b=c")
    with pytest.raises(GrammarError, match="twice"):
        parse_sweep(["n=8", "num_draft=1", "n=9"])
    with pytest.raises(UsageError, match="cells"):
        parse_sweep(["n=3..64", "num_draft=1..64"])


def test_cells_that_cannot_be_are_skipped_and_named() -> None:
    made = grid(parse_sweep(["n=3,8", "lp=2..3"]), Settings())
    assert [c.key for c in made.cells] == ["n=3 lp=2", "n=8 lp=2", "n=8 lp=3"]
    assert made.skipped == [SkippedCell({"n": 3, "lp": 3}, "lp is 3 and n is 3")]
    made = grid(parse_sweep(["method=trie,trie:n=4", "lp=3,5"]), Settings())
    assert [dict(s.values) for s in made.skipped] == [{"method": "trie:n=4", "lp": 5}]
    with pytest.raises(UsageError, match="no cell"):
        grid(parse_sweep(["n=2", "lp=2..3"]), Settings())


# --- the verdict ---


def cell(label: str, speeds: list[float], prompts: list[float], size: int | None) -> CellRow:
    return CellRow(
        cell=label, values={"num_draft": len(label)}, rounds=len(speeds),
        tokens_per_s=median(speeds), tokens_per_s_least_and_most=(min(speeds), max(speeds)),
        mean_acceptance_length=2.0, prompts=[(100, seconds) for seconds in prompts],
        trie_build_s=0.001, trie_bytes=size,
    )  # fmt: skip


def summarize(rounds: list[list[Generation]]) -> CellRow:
    one = Cell("n=8", {"n": 8}, Settings())
    records = {
        ("n=8", i): [Record("n=8", i, number, made[i]) for number, made in enumerate(rounds)]
        for i in range(len(rounds[0]))
    }
    made: CellRow = row_of(TUNE, Group(TUNE, one, "", range(len(rounds[0])), records))
    return made


def test_a_cell_is_summed_up_by_the_medians_of_its_rounds() -> None:
    def answer(tokens: int, steps: int, seconds: float, build: float, size: int) -> Generation:
        ids = [1] * tokens
        return Generation(ids, steps, decode_s=seconds, trie_build_s=build, trie_bytes=size)

    rounds = [
        [answer(60, 30, seconds, build, 10), answer(40, 10, 2 * seconds, build, 30)]
        for seconds, build in ((1.0, 0.1), (2.0, 0.3), (4.0, 0.2))
    ]
    assert summarize(rounds) == CellRow(
        cell="n=8", values={"n": 8}, rounds=3, tokens_per_s=100 / 6,
        tokens_per_s_least_and_most=(100 / 12, 100 / 3), mean_acceptance_length=2.5,
        prompts=[(60, 2.0), (40, 4.0)], trie_build_s=0.2, trie_bytes=20, standing="",
    )  # fmt: skip
    without = summarize([[Generation([1], 1, decode_s=0.0)]])
    assert (without.tokens_per_s, without.trie_build_s, without.trie_bytes) == (0.0, None, None)


NINE, SLOW = [1.0] * 9, [2.0] * 9  # seconds of each prompt
FAST = ("fast", [100], NINE, 5)
SMALLEST = "within 2% of its speed small has the smallest trie"
FEWEST = "2% of its speed fast has the fewest drafts and shortest lengths"


@pytest.mark.parametrize(
    ("cells", "tied", "chosen", "reason"),
    [
        # A clear winner is chosen though its trie is larger.
        ([("slow", [90, 91, 92], SLOW, 10), ("fast", [100, 101, 102], NINE, 99)], 1, "fast",
         "faster than every other cell beyond"),
        # Of rounds that overlap the smallest trie is chosen, unless it is much slower.
        ([("large", [98, 101, 110], NINE, 99), ("small", [99, 100, 101], SLOW, 10)], 2, "small",
         f"2 cells are within the noise of the best; of the 2 {SMALLEST}"),
        ([("large", [90, 105, 110], NINE, 99), ("small", [80, 90, 100], SLOW, 10)], 2, "large",
         "no other within 2%"),
        # Prompts that disagree are a tie; few prompts in one round cannot decide.
        ([("one", [100], [1.0] * 5 + [3.0] * 4, 5), ("other", [99], SLOW, 5)], 2, "one",
         "fewest drafts"),
        ([("a", [100], [1.0] * 5, 5), ("bb", [50], [2.0] * 5, 5)], 2, "a", "cannot be told apart"),
        ([("a", [100], [1.0] * 6, 5), ("bb", [50], [2.0] * 6, 5)], 1, "a", "the fastest of 2"),
        # Of noise nothing is said where a cell was measured once.
        ([FAST, ("slow", [50], SLOW, 5)], 1, "fast",
         "the fastest of 2 cells; 1 round, no noise estimate"),
        ([FAST], 1, "fast", "it is the only cell; 1 round, no noise estimate"),
        ([FAST, ("other", [99.5], NINE, 5)], 2, "fast",
         f"2 cells cannot be told apart; of the 2 within {FEWEST}; 1 round, no noise estimate"),
        ([("fast", [100, 101], NINE, 5), ("slow", [50], SLOW, 5)], 1, "fast",
         "1 round of some cells, no noise estimate"),
        ([("fast", [100, 101], NINE, 5), ("slow", [50, 51], SLOW, 5)], 1, "fast",
         "faster than every other cell"),
    ],
)  # fmt: skip
def test_the_verdict(cells: list[Any], tied: int, chosen: str, reason: str) -> None:
    rows = [cell(*one) for one in cells]
    verdict = judge(rows)
    assert (len(verdict.tied), verdict.chosen.cell) == (tied, chosen) and reason in verdict.reason
    assert verdict.tied[0] is verdict.best is max(rows, key=lambda row: row.tokens_per_s)
    assert judge(rows, complete=False).reason == f"so far: {verdict.reason}"


def test_a_lead_that_a_few_prompts_make_is_a_lead_where_the_others_lose_little() -> None:
    most_lose_little = [1.01] * 40 + [0.3] * 20
    one_wins_much = [1.01] * 59 + [0.01]
    plain = cell("plain", [90], [1.0] * 60, 5)
    assert len(judge([cell("fast", [100], most_lose_little, 5), plain]).tied) == 1
    assert len(judge([cell("fast", [100], one_wins_much, 5), plain]).tied) == 2
    assert behind(plain, plain) == 1.0


# --- running, stopping, going on ---

GRID = grid(parse_sweep(["n=8..10", "lp=2,3"]), Settings())
ABOUT = SweepData(
    source="replay", model="m", device="d", data="x", data_sha256="0", prompts=2, costs={1: 0.5}
)


def measured(path: Path, stop: int = 10**9) -> tuple[Any, list[str], list[int]]:
    """A sweep that stops after a number of answers, of 60 tokens and 40, whose figures are made up.

    The report, what was said of progress, and the answers.
    """
    state, said, answers = State(path, "key", 2), list[str](), list[int]()

    class Made:
        prompts = (60, 40)

        def begin(self, cell: Cell, split: bool = False) -> Answering[int]:
            def answer(tokens: int) -> Generation:
                if len(answers) == stop:
                    raise KeyboardInterrupt
                answers.append(tokens)
                return Generation([1] * tokens, tokens // 2, decode_s=tokens / cell.settings.n)

            return answer

    with closing(state):
        tuning.measure(Made(), GRID, 2, state, said.append)
    return tuning.report(ABOUT, GRID, 2, state), said, answers


@pytest.mark.parametrize("stop", [1, 2, 15, 23])
def test_an_interrupted_sweep_reports_finished_passes_and_goes_on(
    stop: int, tmp_path: Path
) -> None:
    partial, _, _ = measured(tmp_path / "s", stop)
    assert (partial is None) == (stop < 2)
    if partial:
        assert (partial.measured, partial.complete) == (stop // 2, False)
        assert partial.chosen is None and "beyond the noise" not in partial.reason
        assert partial.reason.startswith("so far: ") and "no noise estimate" in partial.reason
    whole, said, answers = measured(tmp_path / "s")
    assert len(answers) == 24 - stop // 2 * 2
    assert whole.complete and whole.chosen == "n=10 lp=2"
    assert said[0].startswith(f"0 of {24 - stop // 2 * 2} answers: n=")
    assert "answers · about 0 s left: n=" in said[-1]
    straight, _, _ = measured(tmp_path / "whole")
    assert straight.cells == whole.cells and straight.reason == whole.reason


def test_the_key_knows_data_model_settings_and_sweep_but_no_colour() -> None:
    def key(about: SweepData = ABOUT, grid: Any = GRID, **base: Any) -> str:
        return tuning.state_key(about, replace(grid, base=replace(GRID.base, **base)))

    assert key() == key(color="never", n=20)
    others = key(replace(ABOUT, model="c")), key(num_draft=8), key(grid=replace(GRID, axes={}))
    assert key() not in others and key(grid=grid(parse_sweep(["color=never"]), GRID.base))


def test_the_key_knows_versions_cpu_and_the_files_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "model.safetensors"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((BUILTIN_PATH / name).read_bytes())
    weights.write_bytes(b"one")
    live, base = replace(ABOUT, source="live"), Settings(model=str(tmp_path))
    swept = grid(parse_sweep(["num_draft=8"]), base)
    before = tuning.state_key(live, swept)
    assert tuning.state_key(live, swept) == before
    weights.write_bytes(b"two")
    changed = tuning.state_key(live, swept)
    monkeypatch.setattr(tuning, "versions_and_cpu", lambda: ("another",))
    assert len({before, changed, tuning.state_key(live, swept)}) == 3


# --- what is measured ---


def record(folder: Path, count: int = 4) -> Path:
    """A recording whose outputs repeat their prompts, with tasks a and b."""
    with TraceWriter(folder, "print", "tiny", 97) as writer:
        for i in range(count):
            prompt = [*range(10, 40), 50 + i, *range(10, 40), 5]
            writer.add(str(i), "ab"[i % 2], prompt, [*range(12, 30), 50 + i, END])
    return folder


def answers_of(source: Any, settings: Settings) -> list[Record]:
    turns = by_cell([Cell("", {}, settings)], len(source.prompts), 1)
    return list(take(source, turns, source.prompts))


def recorded(folder: Path, costs: Path = DEFAULT_COSTS, **part: Any) -> tuple[Replay, SweepData]:
    options, (seconds, of) = BenchOptions(**part), read_costs(costs)
    source = Replay(chosen_traces(folder, options, 100), print, seconds)
    return source, source.about(options, of)


def test_a_recording_gives_the_acceptance_of_a_replay_and_the_time_of_the_curve(
    tmp_path: Path,
) -> None:
    folder = record(tmp_path / "r")
    (tmp_path / "costs.json").write_text('{"1": 1000.0, "2": 2000.0}')
    source, _ = recorded(folder, tmp_path / "costs.json")
    settings = replace(Settings(), method="trie", num_draft=8)
    records = answers_of(source, settings)
    made = [r.generation for r in records]
    row = run_replay(folder, BenchOptions(num_drafts=[8]), Settings(), print, print).rows[-1]
    total = sum(len(g.ids) for g in made), sum(g.steps for g in made)
    assert total == (row.new_tokens, row.steps) and len(made) == 4
    rows = row.steps * (1 + (row.nodes_per_step or 0))  # at 1000 s a row drafting does not count
    assert sum(g.decode_s or 0 for g in made) == pytest.approx(1000 * rows, rel=1e-3)
    assert all(r.generation.trie_bytes and r.generation.trie_build_s for r in records)
    for plain in answers_of(source, replace(settings, method="none")):
        one = plain.generation
        assert one.trie_bytes is None and one.steps == len(one.ids)
        assert one.decode_s == pytest.approx(1000 * len(one.ids), rel=1e-3)


def test_a_part_of_a_recording_is_other_data(tmp_path: Path) -> None:
    folder = record(tmp_path / "r")
    whole, odd = recorded(folder)[1], recorded(folder, ids="odd")[1]
    assert (whole.prompts, odd.prompts) == (4, 2)
    assert recorded(folder, tasks=["b"])[1].data_sha256 == odd.data_sha256 != whole.data_sha256
    assert "odd ids" in odd.data


@pytest.mark.parametrize(
    "text",
    [
        "", "[1]", "{}", '{"2": 1.0}', '{"1": 0}', '{"1": "x"}', '{"one": 1}', '{"1": NaN}',
        '{"1": true}', '{"1": "0.5"}', "[" * 200_000, '{"1": %s}' % ("9" * 400), '{"seconds": 3}',
    ],
)  # fmt: skip
def test_a_bad_cost_curve_is_named_and_the_default_says_what_it_is_of(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "costs.json").write_text(text)
    for path, words in ((tmp_path / "costs.json", "not a cost curve"), ("no.json", "no such file")):
        with pytest.raises(InputError, match=words):
            read_costs(Path(path))
    seconds, of = read_costs(DEFAULT_COSTS)
    assert "built-in model" in of and seconds[64] > seconds[1]


@pytest.mark.parametrize("text", ["temperature=0,1", "method=recycling"])
def test_what_a_recording_cannot_tell_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a recording cannot"):
        check_replayable(grid(parse_sweep([text]), Settings()))


@pytest.mark.parametrize("text", ["pool=true,false", "background=none,english"])
def test_what_a_recording_is_drafted_by_is_swept_on_it_too(text: str, tmp_path: Path) -> None:
    code, out, errors = tune("--replay", record(tmp_path / "r"), "--sweep", text, "--rounds", "1")
    assert code == 0 and len(out.splitlines()) == 3, errors


def test_texts_make_prompts_and_questions_where_the_preset_asks_for_them(tmp_path: Path) -> None:
    summarize, ask = load_preset("summarize"), load_preset("ask")
    assert len(preset_items([], summarize, None)) == 10
    texts = [Document("a.txt", "One. Two.")]
    assert [(i.id, i.question) for i in preset_items(texts, summarize, None)] == [
        ("summarize a.txt", "")
    ]
    asked = preset_items(texts, ask, 3)
    assert len(asked) == 3 and len({i.question for i in asked}) == 3
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"context": "A. B.", "question": "A?"}\n{"context": "C. D."}\n')
    assert [i.question for i in preset_items([], ask, None, lines)] == ["A?"]
    assert [i.documents[0].text for i in preset_items([], summarize, None, lines)] == ["C. D."]
    lines.write_text('{"context": "C. D."}\n')
    with pytest.raises(InputError, match="no prompt with a question"):
        preset_items([], ask, None, lines)


def test_a_running_model_is_measured_as_it_answers() -> None:
    from ngtcli.session.local import LocalSession

    preset, settings = load_preset("summarize"), replace(Settings(), max_tokens=12)
    items = preset_items([Document("a.txt", "The tide came in at noon. The slate came by rail.")],
                         preset)  # fmt: skip
    said: list[str] = []
    source = Live(items, preset, said.append, said.append, sweeps=True)
    about = source.about(settings)
    loading = len(said)
    session = LocalSession(settings)
    trie = replace(settings, method="trie")  # what auto drafts depends on what passes take
    for changed in (replace(trie, num_draft=2), replace(settings, method="none")):
        own = session.with_settings(changed)
        runs = []
        for item in items:
            run = own.generate(own.prompt(preset, item.documents, item.question))
            runs.append(run.finish().statistics)
        records = answers_of(source, changed)
        made = [r.generation for r in records]
        assert [len(g.ids) for g in made] == [r.new_tokens for r in runs]
        assert [g.steps for g in made] == [r.steps for r in runs]
        assert all((g.trie_bytes is None) == (changed.method == "none") for g in made)
        assert all(0 < (r.generation.decode_s or 0) < r.seconds for r in records)
    assert len(said) == loading  # progress is the sweep's own
    assert about.model == "builtin" and "float32" in about.device
    model = weakref.ref(source.session(settings).model)
    source.session(replace(settings, dtype="bfloat16"))
    assert model() is None  # one is held at a time


# --- what is shown ---


def shown_report(**changes: Any) -> SweepReport:
    def row(n: int, lp: int, speed: float, standing: str) -> CellRow:
        return CellRow(
            cell=f"n={n} lp={lp}", values={"n": n, "lp": lp}, rounds=3, tokens_per_s=speed,
            tokens_per_s_least_and_most=(speed - 1, speed + 1), mean_acceptance_length=speed / 50,
            trie_build_s=n / 1e4, trie_bytes=n * 1000, standing=standing,
        )  # fmt: skip

    values: dict[str, Any] = {
        "about": replace(ABOUT, source="live", costs=None),
        "command": "ngt tune --sweep 'n=3,8' lp=2,3",
        "sweep": {"n": (3, 8), "lp": (2, 3)}, "rounds": 3, "measured": 9, "planned": 9,
        "complete": True,
        "cells": [row(3, 2, 100, "chosen"), row(8, 2, 101, "tied"), row(8, 3, 50, "")],
        "skipped_cells": [SkippedCell({"n": 3, "lp": 3}, "lp is 3 and n is 3")],
        "best": "n=8 lp=2", "tied": ["n=8 lp=2", "n=3 lp=2"], "chosen": "n=3 lp=2",
        "reason": "2 cells are within the noise of the best", "state": "s.jsonl",
    }  # fmt: skip
    return SweepReport(**values | changes)


def screen(report: SweepReport, width: int, colour: bool = False, every: bool = False) -> str:
    return forms_of(report, every).terminal(width, colour).replace("\xa0", " ")


SCREEN = """\
tokens/s                acceptance length

n \\ lp       2     3    n \\ lp       2      3
─────────────────────   ──────────────────────
3       100.0*     –    3       2.000*      –
8       101.0=  50.0    8       2.020=  1.000

* chosen   = within the noise of the best
Chosen: n=3 lp=2 (100.0 tokens/s, acceptance length 2.000, trie
0.30 ms and 3.0 kB).
Why: 2 cells are within the noise of the best.
Not to be told apart: n=8 lp=2; n=3 lp=2.
Skipped 1 cell: lp is 3 and n is 3."""


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_two_names_are_a_grid_that_reads_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, painted = (screen(shown_report(), 64, colour) for colour in (False, True))
    assert plain == SCREEN
    assert "\x1b[" in painted and "48;5;" in painted
    assert bare(painted).split() == plain.split()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;5;" not in screen(shown_report(), 64, colour=True)


@pytest.mark.parametrize("width", [80, 60])
def test_nothing_is_wider_than_the_terminal_and_a_wide_grid_becomes_a_list(width: int) -> None:
    three = {"n": (3, 8), "lp": (2, 3), "num_draft": (8,)}
    cells = [replace(c, values={**c.values, "num_draft": 8}) for c in shown_report().cells]
    for report in (shown_report(), shown_report(sweep=three, cells=cells)):
        text = bare(screen(report, width, True, every=True))
        assert max(len(line) for line in text.split("\n")) <= width
        assert all(figure in text for figure in ("100.0", "50.0", "2.020"))
    text = screen(shown_report(sweep={"n": (3, 8), "lp": tuple(range(2, 60))}), 80)
    assert "n=8 lp=3" in text and "build" in text and "±1.0%" in text


def test_what_is_not_measured_yet_is_a_dot_and_said() -> None:
    cells = [replace(shown_report().cells[0], rounds=1, standing="ahead")]
    report = shown_report(cells=cells, complete=False, measured=1, chosen=None)
    text, forms = screen(report, 80), forms_of(report)
    assert text.count("·") == 4 and "1 of 9 measurements" in text
    for shown in (text, forms.markdown(), forms.page(), forms.plain()):
        assert "chosen" not in shown.lower()
    assert "* ahead so far   = not to be told from the best" in text
    assert "Ahead so far: n=3 lp=2" in text and "100.0*" in text


def test_pipes_csv_and_markdown_hold_every_figure() -> None:
    forms = forms_of(shown_report())
    lines = forms.plain().split("\n")
    assert lines[0].split("\t")[:4] == ["n", "lp", "rounds", "tokens_per_s"]
    assert lines[1].split("\t")[:4] == ["3", "2", "3", "100"] and len(lines) == 4
    assert forms.csv().split("\n")[1].startswith("3,2,3,100,99,101,2.0,0.0003,3000,")
    markdown = forms.markdown()
    assert "| 8 | 101.0= | 50.0 |" in markdown and "| 3 | 100.0\\* | – |" in markdown


# --- the command ---


def tune(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    done = ngt("tune", *map(str, arguments))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_items_after_sweep_belong_to_it_and_files_are_written_whole(tmp_path: Path) -> None:
    page, table = tmp_path / "t.html", tmp_path / "t.csv"
    arguments = ("--replay", record(tmp_path / "r"), "--rounds", "2", "--sweep", "n=4,8", "lp=2..3")
    code, out, errors = tune(*arguments, "--json")
    body = json.loads(out)
    assert code == 0 and errors == ""
    assert body["sweep"] == {"n": [4, 8], "lp": [2, 3]} and len(body["cells"]) == 4
    assert body["complete"] and body["measured"] == 8
    again = tune(*arguments, "--json", "-o", tmp_path / "t.json", "--html", page)
    assert again[0] == 0 and page.read_text().startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "t.json").read_text())["cells"] == body["cells"]  # nothing is new
    assert tune(*arguments, "--ids", "odd", "--csv", "-o", table)[0] == 0
    assert len(table.read_text().splitlines()) == 5


def test_ctrl_c_keeps_finished_cells_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [3]

    begin = Replay.begin

    def interrupted(source: Replay, cell: Cell, split: bool = False) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return begin(source, cell, split)

    monkeypatch.setattr(Replay, "begin", interrupted)
    folder = record(tmp_path / "r")
    sweep = ("--replay", folder, "--sweep", "n=4..7", "--rounds", "1", "--write", "best")
    code, out, errors = tune(*sweep)
    assert code == 130 and len(out.splitlines()) == 4 and "go on" in errors
    assert "best" not in preset_files()
    left[0] = 1
    code, out, errors = tune(*sweep)
    assert code == 0 and len(out.splitlines()) == 5
    assert "3 measurements are taken over" in errors and "Saved as" in errors
    written = load_preset("best").settings.values
    assert (written["method"], written["num_draft"]) == ("trie", 32)  # trie reads n
    monkeypatch.setenv("NGT_METHOD", "auto:trust=5")
    code, _, errors = tune(*sweep, "--force")
    assert code == 2 and "auto from environment" in errors


def test_a_written_preset_holds_the_winner_with_its_origin_and_is_used(tmp_path: Path) -> None:
    folder = record(tmp_path / "r")
    sweep = ("--replay", folder, "--sweep", "num_draft=5", "--set", "n=9", "--write", "best")
    assert tune(*sweep)[0] == 0
    preset = load_preset("best")
    assert preset.template == load_preset("summarize").template
    assert {"n": 9, "num_draft": 5, "method": "auto"}.items() <= preset.settings.values.items()
    assert preset.provenance["model"] == "tiny" and preset.provenance["based_on"] == "summarize"
    assert preset.provenance["command"].startswith("ngt tune --replay")
    assert preset.provenance["figures"]["rounds"] == 3
    shown = json.loads(ngt("config", "show", "-p", "best", "--json").stdout)
    assert {"value": 5, "origin": "preset best"}.items() <= shown["num_draft"].items()
    assert ngt("presets", "show", "best", "--json").returncode == 0
    code, _, errors = tune(*sweep)
    assert code == 2 and "--force" in errors
    assert tune(*sweep, "--force", "--rounds", "4")[0] == 0
    assert load_preset("best").provenance["rounds"] == 4
    sweep = ("--replay", record(tmp_path / "q"), "--sweep", "lp=2", "-p")
    assert tune(*sweep, "ask", "--write", "first")[0] == 0
    assert tune(*sweep, "first", "--write", "second")[0] == 0
    ask, second = load_preset("ask"), load_preset("second")
    assert (second.template, second.separator) == (ask.template, ask.separator)
    assert second.provenance["based_on"] == "first"
    for name in ("", ".x", "a/b", "../a", "a b", "-a"):
        with pytest.raises(UsageError, match="not a name"):
            preset_path(name, False)


def test_a_wrong_axis_is_pointed_at_on_the_command_line() -> None:
    code, out, errors = tune("--sweep", "n=x")
    assert code == 2 and out == "" and "  n=x\n    ^\n" in errors and errors.count("\n") == 4
