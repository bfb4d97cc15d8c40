"""`ngt tune`: the grammar of a sweep, the verdict, resuming, tables and presets."""

import json
import weakref
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.bench import tune
from ngtcli.bench.grid import (
    Cell,
    Grid,
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
from ngtcli.engine.local import LocalSession
from ngtcli.errors import InputError, MarkedError, UsageError
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
def test_an_axis_is_parsed(text: str, values: tuple[Any, ...]) -> None:
    name, parsed = parse_axis(text)
    assert name == text.partition("=")[0].replace("-", "_")
    assert parsed == values
    assert [type(value) for value in parsed] == [type(value) for value in values]


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
    with pytest.raises(MarkedError) as raised:
        parse_axis(text)
    assert " " * raised.value.place + "^" == caret
    assert raised.value.text == text
    assert raised.value.hint
    assert "\n" not in raised.value.hint


def test_the_caret_stands_under_its_character() -> None:
    assert pointed("n=8..x", 5) == ["  n=8..x", "       ^"]


def test_the_caret_stands_under_its_character_after_wide_characters() -> None:
    assert pointed("stop=東京,x", 8) == ["  stop=東京,x", "            ^"]


def test_the_caret_stands_under_its_character_in_an_excerpt_of_a_long_text() -> None:
    line, caret = pointed("x" * 500 + "!" + "y" * 500, 500)
    assert len(line) < 60
    assert line[len(caret) - 1] == "!"


def test_control_characters_above_the_caret_are_replaced() -> None:
    assert pointed("a\x1bb", 2)[0] == "  a␛b"


ALMOST_AXES = st.builds(
    "{}={}".format,
    st.sampled_from(list(SETTINGS)),
    st.text(alphabet="0123456789.,+*-e:=truefals", max_size=20),
)


@given(st.text(max_size=40) | ALMOST_AXES)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        name, values = parse_axis(text)
    except MarkedError as error:
        assert 0 <= error.place <= len(text)
        return

    setting_type = type(Settings().get(name))
    assert values
    assert len(set(values)) == len(values)
    assert all(type(value) is setting_type for value in values)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 40))
def test_a_range_with_a_step_has_the_numbers_of_range_in_python(
    start: int, length: int, step: int
) -> None:
    stop = start + length
    _, values = parse_axis(f"num_draft={start}..{stop}+{step}")
    assert values == tuple(range(start, stop + 1, step))


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 40))
def test_a_range_of_decimals_does_not_drift(start: int, length: int, step: int) -> None:
    """The bounds and the step are in hundredths."""
    stop = start + length
    bounds = [Decimal(number) / 100 for number in (start, stop, step)]
    _, values = parse_axis("temperature={}..{}+{}".format(*bounds))
    expected = [float(Decimal(number) / 100) for number in range(start, stop + 1, step)]
    assert list(values) == expected


@given(st.integers(1, 300), st.integers(0, 300), st.integers(2, 40))
def test_a_range_with_a_factor_multiplies(start: int, length: int, factor: int) -> None:
    expected = []
    number = start
    while number <= start + length:
        expected.append(number)
        number *= factor
    _, values = parse_axis(f"num_draft={start}..{start + length}*{factor}")
    assert list(values) == expected


def test_axes_are_distinguished_from_files() -> None:
    assert is_axis("n=8..9")
    assert is_axis("num-draft=1")
    assert not is_axis("notes.txt")
    assert not is_axis("./a=b.txt")
    assert not is_axis("a.b=c")


def test_a_repeated_axis_is_refused() -> None:
    with pytest.raises(MarkedError, match="twice"):
        parse_sweep(["n=8", "num_draft=1", "n=9"])


def test_a_sweep_of_too_many_cells_is_refused() -> None:
    with pytest.raises(UsageError, match="cells"):
        parse_sweep(["n=3..64", "num_draft=1..64"])


def test_invalid_cells_are_skipped_with_a_reason() -> None:
    sweep = grid(parse_sweep(["n=3,8", "lp=2..3"]), Settings())
    assert [cell.key for cell in sweep.cells] == ["n=3 lp=2", "n=8 lp=2", "n=8 lp=3"]
    (skipped,) = sweep.skipped
    assert skipped.values == {"n": 3, "lp": 3}
    assert "lp must be shorter" in skipped.reason


