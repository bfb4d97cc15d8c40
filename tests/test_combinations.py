"""Flags of `ngt bench` and `ngt tune` that would be ignored are refused, all of them."""

import pytest

from ngtcli.cli.app import app, load
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
        value = VALUES.get(p.name, "1")
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


IDLE = [
    name
    for name, about in SETTINGS.items()
    if name in FLAGS or Use.SET in about.uses
    if Use.REPLAYS not in about.uses and name not in ("color", "max_mb", "cache_mb")
]


@pytest.mark.parametrize(
    ("name", "replay"),
    [
        *((name, False) for name in ("task", "ids", "costs")),
        *((name, True) for name in ("docs", "prompts", *IDLE) if name in FLAGS),
    ],
)
def test_what_would_be_ignored_is_refused_before_anything_is_read(name: str, replay: bool) -> None:
    error = run("tune", *(["--replay", "nowhere"] if replay else []), *FLAGS[name])
    flag = f"--set {name}" if FLAGS[name][0] == "--set" else FLAGS[name][0]
    how = "with" if replay else "without"
    assert (str(error), error.hint) == (f"{flag} does nothing {how} --replay", "Leave it out.")


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
        (["--methods", "trie", "--method", "auto"], "--methods and --method"),
        (["--num-draft", "8", "--sweep-num-draft"], "--num-draft and --sweep-num-draft"),
        (["--methods", ""], "--methods is empty"), (["--methods", " , "], "--methods is empty"),
        (["--tasks", ","], "--tasks is empty"), (["--against", ""], "--against : unknown"),
        (["--num-draft", ""], "--num-draft is empty"),
    ],
)  # fmt: skip
def test_combinations_of_bench_that_say_nothing_are_refused(
    arguments: list[str], said: str
) -> None:
    assert said in str(run("bench", *arguments))


def test_force_means_something_only_beside_write() -> None:
    assert "--force does nothing with no file to write" in str(
        run("tune", "--force", "--sweep", "n=8")
    )
    assert "nothing to sweep" in str(run("tune", "--force", "--write", "mine"))
