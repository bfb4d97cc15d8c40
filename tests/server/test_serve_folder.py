"""The folders that a server answers from."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest

from ngtcli.config import Settings
from ngtcli.documents import read as read_module
from ngtcli.errors import InputError
from ngtcli.server import folder as serve_folder
from ngtcli.server.folder import ServedFolder, StillReadingError


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


@pytest.mark.parametrize("swapped", ["file", "folder"])
def test_what_is_swapped_for_a_link_meanwhile_is_not_read(
    swapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write in the folder puts a link where a file was found, and takes it away again."""
    root, far = tmp_path / "notes", tmp_path / "far"
    (root / "deep").mkdir(parents=True)
    far.mkdir()
    for name in ("a.txt", "deep/b.txt"):
        (root / name).write_text("fine")
    for name in ("a.txt", "b.txt"):
        (far / name).write_text("the secret")
    read = read_module.read_bounded
    place, target = (root / "a.txt", far / "a.txt") if swapped == "file" else (root / "deep", far)

    def read_while_swapped(path: Any, *arguments: Any, **more: Any) -> bytes:
        place.rename(tmp_path / "away")
        place.symlink_to(target)
        try:
            return read(path, *arguments, **more)
        finally:
            place.unlink()
            (tmp_path / "away").rename(place)

    monkeypatch.setattr(read_module, "read_bounded", read_while_swapped)
    served = ServedFolder([str(root)], Settings())
    found = served.documents().documents
    served.close()
    assert len(found) == 1 and found[0].text == "fine"


def test_a_link_inside_of_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("fine")
    (tmp_path / "notes" / "z.txt").symlink_to("a.txt")
    (tmp_path / "way").symlink_to("notes")  # the folder itself may be named by a link
    served = ServedFolder([str(tmp_path / "way")], Settings())
    assert [d.text for d in served.documents().documents] == ["fine"]
    served.close()


def test_a_thread_does_not_wait_for_another_one_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    served, begun, go_on = ServedFolder([str(tmp_path)], Settings()), Event(), Event()
    load = serve_folder.load

    def slow(*arguments: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return load(*arguments, **more)

    monkeypatch.setattr(serve_folder, "load", slow)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(served.documents)
        assert begun.wait(60)
        with pytest.raises(StillReadingError):
            served.documents()
        go_on.set()
        assert first.result(60).documents == served.documents().documents
    served.close()
