"""Commands, flags and settings that ngt once had, each with what to do instead.

Whoever still gives one is told so in an error, with that sentence as its hint.
"""

_SPEED = "Each answer shows its speed below it; -v shows it in full, and --json has it."
_TYPED = "In ngt chat, --set history=no keeps nothing of what is typed."

COMMANDS = {
    "runs": _SPEED,
}
# By flag, or by command and flag where other commands have a flag of that name.
FLAGS = {
    "--log": _SPEED,
    "--no-log": f"ngt keeps no log of answers any more: leave the flag out. {_TYPED}",
    "--log-text": _SPEED,
    "bench --replay": "Give ngt bench replay RECORDING.",
    "bench --record": "Give ngt bench record RECORDING.",
    "bench --quality": "Give ngt bench quality.",
    "bench --shape": "In a clone: python -m tests.tools.shapes.",
    "bench --noise": "In a clone: python -m tests.tools.datasets.",
}
# Of settings files, variables and --set.
SETTINGS = {
    "log": f"ngt keeps no log of answers any more: remove this setting. {_TYPED}",
    "log_text": "ngt keeps no log of answers any more: remove this setting.",
}


def removed_command(words: list[str]) -> tuple[str, str] | None:
    """The removed command that `words` begin with, and its hint; None if there is none.

    >>> removed_command(["runs", "stats"])[0]
    'runs'
    """
    for name in (" ".join(words[:2]), " ".join(words[:1])):
        if name in COMMANDS:
            return name, COMMANDS[name]
    return None


def removed_flag(command: str, flag: str) -> str:
    """What to do instead of a removed flag of a command; "" for a flag that never was.

    >>> removed_flag("bench", "--quality")
    'Give ngt bench quality.'
    """
    return FLAGS.get(f"{command} {flag}") or FLAGS.get(flag, "")
