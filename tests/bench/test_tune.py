"""`ngt tune`: the grammar against a naive reading, the verdict, stopping and going on, presets."""

import json
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

from ngtcli.bench import tune as tuning
from ngtcli.bench.grid import (
    Cell,
    grid,
    is_axis,
    parse_axis,
    parse_sweep,
)
from ngtcli.bench.live import Live
from ngtcli.bench.prompts import preset_items
from ngtcli.bench.records import Answering, Generation, Record, by_cell, take
from ngtcli.bench.results import SweepData, SweepReport
from ngtcli.bench.summary import CellRow, Group, row_of
from ngtcli.bench.tune import State, judge, preset_path, share_not_ahead
from ngtcli.cli.notes import pointed
from ngtcli.config import SETTINGS, Settings
from ngtcli.documents.load import Document
from ngtcli.errors import GrammarError, InputError, UsageError
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.prompts.preset import load_preset, preset_files
from ngtcli.render.results import forms_of
from ngtcli.system import progress
from tests.support.helpers import HARBOUR, ngt
from tests.support.recording_reporter import RecordingReporter

# --- the grammar ---


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("num-draft=0,8..10,100", (0, 8, 9, 10, 100)),
        ("lp=3", (3,)),
        ("lp=3,2,3", (3, 2)),
        ("temperature=0..1", (0.0, 1.0)),
        ("top_p=.5,1e-1", (0.5, 0.1)),
        ("presence_penalty=-1..1+.5", (-1.0, -0.5, 0.0, 0.5, 1.0)),
        ("learn_output=true,False", (True, False)),
        ("method=none,trie:lp=4,auto", ("none", "trie:lp=4", "auto")),
        ("stop=END", (("END",),)),
    ],
)
def test_an_axis_is_read(text: str, values: tuple[Any, ...]) -> None:
    assert parse_axis(text) == (text.partition("=")[0].replace("-", "_"), values)
    assert [type(v) for v in parse_axis(text)[1]] == [type(v) for v in values]


