"""Which flags of `ngt bench` and `ngt tune` mean something with which way of measuring.

One table a command, with every parameter of it: a flag that would be ignored is refused. What
settings files and the environment say is for all commands and is never refused.
"""

from collections.abc import Mapping

import typer

from ngtcli.config import DRAFTING, READING, RETRIEVING
from ngtcli.errors import UsageError

LIVE, RECORD, REPLAY, SHAPE = "live", "record", "replay", "shape"
_ALL = (LIVE, RECORD, REPLAY, SHAPE)
_MODEL, _DRAFTS, _REPLAYS = (LIVE, RECORD), (LIVE, REPLAY, SHAPE), (REPLAY, SHAPE)
_TIMED = (LIVE, SHAPE)
_SAMPLING = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "stop",
)  # fmt: skip
_FOLDERS = tuple(name for name in READING if name != "max_mb")
_LOADING = ("model", "overflow", *RETRIEVING, "draft_from", "exact")
_COMPUTING = ("device", "dtype", "threads", "capture", "compile", "packed")
Table = Mapping[str, tuple[str, ...]]

BENCH: Table = {
    **dict.fromkeys(("tasks", "limit", "preset", "json", "output", "verbose", "color"), _ALL),
    **dict.fromkeys(("max_mb", "cache_mb"), _ALL),
    **dict.fromkeys(_FOLDERS, _MODEL),
    **dict.fromkeys(("files", "docs", "prompts", "noise", *_LOADING, *_SAMPLING), _MODEL),
    **dict.fromkeys(_COMPUTING, (LIVE, RECORD, SHAPE)),
    **dict.fromkeys(("methods", "background", "no_background", *DRAFTING), _DRAFTS),
    **dict.fromkeys(("sweep_num_draft", "fresh", "markdown", "html"), _DRAFTS),
    **dict.fromkeys(("against", "rounds", "pool", "pool_documents", "calibrate"), _TIMED),
    **dict.fromkeys(("quality", "draft_model"), (LIVE,)),
    **dict.fromkeys(("replay", "shape", "template", "turns", "ids"), _REPLAYS),
    "record": (RECORD,),
}
TUNE: Table = {
    **dict.fromkeys(("items", "sweep", "limit", "rounds", "preset", "state", "fresh"), _DRAFTS),
    **dict.fromkeys(("write", "force", "markdown", "csv", "html", "output", "json"), _DRAFTS),
    **dict.fromkeys(("verbose", "color", "pool", "pool_documents", "max_mb", "cache_mb"), _DRAFTS),
    **dict.fromkeys(_FOLDERS, (LIVE,)),
    **dict.fromkeys(("background", "no_background", *DRAFTING), _DRAFTS),
    **dict.fromkeys(("docs", "prompts", "draft_model", "calibrate"), (LIVE,)),
    **dict.fromkeys((*_LOADING, *_COMPUTING, *_SAMPLING), (LIVE,)),
    **dict.fromkeys(("replay", "task", "ids", "costs"), (REPLAY,)),
}
# Flags that mean something only beside another one.
_BESIDE = {"force": "write"}
# Of these an empty text would stand for the default.
_NAMED = ("methods", "tasks", "against", "num_draft", "template", "turns", "ids", "shape")
# Two ways to say one thing.
_EITHER = (("methods", "method"), ("num_draft", "sweep_num_draft"))


def check_combination(context: typer.Context, table: Table, mode: str) -> None:
    """Raise UsageError where the command line that runs has a flag that would be ignored."""
    given = _given(context)
    check_given(table, mode, {name: flag for name, (flag, _) in given.items()})
    for name in _NAMED:
        flag, value = given.get(name, ("", "some"))
        if isinstance(value, str) and not value.strip(" ,"):
            raise UsageError(f"{flag} is empty", "Give it a value, or leave it out.")


def _given(context: typer.Context) -> dict[str, tuple[str, object]]:
    """The parameters that stand on the command line: each as it is written, and its value."""
    found = {}
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params.get(name)
            written = parameter.secondary_opts if value is False else parameter.opts
            flag = max(written or parameter.opts, key=len)
            found[name] = (flag if flag.startswith("-") else "naming texts", value)
    return found


def check_given(table: Table, mode: str, given: Mapping[str, str]) -> None:
    """Raise UsageError for what does nothing in `mode`; `given` maps parameters to their flags."""
    idle = [flag for name, flag in given.items() if mode not in table[name]]
    if idle:
        where = f"with --{mode}"
        if mode == LIVE:
            needed = next(table[name] for name, flag in given.items() if flag == idle[0])
            where = f"without --{needed[0]}"
        does = "does" if len(idle) == 1 else "do"
        it = "it" if len(idle) == 1 else "them"
        raise UsageError(f"{', '.join(idle)} {does} nothing {where}", f"Leave {it} out.")
    for name, other in _BESIDE.items():
        if name in given and other not in given:
            raise UsageError(f"{given[name]} does nothing without --{other}", "Leave it out.")
    for one, two in _EITHER:
        if one in given and two in given:
            raise UsageError(f"{given[one]} and {given[two]}", "Give one of them.")
