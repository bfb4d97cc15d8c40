"""Hostile documents, folders, names and questions, each with the exit codes that are right."""

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

# Fewer characters than this fit the built-in model's 4096 positions, whatever they are.
_SHORT = 700
_SPECIAL_TOKENS = 4  # The built-in model's special tokens have the ids below this.
_READ = {ANSWERED}
_REFUSED = {INPUT}
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
# Kinds of documents and their shares of the cases.
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
    """Return a description of a document, its bytes, and the exit codes that are right."""
    kind = rng.choices(list(_CONTENTS), list(_CONTENTS.values()))[0]
    if kind == "random bytes":
        return kind, rng.randbytes(int(2 ** rng.uniform(0, 16))), _REFUSED | _READ_OR_LONG
    if kind == "encoded":
        codec, mark = rng.choice(_CODECS)
        codes = _READ if mark else _READ | _REFUSED
        return f"{codec}, marked by {mark!r}", mark + PROSE.encode(codec), codes
    if kind == "foreign":
        codec, text = rng.choice(_FOREIGN)
        return f"{codec}, which is not UTF-8", (text * 9).encode(codec), _REFUSED
    if kind == "huge":
        size = int(2 ** rng.uniform(16, 25))  # In characters: from 64 kB to 32 MB.
        unit = rng.choice(_UNITS)
        # A long document may still be summarized in parts.
        codes = _READ_OR_LONG if unit.strip() else _REFUSED
        return f"{size} characters of {unit[:9]!r}", (unit * (size // len(unit))).encode(), codes

    text = _short_content(rng, kind)
    codes = _READ if len(text) < _SHORT else _READ_OR_LONG
    if not text.strip().strip("\ufeff").strip() or "\0" in text:
        codes = _REFUSED
    return kind, text.encode("utf-8", "replace"), codes


def _short_content(rng: Random, kind: str) -> str:
    offset = rng.randrange(len(PROSE))
    if kind == "any script":
        return any_text(rng, int(2 ** rng.uniform(0, 13)))
    if kind == "control characters":
        return f"{control_soup(rng)}\nThe harbour was dug."
    if kind == "a word repeated":
        word = any_text(rng, rng.randint(1, 6))
        return word * rng.randint(1, 300)
    if kind == "markup":
        return " ".join(rng.choices(_MARKUP, k=rng.randint(1, 60)))
    if kind == "blank":
        return rng.choice(_BLANK)
    assert kind == "a zero byte"
    return PROSE[:offset] + "\0" + PROSE[offset:]


def documents(rng: Random, place: Place) -> Case:
    """Read one odd document: by its path, from stdin, or in a folder with a good one."""
    if rng.random() < 0.12:
        return _special(rng, place)
    description, data, codes = _content(rng)
    # Measured: 12 MB are summarized in 2,132 parts with 455 MB, in up to 163 s on a busy machine.
    bounds = {"memory": MEMORY + 20 * len(data), "seconds": SECONDS + len(data) / 5e4}
    source = rng.choice(["named", "named", "piped", "folder"])
    path = {"named": "odd.txt", "piped": "-", "folder": "folder"}[source]
    command = rng.choice([["summarize", path], ["ask", "Who built it?", "-d", path]])
    max_tokens = str(rng.randint(1, 9))
    # Flags that change neither the answer nor the exit code.
    harmless = rng.choice(
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
    )
    flags = ["--max-tokens", max_tokens, *harmless.split()]

    if source == "folder":
        (place.work / path).mkdir()
        (place.work / path / "odd.txt").write_bytes(data)
        (place.work / path / "good.txt").write_text(PROSE)
        if codes == _REFUSED and rng.random() < 0.3:
            flags += ["--set", "strict=yes"]
        elif codes == _REFUSED:
            codes = _READ
        else:
            codes = codes | {ANSWERED}
        return case(f"{description}, beside a good file", [*command, *flags], codes, **bounds)
    if source == "named":
        (place.work / path).write_bytes(data)
        if codes == _READ_OR_LONG and rng.random() < 0.4:
            truncate = ["summarize", path, "--max-tokens", "2", "--overflow", "truncate"]
            return case(f"{description}, cut", truncate, _READ, **bounds)
    if command[0] == "ask" and CONTEXT in codes:
        codes = codes | {ANSWERED}  # `ask` may read only some passages
    stdin = data if source == "piped" else b""
    return case(f"{description}, {source}", [*command, *flags], codes, stdin=stdin, **bounds)


def _special(rng: Random, place: Place) -> Case:
    """Write a special token as text: it must not become that token.

    The prompt is compared with one that has a harmless spelling in its place: it must not have
    fewer tokens, nor another number of special ones.
    """
    added = json.loads((BUILTIN_PATH / "tokenizer.json").read_bytes())["added_tokens"]
    repetitions = rng.randint(8, 18)  # a file name has room for 18
    token = rng.choice(added)["content"]
    position = rng.choice(["document", "question", "name"])
    token_counts: list[int] = []  # of the harmless prompt, then of the other
    special_counts: list[int] = []

    def check(result: Result) -> Iterable[str]:
        if result.code == ANSWERED:
            prompt = json.loads(result.out)
            special_ids = [token_id for token_id in prompt["ids"] if token_id < _SPECIAL_TOKENS]
            token_counts.append(prompt["prompt_tokens"])
            special_counts.append(len(special_ids))
        if len(token_counts) == 2:
            is_shorter = token_counts[1] < token_counts[0] - 2 * repetitions
            if is_shorter or special_counts[0] != special_counts[1]:
                yield f"{token} in the {position} became a special token"

    commands: list[Command] = []
    for spelling in (token.replace("|", ":"), token):
        text = spelling * repetitions
        question = text if position == "question" else "Who built it?"
        name = f"{text}.txt" if position == "name" else f"{len(commands)}.txt"
        (place.work / name).write_text(text if position == "document" else PROSE)
        # With two documents the prompt has their names.
        arguments = ["ask", question, "-d", name, "-d", HARBOUR, "--dry-run", "--json"]
        commands.append(Command(arguments, _READ, check=check))
    return Case(f"{repetitions} times {token} in the {position}", commands)


def folders(rng: Random, place: Place) -> Case:
    """Read a folder that has odd files beside a good one, or something that is no document."""
    (place.work / "notes").mkdir()
    (place.work / "notes" / "good.txt").write_text(PROSE)
    build = rng.choice([_company, _company, _deep, _links, _twins, _devices, _pipe, _many])
    return build(rng, place)


def _company(rng: Random, place: Place) -> Case:
    """Put odd names, unreadable files and special files beside a good one."""
    kinds = []
    for _ in range(rng.randint(1, 6)):
        name = odd_file_name(rng) + rng.choice([".txt", ".md", "", ".pdf"])
        path = place.work / "notes" / name
        if not os.path.lexists(path) and len(os.fsencode(name)) < 250:
            kinds.append(_odd_file(rng, path))
    flags = rng.choice(["--json", "--dry-run", "-v", "--dry-run --json"]).split()
    # Names of many bytes may fill the prompt.
    codes = _READ_OR_LONG if len(kinds) > 3 else _READ
    arguments = ["summarize", "notes", *flags, "--max-tokens", "3"]
    return case(f"a folder with {', '.join(kinds)}", arguments, codes)


def _odd_file(rng: Random, path: Path) -> str:
    """Create a file of some kind; return the kind."""
    kind = rng.choice(["text", "text", "empty", "binary", "pipe", "socket", "folder", "dangling"])
    if kind in ("pipe", "folder"):
        make_odd(rng, path, [kind])
    elif kind == "dangling":
        make_odd(rng, path, ["/nowhere/x"])
    elif kind == "socket" and len(os.fsencode(path)) < 100:  # the system's limit is 108
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.fsencode(path))
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "binary":
        path.write_bytes(bytes(99))
    else:
        path.write_text(PROSE)
    return kind


def _deep(rng: Random, place: Place) -> Case:
    """Put a document below many folders, within the maximum depth or beyond it."""
    depth = rng.choice([10, 90, 200, 700])
    flags = ["--set", "max_depth=1000"] if rng.random() < 0.5 else []
    # The path is too long to be opened at once: go down by descriptors.
    folder = os.open(place.work, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=folder)
        child = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = child
    with open(os.open("deep.txt", os.O_WRONLY | os.O_CREAT, dir_fd=folder), "w") as file:
        file.write(PROSE)
    os.close(folder)
    codes = _READ if flags or depth < Settings().reading.max_depth else _REFUSED
    arguments = ["summarize", "d", *flags, "--max-tokens", "3"]
    return case(f"a text below {depth} folders", arguments, codes)


def _links(rng: Random, place: Place) -> Case:
    """Put links that go in circles, up, or out of the folder beside a good file."""
    targets = (".", "..", "round0", "/proc/self", "good.txt", "/nowhere", "x.txt")
    for number in range(rng.randint(1, 5)):
        make_odd(rng, place.work / "notes" / f"round{number}", targets)
    (place.work / "notes" / "self.txt").symlink_to("self.txt")
    return case("links that go round", ["summarize", "notes", "--dry-run"], _READ_OR_LONG)


def _twins(rng: Random, place: Place) -> Case:
    """Read files of the same name: the answer must tell them apart."""
    for folder in ("a", "b", "a/c"):
        (place.work / "notes" / folder).mkdir()
        (place.work / "notes" / folder / "same.txt").write_text(f"{folder}: {PROSE}")

    def check(result: Result) -> Iterable[str]:
        if result.code != ANSWERED:
            return
        names = [document["name"] for document in json.loads(result.out)["documents"]]
        if len(set(names)) < len(names):
            yield f"documents of one name: {names}"

    paths = rng.choice(["notes", "notes/a notes/b", "notes/**/*.txt"]).split()
    arguments = ["summarize", *paths, "--json", "--max-tokens", "2"]
    return case("files of one name", arguments, _READ, check=check)


_DEVICES = ("/dev/zero", "/dev/urandom", "/dev/full", "/dev/fd/99", "/proc/self/mem", "/dev/null")


def _devices(rng: Random, place: Place) -> Case:
    """Name a device or something endless as a document."""
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
    """Name a pipe that nobody writes to."""
    os.mkfifo(place.work / "pipe.txt")
    arguments = ["summarize", "pipe.txt", *rng.choice([[], [HARBOUR]])]
    return case("a pipe that nobody writes to", arguments, _REFUSED, seconds=10)


def _many(rng: Random, place: Place) -> Case:
    """Read so many files that their names alone do not fit the context."""
    for number in range(rng.choice([400, 1500])):
        prefix = any_text(rng, 9).replace("/", "-").replace("\0", "")
        (place.work / "notes" / f"{prefix}{number}.txt").write_text(PROSE)
    overflow, codes = rng.choice([("truncate", {CONTEXT}), ("split", _READ_OR_LONG)])
    arguments = ["summarize", "notes", "--max-tokens", "2", "--overflow", overflow]

    def check(result: Result) -> Iterable[str]:
        if "no room for documents" in result.err and " names take all" not in result.err:
            yield "the error does not say that the names are too long"

    bounds = {"memory": 800_000_000, "seconds": 120}
    return case("hundreds of files", arguments, codes, check=check, **bounds)


_SUMMARIZE = ["summarize", HARBOUR, "--max-tokens", "2"]
# Commands that end with a name, and the exit codes that are right for a wrong one.
_COMMANDS_BEFORE_NAME: tuple[tuple[list[str], set[int]], ...] = (
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
_UNUSED_PREFIX = "\u2717"  # No model, preset, file or task has a name that begins with it.


def names(rng: Random, place: Place) -> Case:
    """Use an odd name for a model, preset, file, task or output."""
    if rng.random() < 0.15:
        name = odd_file_name(rng)
        return case(f"-o {name[:40]!r}", [*_SUMMARIZE, "-o", f"./{name}"], {ANSWERED, USAGE})
    command, codes = rng.choice(_COMMANDS_BEFORE_NAME)
    name = odd_word(rng)
    if command[-1] not in ("-m", "--set", "--stop"):
        name = _UNUSED_PREFIX + name
    if not name:
        codes = codes | {ANSWERED}  # an empty name counts as unset, or is refused
    return case(f"the name {name[:40]!r}", [*command, name], codes)


def questions(rng: Random, place: Place) -> Case:
    """Ask an odd or empty question, or one without quotes."""
    if rng.random() < 0.1:

        def check(result: Result) -> Iterable[str]:
            if "quot" not in result.err.lower() and '"' not in result.err:
                yield "no hint at the missing quotes"

        words = ["ask", "-d", HARBOUR, "Who", "built", "the", "harbour"]
        return case("words without quotes", words, {USAGE}, check=check)
    if rng.random() < 0.7:
        question = odd_word(rng)
    else:
        question = any_text(rng, int(2 ** rng.uniform(1, 14)))
    question = question.replace("\0", "")
    codes = {ANSWERED} if question.strip() else {USAGE}
    if len(question) > 500:
        codes |= {CONTEXT}
    if question.startswith("-") and question != "-":
        codes |= {USAGE, ANSWERED}
    flags = rng.choice(["--dry-run", "--dry-run --json", "--json", "--method none"]).split()
    arguments = ["ask", "-d", HARBOUR, "--max-tokens", "3", *flags, "--", question]
    return case(f"the question {question[:40]!r}", arguments, codes)
