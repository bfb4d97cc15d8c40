"""Lines of a batch, the order they are answered in, and an output that outlives kills."""

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
MOST = 10_000
ALL = 1, 1  # of shards


def text(index: int, failed: bool = False, extra: str = "") -> str:
    good = {"text": f"潮{extra}", "policy": {"came_true": float("inf")}}
    body: dict[str, Any] = {"error": {"message": extra}} if failed else good
    return json.dumps({"id": index, **body}, ensure_ascii=False)


def done(index: int, failed: bool = False, extra: str = "") -> DoneLine:
    return DoneLine(index, text(index, failed, extra), failed=failed)


def streamed(data: bytes) -> Lines:
    return Lines(read_lines(io.BytesIO(data), "in", MOST, ALL), MOST)


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
def test_a_wrong_line_is_told_in_its_error(raw: bytes, words: str) -> None:
    _, asked = read_line(raw)
    assert isinstance(asked, NgtError)
    assert any(part in str(asked) for part in words.split("|")), str(asked)
    assert not any(word in asked.hint for word in ("int", "float", "bool", "str ", "str."))


def test_a_line_with_a_question_is_asked_and_one_without_is_summarized() -> None:
    own, asked = read_line(b'{"id": "a", "context": "The tide.\\r\\n", "question": " When? "}')
    assert own == "a"
    assert isinstance(asked, BatchLine)
    assert asked.task == "ask"
    assert asked.question == "When?"
    assert asked.texts[0].text == "The tide.\n"
    own, asked = read_line(b'{"id": null, "documents": ["x", {"name": "n", "text": "y"}]}')
    assert own is None
    assert isinstance(asked, BatchLine)
    assert asked.task == "summarize"
    assert [d.name for d in asked.texts] == ["document 1", "n"]


def test_paths_of_a_line_are_taken_from_the_inputs_folder(tmp_path: Path) -> None:
    odd = tmp_path / "a[1]"
    odd.mkdir()
    (odd / "x.txt").write_text("x")
    (odd / "~").mkdir()
    for path, found in (
        ("x.txt", f"{odd}/x.txt"),
        ("/y", "/y"),
        ("~/z", "~/z"),
        ("~", f"{odd}/~"),
        ("*.txt", f"{tmp_path}/a[[]1]/*.txt"),
        ("~nobody.txt", f"{odd}/~nobody.txt"),
    ):
        assert below(str(odd), path) == found


# --- files and streams of lines ---


def test_a_file_is_read_by_lines_and_each_again_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"context": "one"}\n\n{"id": "b", "context": "two"}\r\n'
        b'{"id": "b", "context": "three"}\n{"context": "' + b"x" * MOST + b'"}\n{"context": "end"}'
    )
    found, sha256 = scan(path, MOST, ALL)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [(line.index, line.number, line.id) for line in found] == [
        (0, 1, 1),
        (1, 3, "b"),
        (2, 4, "b"),
        (3, 5, 5),
        (4, 6, 6),
    ]
    texts = [found[i].content(path).texts[0].text for i in (0, 1, 4)]
    assert texts == ["one", "two", "end"]
    with pytest.raises(InputError, match="duplicate id 'b': line 3 also has it"):
        found[2].content(path)
    with pytest.raises(InputError, match="a line of more than"):
        found[3].content(path)


