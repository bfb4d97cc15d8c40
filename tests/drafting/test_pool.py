"""The pool of earlier answers: what it keeps, what it drops first, and its file."""

import json
import multiprocessing
import os
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ngtcli.cli.app import app
from ngtcli.drafting.pool import QUOTE, Pool, load_pool, own_words, pool_path, save_pool
from ngtcli.models.pretrained import load_tokenizer
from ngtcli.system.files import DamagedFileError
from tests.support.background_counts import build_counts
from tests.support.loaded_once import shipped_background

ids = st.lists(st.integers(0, 4), max_size=40)


def test_the_pool_keeps_no_quotes_of_the_prompt_unless_asked() -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    answer = [9, 8, 2, 3, 4, 5, 7, 9, 1, 2, 3]
    assert list(own_words(answer, prompt)) == [[9, 8], [7, 9]]
    assert [run.tolist() for run in Pool(quotes=True).add(answer, prompt)] == [answer]
    assert [run.tolist() for run in Pool().add(answer, prompt)] == [[9, 8], [7, 9]]
    assert Pool().add(prompt, prompt) == []


def naive_own_words(
    answer: list[int], prompt: list[int], general: list[list[int]] | None
) -> list[int | None]:
    """Return the answer with None for tokens that are left out, by looking at every run."""

    def occurs_in(run: list[int], text: list[int]) -> bool:
        return any(text[start : start + len(run)] == run for start in range(len(text)))

    kept: list[int | None] = list(answer)
    for size in range(1, QUOTE + 1):
        for start in range(len(answer) - size + 1):
            run = answer[start : start + size]
            if general is None:
                is_general = size == 1
            else:
                is_general = any(occurs_in(run, text) for text in general)
            if occurs_in(run, prompt) and (size == QUOTE or not is_general):
                kept[start : start + size] = [None] * size
    return kept


@settings(deadline=None)
@given(ids, ids, st.none() | st.lists(ids, max_size=2))
def test_own_words_are_not_in_the_prompt_or_are_general(
    answer: list[int], prompt: list[int], general: list[list[int]] | None
) -> None:
    background = None if general is None else build_counts(general, least=())
    kept = naive_own_words(answer, prompt, general)
    runs = [
        list(run)
        for is_left_out, run in groupby(kept, lambda token: token is None)
        if not is_left_out
    ]
    assert list(own_words(answer, prompt, background)) == runs


def test_the_name_of_a_person_in_the_prompt_is_not_kept_and_common_words_are() -> None:
    tokenizer = load_tokenizer("builtin")
    background = shipped_background("english", tokenizer)
    prompt = tokenizer.encode("A loan by Mr John Smith of Cork, of the amount of 4,711 pounds.")
    answer = tokenizer.encode(" In short, the amount that Mr John Smith of Cork gave is 4,711.")
    pool = Pool()
    kept = "|".join(tokenizer.decode(run.tolist()) for run in pool.add(answer, prompt, background))
    assert "In short" in kept
    assert "amount" in kept
    assert not [name for name in ("John", "Smith", "Cork", "4,711", "711") if name in kept]


def test_the_oldest_answer_is_dropped_first() -> None:
    pool = Pool(limit=18)
    for first in (1, 7, 13, 19):
        pool.add(range(first, first + 6), [])
    assert [int(answer[0]) for answer in pool.answers] == [7, 13, 19]


def test_answers_that_are_not_stored_yet_are_limited_as_well() -> None:
    """A process that stores nothing may run for months."""
    pool = Pool(limit=18)
    for first in range(0, 6000, 6):
        pool.add(range(first, first + 6), [])
    assert [int(answer[0]) for answer in pool.new] == [5982, 5988, 5994]


def tallied(answers: list[list[int]]) -> Pool:
    pool = Pool(tally_predicted=np.full(6, 1.5), tally_reached=np.full(6, 4.0))
    for answer in answers:
        pool.add(answer, [])
    return pool


def contents(path: Path, limit: int = 100) -> list[list[int]]:
    return [answer.tolist() for answer in load_pool(path, 97, limit, False).answers]


