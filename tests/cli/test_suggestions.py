"""The hint that names `ngt serve`: once, to a user at a terminal who waited twice."""

import re

import pytest

from ngtcli.cli import suggestions
from ngtcli.cli.notes import Notes
from tests.support.helpers import HARBOUR, in_terminal, ngt

ASK = ("ask", "-d", HARBOUR, "Who?", "--max-tokens", "4", "--method", "none")


class RecordingNotes(Notes):
    """Notes that keep their remarks in place of showing them."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.terminal = is_terminal
        self.remarks: list[str] = []

    def remark(self, message: str) -> None:
        self.remarks.append(message)


def test_the_suggestion_comes_at_the_second_slow_start_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suggestions, "SLOW_S", 3.0)
    notes = RecordingNotes(is_terminal=True)

    suggestions.suggest_keeping_warm(2.9, notes)
    suggestions.suggest_keeping_warm(8.0, notes)
    assert not notes.remarks

    suggestions.suggest_keeping_warm(8.0, notes)
    (remark,) = notes.remarks
    assert "`ngt serve`" in remark
    assert "--keep-warm 10m" in remark

    for _ in range(3):
        suggestions.suggest_keeping_warm(8.0, notes)
    assert notes.remarks == [remark]


def test_the_suggestion_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "SLOW_S", 0.0)
    notes = RecordingNotes(is_terminal=False)
    for _ in range(3):
        suggestions.suggest_keeping_warm(8.0, notes)
    assert not notes.remarks


def test_the_suggestion_follows_the_second_answer_even_if_the_cache_is_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suggestions, "SLOW_S", 0.0)
    suggested = []
    for _ in range(3):
        shown, code = in_terminal(*ASK)
        assert code == 0
        suggested.append(bool(re.search(r"keeps\s+it\s+loaded", shown)))
        assert ngt("cache", "clear").returncode == 0
    assert suggested == [False, True, False]
