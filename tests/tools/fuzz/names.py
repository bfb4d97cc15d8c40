"""Hostile folders, names and questions, and what ngt should make of each."""

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from random import Random

from ngtcli.config import Settings
from tests.tools.fuzz.case import (
    ANSWERED,
    CONTEXT,
    INPUT,
    MODEL,
    USAGE,
    Case,
    Place,
    Result,
    case,
)
from tests.tools.fuzz.odd import PROSE, any_text, odd_file_name, odd_word
from tests.tools.fuzz.world import HARBOUR

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
        (
            folder / f"{any_text(rng, 9).replace('/', '-').replace(chr(0), '')}{number}.txt"
        ).write_text(PROSE)
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
