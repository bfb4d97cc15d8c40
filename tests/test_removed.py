"""Commands, flags and settings that have left: an error says what to use instead."""

from pathlib import Path

import pytest

from ngtcli import removed
from ngtcli.cli.app import COMMANDS
from ngtcli.config import SETTINGS
from tests.support.helpers import HARBOUR, ngt


@pytest.mark.parametrize("name", removed.COMMANDS)
@pytest.mark.parametrize("more", [(), ("--json",), ("x", "--help")])
def test_a_removed_command_says_what_to_use_instead(name: str, more: tuple[str, ...]) -> None:
    done = ngt(*name.split(), *more)
    what = f"ngt: the command ngt {name} was removed\n{removed.COMMANDS[name]}\n"
    assert done.returncode == 2
    assert done.stderr.decode() == what
    assert done.stdout == b""


def test_a_file_with_the_name_of_a_removed_command_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quality").write_text("The harbour was built in 1870.")
    done = ngt("bench", "quality", "--method", "nothing")
    assert done.returncode == 2
    assert b"nothing" in done.stderr  # what else is wrong
    assert b"was removed" not in done.stderr


@pytest.mark.parametrize("name", removed.FLAGS)
def test_a_removed_flag_says_what_to_use_instead(name: str) -> None:
    *command, flag = name.split()
    done = ngt(*(command or ["ask"]), flag, "x")
    what = f"ngt: unknown option {flag}\n{removed.FLAGS[name]}\n"
    assert done.returncode == 2
    assert done.stderr.decode() == what


@pytest.mark.parametrize("name", removed.SETTINGS)
def test_a_removed_setting_says_what_to_do(name: str, own_home: Path) -> None:
    by_flag = ngt("summarize", HARBOUR, "--set", f"{name}=yes", "--dry-run")
    assert by_flag.returncode == 2
    assert removed.SETTINGS[name] in by_flag.stderr.decode()
    by_variable = ngt("config", "show", **{f"NGT_{name.upper()}": "yes"})
    assert by_variable.returncode == 0
    assert removed.SETTINGS[name] in by_variable.stderr.decode()
    file = own_home / "config" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{name}: true\n")
    by_file = ngt("summarize", HARBOUR, "--dry-run")
    says = f"ngt: {file}: the setting {name} was removed\n{removed.SETTINGS[name]}\n"
    assert by_file.returncode == 2
    assert by_file.stderr.decode() == says


def test_what_is_there_is_not_called_removed() -> None:
    assert not removed.COMMANDS.keys() & COMMANDS.keys()
    assert not removed.SETTINGS.keys() & SETTINGS.keys()
