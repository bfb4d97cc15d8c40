"""What Tab offers, asked as the shells ask; quick, and silent whatever is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ngtcli.cli.app import app
from ngtcli.drafting.registry import method_names


def tab(line: str, **environ: str) -> list[str]:
    """What bash is offered after `line`; a word begins anew after a space."""
    words = line.split(" ")
    asked = {
        "_NGT_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": f"{len(words) - 1}",
    }
    done = CliRunner().invoke(app, [], env={**asked, **environ}, prog_name="ngt")
    assert done.stderr == ""
    assert done.exit_code == 0
    return done.stdout.split()


def test_methods_settings_and_values_are_completed() -> None:
    assert tab("ngt ask --method ") == method_names()
    assert tab("ngt tune --method tr") == ["trie", "trtllm"]
    assert tab("ngt ask x --set par") == ["parser_seconds=", "parser_mb="]
    assert tab("ngt ask x --set packed=") == ["packed=yes", "packed=no"]
    assert tab("ngt summarize ") == []  # files are the shell's


def test_completing_a_removed_command_prints_nothing() -> None:
    for words in ("runs", "heads", "bench quality"):
        tab(f"ngt {words} ")  # asserts that stderr is empty


def test_broken_presets_are_completed_too(own_home: Path) -> None:
    folder = own_home / "config" / "presets"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("[")
    for line in ("ngt ask -p ", "ngt summarize --preset ", "ngt presets show "):
        assert tab(line) == ["ask", "chat", "extract", "generate", "mine", "summarize"]
    assert tab("ngt ask -p m") == ["mine"]


def test_models_are_completed_and_folders_are_left_to_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    for name in ("models--Qwen--Qwen2.5-7B", "models--gpt2", "datasets--a--b"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert tab("ngt summarize -m ") == ["builtin", "Qwen/Qwen2.5-7B", "gpt2"]
    assert tab("ngt summarize --model Q") == ["Qwen/Qwen2.5-7B"]
    assert tab("ngt ask x --set draft_model=g") == ["draft_model=gpt2"]
    assert tab("ngt summarize -m models/") == []


def test_completion_does_not_report_wrong_settings(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ngt.yaml").write_text("[")
    environ = {"NGT_HOME": "~nobody-of-this-name", "NGT_NUM_DRAFTS": "1"}
    assert tab("ngt summarize -p ", **environ) == []
    assert tab("ngt summarize --device c", **environ) == ["cuda", "cpu"]


def test_completion_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import os, sys\nfrom ngtcli.cli.app import app\n"
        "for words in ('ngt ask --method tr', 'ngt ask -m b', 'ngt ask -p a'):\n"
        "    os.environ |= {'_NGT_COMPLETE': 'complete_bash', 'COMP_WORDS': words,\n"
        "                   'COMP_CWORD': '3'}\n"
        "    try:\n        app([], prog_name='ngt')\n    except SystemExit:\n        pass\n"
        "heavy = {'torch', 'transformers', 'numba'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.split() == ["trie", "trtllm", "builtin", "ask"]
