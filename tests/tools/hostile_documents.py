"""Read about 200 hostile files and count what came of them: `python -m … [--seed N]`.

Each is read as a user's would be, named outright, with the limits given. What may come of a file is
its text or one error with a hint; a traceback, an answer after twice the limit, and a worker beyond
its memory are failures, and the exit code is then 1.
"""

import argparse
import json
import os
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ngtcli.config import Settings
from ngtcli.documents.files import Files, Reader
from ngtcli.documents.find import Found
from ngtcli.documents.text import Unreadable
from ngtcli.engines.keeper import descendants
from tests.tools.hostile_files import Case, cases

_SLACK_S = 2.0  # beyond the limit of time: starting a worker, and this process's own part; guess
_TRIES = 2  # of a file that crashes its parser or takes too much memory
_MEMORY_MB = 100  # of a worker beyond its limit, which is of addresses; guess
_KINDS = {  # of errors by their words, the first that fits
    "takes more than": "limit", "crashed": "crashed", "too much text": "limit",
    "MB to read": "limit", "unpacks to": "refused", "broken": "broken", "": "refused",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a file: "read", "broken", "refused", "limit", "crashed" or "failure".

    `worker_mb` is the most memory that a worker which still runs has taken since it began.
    """

    name: str
    kind: str
    seconds: float
    words: str
    worker_mb: int


def read_all(hostile: Sequence[Case], settings: Settings, folder: Path) -> list[Outcome]:
    """Read each file by itself; the caches are those of NGT_HOME."""
    files = Files(settings)
    try:
        return [_read(name, make(), files, settings, folder) for name, make in hostile]
    finally:
        files.close()


def _read(name: str, data: bytes, files: Files, settings: Settings, folder: Path) -> Outcome:
    path = folder / name
    path.write_bytes(data)
    start = time.monotonic()
    try:
        text = files.begin(Found(str(path), str(path), outright=True), Reader(settings.max_mb))()
        leaked = "root:x:0" in text.text  # of /etc/passwd, to which some files refer
        kind, words = "failure" if leaked else "read", f"{len(text.text)} characters"
    except Unreadable as error:
        words = f"{error} {error.advice}"
        kind = next(k for part, k in _KINDS.items() if part in str(error))
        if not error.advice or "\n" in words or len(words) > 500:
            kind = "failure"
    except Exception as error:  # nothing else may come of a file
        kind, words = "failure", f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - start
    path.unlink()
    if seconds > _TRIES * settings.parser_seconds + _SLACK_S:
        kind, words = "failure", f"{seconds:.1f} s: {words}"
    return Outcome(name, kind, seconds, words, _largest_worker())


def _largest_worker() -> int:
    """In MB. The system's own count of ended children has the memory of this process in it."""
    taken = [0]
    for child in descendants(os.getpid()):
        with suppress(OSError):  # it has ended
            status = Path(f"/proc/{child}/status").read_text()
            taken += [int(kb) // 1000 for kb in re.findall(r"VmHWM:\s*(\d+)", status)]
    return max(taken)


def main() -> int:
    """Print the counts, the slowest files, and the largest worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=5, help="parser_seconds")
    parser.add_argument("--mb", type=int, default=500, help="parser_mb")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--all", action="store_true", help="a line of JSON for each file")
    arguments = parser.parse_args()
    settings = replace(Settings(), parser_seconds=arguments.seconds, parser_mb=arguments.mb)
    chosen = [case for case in cases(arguments.seed) if arguments.only in case[0]]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = read_all(chosen, settings, Path(folder))
    if arguments.all:
        print("\n".join(json.dumps(asdict(o)) for o in outcomes))
    counts = Counter(o.kind for o in outcomes)
    print(f"{len(outcomes)} files: {', '.join(f'{k} {n}' for k, n in counts.most_common())}")
    for slow in sorted(outcomes, key=lambda o: -o.seconds)[:5]:
        print(f"{slow.seconds:6.2f} s  {slow.name}: {slow.kind}, {slow.words[:80]}")
    largest = max((outcome.worker_mb for outcome in outcomes), default=0)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    print(f"largest worker: {largest} MB resident, limit {arguments.mb} MB; this process: {own} MB")
    failed = counts["failure"] or largest > arguments.mb + _MEMORY_MB
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
