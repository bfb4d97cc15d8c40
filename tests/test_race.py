"""Live measurement: who runs when, what is forgotten, and what the figures are."""

import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import make_target

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.errors import NgtError, UsageError
from ngtcli.evaluate.bench.contestants import Contestant, Generation, ours
from ngtcli.evaluate.bench.memory import PeakMemory
from ngtcli.evaluate.bench.quality import Quality
from ngtcli.evaluate.bench.race import Race, RaceRunner, Sample
from ngtcli.evaluate.bench.rows import RaceRows, parts
from ngtcli.evaluate.prompts import Item
from ngtcli.evaluate.refusals import check_against, check_some_left, unreadable
from ngtcli.prompt.build import Prompt
from ngtcli.session import Session


def prompt(name: str) -> Prompt:
    return Prompt(name, [1, 2], (), ())


def generation(*ids: int, **more: Any) -> Generation:
    return Generation(list(ids), more.pop("steps", len(ids)), **more)


def contestant(name: str, log: list[str], does: Callable[[], None] = lambda: None) -> Contestant:
    def decode(prompt: Prompt) -> Generation:
        log.append(f"{name}{prompt.text}")
        does()
        return generation(5, 6)

    return Contestant(name, None, lambda: log.append(f"ready {name}"), decode)


def runner(log: list[str], prompts: str = "12", fresh: bool = False) -> RaceRunner:
    memory = PeakMemory(torch.device("cpu"))
    return RaceRunner([prompt(p) for p in prompts], lambda: log.append("forget"), memory, fresh)


def test_contestants_take_turns_at_each_prompt_in_rotating_order() -> None:
    log: list[str] = []
    race = runner(log).run([contestant("none", log), contestant("b", log)], rounds=2)
    assert log == [
        "forget", "forget", "ready none", "none1", "none2",  # warming up
        "forget", "forget", "ready b", "b1", "b2",
        "forget", "ready none", "ready b", "none1", "b1", "b2", "none2",
        "forget", "ready none", "ready b", "b1", "none1", "none2", "b2",
    ]  # fmt: skip
    assert all(len(rounds) == 2 for s in race.samples.values() for rounds in s)
    assert not race.interrupted and race.measured() == [0, 1]


def test_fresh_forgets_at_each_prompt_and_makes_drafters_before_the_clock() -> None:
    log: list[str] = []
    runner(log, fresh=True).run([contestant("none", log)], rounds=1)
    assert log[-6:] == ["forget", "ready none", "none1", "forget", "ready none", "none2"]


def test_whoever_cannot_run_is_refused_while_warming_up() -> None:
    def fails() -> None:
        raise NgtError("no datastore", "Build one.")

    log: list[str] = []
    race = runner(log).run([contestant("none", log), contestant("rest", log, fails)], rounds=1)
    assert race.refused == [{"method": "rest", "reason": "no datastore. Build one."}]
    assert list(race.samples) == ["none"]
    with pytest.raises(NgtError, match="no datastore"):
        runner(log).run([contestant("none", log, fails)], rounds=1)


def interrupting(after: int) -> Callable[[], None]:
    left = [after]

    def does() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    return does


def test_an_interruption_keeps_the_prompts_that_all_have_answered() -> None:
    log: list[str] = []
    a, b = contestant("none", log), contestant("b", log, interrupting(3))
    race = runner(log).run([a, b], rounds=2)
    assert race.interrupted and race.measured() == [0]
    with pytest.raises(KeyboardInterrupt):
        runner(log).run([a, contestant("b", log, interrupting(2))], rounds=2)


def sample(seconds: float, *ids: int, memory: int = 0, **more: Any) -> Sample:
    return Sample(generation(*ids, **more), seconds, memory)


def small_race() -> tuple[Race, list[Item]]:
    drafted = {"drafted": 8, "accepted": 2, "undrafted": 1, "histogram": Counter({0: 1, 2: 1})}
    race = Race([Contestant(n, k, void, void_decode) for n, k in (("none", None), ("trie", 8))])
    race.samples = {
        "none": [
            [sample(4.0, 1, 2, 3, decode_s=3.0, prefill_s=1.0)] * 3,
            [sample(2.0, 4, 5, 6, decode_s=1.0, prefill_s=1.0)] * 3,
        ],
        "trie at 8": [
            [sample(s, 1, 2, 3, steps=2, memory=2**20, **drafted) for s in (1.0, 2.0, 5.0)],
            [sample(2.0, 4, 5, 7, steps=2, **drafted)] * 3,
        ],
    }
    items = [
        Item("s", "summarize", (Document("d", "text"),)),
        Item("q", "ask", (Document("d", "text"),), "Who?", ("4 5 6",)),
    ]
    return race, items


def void() -> None:
    pass


def void_decode(prompt: Prompt) -> Generation:
    return generation(1)


def spelled(ids: Any) -> str:
    return " ".join(map(str, ids))


