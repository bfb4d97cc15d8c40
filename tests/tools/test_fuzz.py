"""The guard against hostile input: it can find something. What it finds is told by .ci/run."""

import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from helpers import HARBOUR, ngt

if sys.platform != "linux":  # it forks, limits memory, reads /proc and opens pseudo-terminals
    pytest.skip("the fuzzer runs on Linux", allow_module_level=True)

from ngtcli.model_files.checkpoint import BUILTIN_PATH
from tests.tools.fuzz import __main__ as fuzz
from tests.tools.fuzz.__main__ import KINDS, adopt, run_case
from tests.tools.fuzz.case import Command, Place, Result, Streams, World, command
from tests.tools.fuzz.judge import judge
from tests.tools.fuzz.run import ONE_THREAD, run

pytestmark = pytest.mark.skipif(not BUILTIN_PATH.exists(), reason="no built-in model")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Without recordings and the answers to compare with, for which the kinds here do not ask."""
    folder = tmp_path_factory.mktemp("fuzz")
    made = World(folder, folder / "home", folder / "none", folder / "none", (), {})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ONE_THREAD, "NGT_HOME": str(made.home)}.items():
            patch.setenv(name, value)
        assert ngt("summarize", HARBOUR, "--max-tokens", "2").returncode == 0
        adopt(made)
        yield made


def test_an_injected_fault_is_reported_with_its_seed(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a fault put in by a test")

    monkeypatch.setattr("ngtcli.cli.reading.load", broken)  # a fork takes it over
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # --case keeps its files
    monkeypatch.setattr(fuzz, "make_world", lambda _: world)
    monkeypatch.setattr(fuzz, "warm_up", lambda: None)
    kind, seed = next(fuzz.cases(3, ["questions"]))
    assert fuzz.main(["--cases", "1", "--seed", "3", "--kinds", "questions", "--jobs", "1"]) == 1
    shown = capsys.readouterr().out
    assert f"--case {kind}:{seed}" in shown and "a fault put in by a test" in shown
    assert "came: 1" in shown and "1 cases of seed 3" in shown
    assert fuzz.main(["--case", f"{kind}:{seed}"]) == 1
    assert "a fault put in by a test" in capsys.readouterr().out
    monkeypatch.undo()
    assert not run_case(kind, seed).complaints


def test_cases_are_the_same_for_the_same_seed(world: World) -> None:
    four, again, five = (list(islice(fuzz.cases(seed, list(KINDS)), 50)) for seed in (4, 4, 5))
    assert four == again != five
    first, second = run_case("settings", 11), run_case("settings", 11)
    assert (first.what, first.code, first.command) == (second.what, second.code, second.command)


def test_a_run_that_hangs_is_ended_and_said_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.__main__.main", lambda: __import__("time").sleep(60))
    asked = command(["--version"], [0], seconds=0.3)
    result = run(asked, Place(tmp_path, tmp_path, world))
    assert result.late and result.seconds < 5
    assert judge(asked, result) == ["still running after 0.3 s"]


def test_memory_that_a_run_takes_is_seen(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.__main__.main", lambda: len(bytearray(b"x") * 300_000_000))
    asked = command(["--version"], [0], memory=100_000_000)
    result = run(asked, Place(tmp_path, tmp_path, world))
    assert result.code == 0 and 280_000_000 < result.memory < 600_000_000
    assert "MB more memory" in judge(asked, result)[0]


def test_a_terminal_has_the_size_that_was_asked_for(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngtcli.__main__.main", lambda: print(os.get_terminal_size(2)))
    streams = Streams(terminal=(7, 33))
    result = run(command([], [0], streams=streams), Place(tmp_path, tmp_path, world))
    assert "columns=33, lines=7" in result.out


PLAIN = command(["summarize", HARBOUR], [0], text="Edith Marlow.")


@pytest.mark.parametrize(
    ("asked", "code", "out", "err", "complaint"),
    [
        (PLAIN, 0, "Edith Marlow.\n", "", ""),
        (PLAIN, 1, "", "ngt: KeyError: 3\n", "exit code 1"),
        (PLAIN, 0, "Edith Marlow.\n", "Traceback (most recent call last):\n", "Traceback"),
        (PLAIN, 0, "Edith Marl\n", "", "another text"),
        (PLAIN, 0, "Edith\x1b[2J Marlow.\n", "", "U+001B on stdout"),
        (PLAIN, 0, "Edith Marlow.\n", "ngt: a\u202eb\n", "U+202E on stderr"),
        (command(["env", "--json"], [0]), 0, "{", "", "no JSON"),
        (command(["env"], [3]), 3, "", "ngt: a\nb\nc\nd\ne\n", "5 lines on stderr"),
        (command(["env"], [0], streams=Streams((1, 1))), 0, "\x1b[4;36ma\x1b[0m\r\n", "", ""),
        (command(["env"], [0], streams=Streams((1, 1))), 0, "\x1b]52;c;x\x07", "", "U+001B"),
        (
            command(["env"], [0], streams=Streams((1, 1)), environ={"TERM": "dumb"}),
            0, "a\r\x1b[K\r\n", "", "U+000D on stdout",
        ),
        (command(["summarize"], [0, 130], text="Edith Marlow."), 130, "Edith M\n", "", ""),
        (command(["summarize"], [0, 130], text="Edith Marlow."), 130, "Mar\n", "", "another text"),
    ],
)  # fmt: skip
def test_a_judge_says_what_is_wrong(
    asked: Command, code: int, out: str, err: str, complaint: str
) -> None:
    found = judge(asked, Result(code, out, err, 0.1, 0))
    assert (not found) if not complaint else complaint in " ".join(found)


@pytest.mark.parametrize("given", [["--case", "names"], ["--kinds", "nonesuch"], ["--kinds", ""]])
def test_wrong_usage_ends_with_code_2(given: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fuzz.main(given)
    assert ended.value.code == 2
