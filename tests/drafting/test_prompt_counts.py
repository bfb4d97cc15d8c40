"""A prompt's counts that are changed into those of the next prompt are those of counting it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.drafting.auto import prompts
from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.auto.prompts import PromptCounts
from ngtcli.drafting.drafter import Context
from ngtcli.drafting.tries.counts import CHILD, find, spans_of
from tests.support.driven_drafters import DrafterBatch, DrafterRun

TOKENS = st.lists(st.integers(0, 5), max_size=20)
DOCUMENT = [1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 0, 1]


def counted(ids: list[int], references: list[list[int]]) -> PromptCounts:
    array = np.array(ids, np.int32)
    return PromptCounts(array, spans_of(array, references))


def check_equal(changed: PromptCounts, fresh: PromptCounts) -> None:
    """Compare two tries node for node, in the same order, and look up every child."""
    trie = changed.trie
    expected = fresh.trie
    used = trie.used
    assert used == expected.used
    assert trie.tokens == expected.tokens

    np.testing.assert_array_equal(trie.arrays.nodes[0, 1:2], expected.arrays.nodes[0, 1:2])
    np.testing.assert_array_equal(trie.arrays.nodes[1:used], expected.arrays.nodes[1:used])
    np.testing.assert_array_equal(trie.arrays.counts[:used], expected.arrays.counts[:used])
    np.testing.assert_array_equal(trie.arrays.frequent, expected.arrays.frequent)
    np.testing.assert_array_equal(trie.open_nodes, expected.open_nodes)
    np.testing.assert_array_equal(changed.borders, fresh.borders)

    slots = trie.arrays.slots
    occupied = slots[slots[:, CHILD] >= 0]
    assert len(occupied) == used - 1
    for parent, token, child in occupied.tolist():
        assert find(slots, parent, token) == child


@settings(max_examples=200, deadline=None)
@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=4), st.integers(0, 12), st.booleans())
def test_counts_are_changed_into_those_of_another_question_about_a_document(
    before: list[int], questions: list[list[int]], tail: int, chains: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "_TAIL", tail)
        counts = counted([*before, *DOCUMENT, *questions[0]], [DOCUMENT])
        for question in questions[1:]:
            if chains:
                counts.put_first_met_first()
            ids = np.array([*before, *DOCUMENT, *question], np.int32)
            spans = spans_of(ids, [DOCUMENT])
            if counts.shared(ids, spans):
                counts.change_to(ids, spans)
                check_equal(counts, PromptCounts(ids, spans))


@settings(max_examples=100, deadline=None)
@given(st.lists(TOKENS, min_size=2, max_size=5), st.data())
def test_counts_follow_a_conversation_that_grows_by_turns_and_documents(
    turns: list[list[int]], data: st.DataObject
) -> None:
    ids = [*DOCUMENT]
    documents = [DOCUMENT]
    counts = counted(ids, documents)
    for turn in turns:
        ids = [*ids, *turn]
        if data.draw(st.booleans()):
            document = [7, *data.draw(TOKENS), 8]
            ids = [*ids, *document]
            documents = [*documents, document]
        array = np.array(ids, np.int32)
        spans = spans_of(array, documents)
        assert counts.shared(array, spans) > 0
        counts.change_to(array, spans)
        check_equal(counts, counted(ids, documents))


def test_counts_can_be_changed_after_the_trie_has_grown() -> None:
    """A trie that grows rebuilds its table of children, with the rows in another order."""
    rng = np.random.default_rng(0)
    document = rng.integers(0, 60, 300).tolist()
    counts = counted([*document, *rng.integers(0, 60, 100).tolist()], [document])
    for tokens in (3000, 20, 3000, 50):
        ids = np.array([*document, *rng.integers(0, 60, tokens).tolist()], np.int32)
        counts.change_to(ids, spans_of(ids, [document]))
        check_equal(counts, counted(ids.tolist(), [document]))


def test_nothing_is_shared_with_the_prompt_of_another_document() -> None:
    counts = counted([*DOCUMENT, 4, 4], [DOCUMENT])
    other_document = [*DOCUMENT[:-1], 3]
    prompts_and_references = [
        ([*other_document, 4, 4], [other_document]),
        ([9, *DOCUMENT], [DOCUMENT]),
    ]
    for ids, references in prompts_and_references:
        array = np.array(ids, np.int32)
        assert counts.shared(array, spans_of(array, references)) == 0


@pytest.mark.parametrize("chains", [False, True])
def test_the_next_question_about_a_document_counts_the_question_alone(
    chains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sequence alone and one in a batch get the drafts of a new drafter."""
    counted_lengths: list[int] = []
    original_init = PromptCounts.__init__

    def recording_init(self: PromptCounts, ids: np.ndarray, spans: prompts.Spans) -> None:
        counted_lengths.append(len(ids))
        original_init(self, ids, spans)

    monkeypatch.setattr(PromptCounts, "__init__", recording_init)
    rng = np.random.default_rng(1)
    document = rng.integers(0, 50, 2000).tolist()
    questions = [[*document, *rng.integers(0, 50, 30).tolist()] for _ in range(3)]
    drafter = Auto()
    batch = DrafterBatch()
    for ids in questions:
        options = {"references": (document,), "vocabulary": 50, "chains": chains}
        context = Context(ids, **options)
        in_batch = batch.begin(ids, **options)
        alone = DrafterRun(drafter, context)
        fresh = DrafterRun(Auto(), context)

        expected = fresh.propose(16)

        assert len(expected) > 0
        assert alone.propose(16) == expected
        assert batch.propose([in_batch], [16]) == [expected]
        alone.close()
        in_batch.close()

    # Whole prompts are counted once by the drafter, once by the batch, and by each fresh drafter.
    whole_prompts = [length for length in counted_lengths if length > 2000]
    assert whole_prompts == [2030] * (2 + len(questions))


def test_the_counts_of_a_private_prompt_are_not_kept() -> None:
    ids = list(range(2000))
    batch = DrafterBatch()
    private_run = batch.begin(ids, private=True)
    private_trie = private_run.drafter.sources.prompt.trie
    private_run.close()

    next_drafter = batch.begin(ids).drafter

    assert next_drafter.sources.prompt.trie is not private_trie
