"""One measurement: who answers when, what is forgotten, what an interruption leaves, figures."""

import gc
import json
import os
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ngtcli.config import Settings
from ngtcli.errors import NgtError, UsageError
from ngtcli.measure.live import ours, prompt_times, split_rows
from ngtcli.measure.machine import PeakMemory
from ngtcli.measure.options import check_against, check_some_left, unreadable
from ngtcli.measure.quality import Quality, Scores
from ngtcli.measure.records import (
    Answering,
    Contestant,
    Generation,
    Race,
    Record,
    Refusal,
    by_contestant,
    by_prompt,
    race,
)
from ngtcli.measure.records import run as take
from ngtcli.measure.results import PromptTimes
from ngtcli.measure.state import State
from ngtcli.measure.summary import LIVE, Group, Judge, Row, percentile, summarized
from ngtcli.prompt.build import Prompt
from ngtcli.session.local import LocalSession
from tests.support.tiny_models import make_target

# --- turns ---


def contestant(
    name: str, log: list[str] | None = None, does: Callable[[], None] = lambda: None
) -> Contestant[str]:
    """Writes to `log` when it begins and what it answers; `does` comes before each answer."""
    written: list[str] = [] if log is None else log

    def begin() -> Answering[str]:
        written.append(f"{name} begins")

        def answer(prompt: str) -> Generation:
            does()
            written.append(f"{name}{prompt}")
            return Generation([5, 6], 1, decode_s=0.5, trie_build_s=0.25, trie_bytes=7)

        return answer

    return Contestant(name, None, begin)


def test_contestants_take_turns_at_each_prompt_in_rotating_order() -> None:
    log: list[str] = []
    turns = by_prompt([contestant("a", log), contestant("b", log)], 2, 2)
    taken = [(r.contestant, r.prompt, r.round) for r in take(turns, "12")]
    assert log == [
        "a begins", "a1", "b begins", "b1", "b2", "a2",
        "b begins", "b1", "a begins", "a1", "a2", "b2",
    ]  # fmt: skip
    assert taken[:4] == [("a", 0, 0), ("b", 0, 0), ("b", 1, 0), ("a", 1, 0)] and len(taken) == 8
    list(take(by_prompt([contestant("c", log)], 2, 1), "12", fresh=True))
    assert log[12:] == ["c begins", "c1", "c begins", "c2"]


def test_contestants_answer_all_prompts_in_a_row_in_another_order_each_round() -> None:
    log: list[str] = []
    people = [contestant(name, log) for name in "abcdef"]
    turns = list(by_contestant(people, 2, 3))
    assert turns == list(by_contestant(people, 2, 3))
    mixed = [replace(one, model="xy"[i % 2]) for i, one in enumerate(people)]
    models = [turn.contestant.model for turn in by_contestant(mixed, 2, 1)]
    assert models in (["x"] * 6 + ["y"] * 6, ["y"] * 6 + ["x"] * 6)  # each is loaded once
    orders = []
    for number in range(3):
        keys = [t.contestant.key for t in turns if t.round == number]
        assert keys[::2] == keys[1::2] and sorted(keys[::2]) == list("abcdef")
        orders.append(keys)
    assert orders[0] != orders[1]
    list(take(turns[:2], "12"))
    assert log == [f"{orders[0][0]} begins", f"{orders[0][0]}1", f"{orders[0][0]}2"]


def test_what_a_contestant_has_learned_is_dropped_after_its_last_prompt() -> None:
    learned: list[weakref.ref[Any]] = []

    class Answers:
        def __call__(self, prompt: str) -> Generation:
            return Generation([1], 1)

    def begin() -> Answers:
        made = Answers()
        learned.append(weakref.ref(made))
        return made

    people = [Contestant(name, None, begin) for name in "abc"]
    for record in take(by_contestant(people, 2, 1), "12"):
        gc.collect()
        assert sum(ref() is not None for ref in learned) == (record.prompt == 0)


# --- a race ---


def raced(
    *contestants: Contestant[str], rounds: int = 1, said: list[str] | None = None
) -> Race[str]:
    progress = [] if said is None else said
    return race(contestants, "12", rounds, warm_up="12", progress=progress.append)


