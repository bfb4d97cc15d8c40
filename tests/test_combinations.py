"""Flags of `ngt bench` and `ngt tune` that would be ignored are refused, all of them."""

from pathlib import Path
from typing import Any

import pytest

from ngtcli.cli.app import app, load
from ngtcli.cli.checks import BENCH, LIVE, QUALITY, RECORD, REPLAY, TUNE, Table
from ngtcli.errors import UsageError
from ngtcli.measure.traces import TraceWriter, read_traces
from tests.support.helpers import END

COMMANDS: dict[str, Any] = {name: load(name) for name in ("bench", "tune")}
VALUES = {"methods": "trie", "num_draft": "8", "tasks": "qa", "turns": "all", "ids": "odd"}


def flags_of(command: str) -> dict[str, list[str]]:
    """Each parameter of a command as it is given on a command line."""
    found = {}
    for p in COMMANDS[command].params:
        value = VALUES.get(p.name, "1")
        if p.param_type_name == "argument":
            found[p.name] = [value]
        else:
            found[p.name] = [max(p.opts, key=len), *([] if p.is_flag else [value])]
    return found


def run(command: str, *arguments: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        app([command, *arguments], standalone_mode=False)
    return caught.value


@pytest.mark.parametrize(("command", "table"), [("bench", BENCH), ("tune", TUNE)])
def test_the_table_says_of_every_flag_where_it_means_something(command: str, table: Table) -> None:
    assert {p.name for p in COMMANDS[command].params} == set(table)


REFUSED = [
    (command, mode, name)
    for command, table in (("bench", BENCH), ("tune", TUNE))
    for mode in ((LIVE, RECORD, REPLAY, QUALITY) if command == "bench" else (LIVE, REPLAY))
    for name, where in table.items()
    if mode not in where and name not in (RECORD, REPLAY)
]


@pytest.mark.parametrize(("command", "mode", "name"), REFUSED)
def test_what_would_be_ignored_is_refused_before_anything_is_read(
    command: str, mode: str, name: str
) -> None:
    start = [] if mode == LIVE else [f"--{mode}", "nowhere"]
    given = flags_of(command)[name]
    error = run(command, *start, *given)
    flag = given[0] if given[0].startswith("-") else "naming texts"
    assert str(error).startswith(f"{flag} does nothing with") and error.exit_code == 2
    assert ("without" in str(error)) == (mode == LIVE) and error.hint == "Leave it out."


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replay", "x", "--rounds", "2", "--no-quality"], "--rounds, --no-quality do nothing"),
        (["--replay", "x", "--record", "y"], "--record does nothing with --replay"),
        (["--record", "x", "--html", "b.html"], "--html does nothing with --record"),
        (["--methods", "trie", "--method", "auto"], "--methods and --method"),
        (["--num-draft", "8", "--sweep-num-draft"], "--num-draft and --sweep-num-draft"),
        (["--methods", ""], "--methods is empty"), (["--methods", " , "], "--methods is empty"),
        (["--tasks", ","], "--tasks is empty"), (["--against", ""], "--against is empty"),
        (["--num-draft", ""], "--num-draft is empty"),
    ],
)  # fmt: skip
def test_combinations_of_bench_that_say_nothing_are_refused(
    arguments: list[str], said: str
) -> None:
    assert said in str(run("bench", *arguments))


def test_force_means_something_only_beside_write() -> None:
    assert "--force does nothing without --write" in str(run("tune", "--force", "--sweep", "n=8"))
    assert "nothing to sweep" in str(run("tune", "--force", "--write", "mine"))


def test_a_recording_of_our_own_has_no_template_and_no_turns(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "r", "print", "tiny", 97) as writer:
        writer.add("1", "a", [1, 2], [3, END])
    assert len(read_traces(tmp_path / "r").traces) == 1
    for wrong in ({"template": "vicuna"}, {"turns": "all"}):
        with pytest.raises(UsageError, match="of one turn each"):
            read_traces(tmp_path / "r", **wrong)
    with pytest.raises(UsageError, match="no turns 'frist'") as caught:
        read_traces(tmp_path / "r", turns="frist")
    assert caught.value.hint == "Did you mean first?"
