"""Judge the result of a command: complaints in short sentences."""

import json
import re
from collections.abc import Iterator

from tests.tools.fuzz.case import INTERRUPTED, Command, Result

# Characters that control a terminal: C0 and C1 except tab and line feed, and the embeddings,
# overrides and isolates of text direction.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
# Characters that nobody sees: direction marks, zero-width spaces, line separators, tags.
_INVISIBLE = "\u061c\u200b\u200e\u200f\u2028\u2029\ufeff\U000e0000-\U000e007f"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_CONTROL_OR_INVISIBLE = re.compile(f"[{_CONTROLS}{_INVISIBLE}]")
# Sequences that ngt itself sends to a terminal: styles, a cleared line, the terminal's line ends.
_SENT_BY_NGT = re.compile("\x1b\\[[0-9;]*m|\r+\x1b\\[(?:K|2K)|\r+(?=\n)|\r$")
_LINE_ENDS = re.compile("\r+(?=\n)")  # all that ngt sends to a terminal without styles
# Text that no user should read: a traceback, an exception's name, a library's own messages.
_NOISE = re.compile(
    r"Traceback \(most recent|^ngt: \w*(?:Error|Exception|Exit|Interrupt)\b|\w+Warning: "
    r"|Retrying in|^Aborted|Run it again with --debug|Exception ignored"
    r"|ASSERT FAILED|ignore_mismatched_sizes|Repo id must be"
    r"|Fatal Python error",
    re.MULTILINE,
)
# An error has a message and a hint. That of a grammar also has the text and a caret.
_MAX_ERROR_LINES = 4
# Lines of stderr that are not counted, because many answers have them.
_UNCOUNTED = (
    "The built-in model is a demonstration",
    "Part of ngt is being compiled",
    "it reached --max-tokens",
)
_NOT_FOUND = "ngt: the documents do not have the answer"  # `ask` then ends with exit code 1.
_MAX_ERROR_LENGTH = 6000  # In characters; a guess: a path may have 4096.


def judge(command: Command, result: Result) -> list[str]:
    """Return the complaints about a result, the most important first."""
    if result.late:
        return [f"still running after {command.seconds:g} s"]
    complaints = [
        *_judge_code(command, result),
        *_judge_characters(command, result),
        *_judge_stderr(command, result),
        *_judge_stdout(command, result),
        *_judge_memory(command, result),
    ]
    if command.check:
        complaints += command.check(result)
    return complaints


def _judge_code(command: Command, result: Result) -> Iterator[str]:
    is_not_found = result.code == 1 and 0 in command.codes and _NOT_FOUND in result.err
    if result.code not in command.codes and not is_not_found:
        yield f"exit code {result.code}, expected {expected_codes(command)}"
    noise = _NOISE.search(result.err) or _NOISE.search(result.out[-5000:])
    if noise:
        yield f"{noise.group().strip()!r} is shown"


def _judge_characters(command: Command, result: Result) -> Iterator[str]:
    """Look for characters that control a terminal, or that nobody sees."""
    has_styles = command.environ.get("TERM") not in ("", "dumb")
    sent_by_ngt = _SENT_BY_NGT if has_styles else _LINE_ENDS
    is_text_of_document = {"docs", "--text"} <= set(command.arguments)
    for name, text in (("stdout", result.out), ("stderr", result.err)):
        forbidden = _CONTROL_OR_INVISIBLE
        if command.terminal:
            text = sent_by_ngt.sub("", text)
        elif name == "stdout" and not _is_json(command):
            if is_text_of_document:
                continue  # `ngt docs show --text` writes a document unchanged, as cat does.
            # Invisible characters are part of an answer. JSON and stderr escape them.
            forbidden = _CONTROL
        match = forbidden.search(text)
        if match:
            yield f"U+{ord(match.group()):04X} on {name}"


def _judge_stderr(command: Command, result: Result) -> Iterator[str]:
    """Count the lines of stderr, where neither a terminal nor a usage box wraps them."""
    if command.terminal or result.err.startswith("Usage:"):
        return
    failed = result.code not in (0, 6, INTERRUPTED)
    line_count = 0
    for line in result.err.splitlines():
        if not any(uncounted in line for uncounted in _UNCOUNTED):
            line_count += 1
    is_verbose = bool({"-v", "--verbose"} & set(command.arguments))
    max_lines = command.max_lines
    if failed and not is_verbose:
        max_lines = _MAX_ERROR_LINES
    if line_count > max_lines:
        yield f"{line_count} lines on stderr"
    if failed and len(result.err) > _MAX_ERROR_LENGTH:
        yield f"an error of {len(result.err)} characters"


def _judge_stdout(command: Command, result: Result) -> Iterator[str]:
    """Compare the answer; JSON must be valid."""
    answer = _SENT_BY_NGT.sub("", result.out)
    if _is_json(command):
        try:
            answer = str(json.loads(answer).get("text", ""))
        except AttributeError:  # an array: it is no answer
            answer = ""
        except ValueError as error:
            answer = ""
            if result.code in (0, 6) and not command.terminal:
                yield f"stdout is not JSON ({error})"
    yield from _judge_answer(command, result, "".join(answer.split()))


def _judge_answer(command: Command, result: Result, answer: str) -> Iterator[str]:
    """Compare the answer without white space. After an interruption it may be cut."""
    if command.answer is None or result.code not in (0, INTERRUPTED):
        return
    expected = "".join(command.answer.split())
    if result.code == INTERRUPTED:
        is_right = expected.startswith(answer)
    elif command.terminal:
        is_right = expected in answer
    else:
        is_right = expected == answer
    if not is_right:
        yield f"another text: {answer[:60]!r}, expected {expected[:60]!r}"


def _judge_memory(command: Command, result: Result) -> Iterator[str]:
    if result.memory > command.memory:
        taken = result.memory / 1e6
        limit = command.memory / 1e6
        yield f"{taken:.0f} MB more memory, at most {limit:.0f} expected"


def _is_json(command: Command) -> bool:
    """Return whether stdout is JSON."""
    arguments = set(command.arguments)
    return bool(arguments & {"--json", "--json-tokens"}) and not arguments & {"-o", "--output"}


def expected_codes(command: Command) -> str:
    """Return the exit codes in words."""
    return " or ".join(map(str, sorted(command.codes)))