def test_a_speed_up_is_the_median_of_ratios_prompt_by_prompt() -> None:
    race, items = small_race()
    rows = RaceRows(race, items, spelled, Quality()).rows()
    assert [(r["method"], r["task"]) for r in rows] == [
        ("none", "overall"), ("trie", "overall"), ("none", "summarize"), ("trie", "summarize"),
        ("none", "ask"), ("trie", "ask"),
    ]  # fmt: skip
    plain, trie = rows[:2]
    assert plain["speedup"] == 1.0 and trie["speedup"] == 1.5  # of 4/2 and 2/2
    assert trie["speedup_least_and_most"] == [1.0, 2.0]
    assert trie["seconds_median"] == 2.0 and trie["spread"] == 0.5  # of 2 s / 2 s and none
    assert trie["tokens_per_s_with_prefill"] == 1.5 and plain["tokens_per_s"] == 1.5
    assert "speedup_over_hf" not in trie


def test_acceptance_same_ids_memory_and_quality_stand_beside_speed() -> None:
    race, items = small_race()
    rows = RaceRows(race, items, spelled, Quality()).rows()
    plain, trie = rows[:2]
    assert trie["mean_acceptance_length"] == 1.5 and trie["draft_acceptance_rate"] == 0.25
    assert trie["acceptance_histogram"] == {"0": 2, "2": 2} and trie["undrafted_share"] == 0.5
    assert trie["nodes_per_step"] == 4.0 and plain["draft_acceptance_rate"] is None
    assert (plain["same_ids"], trie["same_ids"], trie["questions"]) == (2, 1, 2)
    assert trie["peak_memory_mib"] == 1.0
    assert (plain["exact_match"], trie["exact_match"]) == (1.0, 0.0)
    assert trie["f1"] == pytest.approx(2 / 3, abs=1e-4)
    assert "f1" not in rows[2] and "f1" not in RaceRows(race, items, spelled, None).rows()[0]


def test_prompts_keep_their_own_median_and_quartiles() -> None:
    race, items = small_race()
    first = RaceRows(race, items, spelled, None).prompts([11, 12])[0]
    assert (first["id"], first["prompt_tokens"]) == ("s", 11)
    assert first["results"]["trie at 8"] == {
        "rounds": 3, "seconds_median": 2.0, "seconds_quartiles": [1.5, 3.5], "new_tokens": 3,
    }  # fmt: skip


def test_the_time_is_split_into_prefill_and_the_parts_of_a_step() -> None:
    split = {"draft": 0.1, "tree": 0.1, "forward": 0.6, "verify": 0.15, "cache": 0.05}
    row = parts([generation(1, 2, steps=2, prefill_s=1.0, split_s=split)])
    assert row["prefill_ms"] == 1000.0 and row["step_us"]["forward"] == 300000.0
    assert row["share"] == {
        "prefill": 0.5, "draft": 0.05, "tree": 0.05, "forward": 0.3, "verify": 0.075,
        "cache": 0.025,
    }  # fmt: skip


def test_peak_memory_sees_what_a_run_takes() -> None:
    memory = PeakMemory(torch.device("cpu"))
    assert memory.kind in ("process", "process-high")
    memory.start()
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    assert block.numel() and memory.peak() > 32 * 2**20


def test_unknown_methods_are_refused_and_none_left_is_an_error() -> None:
    refused = unreadable(["trie", "tri", "trie:x=1"], Settings())
    assert [(r["method"], r["reason"]) for r in refused] == [
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


def test_a_contestant_is_named_by_its_method_and_number_of_drafts() -> None:
    specs: list[str] = []

    class FakeSession:
        def parse_method(self, spec: str) -> Any:
            specs.append(spec)
            settings = types.SimpleNamespace(num_draft=int(spec.rsplit("=", 1)[1]))
            return types.SimpleNamespace(settings=settings)

    session: Any = FakeSession()
    made = [ours(session, m, k) for m, k in (("trie", 8), ("trie", 16), ("trie:num_draft=4", 8))]
    assert specs == ["trie:num_draft=8", "trie:num_draft=16", "trie:num_draft=4"]
    assert [c.key for c in made] == ["trie at 8", "trie at 16", "trie:num_draft=4 at 4"]
    assert ours(session, "none", 8).key == "none"


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("method", ["trtllm", "auto:trust=50"])
def test_no_contestant_drafts_from_the_answer_of_another_to_the_same_prompt(
    fresh: bool, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others that differ in a shared setting alone, each does what it does by itself."""
    tiny: Any = make_target(seed=3)
    monkeypatch.setattr("ngtcli.session.load_model", lambda *_, **__: tiny)
    session = Session(Settings(max_tokens=24, calibrate=False), persist=False)
    prompts = [Prompt("", ids, (), ()) for ids in ([5, 6, 7, 5, 6, 8], [9, 10, 11, 12])]
    memory = PeakMemory(torch.device("cpu"))

    def raced(*specs: str) -> dict[str, list[Any]]:
        contestants = [ours(session, spec, 16) for spec in ("none", *specs)]
        race = RaceRunner(prompts, session.forget, memory, fresh).run(contestants, rounds=2)
        assert not race.refused
        return {
            key: [[s.generation.histogram for s in rounds] for rounds in samples]
            for key, samples in race.samples.items()
        }

    others = (method, f"{method}:num_draft=16", f"{method}:n=13:num_draft=16")
    together = raced(*others)
    for spec in others:
        (alone,) = (v for k, v in raced(spec).items() if k != "none")
        assert together[f"{spec} at 16"] == alone
