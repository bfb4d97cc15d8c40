"""Lines of a batch, the order they are answered in, and an output that outlives kills."""

import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngtcli.batch.input import AHEAD, Choice, Line, Lines, StreamLines, content_of, scan
from ngtcli.batch.journal import FORMAT, check_head, errors_named, read_head
from ngtcli.batch.json_lines import BatchLine, below, read_line
from ngtcli.batch.output import AnswerFolder, FileOutput, StreamOutput
from ngtcli.errors import InputError, NgtError, UsageError
from ngtcli.system.files import write_atomically
from ngtcli.system.line_file import LineFile

HEAD = {"input": "aa", "shard": "1/1", "engine": "ngt", "ask.max_tokens": 8}
MOST = 10_000


def lines(count: int) -> list[Line]:
    return [Line(i, i + 1, i) for i in range(count)]


def text(index: int, failed: bool = False, extra: str = "") -> str:
    good = {"text": f"潮{extra}", "policy": {"came_true": float("inf")}}
    body: dict[str, Any] = {"error": {"message": extra}} if failed else good
    return json.dumps({"id": index, **body}, ensure_ascii=False)


# --- what a line asks for ---


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "not JSON"),
        (b"[1]", "no JSON object"),
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
        (b'{"context": "a", "context": "b"}', "'context' stands there twice"),
        (b'{"context": "a", "settings": {"seed": 1, "seed": 2}}', "'seed' stands there twice"),
        (b"{}", "no documents"),
        (b'{"context": "a", "paths": ["b"]}', "paths and context together"),
        (b'{"context": " "}', "document 1: empty"),
        (b'{"context": "a\\u0000b"}', "binary"),
        (b'{"documents": []}', "documents is []"),
        (b'{"documents": [{"name": "a"}]}', "document 1 is"),
        (b'{"paths": "a.txt"}', "paths is 'a.txt'"),
        (b'{"paths": []}', "no paths"),
        (b'{"context": "a", "quesiton": "b"}', "unknown key 'quesiton'"),
        (b'{"context": "a", "task": "ask"}', "no question"),
        (b'{"context": "a", "task": "translate"}', "task is 'translate'"),
        (b'{"context": "a", "task": "summarize", "question": "Why?"}', "a question with"),
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
    assert own == "a" and isinstance(asked, BatchLine)
    assert (asked.task, asked.question) == ("ask", "When?")
    assert asked.documents[0].text == "The tide.\n"
    own, asked = read_line(b'{"id": null, "documents": ["x", {"name": "n", "text": "y"}]}')
    assert own is None and isinstance(asked, BatchLine) and asked.task == "summarize"
    assert [d.name for d in asked.documents] == ["document 1", "n"]


def test_paths_of_a_line_are_taken_from_the_inputs_folder(tmp_path: Path) -> None:
    odd = tmp_path / "a[1]"
    odd.mkdir()
    (odd / "x.txt").write_text("x")
    (odd / "~").mkdir()
    for path, found in (
        ("x.txt", f"{odd}/x.txt"), ("/y", "/y"), ("~/z", "~/z"), ("~", f"{odd}/~"),
        ("*.txt", f"{tmp_path}/a[[]1]/*.txt"), ("~nobody.txt", f"{odd}/~nobody.txt"),
    ):  # fmt: skip
        assert below(str(odd), path) == found


# --- files and streams of lines ---


