"""The journal of a run: kills at any byte, restarts, older journals, and those of other outputs."""

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.engine.batch.journal import BATCH, FOLDER, TABLE, RunJournal, journal_of
from ngtcli.engine.batch.output import DoneLine, FileOutput
from ngtcli.engine.batch.run import ItemId
from ngtcli.engine.batch.table import FolderOutput, TableOutput
from ngtcli.errors import UsageError
from ngtcli.system.files import write_all, write_atomically

HEAD = {"ask.max_tokens": 8}
MAX_BYTES = 10_000
OUTPUTS = st.sampled_from([BATCH, TABLE, FOLDER])


class Killed(BaseException):
    """The process ends here."""


class ByteBudget:
    """Writes in the place of `write_all` and `write_atomically`, until its bytes are spent."""

    def __init__(self, left: int) -> None:
        self.left = left

    def write(self, file: Any, data: bytes) -> None:
        write_all(file, data[: max(self.left, 0)])
        self.spend(len(data))

    def write_whole(self, path: Path, text: Any) -> None:
        self.spend(1)
        write_atomically(path, text)
        self.spend(1)

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Killed


@contextmanager
def killed_after(size: int) -> Iterator[None]:
    """Raise Killed within the block once so many bytes are written, which it swallows."""
    budget = ByteBudget(size)
    with (
        patch("ngtcli.system.journal.write_all", budget.write),
        patch("ngtcli.engine.batch.output.write_atomically", budget.write_whole),
        patch("ngtcli.engine.batch.table.write_atomically", budget.write_whole),
        suppress(Killed),
    ):
        yield


def opened(path: Path, output: str = TABLE, head: Any = HEAD, restart: bool = False) -> RunJournal:
    return RunJournal(path, output, head, max_bytes=MAX_BYTES, restart=restart)


ids = st.builds(ItemId, st.sampled_from(["/docs/a.txt", "/docs/b.txt", "stdin"]), st.text("kq"))
puts = st.lists(st.tuples(ids, st.integers(), st.booleans()), max_size=6)


@settings(max_examples=60, deadline=None)
@given(OUTPUTS, st.lists(st.tuples(st.booleans(), puts, st.integers(0, 900)), max_size=4))
def test_a_journal_killed_at_any_byte_has_all_that_was_put_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    output: str,
    runs: list[tuple[bool, list[tuple[ItemId, int, bool]], int]],
) -> None:
    """Runs that begin again have what was before until their own first record is on disk."""
    path = tmp_path_factory.mktemp("run") / "out.journal"
    done: dict[ItemId, tuple[int, bool]] = {}

    def check(journal: RunJournal) -> None:
        all_items = {
            ItemId(source, key) for source in ("/docs/a.txt", "stdin") for key in ("", "k")
        }
        all_items |= done.keys()
        assert set(journal.to_do(all_items)) == all_items - done.keys()
        failed = {item for item, (_, fails) in done.items() if fails}
        assert set(journal.to_do(all_items, retries=True)) == (all_items - done.keys()) | failed
        for item, (value, fails) in done.items():
            assert journal.has(item)
            assert journal.failed(item) == fails
            assert json.loads(journal.rows(item)) == value

    for restart, items, size in runs:
        journal = opened(path, output, restart=restart)
        check(journal)
        if restart:
            journal.forget_items()
        is_first = restart
        with closing(journal), killed_after(size):
            for item, value, fails in items:
                journal.put(item, json.dumps(value).encode(), failed=fails)
                if is_first:
                    done.clear()
                is_first = False
                done[item] = value, fails
    with closing(opened(path, output)) as last:
        check(last)
    assert {entry.name for entry in path.parent.iterdir()} <= {path.name}


def batch_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def answer_lines(path: Path, count: int, word: str, *, restart: bool = False) -> None:
    """Answer the lines of a batch that are to be answered, with this word."""
    out = FileOutput(path, HEAD, restart, MAX_BYTES)
    try:
        for index in sorted(out.to_do(range(count), retries=False)):
            out.put(DoneLine(index, f'"{word} {index}"'))
        out.close()
    finally:
        out._open.close()  # the locks alone, as where a process is killed


