"""The front door: bounds of flags, --set, the short pages, and examples that run as they stand."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ngtcli.cli.app import app, load
from ngtcli.cli.options import command_line
from ngtcli.cli.setting_flags import set_values
from ngtcli.config import SETTINGS
from ngtcli.errors import UsageError
from ngtcli.system import compiled
from tests.cli.test_help import every
from tests.support import warm
from tests.support.helpers import HARBOUR, ROOT_FOLDER, ngt
from tests.tools.readme_pictures import NAMES

_NUMBERS = [
    pytest.param(words, parameter, id=f"{' '.join(words)} {parameter.opts[0]}")
    for words in every()
    if words and (command := load(words[0]))
    for parameter in (command.commands[words[1]] if len(words) > 1 else command).params
    if getattr(parameter, "min", None) is not None or getattr(parameter, "max", None) is not None
]


@pytest.mark.parametrize(("words", "parameter"), _NUMBERS)
def test_a_number_out_of_range_is_refused(words: tuple[str, ...], parameter: Any) -> None:
    beyond = [parameter.min - 1] if parameter.min is not None else []
    beyond += [parameter.max + 1] if parameter.max is not None else []
    for value in beyond:
        with pytest.raises(Exception, match="or equal to"):
            app([*words, f"{parameter.opts[0]}={value}"], standalone_mode=False)


def test_debug_may_be_the_value_of_an_option() -> None:
    done = ngt("ask", "When?", "-d", HARBOUR, "--system", "--debug", "--dry-run")
    assert done.returncode == 0
    assert b"--debug" in done.stdout
    done = ngt("ask", "--debug", "When?", "-d", "nowhere")
    assert done.returncode == 3
    assert b"Traceback" in done.stderr


def test_settings_of_each_type_are_set_by_name_and_checked() -> None:
    names = tuple(SETTINGS)
    assignments = ["num-draft=9", "temperature=0.5", "pool=no", "model=x", "template-arg=a=1"]
    assert set_values(assignments, names) == {
        "num_draft": 9,
        "temperature": 0.5,
        "pool": False,
        "model": "x",
        "template_arg": ("a=1",),
    }
    for name in ("num_draft", "temperature", "pool"):
        with pytest.raises(UsageError, match=f"--set: {name} is"):
            set_values([f"{name}=much"], names)


@pytest.mark.parametrize(
    "given",
    ["--password sesame", "--password=sesame", "--set password=sesame", "--set=password=se"],
)
def test_config_show_hides_the_password(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ngt", "ask", *given.split(), "x"])
    assert "se" not in command_line().removeprefix("ngt ask --set")
    assert "..." in command_line()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "nn=3"], "--set nn=3: not a setting of this command\nDid you mean n?"),
        (["--set", f"nn={'x' * 100}"], f"--set nn={'x' * 76}…: not a setting of this command\n"),
        (["--set", "n"], "--set n: no value\nWrite --set NAME=VALUE."),
        (
            ["--seed", "1", "--set", "seed=2"],
            "--seed and --set seed are mutually exclusive\nGive one of them.",
        ),
        (["--set", "n=99"], "--set n is 99\nGive a value from 2 to 64."),
        (
            ["--each"],
            "unknown option --each\nGive --per-file to summarize each file separately.",
        ),
        (["--n", "9"], "unknown option --n\nGive --set n=VALUE."),
        (["--no-background"], "unknown option --no-background\nGive --set background=none."),
        (["--no-packed"], "unknown option --no-packed\nGive --set packed=no."),
        (["--pool-documents"], "unknown option --pool-documents\nGive --set pool_documents=yes."),
    ],
)
def test_wrong_settings_are_errors(arguments: list[str], said: str) -> None:
    done = ngt("summarize", HARBOUR, *arguments)
    assert done.returncode == 2
    assert said in done.stderr.decode()


USE = (ROOT_FOLDER / "README.md").read_text("utf-8").split("\n## Use")[1].split("\n## ")[0]
SHOWN = re.findall(r"\$ (ngt [^\n]*)\n(.*?)(?=\n\$ |```)", USE, re.DOTALL)


def example_folder(folder: Path) -> dict[str, str]:
    """Make a folder as the README has it; the environment of commands there."""
    (folder / "ngtcli").mkdir()
    (folder / "ngtcli" / "examples").symlink_to(ROOT_FOLDER / "ngtcli" / "examples")
    (folder / "ngt").write_text(warm.COMMAND)
    (folder / "ngt").chmod(0o700)
    assert warm.run("--version").returncode == 0  # the server of forks runs
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_the_readme_has_outputs() -> None:
    assert len(SHOWN) >= 5
    assert all(output.strip() for _, output in SHOWN)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[line[:40] for line, _ in SHOWN])
def test_commands_of_the_readme_print_the_output_shown_there(
    command: str, output: str, tmp_path: Path
) -> None:
    """Except for where lines of text are broken."""
    environ = example_folder(tmp_path)
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environ, capture_output=True, check=False
    )
    assert done.stdout.decode().split() == output.split()
    assert done.returncode == (1 if "exit code 1" in command else 0)


def test_the_other_examples_of_the_readme_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", USE, re.DOTALL)
    block = "\n".join(block for block in blocks if "ngt serve" not in block)
    assert block.count("ngt ") >= 5
    environ = example_folder(tmp_path)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, env=environ, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert "1871" in json.loads((tmp_path / "answer.json").read_text())["text"]
    for name in ("summary.txt", "answer.html", "table.html"):
        assert (tmp_path / name).stat().st_size
    assert (tmp_path / "answers.jsonl").read_text().count("\n") == 1


def test_the_pictures_of_the_readme_exist_and_are_small() -> None:
    readme = (ROOT_FOLDER / "README.md").read_text("utf-8")
    pictures = re.findall(r"\]\((\.github/assets/[^)]*)\)", readme)
    assert [Path(picture).name for picture in pictures] == list(NAMES)
    assert all(0 < (ROOT_FOLDER / name).stat().st_size < 150_000 for name in pictures)


def test_quiet_prints_only_errors() -> None:
    command = ("ask", "When is the tide high?", HARBOUR, "--dry-run", "--overflow", "truncate")
    expected = ngt(*command)
    for quiet in (ngt(*command, "-q"), ngt("--quiet", *command)):
        assert quiet.returncode == 0
        assert quiet.stdout == expected.stdout
        assert quiet.stderr == b""
    assert expected.stderr
    failed = ngt("ask", "When?", "nowhere.txt", "-q")
    assert failed.returncode == 3
    assert b"nowhere.txt: no such file or folder" in failed.stderr


def test_quiet_ends_with_its_command() -> None:
    command = ("ask", "When is the tide high?", HARBOUR, "--dry-run")
    ngt(*command, "-q")
    assert ngt(*command).stderr


@pytest.mark.parametrize(
    ("short", "long"), [(("-s", "Be brief."), "--system"), (("-t", "0.7"), "--temperature")]
)
def test_system_and_temperature_have_short_flags(short: tuple[str, str], long: str) -> None:
    command = ("ask", "When is the tide high?", HARBOUR, "--dry-run")
    done = ngt(*command, *short)
    assert done.returncode == 0
    assert done.stdout == ngt(*command, long, short[1]).stdout
    assert (b"Be brief." in done.stdout) == (long == "--system")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("-t", "hot", "'hot' is not a number"),
        ("--temperature", "", "'' is not a number"),
        ("--max-tokens", "many", "'many' is not a whole number"),
        ("--limit", "1.5", "'1.5' is not a whole number"),
    ],
)
def test_a_value_that_is_not_a_number_is_named(flag: str, value: str, words: str) -> None:
    done = ngt("summarize", HARBOUR, flag, value)
    message = " ".join(done.stderr.decode().replace("│", " ").split())
    assert done.returncode == 2
    assert done.stdout == b""
    assert f"'{flag}" in message or flag == "--temperature" and "'-t'" in message
    assert words in message


def test_the_short_page_begins_with_common_options() -> None:
    lines = ngt("ask", "-h", COLUMNS="100").stdout.decode().splitlines()
    rows = [line for line in lines if line.startswith("  -")]
    begin = ["  -m, --model", "  -d, --docs", "  -o, --output", "  --cite", "  --json "]
    assert [row[: len(start)] for row, start in zip(rows, begin, strict=False)] == begin
    for command in ("ask", "batch", "extract", "bench", "tune", "check"):
        page = ngt(command, "-h", COLUMNS="100").stdout.decode()
        assert not re.search(r"--(limit|batch-size|rounds|doubt|seed) TEXT", page)


def test_show_passages_prints_with_quiet(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("The tide comes in at noon. It leaves at six in the evening. " * 40)
    command = (
        "ask",
        "When does the tide come in?",
        str(book),
        "--passages",
        "1",
        "--max-tokens",
        "2",
    )
    assert b"characters" in ngt(*command, "-v").stderr
    assert ngt(*command, "-q").stderr == b""
    assert b"characters" in ngt(*command, "-q", "--show-passages").stderr


@pytest.mark.parametrize("command", [("ask", "When?", HARBOUR, "--dry-run"), ("serve",)])
def test_quiet_and_verbose_are_mutually_exclusive(command: tuple[str, ...]) -> None:
    done = ngt(*command, "-q", "-v")
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"-q and -v are mutually exclusive" in done.stderr


@pytest.mark.parametrize("group", ["docs", "trie"])
def test_a_file_in_place_of_a_subcommand_hints_at_show(group: str, tmp_path: Path) -> None:
    (tmp_path / "my notes.txt").write_text("The tide is high at noon.")
    done = ngt(group, "my notes.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == b""
    assert f"Try ngt {group} show 'my notes.txt'.".encode() in done.stderr
    assert b"No such command" in ngt(group, "your notes.txt", cwd=tmp_path).stderr


def test_config_show_prints_the_settings_that_are_named() -> None:
    done = ngt("config", "show", "max-tokens", "temperature")
    lines = done.stdout.decode().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["setting", "max_tokens", "temperature"]
    typo = ngt("config", "show", "temperatur")
    assert typo.returncode == 2
    assert b"Did you mean temperature?" in typo.stderr


def test_clearing_the_cache_reports_compiled_code(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert b"Compiled" not in ngt("cache", "clear").stderr
    compiled.COMPILED.put("function", b"x" * 100_000)
    assert b"Compiled drafting code was removed as well" in ngt("cache", "clear").stderr
    compiled.COMPILED.put("function", b"x" * 100_000)
    assert b"Compiled" not in ngt("cache", "clear", "prefixes").stderr
