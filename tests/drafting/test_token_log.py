"""A token log against plain lists: what it holds, and what changed since any mark."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.drafting.log import Mark, TokenLog

TOKENS = st.lists(st.integers(0, 2), max_size=4)  # a small vocabulary: many guesses come true
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), TOKENS),
        st.tuples(st.just("expect"), TOKENS),
        st.tuples(st.just("take back"), st.integers(0, 5)),
        st.tuples(st.just("mark"), st.none()),
    ),
    max_size=25,
)


class NaiveLog:
    """A log of plain lists, in which every token has a number of its own."""

    def __init__(self, prompt: list[int]) -> None:
        self.count = 0
        self.settled = self.numbered(prompt)
        self.prompt_length = len(prompt)
        self.expected: list[tuple[int, int]] = []
        self.origins: list[str] = []

    def numbered(self, tokens: list[int]) -> list[tuple[int, int]]:
        first = self.count
        self.count += len(tokens)
        return [(token, number) for number, token in enumerate(tokens, first)]

    @property
    def everything(self) -> list[tuple[int, int]]:
        return self.settled + self.expected

    def emit(self, tokens: list[int]) -> None:
        for token in tokens:
            if self.expected and self.expected[0][0] == token:
                self.settled.append(self.expected.pop(0))
                self.origins.pop(0)
            else:
                self.expected = []
                self.origins = []
                self.settled += self.numbered([token])

    def expect(self, tokens: list[int], origins: list[str]) -> None:
        self.expected += self.numbered(tokens)
        self.origins += origins

    def take_back(self, keep: int) -> None:
        del self.expected[keep:], self.origins[keep:]


@dataclass
class Holder:
    """A mark, and all tokens of the log when it was taken."""

    mark: Mark
    known: list[tuple[int, int]]


@given(TOKENS, ACTIONS)
def test_a_log_holds_what_plain_lists_hold(prompt: list[int], actions: list[Any]) -> None:
    log = TokenLog(prompt)
    naive = NaiveLog(prompt)
    holders = [Holder(Mark(), []), Holder(Mark(len(prompt)), list(naive.everything))]
    for number, (action, argument) in enumerate(actions):
        if action == "emit":
            log.emit(argument)
            naive.emit(argument)
        elif action == "expect":
            origins = [f"{number}.{i}" for i in range(len(argument))]
            log.expect(argument, origins)
            naive.expect(argument, origins)
        elif action == "take back":
            log.take_back(argument)
            naive.take_back(argument)
        else:
            holders.append(Holder(log.mark, list(naive.everything)))

        assert log.token_ids == [token for token, _ in naive.everything]
        assert len(log) == len(naive.everything)
        assert log.prompt_length == naive.prompt_length
        assert log.settled == len(naive.settled)
        assert log.emitted == len(naive.settled) - naive.prompt_length
        assert log.output == [token for token, _ in naive.settled[naive.prompt_length :]]
        assert log.expected == [token for token, _ in naive.expected]
        assert log.origins == naive.origins
        for holder in holders:
            check_changes(holder, log, naive.everything)


def check_changes(holder: Holder, log: TokenLog, everything: list[tuple[int, int]]) -> None:
    """Check what changed since a mark. A token that was taken back and came again is a new one."""
    unchanged = 0
    for known_token, token in zip(holder.known, everything, strict=False):
        if known_token != token:
            break
        unchanged += 1

    known, new = log.since(holder.mark)

    assert known == unchanged
    assert new == [token for token, _ in everything[unchanged:]]


@given(TOKENS, ACTIONS, st.lists(st.booleans(), min_size=25, max_size=25))
def test_a_copy_that_is_brought_up_to_date_now_and_then_equals_the_log(
    prompt: list[int], actions: list[Any], is_updated: list[bool]
) -> None:
    log = TokenLog(prompt)
    copy = list(prompt)
    mark = Mark(len(prompt))
    for (action, argument), update in zip(actions, is_updated, strict=False):
        if action == "emit":
            log.emit(argument)
        elif action == "expect":
            log.expect(argument, [""] * len(argument))
        elif action == "take back":
            log.take_back(argument)
        if update:
            known, new = log.since(mark)
            assert known <= len(copy)
            copy[known:] = new
            mark = log.mark
            assert copy == log.token_ids


def test_tokens_that_were_taken_back_and_came_again_are_new() -> None:
    log = TokenLog([1])
    log.expect([2, 3], ["a", "b"])
    mark = log.mark

    log.take_back()
    log.expect([2, 3], ["c", "d"])

    assert log.since(mark) == (1, [2, 3])


def test_marks_hold_however_often_tokens_were_taken_back() -> None:
    log = TokenLog([1])
    marks = []
    for _ in range(1000):
        log.expect([2, 3], ["", ""])
        marks.append(log.mark)
        log.take_back()
    assert all(log.since(mark) == (1, []) for mark in marks)


def test_expected_tokens_need_an_origin_each() -> None:
    with pytest.raises(ValueError, match="2 expected tokens have 1 origins"):
        TokenLog([1]).expect([2, 3], ["a"])
