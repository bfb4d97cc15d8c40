"""Drafts of `auto` where the answer copies a text: long copies, copies with edits, loops."""

import random

import pytest

from ngtcli.drafting.auto.core.copies import ANSWER, BEFORE, BROKEN, HELD, PLACE, USED
from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.drafter import Context, Outcome
from ngtcli.drafting.tries.counts import NONE
from tests.support.driven_drafters import DrafterRun
from tests.support.naive_copy import NaiveCopy, Place
from tests.tools.measuring.replaying import replay
from tests.tools.measuring.traces import Trace

TEXT = list(range(100, 300))


def chain(run: DrafterRun, budget: int = 32) -> list[int]:
    """Return the tokens of the likeliest chain of the draft."""
    tree = run.propose(budget)
    node = -1
    tokens = []
    while node in tree.parents:
        node = tree.parents.index(node)
        tokens.append(tree.tokens[node])
    return tokens


def copying(answer: list[int], expected: int = 0) -> DrafterRun:
    """Start a sequence that has emitted an answer; its last `expected` tokens are only expected."""
    run = DrafterRun(Auto(), Context([*TEXT, 1, 2]))
    emitted = len(answer) - expected
    for token in answer[:emitted]:
        run.emit([token])
    run.log.expect(answer[emitted:], [""] * expected)
    run.drafter.learn(run.log, Outcome())
    return run


@pytest.mark.parametrize(("period", "nodes", "max_steps"), [(17, 32, 350), (3, 64, 200)])
def test_a_loop_takes_few_more_steps_than_its_tokens_need(
    period: int, nodes: int, max_steps: int
) -> None:
    loop = tuple(10 + i % period for i in range(8192))
    trace = Trace("1", "", (1,), loop, len(loop))

    replayed = replay(trace, Auto(), Context((1,)), nodes)

    assert replayed.steps <= max_steps


def test_a_copy_is_drafted_to_the_end_of_the_budget() -> None:
    assert chain(copying(TEXT[20:80])) == TEXT[80:112]


@pytest.mark.parametrize(
    "edit",
    [[7, 41 + 100], [7, 8, 42 + 100], [7, 40 + 100], [43 + 100]],
    ids=["replaced", "two replaced", "inserted", "left out"],
)
def test_a_copy_goes_on_after_an_edit(edit: list[int]) -> None:
    following = TEXT[edit[-1] - 99 :]
    assert chain(copying([*TEXT[5:40], *edit]), 8)[:4] == following[:4]


def test_a_replaced_token_is_followed_by_the_next_tokens_of_the_text() -> None:
    """No match is longer than the new token alone."""
    drafted = set(copying([*TEXT[5:40], 7]).propose(32).tokens)
    assert {TEXT[40], TEXT[41]} <= drafted


def test_a_drafted_token_has_the_origin_of_the_text_it_is_copied_from() -> None:
    own_text = copying([*range(400, 440), 1, *range(400, 420)]).propose(4)
    prompt = copying(TEXT[20:40]).propose(4)

    assert {own_text.names[i] for i in own_text.origins} == {"own text"}
    assert {prompt.names[i] for i in prompt.origins} == {"prompt"}


def test_the_copy_state_equals_the_naive_one_while_the_text_grows() -> None:
    rng = random.Random(4)
    text = [rng.randrange(6) for _ in range(300)]
    drafter = Auto()
    naive = NaiveCopy([], [])
    run = DrafterRun(drafter, Context(()))
    for token in text:
        run.emit([token])
        naive.extend(token)

        match = drafter.sources.copies.matches[0]
        expected = naive.place
        if expected.at is None:
            assert match[PLACE] == NONE
            continue
        assert match[PLACE] == expected.at
        assert match[HELD] == expected.held
        assert match[BEFORE] == expected.before
        assert match[BROKEN] == (NONE if expected.broken is None else expected.broken)
    assert naive.place != Place()


def test_a_copy_goes_on_after_the_arrays_of_the_text_have_grown() -> None:
    run = copying(list(range(1000, 4000)))
    copies = run.drafter.sources.copies
    assert copies.arrays.sizes.tolist() == [3000 + len(TEXT) + 2, len(TEXT) + 2, 0]
    run.emit(TEXT[20:40])
    assert chain(run, 8) == TEXT[40:48]
    run.emit(list(range(2000, 2020)))
    assert chain(run, 8) == list(range(2020, 2028))


def test_tokens_that_are_taken_back_are_removed_from_the_text() -> None:
    run = copying([*TEXT[5:40], 7, 8, 9], expected=3)

    run.log.take_back()
    run.propose(1)

    copies = run.drafter.sources.copies
    assert copies.arrays.sizes[USED] - copies.arrays.sizes[ANSWER] == 35
    run.emit(TEXT[40:46])
    assert chain(run, 8) == TEXT[46:54]


def test_tokens_that_are_taken_back_and_emitted_again_are_no_copy_of_themselves() -> None:
    answer = list(range(400, 420))  # none of these tokens occurs in the prompt
    run = copying(answer, expected=3)

    run.log.take_back()
    run.emit(answer[-3:])

    assert run.drafter.sources.copies.matches[0, PLACE] == NONE
