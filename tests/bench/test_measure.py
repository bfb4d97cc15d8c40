"""Measurements: the order of the answers, races, figures, and the state that a sweep resumes."""

import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.bench.grid import BenchOptions, Cell, Refusal, cells_of, check_some_left
from ngtcli.bench.live import Live
from ngtcli.bench.prompts import Item, spread
from ngtcli.bench.records import (
    Answering,
    Generation,
    Measurement,
    Record,
    Turn,
    by_cell,
    by_prompt,
    measure_methods,
    take,
)
from ngtcli.bench.summary import Row, columns, shown_columns, summarized
from ngtcli.bench.tune import State
from ngtcli.config import Settings
from ngtcli.errors import NgtError, UsageError
from ngtcli.prompts.build import Prompt
from tests.support.recording_reporter import RecordingReporter
from tests.support.tiny_models import make_target

# --- turns ---


def cell(name: str, **settings: Any) -> Cell:
    method = name.split()[0]
    return Cell(name, {"method": method}, Settings.of(method=method, **settings))


PROMPTS = "12"


class LoggingSource:
    """A source that logs its calls; `before_answer` is called first."""

    def __init__(self, before_answer: Callable[[Cell], None] = lambda cell: None) -> None:
        self.prompts = PROMPTS
        self.log: list[str] = []
        self._before_answer = before_answer

    def begin(self, cell: Cell, split: bool = False) -> Answering[str]:
        self.log.append(f"{cell.key} begins")

        def answer(prompt: str) -> Generation:
            self._before_answer(cell)
            self.log.append(f"{cell.key}{prompt}")
            return Generation([5, 6], 1, decode_s=0.5, trie_build_s=0.25, trie_bytes=7)

        return answer


def test_cells_take_turns_at_each_prompt_in_rotating_order() -> None:
    source = LoggingSource()
    turns = by_prompt([cell("a"), cell("b")], 2, 2)

    records = list(take(source, turns, PROMPTS))

    assert source.log == [
        "a begins",
        "a1",
        "b begins",
        "b1",
        "b2",
        "a2",
        "b begins",
        "b1",
        "a begins",
        "a1",
        "a2",
        "b2",
    ]
    turns_taken = [(record.cell, record.prompt, record.round) for record in records]
    assert turns_taken[:4] == [("a", 0, 0), ("b", 0, 0), ("b", 1, 0), ("a", 1, 0)]
    assert len(turns_taken) == 8


def test_a_cell_begins_anew_at_each_prompt_with_fresh() -> None:
    source = LoggingSource()
    list(take(source, by_prompt([cell("c")], 2, 1), PROMPTS, fresh=True))
    assert source.log == ["c begins", "c1", "c begins", "c2"]


def test_cells_answer_all_prompts_in_a_row_in_another_order_each_round() -> None:
    cells = [cell(name) for name in "abcdef"]

    turns = list(by_cell(cells, 2, 3))

    assert turns == list(by_cell(cells, 2, 3))
    orders = []
    for round_number in range(3):
        keys = [turn.cell.key for turn in turns if turn.round == round_number]
        assert keys[::2] == keys[1::2]
        assert sorted(keys[::2]) == list("abcdef")
        orders.append(keys[::2])
    assert orders[0] != orders[1]

    source = LoggingSource()
    list(take(source, turns[:2], PROMPTS))
    first = orders[0][0]
    assert source.log == [f"{first} begins", f"{first}1", f"{first}2"]


def test_the_cells_of_a_model_take_their_turns_together() -> None:
    cells = [cell(name, model=model) for name, model in zip("abcdef", "xyxyxy", strict=True)]
    models = [turn.cell.settings.model.model for turn in by_cell(cells, 2, 1)]
    assert "".join(models) in ("xxxxxxyyyyyy", "yyyyyyxxxxxx")


def test_a_drafter_is_dropped_after_the_last_prompt_of_a_round() -> None:
    drafters: list[weakref.ref[Any]] = []

    class Drafter:
        def __call__(self, prompt: str) -> Generation:
            return Generation([1], 1)

    class DraftingSource(LoggingSource):
        def begin(self, cell: Cell, split: bool = False) -> Answering[str]:
            drafter = Drafter()
            drafters.append(weakref.ref(drafter))
            return drafter

    turns = by_cell([cell(name) for name in "abc"], 2, 1)
    for record in take(DraftingSource(), turns, PROMPTS):
        gc.collect()
        alive = [drafter for drafter in drafters if drafter() is not None]
        is_last_prompt = record.prompt == 1
        assert len(alive) == (0 if is_last_prompt else 1)


# --- a measurement ---


