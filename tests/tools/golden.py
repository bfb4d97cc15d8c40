"""Record the output of all commands at one commit, and compare it at another.

    python -m tests.tools.golden record FILE        # JSON: per case stdout, stderr, exit code
    python -m tests.tools.golden compare FILE       # prints what differs now; exit code 6

The cases of a story run in turn in one folder with one home. Each is forked from a process that has
torch and ngt loaded. Times, sizes and paths are masked before outputs are compared.
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

# With these, drafts and caches do not depend on measured times, and nothing runs in parallel.
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
EXAMPLE_NAMES = ("harbour.txt", "nightbus.txt", "orchard.md", "seeds.txt")
# Keys of JSON whose values differ between two runs.
_CHANGING_KEYS = re.compile(
    r'"(?:[a-z_]*(?:_s|_ms|_us|tokens_per_s|seconds|speedup|bytes|time|version|uptime)|created|id'
    r'|began|ended|when|stamp|checksum|fingerprint|key|hash)": *(?:-?[\d.e+-]+|"[^"]*"|null)'
    r'|"(?:draft|tree|forward|verify|cache)": *-?[\d.e+-]+'
)
# Numbers with a unit, speed-ups, checksums and dates in text.
_CHANGING_WORDS = re.compile(
    r"\b\d[\d.,]*(?= ?(?:s|ms|µs|MB|GB|kB|KB|B|bytes|tokens/s|min|h|%)\b)"
    r"|\b\d+\.\d+x|\b[0-9a-f]{16,}\b"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?|\b\d+ (?=seconds)"
)


def stories() -> list[list[str]]:
    """Read the cases of each story from golden_cases.txt.

    A case is a command line. A file name after `<` is its standard input. A line that begins with
    `#` names a file that is read and compared.
    """
    text = Path(__file__).with_name("golden_cases.txt").read_text(encoding="utf-8")
    return [story.splitlines() for story in text.strip().split("\n\n")]


def write_documents(folder: Path) -> None:
    """Write the documents that the cases name."""
    for name in EXAMPLE_NAMES:
        shutil.copy(EXAMPLES / name, folder / name)
    for name in ("folder", "mixed", "empty-folder"):
        (folder / name).mkdir()
    for name in EXAMPLE_NAMES[:3]:
        shutil.copy(EXAMPLES / name, folder / "folder" / name)
        shutil.copy(EXAMPLES / name, folder / "mixed" / name)
    notes = [f"Note {i}: the quay of harbour {i} was built in {1500 + i}." for i in range(400)]
    requests = [
        {"id": "a", "context": "The quay was built in 1871. It is long."},
        {"id": "b", "task": "ask", "question": "When is high tide?", "paths": ["harbour.txt"]},
        {"context": notes[1]},
    ]
    files: Mapping[str, str | bytes] = {
        "empty.txt": "",
        "binary.bin": bytes(range(256)) * 4,
        "long.txt": "\n\n".join(notes),
        "table.csv": 'name,age\nAda,36\n"Bo\nBa",7\n',
        "mail.eml": "From: a@b.c\nSubject: Tide\n\nHigh.\n",
        "page.html": "<h1>High tide</h1>" + "".join(f"<p>{note}</p>" for note in notes[:9]),
        "questions.txt": "When is high tide?\nWho built the quay?\n/help\n",
        "broken.pdf": "%PDF-1.4 no",
        "broken.docx": "PK no",
        "data.json": json.dumps({"notes": notes[:3], "other": 1}),
        "data.jsonl": '{"text": "one"}\n{"text": "two"}\n',
        "notes.rtf": r"{\rtf1 Hello \b bold\b0 .}",
        "mixed/broken.pdf": "%PDF-1.4 no",
        "mixed/empty.txt": "",
        "mixed/page.html": "<p>Hello.</p>",
        "lines.jsonl": "".join(json.dumps(request) + "\n" for request in requests),
        "bad.jsonl": '{"context": "fine."}\n{"nope": 1}\nno\n{"context": ""}\n{"context": 3}\n',
    }
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def run_all() -> dict[str, dict[str, Any]]:
    """Run all cases; return their results by story number and command line."""
    results: dict[str, dict[str, Any]] = {}
    for number, story in enumerate(stories()):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary) / "docs"
            home = Path(temporary) / "home"
            folder.mkdir()
            write_documents(folder)
            for case in story:
                key = f"{number} {case}"
                if key in results:
                    key += " (again)"
                results[key] = run_case(case, folder, home)
                print(".", end="", file=sys.stderr, flush=True)
    return results


def run_case(case: str, folder: Path, home: Path) -> dict[str, Any]:
    """Run one command line in a fork, or read the file after `#`."""
    if case.startswith("#"):
        path = folder / case[1:]
        content = path.read_text() if path.exists() else "none"
        return {"file": mask(content, folder)}
    line, _, input_name = case.partition(" <")
    stdin = (folder / input_name.strip()).read_bytes() if input_name else b""
    result = run(*shlex.split(line), input=stdin, cwd=folder, **SETTINGS, NGT_HOME=str(home))
    return {
        "code": result.returncode,
        "stdout": mask(result.stdout.decode("utf-8", "replace"), folder),
        "stderr": mask(result.stderr.decode("utf-8", "replace"), folder),
    }


def mask(text: str, folder: Path) -> str:
    """Replace what differs between two runs of one commit."""
    for path, name in ((folder.parent, "TMP"), (ROOT_FOLDER, "ROOT"), (Path.home(), "HOME")):
        text = text.replace(str(path), name)
    text = _CHANGING_KEYS.sub(lambda match: match[0].split(":")[0] + ": _", text)
    return _CHANGING_WORDS.sub("_", text)


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    """Print a diff of each case that differs; return the number of these cases."""
    different = 0
    added = [key for key in new if key not in old]
    for key in [*old, *added]:
        old_result = old.get(key, {})
        new_result = new.get(key, {})
        if old_result == new_result:
            continue
        different += 1
        print(f"=== {key}")
        for part in sorted(old_result.keys() | new_result.keys()):
            old_lines = str(old_result.get(part, "")).splitlines()
            new_lines = str(new_result.get(part, "")).splitlines()
            diff = list(difflib.unified_diff(old_lines, new_lines, lineterm="", n=0))
            for line in diff[2:40]:
                print(f"{part} {line}"[:300])
    print(f"{different} of {len(new)} cases differ", file=sys.stderr)
    return different


def main() -> int:
    """Record or compare; return the exit code."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("record", "compare"):
        print("usage: python -m tests.tools.golden (record | compare) FILE", file=sys.stderr)
        return 2
    path = Path(sys.argv[2])
    if sys.argv[1] == "record":
        path.write_text(json.dumps(run_all(), indent=1, ensure_ascii=False))
        return 0
    recorded = json.loads(path.read_text())
    return 6 if compare(recorded, run_all()) else 0


if __name__ == "__main__":
    sys.exit(main())
