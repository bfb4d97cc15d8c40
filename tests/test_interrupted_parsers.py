"""Real runs of which the parsers are stopped, killed or interrupted, and the runs after them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from helpers import NGT

if not Path("/proc/self/task").is_dir():
    pytest.skip("parsers are found in /proc", allow_module_level=True)

ROWS = 600_000  # two seconds of CPU time on one machine
LIMIT_S = 8  # of CPU time; less than what the test has the run stand still
STARTED_S = 0.3  # of CPU time, then a worker parses


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "docs" / "b_large.csv"
    path.parent.mkdir()
    rows = (f"{i},name {i},{i * 7 % 1000}" for i in range(ROWS))
    path.write_text("number,name,value\n" + "\n".join(rows))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    time.sleep(2.1)  # a file that changed just before it was read is always read again
    return path


def show(*arguments: str) -> subprocess.Popen[str]:
    command = [*NGT, "docs", "show", *arguments, "--text", "--parser-seconds", str(LIMIT_S)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def parsers(run: subprocess.Popen[str]) -> list[int]:
    """The processes that a run has started."""
    found: list[str] = []
    for children in Path(f"/proc/{run.pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += children.read_text().split()
    return [int(pid) for pid in found]


def while_parsing(run: subprocess.Popen[str], act: Callable[[int], object]) -> None:
    """Call `act` with the process of a parser that is at work."""
    while run.poll() is None:
        for pid in parsers(run):
            if time.clock_gettime((~pid << 3) | 2) > STARTED_S:
                act(pid)
                return
        time.sleep(0.005)
    raise AssertionError("it ended before its file was parsed")


def check_next_run_reads(table: Path) -> None:
    done = show(str(table))
    text, told = done.communicate(timeout=120)
    assert done.returncode == 0 and told == "" and text.count("\n") >= ROWS


def test_a_run_that_stands_still_for_longer_than_the_limit_reads_its_file(table: Path) -> None:
    run = show(str(table))

    def stand_still(_: int) -> None:
        os.killpg(run.pid, signal.SIGSTOP)
        time.sleep(LIMIT_S + 1)
        os.killpg(run.pid, signal.SIGCONT)

    while_parsing(run, stand_still)
    text, told = run.communicate(timeout=120)
    assert (run.returncode, told) == (0, "") and text.count("\n") >= ROWS


def test_a_file_of_which_the_parser_was_killed_is_read_by_the_next_run(table: Path) -> None:
    run = show(str(table))
    while_parsing(run, lambda pid: os.kill(pid, signal.SIGKILL))
    _, told = run.communicate(timeout=120)
    assert run.returncode == 3 and "something else ended its parser (SIGKILL)" in told
    assert "Run it again" in told
    check_next_run_reads(table)


def test_a_file_that_was_read_beside_a_broken_one_is_read_by_the_next_run(table: Path) -> None:
    broken = table.with_name("a_broken.json")
    broken.write_text("[" + "1," * 5_000_000)  # found out while the other is parsed
    code = (
        "import sys\nfrom ngtcli.documents.load import load\nfrom ngtcli.errors import InputError\n"
        "from ngtcli.config import Settings\n"
        f"try:\n    load(sys.argv[1:], settings=Settings(parser_seconds={LIMIT_S}))\n"
        "except InputError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", code, str(broken), str(table)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "a_broken.json: broken" in first.stdout
    check_next_run_reads(table)


def test_a_file_is_read_after_a_ctrl_c_during_its_parsing(table: Path) -> None:
    run = show(str(table))
    while_parsing(run, lambda _: os.killpg(run.pid, signal.SIGINT))
    started = parsers(run)
    run.communicate(timeout=120)
    assert run.returncode == 130
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        time.sleep(0.01)
    check_next_run_reads(table)


CRASHING = """
import sys
from ngtcli.documents import parsers
from ngtcli.documents.load import load
from ngtcli.errors import InputError
parsers._CODE = "import os; os.abort()" if sys.argv[2] == "crash" else parsers._CODE
try:
    print(len(load([sys.argv[1]]).documents[0].text) > 0)
except InputError as error:
    print(error)
"""


def test_a_crash_lasts_from_the_second_run_and_says_how_to_try_again(table: Path) -> None:
    def run(how: str) -> str:
        command = [sys.executable, "-c", CRASHING, str(table), how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.strip()

    crashed = f"{table}: CSV at which its parser crashed (SIGABRT)"
    lasting = f"{crashed}, in two runs; ngt docs clear has it tried again"
    assert run("crash") == crashed
    assert run("read") == "True"  # once is not enough
    table.write_text("a,b\nc,d\n")
    os.utime(table, (1_000_000_000, 1_000_000_000))
    time.sleep(2.1)
    assert [run("crash"), run("crash"), run("read")] == [crashed, lasting, lasting]
    subprocess.run([*NGT, "docs", "clear"], check=True, capture_output=True)
    assert run("read") == "True"