def measurement_of(
    source: LoggingSource, rounds: int = 1, reporter: RecordingReporter | None = None
) -> Measurement:
    """A measurement of plain decoding and the trie."""
    options = BenchOptions(methods=["none", "trie"], num_drafts=[8], rounds=rounds)
    reporter = reporter or RecordingReporter()
    return reporter.of(lambda: measure_methods(source, options, Settings(), PROMPTS))


def test_progress_is_reported_for_each_answer() -> None:
    reporter = RecordingReporter()
    measurement_of(LoggingSource(), reporter=reporter)
    assert reporter.statuses[:4] == [
        "Warming up: none",
        "Warming up: trie at 8",
        "0 of 4 answers: none",
        "1 of 4 answers · about 0 s left: trie at 8",
    ]
    assert len(reporter.statuses) == 6


def fail_for(key: str) -> Callable[[Cell], None]:
    def fail(cell: Cell) -> None:
        if cell.key == key:
            raise NgtError("no datastore", hint="Build one.")

    return fail


def test_a_method_that_fails_while_warming_up_is_left_out() -> None:
    measurement = measurement_of(LoggingSource(fail_for("trie at 8")))
    assert measurement.refused == [Refusal("trie", "no datastore. Build one.")]
    assert [record.cell for record in measurement.records] == ["none", "none"]


def test_a_race_fails_if_plain_decoding_fails() -> None:
    with pytest.raises(NgtError, match="no datastore"):
        measurement_of(LoggingSource(fail_for("none")))


def test_generate_is_refused_by_its_own_name() -> None:
    hf = Cell("hf", {"method": "hf"}, Settings.of(method="none"))
    measurement = Measurement([hf])
    measurement.refuse(hf, NgtError("it cannot"))
    assert measurement.refused == [Refusal("hf", "it cannot")]
    assert not measurement.cells
    check_some_left(["none"], [cell("none")], measurement.refused)


def interrupt_after(answers: int) -> Callable[[Cell], None]:
    """Interrupt when the trie begins an answer after this number of its answers."""
    remaining = answers

    def interrupt(cell: Cell) -> None:
        nonlocal remaining
        if cell.key != "trie at 8":
            return
        if remaining == 0:
            raise KeyboardInterrupt
        remaining -= 1

    return interrupt


WARM_UP_ANSWERS = 2  # of each cell


def test_an_interrupted_race_keeps_the_prompts_that_all_cells_have_answered() -> None:
    measurement = measurement_of(LoggingSource(interrupt_after(WARM_UP_ANSWERS + 3)), rounds=2)
    assert measurement.interrupted
    assert measurement.measured() == [0, 1]


def test_a_race_that_is_interrupted_before_all_cells_have_answered_has_no_result() -> None:
    with pytest.raises(KeyboardInterrupt):
        measurement_of(LoggingSource(interrupt_after(WARM_UP_ANSWERS)), rounds=2)


# --- figures ---


def plain_answer(*ids: int, decode_s: float) -> Generation:
    return Generation(list(ids), len(ids), decode_s=decode_s, prefill_s=1.0)


def drafted_answer(*ids: int) -> Generation:
    """An answer of three tokens in two steps, of which one had a draft that was accepted."""
    histogram = Counter({0: 1, 2: 1})
    return Generation(list(ids), 2, drafted=8, accepted=2, undrafted=1, histogram=histogram)


def small_measurement() -> Measurement:
    """Two prompts in three rounds by plain decoding and by trie, whose second answers differ."""
    seconds_and_answers = {
        ("none", 0): [(4.0, plain_answer(1, 2, 3, decode_s=3.0))] * 3,
        ("none", 1): [(2.0, plain_answer(4, 5, 6, decode_s=1.0))] * 3,
        ("trie at 8", 0): [(seconds, drafted_answer(1, 2, 3)) for seconds in (1.0, 2.0, 5.0)],
        ("trie at 8", 1): [(2.0, drafted_answer(4, 5, 7))] * 3,
    }
    records = []
    for (key, prompt), rounds in seconds_and_answers.items():
        for round_number, (seconds, generation) in enumerate(rounds):
            records.append(Record(key, prompt, round_number, generation, seconds))
    return Measurement([cell("none"), cell("trie at 8")], records)


def test_a_speedup_is_the_median_of_the_ratios_of_each_prompt() -> None:
    plain, trie = summarized(small_measurement())
    assert plain.method == "none"
    assert trie.method == "trie"
    assert plain.speedup == 1.0
    assert trie.speedup == 1.5  # the median of 4/2 and 2/2
    assert trie.speedup_least_and_most == (1.0, 2.0)
    assert trie.speedup_over_hf is None
    assert trie.seconds_median == 2.0
    assert trie.spread == 0.5  # a spread of 2 s around 2 s, and of none
    assert trie.tokens_per_s_with_prefill == 1.5
    assert plain.tokens_per_s == 1.5


