"""Lines of a batch, the order they are answered in, the journal, and an output that is killed."""

import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from ngtcli.engine.batch.input import AHEAD, InputLine, Lines, read_lines, scan
from ngtcli.engine.batch.lines import BatchLine, below, read_line
from ngtcli.engine.batch.output import DoneLine, FileOutput, StreamOutput
from ngtcli.engine.batch.run import ItemId
from ngtcli.engine.batch.table import FolderOutput
from ngtcli.errors import InputError, NgtError, UsageError
from ngtcli.system.files import write_all, write_atomically
from ngtcli.system.journal import Form, Journal, LineFile, errors_named
from tests.support.helpers import wait_until

HEAD = {"input": "aa", "shard": "1/1", "engine": "ngt", "ask.max_tokens": 8}
MAX_BYTES = 10_000  # bytes of a line
ALL_LINES = (1, 1)  # all lines: the first shard of one


def text(index: int, failed: bool = False, extra: str = "") -> str:
    good = {"text": f"潮{extra}", "policy": {"came_true": float("inf")}}
    body: dict[str, Any] = {"error": {"message": extra}} if failed else good
    return json.dumps({"id": index, **body}, ensure_ascii=False)


def done(index: int, failed: bool = False, extra: str = "") -> DoneLine:
    return DoneLine(index, text(index, failed, extra), failed=failed)


def lines_of_stream(data: bytes) -> Lines:
    return Lines(read_lines(io.BytesIO(data), "in", MAX_BYTES, ALL_LINES), MAX_BYTES)


# --- what a line asks for ---


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"context": "\xff"}', "not UTF-8 (byte 13)"),
        (b'{"context": "\\ud800"}', "surrogate"),
        (b'{"context": "a"' + b"[" * 99999, "not JSON|nested"),
        (b'{"id": 1.5, "context": "a"}', "id is 1.5"),
        (b'{"id": true, "context": "a"}', "id is true"),
        (b'{"id": [null, NaN], "context": "a"}', "id is [null, NaN]"),
        (b'{"context": "a", "question": ""}', "the question is empty"),
        (b'{"context": "a", "task": "summarize", "question": " "}', "the question is empty"),
        (b'{"context": "a", "settings": {"temperature": NaN}}', "temperature is NaN"),
        (b'{"id": 9223372036854775808, "context": "a"}', "id is 9223372036854775808"),
        (b'{"id": "%s", "context": "a"}' % (b"x" * 1001), "id is 'xxx"),
        (b'{"context": "a", "context": "b"}', "duplicate key 'context'"),
        (b'{"context": "a", "settings": {"seed": 1, "seed": 2}}', "duplicate key 'seed'"),
        (b"{}", "no documents"),
        (b'{"context": "a", "paths": ["b"]}', "paths and context are mutually exclusive"),
        (b'{"context": " "}', "document 1: empty"),
        (b'{"context": "a\\u0000b"}', "binary"),
        (b'{"documents": []}', "documents is []"),
        (b'{"documents": [{"name": "a"}]}', 'documents[0] is {"name": "a"}'),
        (b'{"paths": "a.txt"}', "paths is 'a.txt'"),
        (b'{"paths": []}', "paths is []"),
        (b'{"context": "a", "quesiton": "b"}', "unknown key 'quesiton'"),
        (b'{"context": "a", "task": "ask"}', "no question"),
        (
            b'{"context": "a", "schema": "a", "settings": {"schema": "b"}}',
            "schema is both a key and a setting",
        ),
        (b'{"context": "a", "task": "translate"}', "unknown task 'translate'"),
        (
            b'{"context": "a", "task": "summarize", "question": "Why?"}',
            "task summarize takes no question",
        ),
        (b'{"context": "a", "settings": {"model": "m"}}', "cannot be set for one line"),
        (b'{"context": "a", "settings": {"top_p": 3}}', "top_p is 3"),
        (b'{"context": "a", "settings": {"max_tokens": "3"}}', "max_tokens is '3'"),
        (b'{"context": "a", "settings": 3}', "settings is 3"),
    ],
)
def test_an_invalid_line_is_an_error_in_plain_words(raw: bytes, words: str) -> None:
    _, error = read_line(raw)
    assert isinstance(error, NgtError)
    assert any(part in str(error) for part in words.split("|")), str(error)
    assert not any(word in error.hint for word in ("int", "float", "bool", "str ", "str."))


def test_a_line_with_a_question_is_asked() -> None:
    line_id, line = read_line(b'{"id": "a", "context": "The tide.\\r\\n", "question": " When? "}')
    assert line_id == "a"
    assert isinstance(line, BatchLine)
    assert line.task == "ask"
    assert line.question == "When?"
    assert line.texts[0].text == "The tide.\n"


