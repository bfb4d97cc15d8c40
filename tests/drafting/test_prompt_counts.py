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
    """Node for node, in the same order, with the same children found."""
    one, other = changed.trie, fresh.trie
    assert (one.used, one.tokens) == (other.used, other.tokens)
    np.testing.assert_array_equal(one.arrays.nodes[0, 1:2], other.arrays.nodes[0, 1:2])
    np.testing.assert_array_equal(one.arrays.nodes[1 : one.used], other.arrays.nodes[1 : one.used])
    np.testing.assert_array_equal(one.arrays.counts[: one.used], other.arrays.counts[: one.used])
    np.testing.assert_array_equal(one.arrays.frequent, other.arrays.frequent)
    np.testing.assert_array_equal(one.open_nodes, other.open_nodes)
    np.testing.assert_array_equal(changed.borders, fresh.borders)
    slots = one.arrays.slots
    known = slots[slots[:, CHILD] >= 0]
    assert len(known) == one.used - 1
    for parent, token, child in known.tolist():
        assert find(slots, parent, token) == child


@settings(max_examples=200, deadline=None)
@given(TOKENS, st.lists(TOKENS, min_size=1, max_size=4), st.integers(0, 12), st.booleans())
def test_other_questions_about_a_document(
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
def test_a_conversation_that_grows_by_turns_and_documents(
    turns: list[list[int]], data: st.DataObject
) -> None:
    ids, documents = [*DOCUMENT], [DOCUMENT]
    counts = counted(ids, documents)
    for turn in turns:
        ids = [*ids, *turn]
        if data.draw(st.booleans()):
            new = [7, *data.draw(TOKENS), 8]
            ids, documents = [*ids, *new], [*documents, new]
        array = np.array(ids, np.int32)
        spans = spans_of(array, documents)
        assert counts.shared(array, spans) > 0
        counts.change_to(array, spans)
        check_equal(counts, counted(ids, documents))


def test_a_trie_that_grew_meanwhile_takes_back_all_the_same() -> None:
    """Its table of children was made anew, so that rows are in another order."""
    rng = np.random.default_rng(0)
    document = rng.integers(0, 60, 300).tolist()
    counts = counted([*document, *rng.integers(0, 60, 100).tolist()], [document])
    for tokens in (3000, 20, 3000, 50):
        ids = np.array([*document, *rng.integers(0, 60, tokens).tolist()], np.int32)
        counts.change_to(ids, spans_of(ids, [document]))
        check_equal(counts, counted(ids.tolist(), [document]))


def test_another_document_is_counted_anew() -> None:
    counts = counted([*DOCUMENT, 4, 4], [DOCUMENT])
    other = [*DOCUMENT[:-1], 3]
    for ids, references in (([*other, 4, 4], [other]), ([9, *DOCUMENT], [DOCUMENT])):
        array = np.array(ids, np.int32)
        assert counts.shared(array, spans_of(array, references)) == 0


@pytest.mark.parametrize("chains", [False, True])
def test_the_next_question_about_a_document_counts_the_question_alone(
    chains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one text and beside others, and drafts are those of a drafter that is new."""
    made: list[int] = []
    real = PromptCounts.__init__

    def watched(self: PromptCounts, ids: np.ndarray, spans: prompts.Spans) -> None:
        made.append(len(ids))
        real(self, ids, spans)

    monkeypatch.setattr(PromptCounts, "__init__", watched)
    rng = np.random.default_rng(1)
    document = rng.integers(0, 50, 2000).tolist()
    questions = [[*document, *rng.integers(0, 50, 30).tolist()] for _ in range(3)]
    one, many = Auto(), DrafterBatch()
    for ids in questions:
        more = {"references": (document,), "vocabulary": 50, "chains": chains}
        context = Context(ids, **more)
        beside = many.begin(ids, **more)
        alone, fresh = DrafterRun(one, context), DrafterRun(Auto(), context)
        expected = fresh.propose(16)
        assert len(expected) > 0
        assert alone.propose(16) == expected
        assert many.propose([beside], [16]) == [expected]
        alone.close()
        beside.close()
    assert [tokens for tokens in made if tokens > 2000] == [2030] * (2 + len(questions))


def test_the_counts_of_a_private_prompt_are_not_kept() -> None:
    ids = list(range(2000))
    many = DrafterBatch()
    followed = many.begin(ids, private=True)
    counted = followed.drafter.sources.prompt.trie
    followed.close()
    again = many.begin(ids).drafter
    assert again.sources.prompt.trie is not counted
