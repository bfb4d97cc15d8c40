"""The background: counts of texts, the phrases that ship, its files, and drafts from it."""

import hashlib
import lzma
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.drafting.auto.drafter import Auto
from ngtcli.drafting.background import loaded
from ngtcli.drafting.background.counting import phrase_counts, word_ids
from ngtcli.drafting.background.files import EDITION, SHIPPED, background_path
from ngtcli.drafting.background.loaded import Background
from ngtcli.drafting.background.phrases import LONGEST, MOST_PACKED, Phrases, read_phrases
from ngtcli.drafting.drafter import Context, DraftSettings
from ngtcli.drafting.pool import Pool
from ngtcli.drafting.registry import parse_method
from ngtcli.drafting.tries.background import COUNT, FIRST, TOKEN, BackgroundCounts
from ngtcli.drafting.tries.background_search import BackgroundArrays, find_row
from ngtcli.drafting.tries.files import BACKGROUNDS, list_files
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.models.tokenizer import Tokenizer
from ngtcli.system.compiled import njit
from ngtcli.system.files import DamagedFileError
from ngtcli.system.reporting import reporting_to
from tests.support.background_counts import build_counts, count_of
from tests.support.driven_drafters import DrafterBatch, DrafterRun
from tests.support.helpers import HARBOUR, examples, ngt
from tests.support.loaded_once import shipped_background
from tests.support.other_languages import CHINESE, GERMAN
from tests.support.phrase_counts import counts_in, n_grams, texts, write_phrases
from tests.support.recording_reporter import RecordingReporter
from tests.support.tokenizer_kinds import KINDS, backend
from tests.tools import hostile_background
from tests.tools.measuring.replaying import replay
from tests.tools.measuring.traces import Trace

# --- counts of texts ---

VOCABULARY = 6
IDS = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
TEXTS = st.lists(IDS, max_size=5)


def counted(texts: Sequence[list[int]], depth: int) -> Counter[tuple[int, ...]]:
    """How often every sequence of at most `depth` tokens occurs."""
    counts: Counter[tuple[int, ...]] = Counter()
    for ids in texts:
        for size in range(1, depth + 1):
            for start in range(len(ids) - size + 1):
                counts[tuple(ids[start : start + size])] += 1
    return counts


@given(TEXTS, st.integers(1, 4), st.lists(st.sampled_from([0, 1, 2]), max_size=3))
def test_counts_are_those_of_the_texts_but_for_what_is_seldom(
    texts: list[list[int]], depth: int, least: list[int]
) -> None:
    counts = build_counts(texts, depth, least)
    all_counts = counted(texts, depth)
    last_bound = least[-1] if least else 0
    bounds = [*least, *[last_bound] * depth][:depth]
    expected = {
        sequence: count
        for sequence, count in all_counts.items()
        if all(all_counts[sequence[:k]] >= bounds[k - 1] for k in range(1, len(sequence) + 1))
    }
    max_first_token = max((sequence[0] for sequence in expected), default=-1)
    single_tokens = {(token,) for token in range(max_first_token + 1)}
    assert len(counts) == len(expected.keys() | single_tokens)
    for sequence in all_counts:
        assert count_of(counts, sequence) == expected.get(sequence, 0.0)


@given(TEXTS)
def test_siblings_are_in_the_order_of_their_counts(texts: list[list[int]]) -> None:
    counts = build_counts(texts, 3, ())
    weights = counted(texts, 3)
    paths: list[tuple[int, ...]] = [()]
    for node in range(len(counts) + 1):
        rows = slice(*counts.nodes[node : node + 2, FIRST].tolist())
        tokens = counts.nodes[rows, TOKEN].tolist()
        path = paths[node]
        by_count = sorted(tokens, key=lambda t: (-weights[(*path, t)] if path else 0, t))
        assert tokens == by_count
        assert counts.by_token[rows, TOKEN].tolist() == sorted(tokens)
        assert counts.nodes[counts.by_token[rows, 1], TOKEN].tolist() == sorted(tokens)
        paths += [(*path, token) for token in tokens]


