"""Loading documents: files that are read, skipped or refused, and the limits."""

import io
import itertools
import os
import random
import tempfile
import threading
import time
from pathlib import Path

import pytest

from ngtcli.config import Settings
from ngtcli.documents.find import OUTSIDE
from ngtcli.documents.load import Loaded, distinct_names, load
from ngtcli.errors import InputError
from tests.support.helpers import write_files
from tests.support.warm import run


def names(loaded: Loaded) -> list[str]:
    return [document.name for document in loaded.documents]


def texts(loaded: Loaded) -> list[str]:
    return [document.text for document in loaded.documents]


def skipped(loaded: Loaded) -> list[tuple[str, str]]:
    """The names and reasons of skipped files."""
    return [(os.path.basename(file.name), file.reason) for file in loaded.skipped]


# Text files by the order in which a folder of them is read: that of the parts of their paths
SORTED_FILES = [
    "README",
    "a/b/y.txt",
    "a/x.rst",
    "a b/z.txt",
    "a.md",
    "b.txt",
    "e[1].txt",
]
HIDDEN_FILES = [".hidden.txt", ".git/x.txt"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder of files, each with its path as text."""
    for name in (*SORTED_FILES, *HIDDEN_FILES, "f.gif"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("", SORTED_FILES),
        ("*.txt", ["b.txt", "e[1].txt"]),
        ("**/*.txt", ["a/b/y.txt", "a b/z.txt", "b.txt", "e[1].txt"]),
        ("a/**", ["a/b/y.txt", "a/x.rst"]),
        (".h*", [".hidden.txt"]),
        ("e[1].txt", ["e[1].txt"]),
    ],
)
def test_folders_and_patterns_name_files(tree: Path, path: str, files: list[str]) -> None:
    assert texts(load([str(tree / path)])) == files


def test_a_file_that_is_named_twice_is_read_once(tree: Path) -> None:
    file = str(tree / "a.md")
    others = [name for name in SORTED_FILES if name != "a.md"]
    assert texts(load([file, str(tree), file])) == ["a.md", *others]


def test_a_tilde_is_the_home_unless_a_file_or_folder_has_this_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    write_files(tmp_path, user__mine_txt="The user's.")
    assert names(load(["~"])) == ["mine.txt"]
    assert names(load(["~/mine.txt"])) == ["mine.txt"]

    (tmp_path / "~").write_text("A file.")
    assert names(load(["~"])) == ["~"]
    assert names(load(["~/mine.txt"])) == ["mine.txt"]

    (tmp_path / "~").unlink()
    write_files(tmp_path, **{"~__other_txt": "A folder."})
    assert names(load(["~"])) == ["other.txt"]


@pytest.mark.parametrize(
    ("name", "content", "reason", "suffix"),
    [
        ("a.pdf", "Dear Ann,\n\tthe tide.", "not a PDF (it looks like plain text)", ".txt"),
        ("a.docx", "Schöne Grüße", "not a Word document (it looks like plain text)", ".txt"),
        ("a.pdf", "<!DOCTYPE html><p>Not found", "not a PDF (it looks like HTML)", ".html"),
        ("a.txt.gz", "Not packed.", "not a gzip file (it looks like plain text)", ".txt"),
    ],
)
def test_text_with_the_suffix_of_another_format_is_refused(
    tmp_path: Path, name: str, content: str, reason: str, suffix: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        load([str(path)])
    assert str(caught.value) == f"{path}: {reason}"
    assert caught.value.hint == f"If it is, rename it to end in {suffix}."


def test_a_file_without_bytes_is_empty_with_any_suffix(tmp_path: Path) -> None:
    for suffix in (".pdf", ".docx", ".epub", ".csv", ".html", ".txt.gz"):
        (tmp_path / f"a{suffix}").touch()
    with pytest.raises(InputError, match="a.csv: empty; .*a.docx: empty; .* and 3 more"):
        load([str(tmp_path)])


def test_standard_input_is_read_once() -> None:
    assert load(["-", "-"], io.BytesIO(b"piped")).documents[0].text == "piped"
    with pytest.raises(InputError, match="nothing is piped"):
        load(["-"], None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n\t ", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"a" * 70_000 + b"\0" + b"b", "binary"),
        (b"%PDF-1.7\0", "broken pdf"),
        (b"PK\3\4 and more", "broken zip"),
        (b"\x1f\x8b\x08", "broken gz"),
    ],
)
def test_unusable_content_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    for arguments in ([str(tmp_path / "a.txt")], [str(tmp_path)], [str(tmp_path / "*.txt")]):
        with pytest.raises(InputError, match=message) as caught:
            load(arguments)
        assert "a.txt" in str(caught.value)
        assert caught.value.hint
        assert caught.value.exit_code == 3
    with pytest.raises(InputError, match=message):
        load(["-"], io.BytesIO(content))


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ({}, "nowhere.txt", "nowhere.txt: no such file or folder"),
        ({}, "", "no documents in this folder"),
        ({}, "*.md", r"\*.md: no file matches"),
        ({}, "x" * 5000, "name too long"),
        ({}, "/dev/null", "/dev/null: not a regular file"),
        ({"a_gif": "x", "b_gif": "y", "c_mp3": "z"}, "", r"folder \(only .gif 2, .mp3 1\)"),
        ({"a_txt": ""}, "", "nothing in it can be read: .*a.txt: empty"),
    ],
    ids=["missing", "empty", "pattern", "long", "device", "other kinds", "unreadable"],
)
def test_paths_without_readable_files_are_named(
    tmp_path: Path, files: dict[str, str], path: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load([str(write_files(tmp_path, **files) / path)])
    assert caught.value.hint.startswith("ngt docs show") == message.startswith("nothing in it")
    with pytest.raises(InputError, match="an empty path"):
        load([""])


def bad_folder(folder: Path) -> Path:
    write_files(
        folder,
        a_txt="fine",
        b_txt="",
        c_txt=b"\xff\xfea",
        d_txt=b"\0\1\2",
        sub__e_md="also fine",
        f_pdf="%PDF-",
        g_GIF="x",
        h_gif="<html>",
    )
    (folder / "gone.txt").symlink_to("nowhere")
    (folder / "loop").symlink_to(".")
    (folder / "self.txt").symlink_to("self.txt")
    os.mkfifo(folder / "pipe")
    return folder


def test_an_unreadable_file_is_named() -> None:
    """Root reads everything, so a process that is root becomes another user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder, "a.txt")
        path.write_text("text")
        path.chmod(0)
        own_home = Path(folder, "home")
        own_home.mkdir()
        if os.geteuid() == 0:
            os.chown(own_home, 65534, 65534)
        code = (
            "import os, sys\nfrom ngtcli.documents.load import load\n"
            "from ngtcli.errors import InputError\n"
            "if os.geteuid() == 0:\n    os.setuid(65534)\n"
            f"try:\n    load([{str(path)!r}])\n"
            "except InputError as error:\n    print(error)\n"
        )
        done = run(code=code, NGT_HOME=str(own_home))
    assert b"permission denied" in done.stdout, done