def answer_files(path: Path, count: int, word: str, *, restart: bool = False) -> None:
    """Answer about the documents of a table that are not done, with this word."""
    items = {ItemId(f"/docs/{number}", "k"): str(number) for number in range(count)}
    out = TableOutput(path, HEAD, ["file", "answer"], restart=restart)
    try:
        out.expect(items)
        for item in out.to_do():
            out.put(item, [{"file": items[item], "answer": word}])
        out.close()
    except Killed:
        out._journal.close()
        raise


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([answer_lines, answer_files]), st.integers(1, 4), st.integers(0, 1200))
def test_a_restart_killed_at_any_byte_leaves_the_old_output_or_goes_on_with_the_new(
    tmp_path_factory: pytest.TempPathFactory, answer: Any, count: int, size: int
) -> None:
    path = tmp_path_factory.mktemp("restart") / "out.jsonl"
    answer(path, count, "old")
    with killed_after(size):
        answer(path, count, "new", restart=True)
    answer(path, count, "last")
    rows = path.read_text().splitlines()
    assert len(rows) == count
    is_old = ["old" in row for row in rows]
    assert all(is_old) or not any(is_old)


# --- journals of versions before ---

OLD_TABLE = (
    b'{"format":"ngt-table","version":2,"ask.max_tokens":8}\n'
    b'{"file":"docs/a.txt","key":"k","rows":[{"file":"a.txt","value":1}]}\n'
)
OLD_FOLDER = (
    b'{"format":"ngt-answers","version":4}\n'
    b'{"file":"docs/a.txt","key":"k","rows":[{"body":"A.\\n"}],"name":"a.txt"}\n'
)
OLD_BATCH = (
    b'{"format":"ngt-batch","version":3,"ask.max_tokens":8}\n'
    b'{"index":0,"text":"{\\"id\\": 1}","files":"f","texts":"t"}\n'
    b'{"index":1,"text":"{\\"id\\": 2}","failed":true}\n'
)


def test_the_journal_of_an_older_table_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    journal_of(path).write_bytes(OLD_TABLE)
    a, b = (ItemId(str(tmp_path / "docs" / name), "k") for name in ("a.txt", "b.txt"))
    for _ in range(2):
        with closing(TableOutput(path, HEAD, ["file", "value"])) as table:
            table.expect({a: "a.txt", b: "b.txt"})
            for item in table.to_do():
                assert item == b
                table.put(item, [{"file": "b.txt", "value": 2}])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"file": "a.txt", "value": 1}, {"file": "b.txt", "value": 2}]


def test_the_journal_of_an_older_folder_goes_on(tmp_path: Path) -> None:
    (tmp_path / ".ngt.journal").write_bytes(OLD_FOLDER)
    a = ItemId(str(tmp_path / "docs" / "a.txt"), "k")
    with closing(FolderOutput(tmp_path, ".txt")) as folder:
        folder.expect({a: "a.txt"})
        assert folder.to_do() == []
        assert folder.path_of(a).read_text() == "A.\n"


def test_the_journal_of_an_older_batch_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    journal_of(path).write_bytes(OLD_BATCH)
    with closing(FileOutput(path, HEAD, False, MAX_BYTES)) as out:
        assert out.to_do(range(3), retries=False) == {2}
        assert out.to_do(range(3), retries=True) == {1, 2}
        assert out.record(0).files == "f"
        assert out.record(0).texts == "t"
        out.put(DoneLine(2, '{"id": 3}'))
        out.put(DoneLine(1, '{"id": 2, "text": "good"}'))
    with closing(FileOutput(path, HEAD, False, MAX_BYTES)) as out:
        assert out.to_do(range(3), retries=True) == set()
    assert batch_lines(path) == ['{"id": 1}', '{"id": 2, "text": "good"}', '{"id": 3}']
    answer_lines(path, 1, "new", restart=True)
    assert batch_lines(path) == ['"new 0"']
    assert b"ngt-batch" not in journal_of(path).read_bytes()


@pytest.mark.parametrize("restart", [False, True])
def test_a_journal_of_another_output_is_refused_in_one_line(tmp_path: Path, restart: bool) -> None:
    path = tmp_path / "out.jsonl"
    answer_lines(path, 1, "mine")
    before = journal_of(path).read_bytes()
    with pytest.raises(UsageError, match=r"is the journal of 'a batch', not of a table$"):
        answer_files(path, 1, "other", restart=restart)
    assert journal_of(path).read_bytes() == before
    assert batch_lines(path) == ['"mine 0"']


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.journal"
    path.write_text('{"format":"ngt-run","version":99,"output":"a table"}\n')
    with pytest.raises(UsageError, match="was written by another version of ngt"):
        opened(path)
    assert os.stat(path).st_size > 0