def test_a_line_without_a_question_is_summarized() -> None:
    line_id, line = read_line(b'{"id": null, "documents": ["x", {"name": "n", "text": "y"}]}')
    assert line_id is None
    assert isinstance(line, BatchLine)
    assert line.task == "summarize"
    assert [document.name for document in line.texts] == ["document 1", "n"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("x.txt", "{parent}/a[1]/x.txt"),
        ("/y", "/y"),
        ("~/z", "~/z"),
        ("~", "{parent}/a[1]/~"),
        ("*.txt", "{parent}/a[[]1]/*.txt"),
        ("~nobody.txt", "{parent}/a[1]/~nobody.txt"),
    ],
)
def test_paths_of_a_line_are_relative_to_the_folder_of_the_input(
    path: str, expected: str, tmp_path: Path
) -> None:
    folder = tmp_path / "a[1]"
    folder.mkdir()
    (folder / "x.txt").write_text("x")
    (folder / "~").mkdir()
    assert below(str(folder), path) == expected.format(parent=tmp_path)


# --- files and streams of lines ---


def test_a_file_is_scanned_and_its_lines_are_read_again_later(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"context": "one"}\n\n{"id": "b", "context": "two"}\r\n'
        b'{"id": "b", "context": "three"}\n{"context": "'
        + b"x" * MAX_BYTES
        + b'"}\n{"context": "end"}'
    )
    lines, sha256 = scan(path, MAX_BYTES, ALL_LINES)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [(line.index, line.number, line.id) for line in lines] == [
        (0, 1, 1),
        (1, 3, "b"),
        (2, 4, "b"),
        (3, 5, 5),
        (4, 6, 6),
    ]
    texts = [lines[index].content(path).texts[0].text for index in (0, 1, 4)]
    assert texts == ["one", "two", "end"]
    with pytest.raises(InputError, match="duplicate id 'b': line 3 also has it"):
        lines[2].content(path)
    with pytest.raises(InputError, match="a line of more than"):
        lines[3].content(path)


def test_an_invalid_line_has_its_own_id_or_its_number(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    rows = [
        '{"id": "a", "context": "one", "context": "two"}',
        '{"id": "b", "context": "one", "settings": {"id": 1, "id": 2}}',
        "no JSON",
        '{"id": "c", "id": "d", "context": "one"}',
        '{"id": [1], "context": "one", "context": "two"}',
        '{"context": "' + "x" * MAX_BYTES + '"}',
        *(f'{{"id": {number}, "context": "good"}}' for number in (1, 2, 3, 4, 5, 6)),
        '{"id": "a", "context": "again"}',
    ]
    path.write_text("\n".join(rows))
    lines, _ = scan(path, MAX_BYTES, ALL_LINES)
    assert [line.id for line in lines] == ["a", "b", 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, "a"]
    invalid = [line.number for line in lines if isinstance(line.value, NgtError)]
    assert invalid == [1, 2, 3, 4, 5, 6, 13]
    assert "duplicate key 'id'" in str(lines[1].value)
    assert "duplicate id 'a': line 1 also has it" in str(lines[12].value)


def test_a_line_that_changed_after_the_scan_is_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"context": "one", "question": "Who?"}\n{"context": "two"}\n')
    (first, second), _ = scan(path, MAX_BYTES, ALL_LINES)
    path.write_text('{"context": "one", "question": "Why?"}\n{"context": "two"}\n')
    with pytest.raises(InputError, match="the line has changed"):
        first.content(path)
    assert second.content(path).texts[0].text == "two"


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "empty"), (b"\n \n", "empty"), (b"%PDF-1.7", "a PDF"), (b"a\0b", "not UTF-8 text")],
)
def test_an_input_that_has_no_lines_of_text_is_refused(
    tmp_path: Path, data: bytes, words: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words):
        scan(path, MAX_BYTES, ALL_LINES)
    with pytest.raises(InputError, match=words):
        lines_of_stream(data).wait()


def test_an_input_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        scan(tmp_path / "none", MAX_BYTES, ALL_LINES)


