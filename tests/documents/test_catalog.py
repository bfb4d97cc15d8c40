"""The cache of texts: unchanged files are not read again, and no change is missed."""

import gzip
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ngtcli.config import Settings
from ngtcli.documents import catalog
from ngtcli.documents.catalog import FILES, TEXTS
from ngtcli.documents.content import Extracted, Source
from ngtcli.documents.load import load, survey
from ngtcli.documents.parsers import FailedParser, Parsers
from ngtcli.documents.read import Documents, Reader
from ngtcli.errors import InputError
from ngtcli.system import store
from tests import document_files as made
from tests.support.helpers import write_files

pytest.importorskip("pypdfium2")
pytest.importorskip("lxml")
pytestmark = pytest.mark.usefixtures("kept_workers")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of files that were opened, and of formats that were parsed."""
    calls: list[str] = []
    extract, read_file = Parsers.extract, Reader.read

    def counting(self, form, source):
        calls.append(form.name)
        return extract(self, form, source)

    def noting(self, source, *more):
        calls.append(Path(source).name)
        return read_file(self, source, *more)

    monkeypatch.setattr(Parsers, "extract", counting)
    monkeypatch.setattr(Reader, "read", noting)
    yield calls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {name: made.FILES[name]() for name in ("people.csv", "people.tsv", "locked.pdf")}
    path = write_files(tmp_path / "docs", notes_md="# Notes\n\nThe tide came in.\n", **files)
    for one in path.iterdir():
        os.utime(one, (1_000_000_000, 1_000_000_000))
    return path


@pytest.fixture(autouse=True)
def no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_RACE_NS", 0)


def texts(folder: Path, **settings: object) -> dict[str, Extracted]:
    loaded = load([str(folder)], settings=Settings().replace(**settings))
    assert not loaded.remarks
    return {d.name: Extracted(d.text, d.about) for d in loaded.documents}


def changed_with_its_size_and_time(folder: Path) -> None:
    path = folder / "people.csv"
    about = os.stat(path)
    path.write_bytes(path.read_bytes().replace(b"Carl", b"Kurt"))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert os.stat(path).st_mtime_ns == about.st_mtime_ns


@pytest.mark.parametrize(
    ("act", "again"),
    [
        (lambda folder: None, []),
        (lambda folder: (folder / "people.csv").write_text("a,b\n"), ["csv", "people.csv"]),
        (changed_with_its_size_and_time, ["csv", "people.csv"]),
        (lambda folder: os.utime(folder / "people.tsv"), ["people.tsv"]),
        (lambda folder: (folder / "people.csv").rename(folder / "moved.csv"), ["moved.csv"]),
        (
            lambda folder: FILES.delete(FILES.each()),
            ["pdf", "people.csv", "people.tsv", "locked.pdf"],
        ),
    ],
    ids=["unchanged", "changed", "size and time kept", "touched", "moved", "forgotten"],
)
def test_only_changed_files_are_opened_and_parsed_again(
    folder: Path, done: list[str], act: Callable[[Path], None], again: list[str]
) -> None:
    files = ["notes.md", "people.csv", "people.tsv", "locked.pdf"]
    assert len(texts(folder)) == 3 and sorted(done) == sorted([*files, "csv", "tsv", "pdf"])
    act(folder)
    done.clear()
    second = texts(folder)
    assert sorted(done) == sorted([*again, "notes.md"])  # plain text is read from its file
    (left_out,) = load([str(folder)]).skipped
    assert left_out.reason == "encrypted"
    shutil.rmtree(os.environ["NGT_HOME"])
    assert texts(folder) == second  # with sections


def test_files_just_written_are_not_trusted_by_their_time(
    folder: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_RACE_NS", 10**12)
    texts(folder)
    done.clear()
    assert texts(folder) and len(done) == 5  # four opened, and the locked one parsed


def test_texts_behind_a_password_are_not_kept(folder: Path, done: list[str]) -> None:
    path = folder / "locked.pdf"
    path.write_bytes(made.pdf(1, password="tide"))
    for _ in range(2):
        (opened,) = load([str(path)], settings=Settings.of(password="tide")).documents
        assert "fishermen of the village" in opened.text and opened.about.secret
    assert done == ["locked.pdf", "pdf"] * 2 and not FILES.each() and not TEXTS.each()
    with pytest.raises(InputError, match="the password does not open it"):
        load([str(path)], settings=Settings.of(password="ebb"))
    with pytest.raises(InputError, match="encrypted"):
        load([str(path)])


def test_a_pipe_gets_the_text_that_is_stored_of_its_bytes_and_stores_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "scan").write_bytes(data := made.pdf(1))
    (piped,) = load(["-"], io.BytesIO(data)).documents
    assert not TEXTS.each() and load([str(path)]).documents[0].text == piped.text
    monkeypatch.setattr(Parsers, "extract", None)
    assert load(["-"], io.BytesIO(data)).documents[0].text == piped.text


def test_a_limit_that_is_raised_is_tried_again(folder: Path, done: list[str]) -> None:
    texts(folder)
    done.clear()
    texts(folder, parser_seconds=90)
    assert [name for name in done if "." not in name] == ["pdf"]  # what is locked; texts are kept


def test_without_a_cache_everything_is_read_with_a_remark(folder: Path) -> None:
    first = texts(folder)
    home = Path(os.environ["NGT_HOME"])
    shutil.rmtree(home)
    home.write_text("in the way")
    again = load([str(folder)])
    assert {d.name: d.text for d in again.documents} == {n: t.text for n, t in first.items()}
    assert again.remarks and "nothing is stored" in again.remarks[0]


def test_each_load_has_the_bound_for_itself(folder: Path) -> None:
    one = Settings.of(max_mb=1)
    files, both = Documents(one), [str(folder / name) for name in ("long.txt", "more.txt")]
    for path in both:
        Path(path).write_text("tide " * 150_000)
    for path in (*both, *both):  # 3 MB in all
        load([path], settings=one, files=files)
    with pytest.raises(InputError, match="more than 1 MB of text in total"):
        load(both, settings=one, files=files)
    files.close()


def test_only_texts_above_a_lowered_limit_are_skipped(folder: Path) -> None:
    (folder / "large.txt.gz").write_bytes(gzip.compress(b"tide " * 300_000))
    for bound, is_read in ((64, True), (1, False)):
        names = texts(folder, max_mb=bound)
        assert "people.csv" in names and ("large.txt.gz" in names) == is_read


def test_texts_that_are_read_ahead_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first parser waits until no other file is parsed; each text is as large as the limit."""
    made_ahead: list[int] = []

    def extract(self: Parsers, form: object, source: Source) -> Extracted:
        before = -1
        while int(source.data) == 0 and before != len(made_ahead):
            before = len(made_ahead)
            time.sleep(0.1)
        made_ahead.append(int(source.data))
        return Extracted("t" * 1_000_000)

    monkeypatch.setattr(Parsers, "extract", extract)
    for number in range(40):
        (tmp_path / f"{number:02}.json").write_text(str(number))
    with closing(Documents(Settings.of(max_mb=1))) as files:
        with pytest.raises(InputError, match="more than 1 MB of text in total"):
            load([str(tmp_path)], settings=Settings.of(max_mb=1), files=files)
        assert len(made_ahead) <= 2 + 2 * files._parsers.size


