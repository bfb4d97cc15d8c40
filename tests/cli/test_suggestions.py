"""The hint that names `ngt serve`: once, to a user at a terminal who waited twice."""

import re

import pytest

from ngtcli.cli import suggestions
from ngtcli.cli.notes import Notes
from tests.support.helpers import HARBOUR, in_terminal, ngt

ASK = ("ask", "-d", HARBOUR, "Who?", "--max-tokens", "4", "--method", "none")


def notes(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> tuple[Notes, list[str]]:
    said: list[str] = []
    made = Notes()
    made.terminal = is_terminal
    monkeypatch.setattr(made, "remark", said.append)
    return made, said


def test_the_suggestion_comes_at_the_second_slow_start_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suggestions, "SLOW_S", 3.0)
    made, said = notes(monkeypatch, is_terminal=True)
    suggestions.suggest_keeping_warm(2.9, made)
    suggestions.suggest_keeping_warm(8.0, made)
    assert not said
    suggestions.suggest_keeping_warm(8.0, made)
    assert len(said) == 1
    assert "`ngt serve`" in said[0]
    assert "--keep-warm 10m" in said[0]
    for _ in range(3):
        suggestions.suggest_keeping_warm(8.0, made)
    assert len(said) == 1


def test_the_suggestion_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "SLOW_S", 0.0)
    made, said = notes(monkeypatch, is_terminal=False)
    for _ in range(3):
        suggestions.suggest_keeping_warm(8.0, made)
    assert not said


def test_the_suggestion_follows_the_second_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of it is no cache: `ngt cache clear` leaves it."""
    monkeypatch.setattr(suggestions, "SLOW_S", 0.0)
    said = []
    for _ in range(3):
        out, code = in_terminal(*ASK)
        assert code == 0
        said.append(bool(re.search(r"keeps\s+it\s+loaded", out)))
        assert ngt("cache", "clear").returncode == 0
    assert said == [False, True, False]
