"""The proposer for vLLM, driven as vLLM drives it; vLLM itself is not needed."""

import logging
from itertools import count
from pathlib import Path
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
    """Each forward pass takes 50 ms by the clock, so that drafts pay."""
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


Sequence = tuple[list[int], list[int]]  # the token ids of a prompt and of its output


class Engine:
    """Serves requests as vLLM's runner does: in rows of an array, which requests may exchange.

    The model is a recording: each request continues with its recorded output, whatever is drafted.

    Attributes:
        done: The number of output tokens of each request.
        chains: The last draft of each request.
        prefilling: The requests whose prompt is being read, so that they get no token.
    """

    def __init__(self, proposer: NgramTrieProposer, sequences: list[Sequence]) -> None:
        self.proposer = proposer
        self.sequences = sequences
        self.done = [0] * len(sequences)
        self.token_ids = np.zeros((8, CONTEXT), np.int32)
        self.requests = {str(index): request() for index in range(len(sequences))}
        self.input_batch = SimpleNamespace(req_ids=[])
        self.steps = 0
        self.chains: list[list[int]] = [[] for _ in sequences]
        self.prefilling: set[int] = set()

    def step(self, batch: list[int]) -> None:
        """Make one forward pass over a batch of requests, in the rows of their positions in it."""
        for index in range(len(self.sequences)):
            if not self.unfinished([index]):
                self.requests.pop(str(index), None)
        self.input_batch.req_ids = [str(index) for index in batch]
        sampled = []
        lengths = []
        for row, index in enumerate(batch):
            new_tokens = [] if index in self.prefilling else self._verify(index)
            self.done[index] += len(new_tokens)
            prompt, output = self.sequences[index]
            context = [*prompt, *output[: self.done[index]]]
            self.token_ids[row] = 49
            self.token_ids[row, : len(context)] = context
            sampled.append(new_tokens)
            lengths.append(len(context))
        drafts = self.proposer.propose(sampled, np.array(lengths, np.int32), self.token_ids)
        for index, chain in zip(batch, drafts, strict=True):
            self.chains[index] = chain
        self.steps += 1

    def _verify(self, index: int) -> list[int]:
        """The tokens of the draft that the output has next, and the token after them."""
        _, output = self.sequences[index]
        following = output[self.done[index] :]
        accepted = 0
        for draft_token, token in zip(self.chains[index], following[:-1], strict=False):
            if draft_token != token:
                break
            accepted += 1
        return following[: accepted + 1]

    def unfinished(self, batch: list[int]) -> list[int]:
        return [index for index in batch if self.done[index] < len(self.sequences[index][1])]


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
    # The context has 63 of 64 tokens, and the next token is the last one.
    assert engine.chains[0] == []


SEQUENCES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), min_size=1, max_size=20),
        st.lists(st.integers(0, 5), min_size=1, max_size=20),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(SEQUENCES, st.randoms(use_true_random=False))
def test_each_drafter_learns_the_tokens_of_its_request_in_whatever_row(
    sequences: list[Sequence], random: Any
) -> None:
    proposer = NgramTrieProposer(config())
    engine = Engine(proposer, sequences)
    waiting = list(range(len(sequences)))
    running: list[int] = []
    while waiting or running:
        while waiting and len(running) < 3:
            running.append(waiting.pop())
        random.shuffle(running)
        engine.step(running)
        for index in running:
            prompt, output = sequences[index]
            done = engine.done[index]
            assert proposer._logs[str(index)].token_ids == [*prompt, *output[:done]]
            assert proposer._drafters[str(index)].sources.own_text.trie.tokens == done
        running = engine.unfinished(running)


def test_the_pool_is_shared_by_requests_that_allow_it() -> None:
    output = [20, 21, 22, 23, 24, 25]
    engine = Engine(NgramTrieProposer(config()), [([7], output), ([8], output), ([9], output)])
    engine.requests["1"].sampling_params.extra_args = {"ngt_pool": False}

    steps = []
    for index in range(3):
        before = engine.steps
        while engine.unfinished([index]):
            engine.step([index])
        steps.append(engine.steps - before)

    first, without_pool, with_pool = steps
    assert without_pool == first
    assert with_pool < first


def test_nothing_is_drafted_for_a_caller_without_requests_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(logging.Logger, "warning", lambda _, line, *__: warnings.append(line))
    proposer = NgramTrieProposer(config())
    token_ids = np.ones((1, CONTEXT), np.int32)

    for _ in range(2):
        assert proposer.propose([[1]], np.array([3], np.int32), token_ids) == [[]]

    (warning,) = warnings
    assert warning.startswith("ngt: ")
    assert not proposer._drafters


def test_a_prompt_that_is_being_read_gets_no_draft() -> None:
    engine = Engine(NgramTrieProposer(config()), [([1, 2, 1, 2, 1], [2, 1, 2, 1])] * 2)
    engine.prefilling = {1}
    engine.step([1, 0])
    assert engine.chains[1] == []
    assert engine.chains[0]


def test_the_drafter_of_an_ended_request_is_dropped() -> None:
    engine = Engine(NgramTrieProposer(config()), [([1, 2, 1, 2, 1], [2, 1, 2, 1])] * 2)
    engine.step([0])
    assert set(engine.proposer._drafters) == {"0"}
    del engine.requests["0"]
    engine.step([1])
    assert set(engine.proposer._drafters) == {"1"}


def test_documents_of_the_configuration_are_drafted_from(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("The ferry leaves the northern quay at noon.")
    token_ids = load_tokenizer("builtin").encode(note.read_text())
    proposer = NgramTrieProposer(config(documents=[str(note)]))
    engine = Engine(proposer, [([5, 6, 7], token_ids)])
    engine.step([0])
    assert engine.chains[0] == token_ids[1:5]


def test_a_background_of_the_configuration_is_drafted_from() -> None:
    token_ids = load_tokenizer("builtin").encode("On the other hand, as well as")
    proposer = NgramTrieProposer(config(vocabulary=9000, background="english"))
    engine = Engine(proposer, [(token_ids[:2], token_ids[2:])])
    engine.step([0])
    assert engine.chains[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"pol": True}, "unknown field `pol`"), ({"pool": 1}, r"\$.pool"), ([1], "`object`")],
)
def test_invalid_options_are_named(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_options(options)


@pytest.mark.parametrize("names", [[], ["english", "mine"], "mine"])
def test_the_error_about_backgrounds_of_ones_own_names_a_replacement(names: Any) -> None:
    with pytest.raises(UsageError) as raised:
        read_options({"background": names})
    assert "--predict" in raised.value.hint
