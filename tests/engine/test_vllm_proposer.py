"""The proposer for vLLM, driven as vLLM drives it; vLLM itself is not needed."""

import logging
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.engine.vllm import proposer
from ngtcli.engine.vllm.proposer import NgramTrieProposer, read_options
from ngtcli.errors import UsageError
from ngtcli.models.pretrained import load_tokenizer

CONTEXT = 64


@pytest.fixture(autouse=True)
def passes_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass takes 50 ms by the clock, so that drafts pay."""
    clock = count(step=0.05)
    monkeypatch.setattr(proposer, "time", SimpleNamespace(perf_counter=lambda: next(clock)))


def config(tokens: int = 4, vocabulary: int = 50, **options: Any) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=tokens),
        model_config=SimpleNamespace(
            max_model_len=CONTEXT, get_vocab_size=lambda: vocabulary, tokenizer="builtin"
        ),
        additional_config={"ngt": {"background": "none", **options}},
    )


def request() -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=None))


class Engine:
    """Serves requests as vLLM's runner does: rows of arrays that are used again and change places.

    The model is a recording: request i continues with `texts[i]`, whatever is drafted.
    """

    def __init__(self, proposer: NgramTrieProposer, texts: list[tuple[list[int], list[int]]]):
        self.proposer, self.texts = proposer, texts
        self.done = [0] * len(texts)
        self.ids = np.zeros((8, CONTEXT), np.int32)
        self.requests = {str(i): request() for i in range(len(texts))}
        self.input_batch = SimpleNamespace(req_ids=[])
        self.steps, self.chains, self.reading = 0, [[] for _ in texts], set[int]()

    def step(self, rows: list[int]) -> None:
        """One pass over the requests `rows`, each in the row of its place in the list."""
        for i, (_, output) in enumerate(self.texts):
            if self.done[i] == len(output):
                self.requests.pop(str(i), None)
        self.input_batch.req_ids = [str(i) for i in rows]
        sampled, lengths = [], []
        for row, i in enumerate(rows):
            prompt, output = self.texts[i]
            taken = 0
            while (
                taken < len(self.chains[i])
                and self.done[i] + taken < len(output) - 1
                and self.chains[i][taken] == output[self.done[i] + taken]
            ):
                taken += 1
            new = output[self.done[i] : self.done[i] + taken + 1] if i not in self.reading else []
            self.done[i] += len(new)
            whole = [*prompt, *output[: self.done[i]]]
            self.ids[row] = 49
            self.ids[row, : len(whole)] = whole
            sampled.append(new)
            lengths.append(len(whole))
        found = self.proposer.propose(sampled, np.array(lengths, np.int32), self.ids)
        assert len(found) == len(rows)
        for i, chain in zip(rows, found, strict=True):
            self.chains[i] = chain
        self.steps += 1

    def unfinished(self, rows: list[int]) -> list[int]:
        return [i for i in rows if self.done[i] < len(self.texts[i][1])]


def test_a_copied_text_is_drafted() -> None:
    engine = Engine(
        NgramTrieProposer(config()), [([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6])]
    )
    engine.step([0])
    assert engine.chains[0] == [2, 3, 4, 5]
    engine.step([0])
    assert engine.done[0] == 6


def test_a_chain_is_cut_to_the_context() -> None:
    prompt = [1, 2] * 31
    engine = Engine(NgramTrieProposer(config(8)), [(prompt, [1, 2])])
    engine.step([0])
    assert engine.done[0] == 1
    assert engine.chains[0] == []  # 63 of 64 places are taken, and the next token takes the last


texts = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=20),
        st.lists(st.integers(0, 5), min_size=1, max_size=20),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(texts, st.randoms(use_true_random=False))
def test_rows_that_change_places_keep_their_text(
    runs: list[tuple[list[int], list[int]]], random: Any
) -> None:
    """What each drafter has learned is the text of its request, whatever rows it had."""
    proposer = NgramTrieProposer(config())
    engine = Engine(proposer, runs)
    waiting, running = list(range(len(runs))), list[int]()
    while waiting or running:
        while waiting and len(running) < 3:
            running.append(waiting.pop())
        random.shuffle(running)
        engine.step(running)
        for i in running:
            prompt, output = runs[i]
            assert proposer._logs[str(i)].token_ids == [*prompt, *output[: engine.done[i]]]
            assert proposer._drafters[str(i)].sources.own_text.trie.tokens == engine.done[i]
        running = engine.unfinished(running)


def test_the_pool_crosses_requests_only_where_both_allow_it() -> None:
    proposer = NgramTrieProposer(config())
    said = [20, 21, 22, 23, 24, 25]
    engine = Engine(proposer, [([7], said), ([8], said), ([9], said)])
    engine.requests["1"].sampling_params.extra_args = {"ngt_pool": False}
    steps = []
    for i in range(3):
        before = engine.steps
        while engine.unfinished([i]):
            engine.step([i])
        steps.append(engine.steps - before)
    assert steps[1] == steps[0]  # the second request took nothing from the first
    assert steps[2] < steps[0]  # the third did


def test_a_caller_without_requests_is_drafted_nothing_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = list[str]()
    monkeypatch.setattr(logging.Logger, "warning", lambda _, line, *__: lines.append(line))
    proposer = NgramTrieProposer(config())
    ids = np.ones((1, CONTEXT), np.int32)
    for _ in range(2):
        assert proposer.propose([[1]], np.array([3], np.int32), ids) == [[]]
    assert [line[:5] for line in lines] == ["ngt: "]
    assert not proposer._drafters


def test_prompts_that_are_being_read_get_no_draft_and_ended_requests_are_forgotten() -> None:
    engine = Engine(NgramTrieProposer(config()), [([1, 2, 1, 2, 1], [2, 1, 2, 1])] * 2)
    engine.step([0])
    assert engine.chains[0]
    assert set(engine.proposer._drafters) == {"0"}
    engine.reading = {1}
    engine.step([1, 0])
    assert engine.chains[1] == []
    assert engine.chains[0]
    del engine.requests["0"]
    engine.reading = set()
    engine.step([1])
    assert set(engine.proposer._drafters) == {"1"}


def test_documents_of_the_configuration_are_drafted_from(tmp_path: Any) -> None:
    note = tmp_path / "note.txt"
    note.write_text("The ferry leaves the northern quay at noon.")
    proposer = NgramTrieProposer(config(documents=[str(note)]))
    text = load_tokenizer("builtin").encode(note.read_text())
    engine = Engine(proposer, [([5, 6, 7], text)])
    engine.step([0])
    assert engine.chains[0] == text[1:5]


def test_a_background_of_the_configuration_is_drafted_from() -> None:
    text = load_tokenizer("builtin").encode("On the other hand, as well as")
    engine = Engine(NgramTrieProposer(config(vocabulary=9000, background="english")), [])
    engine.texts, engine.done, engine.chains = [(text[:2], text[2:])], [0], [[]]
    engine.requests = {"0": request()}
    engine.step([0])
    assert engine.chains[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [({"pol": True}, "unknown field `pol`"), ({"pool": 1}, r"\$.pool"), ([1], "`object`")],
)
def test_wrong_options_are_named(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_options(given)


@pytest.mark.parametrize("names", [[], ["english", "mine"], "mine"])
def test_own_backgrounds_are_named_with_what_takes_their_place(names: Any) -> None:
    with pytest.raises(UsageError) as caught:
        read_options({"background": names})
    assert "--predict" in caught.value.hint
