"""Prompts of published sets as those of `ngt bench --prompts`, and noise among their passages.

`python -m tests.tools.datasets IN.jsonl OUT.jsonl [--noise K --seed N]`. The kind of a line is told
by its keys: Spec-Bench's `question_id`, `category`, `turns` (the first turn is the whole message),
HAGRID's `query`, `quotes`, `answers`, CNN/DailyMail's `article`, `highlights`, TriviaQA's
`question`, `context`, `answer`; others stay as they are. With `--noise` passages of other lines are
mixed into the documents of each, as retrieval does (paper, Table 4).
"""

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ngtcli.bench.prompts import Item, passages, read_jsonl
from ngtcli.documents.load import Document
from ngtcli.errors import NgtError, UsageError

Line = dict[str, Any]


def converted(line: Mapping[str, Any]) -> Line:
    """A line in our own form."""
    own: Line = {"id": line["id"]} if "id" in line else {}
    if "turns" in line:
        task = {"task": line.get("category", "chat"), "message": line["turns"][0]}
        return {"id": line["question_id"], **task}
    if "quotes" in line:
        texts = [quote if isinstance(quote, str) else quote["text"] for quote in line["quotes"]]
        own = {"id": line["query_id"]} if "query_id" in line else own
        own |= {"question": line["query"], "documents": texts}
        return {**own, "answers": answers_of(line.get("answers", []))}
    if "article" in line:
        own |= {"documents": [{"name": "article", "text": line["article"]}]}
        return {**own, "answers": answers_of(line.get("highlights", []))}
    given = {key: value for key, value in line.items() if key not in ("answer", "answers")}
    return {**given, "answers": answers_of(line.get("answers", line.get("answer", [])))}


def answers_of(value: Any) -> list[str]:
    """Reference answers: a text, a list, HAGRID's objects, TriviaQA's value and aliases."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return list(dict.fromkeys(a for v in value for a in answers_of(v)))
    return answers_of([value[k] for k in ("value", "answer", "text", "aliases") if k in value])


def with_noise(items: Sequence[Item], count: int, seed: int = 0) -> list[list[Document]]:
    """The documents of each item with `count` passages of other items among them.

    They are the same for one `seed`, and none is of a text that the item itself is about. Raises
    UsageError where there are too few, and for whole messages.
    """
    if any(item.message for item in items):
        what = "noise cannot be mixed into whole messages"
        raise UsageError(what, hint="Give prompts whose documents stand apart from the question.")
    own = [{part for d in item.documents for part in passages(d)} for item in items]
    found = []
    for i, item in enumerate(items):
        others = (j for j in range(len(items)) if not own[i] & own[j])
        parts = dict.fromkeys(p for j in others for d in items[j].documents for p in passages(d))
        offered = [part for part in parts if not any(part in d.text for d in item.documents)]
        if len(offered) < count:
            what = f"only {len(offered)} unrelated passages for {item.id}"
            raise UsageError(what, hint="Give fewer, or more prompts to take them from.")
        chance = random.Random(f"{seed} {item.id}")  # its own: the order of items decides nothing
        mixed = list(item.documents)
        for number, part in enumerate(chance.sample(offered, count), 1):
            mixed.insert(chance.randint(0, len(mixed)), Document(f"extract {number}", part))
        found.append(mixed)
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Convert a file."""
    parser = argparse.ArgumentParser(description="Published prompts for ngt bench --prompts.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--noise", type=int, default=0, help="unrelated passages for each prompt")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    text = args.source.read_text(encoding="utf-8")
    lines = [converted(json.loads(line)) for line in text.splitlines() if line.strip()]
    _write(args.target, lines)
    if not args.noise:
        return
    try:
        noisy = with_noise(read_jsonl(args.target), args.noise, args.seed)
        for line, documents in zip(lines, noisy, strict=True):
            given = [{"name": one.name, "text": one.text} for one in documents]
            line |= {"documents": given, "context": None, "passages": None}
    except NgtError as error:
        sys.exit(f"{error}. {error.hint}")
    _write(args.target, lines)


def _write(path: Path, lines: Sequence[Line]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
