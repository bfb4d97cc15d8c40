"""The wheel has all that is needed, and the README names the commands that the checks run."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import ngtcli
from ngtcli.models.checkpoint import BUILTIN_PATH

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_presets_examples_and_the_model_in_20_mb(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        weights = archive.getinfo("ngtcli/builtin/model/model.safetensors")
    assert {f"ngtcli/presets/{name}.yaml" for name in ("ask", "chat", "summarize")} <= names
    assert {"ngtcli/examples/harbour.txt", "ngtcli/builtin/model/tokenizer.json"} <= names
    assert {"ngtcli/questions.jsonl", "ngtcli/render/page.css"} <= names
    assert {"ngtcli/drafting/background/english.phrases.xz", "ngtcli/manual/documents.md"} <= names
    assert weights.file_size <= 20_000_000
    assert not any(name.startswith(("tests/", "presets/")) for name in names)


def test_no_folder_of_the_wheel_bears_the_name_of_a_module(wheel: Path) -> None:
    """Python would import the folder, and the module would be out of reach."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    modules = {name.removesuffix(".py") for name in names if name.endswith(".py")}
    folders = {parent.as_posix() for name in names for parent in Path(name).parents}
    assert "ngtcli/presets" in folders and "ngtcli/prompts/preset" in modules
    assert not modules & folders


LIGHT = [
    "--version",
    "--help",
    "summarize text.txt --dry-run",
    "ask -d text.txt Who? --dry-run",
    "presets list",
    "presets show ask",
    "config show",
    "models list",
    "trie build text.txt",
    "trie list",
    "trie show text.txt",
    "cache clear tries",
    "cache path",
    "env",
    "schema check",
    "bench --help",
    "tune --help",
    "check --help",
]


# Runs each command in turn in one process, and names the first that fails.
RUN_EACH = """
import sys
from ngtcli.cli.app import run

for command in sys.argv[1:]:
    sys.argv = ["ngt", *command.split()]
    if code := run():
        sys.exit(f"{command}: exit code {code}")
"""


def test_an_installed_wheel_works_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """A new environment borrows this one's dependencies, which come after its own packages.

    They are taken from `sys.path`, since they need not be in `purelib`.
    """
    assert wheel.name.startswith("ngtcli-")
    scripts = tmp_path / "venv" / "bin"
    python = scripts / "python"
    has_pip = find_spec("pip") is not None  # pip in the new environment takes 4 s
    venv.create(tmp_path / "venv", with_pip=not has_pip)
    if has_pip:
        pip = [sys.executable, "-m", "pip", "--python", python]
    else:
        pip = [python, "-m", "pip"]
    subprocess.run([*pip, "install", "-q", "--no-deps", wheel], check=True)

    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    borrowed = [path for path in sys.path if path and Path(path).name == "site-packages"]
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))

    text = tmp_path / "text.txt"
    text.write_text((ROOT / "ngtcli" / "examples" / "harbour.txt").read_text())
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "compiled")}
    environment.pop("PYTHONPATH", None)

    def run(*command: object) -> str:
        process = subprocess.run(
            [str(word) for word in command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, (command, process.stderr)
        return process.stdout

    package = run(python, "-c", "import ngtcli; print(ngtcli.__file__)")
    assert package.startswith(str(tmp_path))
    run(python, "-c", RUN_EACH, *LIGHT)

    ngt = scripts / "ngt"
    assert run(ngt, "--version") == f"ngt {ngtcli.__version__}\n"
    assert "summarize" in run(ngt, "presets", "list")
    assert str(tmp_path) in run(ngt, "env")
    assert json.loads(run(ngt, "env", "--json"))["ngt"] == ngtcli.__version__
    answer = ("summarize", text, "--max-tokens", "30", "--method", "trie")
    assert run(ngt, *answer).startswith("The harbour")


def test_a_bare_checkout_finds_its_presets(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "ngtcli", "presets", "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "summarize" in process.stdout


def test_the_readmes_commands_are_those_of_the_checks() -> None:
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    assert "pip install -c constraints.txt -e '.[dev]' && pytest -n auto\n" in readme
    assert "-c constraints.txt -e '.[dev]'" in script
    assert "pytest -n auto" in script
    assert "ngt summarize ngtcli/examples/harbour.txt" in readme


def test_only_the_agreed_folders_stand_at_the_top() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if not tracked:
        pytest.skip("not a git checkout")
    folders = {name.split("/")[0] for name in tracked if "/" in name}
    assert {f for f in folders if not f.startswith(".")} == {"ngtcli", "tests", "presets"}


def test_what_ships_is_small_documented_and_complete() -> None:
    names = {f.name for f in BUILTIN_PATH.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= names
    assert (BUILTIN_PATH / "model.safetensors").stat().st_size <= 20_000_000
    card = (BUILTIN_PATH / "README.md").read_text()
    for source in ("eips", "peps", "rust-rfcs", "scitldr", "newwiki-qa", "qmsum", "sherlock"):
        assert source in card
