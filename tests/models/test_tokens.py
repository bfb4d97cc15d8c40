"""Streaming text equals the text decoded at once, and stop strings cut it in the right place."""

import copy
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from ngtcli.decoding.reasoning import TextStream
from ngtcli.models import tokenizer as tokens
from ngtcli.models.checkpoint import BUILTIN_PATH
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.models.tokenizer import Detokenizer, Tokenizer, piece_end
from tests.support.control_texts import tokenizer_of

TEXTS = [
    "",
    "a",
    " ",
    "\n",
    "한국어 문장입니다.",
    "🦜🦜 parrots 🏳️‍🌈",
    "naïve café — “quoted”",
    "a\tb\r\n",
]


class Letters:
    """Decodes ids as UTF-8 bytes, unfinished characters as U+FFFD."""

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def decode_complete(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "ignore")


def streamed(tokenizer, ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@settings(deadline=None)
@given(st.text(max_size=40), st.integers(0, 3))
def test_pieces_join_to_the_whole_without_a_split_or_unfinished_character(
    text: str, lacking: int
) -> None:
    data = text.replace("\ufffd", "?").encode()
    data = data[: len(data) - lacking]
    pieces = streamed(Letters(), list(data))
    assert "".join(pieces) == data.decode("utf-8", "ignore")
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "builtin", "llama_metaspace", "gemma"])
@pytest.mark.parametrize("text", ["broken glyph \ufffd", "\ufffd", "a\ufffd\ufffd", "€\ufffd"])
def test_a_replacement_character_of_the_text_stays_at_its_end(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)
    assert tokenizer.decode(ids).endswith(text.lstrip())


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "builtin", "llama_metaspace", "gemma"])
@pytest.mark.parametrize("character", ["é", "€", "한", "🦜", "\ufffd"])
def test_half_a_character_at_the_end_is_left_out(kind: str, character: str) -> None:
    tokenizer = tokenizer_of(kind)
    token_ids = tokenizer.encode(f"one {character}")
    for count in range(len(token_ids)):
        expected = tokenizer.decode(token_ids[:count]).rstrip("\ufffd")
        assert "".join(streamed(tokenizer, token_ids[:count])) == expected


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "llama_metaspace"])
def test_half_a_character_behind_an_added_token_is_left_out(kind: str) -> None:
    """Runs of spaces and marks may be added as plain text; and models have more ids than names."""
    backend = copy.deepcopy(tokenizer_of(kind).backend)
    added = ["    ", "<｜tool▁call｜>"]
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in added])
    tokenizer = Tokenizer(backend)
    added_ids = backend.convert_tokens_to_ids(added)
    half = tokenizer.encode("🦜")[-4:-1]
    beyond = len(backend) + 5
    for count in range(1, len(half) + 1):
        for before in (
            [added_ids[0]],
            [added_ids[1]],
            [*added_ids, *added_ids],
            [beyond],
            [added_ids[0], beyond],
        ):
            ids = [*tokenizer.encode("one"), *before, *half[:count]]
            expected = tokenizer.decode(ids).rstrip("\ufffd")
            assert tokenizer.decode_complete(ids) == expected
            assert "".join(streamed(tokenizer, ids)) == expected


def test_the_fingerprint_is_that_of_a_used_tokenizer(tmp_path: Path) -> None:
    """Many tokenizer files ask for truncation, which the library clears at its first call."""
    folder = tmp_path / "model"
    shutil.copytree(BUILTIN_PATH, folder)
    state = json.loads((folder / "tokenizer.json").read_text())
    plain = load_tokenizer(str(folder)).fingerprint
    state["truncation"] = {
        "direction": "Right",
        "max_length": 5,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    state["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<pad>",
    }
    (folder / "tokenizer.json").write_text(json.dumps(state))
    fresh = load_tokenizer(str(folder))
    used = load_tokenizer(str(folder))
    assert len(used.encode("The tide is high at noon, and the harbour is full.")) > 9
    assert fresh.fingerprint == plain
    assert used.fingerprint == plain


def test_builtin_tokenizer_round_trips() -> None:
    tokenizer = load_tokenizer("builtin")
    rng = random.Random(0)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert "".join(streamed(tokenizer, ids)) == text
    for _ in range(30):
        ids = [rng.randrange(4, 2000) for _ in range(60)]
        pieces = "".join(streamed(tokenizer, ids))
        decoded = tokenizer.decode(ids)
        assert pieces.replace("\ufffd", "") == decoded.replace("\ufffd", "")


@given(st.text("ab#", max_size=30), st.lists(st.text("ab#", min_size=1, max_size=4), max_size=3))
def test_stop_strings_cut_where_a_search_of_the_whole_text_would(text, stop) -> None:
    stream = TextStream(Detokenizer(Letters()), stop)
    out = ""
    stopped = False
    place = -1
    while not stopped and place + 1 < len(text):
        place += 1
        out += stream.push(ord(text[place]))[1]
        stopped = stream.stopped
    # The first stop string to be completed ends the text; it is cut where the earliest starts.
    ends = [(text.find(s) + len(s), s) for s in stop if s in text]
    if ends:
        end = min(e for e, _ in ends)
        assert stopped
        assert place == end - 1
        assert out == text[: min(text[:end].find(s) for s in stop if s in text[:end])]
    else:
        assert not stopped
        assert out + stream.flush()[1] == text


def test_no_part_of_a_stop_string_is_shown_early() -> None:
    stream = TextStream(Detokenizer(Letters()), ["###"])
    shown = [stream.push(b)[1] for b in b"a##b##"]
    assert shown == ["a", "", "", "##b", "", ""]
    assert stream.flush() == (None, "##")


def test_very_long_texts_are_encoded_in_pieces(monkeypatch) -> None:
    tokenizer = load_tokenizer("builtin")
    text = "The slate made the water clear. They knew it.\n\n" * 300
    in_one_piece = tokenizer.encode(text)
    monkeypatch.setattr(tokens, "MAX_CHARACTERS", 4000)
    pieces = tokenizer.encode(text)
    assert tokenizer.decode(pieces) == text
    assert len(pieces) < len(in_one_piece) * 1.01


@given(st.text("ab \n", max_size=60), st.integers(1, 20))
def test_pieces_go_on_and_end_before_white_space(text: str, size: int) -> None:
    at = 0
    while at < len(text):
        end = piece_end(text, at, size)
        assert at < end <= at + size
        at = end
