"""Commands and the documents they read: what is said of those left out, on stderr and in JSON."""

import io
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ngtcli.cli.app import app
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import distinct, standard_input, tell
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Loaded
from ngtcli.errors import InputError
from ngtcli.system.json_form import to_json
from tests.support.helpers import fill

MANY = Loaded(
    (),
    (
        *(Skipped(f"d/{i}.txt", "empty") for i in range(42)),
        *(Skipped(f"d/{i}.gif", "files of kind .gif are not read", ".gif") for i in range(9)),
        *(Skipped(f"d/{i}.mp3", "files of kind .mp3 are not read", ".mp3") for i in range(3)),
        *(Skipped(f"d/{i}.pdf", "a PDF, which needs x", "", "Install it: x") for i in range(2)),
    ),
)


def test_a_few_lines_a_count_and_one_line_for_other_kinds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell(MANY, Notes())
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        *(f"ngt: left out d/{i}.txt: empty" for i in range(5)),
        "ngt: left out 37 more; -v names them all",
        "ngt: left out 2 files: a PDF, which needs x. Install it: x",
        "ngt: left out 12 files of other kinds: .gif 9, .mp3 3",
    ]


def test_with_verbose_each_has_its_line_and_json_names_each_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell(Loaded(()), Notes(verbose=True))
    assert capsys.readouterr().err == ""
    tell(MANY, Notes(verbose=True))
    assert capsys.readouterr().err.count("empty") == 42
    once = distinct([*MANY.skipped, *MANY.skipped])
    assert len(once) == 56 and to_json(once[0]) == {"name": "d/0.txt", "reason": "empty"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NGT_HOME", str(tmp_path / "home"))
    text = "The harbour opened in 1932. It is deep."
    return str(fill(tmp_path / "notes", a_txt=text, b_txt="", c_gif="%GIF"))


@pytest.mark.parametrize(
    "command",
    [
        "summarize {} --dry-run --json",
        "trie build {} --json",
        "trie build {} --json --rest",
    ],
)
def test_the_object_of_json_names_what_was_left_out(command: str, folder: str) -> None:
    done = CliRunner().invoke(app, command.format(folder).split())
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["skipped"] == [
        {"name": os.path.join(folder, "b.txt"), "reason": "empty"},
        {"name": os.path.join(folder, "c.gif"), "reason": "files of kind .gif are not read"},
    ]
    assert "left out" in done.stderr and "1 file of other kinds: .gif 1" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "summarize {}",
        "ask Why? -d {}",
        "check {}",
        "check -d {}",
        "bench {}",
        "bench -d {}",
        "tune --sweep num_draft=2,4 -d {}",
        "trie build {}",
        "trie show {}",
    ],
)
def test_every_command_that_reads_documents_can_be_strict(command: str, folder: str) -> None:
    done = CliRunner().invoke(app, [*command.format(folder).split(), "--set", "strict=yes"])
    assert isinstance(done.exception, InputError) and "b.txt: empty" in str(done.exception)


@pytest.mark.parametrize("command", [["bench", "--prompts"], ["summarize"]])
def test_settings_bound_what_commands_read(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(" " * 1_000_001)
    name = str(tmp_path / "long.txt")
    done = CliRunner().invoke(app, [*command, name, "--set", "max_mb=1"])
    assert isinstance(done.exception, InputError)
    assert "more than 1 MB" in str(done.exception) and "--set max_mb" in done.exception.hint


def test_a_dash_on_a_terminal_is_what_is_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"The tide."))
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stdin)
    assert standard_input([]) is None and standard_input(["-"]) is stdin.buffer
    assert "Ctrl-D" in capsys.readouterr().err
