"""A token log against plain lists: what it holds, and what changed since any mark."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli.drafting.log import Mark, TokenLog

TOKENS = st.lists(st.integers(0, 2), max_size=4)  # few tokens, so that many are expected rightly
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
    """The same by whole lists; every token has a number of its own."""

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
                self.expected, self.origins = [], []
                self.settled += self.numbered([token])

    def expect(self, tokens: list[int], origins: list[str]) -> None:
        self.expected += self.numbered(tokens)
        self.origins += origins

    def take_back(self, keep: int) -> None:
        del self.expected[keep:], self.origins[keep:]


@dataclass
class Holder:
    """Someone who knew all tokens once."""

    mark: Mark
    known: list[tuple[int, int]]


@given(TOKENS, ACTIONS)
def test_a_log_holds_what_plain_lists_hold(prompt: list[int], actions: list[Any]) -> None:
    log, naive = TokenLog(prompt), NaiveLog(prompt)
    holders = [Holder(Mark(), []), Holder(Mark(len(prompt)), list(naive.everything))]
    for number, (what, argument) in enumerate(actions):
        if what == "emit":
            log.emit(argument)
            naive.emit(argument)
        elif what == "expect":
            origins = [f"{number}.{i}" for i in range(len(argument))]
            log.expect(argument, origins)
            naive.expect(argument, origins)
        elif what == "take back":
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
            check(holder, log, naive.everything)


def check(holder: Holder, log: TokenLog, everything: list[tuple[int, int]]) -> None:
    """What still stands is what the holder knew, token by token, and nothing that came again."""
    stands = 0
    while holder.known[: stands + 1] == everything[: stands + 1] and stands < len(everything):
        if stands == len(holder.known):
            break
        stands += 1
    known, new = log.since(holder.mark)
    assert known == stands
    assert new == [token for token, _ in everything[stands:]]


@given(TOKENS, ACTIONS, st.lists(st.booleans(), min_size=25, max_size=25))
def test_a_holder_who_follows_now_and_then_has_the_same_tokens(
    prompt: list[int], actions: list[Any], looks: list[bool]
) -> None:
    log = TokenLog(prompt)
    copy, mark = list(prompt), Mark(len(prompt))
    for (what, argument), look in zip(actions, looks, strict=False):
        if what == "emit":
            log.emit(argument)
        elif what == "expect":
            log.expect(argument, [""] * len(argument))
        elif what == "take back":
            log.take_back(argument)
        if look:
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
    log, marks = TokenLog([1]), []
    for _ in range(1000):
        log.expect([2, 3], ["", ""])
        marks.append(log.mark)
        log.take_back()
    assert all(log.since(mark) == (1, []) for mark in marks)


def test_expected_tokens_need_an_origin_each() -> None:
    with pytest.raises(ValueError, match="2 expected tokens have 1 origins"):
        TokenLog([1]).expect([2, 3], ["a"])
