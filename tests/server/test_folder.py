"""The folders that a server answers from."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest

from ngtcli.config import Settings
from ngtcli.documents import read
from ngtcli.errors import InputError
from ngtcli.server import folder
from ngtcli.server.folder import ServedFolder, StillReadingError


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with two documents and links that lead out of it."""
    root = tmp_path / "notes"
    (root / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("one")
    (root / "deep" / "b.txt").write_text("two")
    (tmp_path / "secret.txt").write_text("not served")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "dangling.txt").symlink_to("nowhere.txt")
    return root


Serve = Callable[..., ServedFolder]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A function that serves folders, which are closed after the test."""
    with ExitStack() as stack:

        def serve_folders(*paths: Path) -> ServedFolder:
            served = ServedFolder([str(path) for path in paths], Settings())
            return stack.enter_context(closing(served))

        yield serve_folders


def test_names_are_relative_to_the_folder_and_links_out_of_it_are_not_read(
    notes: Path, serve: Serve
) -> None:
    documents = serve(notes).documents().documents
    contents = {document.name: document.text for document in documents}
    assert contents == {"a.txt": "one", "deep/b.txt": "two"}


def test_unchanged_files_are_not_read_again(notes: Path, serve: Serve) -> None:
    served = serve(notes)
    loaded = served.documents()
    with patch.object(folder, "load", side_effect=AssertionError("read again")):
        assert served.documents() is loaded


def test_changed_and_deleted_files_are_noticed(notes: Path, serve: Serve) -> None:
    served = serve(notes)
    served.documents()

    (notes / "a.txt").write_text("three, longer")
    assert served.documents().documents[0].text == "three, longer"
    (notes / "a.txt").unlink()
    assert [document.name for document in served.documents().documents] == ["deep/b.txt"]


def test_files_of_two_folders_have_the_folder_in_their_names(tmp_path: Path, serve: Serve) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_text(name)
    documents = serve(tmp_path / "one", tmp_path / "two").documents().documents
    assert [document.name for document in documents] == ["one/same.txt", "two/same.txt"]


def test_a_folder_without_documents_is_an_error(tmp_path: Path, serve: Serve) -> None:
    served = serve(tmp_path)
    with pytest.raises(InputError):
        served.documents()


@pytest.mark.parametrize(("swapped", "target"), [("a.txt", "outside/a.txt"), ("deep", "outside")])
def test_a_file_that_is_swapped_for_a_link_before_it_is_read_is_left_out(
    swapped: str, target: str, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user who may write in the folder swaps it while it is read, and swaps it back."""
    root = tmp_path / "notes"
    outside = tmp_path / "outside"
    (root / "deep").mkdir(parents=True)
    outside.mkdir()
    for name in ("a.txt", "deep/b.txt"):
        (root / name).write_text("fine")
    for name in ("a.txt", "b.txt"):
        (outside / name).write_text("the secret")
    read_bounded = read.read_bounded
    original = root / swapped

    def read_while_swapped(path: Any, *arguments: Any, **options: Any) -> bytes:
        original.rename(tmp_path / "away")
        original.symlink_to(tmp_path / target)
        try:
            return read_bounded(path, *arguments, **options)
        finally:
            original.unlink()
            (tmp_path / "away").rename(original)

    monkeypatch.setattr(read, "read_bounded", read_while_swapped)
    (document,) = serve(root).documents().documents
    assert document.text == "fine"


def test_a_link_within_the_folder_is_not_read_twice(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("fine")
    (tmp_path / "notes" / "z.txt").symlink_to("a.txt")
    documents = serve(tmp_path / "notes").documents().documents
    assert [document.text for document in documents] == ["fine"]


def test_a_folder_may_be_named_by_a_link(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("fine")
    (tmp_path / "link").symlink_to("notes")
    documents = serve(tmp_path / "link").documents().documents
    assert [document.text for document in documents] == ["fine"]


def test_a_thread_does_not_wait_for_another_one_that_reads(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("text")
    served = serve(tmp_path)
    begun = Event()
    may_continue = Event()
    load = folder.load

    def load_slowly(*arguments: Any, **options: Any) -> Any:
        begun.set()
        assert may_continue.wait(60)
        return load(*arguments, **options)

    monkeypatch.setattr(folder, "load", load_slowly)
    with ThreadPoolExecutor() as threads:
        loading = threads.submit(served.documents)
        assert begun.wait(60)
        with pytest.raises(StillReadingError):
            served.documents()
        may_continue.set()
        assert loading.result(60).documents == served.documents().documents