def test_a_wrong_line_keeps_the_id_that_it_has_and_takes_none_from_others(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    rows = [
        '{"id": "a", "context": "one", "context": "two"}',
        '{"id": "b", "context": "one", "settings": {"id": 1, "id": 2}}',
        "no JSON",
        '{"id": "c", "id": "d", "context": "one"}',
        '{"id": [1], "context": "one", "context": "two"}',
        '{"context": "' + "x" * MOST + '"}',
        *(f'{{"id": {number}, "context": "good"}}' for number in (1, 2, 3, 4, 5, 6)),
        '{"id": "a", "context": "again"}',
    ]
    path.write_text("\n".join(rows))
    found, _ = scan(path, MOST, ALL)
    assert [line.id for line in found] == ["a", "b", 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, "a"]
    wrong = [line.number for line in found if isinstance(line.value, NgtError)]
    assert wrong == [1, 2, 3, 4, 5, 6, 13]
    assert "duplicate key 'id'" in str(found[1].value)
    assert "duplicate id 'a': line 1 also has it" in str(found[12].value)


def test_a_line_that_has_changed_since_it_was_read_is_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"context": "one", "question": "Who?"}\n{"context": "two"}\n')
    (first, second), _ = scan(path, MOST, ALL)
    path.write_text('{"context": "one", "question": "Why?"}\n{"context": "two"}\n')
    with pytest.raises(InputError, match="the line has changed"):
        first.content(path)
    assert second.content(path).texts[0].text == "two"


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "empty"), (b"\n \n", "empty"), (b"%PDF-1.7", "a PDF"), (b"a\0b", "not UTF-8 text")],
)
def test_a_file_without_lines_is_refused_whole(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words):
        scan(path, MOST, ALL)
    with pytest.raises(InputError, match=words):
        streamed(data).wait()
    with pytest.raises(InputError, match="no such file"):
        scan(tmp_path / "none", MOST, ALL)


def test_lines_with_the_same_settings_and_documents_are_taken_together() -> None:
    kinds = "abab"
    texts = "xyxzzyxx"
    waiting = Lines(
        InputLine(i, i + 1, i, task=kinds[i % 4], documents_key=texts[i]) for i in range(len(texts))
    )
    order = []
    while waiting.wait():
        line = waiting.take()
        while line is not None:
            order.append((line.task, line.documents_key, line.index))
            line = waiting.take()
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
    stream = streamed(data)
    wait_until(lambda: stream.count >= AHEAD)
    time.sleep(0.02)
    assert stream.count == AHEAD
    first = stream.take()
    assert first is not None
    stream.done(first)
    wait_until(lambda: stream.count > AHEAD)
    assert stream.count == AHEAD + 1


def test_of_a_stream_only_the_last_ids_are_kept() -> None:
    data = b"".join(b'{"id": "%c", "context": "x"}\n' % c for c in b"abbcda")
    found = read_lines(io.BytesIO(data), "in", MOST, ALL, ids=2)
    wrong = {line.number: str(line.value) for line in found if isinstance(line.value, NgtError)}
    assert wrong == {3: "duplicate id 'b': line 2 also has it"}


# --- a journal ---


class Note(Struct):
    n: int
    text: str = ""


FORM = Form("notes", 1, Note, "Name another.", {"wording": "another wording of preset {task}"})


def journal(path: Path, head: Any = HEAD, restart: bool = False) -> Journal[Note]:
    return Journal(path, FORM, head, MOST, restart)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=5), min_size=1, max_size=4), st.data())
