"""The plan of a long text: levels of parts, until the summaries fit."""

from dataclasses import replace

import pytest

from ngtcli.config import Settings
from ngtcli.documents.load import Document, Loaded
from ngtcli.engine.parts import Level, advance, in_parts
from ngtcli.engine.request import Request
from ngtcli.errors import ContextOverflowError
from ngtcli.prompts.build import Prompt
from ngtcli.prompts.preset import load_preset
from ngtcli.prompts.reports import PartReport
from tests.support.fakes import CONTEXT, FakeSession

TIDE = "The tide came in at noon. "
SETTINGS = Settings.of(max_tokens=40, overflow="split")


def question(text: str) -> Request:
    return Request(
        task="summarize",
        settings=SETTINGS,
        preset=load_preset("summarize"),
        loaded=Loaded((Document("a.txt", text),)),
    )


def summaries(level: Level, text: str) -> list[PartReport]:
    return [PartReport(part.part.name, text, False, part.level, 1) for part in level.parts]


def test_what_fits_needs_no_part() -> None:
    prompt = advance(in_parts(FakeSession(SETTINGS), question(TIDE)))
    assert isinstance(prompt, Prompt)
    assert TIDE.strip() in prompt.text


def test_levels_follow_one_another_until_the_summaries_fit() -> None:
    plan = in_parts(FakeSession(SETTINGS), question(TIDE * (20 * CONTEXT // len(TIDE))))
    following = advance(plan)
    lengths = []
    while isinstance(following, Level):
        lengths.append(len(following.parts))
        assert [part.number for part in following.parts] == [*range(1, lengths[-1] + 1)]
        assert {part.level for part in following.parts} == {len(lengths)}
        following = advance(plan, summaries(following, "It came. " * 60))
    assert len(lengths) > 1
    assert lengths == sorted(lengths, reverse=True)
    assert following.text.count("It came.") == 60 * lengths[-1]


def test_empty_summaries_are_left_out_of_the_next_level() -> None:
    plan = in_parts(FakeSession(SETTINGS), question(TIDE * (4 * CONTEXT // len(TIDE))))
    level = advance(plan)
    assert isinstance(level, Level)
    assert len(level.parts) > 2
    first, *others = summaries(level, " ")
    prompt = advance(plan, [replace(first, text="High tide."), *others])
    assert isinstance(prompt, Prompt)
    assert [d.text for d in prompt.documents] == ["High tide."]


def test_summaries_that_get_no_shorter_are_an_error() -> None:
    plan = in_parts(FakeSession(SETTINGS), question(TIDE * (3 * CONTEXT // len(TIDE))))
    level = advance(plan)
    assert isinstance(level, Level)
    with pytest.raises(ContextOverflowError, match="get no shorter"):
        advance(plan, summaries(level, TIDE * (CONTEXT // len(TIDE))))
