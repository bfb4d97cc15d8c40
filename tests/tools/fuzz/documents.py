"""Hostile documents, folders, names and questions, and what ngt should make of each."""

import codecs
import json
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from ngtcli.config import Settings
from tests.tools.fuzz.case import (
    ANSWERED,
    CONTEXT,
    INPUT,
    MODEL,
    SECONDS,
    USAGE,
    Case,
    Command,
    Place,
    Result,
    case,
    command,
)
from tests.tools.fuzz.odd import PROSE, any_text, control_soup, odd_file_name, odd_word
from tests.tools.fuzz.world import HARBOUR

_SHORT = 700  # characters that fit the built-in model's 4096 positions, whatever they are
_OWN_SPECIAL = 4  # ids below this are the built-in model's special tokens
_READ = frozenset({ANSWERED})
_READ_OR_LONG = frozenset({ANSWERED, CONTEXT})
_REFUSED = frozenset({INPUT})
_ANY = frozenset({ANSWERED, INPUT, CONTEXT})

Content = tuple[str, bytes, frozenset[int]]  # what it is, its bytes, the exit codes it may give


def _of_text(what: str, text: str) -> Content:
    codes = _READ if len(text) < _SHORT else _READ_OR_LONG
    if not text.strip() or "\0" in text:
        codes = _REFUSED
    return what, text.encode("utf-8", "replace"), codes


def _foreign(rng: Random) -> Content:
    codec, text = rng.choice(_FOREIGN)
    return f"{codec}, which is not UTF-8", (text * 9).encode(codec), _REFUSED


def _zero(rng: Random) -> Content:
    at = rng.randrange(len(PROSE))
    return "a zero byte", (PROSE[:at] + "\0" + PROSE[at:]).encode(), _REFUSED


def _encoded(rng: Random) -> Content:
    codec, mark, codes = rng.choice(_CODECS)
    how = "with its mark" if mark else "without a mark"
    return f"{codec} {how}", mark + PROSE.encode(codec), codes