def test_what_a_race_does_is_said_prompt_by_prompt() -> None:
    said: list[str] = []
    raced(contestant("none"), contestant("b"), said=said)
    assert said[:4] == [f"Warming up: {c}, {i} of 2 prompts" for c in ("none", "b") for i in (1, 2)]
    assert said[4:6] == ["1 of 2 prompts: none", "1 of 2 prompts: b"]
    said.clear()
    raced(contestant("none"), rounds=2, said=said)
    assert said[-1] == "Round 2 of 2, 2 of 2 prompts: none"


def test_whoever_cannot_run_is_refused_while_warming_up() -> None:
    def fails() -> None:
        raise NgtError("no datastore", "Build one.")

    made = raced(contestant("none"), contestant("rest", does=fails))
    assert made.refused == [Refusal("rest", "no datastore. Build one.")]
    assert {r.contestant for r in made.records} == {"none"} and len(made.records) == 2
    with pytest.raises(NgtError, match="no datastore"):
        raced(contestant("none", does=fails))


def interrupting(after: int) -> Callable[[], None]:
    left = [after]

    def does() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    return does


def test_an_interruption_keeps_the_prompts_that_all_have_answered() -> None:
    made = raced(contestant("none"), contestant("b", does=interrupting(3)), rounds=2)
    assert made.interrupted and made.measured() == [0]
    with pytest.raises(KeyboardInterrupt):
        raced(contestant("none"), contestant("b", does=interrupting(2)), rounds=2)


# --- figures ---


def answer(*ids: int, **more: Any) -> Generation:
    return Generation(list(ids), more.pop("steps", len(ids)), **more)


def small_race() -> Race[str]:
    """A summary and a question, three rounds each, by plain decoding and by trie."""
    drafted = {"drafted": 8, "accepted": 2, "undrafted": 1, "histogram": Counter({0: 1, 2: 1})}
    rounds = {
        ("none", 0): [(4.0, answer(1, 2, 3, decode_s=3.0, prefill_s=1.0))] * 3,
        ("none", 1): [(2.0, answer(4, 5, 6, decode_s=1.0, prefill_s=1.0))] * 3,
        ("trie at 8", 0): [(s, answer(1, 2, 3, steps=2, **drafted)) for s in (1.0, 2.0, 5.0)],
        ("trie at 8", 1): [(2.0, answer(4, 5, 7, steps=2, **drafted))] * 3,
    }
    records = [
        Record(key, prompt, number, generation, seconds, 2**20 * (key == "trie at 8"))
        for (key, prompt), made in rounds.items()
        for number, (seconds, generation) in enumerate(made)
    ]
    return Race([contestant("none"), replace(contestant("trie"), num_draft=8)], records)


def judged(answers: Any) -> Scores | None:
    """The question's reference is 4 5 6; the summary has none."""
    found = [(" ".join(map(str, g.ids)), ["4 5 6"], True) for i, g in answers if i == 1]
    return Quality().scores(found) if found else None


def summed_up(judge: Judge | None = None) -> list[Row]:
    return summarized(LIVE, small_race(), ["summarize", "ask"], judge)


def test_a_speed_up_is_the_median_of_ratios_prompt_by_prompt() -> None:
    rows = summed_up()
    assert [(r.method, r.task) for r in rows] == [
        ("none", "overall"), ("trie", "overall"), ("none", "summarize"), ("trie", "summarize"),
        ("none", "ask"), ("trie", "ask"),
    ]  # fmt: skip
    plain, trie = rows[:2]
    assert plain.speedup == 1.0 and trie.speedup == 1.5  # of 4/2 and 2/2
    assert trie.speedup_least_and_most == (1.0, 2.0) and trie.speedup_over_hf is None
    assert trie.seconds_median == 2.0 and trie.spread == 0.5  # of 2 s / 2 s and none
    assert trie.tokens_per_s_with_prefill == 1.5 and plain.tokens_per_s == 1.5


