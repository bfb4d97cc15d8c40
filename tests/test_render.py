"""What reaches a terminal, a pipe and a JSON reader, to the character."""

import io
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngtcli import draft as drafting
from ngtcli.draft.drafter import Drafter
from ngtcli.draft.origins import ORIGINS
from ngtcli.draft.tree import DraftTree
from ngtcli.render.sinks import ColourSink, PlainSink
from ngtcli.render.terminal import COLORS, drafted_style, visible, wants_color
from ngtcli.system.json_form import dump_json


@dataclass(frozen=True)
class Token:
    text: str
    drafted: bool = False
    origin: str = "draft"


HOSTILE = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\x7f\u202etxt\b[bold]x[/]"


def test_plain_text_and_one_line_feed_at_the_end() -> None:
    for end in ("", "\n"):
        stream = io.StringIO()
        sink = PlainSink(stream)
        sink.step([Token("One "), Token("two" + end, True)])
        sink.close()
        assert stream.getvalue() == "One two\n"


def test_an_empty_answer_writes_nothing() -> None:
    stream = io.StringIO()
    sink = PlainSink(stream)
    sink.step([])
    sink.close()
    assert stream.getvalue() == ""


def test_drafted_tokens_are_coloured_and_underlined(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = io.StringIO()
    sink = ColourSink(stream)
    sink.step([Token("My "), Token("old\n", True), Token("hat", True), Token("!")])
    sink.close()
    assert stream.getvalue() == "My \x1b[4;36mold\x1b[0m\n\x1b[4;36mhat\x1b[0m!\n"


def test_every_origin_has_a_colour_and_an_unknown_one_is_an_error(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    folder = Path(drafting.__file__).parent
    for file in (*folder.glob("methods/[a-z]*.py"), folder / "auto" / "drafter.py"):
        import_module(".".join(("ngtcli", *file.relative_to(folder.parent).with_suffix("").parts)))
    ours = [kind for kind in Drafter.__subclasses__() if kind.__module__.startswith("ngtcli.")]
    assert len(ours) >= 11
    assert {name for kind in ours for name in kind.origins} == set(ORIGINS)
    assert {*ORIGINS, *DraftTree().names, "drafted"} == set(COLORS)
    with pytest.raises(KeyError, match="elsewhere"):
        drafted_style("elsewhere")


def test_the_underline_outlives_no_color(monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    ColourSink(stream).step([Token("hat", True)])
    assert stream.getvalue() == "\x1b[4mhat\x1b[0m"


def test_one_write_a_step() -> None:
    class Counting(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            Counting.writes += 1
            return super().write(text)

    sink = ColourSink(Counting())
    sink.step([Token("a"), Token("b", True), Token("c"), Token("d", True)])
    assert Counting.writes == 1


@pytest.mark.parametrize("kind", [PlainSink, ColourSink])
def test_no_control_character_of_a_text_reaches_the_stream(kind) -> None:
    stream = io.StringIO()
    sink = kind(stream)
    sink.step([Token(HOSTILE), Token("plain")])
    sink.close()
    text = stream.getvalue()
    assert "␛[31mred␛]0;title␇" in text and "[bold]x[/]plain" in text
    assert all(c == "\n" or (c.isprintable() and c != "\x1b") for c in text)


@given(st.text())
def test_visible_text_has_no_controls(text: str) -> None:
    for c in visible(text):
        code = ord(c)
        assert c in "\n\t" or not (code < 32 or 127 <= code < 160 or 0x202A <= code <= 0x202E)


@given(st.text())
def test_json_is_readable_and_harmless(text: str) -> None:
    dumped = dump_json({"text": text})
    assert json.loads(dumped) == {"text": text}
    assert all(c == "\n" or c.isprintable() for c in dumped)


def test_json_keeps_letters_of_all_scripts() -> None:
    assert "한국어 naïve 🦜" in dump_json("한국어 naïve 🦜")


def test_color_settings(monkeypatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert wants_color(Screen(), "auto") and not wants_color(io.StringIO(), "auto")
    assert wants_color(io.StringIO(), "always") and not wants_color(Screen(), "never")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Screen(), "auto")