def _huge(rng: Random) -> Content:
    size = int(2 ** rng.uniform(16, 25))  # characters: 64 kB to 32 MB
    unit = rng.choice(["a", PROSE, "ab ", "\u00e9", "\n", "x\n", "<|end|>", "9", "." * 7])
    codes = _READ_OR_LONG if unit.strip() else _REFUSED  # a summary may be made of parts
    return f"{size} characters of {unit[:9]!r}", (unit * (size // len(unit))).encode(), codes


_FOREIGN = (
    *((codec, "Der Hafen für größere Schiffe, café. ") for codec in ("latin-1", "cp1252", "cp037")),
    ("shift_jis", "港は一八七一年に"), ("gb18030", "港口于一八七一年"), ("koi8-r", "Гавань вырыта"),
)  # fmt: skip
_CODECS = (
    ("utf-16-le", codecs.BOM_UTF16_LE, _READ), ("utf-16-be", codecs.BOM_UTF16_BE, _READ),
    ("utf-8", codecs.BOM_UTF8, _READ),
    *((codec, b"", _READ | _REFUSED) for codec in ("utf-16-le", "utf-16-be", "utf-32")),
)  # fmt: skip
_BLANK = ("", " ", "\n" * 5000, "\t \r\n", "\ufeff", "\u3000", "\ufeff\n")
_MARKUP = (
    "{question}", "{documents}", "{text}", "[bold red]", "[/]", "{{ 1 }}", "{% if %}", "%s%n",
    "$(id)", "\\x1b[31m", "</script>", "\N{BELL}", "{", "}", "\\",
)  # fmt: skip
# A share of the cases, and what the document holds.
_CONTENTS: tuple[tuple[int, Callable[[Random], Content]], ...] = (
    (3, lambda r: ("random bytes", r.randbytes(int(2 ** r.uniform(0, 16))), _ANY)),
    (4, lambda r: _of_text("text of any script", any_text(r, int(2 ** r.uniform(0, 13))))),
    (3, lambda r: _of_text("control characters", f"{control_soup(r)}\nThe harbour was dug.")),
    (2, lambda r: _of_text("a word repeated", any_text(r, r.randint(1, 6)) * r.randint(1, 300))),
    (2, lambda r: _of_text("markup", " ".join(r.choices(_MARKUP, k=r.randint(1, 60))))),
    (1, lambda r: ("nothing in it", r.choice(_BLANK).encode(), _REFUSED)),
    (2, _encoded),
    (1, _foreign),
    (1, _zero),
    (1, _huge),
)


def documents(rng: Random, place: Place) -> Case:
    """One document, named outright, piped in, or beside a good one in a folder."""
    if rng.random() < 0.12:
        return _special(rng, place)
    ((_, make),) = rng.choices(_CONTENTS, [share for share, _ in _CONTENTS])
    what, data, codes = make(rng)
    way = rng.choice(["named", "named", "piped", "folder"])
    # Measured: 12 MB are summarized in 2,132 parts within 55 s; twice that a byte.
    bounds = {"memory": 300_000_000 + 20 * len(data), "seconds": SECONDS + len(data) / 1e5}
    if way == "piped":
        head, tail = _asking(rng, "-")
        codes = _of(head, codes)
        return case(f"{what}, piped in", [*head, *tail], codes, stdin=data, **bounds)
    name = "folder/odd.txt" if way == "folder" else "odd.txt"
    _write(place.work / name, data)
    if way == "folder":
        _write(place.work / "folder/good.txt", PROSE.encode())
        head, tail = _asking(rng, "folder")
        if codes == _REFUSED and rng.random() < 0.3:
            return case(f"{what}, with --strict", [*head, "--strict", *tail], codes, **bounds)
        codes = _READ if codes == _REFUSED else codes | {ANSWERED}
        return case(f"{what}, beside a good file", [*head, *tail], codes, **bounds)
    if codes == _READ_OR_LONG and rng.random() < 0.4:
        codes, tail = _READ, ["--overflow", "truncate"]
        return case(f"{what}, cut", ["summarize", name, "--max-tokens", "2", *tail], codes,
                    **bounds)  # fmt: skip
    head, tail = _asking(rng, name)
    return case(what, [*head, *tail], _of(head, codes), **bounds)


def _of(head: list[str], codes: frozenset[int]) -> frozenset[int]:
    """The codes of this command: of what does not fit, a question may read some passages."""
    return codes | {ANSWERED} if head[0] == "ask" and CONTEXT in codes else codes


def _asking(rng: Random, path: str) -> tuple[list[str], list[str]]:
    """A command over `path`, and flags that change neither its text nor its exit code."""
    head = rng.choice([["summarize", path], ["ask", "Who built it?", "-d", path]])
    tails = ("--dry-run", "--dry-run --json", "--json", "", "-v", "--json-tokens", "--explain",
             "--method none", "--method trie")  # fmt: skip
    return head, [*rng.choice(tails).split(), "--max-tokens", str(rng.randint(1, 9))]


def _special(rng: Random, place: Place) -> Case:
    """Text written like special tokens: beside a harmless spelling it may not come out shorter."""
    times, token = rng.randint(8, 18), rng.choice(place.world.special[:4])  # 18 fit a name
    where = rng.choice(["document", "question", "name"])
    harmless = token.replace("|", ":")
    seen: list[tuple[int, int | None]] = []

    def check(result: Result) -> Iterable[str]:
        if result.code != ANSWERED:
            return
        body = json.loads(result.out)
        ids = body.get("ids")
        marks = None if ids is None else sum(i < _OWN_SPECIAL for i in ids)
        seen.append((int(body["prompt_tokens"]), marks))
        if len(seen) < 2:
            return
        if seen[1][0] < seen[0][0] - 2 * times or seen[0][1] != seen[1][1]:
            yield f"{token} in the {where} became a special token"
        if ids is None:
            yield "no ids in --dry-run --json"

    commands: list[Command] = []
    for text in (harmless * times, token * times):
        question = text if where == "question" else "Who built it?"
        name = f"{text}.txt" if where == "name" else f"{len(commands)}.txt"
        _write(place.work / name, (text if where == "document" else PROSE).encode())
        paths = ["-d", name, "-d", HARBOUR]  # two documents, so that names are in the prompt
        arguments = ["ask", question, *paths, "--dry-run", "--json"]
        commands.append(command(arguments, _READ, check=check))
    return Case(f"{times} times {token} in the {where}", tuple(commands))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


_DEVICES = ("/dev/zero", "/dev/urandom", "/dev/full", "/dev/fd/99", "/proc/self/mem", "/dev/null")


def folders(rng: Random, place: Place) -> Case:
    """A folder with a good file and odd company, or something that is no document at all."""
    make = rng.choice([_company, _company, _deep, _links, _twins, _devices, _pipe, _many])
    return make(rng, place)


def _company(rng: Random, place: Place) -> Case:
    """Odd names, unreadable files and special files beside a good one."""
    folder = place.work / "notes"
    folder.mkdir()
    made = []
    for _ in range(rng.randint(1, 6)):
        name = odd_file_name(rng) + rng.choice([".txt", ".md", "", ".pdf"])
        path = folder / name
        if not os.path.lexists(path) and len(os.fsencode(name)) < 250:
            made.append(_odd_file(rng, path))
    (folder / "good.txt").write_text(PROSE)
    tail = rng.choice([["--json"], ["--dry-run"], ["-v"], ["--dry-run", "--json"]])
    # Names of many bytes may fill the prompt.
    codes = [ANSWERED, CONTEXT] if len(made) > 3 else [ANSWERED]
    arguments = ["summarize", "notes", *tail, "--max-tokens", "3"]
    return case(f"a folder with {', '.join(made)}", arguments, codes)


def _odd_file(rng: Random, path: Path) -> str:
    kind = rng.choice(["text", "text", "empty", "binary", "pipe", "socket", "folder", "dangling"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket" and len(os.fsencode(path)) < 100:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.fsencode(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to("/nowhere/x")
    else:
        path.write_bytes({"empty": b"", "binary": bytes(99)}.get(kind, PROSE.encode()))
    return kind


def _deep(rng: Random, place: Place) -> Case:
    """A text below many folders, within the depth that is set or beyond it."""
    depth = rng.choice([10, 90, 200, 700])
    raised = ["--max-depth", "1000"] if rng.random() < 0.5 else []
    at = os.open(place.work, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    file = os.open("deep.txt", os.O_WRONLY | os.O_CREAT, dir_fd=at)
    os.write(file, PROSE.encode())
    os.close(file)
    os.close(at)
    codes = [ANSWERED] if raised or depth < Settings().max_depth else [INPUT]
    arguments = ["summarize", "d", *raised, "--max-tokens", "3"]
    return case(f"a text below {depth} folders", arguments, codes)


def _links(rng: Random, place: Place) -> Case:
    """Links that go round, up, or out, beside a good file."""
    folder = place.work / "notes"
    folder.mkdir()
    (folder / "good.txt").write_text(PROSE)
    for number in range(rng.randint(1, 5)):
        target = rng.choice([".", "..", "round0", "/proc/self", "good.txt", "/nowhere", "x.txt"])
        (folder / f"round{number}").symlink_to(target)
    (folder / "self.txt").symlink_to("self.txt")
    return case("links that go round", ["summarize", "notes", "--dry-run"], [ANSWERED, CONTEXT])


def _twins(rng: Random, place: Place) -> Case:
    """Files of one name: the answer must tell them apart."""
    for folder in ("a", "b", "a/c"):
        (place.work / "notes" / folder).mkdir(parents=True)
        (place.work / "notes" / folder / "same.txt").write_text(f"{folder}: {PROSE}")

    def check(result: Result) -> Iterable[str]:
        names = [d["name"] for d in json.loads(result.out)["documents"]] if not result.code else []
        if len(set(names)) < len(names):
            yield f"documents of one name: {names}"

    given = rng.choice([["notes"], ["notes/a", "notes/b"], ["notes/**/*.txt"]])
    return case("files of one name", ["summarize", *given, "--json", "--max-tokens", "2"],
                [ANSWERED], check=check)  # fmt: skip


def _devices(rng: Random, place: Place) -> Case:
    """Something endless or special, named outright."""
    device = rng.choice(_DEVICES)
    arguments = rng.choice([
        ["summarize", device], ["ask", "Who?", "-d", device], ["trie", "build", device],
        ["bench", "--prompts", device, "--methods", "none"], ["trie", "show", device],
        ["tune", "--sweep", "n=5,8", "--prompts", device],
    ])  # fmt: skip
    return case(f"{device} as a document", arguments, [INPUT], seconds=15)


def _pipe(rng: Random, place: Place) -> Case:
    """A named pipe that nobody writes to."""
    os.mkfifo(place.work / "pipe.txt")
    arguments = rng.choice([["summarize", "pipe.txt"], ["summarize", "pipe.txt", HARBOUR]])
    return case("a pipe that nobody writes to", arguments, [INPUT], seconds=10)


def _many(rng: Random, place: Place) -> Case:
    """So many files that their names alone do not fit."""
    folder = place.work / "notes"
    folder.mkdir()
    for number in range(rng.choice([400, 1500])):
        odd = any_text(rng, 9).replace("/", "-").replace("\0", "")
        (folder / f"{odd}{number}.txt").write_text(PROSE)
    cut = rng.choice([[], ["--overflow", "truncate"]])

    def check(result: Result) -> Iterable[str]:
        if "question alone" in result.err:
            yield "the question is blamed where the names are too long"

    return case("hundreds of files", ["summarize", "notes", *cut, "--max-tokens", "2"], [CONTEXT],
                check=check, memory=800_000_000)  # fmt: skip


_NAMED = (
    (["summarize", HARBOUR, "--max-tokens", "2", "-m"], [MODEL, USAGE]),
    (["summarize", HARBOUR, "--max-tokens", "2", "--draft-model"], [ANSWERED, MODEL, USAGE]),
    (["summarize", HARBOUR, "--max-tokens", "2", "-p"], [USAGE]),
    (["summarize", HARBOUR, "--max-tokens", "2", "--device"], [USAGE]),
    (["presets", "show"], [USAGE]),
    (["trie", "show"], [INPUT]),
    (["summarize"], [INPUT]),
    (["summarize", HARBOUR, "--dry-run", "--stop"], [ANSWERED]),
    (["bench", "--replay"], [INPUT, USAGE]),
    (["bench", "--prompts"], [INPUT]),
    (["tune", "--sweep", "n=5,8", "--prompts"], [INPUT]),
    (["bench", "--methods", "none", "--limit", "1", "--tasks"], [USAGE]),
    (["trie", "clear", "--key"], [USAGE, INPUT]),
)  # fmt: skip
_NONE = "\u2717"  # stands before each odd name, so that none is a name that there is


def names(rng: Random, place: Place) -> Case:
    """An odd name where a model, method, preset, file or task is to be named."""
    head, codes = rng.choice(_NAMED)
    name = odd_word(rng)
    if head[-1] not in ("-m", "--draft-model", "--stop"):
        name = _NONE + name
    if rng.random() < 0.15:
        return _output(rng, place)
    # An empty name is unset or refused; a folder that is no model is no model.
    return case(
        f"the name {name[:40]!r}", [*head, name], {*codes, *([ANSWERED] if not name else [])}
    )


def _output(rng: Random, place: Place) -> Case:
    """An answer written to a file of an odd name, in this folder."""
    name = odd_file_name(rng)
    arguments = ["summarize", HARBOUR, "--max-tokens", "2", "-o", f"./{name}"]
    return case(f"-o {name[:40]!r}", arguments, [ANSWERED, USAGE])


def questions(rng: Random, place: Place) -> Case:
    """An odd question; unquoted words; an empty one."""
    question = odd_word(rng) if rng.random() < 0.7 else any_text(rng, int(2 ** rng.uniform(1, 14)))
    question = question.replace("\0", "")
    tail = rng.choice([["--dry-run"], ["--dry-run", "--json"], ["--json"], ["--method", "none"]])
    if rng.random() < 0.1:
        words = ["Who", "built", "the", "harbour"]

        def check(result: Result) -> Iterable[str]:
            if "quot" not in result.err.lower() and '"' not in result.err:
                yield "no hint at quotes"

        return case("words without quotes", ["ask", "-d", HARBOUR, *words], [USAGE], check=check)
    codes = {ANSWERED} if question.strip() else {USAGE}
    codes |= {CONTEXT} if len(question) > 500 else set()
    if question.startswith("-") and question != "-":
        codes |= {USAGE, ANSWERED}
    arguments = ["ask", "-d", HARBOUR, "--max-tokens", "3", *tail, "--", question]
    return case(f"the question {question[:40]!r}", arguments, codes)