def test_acceptance_same_ids_memory_and_quality_are_in_the_row() -> None:
    plain, trie, summary = summed_up(judged)[:3]
    assert trie.mean_acceptance_length == 1.5 and trie.draft_acceptance_rate == 0.25
    assert trie.acceptance_histogram == {0: 2, 2: 2} and trie.undrafted_share == 0.5
    assert trie.nodes_per_step == 4.0 and plain.draft_acceptance_rate is None
    assert (plain.same_ids, trie.same_ids, trie.questions) == (2, 1, 2)
    assert (plain.peak_memory_mib, trie.peak_memory_mib) == (0.0, 1.0)
    assert (plain.exact_match, trie.exact_match) == (1.0, 0.0)
    assert trie.f1 == pytest.approx(2 / 3, abs=1e-4)
    assert summary.judged is None and summed_up()[0].f1 is None


def test_every_figure_is_computed_shown_and_named_by_its_own_column() -> None:
    """Nothing else knows the columns: two of one place would hide one another."""
    declared = [f.metadata["column"] for f in fields(Row)]
    assert all(callable(one.of) for one in declared)
    for kind in ("live", "replay", "shape"):
        places = [one.shown[kind] for one in declared if kind in one.shown]
        assert len({place for place, _ in places}) == len({r for _, r in places}) == len(places)
        assert all(kind in one.kinds and one.heading for one in declared if kind in one.shown)


def test_drafting_is_timed_by_percentiles_and_a_replay_without_drafts_accepts_none() -> None:
    records = {("a", 0): [Record("a", 0, 0, answer(1, draft_us=[3.0, 1.0, 2.0]))]}
    group = Group("replay", contestant("a"), "t", [0], records)
    assert group.draft_us(50) == 2.0 and group.acceptance_rate() == 0.0
    assert percentile([], 50) == 0.0 and percentile([7.0], 99) == 7.0


def test_prompts_keep_their_own_median_and_quartiles() -> None:
    rounds = [r for r in small_race().records if (r.contestant, r.prompt) == ("trie at 8", 0)]
    assert prompt_times(rounds) == PromptTimes(
        rounds=3, seconds_median=2.0, seconds_quartiles=(1.5, 3.5), new_tokens=3
    )


def test_the_time_is_split_into_prefill_and_the_parts_of_a_step() -> None:
    split = {"draft": 0.1, "tree": 0.1, "forward": 0.6, "verify": 0.15, "cache": 0.05}
    parts = Record("trie", 0, 0, answer(1, 2, steps=2, prefill_s=1.0, split_s=split))
    (row,) = split_rows(Race([contestant("none"), contestant("trie")], splits=[parts]))
    assert row.prefill_ms == 1000.0 and row.step_us["forward"] == 300000.0
    assert row.share == {
        "prefill": 0.5, "draft": 0.05, "tree": 0.05, "forward": 0.3, "verify": 0.075,
        "cache": 0.025,
    }  # fmt: skip


# --- who cannot take part ---


def test_unknown_methods_are_refused_and_none_left_is_an_error() -> None:
    refused = unreadable(["trie", "tri", "trie:x=1"], Settings())
    assert [(r.method, r.reason) for r in refused] == [
        ("tri", "no method 'tri'. Did you mean trie?"),
        ("trie:x=1", "method trie: no option 'x'. It has none."),
    ]
    check_some_left(["trie", "tri"], refused)
    with pytest.raises(UsageError, match="no method can run: no method 'tri'"):
        check_some_left(["tri"], refused)