def test_lines_with_the_same_task_and_documents_are_taken_together() -> None:
    tasks = "abababab"
    documents_keys = "xyxzzyxx"
    lines = Lines(
        InputLine(index, index + 1, index, task=task, documents_key=documents_key)
        for index, (task, documents_key) in enumerate(zip(tasks, documents_keys, strict=True))
    )
    order = []
    while lines.wait():
        line = lines.take()
        while line is not None:
            order.append((line.task, line.documents_key, line.index))
            line = lines.take()
    assert order == [
        ("a", "x", 0),
        ("a", "x", 2),
        ("a", "x", 6),
        ("a", "z", 4),
        ("b", "z", 3),
        ("b", "y", 1),
        ("b", "y", 5),
        ("b", "x", 7),
    ]


def test_a_stream_is_read_ahead_a_bounded_number_of_lines() -> None:
    data = b"".join(b'{"context": "%d"}\n' % i for i in range(3 * AHEAD))
    stream = lines_of_stream(data)
    wait_until(lambda: stream.count >= AHEAD)
    time.sleep(0.02)
    assert stream.count == AHEAD
    first = stream.take()
    assert first is not None
    stream.done(first)
    wait_until(lambda: stream.count > AHEAD)
    assert stream.count == AHEAD + 1


def test_a_stream_remembers_only_its_last_ids() -> None:
    data = b"".join(b'{"id": "%c", "context": "x"}\n' % c for c in b"abbcda")
    lines = read_lines(io.BytesIO(data), "in", MAX_BYTES, ALL_LINES, ids=2)
    errors = {line.number: str(line.value) for line in lines if isinstance(line.value, NgtError)}
    assert errors == {3: "duplicate id 'b': line 2 also has it"}


# --- a journal ---


class Note(Struct):
    n: int
    text: str = ""


FORM = Form("notes", 1, Note, "Name another.", {"wording": "another wording of preset {task}"})


def journal(path: Path, head: Any = HEAD, restart: bool = False) -> Journal[Note]:
    return Journal(path, FORM, head, MAX_BYTES, restart)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=4), st.data())
