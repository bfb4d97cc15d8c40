"""`ngt batch` killed again and again: `python -m tests.tools.batch_kills [--kills 50]`.

Some hundred lines are answered once without a break. Then the same command is started, killed by
SIGKILL at a random moment, and started again, until it has been killed so many times; when it comes
to its end before that, the next round begins with a new output. After each kill the output must be
whole lines (but for one torn at its end) and equal to as many of the first run's, and at the end to
all of them. What depends on time is left out of the comparison: see `steady`. Exit code 6 where
anything differs.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ngtcli.errors import DifferenceError, NgtError

_EARLIEST_S = 0.1  # when a run is killed first
_LATEST = 1.6  # and last, in times of what starting takes: guess, many runs then come to write
_TIMES = ("prefill_s", "decode_s", "tokens_per_s", "split_s")
# How a text is drafted for: it depends on its neighbours in a pass, for `auto` on times as well.
_DECIDED = (
    "steps", "drafted_tokens", "accepted_tokens", "mean_acceptance_length",
    "draft_acceptance_rate", "acceptance_histogram",
)  # fmt: skip


def steady(row: dict[str, Any], counts: bool = False) -> dict[str, Any]:
    """A line of the output without what may differ from run to run, the answer being the same.

    Left out are times; what stood in the caches (trie, passage index, captured passes, kept parts);
    and but for `counts`, how many tokens were drafted and accepted, in how many steps.
    """
    if "error" in row:
        return row
    kept = {k: v for k, v in row.items() if k not in ("trie", "passes", "policy")}
    left_out = {*_TIMES, *(() if counts else _DECIDED)}
    kept["statistics"] = {k: v for k, v in row["statistics"].items() if k not in left_out}
    kept["parts"] = [
        {k: v for k, v in p.items() if k not in ("kept", "new_tokens")} for p in row["parts"]
    ]
    if row["retrieval"]:
        cached = ("index", "seconds")
        kept["retrieval"] = {k: v for k, v in row["retrieval"].items() if k not in cached}
    return kept


def lines(count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Lines of all kinds, those with one text far apart; one in twenty is wrong."""
    ships = ("ferry", "barge", "tug", "trawler", "pilot boat", "lugger", "ketch")
    texts = [
        f"The {ship} left the quay at {hour} o'clock. It carried {hour * 7} crates of salt."
        f" The {ship} came back with the tide {hour} hours later, and the crates were dry."
        for hour, ship in enumerate(ships * 6, 1)
    ]
    long = " ".join(
        f"Barge {i} came in with tide {i * 3} and lay at quay {i % 9}." for i in range(250)
    )
    for i in range(count):
        text = rng.choice(texts)
        kind = i % 20
        if kind == 7:
            yield {"id": f"wrong-{i}", "context": text, "settings": {"model": "other"}}
        elif kind in (3, 11):
            yield {"context": text, "question": "When did it leave?", "settings": {"seed": kind}}
        elif i in (count // 3, count // 2):
            yield {"id": f"long-{i}", "context": long, "task": "summarize"}
        elif kind % 2:
            yield {"id": f"ask-{i}", "documents": [text], "question": "What did it carry?"}
        else:
            yield {"id": f"sum-{i}", "documents": [{"name": "log", "text": text}]}


class _Trial:
    """One input, its answers without a break, and the runs that are killed."""

    def __init__(
        self, folder: Path, count: int, seed: int, options: list[str], *, counts: bool
    ) -> None:
        self._counts = counts
        self._folder, self._options, self._rng = folder, options, random.Random(seed)
        rows = lines(count, self._rng)
        (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._run_whole(folder / "first.jsonl", "--limit", "1")  # compiles, once
        self.start_s = self._run_whole(folder / "one.jsonl", "--limit", "1")
        self.seconds = self._run_whole(folder / "whole.jsonl")
        self.whole = self._read(folder / "whole.jsonl")[0]
        self.seen: Counter[str] = Counter()

    def _run_whole(self, output: Path, *more: str) -> float:
        """The seconds of a run without a break."""
        started = time.monotonic()
        code = self._start(output, "whole", *more).wait()
        if code != (0 if more else 7):  # some lines are wrong
            raise NgtError(f"the run without a break ended with {code}")
        return time.monotonic() - started

    def _start(self, output: Path, home: str, *more: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "ngtcli", "batch", str(self._folder / "in.jsonl")]
        return subprocess.Popen(
            [*command, "-o", str(output), *self._options, *more],
            env={
                **os.environ,
                "NGT_HOME": str(self._folder / home),
                "NGT_BACKGROUND": "none",
                "NUMBA_CACHE_DIR": str(self._folder / "compiled"),
            },
            stderr=subprocess.DEVNULL,
        )

    def _read(self, path: Path) -> tuple[list[dict[str, Any]], bytes]:
        """The whole lines of a file, and what stands behind the last line feed."""
        whole, _, torn = (path.read_bytes() if path.exists() else b"").rpartition(b"\n")
        rows = [json.loads(line) for line in whole.split(b"\n") if line]
        return [steady(row, self._counts) for row in rows], torn

    def round(self, number: int, kills: int) -> int:
        """Kill and go on with one output to its end; how often it was killed."""
        output = self._folder / f"out-{number}.jsonl"
        killed = 0
        while killed < kills:
            run = self._start(output, "killed")
            try:
                run.wait(self._rng.uniform(_EARLIEST_S, _LATEST * self.start_s))
                break
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
            killed += 1
            self._look(output)
        self._start(output, "killed").wait()
        found, torn = self._read(output)
        self._compare(found, torn)
        if len(found) != len(self.whole):
            raise DifferenceError(f"{len(found)} of {len(self.whole)} lines at the end")
        return killed

    def _look(self, output: Path) -> None:
        """After a kill: as much as is there is right."""
        found, torn = self._read(output)
        self._compare(found, b"")
        journal = output.with_name(f"{output.name}.journal")
        done = journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0
        waiting = max(0, done - len(found))
        self.seen["kills"] += 1
        self.seen["before the first line"] += not found and waiting <= 0
        self.seen["between first and last line"] += 0 < len(found) < len(self.whole)
        self.seen["with answers before their turn"] += waiting > 0
        self.seen["with a torn line"] += bool(torn)
        print(
            f"kill {self.seen['kills']}: {len(found)} lines, {waiting} more in the journal",
            flush=True,
        )

    def _compare(self, found: list[dict[str, Any]], torn: bytes) -> None:
        for number, (one, other) in enumerate(zip(found, self.whole, strict=False), 1):
            if one != other:
                names = [k for k in other if one.get(k) != other[k]]
                raise DifferenceError(f"line {number} differs in {', '.join(names)}")
        if torn or len(found) > len(self.whole):
            raise DifferenceError("there is more than was asked for")


def main() -> None:
    """Run the trial and print what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--counts",
        action="store_true",
        help="compare drafts, too; for -- --batch-size 1 and a method other than auto",
    )
    parser.add_argument("options", nargs="*", help="of ngt batch, behind --")
    given = parser.parse_args()
    options = given.options or ["--max-tokens", "16", "--threads", "1"]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        trial = _Trial(Path(folder), given.lines, given.seed, options, counts=given.counts)
        print(
            f"{len(trial.whole)} lines without a break: {trial.seconds:.0f} s,"
            f" of which starting {trial.start_s:.1f} s",
            flush=True,
        )
        left, rounds = given.kills, 0
        while left > 0:
            rounds += 1
            left -= max(1, trial.round(rounds, left))
    seen = ", ".join(f"{name} {number}" for name, number in trial.seen.items())
    print(f"{seen}; {rounds} outputs equal to the first; {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except NgtError as error:
        print(f"{error}", file=sys.stderr)
        sys.exit(error.exit_code)
