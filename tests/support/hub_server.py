"""A hub on the loopback address, which answers the requests of huggingface_hub, and may fail."""

import hashlib
import json
import re
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support import warm

ID = "maker/Small-1B"
WEIGHTS = "model.safetensors"
OTHERS = {
    ".gitattributes": b"*",
    "LICENSE": b"free",
    "modeling_small.py": b"raise SystemExit",
    "pytorch_model.bin": b"x" * 2000,
    "Small-1B.Q4_K_M.gguf": b"GGUF",
    "consolidated.00.pth": b"x",
    "onnx/model.onnx": b"x",
    "onnx/config.json": b"{}",
    "original/params.json": b"{}",
}
_CHUNK = 1 << 16  # bytes that are sent at once
_MIN_LFS_SIZE = 1_000_000  # bytes; the ETag of a larger file is its SHA-256
_NO_PROXY = "127.0.0.1,localhost"
_PATHS = re.compile(
    r"/(?:api/models/)?(?P<repo>[^/?]+/[^/?]+)"
    r"(?:/(?P<kind>resolve|revision|tree)/(?P<revision>[^/?]+)(?:/(?P<file>[^?]+))?)?(?:\?.*)?"
)


# The library reads the environment when it is imported, which was before the fork.
_RUN = """
import importlib
from types import SimpleNamespace

from huggingface_hub import constants, file_download, hf_api

from ngtcli.__main__ import main

importlib.reload(constants)
file_download.time = SimpleNamespace(sleep=lambda _: None)  # a second before each new try
hf_api.api.endpoint = constants.ENDPOINT
main()
"""


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def etag(content: bytes) -> str:
    algorithm = hashlib.sha256 if len(content) >= _MIN_LFS_SIZE else hashlib.sha1
    return algorithm(content).hexdigest()


def _file_object(name: str, content: bytes) -> dict[str, Any]:
    """Return the description of a file in JSON replies."""
    description: dict[str, Any] = {
        "type": "file",
        "path": name,
        "rfilename": name,
        "size": len(content),
        "oid": etag(content),
        "blobId": etag(content),
    }
    if len(content) >= _MIN_LFS_SIZE:
        description["lfs"] = {
            "oid": etag(content),
            "sha256": etag(content),
            "size": len(content),
            "pointerSize": 1,
        }
    return description


class Hub:
    """The server, a context manager.

    Large files are sent under another host's name, like those of a hub that stores them elsewhere.

    Attributes:
        repos: The files of each revision of each repository: {id: {revision: {file: content}}}.
        gated: The ids of repositories that only some users may read.
        breaks_at: By file, the byte before which the connection breaks.
        waits_at: By file, the byte before which the connection waits for `ended`.
        sends_rest: Whether the rest of a file follows after the wait.
        replaced: By file, the content that is sent in place of its own.
        status: If not 0, the status of every reply.
        log: (method, file or path, first byte) of each request.
        leaked: The large files for which the other host was sent the token.
        ended: Set when the server is closed; a test may set it earlier.
    """

    def __init__(self, repos: Mapping[str, Mapping[str, Mapping[str, bytes]]]) -> None:
        self.repos = {repo: dict(revisions) for repo, revisions in repos.items()}
        self.gated: set[str] = set()
        self.breaks_at: dict[str, int] = {}
        self.waits_at: dict[str, int] = {}
        self.sends_rest = False
        self.replaced: dict[str, bytes] = {}
        self.status = 0
        self.log: list[tuple[str, str, int]] = []
        self.leaked: list[str] = []
        self.ended = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Hub":
        serve = partial(self._server.serve_forever, poll_interval=0.02)  # `shutdown` waits for it
        threading.Thread(target=serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def environ(self, home: Path) -> dict[str, str]:
        """Variables by which huggingface_hub uses this hub, with its cache in `home`."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": _NO_PROXY,
            "no_proxy": _NO_PROXY,
        }

    def run(self, folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `ngt WORDS` with this hub, and the library's cache in `folder`/hf."""
        process = warm.run(*words, code=_RUN, **{**self.environ(folder / "hf"), **environ})
        return subprocess.CompletedProcess(
            words, process.returncode, process.stdout.decode(), process.stderr.decode()
        )

    def take_downloads(self) -> list[str]:
        """Return the files that were requested since the last call."""
        files = [name for method, name, _ in self.log if method == "GET" and name[0] != "/"]
        self.log.clear()
        return files

    def commit(self, repo: str, revision: str) -> str:
        """Return the commit of a revision, given by name or by commit; "" if it is unknown."""
        for name in self.repos[repo]:
            commit = hashlib.sha1(f"{repo}@{name}".encode()).hexdigest()
            if revision in (name, commit):
                return commit
        return ""

    def files(self, repo: str, commit: str) -> Mapping[str, bytes]:
        """Return the files of a commit, which exists."""
        return next(
            files
            for revision, files in self.repos[repo].items()
            if self.commit(repo, revision) == commit
        )


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    request_log: tuple[str, str, int]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def send_response(self, code: int, message: str | None = None) -> None:
        if code != 302:
            self.hub.log.append(self.request_log)
        super().send_response(code, message)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = _PATHS.fullmatch(self.path)
        byte_range = re.search(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(byte_range[1]) if byte_range else 0
        name = path["file"] if path and path["kind"] == "resolve" else None
        self.request_log = (self.command, name or self.path, first)
        if self.hub.status:
            return self._fail(self.hub.status, "")
        if path is None or path["repo"] not in self.hub.repos:
            return self._fail(404, "RepoNotFound")
        repo = path["repo"]
        commit = self.hub.commit(repo, path["revision"] or "main")
        if not commit:
            return self._fail(404, "RevisionNotFound")
        files = self.hub.files(repo, commit)
        if path["kind"] == "resolve":
            if repo in self.hub.gated:
                return self._fail(403, "GatedRepo")
            if name not in files:
                return self._fail(404, "EntryNotFound")
            return self._send_file(str(name), files[str(name)], commit, first, bool(byte_range))
        file_objects = [_file_object(name, content) for name, content in files.items()]
        if path["kind"] == "tree":
            return self._send_json(file_objects)
        self._send_json(
            {
                "_id": repo,
                "id": repo,
                "sha": commit,
                "siblings": file_objects,
                "tags": [],
                "private": False,
                "downloads": 0,
                "likes": 0,
                "gated": "auto" if repo in self.hub.gated else False,
            }
        )

    def _fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _send_file(self, name: str, content: bytes, commit: str, first: int, is_part: bool) -> None:
        host, _, port = self.headers["Host"].partition(":")
        if len(content) >= _MIN_LFS_SIZE and host != "localhost":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{port}{self.path}")
            self.send_header("X-Linked-ETag", f'"{etag(content)}"')
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if host == "localhost" and self.headers["Authorization"]:
            self.hub.leaked.append(name)
        self.send_response(206 if is_part else 200)
        self.send_header("ETag", f'"{etag(content)}"')
        content = self.hub.replaced.get(name, content)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content) - first))
        if is_part:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        end = self.hub.breaks_at.get(name, self.hub.waits_at.get(name, len(content)))
        with suppress(OSError):  # the client is gone
            for start in range(first, end, _CHUNK):
                self.wfile.write(content[start : min(start + _CHUNK, end)])
            if name in self.hub.waits_at:
                self.hub.ended.wait()
                if self.hub.sends_rest:
                    self.wfile.write(content[end:])
                    return
            if end < len(content):
                self.close_connection = True
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