def test_options_of_a_method_decide_which_cells_are_invalid() -> None:
    sweep = grid(parse_sweep(["method=trie,trie:n=4", "lp=3,5"]), Settings())
    (skipped,) = sweep.skipped
    assert skipped.values == {"method": "trie:n=4", "lp": 5}


def test_a_sweep_of_invalid_cells_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="no cell"):
        grid(parse_sweep(["n=2", "lp=2..3"]), Settings())


# --- the verdict ---


def cell_row(
    label: str, speeds: list[float], prompt_seconds: list[float], trie_bytes: int | None
) -> CellRow:
    """The row of a cell that drafts as many nodes as its label has letters.

    Args:
        label: The key of the cell.
        speeds: The tokens per second of each round.
        prompt_seconds: The median seconds of each prompt, which has an answer of 100 tokens.
        trie_bytes: The size of the trie.
    """
    return CellRow(
        cell=label,
        values={"num_draft": len(label)},
        rounds=len(speeds),
        tokens_per_s=median(speeds),
        tokens_per_s_least_and_most=(min(speeds), max(speeds)),
        mean_acceptance_length=2.0,
        prompts=[(100, seconds) for seconds in prompt_seconds],
        trie_build_s=0.001,
        trie_bytes=trie_bytes,
    )


def summarize(rounds: list[list[Generation]]) -> CellRow:
    """The row of a cell with these generations, one for each prompt in each round."""
    prompts = range(len(rounds[0]))
    records: dict[tuple[str, int], list[Record]] = {}
    for prompt in prompts:
        records["n=8", prompt] = [
            Record("n=8", prompt, round_number, generations[prompt])
            for round_number, generations in enumerate(rounds)
        ]
    row: CellRow = row_of(CellRow, Group(Cell("n=8", {"n": 8}, Settings()), prompts, records))
    return row


def test_a_row_has_the_medians_of_its_cells_rounds() -> None:
    def answer(tokens: int, steps: int, seconds: float, build: float, size: int) -> Generation:
        token_ids = [1] * tokens
        return Generation(token_ids, steps, decode_s=seconds, trie_build_s=build, trie_bytes=size)

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


def test_a_row_of_a_cell_without_a_trie_has_no_figures_of_one() -> None:
    row = summarize([[Generation([1], 1, decode_s=0.0)]])
    assert row.tokens_per_s == 0.0
    assert row.trie_build_s is None
    assert row.trie_bytes is None


# Seconds of each of nine prompts.
FAST = [1.0] * 9
SLOW = [2.0] * 9


@pytest.mark.parametrize(
    ("cells", "tied", "chosen"),
    [
        # A clear winner is chosen though its trie is larger.
        ([("slow", [90, 91, 92], SLOW, 10), ("fast", [100, 101, 102], FAST, 99)], 1, "fast"),
        # If rounds overlap, the smallest trie is chosen, unless it is much slower.
        ([("large", [98, 101, 110], FAST, 99), ("small", [99, 100, 101], SLOW, 10)], 2, "small"),
        ([("large", [90, 105, 110], FAST, 99), ("small", [80, 90, 100], SLOW, 10)], 2, "large"),
        # Prompts that disagree are a tie; few prompts in one round cannot decide.
        ([("mixed", [100], [1.0] * 5 + [3.0] * 4, 5), ("steady", [99], SLOW, 5)], 2, "mixed"),
        ([("a", [100], [1.0] * 5, 5), ("bb", [50], [2.0] * 5, 5)], 2, "a"),
        ([("a", [100], [1.0] * 6, 5), ("bb", [50], [2.0] * 6, 5)], 1, "a"),
        ([("fast", [100, 101], FAST, 5), ("slow", [50, 51], SLOW, 5)], 1, "fast"),
    ],
)
def test_the_verdict_ties_cells_within_the_noise_and_chooses_among_them(
    cells: list[Any], tied: int, chosen: str
) -> None:
    rows = [cell_row(*arguments) for arguments in cells]

    verdict = judge(rows)

    assert len(verdict.tied) == tied
    assert verdict.chosen.cell == chosen
    assert ("statistically tied" in verdict.reason) == (tied > 1)
    assert verdict.best is max(rows, key=lambda row: row.tokens_per_s)
    assert verdict.tied[0] is verdict.best


@pytest.mark.parametrize(
    "slow_rows", [[], [cell_row("slow", [50], SLOW, 5)], [cell_row("slow", [50, 51], SLOW, 5)]]
)
def test_the_verdict_claims_nothing_about_noise_if_a_cell_was_measured_once(
    slow_rows: list[CellRow],
) -> None:
    verdict = judge([cell_row("fast", [100.0], FAST, 5), *slow_rows])
    assert "no noise estimate" in verdict.reason
    assert "beyond the noise" not in verdict.reason