def test_unreadable_files_in_folders_are_skipped_with_reasons(tmp_path: Path) -> None:
    loaded = load([str(bad_folder(tmp_path))])
    assert names(loaded) == ["a.txt", "e.md"]
    assert sorted(skipped(loaded)) == [
        ("b.txt", "empty"),
        ("c.txt", "damaged UTF-16 (byte 2)"),
        ("d.txt", "binary, not text"),
        ("f.pdf", "broken pdf (PdfiumError: Failed to load document (PDFium: Data format error).)"),
        ("g.GIF", "files of kind .gif are not read"),
        ("gone.txt", "no such file or directory"),
        ("h.gif", "files of kind .gif are not read"),
        ("loop", "a link to a folder; name it to have it read"),
        ("pipe", "not a regular file"),
        ("self.txt", "too many levels of symbolic links"),
    ]
    assert sorted(s.kind for s in loaded.skipped if s.kind) == [".gif", ".gif"]
    pattern = load([str(tmp_path / "[a-b].*")])  # of which every kind is tried
    assert names(pattern) == ["a.txt"]
    assert skipped(pattern) == [("b.txt", "empty")]
    (tmp_path / "a.log").write_text("a log")
    assert names(load([str(tmp_path / "*.log")])) == ["a.log"]


def test_links_out_of_a_folder_are_skipped_if_only_files_inside_may_be_read(
    tmp_path: Path,
) -> None:
    inner = write_files(tmp_path / "x", a_txt="fine", sub__b_txt="also fine")
    write_files(tmp_path, secret_txt="another's", xy__c_txt="beside")  # xy begins as x does
    (inner / "in.txt").symlink_to("sub/b.txt")
    (inner / "out.txt").symlink_to("../secret.txt")
    (inner / "beside.txt").symlink_to("../xy/c.txt")
    (tmp_path / "link").symlink_to("x")
    for path in ("x", "link", "x/*.txt", "link/**/*.txt"):
        loaded = load([str(tmp_path / path)], inside=True)
        assert set(texts(loaded)) == {"fine", "also fine"}, path
        assert sorted(skipped(loaded)) == [("beside.txt", OUTSIDE), ("out.txt", OUTSIDE)], path
        assert set(texts(load([str(tmp_path / path)]))) > set(texts(loaded))


