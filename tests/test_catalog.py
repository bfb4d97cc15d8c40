"""What is kept of files: nothing unchanged is read again, and nothing changed is missed."""

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ngtcli.config import Settings
from ngtcli.documents import catalog
from ngtcli.documents.content import About
from ngtcli.documents.files import Files
from ngtcli.documents.find import Found
from ngtcli.documents.load import load
from ngtcli.documents.parsers import Parsers
from ngtcli.errors import InputError
from tests import document_files as made

pytest.importorskip("pypdfium2")
pytest.importorskip("docx")
pytestmark = pytest.mark.usefixtures("kept_workers")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The formats that workers were asked to parse."""
    calls: list[str] = []
    extract = Parsers.extract

    def counting(self, form, source):
        calls.append(form.name)
        return extract(self, form, source)

    monkeypatch.setattr(Parsers, "extract", counting)
    yield calls


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "docs"
    path.mkdir()
    for name in ("people.csv", "people.tsv", "data.json", "scan.pdf"):
        (path / name).write_bytes(made.FILES[name]())
    make_old(path)
    return path


def make_old(folder: Path) -> None:
    """Give files a time that is long past; the time of their change stays, and is waited for."""
    for path in folder.iterdir():
        os.utime(path, (1_000_000_000, 1_000_000_000))


@pytest.fixture(autouse=True)
def no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "_RACE_NS", 0)


def texts(folder: Path, **settings: object) -> dict[str, str]:
    loaded = load([str(folder)], settings=replace(Settings(), **settings))
    assert not loaded.remarks
    return {d.name: d.text for d in loaded.documents}


def changed(folder: Path) -> None:
    (folder / "people.csv").write_text("a,b\nc,d\n")


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
        (changed, ["csv"]),
        (changed_with_its_size_and_time, ["csv"]),
        (lambda folder: os.utime(folder / "people.tsv"), []),
        (lambda folder: (folder / "data.json").rename(folder / "moved.json"), []),
    ],
    ids=["unchanged", "changed", "size and time kept", "touched", "moved"],
)
def test_only_what_changed_is_parsed_again(
    folder: Path, parsed: list[str], act: Callable[[Path], None], again: list[str]
) -> None:
    assert len(texts(folder)) == 3 and sorted(parsed) == ["csv", "json", "pdf", "tsv"]
    parsed.clear()
    act(folder)
    second = load([str(folder)])
    assert parsed == again
    assert [s.reason for s in second.skipped] == ["its 2 pages have no text: a scan, or pictures"]
    shutil.rmtree(catalog.folder())
    assert {d.name: d.text for d in second.documents} == texts(folder)


def test_what_is_kept_of_a_text_is_all_that_is_known_of_it(folder: Path) -> None:
    for name in ("columns.pdf", "orchard.docx"):  # which have pages, headings, lines left out
        (folder / name).write_bytes(made.FILES[name]())
    first, again = load([str(folder)]).documents, load([str(folder)]).documents
    assert [d.about for d in first] == [d.about for d in again]


def test_files_just_written_are_not_trusted_by_their_time(
    folder: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_RACE_NS", 10**12)
    texts(folder)
    real = os.path.realpath(folder)
    assert catalog.Catalog(real, Settings()).known(f"{real}/people.csv") is None


def test_texts_behind_a_password_are_not_kept(folder: Path, parsed: list[str]) -> None:
    path = folder / "locked.pdf"
    path.write_bytes(made.pdf(1, password="tide"))
    for _ in range(2):
        (opened,) = load([str(path)], settings=Settings(password="tide")).documents
        assert "fishermen" in opened.text
    assert parsed == ["pdf", "pdf"]
    kept = "".join(p.read_text() for p in catalog.folder().rglob("*.json"))
    assert "fishermen" not in kept and "locked.pdf" not in kept
    with pytest.raises(InputError, match="encrypted"):
        load([str(path)])


def test_a_limit_that_is_raised_is_tried_again(folder: Path, parsed: list[str]) -> None:
    texts(folder)
    parsed.clear()
    texts(folder, parser_seconds=90)
    assert parsed == ["pdf"]  # the scan; the texts are kept for these bytes


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"version": 1}', b"\xff\xfe"])
def test_a_damaged_cache_is_read_anew_and_told(folder: Path, damage: bytes) -> None:
    first = texts(folder)
    for path in catalog.folder().rglob("*.json"):
        path.write_bytes(damage)
    again = load([str(folder)])
    assert {d.name: d.text for d in again.documents} == first
    assert again.remarks and "again" in again.remarks[0]
    assert texts(folder) == first  # and it is whole again


def test_a_text_that_was_changed_is_not_believed(folder: Path) -> None:
    first = texts(folder)
    for path in catalog.folder().glob("texts/*/*.json"):
        path.write_bytes(path.read_bytes().replace(b"Carl", b"Kurt"))
    assert texts(folder) == first


def test_without_a_cache_everything_is_read_and_told(folder: Path, tmp_path: Path) -> None:
    first = texts(folder)
    home = Path(os.environ["NGT_HOME"])
    shutil.rmtree(home)
    home.write_text("in the way")
    again = load([str(folder)])
    assert {d.name: d.text for d in again.documents} == first
    assert again.remarks and "not kept" in again.remarks[0]


def test_plain_text_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain words")
    files, path = Files(Settings()), str(tmp_path / "a.txt")
    assert files.submit(Found(path, path))().text == "plain words"
    files.close()
    assert not list(catalog.folder().glob("texts/*/*"))
    assert catalog.Catalog(str(tmp_path), Settings()).entry(path).characters == 11


def test_one_reader_for_many_loads_reads_and_writes_what_is_known_once(
    folder: Path, parsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    accesses: list[str] = []
    for name in ("read_json", "write_json"):
        function = getattr(catalog, name)

        def noted(path, *rest, name=name, function=function):
            if path.parent == catalog.folder():
                accesses.append(name)
            return function(path, *rest)

        monkeypatch.setattr(catalog, name, noted)
    files, names = Files(Settings()), ("people.csv", "people.tsv", "data.json")
    for _ in range(3):
        for name in names:
            loaded = load([str(folder / name)], files=files)
            assert [d.name for d in loaded.documents] == [name] and not loaded.remarks
    assert files.close() == [] and sorted(parsed) == ["csv", "json", "tsv"]
    assert accesses == ["read_json", "write_json"]
    assert len(texts(folder)) == 3 and parsed[3:] == ["pdf"]  # the scan


def test_each_load_has_the_bound_for_itself(folder: Path) -> None:
    one = Settings(max_mb=1)
    files, both = Files(one), [str(folder / name) for name in ("long.txt", "more.txt")]
    for path in both:
        Path(path).write_text("tide " * 150_000)
    for path in (*both, *both):  # 3 MB in all
        load([path], settings=one, files=files)
    with pytest.raises(InputError, match="more than 1 MB of text in all"):
        load(both, settings=one, files=files)
    files.close()


def test_a_text_larger_than_a_smaller_bound_is_left_out_alone(folder: Path) -> None:
    (folder / "large.txt.gz").write_bytes(gzip.compress(b"tide " * 300_000))
    for bound, is_read in ((64, True), (1, False)):
        names = {d.name for d in load([str(folder)], settings=Settings(max_mb=bound)).documents}
        assert "people.csv" in names and ("large.txt.gz" in names) == is_read


def test_a_remark_on_the_cache_is_made_once(folder: Path) -> None:
    texts(folder)
    next(catalog.folder().glob("*.json")).write_bytes(b"[]")
    files = Files(Settings())
    told = [load([str(folder / "people.csv")], files=files).remarks for _ in range(2)]
    assert "again" in told[0][0] and told[1] == () and files.close() == []


def test_ten_thousand_entries_load_and_save(tmp_path: Path) -> None:
    one = catalog.Catalog(str(tmp_path), Settings())
    about = About("pdf", warnings=("w",))
    entry = catalog.Entry((1, 2, 3), 4, "h" * 64, "w" * 32, about, text="t" * 64, tokens={"k": 5})
    for i in range(10_000):
        one._put(f"{tmp_path}/{i}", entry)
    one.save()
    again = catalog.Catalog(str(tmp_path), Settings())
    assert again.entry(f"{tmp_path}/9999") == entry and not again.remark


CRASHING = """
import sys
from ngtcli.documents import catalog, parsers
from ngtcli.documents.load import load
from ngtcli.errors import InputError
catalog._RACE_NS = 0
parsers._CODE = "import os; os.abort()" if sys.argv[2] == "crash" else parsers._CODE
try:
    print(len(load([sys.argv[1]]).documents[0].text) > 0)
except InputError as error:
    print(error)
"""


def test_a_crash_lasts_from_the_second_run_and_says_how_to_try_again(folder: Path) -> None:
    table = folder / "people.csv"

    def run(how: str) -> str:
        command = [sys.executable, "-c", CRASHING, str(table), how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout.strip()

    crashed = f"{table}: CSV at which its parser crashed (SIGABRT)"
    lasting = f"{crashed}, in two runs; ngt docs clear has it tried again"
    assert [run("crash"), run("read")] == [crashed, "True"]  # once is not enough
    table.write_text("a,b\nc,d\n")
    make_old(folder)
    assert [run("crash"), run("crash"), run("read")] == [crashed, lasting, lasting]
    shutil.rmtree(catalog.folder())
    assert run("read") == "True"
