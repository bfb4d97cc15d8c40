"""The wheel holds all that is needed, and the README says what the checks run."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_presets_examples_and_the_model_in_20_mb(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        weights = archive.getinfo("ngtcli/builtin/model/model.safetensors")
    assert {f"ngtcli/presets/{name}.yaml" for name in ("ask", "chat", "summarize")} <= names
    assert {"ngtcli/examples/harbour.txt", "ngtcli/builtin/model/tokenizer.json"} <= names
    assert {"ngtcli/examples/questions.jsonl", "ngtcli/render/report.css"} <= names
    assert weights.file_size <= 20_000_000
    assert not any(name.startswith(("tests/", "presets/")) for name in names)


def test_an_installed_wheel_works_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """A new environment that borrows only the dependencies of this one."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    text = tmp_path / "text.txt"
    text.write_text((ROOT / "ngtcli" / "examples" / "harbour.txt").read_text())
    environ = {**os.environ, "PYTHONPATH": ""}

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(c) for c in command], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run(python, "-c", "import ngtcli; print(ngtcli.__file__)")
    assert str(tmp_path) in where
    ngt = tmp_path / "venv" / "bin" / "ngt"
    listed = run(ngt, "presets", "list")
    assert "summarize" in listed and "ask" in listed
    assert str(tmp_path) in run(ngt, "presets", "path")
    assert run(ngt, "summarize", text, "--max-tokens", "30").strip()


def test_a_bare_checkout_finds_its_presets(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ngtcli", "presets", "list"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "summarize" in done.stdout


def test_the_readmes_commands_are_those_of_the_checks() -> None:
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    assert "pip install -c constraints.txt -e '.[dev]' && pytest -n auto\n" in readme
    assert "-c constraints.txt -e '.[dev]'" in script and script.endswith("\npytest -n auto\n")
    assert "ngt summarize ngtcli/examples/harbour.txt" in readme


def test_only_the_agreed_folders_stand_at_the_top() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not tracked:
        pytest.skip("not a git checkout")
    folders = {name.split("/")[0] for name in tracked if "/" in name}
    assert {f for f in folders if not f.startswith(".")} == {"ngtcli", "tests", "presets"}
