"""Loading documents, and what is said of inputs that cannot be read."""

import io
import os
from pathlib import Path

import pytest

from ngtcli.documents.load import load
from ngtcli.errors import InputError


def names(documents) -> list[str]:
    return [d.name for d in documents]


def test_files_folders_and_globs(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b.txt", "a.md", "README", "c.rst", "sub/d.txt", ".hidden.txt", ".git/x.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
    assert names(load([str(tmp_path)])) == ["README", "a.md", "b.txt", "c.rst", "d.txt"]
    assert names(load([str(tmp_path / "*.txt")])) == ["b.txt"]
    assert names(load([str(tmp_path / "**/*.txt")])) == ["b.txt", "d.txt"]
    both = load([str(tmp_path / "a.md"), str(tmp_path), str(tmp_path / "a.md")])
    assert names(both) == ["a.md", "README", "b.txt", "c.rst", "d.txt"]


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("text")
    assert names(load([str(tmp_path / "a[1].txt")])) == ["a[1].txt"]


def test_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\rthree 한 🦜".encode())
    assert load([str(tmp_path / "a.txt")])[0].text == "one\ntwo\nthree 한 🦜"


def test_standard_input() -> None:
    assert load(["-"], io.BytesIO(b"piped"))[0].text == "piped"
    with pytest.raises(InputError, match="nothing is piped"):
        load(["-"], None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \n\t ", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"abc\0def", "binary"),
        (b"%PDF-1.7\0", "binary"),
        (b"caf\xe9 au lait", "not UTF-8"),
    ],
)
def test_unusable_content_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    for arguments in ([str(tmp_path / "a.txt")], [str(tmp_path)]):
        with pytest.raises(InputError, match=message) as caught:
            load(arguments)
        assert "a.txt" in str(caught.value) and caught.value.hint
        assert caught.value.exit_code == 3
    with pytest.raises(InputError, match=message):
        load(["-"], io.BytesIO(content))


def test_missing_inputs_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("nowhere.txt", "empty", "*.md"):
        with pytest.raises(InputError) as caught:
            load([str(tmp_path / path)])
        assert path in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        load([str(tmp_path / "a.txt")])