def test_a_link_out_of_a_folder_is_read_if_it_is_named(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "x", a_txt="fine")
    write_files(tmp_path, secret_txt="another's")
    (folder / "out.txt").symlink_to("../secret.txt")
    assert texts(load([str(folder / "out.txt")], inside=True)) == ["another's"]


def test_strict_makes_skipped_files_an_error_but_not_other_types(tmp_path: Path) -> None:
    strict = Settings().replace(strict=True)
    write_files(tmp_path / "x", a_txt="fine", b_gif="x")
    assert names(load([str(tmp_path / "x")], settings=strict)) == ["a.txt"]
    write_files(tmp_path / "x", c_txt="")
    with pytest.raises(InputError, match=r"c.txt: empty"):
        load([str(tmp_path / "x")], settings=strict)
    with pytest.raises(InputError, match=r"c.txt: empty"):  # before what is wrong with the next
        load([str(tmp_path / "x"), "-"], settings=strict)
    write_files(tmp_path / "y", a_txt="fine")
    (tmp_path / "y" / "link").symlink_to("..")
    with pytest.raises(InputError, match="link: a link to a folder"):
        load([str(tmp_path / "y")], settings=strict)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("dup", "a/notes.txt b/notes.txt c.txt notes.txt"),
        ("dup/a/notes.txt dup/b/notes.txt", "a/notes.txt b/notes.txt"),
        ("dup/a dup/b", "a/notes.txt b/notes.txt"),
        ("dup/*/notes.txt", "a/notes.txt b/notes.txt"),
        ("dup/a/notes.txt dup/c.txt", "notes.txt c.txt"),
        ("- x/stdin", "stdin x/stdin"),
    ],
)
def test_files_with_the_same_name_get_distinct_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paths: str, expected: str
) -> None:
    write_files(
        tmp_path,
        dup__a__notes_txt="1",
        dup__b__notes_txt="2",
        dup__notes_txt="3",
        dup__c_txt="4",
        x__stdin="5",
    )
    monkeypatch.chdir(tmp_path)
    assert names(load(paths.split(), io.BytesIO(b"piped"))) == expected.split()


def test_names_whose_foreign_bytes_look_alike_are_numbered() -> None:
    files = [(os.fsdecode(f"/{c}.txt".encode("latin-1")), 1) for c in "éà"]
    assert distinct_names(files) == ["?.txt", "?.txt (2)"]


