"""The pool of earlier answers: what it holds, what goes first, its file."""

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


def test_the_pool_holds_no_text_of_the_prompt_unless_told() -> None:
    prompt = [1, 2, 3, 4, 5, 6]
    answer = [9, 8, 2, 3, 4, 5, 7, 9, 1, 2, 3]
    assert list(own_words(answer, prompt)) == [[9, 8], [7, 9]]
    assert [a.tolist() for a in Pool(quotes=True).add(answer, prompt)] == [answer]
    assert [a.tolist() for a in Pool().add(answer, prompt)] == [[9, 8], [7, 9]]
    assert Pool().add(prompt, prompt) == []


def naive_own_words(
    answer: list[int], prompt: list[int], general: list[list[int]] | None
) -> list[int | None]:
    """The answer with None for what is left out, by looking at every run of both."""

    def stands_in(run: list[int], text: list[int]) -> bool:
        return any(text[i : i + len(run)] == run for i in range(len(text)))

    left: list[int | None] = list(answer)
    for size in range(1, QUOTE + 1):
        for i in range(len(answer) - size + 1):
            run = answer[i : i + size]
            is_general = size == 1 if general is None else any(stands_in(run, g) for g in general)
            if stands_in(run, prompt) and (size == QUOTE or not is_general):
                left[i : i + size] = [None] * size
    return left


@settings(deadline=None)
@given(ids, ids, st.none() | st.lists(ids, max_size=2))
def test_what_is_kept_is_not_the_prompts_or_is_general(
    answer: list[int], prompt: list[int], general: list[list[int]] | None
) -> None:
    background = None if general is None else build_counts(general, least=())
    left = naive_own_words(answer, prompt, general)
    runs = [[*run] for out, run in groupby(left, lambda token: token is None) if not out]
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


def test_the_oldest_answer_goes_first() -> None:
    pool = Pool(limit=18)
    for first in (1, 7, 13, 19):
        pool.add(range(first, first + 6), [])
    assert [int(answer[0]) for answer in pool.answers] == [7, 13, 19]


def test_what_is_not_stored_yet_is_bounded_as_well() -> None:
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
    return [a.tolist() for a in load_pool(path, 97, limit, False).answers]


def test_a_pool_is_stored_and_the_answers_of_two_sessions_add_up(tmp_path: Path) -> None:
    path = tmp_path / "x.pool.safetensors"
    assert contents(path) == []
    one, other = tallied([[1, 2, 3]]), tallied([[4, 5]])
    save_pool(path, one, "tiny", 97)
    found = load_pool(path, 97, 100, False)
    assert found.tally_predicted is not None
    assert found.tally_predicted.tolist() == [1.5] * 6
    save_pool(path, other, "tiny", 97)
    save_pool(path, one, "tiny", 97)  # nothing new in it
    assert contents(path) == [[1, 2, 3], [4, 5]]
    assert contents(path, 4) == [[4, 5]]
    other.tally_reached = np.full(6, 5.0)
    save_pool(path, other, "tiny", 97)  # its tallies are the last ones
    found = load_pool(path, 97, 100, False)
    assert found.tally_reached is not None
    assert found.tally_reached.tolist() == [5.0] * 6


def test_a_pool_without_weights_leaves_those_in_the_file(tmp_path: Path) -> None:
    path, learned = tmp_path / "x.pool.safetensors", tallied([[1, 2, 3]])
    learned.factors, learned.squares = np.full(4, 2.0), np.full(4, 3.0)
    save_pool(path, learned, "tiny", 97)
    save_pool(path, tallied([[4, 5]]), "tiny", 97)
    found = load_pool(path, 97, 100, False)
    assert found.factors is not None
    assert found.factors.tolist() == [2.0] * 4
    assert found.squares is not None
    assert found.squares.tolist() == [3.0] * 4


def test_tallies_of_millions_of_tokens_are_stored_with_what_they_say(tmp_path: Path) -> None:
    path, pool = tmp_path / "x.pool.safetensors", tallied([[1, 2, 3]])
    pool.tally_predicted, pool.tally_reached = np.full(6, 3e6), np.full(6, 12e6)
    save_pool(path, pool, "tiny", 97)
    found = load_pool(path, 97, 100, False)
    assert found.tally_predicted is not None
    assert found.tally_reached is not None
    assert contents(path)
    assert np.allclose(found.tally_predicted / found.tally_reached, 0.25)
    assert found.tally_reached.min() > 1e6


def learn_often(path: Path, number: int) -> None:
    pool = load_pool(path, 97, 1000, False)
    for other in range(8):
        pool.add([number, other], [])
        save_pool(path, pool, "tiny", 97)
    os._exit(0)


def test_of_processes_that_learn_at_once_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "x.pool.safetensors"
    save_pool(path, Pool(1000, tally_predicted=np.zeros(6), tally_reached=np.zeros(6)), "tiny", 97)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=learn_often, args=(path, n)) for n in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(contents(path, 1000)) == [[n, other] for n in range(6) for other in range(8)]


def test_a_damaged_pool_is_not_used_and_begun_again(tmp_path: Path) -> None:
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
    def told(*words: str) -> int:
        done = CliRunner().invoke(app, ["cache", *words, "pools", "--json"])
        return int(json.loads(done.stdout)["files"])

    assert told("show") == 0
    path = pool_path("print", "tiny")
    save_pool(path, tallied([[1, 2, 3]]), "tiny", 97)
    path.with_name("broken.pool.safetensors").write_bytes(b"x")
    assert told("show") == told("clear") == 2
    assert not path.exists()


def test_answers_that_could_not_be_stored_are_stored_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pool = tmp_path / "x.pool.safetensors", tallied([[1, 2, 3]])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ngtcli.system.arrays.write_all", full)
        with pytest.raises(OSError, match="No space"):
            save_pool(path, pool, "tiny", 97)
    pool.add([4, 5], [])
    save_pool(path, pool, "tiny", 97)
    assert contents(path) == [[1, 2, 3], [4, 5]]


def test_clear_takes_links_to_nowhere_along_and_leaves_folders(own_home: Path) -> None:
    path = pool_path("print", "model")
    path.parent.mkdir(parents=True)
    path.symlink_to("/nowhere/x")
    folder = pool_path("print", "other")
    folder.mkdir()
    done = CliRunner().invoke(app, ["cache", "clear", "pools", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["files"] == 1
    assert not path.is_symlink()
    assert folder.is_dir()


def test_a_single_token_is_not_kept_for_nothing_follows_it() -> None:
    assert Pool(100, True).add([5], [1, 2]) == []
