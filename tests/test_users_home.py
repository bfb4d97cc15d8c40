"""The user's cache: closed to others, another user's left alone, and no folder that is gone."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import ngtcli
from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.system.files import home, write_json
from tests.support.helpers import HARBOUR, NGT, ROOT_FOLDER, ngt

needs_model = pytest.mark.skipif(not BUILTIN_PATH.exists(), reason="no built-in model")
OTHER = 65534  # the user nobody


def modes(folder: Path, kind: object) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if kind(path)}  # type: ignore[operator]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_whatever_the_mask_what_is_kept_is_the_users_alone(mask: int, tmp_path: Path) -> None:
    code = (
        f"import os\nos.umask({mask})\nfrom ngtcli.documents.load import load\n"
        "from ngtcli.system.files import home, write_json\n"
        f"load([{str(tmp_path)!r}])\nwrite_json(home('cache') / 'a' / 'b' / 'c.json', {{}})\n"
    )
    (tmp_path / "a.json").write_text('{"tide": "noon"}')
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert modes(home("cache"), Path.is_dir) == {0o700}
    assert not stat.S_IMODE(home("cache").parent.stat().st_mode) & 0o022
    assert modes(home("cache"), Path.is_file) == {0o600}


def test_folders_of_the_cache_that_others_could_enter_are_closed_and_no_others(
    tmp_path: Path,
) -> None:
    folder = home("cache") / "documents" / "texts"
    folder.mkdir(parents=True)
    for lax in (folder, folder.parent, home("cache"), home("cache").parent):
        lax.chmod(0o777)
    write_json(folder / "a.json", {})
    assert {stat.S_IMODE(p.stat().st_mode) for p in (folder, folder.parent, home("cache"))} == {
        0o700
    }
    assert stat.S_IMODE(home("cache").parent.stat().st_mode) == 0o777
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o755)
    write_json(elsewhere / "a.json", {})
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755


PACKAGE = Path(ngtcli.__file__).parents[1]


def other_user(*command: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """A command run as another user; the test is skipped where that cannot be."""
    if os.geteuid() != 0:
        pytest.skip("only root can run as another user")
    environ = {"PATH": os.environ["PATH"], "NGT_HOME": str(home), "PYTHONPATH": str(PACKAGE),
               "TMPDIR": "/tmp"}  # fmt: skip
    try:
        return subprocess.run(
            command, user=OTHER, group=OTHER, extra_groups=[], env=environ, cwd="/",
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    except PermissionError:
        pytest.skip("another user cannot run this Python")


def test_without_ngt_home_every_kind_of_folder_is_in_the_users_home(tmp_path: Path) -> None:
    code = (
        "from ngtcli.system.files import home\n"
        "for kind in 'config', 'cache', 'state', 'run':\n    print(home(kind))"
    )
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    folders = [Path(line) for line in done.stdout.splitlines()]
    assert len(set(folders)) == 4 and all(tmp_path in folder.parents for folder in folders)


@needs_model
def test_another_users_cache_is_left_alone_with_one_line(tmp_path: Path) -> None:
    if other_user(sys.executable, "-c", "import ngtcli.cli.app", home=tmp_path).returncode:
        pytest.skip("another user cannot read this Python")
    ngt("summarize", HARBOUR, "--max-tokens", "4")
    kept = {path: path.stat().st_mtime_ns for path in home("cache").rglob("*")}
    for folder in tmp_path, *tmp_path.parents:  # so that only the cache is closed
        if folder.owner() == "root" and folder != Path("/") and folder != Path("/tmp"):
            folder.chmod(0o755)
    before = set(Path("/tmp").glob("ngt-*"))
    command = [sys.executable, "-m", "ngtcli", "summarize", HARBOUR, "--max-tokens", "4", "--json"]
    done = other_user(*command, home=home("cache").parent)
    assert done.returncode == 0 and json.loads(done.stdout)["text"]
    named = home("cache")
    line = f"ngt: the cache in {named} is another user's: set NGT_HOME to a folder of yours"
    assert done.stderr.replace("\n", " ").strip() == line
    assert {path: path.stat().st_mtime_ns for path in home("cache").rglob("*")} == kept
    assert set(Path("/tmp").glob("ngt-*")) == before  # nothing is left
    home("cache").parent.chmod(0o700)
    closed = other_user(*command, home=home("cache").parent)
    assert closed.returncode == 2 and "Set NGT_HOME to a folder of yours." in closed.stderr


@pytest.mark.parametrize(
    "command", [["docs", "list", "."], ["summarize", HARBOUR], ["env"], ["--version"]]
)
def test_a_current_folder_that_is_gone_is_told_in_two_lines(
    command: list[str], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    run = f'rmdir {gone}; exec "$@"'
    environ = {**os.environ, "PYTHONPATH": str(ROOT_FOLDER)}
    done = subprocess.run(
        ["sh", "-c", run, "sh", *NGT, *command], cwd=gone, env=environ, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ngt: the current folder is gone\ncd to another.\n"
