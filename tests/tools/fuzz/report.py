"""The fuzzer's report: counts by kind, then every failure with its seed and how to run it again."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ngtcli.render.terminal import visible
from tests.tools.fuzz.case import Verdict

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
