"""The guard against hostile input: it can find something. What it finds is told by .ci/run."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.support.helpers import HARBOUR

if sys.platform != "linux":  # it limits memory, reads /proc and opens pseudo-terminals
    pytest.skip("the fuzzer runs on Linux", allow_module_level=True)

from tests.tools.fuzz import __main__ as fuzz
from tests.tools.fuzz.__main__ import KINDS, run_case
from tests.tools.fuzz.case import Command, Place, Result
from tests.tools.fuzz.judge import judge
from tests.tools.fuzz.run import run


@pytest.fixture
def world(tmp_path: Path) -> Place:
    """Without recordings and the answers to compare with, for which the kinds here do not ask."""
    return Place(tmp_path, tmp_path / "home", tmp_path, {})


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Has forks run Python code in place of ngt."""
    yield lambda code: monkeypatch.setattr("tests.tools.fuzz.run.PROGRAM", code)


def test_a_fault_is_reported_with_its_seed(
    world: Place, tmp_path: Path, program, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    program("raise RuntimeError('a fault put in by a test')")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # --case keeps its files
    monkeypatch.setattr(fuzz, "make_world", lambda _: world)
    kind, seed = next(fuzz.cases(3, ["questions"]))
    assert fuzz.main(["--cases", "1", "--seed", "3", "--kinds", "questions", "--jobs", "1"]) == 1
    shown = capsys.readouterr().out
    assert f"--case {kind}:{seed}" in shown and "a fault put in by a test" in shown
    assert "came: 1" in shown and "1 cases of seed 3" in shown
    assert fuzz.main(["--case", f"{kind}:{seed}"]) == 1
    assert "a fault put in by a test" in capsys.readouterr().out
    program("")
    assert not run_case(world, kind, seed).complaints


def test_cases_are_the_same_for_the_same_seed(world: Place) -> None:
    four, again, five = (list(islice(fuzz.cases(seed, list(KINDS)), 50)) for seed in (4, 4, 5))
    assert four == again != five
    first, second = run_case(world, "settings", 11), run_case(world, "settings", 11)
    assert (first.what, first.result.code) == (second.what, second.result.code)
    assert first.command.arguments == second.command.arguments


def test_a_run_that_hangs_is_ended_and_said_so(world: Place, program) -> None:
    program("import time\ntime.sleep(60)")
    asked = Command([], [0], seconds=0.3)
    result = run(asked, world)
    assert result.late
    assert judge(asked, result) == ["still running after 0.3 s"]


def test_memory_that_a_run_takes_is_seen(world: Place, program) -> None:
    program("len(bytearray(b'x') * 300_000_000)")
    asked = Command([], [0], memory=100_000_000)
    result = run(asked, world)
    assert result.code == 0 and 280_000_000 < result.memory < 600_000_000
    assert "MB more memory" in judge(asked, result)[0]


def test_a_terminal_has_the_size_that_was_asked_for(world: Place, program) -> None:
    program("import os\nprint(os.get_terminal_size(2))")
    assert "columns=33, lines=7" in run(Command([], [0], terminal=(7, 33)), world).out


@pytest.mark.parametrize("real", [False, True])
def test_streams_are_closed_full_or_gone(world: Place, real: bool) -> None:
    for streams, code in (({1: "full"}, 1), ({1: "gone"}, 0), ({0: "closed", 1: "closed"}, 0)):
        result = run(Command(["--version"], [code], streams=streams, real=real), world)
        assert (result.code, result.out) == (code, ""), streams


PLAIN = Command(["summarize", HARBOUR], [0], text="Edith Marlow.")
STOPPED = Command(["summarize"], [0, 130], text="Edith Marlow.")
SHOWN = Command(["env"], [0], terminal=(1, 1))
DUMB = Command(["env"], [0], terminal=(1, 1), environ={"TERM": "dumb"})


@pytest.mark.parametrize(
    ("asked", "code", "out", "err", "complaint"),
    [
        (PLAIN, 0, "Edith Marlow.\n", "", ""),
        (PLAIN, 1, "", "ngt: KeyError: 3\n", "exit code 1"),
        (PLAIN, 0, "Edith Marlow.\n", "Traceback (most recent call last):\n", "Traceback"),
        (PLAIN, 0, "Edith Marl\n", "", "another text"),
        (PLAIN, 0, "Edith\x1b[2J Marlow.\n", "", "U+001B on stdout"),
        (PLAIN, 0, "Edith Marlow.\n", "ngt: a\u202eb\n", "U+202E on stderr"),
        (Command(["env", "--json"], [0]), 0, "{", "", "no JSON"),
        (Command(["env"], [3]), 3, "", "ngt: a\nb\nc\nd\ne\n", "5 lines on stderr"),
        (SHOWN, 0, "\x1b[4;36ma\x1b[0m\r\n", "", ""),
        (SHOWN, 0, "\x1b]52;c;x\x07", "", "U+001B"),
        (DUMB, 0, "a\r\x1b[K\r\n", "", "U+000D on stdout"),
        (STOPPED, 130, "Edith M\n", "", ""),
        (STOPPED, 130, "Mar\n", "", "another text"),
    ],
)
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
