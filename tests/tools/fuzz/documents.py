"""Hostile documents, folders, names and questions, and what ngt should make of each."""

import codecs
import json
import os
import socket
from collections.abc import Iterable, Set
from pathlib import Path
from random import Random

from ngtcli.config import Settings
from ngtcli.models.checkpoint import BUILTIN_PATH
from tests.tools.fuzz.case import (
    ANSWERED,
    CONTEXT,
    HARBOUR,
    INPUT,
    MEMORY,
    MODEL,
    SECONDS,
    USAGE,
    Case,
    Command,
    Place,
    Result,
    case,
)
from tests.tools.fuzz.odd import PROSE, any_text, control_soup, make_odd, odd_file_name, odd_word

_SHORT = 700  # characters that fit the built-in model's 4096 positions, whatever they are
_OWN_SPECIAL = 4  # ids below this are the built-in model's special tokens
_READ, _REFUSED = {ANSWERED}, {INPUT}
_READ_OR_LONG = {ANSWERED, CONTEXT}

_GERMAN = "Der Hafen für größere Schiffe, café. "
_FOREIGN = (
    ("latin-1", _GERMAN),
    ("cp1252", _GERMAN),
    ("cp037", _GERMAN),
    ("koi8-r", "Гавань вырыта"),
    ("shift_jis", "港は一八七一年に"),
    ("gb18030", "港口于一八七一年"),
)
_CODECS = (
    ("utf-16-le", codecs.BOM_UTF16_LE),
    ("utf-16-be", codecs.BOM_UTF16_BE),
    ("utf-8", codecs.BOM_UTF8),
    ("utf-16-le", b""),
    ("utf-16-be", b""),
    ("utf-32", b""),
)
_BLANK = ("", " ", "\n" * 5000, "\t \r\n", "\ufeff", "\u3000", "\ufeff\n")
_MARKUP = (
    "{question}",
    "{documents}",
    "{text}",
    "[bold red]",
    "[/]",
    "{{ 1 }}",
    "{% if %}",
    "%s%n",
    "$(id)",
    "\\x1b[31m",
    "</script>",
    "\N{BELL}",
    "{",
    "}",
    "\\",
)
_UNITS = ("a", PROSE, "ab ", "\u00e9", "\n", "x\n", "<|end|>", "9", "." * 7)
# What a document holds, and its share of the cases.
_CONTENTS = {
    "random bytes": 3,
    "any script": 4,
    "control characters": 3,
    "a word repeated": 2,
    "markup": 2,
    "blank": 1,
    "encoded": 2,
    "foreign": 1,
    "a zero byte": 1,
    "huge": 1,
}


