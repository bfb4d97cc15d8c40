"""Models of a hub: what is downloaded, continues, is listed and deleted, and what is told."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from ngtcli.errors import ModelError
from ngtcli.models.checkpoint import BUILTIN_PATH, fetch, find, pull
from ngtcli.models.hub import ask, be_quiet, split_id
from ngtcli.system.progress import ByteBar
from tests.support.helpers import HARBOUR, NGT
from tests.support.hub_server import ID, OTHERS, WEIGHTS, Hub, files_of
from tests.support.recording_reporter import RecordingReporter

CHUNK = 10 * 1024 * 1024  # bytes that huggingface_hub writes at a time


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The files of a small model, whose weights are slightly longer than one chunk."""
    content = files_of(BUILTIN_PATH)
    assert len(content[WEIGHTS]) > CHUNK
    return content


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    with Hub({ID: {"main": {**files, **OTHERS}, "v2": {**files, "README.md": b"Second."}}}) as hub:
        yield hub


@pytest.fixture(scope="module")
def pulled(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a complete download."""
    cache_folder = tmp_path_factory.mktemp("pulled")
    with Hub({ID: {"main": files}}) as hub:
        assert hub.run(cache_folder, "models", "pull", ID).returncode == 0
    return cache_folder


@pytest.fixture
def folder(pulled: Path, tmp_path: Path) -> Path:
    """The model's folder in a copy of that cache."""
    shutil.copytree(pulled, tmp_path, symlinks=True, dirs_exist_ok=True)
    (snapshot,) = tmp_path.glob("hf/hub/models--*/snapshots/*")
    return snapshot


def has_weights(folder: str | Path, files: dict[str, bytes]) -> bool:
    return (Path(folder) / WEIGHTS).read_bytes() == files[WEIGHTS]


def test_needed_files_are_downloaded_once(
    hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    done = hub.run(tmp_path, "models", "pull", ID, HF_TOKEN="hf_secret")
    assert done.returncode == 0
    assert done.stderr == ""
    assert not hub.leaked
    assert sorted(hub.take_downloads()) == sorted(files)
    folder = Path(done.stdout.strip())
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == files
    again = hub.run(tmp_path, "models", "pull", ID, "--json")
    assert not hub.take_downloads()
    assert json.loads(again.stdout)["path"] == str(folder)
    for offline in ("0", "1"):
        dry_run = hub.run(
            tmp_path, "ask", "-d", HARBOUR, "Who?", "-m", ID, "--dry-run", HF_HUB_OFFLINE=offline
        )
        assert dry_run.returncode == 0, dry_run.stderr
        assert "harbour" in dry_run.stdout.lower()
    assert not hub.log  # the hub was not even asked
    listed = json.loads(hub.run(tmp_path, "models", "list", "--json").stdout)
    size = sum(map(len, files.values()))
    assert [(m["name"], m["bytes"]) for m in listed][1:] == [(ID, size)]


def test_a_model_is_answered_with_that_only_the_hub_had(hub: Hub, tmp_path: Path) -> None:
    done = hub.run(
        tmp_path,
        "ask",
        "-d",
        HARBOUR,
        "When is high tide?",
        "--max-tokens",
        "8",
        "-m",
        f"{ID}@v2",
        "-v",
        "--method",
        "none",
        "--dtype",
        "float32",
        NGT_PASSAGES="1",
        NGT_WHOLE_TOKENS="240",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "Downloading" in done.stderr
    assert "█" not in done.stderr


def test_only_the_tokenizer_is_downloaded_where_it_is_enough(hub: Hub, tmp_path: Path) -> None:
    done = hub.run(tmp_path, "docs", "show", HARBOUR, "-m", ID, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["documents"][0]["tokens"] > 100
    got = hub.take_downloads()
    assert "tokenizer.json" in got
    assert WEIGHTS not in got


def test_shards_of_the_index_are_downloaded_and_missing_ones_named(tmp_path: Path) -> None:
    small = {n: c for n, c in files_of(BUILTIN_PATH).items() if n != WEIGHTS}
    shards = [f"part-{i}.safetensors" for i in range(3)]
    index = {"weight_map": {f"layer.{i}": shard for i, shard in enumerate(shards)}}
    repository_files = {
        **small,
        f"{WEIGHTS}.index.json": json.dumps(index).encode(),
        "other.safetensors": b"x",
    }
    repository_files |= {shard: os.urandom(5_000_001 + i) for i, shard in enumerate(shards)}
    with Hub({ID: {"main": repository_files}}) as hub:
        done = hub.run(tmp_path, "models", "pull", ID)
        assert done.returncode == 0, done.stderr
        assert {*hub.take_downloads()} == {*repository_files} - {"other.safetensors"}
    folder = Path(done.stdout.strip())
    for shard in shards:
        assert (folder / shard).read_bytes() == repository_files[shard]
    (folder / shards[0]).unlink()
    (folder / shards[2]).unlink()
    with pytest.raises(Exception, match=f"no {shards[0]} and 1 more"):
        find(str(folder))


def test_a_connection_that_breaks_is_taken_up_again(
    hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    hub.breaks_at = {WEIGHTS: CHUNK + 200_000}
    done = hub.run(tmp_path, "models", "pull", ID)
    assert done.returncode == 4
    assert not done.stdout
    message, hint = done.stderr.splitlines()
    assert f"{ID}: the download failed" in message
    assert "continues where it stopped" in hint
    assert (WEIGHTS, CHUNK) in [(name, first) for _, name, first in hub.log]
    listed = json.loads(hub.run(tmp_path, "models", "list", "--json").stdout)
    assert listed[1]["unfinished_bytes"] == CHUNK
    listing = hub.run(tmp_path, "models", "list").stdout
    assert "10 MB unfinished" in listing
    hub.breaks_at = {}
    hub.log = []
    done = hub.run(tmp_path, "models", "pull", ID)
    assert done.returncode == 0, done.stderr
    assert has_weights(done.stdout.strip(), files)
    assert [
        first
        for request_method, name, first in hub.log
        if (request_method, name) == ("GET", WEIGHTS)
    ] == [CHUNK]


def test_a_download_goes_on_after_ctrl_c(hub: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    hub.waits_at = {WEIGHTS: CHUNK + 200_000}
    environ = {**os.environ, **hub.environ(tmp_path / "hf")}
    process = subprocess.Popen([*NGT, "models", "pull", ID], env=environ, stderr=subprocess.PIPE)
    blobs = tmp_path / "hf" / "hub" / f"models--{ID.replace('/', '--')}" / "blobs"
    name = f"{hashlib.sha256(files[WEIGHTS]).hexdigest()}.incomplete"
    while not (blobs / name).exists() or (blobs / name).stat().st_size < CHUNK:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert b"interrupted" in process.communicate()[1]
    assert process.returncode == 130
    hub.ended.set()
    hub.waits_at = {}
    hub.log = []
    done = hub.run(tmp_path, "models", "pull", ID)
    assert done.returncode == 0, done.stderr
    assert has_weights(done.stdout.strip(), files)
    assert [f for m, n, f in hub.log if (m, n) == ("GET", WEIGHTS)] == [CHUNK]


@pytest.mark.search
@pytest.mark.parametrize("extra_bytes", [0, 5000])
def test_a_damaged_download_is_not_kept(
    hub: Hub, files: dict[str, bytes], tmp_path: Path, extra_bytes: int
) -> None:
    # A proxy may answer with a page, and a mirror may be damaged.
    hub.replaced = {WEIGHTS: bytes(len(files[WEIGHTS]) + extra_bytes)}
    done = hub.run(tmp_path, "models", "pull", ID)
    assert done.returncode == 4
    assert "a downloaded file is damaged" in done.stderr
    hub.replaced = {}
    done = hub.run(tmp_path, "models", "pull", ID)
    assert done.returncode == 0, done.stderr
    assert has_weights(done.stdout.strip(), files)


def test_truncated_files_of_the_cache_are_reported_and_pulled_again(
    hub: Hub, files: dict[str, bytes], tmp_path: Path, folder: Path
) -> None:
    with (folder / WEIGHTS).open("r+b") as file:  # as after a crash, or on a full disk
        file.truncate(6_000_000)
    done = hub.run(tmp_path, "generate", "x", "-m", ID, "--max-tokens", "4")
    message, hint = done.stderr.splitlines()[-2:]
    assert done.returncode == 4
    assert "cannot be loaded" in message
    assert hint == f"Download its weights again: ngt models pull {ID}"
    (folder / "tokenizer.json").write_bytes(b"{")  # through the link
    hub.take_downloads()
    again = hub.run(tmp_path, "models", "pull", ID)
    assert again.stdout.strip() == str(folder)
    assert has_weights(folder, files)
    assert hub.take_downloads() == ["tokenizer.json", WEIGHTS]
    assert (folder / "tokenizer.json").read_bytes() == files["tokenizer.json"]


def test_a_download_without_a_byte_of_the_weights_is_unfinished(hub: Hub, tmp_path: Path) -> None:
    hub.breaks_at = {WEIGHTS: 0}
    assert hub.run(tmp_path, "models", "pull", ID).returncode == 4
    _, _, line = hub.run(tmp_path, "models", "list").stdout.splitlines()
    assert line.startswith(f"{ID}\t")
    assert "unfinished" in line.split("\t")[1]


@pytest.mark.usefixtures("folder")
def test_a_model_of_the_cache_stays_where_the_hub_is_gone(hub: Hub, tmp_path: Path) -> None:
    for environ in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        stderr = hub.run(tmp_path, "models", "pull", ID, **environ).stderr
        assert "its files in the local cache are unchanged" in stderr
        assert "Did you mean" not in stderr


@pytest.fixture
def own_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, as code in this process reaches it, with a cache of its own."""
    from huggingface_hub import constants, hf_api

    for key, value in hub.environ(tmp_path / "hf").items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf/hub"))
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(hf_api.api, "endpoint", hub.url)
    ask.cache_clear()
    return hub


def test_a_failed_question_is_asked_again_and_an_answer_is_kept(own_hub: Hub) -> None:
    own_hub.status = 500
    with pytest.raises(ModelError, match="answers 500"):
        ask(ID)
    own_hub.status = 0
    assert ask(ID).sizes[WEIGHTS] > CHUNK
    own_hub.log.clear()
    assert ask(ID).sizes
    assert not own_hub.log


def test_a_download_that_fails_reads_nothing_more(
    own_hub: Hub, files: dict[str, bytes], tmp_path: Path
) -> None:
    large = 3 * files[WEIGHTS]
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    small = {name: content for name, content in files.items() if name != WEIGHTS}
    repository_files = {
        **small,
        f"{WEIGHTS}.index.json": json.dumps(index).encode(),
        "a.safetensors": large,
        "b.safetensors": files[WEIGHTS],
    }
    own_hub.repos[ID] = {"main": repository_files}
    own_hub.waits_at = {"a.safetensors": CHUNK + 200_000}  # of the slow one a piece is there then
    own_hub.sends_rest = True
    blobs = tmp_path / "hf" / "hub" / f"models--{ID.replace('/', '--')}" / "blobs"
    slow = blobs / f"{hashlib.sha256(large).hexdigest()}.incomplete"
    own_hub.replaced = {"b.safetensors": bytes(len(files[WEIGHTS]))}
    with pytest.raises(ModelError, match="a downloaded file is damaged"):
        fetch(ID)
    own_hub.ended.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(30)
    assert slow.stat().st_size <= 2 * CHUNK
    assert not slow.with_suffix("").exists()


@pytest.mark.usefixtures("folder")
def test_refusals_of_the_hub_are_reported(own_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants, hf_api

    lacking = {"README.md": b"x", "model.Q8_0.gguf": b"GGUF"}
    own_hub.repos |= {"closed/model": own_hub.repos[ID], "maker/gguf": {"main": lacking}}
    own_hub.gated = {"closed/model"}

    def check(name: str, message: str, hint: str) -> None:
        for ask_for in (find, pull):
            with pytest.raises(ModelError, match=re.escape(message)) as caught:
                ask_for(name)
            assert hint in caught.value.hint

    for name, message, hint in (
        ("nobody/nothing", "no such model on the hub", "Give a folder"),
        ("maker/Smal-1B", "no such model on the hub", f"Did you mean {ID}?"),
        ("small-1b", "no such model on the hub", f"Did you mean {ID}?"),
        (f"{ID}@v3", "has no revision v3", "branch, tag or commit"),
        ("closed/model", "access to this model must be requested", "hf auth login"),
        ("maker/gguf", "repository on the hub has no config.json", "Download a GGUF file"),
    ):
        check(name, message, hint)
    own_hub.status = 401
    check("some/other", f"{own_hub.url} answers 401", "hf auth login")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hf_api.api, "endpoint", "http://127.0.0.1:9")
    check(
        "some/other",
        "cannot be reached (ConnectError, http://127",
        "Once online: ngt models pull some/other",
    )


def test_names_that_cannot_be_ids_do_not_reach_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ngtcli.models.hub.ask", lambda name: pytest.fail(name))
    for name in (
        "a/b/c",
        "a--b",
        "a..b/c",
        "-a/b",
        "a/b.",
        "a/b.git",
        "Mödell",
        "a b",
        "x" * 97,
        "@v1",
        "a/b@",
        "~/m",
        "./m",
        "/m",
        "a//b",
    ):
        assert split_id(name) == ("", None), name
        with pytest.raises(Exception, match="no such folder"):
            find(name)
    assert split_id("a/b@refs/pr/1") == ("a/b", "refs/pr/1")


@pytest.mark.usefixtures("folder")
def test_models_are_removed_once_that_is_confirmed(hub: Hub, tmp_path: Path) -> None:
    assert hub.run(tmp_path, "models", "pull", f"{ID}@v2").returncode == 0
    unconfirmed = hub.run(tmp_path, "models", "rm", ID)
    assert unconfirmed.returncode == 2
    assert "--yes" in unconfirmed.stderr
    second = hub.run(tmp_path, "models", "rm", f"{ID}@v2", "--yes", "--json")
    assert json.loads(second.stdout) == {"files": 1, "pieces": 0, "bytes": 7}
    listed = json.loads(hub.run(tmp_path, "models", "list", "--json").stdout)
    assert [m["name"] for m in listed] == ["builtin", ID]
    done = hub.run(tmp_path, "models", "rm", ID, "--yes")
    assert done.returncode == 0
    assert re.fullmatch(r"\d+ files, 13 MB removed\n", done.stdout)
    assert not list((tmp_path / "hf" / "hub").glob("models--*"))
    gone = hub.run(tmp_path, "models", "rm", ID, "--yes")
    assert gone.returncode == 4
    assert "no such model on this machine" in gone.stderr
    assert hub.run(tmp_path, "models", "rm", "builtin", "--yes").returncode == 2


@pytest.mark.search
@pytest.mark.parametrize("lost", ["snapshots", "snapshots/*", "blobs/*"])
def test_downloads_of_killed_runs_are_listed_and_removed(
    hub: Hub, tmp_path: Path, folder: Path, lost: str
) -> None:
    model_folder = folder.parents[1]
    path = min(model_folder.glob(lost), key=lambda entry: entry.stat().st_size)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    (model,) = json.loads(hub.run(tmp_path, "models", "list", "--json").stdout)[1:]
    assert model["name"] == ID
    assert model["unfinished_bytes"] > 0
    done = hub.run(tmp_path, "models", "rm", ID, "--yes")
    assert done.returncode == 0
    assert "removed" in done.stdout
    assert not model_folder.exists()


def test_warnings_of_the_hub_library_are_replaced_by_our_line(tmp_path: Path) -> None:
    from huggingface_hub.file_download import _check_disk_space

    with warnings.catch_warnings(record=True) as caught:
        be_quiet()
        _check_disk_space(10**18, tmp_path)
    assert not caught


def test_the_line_of_a_download_fits_60_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 100, 10))
    monkeypatch.setattr("ngtcli.system.progress.time.monotonic", lambda: float(next(times)))
    reported = RecordingReporter()
    bar = reported.of(lambda: ByteBar("Downloading", 16_000_000_000, 7_000_000_000))
    bar.update(1_000_000_000)
    bar.update(-400_000_000)  # some are read again
    bar.closed = True
    bar.update(1_000_000)
    assert reported.statuses == [
        "Downloading █████░░░░░ 8.0/16.0 GB, 100 MB/s, 80 s left",
        "Downloading ████░░░░░░ 7.6/16.0 GB, 30 MB/s, 5 min left",
    ]
    assert len("Downloading ███░░░░░░░ 12.4/99.9 GB, 100 MB/s, 119 min left") < 60
