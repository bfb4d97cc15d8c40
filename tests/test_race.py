"""Live measurement: who takes part, what an interruption leaves, and what the figures are."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ngtcli.config import Settings
from ngtcli.documents.load import Document
from ngtcli.errors import NgtError, UsageError
from ngtcli.measure.live_rows import RaceRows, split_row
from ngtcli.measure.memory import PeakMemory
from ngtcli.measure.prompts import Item
from ngtcli.measure.quality import Quality
from ngtcli.measure.race import Race, race
from ngtcli.measure.records import Contestant, Generation, Sample
from ngtcli.measure.refusals import check_against, check_some_left, unreadable
from ngtcli.prompt.build import Prompt
from ngtcli.render.rows import PromptTimes, Refusal


def generation(*ids: int, **more: Any) -> Generation:
    return Generation(list(ids), more.pop("steps", len(ids)), **more)


def contestant(name: str, does: Callable[[], None] = lambda: None) -> Contestant[Prompt]:
    def answer(prompt: Prompt) -> Generation:
        does()
        return generation(5, 6)

    return Contestant(name, None, lambda: answer)


def raced(*contestants: Contestant[Prompt], rounds: int = 1) -> Race:
    prompts = [Prompt(text, [1, 2], (), ()) for text in "12"]
    return race(contestants, prompts, rounds, memory=PeakMemory(torch.device("cpu")))


def test_whoever_cannot_run_is_refused_while_warming_up() -> None:
    def fails() -> None:
        raise NgtError("no datastore", "Build one.")

    made = raced(contestant("none"), contestant("rest", fails))
    assert made.refused == [Refusal("rest", "no datastore. Build one.")]
    assert list(made.samples) == ["none"]
    with pytest.raises(NgtError, match="no datastore"):
        raced(contestant("none", fails))


def interrupting(after: int) -> Callable[[], None]:
    left = [after]

    def does() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    return does


def test_an_interruption_keeps_the_prompts_that_all_have_answered() -> None:
    made = raced(contestant("none"), contestant("b", interrupting(3)), rounds=2)
    assert made.interrupted and made.measured() == [0]
    with pytest.raises(KeyboardInterrupt):
        raced(contestant("none"), contestant("b", interrupting(2)), rounds=2)


def sample(seconds: float, *ids: int, memory: int = 0, **more: Any) -> Sample:
    return Sample(generation(*ids, **more), seconds, memory)


def small_race() -> tuple[Race, list[Item]]:
    drafted = {"drafted": 8, "accepted": 2, "undrafted": 1, "histogram": Counter({0: 1, 2: 1})}
    made = Race([replace(contestant(n), num_draft=k) for n, k in (("none", None), ("trie", 8))])
    made.samples = {
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
    return made, items


def spelled(ids: Any) -> str:
    return " ".join(map(str, ids))


def test_a_speed_up_is_the_median_of_ratios_prompt_by_prompt() -> None:
    made, items = small_race()
    rows = RaceRows(made, items, spelled, Quality()).rows()
    assert [(r.method, r.task) for r in rows] == [
        ("none", "overall"), ("trie", "overall"), ("none", "summarize"), ("trie", "summarize"),
        ("none", "ask"), ("trie", "ask"),
    ]  # fmt: skip
    plain, trie = rows[:2]
    assert plain.speedup.median == 1.0 and trie.speedup.median == 1.5  # of 4/2 and 2/2
    assert trie.speedup.least_and_most == (1.0, 2.0)
    assert trie.times.seconds_median == 2.0 and trie.times.spread == 0.5  # of 2 s / 2 s and none
    assert trie.times.tokens_per_s_with_prefill == 1.5 and plain.times.tokens_per_s == 1.5
    assert trie.speedup_over_hf is None


def test_acceptance_same_ids_memory_and_quality_stand_beside_speed() -> None:
    made, items = small_race()
    rows = RaceRows(made, items, spelled, Quality()).rows()
    plain, trie = rows[:2]
    drafting = trie.drafting
    assert drafting.mean_acceptance_length == 1.5 and drafting.draft_acceptance_rate == 0.25
    assert drafting.acceptance_histogram == {0: 2, 2: 2} and drafting.undrafted_share == 0.5
    assert drafting.nodes_per_step == 4.0 and plain.drafting.draft_acceptance_rate is None
    assert (plain.same_ids, trie.same_ids, trie.questions) == (2, 1, 2)
    assert trie.peak_memory_mib == 1.0
    assert plain.scores and plain.scores.exact_match == 1.0
    assert trie.scores and trie.scores.exact_match == 0.0
    assert trie.scores.f1 == pytest.approx(2 / 3, abs=1e-4)
    assert rows[2].scores is None
    assert RaceRows(made, items, spelled, None).rows()[0].scores is None


def test_prompts_keep_their_own_median_and_quartiles() -> None:
    made, items = small_race()
    first = RaceRows(made, items, spelled, None).prompts([11, 12])[0]
    assert (first.id, first.prompt_tokens) == ("s", 11)
    assert first.results["trie at 8"] == PromptTimes(
        rounds=3, seconds_median=2.0, seconds_quartiles=(1.5, 3.5), new_tokens=3
    )


def test_the_time_is_split_into_prefill_and_the_parts_of_a_step() -> None:
    split = {"draft": 0.1, "tree": 0.1, "forward": 0.6, "verify": 0.15, "cache": 0.05}
    row = split_row("trie", 8, [generation(1, 2, steps=2, prefill_s=1.0, split_s=split)])
    assert row.prefill_ms == 1000.0 and row.step_us["forward"] == 300000.0
    assert row.share == {
        "prefill": 0.5, "draft": 0.05, "tree": 0.05, "forward": 0.3, "verify": 0.075,
        "cache": 0.025,
    }  # fmt: skip


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