@njit()
def row_of(arrays: Any, sequence: Any) -> int:
    """The row of a sequence, as compiled code finds it."""
    node = 0
    for token in sequence:
        if node != -1:
            node = find_row(BackgroundArrays(arrays[0], arrays[1]), node, token)
    return node


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 9, 40]))
@settings(deadline=None, max_examples=20)
def test_compiled_code_finds_every_sequence_that_was_counted(seed: int, tokens: int) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(0, tokens, 1000).tolist()
    counts = build_counts([text], 3, ())
    expected = counted([text], 3)
    random_sequences = [tuple(ids) for ids in rng.integers(0, tokens + 3, (200, 3)).tolist()]
    for sequence in [*expected, *random_sequences]:
        row = row_of((counts.nodes, counts.by_token), np.array(sequence, np.int32))
        count = counts.nodes[row, COUNT] / 64 if row != -1 else 0.0
        assert count == expected[sequence]


def test_no_content_of_a_file_leads_out_of_its_bounds() -> None:
    """Whatever the numbers are: only tokens of the vocabulary, and escapes that stay escapes."""
    script = Path(hostile_background.__file__)
    count = examples(80)
    completed = subprocess.run(
        [sys.executable, str(script), "1", str(count)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(completed.stdout) > 37 * count


def drafter_with(text: list[int], pool: Pool | None = None) -> Auto:
    counts = build_counts([text], least=())
    return Auto(DraftSettings(background=counts, pool=pool))


def test_prompt_and_pool_are_asked_before_the_background() -> None:
    drafter = drafter_with([1, 2, 3], Pool(answers=[np.array([1, 2, 7], np.int32)]))
    tree = DrafterRun(drafter, Context((1, 2, 8, 1, 2), vocabulary=10)).propose(24)
    first_nodes = [i for i in range(len(tree)) if tree.parents[i] == -1]
    origins = {tree.tokens[i]: tree.origin(i) for i in first_nodes}
    assert (origins[8], origins[7], origins[3]) == ("prompt", "pool", "background")


def test_every_sequence_of_a_batch_drafts_from_the_background() -> None:
    counts = build_counts([[1, 2, 3, 4]], least=())
    batch = DrafterBatch(DraftSettings(background=counts))
    sequences = [batch.begin((9, first), vocabulary=10) for first in (1, 2)]
    for tree, token in zip(batch.propose(sequences, [4, 4]), (2, 3), strict=True):
        assert tree.origin(tree.tokens.index(token)) == "background"


# --- phrases ---


def phrases_of(counts: dict[tuple[str, ...], int]) -> Phrases:
    words = sorted({word for phrase in counts for word in phrase})
    rows = []
    for n in range(1, LONGEST + 1):
        phrases = [phrase for phrase in counts if len(phrase) == n]
        ids = [[words.index(word) for word in phrase] for phrase in phrases]
        phrase_ids = np.array(ids, np.int32).reshape(len(phrases), n)
        rows.append((phrase_ids, np.array([counts[p] for p in phrases], np.int32)))
    return Phrases(tuple(words), tuple(rows))


# --- the file ---


@settings(deadline=None)
@given(texts)
def test_phrases_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("phrases") / "x.xz"
    counts = dict(n_grams(documents))
    write_phrases(path, phrases_of(counts))
    assert counts_in(read_phrases(path)) == counts


def test_a_phrase_without_its_beginning_is_not_read(tmp_path: Path) -> None:
    for text in ("2 fact\t2\n", "1 the\t2\n3 that\t2\n", "1 the\t0\n", "1 the\n", "x the\t2\n"):
        (tmp_path / "y").write_bytes(lzma.compress(text.encode()))
        with pytest.raises(DamagedFileError):
            read_phrases(tmp_path / "y")


def test_any_bytes_are_phrases_or_a_damaged_file(tmp_path: Path) -> None:
    whole = SHIPPED["english"].read_bytes()
    bombs = lzma.compress(b"1 the\t1\n" * 9_000_000, preset=0)
    for data in (b"", b"x" * 99, whole[:5000], whole[5000:], bombs, bytes(MOST_PACKED + 1)):
        (tmp_path / "z").write_bytes(data)
        with pytest.raises((DamagedFileError, OSError)):
            read_phrases(tmp_path / "z")


def test_what_ships_is_phrases_of_several_texts_in_less_than_4_mb() -> None:
    phrases = read_phrases(SHIPPED["english"])
    assert SHIPPED["english"].stat().st_size <= MOST_PACKED
    assert len(phrases) > 300_000
    assert len(phrases.rows) == LONGEST
    rows, _ = phrases.rows[2]
    fact = [phrases.words.index(word) for word in (" the", " fact", " that")]
    assert (rows == fact).all(1).any()
    # A phrase counts at least once for each of the documents that it must be in.
    assert min(int(counts.min()) for _, counts in phrases.rows) >= 3


def test_the_edition_is_that_of_the_file_that_ships() -> None:
    """Else counts of another file would be taken from the cache."""
    digest = hashlib.sha256(SHIPPED["english"].read_bytes()).hexdigest()
    assert EDITION.endswith(f"-{digest[:8]}")


# --- the counts ---


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_words_have_the_ids_that_they_have_in_a_text(kind: str) -> None:
    """With the space before them, after a bracket, and as marks after a word."""
    tokenizer = Tokenizer(backend(kind))
    for left, word in (("a", " the"), ("a", " harbour"), ("(", "boats"), ("a", ","), ("a", " (")):
        ids = word_ids([word], tokenizer)[0]
        text_ids = tokenizer.encode(f"{left}{word}")
        assert ids == text_ids[len(text_ids) - len(ids) :]
        assert ids or kind in ("unigram", "wordpiece")


@pytest.mark.parametrize("kind", ["builtin", "gpt2", "llama_prepend"])
def test_counts_are_those_of_the_texts_that_the_phrases_were_counted_in(kind: str) -> None:
    tokenizer = Tokenizer(backend(kind))
    documents = [
        [" The", " boats", " lie", ",", " the", " boats", " lie"],
        [" the", " slate", ","],
    ]
    phrases = phrases_of({phrase: 5 * count for phrase, count in n_grams(documents).items()})
    ids = dict(zip(phrases.words, word_ids(phrases.words, tokenizer), strict=True))
    texts = [[token for word in document for token in ids[word]] for document in documents]
    expected = build_counts(texts, least=())
    counts = phrase_counts(phrases, tokenizer)
    for text in texts:
        for start in range(len(text)):
            for end in range(start + 1, min(start + 7, len(text)) + 1):
                sequence = text[start:end]
                assert count_of(counts, sequence) == count_of(expected, sequence), sequence
    assert len(counts) == len(expected)


def check_equal(one: BackgroundCounts, other: BackgroundCounts) -> None:
    """The same counts, whatever the vocabulary."""
    np.testing.assert_array_equal(one.nodes[1:], other.nodes[1:])
    np.testing.assert_array_equal(one.by_token, other.by_token)


# --- files ---


def ship_few_phrases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ship few phrases."""
    path = tmp_path / "few.xz"
    write_phrases(path, phrases_of(dict(n_grams([[" the", " fact", " that"], [" the", " end"]]))))
    monkeypatch.setitem(SHIPPED, "english", path)


def load_background(
    name: str = "english", persist: bool = True
) -> tuple[BackgroundCounts | None, list[str], str]:
    """The counts, what was said meanwhile, and what is in use."""
    reported = RecordingReporter()
    with reporting_to(reported):
        background = Background(
            name, load_tokenizer("builtin"), 8192, model="builtin", persist=persist
        )
    counts = background.load()
    return counts, [*reported.statuses, *reported.warnings], background.words()


def test_what_ships_is_made_once_and_stored_complete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ship_few_phrases(monkeypatch, tmp_path)
    assert load_background(persist=False)[0] is not None
    assert not list_files(BACKGROUNDS)
    first, messages, words = load_background()
    assert first is not None
    assert words == "Background: english."
    assert len(messages) == 1
    assert messages[0].startswith("Counting")
    [file] = list_files(BACKGROUNDS)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert list(file.path.parent.iterdir()) == [file.path]
    second, messages, _ = load_background()
    assert second is not None
    assert not messages
    check_equal(second, first)
    assert second.counted == file.nodes > 3


def test_what_ships_takes_less_than_60_mb_of_memory() -> None:
    arrays = shipped_background("english", load_tokenizer("builtin")).arrays.values()
    assert 1_000_000 < sum(array.nbytes for array in arrays) < 60_000_000


@pytest.mark.parametrize("error", [IndexError("far"), MemoryError(), None])
def test_whatever_ends_making_is_told_and_the_answer_goes_on(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if error is None:
        (tmp_path / "bad.xz").write_bytes(b"bad")
        monkeypatch.setitem(SHIPPED, "english", tmp_path / "bad.xz")
    else:
        monkeypatch.setattr(loaded, "make_shipped", Mock(side_effect=error))
    counts, messages, words = load_background()
    assert counts is None
    assert words == "Background: none."
    assert len(messages) == 2
    reason = "it is cut off" if error is None else str(error) or "MemoryError"
    assert f"the background english is not used: {reason}" in messages[1]


def test_where_the_cache_cannot_be_written_it_is_used_all_the_same(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ship_few_phrases(monkeypatch, tmp_path)
    own_home.write_text("no folder")
    counts, messages, _ = load_background()
    assert counts is not None
    assert "was not stored" in messages[-1]


def test_a_damaged_file_is_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ship_few_phrases(monkeypatch, tmp_path)
    first, _, _ = load_background()
    path = background_path("english", load_tokenizer("builtin").fingerprint)
    path.write_bytes(path.read_bytes()[:100])
    second, messages, _ = load_background()
    assert first is not None
    assert second is not None
    assert len(messages) == 1
    check_equal(second, first)
    assert load_background()[1] == []


def test_answers_draft_from_the_background_and_say_so() -> None:
    command = ["ask", "Who cut the basin?", "-d", HARBOUR, "-v", "--set", "calibrate=no"]
    command += ["--max-tokens", "8"]
    assert b"Background: english." in ngt(*command).stderr
    assert b"Background" not in ngt(*command, "--set", "background=none").stderr
    assert b"Background" not in ngt(*command, NGT_BACKGROUND="none").stderr


def test_another_background_is_an_error_that_names_predict() -> None:
    for command in (
        ["trie", "build", HARBOUR, "--background"],
        ["ask", "Who?", "-d", HARBOUR, "--set", "background=mine"],
        ["ask", "Who?", "-d", HARBOUR, "--set", "background=english,mine"],
    ):
        done = ngt(*command)
        assert done.returncode == 2
        assert b"--predict" in done.stderr
        assert not done.stdout
    assert load_background("none") == (None, [], "")


# --- drafting ---


def acceptance(background: BackgroundCounts | None, texts: list[tuple[str, str]]) -> float:
    """Tokens a step of `auto`, over answers to documents."""
    tokenizer = load_tokenizer("builtin")
    tokens = steps = 0
    for document, answer in texts:
        prompt = tuple(tokenizer.encode(f"{document}\n\n"))
        trace = Trace("1", "x", prompt, tuple(tokenizer.encode(answer)), 1024)
        drafter = parse_method("auto", DraftSettings(background=background)).build()
        replayed = replay(trace, drafter, Context(prompt, vocabulary=8192), 32)
        tokens += len(trace.output_ids)
        steps += replayed.steps
    return tokens / steps


def trees(background: BackgroundCounts | None, ids: list[int]) -> list[tuple[int, ...]]:
    """The tokens that `auto` drafts at each of the first forty steps."""
    drafter = parse_method("auto", DraftSettings(background=background)).build()
    followed = DrafterRun(drafter, Context(ids, vocabulary=8192))
    drafts = []
    for token in ids[:40]:
        drafts.append(followed.propose(16).tokens)
        followed.emit([token])
    return drafts


def test_a_background_of_nothing_drafts_what_none_does() -> None:
    ids = load_tokenizer("builtin").encode(Path(HARBOUR).read_text(encoding="utf-8"))[:300]
    assert trees(build_counts(()), ids) == trees(None, ids)


@pytest.fixture(scope="module")
def english() -> BackgroundCounts:
    return shipped_background("english", load_tokenizer("builtin"))


def test_english_gains_by_it(english: BackgroundCounts) -> None:
    document = Path(HARBOUR).read_text(encoding="utf-8")[:800]
    answer = (
        "The owners of the quarries had to pay for most of the work, because there was no money."
    )
    texts = [(document, answer)]
    assert acceptance(english, texts) > 1.1 * acceptance(None, texts)


@pytest.mark.parametrize("texts", [GERMAN, CHINESE], ids=["german", "chinese"])
def test_other_languages_lose_no_more_than_five_hundredths(
    english: BackgroundCounts, texts: list[tuple[str, str]]
) -> None:
    assert acceptance(english, texts) >= 0.95 * acceptance(None, texts)
