"""Tests of the fuzzer: it finds faults, and judges results rightly. .ci/run runs the fuzzer."""

import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from ngtcli.errors import unexpected
from tests.support.helpers import HARBOUR

if sys.platform != "linux":  # The fuzzer limits memory, reads /proc and opens pseudo-terminals.
    pytest.skip("the fuzzer runs on Linux", allow_module_level=True)

from tests.tools.fuzz import __main__ as fuzz
from tests.tools.fuzz.__main__ import KINDS, run_case
from tests.tools.fuzz.case import Command, Place, Result
from tests.tools.fuzz.judge import judge
from tests.tools.fuzz.run import run


@pytest.fixture
def world(tmp_path: Path) -> Place:
    """A world without caches and known answers, which the kinds of cases here do not need."""
    return Place(work=tmp_path, home=tmp_path / "home", shared=tmp_path, answers={})


@pytest.fixture
def set_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that makes forks run Python code instead of ngt."""

    def set_program(code: str) -> None:
        monkeypatch.setattr("tests.tools.fuzz.run.PROGRAM", code)

    return set_program


def test_a_fault_is_reported_with_its_seed(
    world: Place, tmp_path: Path, set_program, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    set_program("raise RuntimeError('a fault put in by a test')")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # --case keeps its files there
    monkeypatch.setattr(fuzz, "make_world", lambda _: world)
    kind, seed = next(fuzz.cases(3, ["questions"]))

    code = fuzz.main(["--cases", "1", "--seed", "3", "--kinds", "questions", "--jobs", "1"])
    report = capsys.readouterr().out
    assert code == 1
    assert f"--case {kind}:{seed}" in report
    assert "a fault put in by a test" in report
    assert "got: 1" in report
    assert "1 cases of seed 3" in report

    code = fuzz.main(["--case", f"{kind}:{seed}"])
    assert code == 1
    assert "a fault put in by a test" in capsys.readouterr().out

    set_program("")
    assert not run_case(world, kind, seed).complaints


def test_kinds_and_seeds_depend_only_on_the_seed() -> None:
    kinds = list(KINDS)
    cases = list(islice(fuzz.cases(4, kinds), 50))

    assert list(islice(fuzz.cases(4, kinds), 50)) == cases
    assert list(islice(fuzz.cases(5, kinds), 50)) != cases


def test_a_case_is_the_same_for_the_same_seed(world: Place) -> None:
    first = run_case(world, "settings", 11)
    second = run_case(world, "settings", 11)

    assert first.description == second.description
    assert first.command.arguments == second.command.arguments
    assert first.result.code == second.result.code


def test_a_run_that_hangs_is_killed_and_reported(world: Place, set_program) -> None:
    set_program("import time\ntime.sleep(60)")
    command = Command([], [0], seconds=0.3)

    result = run(command, world)

    assert result.late
    assert judge(command, result) == ["still running after 0.3 s"]


def test_the_memory_of_a_run_is_measured(world: Place, set_program) -> None:
    set_program("len(bytearray(b'x') * 300_000_000)")
    command = Command([], [0], memory=100_000_000)

    result = run(command, world)

    assert result.code == 0
    assert 280_000_000 < result.memory < 600_000_000
    assert "MB more memory" in judge(command, result)[0]


def test_a_terminal_has_the_size_of_the_command(world: Place, set_program) -> None:
    set_program("import os\nprint(os.get_terminal_size(2))")

    result = run(Command([], [0], terminal=(7, 33)), world)

    assert "columns=33, lines=7" in result.out


@pytest.mark.parametrize("new_process", [False, True])
def test_streams_are_closed_full_or_gone(world: Place, new_process: bool) -> None:
    for streams, code in (({1: "full"}, 1), ({1: "gone"}, 0), ({0: "closed", 1: "closed"}, 0)):
        command = Command(["--version"], [code], streams=streams, new_process=new_process)
        result = run(command, world)
        assert result.code == code, streams
        assert result.out == "", streams


# An exception whose name does not say so, where an error is expected: only the hint gives it away.
UNEXPECTED = f"ngt: {unexpected(StopIteration(3))}\n{unexpected(StopIteration(3)).hint}\n"

ANSWER = Command(["summarize", HARBOUR], [0], answer="Edith Marlow.")
INTERRUPTED = Command(["summarize"], [0, 130], answer="Edith Marlow.")
JSON = Command(["env", "--json"], [0])
BAD_INPUT = Command(["env"], [3])
FULL_STDOUT = Command(["env"], [1])
TERMINAL = Command(["env"], [0], terminal=(1, 1))
DUMB_TERMINAL = Command(["env"], [0], terminal=(1, 1), environ={"TERM": "dumb"})


@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        (ANSWER, 0, "Edith Marlow.\n", ""),
        (TERMINAL, 0, "\x1b[4;36ma\x1b[0m\r\n", ""),
        (INTERRUPTED, 130, "Edith M\n", ""),
    ],
)
def test_a_right_result_gets_no_complaint(command: Command, code: int, out: str, err: str) -> None:
    assert judge(command, Result(code, out, err, 0.1, 0)) == []


@pytest.mark.parametrize(
    ("command", "code", "out", "err", "complaint"),
    [
        (ANSWER, 1, "", "ngt: KeyError: 3\n", "exit code 1"),
        (ANSWER, 0, "Edith Marlow.\n", "Traceback (most recent call last):\n", "Traceback"),
        (ANSWER, 0, "Edith Marl\n", "", "another text"),
        (ANSWER, 0, "Edith\x1b[2J Marlow.\n", "", "U+001B on stdout"),
        (ANSWER, 0, "Edith Marlow.\n", "ngt: a\u202eb\n", "U+202E on stderr"),
        (JSON, 0, "{", "", "not JSON"),
        (BAD_INPUT, 3, "", "ngt: a\nb\nc\nd\ne\n", "5 lines on stderr"),
        (FULL_STDOUT, 1, "", UNEXPECTED, "--debug"),
        (TERMINAL, 0, "\x1b]52;c;x\x07", "", "U+001B"),
        (DUMB_TERMINAL, 0, "a\r\x1b[K\r\n", "", "U+000D on stdout"),
        (INTERRUPTED, 130, "Mar\n", "", "another text"),
    ],
)
def test_a_wrong_result_gets_a_complaint(
    command: Command, code: int, out: str, err: str, complaint: str
) -> None:
    complaints = judge(command, Result(code, out, err, 0.1, 0))

    assert complaint in " ".join(complaints)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "names"], "has no seed"),
        (["--case", "nonesuch:1"], "unknown kind nonesuch"),
        (["--kinds", "nonesuch"], "unknown kind nonesuch"),
        (["--kinds", ""], "names no kind"),
    ],
)
def test_a_usage_error_ends_with_code_2(arguments: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as exit_info:
        fuzz.main(arguments)

    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
