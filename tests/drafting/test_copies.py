"""What `auto` drafts of a text that is copied: to the end of a budget, across edits, in loops."""

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


def chain(followed: DrafterRun, budget: int = 32) -> list[int]:
    """The tokens of the likeliest chain."""
    tree = followed.propose(budget)
    place, out = -1, []
    while place in tree.parents:
        place = tree.parents.index(place)
        out.append(tree.tokens[place])
    return out


def copying(answer: list[int], expected: int = 0) -> DrafterRun:
    """A sequence of which the last `expected` tokens are expected only."""
    followed = DrafterRun(Auto(), Context([*TEXT, 1, 2]))
    emitted = len(answer) - expected
    for token in answer[:emitted]:
        followed.emit([token])
    followed.log.expect(answer[emitted:], [""] * expected)
    followed.drafter.learn(followed.log, Outcome())
    return followed


@pytest.mark.parametrize(("ids", "nodes", "most"), [(17, 32, 350), (3, 64, 200)])
def test_a_loop_takes_little_more_steps_than_its_tokens_need(
    ids: int, nodes: int, most: int
) -> None:
    loop = tuple(10 + i % ids for i in range(8192))
    assert replay(Trace("1", "", (1,), loop, len(loop)), Auto(), Context((1,)), nodes).steps <= most


def test_a_copy_is_drafted_to_the_end_of_the_budget() -> None:
    assert chain(copying(TEXT[20:80])) == TEXT[80:112]


@pytest.mark.parametrize(
    "edit",
    [[7, 41 + 100], [7, 8, 42 + 100], [7, 40 + 100], [43 + 100]],
    ids=["replaced", "two replaced", "put in", "left out"],
)
def test_a_copy_goes_on_after_an_edit(edit: list[int]) -> None:
    assert chain(copying([*TEXT[5:40], *edit]), 8)[:4] == TEXT[edit[-1] - 99 :][:4]


def test_what_replaces_a_token_is_followed_by_what_the_text_has_next() -> None:
    """No match has more than the one new token."""
    assert {TEXT[40], TEXT[41]} <= set(copying([*TEXT[5:40], 7]).propose(32).tokens)


def test_a_token_has_the_origin_of_its_place() -> None:
    again = copying([*range(400, 440), 1, *range(400, 420)])
    tree = again.propose(4)
    assert {tree.names[i] for i in tree.origins} == {"own text"}
    tree = copying(TEXT[20:40]).propose(4)
    assert {tree.names[i] for i in tree.origins} == {"prompt"}


def test_the_state_is_that_of_the_naive_one_while_the_text_grows() -> None:
    draw = random.Random(4)
    text = [draw.randrange(6) for _ in range(300)]
    drafter, naive = Auto(), NaiveCopy([], [])
    followed = DrafterRun(drafter, Context(()))
    for token in text:
        followed.emit([token])
        naive.extend(token)
        found, place = drafter.sources.copies.matches[0], naive.place
        assert found[PLACE] == (NONE if place.at is None else place.at)
        if place.at is not None:
            assert (found[HELD], found[BEFORE]) == (place.held, place.before)
            assert found[BROKEN] == (NONE if place.broken is None else place.broken)
    assert naive.place != Place()


def test_a_text_that_outgrows_its_room_keeps_its_places() -> None:
    followed = copying(list(range(1000, 4000)))
    copies = followed.drafter.sources.copies
    assert copies.arrays.sizes.tolist() == [3000 + len(TEXT) + 2, len(TEXT) + 2, 0]
    followed.emit(TEXT[20:40])
    assert chain(followed, 8) == TEXT[40:48]
    followed.emit(list(range(2000, 2020)))
    assert chain(followed, 8) == list(range(2020, 2028))


def test_tokens_that_are_taken_back_are_no_part_of_the_text() -> None:
    followed = copying([*TEXT[5:40], 7, 8, 9], expected=3)
    followed.log.take_back()
    followed.propose(1)
    copies = followed.drafter.sources.copies
    assert copies.arrays.sizes[USED] - copies.arrays.sizes[ANSWER] == 35
    followed.emit(TEXT[40:46])
    assert chain(followed, 8) == TEXT[46:54]


def test_what_is_taken_back_and_said_again_is_no_copy_of_itself() -> None:
    answer = list(range(400, 420))  # nothing of it stood before
    followed = copying(answer, expected=3)
    followed.log.take_back()
    followed.emit(answer[-3:])
    assert followed.drafter.sources.copies.matches[0, PLACE] == NONE
