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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ngtcli.measure.prompts import EXAMPLES
from tests.support.warm import run

# Nothing that depends on a clock decides what is drafted or kept, and nothing runs beside.
SETTINGS: dict[str, Any] = {
    "NGT_CALIBRATE": "false", "NGT_BACKGROUND": "none", "NGT_THREADS": "1", "COLUMNS": "100",
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TERM": "dumb", "NGT_KEEP_DOCUMENTS": "off",
}  # fmt: skip
NAMES = ("harbour.txt", "nightbus.txt", "orchard.md", "seeds.txt")
_TIMES = re.compile(
    r'"(?:[a-z_]*(?:_s|_ms|_us|seconds|speedup|bytes|time|version)|created|id|began|ended|when|stamp'
    r'|checksum|fingerprint|key|hash|draft|tree|forward|verify|cache)": *(?:[\d.e+-]+|"[^"]*"|null)'
)
_WORDS = re.compile(
    r"\b\d[\d.,]*(?= ?(?:s|ms|µs|MB|GB|kB|KB|B|bytes|tokens/s|min|h|%)\b)"
    r"|\b\d+\.\d+x|\b[0-9a-f]{16,}\b"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?|\b\d+ (?=seconds)"
)


def stories() -> Iterator[list[str]]:
    """Lists of command lines; `<` before the last word gives standard input, `#` begins a file."""
    text = "harbour.txt nightbus.txt orchard.md seeds.txt"
    yield [
        "--help", "--version", "nonsense", "help", "help documents", "help nonsense", "schema",
        "schema summarize", "schema ask", "schema batch", "schema bench", "schema nonsense",
        "presets list", "presets list --json", "presets show ask", "presets show nothing",
        "config show", "config show --json", "config show -p ask", "env --json", "models list",
        "models list --json", "models rm nothing", "models pull", "runs list", "runs stats",
        "cache list", "cache clear nonsense", "trie list", "heads", "exit-codes", "docs",
    ]  # fmt: skip
    yield [
        *(f"{command} --help" for command in ("summarize", "ask", "chat", "batch", "tune")),
        *(f"summarize {name}" for name in NAMES), f"summarize {text}",
        "summarize harbour.txt --json", "summarize harbour.txt --json-tokens",
        "summarize harbour.txt --max-tokens 7", "summarize harbour.txt --max-tokens 0",
        "summarize harbour.txt --dry-run", "summarize harbour.txt --dry-run --json",
        "summarize harbour.txt --cite", "summarize harbour.txt --html page.html",
        "summarize harbour.txt -o out.txt", "summarize harbour.txt -v", "summarize missing.txt",
        "summarize empty.txt", "summarize binary.bin", "summarize folder",
        "summarize 'folder/*.txt'",
        "summarize - < harbour.txt", "summarize < harbour.txt", "summarize - < empty.txt",
        "summarize harbour.txt --temperature 0.8 --seed 3", "summarize harbour.txt --set n=0",
        "summarize harbour.txt --seed 3 --temperature 2 --set top_k=5",
        "summarize harbour.txt --set lp=99",
        "summarize harbour.txt --stop the", "summarize harbour.txt --stop ''", "summarize long.txt",
        "summarize long.txt --json", "summarize long.txt --overflow truncate",
        "summarize long.txt --overflow error", "summarize long.txt --overflow retrieve",
        "summarize long.txt --overflow nonsense",
        "summarize harbour.txt --set repetition_penalty=1.3",
        "summarize harbour.txt --dtype bfloat16 --exact", "summarize harbour.txt --quantize int8",
        "summarize harbour.txt --dtype nonsense", "summarize harbour.txt --device cuda",
        "summarize harbour.txt -m nowhere/at-all", "summarize harbour.txt -m ./missing",
        "summarize harbour.txt -m empty.txt", "summarize harbour.txt --color always",
        "summarize folder --per-file -o answers/", "summarize folder --per-file -o answers/",
        "summarize folder --per-file -o answers/ --restart", "summarize table.csv --set field=name",
        "summarize table.csv --set field=nothing",
        "summarize page.html", "summarize page.html --json",
        "summarize harbour.txt --think on", "summarize harbour.txt --set max_mb=0",
        "summarize harbour.txt --frobnicate", "summarize harbour.txt --predict seeds.txt",
        "runs list --json", "runs stats --json", "runs show none", "runs show 999",
    ]  # fmt: skip
    methods = "none trie prompt-lookup llma akunu trtllm rest suffix lookahead recycling auto nope"
    yield [f"summarize orchard.md --method {method} --json" for method in methods.split()]
    yield [
        "ask -d harbour.txt 'When is high tide?'", "ask -d harbour.txt 'When is high tide?' --json",
        f"ask {' '.join(f'-d {n}' for n in NAMES)} 'Who built the harbour?'",
        "ask -d folder 'Who built the quay?' --cite", "ask -d folder 'Who?' --show-passages",
        "ask -d long.txt 'What is in note 40?' --show-passages", "ask 'When?' < harbour.txt",
        "ask -d long.txt 'What is in note 40?' --json", "ask -d missing 'When?'",
        "ask -d folder ''",
        "ask -d long.txt 'What is in note 40?' --passages 2 --json", "ask -d harbour.txt",
        "ask -d harbour.txt 'When is high tide?' --dry-run",
        "ask -d page.html 'What is it?' --json",
        "ask -d harbour.txt 'When?' --html page2.html --json",
        "ask -d table.csv 'Who is old?' --json",
        "ask -d empty-folder 'When?'", "ask -d broken.pdf 'What?'", "ask -d broken.docx 'What?'",
        "ask -d folder -d broken.pdf 'What?'", "ask -d mixed 'Who built the quay?'",
        "ask -d mixed 'Who built it?' --set strict=yes", "ask -d mail.eml 'Who writes?' --json",
    ]  # fmt: skip
    yield [
        "docs list folder", "docs list folder --json", "docs list mixed", "docs list mixed --json",
        "docs list missing", "docs show harbour.txt", "docs show harbour.txt --json",
        "docs show page.html", "docs show table.csv", "docs show table.csv --set field=name",
        "docs show mail.eml", "docs show long.txt --passages", "docs show broken.pdf",
        "docs show data.json", "docs show data.json --set field=notes", "docs show data.jsonl",
        "docs show notes.rtf", "docs show empty.txt", "docs show binary.bin", "docs list mixed",
    ]  # fmt: skip
    yield [
        "generate 'Once there was'", "generate 'Once there was' --json --max-tokens 9",
        "generate -d harbour.txt 'The harbour'", "generate @harbour.txt --max-tokens 5",
        "generate ''",
        "generate - < seeds.txt", "generate", "chat -d harbour.txt < questions.txt",
        "chat < questions.txt", "chat -d missing < questions.txt",
        "chat -d harbour.txt < empty.txt",
    ]  # fmt: skip
    yield [
        "batch lines.jsonl -o out.jsonl", "batch lines.jsonl -o out.jsonl", "#out.jsonl",
        "batch lines.jsonl -o out.jsonl --restart", "#out.jsonl", "batch lines.jsonl -o seeds.txt",
        "batch lines.jsonl -o out2.jsonl --limit 2", "batch lines.jsonl -o out2.jsonl",
        "#out2.jsonl", "batch lines.jsonl -o out2.jsonl --max-tokens 3",
        "batch bad.jsonl -o bad-out.jsonl", "#bad-out.jsonl", "batch missing.jsonl -o o.jsonl",
        "batch empty.txt -o o.jsonl", "batch", "batch - -o o3.jsonl < lines.jsonl", "#o3.jsonl",
        "batch lines.jsonl -o -", "batch lines.jsonl -o shard.jsonl --shard 1/2", "#shard.jsonl",
        "batch lines.jsonl -o a/b.jsonl", "batch harbour.txt -o o4.jsonl",
        "batch lines.jsonl -o one.jsonl --batch-size 1", "#one.jsonl",
    ]  # fmt: skip
    yield [
        "trie build harbour.txt", "trie list", "trie list --json", "trie show harbour.txt",
        "trie build missing", "trie build folder --set n=5 --set lp=2 --json",
        "trie build folder --rest",
        "summarize harbour.txt --method trie --json", "cache list", "cache list --json",
        "cache clear tries", "cache clear", "cache list", "trie list",
    ]  # fmt: skip
    yield [
        "check harbour.txt --max-tokens 12", "check harbour.txt --max-tokens 12 --json",
        "check --methods nope", "bench --methods none --rounds 1 --prompts missing",
        "bench --methods nope", "tune --sweep n=nonsense", "tune --sweep",
        "bench replay missing", "heads train", "heads train --kind nope -d harbour.txt -o h",
        "mcp", "serve --port 99999999", "stop", "status", "env --frobnicate",
    ]  # fmt: skip


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
        "empty.txt": "", "binary.bin": bytes(range(256)) * 4, "long.txt": "\n\n".join(notes),
        "table.csv": 'name,age\nAda,36\n"Bo\nBa",7\n',
        "mail.eml": "From: a@b.c\nSubject: Tide\n\nHigh.\n",
        "page.html": "<h1>High tide</h1>" + "".join(f"<p>{n}</p>" for n in notes[:9]),
        "questions.txt": "When is high tide?\nWho built the quay?\n/help\n",
        "broken.pdf": "%PDF-1.4 no",
        "broken.docx": "PK no", "data.json": json.dumps({"notes": notes[:3], "other": 1}),
        "data.jsonl": '{"text": "one"}\n{"text": "two"}\n',
        "notes.rtf": r"{\rtf1 Hello \b bold\b0 .}",
        "mixed/broken.pdf": "%PDF-1.4 no", "mixed/empty.txt": "",
        "mixed/page.html": "<p>Hello.</p>",
        "lines.jsonl": "".join(json.dumps(line) + "\n" for line in [*lines, {"context": notes[1]}]),
        "bad.jsonl": '{"context": "fine."}\n{"nope": 1}\nno\n{"context": ""}\n{"context": 3}\n',
    }  # fmt: skip
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
    """Run one command line in a fork, or read the file behind `#`."""
    if case.startswith("#"):
        path = folder / case[1:]
        return {"file": plain(path.read_text() if path.exists() else "none", folder)}
    line, _, given = case.partition(" <")
    stdin = (folder / given.strip()).read_bytes() if given else b""
    done = run(*shlex.split(line), input=stdin, cwd=folder, **SETTINGS, NGT_HOME=str(home))
    out, errors = (plain(text.decode("utf-8", "replace"), folder)
                   for text in (done.stdout, done.stderr))  # fmt: skip
    return {"code": done.returncode, "stdout": out, "stderr": errors}


def plain(text: str, folder: Path) -> str:
    """The text without what differs between two runs of one commit."""
    text = text.replace(str(folder.parent), "TMP").replace(str(Path.home()), "HOME")
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
