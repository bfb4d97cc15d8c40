"""The cache of texts: unchanged files are not read again, and no change is missed."""

import gzip
import io
import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ngtcli.config import Settings
from ngtcli.documents import catalog
from ngtcli.documents.catalog import FILES, TEXTS
from ngtcli.documents.content import Extracted, ParserInput
from ngtcli.documents.load import load, survey
from ngtcli.documents.parsers import FailedParser, Parsers
from ngtcli.documents.read import BoundedReader, DocumentReader
from ngtcli.errors import InputError
from ngtcli.system import store
from tests import document_files
from tests.support.helpers import write_files

pytest.importorskip("pypdfium2")
pytest.importorskip("lxml")
pytestmark = pytest.mark.usefixtures("kept_workers")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by the name of each file that is opened, and of each format that is parsed."""
    names: list[str] = []
    extract = Parsers.extract
    read_file = BoundedReader.read

    def recording_extract(self, form, source):
        names.append(form.name)
        return extract(self, form, source)

    def recording_read(self, source, *arguments):
        names.append(Path(source).name)
        return read_file(self, source, *arguments)

    monkeypatch.setattr(Parsers, "extract", recording_extract)
    monkeypatch.setattr(BoundedReader, "read", recording_read)
    return names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tables, a locked PDF and notes, which were written long ago."""
    names = ("people.csv", "people.tsv", "locked.pdf")
    files = {name: document_files.FILES[name]() for name in names}
    folder = write_files(tmp_path / "docs", notes_md="# Notes\n\nThe tide came in.\n", **files)
    for path in folder.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return folder


@pytest.fixture(autouse=True)
def trust_new_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust the time of a file that has just been written."""
    monkeypatch.setattr(catalog, "_RACE_NS", 0)


def load_texts(folder: Path, **settings: object) -> dict[str, Extracted]:
    loaded = load([str(folder)], settings=Settings().replace(**settings))
    assert not loaded.remarks
    return {
        document.name: Extracted(document.text, document.about) for document in loaded.documents
    }


def leave_unchanged(folder: Path) -> None:
    pass


def change(folder: Path) -> None:
    (folder / "people.csv").write_text("a,b\n")


def change_but_keep_size_and_time(folder: Path) -> None:
    path = folder / "people.csv"
    before = os.stat(path)
    path.write_bytes(path.read_bytes().replace(b"Carl", b"Kurt"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns


def touch(folder: Path) -> None:
    os.utime(folder / "people.tsv")


def move(folder: Path) -> None:
    (folder / "people.csv").rename(folder / "moved.csv")


def clear_catalog(folder: Path) -> None:
    FILES.delete(FILES.each())


@pytest.mark.parametrize(
    ("act", "repeated"),
    [
        (leave_unchanged, []),
        (change, ["csv", "people.csv"]),
        (change_but_keep_size_and_time, ["csv", "people.csv"]),
        (touch, ["people.tsv"]),
        (move, ["moved.csv"]),
        (clear_catalog, ["pdf", "people.csv", "people.tsv", "locked.pdf"]),
    ],
)
def test_only_changed_files_are_opened_and_parsed_again(
    folder: Path, work: list[str], act: Callable[[Path], None], repeated: list[str]
) -> None:
    files = ["notes.md", "people.csv", "people.tsv", "locked.pdf"]
    assert len(load_texts(folder)) == 3
    assert sorted(work) == sorted([*files, "csv", "tsv", "pdf"])

    act(folder)
    work.clear()
    texts = load_texts(folder)
    assert sorted(work) == sorted([*repeated, "notes.md"])  # plain text is read from its file
    (locked,) = load([str(folder)]).skipped
    assert locked.reason == "encrypted"

    shutil.rmtree(os.environ["NGT_HOME"])
    assert load_texts(folder) == texts


def test_files_just_written_are_not_trusted_by_their_time(
    folder: Path, work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_RACE_NS", 10**12)
    load_texts(folder)
    work.clear()

    load_texts(folder)

    files = ["notes.md", "people.csv", "people.tsv", "locked.pdf"]
    assert sorted(work) == sorted([*files, "pdf"])


def test_texts_behind_a_password_are_not_stored(folder: Path, work: list[str]) -> None:
    path = folder / "locked.pdf"
    path.write_bytes(document_files.pdf(1, password="tide"))
    for _ in range(2):
        (document,) = load([str(path)], settings=Settings.of(password="tide")).documents
        assert "fishermen of the village" in document.text
        assert document.about.secret
    assert work == ["locked.pdf", "pdf"] * 2
    assert not FILES.each()
    assert not TEXTS.each()

    with pytest.raises(InputError, match="the password does not open it"):
        load([str(path)], settings=Settings.of(password="ebb"))
    with pytest.raises(InputError, match="encrypted"):
        load([str(path)])


def test_a_pipe_gets_the_stored_text_of_a_file_with_its_bytes_and_stores_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = document_files.pdf(1)
    file = tmp_path / "scan"
    file.write_bytes(data)

    (piped,) = load(["-"], io.BytesIO(data)).documents
    assert not TEXTS.each()

    (document,) = load([str(file)]).documents
    assert document.text == piped.text

    monkeypatch.setattr(Parsers, "extract", None)  # which would fail
    (piped_again,) = load(["-"], io.BytesIO(data)).documents
    assert piped_again.text == piped.text


def test_files_that_failed_are_tried_again_if_a_limit_is_raised(
    folder: Path, work: list[str]
) -> None:
    load_texts(folder)
    work.clear()
    load_texts(folder, parser_seconds=90)
    parsed_formats = [name for name in work if "." not in name]
    assert parsed_formats == ["pdf"]  # of the locked one; the others' texts are stored


def test_without_a_cache_everything_is_read_with_a_remark(folder: Path) -> None:
    texts = load_texts(folder)
    home = Path(os.environ["NGT_HOME"])
    shutil.rmtree(home)
    home.write_text("A file where the folder should be.")

    loaded = load([str(folder)])

    for document in loaded.documents:
        assert document.text == texts[document.name].text
    assert len(loaded.documents) == len(texts)
    assert "nothing is stored" in loaded.remarks[0]


def test_the_limit_of_text_applies_to_each_load(folder: Path) -> None:
    settings = Settings.of(max_mb=1)
    paths = [str(folder / name) for name in ("long.txt", "more.txt")]
    for path in paths:
        Path(path).write_text("tide " * 150_000)  # 0.75 MB
    with closing(DocumentReader(settings)) as files:
        for path in (*paths, *paths):
            load([path], settings=settings, reader=files)
        with pytest.raises(InputError, match="more than 1 MB of text in total"):
            load(paths, settings=settings, reader=files)


def test_only_texts_above_a_lowered_limit_are_skipped(folder: Path) -> None:
    (folder / "large.txt.gz").write_bytes(gzip.compress(b"tide " * 300_000))
    assert load_texts(folder, max_mb=64).keys() >= {"people.csv", "large.txt.gz"}

    texts = load_texts(folder, max_mb=1)
    assert "people.csv" in texts
    assert "large.txt.gz" not in texts


def test_texts_that_are_read_ahead_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first parser waits until no other file is parsed; each text is as large as the limit."""
    parsed: list[int] = []

    def extract(self: Parsers, form: object, source: ParserInput) -> Extracted:
        number = int(source.data)
        if number == 0:
            count = -1
            while count != len(parsed):
                count = len(parsed)
                time.sleep(0.1)
        parsed.append(number)
        return Extracted("t" * 1_000_000)

    monkeypatch.setattr(Parsers, "extract", extract)
    for number in range(40):
        (tmp_path / f"{number:02}.json").write_text(str(number))
    with closing(DocumentReader(Settings.of(max_mb=1))) as files:
        with pytest.raises(InputError, match="more than 1 MB of text in total"):
            load([str(tmp_path)], settings=Settings.of(max_mb=1), reader=files)
        assert len(parsed) <= 2 + 2 * files._parsers.size


