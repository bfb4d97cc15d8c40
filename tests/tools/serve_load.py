"""Many clients of `ngt serve`: `python -m tests.tools.serve_load [--clients 200]`.

Each of some questions is answered once, alone; that is the truth. Then all clients ask at once and
again: for whole answers and for streams, with bodies that break off, and with connections that are
closed in the middle of an answer. Every answer that comes whole must be the truth. Behind a third
of each half, and at its end, when nobody asks any more, the server's memory is read: it may grow by
`--growth` at most. Between the halves the server is killed by SIGKILL and started again. Exit code
6 where an answer differs or is missing, or memory grows more.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from ngtcli.errors import DifferenceError, NgtError

_EXAMPLES = Path(__file__).parents[2] / "ngtcli" / "examples"
_TEXTS = sorted(path.read_text(encoding="utf-8") for path in _EXAMPLES.glob("*.*"))
_ASKED = (
    "When is high tide?",
    "Who repairs the nets?",
    "What does the bus cost?",
    "Which seeds are sown?",
    "Where is the harbour?",
    "What is planted in spring?",
    "How long?",
)
_READY_S, _ANSWER_S, _QUIET_S = 120.0, 300.0, 2.0  # patience, and rest before memory is read


def questions() -> list[tuple[str, dict[str, Any]]]:
    """(path, request) of all kinds: short and longer, greedy and drawn, with and without texts."""
    found: list[tuple[str, dict[str, Any]]] = []
    for i, asked in enumerate(_ASKED):
        said = {"messages": [{"role": "user", "content": asked}]}
        longer = f"{asked} {_TEXTS[i % len(_TEXTS)][:300]}"
        drawn = {"temperature": 0.8, "seed": i, "top_p": 0.9, "max_tokens": 8 + 4 * i}
        chat, own = "/v1/chat/completions", {"model": "builtin", "max_tokens": 12 + i}
        found += [
            (chat, {**own, **said, "documents": [_TEXTS[i % len(_TEXTS)]], "max_tokens": 40}),
            (chat, {**own, **said, **drawn}),
            (chat, {**said, "model": "builtin+docs", "max_tokens": 40}),
            (chat, {**own, "messages": [{"role": "user", "content": longer}]}),
        ]
    return found


@contextmanager
def served(port: int, home: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`ngt serve` that is ready."""
    environ = {**os.environ, "NGT_HOME": str(home), "NGT_BACKGROUND": "none"}
    command = [sys.executable, "-m", "ngtcli", "serve", "-d", str(_EXAMPLES), "--http", str(port)]
    process = subprocess.Popen(command, env=environ)
    try:
        deadline = time.monotonic() + _READY_S
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                raise NgtError("the server does not come up")
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise NgtError("the server does not end") from None


