"""The replay of a head's recorded success: what it may know, and what it gains."""

import json
import lzma
import random
from pathlib import Path

import pytest

from tests.tools.replay_heads import RecordedChain, main, read, shares


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Texts of new tokens, of which the head knows about half."""
    draw = random.Random(0)
    with lzma.open(tmp_path / "texts.jsonl.xz", "wt", encoding="utf-8") as file:
        for number in range(8):
            answer = [1000 + 100 * number + i for i in range(60)]
            known = [draw.choice([0, 1, 2, 3]) for _ in answer]
            counts = [1 + min(k, len(answer) - i - 1) for i, k in enumerate(known)]
            line = {"id": str(number), "prompt_ids": [1, 2, 3], "answer_ids": answer}
            file.write(json.dumps(line | {"eagle3_tokens": counts}) + "\n")
    return tmp_path


def test_the_chain_is_right_as_far_as_recorded_and_wrong_behind(recording: Path) -> None:
    one = read(recording / "texts.jsonl.xz")[0]
    chain = RecordedChain(shares([one], 3))
    chain.begin(one)
    at = one.accepted.index(2)
    answer = one.trace.output_ids
    assert chain.follow([*one.trace.prompt_ids, *answer[:at]])
    tokens = chain.first(0).tokens[:, 0].tolist()
    assert tokens[:2] == [*answer[at : at + 2]] and tokens[2] not in answer


def test_what_the_head_knows_is_gained(recording: Path) -> None:
    said: list[str] = []
    main([str(recording), "--nodes", "8"], said.append)
    numbers = [float(word) for word in said[0].replace(",", "").split() if word[0].isdigit()]
    alone, chain, both = numbers
    assert alone < 1.2 and chain > 2 and both > 2
