"""What is wrong with the result of a command, in short sentences."""

import json
import re
from collections.abc import Iterator

from tests.tools.fuzz.case import INTERRUPTED, Command, Result

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
_MOST_ERROR_LINES = 4  # what happened, what to do, and for a grammar the text and a caret
# Lines that many answers have on stderr: they are not counted.
_USUAL = (
    "The built-in model is a demonstration",
    "Drafting code is being compiled",
    "it reached --max-tokens",
)
_NOT_FOUND = "ngt: the documents do not have the answer"  # exit code 1, where `ask` has an answer
_LONG = 6000  # characters of an error; a guess: a path may have 4096


def judge(command: Command, result: Result) -> list[str]:
    """The complaints about a result, the weightiest first."""
    if result.late:
        return [f"still running after {command.seconds:g} s"]
    return [*_complaints(command, result), *(command.check(result) if command.check else ())]


def _complaints(command: Command, result: Result) -> Iterator[str]:
    is_not_found = result.code == 1 and 0 in command.codes and _NOT_FOUND in result.err
    if result.code not in command.codes and not is_not_found:
        yield f"exit code {result.code}, expected {expected(command)}"
    if found := _NOISE.search(result.err) or _NOISE.search(result.out[-5000:]):
        yield f"{found.group().strip()!r} is shown"
    given = set(command.arguments)
    is_json = bool(given & {"--json", "--json-tokens"}) and not given & {"-o", "--output"}
    # An answer in a pipe keeps what is hidden, which is part of it; JSON and stderr show it.
    ours = re.compile("\r+(?=\n)") if command.environ.get("TERM") in ("", "dumb") else _OURS
    for name, text in (("stdout", result.out), ("stderr", result.err)):
        text = ours.sub("", text) if command.terminal else text
        piped = name == "stdout" and not command.terminal and not is_json
        if piped and {"docs", "--text"} <= given:
            continue  # the text of a document as it is, as from cat
        if found := (_RAW if piped else _RAW_OR_HIDDEN).search(text):
            yield f"U+{ord(found.group()):04X} on {name}"
    failed = result.code not in (0, 6, INTERRUPTED)
    if not (command.terminal or result.err.startswith("Usage:")):  # the library's own box
        lines = 0
        for line in result.err.splitlines():
            if not any(usual in line for usual in _USUAL):
                lines += 1
        chatty = given & {"-v", "--verbose"}
        if lines > (_MOST_ERROR_LINES if failed and not chatty else command.most_lines):
            yield f"{lines} lines on stderr"
        if failed and len(result.err) > _LONG:
            yield f"an error of {len(result.err)} characters"
    text = _OURS.sub("", result.out)
    if is_json:
        try:
            text = str(json.loads(text).get("text", ""))
        except (ValueError, AttributeError) as error:
            text = ""
            if isinstance(error, ValueError) and result.code in (0, 6) and not command.terminal:
                yield f"stdout is no JSON ({error})"
    yield from _of_text(command, result, "".join(text.split()))
    if result.memory > command.memory:
        came, most = result.memory / 1e6, command.memory / 1e6
        yield f"{came:.0f} MB more memory, at most {most:.0f} expected"


def _of_text(command: Command, result: Result, came: str) -> Iterator[str]:
    """The answer is the expected one, spaces left out; after an interruption its beginning."""
    if command.text is None or result.code not in (0, INTERRUPTED):
        return
    wanted = "".join(command.text.split())
    if result.code == INTERRUPTED:
        right = wanted.startswith(came)
    else:
        right = wanted in came if command.terminal else wanted == came
    if not right:
        yield f"another text: {came[:60]!r}, expected {wanted[:60]!r}"


def expected(command: Command) -> str:
    """The exit codes in words."""
    return " or ".join(map(str, sorted(command.codes)))
