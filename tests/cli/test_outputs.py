"""Where commands write: never over what they read, and what they wrote is no document."""

import io
import shutil
from pathlib import Path

import pytest

from ngtcli.cli.answer_flags import AnswerFlags
from ngtcli.cli.notes import Notes
from ngtcli.cli.output import check_written, write_result
from ngtcli.cli.reading import read_documents
from ngtcli.config import Settings
from ngtcli.errors import UsageError
from tests.support.helpers import HARBOUR, ngt, without_note


@pytest.mark.parametrize(
    "arguments",
    [
        ("summarize", "a.txt", "-o", "a.txt"),
        ("summarize", "a.txt", "-o", "link.txt"),
        ("summarize", "a.txt", "--html", "a.txt"),
        ("ask", "Who?", "-d", "folder", "-d", "a.txt", "--html", "./folder/../a.txt"),
        ("bench", "a.txt", "-o", "a.txt", "--force"),
        ("bench", "--prompts", "naming.jsonl", "-o", "folder/a.txt", "--force"),
        ("tune", "--sweep", "n=8,9", "a.txt", "-o", "a.txt", "--force"),
        ("tune", "--sweep", "n=8,9", "--prompts", "naming.jsonl", "-o", "a.txt", "--force"),
    ],
)
def test_an_input_is_never_overwritten(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "a.txt").write_text('{"context": "The tide.", "question": "When?"}\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").hardlink_to(tmp_path / "a.txt")
    (tmp_path / "link.txt").symlink_to("a.txt")
    (tmp_path / "naming.jsonl").write_text('{"documents": [{"file": "folder/a.txt"}]}\n')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    done = ngt(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == b""
    assert b"this command reads it and would overwrite it" in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.parametrize("named", [".", "*.txt"])
def test_the_earlier_result_of_a_command_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(9):  # more than are named without -v
        Path(f"{number}.txt").touch()
    Path("a.txt").write_text("Text a.")
    outputs = [Path("sum.txt"), Path("page.html"), None]
    for _ in range(2):
        loaded = read_documents([named], None, Settings(), Notes(), outputs)
        assert [d.text for d in loaded.documents] == ["Text a."]
        Path("sum.txt").write_text("A summary.")
        Path("page.html").write_text("<p>A summary.</p>")
    assert "sum.txt: this command writes it\n" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"sum\.txt: this command reads it") as refused:
        read_documents([named, "sum.txt"], None, Settings(), Notes(), outputs)
    assert "Name another output." in refused.value.hint


def test_an_earlier_result_is_allowed_in_strict_mode(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("Text a.")
    (tmp_path / "sum.txt").write_text("A summary.")
    strict = Settings.of(strict=True)
    loaded = read_documents([str(tmp_path)], None, strict, Notes(), [tmp_path / "sum.txt"])
    assert [d.name for d in loaded.documents] == ["a.txt"]


@pytest.mark.parametrize("name", ["./-", ".//-", "-"])
def test_a_file_whose_name_is_a_dash_can_be_named_with_its_folder(
    tmp_path: Path, name: str
) -> None:
    tuned = ("tune", "--sweep", "n=8", "--rounds", "1", "--limit", "1", "--max-tokens", "2")
    done = ngt(*tuned, "-o", name, cwd=tmp_path)
    if name == "-":
        assert done.returncode == 2
        assert b"-: standard output is not a file" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "-").stat().st_size > 0
    assert AnswerFlags(out=name).output().path == (Path("-") if name == "-" else Path.cwd() / "-")


def test_an_output_that_cannot_be_created_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_text('{"context": "The tide."}\n')
    (tmp_path / "link").symlink_to("nowhere/x")
    out = str(tmp_path / "link")
    commands = ["batch", str(tmp_path / "in.jsonl"), "-o"], ["summarize", HARBOUR, "-o"]
    for command in commands:
        done = ngt(*command, out)
        assert done.returncode == 2
        assert b"Make room" not in done.stderr
        assert f"{out}: no such folder".encode() in done.stderr
    monkeypatch.setattr("os.access", lambda *_: False)  # nothing is forbidden to root
    for command in commands:
        done = ngt(*command, str(tmp_path / "x"))
        assert done.returncode == 2
        assert b"no permission to write in its folder" in done.stderr
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "x.journal").exists()


