"""What is wrong with the result of a command, in short sentences, and the report of all cases:
counts by kind, then every failure with its seed and how to run it again.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ngtcli.render.terminal import visible
from tests.tools.fuzz.case import INTERRUPTED, MOST_ERROR_LINES, Command, Result, Verdict

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


def shown(command: Command) -> str:
    """The command as one would type it, odd bytes escaped."""
    given = [f"{name}={value}" for name, value in command.environ.items()]
    line = shlex.join([*given, "ngt", *command.arguments])
    return line if len(line) < 300 else line[:300] + "…"


AGAIN = "python -m tests.tools.fuzz --case"


def counts(verdicts: Sequence[Verdict]) -> dict[str, dict[str, Any]]:
    """By kind: cases, failures, the most memory (MB), and how often each exit code came."""
    out: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        row = out.setdefault(verdict.kind, {"cases": 0, "failures": 0, "mb": 0, "codes": Counter()})
        row["cases"] += 1
        row["failures"] += bool(verdict.complaints)
        row["mb"] = max(row["mb"], round(verdict.memory / 1e6))
        row["codes"][verdict.code] += 1
    return out


def report(verdicts: Sequence[Verdict], seed: int, seconds: float) -> str:
    """The whole report as text."""
    return "\n".join([*_table(verdicts, seed, seconds), *_failures(verdicts)])


def _table(verdicts: Sequence[Verdict], seed: int, seconds: float) -> list[str]:
    rows, codes = counts(verdicts), sorted({v.code for v in verdicts})
    lines = ["kind         cases    ok failed    MB" + "".join(f"{code:>6}" for code in codes)]
    for kind, row in sorted(rows.items()):
        came = [row["codes"].get(code, 0) or "" for code in codes]
        fine = row["cases"] - row["failures"]
        lines.append(f"{kind:<12}{row['cases']:>6}{fine:>6}{row['failures']:>7}{row['mb']:>6}"
                     + "".join(f"{n:>6}" for n in came))  # fmt: skip
    failed = sum(bool(v.complaints) for v in verdicts)
    total = f"{len(verdicts)} cases of seed {seed} in {seconds:.0f} s: {failed} failures"
    return [
        *lines,
        "MB is the most memory that a run took; the columns behind it are exit codes.",
        total,
    ]


def cause(verdict: Verdict) -> str:
    """What failures of one cause have in common: the complaint and the error, names left out.

    >>> cause(Verdict("names", 3, "", 1, (2,), ("exit code 1",), "", "ngt: f9: x", 0.1, 9))
    'exit code 1 | ngt: f9: x'
    """
    complaint = re.sub(r"U\+[0-9A-F]+", "U+…", verdict.complaints[0])
    lines = verdict.err.splitlines()
    last = next((line for line in reversed(lines) if ": " in line), "")
    last = next((line for line in lines if line.startswith("ngt: ")), last)
    if complaint.startswith("U+"):  # what stands beside it is as odd
        last = ""
    return re.sub(
        r"\d{2,}", "#", re.sub(r"'.*'|\".*\"|/[\w./-]+", "…", f"{complaint} | {last}"[:200])
    )


def _failures(verdicts: Sequence[Verdict]) -> list[str]:
    """Failures grouped by cause, the most frequent first; each with its seed."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.complaints:
            groups.setdefault(cause(verdict), []).append(verdict)
    lines = []
    for name, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines += ["", visible(f"{len(group)} × {name}")]
        lines += [line for verdict in group for line in failure(verdict)]
    return lines


def failure(verdict: Verdict) -> list[str]:
    """What was made, what was run, what was expected and what came."""
    codes = " or ".join(str(code) for code in verdict.expected)
    lines = [
        f"  {AGAIN} {verdict.name}",
        f"    made: {verdict.what[:300]}",
        f"    ran: {verdict.command}",
        f"    expected: exit code {codes}; came: {verdict.code}, {'; '.join(verdict.complaints)}",
    ]
    lines += [f"    | {line[:200]}" for line in verdict.err.splitlines()[-4:]]
    return [visible(line.encode("utf-8", "replace").decode()) for line in lines]


def as_json(verdicts: Sequence[Verdict], seed: int, seconds: float) -> Mapping[str, Any]:
    """The report for machines."""
    rows = {
        kind: {**row, "codes": {str(code): n for code, n in sorted(row["codes"].items())}}
        for kind, row in counts(verdicts).items()
    }
    failed = [
        {**asdict(v), "cause": cause(v), "again": f"{AGAIN} {v.name}"}
        for v in verdicts
        if v.complaints
    ]
    return {"seed": seed, "seconds": round(seconds, 1), "cases": len(verdicts), "kinds": rows,
            "failures": failed}  # fmt: skip
