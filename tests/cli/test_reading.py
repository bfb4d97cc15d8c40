"""Documents that commands read, and skipped files: on stderr and in JSON."""

import io
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ngtcli.cli.app import app
from ngtcli.cli.notes import Notes
from ngtcli.cli.reading import distinct, report_loaded, standard_input
from ngtcli.documents.find import Skipped
from ngtcli.documents.load import Loaded
from ngtcli.errors import InputError
from ngtcli.system.json_form import to_json
from tests.support.helpers import write_files

MANY = Loaded(
    (),
    (
        *(Skipped(f"d/{i}.txt", "empty") for i in range(42)),
        *(Skipped(f"d/{i}.gif", "files of kind .gif are not read", ".gif") for i in range(9)),
        *(Skipped(f"d/{i}.mp3", "files of kind .mp3 are not read", ".mp3") for i in range(3)),
        *(Skipped(f"d/{i}.pdf", "a PDF, which needs x", "", "Install it: x") for i in range(2)),
    ),
)


def test_skipped_files_are_named_up_to_a_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_loaded(MANY, Notes())
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        *(f"ngt: skipped d/{i}.txt: empty" for i in range(5)),
        "ngt: skipped 37 more; -v lists all",
        "ngt: skipped 2 files: a PDF, which needs x. Install it: x",
        "ngt: skipped 12 files of other types: .gif 9, .mp3 3",
    ]


def test_verbose_names_every_skipped_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report_loaded(Loaded(()), Notes(verbose=True))
    assert capsys.readouterr().err == ""
    report_loaded(MANY, Notes(verbose=True))
    assert capsys.readouterr().err.count("empty") == 42


def test_json_names_each_skipped_file_once() -> None:
    skipped = distinct([*MANY.skipped, *MANY.skipped])
    assert len(skipped) == 56
    assert to_json(skipped[0]) == {"name": "d/0.txt", "reason": "empty"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NGT_HOME", str(tmp_path / "home"))
    text = "The harbour opened in 1932. It is deep."
    return str(write_files(tmp_path / "notes", a_txt=text, b_txt="", c_gif="%GIF"))


@pytest.mark.parametrize(
    "command",
    [
        "summarize {} --dry-run --json",
        "trie build {} --json",
        "trie build {} --json --rest",
    ],
)
def test_json_output_names_skipped_files(command: str, folder: str) -> None:
    done = CliRunner().invoke(app, command.format(folder).split())
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["skipped"] == [
        {"name": os.path.join(folder, "b.txt"), "reason": "empty"},
        {"name": os.path.join(folder, "c.gif"), "reason": "files of kind .gif are not read"},
    ]
    assert "b.txt: empty" in done.stderr
    assert "skipped 1 file of other types: .gif 1" in done.stderr


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
    assert isinstance(done.exception, InputError)
    assert "b.txt: empty" in str(done.exception)


@pytest.mark.parametrize("command", [["bench", "--prompts"], ["summarize"]])
def test_max_mb_limits_what_commands_read(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text(" " * 1_000_001)
    name = str(tmp_path / "long.txt")
    done = CliRunner().invoke(app, [*command, name, "--set", "max_mb=1"])
    assert isinstance(done.exception, InputError)
    assert "more than 1 MB" in str(done.exception)
    assert "--set max_mb" in done.exception.hint


def test_dash_reads_from_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"The tide."))
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stdin)
    assert standard_input([]) is None
    assert standard_input(["-"]) is stdin.buffer
    assert "Ctrl-D" in capsys.readouterr().err