@pytest.mark.parametrize(
    ("text", "caret"),
    [
        ("m=8", "^"),
        ("n", " ^"),
        ("n=", "  ^"),
        ("n=8,,9", "    ^"),
        ("n=x", "  ^"),
        ("n=8..", "  ^"),
        ("n=8.16", "  ^"),
        ("n=8..16x", "  ^"),
        ("n=9,8..16+", "    ^"),
        ("n=8..16+0", "  ^"),
        ("n=8..16*1", "  ^"),
        ("n=9,16..8", "    ^"),
        ("n=8.5", "  ^"),
        ("n=7,100", "    ^"),
        ("temperature=0..1*2", "            ^"),
        ("n=８", "  ^"),
        ("temperature=0..1+1e-9", "            ^"),
        ("temperature=1e99", "            ^"),
        ("learn_output=yes", "             ^"),
        ("method=trie,tire", "            ^"),
        ("device=cpu,gpu", "           ^"),
    ],
)
def test_errors_of_a_sweep_have_a_caret(text: str, caret: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse_axis(text)
    assert " " * caught.value.place + "^" == caret
    assert caught.value.text == text
    assert caught.value.hint
    assert "\n" not in caught.value.hint


def test_the_caret_stands_under_its_character_in_long_and_wide_texts() -> None:
    assert pointed("n=8..x", 5) == ["  n=8..x", "       ^"]
    assert pointed("stop=東京,x", 8) == ["  stop=東京,x", "            ^"]
    line, caret = pointed("x" * 500 + "!" + "y" * 500, 500)
    assert len(line) < 60
    assert line[len(caret) - 1] == "!"
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
        kind = type(Settings().get(name))
        assert values
        assert len(set(values)) == len(values)
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
    assert is_axis("n=8..9")
    assert is_axis("num-draft=1")
    assert not is_axis("notes.txt")
    assert not is_axis("./a=b.txt")
    assert not is_axis("a.b=c")
    with pytest.raises(GrammarError, match="twice"):
        parse_sweep(["n=8", "num_draft=1", "n=9"])
    with pytest.raises(UsageError, match="cells"):
        parse_sweep(["n=3..64", "num_draft=1..64"])


def test_cells_that_cannot_be_are_skipped_and_named() -> None:
    made = grid(parse_sweep(["n=3,8", "lp=2..3"]), Settings())
    assert [c.key for c in made.cells] == ["n=3 lp=2", "n=8 lp=2", "n=8 lp=3"]
    (skipped,) = made.skipped
    assert skipped.values == {"n": 3, "lp": 3}
    assert "lp must be shorter" in skipped.reason
    made = grid(parse_sweep(["method=trie,trie:n=4", "lp=3,5"]), Settings())
    assert [dict(s.values) for s in made.skipped] == [{"method": "trie:n=4", "lp": 5}]
    with pytest.raises(UsageError, match="no cell"):
        grid(parse_sweep(["n=2", "lp=2..3"]), Settings())


# --- the verdict ---


def cell(label: str, speeds: list[float], prompts: list[float], size: int | None) -> CellRow:
    return CellRow(
        cell=label,
        values={"num_draft": len(label)},
        rounds=len(speeds),
        tokens_per_s=median(speeds),
        tokens_per_s_least_and_most=(min(speeds), max(speeds)),
        mean_acceptance_length=2.0,
        prompts=[(100, seconds) for seconds in prompts],
        trie_build_s=0.001,
        trie_bytes=size,
    )


def summarize(rounds: list[list[Generation]]) -> CellRow:
    one = Cell("n=8", {"n": 8}, Settings())
    records = {
        ("n=8", i): [Record("n=8", i, number, made[i]) for number, made in enumerate(rounds)]
        for i in range(len(rounds[0]))
    }
    made: CellRow = row_of(CellRow, Group(one, range(len(rounds[0])), records))
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
        cell="n=8",
        values={"n": 8},
        rounds=3,
        tokens_per_s=100 / 6,
        tokens_per_s_least_and_most=(100 / 12, 100 / 3),
        mean_acceptance_length=2.5,
        prompts=[(60, 2.0), (40, 4.0)],
        trie_build_s=0.2,
        trie_bytes=20,
        standing="",
    )
    without = summarize([[Generation([1], 1, decode_s=0.0)]])
    assert (without.tokens_per_s, without.trie_build_s, without.trie_bytes) == (0.0, None, None)


NINE, SLOW = [1.0] * 9, [2.0] * 9  # seconds of each prompt


@pytest.mark.parametrize(
    ("cells", "tied", "chosen"),
    [
        # A clear winner is chosen though its trie is larger.
        ([("slow", [90, 91, 92], SLOW, 10), ("fast", [100, 101, 102], NINE, 99)], 1, "fast"),
        # Of rounds that overlap the smallest trie is chosen, unless it is much slower.
        ([("large", [98, 101, 110], NINE, 99), ("small", [99, 100, 101], SLOW, 10)], 2, "small"),
        ([("large", [90, 105, 110], NINE, 99), ("small", [80, 90, 100], SLOW, 10)], 2, "large"),
        # Prompts that disagree are a tie; few prompts in one round cannot decide.
        ([("one", [100], [1.0] * 5 + [3.0] * 4, 5), ("other", [99], SLOW, 5)], 2, "one"),
        ([("a", [100], [1.0] * 5, 5), ("bb", [50], [2.0] * 5, 5)], 2, "a"),
        ([("a", [100], [1.0] * 6, 5), ("bb", [50], [2.0] * 6, 5)], 1, "a"),
        ([("fast", [100, 101], NINE, 5), ("slow", [50, 51], SLOW, 5)], 1, "fast"),
    ],
)
def test_the_verdict(cells: list[Any], tied: int, chosen: str) -> None:
    rows = [cell(*one) for one in cells]
    verdict = judge(rows)
    assert (len(verdict.tied), verdict.chosen.cell) == (tied, chosen)
    assert ("statistically tied" in verdict.reason) == (tied > 1)
    assert verdict.tied[0] is verdict.best is max(rows, key=lambda row: row.tokens_per_s)


