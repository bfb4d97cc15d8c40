"""Convert prompts of published data sets for `ngt bench --prompts`, and add noise to them.

    python -m tests.tools.datasets IN.jsonl OUT.jsonl [--noise K --seed N]

The keys of a line tell its data set; other lines stay as they are:

- Spec-Bench: `question_id`, `category`, `turns` (the first turn is the whole message)
- HAGRID: `query`, `quotes`, `answers`
- CNN/DailyMail: `article`, `highlights`
- TriviaQA: `question`, `context`, `answer`

With `--noise`, passages of other lines are mixed into the documents of each line, as retrieval does
(paper, Table 4).
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


def convert(line: Mapping[str, Any]) -> Line:
    """Convert a line of a data set to one for `ngt bench --prompts`."""
    if "turns" in line:  # Spec-Bench
        return {
            "id": line["question_id"],
            "task": line.get("category", "chat"),
            "message": line["turns"][0],
        }

    id_field: Line = {"id": line["id"]} if "id" in line else {}
    if "quotes" in line:  # HAGRID
        if "query_id" in line:
            id_field = {"id": line["query_id"]}
        texts = [quote if isinstance(quote, str) else quote["text"] for quote in line["quotes"]]
        return {
            **id_field,
            "question": line["query"],
            "documents": texts,
            "answers": answers_of(line.get("answers", [])),
        }
    if "article" in line:  # CNN/DailyMail
        return {
            **id_field,
            "documents": [{"name": "article", "text": line["article"]}],
            "answers": answers_of(line.get("highlights", [])),
        }

    answers = answers_of(line.get("answers", line.get("answer", [])))
    fields = {key: value for key, value in line.items() if key not in ("answer", "answers")}
    return {**fields, "answers": answers}


def answers_of(value: Any) -> list[str]:
    """The reference answers in a string, a list, or an object of HAGRID or TriviaQA."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        answers: list[str] = []
        for part in value:
            answers += answers_of(part)
        return list(dict.fromkeys(answers))
    keys = ("value", "answer", "text", "aliases")
    return answers_of([value[key] for key in keys if key in value])


def with_noise(items: Sequence[Item], count: int, seed: int = 0) -> list[list[Document]]:
    """Mix `count` passages of other items into the documents of each item.

    The same `seed` gives the same passages. None is of a text that the item itself is about. Raises
    UsageError if there are too few passages, or if an item is a whole message.
    """
    if any(item.message for item in items):
        raise UsageError(
            "noise cannot be mixed into whole messages",
            hint="Give prompts whose documents stand apart from the question.",
        )

    passages_by_item = [_passages_of(item) for item in items]
    mixed_documents = []
    for item, passages_of_item in zip(items, passages_by_item, strict=True):
        own_passages = set(passages_of_item)
        unrelated: dict[str, None] = {}  # a set with a fixed order
        for other_passages in passages_by_item:
            if own_passages.isdisjoint(other_passages):
                unrelated |= dict.fromkeys(other_passages)
        candidates = [
            passage
            for passage in unrelated
            if not any(passage in document.text for document in item.documents)
        ]
        if len(candidates) < count:
            raise UsageError(
                f"only {len(candidates)} unrelated passages for {item.id}",
                hint="Give fewer, or more prompts to take them from.",
            )

        # Each item has a generator of its own, so that the order of items does not matter.
        rng = random.Random(f"{seed} {item.id}")
        documents = list(item.documents)
        for number, passage in enumerate(rng.sample(candidates, count), 1):
            noise = Document(f"extract {number}", passage)
            documents.insert(rng.randint(0, len(documents)), noise)
        mixed_documents.append(documents)
    return mixed_documents


def _passages_of(item: Item) -> list[str]:
    """The passages of an item's documents, in order."""
    parts: list[str] = []
    for document in item.documents:
        parts += passages(document)
    return parts


def main(argv: Sequence[str] | None = None) -> None:
    """Convert a file, and add noise if it is asked for."""
    parser = argparse.ArgumentParser(description="Published prompts for ngt bench --prompts.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--noise", type=int, default=0, help="unrelated passages for each prompt")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)

    text = args.source.read_text(encoding="utf-8")
    lines = [convert(json.loads(line)) for line in text.splitlines() if line.strip()]
    _write(args.target, lines)
    if not args.noise:
        return

    try:
        noisy = with_noise(read_jsonl(args.target), args.noise, args.seed)
        for line, documents in zip(lines, noisy, strict=True):
            line["documents"] = [
                {"name": document.name, "text": document.text} for document in documents
            ]
            line["context"] = None
            line["passages"] = None
    except NgtError as error:
        sys.exit(f"{error}. {error.hint}")
    _write(args.target, lines)


def _write(path: Path, lines: Sequence[Line]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
