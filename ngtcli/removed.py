"""Commands, flags and settings that ngt once had, each with the hint of the error about it."""

import os

_SPEED = "Each answer shows its speed below it; -v shows it in full, and --json has it."
OWN_BACKGROUNDS = (
    "ngt no longer keeps backgrounds of your own: use such a text as a document (-d), or give"
    " --predict a text that the answer will resemble."
)
_TYPED = "In ngt chat, --set history=no stores nothing that you type."

_IN_A_CLONE = "In a clone of ngt's repository: python -m tests.tools."
_NO_PAGES = "ngt bench and ngt tune no longer write HTML or Markdown: use --json."
_NO_REPLAY = (
    "ngt tune measures on a model. In a clone of ngt's repository, python -m tests.tools.replay"
    " measures methods on a recording."
)

COMMANDS = {
    "runs": _SPEED,
    "bench replay": f"{_IN_A_CLONE}replay RECORDING",
    "bench record": f"{_IN_A_CLONE}record RECORDING",
    "bench quality": f"{_IN_A_CLONE}quality",
    "heads": "ngt uses heads as they are published: give --heads FOLDER. In a clone of ngt's"
    " repository, python -m tests.tools.heads trains one.",
}
# By flag, or by command and flag where other commands have a flag of that name.
FLAGS = {
    "--reduce": 'Ask about the answers themselves: ngt ask "Which of them agree?" answers.csv',
    "--log": _SPEED,
    "--no-log": f"ngt no longer keeps a log of answers: leave the flag out. {_TYPED}",
    "--log-text": _SPEED,
    "trie build --background": OWN_BACKGROUNDS,
    "bench --replay": f"{_IN_A_CLONE}replay RECORDING",
    "bench --record": f"{_IN_A_CLONE}record RECORDING",
    "bench --quality": f"{_IN_A_CLONE}quality",
    "bench --no-quality": "ngt bench no longer judges answers: leave the flag out.",
    "bench --shape": f"{_IN_A_CLONE}shapes",
    "bench --noise": f"{_IN_A_CLONE}datasets",
    "bench --sweep-num-draft": "Give --num-draft 4,8,16,32,64,128.",
    "bench --ids": f"{_IN_A_CLONE}replay RECORDING --ids odd",
    "bench --html": _NO_PAGES,
    "bench --markdown": _NO_PAGES,
    "tune --html": _NO_PAGES,
    "tune --markdown": _NO_PAGES,
    "tune --replay": _NO_REPLAY,
    "tune --task": _NO_REPLAY,
    "tune --ids": _NO_REPLAY,
    "tune --costs": _NO_REPLAY,
}
# Of settings files, variables and --set.
SETTINGS = {
    "log": f"ngt no longer keeps a log of answers: remove this setting. {_TYPED}",
    "log_text": "ngt no longer keeps a log of answers: remove this setting.",
}


def removed_command(words: list[str]) -> tuple[str, str] | None:
    """Return the removed command that a command line begins with, and its hint; None without.

    If the second of two words is a file or a folder, the command reads that.

    >>> removed_command(["runs", "stats"])[0]
    'runs'
    """
    pair, first = " ".join(words[:2]), " ".join(words[:1])
    if pair in COMMANDS and (pair == first or not os.path.exists(words[1])):
        return pair, COMMANDS[pair]
    if first in COMMANDS:
        return first, COMMANDS[first]
    return None


def removed_flag(command: str, flag: str) -> str:
    """Return what to do instead of a removed flag of a command; "" for a flag that never was.

    >>> removed_flag("bench", "--sweep-num-draft")
    'Give --num-draft 4,8,16,32,64,128.'
    """
    return FLAGS.get(f"{command} {flag}") or FLAGS.get(flag, "")