def test_names_are_distinct_ends_of_paths_and_no_longer_than_necessary() -> None:
    all_paths = [
        "/" + "/".join(parts)
        for length in (1, 2, 3)
        for parts in itertools.product("ab", repeat=length)
    ]
    rng = random.Random(1)
    for _ in range(300):
        paths = rng.sample(all_paths, rng.randint(1, 6))
        # Each file with the number of parts that lie below the path that the user named.
        files = [(path, rng.randint(1, path.count("/"))) for path in paths]

        file_names = distinct_names(files)

        assert len(set(file_names)) == len(file_names)
        last_parts = [path.rsplit("/", 1)[1] for path in paths]
        for name, last_part, (path, parts_below) in zip(file_names, last_parts, files, strict=True):
            assert path.endswith(f"/{name}")
            if last_parts.count(last_part) == 1:
                assert name == last_part
            # A name with more parts than lie below the named path was necessary: without its
            # first part it is the end of another file's path as well.
            if name.count("/") >= max(parts_below, 1):
                shorter = name.split("/", 1)[1]
                assert sum(other.endswith(f"/{shorter}") for other in paths) > 1


def test_a_pipe_is_read_even_where_its_writer_comes_late(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        time.sleep(0.2)
        with pipe.open("w") as file:
            for part in ("late", " but complete"):
                time.sleep(0.2)
                print(part, end="", file=file, flush=True)

    thread = threading.Thread(target=write)
    thread.start()
    assert texts(load([str(pipe)])) == ["late but complete"]
    thread.join()


def test_no_more_than_the_limit_is_read_and_the_hint_names_its_setting(tmp_path: Path) -> None:
    one_megabyte = Settings().replace(max_mb=1)
    write_files(tmp_path, a_txt="a" * 600_000, b_txt="b" * 300_000, c_txt="c" * 1_000_001)
    loaded = load([str(tmp_path)], settings=one_megabyte)
    assert names(loaded) == ["a.txt", "b.txt"]
    assert skipped(loaded) == [("c.txt", "more than 1 MB")]

    write_files(tmp_path, d_txt="d" * 300_000)
    for path, message in (
        (str(tmp_path / "c.txt"), "c.txt: more than 1 MB"),
        ("-", "standard input: more than 1 MB"),
        (str(tmp_path), "more than 1 MB of text in total"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            load([path], io.BytesIO(b"d" * 1_000_001), one_megabyte)
        assert "--set max_mb" in caught.value.hint

    three_megabytes = Settings().replace(max_mb=3)
    assert len(load([str(tmp_path)], settings=three_megabytes).documents) == 4


def test_more_files_than_the_bound_are_refused(tmp_path: Path) -> None:
    write_files(
        tmp_path, **{f"n{i}_txt": "text" for i in range(5)}, sub__x_gif="other kinds count too"
    )
    assert len(load([str(tmp_path)], settings=Settings().replace(max_files=6)).documents) == 5
    for path in (tmp_path, tmp_path / "*.txt"):
        with pytest.raises(InputError, match="more than 4 files") as caught:
            load([str(path)], settings=Settings().replace(max_files=4))
        assert "max_files" in caught.value.hint


def test_folders_deeper_than_the_limit_are_skipped_with_the_reason(tmp_path: Path) -> None:
    write_files(tmp_path, a__b__x_txt="two deep", a__b__c__y_txt="three deep")
    loaded = load([str(tmp_path)], settings=Settings().replace(max_depth=2))
    assert names(loaded) == ["x.txt"]
    assert skipped(loaded) == [("c", "more than 2 folders deep; see --set max_depth")]


def test_a_file_that_is_named_beside_its_folder_has_its_own_error(tmp_path: Path) -> None:
    write_files(tmp_path, **{"a.txt": "text", "x.json": "{"})
    with pytest.raises(InputError, match=r"x\.json: invalid JSON"):
        load([str(tmp_path), str(tmp_path / "x.json")])