def test_a_journal_cut_at_any_byte_has_its_complete_records_and_takes_more(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("j") / "journal"
    notes = [
        Note(number, text.encode(errors="replace").decode()) for number, text in enumerate(texts)
    ]
    record_ends = []
    with closing(journal(path)) as complete:
        for note in notes:
            assert complete.at(complete.add(note)) == note
            record_ends.append(path.stat().st_size)

    length = data.draw(st.integers(0, record_ends[-1]))
    content = path.read_bytes()[:length]
    if length in record_ends:
        garbage = [b"", b"\0" * 9, b'{"n": "x"}\n', b"[" * 9000 + b"\n", b"\xff\n"]
        content += data.draw(st.sampled_from(garbage))
    path.write_bytes(content)

    expected = [note for note, end in zip(notes, record_ends, strict=True) if end <= length]
    with closing(journal(path)) as resumed:
        assert [note for _, note in resumed] == expected
        resumed.add(Note(99))
    with closing(journal(path)) as last:
        assert [note for _, note in last] == [*expected, Note(99)]


def test_a_journal_belongs_to_one_process_and_one_user(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(journal(path)) as first:
        first.add(Note(1))
        with pytest.raises(UsageError, match="another process"):
            journal(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ask.max_tokens": 9, "summarize.max_tokens": 9}, "max_tokens 8, now 9$"),
        ({"shard": "1/2", "input": "bb"}, "input 'aa', now 'bb'; shard '1/1', now '1/2'$"),
        (
            {"ask.wording": "y", "ask.seed": "a"},
            "another wording of preset ask; seed null, now 'a'$",
        ),
        ({"ask.seed": "a"}, "seed null, now 'a'$"),
    ],
)
def test_a_journal_with_another_head_is_refused_and_each_difference_named_once(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    head = HEAD | {"ask.wording": "x"}
    with closing(journal(path, head)) as started:
        started.add(Note(1))
    with pytest.raises(UsageError, match=f"journal was started with .*{words}"):
        journal(path, head | changes)


def test_a_restarted_journal_is_unchanged_until_it_has_a_new_record(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(journal(path, HEAD | {"ask.wording": "x"})) as started:
        started.add(Note(1))
    before = path.read_bytes()
    with closing(journal(path, HEAD, restart=True)) as restarted:
        assert list(restarted) == []
        assert path.read_bytes() == before
        restarted.add(Note(2))
    with closing(journal(path)) as resumed:
        assert [note for _, note in resumed] == [Note(2)]


@pytest.mark.parametrize(
    "begin",
    ["mine", "mine\n", "[3]\n", '{"format":"other'],
)
def test_a_file_of_another_program_is_no_journal_even_for_a_restart(
    tmp_path: Path, begin: str
) -> None:
    path = tmp_path / "journal"
    path.write_text(begin)
    with pytest.raises(UsageError, match="was not written by ngt"):
        journal(path, restart=True)
    assert path.read_text() == begin


def test_a_journal_of_another_version_is_overwritten_only_by_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    content = '{"format": "notes", "version": 2}\n'
    path.write_text(content)
    with pytest.raises(UsageError, match="another version of ngt"):
        journal(path)
    assert path.read_text() == content

    with closing(journal(path, restart=True)) as restarted:
        restarted.add(Note(1))
    assert content not in path.read_text()


def test_a_link_or_a_pipe_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine\n")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("link", "link: "), ("pipe", "not a regular file")):
        with pytest.raises(UsageError, match=words) as raised:
            journal(tmp_path / name, restart=True)
        assert "room" not in raised.value.hint
    assert (tmp_path / "mine").read_text() == "mine\n"


def test_no_line_of_a_journal_is_read_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    hole = 1 << 40  # a line of a terabyte
    with closing(journal(path)) as begun:
        begun.add(Note(1))
    os.truncate(path, hole)
    with closing(journal(path)) as long, pytest.raises(UsageError, match="a line is too long"):
        list(long)
    path.write_bytes(b"")
    os.truncate(path, hole)
    with pytest.raises(UsageError, match="was not written by ngt"):
        journal(path)
    assert path.stat().st_size == hole


def test_a_damaged_line_of_a_journal_is_skipped_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(journal(path)) as started:
        offsets = [started.add(Note(number)) for number in (1, 2, 3)]
    with path.open("r+b") as file:
        file.seek(offsets[1])
        file.write(b"\xff")
    size = path.stat().st_size
    with closing(journal(path)) as resumed:
        assert [offset for offset, _ in resumed] == [offsets[0], offsets[2]]
    assert path.stat().st_size == size


def test_a_line_that_cannot_be_written_completely_is_taken_back(tmp_path: Path) -> None:
    def write_three_bytes(file: LineFile, data: bytes) -> None:
        file.write(data[:3])
        raise OSError(28, "No space left on device")

    (tmp_path / "log").write_text("one\n")
    with (
        patch("ngtcli.system.journal.write_all", write_three_bytes),
        LineFile(tmp_path / "log") as file,
        pytest.raises(OSError, match="No space"),
    ):
        file.append(b"another")
    assert (tmp_path / "log").read_text() == "one\n"


# --- the output ---


def open_output(path: Path, restart: bool = False, max_bytes: int = MAX_BYTES) -> FileOutput:
    return FileOutput(path, HEAD, restart, max_bytes)


@contextmanager
def killed(path: Path) -> Iterator[FileOutput]:
    """An output that is left in the state in which a killed process leaves it."""
    out = open_output(path)
    try:
        yield out
    finally:
        out._open.close()


def test_the_rows_of_a_stream_are_in_order_whichever_is_answered_first() -> None:
    written: list[str] = []
    out = StreamOutput(None, written.append)
    for index in (2, 0, 3, 1):
        out.put(done(index))
    assert written == [text(i) for i in range(4)]


class Killed(BaseException):
    """The process is killed here."""


class KillingWriter:
    """Replaces the functions that write; raises Killed after a number of bytes.

    A file that is written atomically counts as a byte before it is in place and one after that.
    """

    def __init__(self, max_bytes: int) -> None:
        self._bytes_left = max_bytes

    def write_all(self, file: io.FileIO, data: bytes) -> None:
        write_all(file, data[: self._bytes_left])
        self._count(len(data))

    def write_atomically(self, path: Path, pieces: Any) -> None:
        self._count(1)
        write_atomically(path, pieces)
        self._count(1)

    def _count(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise Killed


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_an_output_that_is_killed_at_any_byte_loses_and_repeats_no_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Lines also fail and are retried, so that the last answer replaces those before it.

    A line that was answered is never answered again, even if the user deletes the file.
    """
    path = tmp_path_factory.mktemp("out") / "out.jsonl"
    order = data.draw(st.permutations(range(data.draw(st.integers(1, 7)))))
    answers: list[list[str]] = [[] for _ in order]
    answered: set[int] = set()

    def answer_lines(out: FileOutput, may_fail: bool) -> None:
        for index in order:
            if out.has(index) and not out.failed(index):
                continue
            assert index not in answered
            fails = may_fail and data.draw(st.booleans())
            line = done(index, fails, extra=str(len(answers[index])))
            answers[index].append(line.text)
            out.put(line)
            if not fails:
                answered.add(index)

    for _ in range(4):
        writer = KillingWriter(data.draw(st.integers(0, 2500)))
        is_closed = data.draw(st.booleans())
        with (
            patch("ngtcli.system.journal.write_all", writer.write_all),
            patch("ngtcli.engine.batch.output.write_atomically", writer.write_atomically),
            suppress(Killed),
            killed(path) as out,
        ):
            answer_lines(out, may_fail=True)
            if is_closed:
                out.close()
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for line, texts in zip(lines, answers, strict=False):
            assert line.decode() in texts
        if len(lines) < len(order) and data.draw(st.booleans()):
            path.unlink(missing_ok=True)

    with closing(open_output(path)) as last:
        answer_lines(last, may_fail=False)
    assert path.read_text() == "".join(f"{texts[-1]}\n" for texts in answers)


@pytest.fixture(params=[False, True], ids=["killed", "finished"])
def output_of_two(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An output with two lines, of a run that was killed or that finished."""
    path = tmp_path / "out.jsonl"
    with killed(path) as out:
        for index in (0, 1):
            out.put(done(index))
        if request.param:
            out.close()
    return path


def test_an_output_that_was_edited_is_refused(output_of_two: Path) -> None:
    content = output_of_two.read_text()
    for edited in (f"{text(1)}\n", f"{content}mine", content.upper(), f"{text(0)}\nmine"):
        output_of_two.write_text(edited)
        with pytest.raises(UsageError, match="line [123] was changed after ngt wrote it"):
            open_output(output_of_two)
        assert output_of_two.read_text() == edited


def test_lines_that_were_cut_off_an_output_are_written_again(output_of_two: Path) -> None:
    content = output_of_two.read_bytes()
    for length in (0, len(text(0)) - 1, len(content) - 1):
        output_of_two.write_bytes(content[:length])
        open_output(output_of_two).close()
        assert output_of_two.read_bytes() == content


def test_a_restarted_output_is_unchanged_until_it_has_a_new_line(output_of_two: Path) -> None:
    content = output_of_two.read_bytes()
    open_output(output_of_two, restart=True).close()
    assert output_of_two.read_bytes() == content

    with closing(open_output(output_of_two, restart=True)) as out:
        out.put(done(0))
    assert output_of_two.read_text() == f"{text(0)}\n"
    open_output(output_of_two).close()


def test_an_output_without_a_journal_is_refused_and_gets_none(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("mine, too\n")
    with pytest.raises(UsageError, match="no journal says what it was made from"):
        open_output(path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "mine, too\n"


def test_an_output_may_be_a_link_and_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    twin = tmp_path / "twin.jsonl"
    (tmp_path / "link.jsonl").symlink_to(path)
    with closing(open_output(tmp_path / "link.jsonl")):
        names = {"link.jsonl", "out.jsonl", "out.jsonl.journal"}
        assert {path.name for path in tmp_path.iterdir()} == names
        twin.hardlink_to(path)
        for name in (path, twin):
            with pytest.raises(UsageError, match=f"{name.name}.*: another process is writing it"):
                open_output(name)
    open_output(path).close()


@pytest.mark.parametrize(
    ("number", "makes_room"), [(errno.ENOSPC, True), (errno.EROFS, False), (errno.EFBIG, False)]
)
def test_only_the_error_about_a_full_disk_advises_to_make_room(
    tmp_path: Path, number: int, makes_room: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    folder = FolderOutput(tmp_path, ".txt")
    path = tmp_path / "out.jsonl"
    folder.expect({ItemId("a", "k"): "a"})
    with killed(path) as out, patch.object(LineFile, "append", fail):
        for write in (
            partial(folder.put, ItemId("a", "k"), [{"body": "A."}]),
            partial(out.put, done(0)),
        ):
            with pytest.raises(NgtError, match=r"(journal|out\.jsonl): [a-z]") as raised:
                write()
            hint = raised.value.hint
            assert hint.startswith("Make room, then run the same command") == makes_room
            assert "--set max_mb" not in hint
            assert raised.value.exit_code == 1
    with pytest.raises(NgtError) as raised, errors_named("out", "Name another.", UsageError):
        fail()
    assert isinstance(raised.value, UsageError) != makes_room
    assert ("Make room, or name another." in raised.value.hint) == makes_room
    folder.close()


def test_the_error_about_a_long_line_of_an_output_names_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with killed(path) as out:
        out.put(done(0, extra="x" * MAX_BYTES))
    with pytest.raises(NgtError, match="out.jsonl: a line is too long") as raised:
        open_output(path)
    assert "--set max_mb" in raised.value.hint
    with closing(open_output(path, max_bytes=10 * MAX_BYTES)) as resumed:
        assert resumed.to_do([0, 1], retries=False) == {1}