def test_a_file_whose_name_is_a_dash_is_not_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-").write_text("An answer.")
    loaded = read_documents(["-"], io.BytesIO(b"A text."), Settings(), Notes(), [tmp_path / "-"])
    assert [d.text for d in loaded.documents] == ["A text."]


def test_standard_input_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("The tide comes in at noon.")
    with (tmp_path / "a.txt").open("rb") as stream:
        monkeypatch.setattr("ngtcli.cli.reading._STDIN_FILE", stream.fileno())
        with pytest.raises(UsageError, match="this command reads it"):
            read_documents(["-"], stream, Settings(), Notes(), [tmp_path / "a.txt"])


FEW = "--max-tokens", "3", "--method", "none"


@pytest.mark.parametrize("flag", ["-o", "--html"])
def test_only_unedited_files_of_ngt_are_overwritten(flag: str, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    command = ("summarize", HARBOUR, *FEW, flag, "out.html")

    def run(*more: str) -> tuple[int, str]:
        done = ngt(*command, *more, cwd=tmp_path)
        return done.returncode, without_note(done.stderr).decode()

    out.write_text("Mine.")
    written = 0, "ngt: the answer is cut off: it reached --max-tokens\n"
    hint = "Name another file, or use --force to overwrite it.\n"
    refused = f"ngt: out.html already exists and was not written by ngt\n{hint}"
    assert run() == (2, refused)
    assert out.read_text() == "Mine."
    assert run("--force") == written
    assert (first := out.read_bytes()) != b"Mine."
    assert run() == written  # its own
    out.write_bytes(first + b"edited")
    refused = f"ngt: out.html already exists and was changed since ngt wrote it\n{hint}"
    assert run() == (2, refused)
    out.write_bytes(first)
    assert run() == written  # as ngt wrote it, again
    (tmp_path / "copy.html").write_bytes(first)
    assert ngt("summarize", HARBOUR, *FEW, flag, "copy.html", cwd=tmp_path).returncode == 2
    out.write_text("")  # as mktemp makes it
    assert run() == written


@pytest.mark.parametrize("clear", [("cache", "clear"), ("cache", "clear", "written")])
def test_clearing_the_cache_keeps_the_record_of_written_files(
    clear: tuple[str, ...], tmp_path: Path, own_home: Path
) -> None:
    command = ("summarize", HARBOUR, *FEW, "-o", "out.txt")
    assert ngt(*command, cwd=tmp_path).returncode == 0
    ngt(*clear)
    assert ngt(*command, cwd=tmp_path).returncode == 0
    shutil.rmtree(own_home / "cache", ignore_errors=True)  # as a cleaner of caches does
    assert ngt(*command, cwd=tmp_path).returncode == 0
    (tmp_path / "out.txt").write_text("edited")
    assert ngt(*command, cwd=tmp_path).returncode == 2


def test_a_damaged_state_overwrites_nothing(tmp_path: Path, own_home: Path) -> None:
    command = ("summarize", HARBOUR, *FEW, "-o", "out.txt")
    assert ngt(*command, cwd=tmp_path).returncode == 0
    (own_home / "state" / "ngt.db").write_bytes(b"x" * 5000)
    done = ngt(*command, cwd=tmp_path)
    assert done.returncode == 2
    assert b"ngt.db was damaged: it is renamed, and what was in it is forgotten" in done.stderr


def test_a_file_created_meanwhile_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.txt"
    check_written([out])
    out.write_text("Mine.")
    with pytest.raises(UsageError, match="was not written by ngt"):
        write_result("The answer.", out)
    assert out.read_text() == "Mine."
    assert capsys.readouterr().out == "The answer.\n"
