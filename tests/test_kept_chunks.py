"""The start of a prompt that stays in the cache for the next one: the same rows, read once."""

import random

import pytest
import torch
from helpers import decode, make_drafter, make_target

from ngtcli.decode import model as model_module
from ngtcli.decode.model import TargetModel
from ngtcli.draft.drafter import DraftSettings

CHUNK = model_module.PREFILL_CHUNK
IDS = random.Random(0).choices(range(4, 90), k=2 * CHUNK + 40)


@pytest.fixture(scope="module")
def model() -> TargetModel:
    model = make_target(max_position_embeddings=4 * CHUNK)
    model.context = 4 * CHUNK  # the tokenizer's is less
    return model


def read(model: TargetModel, ids: list[int], rows: int | None = None) -> list[int]:
    """Where the chunks begin that are read."""
    began: list[int] = []
    model.start(3 * CHUNK, rows, ids)
    done = model.length
    model.prefill(ids[done:], progress=lambda at: began.append(done + at))
    return began


@pytest.mark.parametrize("rows", [None, 8])
def test_whole_chunks_stay_and_have_the_rows_that_reading_them_again_gives(
    model: TargetModel, rows: int | None
) -> None:
    model.keeps_chunks = False
    other = [*IDS[: CHUNK + 7], *reversed(IDS[CHUNK + 7 :])]
    assert read(model, other, rows) == [0, CHUNK, 2 * CHUNK]
    wanted = [tensor.clone() for tensor in model.cached()]
    model.keeps_chunks = True
    assert read(model, IDS, rows) == [CHUNK, 2 * CHUNK]
    assert read(model, IDS, rows) == [2 * CHUNK]
    assert read(model, other, rows) == [CHUNK, 2 * CHUNK]
    assert all(map(torch.equal, model.cached(), wanted))
    assert read(model, IDS[1:], rows)[0] == 0


def test_rows_that_were_dropped_or_never_whole_do_not_stay(model: TargetModel) -> None:
    model.keeps_chunks = True
    model.start(3 * CHUNK)
    model.prefill(IDS, chunk=CHUNK // 2)
    assert read(model, IDS) == [0, CHUNK, 2 * CHUNK]
    model.truncate(CHUNK + 3)
    assert read(model, IDS) == [CHUNK, 2 * CHUNK]
    model.start_behind_zeros(CHUNK)
    assert read(model, IDS)[0] == 0


def test_answers_are_the_same_whatever_stays(model: TargetModel) -> None:
    drafter = make_drafter("trie", DraftSettings())
    prompts = [[*IDS, 5], [*IDS[: CHUNK + 9], 7], [*IDS, 9]]
    found = {}
    for model.keeps_chunks in (False, True):
        found[model.keeps_chunks] = [decode(model, drafter, p).output for p in prompts]
    assert found[True] == found[False]
