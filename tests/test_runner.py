"""The runner: who answers when, what is forgotten, what is kept in a file, and going on from it."""

import gc
import json
import os
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import make_target

from ngtcli.config import Settings
from ngtcli.errors import InputError, UsageError
from ngtcli.measure.contestants import ours
from ngtcli.measure.memory import PeakMemory
from ngtcli.measure.records import Answering, Contestant, Generation, by_contestant, by_prompt
from ngtcli.measure.records import run as take
from ngtcli.measure.state import State
from ngtcli.prompt.build import Prompt
from ngtcli.session.local import LocalSession


def contestant(name: str, log: list[str]) -> Contestant[str]:
    def begin() -> Answering[str]:
        log.append(f"{name} begins")

        def answer(prompt: str) -> Generation:
            log.append(f"{name}{prompt}")
            return Generation([5, 6], 1, decode_s=0.5, trie_build_s=0.25, trie_bytes=7)

        return answer

    return Contestant(name, None, begin)


def test_contestants_take_turns_at_each_prompt_in_rotating_order() -> None:
    log: list[str] = []
    turns = by_prompt([contestant("a", log), contestant("b", log)], 2, 2)
    taken = [(t.contestant.key, t.prompt, t.round) for t, _ in take(turns, "12")]
    assert log == [
        "a begins", "a1", "b begins", "b1", "b2", "a2",
        "b begins", "b1", "a begins", "a1", "a2", "b2",
    ]  # fmt: skip
    assert taken[:4] == [("a", 0, 0), ("b", 0, 0), ("b", 1, 0), ("a", 1, 0)] and len(taken) == 8


def test_contestants_answer_all_prompts_in_a_row_in_another_order_each_round() -> None:
    log: list[str] = []
    people = [contestant(name, log) for name in "abcdef"]
    turns = list(by_contestant(people, 2, 3))
    assert turns == list(by_contestant(people, 2, 3))
    orders = []
    for number in range(3):
        keys = [t.contestant.key for t in turns if t.round == number]
        assert keys[::2] == keys[1::2] and sorted(keys[::2]) == list("abcdef")
        orders.append(keys)
    assert orders[0] != orders[1]
    list(take(turns[:2], "12"))
    assert log == [f"{orders[0][0]} begins", f"{orders[0][0]}1", f"{orders[0][0]}2"]


def test_fresh_begins_anew_at_each_prompt() -> None:
    log: list[str] = []
    list(take(by_prompt([contestant("a", log)], 2, 1), "12", fresh=True))
    assert log == ["a begins", "a1", "a begins", "a2"]


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
    for turn, _ in take(by_contestant(people, 2, 1), "12"):
        gc.collect()
        assert sum(ref() is not None for ref in learned) == (turn.prompt == 0)


def test_progress_is_said_where_it_changes() -> None:
    said: list[str] = []
    turns = by_prompt([contestant(name, []) for name in "ab"], 3, 1)
    list(take(turns, "123", describe=lambda t: f"prompt {t.prompt}", progress=said.append))
    assert said == ["prompt 0", "prompt 1", "prompt 2"]


# --- the state file ---


def state_at(path: Path, key: str = "key", fresh: bool = False) -> State:
    return State(path, key, 2, fresh)


def go_on(path: Path, rounds: int = 1, order: Any = by_contestant) -> list[str]:
    """Take what is left of three contestants' turns; the answers given."""
    log: list[str] = []
    state = state_at(path)
    turns = order([contestant(name, log) for name in "abc"], 2, rounds)
    for turn, sample in take(state.left(turns), "12"):
        state.add(turn, sample)
    assert state.done == state_at(path).done
    return [line for line in log if "begins" not in line]


@pytest.mark.parametrize("order", [by_prompt, by_contestant])
def test_finished_passes_are_kept_and_the_others_taken_again(order: Any, tmp_path: Path) -> None:
    path, log = tmp_path / "s", list[str]()
    state = state_at(path)
    turns = order([contestant(name, log) for name in "abc"], 2, 2)
    for (turn, sample), _ in zip(take(turns, "12"), range(5), strict=False):  # then Ctrl-C
        state.add(turn, sample)
    finished = [key for key, _ in state_at(path).done]
    assert len(finished) == 2
    rest = go_on(path, 2, order)
    assert len(rest) == 12 - 4 and len(state_at(path).done) == 6
    for record in state_at(path).done["a", 1]:
        assert (record.new_tokens, record.steps, record.decode_s) == (2, 1, 0.5)
        assert (record.trie_build_s, record.trie_bytes) == (0.25, 7) and 0 < record.wall_s < 1


def test_more_rounds_go_on_and_fresh_starts_anew(tmp_path: Path) -> None:
    assert len(go_on(tmp_path / "s")) == 6
    assert go_on(tmp_path / "s") == []
    assert len(go_on(tmp_path / "s", rounds=3)) == 12
    assert not state_at(tmp_path / "s", fresh=True).done


def test_a_line_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    go_on(path)
    path.write_text(path.read_text()[:-30])
    assert len(go_on(path)) == 2 and len(state_at(path).done) == 3


FIGURES = [2, 1, 0.5, 0.6, None, None]


@pytest.mark.parametrize(
    "records",
    [
        None, 7, [], [FIGURES], [FIGURES] * 3, [[1], FIGURES], [FIGURES, "123456"],
        *([FIGURES, [*FIGURES[:i], bad, *FIGURES[i + 1 :]]] for i, bad in (
            (0, "9"), (0, -1), (1, True), (2, None), (2, -1), (2, 10**400), (3, "2"), (5, 1.5),
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


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_what_never_ends_is_no_state_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="not a regular file"):
        state_at(path)


def test_states_of_other_runs_and_other_files_are_refused(tmp_path: Path) -> None:
    state_at(tmp_path / "s")
    with pytest.raises(UsageError, match="another sweep") as caught:
        state_at(tmp_path / "s", "other")
    assert "--fresh" in caught.value.hint
    (tmp_path / "old").write_text('{"format": "ngt-tune", "version": 1, "key": "key"}\n')
    with pytest.raises(UsageError, match="another version of ngt"):
        state_at(tmp_path / "old")
    assert state_at(tmp_path / "old", fresh=True).done == {}
    (tmp_path / "t").write_text("notes\n")
    for fresh in (False, True):  # nobody's notes are overwritten
        with pytest.raises(UsageError, match="not a state file"):
            state_at(tmp_path / "t", fresh=fresh)
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError):
        state_at(tmp_path / "b")
    with pytest.raises(InputError, match="cannot be used"):
        state_at(tmp_path / "s" / "below")


# --- contestants ---


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
    """Beside others that differ in a shared setting alone, each does what it does by itself."""
    tiny: Any = make_target(seed=3)
    monkeypatch.setattr("ngtcli.session.local.load_model", lambda *_, **__: tiny)
    settings = Settings(max_tokens=24, calibrate=False, background=())
    session = LocalSession(settings, persist=False)
    prompts = [Prompt("", ids, (), ()) for ids in ([5, 6, 7, 5, 6, 8], [9, 10, 11, 12])]

    def histograms(*specs: str) -> dict[str, list[Any]]:
        people = [ours(session, spec, 16) for spec in ("none", *specs)]
        found: dict[str, list[Any]] = {c.key: [] for c in people}
        for turn, sample in take(by_prompt(people, 2, rounds=2), prompts, fresh=fresh):
            found[turn.contestant.key].append(sample.generation.histogram)
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
