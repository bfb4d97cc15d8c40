"""Streaming text equals the text decoded at once, and stop strings cut it in the right place."""

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.model_files.pretrained import load_tokenizer
from ngtcli.prompt.thinking import TextStream
from ngtcli.tokens import tokenizer as tokens
from ngtcli.tokens.tokenizer import Detokenizer, piece_end

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


def test_builtin_tokenizer_round_trips() -> None:
    tokenizer, rng = load_tokenizer("builtin"), random.Random(0)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert "".join(streamed(tokenizer, ids)) == text
    for _ in range(30):
        ids = [rng.randrange(4, 2000) for _ in range(60)]
        pieces, whole = "".join(streamed(tokenizer, ids)), tokenizer.decode(ids)
        assert pieces.replace("\ufffd", "") == whole.replace("\ufffd", "")


@given(st.text("ab#", max_size=30), st.lists(st.text("ab#", min_size=1, max_size=4), max_size=3))
def test_stop_strings_cut_where_a_search_of_the_whole_text_would(text, stop) -> None:
    stream = TextStream(Detokenizer(Letters()), stop)
    out, stopped, place = "", False, -1
    while not stopped and place + 1 < len(text):
        place += 1
        out += stream.push(ord(text[place]))[1]
        stopped = stream.stopped
    # The first stop string to be completed ends the text; it is cut where the earliest starts.
    ends = [(text.find(s) + len(s), s) for s in stop if s in text]
    if ends:
        end = min(e for e, _ in ends)
        assert stopped and place == end - 1
        assert out == text[: min(text[:end].find(s) for s in stop if s in text[:end])]
    else:
        assert not stopped
        assert out + stream.flush()[1] == text


def test_nothing_of_a_stop_string_is_shown_early() -> None:
    stream = TextStream(Detokenizer(Letters()), ["###"])
    shown = [stream.push(b)[1] for b in b"a##b##"]
    assert shown == ["a", "", "", "##b", "", ""]
    assert stream.flush() == (None, "##")


def test_very_long_texts_are_encoded_in_pieces(monkeypatch) -> None:
    tokenizer = load_tokenizer("builtin")
    text = "The slate made the water clear. They knew it.\n\n" * 300
    whole = tokenizer.encode(text)
    monkeypatch.setattr(tokens, "WHOLE", 4000)
    assert tokenizer.decode(pieces := tokenizer.encode(text)) == text
    assert len(pieces) < len(whole) * 1.01


@given(st.text("ab \n", max_size=60), st.integers(1, 20))
def test_pieces_go_on_and_end_before_white_space(text: str, size: int) -> None:
    at = 0
    while at < len(text):
        end = piece_end(text, at, size)
        assert at < end <= at + size
        at = end