CRASH = "CSV at which its parser crashed"


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the parser of CSV crash; grows with each crash."""
    crashes: list[str] = []
    extract = Parsers.extract

    def crash_at_csv(self, form, source):
        if form.name != "csv":
            return extract(self, form, source)
        crashes.append(form.name)
        raise FailedParser(CRASH, "It is damaged.")

    monkeypatch.setattr(Parsers, "extract", crash_at_csv)
    return crashes


def test_a_failed_parser_is_tried_again_after_a_day_or_when_the_cache_is_cleared(
    folder: Path, crashes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same process goes on, as a server does."""
    files = DocumentReader(Settings())

    def reason() -> str:
        (csv,) = [
            skipped
            for skipped in load([str(folder)], reader=files).skipped
            if skipped.name.endswith(".csv")
        ]
        return csv.reason

    assert reason() == CRASH
    assert len(crashes) == 1
    assert reason() == (
        f"{CRASH}, when it was last tried; ngt cache clear documents has it tried again"
    )
    assert len(crashes) == 1

    tomorrow = time.time() + 86_500
    monkeypatch.setattr(catalog.time, "time", lambda: tomorrow)
    assert reason() == CRASH
    assert len(crashes) == 2

    FILES.delete(FILES.each())  # as `ngt cache clear` in another process does
    assert reason() == CRASH
    assert len(crashes) == 3

    FILES.delete(FILES.each())
    files.close()
    assert not FILES.each()  # Closing writes nothing that was cleared.


def test_many_files_take_few_transactions(
    tmp_path: Path, work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(2_000):
        (tmp_path / f"{i}.txt").write_text(f"note {i}")
    statements: list[str] = []
    execute = store._Store._execute

    def recording_execute(self, sql, *arguments):
        statements.append(sql)
        return execute(self, sql, *arguments)

    monkeypatch.setattr(store._Store, "_execute", recording_execute)

    texts = load_texts(tmp_path)
    assert len(texts) == 2_000
    assert len(work) == 2_000

    for expected_reads in (2_000, 0):
        work.clear()
        table = survey([str(tmp_path)], Settings(), "words", lambda text: len(text.split()))
        assert [row.tokens for row in table.rows] == [2] * 2_000
        assert [row.characters for row in table.rows] == [len(t.text) for t in texts.values()]
        assert len(work) == 2_000
        assert table.read == expected_reads

    writes = [sql for sql in statements if not sql.startswith("SELECT")]
    assert len(writes) < 100


def test_a_link_of_another_suffix_changes_nothing_for_the_file(tmp_path: Path) -> None:
    file = write_files(tmp_path, **{"b.csv": "name,age\nanna,3"}) / "b.csv"
    os.utime(file, (1, 1))
    (tmp_path / "a.json").symlink_to(file)
    (tmp_path / "a.tex").symlink_to(file)
    for name in ("a.json", "a.tex"):
        with suppress(InputError):
            load([str(tmp_path / name)])
    assert load([str(file)]).documents[0].text == "name | age\nanna | 3"


def test_a_text_that_is_gone_from_the_store_is_parsed_once(tmp_path: Path) -> None:
    path = str(write_files(tmp_path, **{"b.csv": "name,age\nanna,3"}) / "b.csv")
    load([path])
    TEXTS.delete(list(TEXTS.each()))
    load([path])
    assert len(TEXTS.each()) == 1
