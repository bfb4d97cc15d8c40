"""How many values `ngt extract` gets right, by type, of records whose fields are known.

    python -m tests.tools.extract_score FOLDER [--records 200] [--told] -- -m MODEL …

Records are proposals of Python and Ethereum (`../shared/data/text`) with the head that says their
number, title, author, date, status and type. A document is the beginning of one: the head as it
stands, or with --told sentences that tell it in one of three wordings, in the middle of the text.
What follows -- is given to `ngt extract`.
"""

import argparse
import json
import lzma
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from ngtcli.grounding.values import stated

DATA = Path(os.environ.get("NGT_SHARED", "../shared/data")) / "text"
STATUS = "Draft|Final|Rejected|Withdrawn|Active|Deferred|Superseded|Accepted|Stagnant|Review|Living"
TYPE = "Standards_Track|Informational|Process|Meta"
SCHEMA = f"""
number int: the number of the proposal, PEP or EIP
title: the title of the proposal
author: who wrote it
created date: the date when it was created
status {STATUS}: its status
type {TYPE}: its type
"""
KINDS = {"number": "int", "title": "str", "author": "str", "created": "date",
         "status": "choice", "type": "choice"}  # fmt: skip
_TOLD = (
    "The title of proposal number {number} is {title}. It was written by {author} and created on"
    " {day}. It is of type {type}. Its status is {status}.",
    "{author} is the author of {title}, created on {day}. This is proposal number {number}. Its"
    " type is {type}, and its status at present is {status}.",
    "Proposal number {number} has the status {status} and the type {type}. Its title is {title}."
    " The author, {author}, created it on {created}.",
)
_CHARACTERS = 1500


def records(count: int, told: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name, text, values) of records, spread evenly over both collections."""
    for kind in ("pep", "eip"):
        with lzma.open(DATA / f"{kind}s.jsonl.xz", "rt", encoding="utf-8") as lines:
            known = [made for line in lines if (made := _record(kind, json.loads(line)))]
        for i in range(count // 2):
            name, text, values = known[i * len(known) // (count // 2)]
            if told:
                text = _told(text, values, i)
            else:
                values["author"] = values.pop("authors")
            yield name, text[:_CHARACTERS], values


def _record(kind: str, line: dict[str, str]) -> tuple[str, str, dict[str, Any]] | None:
    head, text = _head(line["text"]), line["text"]
    created = [one.value for one in stated("date", (), head.get("created", ""))]
    of_type = head.get("type", "").replace(" ", "_")
    is_known = head.get("status") in STATUS.split("|") and of_type in TYPE.split("|")
    if not (created and is_known and head.get("title") and head.get("author")):
        return None
    author = re.split(r"[,<(]", head["author"])[0].strip()
    values = {"number": int(head[kind]), "title": head["title"].strip('"'), "author": author,
              "authors": head["author"], "created": created[0], "status": head["status"],
              "type": of_type}  # fmt: skip
    return f"{line['id']}.txt", text, values


def _head(text: str) -> dict[str, str]:
    """The fields at the beginning of a proposal."""
    found: dict[str, str] = {}
    for line in text.removeprefix("---\n").split("\n"):
        if not line.strip() or line == "---":
            break
        name, colon, value = line.partition(":")
        if colon and re.fullmatch(r"[\w-]+", name):
            found[name.lower()] = value.strip()
    return found


def _told(text: str, values: dict[str, Any], number: int) -> str:
    """The text without its head, which is told in the middle of the part that is read."""
    body = re.split(r"\n---\n|\n\s*\n", text, maxsplit=1)[-1][: _CHARACTERS - 300].strip()
    day = date.fromisoformat(values["created"])
    words = {**values, "day": f"{day.day} {day:%B %Y}", "type": values["type"].replace("_", " ")}
    parts = body.split("\n\n")
    parts.insert(len(parts) // 2, _TOLD[number % len(_TOLD)].format(**words))
    return "\n\n".join(parts)


def same(value: Any, truth: Any) -> bool:
    """Whether a value is right: a text but for white space, case and marks around it."""
    if not isinstance(truth, str) or not isinstance(value, str):
        return bool(value == truth)
    said, meant = (" ".join(one.split()).strip(".,;:\"'").casefold() for one in (value, truth))
    return said == meant


def main() -> None:
    """Make the documents, run the command, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=200)
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--wrong", action="store_true", help="print what is wrong")
    given, more = parser.parse_known_args()
    texts, table = given.folder / "texts", given.folder / "table.jsonl"
    texts.mkdir(parents=True, exist_ok=True)
    truth = {}
    for name, text, values in records(given.records, given.told):
        (texts / name).write_text(text, encoding="utf-8")
        truth[name] = values
    sys.argv = ["ngt", "extract", str(texts), "--schema", SCHEMA, "-o", str(table), "--restart",
                *[one for one in more if one != "--"]]  # fmt: skip
    from ngtcli.cli.app import run

    run()
    right, of = Counter[str](), Counter[str]()
    for line in table.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name in KINDS:
            meant = truth[row["file"]][name]
            said = row["values"][name]
            for key in (name, KINDS[name], "all"):
                of[key] += 1
                right[key] += same(said, meant)
            if given.wrong and not same(said, meant):
                print(f"{row['file']} {name}: {said!r}, not {meant!r}")
    for key in of:
        print(f"{key}\t{right[key]} of {of[key]}\t{right[key] / of[key]:.1%}")


if __name__ == "__main__":
    main()
