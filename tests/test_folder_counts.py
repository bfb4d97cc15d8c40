"""Counts of all documents given: as counted by hand, kept, and made again only for what changed."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.background import folder
from ngtcli.background.folder import FolderCounts
from ngtcli.documents.load import Document
from ngtcli.draft.drafter import Context, DraftSettings
from ngtcli.draft.registry import parse_method
from ngtcli.system.files import home
from ngtcli.tokens.tokenizer import Tokenizer
from ngtcli.trie.background import DEPTH, FIRST, BackgroundCounts, build_counts
from tests.support.counted import count_of
from tests.support.helpers import FakeBackend, ngt


class CountingTokenizer(Tokenizer):
    """A token a letter; `encoded` has the texts that were encoded."""

    def __init__(self) -> None:
        super().__init__(FakeBackend())
        self.encoded: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        return super().encode(text)


def make(tokenizer: Tokenizer, warn: list[str] | None = None) -> FolderCounts:
    told = warn if warn is not None else []
    return FolderCounts(tokenizer, 97, lambda _: None, told.append)


def documents(*texts: str) -> list[Document]:
    return [Document(f"{i}.txt", text, path=f"/notes/{i}.txt") for i, text in enumerate(texts)]


def code(text: str) -> list[int]:
    return [ord(letter) - 32 for letter in text]


TEXT = st.text(st.sampled_from(list("abc ")), min_size=1, max_size=30).filter(str.strip)


@settings(max_examples=20, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=4, unique=True))
def test_what_occurs_twice_is_counted_within_each_document(texts: list[str]) -> None:
    counts = make(CountingTokenizer()).of(documents(*texts), None)
    wanted: Counter[str] = Counter()
    for text in map(str.strip, texts):
        wanted.update(text[i : i + k] for i in range(len(text)) for k in range(1, DEPTH + 1)
                      if i + k <= len(text))  # fmt: skip
    for sequence, count in wanted.items():
        found = count_of(counts, code(sequence))
        assert found == (count if len(sequence) == 1 or count > 1 else 0)


def test_only_documents_that_no_set_had_are_encoded() -> None:
    """Sets of the same and of other documents, in any folder: their counts are those by hand."""
    whole, general = documents("tide tide", "quay quay", "boat boat"), build_counts([([7, 8], 3.0)])
    read = CountingTokenizer()
    first = make(read).of(whole, general)
    assert len(read.encoded) == 3
    for some in (whole[:1], whole[1:], whole[::-1], whole):
        counts = make(read).of(some, general)
    assert len(read.encoded) == 3 and np.array_equal(counts.nodes[1:], first.nodes[1:])
    changed = make(read).of(documents("tide tide", "lamp lamp", "boat boat"), general)
    assert read.encoded[3:] == ["lamp lamp"]
    assert count_of(changed, code("lamp")) == 2 and count_of(first, code("lamp")) == 0


def test_they_are_joined_with_the_background_and_another_one_is_noticed() -> None:
    tokenizer = CountingTokenizer()
    ids = [7, 8, 9]
    general = build_counts([(ids, 3.0)])
    counts = make(tokenizer).of(documents("tide tide"), general)
    tide = code("tide")
    assert count_of(counts, ids) == 3 and count_of(counts, tide) == 2
    other = make(tokenizer).of(documents("tide tide"), build_counts([([7, 8], 5.0)]))
    assert count_of(other, [7, 8]) == 5 and count_of(other, ids) == 0
    assert len(tokenizer.encoded) == 1


def test_a_damaged_background_is_left_out_with_a_line() -> None:
    damaged = build_counts([([7, 8, 9], 3.0)])
    damaged.nodes[1:, FIRST] = 1000
    told: list[str] = []
    counts = make(CountingTokenizer(), told).of(documents("tide tide"), damaged)
    assert count_of(counts, code("tide")) == 2
    assert len(told) == 1 and "not joined" in told[0]


def test_a_background_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[object] = []
    monkeypatch.setattr(folder, "hashlib", SimpleNamespace(
        sha256=lambda rows: hashed.append(rows) or hashlib.sha256(rows)))  # fmt: skip
    counts, general = make(CountingTokenizer()), build_counts([([7, 8, 9], 3.0)])
    for _ in range(3):
        counts.of(documents("tide tide"), general)
    assert len(hashed) == 1


@pytest.mark.parametrize("damage", [b"", b"\xff" * 5, np.int32([5, 97]).tobytes()])
def test_what_is_damaged_is_made_again(damage: bytes) -> None:
    """Files and ids: cut, of another length, and out of the vocabulary."""
    read = CountingTokenizer()
    whole = make(read).of(documents("tide tide"), None)
    files = list((home("cache") / "folders").iterdir())
    assert len(files) == 2
    for file in files:
        assert file.stat().st_mode & 0o777 == 0o600
        file.write_bytes(damage)
    folder.IDS.put_many(dict.fromkeys(folder.IDS.each(), damage))
    told: list[str] = []
    again = make(read, told).of(documents("tide tide"), None)
    assert np.array_equal(again.nodes[1:], whole.nodes[1:]) and told == []
    assert len(read.encoded) == 2


def test_of_too_many_tokens_the_first_documents_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(folder, "TOKENS", 12)
    told: list[str] = []
    counts = make(CountingTokenizer(), told).of(documents("tide tide", "lamp lamp"), None)
    assert told == ["drafts come from the first 1 of 2 documents"]
    assert count_of(counts, code("lamp")) == 0


def test_a_context_lends_auto_its_counts_for_one_answer() -> None:
    own, lent = build_counts([([5, 6, 7] * 9, 9.0)]), build_counts([([5, 8, 9] * 9, 9.0)])
    drafter = parse_method("auto", DraftSettings(background=own)).build()

    def drafted(background: BackgroundCounts | None) -> tuple[int, ...]:
        drafter.reset(Context([40, 41, 5], background=background, vocabulary=97))
        return drafter.propose([40, 41, 5], 4).tokens

    assert drafted(None)[:1] == (6,)
    assert drafted(lent)[:1] == (8,)
    assert drafted(None)[:1] == (6,)


def test_a_question_drafts_from_all_documents_where_that_is_set(tmp_path: Path) -> None:
    for i in range(2):
        lines = " ".join(f"Barge {i}.{j} came in with the tide." for j in range(300))
        (tmp_path / f"{i}.txt").write_text(lines)
    flags = ("ask", "-d", str(tmp_path), "What came in?", "--max-tokens", "8", "--json",
             "--no-calibrate")  # fmt: skip
    plain = ngt(*flags)
    assert not (home("cache") / "folders").exists()
    done = ngt(*flags, "--draft-from", "all")
    assert json.loads(done.stdout)["text"] == json.loads(plain.stdout)["text"]
    assert len(list((home("cache") / "folders").iterdir())) == 2
    wrong = ngt(*flags, "--draft-from", "all", "--method", "trie")
    assert wrong.returncode == 2 and b"--draft-from does nothing" in wrong.stderr