def memory_mb(process: int) -> float:
    """Resident memory of a process, megabytes of 10^6 bytes."""
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer, or of a streamed piece of one."""
    choice = answer["choices"][0] if answer["choices"] else {}
    part = choice.get("message") or choice.get("delta") or {}
    return str(part.get("content") or "")


class Load:
    """Clients that ask until a time; `counts` are of what happened to their requests."""

    def __init__(self, port: int, clients: int, rng: random.Random) -> None:
        self._port, self._clients, self._rng = port, clients, rng
        self._asked = questions()
        self.truth: list[str] = []
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._seconds: list[float] = []

    async def learn(self) -> None:
        """Ask each question alone."""
        async with self._client() as client:
            found = [
                text_of((await client.post(path, json=body)).raise_for_status().json())
                for path, body in self._asked
            ]
        if self.truth and found != self.truth:
            raise DifferenceError("the server answers otherwise after it was started again")
        self.truth = found

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        url = f"http://127.0.0.1:{self._port}"
        return httpx.AsyncClient(base_url=url, timeout=_ANSWER_S, limits=limits)

    async def run(self, seconds: float) -> None:
        """Ask for so long; returns when every client is done."""
        until = time.monotonic() + seconds
        async with self._client() as client:
            await asyncio.gather(*(self._ask_until(client, until) for _ in range(self._clients)))

    async def _ask_until(self, client: httpx.AsyncClient, until: float) -> None:
        await asyncio.sleep(self._rng.random())
        while time.monotonic() < until:
            number = self._rng.randrange(len(self._asked))
            ways = (self._whole, self._streamed, self._cancelled, self._broken)
            way = self._rng.choices(ways, (4, 4, 2, 1))[0]
            try:
                await way(client, number)
            except httpx.HTTPError as error:
                self.counts[f"lost: {type(error).__name__}"] += 1
                self.wrong.append(f"{way.__name__}: {error!r}")

    async def _whole(self, client: httpx.AsyncClient, number: int) -> None:
        path, body = self._asked[number]
        began = time.monotonic()
        response = await client.post(path, json=body)
        if await self._is_busy(response):
            return
        self._compare(number, text_of(response.raise_for_status().json()))
        self._seconds.append(time.monotonic() - began)

    async def _streamed(self, client: httpx.AsyncClient, number: int) -> None:
        path, body = self._asked[number]
        text, done = "", False
        async with client.stream("POST", path, json={**body, "stream": True}) as response:
            if await self._is_busy(response):
                return
            async for line in response.raise_for_status().aiter_lines():
                done = done or line == "data: [DONE]"
                if line.startswith("data: {"):
                    text += text_of(json.loads(line[6:]))
        self._compare(number, text if done else f"{text} (broken off)")

    async def _cancelled(self, client: httpx.AsyncClient, number: int) -> None:
        """Leave after a moment, or after some pieces."""
        path, body = self._asked[number]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rng.uniform(0.01, 2.0)):
                stream = client.stream("POST", path, json={**body, "stream": True})
                async with stream as response:
                    left = self._rng.randrange(6)
                    async for _ in response.aiter_lines():
                        left -= 1
                        if left < 0:
                            break
        self.counts["cancelled"] += 1

    async def _broken(self, client: httpx.AsyncClient, number: int) -> None:
        """Send a part of a request, or all of it, and reset the connection."""
        path, body = self._asked[number]
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sent = head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(sent[: self._rng.choice((len(sent), self._rng.randrange(len(sent))))])
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        writer.transport.abort()
        self.counts["broken"] += 1

    async def _is_busy(self, response: httpx.Response) -> bool:
        if response.status_code not in (429, 503):
            return False
        self.counts["refused"] += 1
        await asyncio.sleep(float(response.headers["retry-after"]) * self._rng.random())
        return True

    def _compare(self, number: int, text: str) -> None:
        same = text == self.truth[number]
        self.counts["whole" if same else "different"] += 1
        if not same:
            self.wrong.append(f"{self._asked[number]}: {text!r}, not {self.truth[number]!r}")

    def report(self) -> str:
        """What happened, in one line."""
        middle = sorted(self._seconds)[len(self._seconds) // 2] if self._seconds else 0.0
        return f"{json.dumps(self.counts)}, median {middle:.2f} s for a whole answer"


def run(args: argparse.Namespace, home: Path) -> None:
    """Both halves. Raises DifferenceError."""
    load = Load(args.port, args.clients, random.Random(args.seed))
    grown = []
    for half in (1, 2):
        with served(args.port, home) as process:
            asyncio.run(load.learn())
            asyncio.run(load.run(args.minutes * 10))
            time.sleep(_QUIET_S)
            first = memory_mb(process.pid)
            asyncio.run(load.run(args.minutes * 20))
            time.sleep(_QUIET_S)
            last = memory_mb(process.pid)
            grown.append(last / first - 1)
            growth = f"memory {first:.1f} to {last:.1f} MB, {grown[-1]:+.2%}"
            print(f"half {half}: {load.report()}; {growth}", flush=True)
            if half == 1:
                process.send_signal(signal.SIGKILL)
    for line in load.wrong[:20]:
        print(line)
    if load.wrong or max(grown) > args.growth:
        raise DifferenceError(f"{len(load.wrong)} wrong answers, memory {max(grown):+.2%}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--port", type=int, default=8431)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--growth", type=float, default=0.02)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        try:
            run(args, Path(home))
        except NgtError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
