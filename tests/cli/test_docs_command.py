"""`ngt docs`: what was read, shown; and what is kept, used, told and cleared."""

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ngtcli.cli.schema import build
from ngtcli.documents import catalog
from ngtcli.documents.load import load
from ngtcli.documents.passages import Cutting, passages
from ngtcli.models.checkpoint import tokenizer_key
from ngtcli.models.pretrained import load_tokenizer
from tests import document_files as made
from tests.support.helpers import copy_builtin_model, ngt, write_files

pytest.importorskip("pypdfium2")
pytest.importorskip("trafilatura")
pytest.importorskip("lxml")
pytestmark = [
    pytest.mark.usefixtures("kept_workers"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What people have in folders; where its scan is recognized, see `test_ocr`."""
    monkeypatch.setenv("NGT_OCR", "off")
    monkeypatch.setattr(catalog, "_RACE_NS", 0)
    names = "columns.pdf orchard.docx bus.html book.epub people.csv scan.pdf locked.pdf letter.eml"
    files = {name: made.FILES[name]() for name in names.split()}
    path = write_files(
        tmp_path / "docs",
        notes_txt="Plain notes.",
        empty_txt="",
        picture_gif="GIF89a",
        binary_txt=bytes(range(256)) * 20,
        **files,
    )
    (path / "loop").symlink_to(".")
    os.mkfifo(path / "pipe")
    return path


def listed(*arguments: object) -> dict:
    done = ngt("docs", "list", *map(str, arguments), "--json")
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    Draft202012Validator(build("docs list")).validate(body)
    return body


def test_docs_list_lists_the_documents_that_are_loaded(folder: Path) -> None:
    rows = listed(folder)["documents"]
    documents = load([str(folder)]).documents
    tokenizer = load_tokenizer("builtin")
    assert [(r["name"], r["format"], r["characters"], r["pages"]) for r in rows] == [
        (d.name, d.about.format, len(d.text), d.about.pages) for d in documents
    ]
    assert [r["tokens"] for r in rows] == [len(tokenizer.encode(d.text.strip())) for d in documents]
    assert {r["name"]: r["dropped"] for r in rows if r["dropped"]} == {"columns.pdf": 7}
    assert next(r for r in rows if r["name"] == "letter.eml")["warnings"]


def test_docs_list_prints_the_table_to_stdout_and_warnings_to_stderr(folder: Path) -> None:
    done = ngt("docs", "list", str(folder), "-v")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "document\tformat\tpages\tcharacters\ttokens"
    assert len(lines) == 8
    assert lines[3].startswith(f"{folder / 'columns.pdf'}\tpdf\t4\t")
    for words in (
        b"locked.pdf: encrypted",
        b"7 lines of repeated headers and footers",
        b"letter.eml: attachments are not read",
        b"7 documents,",
    ):
        assert words in done.stderr


def test_docs_show_text_prints_the_text_of_the_prompt(tmp_path: Path) -> None:
    text = "one\f\n\u2067two\u2069 \x85 \x1b[31mthree \u202eabc"
    (tmp_path / "a.txt").write_text(text, "utf-8", newline="")
    shown = ngt("docs", "show", str(tmp_path / "a.txt"), "--text").stdout
    assert load([str(tmp_path / "a.txt")]).documents[0].text == text
    assert shown.decode() == text + "\n"


def test_docs_show_json_has_pages_headings_and_text(folder: Path) -> None:
    path = str(folder / "columns.pdf")
    done = ngt("docs", "show", path, "--json")
    body = json.loads(done.stdout)
    Draft202012Validator(build("docs show")).validate(body)
    document = load([path]).documents[0]
    assert body["documents"][0]["text"] == document.text
    assert [s["page"] for s in body["documents"][0]["sections"]] == [1, 1, 2, 3, 4]
    assert ngt("docs", "show", path, "--text").stdout.decode() == document.text + "\n"
    table = ngt("docs", "show", path).stdout.decode()
    assert "pages\t4\n" in table
    assert f"\t2\t{made.TITLES[2]}" in table


def test_docs_show_passages_lists_the_passages_of_retrieval(folder: Path) -> None:
    path = str(folder / "columns.pdf")
    flags = ["--passages", "--set", "passage_tokens=60", "--set", "passage_overlap=9"]
    body = json.loads(ngt("docs", "show", path, *flags, "--json").stdout)
    Draft202012Validator(build("docs show")).validate(body)
    document = load([path]).documents[0]
    found = body["documents"][0]["passages"]
    cut = passages(document, Cutting(60, 9))
    assert [(p["start"], p["end"]) for p in found] == [(p.start, p.end) for p in cut]
    assert {p["page"] for p in found} == {1, 2, 3, 4}
    assert all(p["tokens"] > 0 for p in found)
    table = ngt("docs", "show", path, *flags).stdout.decode()
    row = table.splitlines()[-len(cut)].split("\t")
    assert row[:2] == [str(cut[0].start), str(cut[0].end)]
    assert document.text[cut[0].start :].replace("\n", " ").startswith(row[-1])


def test_an_unreadable_file_that_is_named_exits_with_3(folder: Path) -> None:
    told = {
        "locked.pdf": "encrypted\nGive its password with --password.",
        "scan.pdf": "its 2 pages have no text: a scan, or pictures\nRecognize its text first",
    }
    for command in (["docs", "list"], ["docs", "show"], ["summarize"]):
        for name, words in told.items():
            done = ngt(*command, str(folder / name))
            assert done.returncode == 3
            assert done.stdout == b""
            assert f"{name}: {words}" in done.stderr.decode()
    assert ngt("docs", "list", "-").returncode == 2
    assert ngt("docs", "list", str(folder), "--set", "strict=yes").returncode == 3


def test_a_password_is_never_shown(folder: Path) -> None:
    path = str(folder / "locked.pdf")
    shown = ngt("docs", "show", path, "--text", NGT_PASSWORD="tide")
    assert b"fishermen" in shown.stdout
    answer = ["summarize", path, "--json", "--max-tokens", "1", "--method", "none"]
    for command in (["config", "show", "--json"], ["config", "show"], answer):
        done = ngt(*command, NGT_PASSWORD="tide-4711x" if command[0] == "config" else "tide")
        assert done.returncode == 0, done.stderr
        assert b"(set)" in done.stdout
        assert b"tide-4711x" not in done.stdout
        assert b'"password": "tide"' not in done.stdout


@pytest.mark.parametrize("name", ["merges.txt", "tekken.json", "spiece.model", "cl.tiktoken"])
def test_counted_tokens_are_those_of_all_files_that_make_a_tokenizer(
    tmp_path: Path, name: str
) -> None:
    copy_builtin_model(tmp_path / "model")
    without = tokenizer_key(str(tmp_path / "model"))
    keys = [without]
    for content in (b"one", b"two"):
        (tmp_path / "model" / name).write_bytes(content)
        keys.append(tokenizer_key(str(tmp_path / "model")))
    assert len(set(keys)) == 3
    (tmp_path / "model" / name).unlink()
    assert tokenizer_key(str(tmp_path / "model")) == without