def test_a_pool_is_stored_and_the_answers_of_two_sessions_add_up(tmp_path: Path) -> None:
    path = tmp_path / "x.pool.safetensors"
    first = tallied([[1, 2, 3]])
    second = tallied([[4, 5]])
    assert contents(path) == []

    save_pool(path, first, "tiny", 97)
    loaded = load_pool(path, 97, 100, False)
    assert loaded.tally_predicted is not None
    assert loaded.tally_predicted.tolist() == [1.5] * 6

    save_pool(path, second, "tiny", 97)
    save_pool(path, first, "tiny", 97)  # it has no new answers
    assert contents(path) == [[1, 2, 3], [4, 5]]
    assert contents(path, 4) == [[4, 5]]

    second.tally_reached = np.full(6, 5.0)
    save_pool(path, second, "tiny", 97)  # the last tallies are stored
    loaded = load_pool(path, 97, 100, False)
    assert loaded.tally_reached is not None
    assert loaded.tally_reached.tolist() == [5.0] * 6


def test_a_pool_without_weights_leaves_those_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pool.safetensors"
    with_weights = tallied([[1, 2, 3]])
    with_weights.factors = np.full(4, 2.0)
    with_weights.squares = np.full(4, 3.0)

    save_pool(path, with_weights, "tiny", 97)
    save_pool(path, tallied([[4, 5]]), "tiny", 97)

    loaded = load_pool(path, 97, 100, False)
    assert loaded.factors is not None
    assert loaded.factors.tolist() == [2.0] * 4
    assert loaded.squares is not None
    assert loaded.squares.tolist() == [3.0] * 4


def test_tallies_of_millions_of_tokens_keep_their_ratio_when_stored(tmp_path: Path) -> None:
    path = tmp_path / "x.pool.safetensors"
    pool = tallied([[1, 2, 3]])
    pool.tally_predicted = np.full(6, 3e6)
    pool.tally_reached = np.full(6, 12e6)

    save_pool(path, pool, "tiny", 97)

    loaded = load_pool(path, 97, 100, False)
    assert loaded.tally_predicted is not None
    assert loaded.tally_reached is not None
    assert contents(path)
    assert np.allclose(loaded.tally_predicted / loaded.tally_reached, 0.25)
    assert loaded.tally_reached.min() > 1e6


def learn_often(path: Path, number: int) -> None:
    pool = load_pool(path, 97, 1000, False)
    for token in range(8):
        pool.add([number, token], [])
        save_pool(path, pool, "tiny", 97)
    os._exit(0)


def test_processes_that_learn_at_once_lose_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "x.pool.safetensors"
    save_pool(path, Pool(1000, tally_predicted=np.zeros(6), tally_reached=np.zeros(6)), "tiny", 97)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=learn_often, args=(path, n)) for n in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    expected = [[number, token] for number in range(6) for token in range(8)]
    assert sorted(contents(path, 1000)) == expected


def test_a_damaged_pool_is_refused_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.pool.safetensors"
    save_pool(path, tallied([[1, 2, 96]]), "tiny", 97)
    with pytest.raises(DamagedFileError, match="out of range"):
        load_pool(path, 96, 100, False)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedFileError):
        load_pool(path, 97, 100, False)
    save_pool(path, tallied([[5, 6]]), "tiny", 97)
    assert contents(path) == [[5, 6]]


def test_the_pools_are_counted_and_cleared() -> None:
    def files_by(command: str) -> int:
        result = CliRunner().invoke(app, ["cache", command, "pools", "--json"])
        return int(json.loads(result.stdout)["files"])

    assert files_by("show") == 0
    path = pool_path("print", "tiny")
    save_pool(path, tallied([[1, 2, 3]]), "tiny", 97)
    path.with_name("broken.pool.safetensors").write_bytes(b"x")
    assert files_by("show") == 2
    assert files_by("clear") == 2
    assert not path.exists()


def test_answers_that_could_not_be_stored_are_stored_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pool.safetensors"
    pool = tallied([[1, 2, 3]])

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ngtcli.system.arrays.write_all", no_space)
        with pytest.raises(OSError, match="No space"):
            save_pool(path, pool, "tiny", 97)
    pool.add([4, 5], [])
    save_pool(path, pool, "tiny", 97)
    assert contents(path) == [[1, 2, 3], [4, 5]]


def test_clear_removes_broken_links_and_leaves_folders(own_home: Path) -> None:
    path = pool_path("print", "model")
    path.parent.mkdir(parents=True)
    path.symlink_to("/nowhere/x")
    folder = pool_path("print", "other")
    folder.mkdir()
    result = CliRunner().invoke(app, ["cache", "clear", "pools", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["files"] == 1
    assert not path.is_symlink()
    assert folder.is_dir()


def test_an_answer_of_a_single_token_is_not_kept() -> None:
    """Nothing follows the token, so it could never draft anything."""
    assert Pool(100, True).add([5], [1, 2]) == []
