"""The folders that a server answers from."""

from pathlib import Path
from unittest.mock import patch

import pytest

from ngtcli.config import Settings
from ngtcli.errors import InputError
from ngtcli.serve import folder as serve_folder
from ngtcli.serve.folder import ServedFolder


def test_names_are_below_the_folder_and_what_changes_is_read_again(tmp_path: Path) -> None:
    root = tmp_path / "notes"
    (root / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("one")
    (root / "deep" / "b.txt").write_text("two")
    (tmp_path / "secret.txt").write_text("not served")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "dangling.txt").symlink_to("nowhere.txt")
    served = ServedFolder([str(root)], Settings())
    first = served.documents()
    assert [(d.name, d.text) for d in first.documents] == [("a.txt", "one"), ("deep/b.txt", "two")]
    with patch.object(serve_folder, "load", side_effect=AssertionError("read again")):
        assert served.documents() is first
    (root / "a.txt").write_text("three, longer")
    assert served.documents().documents[0].text == "three, longer"
    (root / "a.txt").unlink()
    assert [d.name for d in served.documents().documents] == ["deep/b.txt"]
    served.close()


def test_files_of_two_folders_have_names_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_text(name)
    served = ServedFolder([str(tmp_path / "one"), str(tmp_path / "two")], Settings())
    assert [d.name for d in served.documents().documents] == ["one/same.txt", "two/same.txt"]
    served.close()


def test_a_folder_without_documents_is_an_error(tmp_path: Path) -> None:
    served = ServedFolder([str(tmp_path)], Settings())
    with pytest.raises(InputError):
        served.documents()
    served.close()
