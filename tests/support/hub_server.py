"""A stand-in for a hub on the loopback address: what huggingface_hub asks for, and its failures.

A repository is a mapping of revisions to files.
"""

import hashlib
import json
import re
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
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
_PIECE = 1 << 16
_LFS = 1_000_000  # bytes from which on a file's ETag is its SHA-256
_OWN = "127.0.0.1,localhost"
_PATHS = re.compile(
    r"/(?:api/models/)?(?P<repo>[^/?]+/[^/?]+)"
    r"(?:/(?P<what>resolve|revision|tree)/(?P<revision>[^/?]+)(?:/(?P<file>[^?]+))?)?(?:\?.*)?"
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
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def etag(content: bytes) -> str:
    kind = hashlib.sha256 if len(content) >= _LFS else hashlib.sha1
    return kind(content).hexdigest()


class Hub:
    """The server; a context manager. `repos`: {id: {revision: {file: content}}}.

    `stops` has the byte of a file at which the connection breaks, `held` that at which it waits
    for the hub's end (with `goes_on` the rest is sent then), `sent` what is sent in the place of
    its content. Large files are sent under another host's name, as by a hub that has them
    elsewhere; `leaked` has those for which that host got the token. With a `status` nothing else is
    answered. `log` has (method, file or path, first byte).
    """

    def __init__(self, repos: Mapping[str, Mapping[str, Mapping[str, bytes]]]) -> None:
        self.repos = {repo: dict(revisions) for repo, revisions in repos.items()}
        self.gated: set[str] = set()
        self.stops: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.goes_on = False
        self.sent: dict[str, bytes] = {}
        self.status = 0
        self.log: list[tuple[str, str, int]] = []
        self.leaked: list[str] = []
        self.ended = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Hub":
        often = {"poll_interval": 0.02}  # `shutdown` waits for it
        threading.Thread(target=self._server.serve_forever, kwargs=often, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def environ(self, home: Path) -> dict[str, str]:
        """Variables with which huggingface_hub asks this hub, and keeps its files in `home`."""
        own = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
        return {**own, "NO_PROXY": _OWN, "no_proxy": _OWN}

    def run(self, place: Path, *words: str, **environ: str) -> Any:
        """`ngt WORDS` with this hub and a cache in `place`, as of `subprocess.run` with text."""
        own = {**self.environ(place / "hf"), **environ}
        done = warm.run(*words, code=_RUN, **own)
        out, errors = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(words, done.returncode, out, errors)

    def got(self) -> list[str]:
        """The files whose content was asked for, since the last call."""
        found = [what for method, what, _ in self.log if method == "GET" and "/" != what[0]]
        self.log.clear()
        return found

    def commit(self, repo: str, revision: str) -> str:
        """The commit of a revision's name, or of itself; "" where there is none."""
        names = {hashlib.sha1(f"{repo}@{r}".encode()).hexdigest(): r for r in self.repos[repo]}
        return next((c for c, r in names.items() if revision in (c, r)), "")

    def files(self, repo: str, commit: str) -> Mapping[str, bytes]:
        return next(f for r, f in self.repos[repo].items() if self.commit(repo, r) == commit)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    asked: tuple[str, str, int]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def send_response(self, code: int, message: str | None = None) -> None:
        if code != 302:
            self.hub.log.append(self.asked)
        super().send_response(code, message)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        found = _PATHS.fullmatch(self.path)
        asked = re.search(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        name = found["file"] if found and found["what"] == "resolve" else None
        self.asked = (self.command, name or self.path, first)
        if self.hub.status:
            return self._fail(self.hub.status, "")
        if not found or found["repo"] not in self.hub.repos:
            return self._fail(404, "RepoNotFound")
        repo, what = found["repo"], found["what"]
        if not (commit := self.hub.commit(repo, found["revision"] or "main")):
            return self._fail(404, "RevisionNotFound")
        files = self.hub.files(repo, commit)
        if what == "resolve":
            if repo in self.hub.gated:
                return self._fail(403, "GatedRepo")
            if name not in files:
                return self._fail(404, "EntryNotFound")
            return self._send_file(str(name), files[str(name)], commit, first, bool(asked))
        about = [
            {
                "type": "file",
                "path": n,
                "rfilename": n,
                "size": len(c),
                "oid": etag(c),
                "blobId": etag(c),
            }
            | (
                {"lfs": {"oid": etag(c), "sha256": etag(c), "size": len(c), "pointerSize": 1}}
                if len(c) >= _LFS
                else {}
            )
            for n, c in files.items()
        ]
        if what == "tree":
            return self._send_json(about)
        self._send_json(
            {
                "_id": repo,
                "id": repo,
                "sha": commit,
                "siblings": about,
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

    def _send_file(self, name: str, content: bytes, commit: str, first: int, part: bool) -> None:
        host, _, port = self.headers["Host"].partition(":")
        if len(content) >= _LFS and host != "localhost":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{port}{self.path}")
            self.send_header("X-Linked-ETag", f'"{etag(content)}"')
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if host == "localhost" and self.headers["Authorization"]:
            self.hub.leaked.append(name)
        self.send_response(206 if part else 200)
        self.send_header("ETag", f'"{etag(content)}"')
        content = self.hub.sent.get(name, content)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Content-Length", str(len(content) - first))
        if part:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        end = self.hub.stops.get(name, self.hub.held.get(name, len(content)))
        with suppress(OSError):  # the client is gone
            for at in range(first, end, _PIECE):
                self.wfile.write(content[at : min(at + _PIECE, end)])
            if name in self.hub.held:
                self.hub.ended.wait()
                if self.hub.goes_on:
                    self.wfile.write(content[end:])
                    return
            if end < len(content):
                self.close_connection = True
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
