"""One measurement: who answers when, what is forgotten, what an interruption leaves, figures."""

import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
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
    Race,
    Record,
    by_cell,
    by_prompt,
    raced,
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


class Written:
    """A source that writes to `log` when a cell begins and what it answers; `does` comes before."""

    def __init__(self, does: Callable[[Cell], None] = lambda cell: None) -> None:
        self.prompts, self.log, self._does = "12", list[str](), does

    def begin(self, cell: Cell, split: bool = False) -> Answering[str]:
        self.log.append(f"{cell.key} begins")

        def answer(prompt: str) -> Generation:
            self._does(cell)
            self.log.append(f"{cell.key}{prompt}")
            return Generation([5, 6], 1, decode_s=0.5, trie_build_s=0.25, trie_bytes=7)

        return answer


def test_cells_take_turns_at_each_prompt_in_rotating_order() -> None:
    source = Written()
    turns = by_prompt([cell("a"), cell("b")], 2, 2)
    taken = [(r.cell, r.prompt, r.round) for r in take(source, turns, "12")]
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
    assert taken[:4] == [("a", 0, 0), ("b", 0, 0), ("b", 1, 0), ("a", 1, 0)]
    assert len(taken) == 8
    list(take(source, by_prompt([cell("c")], 2, 1), "12", fresh=True))
    assert source.log[12:] == ["c begins", "c1", "c begins", "c2"]


def test_cells_answer_all_prompts_in_a_row_in_another_order_each_round() -> None:
    source, cells = Written(), [cell(name) for name in "abcdef"]
    turns = list(by_cell(cells, 2, 3))
    assert turns == list(by_cell(cells, 2, 3))
    mixed = [cell(one.key, model="xy"[i % 2]) for i, one in enumerate(cells)]
    models = [turn.cell.settings.model.model for turn in by_cell(mixed, 2, 1)]
    assert models in (["x"] * 6 + ["y"] * 6, ["y"] * 6 + ["x"] * 6)  # each is loaded once
    orders = []
    for number in range(3):
        keys = [t.cell.key for t in turns if t.round == number]
        assert keys[::2] == keys[1::2]
        assert sorted(keys[::2]) == list("abcdef")
        orders.append(keys)
    assert orders[0] != orders[1]
    list(take(source, turns[:2], "12"))
    assert source.log == [f"{orders[0][0]} begins", f"{orders[0][0]}1", f"{orders[0][0]}2"]


def test_a_drafter_is_dropped_after_the_last_prompt_of_a_round() -> None:
    learned: list[weakref.ref[Any]] = []

    class Answers:
        def __call__(self, prompt: str) -> Generation:
            return Generation([1], 1)

    class Learning(Written):
        def begin(self, cell: Cell, split: bool = False) -> Answering[str]:
            made = Answers()
            learned.append(weakref.ref(made))
            return made

    for record in take(Learning(), by_cell([cell(name) for name in "abc"], 2, 1), "12"):
        gc.collect()
        assert sum(ref() is not None for ref in learned) == (record.prompt == 0)


# --- a race ---


def raced_by(source: Written, rounds: int = 1, said: list[str] | None = None) -> Race:
    options = BenchOptions(methods=["none", "trie"], num_drafts=[8], rounds=rounds)
    reported = RecordingReporter()
    if said is not None:
        reported.statuses = said
    return reported.of(lambda: raced(source, options, Settings(), "12"))


def test_progress_is_reported_for_each_answer() -> None:
    said: list[str] = []
    raced_by(Written(), said=said)
    assert said[:3] == ["Warming up: none", "Warming up: trie at 8", "0 of 4 answers: none"]
    assert said[3] == "1 of 4 answers · about 0 s left: trie at 8"
    assert len(said) == 6


def test_whoever_cannot_run_is_refused_while_warming_up() -> None:
    def fails(cell: Cell) -> None:
        if cell.key == failing:
            raise NgtError("no datastore", hint="Build one.")

    failing = "trie at 8"
    made = raced_by(Written(fails))
    assert made.refused == [Refusal("trie", "no datastore. Build one.")]
    assert {r.cell for r in made.records} == {"none"}
    assert len(made.records) == 2
    failing = "none"
    with pytest.raises(NgtError, match="no datastore"):
        raced_by(Written(fails))


def test_generate_is_refused_by_its_own_name() -> None:
    race = Race([hf := Cell("hf", {"method": "hf"}, Settings.of(method="none"))])
    race.refuse(hf, NgtError("it cannot"))
    assert race.refused == [Refusal("hf", "it cannot")]
    assert not race.cells
    check_some_left(["none"], [cell("none")], race.refused)


def test_an_interruption_keeps_the_prompts_that_all_have_answered() -> None:
    left = [2 + 3]  # of trie: two while warming up

    def does(cell: Cell) -> None:
        left[0] -= cell.key == "trie at 8"
        if left[0] < 0:
            raise KeyboardInterrupt

    made = raced_by(Written(does), rounds=2)
    assert made.interrupted
    assert made.measured() == [0, 1]
    left = [2]
    with pytest.raises(KeyboardInterrupt):
        raced_by(Written(does), rounds=2)