@pytest.mark.parametrize("others", [[], [("slow", [50], SLOW, 5)], [("slow", [50, 51], SLOW, 5)]])
def test_of_noise_nothing_is_claimed_where_a_cell_was_measured_once(others: list[Any]) -> None:
    verdict = judge([cell("fast", [100.0], NINE, 5), *(cell(*one) for one in others)])
    assert "no noise estimate" in verdict.reason
    assert "beyond the noise" not in verdict.reason


def test_a_lead_that_a_few_prompts_make_is_a_lead_where_the_others_lose_little() -> None:
    most_lose_little = [1.01] * 40 + [0.3] * 20
    one_wins_much = [1.01] * 59 + [0.01]
    plain = cell("plain", [90], [1.0] * 60, 5)
    assert len(judge([cell("fast", [100], most_lose_little, 5), plain]).tied) == 1
    assert len(judge([cell("fast", [100], one_wins_much, 5), plain]).tied) == 2
    assert share_not_ahead(plain, plain) == 1.0


# --- running, stopping, going on ---

GRID = grid(parse_sweep(["n=8..10", "lp=2,3"]), Settings())
ABOUT = SweepData(model="builtin", device="d", data="x", data_sha256="0", prompts=2)


def measured(path: Path, stop: int = 10**9) -> tuple[Any, list[str], list[int]]:
    """A sweep that stops after a number of answers, of 60 tokens and 40, whose figures are made up.

    The report, what was said of progress, and the answers.
    """
    state, answers = State(path, "key", 2), list[int]()

    class Made:
        prompts = (60, 40)

        def begin(self, cell: Cell, split: bool = False) -> Answering[int]:
            def answer(tokens: int) -> Generation:
                if len(answers) == stop:
                    raise KeyboardInterrupt
                answers.append(tokens)
                return Generation(
                    [1] * tokens, tokens // 2, decode_s=tokens / cell.settings.drafting.n
                )

            return answer

    with closing(state):
        reported = RecordingReporter()
        reported.of(lambda: tuning.measure(Made(), GRID, 2, state))
    return tuning.report(ABOUT, GRID, 2, state), reported.statuses, answers


