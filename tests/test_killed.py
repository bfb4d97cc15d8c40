"""What a run that is killed in the middle of a write leaves: files whole or absent, and leftovers
that the next write, or `ngt trie clear`, removes."""

import os
import time
from pathlib import Path

import numpy as np

from ngtcli.cli.cache import cleared
from ngtcli.cli.output import Removed
from ngtcli.draft.methods import datastore
from ngtcli.draft.pool import TOKENS, load_pool, pool_path
from ngtcli.system.cache import LEFT_S
from ngtcli.system.files import home, read_json, write_atomically, write_json
from ngtcli.trie import store
from tests.support.warm import Warm

KILLS = 6  # two of each of the three folders
WRITER = """
import sys
from pathlib import Path
import numpy as np
from ngtcli.system.files import (home, write_atomically, write_json)
from ngtcli.draft.methods import datastore
from ngtcli.trie import store
from ngtcli.trie.files import TRIES
from ngtcli.trie.ngram import build_trie
from ngtcli.draft.pool import Pool, pool_path, save_pool

text = list(range(90)) * 1000
trie, built = build_trie([text], 5, 3), datastore.build_datastore([text])
pool = Pool(predicted=np.full(6, 1.5), reached=np.full(6, 4.0))
print("ready", flush=True)
for turn in range(1, 10**9):
    pool.add([turn % 90] * 40_000, [])
    save_pool(pool_path("print", "tiny"), pool, "tiny", 97)
    write_json(home("cache") / "costs" / "a.json", {"turn": turn, "fill": [turn] * 90_000})
    TRIES.write(TRIES.path("k" * 32), *store.stored(trie, "k" * 32, []))
    datastore.save(built, "books", "print", [])
    write_atomically(Path(sys.argv[1]), f"{turn} " * 300_000)
"""


def leftovers(*folders: Path) -> list[Path]:
    return [p for folder in folders for p in folder.iterdir() if p.name.endswith(".partial")]


def check_whole(answer: Path) -> None:
    """Every file is as one write made it; a damaged one raises."""
    trie = store.load("k" * 32, 5, 3, 97)
    assert trie is None or trie.tokens == 90_000
    books = datastore.load("books", "print", 97)
    assert books is None or len(books) == 90_000
    for said in load_pool(pool_path("print", "tiny"), 97, TOKENS, False).answers:
        assert len(said) == 40_000 and len(set(said.tolist())) == 1
    costs = home("cache") / "costs" / "a.json"
    if costs.exists():
        stored = read_json(costs, 1 << 24)
        assert stored["fill"] == [stored["turn"]] * 90_000
    if answer.exists():
        words = answer.read_text().split()
        assert len(words) == 300_000 and len(set(words)) == 1


def test_files_of_killed_runs_are_whole_or_absent_and_leftovers_go(tmp_path: Path) -> None:
    answer = tmp_path / "out" / "answer.txt"
    folders = home("cache") / "tries", home("cache") / "costs", answer.parent
    for folder in folders:
        folder.mkdir(parents=True)
    for turn in range(KILLS):
        with Warm(str(answer), code=WRITER) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            patience = time.monotonic() + 10
            before = set(leftovers(*folders))
            while not set(leftovers(folders[turn % 3])) - before and time.monotonic() < patience:
                pass
            process.kill()
        check_whole(answer)
    for folder, name in zip(folders, ("x", "y", ".answer.txt.z"), strict=True):
        (folder / f"{name}.partial").write_bytes(b"half")
    assert len(leftovers(*folders)) > 3  # of the kills, too
    for path in leftovers(*folders):
        os.utime(path, (0, time.time() - LEFT_S - 1))
    datastore.save(datastore.Datastore(np.array([1, -1], np.int32), np.zeros(1, np.int32)),
                   "books", "print", [])  # fmt: skip
    write_json(folders[1] / "a.json", {})
    write_atomically(answer, "whole")
    assert leftovers(*folders) == []


def test_clearing_removes_leftovers_of_any_age_of_what_is_cleared() -> None:
    for name in ("tries", "costs", "tune"):
        folder = home("cache") / name
        folder.mkdir(parents=True)
        (folder / "x.partial").write_bytes(b"half")
    for name in ("tries", "costs", "tune"):
        assert cleared([name]) == Removed(1, 4)
    assert [p for p in home("cache").rglob("*") if p.is_file()] == []