def test_a_row_has_the_acceptance_and_the_number_of_equal_answers() -> None:
    plain, trie = summarized(small_measurement())
    assert trie.mean_acceptance_length == 1.5
    assert trie.draft_acceptance_rate == 0.25
    assert trie.acceptance_histogram == {0: 2, 2: 2}
    assert trie.undrafted_share == 0.5
    assert trie.nodes_per_step == 4.0
    assert plain.draft_acceptance_rate is None
    assert plain.same_ids == 2
    assert trie.same_ids == 1
    assert trie.questions == 2


def test_a_row_has_the_time_of_each_part_of_a_step_if_it_was_measured() -> None:
    measurement = small_measurement()
    split_s = {"draft": 1.0, "tree": 0.5, "forward": 3.0, "verify": 0.25, "cache": 0.25}
    generation = Generation([1, 2], 2, prefill_s=1.0, split_s=split_s)
    measurement.splits = [Record("trie at 8", prompt, 0, generation) for prompt in (0, 1)]

    plain, trie = summarized(measurement)

    assert trie.prefill_ms == 1000.0
    assert trie.step_us == {part: seconds * 1e6 / 2 for part, seconds in split_s.items()}
    assert trie.share
    assert trie.share["forward"] == 0.5
    assert trie.share["prefill"] == round(2 / 12, 4)
    assert plain.share is None
    assert plain.step_us is None
    assert plain.prefill_ms is None


def test_no_two_columns_have_the_same_place_or_rank() -> None:
    """Columns of one place would hide one another."""
    assert all(callable(column.of) for column in columns(Row))
    table_columns = shown_columns(Row)
    assert len({column.place for column in table_columns}) == len(table_columns)
    assert len({column.rank for column in table_columns}) == len(table_columns)


# --- methods that cannot run ---


def test_unknown_methods_and_options_are_refused_and_the_others_run() -> None:
    cells, refused = cells_of(["trie", "tri", "trie:x=1", "none"], [4, 8], Settings())
    assert [cell.key for cell in cells] == ["trie at 4", "trie at 8", "none"]
    assert refused == [
        Refusal("tri", "unknown method 'tri'. Did you mean trie?"),
        Refusal("trie:x=1", "method trie: no option 'x'. It has none."),
    ]
    check_some_left(["trie", "tri"], cells, refused)


def test_a_race_without_a_method_that_can_run_is_an_error() -> None:
    cells, refused = cells_of(["tri", "none"], [4], Settings())
    with pytest.raises(UsageError, match="no method can run: unknown method 'tri'"):
        check_some_left(["tri"], cells, refused)


# --- the state file ---


def open_state(path: Path, key: str = "key", fresh: bool = False) -> State:
    return State(path, key, 2, fresh)


def finished_passes(path: Path, fresh: bool = False) -> Any:
    """The finished passes of a state file, by cell and round."""
    with closing(open_state(path, fresh=fresh)) as state:
        return state.done


def turns_of(rounds: int) -> Iterator[Turn]:
    return by_cell([cell(name) for name in "abc"], 2, rounds)


def resume(path: Path, rounds: int = 1) -> int:
    """Take the remaining turns of three cells with two prompts; return the number of answers."""
    source = LoggingSource()
    answers = 0
    with closing(open_state(path)) as state:
        for record in take(source, state.left(turns_of(rounds)), PROMPTS):
            state.add(record)
            answers += 1
    assert state.done == finished_passes(path)
    assert len(state.done) == 3 * rounds
    return answers


def test_finished_passes_are_kept_and_unfinished_ones_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with closing(open_state(path)) as state:
        for record in islice(take(LoggingSource(), turns_of(2), PROMPTS), 5):
            state.add(record)
    assert len(finished_passes(path)) == 2

    assert resume(path, 2) == 12 - 4
    assert resume(path, 2) == 0
    assert resume(path, 3) == 6


def test_a_state_file_has_every_figure_of_an_answer(tmp_path: Path) -> None:
    resume(tmp_path / "state")
    records = finished_passes(tmp_path / "state")["a", 0]
    assert len(records) == 2
    for record in records:
        assert record.generation.ids == [5, 6]
        assert record.generation.steps == 1
        assert record.generation.trie_build_s == 0.25
        assert record.generation.trie_bytes == 7
        assert record.generation.decode_s == 0.5
        assert record.seconds > 0


def test_a_pass_whose_line_is_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    resume(path)
    path.write_text(path.read_text()[:-30])
    assert resume(path) == 2


def test_a_fresh_state_has_no_finished_passes(tmp_path: Path) -> None:
    path = tmp_path / "state"
    resume(path)
    assert not finished_passes(path, fresh=True)


