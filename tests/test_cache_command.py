"""`ngt cache`, and the older commands that are aliases of it: what is stored, and deleting it."""

import json
from pathlib import Path
from typing import Any

import pytest

from ngtcli.model_files.checkpoint import BUILTIN_PATH
from ngtcli.system.cache import STORES
from ngtcli.system.files import home
from tests.support.helpers import ngt


def printed(*words: str) -> Any:
    return json.loads(ngt(*words, "--json").stdout)


@pytest.fixture
def one_of_each(own_home: Path) -> dict[str, Path]:
    """A file of 3 bytes of every store, and what a killed run left."""
    files = {}
    for store in STORES:
        folder = home("cache") / store.folder / ("" if store.ends else "below")
        folder.mkdir(parents=True, exist_ok=True)
        files[store.name] = folder / f"a{store.ends[0] if store.ends else ''}"
        files[store.name].write_bytes(b"123")
    (home("cache") / "costs" / "x.partial").write_bytes(b"half")
    return files


def test_list_and_show_have_every_store_with_its_files(one_of_each: dict[str, Path]) -> None:
    rows = {row["name"]: row for row in printed("cache", "list")}
    assert rows.keys() == one_of_each.keys()
    for name, file in one_of_each.items():
        left = name == "costs"  # and what a killed run left
        assert (rows[name]["files"], rows[name]["bytes"]) == (1 + left, 3 + 4 * left)
        assert (
            file.is_relative_to(rows[name]["path"]) and printed("cache", "show", name) == rows[name]
        )
    text = ngt("cache", "list").stdout.decode()
    assert all(line.split("\t")[3] in ("yes", "by name") for line in text.splitlines())
    assert text.count("by name") == 4 and len(text.splitlines()) == len(STORES)
    assert ngt("cache", "show", "nothing").returncode == 2


@pytest.mark.parametrize(
    ("command", "cleared"),
    [
        ("cache clear", {store.name for store in STORES if not store.lasting}),
        ("cache clear pools tune", {"pools", "tune"}),
        ("docs clear", {"documents", "passages", "counts", "parts", "prefixes"}),
        ("trie clear", {"tries", "datastores", "backgrounds"}),
        ("trie pool clear", {"pools"}),
    ],
)
def test_what_is_cleared_is_gone_and_all_else_stays(
    one_of_each: dict[str, Path], command: str, cleared: set[str]
) -> None:
    left = "costs" in cleared  # of a killed run
    wanted = {"files": len(cleared) + left, "bytes": 3 * len(cleared) + 4 * left}
    assert printed(*command.split()) == wanted
    assert {name for name, file in one_of_each.items() if not file.exists()} == cleared
    assert printed(*command.split()) == {"files": 0, "bytes": 0}


@pytest.mark.skipif(not BUILTIN_PATH.exists(), reason="no built-in model")
def test_all_that_commands_store_is_known_and_goes(tmp_path: Path, own_home: Path) -> None:
    (tmp_path / "tides.json").write_text('{"tide": "It came in at noon."}')
    (tmp_path / "long.txt").write_text("The tide came in at noon that day. " * 400)
    flags = ("--method", "auto", "--draft-from", "all", "--max-tokens", "4", "--pool-documents")
    assert ngt("ask", "-d", str(tmp_path), "When?", *flags).returncode == 0
    assert ngt("trie", "build", str(tmp_path / "tides.json")).returncode == 0
    every = {path for path in home("cache").rglob("*") if path.is_file()}
    known = {path: store.name for store in STORES for path in store.files(home("cache"))}
    assert known.keys() == every
    assert set(known.values()) >= {"documents", "passages", "counts", "tries", "pools", "costs"}
    printed("cache", "clear")
    left = {path for path in home("cache").rglob("*") if path.is_file()}
    assert left and {known[path] for path in left} <= {"pools", "backgrounds"}


def test_what_was_learned_or_made_by_a_command_is_cleared_by_name_alone() -> None:
    assert {s.name for s in STORES if s.lasting} == {"datastores", "backgrounds", "pools", "tune"}


@pytest.mark.parametrize(
    ("command", "below"),
    [("cache path", ""), ("cache path pools", "tries"), ("docs path", "documents"),
     ("trie path", "tries")],
)  # fmt: skip
def test_path_prints_the_folder(command: str, below: str) -> None:
    assert printed(*command.split()) == {"path": str(home("cache") / below)}
    assert ngt(*command.split()).stdout.decode() == f"{home('cache') / below}\n"


@pytest.mark.parametrize("command", ["docs clear", "trie pool clear", "cache clear pools"])
def test_what_another_command_is_writing_stays(own_home: Path, command: str) -> None:
    writing = home("cache") / "tries" / "x.partial"
    writing.parent.mkdir(parents=True)
    writing.write_bytes(b"half")
    assert printed(*command.split()) == {"files": 0, "bytes": 0} and writing.exists()
    assert printed("trie", "clear") == {"files": 1, "bytes": 4}


def test_what_cannot_be_deleted_is_named_and_the_rest_goes(
    one_of_each: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, kept = Path.unlink, one_of_each["documents"]
    left = home("cache") / "tries" / "x.partial"
    left.write_bytes(b"half")

    def fail(path: Path) -> None:
        if path in (kept, left):
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", fail)
    done = ngt("cache", "clear")
    assert done.returncode == 1 and kept.exists() and not one_of_each["costs"].exists()
    assert f"{kept}: permission denied" in " ".join(done.stderr.decode().split())
    done = ngt("trie", "clear")  # what is left there may be another user's
    assert done.returncode == 0 and left.exists()