@pytest.mark.parametrize("stop", [1, 2, 15, 23])
def test_an_interrupted_sweep_reports_finished_passes_and_goes_on(
    stop: int, tmp_path: Path
) -> None:
    partial, _, _ = measured(tmp_path / "s", stop)
    assert (partial is None) == (stop < 2)
    if partial:
        assert (partial.measured, partial.complete) == (stop // 2, False)
        assert partial.chosen is None
        assert "beyond the noise" not in partial.reason
        assert partial.reason.startswith("so far: ")
        assert "no noise estimate" in partial.reason
    whole, said, answers = measured(tmp_path / "s")
    assert len(answers) == 24 - stop // 2 * 2
    assert whole.complete
    assert whole.chosen == "n=10 lp=2"
    assert said[0].startswith(f"0 of {24 - stop // 2 * 2} answers: n=")
    assert "answers · about 0 s left: n=" in said[-1]
    straight, _, _ = measured(tmp_path / "whole")
    assert straight.cells == whole.cells
    assert straight.reason == whole.reason


def test_the_key_knows_data_model_settings_and_sweep_but_no_colour() -> None:
    def key(about: SweepData = ABOUT, grid: Any = GRID, **base: Any) -> str:
        return tuning.state_key(about, replace(grid, base=GRID.base.replace(**base)))

    assert key() == key(color="never", n=20)
    others = key(replace(ABOUT, data="c")), key(num_draft=8), key(grid=replace(GRID, axes={}))
    assert key() not in others
    assert key(grid=grid(parse_sweep(["color=never"]), GRID.base))


def test_the_key_knows_versions_cpu_and_the_files_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "model.safetensors"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((BUILTIN_PATH / name).read_bytes())
    weights.write_bytes(b"one")
    base = Settings.of(model=str(tmp_path))
    swept = grid(parse_sweep(["num_draft=8"]), base)
    before = tuning.state_key(ABOUT, swept)
    assert tuning.state_key(ABOUT, swept) == before
    weights.write_bytes(b"two")
    changed = tuning.state_key(ABOUT, swept)
    monkeypatch.setattr(tuning, "versions_and_cpu", lambda: ("another",))
    assert len({before, changed, tuning.state_key(ABOUT, swept)}) == 3


# --- what is measured ---


def answers_of(source: Any, settings: Settings) -> list[Record]:
    turns = by_cell([Cell("", {}, settings)], len(source.prompts), 1)
    return list(take(source, turns, source.prompts))


def test_texts_make_prompts_and_questions_where_the_preset_asks_for_them(tmp_path: Path) -> None:
    summarize, ask = load_preset("summarize"), load_preset("ask")
    assert len(preset_items([], summarize, None)) == 10
    texts = [Document("a.txt", "One. Two.")]
    assert [(i.id, i.question) for i in preset_items(texts, summarize, None)] == [
        ("summarize a.txt", "")
    ]
    asked = preset_items(texts, ask, 3)
    assert len(asked) == 3
    assert len({i.question for i in asked}) == 3
    lines = tmp_path / "p.jsonl"
    lines.write_text('{"context": "A. B.", "question": "A?"}\n{"context": "C. D."}\n')
    assert [i.question for i in preset_items([], ask, None, lines)] == ["A?"]
    assert [i.documents[0].text for i in preset_items([], summarize, None, lines)] == ["C. D."]
    lines.write_text('{"context": "C. D."}\n')
    with pytest.raises(InputError, match="no prompt with a question"):
        preset_items([], ask, None, lines)


def test_a_running_model_is_measured_as_it_answers() -> None:
    from ngtcli.engine.local import LocalSession

    preset, settings = load_preset("summarize"), Settings().replace(max_tokens=12)
    items = preset_items(
        [Document("a.txt", "The tide came in at noon. The slate came by rail.")], preset
    )
    reported = RecordingReporter()
    source = Live(items, preset, sweeps=True)
    about = reported.of(lambda: source.about(settings))
    loading = len(reported.statuses)
    session = LocalSession(settings)
    trie = settings.replace(method="trie")  # what auto drafts depends on what passes take
    for changed in (trie.replace(num_draft=2), settings.replace(method="none")):
        own = session.with_settings(changed)
        runs = []
        for item in items:
            run = own.generate(own.prompt(preset, item.documents, item.question))
            runs.append(run.statistics)
        records = answers_of(source, changed)
        made = [r.generation for r in records]
        assert [len(g.ids) for g in made] == [r.new_tokens for r in runs]
        assert [g.steps for g in made] == [r.steps for r in runs]
        assert all((g.trie_bytes is None) == (changed.drafting.method == "none") for g in made)
        assert all(0 < (r.generation.decode_s or 0) < r.seconds for r in records)
    assert (
        len(reported.statuses) == loading and not reported.warnings
    )  # progress is the sweep's own
    assert about.model == "builtin"
    assert "float32" in about.device
    model = weakref.ref(source.session(settings).model)
    source.session(settings.replace(dtype="bfloat16"))
    assert model() is None  # one is held at a time


# --- what is shown ---


def report_of(*cells: CellRow, **changes: Any) -> SweepReport:
    values: dict[str, Any] = {
        "about": ABOUT,
        "sweep": {"n": (3, 8)},
        "rounds": 3,
        "measured": 6,
        "planned": 6,
        "complete": True,
        "cells": cells,
        "skipped_cells": [],
        "best": "n=8",
        "tied": ["n=8", "n=3"],
        "chosen": "n=3",
        "reason": "2 cells are statistically tied",
        "state": "s.jsonl",
    }
    return SweepReport(**values | changes)


def shown_cell(n: int, speed: float, standing: str) -> CellRow:
    made = cell(f"n={n}", [speed - 1, speed, speed + 1], NINE, n * 1000)
    return replace(made, values={"n": n}, standing=standing)


def test_a_terminal_shows_the_cells_and_what_follows_from_them() -> None:
    report = report_of(shown_cell(3, 100, "chosen"), shown_cell(8, 101, "tied"))
    text = forms_of(report).terminal(80, False)
    assert "100.0*" in text
    assert "101.0=" in text
    assert "±1.0%" in text
    assert "* chosen   = statistically tied" in text
    assert "Chosen: n=3 (100.0 tokens/s, acceptance length 2.000" in text
    assert "Statistically tied: n=8; n=3." in text
    assert max(len(line) for line in text.split("\n")) <= 80


def test_a_sweep_that_is_not_complete_has_no_chosen_cell() -> None:
    ahead = replace(shown_cell(3, 100, "ahead"), rounds=1)
    report = report_of(ahead, complete=False, measured=1, chosen=None, tied=["n=3"])
    forms = forms_of(report)
    text = forms.terminal(80, False)
    assert "Ahead so far: n=3" in text
    assert "1 of 6 measurements" in text
    assert "chosen" not in text.lower()
    assert "chosen" not in forms.plain()


def test_pipes_and_csv_hold_every_figure_under_headings() -> None:
    forms = forms_of(report_of(shown_cell(3, 100, "chosen"), shown_cell(8, 101, "tied")))
    headings, first, second = (line.split("\t") for line in forms.plain().split("\n"))
    assert headings[:4] == ["n", "rounds", "tokens_per_s", "least"]
    assert first[:4] == ["3", "3", "100", "99"]
    assert second[-1] == "tied"
    assert forms.csv().split("\n")[1] == "3,3,100,99,101,2.0,0.001,3000,chosen"


# --- the command ---


def tune(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    done = ngt("tune", *map(str, arguments))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


SHORT = ("--max-tokens", "4", "--limit", "1", "--set", "calibrate=no")


def test_the_items_after_sweep_belong_to_it_and_files_are_written_whole(tmp_path: Path) -> None:
    arguments = (*SHORT, "--rounds", "1", "--sweep", "n=3,8", "lp=2..3")
    code, out, errors = tune(*arguments, "--json")
    body = json.loads(out)
    assert code == 0
    assert errors == (
        "ngt: skipped 1 cell: n=3 lp=3. lp is 3 and n is 3."
        " The prefix lp must be shorter than the window n.\n"
    )
    assert body["sweep"] == {"n": [3, 8], "lp": [2, 3]}
    assert len(body["cells"]) == 3
    assert [one["values"] for one in body["skipped_cells"]] == [{"n": 3, "lp": 3}]
    assert body["complete"]
    assert body["measured"] == 3
    again = tune(*arguments, "--json", "-o", tmp_path / "t.json")
    assert again[0] == 0
    assert "3 measurements are reused" in again[2]
    assert json.loads((tmp_path / "t.json").read_text())["cells"] == body["cells"]  # nothing is new
    assert tune(*arguments, "--csv", "-o", tmp_path / "t.csv")[0] == 0
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 4


def test_ctrl_c_keeps_finished_cells_and_the_same_command_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, begin = [3], Live.begin

    def interrupted(source: Live, cell: Cell, split: bool = False) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return begin(source, cell, split)

    monkeypatch.setattr(Live, "begin", interrupted)
    sweep = (*SHORT, "--sweep", "n=4..7", "--rounds", "1", "--write", "best")
    code, out, errors = tune(*sweep)
    assert code == 130
    assert len(out.splitlines()) == 4
    assert "resume" in errors
    assert "best" not in preset_files()
    left[0] = 1
    code, out, errors = tune(*sweep)
    assert code == 0
    assert len(out.splitlines()) == 5
    assert "3 measurements are reused" in errors
    assert "Saved as" in errors
    written = load_preset("best").settings.values
    assert (written["method"], written["num_draft"]) == ("trie", 32)  # trie reads n
    monkeypatch.setenv("NGT_METHOD", "auto:trust=5")
    code, _, errors = tune(*sweep, "--force")
    assert code == 2
    assert "auto, set by environment," in errors


def test_a_written_preset_holds_the_winner_with_its_origin_and_is_used() -> None:
    sweep = (*SHORT, "--sweep", "num_draft=5", "--set", "n=9", "--write", "best")
    assert tune(*sweep)[0] == 0
    preset = load_preset("best")
    assert preset.template == load_preset("summarize").template
    assert {"n": 9, "num_draft": 5, "method": "auto"}.items() <= preset.settings.values.items()
    assert preset.provenance["model"] == "builtin"
    assert preset.provenance["based_on"] == "summarize"
    assert preset.provenance["command"].startswith("ngt tune --max-tokens 4")
    assert preset.provenance["figures"]["rounds"] == 3
    shown = json.loads(ngt("config", "show", "-p", "best", "--json").stdout)
    assert {"value": 5, "origin": "preset best"}.items() <= shown["num_draft"].items()
    assert ngt("presets", "show", "best", "--json").returncode == 0
    code, _, errors = tune(*sweep)
    assert code == 2
    assert "--force" in errors
    assert tune(*sweep, "--force", "--rounds", "4")[0] == 0
    assert load_preset("best").provenance["rounds"] == 4
    of_questions = (*SHORT, "--sweep", "lp=2", "--rounds", "1", "-p")
    assert tune(*of_questions, "ask", "--write", "first")[0] == 0
    assert tune(*of_questions, "first", "--write", "second")[0] == 0
    ask, second = load_preset("ask"), load_preset("second")
    assert (second.template, second.separator) == (ask.template, ask.separator)
    assert second.provenance["based_on"] == "first"
    for name in ("", ".x", "a/b", "../a", "a b", "-a"):
        with pytest.raises(UsageError, match="invalid preset name"):
            preset_path(name, False)


@pytest.mark.parametrize("name", ["ask", "summarize", "chat"])
def test_a_preset_that_ngt_ships_is_not_replaced_without_force(name: str) -> None:
    code, out, errors = tune(*SHORT, "--sweep", "n=4", "--write", name)
    assert (code, out) == (2, "")
    assert errors == (
        f"ngt: {name} is a built-in preset, which yours would replace everywhere\n"
        "Choose another name, or use --force.\n"
    )
    assert name in str(preset_path(name, True))


def test_a_preset_without_a_place_for_a_question_is_named_with_its_file() -> None:
    assert tune(*SHORT, "--sweep", "n=4", "--rounds", "1", "--write", "ask", "--force")[0] == 0
    own = preset_files()["ask"]
    done = ngt("ask", "Why?", "-d", HARBOUR, "--dry-run")
    assert done.returncode == 2
    assert f"ngt: {own}: preset ask has no place for a question\n" in done.stderr.decode()


@pytest.mark.parametrize("command", ["tune --sweep n=4,5", "bench --methods none,trie"])
def test_progress_in_a_pipe_is_that_of_the_heartbeat(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = list[str]()
    monkeypatch.setattr(progress.Heartbeat, "update", lambda _, line: messages.append(line))
    done = ngt(*command.split(), *SHORT, "--rounds", "1", *(["--fresh"] * ("tune" in command)))
    assert done.returncode == 0
    assert done.stderr == b""
    assert any(line.startswith("1 of ") and " answers" in line for line in messages)


def test_a_wrong_axis_is_pointed_at_on_the_command_line() -> None:
    code, out, errors = tune("--sweep", "n=x")
    assert code == 2
    assert out == ""
    assert "  n=x\n    ^\n" in errors
    assert errors.count("\n") == 4