def test_a_file_is_read_by_lines_and_each_again_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"context": "one"}\n\n{"id": "b", "context": "two"}\r\n'
        b'{"id": "b", "context": "three"}\n{"context": "' + b"x" * MOST + b'"}\n{"context": "end"}'
    )
    found, sha256 = scan(path, MOST, Choice())
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [(line.index, line.number, line.id) for line in found] == [
        (0, 1, 1), (1, 3, "b"), (2, 4, "b"), (3, 5, 5), (4, 6, 6),
    ]  # fmt: skip
    texts = [content_of(found[i], path).documents[0].text for i in (0, 1, 4)]
    assert texts == ["one", "two", "end"]
    with pytest.raises(InputError, match="id 'b' stands in line 3 already"):
        content_of(found[2], path)
    with pytest.raises(InputError, match="a line of more than"):
        content_of(found[3], path)


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
    found, _ = scan(path, MOST, Choice())
    assert [line.id for line in found] == ["a", "b", 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, "a"]
    assert [line.number for line in found if line.wrong] == [1, 2, 3, 4, 5, 6, 13]
    assert "'id' stands there twice" in str(found[1].wrong)
    assert "id 'a' stands in line 1 already" in str(found[12].wrong)


def test_a_line_that_has_changed_since_it_was_read_is_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"context": "one", "question": "Who?"}\n{"context": "two"}\n')
    (first, second), _ = scan(path, MOST, Choice())
    path.write_text('{"context": "one", "question": "Why?"}\n{"context": "two"}\n')
    with pytest.raises(InputError, match="the line has changed"):
        content_of(first, path)
    assert content_of(second, path).documents[0].text == "two"


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "empty"), (b"\n \n", "empty"), (b"%PDF-1.7", "a PDF"), (b"a\0b", "no text in UTF-8")],
)
def test_a_file_without_lines_is_refused_whole(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words):
        scan(path, MOST, Choice())
    with pytest.raises(InputError, match=words):
        StreamLines(io.BytesIO(data), "in", MOST, Choice()).wait()
    with pytest.raises(InputError, match="no such file"):
        scan(tmp_path / "none", MOST, Choice())


def test_lines_with_the_same_settings_and_documents_are_taken_together() -> None:
    kinds = "abab"
    texts = "xyxzzyxx"
    waiting = Lines(Line(i, i + 1, i, kind=kinds[i % 4], texts=texts[i]) for i in range(len(texts)))
    order = []
    while waiting.wait():
        line = waiting.take()
        while line is not None:
            order.append((line.kind, line.texts, line.index))
            line = waiting.take(line.kind)
    assert order == [
        ("a", "x", 0), ("a", "x", 2), ("a", "x", 6), ("a", "z", 4),
        ("b", "z", 3), ("b", "y", 1), ("b", "y", 5), ("b", "x", 7),
    ]  # fmt: skip


def test_a_stream_is_read_ahead_a_bounded_number_of_lines() -> None:
    data = b"".join(b'{"context": "%d"}\n' % i for i in range(3 * AHEAD))
    stream = StreamLines(io.BytesIO(data), "in", MOST, Choice())
    patience = time.monotonic() + 5
    while stream.count < AHEAD and time.monotonic() < patience:
        time.sleep(0.001)
    time.sleep(0.02)
    assert stream.count == AHEAD
    first = stream.take()
    assert first is not None
    stream.done(first)
    while stream.count < AHEAD + 1 and time.monotonic() < patience:
        time.sleep(0.001)
    assert stream.count == AHEAD + 1


def test_of_a_stream_only_the_last_ids_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngtcli.batch.input.IDS", 2)
    data = b"".join(b'{"id": "%c", "context": "x"}\n' % c for c in b"abbcda")
    stream = StreamLines(io.BytesIO(data), "in", MOST, Choice())
    wrong = {}
    while stream.wait():
        line = stream.take()
        assert line is not None
        wrong[line.number] = str(line.wrong or "")
        stream.done(line)
    assert {n: w for n, w in wrong.items() if w} == {3: "id 'b' stands in line 2 already"}


# --- the output ---


def test_a_stream_output_is_in_order_whatever_finishes_first() -> None:
    written: list[str] = []
    out = StreamOutput(None, written.append)
    for index in (2, 0, 3, 1):
        out.put(index, text(index), False)
    assert written == [text(i) for i in range(4)]


class Killed(BaseException):
    """The process ends here."""