@pytest.mark.parametrize(
    "settings", [{"temperature": 1.0}, {"stop": ("x",)}, {"repetition_penalty": 1.1}]
)
def test_against_hf_compares_greedy_decoding_alone(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_against(Settings(**settings))
    check_against(Settings())


# --- the state file ---


def state_at(path: Path, key: str = "key", fresh: bool = False) -> State:
    return State(path, key, 2, fresh)


def done_at(path: Path, fresh: bool = False) -> Any:
    with closing(state_at(path, fresh=fresh)) as state:
        return state.done


def go_on(path: Path, rounds: int = 1, order: Any = by_contestant) -> list[str]:
    """Take what is left of three contestants' turns; the answers given."""
    log: list[str] = []
    turns = order([contestant(name, log) for name in "abc"], 2, rounds)
    with closing(state_at(path)) as state:
        for record in take(state.left(turns), "12"):
            state.add(record)
    assert state.done == done_at(path) and len(state.done) == 3 * rounds
    return [line for line in log if "begins" not in line]


@pytest.mark.parametrize("order", [by_prompt, by_contestant])
def test_finished_passes_are_kept_and_the_others_taken_again(order: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    turns = order([contestant(name) for name in "abc"], 2, 2)
    with closing(state_at(path)) as state:
        for record, _ in zip(take(turns, "12"), range(5), strict=False):  # then Ctrl-C
            state.add(record)
    assert len(done_at(path)) == 2
    assert len(go_on(path, 2, order)) == 12 - 4
    for one in done_at(path)["a", 1]:
        assert (one.new_tokens, one.steps, one.decode_s) == (2, 1, 0.5)
        assert (one.trie_build_s, one.trie_bytes) == (0.25, 7) and 0 < one.wall_s < 1
    assert go_on(path, 2, order) == [] and len(go_on(path, 3, order)) == 6
    path.write_text(path.read_text()[:-30])  # a line that is cut off is measured again
    assert len(go_on(path, 3, order)) == 2
    assert not done_at(path, fresh=True)


FIGURES = {"new_tokens": 2, "steps": 1, "decode_s": 0.5, "wall_s": 0.6}


@pytest.mark.parametrize(
    "records",
    [
        None, 7, [], [FIGURES], [FIGURES] * 3, [[1], FIGURES], [FIGURES, "123456"],
        *([FIGURES, {**FIGURES, **bad}] for bad in (
            {"new_tokens": "9"}, {"new_tokens": -1}, {"steps": True}, {"decode_s": None},
            {"decode_s": -1}, {"decode_s": 10**400}, {"wall_s": "2"}, {"trie_bytes": 1.5},
        )),
    ],
)  # fmt: skip
def test_a_damaged_line_is_measured_again(records: Any, tmp_path: Path) -> None:
    path = tmp_path / "s"
    go_on(path)
    *lines, last = path.read_text().splitlines()
    damaged = {**json.loads(last), "records": records}
    path.write_text("\n".join([*lines, json.dumps(damaged), "[" * 100_000, ""]))
    assert len(go_on(path)) == 2


def test_states_of_other_runs_and_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_text('{"format": "ngt-tune", "version": 4, "key": "key"}\n')
    with pytest.raises(UsageError, match="another sweep") as caught:
        state_at(tmp_path / "s", "other")
    assert "--fresh" in caught.value.hint
    (tmp_path / "old").write_text('{"format": "ngt-tune", "version": 1, "key": "key"}\n')
    with pytest.raises(UsageError, match="another version of ngt"):
        state_at(tmp_path / "old")
    assert done_at(tmp_path / "old", fresh=True) == {}
    (tmp_path / "t").write_text("notes\n")
    for fresh in (False, True):  # nobody's notes are overwritten
        with pytest.raises(UsageError, match="ngt did not write it"):
            state_at(tmp_path / "t", fresh=fresh)
    with pytest.raises(UsageError, match="below: "):
        state_at(tmp_path / "s" / "below")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for endless in ("pipe", "zero"):
        with pytest.raises(UsageError, match="not a regular file"):
            state_at(tmp_path / endless)


# --- contestants that run a model ---


def test_peak_memory_sees_what_a_run_takes() -> None:
    memory = PeakMemory(torch.device("cpu"))
    assert memory.kind in ("process", "process-high")
    memory.start()
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert block.numel() and memory.peak() > 32 * 2**20


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("method", ["trtllm", "auto:trust=50"])
def test_no_contestant_drafts_from_the_answer_of_another_to_the_same_prompt(
    fresh: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With others that differ in a shared setting alone, each does what it does by itself."""
    tiny: Any = make_target(seed=3)
    monkeypatch.setattr("ngtcli.session.local.load_model", lambda *_, **__: tiny)
    settings = Settings(max_tokens=24, calibrate=False, background=())
    session = LocalSession(settings, persist=False)
    prompts = [Prompt("", ids, (), ()) for ids in ([5, 6, 7, 5, 6, 8], [9, 10, 11, 12])]

    def histograms(*specs: str) -> dict[str, list[Any]]:
        people = [ours(session, spec, 16) for spec in ("none", *specs)]
        found: dict[str, list[Any]] = {c.key: [] for c in people}
        for record in take(by_prompt(people, 2, rounds=2), prompts, fresh=fresh):
            found[record.contestant].append(record.generation.histogram)
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
