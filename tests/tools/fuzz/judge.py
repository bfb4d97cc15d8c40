"""What is wrong with the result of a command, in short sentences."""

import json
import re
from collections.abc import Iterator

from tests.tools.fuzz.case import INTERRUPTED, MOST_ERROR_LINES, Command, Result

# Characters that steer a terminal: C0 and C1 but tab and line feed, embeddings, overrides and
# isolates of direction. Those that hide: direction marks, zero-width spaces, line separators, tags.
_STEERS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_HIDES = "\u061c\u200b\u200e\u200f\u2028\u2029\ufeff\U000e0000-\U000e007f"
_RAW, _RAW_OR_HIDDEN = re.compile(f"[{_STEERS}]"), re.compile(f"[{_STEERS}{_HIDES}]")
# What we send to a terminal ourselves: styles, a wiped line, and its own line ends.
_OURS = re.compile("\x1b\\[[0-9;]*m|\r+\x1b\\[(?:K|2K)|\r+(?=\n)|\r$")
# What no user should read: a traceback, an exception's name, a library's own lines.
_NOISE = re.compile(
    r"Traceback \(most recent|^ngt: \w*(?:Error|Exception|Exit|Interrupt)\b|\w+Warning: "
    r"|Retrying in|^Aborted|--debug …|Exception ignored"
    r"|ASSERT FAILED|ignore_mismatched_sizes|Repo id must be"
    r"|Fatal Python error",
    re.MULTILINE,
)
_LONG = 6000  # characters of an error; a guess: a path may have 4096


def judge(command: Command, result: Result) -> list[str]:
    """The complaints about a result, the weightiest first."""
    if result.late:
        return [f"still running after {command.seconds:g} s"]
    return [
        *_code(command, result), *_noise(result), *_raw(command, result), *_length(command, result),
        *_json(command, result), *_text(command, result), *_memory(command, result),
        *(command.check(result) if command.check else ()),
    ]  # fmt: skip


def _code(command: Command, result: Result) -> Iterator[str]:
    if result.code not in command.codes:
        wanted = " or ".join(str(code) for code in sorted(command.codes))
        yield f"exit code {result.code}, expected {wanted}"


def _noise(result: Result) -> Iterator[str]:
    if found := _NOISE.search(result.err) or _NOISE.search(result.out[-5000:]):
        yield f"{found.group().strip()!r} is shown"


def _raw(command: Command, result: Result) -> Iterator[str]:
    """An answer in a pipe keeps what is hidden, which is part of it; JSON and stderr show it."""
    terminal = command.streams.terminal is not None
    ours = re.compile("\r+(?=\n)") if command.environ.get("TERM") in ("", "dumb") else _OURS
    for name, text in (("stdout", result.out), ("stderr", result.err)):
        text = ours.sub("", text) if terminal else text
        kept = name == "stdout" and not terminal and not wants_json(command)
        if found := (_RAW if kept else _RAW_OR_HIDDEN).search(text):
            yield f"U+{ord(found.group()):04X} on {name}"


def _length(command: Command, result: Result) -> Iterator[str]:
    """Too much on stderr; the command-line library's own box of usage is let through."""
    if command.streams.terminal or result.err.startswith("Usage:"):
        return
    lines = result.err.splitlines()
    failed = result.code not in (0, 6, INTERRUPTED)
    chatty = {"-v", "--verbose"} & set(command.arguments)
    most = MOST_ERROR_LINES if failed and not chatty else command.most_lines
    if len(lines) > most:
        yield f"{len(lines)} lines on stderr"
    if failed and len(result.err) > _LONG:
        yield f"an error of {len(result.err)} characters"


def wants_json(command: Command) -> bool:
    """Whether stdout must be one JSON value."""
    return bool({"--json", "--json-tokens"} & set(command.arguments)) and not (
        {"-o", "--output"} & set(command.arguments)
    )


def _json(command: Command, result: Result) -> Iterator[str]:
    if wants_json(command) and result.code in (0, 6) and not command.streams.terminal:
        try:
            json.loads(result.out)
        except ValueError as error:
            yield f"stdout is no JSON ({error})"


def answer(command: Command, result: Result) -> str:
    """The text of an answer on stdout, spaces and styles left out."""
    text = _OURS.sub("", result.out)
    if wants_json(command):
        try:
            text = str(json.loads(text)["text"])
        except (ValueError, TypeError, KeyError):
            text = ""
    return "".join(text.split())


def _text(command: Command, result: Result) -> Iterator[str]:
    """The answer is the expected one; after an interruption its beginning."""
    if command.text is None or result.code not in (0, INTERRUPTED):
        return
    wanted, came = "".join(command.text.split()), answer(command, result)
    if result.code == INTERRUPTED:
        right = wanted.startswith(came)
    else:
        right = wanted in came if command.streams.terminal else wanted == came
    if not right:
        yield f"another text: {came[:60]!r}, expected {wanted[:60]!r}"


def _memory(command: Command, result: Result) -> Iterator[str]:
    if result.memory > command.memory and not command.real:
        came, most = result.memory / 1e6, command.memory / 1e6
        yield f"{came:.0f} MB more memory, at most {most:.0f} expected"
