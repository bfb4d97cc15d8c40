"""What a terminal is sent: widths, unseen characters, lines broken between words, status lines."""

import io
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from ngtcli import drafting
from ngtcli.cli import notes
from ngtcli.cli.notes import Notes, ReadingBar, reading_line
from ngtcli.cli.output import print_line
from ngtcli.cli.streams import terminal_width
from ngtcli.drafting.drafter import Drafter
from ngtcli.drafting.origins import GRAMMAR, ORIGINS
from ngtcli.drafting.tree import DraftTree
from ngtcli.errors import UsageError
from ngtcli.render.sinks import LONG, PlainSink, Run, TerminalSink, WholeWords, Wrapper, joined
from ngtcli.render.terminal import COLORS, cut, drafted_style, reveal, visible, wants_color
from ngtcli.system import progress
from ngtcli.system.json_form import dump_json
from tests.support.helpers import HARBOUR, in_terminal, ngt, wait_until, without_note


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def stderr_as_screen(monkeypatch: pytest.MonkeyPatch, **environ: str) -> Screen:
    """stderr, a terminal of 80 columns without colors unless `environ` says otherwise."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    for name, value in {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "80", **environ}.items():
        monkeypatch.setenv(name, value)
    return screen


# --- width ---


@pytest.mark.parametrize(
    ("columns", "reported", "width"),
    [
        (None, 0, 80),
        (None, 120, 120),
        (None, 5, 20),
        (None, None, 80),
        ("0", 0, 80),
        ("abc", 0, 80),
        ("abc", 120, 120),
        ("-3", 60, 60),
        ("1", 120, 20),
        ("60", 120, 60),
        ("9" * 30, 0, 80),
        ("99999", 0, 1000),
        ("\u0663", 0, 80),
        ("", 60, 60),
    ],
)
def test_a_width_of_nothing_or_nonsense_is_80_and_the_least_is_20(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, reported: int | None, width: int
) -> None:
    def told(handle: int) -> os.terminal_size:
        if reported is None:
            raise OSError("no terminal")
        return os.terminal_size((reported, 24))

    monkeypatch.setattr(os, "get_terminal_size", told)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    with open(os.devnull) as stream:
        assert terminal_width(stream) == width


def test_a_status_line_of_wide_characters_stays_on_one_line(monkeypatch) -> None:
    err = stderr_as_screen(monkeypatch, COLUMNS="40")
    Notes().status("Loading " + "模型" * 40)
    assert cell_len(err.getvalue()) <= 39
    assert cut("ab模型", 3) == "ab"
    assert cut("ab", 2) == "ab"


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_plain_terminal_gets_no_control_sequence(monkeypatch, term: str) -> None:
    err = stderr_as_screen(monkeypatch, TERM=term)
    quiet = Notes()
    quiet.status("Loading …")
    quiet.remark("The built-in model quotes sentences.")
    quiet.facts(["4 tokens"])
    quiet.legend(["prompt"])
    notes.report_error(UsageError("wrong", hint="Right it."))
    told = Notes(verbose=True)
    told.status("Reading …")
    told.clear()
    assert "\x1b" not in err.getvalue()
    assert "\r" not in err.getvalue()
    assert "Loading" not in err.getvalue()
    assert "Reading …\n" in err.getvalue()


def test_long_work_in_a_pipe_reports_its_newest_status_each_interval(monkeypatch) -> None:
    err = stderr_as_screen(monkeypatch, TERM="dumb")
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.01)
    commands = Notes()
    with commands.heartbeat():
        commands.status("Loading ████░░░░░░ 6.4/16.0 GB")
        wait_until(lambda: err.getvalue().count("Loading 6.4/16.0 GB (0 s so far)\n") >= 2)
        commands.status("3 of 52 prompts compared")
        wait_until(lambda: "3 of 52 prompts compared (" in err.getvalue())
    ended = err.getvalue()
    commands.status("4 of 52 prompts compared")
    assert err.getvalue() == ended
    assert "\r" not in ended


def test_short_work_in_a_pipe_reports_nothing(monkeypatch) -> None:
    err = stderr_as_screen(monkeypatch, TERM="dumb")
    commands = Notes()
    with commands.heartbeat():
        commands.status("3 of 52 prompts compared")
    assert err.getvalue() == ""


def test_a_status_line_takes_the_place_of_the_heartbeat(monkeypatch) -> None:
    err = stderr_as_screen(monkeypatch)
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.01)
    commands = Notes()
    with commands.heartbeat():
        commands.status("3 of 52 prompts compared")
        assert "heartbeat" not in [thread.name for thread in threading.enumerate()]
    assert err.getvalue() == "3 of 52 prompts compared"


def test_an_error_is_short_however_long_a_name_in_it_is(monkeypatch) -> None:
    err = stderr_as_screen(monkeypatch)
    notes.report_error(UsageError(f"no method '{'x' * 90_000}' here", hint="Right it."))
    *lines, hint = err.getvalue().replace("\r\x1b[K", "").splitlines()
    first = " ".join(lines)  # a terminal breaks it before a long word
    assert first.startswith("ngt: no method 'xxx")
    assert first.endswith("xxx' here")
    assert len(first) < 2000
    assert hint == "Right it."


def test_an_empty_line_stands_between_remarks_and_the_answer(monkeypatch) -> None:
    err = stderr_as_screen(monkeypatch, TERM="dumb")
    monkeypatch.setattr(sys, "stdout", Screen())
    notes = Notes()
    notes.begin_answer()
    assert err.getvalue() == ""  # nothing was said
    notes.say("Remark.")
    notes.begin_answer()
    notes.begin_answer()
    assert err.getvalue() == "Remark.\n\n"
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    piped = Notes()
    piped.say("Remark.")
    piped.begin_answer()
    assert err.getvalue() == "Remark.\n\nRemark.\n"


# --- unseen characters ---

UNSEEN = [
    0xAD,
    0x34F,
    0x61C,
    0x115F,
    0x1160,
    0x17B4,
    0x180E,
    0x200B,
    0x200C,
    0x200D,
    0x200E,
    0x200F,
    0x2028,
    0x2029,
    0x2060,
    0x2064,
    0x206F,
    0x3164,
    0xFE00,
    0xFE0F,
    0xFEFF,
    0xFFA0,
    0xFFF9,
    0xFFFB,
    0x1D173,
    0xE0001,
    0xE0041,
    0xE007F,
    0xE0100,
    0xE01EF,
]


def test_what_a_terminal_would_not_show_is_shown() -> None:
    for code in UNSEEN:
        assert reveal(f"a{chr(code)}b") == "a\ufffdb"
        is_mark = code in (0x61C, 0x200F)  # of text from right to left, which may come
        assert reveal(chr(code)) == (chr(code) if is_mark else "\ufffd")
    assert reveal("م\u200c\u200cن❤\ufe0f\ufe0f") == "م\u200c\ufffdن❤\ufe0f\ufffd"  # a second one
    assert reveal("\u200b\u200d") == "\ufffd\ufffd"


@pytest.mark.parametrize(
    "text",
    [
        "می‌خواهم",  # Persian: ZWNJ between letters
        "क्‍ष ক্‍ষ ශ්‍රී",  # conjuncts with ZWJ
        "ക്‍",  # a chillu at the word's end
        "👩‍👩‍👧 🏴‍☠️ 👩🏽‍🚀 ❤️ 1️⃣ ☺︎ 👁️‍🗨️",
        "plain ASCII, ümlaute, 日本語, עברית",
        "שלום\u200f! \u200fעברית C++\u200e ועוד (\u200e1)\u200f",  # directional marks
        "قال\u061c: 12\u200f\n\u200fنعم",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f 🇩🇪",  # England
        "ភាសា\u200bខ្មែរ ภาษา\u200bไทย",  # where words end, in scripts without spaces
    ],
)
def test_joiners_and_selectors_that_writing_needs_stay(text: str) -> None:
    assert reveal(text) == text
    parts = []
    before = ""
    for character in text:  # as tokens bring it
        parts.append(reveal(character, before))
        before += parts[-1]
    assert "".join(parts) == text


@pytest.mark.parametrize(
    "text",
    [
        "pay\u200epal",
        "pay\u200fpal",
        "a \u200eb",  # no text from right to left
        "שלום\u200f\u200f",  # a second one
        "שלום\u202eabc\u2066d\u202c",  # overrides and isolates
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e0068",  # a message
        "a\U000e0067",
        "\U0001f3f4\U000e0041",
        "ab\u200bc",
    ],
)
def test_what_hides_or_turns_text_is_never_shown(text: str) -> None:
    assert visible(reveal(text)).count("\ufffd") >= 1


@given(st.text())
def test_only_unseen_characters_change(text: str) -> None:
    shown = reveal(text)
    assert len(shown) == len(text)
    assert all(a == b or b == "\ufffd" for a, b in zip(text, shown, strict=True))
    assert reveal(shown) == shown


def test_a_pipe_gets_unseen_characters_as_they_are_and_a_terminal_does_not(monkeypatch) -> None:
    text = "in\u00advisible \u200eword"
    for stream, shown in ((io.StringIO(), text), (Screen(), "in\ufffdvisible \ufffdword")):
        monkeypatch.setattr(sys, "stdout", stream)
        print_line(text)
        assert stream.getvalue() == shown + "\n"
    piped = io.StringIO()
    PlainSink(piped).step([(text, "")])
    assert piped.getvalue() == visible(text) == text


# --- lines ---


def wrapped(text: str, width: int, size: int = 3) -> str:
    """`text` in pieces of `size` characters through a Wrapper."""
    wrapper = Wrapper()
    out = []
    for i in range(0, len(text), size):
        out += wrapper.feed([(text[i : i + size], "")], width)
    out += wrapper.flush(width)
    return "".join(t for t, _ in out)


PROSE = "Four hundred labourers cut the basin out of clay, and most of them lived in huts."


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("width", [20, 33, 60])
def test_lines_break_between_words(width: int, size: int) -> None:
    import textwrap

    assert wrapped(PROSE, width, size).split("\n") == textwrap.wrap(PROSE, width)


UNCHANGED = [
    "a" * 10 + " " + "b" * 9,
    "    indented = code + that + is + longer + than + the + line",
    "| a table | with cells | that are | longer | than the line |",
    "`a_name_in_code` that stands at the beginning of a line",
    "```\nfenced code that is longer than twenty columns\n```\n",
    "short\n\n  \n\nlines  with   gaps \n",
    "x" * 70,
    "",
]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        *((text, text) for text in UNCHANGED),
        ("a" * 10 + " " + "b" * 10, "a" * 10 + "\n" + "b" * 10),
        (
            "```\na\n```\nand then prose that is longer",
            "```\na\n```\nand then prose that\nis longer",
        ),
    ],
)
def test_code_tables_and_what_fits_stay_as_they_are(text: str, lines: str) -> None:
    assert wrapped(text, 20) == lines


def test_wide_characters_break_anywhere_but_before_punctuation() -> None:
    lines = wrapped("漢字" * 14 + "。終", 20).split("\n")
    assert all(cell_len(line) <= 20 for line in lines)
    assert len(lines) == 3
    assert not any(line.startswith("。") for line in wrapped("漢" * 10 + "。終", 20).split("\n"))


def test_a_word_far_from_the_border_comes_at_once_and_one_close_to_it_when_it_ends() -> None:
    wrapper = Wrapper()
    assert wrapper.feed([("lab", "")], 80) == [("lab", "")]
    assert wrapper.feed([("ourers", "")], 80) == [("ourers", "")]
    wrapper = Wrapper()
    assert wrapper.feed([("a" * 10 + " lab", "")], LONG + 5) == [("a" * 10, "")]
    assert wrapper.feed([(" ", "")], LONG + 5) == [(" lab", "")]


words = st.text(st.sampled_from("ab漢🙂é,. \n\t"), max_size=60)


@given(st.lists(st.tuples(words, st.sampled_from(["", "prompt"])), max_size=8))
def test_wrapping_changes_spaces_only_and_keeps_every_style(runs: list[Run]) -> None:
    wrapper = Wrapper()
    out = []
    for run in runs:
        out += wrapper.feed([run], 20)
    out += wrapper.flush(20)

    def solid(parts: list[Run]) -> list[tuple[str, str]]:
        return [(c, style) for text, style in parts for c in text if not c.isspace()]

    assert solid(out) == solid(runs)
    text = "".join(t for t, _ in runs)
    if all(cell_len(line.replace("\t", " " * 8)) <= 20 for line in text.split("\n")):
        assert "".join(t for t, _ in out) == text


def test_an_answer_on_a_terminal_is_painted_broken_and_ends_with_a_line_feed(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for color in (True, False):
        screen = Screen()
        sink = TerminalSink(screen, lambda: 20, color)
        for text in PROSE.split(" "):
            sink.step([(text + " ", "draft" * (text == "labourers")), ("\u200e", "")])
        sink.close()
        shown = screen.getvalue()
        assert ("\x1b[4;36m\ufffdlabourers" in shown) is color
        assert "\u200e" not in shown
        assert shown.endswith("huts. \ufffd\n")
        assert shown.count("\n") == 6


# --- the bar while a prompt is read ---


def test_the_reading_bar_tells_tokens_rate_and_time_left_in_60_columns(monkeypatch) -> None:
    err = stderr_as_screen(monkeypatch, COLUMNS="60")
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    shown = Notes()
    bar = ReadingBar(shown)
    for read in (0, 1024, 65_536, 130_048):
        bar(read, 131_071)
        now[0] += 4.0
    bar(2048, 3000)  # of the next prompt, so much was kept
    shown.begin_answer()
    assert err.getvalue().split("\r\x1b[K") == [
        "Reading ░░░░░░░░░░ 0 of 131k tokens",
        "Reading ░░░░░░░░░░ 1024 of 131k tokens, 256/s, 8 min left",
        "Reading █████░░░░░ 65k of 131k tokens, 16k/s, 4 s left",
        "Reading █████████░ 130k of 131k tokens, 16k/s, 0 s left",
        "Reading ██████░░░░ 2048 of 3000 tokens",
        "",
    ]


@given(
    st.integers(0, 10**6), st.integers(1, 10**6), st.sampled_from([0.0, 1.0, 85.4, 12_345.6, 1e6])
)
def test_a_reading_line_fits_60_columns(read: int, more: int, rate: float) -> None:
    line = reading_line(read, read + more, rate)
    assert cell_len(line) < 60
    assert ("left" in line) == (rate > 0)


def test_the_reading_bar_is_shown_on_a_terminal_only_and_wiped(tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text(Path(HARBOUR).read_text() * 4)
    command = ["summarize", str(long), "--max-tokens", "4", "--method", "none"]
    shown, code = in_terminal(*command, columns=60, NO_COLOR="1")
    assert code == 0
    assert re.search(r"█░+ \d+ of \d+ tokens, \d+k?/s, \d+ s left", shown)
    answer = shown[shown.rindex(" left") :]
    assert answer.startswith(" left\r\x1b[K")
    assert "\x1b[3" not in shown
    done = ngt(*command)
    assert done.returncode == 0
    assert without_note(done.stderr) == (b"ngt: the answer is cut off: it reached --max-tokens\n")


# --- names ---

NAMED = "a\nngt: b"  # of a file, on two lines the second of which looks like a message


def test_a_name_with_a_line_feed_is_shown_on_one_line(tmp_path: Path) -> None:
    (tmp_path / f"{NAMED}.txt").write_bytes(b"\0\1\2")  # nothing that can be read
    (tmp_path / "c.txt").write_text("The tide came in at noon.")
    (tmp_path / f"{NAMED}.html").write_bytes(b"\0")
    named = str(tmp_path / f"{NAMED}.txt")
    for arguments in (
        ("docs", "list", str(tmp_path)),
        ("docs", "show", named),
        ("docs", "show", f"{named}*"),
        ("summarize", str(tmp_path), "--dry-run"),
        ("summarize", named + "x"),
        ("ask", "-d", str(tmp_path / "c.txt"), "Who?", "-o", f"{tmp_path}/{NAMED}/d"),
        ("batch", f"{tmp_path}/{NAMED}.jsonl"),
        ("trie", "show", f"{tmp_path}/{NAMED}.trie"),
        ("bench", "--prompts", f"{tmp_path}/{NAMED}.jsonl"),
        ("config", "show", "-p", NAMED),
        ("check", "--dtype", "float32", named),
    ):
        done = ngt(*arguments)
        lines = (done.stdout + done.stderr).decode().split("\n")
        assert not any(line.startswith("ngt: b") for line in lines), (arguments, lines)
        assert any("ngt: b" in line for line in lines), (arguments, lines)


def test_notes_and_statuses_are_one_line(monkeypatch) -> None:
    err = stderr_as_screen(monkeypatch)
    told = Notes(verbose=True)
    told.status(f"Reading {NAMED} …")
    assert "\n" not in err.getvalue()
    assert "Reading a ngt: b …" in err.getvalue()
    told.warn(f"left out {NAMED}: empty")
    told.facts([NAMED])
    assert err.getvalue().count("\n") == 2


# --- what reaches a pipe, and a JSON reader ---


@pytest.mark.parametrize(
    ("texts", "no_color", "plain", "colored"),  # every second text is drafted
    [
        (["One ", "two"], "", "One two\n", "One \x1b[4;36mtwo\x1b[0m\n"),
        (["One ", "two\n"], "", "One two\n", "One \x1b[4;36mtwo\x1b[0m\n"),
        (["a ", "b\nc", "!"], "", "a b\nc!\n", "a \x1b[4;36mb\x1b[0m\n\x1b[4;36mc!\x1b[0m\n"),
        (["", "hat"], "1", "hat\n", "\x1b[4mhat\x1b[0m\n"),
        ([], "", "", ""),
    ],
)
def test_a_pipe_gets_a_step_in_one_write_and_one_line_feed_at_the_end(
    monkeypatch, texts: list[str], no_color: str, plain: str, colored: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    for color, expected in ((False, plain), (True, colored)):
        written: list[str] = []
        stream = io.StringIO()
        monkeypatch.setattr(stream, "write", written.append)
        sink = PlainSink(stream, color)
        sink.step([(text, "draft" * (i % 2)) for i, text in enumerate(texts)])
        assert len(written) <= 1
        sink.close()
        assert "".join(written) == expected


def test_every_origin_has_a_colour_and_an_unknown_one_is_an_error(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    folder = Path(drafting.__file__).parent
    for file in (*folder.glob("methods/[a-z]*.py"), folder / "auto" / "drafter.py"):
        import_module(".".join(("ngtcli", *file.relative_to(folder.parent).with_suffix("").parts)))
    kinds = list(Drafter.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
    ours = [kind for kind in kinds if kind.__module__.startswith("ngtcli.")]
    assert len(ours) >= 11
    assert {name for kind in ours for name in kind.origins} == set(ORIGINS)
    assert {*ORIGINS, GRAMMAR, *DraftTree().names, "drafted"} == set(COLORS)
    with pytest.raises(KeyError, match="elsewhere"):
        drafted_style("elsewhere")


@given(st.text())
def test_visible_text_has_no_controls(text: str) -> None:
    for c in visible(text):
        code = ord(c)
        assert c in "\n\t" or not (code < 32 or 127 <= code < 160 or 0x202A <= code <= 0x202E)


@given(st.text())
@example("한국어 naïve 🦜")
def test_json_is_readable_and_harmless(text: str) -> None:
    dumped = dump_json({"text": text})
    assert json.loads(dumped) == {"text": text}
    assert all(c == "\n" or c.isprintable() for c in dumped)
    assert "🦜" not in text or "한국어 naïve 🦜" in dumped  # letters of all scripts are kept


def test_color_settings(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color(Screen(), "auto")
    assert not wants_color(io.StringIO(), "auto")
    assert wants_color(io.StringIO(), "always")
    assert not wants_color(Screen(), "never")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color(Screen(), "auto")


# --- whole words ---

WORDS = st.lists(
    st.tuples(st.text("ab é潮位\n", max_size=6), st.sampled_from(["", "prompt", "pool"])),
    max_size=12,
)


@given(WORDS, st.integers(1, 4))
def test_words_have_one_style_and_the_text_stays(runs: list[Run], size: int) -> None:
    words = WholeWords()
    out = []
    for first in range(0, len(runs), size):
        out += words.feed(runs[first : first + size])
    out += words.flush()
    text = "".join(text for text, _ in runs)
    assert "".join(text for text, _ in out) == text
    given_styles = [style for text, style in runs for _ in text]
    styles = [style for text, style in out for _ in text]
    for match in re.finditer(r"[^\s潮位]+", text):
        (style,) = set(styles[match.start() : match.end()])
        own = Counter(given_styles[match.start() : match.end()])
        assert own[style] == max(own.values())


def test_spaces_have_the_style_of_the_words_on_both_sides() -> None:
    words = WholeWords()
    out = words.feed([("The", ""), (" ship", "prompt"), (" came", "prompt"), (" in", "pool")])
    assert joined([*out, *words.flush()]) == [
        ("The ", ""),
        ("ship came", "prompt"),
        (" ", ""),
        ("in", "pool"),
    ]


def test_a_terminal_underlines_no_part_of_a_word() -> None:
    shown, code = in_terminal("summarize", HARBOUR, "--color", "always", NO_COLOR="1", columns=100)
    assert code == 0
    assert "\x1b[4m" in shown
    assert not re.search(r"[a-z]\x1b\[(4|0)m[a-z]", shown)