# --- figures ---


def answer(*ids: int, **more: Any) -> Generation:
    return Generation(list(ids), more.pop("steps", len(ids)), **more)


def small_race() -> Race:
    """A summary and a question, three rounds each, by plain decoding and by trie."""
    drafted = {"drafted": 8, "accepted": 2, "undrafted": 1, "histogram": Counter({0: 1, 2: 1})}
    rounds = {
        ("none", 0): [(4.0, answer(1, 2, 3, decode_s=3.0, prefill_s=1.0))] * 3,
        ("none", 1): [(2.0, answer(4, 5, 6, decode_s=1.0, prefill_s=1.0))] * 3,
        ("trie at 8", 0): [(s, answer(1, 2, 3, steps=2, **drafted)) for s in (1.0, 2.0, 5.0)],
        ("trie at 8", 1): [(2.0, answer(4, 5, 7, steps=2, **drafted))] * 3,
    }
    records = [
        Record(key, prompt, number, generation, seconds)
        for (key, prompt), made in rounds.items()
        for number, (seconds, generation) in enumerate(made)
    ]
    return Race([cell("none"), cell("trie at 8")], records)


def test_a_speed_up_is_the_median_of_ratios_prompt_by_prompt() -> None:
    plain, trie = summarized(small_race())
    assert (plain.method, trie.method) == ("none", "trie")
    assert plain.speedup == 1.0 and trie.speedup == 1.5  # of 4/2 and 2/2
    assert trie.speedup_least_and_most == (1.0, 2.0)
    assert trie.speedup_over_hf is None
    assert trie.seconds_median == 2.0 and trie.spread == 0.5  # of 2 s / 2 s and none
    assert trie.tokens_per_s_with_prefill == 1.5
    assert plain.tokens_per_s == 1.5


def test_acceptance_and_same_ids_are_in_the_row() -> None:
    plain, trie = summarized(small_race())
    assert trie.mean_acceptance_length == 1.5
    assert trie.draft_acceptance_rate == 0.25
    assert trie.acceptance_histogram == {0: 2, 2: 2}
    assert trie.undrafted_share == 0.5
    assert trie.nodes_per_step == 4.0
    assert plain.draft_acceptance_rate is None
    assert (plain.same_ids, trie.same_ids, trie.questions) == (2, 1, 2)


def test_where_the_time_goes_is_in_the_row_of_cells_that_were_timed_apart() -> None:
    race = small_race()
    parts = {"draft": 1.0, "tree": 0.5, "forward": 3.0, "verify": 0.25, "cache": 0.25}
    race.splits = [
        Record("trie at 8", i, 0, answer(1, 2, steps=2, prefill_s=1.0, split_s=parts))
        for i in (0, 1)
    ]
    plain, trie = summarized(race)
    assert trie.prefill_ms == 1000.0
    assert trie.step_us == {part: s * 1e6 / 2 for part, s in parts.items()}
    assert trie.share
    assert trie.share["forward"] == 0.5
    assert trie.share["prefill"] == round(2 / 12, 4)
    assert plain.share is plain.step_us is plain.prefill_ms is None


def test_every_figure_is_computed_shown_and_named_by_its_own_column() -> None:
    """Nothing else knows the columns: two of one place would hide one another."""
    assert all(callable(one.of) for one in columns(Row))
    shown = shown_columns(Row)
    ranks = [one.rank for one in shown]
    assert len({one.place for one in shown}) == len(set(ranks)) == len(shown)


# --- who cannot take part ---


def test_unknown_methods_are_refused_and_none_left_is_an_error() -> None:
    cells, refused = cells_of(["trie", "tri", "trie:x=1", "none"], [4, 8], Settings())
    assert [c.key for c in cells] == ["trie at 4", "trie at 8", "none"]
    assert [(r.method, r.reason) for r in refused] == [
        ("tri", "unknown method 'tri'. Did you mean trie?"),
        ("trie:x=1", "method trie: no option 'x'. It has none."),
    ]
    check_some_left(["trie", "tri"], cells, refused)
    with pytest.raises(UsageError, match="no method can run: unknown method 'tri'"):
        check_some_left(["tri"], cells, refused)


# --- the state file ---


def state_at(path: Path, key: str = "key", fresh: bool = False) -> State:
    return State(path, key, 2, fresh)


def done_at(path: Path, fresh: bool = False) -> Any:
    with closing(state_at(path, fresh=fresh)) as state:
        return state.done


def go_on(path: Path, rounds: int = 1) -> list[str]:
    """Take what is left of three cells' turns; the answers given."""
    source, turns = Written(), by_cell([cell(name) for name in "abc"], 2, rounds)
    with closing(state_at(path)) as state:
        for record in take(source, state.left(turns), "12"):
            state.add(record)
    assert state.done == done_at(path)
    assert len(state.done) == 3 * rounds
    return [line for line in source.log if "begins" not in line]