def test_a_lead_of_a_third_of_the_prompts_counts_and_a_lead_of_one_prompt_does_not() -> None:
    plain = cell_row("plain", [90], [1.0] * 60, 5)
    third_is_faster = cell_row("fast", [100], [1.01] * 40 + [0.3] * 20, 5)
    one_is_faster = cell_row("fast", [100], [1.01] * 59 + [0.01], 5)
    assert len(judge([third_is_faster, plain]).tied) == 1
    assert len(judge([one_is_faster, plain]).tied) == 2


def test_a_cell_is_nowhere_ahead_of_itself() -> None:
    row = cell_row("plain", [90], [1.0] * 60, 5)
    assert share_not_ahead(row, row) == 1.0


# --- measuring, interrupting, resuming ---

GRID = grid(parse_sweep(["n=8..10", "lp=2,3"]), Settings())
ABOUT = SweepData(model="builtin", device="d", data="x", data_sha256="0", prompts=2)


class Sweep:
    """A sweep of made-up answers, of 60 tokens and of 40, that is interrupted after `stop_after`.

    The larger n is, the faster are the answers.
    """

    prompts = (60, 40)

    def __init__(self, state_file: Path, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.answers = 0
        reporter = RecordingReporter()
        with closing(State(state_file, "key", 2)) as state:
            reporter.of(lambda: tune.measure(self, GRID, 2, state))
        self.statuses = reporter.statuses
        self.report = tune.report(ABOUT, GRID, 2, state)

    def begin(self, cell: Cell, split: bool = False) -> Answering[int]:
        def answer(tokens: int) -> Generation:
            if self.answers == self.stop_after:
                raise KeyboardInterrupt
            self.answers += 1
            seconds = tokens / cell.settings.drafting.n
            return Generation([1] * tokens, tokens // 2, decode_s=seconds)

        return answer


def test_a_sweep_that_is_interrupted_in_its_first_pass_has_no_report(tmp_path: Path) -> None:
    assert Sweep(tmp_path / "state", stop_after=1).report is None


@pytest.mark.parametrize("stop_after", [2, 15, 23])
def test_an_interrupted_sweep_reports_its_finished_passes(stop_after: int, tmp_path: Path) -> None:
    report = Sweep(tmp_path / "state", stop_after).report
    assert report is not None
    assert report.measured == stop_after // 2
    assert not report.complete
    assert report.chosen is None
    assert report.reason.startswith("so far: ")
    assert "no noise estimate" in report.reason
    assert "beyond the noise" not in report.reason


@pytest.mark.parametrize("stop_after", [1, 2, 15, 23])
def test_a_resumed_sweep_has_the_report_of_an_uninterrupted_one(
    stop_after: int, tmp_path: Path
) -> None:
    Sweep(tmp_path / "state", stop_after)
    missing_answers = 24 - stop_after // 2 * 2

    resumed = Sweep(tmp_path / "state")

    assert resumed.answers == missing_answers
    assert resumed.statuses[0].startswith(f"0 of {missing_answers} answers: n=")
    assert "answers · about 0 s left: n=" in resumed.statuses[-1]
    assert resumed.report is not None
    assert resumed.report.complete
    assert resumed.report.chosen == "n=10 lp=2"
    uninterrupted = Sweep(tmp_path / "uninterrupted").report
    assert uninterrupted is not None
    assert resumed.report.cells == uninterrupted.cells
    assert resumed.report.reason == uninterrupted.reason


def state_key(about: SweepData = ABOUT, sweep: Grid = GRID, **settings: Any) -> str:
    """The key of the state of a sweep whose other settings are changed."""
    return tune.state_key(about, replace(sweep, base=GRID.base.replace(**settings)))


def test_the_state_of_a_sweep_is_keyed_by_data_settings_and_axes() -> None:
    assert state_key() not in (
        state_key(replace(ABOUT, data="c")),
        state_key(num_draft=8),
        state_key(sweep=replace(GRID, axes={})),
    )


def test_settings_that_a_sweep_does_not_depend_on_are_not_in_its_key() -> None:
    assert state_key() == state_key(color="never", n=20)
    assert state_key(sweep=grid(parse_sweep(["color=never"]), GRID.base))


def test_the_state_of_a_sweep_is_keyed_by_the_model_files_and_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "model.safetensors"
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((BUILTIN_PATH / name).read_bytes())
    weights.write_bytes(b"one")
    sweep = grid(parse_sweep(["num_draft=8"]), Settings.of(model=str(tmp_path)))

    original = tune.state_key(ABOUT, sweep)
    assert tune.state_key(ABOUT, sweep) == original
    weights.write_bytes(b"two")
    with_other_weights = tune.state_key(ABOUT, sweep)
    monkeypatch.setattr(tune, "versions_and_cpu", lambda: ("another",))
    on_another_machine = tune.state_key(ABOUT, sweep)
    assert len({original, with_other_weights, on_another_machine}) == 3


# --- the prompts and the model ---


def test_summaries_are_of_the_shipped_texts_or_of_the_given_ones() -> None:
    preset = load_preset("summarize")
    assert len(preset_items([], preset, None)) == 10
    (item,) = preset_items([Document("a.txt", "One. Two.")], preset, None)
    assert item.id == "summarize a.txt"
    assert item.question == ""


def test_questions_about_a_given_text_differ() -> None:
    items = preset_items([Document("a.txt", "One. Two.")], load_preset("ask"), 3)
    assert len(items) == 3
    assert len({item.question for item in items}) == 3


def test_a_preset_takes_the_lines_of_a_file_that_fit_it(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"context": "A. B.", "question": "A?"}\n{"context": "C. D."}\n')
    (question,) = preset_items([], load_preset("ask"), None, file)
    assert question.question == "A?"
    (summary,) = preset_items([], load_preset("summarize"), None, file)
    assert summary.documents[0].text == "C. D."


def test_a_file_without_questions_is_refused_for_a_preset_that_asks(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"context": "C. D."}\n')
    with pytest.raises(InputError, match="no prompt with a question"):
        preset_items([], load_preset("ask"), None, file)


# The method is trie or none: the drafts of auto depend on the time that forward passes take.
@pytest.mark.parametrize("changes", [{"method": "trie", "num_draft": 2}, {"method": "none"}])
def test_a_model_is_measured_as_it_answers(changes: dict[str, Any]) -> None:
    preset = load_preset("summarize")
    settings = Settings().replace(max_tokens=12, **changes)
    documents = [Document("a.txt", "The tide came in at noon. The slate came by rail.")]
    (item,) = preset_items(documents, preset)
    session = LocalSession(settings)
    expected = session.generate(session.prompt(preset, item.documents, item.question)).statistics

    source = Live([item], preset, sweeps=True)
    turns = by_cell([Cell("", {}, settings)], 1, 1)
    (record,) = take(source, turns, source.prompts)

    assert len(record.generation.ids) == expected.new_tokens
    assert record.generation.steps == expected.steps
    assert (record.generation.trie_bytes is None) == (changes["method"] == "none")
    assert record.generation.decode_s is not None
    assert 0 < record.generation.decode_s < record.seconds


def test_a_sweep_reports_nothing_but_its_own_progress() -> None:
    settings = Settings().replace(max_tokens=12, method="trie")
    preset = load_preset("summarize")
    source = Live(preset_items([Document("a.txt", "The tide came in.")], preset), preset, True)
    reporter = RecordingReporter()

    about = reporter.of(lambda: source.about(settings))
    assert about.model == "builtin"
    assert "float32" in about.device

    while_loading = len(reporter.statuses)
    turns = by_cell([Cell("", {}, settings)], 1, 1)
    reporter.of(lambda: list(take(source, turns, source.prompts)))
    assert len(reporter.statuses) == while_loading
    assert not reporter.warnings


def test_a_sweep_over_models_holds_one_at_a_time() -> None:
    source = Live([], load_preset("summarize"), sweeps=True)
    model = weakref.ref(source.session(Settings()).model)
    source.session(Settings().replace(dtype="bfloat16"))
    assert model() is None


# --- tables ---


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


def table_row(n: int, speed: float, standing: str) -> CellRow:
    row = cell_row(f"n={n}", [speed - 1, speed, speed + 1], FAST, n * 1000)
    return replace(row, values={"n": n}, standing=standing)


def test_the_table_of_a_terminal_marks_the_chosen_cell_and_those_it_is_tied_with() -> None:
    report = report_of(table_row(3, 100, "chosen"), table_row(8, 101, "tied"))
    text = forms_of(report).terminal(80, False)
    assert "100.0*" in text
    assert "101.0=" in text
    assert "±1.0%" in text
    assert "* chosen   = statistically tied" in text
    assert "Chosen: n=3 (100.0 tokens/s, acceptance length 2.000" in text
    assert "Statistically tied: n=8; n=3." in text
    assert max(len(line) for line in text.split("\n")) <= 80


def test_the_table_of_an_interrupted_sweep_has_no_chosen_cell() -> None:
    row = replace(table_row(3, 100, "ahead"), rounds=1)
    forms = forms_of(report_of(row, complete=False, measured=1, chosen=None, tied=["n=3"]))
    text = forms.terminal(80, False)
    assert "Ahead so far: n=3" in text
    assert "1 of 6 measurements" in text
    assert "chosen" not in text.lower()
    assert "chosen" not in forms.plain()


def test_tables_for_pipes_and_csv_have_every_figure_under_a_heading() -> None:
    forms = forms_of(report_of(table_row(3, 100, "chosen"), table_row(8, 101, "tied")))
    headings, first, second = (line.split("\t") for line in forms.plain().split("\n"))
    assert headings[:4] == ["n", "rounds", "tokens_per_s", "least"]
    assert first[:4] == ["3", "3", "100", "99"]
    assert second[-1] == "tied"
    assert forms.csv().split("\n")[1] == "3,3,100,99,101,2.0,0.001,3000,chosen"


# --- the command ---


def run_tune(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    done = ngt("tune", *map(str, arguments))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


SHORT = ("--max-tokens", "4", "--limit", "1", "--set", "calibrate=no")


def test_the_words_after_sweep_are_its_axes() -> None:
    code, stdout, stderr = run_tune(
        *SHORT, "--rounds", "1", "--sweep", "n=3,8", "lp=2..3", "--json"
    )
    assert code == 0
    assert stderr == (
        "ngt: skipped 1 cell: n=3 lp=3. lp is 3, but n is 3."
        " The prefix lp must be shorter than the window n.\n"
    )
    report = json.loads(stdout)
    assert report["sweep"] == {"n": [3, 8], "lp": [2, 3]}
    assert len(report["cells"]) == 3
    assert [cell["values"] for cell in report["skipped_cells"]] == [{"n": 3, "lp": 3}]
    assert report["complete"]
    assert report["measured"] == 3


def test_a_repeated_sweep_reuses_its_measurements(tmp_path: Path) -> None:
    arguments = (*SHORT, "--rounds", "1", "--sweep", "n=3,8", "lp=2")
    json_file = tmp_path / "t.json"
    csv_file = tmp_path / "t.csv"

    _, stdout, _ = run_tune(*arguments, "--json")

    code, _, stderr = run_tune(*arguments, "--json", "-o", json_file)
    assert code == 0
    assert "2 measurements are reused" in stderr
    assert json.loads(json_file.read_text())["cells"] == json.loads(stdout)["cells"]

    code, _, _ = run_tune(*arguments, "--csv", "-o", csv_file)
    assert code == 0
    assert len(csv_file.read_text().splitlines()) == 3


@pytest.fixture
def interrupt_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that has measuring interrupted after a number of cells from now on."""
    begin = Live.begin
    remaining = 0

    def begin_or_interrupt(source: Live, cell: Cell, split: bool = False) -> Any:
        nonlocal remaining
        if remaining == 0:
            raise KeyboardInterrupt
        remaining -= 1
        return begin(source, cell, split)

    def set_remaining(cells: int) -> None:
        nonlocal remaining
        remaining = cells

    monkeypatch.setattr(Live, "begin", begin_or_interrupt)
    return set_remaining


def test_an_interrupted_command_is_resumed_by_the_same_command(
    interrupt_after: Callable[[int], None],
) -> None:
    sweep = (*SHORT, "--sweep", "n=4..7", "--rounds", "1", "--write", "best")

    interrupt_after(3)
    code, stdout, stderr = run_tune(*sweep)
    assert code == 130
    assert len(stdout.splitlines()) == 4
    assert "resume" in stderr
    assert "best" not in preset_files()

    interrupt_after(1)
    code, stdout, stderr = run_tune(*sweep)
    assert code == 0
    assert len(stdout.splitlines()) == 5
    assert "3 measurements are reused" in stderr
    assert "Saved as" in stderr
    assert "best" in preset_files()


def test_a_sweep_of_n_is_of_the_method_trie(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = (*SHORT, "--sweep", "n=4", "--rounds", "1", "--write", "best")
    assert run_tune(*sweep)[0] == 0
    settings = load_preset("best").settings.values
    assert settings["method"] == "trie"
    assert settings["num_draft"] == 32

    monkeypatch.setenv("NGT_METHOD", "auto:trust=5")
    code, _, stderr = run_tune(*sweep, "--force")
    assert code == 2
    assert "auto, set by environment," in stderr


def test_a_written_preset_has_the_chosen_settings_and_their_provenance() -> None:
    sweep = (*SHORT, "--sweep", "num_draft=5", "--set", "n=9", "--write", "best")
    assert run_tune(*sweep)[0] == 0

    preset = load_preset("best")
    assert preset.template == load_preset("summarize").template
    assert {"n": 9, "num_draft": 5, "method": "auto"}.items() <= preset.settings.values.items()
    assert preset.provenance["model"] == "builtin"
    assert preset.provenance["based_on"] == "summarize"
    assert preset.provenance["command"].startswith("ngt tune --max-tokens 4")
    assert preset.provenance["figures"]["rounds"] == 3

    settings = json.loads(ngt("config", "show", "-p", "best", "--json").stdout)
    assert {"value": 5, "origin": "preset best"}.items() <= settings["num_draft"].items()
    assert ngt("presets", "show", "best", "--json").returncode == 0


def test_a_preset_is_replaced_only_with_force() -> None:
    sweep = (*SHORT, "--sweep", "num_draft=5", "--write", "best")
    assert run_tune(*sweep, "--rounds", "1")[0] == 0

    code, _, stderr = run_tune(*sweep, "--rounds", "2")
    assert code == 2
    assert "--force" in stderr
    assert load_preset("best").provenance["rounds"] == 1

    assert run_tune(*sweep, "--rounds", "2", "--force")[0] == 0
    assert load_preset("best").provenance["rounds"] == 2


def test_a_preset_written_from_another_keeps_its_template() -> None:
    sweep = (*SHORT, "--sweep", "lp=2", "--rounds", "1")
    assert run_tune(*sweep, "-p", "ask", "--write", "first")[0] == 0
    assert run_tune(*sweep, "-p", "first", "--write", "second")[0] == 0

    preset = load_preset("second")
    assert preset.template == load_preset("ask").template
    assert preset.separator == load_preset("ask").separator
    assert preset.provenance["based_on"] == "first"


@pytest.mark.parametrize("name", ["", ".x", "a/b", "../a", "a b", "-a"])
def test_an_invalid_preset_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="invalid preset name"):
        preset_path(name, force=False)


@pytest.mark.parametrize("name", ["ask", "summarize", "chat"])
def test_a_built_in_preset_is_not_replaced_without_force(name: str) -> None:
    code, stdout, stderr = run_tune(*SHORT, "--sweep", "n=4", "--write", name)
    assert code == 2
    assert stdout == ""
    assert stderr == (
        f"ngt: {name} is a built-in preset, which yours would replace everywhere\n"
        "Choose another name, or use --force.\n"
    )
    assert name in str(preset_path(name, force=True))


def test_the_error_about_a_preset_without_a_question_names_its_file() -> None:
    sweep = (*SHORT, "--sweep", "n=4", "--rounds", "1")
    assert run_tune(*sweep, "--write", "ask", "--force")[0] == 0
    preset_file = preset_files()["ask"]

    done = ngt("ask", "Why?", "-d", HARBOUR, "--dry-run")

    assert done.returncode == 2
    assert f"ngt: {preset_file}: preset ask has no place for a question\n" in done.stderr.decode()


@pytest.mark.parametrize("command", ["tune --sweep n=4,5 --fresh", "bench --methods none,trie"])
def test_progress_in_a_pipe_is_reported_by_the_heartbeat(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(progress.Heartbeat, "update", lambda _, line: messages.append(line))
    done = ngt(*command.split(), *SHORT, "--rounds", "1")
    assert done.returncode == 0
    assert done.stderr == b""
    assert any(line.startswith("1 of ") and " answers" in line for line in messages)


def test_a_caret_marks_a_wrong_axis_on_the_command_line() -> None:
    code, stdout, stderr = run_tune("--sweep", "n=x")
    assert code == 2
    assert stdout == ""
    assert "  n=x\n    ^\n" in stderr
    assert stderr.count("\n") == 4