def killing(at: int, share: float) -> Any:
    """In place of appending: at the `at`-th write only a part is written, then all ends."""
    left = [at]

    def append(file: LineFile, text: str, sync: bool = True) -> int:
        data, start = f"{text}\n".encode(), file.seek(0, os.SEEK_END)
        left[0] -= 1
        file.write(data[: int(len(data) * (share if left[0] < 0 else 1))])
        if left[0] < 0:
            raise Killed
        return start

    return append


def opened(path: Path, count: int, restart: bool = False, most: int = MOST) -> FileOutput:
    return FileOutput(path, HEAD, lines(count), restart, most)


def release(out: FileOutput) -> None:
    """What the end of a process does."""
    out._open.close()


@contextmanager
def releasing(out: FileOutput) -> Iterator[FileOutput]:
    """Released at the end, however that comes."""
    try:
        yield out
    finally:
        release(out)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_output_that_is_killed_at_any_write_loses_nothing_and_has_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Lines fail and are run again, too: the last answer to each takes the place of those before.

    A line whose answer was good is never answered again.
    """
    path = tmp_path_factory.mktemp("out") / "out.jsonl"
    order = data.draw(st.permutations(range(data.draw(st.integers(1, 9)))))
    said: list[list[str]] = [[] for _ in order]
    good: set[int] = set()

    def answer(out: FileOutput, may_fail: bool) -> None:
        for index in order:
            if index not in out.done or index in out.failed:
                assert index not in good
                fails = may_fail and data.draw(st.booleans())
                said[index].append(text(index, fails, extra=str(len(said[index]))))
                out.put(index, said[index][-1], fails)
                good.update([index] * (not fails))

    for _ in range(5):
        kill = killing(data.draw(st.integers(0, 6)), data.draw(st.sampled_from((0.0, 0.5, 1.0))))
        closes = data.draw(st.booleans())
        with (
            patch.object(LineFile, "append", kill),
            suppress(Killed),
            releasing(opened(path, len(order))) as out,
        ):
            answer(out, may_fail=True)
            if closes:
                out.close()
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        assert all(line in texts for line, texts in zip(whole, said, strict=False))
    with closing(opened(path, len(order))) as last:
        answer(last, may_fail=False)
    assert path.read_text() == "".join(f"{texts[-1]}\n" for texts in said)
    assert path.with_name("out.jsonl.journal").read_bytes().count(b"\n") == 1


def test_a_head_says_what_was_begun_otherwise_and_each_setting_once() -> None:
    line = json.dumps({**FORMAT, **HEAD, "ask.wording": "x"}).encode()
    then = read_head(line)
    assert then is not None and read_head(line.replace(b'"version": 2', b'"version": 1')) is None
    for changes, words in (
        ({"ask.max_tokens": 9, "summarize.max_tokens": 9}, "max_tokens 8, now 9$"),
        ({"shard": "1/2", "input": "bb"}, "other lines: the input has changed, and 1 more$"),
        ({"ask.wording": "y", "ask.seed": "a"}, "wording of preset ask, and 1 more$"),
        ({"ask.seed": "a"}, "seed null, now 'a'$"),
    ):
        with pytest.raises(UsageError, match=f"out was begun with .*{words}") as caught:
            check_head(then, {**then, **changes}, "out")
        assert ("Put new and mended lines" in caught.value.hint) == ("input" in changes)


@pytest.mark.parametrize(
    "change", [{"engine": None}, {"input": 5}, {"shard": ["1/1"]}, {"x": 1}, {"version": 2.0}]
)
def test_a_head_with_other_values_than_ours_is_none(change: dict[str, Any]) -> None:
    assert read_head(json.dumps({**FORMAT, **HEAD}).encode()) == {**FORMAT, **HEAD}
    assert read_head(json.dumps({**FORMAT, **HEAD, **change}).encode()) is None
    assert read_head(json.dumps(HEAD).encode()) is None


def test_a_journal_that_is_a_link_or_no_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine\n")
    begun: list[Callable[[], object]] = [
        lambda: opened(tmp_path / "out.jsonl", 2, restart=True),
        lambda: AnswerFolder(tmp_path / "folder"),
    ]
    (tmp_path / "folder").mkdir()
    journals = tmp_path / "out.jsonl.journal", tmp_path / "folder" / ".ngt.journal"
    for begin, journal in zip(begun, journals, strict=True):
        journal.symlink_to(mine)
        with pytest.raises(UsageError, match=f"{journal.name}: ") as caught:
            begin()
        assert "room" not in caught.value.hint and caught.value.hint.startswith("Name another")
        journal.unlink()
        os.mkfifo(journal)
        with pytest.raises(UsageError, match=f"{journal.name}: not a regular file"):
            begin()
    assert mine.read_text() == "mine\n"


def test_an_output_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "out.jsonl")
    opened(tmp_path / "link.jsonl", 2).close()
    assert {path.name for path in tmp_path.iterdir()} == {
        "link.jsonl", "out.jsonl", "out.jsonl.journal",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["mine", "mine\n"])
def test_a_journal_of_someone_else_is_not_touched(tmp_path: Path, text: str) -> None:
    path, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    journal.write_text(text)
    for before in (None, "", "mine, too\n"):
        if before is not None:
            path.write_text(before)
        with pytest.raises(UsageError, match="journal|another version"):
            opened(path, 2)
        assert journal.read_text() == text
        assert (path.read_text() if path.exists() else None) == before


@pytest.mark.parametrize(
    ("number", "makes_room"), [(errno.ENOSPC, True), (errno.EROFS, False), (errno.EFBIG, False)]
)
def test_only_a_full_disk_is_told_to_make_room(
    tmp_path: Path, number: int, makes_room: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "out.jsonl").touch()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "out.jsonl")
    folder, out = AnswerFolder(tmp_path), opened(tmp_path / "link.jsonl", 2)
    with patch.object(LineFile, "append", fail):
        for write in (
            lambda: folder.write("a.txt", "k", "A summary."),
            lambda: out.put(0, text(0), False),
        ):
            with pytest.raises(NgtError, match=r"(a\.txt|link\.jsonl): [a-z]") as caught:
                write()
            assert ("Make room" in caught.value.hint) == makes_room
            assert caught.value.exit_code == 1 and "--max-mb" not in caught.value.hint
    with pytest.raises(NgtError) as caught, errors_named("out", UsageError):
        fail()
    assert isinstance(caught.value, UsageError) != makes_room
    folder.close()
    release(out)


def test_a_line_that_was_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    out = opened(path, 2)
    out.put(0, text(0), False)
    release(out)
    path.write_text(text(1) + "\n")
    with pytest.raises(UsageError, match="line 1 is not as it was written"):
        opened(path, 2)


@pytest.mark.parametrize(
    ("name", "start", "words"),
    [
        ("out.jsonl.journal", json.dumps({**FORMAT, **HEAD}) + "\n", "a line is too long"),
        ("out.jsonl.journal", '{"format": "', "not a journal"),
        (".ngt.journal", "", "journal: a line is too long"),
    ],
)
def test_no_more_of_a_journal_is_read_than_a_line_may_have(
    tmp_path: Path, name: str, start: str, words: str
) -> None:
    size = len(start) + (1 << 40)  # one line of a terabyte, most of which is a hole
    with (tmp_path / name).open("w") as file:
        file.write(start)
        file.truncate(size)
    with pytest.raises(NgtError, match=words):
        opened(tmp_path / "out.jsonl", 2) if start else AnswerFolder(tmp_path)
    assert (tmp_path / name).stat().st_size == size


def test_a_line_of_an_output_has_a_bound_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    release(opened(path, 2))
    path.write_text(text(0, extra="x" * MOST) + "\n")
    with pytest.raises(NgtError, match="out.jsonl: a line is too long") as caught:
        opened(path, 2)
    assert "--max-mb" in caught.value.hint
    again = opened(path, 2, most=10 * MOST)
    assert again.done == {0}
    release(again)


def test_a_folder_knows_its_files_wherever_a_kill_came(tmp_path: Path) -> None:
    """Of each prefix of what a run writes, in its order, the next run knows all that is there."""
    done: list[object] = []

    def until(number: int, function: Callable[..., None]) -> Callable[..., None]:
        def write(*given: object) -> None:
            if len(done) == number:
                raise KeyboardInterrupt
            done.append(given)
            function(*given)

        return write

    for number in range(4):
        folder = tmp_path / str(number)
        for text in ("one\n", "two\n"):
            done.clear()
            kept = AnswerFolder(folder)
            with (
                patch.object(LineFile, "append", until(number, LineFile.append)),
                patch("ngtcli.batch.output.write_atomically", until(number, write_atomically)),
                suppress(KeyboardInterrupt),
            ):
                kept.write("a.txt", text, text)
            kept.close()
            again = AnswerFolder(folder)
            again.check(["a.txt"])
            assert again.has("a.txt", text) == (number == 3)
            again.close()


def test_a_file_of_which_an_earlier_journal_has_no_hash_counts_as_changed(tmp_path: Path) -> None:
    (tmp_path / ".ngt.journal").write_text('{"file": "a.txt", "key": "k"}\n')
    (tmp_path / "a.txt").write_text("A summary.\n")
    folder = AnswerFolder(tmp_path)
    assert folder.has("a.txt", "k") and not folder.has("a.txt", "other")
    with pytest.raises(UsageError, match="an earlier version of ngt wrote it"):
        folder.write("a.txt", "other", "Another one.\n")
    folder.close()
    assert (tmp_path / "a.txt").read_text() == "A summary.\n"


@pytest.mark.parametrize(
    "bad",
    [
        b'-1\t{"id": -1}', b'9\t{"id": 9}', b'1\t{"id": 0}', b'1\t{"text": "mine"}', b"1\t3",
        b"1\t", b"1" * 5000 + b'\t{"id": 1}', b'1\t{"id": 1, "text": "\xff"}', b'1\t{"id": 1}\0',
        b"\0" * 9, b'1\t{"id": 1, "x": ' + b"[" * 9000, b'1\t{"id": 1, "x": "\\ud800"}',
    ],
)  # fmt: skip
def test_lines_of_a_journal_that_are_not_ours_are_cut_off(tmp_path: Path, bad: bytes) -> None:
    path, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    out = opened(path, 3)
    out.put(2, text(2), False)
    release(out)
    before = journal.read_bytes()
    journal.write_bytes(before + bad + b"\n" + f"1\t{text(1)}\n".encode())
    again = opened(path, 3)
    assert again.done == {2} and journal.read_bytes() == before
    for index in (0, 1):
        again.put(index, text(index), False)
    again.close()
    assert path.read_text().splitlines() == [text(i) for i in range(3)]


def test_of_an_index_that_a_journal_has_twice_the_last_counts(tmp_path: Path) -> None:
    path, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    release(opened(path, 2))
    with journal.open("a") as file:
        file.write(f"1\t{text(1, failed=True)}\n1\t{text(1, extra='!')}\n")
    out = opened(path, 2)
    assert out.done == {1} and not out.failed
    out.put(0, text(0), False)
    out.close()
    assert path.read_text().splitlines() == [text(0), text(1, extra="!")]


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    out = opened(path, 2)
    with pytest.raises(UsageError, match="another process"):
        opened(path, 2)
    out.close()
    opened(path, 2).close()


def test_a_line_that_cannot_be_written_whole_is_not_written_at_all(tmp_path: Path) -> None:
    class Full(LineFile):
        def write(self, data: Any) -> int:
            super().write(data[:3])
            raise OSError(28, "No space left on device")

    (tmp_path / "journal").write_text("one\n")
    with Full(tmp_path / "journal", 0o600) as file, pytest.raises(OSError, match="No space"):
        file.append("another")
    assert (tmp_path / "journal").read_text() == "one\n"
