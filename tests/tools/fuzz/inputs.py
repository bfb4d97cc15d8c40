"""Hostile documents, and what ngt should make of each."""

import codecs
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

from tests.tools.fuzz.case import (
    ANSWERED,
    CONTEXT,
    INPUT,
    Case,
    Command,
    Place,
    Result,
    case,
    command,
)
from tests.tools.fuzz.odd import (
    PROSE,
    any_text,
    control_soup,
)
from tests.tools.fuzz.world import HARBOUR

_SHORT = 700  # characters that fit the built-in model's 4096 positions, whatever they are
_FOREIGN = ("latin-1", "cp1252", "shift_jis", "koi8-r", "gb18030", "cp037")
_OWN_SPECIAL = 4  # ids below this are the built-in model's special tokens
_READ = frozenset({ANSWERED})
_READ_OR_LONG = frozenset({ANSWERED, CONTEXT})
_REFUSED = frozenset({INPUT})

Content = tuple[str, bytes, frozenset[int]]  # what it is, its bytes, the exit codes it may give


def _of_text(what: str, text: str) -> Content:
    codes = _READ if len(text) < _SHORT else _READ_OR_LONG
    if not text.strip() or "\0" in text:
        codes = _REFUSED
    return what, text.encode("utf-8", "replace"), codes


def _random_bytes(rng: Random) -> Content:
    data = rng.randbytes(int(2 ** rng.uniform(0, 16)))
    return "random bytes", data, frozenset({ANSWERED, INPUT, CONTEXT})


def _random_text(rng: Random) -> Content:
    return _of_text("text of any script", any_text(rng, int(2 ** rng.uniform(0, 13))))


def _controls(rng: Random) -> Content:
    return _of_text("control characters", control_soup(rng) + "\nThe harbour was dug in 1871.")


def _blank(rng: Random) -> Content:
    text = rng.choice(["", " ", "\n" * 5000, "\t \r\n", "\ufeff", "\u3000", "\ufeff\n"])
    return "nothing in it", text.encode(), _REFUSED


def _marked(rng: Random) -> Content:
    codec, mark = rng.choice(
        [("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE),
         ("utf-8", codecs.BOM_UTF8)]
    )  # fmt: skip
    return f"{codec} with its mark", mark + PROSE.encode(codec), _READ


def _unmarked(rng: Random) -> Content:
    codec = rng.choice(["utf-16-le", "utf-16-be", "utf-32"])
    return f"{codec} without a mark", PROSE.encode(codec), frozenset({ANSWERED, INPUT})


def _foreign(rng: Random) -> Content:
    codec = rng.choice(_FOREIGN)
    text = {
        "shift_jis": "港は一八七一年に",
        "gb18030": "港口于一八七一年",
        "koi8-r": "Гавань вырыта",
    }
    data = (text.get(codec, "Der Hafen für größere Schiffe, café. ") * 9).encode(codec)
    return f"{codec}, which is not UTF-8", data, _REFUSED


def _zero(rng: Random) -> Content:
    at = rng.randrange(len(PROSE))
    return "a zero byte", (PROSE[:at] + "\0" + PROSE[at:]).encode(), _REFUSED


def _huge(rng: Random) -> Content:
    size = int(2 ** rng.uniform(16, 25))  # characters: 64 kB to 32 MB
    unit = rng.choice(["a", PROSE, "ab ", "\u00e9", "\n", "x\n", "<|end|>", "9", "." * 7])
    if not unit.strip():
        return "a huge blank", (unit * size).encode(), _REFUSED
    text = unit * (size // len(unit))
    return f"{size} characters of {unit[:9]!r}", text.encode(), frozenset({CONTEXT})


def _repeats(rng: Random) -> Content:
    word = any_text(rng, rng.randint(1, 6))
    return _of_text("one word again and again", word * rng.randint(1, 300))


def _markup(rng: Random) -> Content:
    parts = ["{question}", "{documents}", "{text}", "[bold red]", "[/]", "{{ 1 }}", "{% if %}",
             "%s%n", "$(id)", "\\x1b[31m", "</script>", "\N{BELL}", "{", "}", "\\"]  # fmt: skip
    return _of_text("markup", " ".join(rng.choices(parts, k=rng.randint(1, 60))))


_CONTENTS = (
    (_random_bytes, 3), (_random_text, 4), (_controls, 3), (_blank, 1), (_marked, 1),
    (_unmarked, 1), (_foreign, 1), (_zero, 1), (_huge, 1), (_repeats, 2), (_markup, 2),
)  # fmt: skip


def documents(rng: Random, place: Place) -> Case:
    """One document, named outright, piped in, or beside a good one in a folder."""
    if rng.random() < 0.12:
        return _special(rng, place)
    make = rng.choices([c for c, _ in _CONTENTS], [w for _, w in _CONTENTS])[0]
    what, data, codes = make(rng)
    way = rng.choice(["named", "named", "piped", "folder"])
    memory = 300_000_000 + 20 * len(data)
    if way == "piped":
        head, tail = _asking(rng, "-")
        codes = _of(head, codes)
        return case(f"{what}, piped in", [*head, *tail], codes, stdin=data, memory=memory)
    name = "folder/odd.txt" if way == "folder" else "odd.txt"
    _write(place.work / name, data)
    if way == "folder":
        _write(place.work / "folder/good.txt", PROSE.encode())
        head, tail = _asking(rng, "folder")
        if codes == _REFUSED and rng.random() < 0.3:
            return case(f"{what}, with --strict", [*head, "--strict", *tail], codes, memory=memory)
        codes = _READ if codes == _REFUSED else codes | {ANSWERED}
        return case(f"{what}, beside a good file", [*head, *tail], codes, memory=memory)
    if codes == {CONTEXT} and rng.random() < 0.4:
        codes, tail = _READ, ["--overflow", "truncate"]
        return case(f"{what}, cut", ["summarize", name, "--max-tokens", "2", *tail], codes,
                    memory=memory)  # fmt: skip
    head, tail = _asking(rng, name)
    return case(what, [*head, *tail], _of(head, codes), memory=memory)


def _of(head: list[str], codes: frozenset[int]) -> frozenset[int]:
    """The codes of this command: of what does not fit, a question may read some passages."""
    return codes | {ANSWERED} if head[0] == "ask" and CONTEXT in codes else codes


def _asking(rng: Random, path: str) -> tuple[list[str], list[str]]:
    """A command over `path`, and flags that change neither its text nor its exit code."""
    head = rng.choice([["summarize", path], ["ask", "Who built it?", "-d", path]])
    tail = rng.choice(
        [["--dry-run"], ["--dry-run", "--json"], ["--json"], [], ["-v"], ["--json-tokens"],
         ["--explain"], ["--color", "always", "--method", "none"], ["--method", "trie"]]
    )  # fmt: skip
    if "--color" in tail:
        tail = ["--method", "none"]
    return head, [*tail, "--max-tokens", str(rng.randint(1, 9))]


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
