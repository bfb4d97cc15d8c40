"""Published prompts in our own form."""

import json
from pathlib import Path
from typing import Any

import pytest

from ngtcli.bench.prompts import Item, passages, read_jsonl
from ngtcli.documents.load import Document
from ngtcli.errors import UsageError
from tests.tools import datasets
from tests.tools.datasets import with_noise


def passage(text: str, number: int = 1) -> Document:
    return Document(f"passage {number}", text)


@pytest.mark.parametrize(
    ("line", "item"),
    [
        (
            {"question_id": 7, "category": "rag", "turns": ["Hello.", "More."]},  # Spec-Bench
            Item("7", "rag", (Document("message", "Hello."),), message=True),
        ),
        (
            {
                "query_id": 3,
                "query": "Who?",
                "answers": [{"answer": "Edith Marlow [1]."}],  # HAGRID
                "quotes": [{"idx": 1, "text": "Marlow did."}, {"idx": 2, "text": "In 1932."}],
            },
            Item(
                "3",
                "ask",
                (passage("Marlow did."), passage("In 1932.", 2)),
                "Who?",
                ("Edith Marlow [1].",),
            ),
        ),
        (
            {"question": "Who?", "context": "…", "answer": {"value": "Ida", "aliases": ["I. B."]}},
            Item("1", "ask", (passage("…"),), "Who?", ("Ida", "I. B.")),
        ),  # TriviaQA
        (
            {"id": "a", "article": "News.", "highlights": "Short news."},  # CNN/DailyMail
            Item("a", "summarize", (Document("article", "News."),), "", ("Short news.",)),
        ),
    ],
)
def test_a_line_is_converted_by_the_kind_that_its_keys_tell(
    line: dict[str, Any], item: Item, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text(json.dumps(line))
    datasets.main([str(tmp_path / "in"), str(tmp_path / "out")])
    assert read_jsonl(tmp_path / "out") == [item]


def long_text(name: str) -> str:
    return "\n\n".join(" ".join(f"{name}{p}w{i}" for i in range(25)) for p in range(3))


def test_noise_comes_from_other_texts_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    items = [Item(n, "ask", (Document(n, long_text(n)),), "?") for n in "abc"]
    noisy = with_noise(items, 2, seed=1)
    assert noisy == with_noise(items, 2, seed=1) != with_noise(items, 2, seed=2)
    for item, documents in zip(items, noisy, strict=True):
        added = [d for d in documents if d != item.documents[0]]
        assert item.documents[0] in documents and len(added) == 2
        assert not any(d.text in item.documents[0].text for d in added)
    lines = [{"id": n, "context": long_text(n), "question": "?"} for n in "abc"]
    (tmp_path / "in").write_text("\n".join(map(json.dumps, lines)))
    datasets.main([str(tmp_path / "in"), str(tmp_path / "out"), "--noise", "2", "--seed", "1"])
    texts = [[d.text for d in item.documents] for item in read_jsonl(tmp_path / "out")]
    assert texts == [[d.text for d in documents] for documents in noisy]


def test_noise_is_never_taken_from_a_text_with_the_same_passage() -> None:
    first, second, third = passages(Document("a", long_text("a")))
    items = [Item("1", "ask", (Document("a", first),)), Item("2", "ask", (Document("b", second),))]
    sharing = Item("3", "ask", (Document("x", f"{first}\n\n{third}"),))
    with pytest.raises(UsageError, match="only 1 unrelated passages for 1"):
        with_noise([*items, sharing], 2)


def test_noise_is_not_mixed_into_whole_messages() -> None:
    item = Item("1", "chat", (Document("message", "What?"),), message=True)
    with pytest.raises(UsageError, match="whole messages"):
        with_noise([item], 0)