def test_a_journal_cut_at_any_byte_has_all_whole_records_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("j") / "journal"
    notes = [Note(n, one.encode(errors="replace").decode()) for n, one in enumerate(texts)]
    with closing(journal(path)) as whole:
        ends = []
        for note in notes:
            assert whole.at(whole.add(note)) == note
            ends.append(os.stat(path).st_size)
    kept = data.draw(st.integers(0, ends[-1]))
    rest = data.draw(
        st.sampled_from([b"", b"\0" * 9, b'{"n": "x"}\n', b"[" * 9000 + b"\n", b"\xff\n"])
    )
    path.write_bytes(path.read_bytes()[:kept] + rest * (kept in ends))
    wanted = notes[: sum(end <= kept for end in ends)]
    with closing(journal(path)) as again:
        assert [note for _, note in again] == wanted
        again.add(Note(99))
    with closing(journal(path)) as last:
        assert [note for _, note in last] == [*wanted, Note(99)]
        with pytest.raises(UsageError, match="another process"):
            journal(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_says_what_was_begun_otherwise_and_each_setting_once(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    then = {**HEAD, "ask.wording": "x"}
    with closing(journal(path, then)) as begun:
        begun.add(Note(1))
    for changes, words in (
        ({"ask.max_tokens": 9, "summarize.max_tokens": 9}, "max_tokens 8, now 9$"),
        ({"shard": "1/2", "input": "bb"}, "input 'aa', now 'bb'; shard '1/1', now '1/2'$"),
        (
            {"ask.wording": "y", "ask.seed": "a"},
            "another wording of preset ask; seed null, now 'a'$",
        ),
        ({"ask.seed": "a"}, "seed null, now 'a'$"),
    ):
        with pytest.raises(UsageError, match=f"journal was started with .*{words}"):
            journal(path, {**then, **changes})
    before = path.read_bytes()
    with closing(journal(path, HEAD, restart=True)) as anew:
        assert [*anew] == []
        assert path.read_bytes() == before  # until there is another record
        anew.add(Note(2))
    with closing(journal(path)) as again:
        assert [note for _, note in again] == [Note(2)]


@pytest.mark.parametrize(
    "begin",
    ["mine", "mine\n", "[3]\n", '{"format": "notes", "version": 2}\n', '{"format":"other'],
)
def test_a_journal_of_another_program_or_version_is_not_touched(tmp_path: Path, begin: str) -> None:
    path = tmp_path / "journal"
    path.write_text(begin)
    is_older = "version" in begin
    with pytest.raises(UsageError, match="another version of ngt|was not written by ngt"):
        journal(path, restart=not is_older)
    assert path.read_text() == begin
    if is_older:
        with closing(journal(path, restart=True)) as anew:
            anew.add(Note(1))
        assert begin.encode() not in path.read_bytes()


def test_what_is_no_file_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine\n")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (("link", "link: "), ("pipe", "not a regular file")):
        with pytest.raises(UsageError, match=words) as caught:
            journal(tmp_path / name, restart=True)
        assert "room" not in caught.value.hint
    assert (tmp_path / "mine").read_text() == "mine\n"


def test_no_more_of_a_journal_is_read_than_a_line_may_have(tmp_path: Path) -> None:
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


def test_a_damaged_line_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(journal(path)) as begun:
        places = [begun.add(Note(number)) for number in (1, 2, 3)]
    with path.open("r+b") as file:
        file.seek(places[1])
        file.write(b"\xff")
    size = path.stat().st_size
    with closing(journal(path)) as again:
        assert [place for place, _ in again] == [places[0], places[2]]
    assert path.stat().st_size == size


def test_a_line_that_cannot_be_written_whole_is_not_written_at_all(tmp_path: Path) -> None:
    def full(file: LineFile, data: bytes) -> None:
        file.write(data[:3])
        raise OSError(28, "No space left on device")

    (tmp_path / "log").write_text("one\n")
    with (
        patch("ngtcli.system.journal.write_all", full),
        LineFile(tmp_path / "log") as file,
        pytest.raises(OSError, match="No space"),
    ):
        file.append(b"another")
    assert (tmp_path / "log").read_text() == "one\n"


# --- the output ---


def opened(path: Path, restart: bool = False, most: int = MOST) -> FileOutput:
    return FileOutput(path, HEAD, restart, most)


@contextmanager
def killed(path: Path) -> Iterator[FileOutput]:
    """An output that is left as a process leaves it that is killed in this block."""
    out = opened(path)
    try:
        yield out
    finally:
        out._open.close()


def test_a_stream_output_is_in_order_whatever_finishes_first() -> None:
    written: list[str] = []
    out = StreamOutput(None, written.append)
    for index in (2, 0, 3, 1):
        out.put(done(index))
    assert written == [text(i) for i in range(4)]


class Killed(BaseException):
    """The process ends here."""


class Killing:
    """In the place of what writes: after so many bytes, or files written whole, all ends."""

    def __init__(self, left: int) -> None:
        self.left = left

    def lines(self, file: io.FileIO, data: bytes) -> None:
        write_all(file, data[: self.left])
        self.spend(len(data))

    def whole(self, path: Path, pieces: Any) -> None:
        self.spend(1)  # before it is in place
        write_atomically(path, pieces)
        self.spend(1)

    def spend(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Killed


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_an_output_that_is_killed_at_any_byte_loses_nothing_and_has_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Lines fail and are run again, too: the last answer to each takes the place of those before.

    A line whose answer was good is never answered again, even where the user took the file away.
    """
    path = tmp_path_factory.mktemp("out") / "out.jsonl"
    order = data.draw(st.permutations(range(data.draw(st.integers(1, 7)))))
    said: list[list[str]] = [[] for _ in order]
    good: set[int] = set()

    def answer(out: FileOutput, may_fail: bool) -> None:
        for index in order:
            if not out.has(index) or out.failed(index):
                assert index not in good
                fails = may_fail and data.draw(st.booleans())
                line = done(index, fails, extra=str(len(said[index])))
                said[index].append(line.text)
                out.put(line)
                good.update([index] * (not fails))

    for _ in range(4):
        kill = Killing(data.draw(st.integers(0, 2500)))
        closes = data.draw(st.booleans())
        with (
            patch("ngtcli.system.journal.write_all", kill.lines),
            patch("ngtcli.engine.batch.output.write_atomically", kill.whole),
            suppress(Killed),
            killed(path) as out,
        ):
            answer(out, may_fail=True)
            if closes:
                out.close()
        whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        assert all(line.decode() in texts for line, texts in zip(whole, said, strict=False))
        if len(whole) < len(order) and data.draw(st.booleans()):
            path.unlink(missing_ok=True)
    with closing(opened(path)) as last:
        answer(last, may_fail=False)
    assert path.read_text() == "".join(f"{texts[-1]}\n" for texts in said)


@pytest.mark.parametrize("finished", [False, True])
def test_a_file_that_was_edited_since_is_refused_and_lines_cut_off_are_written_again(
    tmp_path: Path, finished: bool
) -> None:
    path = tmp_path / "out.jsonl"
    with killed(path) as out:
        for index in (0, 1):
            out.put(done(index))
        if finished:
            out.close()
    whole = path.read_text()
    for edited in (f"{text(1)}\n", f"{whole}mine", whole.upper(), f"{text(0)}\nmine"):
        path.write_text(edited)
        with pytest.raises(UsageError, match="line [123] was changed after ngt wrote it"):
            opened(path)
        assert path.read_text() == edited
    for kept in (0, len(text(0)) - 1, len(whole.encode()) - 1):
        path.write_bytes(whole.encode()[:kept])
        opened(path).close()
        assert path.read_text() == whole
    opened(path, restart=True).close()
    assert path.read_text() == whole
    with closing(opened(path, restart=True)) as out:
        out.put(done(0))
    assert path.read_text() == f"{text(0)}\n"
    opened(path).close()


def test_a_file_that_no_journal_tells_of_is_refused_and_no_journal_left(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("mine, too\n")
    with pytest.raises(UsageError, match="no journal says what it was made from"):
        opened(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "mine, too\n"


def test_an_output_may_be_a_link_and_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    twin = tmp_path / "twin.jsonl"
    (tmp_path / "link.jsonl").symlink_to(path)
    with closing(opened(tmp_path / "link.jsonl")):
        names = {"link.jsonl", "out.jsonl", "out.jsonl.journal"}
        assert {path.name for path in tmp_path.iterdir()} == names
        twin.hardlink_to(path)
        for name in (path, twin):
            with pytest.raises(UsageError, match=f"{name.name}.*: another process is writing it"):
                opened(name)
    opened(path).close()


@pytest.mark.parametrize(
    ("number", "makes_room"), [(errno.ENOSPC, True), (errno.EROFS, False), (errno.EFBIG, False)]
)
def test_only_a_full_disk_is_told_to_make_room(
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
            with pytest.raises(NgtError, match=r"(journal|out\.jsonl): [a-z]") as caught:
                write()
            goes_on = caught.value.hint.startswith("Make room, then run the same command")
            assert goes_on == makes_room
            assert caught.value.exit_code == 1
            assert "--set max_mb" not in caught.value.hint
    with pytest.raises(NgtError) as caught, errors_named("out", "Name another.", UsageError):
        fail()
    assert isinstance(caught.value, UsageError) != makes_room
    assert ("Make room, or name another." in caught.value.hint) == makes_room
    folder.close()


def test_a_line_of_an_output_has_a_bound_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with killed(path) as out:
        out.put(done(0, extra="x" * MOST))
    with pytest.raises(NgtError, match="out.jsonl: a line is too long") as caught:
        opened(path)
    assert "--set max_mb" in caught.value.hint
    with closing(opened(path, most=10 * MOST)) as again:
        assert again.to_do([0, 1], retries=False) == {1}