def _content(rng: Random) -> tuple[str, bytes, Set[int]]:
    """What a document is, its bytes, the exit codes that it may give."""
    what = rng.choices(list(_CONTENTS), list(_CONTENTS.values()))[0]
    if what == "random bytes":
        return what, rng.randbytes(int(2 ** rng.uniform(0, 16))), _REFUSED | _READ_OR_LONG
    if what == "encoded":
        codec, mark = rng.choice(_CODECS)
        codes = _READ if mark else _READ | _REFUSED
        return f"{codec}, marked by {mark!r}", mark + PROSE.encode(codec), codes
    if what == "foreign":
        codec, text = rng.choice(_FOREIGN)
        return f"{codec}, which is not UTF-8", (text * 9).encode(codec), _REFUSED
    if what == "huge":
        size = int(2 ** rng.uniform(16, 25))  # characters: 64 kB to 32 MB
        unit = rng.choice(_UNITS)
        codes = _READ_OR_LONG if unit.strip() else _REFUSED  # a summary may be made of parts
        return f"{size} characters of {unit[:9]!r}", (unit * (size // len(unit))).encode(), codes
    at = rng.randrange(len(PROSE))
    text = {
        "any script": lambda: any_text(rng, int(2 ** rng.uniform(0, 13))),
        "control characters": lambda: f"{control_soup(rng)}\nThe harbour was dug.",
        "a word repeated": lambda: any_text(rng, rng.randint(1, 6)) * rng.randint(1, 300),
        "markup": lambda: " ".join(rng.choices(_MARKUP, k=rng.randint(1, 60))),
        "blank": lambda: rng.choice(_BLANK),
        "a zero byte": lambda: PROSE[:at] + "\0" + PROSE[at:],
    }[what]()
    codes = _READ if len(text) < _SHORT else _READ_OR_LONG
    if not text.strip().strip("\ufeff").strip() or "\0" in text:
        codes = _REFUSED
    return what, text.encode("utf-8", "replace"), codes


def documents(rng: Random, place: Place) -> Case:
    """One document, named outright, piped in, or beside a good one in a folder."""
    if rng.random() < 0.12:
        return _special(rng, place)
    what, data, codes = _content(rng)
    # Measured: 12 MB are summarized in 2,132 parts with 455 MB; within 163 s on a crowded machine.
    bounds = {"memory": MEMORY + 20 * len(data), "seconds": SECONDS + len(data) / 5e4}
    way = rng.choice(["named", "named", "piped", "folder"])
    path = {"named": "odd.txt", "piped": "-", "folder": "folder"}[way]
    head = rng.choice([["summarize", path], ["ask", "Who built it?", "-d", path]])
    # Flags that change neither the text nor the exit code.
    tail = [
        "--max-tokens",
        str(rng.randint(1, 9)),
        *rng.choice(
            [
                "--dry-run",
                "--dry-run --json",
                "--json",
                "",
                "-v",
                "--json-tokens",
                "--method none",
                "--method trie",
            ]
        ).split(),
    ]
    if way == "folder":
        (place.work / path).mkdir()
        (place.work / path / "odd.txt").write_bytes(data)
        (place.work / path / "good.txt").write_text(PROSE)
        if codes == _REFUSED and rng.random() < 0.3:
            tail += ["--set", "strict=yes"]
        else:
            codes = _READ if codes == _REFUSED else codes | {ANSWERED}
        return case(f"{what}, beside a good file", [*head, *tail], codes, **bounds)
    if way == "named":
        (place.work / path).write_bytes(data)
        if codes == _READ_OR_LONG and rng.random() < 0.4:
            cut = ["summarize", path, "--max-tokens", "2", "--overflow", "truncate"]
            return case(f"{what}, cut", cut, _READ, **bounds)
    if head[0] == "ask" and CONTEXT in codes:
        codes = codes | {ANSWERED}  # of what does not fit, some passages may be read
    stdin = data if way == "piped" else b""
    return case(f"{what}, {way}", [*head, *tail], codes, stdin=stdin, **bounds)


def _special(rng: Random, place: Place) -> Case:
    """Text written like special tokens: beside a harmless spelling it may not come out shorter."""
    added = json.loads((BUILTIN_PATH / "tokenizer.json").read_bytes())["added_tokens"]
    times, token = rng.randint(8, 18), rng.choice(added)["content"]  # 18 fit a name
    where = rng.choice(["document", "question", "name"])
    seen: list[tuple[int, int]] = []  # tokens of the harmless prompt, then of the other

    def check(result: Result) -> Iterable[str]:
        if result.code == ANSWERED:
            body = json.loads(result.out)
            seen.append((body["prompt_tokens"], sum(i < _OWN_SPECIAL for i in body["ids"])))
        if len(seen) == 2 and (seen[1][0] < seen[0][0] - 2 * times or seen[0][1] != seen[1][1]):
            yield f"{token} in the {where} became a special token"

    commands: list[Command] = []
    for text in (token.replace("|", ":") * times, token * times):
        question = text if where == "question" else "Who built it?"
        name = f"{text}.txt" if where == "name" else f"{len(commands)}.txt"
        (place.work / name).write_text(text if where == "document" else PROSE)
        # Two documents, so that names are in the prompt.
        arguments = ["ask", question, "-d", name, "-d", HARBOUR, "--dry-run", "--json"]
        commands.append(Command(arguments, _READ, check=check))
    return Case(f"{times} times {token} in the {where}", commands)


def folders(rng: Random, place: Place) -> Case:
    """A folder with a good file and odd company, or something that is no document at all."""
    (place.work / "notes").mkdir()
    (place.work / "notes" / "good.txt").write_text(PROSE)
    make = rng.choice([_company, _company, _deep, _links, _twins, _devices, _pipe, _many])
    return make(rng, place)


def _company(rng: Random, place: Place) -> Case:
    """Odd names, unreadable files and special files beside a good one."""
    made = []
    for _ in range(rng.randint(1, 6)):
        name = odd_file_name(rng) + rng.choice([".txt", ".md", "", ".pdf"])
        path = place.work / "notes" / name
        if not os.path.lexists(path) and len(os.fsencode(name)) < 250:
            made.append(_odd_file(rng, path))
    tail = rng.choice(["--json", "--dry-run", "-v", "--dry-run --json"]).split()
    # Names of many bytes may fill the prompt.
    codes = _READ_OR_LONG if len(made) > 3 else _READ
    arguments = ["summarize", "notes", *tail, "--max-tokens", "3"]
    return case(f"a folder with {', '.join(made)}", arguments, codes)


def _odd_file(rng: Random, path: Path) -> str:
    kind = rng.choice(["text", "text", "empty", "binary", "pipe", "socket", "folder", "dangling"])
    if kind in ("pipe", "folder", "dangling"):
        make_odd(rng, path, ["/nowhere/x" if kind == "dangling" else kind])
    elif kind == "socket" and len(os.fsencode(path)) < 100:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.fsencode(path))
    else:
        path.write_bytes({"empty": b"", "binary": bytes(99)}.get(kind, PROSE.encode()))
    return kind


def _deep(rng: Random, place: Place) -> Case:
    """A text below many folders, within the depth that is set or beyond it."""
    depth = rng.choice([10, 90, 200, 700])
    raised = ["--set", "max_depth=1000"] if rng.random() < 0.5 else []
    at = os.open(place.work, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    with open(os.open("deep.txt", os.O_WRONLY | os.O_CREAT, dir_fd=at), "w") as file:
        file.write(PROSE)
    os.close(at)
    codes = _READ if raised or depth < Settings().reading.max_depth else _REFUSED
    arguments = ["summarize", "d", *raised, "--max-tokens", "3"]
    return case(f"a text below {depth} folders", arguments, codes)


def _links(rng: Random, place: Place) -> Case:
    """Links that go round, up, or out, beside a good file."""
    targets = (".", "..", "round0", "/proc/self", "good.txt", "/nowhere", "x.txt")
    for number in range(rng.randint(1, 5)):
        make_odd(rng, place.work / "notes" / f"round{number}", targets)
    (place.work / "notes" / "self.txt").symlink_to("self.txt")
    return case("links that go round", ["summarize", "notes", "--dry-run"], _READ_OR_LONG)


def _twins(rng: Random, place: Place) -> Case:
    """Files of one name: the answer must tell them apart."""
    for folder in ("a", "b", "a/c"):
        (place.work / "notes" / folder).mkdir()
        (place.work / "notes" / folder / "same.txt").write_text(f"{folder}: {PROSE}")

    def check(result: Result) -> Iterable[str]:
        names = [d["name"] for d in json.loads(result.out)["documents"]] if not result.code else []
        if len(set(names)) < len(names):
            yield f"documents of one name: {names}"

    given = rng.choice(["notes", "notes/a notes/b", "notes/**/*.txt"]).split()
    arguments = ["summarize", *given, "--json", "--max-tokens", "2"]
    return case("files of one name", arguments, _READ, check=check)


_DEVICES = ("/dev/zero", "/dev/urandom", "/dev/full", "/dev/fd/99", "/proc/self/mem", "/dev/null")


def _devices(rng: Random, place: Place) -> Case:
    """Something endless or special, named outright."""
    device = rng.choice(_DEVICES)
    command = rng.choice(
        [
            "summarize {}",
            "ask Who? -d {}",
            "trie build {}",
            "bench --prompts {} --methods none",
            "trie show {}",
            "tune --sweep n=5,8 --prompts {}",
        ]
    )
    return case(f"{device} as a document", command.format(device).split(), _REFUSED, seconds=15)


def _pipe(rng: Random, place: Place) -> Case:
    """A named pipe that nobody writes to."""
    os.mkfifo(place.work / "pipe.txt")
    arguments = ["summarize", "pipe.txt", *rng.choice([[], [HARBOUR]])]
    return case("a pipe that nobody writes to", arguments, _REFUSED, seconds=10)


def _many(rng: Random, place: Place) -> Case:
    """So many files that their names alone do not fit."""
    for number in range(rng.choice([400, 1500])):
        odd = any_text(rng, 9).replace("/", "-").replace("\0", "")
        (place.work / "notes" / f"{odd}{number}.txt").write_text(PROSE)
    overflow, codes = rng.choice([("truncate", {CONTEXT}), ("split", _READ_OR_LONG)])
    arguments = ["summarize", "notes", "--max-tokens", "2", "--overflow", overflow]

    def check(result: Result) -> Iterable[str]:
        if "question alone" in result.err:
            yield "the question is blamed where the names are too long"

    bounds = {"memory": 800_000_000, "seconds": 120}
    return case("hundreds of files", arguments, codes, check=check, **bounds)


_SUMMARIZE = ["summarize", HARBOUR, "--max-tokens", "2"]
_NAMED: tuple[tuple[list[str], set[int]], ...] = (
    ([*_SUMMARIZE, "-m"], {MODEL, USAGE}),
    ([*_SUMMARIZE, "--set"], {ANSWERED, MODEL, USAGE}),
    ([*_SUMMARIZE, "-p"], {USAGE}),
    ([*_SUMMARIZE, "--device"], {USAGE}),
    (["presets", "show"], {USAGE}),
    (["trie", "show"], {INPUT}),
    (["summarize"], {INPUT}),
    (["summarize", HARBOUR, "--dry-run", "--stop"], {ANSWERED}),
    (["bench", "--prompts"], {INPUT}),
    (["tune", "--sweep", "n=5,8", "--prompts"], {INPUT}),
    (["bench", "--methods", "none", "--limit", "1", "--tasks"], {USAGE}),
    (["cache", "clear"], {USAGE, INPUT}),
)
_NONE = "\u2717"  # is before each odd name, so that none is a name that there is


def names(rng: Random, place: Place) -> Case:
    """An odd name where a model, method, preset, file or task is to be named, or for an output."""
    if rng.random() < 0.15:
        name = odd_file_name(rng)
        return case(f"-o {name[:40]!r}", [*_SUMMARIZE, "-o", f"./{name}"], {ANSWERED, USAGE})
    head, codes = rng.choice(_NAMED)
    name = odd_word(rng)
    if head[-1] not in ("-m", "--set", "--stop"):
        name = _NONE + name
    if not name:
        codes = codes | {ANSWERED}  # an empty name is unset or refused
    return case(f"the name {name[:40]!r}", [*head, name], codes)


def questions(rng: Random, place: Place) -> Case:
    """An odd question; unquoted words; an empty one."""
    if rng.random() < 0.1:

        def check(result: Result) -> Iterable[str]:
            if "quot" not in result.err.lower() and '"' not in result.err:
                yield "no hint at quotes"

        words = ["ask", "-d", HARBOUR, "Who", "built", "the", "harbour"]
        return case("words without quotes", words, {USAGE}, check=check)
    question = odd_word(rng) if rng.random() < 0.7 else any_text(rng, int(2 ** rng.uniform(1, 14)))
    question = question.replace("\0", "")
    codes = {ANSWERED} if question.strip() else {USAGE}
    if len(question) > 500:
        codes |= {CONTEXT}
    if question.startswith("-") and question != "-":
        codes |= {USAGE, ANSWERED}
    tail = rng.choice(["--dry-run", "--dry-run --json", "--json", "--method none"]).split()
    arguments = ["ask", "-d", HARBOUR, "--max-tokens", "3", *tail, "--", question]
    return case(f"the question {question[:40]!r}", arguments, codes)