def test_finished_passes_are_kept_and_the_others_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    turns = by_cell([cell(name) for name in "abc"], 2, 2)
    with closing(state_at(path)) as state:
        for record, _ in zip(take(Written(), turns, "12"), range(5), strict=False):  # then Ctrl-C
            state.add(record)
    assert len(done_at(path)) == 2
    assert len(go_on(path, 2)) == 12 - 4
    for one in done_at(path)["a", 1]:
        assert (one.generation.ids, one.generation.steps) == ([5, 6], 1)
        assert (one.generation.trie_build_s, one.generation.trie_bytes) == (0.25, 7)
        assert one.generation.decode_s == 0.5
        assert 0 < one.seconds < 1
    assert go_on(path, 2) == []
    assert len(go_on(path, 3)) == 6
    path.write_text(path.read_text()[:-30])  # a line that is cut off is measured again
    assert len(go_on(path, 3)) == 2
    assert not done_at(path, fresh=True)


class CountedName(str):
    """A name of a cell that counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedName.lookups += 1
        return super().__hash__()


def test_an_answer_is_looked_at_once_however_many_prompts_came_before_it(tmp_path: Path) -> None:
    CountedName.lookups = 0
    made = Generation([1], 1)
    with closing(State(tmp_path / "s", "key", 500)) as state:
        for prompt in range(499):
            state.add(Record(CountedName("a"), prompt, 0, made))
    assert CountedName.lookups <= 2 * 500


def stored(prompt: int, **generation: Any) -> dict[str, Any]:
    own = {"ids": [5, 6], "steps": 1, "decode_s": 0.5, **generation}
    return {"cell": "a", "prompt": prompt, "round": 0, "generation": own}


@pytest.mark.parametrize(
    "records",
    [
        [stored(0)],
        [stored(0), stored(0)],
        [[1], stored(1)],
        [stored(0), {**stored(1), "cell": "b"}],
        *([stored(0), stored(1, **bad)] for bad in ({"steps": -1}, {"decode_s": 10**400})),
    ],
)
def test_a_damaged_line_is_measured_again(records: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    go_on(path)
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps(records), "[" * 100_000, ""]))
    assert len(go_on(path)) == 2


def test_states_of_other_runs_and_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text('{"format": "ngt-tune", "version": 5, "key": "key"}\n')
    with pytest.raises(UsageError, match="another sweep") as caught:
        state_at(tmp_path / "s", "other")
    assert "--fresh" in caught.value.hint
    (tmp_path / "old").write_text('{"format": "ngt-tune", "version": 1, "key": "key"}\n')
    assert done_at(tmp_path / "old", fresh=True) == {}
    (tmp_path / "t").write_text("notes\n")
    for fresh in (False, True):  # nobody's notes are overwritten
        with pytest.raises(UsageError, match="was not written by ngt"):
            state_at(tmp_path / "t", fresh=fresh)
    with pytest.raises(UsageError, match="below: "):
        state_at(tmp_path / "s" / "below")


# --- contestants that run a model ---


@pytest.mark.search
@pytest.mark.parametrize(
    ("method", "fresh"), [("trtllm", False), ("auto:trust=50", False), ("auto:trust=50", True)]
)
def test_no_contestant_drafts_from_the_answer_of_another_to_the_same_prompt(
    fresh: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With others that differ in a shared setting alone, each does what it does by itself."""
    tiny: Any = make_target(seed=3)
    monkeypatch.setattr("ngtcli.engine.local.load_model", lambda *_, **__: tiny)
    settings = Settings.of(max_tokens=16, calibrate=False, background="none")
    prompts = [Prompt("", ids, (), ()) for ids in ([5, 6, 7, 5, 6, 8], [9, 10, 11, 12])]
    monkeypatch.setattr(Live, "built_prompts", lambda *_: prompts)

    def histograms(*specs: str) -> dict[str, list[Any]]:
        source = Live([], None)
        cells, _ = cells_of(("none", *specs), [16], settings)
        found: dict[str, list[Any]] = {c.key: [] for c in cells}
        for record in take(source, by_prompt(cells, 2, rounds=2), range(2), fresh=fresh):
            found[record.cell].append(record.generation.histogram)
        return found

    others = (method, f"{method}:num_draft=16", f"{method}:n=13:num_draft=12")
    together = histograms(*others)
    assert list(together) == [
        "none",
        *(f"{s} at {k}" for s, k in zip(others, (16, 16, 12), strict=True)),
    ]
    for spec in others:
        ((key, alone),) = (pair for pair in histograms(spec).items() if pair[0] != "none")
        assert together[key] == alone


@given(st.integers(0, 60), st.integers(1, 70))
def test_a_limit_takes_items_from_all_parts_in_their_order(available: int, limit: int) -> None:
    items = [Item(str(i), "summarize", ()) for i in range(available)]
    taken = [int(item.id) for item in spread(items, limit)]
    assert len(taken) == min(available, limit)
    assert taken == sorted(set(taken))
    if 1 < limit < available:
        gaps = [b - a for a, b in pairwise([*taken, available])]
        assert taken[0] == 0
        assert max(gaps) - min(gaps) <= 1