def test_a_failed_parser_is_tried_again_after_a_day_by_a_process_that_lives_longer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, extract = list[str](), Parsers.extract

    def fail(self, form, source):
        if form.name != "csv":
            return extract(self, form, source)
        tried.append(form.name)
        raise FailedParser("CSV at which its parser crashed", "It is damaged.")

    monkeypatch.setattr(Parsers, "extract", fail)
    files, now = Documents(Settings()), time.time()

    def why() -> str:
        return next(s.reason for s in load([str(folder)], files=files).skipped if ".csv" in s.name)

    assert [why(), len(tried)] == ["CSV at which its parser crashed", 1]
    again = (
        "CSV at which its parser crashed, when it was last tried;"
        " ngt cache clear documents has it tried again"
    )
    assert [why(), len(tried)] == [again, 1]
    monkeypatch.setattr(catalog.time, "time", lambda: now + 86_500)
    assert [why(), len(tried)] == ["CSV at which its parser crashed", 2]
    FILES.delete(FILES.each())  # as ngt cache clear in another process does
    assert [why(), len(tried)] == ["CSV at which its parser crashed", 3]
    FILES.delete(FILES.each())
    files.close()
    assert not FILES.each()  # nothing brings it back


def test_many_files_take_few_transactions(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(2_000):
        (tmp_path / f"{i}.txt").write_text(f"note {i}")
    begun: list[str] = []
    execute = store._Store._execute
    monkeypatch.setattr(store._Store, "_execute", lambda *a: begun.append(a[1]) or execute(*a))
    first = texts(tmp_path)
    assert len(first) == len(done) == 2_000
    for is_second in (False, True):
        done.clear()
        found = survey([str(tmp_path)], Settings(), "words", lambda text: len(text.split()))
        assert [(row.tokens, row.characters) for row in found.rows] == [
            (2, len(text.text)) for text in first.values()
        ]
        assert len(done) == 2_000 and found.read == (0 if is_second else 2_000)
    assert sum(not sql.startswith("SELECT") for sql in begun) < 100


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
