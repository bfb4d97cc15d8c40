"""What every command prints: recorded at one commit, compared at another.

    python -m tests.tools.golden record FILE        # JSON: per case stdout, stderr, exit code
    python -m tests.tools.golden compare FILE       # prints what differs now; exit code 6

Cases of a story run in turn, in one folder with one home; each is a process forked from one that
has torch and ngt loaded. Seconds, sizes in memory and paths are taken out of what is compared.
"""

import difflib
import json
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ngtcli.bench.prompts import EXAMPLES
from tests.support.helpers import ROOT_FOLDER
from tests.support.warm import run

# Nothing that depends on a clock decides what is drafted or kept, and nothing runs beside.
SETTINGS: dict[str, Any] = {
    "NGT_CALIBRATE": "false",
    "NGT_BACKGROUND": "none",
    "NGT_THREADS": "1",
    "COLUMNS": "100",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TERM": "dumb",
    "NGT_KEEP_DOCUMENTS": "off",
}
NAMES = ("harbour.txt", "nightbus.txt", "orchard.md", "seeds.txt")
_TIMES = re.compile(
    r'"(?:[a-z_]*(?:_s|_ms|_us|tokens_per_s|seconds|speedup|bytes|time|version|uptime)|created|id'
    r'|began|ended|when|stamp|checksum|fingerprint|key|hash)": *(?:-?[\d.e+-]+|"[^"]*"|null)'
    r'|"(?:draft|tree|forward|verify|cache)": *-?[\d.e+-]+'
)
_WORDS = re.compile(
    r"\b\d[\d.,]*(?= ?(?:s|ms|µs|MB|GB|kB|KB|B|bytes|tokens/s|min|h|%)\b)"
    r"|\b\d+\.\d+x|\b[0-9a-f]{16,}\b"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?|\b\d+ (?=seconds)"
)


def stories() -> list[list[str]]:
    """Command lines, by story; `<` before the last word gives standard input, `#` begins a file."""
    text = Path(__file__).with_name("golden_cases.txt").read_text(encoding="utf-8")
    return [story.splitlines() for story in text.strip().split("\n\n")]


def lay(folder: Path) -> None:
    """Write the documents that the cases name."""
    for name in NAMES:
        shutil.copy(EXAMPLES / name, folder / name)
    for name in ("folder", "mixed", "empty-folder"):
        (folder / name).mkdir()
    for name in NAMES[:3]:
        shutil.copy(EXAMPLES / name, folder / "folder" / name)
        shutil.copy(EXAMPLES / name, folder / "mixed" / name)
    notes = [f"Note {i}: the quay of harbour {i} was built in {1500 + i}." for i in range(400)]
    row = {"task": "ask", "question": "When is high tide?", "paths": ["harbour.txt"]}
    lines = [{"id": "a", "context": "The quay was built in 1871. It is long."}, {"id": "b", **row}]
    files: Mapping[str, str | bytes] = {
        "empty.txt": "",
        "binary.bin": bytes(range(256)) * 4,
        "long.txt": "\n\n".join(notes),
        "table.csv": 'name,age\nAda,36\n"Bo\nBa",7\n',
        "mail.eml": "From: a@b.c\nSubject: Tide\n\nHigh.\n",
        "page.html": "<h1>High tide</h1>" + "".join(f"<p>{n}</p>" for n in notes[:9]),
        "questions.txt": "When is high tide?\nWho built the quay?\n/help\n",
        "broken.pdf": "%PDF-1.4 no",
        "broken.docx": "PK no",
        "data.json": json.dumps({"notes": notes[:3], "other": 1}),
        "data.jsonl": '{"text": "one"}\n{"text": "two"}\n',
        "notes.rtf": r"{\rtf1 Hello \b bold\b0 .}",
        "mixed/broken.pdf": "%PDF-1.4 no",
        "mixed/empty.txt": "",
        "mixed/page.html": "<p>Hello.</p>",
        "lines.jsonl": "".join(json.dumps(line) + "\n" for line in [*lines, {"context": notes[1]}]),
        "bad.jsonl": '{"context": "fine."}\n{"nope": 1}\nno\n{"context": ""}\n{"context": 3}\n',
    }
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def run_all() -> dict[str, dict[str, Any]]:
    """What each case printed, by its number and its words."""
    results: dict[str, dict[str, Any]] = {}
    for number, story in enumerate(stories()):
        with tempfile.TemporaryDirectory() as name:
            folder, home = Path(name) / "docs", Path(name) / "home"
            folder.mkdir()
            lay(folder)
            for case in story:
                key = f"{number} {case}" + " (again)" * (f"{number} {case}" in results)
                results[key] = run_case(case, folder, home)
                print(".", end="", file=sys.stderr, flush=True)
    return results


def run_case(case: str, folder: Path, home: Path) -> dict[str, Any]:
    """Run one command line in a fork, or read the file after `#`."""
    if case.startswith("#"):
        path = folder / case[1:]
        return {"file": plain(path.read_text() if path.exists() else "none", folder)}
    line, _, given = case.partition(" <")
    stdin = (folder / given.strip()).read_bytes() if given else b""
    done = run(*shlex.split(line), input=stdin, cwd=folder, **SETTINGS, NGT_HOME=str(home))
    out, errors = (
        plain(text.decode("utf-8", "replace"), folder) for text in (done.stdout, done.stderr)
    )
    return {"code": done.returncode, "stdout": out, "stderr": errors}


def plain(text: str, folder: Path) -> str:
    """The text without what differs between two runs of one commit."""
    for path, name in ((folder.parent, "TMP"), (ROOT_FOLDER, "ROOT"), (Path.home(), "HOME")):
        text = text.replace(str(path), name)
    text = _TIMES.sub(lambda found: found[0].split(":")[0] + ": _", text)
    return _WORDS.sub("_", text)


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """Print what differs, as a diff a case; the number of cases that do."""
    different = 0
    for key in [*old, *(k for k in new if k not in old)]:
        a, b = old.get(key, {}), new.get(key, {})
        if a == b:
            continue
        different += 1
        print(f"=== {key}")
        for part in sorted(a.keys() | b.keys()):
            before, after = (str(side.get(part, "")).splitlines() for side in (a, b))
            for line in list(difflib.unified_diff(before, after, lineterm="", n=0))[2:40]:
                print(f"{part} {line}"[:300])
    print(f"{different} of {len(new)} cases differ", file=sys.stderr)
    return different


if __name__ == "__main__":
    what, file = sys.argv[1:]
    found = run_all()
    if what == "record":
        Path(file).write_text(json.dumps(found, indent=1, ensure_ascii=False))
    elif compare(json.loads(Path(file).read_text()), found):
        raise SystemExit(6)