class CountedName(str):
    """A name of a cell that counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedName.lookups += 1
        return super().__hash__()


def test_adding_an_answer_does_not_look_at_all_answers_before_it(tmp_path: Path) -> None:
    CountedName.lookups = 0
    with closing(State(tmp_path / "state", "key", 500)) as state:
        for prompt in range(499):
            state.add(Record(CountedName("a"), prompt, 0, Generation([1], 1)))
    assert CountedName.lookups <= 2 * 500


def record_json(prompt: int, cell: str = "a", **generation: Any) -> dict[str, Any]:
    """A record as the state file has it."""
    valid = {"ids": [5, 6], "steps": 1, "decode_s": 0.5}
    return {"cell": cell, "prompt": prompt, "round": 0, "generation": valid | generation}


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([record_json(0)], id="a missing prompt"),
        pytest.param([record_json(0), record_json(0)], id="a repeated prompt"),
        pytest.param([[1], record_json(1)], id="a record of another type"),
        pytest.param([record_json(0), record_json(1, cell="b")], id="two cells"),
        pytest.param([record_json(0), record_json(1, steps=-1)], id="negative steps"),
        pytest.param([record_json(0), record_json(1, decode_s=10**400)], id="infinite seconds"),
    ],
)
def test_a_pass_whose_line_is_damaged_is_measured_again(records: Any, tmp_path: Path) -> None:
    path = tmp_path / "state"
    resume(path)
    lines = path.read_text().splitlines()
    lines[-1] = json.dumps(records)
    lines.append("[" * 100_000)
    path.write_text("\n".join([*lines, ""]))
    assert resume(path) == 2


def test_the_state_of_another_sweep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text('{"format": "ngt-tune", "version": 5, "key": "key"}\n')
    with pytest.raises(UsageError, match="another sweep") as raised:
        open_state(tmp_path / "state", "other")
    assert "--fresh" in raised.value.hint


def test_a_state_of_an_older_version_may_be_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "old").write_text('{"format": "ngt-tune", "version": 1, "key": "key"}\n')
    assert finished_passes(tmp_path / "old", fresh=True) == {}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_of_another_program_is_not_overwritten(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "notes").write_text("notes\n")
    with pytest.raises(UsageError, match="was not written by ngt"):
        open_state(tmp_path / "notes", fresh=fresh)
    assert (tmp_path / "notes").read_text() == "notes\n"


def test_a_state_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="below: "):
        open_state(tmp_path / "file" / "below")


# --- races of a model ---


@pytest.mark.search
@pytest.mark.parametrize(
    ("method", "fresh"), [("trtllm", False), ("auto:trust=50", False), ("auto:trust=50", True)]
)
def test_no_method_drafts_from_the_answer_of_another_to_the_same_prompt(
    fresh: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each method accepts the same drafts beside the others as alone, with equal settings."""
    target: Any = make_target(seed=3)
    monkeypatch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: target)
    settings = Settings.of(max_tokens=16, calibrate=False, background="none")
    prompts = [Prompt("", ids, (), ()) for ids in ([5, 6, 7, 5, 6, 8], [9, 10, 11, 12])]
    monkeypatch.setattr(Live, "built_prompts", lambda *_: prompts)

    def histograms_of_measurement(*methods: str) -> dict[str, list[Any]]:
        """The acceptance histograms of all answers, by the key of the cell."""
        source = Live([], None)
        cells, _ = cells_of(("none", *methods), [16], settings)
        histograms: dict[str, list[Any]] = {cell.key: [] for cell in cells}
        for record in take(source, by_prompt(cells, 2, rounds=2), range(2), fresh=fresh):
            histograms[record.cell].append(record.generation.histogram)
        return histograms

    keys = {
        method: f"{method} at 16",
        f"{method}:num_draft=16": f"{method}:num_draft=16 at 16",
        f"{method}:n=13:num_draft=12": f"{method}:n=13:num_draft=12 at 12",
    }
    measurement = histograms_of_measurement(*keys)
    assert list(measurement) == ["none", *keys.values()]
    for spec, key in keys.items():
        assert measurement[key] == histograms_of_measurement(spec)[key]


@given(st.integers(0, 60), st.integers(1, 70))
def test_a_limit_takes_items_from_all_parts_in_their_order(available: int, limit: int) -> None:
    items = [Item(str(number), "summarize", ()) for number in range(available)]
    numbers = [int(item.id) for item in spread(items, limit)]
    assert len(numbers) == min(available, limit)
    assert numbers == sorted(set(numbers))
    if 1 < limit < available:
        gaps = [after - before for before, after in pairwise([*numbers, available])]
        assert numbers[0] == 0
        assert max(gaps) - min(gaps) <= 1
