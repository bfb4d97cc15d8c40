"""Flags of `ngt bench` and `ngt tune` that would be ignored are refused, all of them."""

import pytest

from ngtcli.cli.app import app, load
from ngtcli.cli.measuring import LIVE, REPLAY, rules_of
from ngtcli.cli.tune import TuneFlags
from ngtcli.config import SETTINGS, Use
from ngtcli.errors import UsageError

KINDS: dict[type, str] = {bool: "yes", tuple: "a=1"}
VALUES = {"ids": "odd"} | {
    name: KINDS.get(about.kind, str(about.default or 1)) for name, about in SETTINGS.items()
}


def flags_of(command: str) -> dict[str, list[str]]:
    """Each parameter of a command as it is given on a command line."""
    found = {}
    for p in load(command).params:
        value = VALUES[p.name] if p.name == "ids" else "1"
        if p.param_type_name == "argument":
            found[p.name] = [value]
        elif p.name == "set":
            names = [one.value[:-1] for one in p.shell_complete(None, "")]
            alone = [name for name in names if Use.SET in SETTINGS[name].uses]
            found |= {name: ["--set", f"{name}={VALUES[name]}"] for name in alone}
        elif not p.hidden:
            found[p.name] = [max(p.opts, key=len), *([] if p.is_flag else [value])]
    return found


FLAGS = flags_of("tune")


def run(command: str, *arguments: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        app([command, *arguments], standalone_mode=False)
    return caught.value


TUNE = {name: rule.only for name, rule in rules_of(TuneFlags).items() if name in FLAGS}


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (mode, name)
        for mode in (LIVE, REPLAY)
        for name, only in TUNE.items()
        if only not in ("", mode) and name != REPLAY
    ],
)
def test_what_would_be_ignored_is_refused_before_anything_is_read(mode: str, name: str) -> None:
    start = [] if mode == LIVE else ["--replay", "nowhere"]
    error = run("tune", *start, *FLAGS[name])
    flag = FLAGS[name][0] if FLAGS[name][0].startswith("-") else "naming texts"
    flag = f"--set {name}" if flag == "--set" else flag
    assert str(error).startswith(f"{flag} does nothing with") and error.exit_code == 2
    assert ("without" in str(error)) == (mode == LIVE) and error.hint == "Leave it out."


def test_commands_of_bench_have_the_flags_that_mean_something_to_them() -> None:
    live, replay, record, quality = (
        set(flags_of(name)) for name in ("bench", "bench replay", "bench record", "bench quality")
    )
    assert {"methods", "rounds", "against", "model", "pool", "heads", "files"} <= live
    assert {"methods", "ids", "n", "background", "max_mb"} <= replay
    assert not replay & {"model", "files", "rounds", "temperature", "heads", "calibrate", "exact"}
    assert {"folder", "files", "docs", "temperature", "model", "exact"} <= record
    assert not record & {"methods", "html", "num_draft", "n", "rounds"}
    assert {"files", "dtype", "html"} <= quality
    assert not quality & {"methods", "docs", "temperature", "exact", "num_draft"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replay", "x"], "--replay is no flag any more"),
        (["x", "--record=y"], "--record is no flag any more"),
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
